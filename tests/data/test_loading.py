from __future__ import annotations

from pathlib import Path

import pytest

from annocoin.data.conversion import write_dataset
from annocoin.data.loading import load_labelled
from annocoin.errors import InputError
from annocoin.synthetic.creatures import CLASSES


@pytest.mark.parametrize("kind", ["voc", "coco", "folder", "yolo", "labelme"])
def test_kinds_are_recognised(scenes: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / ("a.json" if kind == "coco" else "a")
    write_dataset(load_labelled(scenes), out, kind)  # type: ignore[arg-type]
    images = scenes / "JPEGImages" if kind == "coco" else None
    found = load_labelled(out, images=images)
    assert len(found) == 8
    assert set(found.classes) <= set(CLASSES)
    assert load_labelled(out, images=images, kind=kind) == found  # type: ignore[arg-type]


def test_what_is_no_dataset_is_refused(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, expected in (("none", "no such file"), ("empty", "not a dataset")):
        with pytest.raises(InputError, match=expected):
            load_labelled(tmp_path / name)
    with pytest.raises(InputError, match="kind 'pascal'"):
        load_labelled(scenes, kind="pascal")  # type: ignore[arg-type]
    write_dataset(load_labelled(scenes), tmp_path / "a.json", "coco")
    with pytest.raises(InputError, match="no split lists"):
        load_labelled(tmp_path / "a.json", split="train")
    with pytest.raises(InputError, match="no such folder of images"):
        load_labelled(tmp_path / "a.json", images=tmp_path / "none")
