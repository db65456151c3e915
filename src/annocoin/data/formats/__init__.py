"""What a file format could not hold, counted while writing and told to the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from annocoin.types import WeakLabel


@dataclass
class ConversionLoss:
    """Collects the IoU of each written mask with its original, and what was left out."""

    ious: list[float] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def mask(self, iou: float) -> None:
        """One mask was written; `iou` compares what a reader gets with the original."""
        self.ious.append(iou)

    def drop(self, what: str, count: int = 1) -> None:
        """Things were left out, because the format has no place for them."""
        if count:
            self.dropped[what] += count

    def leave_out(self, weak_label: WeakLabel, held: Collection[str]) -> None:
        """Count what the weak_label says beyond the fields that the format holds."""
        said = {
            "masks": weak_label.mask is not None,
            "points": weak_label.point is not None,
            "scores": weak_label.score is not None,
            "confidences": weak_label.confidence is not None,
            "crowd flags": weak_label.crowd,
            "difficult flags": weak_label.difficult,
        }
        for what, there in said.items():
            if there and what not in held:
                self.drop(what)

    def lines(self) -> list[str]:
        """One line per kind of loss; none if all is exact."""
        override = [iou for iou in self.ious if iou < 1]
        lines = []
        if override:
            lines.append(
                f"{len(override)} of {len(self.ious)} masks override: "
                f"mean IoU with the original {sum(self.ious) / len(self.ious):.4f}, "
                f"least {min(self.ious):.4f}"
            )
        lines += [
            f"{n} {what} left out: no place in this format" for what, n in self.dropped.items()
        ]
        return lines + self.notes
