from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from annocoin import masks as rle
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.errors import InputError
from annocoin.regions.importers import ProposalSource, read_mat
from annocoin.types import Annotation

IDS = np.array([[5, 5, 7, 7], [5, 9, 9, 7], [9, 9, 9, 7]], dtype=np.uint16)
LABELS = [[5], [7, 9], [5, 7, 9]]
SCORES = [0.2, 0.9, 0.5]
MASKS = np.stack([np.isin(IDS, numbers) for numbers in LABELS])
EDGES = np.linspace(0, 1, 12).reshape(3, 4)


def cells(items: list[Any], wrap: bool = False) -> np.ndarray:
    column = np.empty((len(items), 1), dtype=object)
    for i, item in enumerate(items):
        row = np.array([item], dtype=np.float64)
        if wrap:  # a cell within a cell, as in some of the downloads
            column[i, 0] = np.empty((1, 1), dtype=object)
            column[i, 0][0, 0] = row
        else:
            column[i, 0] = row
    return column


def mcg(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "superpixels": IDS,
        "labels": cells(LABELS),
        "scores": np.array(SCORES)[:, None],
        "bboxes": np.zeros((3, 4)),
    }
    return {name: value for name, value in (fields | changes).items() if value is not None}


def mask_cells(masks: np.ndarray) -> np.ndarray:
    column = np.empty((len(masks), 1), dtype=object)
    for i, mask in enumerate(masks):
        column[i, 0] = mask.astype(np.uint8)
    return column


@pytest.mark.parametrize(
    "content",
    [
        mcg(),
        {"candidates": mcg()},
        {"candidates_mcg": mcg()},
        mcg(labels=cells(LABELS, wrap=True)),
        {"maskmat": mask_cells(MASKS), "scores": np.array(SCORES)},
    ],
    ids=["download", "native", "native-named", "nested", "cob"],
)
def test_every_layout_is_read_exactly(tmp_path: Path, content: dict[str, Any]) -> None:
    scipy.io.savemat(tmp_path / "a.mat", content)
    regions = read_mat(tmp_path / "a.mat", (3, 4), EDGES)
    order = [1, 2, 0]  # by falling score
    assert torch.equal(regions.masks(), torch.from_numpy(MASKS[order]))
    assert regions.scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    assert regions.edge_strength.sum() > 0


def test_without_scores_the_order_of_the_file_is_kept(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "a.mat", mcg(scores=None))
    regions = read_mat(tmp_path / "a.mat", (3, 4))
    assert torch.equal(regions.masks(), torch.from_numpy(MASKS))
    assert (regions.scores.diff() < 0).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": np.zeros(3)}, "no 'superpixels' in it, found ['x']"),
        (mcg(labels=None), "no 'labels'"),
        (mcg(labels=np.ones((3, 2))), "labels is no cell"),
        (mcg(superpixels=IDS[:2]), "the image is (3, 4)"),
        (mcg(labels=cells([[5], [6], [7]])), "region 1 has the superpixels [6.0]"),
        (mcg(labels=cells([[5], [], [7]])), "region 1 has the superpixels []"),
        (mcg(scores=np.ones(2)), "2 scores for 3 regions"),
        (mcg(scores=np.array([1, np.nan, 0])), "expected finite"),
        ({"candidates": np.zeros((2, 2))}, "not a struct"),
        ({"maskmat": mask_cells(MASKS[:, :2])}, "mask 0"),
        ({"maskmat": mask_cells(MASKS & False)}, "mask 0 is empty"),
    ],
)
def test_a_bad_mat_file_is_one_line(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, content)
    with pytest.raises(InputError) as error:
        read_mat(path, (3, 4))
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not matlab at all" * 20,
        lambda data: data[: len(data) // 2],
        lambda data: data[:200] + b"\xff" * 100 + data[300:],
        lambda data: b"MATLAB 7.3 MAT-file" + b" " * 105 + b"\x00\x02IM" + data[128:],
    ],
)
def test_a_corrupt_mat_file_is_one_line(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, mcg())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as error:
        read_mat(path, (3, 4))
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def image(image_id: str | int = "a", name: str = "a.jpg") -> LabelledImage:
    return LabelledImage(image_id, name, None, Annotation((3, 4)))


def opened(text: str, *images: LabelledImage) -> ProposalSource:
    return ProposalSource(text, LabelledImages.of(["cat"], images or (image(),)))


def entries(**more: Any) -> list[dict[str, Any]]:
    return [
        {"segmentation": rle.to_json(mask), **more, "score": score}
        for mask, score in zip(rle.encode(MASKS), SCORES, strict=True)
    ]


def test_one_json_file_for_all_images(tmp_path: Path) -> None:
    path = tmp_path / "masks.json"
    path.write_text(json.dumps(entries(image_id=3) + entries(image_id="b")[:1]))
    source = opened(f"coco:{path}")
    regions = source.find(image(3)).regions((3, 4), EDGES)
    assert torch.equal(regions.masks(), torch.from_numpy(MASKS[[1, 2, 0]]))
    assert regions.edge_strength.sum() > 0
    assert len(source.find(image("b")).regions((3, 4))) == 1
    with pytest.raises(InputError, match="no masks for the image 'c'"):
        source.find(image("c"))


def test_a_json_file_for_each_image_as_sam_writes_it(tmp_path: Path) -> None:
    masks = [{k: v for k, v in e.items() if k != "score"} for e in entries()]
    for entry, score in zip(masks, SCORES, strict=True):
        entry["predicted_iou"] = score
    (tmp_path / "a.json").write_text(json.dumps({"image": {"image_id": 1}, "annotations": masks}))
    source = opened(f"coco:{tmp_path}")
    regions = source.find(image()).regions((3, 4))
    assert torch.equal(regions.masks(), torch.from_numpy(MASKS[[1, 2, 0]]))
    assert regions.scores.tolist() == pytest.approx([0.9, 0.5, 0.2])
    with pytest.raises(InputError, match=r"b\.json"):
        source.find(image(name="b.jpg"))


def test_files_in_subfolders_or_flat_if_names_are_unique(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for name, count in (("a.json", 1), ("s/b.json", 2)):
        (tmp_path / name).write_text(json.dumps(entries()[:count]))
    first, second, deep = image(1, "a.jpg"), image(2, "s/a.jpg"), image(3, "s/b.jpg")
    flat = opened(f"coco:{tmp_path}", second, deep)
    assert len(flat.find(second).regions((3, 4))) == 1
    assert len(flat.find(deep).regions((3, 4))) == 2
    ambiguous = opened(f"coco:{tmp_path}", first, second)
    assert len(ambiguous.find(first).regions((3, 4))) == 1
    with pytest.raises(InputError, match=r"s/a\.json: no such file"):
        ambiguous.find(second)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"x": 1}', "expected a list of masks"),
        ("[{}]", "no 'image_id'"),
        ("[3]", "expected an object"),
        ("[]", "expected a list of masks"),
        ("[", "broken JSON"),
    ],
)
def test_a_bad_json_file_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(InputError, match=message):
        opened(f"coco:{tmp_path / 'm.json'}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segmentation": {"size": [9, 9], "counts": "91"}}, "RLE of size"),
        ({"segmentation": rle.to_json(rle.encode(np.zeros((1, 3, 4)))[0])}, "an empty mask"),
        ({"score": "high"}, "score is 'high'"),
    ],
)
def test_a_bad_mask_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps([entries(image_id="a")[0] | change]))
    with pytest.raises(InputError, match=message):
        opened(f"coco:{path}").find(image()).regions((3, 4), EDGES)


@pytest.mark.parametrize("text", ["", "mcg:", "sam:x", "mcg", "coco:/no/such/file"])
def test_an_unknown_source_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"expected mcg:DIR or coco:FILE|no such file"):
        opened(text)


def test_mcg_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        opened(f"mcg:{tmp_path / 'f'}")
    with pytest.raises(InputError, match=r"a\.mat: no such file"):
        opened(f"mcg:{tmp_path}").find(image())
