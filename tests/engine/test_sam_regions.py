"""`annocoin regions --from sam:`: several processes, interruptions, labels, other options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_weak
from annocoin.engine.image_stages import Execution, make_sam_regions
from annocoin.errors import InputError
from annocoin.regions.sam import SamOptions
from annocoin.regions.storage import RegionFolder
from regions.sam_networks import write_decoder, write_encoder

Run = Callable[..., Any]
SERIAL = Execution(jobs=1)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> SamOptions:
    folder = tmp_path_factory.mktemp("networks")
    return SamOptions(
        write_encoder(folder / "encoder.onnx"),
        write_decoder(folder / "decoder.onnx", radii=(12.0, 6.0), scores=(0.9, 0.8), sharpness=4),
        points_per_side=2,
        boundaries="gradient",
    )


@pytest.fixture(scope="module")
def boxes(scenes: Path) -> WeakDataset:
    return load_weak(scenes, "box")


def source(options: SamOptions) -> str:
    return f"sam:{options.encoder},{options.decoder}"


def equal(first: RegionFolder, second: RegionFolder) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[i].masks(), second[i].masks())
        and torch.equal(first[i].scores, second[i].scores)
        and torch.equal(first[i].edge_strength, second[i].edge_strength)
        for i in first
    )


def test_the_command_in_two_processes_makes_a_region_of_every_box(
    annocoin: Run, scenes: Path, boxes: WeakDataset, options: SamOptions, tmp_path: Path
) -> None:
    command = ("regions", scenes, "--out", tmp_path / "r", "--from", source(options))
    more = ("--supervision", "box", "--points-per-side", 2, "--boundaries", "gradient", "--jobs", 2)
    outcome = annocoin(*command, *more)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{tmp_path / 'r'}: regions of 8 images\n"
    folder = RegionFolder(tmp_path / "r")
    for image in boxes:
        located = image.annotation.only("box")
        assert len(located)
        assert (folder[image.image_id].box_iou(located.boxes).max(dim=0).values > 0.999).all()
    assert equal(folder, make_sam_regions(boxes, tmp_path / "serial", options, SERIAL))


def test_tags_give_the_grid_only(scenes: Path, options: SamOptions, tmp_path: Path) -> None:
    folder = make_sam_regions(load_weak(scenes, "image"), tmp_path / "r", options, SERIAL)
    first, *others = folder.values()
    assert len(first) == 8
    assert all(torch.equal(first.masks(), other.masks()) for other in others)
    assert folder.provenance["prompts"] == "grid"


def test_points_and_a_mixture_are_prompts(
    scenes: Path, options: SamOptions, tmp_path: Path
) -> None:
    points = load_weak(scenes, "point")
    folder = make_sam_regions(points, tmp_path / "r", options, SERIAL)
    for image in points:
        located = image.annotation.only("point").points
        y, x = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
        squared = (x - located[:, :1, None]) ** 2 + (y - located[:, 1:, None]) ** 2
        discs = squared < 12**2
        assert (folder[image.image_id].iou_with(discs).max(dim=0).values > 0.9).all()
    mixed = load_weak(scenes, "mixed")
    folder = make_sam_regions(mixed, tmp_path / "mixed", options, SERIAL)
    for image in mixed:
        given = image.annotation.boxes
        given = given[~given.isnan().any(dim=1)]
        assert len(given)
        assert (folder[image.image_id].box_iou(given).max(dim=0).values > 0.999).all()


def test_the_same_call_computes_what_is_missing(
    boxes: WeakDataset, options: SamOptions, tmp_path: Path
) -> None:
    complete = make_sam_regions(boxes, tmp_path / "a", options, SERIAL)
    resumed = make_sam_regions(boxes, tmp_path / "b", options, SERIAL)
    paths = list(resumed.files.values())
    content = [path.read_bytes() for path in paths]
    paths[2].unlink()
    paths[5].write_bytes(b"half-written")
    times = {path: path.stat().st_mtime_ns for path in paths if path.exists()}
    resumed = make_sam_regions(boxes, tmp_path / "b", options, SERIAL)
    assert equal(resumed, complete)
    assert [path.read_bytes() for path in paths] == content
    again = [path for path in paths if times.get(path) != path.stat().st_mtime_ns]
    assert again == [paths[2], paths[5]]


def test_other_networks_options_and_labels_need_another_folder(
    annocoin: Run, scenes: Path, boxes: WeakDataset, options: SamOptions, tmp_path: Path
) -> None:
    make_sam_regions(boxes, tmp_path / "r", options, SERIAL)
    command = ("regions", scenes, "--out", tmp_path / "r", "--boundaries", "gradient", "--jobs", 1)
    same = ("--from", source(options), "--supervision", "box", "--points-per-side", 2)
    assert annocoin(*command, *same).code == 0
    other = write_decoder(tmp_path / "decoder.onnx", radii=(12.0, 5.0), scores=(0.9, 0.8))
    for change, name in (
        (("--points-per-side", 3), "points_per_side"),
        (("--nms-thresh", 0.5), "nms_thresh"),
        (("--stability-thresh", 0.5), "stability_thresh"),
        (("--pred-iou-thresh", 0.5), "pred_iou_thresh"),
        (("--limit", 5), "limit"),
        (("--supervision", "point"), "supervision"),
        (("--from", f"sam:{options.encoder},{other}"), "decoder"),
    ):
        outcome = annocoin(*command, *same, *change)
        assert outcome.code == 2
        assert f"made with {name} " in outcome.err
        assert len(outcome.err.splitlines()) == 1
    outcome = annocoin(*command, "--limit", 1000)
    assert "made with source sam" in outcome.err
    fewer = boxes.subset([image.image_id for image in boxes][:4])
    with pytest.raises(InputError, match="made with prompts"):
        make_sam_regions(fewer, tmp_path / "r", options, SERIAL)


def test_a_moved_network_is_the_same(
    boxes: WeakDataset, options: SamOptions, tmp_path: Path
) -> None:
    make_sam_regions(boxes, tmp_path / "r", options, SERIAL)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(options.encoder.read_bytes())
    moved = SamOptions(copy, options.decoder, points_per_side=2, boundaries="gradient")
    assert len(make_sam_regions(boxes, tmp_path / "r", moved, SERIAL)) == 8


def test_a_bad_image_is_skipped(annocoin: Run, options: SamOptions, tmp_path: Path) -> None:
    (tmp_path / "data/images").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.fromarray(np.full((40, 64, 3), 90, np.uint8)).save(tmp_path / "data/images" / name)
    (tmp_path / "data/labels.csv").write_text("image,class\na.png,cat\nb.png,cat\n")
    empty = write_decoder(tmp_path / "empty.onnx", radii=(-1.0,))
    command = ("regions", tmp_path / "data", "--jobs", 1, "--boundaries", "gradient", "--out")
    sources = ("--from", f"sam:{options.encoder},{empty}")
    outcome = annocoin(*command, tmp_path / "none", *sources)
    assert outcome.code == 2
    assert "image 'a': SAM gives no mask" in outcome.err
    path = tmp_path / "data/images/b.png"
    path.write_bytes(path.read_bytes()[:100])
    outcome = annocoin(*command, tmp_path / "r", "--from", source(options), "--skip-bad")
    assert outcome.code == 0
    assert "b.png" in outcome.err
    assert list(RegionFolder(tmp_path / "r")) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "sam:x"), "--from sam:x; expected sam:ENCODER.onnx,DECODER.onnx"),
        (("--from", "sam:x,"), "expected sam:ENCODER.onnx,DECODER.onnx"),
        (("--from", "sam:x,y,z"), "expected sam:ENCODER.onnx,DECODER.onnx"),
        (("--from", "sam:x,y"), "x: no such file; expected an ONNX network"),
        (("--from", "{decoder}"), "not a decoder that is supported"),
        (("--from", "{sam}", "--supervision", "mask"), "expected one of image, box, point, mixed"),
        (("--from", "{sam}", "--points-per-side", "0"), "at least 1"),
        (("--from", "{sam}", "--nms-thresh", "2"), "expected 0 to 1"),
        (("--points-per-side", "4"), "--points-per-side is for --from sam:ENCODER,DECODER"),
        (("--supervision", "box"), "--supervision is for --from sam:ENCODER,DECODER"),
        (("--from", "tam:x,y"), "or sam:ENCODER.onnx,DECODER.onnx"),
    ],
)
def test_bad_arguments_are_one_line(
    annocoin: Run,
    scenes: Path,
    options: SamOptions,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    swapped = f"sam:{options.decoder},{options.encoder}"
    words = (word.format(sam=source(options), decoder=swapped) for word in arguments)
    outcome = annocoin("regions", scenes, "--out", tmp_path / "r", "--jobs", 1, *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_help_states_the_defaults(annocoin: Run, options: SamOptions) -> None:
    text = "".join(annocoin("regions", "make", "--help").out.split())
    fields = {field.name: field.default for field in dataclasses.fields(options)}
    for name in ("points_per_side", "pred_iou_thresh", "stability_thresh", "nms_thresh"):
        _, _, description = text.partition(f"--{name.replace('_', '-')}")
        assert description.partition("[default:(")[2].partition(")")[0] == str(fields[name])
