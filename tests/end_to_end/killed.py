"""Kill commands again and again, then let them finish: every file must have the same bytes.

    python killed.py OUT COUNT SEED [DATASET]

Half of the kills come at a random moment, the others inside a random write, of which half the bytes
are lost. Children are forked from a process that has everything imported, so that most of their
short lives is work. Every other training loads its examples in a process of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401, otherwise each child would import it
import torch
from torch.utils import tensorboard  # noqa: F401, as above

torch.set_num_threads(1)

from annocoin import api  # noqa: E402
from annocoin.data.conversion import write_dataset  # noqa: E402
from annocoin.data.loading import load_labelled, load_weak  # noqa: E402
from annocoin.engine.image_stages import Execution, make_classifier, make_regions  # noqa: E402
from annocoin.engine.presets import configure  # noqa: E402
from annocoin.engine.rounds import train_run  # noqa: E402
from annocoin.engine.run_directory import DONE  # noqa: E402
from annocoin.regions.proposals import RegionOptions  # noqa: E402
from end_to_end.quick import QUICK  # noqa: E402

Command = Callable[[Path], Any]
EXEMPT = ("costs.json", "report.html", ".lock")
"""Files with times and measured memory; TensorBoard's have them as well."""


def train(
    dataset: Path, jobs: int | None, out: Path, log: Callable[[str], Any] = lambda _: None
) -> None:
    weak = load_weak(dataset, "image", split="train")
    config = configure("synthetic", weak.classes, QUICK)
    execution = Execution(jobs=jobs)
    train_run(weak, out, config, execution=execution, log=log, checkpoint_seconds=0.0)


def label(dataset: Path, run: Path, out: Path) -> None:
    if not (out / "run.json").exists():
        shutil.copytree(run, out, dirs_exist_ok=True)
    weak = load_weak(dataset, "image", split="val")
    write_dataset(api.label(api.TrainedRun(out), weak, jobs=1), out / "labels.json", "coco")


def convert(dataset: Path, out: Path) -> None:
    if not out.exists():
        write_dataset(load_labelled(dataset), out, "labelme")


def regions(dataset: Path, out: Path) -> None:
    options = RegionOptions("gradient", 60)
    make_regions(load_labelled(dataset), out, options, Execution(jobs=1))


def classifier(dataset: Path, out: Path) -> None:
    weak = load_weak(dataset, "image", split="train")
    config = configure("synthetic", weak.classes, QUICK)
    make_classifier(weak, out, config.classifier)


def count_writes(die_at: int | None) -> list[int]:
    """Count the writes of this process; die in the one with that number, half-way through."""
    writes = [0]
    sync = os.fsync

    def fsync(handle: int) -> None:
        writes[0] += 1
        if writes[0] == die_at:
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    def sync_all() -> None:
        writes[0] += 1
        if writes[0] == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync, os.sync = fsync, sync_all
    return writes


def start(command: Command, out: Path, die_at: int | None = None) -> int:
    """A child that runs a command; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        writes = count_writes(die_at)
        command(out)
        (out.parent / "writes").write_text(str(writes[0]))
        os._exit(0)
    except BaseException as error:
        print(f"failed: {error!r}", flush=True)
        os._exit(1)


def finish(command: Command, out: Path) -> tuple[float, int]:
    """Seconds and writes of a command that is not interrupted."""
    started = time.monotonic()
    assert os.waitpid(start(command, out), 0)[1] == 0
    return time.monotonic() - started, int((out.parent / "writes").read_text())


def contents(out: Path) -> dict[str, bytes]:
    """The files of a folder, but those with times."""
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name not in EXEMPT and "tensorboard" not in path.parts
    }


class Target:
    """A command, its undisturbed result, and another one that is killed."""

    def __init__(self, name: str, command: Command, root: Path) -> None:
        self.name, self.command, self.root = name, command, root / name
        self.root.mkdir(parents=True)
        self.whole, self.writes = finish(command, self.root / "straight")
        self.again, _ = finish(command, self.root / "straight")  # all is done
        self.number, self.killed = 0, set[Path]()
        self.expected = contents(self.root / "straight")

    def kill(self, command: Command, rng: random.Random, in_write: bool) -> str:
        """Run it, or another command with the same result, and kill it; gives where."""
        out = self.root / f"killed-{self.number}"
        die_at = rng.randint(1, max(1, self.writes // 3)) if in_write else None
        child = start(self.command if in_write else command, out, die_at)
        if in_write:
            _, status = os.waitpid(child, 0)
            finished = os.WIFEXITED(status)
            assert not finished or os.WEXITSTATUS(status) == 0
        else:
            time.sleep(0.7 * self.again + rng.uniform(0, 0.35 * max(0, self.whole - self.again)))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            finished = os.WIFEXITED(status)
        self.killed.add(out)
        if finished:
            self.number += 1  # the next one starts anew
            return f"{self.name}, after its end"
        stages = sorted((out / "stages").glob("*"), key=lambda path: path.stat().st_ctime_ns)
        running = [path.name for path in stages if not (path / DONE).exists()]
        stage = f", {running[-1].rsplit('-', 1)[0]}" if running else ""
        return f"{self.name}{stage}{', in a write' if in_write else ''}"

    def check(self) -> int:
        """Let all that were killed finish, and compare them; the number of compared files."""
        compared = 0
        for out in sorted(self.killed):
            finish(self.command, out)
            files = contents(out)
            assert files.keys() == self.expected.keys(), files.keys() ^ self.expected.keys()
            for name, content in files.items():
                assert content == self.expected[name], f"{out / name} differs"
            compared += len(files)
        left = [path for path in self.root.rglob("*.part")]
        assert not left, left
        return compared


def main() -> None:
    out, count, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    dataset = Path(sys.argv[4]) if len(sys.argv) > 4 else out / "scenes"
    if not dataset.exists():  # in a process of its own: forks must not inherit OpenCV's threads
        options = ["--images", "8", "--size", "64", "--seed", "3"]
        subprocess.run([sys.executable, "-m", "annocoin", "synth", dataset, *options], check=True)
    straight = out / "train" / "straight"
    commands: dict[str, Command] = {
        "train": partial(train, dataset, 1),
        "label": partial(label, dataset, straight),
        "convert": partial(convert, dataset),
        "regions": partial(regions, dataset),
        "classifier": partial(classifier, dataset),
    }
    targets = [Target(name, command, out) for name, command in commands.items()]
    moments: Counter[str] = Counter()
    order = [targets[0]] * 6 + targets[1:]  # most kills are of trainings
    with_loader = partial(train, dataset, None)
    for number in range(count):
        target, in_write = order[number % len(order)], number // len(order) % 2 == 0
        command = with_loader if target.name == "train" and number % 2 else target.command
        moment = target.kill(command, rng, in_write)
        moments[moment] += 1
        print("killed in", moment, flush=True)
    compared = sum(target.check() for target in targets)
    print(f"{count} kills at {len(moments)} kinds of moments: {compared} files, all identical")


if __name__ == "__main__":
    main()
