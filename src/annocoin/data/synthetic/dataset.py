"""Write synthetic scenes as a VOC folder, so that every loader and tool works on them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from annocoin import masks
from annocoin.data import voc
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.synthetic.scene import MIN_SIDE, Scene, render_scene
from annocoin.data.synthetic.species import CLASSES
from annocoin.errors import InputError
from annocoin.progress import track
from annocoin.types import Annotation, Mark

VAL_SHARE = 0.2


def write_synthetic(
    out: str | Path, *, images: int = 200, size: int | tuple[int, int] = 128, seed: int = 0
) -> None:
    """Write scenes 0 .. images - 1 of the collection `seed` as a new VOC folder.

    The splits are "train", then "val" (the last fifth), and "trainval". Scene number i is the same
    whatever `images` is.

    Args:
        out: the folder to make.
        images: how many, at least 1.
        size: side length, or (height, width), in pixels.
        seed: names the collection.
    """
    shape = (size, size) if isinstance(size, int) else size
    if images < 1 or seed < 0 or min(shape) < MIN_SIDE:
        raise InputError(
            f"{images} images of {shape[0]} x {shape[1]}, seed {seed}; expected 1 or more images, "
            f"sides of {MIN_SIDE} or more, and a seed of 0 or more"
        )
    with tempfile.TemporaryDirectory() as folder:
        labelled = [
            _save(render_scene(seed, index, shape), Path(folder), f"{seed:03d}_{index:06d}")
            for index in track(range(images), "painting scenes")
        ]
        stems = [str(image.image_id) for image in labelled]
        cut = images - max(int(images * VAL_SHARE), int(images > 1))
        splits = {"train": stems[:cut], "val": stems[cut:], "trainval": stems}
        dataset = LabelledImages.of(CLASSES, labelled, splits=splits, source=Path(folder))
        voc.write(dataset, Path(out))


def _save(scene: Scene, folder: Path, name: str) -> LabelledImage:
    path = folder / f"{name}.jpg"
    Image.fromarray(scene.image).save(path, quality=95, subsampling=0)
    ids = np.arange(1, len(scene.labels) + 1, dtype=scene.ids.dtype)
    rles = masks.encode(scene.ids[None] == ids[:, None, None])
    pairs = zip(scene.labels, rles, strict=True)
    marks = tuple(Mark(label, mask=rle) for label, rle in pairs)
    annotation = Annotation((scene.ids.shape[0], scene.ids.shape[1]), marks)
    return LabelledImage(name, path.name, path, annotation)
