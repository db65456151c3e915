"""Pseudo labels: from samples to soft targets, to files and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from annocoin import masks as rle
from annocoin.conditional.samples import Samples
from annocoin.engine.pseudo_labels import (
    LABELS,
    PseudoLabelFolder,
    PseudoLabels,
    TableFolder,
    write_pseudo_labels,
    write_table,
)
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, Instances, WeakLabel

REGIONS = RegionSet.of(
    np.arange(12).reshape(3, 4), np.eye(12, dtype=int)[:4] + np.eye(12, k=4, dtype=int)[:4]
)
"""Four regions of two superpixels, each a pixel wide and two high, side by side."""


def samples(
    *rows: dict[int, int], required: list[list[int]], annotation_index: tuple[int, ...]
) -> Samples:
    """Labellings as {region: label}; `required` are the regions that meet each label."""
    labels = torch.zeros(len(rows), 4, dtype=torch.int64)
    for row, labelling in zip(labels, rows, strict=True):
        for region, label in labelling.items():
            row[region] = label
    margins = (labels > 0).float() * torch.arange(1, 5)
    return Samples(REGIONS, labels, margins, torch.tensor(required), annotation_index)


def test_distinct_instances_and_the_samples_that_have_them() -> None:
    drawn = samples(
        {0: 1, 2: 2}, {0: 1}, {0: 1, 2: 2}, required=[[0], [0], [0]], annotation_index=(0,)
    )
    labels = PseudoLabels.from_samples(drawn, Annotation((3, 4), (WeakLabel(1), WeakLabel(2))))
    assert labels.instances.labels.tolist() == [1, 2]
    assert labels.members.tolist() == [[True, True], [True, False], [True, True]]
    assert labels.consensus in (0, 2)
    consensus = labels.consensus_instances()
    assert consensus.labels.tolist() == [1, 2]
    assert consensus.boxes.tolist() == [[0, 0, 1, 2], [2, 0, 3, 2]]
    assert consensus.confidence.tolist() == [1.0, 0.5]
    assert consensus.scores.tolist() == pytest.approx(torch.tensor([1.0, 3.0]).sigmoid().tolist())
    soft = labels.soft_targets()
    pairs = zip(soft.members, soft.weights, strict=True)
    weights = {tuple(members.tolist()): float(weight) for members, weight in pairs}
    assert weights == {(True, False): pytest.approx(1 / 3), (True, True): pytest.approx(2 / 3)}
    assert soft.masks.shape == (2, 3, 4)
    assert soft.masks[0].nonzero().tolist() == [[0, 0], [1, 0]]


def test_targets_of_a_resized_image() -> None:
    drawn = samples({0: 1, 2: 2}, required=[[0]], annotation_index=(0,))
    labels = PseudoLabels.from_samples(drawn, Annotation((3, 4), (WeakLabel(1), WeakLabel(2))))
    soft = labels.soft_targets((6, 12))
    assert soft.masks.shape == (2, 6, 12)
    assert soft.boxes.tolist() == [[0, 0, 3, 4], [6, 0, 9, 4]]
    assert soft.masks[0].nonzero().amax(dim=0).tolist() == [3, 2]


def test_instances_have_the_boxes_of_box_labels() -> None:
    """Two samples meet the box by different regions; the box of a crowd is of no instance."""
    annotation = Annotation(
        (3, 4), (WeakLabel(1, box=(0, 0, 2.5, 3)), WeakLabel(2, box=(0, 0, 4, 3), crowd=True))
    )
    drawn = samples({0: 1, 3: 2}, {1: 1, 3: 2}, required=[[0, 3], [1, 3]], annotation_index=(0, 1))
    instances = PseudoLabels.from_samples(drawn, annotation).instances
    boxes = {
        int(label): box.tolist()
        for label, box in zip(instances.labels, instances.boxes, strict=True)
    }
    assert boxes == {1: [0, 0, 2.5, 3], 2: [3, 0, 4, 2]}
    assert len(instances) == 3, "the same box with two masks, and the crowd's"
    tight = PseudoLabels.from_samples(drawn, annotation, annotated_boxes=False).instances
    assert torch.equal(tight.boxes, torch.from_numpy(rle.boxes(tight.masks)))
    assert not torch.equal(tight.boxes, instances.boxes)


def test_no_instances() -> None:
    drawn = samples({}, {}, required=[[], []], annotation_index=())
    labels = PseudoLabels.from_samples(drawn, Annotation((3, 4)))
    assert len(labels.consensus_instances()) == 0
    soft = labels.soft_targets()
    assert soft.members.shape == (1, 0)
    assert soft.weights.tolist() == [1.0]


def test_written_pseudo_labels_are_read_back(tmp_path: Path) -> None:
    drawn = samples({0: 1, 2: 2}, {0: 1, 3: 2}, required=[[0], [0]], annotation_index=(0,))
    annotation = Annotation((3, 4), (WeakLabel(1), WeakLabel(2)))
    empty = Instances(size=(3, 4), masks=[], labels=[])
    for labels in (PseudoLabels.from_samples(drawn, annotation), PseudoLabels.single(empty)):
        out = tmp_path / f"{len(labels.instances)}"
        with PseudoLabelFolder.writing(out, {}, [("a", "a.npz")]) as files:
            assert not LABELS.is_current(files["a"])
            write_pseudo_labels(files["a"], labels)
            assert LABELS.is_current(files["a"])
        read = PseudoLabelFolder(out)["a"]
        assert read.instances == labels.instances
        assert torch.equal(read.members, labels.members)
        assert read.consensus == labels.consensus


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    for folder_type in (PseudoLabelFolder, TableFolder):
        out = tmp_path / folder_type.index_name
        with folder_type.writing(out, {}, [("a", "a.npz")]) as files:
            files["a"].write_bytes(b"nonsense")
        with pytest.raises(InputError, match="delete it"):
            folder_type(out)["a"]


def test_tables_have_three_digits(tmp_path: Path) -> None:
    table = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) * 12
    with TableFolder.writing(tmp_path, {}, [(7, "a.npz")]) as files:
        write_table(files[7], table)
    assert torch.allclose(TableFolder(tmp_path)[7], table, rtol=1e-3)


def test_tables_without_a_bound_are_exact(tmp_path: Path) -> None:
    table = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) * 10
    with TableFolder.writing(tmp_path, {}, [(7, "a.npz")]) as files:
        write_table(files[7], table, exact=True)
    assert torch.equal(TableFolder(tmp_path)[7], table)
