"""Charts: one description, drawn as SVG for the page, or by matplotlib for a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from annocoin.errors import InputError

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
"""Colours that colour-blind readers can tell apart; the page has another order on dark ground."""

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
ROW, NAME_WIDTH = 22, 116
MAX_POINTS = 240
"""Of a line; longer ones are averaged."""

FILE_STYLE = (
    "text{font:9px sans-serif;fill:#333}.title{font-size:12px}.grid{stroke:#ddd}.axis{stroke:#888}"
    ".divider{stroke:#bbb;stroke-dasharray:3}.line{fill:none;stroke:var(--shade);stroke-width:1.5}"
    ".reference{stroke:#999;stroke-dasharray:4}.bar,.dot{fill:var(--shade)}"
)
"""Of a chart in a file of its own; the page has its own style."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars.

    Args:
        name: in the legend.
        x: positions, or the indices of the chart's categories.
        y: values; NaN leaves a gap.
        reference: whether it is only there to compare with, drawn dashed and grey.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    reference: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of lines, or of horizontal bars in groups by category.

    Args:
        name: of its file, such as "precision-recall".
        categories: names of x = 0, 1, ..; for bars, of the groups.
        dividers: positions and names of vertical lines.
        y_range: default that of the values, with 0 if they are near it.
        note: a sentence below the chart.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Literal["lines", "bars"] = "lines"
    categories: Sequence[str] = ()
    dividers: Sequence[tuple[float, str]] = ()
    y_range: Range | None = None
    x_range: Range | None = None
    note: str = ""
    points: bool = field(default=False)

    @property
    def description(self) -> str:
        """What it shows, for readers who do not see it."""
        parts = []
        for series in self.series:
            known = [value for value in series.y if math.isfinite(value)]
            if series.reference or not known:
                continue
            if self.kind == "bars":
                pairs = zip(self.categories, series.y, strict=True)
                listed = ", ".join(f"{name} {_short(y)}" for name, y in pairs if math.isfinite(y))
                parts.append(f"{series.name}: {listed}")
            else:
                parts.append(f"{series.name} from {_short(known[0])} to {_short(known[-1])}")
        kind = "Bars" if self.kind == "bars" else "Lines"
        over = f" over {self.x_label}" if self.kind == "lines" else ""
        return f"{kind}: {self.title}, {self.y_label}{over}. {'; '.join(parts)}."

    def svg(self) -> Markup:
        """The chart as an SVG element; its colours are CSS classes s0, s1, ..."""
        return _bars(self) if self.kind == "bars" else _lines(self)

    def svg_file(self) -> str:
        """The chart as an SVG file, with title, legend and colours."""
        inner = self.svg()
        width, height = (float(side) for side in inner.split('"')[3].split()[2:])
        legend = [series for series in self.series if not series.reference]
        legend = legend if len(legend) > 1 else []
        rows = [
            _element("rect", f"bar s{i % len(OKABE_ITO)}", x=12, y=28 + 14 * i, width=9, height=9)
            + _text(series.name, 26, 36 + 14 * i, "start")
            for i, series in enumerate(legend)
        ]
        top = 26 + 14 * len(legend)
        opening = Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}">').format(
            width, top + height
        )
        title = _text(self.title, 12, 18, "start", "title")
        shades = [f".s{i}{{--shade:{shade}}}" for i, shade in enumerate(OKABE_ITO)]
        style = Markup("<style>{}</style>").format(Markup(FILE_STYLE + "".join(shades)))
        placed = Markup(str(inner).replace("<svg ", f'<svg y="{top}" height="{height:g}" ', 1))
        return str(opening + style + title + Markup("").join(rows) + placed + Markup("</svg>"))

    def save(self, folder: Path) -> list[Path]:
        """Write it as NAME.png and NAME.pdf."""
        plt = import_matplotlib()
        height = 3.0 if self.kind == "lines" else 0.8 + 0.22 * len(self.categories)
        figure, axes = plt.subplots(figsize=(4.6, height), layout="constrained")
        axes.set_prop_cycle(color=OKABE_ITO)
        (_draw_bars if self.kind == "bars" else _draw_lines)(axes, self)
        if sum(not series.reference for series in self.series) > 1:
            axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        paths = [folder / f"{self.name}{suffix}" for suffix in (".png", ".pdf")]
        for path in paths:
            figure.savefig(path, dpi=300)
        plt.close(figure)
        return paths


def averaged(values: Sequence[float], count: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """Values of steps 1, 2, .. as at most `count` means: their positions, and the means."""
    size = max(1, math.ceil(len(values) / count))
    blocks = [values[start : start + size] for start in range(0, len(values), size)]
    positions = [1 + i * size + (len(block) - 1) / 2 for i, block in enumerate(blocks)]
    return positions, [sum(block) / len(block) for block in blocks]


def import_matplotlib() -> Any:
    """matplotlib's pyplot, without a screen; an `InputError` where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures need matplotlib; pip install 'annocoin[figures]'") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers in a range, at most about `count`."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _extent(values: Sequence[float], given: Range | None) -> Range:
    """The range of an axis; it includes 0 unless the values are far from it."""
    if given is not None:
        return given
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if 0 < low < 0.6 * high:
        low = 0.0
    if 0.6 * low < high < 0:
        high = 0.0
    if low == high:
        low, high = low - 0.5, high + 0.5
    pad = 0.04 * (high - low)
    return (low if low == 0 else low - pad, high + pad)


def _lines(chart: Chart) -> Markup:
    xs = [x for series in chart.series for x in series.x]
    x_low, x_high = chart.x_range or (min(xs, default=0), max(xs, default=1))
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    y_low, y_high = _extent([y for series in chart.series for y in series.y], chart.y_range)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            round(LEFT + width * (x - x_low) / (x_high - x_low), 1),
            round(TOP + height * (1 - (y - y_low) / (y_high - y_low)), 1),
        )

    parts = []
    for value in ticks(y_low, y_high):
        y = place(x_low, value)[1]
        parts.append(_element("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(_text(_short(value), LEFT - 6, y + 3.5, "end"))
    named = dict(enumerate(chart.categories))
    for value in named or ticks(x_low, x_high, 6):
        x = place(value, y_low)[0]
        parts.append(_text(named.get(int(value), _short(value)), x, HEIGHT - BOTTOM + 15, "middle"))
    for value, name in chart.dividers:
        x = place(value, y_low)[0]
        parts.append(_element("line", "divider", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM))
        parts.append(_text(name, x + 3, TOP + 8, "start"))
    for number, series in enumerate(chart.series):
        parts += _line(series, f"s{number % len(OKABE_ITO)}", place, chart.points)
    bottom = HEIGHT - BOTTOM
    parts.append(_element("line", "axis", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom))
    parts.append(_text(chart.x_label, LEFT + width / 2, HEIGHT - 6, "middle", "label"))
    turned = Markup('<text class="label" text-anchor="middle" transform="{}">{}</text>')
    parts.append(turned.format(f"translate(11 {TOP + height / 2}) rotate(-90)", chart.y_label))
    return _drawing(chart, WIDTH, HEIGHT, parts)


def _line(series: Series, shade: str, place: Any, points: bool) -> list[Markup]:
    """A line, interrupted where values are missing, and its points."""
    known = [(x, y) for x, y in zip(series.x, series.y, strict=True)]
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in known:
        if math.isfinite(y):
            runs[-1].append(place(x, y))
        elif runs[-1]:
            runs.append([])
    kind = "line reference" if series.reference else f"line {shade}"
    parts = [
        _element("polyline", kind, points=" ".join(f"{x},{y}" for x, y in run))
        for run in runs
        if run
    ]
    for x, y in known if points and not series.reference else ():
        if math.isfinite(y):
            cx, cy = place(x, y)
            tip = f"{series.name}: {_short(y)}"
            parts.append(_element("circle", f"dot {shade}", Markup("<title>{}</title>").format(tip),
                                  cx=cx, cy=cy, r=3.5))  # fmt: skip
    return parts


def _bars(chart: Chart) -> Markup:
    low, high = chart.y_range or (
        0.0,
        max([*(y for s in chart.series for y in s.y if y == y), 1e-9]),
    )
    count = len(chart.series)
    bar = 13 if count == 1 else 8
    row = max(ROW, count * (bar + 1) + 7)
    height, width = TOP + row * len(chart.categories) + 34, WIDTH - NAME_WIDTH - 46
    bottom = height - 34
    parts = []
    for value in ticks(low, high):
        x = round(NAME_WIDTH + width * (value - low) / (high - low), 1)
        parts.append(_element("line", "grid", x1=x, x2=x, y1=TOP, y2=bottom))
        parts.append(_text(_short(value), x, bottom + 14, "middle"))
    for i, name in enumerate(chart.categories):
        top = TOP + i * row + (row - count * (bar + 1)) / 2
        parts.append(
            _text(_cut(name), NAME_WIDTH - 7, TOP + (i + 0.5) * row + 3.5, "end", tip=name)
        )
        for number, series in enumerate(chart.series):
            value, y = series.y[i], top + number * (bar + 1)
            if not math.isfinite(value):
                parts.append(_text("no data", NAME_WIDTH + 4, y + bar - 2, "start"))
                continue
            length = round(max(0.0, width * (value - low) / (high - low)), 1)
            tip = Markup("<title>{}</title>").format(f"{name}, {series.name}: {_short(value)}")
            parts.append(_element("rect", f"bar s{number % len(OKABE_ITO)}", tip, x=NAME_WIDTH,
                                  y=round(y, 1), width=length, height=bar, rx=2))  # fmt: skip
            if count == 1:
                parts.append(_text(_short(value), NAME_WIDTH + length + 5, y + bar - 2.5, "start"))
    parts.append(_text(chart.y_label, NAME_WIDTH + width / 2, height - 5, "middle", "label"))
    return _drawing(chart, WIDTH, height, parts)


def _drawing(chart: Chart, width: float, height: float, parts: Sequence[Markup]) -> Markup:
    opening = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return (
        opening.format(width, height, chart.description) + Markup("").join(parts) + Markup("</svg>")
    )


def _element(tag: str, kind: str, content: str = "", **attributes: float | str) -> Markup:
    listed = Markup("").join(Markup(' {}="{}"').format(k, v) for k, v in attributes.items())
    return Markup('<{0} class="{1}"{2}>{3}</{0}>').format(tag, kind, listed, content)


def _text(
    text: str, x: float, y: float, anchor: str, kind: str = "tick", *, tip: str = ""
) -> Markup:
    title = Markup("<title>{}</title>").format(tip) if tip else Markup("")
    inside = title + text
    return _element("text", kind, inside, x=round(x, 1), y=round(y, 1), **{"text-anchor": anchor})


def _cut(name: str, length: int = 17) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.3g}"


def _draw_lines(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        style: dict[str, Any] = {"color": "0.6", "linestyle": "--"} if series.reference else {}
        if chart.points and not series.reference:
            style["marker"] = "o"
        axes.plot(series.x, series.y, label=series.name, markersize=3, linewidth=1.2, **style)
    for x, _ in chart.dividers:
        axes.axvline(x, color="0.8", linewidth=0.6)
    if chart.categories:
        axes.set_xticks(range(len(chart.categories)), [_plain(name) for name in chart.categories])
    if chart.y_range:
        axes.set_ylim(*chart.y_range)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)


def _draw_bars(axes: Any, chart: Chart) -> None:
    size = 0.8 / len(chart.series)
    for number, series in enumerate(chart.series):
        rows = [i - 0.4 + (number + 0.5) * size for i in range(len(chart.categories))]
        axes.barh(rows, series.y, height=size * 0.9, label=series.name)
    axes.set_yticks(range(len(chart.categories)), [_plain(name) for name in chart.categories])
    axes.invert_yaxis()
    if chart.y_range:
        axes.set_xlim(*chart.y_range)
    axes.set_xlabel(chart.y_label)


def _plain(name: str) -> str:
    """A name that matplotlib does not take for a formula."""
    return name.replace("$", r"\$")
