"""Binary masks as COCO run-length encodings (RLE), and as polygons.

An RLE is ``{"size": [height, width], "counts": bytes}``: the lengths of alternating runs of 0 and
1, column by column, in COCO's compressed alphabet. pycocotools does the arithmetic; it reads beyond
its memory on malformed input, so every RLE from a file passes `from_json` or `from_counts` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypedDict

import cv2
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco

from annocoin.errors import InputError, brief

Size = tuple[int, int]
"""(height, width) in pixels."""

Corners = npt.NDArray[np.float64]
"""Corners of a polygon: [M, 2] as x, y."""

POLYGON_TOLERANCE = 0.75
"""Pixels by which a polygon may differ from the outline of its mask; see docs/decisions.md."""

MAX_GROUPS = 7
"""Five-bit groups of one number in a compressed RLE; more would overflow 32 bits."""


class RLE(TypedDict):
    """One mask in COCO's compressed run-length form."""

    size: list[int]
    counts: bytes


def encode(masks: npt.NDArray[Any]) -> list[RLE]:
    """Masks [N, H, W] of 0 and 1 (bool or number) as N RLEs; probabilities are refused."""
    stack = np.asarray(masks)
    if stack.dtype.kind == "f" and not ((stack == 0) | (stack == 1)).all():
        raise ValueError("masks hold values between 0 and 1; compare them with a threshold first")
    return [coco.encode(np.asfortranarray(mask, dtype=np.uint8)) for mask in stack != 0]


def decode(rles: Sequence[RLE], size: Size) -> npt.NDArray[np.bool_]:
    """N RLEs of one `size` as masks [N, H, W]."""
    masks = np.zeros((len(rles), *size), dtype=bool)
    for mask, rle in zip(masks, rles, strict=True):
        mask[:] = coco.decode(rle)
    return masks


def decode_resized(rles: Sequence[RLE], size: Size) -> npt.NDArray[np.bool_]:
    """N RLEs as masks [N, H, W] of another size, by nearest neighbours."""
    masks = np.zeros((len(rles), *size), dtype=bool)
    for mask, rle in zip(masks, rles, strict=True):  # one at a time, to save memory
        mask[:] = cv2.resize(coco.decode(rle), (size[1], size[0]), interpolation=cv2.INTER_NEAREST)
    return masks


def areas(rles: Sequence[RLE]) -> npt.NDArray[np.float64]:
    """Number of foreground pixels of each mask: [N]."""
    return np.asarray(coco.area(list(rles)), dtype=np.float64).reshape(len(rles))


def boxes(rles: Sequence[RLE]) -> npt.NDArray[np.float64]:
    """Tight boxes [N, 4] as x0, y0, x1, y1 (right and lower edge exclusive); zeros if empty."""
    tight = np.asarray(coco.toBbox(list(rles)), dtype=np.float64).reshape(len(rles), 4)
    tight[:, 2:] += tight[:, :2]
    return tight


def iou(
    first: Sequence[RLE], second: Sequence[RLE], crowd: Sequence[bool] | None = None
) -> npt.NDArray[np.float64]:
    """Intersection over union [len(first), len(second)].

    Where `crowd` is true for the second mask: intersection over the area of the first.
    """
    if not first or not second:
        return np.zeros((len(first), len(second)))
    flags = [False] * len(second) if crowd is None else list(crowd)
    return np.asarray(coco.iou(list(first), list(second), flags)).reshape(len(first), len(second))


def interior_point(rle: RLE) -> tuple[float, float]:
    """The centre (x, y) of the pixel that is farthest from the mask's border."""
    x0, y0, x1, y1 = boxes([rle])[0].astype(int)
    mask = np.pad(coco.decode(rle)[y0:y1, x0:x1], 1)
    distance = cv2.distanceTransform(mask, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    row, column = np.unravel_index(int(distance.argmax()), distance.shape)
    return float(x0 + column) - 0.5, float(y0 + row) - 0.5


def from_json(segmentation: Any, size: Size, where: str, *, check: bool = True) -> RLE:
    """Any COCO segmentation (compressed or plain RLE, polygons) as a checked RLE of `size`.

    Args:
        where: names the source in error messages.
        check: whether to check a compressed RLE; if not, the caller must do so with `all_of_size`.
    """
    if isinstance(segmentation, list):
        return _from_polygons(segmentation, size, where)
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= segmentation.keys():
        raise InputError(
            f"{where}: segmentation is {brief(segmentation)}; "
            'expected an RLE {"size", "counts"} or a list of polygons'
        )
    if segmentation["size"] != list(size):
        raise InputError(
            f"{where}: RLE of size {brief(segmentation['size'])}; the image is {list(size)} "
            "(height, width)"
        )
    counts = segmentation["counts"]
    if isinstance(counts, list):
        return _from_plain(counts, size, where)
    try:
        text = counts if isinstance(counts, bytes) else counts.encode("ascii")
    except (AttributeError, UnicodeEncodeError):
        raise InputError(f"{where}: broken RLE, counts is {brief(counts)}") from None
    rle: RLE = {"size": list(size), "counts": text}
    return _checked(rle, size, where) if check else rle


def from_counts(
    counts: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64], size: Size
) -> list[RLE]:
    """RLEs of `size` from their concatenated run lengths; `ValueError` if any is malformed.

    Args:
        lengths: bytes of each.
    """
    if ((lengths < 1) | (lengths > counts.size)).any() or int(lengths.sum()) != counts.size:
        raise ValueError(f"{counts.size} bytes of run lengths for {lengths.tolist()[:8]}")
    text, ends = counts.tobytes(), [0, *np.cumsum(lengths).tolist()]
    rles: list[RLE] = [
        {"size": list(size), "counts": text[start:end]} for start, end in pairwise(ends)
    ]
    if not all_of_size(rles, size):
        raise ValueError(f"broken run lengths for masks of size {list(size)}")
    return rles


def to_json(rle: RLE) -> dict[str, Any]:
    """The RLE as JSON holds it, with `counts` as text."""
    return {"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")}


def all_of_size(rles: Sequence[RLE], size: Size) -> bool:
    """Whether every RLE is well formed and canonical, and covers an image of `size` exactly."""
    pixels, canonical = count_pixels([rle["counts"] for rle in rles])
    return bool((canonical & (pixels == size[0] * size[1])).all())


def count_pixels(counts: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Pixels that each of N compressed run-length strings covers: int64 [N], -1 if malformed.

    Also bool [N]: whether the string is canonical, with no run of length 0 but the first. With such
    runs inside, pycocotools' intersections are wrong.

    A run length is written in groups of five bits, least significant first, plus 48; bit 32 marks
    that another group follows, bit 16 of the last group is the sign. From the fourth number on, it
    is the difference to the number two before. All strings are read at once, for speed: every mask
    of every file is checked.
    """
    lengths = np.asarray([len(text) for text in counts])
    filled = lengths > 0
    pixels, canonical = np.full(len(counts), -1), np.zeros(len(counts), dtype=bool)
    if not filled.any():
        return pixels, canonical
    groups = np.frombuffer(b"".join(counts), dtype=np.uint8) - np.uint8(48)  # below 48 wraps round
    last = np.cumsum(lengths[filled]) - 1  # group of each string
    begin = np.concatenate(([0], last[:-1] + 1))
    continued = (groups & 32) != 0
    bad = groups > 63
    bad[last] |= continued[last]
    continued[last] = False  # so that a malformed string does not run into the next
    stops = np.flatnonzero(~continued)  # last and first group of each number
    starts = np.concatenate(([0], stops[:-1] + 1))
    extra = stops - starts
    bad[starts[extra >= MAX_GROUPS]] = True
    numbers = (groups[starts] & 31).astype(np.int64)
    longer = np.flatnonzero(extra)
    for k in range(1, MAX_GROUPS):
        numbers[longer] |= (groups[starts[longer] + k] & 31).astype(np.int64) << (5 * k)
        longer = longer[extra[longer] > k]
    negative = (groups[stops] & 16) != 0
    numbers[negative] -= np.int64(1) << (5 * np.minimum(extra[negative] + 1, MAX_GROUPS))
    first = np.searchsorted(starts, begin)  # number of each string
    per_string = np.diff(np.append(first, len(numbers)))
    index = np.arange(len(numbers)) - np.repeat(first, per_string)
    runs = numbers.copy()
    for parity in (0, 1):
        chain = (index % 2 == parity) & (index > 0)  # the first number is in no chain
        sums = np.cumsum(np.where(chain, numbers, 0))
        runs[chain] = (sums - np.repeat(sums[first], per_string))[chain]
    malformed = np.logical_or.reduceat(bad, begin) | (np.minimum.reduceat(runs, first) < 0)
    pixels[filled] = np.where(malformed, -1, np.add.reduceat(runs, first))
    canonical[filled] = ~np.logical_or.reduceat((runs == 0) & (index > 0), first)
    return pixels, canonical


def to_polygon(mask: npt.NDArray[np.bool_]) -> Corners | None:
    """The outline of a mask [H, W] as one polygon, M >= 3; None if the mask is empty.

    Parts and holes are connected by seams, each to the nearest part that is connected already.
    """
    contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    parts: list[npt.NDArray[Any]] = [np.asarray(contour).reshape(-1, 2) for contour in contours]
    if not parts:
        return None
    outline = latest = parts.pop(0)
    gaps: npt.NDArray[Any] = np.full(len(parts), np.inf)
    while parts:
        distance, _ = _nearest(latest, np.concatenate(parts))
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        gaps = np.minimum(gaps, np.minimum.reduceat(distance, starts))
        nearest = int(gaps.argmin())
        gaps = np.delete(gaps, nearest)
        latest = parts.pop(nearest)
        outline = _connect(outline, latest)
    return np.asarray(_without_straight_steps(outline) + 0.5, dtype=np.float64)


def to_polygons(mask: npt.NDArray[np.bool_], tolerance: float = POLYGON_TOLERANCE) -> list[Corners]:
    """The outlines of a mask [H, W] along the edges of its pixels: one polygon for each part.

    Holes are connected with the outline around them by a seam. pycocotools restores the mask of a
    `tolerance` of 0 exactly; with others, in pixels, the polygons have fewer corners.
    """
    # three pixels for each: the outer ones, 3 j and 3 j + 2, are rounded to the edges j and j + 1
    large = np.repeat(np.repeat(mask.astype(np.uint8), 3, axis=0), 3, axis=1)
    contours, tree = cv2.findContours(large, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    outlines: dict[int, npt.NDArray[Any]] = {}
    holes: list[tuple[int, npt.NDArray[Any]]] = []
    for number, contour in enumerate(contours):
        parent = int(tree[0][number][3])
        corners = _corners_of_edges(np.asarray(contour).reshape(-1, 2))
        if tolerance:
            simple = cv2.approxPolyDP(corners.astype(np.int32), tolerance, True).reshape(-1, 2)
            corners = simple if len(simple) >= 3 else corners
        if parent < 0:
            outlines[number] = corners
        else:
            holes.append((parent, corners))
    for parent, corners in holes:
        outlines[parent] = _connect(outlines[parent], corners)
    return [np.asarray(outline, dtype=np.float64) for outline in outlines.values()]


def iou_of_polygons(polygons: Sequence[Corners], rle: RLE) -> float:
    """IoU of a mask with polygons, as COCO's tools fill them; 0 without any."""
    if not polygons:
        return 0.0
    flat = [polygon.ravel().tolist() for polygon in polygons]
    return float(iou([coco.merge(coco.frPyObjects(flat, *rle["size"]))], [rle])[0, 0])


def from_polygon(corners: Corners, size: Size) -> npt.NDArray[np.bool_]:
    """The mask [H, W] of a polygon, clipped to the image."""
    limit = _max_coordinate(size)
    pixels = np.clip(np.floor(corners), -limit, limit).astype(np.int32)
    mask = np.zeros(size, dtype=np.uint8)
    cv2.fillPoly(mask, [pixels], 1)
    return mask.astype(bool)


def _max_coordinate(size: Size) -> int:
    """Limit of a polygon's coordinates, in pixels.

    Rasterisers walk along every edge: a far-away corner would cost unbounded time and memory.
    """
    return 4 * max(size) + 64


def _from_polygons(polygons: list[Any], size: Size, where: str) -> RLE:
    limit = _max_coordinate(size)
    for polygon in polygons:
        bounded = isinstance(polygon, list) and all(
            isinstance(value, int | float) and abs(value) <= limit for value in polygon
        )
        if not bounded or len(polygon) < 6 or len(polygon) % 2:
            raise InputError(
                f"{where}: polygon {brief(polygon)}; expected [x, y, x, y, x, y, ...] in pixels, "
                "three or more corners in or near the image"
            )
    if not polygons:
        raise InputError(f"{where}: segmentation is an empty list; expected polygons or an RLE")
    merged: RLE = coco.merge(coco.frPyObjects(polygons, *size))
    return merged


def _from_plain(counts: list[Any], size: Size, where: str) -> RLE:
    for value in counts:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            raise InputError(f"{where}: broken RLE, {brief(value)} among the counts")
    _check_pixels(sum(counts), size, where)
    return _checked(coco.frPyObjects({"size": list(size), "counts": counts}, *size), size, where)


def _checked(rle: RLE, size: Size, where: str) -> RLE:
    """The RLE in canonical form; raises if it is malformed or of another size."""
    pixels, canonical = count_pixels([rle["counts"]])
    if pixels[0] < 0:
        raise InputError(f"{where}: broken RLE, counts is {brief(rle['counts'])}")
    _check_pixels(int(pixels[0]), size, where)
    return rle if canonical[0] else encode(decode([rle], size))[0]


def _check_pixels(pixels: int, size: Size, where: str) -> None:
    if pixels != size[0] * size[1]:
        raise InputError(
            f"{where}: RLE covers {pixels} pixels; "
            f"the image of size {list(size)} has {size[0] * size[1]}"
        )


def _corners_of_edges(contour: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contour of `to_polygons` in pixel edges, without points on straight lines."""
    edges = np.rint(contour / 3).astype(np.int64)
    changed = (edges != np.roll(edges, 1, axis=0)).any(axis=1)
    edges = edges[changed] if changed.any() else edges
    before, after = edges - np.roll(edges, 1, axis=0), np.roll(edges, -1, axis=0) - edges
    straight = (np.sign(before) == np.sign(after)).all(axis=1)
    return edges[~straight]


def _connect(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Insert the second outline into the first, there and back between their nearest corners."""
    distance, index = _nearest(first, second)
    j = int(distance.argmin())
    i = int(index[j])
    rotated = np.roll(second, -j, axis=0)
    return np.concatenate([first[: i + 1], rotated, rotated[:1], first[i:]])


def _nearest(
    points: npt.NDArray[Any], queries: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Distance and index of the point that is nearest to each query."""
    from scipy.spatial import cKDTree  # here, because only polygons need it

    distance, index = cKDTree(points).query(queries)
    return distance, index


def _without_straight_steps(outline: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Drop the pixels between two others on a row, a column or a diagonal."""
    before = outline - np.roll(outline, 1, axis=0)
    after = np.roll(outline, -1, axis=0) - outline
    one_step = np.abs(before).max(axis=1) == 1
    corners = outline[~((before == after).all(axis=1) & one_step)]
    return corners if len(corners) >= 3 else np.resize(outline, (3, 2))
