"""A prediction network at work on images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from annocoin.errors import InputError
from annocoin.prediction.predictor import Predictor, in_batches
from prediction.worlds import network, picture


def image(seed: int, size: tuple[int, int]) -> np.ndarray:
    return (picture(seed, size) * 255).byte().permute(1, 2, 0).numpy()


def test_images_of_several_sizes() -> None:
    images = [image(0, (64, 96)), image(1, (80, 50)), image(2, (200, 130))]
    found = Predictor(network())(images)
    assert [own.size for own in found] == [(64, 96), (80, 50), (200, 130)]
    for own in found:
        assert len(own) > 3
        assert own.dense().shape == (len(own), *own.size)
        assert own.scores.tolist() == sorted(own.scores.tolist(), reverse=True)
        assert set(own.labels.tolist()) <= {1, 2, 3}
        assert float(own.scores.min()) >= 0.05
        assert bool(own.dense().flatten(1).any(dim=1).all())


def test_instances_are_torchvisions() -> None:
    net = network().train()
    pixels = image(0, (64, 96))
    found = Predictor(net, threshold=0.4)([pixels])[0]
    with torch.no_grad():
        said = net.eval()([torch.from_numpy(pixels).permute(2, 0, 1) / 255])[0]
    good = [
        n
        for n in range(len(said["scores"]))
        if said["scores"][n] >= 0.4 and (said["masks"][n] >= 0.5).any()
    ]
    assert 0 < len(good) < len(said["scores"])
    assert len(found) == len(good)
    for mask, label, score, n in zip(found.dense(), found.labels, found.scores, good, strict=True):
        assert torch.equal(mask, said["masks"][n, 0] >= 0.5)
        assert label == said["labels"][n]
        assert float(score) == float(said["scores"][n])


def test_masks_that_are_nowhere_are_left_out() -> None:
    net = network()
    pixels = image(0, (64, 96))
    assert len(Predictor(net)([pixels])[0]) > 3
    torch.nn.init.constant_(net.roi_heads.mask_predictor.mask_fcn_logits.bias, -1e4)
    assert len(Predictor(net)([pixels])[0]) == 0


def test_thresholds_also_below_torchvisions_own() -> None:
    """Each predictor has its own, though both have the same network."""
    net = network(detections=1000)
    pixels = [image(0, (64, 96))]
    low, high = Predictor(net, threshold=0.0), Predictor(net, threshold=0.3)
    scores = low(pixels)[0].scores
    assert float(scores.min()) < 0.05
    found = high(pixels)[0].scores
    assert found.tolist() == scores[scores >= 0.3].tolist()
    assert 0 < len(found) < len(scores)
    assert low(pixels)[0].scores.tolist() == scores.tolist()


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_bad_thresholds(threshold: float) -> None:
    with pytest.raises(InputError, match="expected 0 to 1"):
        Predictor(network(), threshold=threshold)


def test_bad_devices() -> None:
    with pytest.raises(InputError):
        Predictor(network(), device="abacus")


def test_batches() -> None:
    assert list(in_batches(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_batches([], 2)) == []
    assert Predictor(network())([]) == []
    with pytest.raises(InputError, match="batch 0"):
        list(in_batches([1], 0))
