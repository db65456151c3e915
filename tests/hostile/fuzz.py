"""Read damaged and hostile files: each is read, or refused in one clean line.

    python fuzz.py [CASES] [SEED]

A case copies a sample (`samples.py`), damages one of its files and reads it. Everything but an
`InputError` of one line is a failure, and so are 5 seconds of work, a minute of waiting, 1.5 GB of
memory, and the death of the process. A case is identified by SEED:NUMBER; to repeat one:
`python fuzz.py --case SEED:NUMBER`.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

torch.set_num_threads(1)

from annocoin.errors import InputError, Problems, one_line  # noqa: E402
from hostile.samples import Sample, make_samples  # noqa: E402

SECONDS, WAIT, MEMORY = 5.0, 60.0, 1.5e9
BATCH = 100
"""Cases per process."""

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.5, 1e308, -1e308, 2**31, 2**63, 10**30, 99999999, "", "x",
    "\x1b[31mred", "a\nb", " a ", "..", "../x", "/etc/passwd", "\ud800", "\u2028", "a" * 5000, [],
    {}, [[]], [None], {"a": 1}, [1, 2, 3], "1" * 40 + "o", "o" * 8, [0] * 40, float("1e400"),
]  # fmt: skip
BYTES = [b"", b"\0", b"\xff" * 8, b"9" * 30, b"-1", b"1e999", b"nan", b"\n", b"]", b"{", b"\x1b[2J"]


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, overwrite or insert."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 3, 20))):
        position = rng.randrange(len(data) + 1)
        end = min(len(data), position + rng.choice((1, 4, 16, 200)))
        action = rng.randrange(5)
        if action == 0 and position < len(data):
            data[position] ^= 1 << rng.randrange(8)
        elif action == 1:
            del data[position : rng.choice((end, len(data)))]
        elif action == 2:
            data[position:position] = data[position:end] * rng.choice((1, 2, 50))
        elif action == 3:
            data[position:end] = rng.randbytes(end - position)
        else:
            data[position:position] = rng.choice(BYTES)
    return bytes(data)


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Replace, remove or add a value somewhere in the tree."""
    tree = json.loads(content)
    nodes: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            nodes.append((node, key))
            if isinstance(node[key], dict | list):
                collect(node[key])

    if isinstance(tree, dict | list):
        collect(tree)
    if not nodes or rng.random() < 0.05:
        return json.dumps(rng.choice(VALUES)).encode()
    parent, key = rng.choice(nodes)
    action = rng.randrange(8)
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(parent, dict):
        parent[str(rng.choice(VALUES))] = parent.pop(key)
    elif action == 2 and isinstance(parent, list):
        parent.append(parent[key])
    elif action == 3 and isinstance(parent[key], int | float):
        parent[key] = parent[key] * rng.choice((-1, 1e9, 1e300, 60000, 0))
    else:
        parent[key] = rng.choice(VALUES)
    if isinstance(tree, dict) and rng.random() < 0.8:
        tree.pop("digest", None)  # to get past it
    return json.dumps(tree).encode()


def damage_arrays(content: bytes, rng: random.Random) -> bytes:
    """Change one array of an .npz file."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    name = rng.choice(list(arrays))
    array = arrays[name]
    action = rng.randrange(8)
    if action == 0:
        del arrays[name]
    elif action == 1:
        arrays[name] = array[..., :0] if array.ndim else array[None]
    elif action == 2:
        arrays[name] = np.zeros((1 << 10, 1 << 10, rng.choice((1, 64, 700))), dtype=np.uint8)
    elif action == 3 and array.ndim:
        length = rng.choice((1 << 20, 1 << 27))
        shape = (length, *array.shape[1:]) if array.size else array.shape
        arrays[name] = np.broadcast_to(array.ravel()[:1].reshape((1,) * array.ndim), shape)
        if arrays[name].nbytes > 1 << 29:
            arrays[name] = arrays[name][: 1 << 16]
    elif action == 4:
        kind = rng.choice(("float64", "int8", "object", "U5"))
        with suppress(ValueError), np.errstate(invalid="ignore"):  # texts that are no numbers
            arrays[name] = array.astype(kind)
    elif array.size and array.dtype.kind in "iuf":
        flat = array.copy().reshape(-1)
        dtype = array.dtype
        info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        extremes = [info.min, info.max, 0, 1] + ([np.nan, np.inf] if dtype.kind == "f" else [-1])
        value = rng.choice(extremes if dtype.kind != "u" else extremes[:4])
        flat[rng.randrange(len(flat))] = value
        if rng.random() < 0.2:
            flat[:] = value
        arrays[name] = flat.reshape(array.shape)
    elif array.size:
        arrays[name] = np.roll(array, 1)
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def damage_network(content: bytes, rng: random.Random) -> bytes:
    """Change the header of a .safetensors file, with or without its digest."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    texts = header["__metadata__"]
    if rng.random() < 0.8:
        texts.pop("digest", None)
    key = rng.choice([key for key in texts if key.startswith("annocoin")])
    if rng.random() < 0.7:
        texts[key] = damage_json(texts[key].encode(), rng).decode()
    else:
        header = json.loads(damage_json(json.dumps(header).encode(), rng))
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content[8 + length :]


def replace_by_special(path: Path, rng: random.Random) -> None:
    """A pipe, a device, a folder, a loop, or a file that claims a terabyte."""
    path.unlink()
    kind = rng.randrange(7)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/null", "/dev/tty", "/dev/stdin")))
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.symlink_to(path.name)
    elif kind == 4:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == 5:
        path.write_bytes(b"")
    # otherwise it is missing


NAMES = [
    " a.png",
    "a .png",
    "a\n.png",
    "\x1b[31m.png",
    "\u2028.png",
    ".png",
    "a\udcff.png",
    "ok.png",
]


def damage(sample: Sample, folder: Path, rng: random.Random) -> str:
    """Damage one file of a sample's copy; gives its name and how."""
    patterns = [pattern for pattern in sample.files for _ in folder.glob(pattern)]
    paths = sorted({p for pattern in set(patterns) for p in folder.glob(pattern) if p.is_file()})
    path = rng.choice([p for p in paths if p.name != ".lock"])
    name, content = path.relative_to(folder).as_posix(), path.read_bytes()
    if rng.random() < 0.08:
        replace_by_special(path, rng)
        return f"{name}: special"
    if path.suffix == ".png" and rng.random() < 0.15:
        path.rename(path.with_name(rng.choice(NAMES)))
        return f"{name}: renamed"
    structured: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".json": damage_json, ".npz": damage_arrays, ".safetensors": damage_network,
    }  # fmt: skip
    method = structured.get(path.suffix, damage_bytes)
    if path.name == "n" and content[8:9] == b"{":
        method = damage_network
    if rng.random() < 0.4:
        method = damage_bytes
    path.write_bytes(method(content, rng))
    return f"{name}: {method.__name__}"


def run_case(seed: str, samples: dict[str, Sample], scratch: Path) -> tuple[str, str]:
    """Damage and read one sample: its outcome ("read", "refused", or a failure) and where."""
    rng = random.Random(seed)
    name = rng.choice(sorted(samples))
    sample, folder = samples[name], scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sample.folder, folder)
    where = f"case {seed}, {name}"
    problems = Problems(skip=rng.random() < 0.5)
    try:
        where += f", {damage(sample, folder, rng)}"
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WAIT)
        try:
            sample.read(folder, problems)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        lines = problems.skipped
        outcome = "refused" if lines else "read"
    except (InputError, OSError) as error:  # the command line prints both as one line
        lines, outcome = [one_line(error)], "refused"
    except BaseException:
        return f"failed:\n{traceback.format_exc()}", where
    for line in lines:
        if len(line) > 1500 or not line.isprintable() or "Traceback" in line:
            return f"failed: not a clean line: {line[:500]!r}", where
    return outcome, where


def out_of_time(*_: Any) -> None:
    raise TimeoutError("a hang")


def run_batch(seeds: list[str], samples: dict[str, Sample], scratch: Path) -> Counter[str]:
    """Run cases in a child process; a failure is printed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPROF, out_of_time)
        signal.signal(signal.SIGALRM, out_of_time)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        for seed in seeds:
            os.write(writer, f"{seed}\n".encode())
            outcome, where = run_case(seed, samples, scratch)
            kind = outcome.split(":", 1)[0]
            if kind == "failed":
                print(f"{where}: {outcome}", flush=True)
            os.write(writer, f"={kind}\n".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        reported = lines.read().split("\n")
    _, status = os.waitpid(child, 0)
    outcomes = Counter(line[1:] for line in reported if line.startswith("="))
    if status:
        last = [line for line in reported if line and not line.startswith("=")][-1:]
        print(f"case {last}: the process died with status {status}", flush=True)
        outcomes["failed"] += 1
    return outcomes


def main() -> None:
    arguments = sys.argv[1:]
    repeated = arguments[1] if arguments[:1] == ["--case"] else None
    count = int(arguments[0]) if arguments and not repeated else 10_000
    seed = arguments[1] if len(arguments) > 1 and not repeated else "0"
    started, outcomes = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        samples = make_samples(Path(scratch) / "samples")
        for name, sample in samples.items():  # undamaged, all can be read
            copy = Path(scratch) / "whole"
            shutil.copytree(sample.folder, copy)
            problems = Problems(skip=True)
            sample.read(copy, problems)
            assert not problems.skipped or name == "run", (name, problems.skipped)
            shutil.rmtree(copy)
        seeds = [repeated] if repeated else [f"{seed}:{number}" for number in range(count)]
        for first in range(0, len(seeds), BATCH):
            outcomes += run_batch(seeds[first : first + BATCH], samples, Path(scratch))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if memory > MEMORY:
        outcomes["failed"] += 1
    print(
        f"{outcomes.total()} cases of {len(samples)} kinds: {outcomes['refused']} refused, "
        f"{outcomes['read']} read, {outcomes['failed']} failed; "
        f"most memory {memory / 1e9:.2f} GB; {time.monotonic() - started:.0f} s"
    )
    sys.exit(1 if outcomes["failed"] else 0)


if __name__ == "__main__":
    main()
