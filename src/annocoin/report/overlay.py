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
from annocoin.types import Annotation, WeakLabel

Picture = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]
Rectangle = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels, right and lower edge exclusive."""


def draw(
    image: Picture,
    annotation: Annotation,
    classes: Sequence[str],
    *,
    scale: float = 1.0,
    caption: str = "",
    by_class: bool = False,
) -> Picture:
    """Draw masks, boxes, points and class names on an image [H, W, 3] enlarged by `scale`.

    Every weak label has a colour; with `by_class`, every class, so that pictures of the same image
    can be compared. Tags are listed in the upper left corner, the caption is in the lower left. A
    box is drawn only if there is no mask. Names do not cover each other: they are moved, or left
    out where there is no space.
    """
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
    canvas = np.asarray(resized, dtype=np.uint8)
    side = min(height, width)
    text_size, line = max(0.35, side / 700), max(2, round(side / 160))
    names: list[tuple[str, float, float, bool]] = []
    for i, weak_label in enumerate(annotation):
        shade = colour(weak_label.label if by_class else i)
        name = label_text(weak_label, classes)
        if weak_label.mask is not None:
            dense = masks.decode([weak_label.mask], annotation.size)[0].astype(np.uint8)
            dense = cv2.resize(dense, (width, height), interpolation=cv2.INTER_LINEAR)
            canvas = draw_mask(canvas, dense.astype(bool), shade)
            x, y = masks.interior_point(weak_label.mask) if dense.any() else (0.0, 0.0)
            names.append((name, x * scale, y * scale, True))
        elif weak_label.box is not None:
            x0, y0, x1, y1 = (round(value * scale) for value in weak_label.box)
            for inset in range(line):  # inside the box, so that its edge is where it was annotated
                corners = (x0 + inset, y0 + inset), (x1 - 1 - inset, y1 - 1 - inset)
                cv2.rectangle(canvas, *corners, shade, 1)
            names.append((name, x0 + line, y0 + line, False))
        elif weak_label.point is not None:
            centre = round(weak_label.point[0] * scale), round(weak_label.point[1] * scale)
            cv2.circle(canvas, centre, 2 * line + 2, (255, 255, 255), -1)
            cv2.circle(canvas, centre, 2 * line, shade, -1)
            names.append((name, centre[0] + 2 * line + 3, centre[1], False))
    tags = [classes[weak_label.label - 1] for weak_label in annotation if weak_label.kind == "tag"]
    taken: list[Rectangle] = []
    draw_text(canvas, ", ".join(tags), 2, 2, text_size, taken=taken)
    draw_text(canvas, caption, 2, height, 0.4, taken=taken)
    for name, x, y, centred in names:
        draw_text(canvas, name, x, y, text_size, centred=centred, taken=taken)
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


def label_text(weak_label: WeakLabel, classes: Sequence[str]) -> str:
    """The class, with the confidence of a pseudo label or the score of a prediction."""
    name, confidence = classes[weak_label.label - 1], weak_label.confidence
    number = weak_label.score if confidence is None else confidence
    return name if number is None or number == 1 else f"{name} {number:.2f}"  # 1 without a score


def draw_mask(canvas: Picture, mask: npt.NDArray[np.bool_], shade: Colour) -> Picture:
    """A copy of the picture with a mask [H, W] blended in, and its outline."""
    drawn = canvas.copy()
    drawn[mask] = (0.55 * canvas[mask] + 0.45 * np.asarray(shade)).astype(np.uint8)
    outline, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(drawn, outline, -1, shade, 2)
    return drawn


def draw_text(
    canvas: Picture,
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    centred: bool = False,
    taken: list[Rectangle] | None = None,
) -> None:
    """Draw white text on a darkened background, moved to be inside the picture.

    Args:
        taken: rectangles of other texts, to which this one is added; it is moved up or down to a
            free space, and is not drawn if there is none.
    """
    if not text:
        return
    font = cv2.FONT_HERSHEY_SIMPLEX
    (width, height), baseline = cv2.getTextSize(text, font, size, 1)
    if centred:
        x, y = x - width / 2, y - height / 2
    left = int(np.clip(x, 0, max(0, canvas.shape[1] - width - 4)))
    top = int(np.clip(y, 0, max(0, canvas.shape[0] - height - 6)))
    rectangle = (left, top, left + width + 4, top + height + baseline)
    if taken is not None:
        moved = _free_space(rectangle, taken, canvas.shape[0])
        if moved is None:
            return
        taken.append(moved)
        top = moved[1]
    background = canvas[top : top + height + baseline, left : left + width + 4]
    background[:] = (background * 0.35).astype(np.uint8)
    origin = (left + 2, top + height + 1)
    cv2.putText(canvas, text, origin, font, size, (255, 255, 255), 1, cv2.LINE_AA)


def _free_space(rectangle: Rectangle, taken: Sequence[Rectangle], height: int) -> Rectangle | None:
    """The rectangle, moved up or down as little as possible to cover no other; None if it must."""
    x0, y0, x1, y1 = rectangle
    others = [other for other in taken if other[0] < x1 and x0 < other[2]]
    tops = [y0, *(other[3] for other in others), *(other[1] - (y1 - y0) for other in others)]
    for top in sorted(tops, key=lambda top: abs(top - y0)):
        bottom = top + y1 - y0
        inside = top >= 0 and (bottom <= height or top == y0)
        if inside and not any(other[1] < bottom and top < other[3] for other in others):
            return x0, top, x1, bottom
    return None


def colour(i: int) -> Colour:
    """The i-th of a sequence of distinct colours: hues in steps of the golden ratio."""
    red, green, blue = colorsys.hsv_to_rgb((0.58 + i * 0.61803) % 1.0, 0.85, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)
