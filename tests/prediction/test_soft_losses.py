"""Losses of soft targets: torchvision's own for one labelling, their mean over samples for many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import maskrcnn_loss, project_masks_on_boxes
from torchvision.models.detection.rpn import concat_box_prediction_layers

from annocoin.engine.randomness import generator_at
from annocoin.engine.trainer import rate_share
from annocoin.errors import InputError
from annocoin.prediction import soft_losses
from annocoin.prediction.networks import (
    PredictionArchitecture,
    ResizedImage,
    batch_of,
    build_network,
    mask_layer,
    share_masks,
)
from annocoin.prediction.predictor import Predictor
from annocoin.prediction.soft_losses import LossOptions, SoftLosses
from annocoin.prediction.soft_targets import MatchWeights, SoftTargets, match
from prediction.worlds import ellipse, network, nothing, one_of, picture, samples_of

THEIRS = {
    "rpn score": "loss_objectness",
    "rpn box": "loss_rpn_box_reg",
    "class": "loss_classifier",
    "box": "loss_box_reg",
    "mask": "loss_mask",
}
"""Torchvision's names of the losses."""

ALL = 10**6
SAME = torch.ones(4)
"""The scale of boxes in an image that is seen as it is."""

Losses = dict[str, Tensor]


def seen(*seeds: int) -> ImageList:
    """Random images of 64 x 96 pixels, as a network sees them."""
    return batch_of([ResizedImage(picture(seed), (64, 96)) for seed in seeds])


def gradients(losses: Losses, net: MaskRCNN) -> list[Tensor]:
    """Of their sum, for every weight."""
    weights = list(net.parameters())
    found = torch.autograd.grad(sum(losses.values()), weights, allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]


def assert_same_gradients(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    """Each within a thousandth of the greatest one in its layer."""
    for one, other in zip(first, second, strict=True):
        most = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3 * most + 1e-7)
    assert max(float(one.abs().max()) for one in first) > 0.01  # so that it can fail


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [(64, 96), (48, 72)])
@pytest.mark.parametrize("normalised", [False, True])
def test_one_labelling_has_torchvisions_losses(
    normalised: bool, size: tuple[int, int], seed: int
) -> None:
    """All anchors and proposals count, so that nothing is left to chance; 48 x 72 is enlarged."""
    net = network(seed, normalised=normalised).train()
    for part in (net.rpn, net.roi_heads):
        part.fg_bg_sampler.batch_size_per_image = ALL
    image = picture(seed, size)
    targets = one_of(samples_of(seed, size, present=1.0), 0)
    plain = {"boxes": targets.boxes, "labels": targets.labels, "masks": targets.masks.byte()}
    expected = net([image], [plain])

    images, _ = net.transform([image])
    scale = SAME * images.image_sizes[0][0] / size[0]
    soft = SoftLosses(net, LossOptions(anchors=ALL, rois=ALL, entropy=0.0))
    found = soft(images, [targets], [scale], [generator_at(0)])
    assert set(found) == set(THEIRS)
    for name, loss in found.items():
        # torchvision crops masks that were enlarged, we crop them as they are
        rough = name == "mask" and size != (64, 96)
        tolerance = {"rtol": 0.05, "atol": 0.02} if rough else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(loss, expected[THEIRS[name]], **tolerance)  # type: ignore[arg-type]
        assert loss.item() > 0
    if size == (64, 96):
        assert_same_gradients(gradients(found, net), gradients(expected, net))


@pytest.mark.parametrize("seed", range(4))
def test_masks_are_cropped_where_the_targets_have_them(seed: int) -> None:
    """Against torchvision's loss with RoIs in the coordinates of the targets, half as fine."""
    net = network(seed)
    heads = net.roi_heads
    soft = SoftLosses(net, LossOptions(entropy=0.0))
    images, scale = seen(seed), torch.tensor([2.0, 2.0, 2.0, 2.0])
    targets = one_of(samples_of(seed, (32, 48), present=1.0), 0)
    places = targets.boxes * scale
    rois = rois_near(places, seed)
    shares = match(rois, places, targets, foreground=0.5, background=0.5)
    features = net.backbone(images.tensors)
    found = soft._masks(images, features, [targets], [scale], [rois], [shares])["mask"]

    stands = shares.instances.sum(dim=1) > 0
    logits = heads.mask_predictor(
        heads.mask_head(heads.mask_roi_pool(features, [rois[stands]], images.image_sizes))
    )
    expected = maskrcnn_loss(
        logits,
        [rois[stands] / 2],
        [targets.masks],
        [targets.labels],
        [shares.instances[stands].argmax(dim=1)],
    )
    torch.testing.assert_close(found, expected)
    assert len(shares.instances.argmax(dim=1)[stands].unique()) > 1


def rois_near(places: Tensor, seed: int, spread: float = 0.15) -> Tensor:
    """Boxes that stand for instances in some samples, and a few anywhere."""
    generator = torch.Generator().manual_seed(seed)
    sides = (places[:, 2:] - places[:, :2]).repeat(1, 2)
    moved = [
        places + spread * sides * torch.randn(places.shape, generator=generator) for _ in range(3)
    ]
    first = torch.rand(6, 2, generator=generator) * torch.tensor([60.0, 40.0])
    anywhere = torch.cat([first, first + 10 + 10 * torch.rand(6, 2, generator=generator)], dim=1)
    boxes = torch.cat([*moved, anywhere])
    least = torch.minimum(boxes[:, :2], boxes[:, 2:] - 4)
    return torch.cat([least, boxes[:, 2:]], dim=1)


def losses_at(soft: SoftLosses, targets: SoftTargets, anchors: Tensor, rois: Tensor) -> Losses:
    """All losses of an image at given anchors and RoIs, whatever the targets are."""
    images = seen(0)
    features = soft.net.backbone(images.tensors)
    image = (images, features, [targets])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            soft_losses,
            "draw",
            lambda shares, *_: (anchors, MatchWeights(*(s[anchors] for s in shares))),
        )
        _, found = soft._region_proposals(*image, [targets.boxes], [generator_at(0)])
    shares = match(rois, targets.boxes, targets, foreground=0.5, background=0.5)
    found |= soft._boxes(*image, [targets.boxes], [rois], [shares])
    found |= soft._masks(*image, [SAME], [rois], [shares])
    return found


def learned_from(net: MaskRCNN, targets: SoftTargets, seed: int) -> Tensor:
    """Positions of anchors: those that stand for something in some sample, and as many others."""
    images = seen(0)
    levels = list(net.backbone(images.tensors).values())
    anchors = net.rpn.anchor_generator(images, levels)[0]
    shares = match(anchors, targets.boxes, targets, foreground=0.7, background=0.3, best_too=True)
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(anchors), generator=generator)[:100]
    return torch.cat([shares.instances.sum(dim=1).nonzero()[:, 0], some])


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_anchors_sample_by_sample(seed: int) -> None:
    """With torchvision's targets; an anchor that a sample ignores adds nothing in that sample."""
    net = network(seed)
    soft = SoftLosses(net)
    images, targets = seen(0), samples_of(seed)
    anchors = learned_from(net, targets, seed)
    found = losses_at(soft, targets, anchors, rois_near(targets.boxes, seed))
    with torch.no_grad():
        levels = list(net.backbone(images.tensors).values())
        scores, deltas = concat_box_prediction_layers(*net.rpn.head(levels))
    places = net.rpn.anchor_generator(images, levels)
    score = box = 0.0
    ignored = 0
    for sample, weight in enumerate(targets.weights.tolist()):
        plain = {"boxes": one_of(targets, sample).boxes}
        labels, boxes = net.rpn.assign_targets_to_anchors(places, [plain])
        goals = net.rpn.box_coder.encode(boxes, places)[0]
        for anchor in anchors.tolist():
            label, share = int(labels[0][anchor]), weight / len(anchors)
            chance = float(scores[anchor].sigmoid())
            if label == -1:
                ignored += 1
            elif label == 0:
                score -= share * math.log(1 - chance)
            else:
                score -= share * math.log(chance)
                apart = (deltas[anchor] - goals[anchor]).abs().tolist()
                box += share * sum(d - 1 / 18 if d > 1 / 9 else 4.5 * d * d for d in apart)
    assert ignored > 10
    assert found["rpn score"].item() == pytest.approx(score, rel=1e-3)
    assert found["rpn box"].item() == pytest.approx(box, rel=1e-3)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_loss_of_samples_is_the_mean_of_their_losses(seed: int, shared: bool) -> None:
    """The masks' is a mean over RoIs: samples count in it by the RoIs that stand for instances."""
    net = network(seed)
    soft = SoftLosses(net, LossOptions(entropy=0.5, shared_masks=shared))
    targets = samples_of(seed)
    anchors = learned_from(net, targets, seed)
    rois = rois_near(targets.boxes, seed)
    found = losses_at(soft, targets, anchors, rois)

    singles = [one_of(targets, sample) for sample in range(len(targets.members))]
    alone = [losses_at(soft, single, anchors, rois) for single in singles]
    standing = torch.stack([standing_in(rois, single) for single in singles]) * targets.weights
    by_mask = standing / standing.sum()
    assert standing.min() < 0.8 * standing.max()  # so that the two weights differ
    expected: Losses = {}
    for name in found:
        weights = by_mask if name in ("mask", "mask entropy") else targets.weights
        losses = torch.stack([own[name] for own in alone])
        expected[name] = (weights * losses).sum()
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)
        if not name.endswith("entropy"):  # which hardly knows the samples
            assert (losses.max() - losses.min()).item() > 1e-3
    assert_same_gradients(gradients(found, net), gradients(expected, net))


def standing_in(rois: Tensor, single: SoftTargets) -> Tensor:
    """How many RoIs stand for an instance of a labelling."""
    shares = match(rois, single.boxes, single, foreground=0.5, background=0.5)
    return (shares.instances.sum(dim=1) > 0).sum()


@pytest.mark.parametrize("seed", range(3))
def test_where_every_sample_has_every_object_each_loss_is_the_plain_mean(seed: int) -> None:
    """Objects of many forms but one box."""
    net = network(seed)
    soft = SoftLosses(net)
    targets = samples_of(seed, objects=2, moved=0.0, present=1.0)
    targets.masks.logical_and_(torch.rand(targets.masks.shape) < torch.rand(len(targets), 1, 1))
    anchors, rois = learned_from(net, targets, seed), rois_near(targets.boxes, seed, 0.05)
    found = losses_at(soft, targets, anchors, rois)
    alone = [losses_at(soft, one_of(targets, k), anchors, rois) for k in range(5)]
    for name in found:
        losses = torch.stack([own[name] for own in alone])
        torch.testing.assert_close(found[name], targets.weights @ losses, rtol=1e-4, atol=1e-6)


def test_equal_samples_are_one() -> None:
    net = network()
    soft = SoftLosses(net, LossOptions(anchors=32, rois=24))
    single = one_of(samples_of(2, present=1.0), 0)
    members = torch.ones(3, len(single), dtype=torch.bool)
    thrice = SoftTargets(
        single.boxes, single.labels, single.masks, members, torch.tensor([0.5, 0.3, 0.2])
    )
    first, second = (soft(seen(1), [own], [SAME], [generator_at(1)]) for own in (single, thrice))
    for name in first:
        torch.testing.assert_close(first[name], second[name])


@pytest.mark.parametrize("seed", range(3))
def test_mean_masks_by_loops(seed: int) -> None:
    """A box that stands for different classes has a mean mask for each of them."""
    targets = samples_of(seed, moved=0.1)
    rois = rois_near(targets.boxes, seed)
    shares = match(rois, targets.boxes, targets, foreground=0.5, background=0.5).instances
    rois, shares = rois[shares.sum(dim=1) > 0], shares[shares.sum(dim=1) > 0]
    row, label, goal, weight = soft_losses._mask_goals(targets, rois, shares, 7)
    pairs = list(zip(row.tolist(), label.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert len(pairs) > len(rois)
    for m, c in itertools.product(range(len(rois)), (1, 2, 3)):
        total, share = torch.zeros(7, 7), 0.0
        for u in range(len(targets)):
            if targets.labels[u] == c and shares[m, u] > 0:
                crop = project_masks_on_boxes(targets.masks, rois[m : m + 1], torch.tensor([u]), 7)
                total, share = total + shares[m, u] * crop[0], share + float(shares[m, u])
        assert ((m, c) in pairs) == (share > 0)
        if share > 0:
            place = pairs.index((m, c))
            assert float(weight[place]) == pytest.approx(share)
            torch.testing.assert_close(goal[place], total / share)


@pytest.mark.parametrize("seed", range(3))
def test_entropy_by_loops(seed: int) -> None:
    net = network(seed)
    heads = net.roi_heads
    images, targets = seen(0), samples_of(seed)
    anchors, rois = learned_from(net, targets, seed), rois_near(targets.boxes, seed)
    found = losses_at(SoftLosses(net, LossOptions(entropy=0.7)), targets, anchors, rois)
    without = losses_at(SoftLosses(net, LossOptions(entropy=0.0)), targets, anchors, rois)
    assert set(found) - set(without) == {"class entropy", "mask entropy"}
    for name in without:
        assert torch.equal(found[name], without[name])

    with torch.no_grad():
        features = net.backbone(images.tensors)
        pooled = heads.box_roi_pool(features, [rois], images.image_sizes)
        chances = heads.box_predictor(heads.box_head(pooled))[0].softmax(dim=1).tolist()
        pooled = heads.mask_roi_pool(features, [rois], images.image_sizes)
        masks = heads.mask_predictor(heads.mask_head(pooled)).sigmoid()
    entropy = sum(-p * math.log(p) for row in chances for p in row) / len(rois)
    assert found["class entropy"].item() == pytest.approx(-0.7 * entropy, rel=1e-4)

    shares = match(rois, targets.boxes, targets, foreground=0.5, background=0.5).instances
    total = count = 0.0
    for m, u in shares.nonzero().tolist():
        pixels = masks[m, targets.labels[u]].flatten().tolist()
        own = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in pixels) / len(pixels)
        total, count = total + float(shares[m, u]) * own, count + float(shares[m, u])
    assert found["mask entropy"].item() == pytest.approx(-0.7 * total / count, rel=1e-4)


def test_one_mask_for_all_classes() -> None:
    """Learning with one is learning with equal weights for every class."""
    net = network(1)
    targets = samples_of(1)
    options = LossOptions(anchors=32, rois=24, shared_masks=True)
    found = SoftLosses(net, options)(seen(1), [targets], [SAME], [generator_at(1)])
    before = mask_layer(net).weight.detach().clone()
    share_masks(net)
    after = mask_layer(net).weight
    for own in after:
        torch.testing.assert_close(own, before.mean(dim=0))
    options = LossOptions(anchors=32, rois=24)
    expected = SoftLosses(net, options)(seen(1), [targets], [SAME], [generator_at(1)])
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("other", [samples_of(5), nothing()])
def test_a_batch_has_the_mean_of_its_images(other: SoftTargets) -> None:
    """For every loss, also if nothing is in one of the images."""
    net = network()
    soft = SoftLosses(net, LossOptions(anchors=40, rois=30))
    targets = [samples_of(4), other]
    together = soft(seen(1, 2), targets, [SAME, SAME], [generator_at(1), generator_at(2)])
    alone = [soft(seen(i + 1), [targets[i]], [SAME], [generator_at(i + 1)]) for i in range(2)]
    assert len(together) == 7
    expected: Losses = {}
    for name in together:
        expected[name] = (alone[0][name] + alone[1][name]) / 2
        torch.testing.assert_close(together[name], expected[name], rtol=1e-4, atol=1e-6)
        assert alone[0][name] != alone[1][name]
    assert_same_gradients(gradients(together, net), gradients(expected, net))


def test_what_is_random_comes_from_the_generators() -> None:
    soft = SoftLosses(network(), LossOptions(anchors=20, rois=10))
    runs = [
        soft(seen(1), [samples_of(1)], [SAME], [generator_at(place)])["class"]
        for place in ("a", "a", "b")
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_rois_are_proposals_and_instances_and_as_many_as_asked_for() -> None:
    targets = samples_of(3)
    soft = SoftLosses(network(), LossOptions(rois=12, positive_rois=0.5))
    proposals = rois_near(targets.boxes, 3)
    everything = torch.cat([proposals, targets.boxes])
    rois, shares = soft._rois([proposals], [targets], [targets.boxes], [generator_at(0)])
    assert rois[0].shape == (12, 4)
    stands = shares[0].instances.sum(dim=1) > 0
    assert stands.tolist() == [True] * 6 + [False] * 6
    assert all(bool((everything == roi).all(dim=1).any()) for roi in rois[0])
    expected = match(rois[0], targets.boxes, targets, foreground=0.5, background=0.5)
    torch.testing.assert_close(shares[0], expected)
    none: Tensor = torch.zeros(0, 4)
    rois, shares = soft._rois([none], [targets], [targets.boxes], [generator_at(0)])
    assert all(bool((targets.boxes == roi).all(dim=1).any()) for roi in rois[0])


@pytest.mark.parametrize("normalised", [False, True])
def test_an_image_without_instances_teaches_background(normalised: bool) -> None:
    net = network(normalised=normalised)
    soft = SoftLosses(net, LossOptions(anchors=32, rois=16))
    found = soft(seen(1), [nothing()], [SAME], [generator_at(0)])
    assert [name for name in found if found[name].item() == 0] == [
        "rpn box",
        "box",
        "mask",
        "mask entropy",
    ]
    sum(found.values()).backward()  # type: ignore[union-attr]
    for name, weights in net.named_parameters():  # all have one: processes wait for each other's
        assert weights.grad is not None, name
        assert bool(weights.grad.isfinite().all()), name


def test_an_image_without_any_box_has_no_loss_of_boxes() -> None:
    """Nothing in the samples, and no proposal either."""
    soft = SoftLosses(network())
    images, targets = seen(1), nothing()
    features = soft.net.backbone(images.tensors)
    none = torch.zeros(0, 4)
    shares = MatchWeights(torch.zeros(0, 0), torch.zeros(0))
    found = soft._boxes(images, features, [targets], [targets.boxes], [none], [shares])
    assert [loss.item() for loss in found.values()] == [0, 0, 0]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_losses_in_bfloat16(normalised: bool, shared: bool) -> None:
    net = network(normalised=normalised)
    soft = SoftLosses(net, LossOptions(anchors=32, rois=16, shared_masks=shared))

    def run() -> Losses:
        targets, places = [samples_of(1), samples_of(2)], [generator_at(1), generator_at(2)]
        return soft(seen(1, 2), targets, [SAME, SAME], places)

    exact = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()
    sum(found.values()).backward()  # type: ignore[union-attr]
    for name, loss in found.items():
        assert loss.dtype == torch.float32
        assert bool(loss.isfinite()), name
        assert not torch.equal(loss, exact[name])
    for name in ("rpn score", "class"):
        assert found[name].item() == pytest.approx(exact[name].item(), rel=0.2)
    assert all(bool(w.grad.isfinite().all()) for w in net.parameters() if w.grad is not None)


@pytest.mark.parametrize(
    "change",
    [
        {"anchors": 0},
        {"rois": 0},
        {"positive_anchors": 1.5},
        {"positive_rois": -0.1},
        {"entropy": -0.5},
        {"entropy": math.nan},
    ],
)
def test_bad_options(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        LossOptions(**change)  # type: ignore[arg-type]


def test_two_squares_are_learned() -> None:
    """The left one is white in every sample, the right one black or, in one of four, too large."""
    torch.manual_seed(0)
    image = torch.full((3, 96, 96), 0.4)
    truth = torch.zeros(2, 96, 96, dtype=torch.bool)
    truth[0, 16:48, 10:40] = True
    truth[1, 50:84, 54:86] = True
    image[:, truth[0]], image[:, truth[1]] = 1.0, 0.0
    wrong = ellipse(torch.tensor([30.0, 20.0, 96.0, 96.0]), (96, 96))
    targets = SoftTargets(
        torch.tensor([[10.0, 16, 40, 48], [54.0, 50, 86, 84], [30.0, 20, 96, 96]]),
        torch.tensor([1, 2, 2]),
        torch.stack([*truth, wrong]),
        torch.tensor([[True, True, False], [True, False, True]]),
        torch.tensor([0.75, 0.25]),
    )
    architecture = PredictionArchitecture(
        ("white", "black"), "tiny", size=96, longest=96, channels=32, hidden=64, mask_layers=1,
        smallest=16, proposals=60,
    )  # fmt: skip
    net = build_network(architecture, "imagenet")
    soft = SoftLosses(net, LossOptions(anchors=64, rois=32, entropy=0.2)).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    images = batch_of([ResizedImage(image, (96, 96))])
    for step in range(120):
        optimizer.param_groups[0]["lr"] = 2e-3 * rate_share(step / 120)
        losses = soft(images, [targets], [SAME], [generator_at(step)])
        optimizer.zero_grad()
        sum(losses.values()).backward()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
    pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
    found = Predictor(net, threshold=0.3)([pixels])[0]
    best = {}
    for place in reversed(range(len(found))):
        best[int(found.labels[place])] = found.dense()[place]
    assert set(best) == {1, 2}
    for label, mask in enumerate(truth, start=1):
        overlap = (best[label] & mask).sum() / (best[label] | mask).sum()
        assert float(overlap) > 0.7, (label, float(overlap))
