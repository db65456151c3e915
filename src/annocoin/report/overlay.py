"""Draw labels and masks on images, and arrange images in a grid."""

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
Colour = tuple[int, int, int]


def draw(
    image: Picture,
    annotation: Annotation,
    classes: Sequence[str],
    *,
    scale: float = 1.0,
    caption: str = "",
) -> Picture:
    """Draw masks, boxes, points and class names on an image [H, W, 3] enlarged by `scale`.

    Every weak label has a colour. Tags are listed in the upper left corner, the caption is in the
    lower left. A box is drawn only if there is no mask.
    """
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
    canvas = np.asarray(resized, dtype=np.uint8)
    text_size = max(0.35, min(height, width) / 700)
    for i, weak_label in enumerate(annotation):
        name = classes[weak_label.label - 1]
        if weak_label.score is not None and weak_label.score != 1:  # 1 if there is no score
            name += f" {weak_label.score:.2f}"
        if weak_label.mask is not None:
            dense = masks.decode([weak_label.mask], annotation.size)[0].astype(np.uint8)
            dense = cv2.resize(dense, (width, height), interpolation=cv2.INTER_LINEAR)
            canvas = draw_mask(canvas, dense.astype(bool), colour(i))
            x, y = masks.interior_point(weak_label.mask) if dense.any() else (0.0, 0.0)
            draw_text(canvas, name, x * scale, y * scale, text_size, centred=True)
        elif weak_label.box is not None:
            x0, y0, x1, y1 = (round(value * scale) for value in weak_label.box)
            cv2.rectangle(canvas, (x0, y0), (x1 - 1, y1 - 1), colour(i), max(1, round(scale)))
            draw_text(canvas, name, x0, y0, text_size)
        elif weak_label.point is not None:
            centre = round(weak_label.point[0] * scale), round(weak_label.point[1] * scale)
            cv2.circle(canvas, centre, max(3, round(2 * scale)), (255, 255, 255), -1)
            cv2.circle(canvas, centre, max(2, round(1.5 * scale)), colour(i), -1)
            draw_text(canvas, name, centre[0] + 4, centre[1], text_size)
    tags = [classes[weak_label.label - 1] for weak_label in annotation if weak_label.kind == "tag"]
    draw_text(canvas, ", ".join(tags), 2, 2, text_size)
    draw_text(canvas, caption, 2, height, 0.4)
    return canvas


def sheet(pictures: Sequence[Picture], columns: int, *, gap: int = 6) -> Picture:
    """Arrange pictures row by row in a white grid, in cells of the size of the largest."""
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
    """Write a picture as PNG or JPEG, atomically."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise InputError(f"{path}: expected a name that ends in .png or .jpg")
    _, data = cv2.imencode(path.suffix.lower(), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    files.write_bytes(path, data.tobytes())


def draw_mask(canvas: Picture, mask: npt.NDArray[np.bool_], shade: Colour) -> Picture:
    """A copy of the picture with a mask [H, W] blended in, and its outline."""
    drawn = canvas.copy()
    drawn[mask] = (0.55 * canvas[mask] + 0.45 * np.asarray(shade)).astype(np.uint8)
    outline, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(drawn, outline, -1, shade, 2)
    return drawn


def draw_text(
    canvas: Picture, text: str, x: float, y: float, size: float, *, centred: bool = False
) -> None:
    """Draw white text on a darkened background, moved to be inside the picture."""
    if not text:
        return
    font = cv2.FONT_HERSHEY_SIMPLEX
    (width, height), baseline = cv2.getTextSize(text, font, size, 1)
    if centred:
        x, y = x - width / 2, y - height / 2
    left = int(np.clip(x, 0, max(0, canvas.shape[1] - width - 4)))
    top = int(np.clip(y, 0, max(0, canvas.shape[0] - height - 6)))
    background = canvas[top : top + height + baseline, left : left + width + 4]
    background[:] = (background * 0.35).astype(np.uint8)
    origin = (left + 2, top + height + 1)
    cv2.putText(canvas, text, origin, font, size, (255, 255, 255), 1, cv2.LINE_AA)


def colour(i: int) -> Colour:
    """The i-th of a sequence of distinct colours: hues in steps of the golden ratio."""
    red, green, blue = colorsys.hsv_to_rgb((0.58 + i * 0.61803) % 1.0, 0.85, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)
