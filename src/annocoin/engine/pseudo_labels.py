"""Pseudo labels of images: what a round's prediction network is trained on, one file an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from annocoin import masks
from annocoin.conditional.samples import Samples
from annocoin.data.artefacts import (
    Arrays,
    ArtefactFolder,
    Fields,
    has_version,
    read_arrays,
    write_arrays,
)
from annocoin.masks import RLE, Size
from annocoin.prediction.soft_targets import SoftTargets
from annocoin.types import Annotation, Instances

LABELS_VERSION = 1
LABELS_FIELDS: Fields = {
    "size": ((2,), ("int64",)),
    "labels": ((None,), ("int64",)),
    "boxes": ((None, 4), ("float64",)),
    "scores": ((None,), ("float64",)),
    "confidence": ((None,), ("float64",)),
    "runs": ((None,), ("uint8",)),
    "lengths": ((None,), ("int64",)),
    "members": ((None, None), ("bool",)),
    "consensus": ((), ("int64",)),
}
"""What a file holds: masks as COCO's compressed runs, one after the other."""


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """The labellings of one image that K samples give.

    Args:
        instances: the U different ones; the boxes that a person drew are theirs.
        members: which of them each sample has, bool [K, U].
        consensus: the sample that the others agree with most.
    """

    instances: Instances
    members: Tensor
    consensus: int

    @classmethod
    def of_samples(cls, samples: Samples, annotation: Annotation) -> PseudoLabels:
        """The samples' instances; where one stands for an annotated box, that is its box."""
        drawn = _drawn_boxes(samples, annotation)
        keys: dict[tuple[int, int, int], int] = {}
        rows: list[list[int]] = []
        for k, labels in enumerate(samples.labels):
            row = []
            for region in labels.nonzero()[:, 0].tolist():
                key = (region, int(labels[region]), drawn[k].get(region, -1))
                row.append(keys.setdefault(key, len(keys)))
            rows.append(row)
        members = torch.zeros(len(samples), len(keys), dtype=torch.bool)
        for own, row in zip(members, rows, strict=True):
            own[row] = True
        best = int(samples.support.argmax())
        regions = torch.tensor([region for region, _, _ in keys], dtype=torch.int64)
        first = members.int().argmax(dim=0)
        shown = torch.where(members[best], best, first) if len(keys) else first
        chosen = samples.regions[regions]
        boxes = chosen.boxes.double().cpu().reshape(-1, 4)
        for place, (_, _, weak_label) in enumerate(keys):
            if weak_label >= 0:
                boxes[place] = torch.tensor(annotation[weak_label].box, dtype=torch.float64)
        instances = Instances(
            size=samples.regions.size,
            masks=chosen.rles(),
            labels=[label for _, label, _ in keys],
            scores=samples.margins[shown, regions].double().sigmoid(),
            boxes=boxes,
            confidence=samples.confidence[shown, regions],
        )
        return cls(instances, members, best)

    @classmethod
    def certain(cls, instances: Instances) -> PseudoLabels:
        """A single labelling."""
        return cls(instances, torch.ones(1, len(instances), dtype=torch.bool), 0)

    def agreed(self) -> Instances:
        """The sample that the others agree with most."""
        return self.instances[self.members[self.consensus]]

    def soft_targets(self, size: Size | None = None) -> SoftTargets:
        """As the prediction network learns from them.

        Args:
            size: of the masks, if the image's own is more than is needed.
        """
        if not len(self.instances):
            different, counts = self.members[:1], torch.ones(1)
        else:
            different, counts = torch.unique(self.members, dim=0, return_counts=True)
        height, width = size or self.instances.size
        own = self.instances.size
        scale = torch.tensor([width / own[1], height / own[0]] * 2)
        return SoftTargets(
            self.instances.boxes.float() * scale,
            self.instances.labels,
            torch.from_numpy(masks.decode_resized(self.instances.masks, (height, width))),
            different,
            counts.float() / counts.sum(),
        )


class PseudoLabelFolder(ArtefactFolder[PseudoLabels]):
    """The pseudo labels in a folder, by image id; read when asked for."""

    index_name = "pseudo-labels.json"
    command = "`annocoin train`"

    def read(self, path: Path) -> PseudoLabels:
        return read_arrays(
            path,
            LABELS_VERSION,
            LABELS_FIELDS,
            _decode_labels,
            what="pseudo labels",
            made="annocoin train",
        )


def write_pseudo_labels(path: Path, labels: PseudoLabels) -> None:
    """Write pseudo labels as .npz, whole or not at all."""
    found = labels.instances
    runs = [rle["counts"] for rle in found.masks]
    content: Arrays = {
        "size": np.asarray(found.size, dtype=np.int64),
        "labels": found.labels.numpy(),
        "boxes": found.boxes.numpy(),
        "scores": found.scores.numpy(),
        "confidence": found.confidence.numpy(),
        "runs": np.frombuffer(b"".join(runs), dtype=np.uint8),
        "lengths": np.asarray([len(own) for own in runs], dtype=np.int64),
        "members": labels.members.numpy(),
        "consensus": np.asarray(labels.consensus, dtype=np.int64),
    }
    write_arrays(path, LABELS_VERSION, content)


def labels_are_current(path: Path) -> bool:
    """Whether a file is there and of this version; its content is not looked at."""
    return has_version(path, LABELS_VERSION)


def _decode_labels(fields: Arrays) -> PseudoLabels:
    height, width = (int(side) for side in fields["size"])
    runs, ends = fields["runs"].tobytes(), np.cumsum(fields["lengths"]).tolist()
    starts = [0, *ends[:-1]]
    rles: list[RLE] = [
        {"size": [height, width], "counts": runs[start:end]}
        for start, end in zip(starts, ends, strict=False)
    ]
    instances = Instances(
        size=(height, width),
        masks=rles,
        labels=torch.from_numpy(fields["labels"]),
        scores=torch.from_numpy(fields["scores"]),
        boxes=torch.from_numpy(fields["boxes"]),
        confidence=torch.from_numpy(fields["confidence"]),
    )
    return PseudoLabels(instances, torch.from_numpy(fields["members"]), int(fields["consensus"]))


def _drawn_boxes(samples: Samples, annotation: Annotation) -> list[dict[int, int]]:
    """For each sample, the regions that stand for a weak_label with a box, and that weak_label."""
    boxed = [weak_label.kind == "box" and not weak_label.crowd for weak_label in annotation]
    return [
        {
            region: weak_label
            for region, weak_label in zip(met, samples.annotation_index, strict=True)
            if boxed[weak_label]
        }
        for met in samples.met.tolist()
    ]


TABLE_VERSION = 1
TABLE_FIELDS: Fields = {"table": ((None, None), ("float16",))}


class TableFolder(ArtefactFolder[Tensor]):
    """The tables D [P, J+1] in a folder, by image id; read when asked for."""

    index_name = "tables.json"
    command = "`annocoin train`"

    def read(self, path: Path) -> Tensor:
        return read_arrays(
            path,
            TABLE_VERSION,
            TABLE_FIELDS,
            _decode_table,
            what="loss tables",
            made="annocoin train",
        )


def write_table(path: Path, table: Tensor) -> None:
    """Write D as .npz, whole or not at all; in half precision, D is at most 12."""
    write_arrays(path, TABLE_VERSION, {"table": table.cpu().numpy().astype(np.float16)})


def table_is_current(path: Path) -> bool:
    """Whether a file is there and of this version; its content is not looked at."""
    return has_version(path, TABLE_VERSION)


def _decode_table(fields: Arrays) -> Tensor:
    return torch.from_numpy(fields["table"].astype(np.float32))
