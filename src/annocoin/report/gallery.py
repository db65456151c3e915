"""The images of a report: pictures, and outlines that the page draws on them as vectors.

A page with few images has everything in itself. With many, pictures and outlines are files in a
folder beside it, which the page loads when they come into view.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from annocoin import masks
from annocoin.data.images import read_image
from annocoin.errors import InputError
from annocoin.evaluation.confidence import true_ious
from annocoin.masks import RLE
from annocoin.regions.algebra import resize_superpixels
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import ImageId, Instances

INLINE_IMAGES = 120
"""More images are files beside the page."""

SIDE, SMALL_SIDE = 384, 256
"""The longer side of pictures, and where there are more than `MANY_IMAGES`."""

MANY_IMAGES = 2000
"""Beyond it, pictures are smaller, and regions and edges are left out."""

QUALITY = 80
CHUNK = 100
"""Images whose outlines are in one file."""

SHOWN_REGIONS = 6
TOLERANCE = 0.0015
"""Of outlines, relative to the longer side of the image."""

Label = tuple[int, Sequence[float] | None, Sequence[float] | None]
"""Class, box and point of a weak label."""


@dataclass(frozen=True)
class GalleryImage:
    """One image, and what is drawn on it.

    Args:
        image_id: as in the dataset.
        file_name: as in the dataset.
        path: the image file, None if it is not known.
        instances: pseudo labels with a confidence, or predictions with a score.
        truth: true instances, None where they are not known.
        labels: the weak labels.
        seeds: reads the seeds; None without.
        regions: reads the regions; None without.
    """

    image_id: ImageId
    file_name: str
    path: Path | None
    instances: Instances
    truth: Instances | None = None
    labels: Sequence[Label] = ()
    seeds: Callable[[], Seeds] | None = None
    regions: Callable[[], RegionSet] | None = None

    @property
    def confidence(self) -> list[float]:
        """The confidence of each instance, or its score if there is none."""
        known = not bool(self.instances.confidence.isnan().any())
        values: list[float] = (
            self.instances.confidence if known else self.instances.scores
        ).tolist()
        return values


@dataclass
class Gallery:
    """Sets of images as the page reads them.

    Args:
        folder: of the files beside the page while they are written; None keeps all in the page.
        url: of that folder, relative to the page.
    """

    folder: Path | None
    url: str = ""
    sets: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0
    confidence: list[float] = field(default_factory=list)
    ious: list[float] = field(default_factory=list)

    def add(self, title: str, measure: str, images: Iterable[GalleryImage], count: int) -> None:
        """Add a set of images.

        Args:
            measure: what ranks the instances, "confidence" or "score".
            count: number of images.
        """
        side = SIDE if count <= MANY_IMAGES else SMALL_SIDE
        rows, details, chunks = [], [], []
        for image in images:
            row, detail = self._image(image, side, layers=count <= MANY_IMAGES)
            rows.append(row)
            details.append(detail)
            if self.folder is not None and len(details) == CHUNK:
                chunks.append(self._chunk(details))
                details = []
        if self.folder is not None and details:
            chunks.append(self._chunk(details))
            details = []
        found = {layer for row in rows for layer in row.pop("layers")}
        has_truth = any(row["q"] is not None for row in rows)
        self.sets.append(
            {"title": title, "measure": measure, "rows": rows, "details": details,
             "chunks": chunks, "chunk": CHUNK, "truth": has_truth, "layers": sorted(found)}
        )  # fmt: skip

    def _image(
        self, image: GalleryImage, side: int, *, layers: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The row of the index, and the outlines."""
        instances, truth = image.instances, image.truth
        ious: list[float] = []
        quality = None
        if truth is not None:
            ious = true_ious(instances, truth).tolist()
            both = [*ious, *true_ious(truth, instances).tolist()]
            quality = float(np.mean(both)) if both else 1.0
            if not bool(instances.confidence.isnan().any()):
                self.confidence += instances.confidence.tolist()
                self.ious += ious
        height, width = instances.size
        detail: dict[str, Any] = {
            "m": [outline(mask) for mask in instances.masks],
            "b": np.round(instances.boxes.numpy(), 1).tolist(),
            "a": [list(label) for label in image.labels],
        }
        drawn = {"masks", "boxes"} if len(instances) else set()
        if any(box or point for _, box, point in image.labels):
            drawn.add("labels")
        if truth is not None:
            detail["t"] = [[int(c), outline(m)] for c, m in _pairs(truth)]
            drawn.add("truth")
        picture = self._picture(image.path, side)
        if image.seeds is not None and layers:
            seeds = image.seeds()
            points = np.round(seeds.points.numpy(), 1).tolist()
            detail["s"] = [[x, y, int(c)] for (x, y), c in zip(points, seeds.labels, strict=True)]
            drawn.add("seeds")
        if image.regions is not None and layers:
            regions = image.regions()
            detail["r"] = [outline(mask) for mask in regions[:SHOWN_REGIONS].rles()]
            detail["e"] = self._store(draw_edges(regions, side), ".png", "image/png")
            drawn |= {"regions", "edges"}
        row = {
            "id": str(image.image_id),
            "w": width,
            "h": height,
            "p": picture,
            "c": instances.labels.tolist(),
            "v": [round(value, 3) for value in image.confidence],
            "u": [round(value, 3) for value in ious],
            "q": None if quality is None else round(quality, 3),
            "layers": drawn,
        }
        if image.file_name != str(image.image_id):
            row["f"] = image.file_name
        return row, detail

    def _picture(self, path: Path | None, side: int) -> str | None:
        """The image, at most `side` pixels long, as JPEG; None if it cannot be read."""
        if path is None:
            return None
        try:
            image = Image.fromarray(read_image(path))
        except InputError:
            return None
        image.thumbnail((side, side))
        content = io.BytesIO()
        image.save(content, "JPEG", quality=QUALITY)
        return self._store(content.getvalue(), ".jpg", "image/jpeg")

    def _store(self, content: bytes, suffix: str, kind: str) -> str:
        """Keep a file beside the page, or in it; gives its address."""
        if self.folder is None:
            return f"data:{kind};base64,{base64.b64encode(content).decode()}"
        name = f"{self.files:06d}{suffix}"
        self.files += 1
        (self.folder / name).write_bytes(content)
        return f"{self.url}/{name}"

    def _chunk(self, details: Sequence[Mapping[str, Any]]) -> str:
        """Write the outlines of some images as a script: pages from disk may load nothing else."""
        assert self.folder is not None
        name = f"outlines-{self.files:06d}.js"
        self.files += 1
        address = f"{self.url}/{name}"
        text = (
            f"annocoinOutlines({json.dumps(address)},{json.dumps(details, separators=(',', ':'))})"
        )
        (self.folder / name).write_text(text, encoding="utf-8")
        return address


def outline(mask: RLE) -> str:
    """A mask as an SVG path, for the fill rule evenodd; corners are at whole pixels."""
    x0, y0, x1, y1 = masks.boxes([mask])[0].astype(int)
    if x1 <= x0 or y1 <= y0:
        return ""
    dense = masks.decode([mask], (mask["size"][0], mask["size"][1]))[0][y0:y1, x0:x1]
    # every pixel twice as large, so that the outline runs along pixel sides, not centres
    enlarged = np.pad(np.kron(dense, np.ones((2, 2), np.uint8)), 1).astype(np.uint8)
    contours, _ = cv2.findContours(enlarged, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    tolerance = max(1.0, 2 * TOLERANCE * max(mask["size"]))
    parts = []
    for contour in contours:
        corners = cv2.approxPolyDP(contour, tolerance, closed=True).reshape(-1, 2)
        points = np.round((corners - 0.5) / 2).astype(int) + np.array([x0, y0])
        if len(points) < 3:
            continue
        steps = np.diff(points, axis=0)
        first = f"M{points[0][0]} {points[0][1]}"
        parts.append(first + "l" + " ".join(f"{dx} {dy}" for dx, dy in steps) + "z")
    return "".join(parts) or f"M{x0} {y0}h{x1 - x0}v{y1 - y0}h{x0 - x1}z"


def draw_edges(regions: RegionSet, side: int) -> bytes:
    """The borders of the superpixels as a PNG, white where the edges are strong, else clear."""
    height, width = regions.size
    scale = min(1.0, side / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    ids = resize_superpixels(regions.superpixels, size).numpy().astype(np.int64)
    count = regions.membership.shape[1]
    pairs = regions.elements.numpy()
    keys = pairs[:, 0] * count + pairs[:, 1]
    order = np.argsort(keys)
    mean = (regions.edge_strength / regions.lengths.clamp(min=1)).numpy()
    alpha: Any = np.zeros(size, np.uint8)
    for first, second, target in (
        (ids[:, :-1], ids[:, 1:], alpha[:, :-1]),
        (ids[:-1], ids[1:], alpha[:-1]),
    ):
        key = np.minimum(first, second) * count + np.maximum(first, second)
        if not len(keys):
            break
        place = np.minimum(np.searchsorted(keys[order], key), len(keys) - 1)
        strength = np.where(keys[order][place] == key, mean[order][place], 0.0)
        shade = np.where(first != second, 50 + 205 * np.clip(strength, 0, 1), 0)
        np.maximum(target, shade.astype(np.uint8) & 0xF0, out=target)
    layers = np.stack([np.full(size, 255, np.uint8), alpha], axis=2)
    content = io.BytesIO()
    Image.fromarray(layers, "LA").save(content, "PNG")
    return content.getvalue()


def _pairs(instances: Instances) -> list[tuple[int, RLE]]:
    return list(zip(instances.labels.tolist(), instances.masks, strict=True))
