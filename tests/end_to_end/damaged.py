"""Damage each file of a finished run: `verify` must find it, and `train` repair it to the byte.

    python damaged.py OUT [COUNT] [SEED] [DATASET]

Every file is deleted, truncated, and has a bit flipped; with COUNT, so many of these damages, of as
many kinds of files as possible. What `train` does not repair it must refuse in one line.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from annocoin.engine.verification import verify_run
from annocoin.errors import InputError
from annocoin.synthetic.dataset import write_synthetic
from end_to_end.killed import contents, train

DAMAGES = ("deleted", "truncated", "flipped")


def damage(path: Path, how: str, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: rng.randrange(len(content))])
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def kind_of(name: str) -> str:
    """The stage and the suffix of a file, or its name if it is in no stage."""
    parts = name.split("/")
    return f"{parts[1].rsplit('-', 1)[0]} {Path(name).suffix}" if parts[0] == "stages" else name


def choose(names: list[str], count: int | None, rng: random.Random) -> list[tuple[str, str]]:
    """Files and damages: all of them, or `count` of different kinds."""
    cases = [(name, how) for name in names for how in DAMAGES]
    if count is None:
        return cases
    rng.shuffle(cases)
    position = Counter[str]()
    ranked = []
    for name, how in cases:
        position[kind_of(name)] += 1
        ranked.append((position[kind_of(name)], name, how))
    return [(name, how) for _, name, how in sorted(ranked, key=lambda case: case[0])][:count]


def main() -> None:
    out = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else None
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    dataset = Path(sys.argv[4]) if len(sys.argv) > 4 else out / "scenes"
    if not dataset.exists():
        write_synthetic(dataset, images=8, size=64, seed=3)
    straight, run = out / "straight", out / "run"
    train(dataset, 1, straight)
    assert verify_run(straight) == []
    expected = contents(straight)
    shutil.copytree(straight, run)
    outcomes: Counter[str] = Counter()
    for name, how in choose(sorted(expected), count, rng):
        damage(run / name, how, rng)
        assert verify_run(run), f"{name} {how}: not found by verify"
        lines: list[str] = []
        try:
            train(dataset, 1, run, lines.append)
            outcomes["repaired"] += 1
        except InputError as error:
            print(f"{name} {how}: refused: {error}", flush=True)
            outcomes["refused"] += 1
            shutil.rmtree(run)
            shutil.copytree(straight, run)
        actual = contents(run)
        if name.endswith("metrics.jsonl") and "/" in name:  # not worth a training
            assert any("metrics are left out" in line for line in lines), (name, how, lines)
            shutil.rmtree(run)
            shutil.copytree(straight, run)
            continue
        different = [key for key in {**expected, **actual} if expected.get(key) != actual.get(key)]
        assert not different, (name, how, different)
        again = any("it is done again" in line or "written again" in line for line in lines)
        print(f"{name} {how}: {'announced' if again else 'made again'}", flush=True)
    files = len(expected)
    print(f"{outcomes.total()} damages of a run of {files} files: {dict(outcomes)}, none silent")


if __name__ == "__main__":
    main()
