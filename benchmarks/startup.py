"""Start-up time of the command line, relative to importing the libraries that it is built on.

    python benchmarks/startup.py [--repeats 30] [--json FILE]
    python benchmarks/startup.py --predict [--repeats 5]

Prints, for each command, the best wall-clock time of some runs and the least processor time, and
their ratios to `python -c "import typer, rich"`. The runs are interleaved, so that a busy machine
slows all alike. With --predict: a prediction in one image of 240 x 320 pixels by a network of
preset voc-cpu with random weights, and ratios to `python -c "import torch, torchvision"`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
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

TORCH = "import torch, torchvision"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--predict", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = prediction_commands(Path(folder)) if arguments.predict else COMMANDS
        best = {name: (float("inf"), float("inf")) for name in commands}
        for repeat in range(arguments.repeats):
            for name, words in commands.items():
                out = ["--out", f"{folder}/{repeat}"] if "predict" in words else []
                wall, processor = seconds([sys.executable, "-c", *words, *out], arguments.predict)
                best[name] = (min(best[name][0], wall), min(best[name][1], processor))
    reference = next(iter(best.values()))
    for name, values in best.items():
        columns = (
            f"{1000 * v:6.0f} ms {v / r:5.2f}" for v, r in zip(values, reference, strict=True)
        )
        print(f"{name:26s} wall {'   processor '.join(columns)}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"wall, processor": best}, indent=1))


def prediction_commands(folder: Path) -> dict[str, list[str]]:
    """A prediction by a network in this folder, and imports to compare with."""
    from PIL import Image

    from annocoin.engine.presets import configure
    from annocoin.prediction.networks import build_network, write_prediction
    from annocoin.synthetic.dataset import render_scene

    classes = tuple(f"class {i}" for i in range(20))
    architecture = configure("voc-cpu", classes).prediction.architecture
    write_prediction(folder / "net.safetensors", build_network(architecture), architecture)
    Image.fromarray(render_scene(0, 0, (240, 320)).image).save(folder / "image.png")
    paths = [str(folder / name) for name in ("net.safetensors", "image.png")]
    return {
        TORCH: [TORCH],
        "import annocoin.trained": ["import annocoin.trained"],
        "import annocoin.api": ["import annocoin.api"],
        "annocoin predict": [ANNOCOIN, "predict", *paths],
    }


def seconds(command: list[str], check: bool = False) -> tuple[float, float]:
    """Wall-clock time and processor time of a process; with `check` it must succeed."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=check)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
