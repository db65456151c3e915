"""What a dataset holds, what looks wrong in it, and how to train on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations

import torch

from annocoin.data.dataset import LabelledImages, Supervision, WeakDataset
from annocoin.data.loading import DatasetKind
from annocoin.engine.distribution import has_bfloat16
from annocoin.engine.estimates import median_size
from annocoin.engine.label_quality import check_class_sizes
from annocoin.errors import brief, plural
from annocoin.masks import Size
from annocoin.types import LabelKind

MAX_CLIPPED = 0.1
"""Share of a box outside the image above which it is reported."""

MIN_SIDE = 32
SMALL_SIDE = 160
"""Longer side, in pixels, up to which the preset `synthetic` fits."""

MIN_TYPO_LENGTH = 4
RARE = 0.2
"""Two names that differ by another letter, such as house and mouse, are reported only if one has
less than this share of the other's images."""

SHOWN_PAIRS = 8
KINDS: dict[LabelKind, str] = {"tag": "tag", "point": "point", "box": "box", "mask": "mask"}


@dataclass(frozen=True)
class DatasetSummary:
    """The content of a dataset.

    Args:
        images: their number.
        unlabelled: images without a label.
        smallest, median, largest: sizes of images, by area.
        images_by_class, labels_by_class: by name.
        kinds: number of labels of each kind.
        warnings: what looks wrong, a line each.
    """

    images: int
    unlabelled: int
    smallest: Size
    median: Size
    largest: Size
    images_by_class: dict[str, int]
    labels_by_class: dict[str, int]
    kinds: dict[LabelKind, int]
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Images, sizes and labels, a line each."""
        sizes = f"{_size(self.smallest)} pixels"
        if self.smallest != self.largest:
            sizes = f"{_size(self.smallest)} to {_size(self.largest)}, median {_size(self.median)}"
        without = f"; {self.unlabelled} without a label" if self.unlabelled else ""
        kinds = [plural(count, kind) for kind, count in self.kinds.items() if count]
        labels = ", ".join(kinds) or "none"
        return [f"{plural(self.images, 'image')}: {sizes}{without}", f"labels: {labels}"]


def check_dataset(dataset: LabelledImages | WeakDataset) -> DatasetSummary:
    """Summarise a dataset; what its readers refuse does not get here."""
    annotations = [image.annotation for image in dataset]
    names, sizes = dataset.classes, [annotation.size for annotation in annotations]
    images = Counter(label for each in annotations for label in each.distinct_labels)
    labels = Counter(label.label for each in annotations for label in each)
    kinds = Counter(kind for each in annotations for kind in each.kinds)
    by_class = {name: images[number] for number, name in enumerate(names, 1)}
    warnings = [
        *_check_names(by_class),
        *_check_clipping(dataset),
        *_check_sizes(dataset),
        *check_class_sizes(dataset),
    ]
    if not labels:
        warnings.append("warning: no image has a label")
    return DatasetSummary(
        images=len(dataset),
        unlabelled=sum(not len(each) for each in annotations),
        smallest=min(sizes, key=lambda size: size[0] * size[1]),
        median=median_size(sizes),
        largest=max(sizes, key=lambda size: size[0] * size[1]),
        images_by_class=by_class,
        labels_by_class={name: labels[number] for number, name in enumerate(names, 1)},
        kinds={kind: kinds[kind] for kind in KINDS},
        warnings=tuple(warnings),
    )


def advise_supervision(summary: DatasetSummary, kind: DatasetKind) -> Supervision:
    """The supervision that uses the labels best.

    VOC's segmentation maps are labels only with full supervision.
    """
    kinds = {name for name, count in summary.kinds.items() if count}
    if kinds == {"mask"}:
        return "mask"
    if kind == "voc" and "mask" in kinds:
        return "box"
    single: dict[frozenset[str], Supervision] = {
        frozenset({"tag"}): "image",
        frozenset(): "image",
        frozenset({"box"}): "box",
        frozenset({"point"}): "point",
    }
    return single.get(frozenset(kinds), "mixed")


def advise_preset(summary: DatasetSummary) -> tuple[str, str]:
    """The preset for these images on this machine, and the precision."""
    if max(summary.median) <= SMALL_SIDE:
        return "synthetic", "32-true"
    if torch.cuda.is_available():
        return "voc-r50", "32-true"
    return "voc-cpu", "bf16-mixed" if has_bfloat16() else "32-true"


def similar_names(images_by_class: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs of names that may be one class: other case or signs, a plural, a slip of the pen."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in images_by_class:
        plain = _plain(name)
        shorter = {plain[:i] + plain[i + 1 :] for i in range(len(plain))}
        for key in {plain, *(shorter if len(plain) >= MIN_TYPO_LENGTH else ())}:
            groups[key].append(name)
        if plain.endswith("s"):
            groups[plain[:-1]].append(name)
    candidates = {pair for names in groups.values() for pair in combinations(sorted(set(names)), 2)}
    return [pair for pair in sorted(candidates) if _may_be_one(*pair, images_by_class)]


def _may_be_one(first: str, second: str, images_by_class: dict[str, int]) -> bool:
    a, b = sorted((_plain(first), _plain(second)), key=len)
    if a == b or b == f"{a}s":
        return True
    if len(a) < MIN_TYPO_LENGTH:
        return False
    if len(a) < len(b):  # a letter is missing
        return any(b[:i] + b[i + 1 :] == a for i in range(len(b)))
    different = [i for i in range(len(a)) if a[i] != b[i]]
    if len(different) == 2:  # two letters are exchanged
        i, j = different
        return j == i + 1 and a[i] == b[j] and a[j] == b[i]
    counts = sorted((images_by_class[first], images_by_class[second]))
    return len(different) == 1 and counts[0] < RARE * counts[1]


def _plain(name: str) -> str:
    """A name without case, spaces and signs."""
    letters = "".join(character for character in name.casefold() if character.isalnum())
    return letters or name


def _check_names(images_by_class: dict[str, int]) -> list[str]:
    pairs = similar_names(images_by_class)
    lines = [
        f"warning: classes {first!r} ({plural(images_by_class[first], 'image')}) and {second!r} "
        f"({images_by_class[second]}): two classes, or one that is spelled in two ways?"
        for first, second in pairs[:SHOWN_PAIRS]
    ]
    if len(pairs) > SHOWN_PAIRS:
        lines.append(f"warning: {len(pairs) - SHOWN_PAIRS} more pairs of similar classes")
    lists = [name for name in images_by_class if "," in name or "|" in name]
    if lists:
        lines.append(
            f"warning: class {brief(lists[0])}: one class, or a list? classes are separated by ';'"
            + (f"; {len(lists) - 1} more such names" if len(lists) > 1 else "")
        )
    return lines


def _check_clipping(dataset: LabelledImages | WeakDataset) -> list[str]:
    clipped = [
        (label.clipped, image.file_name)
        for image in dataset
        for label in image.annotation
        if label.clipped > MAX_CLIPPED
    ]
    if not clipped:
        return []
    boxes = sum(label.box is not None for image in dataset for label in image.annotation)
    worst, name = max(clipped)
    return [
        f"warning: {len(clipped)} of {plural(boxes, 'box')} lie by more "
        f"than {100 * MAX_CLIPPED:.0f} % outside the image, such as {100 * worst:.0f} % of one in "
        f"{name}, and were clipped; is the order of the coordinates right?"
    ]


def _check_sizes(dataset: LabelledImages | WeakDataset) -> list[str]:
    tiny = [image for image in dataset if min(image.annotation.size) < MIN_SIDE]
    if not tiny:
        return []
    return [
        f"warning: {plural(len(tiny), 'image')} with a side of less than {MIN_SIDE} pixels, such "
        f"as {tiny[0].file_name}; objects in them are hardly found"
    ]


def _size(size: Size) -> str:
    return f"{size[1]} x {size[0]}"
