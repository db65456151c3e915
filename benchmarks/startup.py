"""Start-up time of the command line, relative to importing the libraries that it is built on.

    python benchmarks/startup.py [--repeats 30] [--json FILE]

Prints, for each command, the best wall-clock time of some runs, and its ratio to
`python -c "import typer, rich"`. The runs are interleaved, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

REFERENCE = "import typer, rich"
ANNOCOIN = "from annocoin.cli import main; main()"
TRAIN = [ANNOCOIN, "train", "data", "--out", "run"]
COMMANDS = {
    REFERENCE: [REFERENCE],
    "import annocoin": ["import annocoin"],
    "annocoin --help": [ANNOCOIN, "--help"],
    "annocoin --version": [ANNOCOIN, "--version"],
    "annocoin train --help": [ANNOCOIN, "train", "--help"],
    "mistyped command": [ANNOCOIN, "trian"],
    "mistyped option": [*TRAIN, "--sede", "1"],
    "mistyped preset": [*TRAIN, "--preset", "voc"],
}
"""Arguments of `python -c`; the script `annocoin` runs the same code."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    best = {name: float("inf") for name in COMMANDS}
    for _ in range(arguments.repeats):
        for name, words in COMMANDS.items():
            best[name] = min(best[name], seconds([sys.executable, "-c", *words]))
    for name, value in best.items():
        print(f"{name:22s} {1000 * value:5.0f} ms  {value / best[REFERENCE]:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"seconds": best}, indent=1))


def seconds(command: list[str]) -> float:
    """Wall-clock time of a process."""
    started = time.perf_counter()
    subprocess.run(command, capture_output=True, check=False)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
