"""Losses of soft targets: torchvision's for one labelling, their mean over samples for many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import maskrcnn_loss, project_masks_on_boxes
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import box_iou

from annocoin.engine.randomness import generator_at
from annocoin.errors import InputError
from annocoin.prediction import soft_losses
from annocoin.prediction.networks import (
    PredictionArchitecture,
    ResizedImage,
    batch_images,
    build_network,
    make_masks_class_agnostic,
)
from annocoin.prediction.predictor import Predictor
from annocoin.prediction.soft_losses import Losses, LossOptions, SampledRoIs, SoftLosses
from annocoin.prediction.soft_targets import MatchWeights, SoftTargets, match_boxes
from prediction.worlds import (
    ellipse,
    network,
    no_instances,
    one_sample,
    random_image,
    random_targets,
)

ALL = 10**6
UNSCALED = torch.ones(4)
POINTWISE = LossOptions(pointwise=True)
FEW = LossOptions(anchors_per_image=32, rois_per_image=24)


def image_batch(*seeds: int) -> ImageList:
    """Random images of 64 x 96 pixels."""
    return batch_images([ResizedImage(random_image(seed), (64, 96)) for seed in seeds])


def gradients(losses: Losses, net: MaskRCNN) -> list[Tensor]:
    """Gradients of the sum of the losses for every weight."""
    weights = list(net.parameters())
    grads = torch.autograd.grad(sum(losses.values()), weights, allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(w) if g is None else g for w, g in zip(weights, grads, strict=True)]


def assert_same_gradients(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    """Each within a thousandth of the largest one in its layer."""
    for one, other in zip(first, second, strict=True):
        largest = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3 * largest + 1e-7)
    assert max(float(one.abs().max()) for one in first) > 0.01  # so that it can fail


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [(64, 96), (48, 72)])
@pytest.mark.parametrize("group_norm", [False, True])
def test_one_labelling_has_torchvisions_losses(
    group_norm: bool, size: tuple[int, int], seed: int
) -> None:
    """With all anchors and proposals, so that nothing is random; 48 x 72 is enlarged."""
    net = network(seed, group_norm=group_norm).train()
    for head in (net.rpn, net.roi_heads):
        head.fg_bg_sampler.batch_size_per_image = ALL
    image = random_image(seed, size)
    targets = one_sample(random_targets(seed, size, present=1.0), 0)
    hard = {"boxes": targets.boxes, "labels": targets.labels, "masks": targets.masks.byte()}
    expected = net([image], [hard])

    images, _ = net.transform([image])
    scale = UNSCALED * images.image_sizes[0][0] / size[0]
    options = LossOptions(anchors_per_image=ALL, rois_per_image=ALL, pointwise=True)
    losses = SoftLosses(net, options)(images, [targets], [scale], [generator_at(0)])
    assert set(losses) == set(expected)
    for name, loss in losses.items():
        # torchvision crops enlarged masks, we crop the original ones
        rough = name == "loss_mask" and size != (64, 96)
        rtol, atol = (0.05, 0.02) if rough else (1e-4, 1e-6)
        torch.testing.assert_close(loss, expected[name], rtol=rtol, atol=atol)
        assert loss.item() > 0
    if size == (64, 96):
        assert_same_gradients(gradients(losses, net), gradients(expected, net))


@pytest.mark.parametrize("seed", range(4))
def test_masks_are_cropped_at_the_resolution_of_the_targets(seed: int) -> None:
    """Against torchvision's loss with RoIs in the coordinates of the targets, half as fine."""
    net = network(seed)
    heads, images = net.roi_heads, image_batch(seed)
    targets = one_sample(random_targets(seed, (32, 48), present=1.0), 0)
    masks, labels = targets.masks, targets.labels
    targets = SoftTargets(2 * targets.boxes, labels, masks, targets.members, targets.weights)
    rois = sampled_rois(targets, seed, scale=2 * UNSCALED)
    features = net.backbone(images.tensors)
    loss = SoftLosses(net, POINTWISE)._mask_losses(images, features, [rois])["loss_mask"]

    matched = rois.matches.instances.sum(dim=1) > 0
    boxes, instance = rois.boxes[matched], rois.matches.instances[matched].argmax(dim=1)
    logits = heads.mask_predictor(
        heads.mask_head(heads.mask_roi_pool(features, [boxes], images.image_sizes))
    )
    torch.testing.assert_close(
        loss, maskrcnn_loss(logits, [boxes / 2], [masks], [labels], [instance])
    )
    assert len(instance.unique()) > 1


def smooth_l1(difference: float, beta: float = 1 / 9) -> float:
    size = abs(difference)
    return size**2 / (2 * beta) if size < beta else size - beta / 2


@pytest.mark.parametrize("pointwise", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_boxes_in_expectation_by_loops(seed: int, pointwise: bool) -> None:
    """Equation 11 with Delta_box: sums over the classes of one and of two samples of Pr_p."""
    net = network(seed)
    heads, images = net.roi_heads, image_batch(seed)
    targets = random_targets(seed)
    rois = sampled_rois(targets, seed)
    options = LossOptions(expected_boxes=True, pointwise=pointwise)
    features = net.backbone(images.tensors)
    losses = SoftLosses(net, options, gamma=0.3)._box_losses(images, features, [rois])
    losses = {name: loss.detach() for name, loss in losses.items()}
    pooled = heads.box_roi_pool(features, [rois.boxes], images.image_sizes)
    logits, deltas = heads.box_predictor(heads.box_head(pooled))
    probabilities = logits.softmax(dim=1).tolist()
    offsets = deltas.view(len(rois.boxes), -1, 4).tolist()
    cross = own = 0.0
    for n, box in enumerate(rois.boxes):
        for i, weight in enumerate(rois.matches.instances[n].tolist()):
            if not weight:
                continue
            wanted = heads.box_coder.encode_single(targets.boxes[i][None], box[None])[0].tolist()
            for c, p in enumerate(probabilities[n][1:], start=1):
                for x in range(4):
                    cross += weight * p * smooth_l1(offsets[n][c][x] - wanted[x])
                    for other, q in enumerate(probabilities[n][1:], start=1):
                        difference = offsets[n][c][x] - offsets[n][other][x]
                        own += weight * p * q * smooth_l1(difference)
    count = len(rois.boxes)
    assert own > 0
    assert float(losses["loss_box_reg"]) == pytest.approx(cross / count, rel=1e-3)
    assert ("box_diversity" in losses) is not pointwise
    if not pointwise:
        assert float(losses["box_diversity"]) == pytest.approx(-0.7 * own / count, rel=1e-3)
    plain = SoftLosses(net, LossOptions(), gamma=0.3)._box_losses(images, features, [rois])
    assert "box_diversity" not in plain
    assert not torch.allclose(plain["loss_box_reg"], losses["loss_box_reg"])
    torch.testing.assert_close(plain["loss_classifier"], losses["loss_classifier"])


def boxes_near(boxes: Tensor, seed: int, spread: float = 0.15) -> Tensor:
    """Boxes that are matched to instances in some samples, and a few random ones."""
    generator = torch.Generator().manual_seed(seed)
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    moved = [
        boxes + spread * sides * torch.randn(boxes.shape, generator=generator) for _ in range(3)
    ]
    first = torch.rand(6, 2, generator=generator) * torch.tensor([60.0, 40.0])
    anywhere = torch.cat([first, first + 10 + 10 * torch.rand(6, 2, generator=generator)], dim=1)
    together = torch.cat([*moved, anywhere])
    return torch.cat([torch.minimum(together[:, :2], together[:, 2:] - 4), together[:, 2:]], dim=1)


def sampled_rois(
    targets: SoftTargets, seed: int, spread: float = 0.15, scale: Tensor = UNSCALED
) -> SampledRoIs:
    return matched_rois(boxes_near(targets.boxes, seed, spread), targets, scale)


def matched_rois(boxes: Tensor, targets: SoftTargets, scale: Tensor = UNSCALED) -> SampledRoIs:
    return SampledRoIs(boxes, match_boxes(boxes, targets, 0.5, 0.5), targets, scale)


def losses_at(soft: SoftLosses, targets: SoftTargets, anchors: Tensor, rois: Tensor) -> Losses:
    """All losses of an image for these anchors [n] and RoIs [m, 4], without sampling."""
    images = image_batch(0)
    features = soft.net.backbone(images.tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            soft_losses,
            "sample_anchors",
            lambda matches, *_: (anchors, MatchWeights(*(m[anchors] for m in matches))),
        )
        _, losses = soft._rpn_losses(images, features, [targets], [generator_at(0)])
    matched = matched_rois(rois, targets)
    losses |= soft._box_losses(images, features, [matched])
    return losses | soft._mask_losses(images, features, [matched])


def some_anchors(net: MaskRCNN, targets: SoftTargets, seed: int) -> Tensor:
    """Indices of the anchors that are matched in some sample, and of 100 random ones."""
    images = image_batch(0)
    levels = list(net.backbone(images.tensors).values())
    anchors = net.rpn.anchor_generator(images, levels)[0]
    matches = match_boxes(anchors, targets, 0.7, 0.3, allow_low_quality_matches=True)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randperm(len(anchors), generator=generator)[:100]
    return torch.cat([matches.instances.sum(dim=1).nonzero()[:, 0], random])


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_anchors_sample_by_sample(seed: int) -> None:
    """With torchvision's targets; an anchor that a sample ignores adds nothing in that sample."""
    net = network(seed)
    images, targets = image_batch(0), random_targets(seed)
    indices = some_anchors(net, targets, seed)
    losses = losses_at(SoftLosses(net), targets, indices, boxes_near(targets.boxes, seed))
    with torch.no_grad():
        levels = list(net.backbone(images.tensors).values())
        scores, deltas = concat_box_prediction_layers(*net.rpn.head(levels))
    anchors = net.rpn.anchor_generator(images, levels)
    classification = regression = 0.0
    ignored = 0
    for sample, weight in enumerate(targets.weights.tolist()):
        hard = {"boxes": one_sample(targets, sample).boxes}
        labels, boxes = net.rpn.assign_targets_to_anchors(anchors, [hard])
        expected = net.rpn.box_coder.encode(boxes, anchors)[0]
        for i in indices.tolist():
            label, share = int(labels[0][i]), weight / len(indices)
            probability = float(scores[i].sigmoid())
            if label == -1:
                ignored += 1
            elif label == 0:
                classification -= share * math.log(1 - probability)
            else:
                classification -= share * math.log(probability)
                errors = (deltas[i] - expected[i]).abs().tolist()
                regression += share * sum(e - 1 / 18 if e > 1 / 9 else 4.5 * e * e for e in errors)
    assert ignored > 10
    assert losses["loss_objectness"].item() == pytest.approx(classification, rel=1e-3)
    assert losses["loss_rpn_box_reg"].item() == pytest.approx(regression, rel=1e-3)


@pytest.mark.parametrize("class_agnostic", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_loss_of_samples_is_the_mean_of_their_losses(seed: int, class_agnostic: bool) -> None:
    """Mask losses are means over RoIs: samples have the weight of their matched RoIs."""
    net = network(seed)
    soft = SoftLosses(net, LossOptions(class_agnostic_masks=class_agnostic))
    targets = random_targets(seed)
    anchors = some_anchors(net, targets, seed)
    rois = boxes_near(targets.boxes, seed)
    losses = losses_at(soft, targets, anchors, rois)

    samples = [one_sample(targets, sample) for sample in range(len(targets.members))]
    sample_losses = [losses_at(soft, sample, anchors, rois) for sample in samples]
    matched = torch.stack([matched_count(rois, sample) for sample in samples]) * targets.weights
    assert matched.min() < 0.8 * matched.max()  # so that the two weights differ
    expected: Losses = {}
    for name in losses:
        is_mask = name in ("loss_mask", "mask_entropy")
        weights = matched / matched.sum() if is_mask else targets.weights
        each = torch.stack([losses[name] for losses in sample_losses])
        expected[name] = (weights * each).sum()
        torch.testing.assert_close(losses[name], expected[name], rtol=1e-4, atol=1e-6)
        if not name.endswith("entropy"):  # which hardly depends on the samples
            assert (each.max() - each.min()).item() > 1e-3
    assert_same_gradients(gradients(losses, net), gradients(expected, net))


def matched_count(rois: Tensor, targets: SoftTargets) -> Tensor:
    """Number of RoIs that are matched to an instance."""
    return (match_boxes(rois, targets, 0.5, 0.5).instances.sum(dim=1) > 0).sum()


@pytest.mark.parametrize("seed", range(3))
def test_each_loss_is_the_plain_mean_if_every_sample_has_every_object(seed: int) -> None:
    """Objects with several masks but one box."""
    net = network(seed)
    soft = SoftLosses(net)
    targets = random_targets(seed, objects=2, moved=0.0, present=1.0)
    targets.masks.logical_and_(torch.rand(targets.masks.shape) < torch.rand(len(targets), 1, 1))
    anchors, rois = some_anchors(net, targets, seed), boxes_near(targets.boxes, seed, 0.05)
    losses = losses_at(soft, targets, anchors, rois)
    each = [losses_at(soft, one_sample(targets, k), anchors, rois) for k in range(5)]
    for name in losses:
        expected = targets.weights @ torch.stack([one[name] for one in each])
        torch.testing.assert_close(losses[name], expected, rtol=1e-4, atol=1e-6)


def test_equal_samples_have_the_loss_of_one() -> None:
    soft = SoftLosses(network(), FEW)
    one = one_sample(random_targets(2, present=1.0), 0)
    members = torch.ones(3, len(one), dtype=torch.bool)
    three = SoftTargets(one.boxes, one.labels, one.masks, members, torch.tensor([0.5, 0.3, 0.2]))
    first, second = (
        soft(image_batch(1), [targets], [UNSCALED], [generator_at(1)]) for targets in (one, three)
    )
    for name in first:
        torch.testing.assert_close(first[name], second[name])


@pytest.mark.parametrize("seed", range(3))
def test_mask_targets_by_loops(seed: int) -> None:
    """A box that is matched to several classes has a mean mask for each of them."""
    targets = random_targets(seed, moved=0.1)
    rois = boxes_near(targets.boxes, seed)
    weights = match_boxes(rois, targets, 0.5, 0.5).instances
    rois, weights = rois[weights.sum(dim=1) > 0], weights[weights.sum(dim=1) > 0]
    row, label, masks, pair_weights = soft_losses._mask_targets(targets, rois, weights, 7)
    pairs = list(zip(row.tolist(), label.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert len(pairs) > len(rois)
    for m, c in itertools.product(range(len(rois)), (1, 2, 3)):
        total, weight = torch.zeros(7, 7), 0.0
        for u in range(len(targets)):
            if targets.labels[u] == c and weights[m, u] > 0:
                crop = project_masks_on_boxes(targets.masks, rois[m : m + 1], torch.tensor([u]), 7)
                total, weight = total + weights[m, u] * crop[0], weight + float(weights[m, u])
        assert ((m, c) in pairs) == (weight > 0)
        if weight > 0:
            i = pairs.index((m, c))
            assert float(pair_weights[i]) == pytest.approx(weight)
            torch.testing.assert_close(masks[i], total / weight)


@pytest.mark.parametrize("seed", range(3))
def test_entropy_by_loops(seed: int) -> None:
    net = network(seed)
    heads = net.roi_heads
    images, targets = image_batch(0), random_targets(seed)
    anchors, rois = some_anchors(net, targets, seed), boxes_near(targets.boxes, seed)
    losses = losses_at(SoftLosses(net, gamma=0.3), targets, anchors, rois)
    pointwise = losses_at(SoftLosses(net, POINTWISE, gamma=0.3), targets, anchors, rois)
    assert set(losses) - set(pointwise) == {"class_entropy", "mask_entropy"}
    for name in pointwise:
        assert torch.equal(losses[name], pointwise[name])

    with torch.no_grad():
        features = net.backbone(images.tensors)
        pooled = heads.box_roi_pool(features, [rois], images.image_sizes)
        probabilities = heads.box_predictor(heads.box_head(pooled))[0].softmax(dim=1).tolist()
        pooled = heads.mask_roi_pool(features, [rois], images.image_sizes)
        masks = heads.mask_predictor(heads.mask_head(pooled)).sigmoid()
    entropy = sum(-p * math.log(p) for row in probabilities for p in row) / len(rois)
    assert losses["class_entropy"].item() == pytest.approx(-0.7 * entropy, rel=1e-4)

    weights = match_boxes(rois, targets, 0.5, 0.5).instances
    total = count = 0.0
    for m, u in weights.nonzero().tolist():
        pixels = masks[m, targets.labels[u]].flatten().tolist()
        entropies = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in pixels]
        total += float(weights[m, u]) * sum(entropies) / len(pixels)
        count += float(weights[m, u])
    assert losses["mask_entropy"].item() == pytest.approx(-0.7 * total / count, rel=1e-4)


def test_mask_weight() -> None:
    net, targets = network(), random_targets(0)
    anchors, rois = some_anchors(net, targets, 0), boxes_near(targets.boxes, 0)
    once, thrice = (
        losses_at(SoftLosses(net, LossOptions(mask_weight=w)), targets, anchors, rois)
        for w in (1.0, 3.0)
    )
    for name in once:
        factor = 3 if name in ("loss_mask", "mask_entropy") else 1
        torch.testing.assert_close(thrice[name], factor * once[name])


@pytest.mark.parametrize("seed", range(3))
def test_likely_boxes_away_from_all_instances_are_not_background(seed: int) -> None:
    net, targets = network(seed), one_sample(random_targets(seed, objects=1, present=1.0), 0)
    corners = torch.cartesian_prod(torch.arange(0.0, 80, 12), torch.arange(0.0, 50, 12))
    rois = torch.cat([boxes_near(targets.boxes, seed), torch.cat([corners, corners + 14], dim=1)])
    anchors = some_anchors(net, targets, seed)
    soft = SoftLosses(net, LossOptions(pointwise=True, background_max_score=0.1))
    losses = losses_at(soft, targets, anchors, rois)
    plain = losses_at(SoftLosses(net, POINTWISE), targets, anchors, rois)
    assert losses["loss_objectness"] < plain["loss_objectness"]
    for name in losses.keys() - {"loss_objectness", "loss_classifier"}:
        assert losses[name] == plain[name]

    images = image_batch(0)
    with torch.no_grad():
        pooled = net.roi_heads.box_roi_pool(
            net.backbone(images.tensors), [rois], images.image_sizes
        )
        logits, _ = net.roi_heads.box_predictor(net.roi_heads.box_head(pooled))
    annotated = sorted(set(targets.labels.tolist()))
    total, dropped = 0.0, 0
    for roi, probabilities in zip(rois, logits.softmax(dim=1), strict=True):
        ious = [float(box_iou(roi[None], box[None])) for box in targets.boxes]
        best = max(ious)
        label = int(targets.labels[ious.index(best)]) if best >= 0.5 else 0
        likely = sum(float(probabilities[c]) for c in annotated) > 0.1
        if label == 0 and best < 0.1 and likely:
            dropped += 1
        else:
            total -= math.log(float(probabilities[label]))
    assert dropped
    assert losses["loss_classifier"].item() == pytest.approx(total / len(rois), rel=1e-3)


def test_an_image_without_instances_is_all_background() -> None:
    images, targets = image_batch(0), [no_instances()]
    options = LossOptions(anchors_per_image=32, rois_per_image=24, background_max_score=0.0)
    every = SoftLosses(network(), FEW)(images, targets, [UNSCALED], [generator_at(0)])
    same = SoftLosses(network(), options)(images, targets, [UNSCALED], [generator_at(0)])
    assert every == same


def test_class_agnostic_masks_are_those_of_equal_weights_for_all_classes() -> None:
    net, targets = network(1), random_targets(1)
    arguments = (image_batch(1), [targets], [UNSCALED])
    options = LossOptions(anchors_per_image=32, rois_per_image=24, class_agnostic_masks=True)
    losses = SoftLosses(net, options)(*arguments, [generator_at(1)])
    make_masks_class_agnostic(net)
    expected = SoftLosses(net, FEW)(*arguments, [generator_at(1)])
    for name in expected:
        torch.testing.assert_close(losses[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("other", [random_targets(5), no_instances()])
def test_a_batch_has_the_mean_of_its_images(other: SoftTargets) -> None:
    """Each loss, also if one of the images has no instances."""
    net = network()
    soft = SoftLosses(net, LossOptions(anchors_per_image=40, rois_per_image=30))
    targets = [random_targets(4), other]
    generators = [generator_at(1), generator_at(2)]
    losses = soft(image_batch(1, 2), targets, [UNSCALED, UNSCALED], generators)
    each = [
        soft(image_batch(i + 1), [targets[i]], [UNSCALED], [generator_at(i + 1)]) for i in range(2)
    ]
    assert len(losses) == 7
    expected: Losses = {}
    for name in losses:
        expected[name] = (each[0][name] + each[1][name]) / 2
        torch.testing.assert_close(losses[name], expected[name], rtol=1e-4, atol=1e-6)
        assert each[0][name] != each[1][name]
    assert_same_gradients(gradients(losses, net), gradients(expected, net))


def test_sampling_depends_on_the_generators_only() -> None:
    soft = SoftLosses(network(), LossOptions(anchors_per_image=20, rois_per_image=10))
    losses = [
        soft(image_batch(1), [random_targets(1)], [UNSCALED], [generator_at(name)])
        for name in ("a", "a", "b")
    ]
    first, same, other = (each["loss_classifier"] for each in losses)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_rois_are_sampled_from_proposals_and_instances() -> None:
    targets = random_targets(3)
    options = LossOptions(rois_per_image=12, positive_roi_fraction=0.5)
    soft = SoftLosses(network(), options)
    proposals = boxes_near(targets.boxes, 3)
    candidates = torch.cat([proposals, targets.boxes])
    rois = soft._sample_rois(proposals, targets, UNSCALED, generator_at(0))
    assert rois.boxes.shape == (12, 4)
    matched = rois.matches.instances.sum(dim=1) > 0
    assert matched.tolist() == [True] * 6 + [False] * 6
    assert all(bool((candidates == box).all(dim=1).any()) for box in rois.boxes)
    torch.testing.assert_close(rois.matches, match_boxes(rois.boxes, targets, 0.5, 0.5))
    rois = soft._sample_rois(torch.zeros(0, 4), targets, UNSCALED, generator_at(0))
    assert len(rois.boxes) > 0
    assert all(bool((targets.boxes == box).all(dim=1).any()) for box in rois.boxes)


@pytest.mark.parametrize("group_norm", [False, True])
def test_an_image_without_instances(group_norm: bool) -> None:
    net = network(group_norm=group_norm)
    soft = SoftLosses(net, FEW)
    losses = soft(image_batch(1), [no_instances()], [UNSCALED], [generator_at(0)])
    zero = {name for name, loss in losses.items() if loss.item() == 0}
    assert zero == {"loss_rpn_box_reg", "loss_box_reg", "loss_mask", "mask_entropy"}
    sum(losses.values()).backward()  # type: ignore[union-attr]
    for name, weights in net.named_parameters():  # distributed training needs all gradients
        assert weights.grad is not None, name
        assert bool(weights.grad.isfinite().all()), name


def test_an_image_without_any_rois_has_no_box_loss() -> None:
    soft, images, targets = SoftLosses(network()), image_batch(1), no_instances()
    features = soft.net.backbone(images.tensors)
    rois = matched_rois(torch.zeros(0, 4), targets)
    losses = soft._box_losses(images, features, [rois])
    assert [loss.item() for loss in losses.values()] == [0, 0, 0]


@pytest.mark.parametrize("class_agnostic", [False, True])
@pytest.mark.parametrize("group_norm", [False, True])
def test_losses_in_bfloat16(group_norm: bool, class_agnostic: bool) -> None:
    net = network(group_norm=group_norm)
    options = LossOptions(
        anchors_per_image=32, rois_per_image=16, class_agnostic_masks=class_agnostic
    )

    def compute() -> Losses:
        targets, generators = [random_targets(i) for i in (1, 2)], [generator_at(i) for i in (1, 2)]
        losses: Losses = SoftLosses(net, options)(
            image_batch(1, 2), targets, [UNSCALED, UNSCALED], generators
        )
        return losses

    exact = compute()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = compute()
    sum(losses.values()).backward()  # type: ignore[union-attr]
    for name, loss in losses.items():
        assert loss.dtype == torch.float32
        assert bool(loss.isfinite()), name
        assert not torch.equal(loss, exact[name])
    for name in ("loss_objectness", "loss_classifier"):
        assert losses[name].item() == pytest.approx(exact[name].item(), rel=0.2)
    assert all(bool(w.grad.isfinite().all()) for w in net.parameters() if w.grad is not None)


@pytest.mark.parametrize(
    "change",
    [
        {"anchors_per_image": 0},
        {"rois_per_image": 0},
        {"positive_anchor_fraction": 1.5},
        {"positive_roi_fraction": -0.1},
        {"mask_weight": -1.0},
    ],
)
def test_bad_options(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        LossOptions(**change)


@pytest.mark.parametrize("gamma", [-0.5, 1.5, math.nan])
def test_bad_gamma(gamma: float) -> None:
    with pytest.raises(InputError, match="gamma"):
        SoftLosses(network(), gamma=gamma)


def test_training_on_two_squares() -> None:
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
        ("white", "black"), "tiny", min_size=96, max_size=96, fpn_channels=32,
        representation_size=64, mask_layers=1, anchor_size=16, rpn_top_n=60,
    )  # fmt: skip
    net = build_network(architecture, "imagenet")
    soft = SoftLosses(net, LossOptions(anchors_per_image=64, rois_per_image=32), gamma=0.8).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=120)
    images = batch_images([ResizedImage(image, (96, 96))])
    for step in range(120):
        losses = soft(images, [targets], [UNSCALED], [generator_at(step)])
        optimizer.zero_grad()
        sum(losses.values()).backward()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        schedule.step()
    pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
    instances = Predictor(net, threshold=0.3)([pixels])[0]
    best: dict[int, Tensor] = {}
    for label, mask in zip(instances.labels.tolist(), instances.dense(), strict=True):
        best.setdefault(label, mask)
    assert set(best) == {1, 2}
    for label, mask in enumerate(truth, start=1):
        iou = (best[label] & mask).sum() / (best[label] | mask).sum()
        assert float(iou) > 0.7, (label, float(iou))
