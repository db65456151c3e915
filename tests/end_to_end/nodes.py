"""Train one run on two machines and let one die, again and again: the same bytes at the end.

    python nodes.py OUT COUNT [DATASET]

The machines are network namespaces with a link between them; where those cannot be made, for which
one must be root on Linux, two processes that share this machine's network. Deaths are kills of one
and the other process in turn, and at last, from three on, a link that goes down, which closes no
connection. Whoever survives must end in time with one line that names the cure.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from annocoin.engine.heartbeat import CONTINUES, LIMIT
from annocoin.engine.run_directory import ENVIRONMENT  # has the command, and so the folder
from annocoin.synthetic.dataset import write_synthetic
from end_to_end.killed import contents
from end_to_end.quick import QUICK
from processes import wait_until

CHANGES = {**QUICK, "prediction.training.final_steps": "36"}
CHANGES.pop("rounds")
STAGES = ("classifier", "prediction", "prediction")
SECONDS = 30
"""In which all processes end after one was killed."""

WHOLE = 300
"""Seconds of an undisturbed run, at most."""


class Machines:
    """Where processes run: a prefix of their command, and the address of the first."""

    def __init__(self, prefixes: Sequence[Sequence[str]], address: str) -> None:
        self.prefixes, self.address = prefixes, address
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def are_linked(self) -> bool:
        return bool(self.prefixes[0])

    def train(self, dataset: Path, out: Path) -> list[subprocess.Popen[str]]:
        """Start the same command on both."""
        self.port += 1  # the last one may be in use for a while
        where = {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port), "OMP_NUM_THREADS": "1"}
        options = [word for item in CHANGES.items() for word in ("--set", "=".join(item))]
        command = [sys.executable, "-m", "annocoin", "train", str(dataset), "--split", "train",
                   "--out", str(out), "--nodes", "2", "--preset", "synthetic", "--jobs", "1",
                   "--rounds", "0", *options]  # fmt: skip
        return [
            subprocess.Popen(
                [*prefix, *command],
                env={**os.environ, **where, "NODE_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, prefix in enumerate(self.prefixes)
        ]

    def set_link(self, state: str) -> None:
        subprocess.run([*self.prefixes[0], "ip", "link", "set", _end(0), state], check=True)


@contextmanager
def two_machines() -> Iterator[Machines]:
    names = [f"annocoin-{os.getpid()}-{rank}" for rank in range(2)]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(
        f"ip link add {_end(0)} netns {names[0]} type veth peer {_end(1)} netns {names[1]}"
    )
    for rank, name in enumerate(names):
        commands.append(f"ip -n {name} addr add 10.77.0.{rank + 1}/24 dev {_end(rank)}")
        commands += [f"ip -n {name} link set {device} up" for device in ("lo", _end(rank))]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        prefixes = [["ip", "netns", "exec", name] for name in names]
        machines = Machines(prefixes, "10.77.0.1")
    except (OSError, subprocess.CalledProcessError):
        machines = Machines([(), ()], "127.0.0.1")
    try:
        yield machines
    finally:
        for name in names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _end(rank: int) -> str:
    """The network device of a machine."""
    return f"v{rank}-{os.getpid()}"


def results_of(processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str]]:
    """Exit codes and errors of processes, which must end in that time."""
    end = time.monotonic() + seconds
    results = []
    try:
        for process in processes:
            _, errors = process.communicate(timeout=max(0.1, end - time.monotonic()))
            results.append((process.returncode, errors))
    finally:
        for process in processes:
            process.kill()
    return results


def the_line(code: int, errors: str) -> str:
    """The message of a process that ended because of another; Fabric and gloo print their own."""
    lines = [line for line in errors.splitlines() if line.startswith("annocoin: ")]
    assert code == 2, (code, errors)
    assert len(lines) == 1, errors
    assert "Traceback" not in errors, errors
    assert CONTINUES in lines[0], lines
    return lines[0]


def disturb(machines: Machines, dataset: Path, out: Path, number: int, cut: bool) -> str:
    """Let one machine die in a training; gives what happened."""
    stage, victim = STAGES[number % len(STAGES)], 1 - number % 2
    pattern = f"stages/{stage}-*/metrics.jsonl"
    processes, started = machines.train(dataset, out), time.time()

    def has_begun() -> bool:
        assert all(process.poll() is None for process in processes), results_of(processes, 9)
        files = [path.stat() for path in out.glob(pattern)]
        return any(file.st_size and file.st_mtime > started for file in files)

    try:
        wait_until(has_begun, WHOLE)
        if cut:
            machines.set_link("down")
        else:
            processes[victim].send_signal(signal.SIGKILL)
        died = time.monotonic()
        results = results_of(processes, SECONDS + (LIMIT if cut else 0))
    finally:
        for process in processes:
            process.kill()
    seconds = time.monotonic() - died
    if cut:
        machines.set_link("up")
        lines = [the_line(*result) for result in results]
        return f"{stage}, the link went down: {' / '.join(lines)} ({seconds:.0f} s)"
    assert results[victim][0] == -signal.SIGKILL, results[victim]
    line = the_line(*results[1 - victim])
    return f"{stage}, process {victim} was killed: {line} ({seconds:.0f} s)"


def main() -> None:
    out, count = Path(sys.argv[1]), int(sys.argv[2])
    dataset = Path(sys.argv[3]) if len(sys.argv) > 3 else out / "scenes"
    if not dataset.exists():
        write_synthetic(dataset, images=8, size=64, seed=3)
    with two_machines() as machines:
        place = "network namespaces" if machines.are_linked else "processes of one machine"
        for number in range(count):
            cut = machines.are_linked and number == count - 1 >= 2
            print(disturb(machines, dataset, out / "run", number, cut), flush=True)
        for name in ("run", "straight"):
            results = results_of(machines.train(dataset, out / name), WHOLE)
            assert [code for code, _ in results] == [0, 0], results
    actual, expected = contents(out / "run"), contents(out / "straight")
    assert actual.keys() == expected.keys(), actual.keys() ^ expected.keys()
    different = [name for name in actual if actual[name] != expected[name] and name != ENVIRONMENT]
    assert not different, different
    print(f"{count} deaths of two {place}: {len(actual)} files, all identical")


if __name__ == "__main__":
    main()
