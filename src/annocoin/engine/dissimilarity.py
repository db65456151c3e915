"""The objective of the rounds, measured: DISC of the two distributions and its three terms."""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin import masks
from annocoin.conditional.inference import build_suppression, infer
from annocoin.conditional.requirements import Requirements
from annocoin.engine.conditional_dataset import PreparedFolder
from annocoin.engine.metrics import write_scalars
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels, TableFolder
from annocoin.engine.run_directory import TENSORBOARD, Run
from annocoin.engine.stage import Stage
from annocoin.objective.diversity import Diversities, dissimilarity, diversities
from annocoin.objective.task_loss import label_columns
from annocoin.types import Instances

MEASURED_IMAGES = 200
"""The first images that have both samples and a table."""

MIN_PROBABILITY = 0.02
"""Less probable instances of the prediction distribution are not considered."""


def measure_dissimilarity(
    run: Run,
    number: int,
    network: str,
    prepared: PreparedFolder,
    samples: Stage,
    tables: Stage,
    gamma: float,
) -> None:
    """A stage that records DISC and its terms after the training of one network in a round.

    The figures are means over images, in instances per image, see `Diversities`. Images that have
    only samples or only a table, as with other images in every round, are left out; if no image
    has both, there are no figures.

    Args:
        number: of the round.
        network: which of the two was trained last, "prediction" or "conditional".
        samples, tables: the stages with samples of Pr_c and with loss tables under Pr_p.
    """
    options = {"gamma": gamma, "images": MEASURED_IMAGES}
    stage = run.stage(f"round {number}, dissimilarity after {network}", options, samples, tables)

    def work() -> dict[str, float]:
        if not run.group.is_main:
            return {}
        labels, losses = PseudoLabelFolder(samples.folder), TableFolder(tables.folder)
        common = [image_id for image_id in labels if image_id in losses][:MEASURED_IMAGES]
        terms = [
            image_diversities(prepared[image_id].requirements, labels[image_id], losses[image_id])
            for image_id in common
        ]
        if not terms:
            return {}
        means = Diversities(*torch.stack([torch.stack(of_image) for of_image in terms]).mean(dim=0))
        values = {**means._asdict(), "disc": dissimilarity(*means, gamma)}
        figures = {name: float(value) for name, value in values.items()}
        write_scalars(run.path / TENSORBOARD / f"dissimilarity after {network}", number, figures)
        return {"round": number, **figures}

    run.do(stage, work)


def image_diversities(
    requirements: Requirements, labels: PseudoLabels, table: Tensor
) -> Diversities:
    """The three diversities of one image.

    Args:
        labels: the samples of the conditional distribution.
        table: D [P, J+1] of its regions under the prediction network.
    """
    predicted = predicted_instances(requirements, table)
    rles = [*labels.instances.masks, *predicted.masks]
    classes = torch.cat([labels.instances.labels, predicted.labels])
    iou = torch.from_numpy(masks.iou(rles, rles)) if rles else torch.zeros(0, 0)
    similarity = iou.double() * (classes[:, None] == classes)
    only_predicted = torch.zeros(len(labels.instances), dtype=torch.float64)
    only_sampled = torch.zeros(len(labels.members), len(predicted), dtype=torch.float64)
    return diversities(
        similarity,
        torch.cat([labels.members.double(), only_sampled], dim=1),
        torch.cat([only_predicted, predicted.scores]),
    )


def predicted_instances(requirements: Requirements, table: Tensor) -> Instances:
    """The prediction distribution as instances that occur independently with their scores.

    Every region has the class probabilities softmax(-D). As in the network's output, non-maximum
    suppression keeps the most probable one of regions that overlap.
    """
    regions, free = requirements.regions, requirements.unconstrained()
    labels = infer(-table[None], free, build_suppression(free), select_all=True).labels[0]
    columns = label_columns(labels, requirements.labels)
    probabilities = (-table.double()).softmax(dim=1).gather(1, columns[:, None])[:, 0]
    kept = ((labels > 0) & (probabilities >= MIN_PROBABILITY)).nonzero()[:, 0]
    return Instances(
        size=regions.size,
        masks=regions[kept].rles(),
        labels=labels[kept],
        scores=probabilities[kept],
    )
