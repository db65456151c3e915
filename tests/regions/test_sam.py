"""Regions from SAM, with tiny ONNX networks whose masks are known."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from annocoin import masks
from annocoin.errors import InputError
from annocoin.regions import sam
from annocoin.regions.region_set import RegionSet
from annocoin.regions.sam import (
    SamOptions,
    SamProposer,
    ScoredMask,
    sam_prompts,
    stability_score,
    suppress_duplicates,
)
from annocoin.regions.sam_model import MEAN, STD, Frame, SamModel
from annocoin.types import Annotation, WeakLabel
from regions.sam_networks import write_decoder, write_encoder, write_graph

SIZES = [(32, 64), (64, 128), (16, 32), (128, 64), (64, 64)]
"""One pixel is 1, 1/2 and 2 pixels of a frame of 64; portrait; square."""

ONE = {"points_per_side": 1}
"""A single prompt in the middle, beside those of labels."""


def networks(tmp_path: Path, family: str = "planes", **decoder: Any) -> tuple[Path, Path]:
    """A pair of files. The frames of EfficientSAM and of encoders of pixels have a side of 1024."""
    if family != "planes":
        decoder = {"side": 1024, "resolution": 256, **decoder}
    return (
        write_encoder(tmp_path / "encoder.onnx", family),
        write_decoder(tmp_path / "decoder.onnx", efficient=family == "efficient", **decoder),
    )


def proposer(
    tmp_path: Path, family: str = "planes", options: dict[str, Any] | None = None, **decoder: Any
) -> SamProposer:
    paths = networks(tmp_path, family, **decoder)
    return SamProposer(SamOptions(*paths, boundaries="gradient", **(options or {})))


def grey(size: tuple[int, int], value: int = 90) -> np.ndarray:
    return np.full((*size, 3), value, np.uint8)


def box_mask(size: tuple[int, int], box: tuple[float, ...]) -> torch.Tensor:
    mask = torch.zeros(1, *size)
    x0, y0, x1, y1 = (int(value) for value in box)
    mask[0, y0:y1, x0:x1] = 1
    return mask


def disc_mask(size: tuple[int, int], x: float, y: float, rx: float, ry: float) -> torch.Tensor:
    rows, columns = torch.meshgrid(*(torch.arange(n) + 0.5 for n in size), indexing="ij")
    return (((columns - x) / rx) ** 2 + ((rows - y) / ry) ** 2 < 1)[None]


def best(regions: RegionSet, mask: torch.Tensor) -> float:
    return float(regions.iou_with(mask).max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", ["planes", "pixels", "efficient"])
def test_a_box_prompt_gives_exactly_that_box(
    tmp_path: Path, family: str, size: tuple[int, int]
) -> None:
    height, width = size
    box = (width * 0.25, height * 0.125, width * 0.625, height * 0.5)
    label = WeakLabel(1, box=box)
    regions = proposer(tmp_path, family, ONE)(grey(size), Annotation(size, (label,)))
    assert regions.size == size
    assert best(regions, box_mask(size, box)) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", ["planes", "pixels", "fixed pixels", "efficient"])
def test_a_point_prompt_gives_a_disc_around_it(
    tmp_path: Path, family: str, size: tuple[int, int]
) -> None:
    if family == "fixed pixels":  # an image of 48 x 64 in a frame of 1024
        scale = [min(48 / size[0], 64 / size[1])] * 2
        radius = 14.0
        decoder = {"radii": (radius,), "resolution": 1024}
    elif family == "planes":
        scale, radius = [64 / max(size)] * 2, 12.0
        decoder = {"radii": (radius,)}
    else:
        scale = [1024 / max(size)] * 2 if family == "pixels" else [1024 / size[0], 1024 / size[1]]
        radius = 200.0
        decoder = {"radii": (radius,)}
    point = (size[1] * 0.375, size[0] * 0.5)
    annotation = Annotation(size, (WeakLabel(1, point=point),))
    regions = proposer(tmp_path, family, ONE, **decoder)(grey(size), annotation)
    expected = disc_mask(size, *point, radius / scale[1], radius / scale[0])
    assert best(regions, expected) > 0.93


def test_at_the_frames_own_size_a_disc_is_exact(tmp_path: Path) -> None:
    annotation = Annotation((40, 64), (WeakLabel(1, point=(20.0, 15.0)),))
    regions = proposer(tmp_path, options=ONE)(grey((40, 64)), annotation)
    assert best(regions, disc_mask((40, 64), 20, 15, 12, 12)) == 1


def test_masks_are_resized_as_sam_does_it() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(16, 16)).astype(np.float32)
    frame = Frame((50, 80), (40, 64), 64)
    square = F.interpolate(torch.from_numpy(logits)[None, None], (64, 64), mode="bilinear")
    expected = F.interpolate(square[..., :40, :64], (50, 80), mode="bilinear")[0, 0].numpy()
    np.testing.assert_allclose(frame.image_logits(logits), expected, atol=1e-5)
    assert frame.crop(logits).shape == (10, 16)
    assert frame.points(np.asarray([[40.0, 25.0]])).tolist() == [[32, 20]]


def test_the_encoder_gets_a_normalised_padded_image(tmp_path: Path) -> None:
    model = SamModel(*networks(tmp_path))
    image = np.random.default_rng(0).integers(0, 256, (40, 64, 3)).astype(np.uint8)
    embedding = model.embed(image).embedding
    assert embedding.shape == (1, 3, 64, 64)
    np.testing.assert_allclose(
        embedding[0, :, :40], ((image - MEAN) / STD).transpose(2, 0, 1), atol=1e-5
    )
    assert (embedding[0, :, 40:] == 0).all()


def test_encoders_of_pixels_get_colours_and_efficient_sam_fractions(tmp_path: Path) -> None:
    image = grey((32, 64), 51)
    pixels = SamModel(*networks(tmp_path, "pixels")).embed(image)
    assert pixels.embedding.shape == (1, 3, 512, 1024)
    assert (pixels.embedding == 51).all()
    fixed = SamModel(*networks(tmp_path, "fixed pixels")).embed(image).embedding
    assert fixed.shape == (1, 3, 48, 64)
    assert (fixed[0, :, :32] == 51).all()
    np.testing.assert_allclose(fixed[0, :, 40, 5], MEAN)
    efficient = SamModel(*networks(tmp_path, "efficient")).embed(image).embedding
    assert efficient.shape == (1, 3, 32, 64)
    np.testing.assert_allclose(efficient, 0.2)


@pytest.mark.parametrize("family", ["pixels", "efficient"])
def test_the_embedding_reaches_the_decoder(tmp_path: Path, family: str) -> None:
    gain = 0.001 if family == "pixels" else 0.255
    propose = proposer(tmp_path, family, ONE, radii=(90.0,), scores=(0.5,), gain=gain)
    regions = propose(grey((30, 40), 200))
    assert regions.scores.tolist() == pytest.approx([0.7] * len(regions))


def test_prompts_are_a_grid_and_the_boxes_and_points_of_labels() -> None:
    mask = masks.encode(np.ones((1, 60, 80)))[0]
    labels = (
        WeakLabel(1),
        WeakLabel(1, box=(1, 2, 30, 40)),
        WeakLabel(2, point=(7, 8)),
        WeakLabel(2, mask=mask),
        WeakLabel(2, box=(0, 0, 80, 60), crowd=True),
    )
    prompts = sam_prompts(Annotation((60, 80), labels), 4)
    assert prompts.labelled.tolist() == [True] * 2 + [False] * 12
    assert prompts.points[:2].tolist() == [[[1, 2], [30, 40]], [[7, 8], [0, 0]]]
    assert prompts.labels[:3].tolist() == [[2, 3], [1, -1], [1, -1]]
    assert prompts.points[2:, 0].tolist() == [
        [x, y] for y in (10, 30, 50) for x in (10, 30, 50, 70)
    ]
    assert len(sam_prompts(Annotation((1, 500)), 8).points) == 8


@pytest.mark.parametrize("family", ["planes", "efficient"])
def test_every_grid_point_gives_its_masks_with_their_scores(tmp_path: Path, family: str) -> None:
    radii = (6.0, 3.0) if family == "planes" else (96.0, 48.0)
    propose = proposer(
        tmp_path,
        family,
        {"points_per_side": 5},
        radii=radii,
        scores=(0.9, 0.75),
        sharpness=10,
    )
    regions = propose(grey((64, 64)))
    assert regions.scores.tolist() == pytest.approx([0.9] * 25 + [0.75] * 25)
    centres = [(i + 0.5) * 64 / 5 for i in range(5)]
    for y in centres:
        for x in centres:
            ious = regions.iou_with(disc_mask((64, 64), x, y, 6, 6))[:25]
            assert float(ious.max()) > 0.9


def test_equal_masks_are_one_region_with_the_best_score(tmp_path: Path) -> None:
    propose = proposer(tmp_path, radii=(200.0, 12.0, 12.2), scores=(0.8, 0.85, 0.9))
    regions = propose(grey((64, 64)), None)
    whole = regions.areas == 64 * 64
    assert whole.sum() == 1
    assert regions.scores[whole].tolist() == pytest.approx([0.8])
    assert len(regions) == 1 + 64  # of two nearly equal discs at each of 64 points, one
    assert regions.scores[:64].tolist() == pytest.approx([0.9] * 64)


def test_masks_below_the_thresholds_are_left_out(tmp_path: Path) -> None:
    image = grey((64, 64))
    decoder: dict[str, Any] = {"radii": (12.0, 20.0), "scores": (0.9, 0.6)}
    assert len(proposer(tmp_path, options=ONE, **decoder)(image)) == 1
    both = proposer(tmp_path, options={**ONE, "pred_iou_thresh": 0.5}, **decoder)(image)
    assert both.scores.tolist() == pytest.approx([0.9, 0.6])
    # Radii of 11 and 13 at the shifted thresholds: stability about (11 / 13) ** 2 = .72; of 20: .82
    strict = {**ONE, "pred_iou_thresh": 0.5, "stability_thresh": 0.78}
    assert proposer(tmp_path, options=strict, **decoder)(image).scores.tolist() == [
        pytest.approx(0.6)
    ]


def test_the_best_mask_is_kept_if_none_passes(tmp_path: Path) -> None:
    regions = proposer(tmp_path, radii=(9.0, 12.0), scores=(0.1, 0.2))(grey((64, 64)))
    assert regions.scores.tolist() == pytest.approx([0.2])


def test_a_labels_best_mask_is_kept_in_any_case(tmp_path: Path) -> None:
    label = WeakLabel(1, box=(8, 8, 40, 32))
    propose = proposer(tmp_path, options={"limit": 1}, radii=(5.0, 5.0), scores=(0.1, 0.3))
    regions = propose(grey((64, 64)), Annotation((64, 64), (label, WeakLabel(2))))
    assert regions.scores.tolist() == pytest.approx([0.3])
    assert best(regions, box_mask((64, 64), (8, 8, 40, 32))) == 1
    # A box of 4 x 4 pixels has 2 x 2 and 6 x 6 at the shifted thresholds; the discs are stable.
    small = WeakLabel(1, box=(40, 8, 44, 12))
    regions = proposer(tmp_path)(grey((64, 64)), Annotation((64, 64), (small,)))
    assert len(regions) > 1
    assert best(regions, box_mask((64, 64), (40, 8, 44, 12))) == 1


def test_scores_above_one_are_one(tmp_path: Path) -> None:
    assert proposer(tmp_path, scores=(1.02,))(grey((64, 64))).scores.max() == 1


def test_without_any_mask_an_image_is_bad(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="SAM gives no mask"):
        proposer(tmp_path, radii=(-5.0,))(grey((64, 64)))
    with pytest.raises(InputError, match="SAM gives no mask"):
        proposer(tmp_path, scores=(float("nan"),))(grey((64, 64)))


def test_an_annotation_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its annotation is for"):
        proposer(tmp_path)(grey((64, 64)), Annotation((64, 60)))


def test_too_many_superpixels_leave_out_the_worst_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    radii, scores = (8.0, 16.0, 24.0, 30.0), (0.95, 0.9, 0.85, 0.8)
    propose = proposer(tmp_path, options=ONE, radii=radii, scores=scores)
    complete = propose(grey((64, 64)), name="a.jpg")
    assert complete.membership.shape == (4, 5)  # rings, and the rest of the image
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sam, "MAX_SUPERPIXELS", 4)
    bounded = propose(grey((64, 64)), name="a.jpg")
    assert torch.equal(bounded.masks(), complete[:3].masks())
    assert bounded.membership.shape == (3, 4)
    note = capsys.readouterr().err
    assert note == (
        "note: a.jpg: the overlay of 4 masks has 5 superpixels, more than 4; "
        "the best 3 masks are kept\n"
    )


def scored(mask: np.ndarray, score: float, required: bool = False) -> ScoredMask:
    logits = np.where(mask, 5, -5).astype(np.float32)
    return ScoredMask(logits, masks.encode(mask[None])[0], score, 1.0, required)


def test_suppression_is_greedy_by_score() -> None:
    rows = np.zeros((4, 1, 10), dtype=bool)
    for row, (start, end) in zip(rows, [(0, 10), (0, 8), (0, 6), (9, 10)], strict=True):
        row[0, start:end] = True
    first, second, third, other = (
        scored(row, score) for row, score in zip(rows, (0.9, 0.8, 0.7, 0.95), strict=True)
    )
    candidates = [third, second, first, other]

    def kept(items: list[ScoredMask], threshold: float, limit: int = 9) -> list[float]:
        return [mask.score for mask in suppress_duplicates(items, threshold, limit)]

    assert kept(candidates, 0.7) == [0.95, 0.9, 0.7]  # IoUs .8, .6 and .75
    assert kept(candidates, 0.8) == [0.95, 0.9, 0.8, 0.7]
    assert kept(candidates, 0.5) == [0.95, 0.9]
    assert kept(candidates, 0.7, limit=2) == [0.95, 0.9]
    required = [third, replace(second, required=True), first, other]
    assert kept(required, 0.7) == [0.95, 0.8]
    assert kept(required, 0.7, limit=1) == [0.8]
    assert kept([], 0.7) == []


def test_stability_compares_shifted_thresholds() -> None:
    logits = np.asarray([[2.0, 1.5, 0.5, -0.5, -1.5]], dtype=np.float32)
    assert stability_score(logits) == 2 / 4
    assert stability_score(logits - 9) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points_per_side": 0}, "points-per-side 0; expected at least 1"),
        ({"limit": 0}, "limit 0"),
        ({"nms_thresh": 1.5}, "nms-thresh 1.5; expected 0 to 1"),
        ({"pred_iou_thresh": -1.0}, "pred-iou-thresh -1.0"),
        ({"stability_thresh": float("nan")}, "stability-thresh nan"),
        ({"boundaries": "canny"}, "expected one of network, gradient"),
    ],
)
def test_bad_options_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamOptions(Path("e"), Path("d"), **change)


def one_line(encoder: Path, decoder: Path) -> str:
    with pytest.raises(InputError) as error:
        SamModel(encoder, decoder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    encoder, decoder = networks(tmp_path)
    text = tmp_path / "text.onnx"
    text.write_text("not a network")
    assert f"{tmp_path / 'no'}: no such file" in one_line(tmp_path / "no", decoder)
    assert f"{text}: not a usable ONNX network" in one_line(encoder, text)
    swapped = one_line(decoder, encoder)
    assert "inputs input [1, 3, 64, 64]; outputs output" in swapped
    assert "batched_point_coords" in swapped  # what is supported
    assert "point_coords" in swapped
    twice = one_line(decoder, decoder)
    assert "not an encoder for a decoder of SAM" in twice


def test_encoders_and_decoders_of_other_conventions_are_one_line(tmp_path: Path) -> None:
    encoder, decoder = networks(tmp_path)
    efficient = write_encoder(tmp_path / "efficient.onnx", "efficient")
    batched = write_decoder(tmp_path / "batched.onnx", efficient=True)
    assert "expected batched_images" in one_line(encoder, batched)
    assert "batched_images [1, 3, 'h', 'w']" in one_line(efficient, decoder)
    oblong = write_graph(
        tmp_path / "oblong.onnx",
        "e (float[1,3,32,64] x) => (float[1,3,32,64] y) { y = Identity(x) }",
    )
    assert "expected one image, [1, 3, N, N]" in one_line(oblong, decoder)
    features = write_graph(
        tmp_path / "features.onnx",
        "d (float[1] image_embeddings, float[1,n,2] point_coords, float[1,n] point_labels, "
        "float[1] high_res_features) => (float[1] low_res_masks, float[1] iou_predictions) "
        "{ low_res_masks = Identity(image_embeddings) iou_predictions = Identity(high_res_features)"
        " }",
    )
    assert "high_res_features [1]" in one_line(encoder, features)


def test_a_network_that_fails_is_one_line(tmp_path: Path) -> None:
    encoder, _ = networks(tmp_path)
    wrong = write_graph(
        tmp_path / "wrong.onnx",
        "d (float[1,3,8,8] image_embeddings, float[1,n,2] point_coords, float[1,n] point_labels) "
        "=> (float[1,3,8,8] low_res_masks, float[1,n] iou_predictions) "
        "{ low_res_masks = Identity(image_embeddings) iou_predictions = Identity(point_labels) }",
    )
    model = SamModel(encoder, wrong)
    points, labels = np.zeros((1, 2, 2)), np.asarray([[1, -1]])
    with pytest.raises(InputError, match=r"wrong\.onnx: fails for inputs") as error:
        list(model.decode(model.embed(grey((64, 64))), points, labels))
    assert "\n" not in str(error.value)
    embedded = replace(model.embed(grey((64, 64))), embedding=np.zeros((1, 3, 8, 8)))
    with pytest.raises(InputError, match=r"expected \[Q, M, n, n\] and \[Q, M\]"):
        list(model.decode(embedded, points, labels))


def test_without_onnxruntime_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = networks(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"needs onnxruntime; install it with `pip install 'anno"):
        SamModel(*paths)
