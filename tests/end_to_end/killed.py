"""Train one run straight, and one that is killed again and again; prints when it was killed.

    python killed.py DATASET OUT COUNT SEED

Children are forked from a process that has everything imported, so that most of their short lives
is work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import lightning_fabric  # noqa: F401, otherwise each child would import it
import torch

torch.set_num_threads(1)

from annocoin.data.loading import load_weak  # noqa: E402
from annocoin.engine.config import override  # noqa: E402
from annocoin.engine.presets import preset  # noqa: E402
from annocoin.engine.rounds import train_run  # noqa: E402
from annocoin.engine.run_directory import DONE  # noqa: E402
from end_to_end.quick import QUICK  # noqa: E402


def start(dataset: Path, out: Path) -> int:
    """A child that trains; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        weak = load_weak(dataset, "image", split="train")
        config = override(preset("synthetic", weak.classes), QUICK)
        train_run(weak, out, config, jobs=1, say=lambda _: None, every=0.0)
        os._exit(0)
    except BaseException as error:
        print(f"failed: {error!r}", flush=True)
        os._exit(1)


def seconds(dataset: Path, out: Path) -> float:
    """How long a training takes that nobody disturbs."""
    began = time.monotonic()
    assert os.waitpid(start(dataset, out), 0)[1] == 0
    return time.monotonic() - began


def main() -> None:
    dataset, out, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(int(sys.argv[4]))
    whole = seconds(dataset, out / "straight")
    again = seconds(dataset, out / "straight")  # all is done: what it takes to find that out
    number = 0
    for _ in range(count):
        killed = out / f"killed-{number}"
        child = start(dataset, killed)
        time.sleep(0.7 * again + rng.uniform(0, 0.35 * (whole - again)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        stages = sorted((killed / "stages").glob("*"), key=lambda path: path.stat().st_ctime_ns)
        running = [path.name for path in stages if not (path / DONE).exists()]
        print("killed in", running[-1].rsplit("-", 1)[0] if running else "between", flush=True)
        number += (killed / "run.json").exists()  # it came to its end: the next one
    for path in out.glob("killed-*"):
        seconds(dataset, path)


if __name__ == "__main__":
    main()
