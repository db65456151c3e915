"""The rows of the tables: which runs each of the paper's tables compares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from annocoin.backbones import SCRATCH, TINY
from annocoin.benchmark import published
from annocoin.benchmark.departures import departures
from annocoin.benchmark.published import Figures
from annocoin.data.dataset import Supervision
from annocoin.engine.config import Config
from annocoin.engine.methods import ANNOCOIN, METHODS
from annocoin.errors import InputError, check_choice

Benchmark = Literal[
    "comparison", "supervision", "terms", "diversity", "architectures", "per-class", "departures"
]

OURS_BOX = "annocoin-box"
ORDER = (
    "full", "prm", "iam", "ocis", "label-penet", "wise", "irn", ANNOCOIN, "sdi", "bbtp", OURS_BOX,
)  # fmt: skip
"""Of the paper's table 1."""

WEAK_LABELS: dict[Supervision, str] = {
    "image": "tags",
    "count": "tags, counts",
    "box": "boxes",
    "mask": "masks",
}


@dataclass(frozen=True)
class Row:
    """A row of a table: runs that differ only in their random seed.

    Args:
        name: of the row and of the folders of its runs.
        title: in the table.
        method, supervision: of the runs.
        changes: of the configuration.
        rounds: of the runs; 0 trains on the retrieved seeds, None has the preset's rounds.
        published: the paper's figures for it, empty if it has none.
    """

    name: str
    title: str
    method: str = ANNOCOIN
    supervision: Supervision = "image"
    changes: Mapping[str, str] = field(default_factory=dict)
    rounds: int | None = None
    published: Figures = field(default_factory=dict)


def rows_of(
    benchmark: str,
    config: Config,
    methods: Sequence[str] | None = None,
    supervision: Supervision = "image",
) -> list[Row]:
    """The rows of a benchmark.

    Args:
        config: ours, without changes.
        methods: rows by name, default all.
        supervision: of the rows of terms, diversity and departures; other rows have their own.
    """
    builders: dict[str, Callable[[Config, Supervision], list[Row]]] = {
        "comparison": _comparison,
        "supervision": _supervision,
        "terms": _terms,
        "diversity": _diversity,
        "architectures": _architectures,
        "per-class": _per_class,
        "departures": _departures,
    }
    check_choice("benchmark", benchmark, builders)
    rows = {row.name: row for row in builders[benchmark](config, supervision)}
    if methods is None:
        return list(rows.values())
    for name in methods:
        check_choice("--methods", name, rows)
    if not methods:
        raise InputError(f"--methods: none; expected some of {', '.join(rows)}")
    return [row for name, row in rows.items() if name in methods]


def _comparison(*_: object) -> list[Row]:
    """Table 1: every method with its own supervision, ours with tags and with boxes."""
    rows = []
    for name in ORDER:
        method = ANNOCOIN if name == OURS_BOX else name
        if method not in METHODS:
            continue
        supervision = "box" if name == OURS_BOX else METHODS[method].supervision[0]
        title = METHODS[method].title
        rows.append(Row(name, title, method, supervision, published=published.PAPER[name]))
    return rows


def _per_class(*_: object) -> list[Row]:
    return [row for row in _comparison() if row.method == ANNOCOIN]


def _supervision(*_: object) -> list[Row]:
    """The same network for the same steps, from every kind of labels."""
    return [
        Row("full", "true masks", "full", "mask"),
        Row("box", "boxes", supervision="box"),
        Row("image", "tags"),
        Row("seeds", "tags, no rounds", rounds=0),
    ]


def _departures(config: Config, supervision: Supervision) -> list[Row]:
    """Every departure from the paper's text turned back, one at a time."""
    return [
        Row(
            _folder_name(name, supervision),
            name,
            supervision=supervision,
            changes=changes,
        )
        for name, changes in departures(config, supervision).items()
    ]


def _terms(_: Config, supervision: Supervision) -> list[Row]:
    """Table 2: the unary, pairwise and higher order terms."""
    return [
        Row(
            _folder_name(name.replace("+", ""), supervision),
            name,
            supervision=supervision,
            changes={"conditional.scoring.terms": name},
            published=_papers(figures, supervision),
        )
        for name, figures in published.TERMS.items()
    ]


def _diversity(_: Config, supervision: Supervision) -> list[Row]:
    """Table 3: probabilistic (Pr) or pointwise (PW) networks."""
    return [
        Row(
            _folder_name(title, supervision),
            title,
            supervision=supervision,
            changes={
                "prediction.losses.pointwise": _flag("PW_p" in title),
                "conditional.training.pointwise": _flag("PW_c" in title),
            },
            published=_papers(figures, supervision),
        )
        for title, figures in published.DIVERSITY.items()
    ]


def _architectures(config: Config, _: Supervision) -> list[Row]:
    """The trunk of the conditional network: the paper's U-Net, a ResNet, and the preset's own."""
    rows = []
    trunk = config.conditional.architecture.trunk
    kinds: tuple[Supervision, ...] = ("image", "box")
    for supervision in kinds:
        title = f"{{}}, {WEAK_LABELS[supervision]}"
        trunks = {"U-Net": "unet", "ResNet": "resnet50", f"preset ({trunk})": trunk}
        for name, each in trunks.items():
            row_title = title.format(name)
            changes = {"conditional.architecture.trunk": each}
            if trunk == TINY and each == "resnet50":  # small presets need no download
                changes["conditional.weights"] = SCRATCH
            rows.append(
                Row(
                    f"{each}-{supervision}",
                    row_title,
                    supervision=supervision,
                    changes=changes,
                    published=published.ARCHITECTURES.get(row_title, {}),
                )
            )
    return rows


def _folder_name(title: str, supervision: Supervision) -> str:
    """A name for folders: words and hyphens, other kinds of labels than tags at its end."""
    name = "-".join(re.findall(r"[\w+]+", title))
    return name if supervision == "image" else f"{name}-{supervision}"


def _papers(figures: Figures, supervision: Supervision) -> Figures:
    """The paper's ablations are for tags."""
    return figures if supervision == "image" else {}


def _flag(value: bool) -> str:
    return "true" if value else "false"
