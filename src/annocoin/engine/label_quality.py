"""How good pseudo labels are: measured with true masks, or signs that they are wrong without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from annocoin.data.dataset import LabelledImages, Supervision, WeakDataset
from annocoin.types import ImageId, Instances

MIN_IMAGES_PER_CLASS = 20
SHOWN_CLASSES = 8
MIN_TAG_MAP = 0.6
WHOLE_IMAGE = 0.8
"""A mask with a greater share of the image's pixels covers it as a whole."""

MAX_WHOLE_IMAGES = 0.3
"""Of masks that cover the whole image. Of VOC's true masks .002 do (366 images of train)."""


@dataclass(frozen=True)
class Measurement:
    """Measures pseudo labels with true masks; nothing is learned from it.

    Args:
        figures: of instances by image id.
        digest: of the true masks.
        images: number of images with true masks.
    """

    figures: Callable[[Mapping[ImageId, Instances]], dict[str, float]]
    digest: str
    images: int


def check_class_sizes(
    dataset: WeakDataset | LabelledImages, least: int = MIN_IMAGES_PER_CLASS
) -> list[str]:
    """A warning if classes have too few images to learn where they are; none otherwise."""
    counts = Counter(label for image in dataset for label in image.annotation.distinct_labels)
    few = [
        f"{name} ({counts[number]})"
        for number, name in enumerate(dataset.classes, 1)
        if counts[number] < least
    ]
    if not few:
        return []
    names = ", ".join(few[:SHOWN_CLASSES]) + (", .." if len(few) > SHOWN_CLASSES else "")
    return [f"warning: fewer than {least} images of {names}; expect poor masks of them"]


def check_tag_map(tag_map: float, supervision: Supervision) -> list[str]:
    """A warning if a classifier does not even find the tags of its training images.

    Boxes and points say where objects are, so that labels depend little on the classifier.
    """
    if tag_map >= MIN_TAG_MAP or supervision in ("box", "point"):
        return []
    return [
        f"warning: the classifier's tag mAP is {100 * tag_map:.0f} %; the labels will be poor: are "
        "the tags right? otherwise it needs more images (--more-tags) or more classifier.epochs"
    ]


def check_masks(labels: Iterable[Instances]) -> list[str]:
    """A warning if many masks cover the whole image."""
    whole = total = 0
    for instances in labels:
        height, width = instances.size
        whole += int((instances.areas > WHOLE_IMAGE * height * width).sum())
        total += len(instances)
    if whole <= MAX_WHOLE_IMAGES * total:
        return []
    return [
        f"warning: {whole} of {total} masks cover more than {100 * WHOLE_IMAGE:.0f} % of their "
        "image; look at them with `annocoin label` and `annocoin show`"
    ]
