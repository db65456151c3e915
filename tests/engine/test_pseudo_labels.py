"""Pseudo labels: from samples to soft targets, to files and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from annocoin.conditional.samples import Samples
from annocoin.engine.pseudo_labels import (
    PseudoLabelFolder,
    PseudoLabels,
    TableFolder,
    labels_are_current,
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


def samples(*rows: dict[int, int], met: list[list[int]], weak_labels: tuple[int, ...]) -> Samples:
    """Labellings that give regions labels, {region: label}."""
    labels = torch.zeros(len(rows), 4, dtype=torch.int64)
    for row, own in zip(labels, rows, strict=True):
        for region, label in own.items():
            row[region] = label
    margins = (labels > 0).float() * torch.arange(1, 5)
    return Samples(REGIONS, labels, margins, torch.tensor(met), weak_labels)


def test_different_instances_once_and_who_has_them() -> None:
    drawn = samples({0: 1, 2: 2}, {0: 1}, {0: 1, 2: 2}, met=[[0], [0], [0]], weak_labels=(0,))
    labels = PseudoLabels.of_samples(drawn, Annotation((3, 4), (WeakLabel(1), WeakLabel(2))))
    assert labels.instances.labels.tolist() == [1, 2]
    assert labels.members.tolist() == [[True, True], [True, False], [True, True]]
    assert labels.consensus in (0, 2)
    assert labels.agreed().labels.tolist() == [1, 2]
    assert labels.agreed().boxes.tolist() == [[0, 0, 1, 2], [2, 0, 3, 2]]
    assert labels.agreed().confidence.tolist() == [1.0, 0.5]
    soft = labels.soft_targets()
    shares = {tuple(m.tolist()): float(w) for m, w in zip(soft.members, soft.weights, strict=True)}
    assert shares == {(True, False): pytest.approx(1 / 3), (True, True): pytest.approx(2 / 3)}
    assert soft.masks.shape == (2, 3, 4)
    assert soft.masks[0].nonzero().tolist() == [[0, 0], [1, 0]]


def test_annotated_boxes_are_the_boxes() -> None:
    """Two samples meet the box by different regions; a crowd's box is nobody's."""
    said = Annotation(
        (3, 4), (WeakLabel(1, box=(0, 0, 2.5, 3)), WeakLabel(2, box=(0, 0, 4, 3), crowd=True))
    )
    drawn = samples({0: 1, 3: 2}, {1: 1, 3: 2}, met=[[0, 3], [1, 3]], weak_labels=(0, 1))
    labels = PseudoLabels.of_samples(drawn, said)
    boxes = {
        int(j): b.tolist()
        for j, b in zip(labels.instances.labels, labels.instances.boxes, strict=True)
    }
    assert boxes == {1: [0, 0, 2.5, 3], 2: [3, 0, 4, 2]}
    assert len(labels.instances) == 3, "the same box with two masks, and the crowd's"


def test_no_instances_at_all() -> None:
    drawn = samples({}, {}, met=[[], []], weak_labels=())
    labels = PseudoLabels.of_samples(drawn, Annotation((3, 4)))
    assert len(labels.agreed()) == 0
    soft = labels.soft_targets()
    assert soft.members.shape == (1, 0)
    assert soft.weights.tolist() == [1.0]


def test_a_file_gives_back_the_same(tmp_path: Path) -> None:
    drawn = samples({0: 1, 2: 2}, {0: 1, 3: 2}, met=[[0], [0]], weak_labels=(0,))
    said = Annotation((3, 4), (WeakLabel(1), WeakLabel(2)))
    none = Instances(size=(3, 4), masks=[], labels=[])
    for labels in (PseudoLabels.of_samples(drawn, said), PseudoLabels.certain(none)):
        out = tmp_path / f"{len(labels.instances)}"
        with PseudoLabelFolder.writing(out, {}, [("a", "a.npz")]) as files:
            assert not labels_are_current(files["a"])
            write_pseudo_labels(files["a"], labels)
            assert labels_are_current(files["a"])
        found = PseudoLabelFolder(out)["a"]
        assert found.instances == labels.instances
        assert torch.equal(found.members, labels.members)
        assert found.consensus == labels.consensus


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    for kind in (PseudoLabelFolder, TableFolder):
        out = tmp_path / kind.index_name
        with kind.writing(out, {}, [("a", "a.npz")]) as files:
            files["a"].write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match="delete it"):
            kind(out)["a"]


def test_tables_keep_three_digits(tmp_path: Path) -> None:
    table = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)) * 12
    with TableFolder.writing(tmp_path, {}, [(7, "a.npz")]) as files:
        write_table(files[7], table)
    assert torch.allclose(TableFolder(tmp_path)[7], table, rtol=1e-3)
