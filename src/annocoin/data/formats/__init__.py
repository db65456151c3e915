"""One module per dataset format; here, what a conversion loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from annocoin.types import WeakLabel


@dataclass
class ConversionLoss:
    """What a format could not hold.

    Args:
        ious: IoU of each written mask, as a reader gets it, with the original.
        dropped: number of values that were left out, by kind.
        notes: further lines for the user.
    """

    ious: list[float] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def drop(self, kind: str, count: int = 1) -> None:
        """Count values that were left out."""
        if count:
            self.dropped[kind] += count

    def drop_fields(self, label: WeakLabel, supported: Collection[str]) -> None:
        """Count the fields of a weak label that the format does not support."""
        present = {
            "masks": label.mask is not None,
            "points": label.point is not None,
            "scores": label.score is not None,
            "confidences": label.confidence is not None,
            "crowd flags": label.crowd,
            "difficult flags": label.difficult,
        }
        for kind, is_present in present.items():
            if is_present and kind not in supported:
                self.drop(kind)

    def lines(self) -> list[str]:
        """One line per kind of loss; none if the conversion is exact."""
        lines = []
        changed = sum(iou < 1 for iou in self.ious)
        if changed:
            lines.append(
                f"{changed} of {len(self.ious)} masks changed: "
                f"mean IoU with the original {sum(self.ious) / len(self.ious):.4f}, "
                f"least {min(self.ious):.4f}"
            )
        lines += [
            f"{count} {kind} left out: the format cannot hold them"
            for kind, count in self.dropped.items()
        ]
        return lines + self.notes
