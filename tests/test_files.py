from __future__ import annotations

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


def test_missing_parents_are_made(tmp_path: Path) -> None:
    files.write_json(tmp_path / "b" / "c" / "a.json", [])
    assert (tmp_path / "b" / "c" / "a.json").read_text() == "[]"


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with files.new_directory(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_folder_whose_making_fails_vanishes(tmp_path: Path, error: type[BaseException]) -> None:
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


def test_problems_stop_at_the_first_unless_told_to_skip() -> None:
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
