"""Pseudo labels and loss tables of images, as files: what the two networks give each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from annocoin import masks
from annocoin.conditional.samples import Samples
from annocoin.data.artefacts import ArrayFormat, Arrays, ArtefactFolder
from annocoin.data.parsing import checked_size
from annocoin.masks import Size
from annocoin.prediction.soft_targets import SoftTargets
from annocoin.types import Annotation, Instances

LABELS = ArrayFormat(
    "pseudo labels",
    "annocoin train",
    version=2,
    fields={
        "size": ((2,), ("int64",)),
        "labels": ((None,), ("int64",)),
        "boxes": ((None, 4), ("float64",)),
        "scores": ((None,), ("float64",)),
        "confidence": ((None,), ("float64",)),
        "rle_counts": ((None,), ("uint8",)),  # COCO's compressed run lengths, concatenated
        "rle_lengths": ((None,), ("int64",)),
        "members": ((None, None), ("bool",)),
        "consensus": ((), ("int64",)),
    },
)
TABLES = ArrayFormat(
    "loss tables",
    "annocoin train",
    version=2,
    fields={"table": ((None, None), ("float16", "float32"))},
)


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """The labellings of one image by K samples.

    Args:
        instances: the U distinct instances; their boxes are the annotated ones where there are any.
        members: which of them each sample has, bool [K, U].
        consensus: the sample with the highest agreement with the others.
    """

    instances: Instances
    members: Tensor
    consensus: int

    @classmethod
    def from_samples(
        cls, samples: Samples, annotation: Annotation, *, annotated_boxes: bool = True
    ) -> PseudoLabels:
        """The samples' instances.

        Args:
            annotated_boxes: one that meets a box label has that box, instead of its tight box.
        """
        numbers: dict[tuple[int, int, int], int] = {}  # region, label, box label -> instance
        rows: list[list[int]] = []
        for k, labels in enumerate(samples.labels):
            box_labels = _box_labels(samples, k, annotation)
            keys = [
                (region, int(labels[region]), box_labels.get(region, -1))
                for region in labels.nonzero()[:, 0].tolist()
            ]
            rows.append([numbers.setdefault(key, len(numbers)) for key in keys])
        members = torch.zeros(len(samples), len(numbers), dtype=torch.bool)
        for k, row in enumerate(rows):
            members[k, row] = True
        consensus = int(samples.agreement.argmax())
        regions = torch.tensor([region for region, _, _ in numbers], dtype=torch.int64)
        chosen = samples.regions[regions]
        boxes = chosen.boxes.double().cpu().reshape(-1, 4)
        for i, (_, _, index) in enumerate(numbers):
            if index >= 0 and annotated_boxes:
                boxes[i] = torch.tensor(annotation[index].box, dtype=torch.float64)
        # scores and confidence are of the consensus, or of the first sample with the instance
        source = members.int().argmax(dim=0)
        if len(numbers):
            source = torch.where(members[consensus], consensus, source)
        instances = Instances(
            size=samples.regions.size,
            masks=chosen.rles(),
            labels=[label for _, label, _ in numbers],
            scores=samples.margins[source, regions].double().sigmoid(),
            boxes=boxes,
            confidence=samples.confidence[source, regions],
        )
        return cls(instances, members, consensus)

    @classmethod
    def single(cls, instances: Instances) -> PseudoLabels:
        """One labelling."""
        return cls(instances, torch.ones(1, len(instances), dtype=torch.bool), 0)

    def consensus_instances(self) -> Instances:
        """The instances of the sample with the highest agreement with the others."""
        return self.instances[self.members[self.consensus]]

    def soft_targets(self, size: Size | None = None) -> SoftTargets:
        """The targets of the prediction network.

        Args:
            size: of the masks, default that of the image.
        """
        samples, counts = self.members[:1], torch.ones(1)
        if len(self.instances):
            samples, counts = torch.unique(self.members, dim=0, return_counts=True)
        height, width = size or self.instances.size
        scale = torch.tensor([width / self.instances.size[1], height / self.instances.size[0]] * 2)
        return SoftTargets(
            self.instances.boxes.float() * scale,
            self.instances.labels,
            torch.from_numpy(masks.decode_resized(self.instances.masks, (height, width))),
            samples,
            counts.float() / counts.sum(),
        )


class PseudoLabelFolder(ArtefactFolder[PseudoLabels]):
    """The pseudo labels in a folder, by image id."""

    index_name = "pseudo-labels.json"
    command = "`annocoin train`"

    def read(self, path: Path) -> PseudoLabels:
        return LABELS.read(path, _decode)


class TableFolder(ArtefactFolder[Tensor]):
    """The loss tables D [P, J+1] in a folder, by image id."""

    index_name = "tables.json"
    command = "`annocoin train`"

    def read(self, path: Path) -> Tensor:
        return TABLES.read(
            path, lambda arrays: torch.from_numpy(arrays["table"].astype(np.float32))
        )


def write_pseudo_labels(path: Path, labels: PseudoLabels) -> None:
    """Write pseudo labels as .npz, atomically."""
    instances = labels.instances
    counts = [rle["counts"] for rle in instances.masks]
    content: Arrays = {
        "size": np.asarray(instances.size, dtype=np.int64),
        "labels": instances.labels.numpy(),
        "boxes": instances.boxes.numpy(),
        "scores": instances.scores.numpy(),
        "confidence": instances.confidence.numpy(),
        "rle_counts": np.frombuffer(b"".join(counts), dtype=np.uint8),
        "rle_lengths": np.asarray([len(count) for count in counts], dtype=np.int64),
        "members": labels.members.numpy(),
        "consensus": np.asarray(labels.consensus, dtype=np.int64),
    }
    LABELS.write(path, content)


def write_table(path: Path, table: Tensor, *, exact: bool = False) -> None:
    """Write a loss table as .npz, atomically.

    Args:
        exact: in full instead of half precision, for losses without a bound.
    """
    kind = np.float32 if exact else np.float16
    TABLES.write(path, {"table": table.cpu().numpy().astype(kind)})


def _decode(arrays: Arrays) -> PseudoLabels:
    height, width = arrays["size"].tolist()
    size = checked_size(height, width, "size")
    rles = masks.from_counts(arrays["rle_counts"], arrays["rle_lengths"], size)
    members, consensus = arrays["members"], int(arrays["consensus"])
    if members.shape[1] != len(rles) or not 0 <= consensus < len(members):
        raise ValueError(f"members {members.shape}, sample {consensus}, {len(rles)} masks")
    if not np.isfinite(arrays["boxes"]).all():
        raise ValueError("boxes are not finite")
    fields = ("labels", "scores", "boxes", "confidence")
    instances = Instances(
        size=size,
        masks=rles,
        **{name: torch.from_numpy(arrays[name]) for name in fields},
    )
    return PseudoLabels(instances, torch.from_numpy(members), consensus)


def _box_labels(samples: Samples, k: int, annotation: Annotation) -> dict[int, int]:
    """The regions of sample k that meet a box label, and the index of that label."""
    pairs = zip(samples.required_regions[k].tolist(), samples.annotation_index, strict=True)
    is_box = [label.kind == "box" and not label.crowd for label in annotation]
    return {region: index for region, index in pairs if is_box[index]}
