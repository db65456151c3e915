from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from annocoin import files
from annocoin.errors import InputError, Problems


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    files.write_json(target, {"old": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(target, {"new": float("nan")})
    with pytest.raises(TypeError):
        files.write_bytes(target, "text")  # type: ignore[arg-type]
    assert target.read_text() == '{"old": 1}'
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_missing_parents_are_created(tmp_path: Path) -> None:
    files.write_json(tmp_path / "b" / "c" / "a.json", [])
    assert (tmp_path / "b" / "c" / "a.json").read_text() == "[]"


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with files.new_directory(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_folder_is_removed_on_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    def make() -> None:
        with files.new_directory(tmp_path / "out") as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(error):
        make()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with (
        pytest.raises(InputError, match="exists already"),
        files.new_directory(tmp_path / "out"),
    ):
        pass
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with files.new_directory(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "out" / "file").exists()


def test_a_second_holder_of_a_lock_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "run" / ".lock"
    with (
        files.exclusive_lock(lock),
        pytest.raises(InputError) as caught,
        files.exclusive_lock(lock),
    ):
        pass
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: another process is writing there; wait for it, or stop it"
    )
    with files.exclusive_lock(lock):  # released, and after an error too
        pass
    with pytest.raises(RuntimeError), files.exclusive_lock(lock):
        raise RuntimeError
    with files.exclusive_lock(lock):
        pass


HOLDER = """
import sys, time
from pathlib import Path
from annocoin.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process"), files.exclusive_lock(lock):
            pass
        process.kill()
    with files.exclusive_lock(lock):
        pass


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(InputError, match="cannot be written"),
        files.exclusive_lock(tmp_path / "file" / ".lock"),
    ):
        pass


def test_files_and_errors_import_nothing_heavy() -> None:
    code = """
import sys, annocoin.files
assert not {"torch", "cv2", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_problems_stop_at_the_first_or_are_skipped() -> None:
    def work(problems: Problems) -> list[int]:
        done = []
        for number in range(3):
            with problems.caught():
                if number == 1:
                    raise InputError("one\n is   bad")
                done.append(number)
        return done

    skipping = Problems(skip=True)
    assert work(skipping) == [0, 2]
    assert skipping.skipped == ["one is bad"]
    with pytest.raises(InputError):
        work(Problems())


def test_other_errors_are_never_skipped() -> None:
    with pytest.raises(ZeroDivisionError), Problems(skip=True).caught():
        raise ZeroDivisionError


def test_a_full_disk_names_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill() -> None:
        with files.new_directory(tmp_path / "out"):
            full(0)

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda: files.write_json(tmp_path / "out", {}), fill):
        with pytest.raises(InputError) as caught:
            write()
        expected = f"{tmp_path / 'out'}: cannot be written (No space left on device)"
        assert str(caught.value) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_missing_input_is_not_reported_as_the_output(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), files.new_directory(tmp_path / "out"):
        (tmp_path / "in").read_text()


KILLED = """
import os, signal, sys
from pathlib import Path
from annocoin import files
os.fsync = os.sync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1].endswith(".json"):
    files.write_json(Path(sys.argv[1]), {})
with files.new_directory(Path(sys.argv[1])) as folder:
    (folder / "x").write_text("x")
"""


@pytest.mark.parametrize("name", ["a.json", "folder", "x" * 255])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, name: str) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "deep" / name)], check=False)
    (left,) = (tmp_path / "deep").iterdir()
    assert left.name.endswith(".part")
    mine = tmp_path / "deep" / ".mine.part"
    mine.write_text("of somebody else")
    running = left.rename(left.with_name(re.sub(r"-\d+-", f"-{os.getpid()}-", left.name)))
    files._clean_once.cache_clear()
    files.write_json(tmp_path / "deep" / "b.json", {})
    assert running.exists(), "of a process that runs"
    running.rename(left)
    files._clean_once.cache_clear()
    files.write_json(tmp_path / "deep" / "b.json", {})
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"b.json", mine.name}


def test_records_notice_changes(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    files.write_record(path, {"a": (1, 2), "b": {"c": 0.1}, 3: None})
    assert files.read_record(path) == {"a": [1, 2], "b": {"c": 0.1}, "3": None}
    text = path.read_text()
    for change in (text.replace("0.1", "0.2"), text.replace('"a"', '"z"')):
        path.write_text(change)
        with pytest.raises(InputError, match="damaged, its content does not fit its digest"):
            files.read_record(path)
    for content in ("[]", "null", "3", '"x"'):
        path.write_text(content)
        with pytest.raises(InputError, match="damaged, found"):
            files.read_record(path)
    path.write_text('{"a": 1}')  # of an earlier version
    assert files.read_record(path) == {"a": 1}
