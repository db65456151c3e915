"""List the source files that one `annocoin train` passes, in order, as a Markdown table.

    python tools/trace_train.py

A file counts if one of its functions is called; importing it is not enough. The run is tiny: tags
on synthetic scenes, one round, everything in one process.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import annocoin

ROOT = Path(annocoin.__file__).parent
OPTIONS = {
    "regions.limit": "60",
    "classifier.epochs": "1",
    "conditional.training.initial_steps": "2",
    "conditional.training.steps": "2",
    "prediction.training.steps": "2",
    "prediction.training.final_steps": "2",
    "rounds": "1",
}


def trace_train(folder: Path) -> list[Path]:
    """The files of the package with a function that was called, by their first call."""
    from annocoin.cli import main
    from annocoin.synthetic.dataset import write_synthetic

    write_synthetic(folder / "scenes", images=5, size=64)
    words = ["annocoin", "train", str(folder / "scenes"), "--split", "train"]
    words += ["--out", str(folder / "run"), "--preset", "synthetic", "--jobs", "1"]
    for name, value in OPTIONS.items():
        words += ["--set", f"{name}={value}"]
    files: dict[str, None] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # and not the body of a class
        if event == "call" and is_function and not code.co_name.startswith("<"):
            files.setdefault(code.co_filename)

    sys.argv = words
    sys.setprofile(profile)
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
    finally:
        sys.setprofile(None)
    paths = [Path(name) for name in files if name.endswith(".py")]  # templates are compiled, too
    return [path for path in paths if path.is_relative_to(ROOT)]


def summary(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n", 1)[0]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = trace_train(Path(folder))
    print(f"| | file ({len(files)}) | |\n| --- | --- | --- |")
    for number, path in enumerate(files, start=1):
        print(f"| {number} | `{path.relative_to(ROOT).as_posix()}` | {summary(path)} |")


if __name__ == "__main__":
    main()
