"""The initial training of the conditional network, from seeds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin.conditional.networks import ConditionalNetwork
from annocoin.randomness import generator_at, seed_of
from annocoin.training.cases import Case
from annocoin.training.conditional_learner import features_of, train_conditional
from annocoin.training.conditional_options import ConditionalOptions
from annocoin.training.learning import Figures, Support, order


def train_from_seeds(
    net: ConditionalNetwork,
    cases: Sequence[Case],
    options: ConditionalOptions | None = None,
    *,
    support: Support | None = None,
) -> None:
    """The initial training: pixels learn what the seeds vote for.

    Cross entropy of the pixels' scores, among the background and the classes that the annotation
    names, with the soft labels of their superpixels. Averaged over a region, such scores say how
    much more likely it is the object than background. Then the noise gets weights, see
    `redraw_noise`.
    """
    options = options or ConditionalOptions()
    doing = "from seeds"

    def loss_of(case: Case, features: Tensor, step: int) -> tuple[Tensor, Figures]:
        targets = case.targets(options.targets).to(features)
        wanted = F.interpolate(targets[None], features.shape[-2:], mode="area")[0]
        noise = None
        if not options.noise and not options.pointwise:
            place = generator_at(options.seed, doing, "noise", step, str(case.image_id))
            noise = net.noise(1, features, place)
        scores = net.pixel_scores(features, noise, [0, *case.requirements.labels])[0]
        loss = -(wanted * scores.float().log_softmax(dim=0)).sum(dim=0).mean()
        return loss, {"cross_entropy": loss.item()}

    def augmented(case: Case, step: int) -> Case:
        flip = seed_of(options.seed, doing, "mirror", step, str(case.image_id)) % 2 == 1
        return case.mirrored() if flip else case

    train_conditional(
        net, cases, options, options.initial_steps, options.initial_rate, loss_of, doing, support,
        augmented=augmented,
    )  # fmt: skip
    net.eval()
    with torch.no_grad():
        assert net.classify.bias is not None
        net.classify.bias[0] -= options.boldness
        if options.noise:
            _give_noise_weights(net, cases, options)


def _give_noise_weights(
    net: ConditionalNetwork, cases: Sequence[Case], options: ConditionalOptions
) -> None:
    few = order(0, len(cases), options.seed, "redraw noise")[: options.batch]
    features = features_of(net, [cases[place].pixels for place in few])
    together = torch.cat([own.flatten(1) for own in features], dim=1)[None, :, :, None]
    net.redraw_noise(together, options.noise, generator_at(options.seed, "redraw noise"))
