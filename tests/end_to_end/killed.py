"""Train one run straight, and others that are killed again and again; prints where.

    python killed.py DATASET OUT COUNT SEED

Children are forked from a process that has everything imported, so that most of their short lives
is work. Every other one loads its examples in a process of its own.
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
from annocoin.engine.image_stages import Execution  # noqa: E402
from annocoin.engine.presets import configure  # noqa: E402
from annocoin.engine.rounds import train_run  # noqa: E402
from annocoin.engine.run_directory import DONE  # noqa: E402
from end_to_end.quick import QUICK  # noqa: E402


def start(dataset: Path, out: Path, jobs: int | None = 1) -> int:
    """A child that trains; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        weak = load_weak(dataset, "image", split="train")
        config = configure("synthetic", weak.classes, QUICK)
        execution = Execution(jobs=jobs)
        train_run(
            weak, out, config, execution=execution, log=lambda _: None, checkpoint_seconds=0.0
        )
        os._exit(0)
    except BaseException as error:
        print(f"failed: {error!r}", flush=True)
        os._exit(1)


def seconds(dataset: Path, out: Path) -> float:
    """The time of a training that is not interrupted."""
    started = time.monotonic()
    assert os.waitpid(start(dataset, out), 0)[1] == 0
    return time.monotonic() - started


def main() -> None:
    dataset, out, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(int(sys.argv[4]))
    whole = seconds(dataset, out / "straight")
    again = seconds(dataset, out / "straight")  # all stages are done
    number = 0
    for kill in range(count):
        killed = out / f"killed-{number}"
        child = start(dataset, killed, 1 if kill % 2 else None)
        time.sleep(0.7 * again + rng.uniform(0, 0.35 * (whole - again)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        stages = sorted((killed / "stages").glob("*"), key=lambda path: path.stat().st_ctime_ns)
        running = [path.name for path in stages if not (path / DONE).exists()]
        print("killed in", running[-1].rsplit("-", 1)[0] if running else "between", flush=True)
        number += (killed / "run.json").exists()  # it was finished: the next one
    for path in out.glob("killed-*"):
        seconds(dataset, path)


if __name__ == "__main__":
    main()
