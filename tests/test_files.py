from __future__ import annotations

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
