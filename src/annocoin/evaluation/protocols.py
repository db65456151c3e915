"""The four ways in which papers compute instance AP; figures of two protocols do not compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from annocoin.errors import check_choice
from annocoin.evaluation.average_precision import (
    Bools,
    Floats,
    area_under_envelope,
    match_best,
    match_best_free,
    match_coco,
    mean_over_recalls,
)

ProtocolName = Literal["chainercv", "sds", "bbtp", "coco"]


@dataclass(frozen=True)
class Protocol:
    """What distinguishes one protocol from another.

    Args:
        name: how users call it.
        match: (iou [P, G], threshold, crowd [G]) -> hits [P], left out [P].
        average: (hits [P], number of truths) -> AP.
        classes_from: VOC's class map, or the object list of its XML.
        crowds: whether crowds are truth that is neither hit nor missed; else they are left out.
        max_predictions: the most that count per image and class, None for all.
        ties: order of equal scores: the later prediction first (numpy's `argsort()[::-1]`), or the
            earlier.
    """

    name: ProtocolName
    match: Callable[[Floats, float, Bools], tuple[Bools, Bools]]
    average: Callable[[Bools, int], float]
    classes_from: Literal["pixels", "objects"] = "pixels"
    crowds: bool = False
    max_predictions: int | None = None
    ties: Literal["later", "earlier"] = "later"


_ALL = (
    Protocol("chainercv", match_best, area_under_envelope),
    Protocol("sds", match_best_free, area_under_envelope),
    Protocol("bbtp", match_best_free, area_under_envelope, classes_from="objects"),
    Protocol("coco", match_coco, mean_over_recalls, "pixels", True, 100, "earlier"),
)
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _ALL}


def protocol_named(name: str) -> Protocol:
    """The protocol of that name."""
    check_choice("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
