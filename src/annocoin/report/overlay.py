"""Draw labels and masks on images, and many images on one sheet."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from annocoin import files, masks
from annocoin.errors import InputError
from annocoin.types import Annotation

Picture = npt.NDArray[np.uint8]


def draw(
    image: Picture, annotation: Annotation, classes: Sequence[str], *, scale: float = 1.0
) -> Picture:
    """The image [H, W, 3], enlarged by `scale`, with masks, boxes, points and names on it.

    Every weak_label has its own colour; tags stand in the upper left corner. A box is drawn only where
    there is no mask.
    """
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
    canvas = np.asarray(resized, dtype=np.uint8)
    text_size = max(0.35, min(height, width) / 700)
    tags = [classes[weak_label.label - 1] for weak_label in annotation if weak_label.kind == "tag"]
    for i, weak_label in enumerate(annotation):
        shade = colour(i)
        name = classes[weak_label.label - 1]
        if weak_label.score is not None and weak_label.score != 1:  # 1 is what has no score
            name += f" {weak_label.score:.2f}"
        if weak_label.mask is not None:
            dense = masks.decode([weak_label.mask], annotation.size)[0].astype(np.uint8)
            dense = cv2.resize(dense, (width, height), interpolation=cv2.INTER_LINEAR)
            canvas = tinted(canvas, dense.astype(bool), shade)
            anchor = masks.interior_point(weak_label.mask) if dense.any() else (0.0, 0.0)
            caption(canvas, name, anchor[0] * scale, anchor[1] * scale, text_size, centred=True)
        elif weak_label.box is not None:
            x0, y0, x1, y1 = (round(value * scale) for value in weak_label.box)
            cv2.rectangle(canvas, (x0, y0), (x1 - 1, y1 - 1), shade, max(1, round(scale)))
            caption(canvas, name, x0, y0, text_size)
        elif weak_label.point is not None:
            x, y = (round(value * scale) for value in weak_label.point)
            cv2.circle(canvas, (x, y), max(3, round(2 * scale)), (255, 255, 255), -1)
            cv2.circle(canvas, (x, y), max(2, round(1.5 * scale)), shade, -1)
            caption(canvas, name, x + 4, y, text_size)
    if tags:
        caption(canvas, ", ".join(tags), 2, 2, text_size)
    return canvas


def sheet(pictures: Sequence[Picture], columns: int, *, gap: int = 6) -> Picture:
    """Pictures row by row on one white sheet, each in a cell of the largest one's size."""
    height = max(picture.shape[0] for picture in pictures) + gap
    width = max(picture.shape[1] for picture in pictures) + gap
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    canvas = np.full((rows * height + gap, columns * width + gap, 3), 255, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        y, x = gap + i // columns * height, gap + i % columns * width
        canvas[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return canvas


def save(picture: Picture, path: Path) -> None:
    """Write a picture as PNG or JPEG, whole or not at all."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise InputError(f"{path}: expected a name that ends in .png or .jpg")
    _, data = cv2.imencode(path.suffix.lower(), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    files.write_bytes(path, data.tobytes())


def tinted(canvas: Picture, mask: npt.NDArray[np.bool_], shade: tuple[int, int, int]) -> Picture:
    """The picture with a mask [H, W] in a colour, and its outline."""
    drawn = canvas.copy()
    drawn[mask] = (0.55 * canvas[mask] + 0.45 * np.asarray(shade)).astype(np.uint8)
    outline, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(drawn, outline, -1, shade, 2)
    return drawn


def caption(
    canvas: Picture, text: str, x: float, y: float, size: float, *, centred: bool = False
) -> None:
    """Text in white on a dark ground, moved so that it stays inside the picture."""
    (width, height), base = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    left = x - width / 2 if centred else x
    left = int(np.clip(left, 0, max(0, canvas.shape[1] - width - 4)))
    top = int(np.clip(y - height / 2 if centred else y, 0, max(0, canvas.shape[0] - height - 6)))
    ground = canvas[top : top + height + base, left : left + width + 4]
    ground[:] = (ground * 0.35).astype(np.uint8)
    place = (left + 2, top + height + 1)
    cv2.putText(
        canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, (255, 255, 255), 1, cv2.LINE_AA
    )


def colour(i: int) -> tuple[int, int, int]:
    """Colours far apart for neighbours in the list: steps of the golden ratio round the wheel."""
    red, green, blue = colorsys.hsv_to_rgb((0.58 + i * 0.61803) % 1.0, 0.85, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)
