"""Draw which rooms (subpackages) of annocoin import which, as an SVG.

    python tools/import_graph.py --out docs/images/import-graph.svg

Rooms are listed in the order of data flow, and an arrow leads from a room to each room that imports
it. If an arrow would point left, nothing is written: the imports are listed and the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import colorsys
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = {
    "foundation": (
        "types",
        "masks",
        "errors",
        "files",
        "network_files",
        "progress",
        "backbones",
    ),
    "data": ("data",),
    "synthetic": ("synthetic",),
    "regions": ("regions",),
    "seeds": ("seeds",),
    "objective": ("objective",),
    "conditional": ("conditional",),
    "prediction": ("prediction",),
    "engine": ("engine",),
    "baselines": ("baselines",),
    "evaluation": ("evaluation",),
    "report": ("report",),
    "api": ("trained", "api", "demo", "__init__"),
    "benchmark": ("benchmark",),
    "cli": ("cli", "__main__"),
}
"""The modules and packages of each room, rooms in the order of data flow."""

STEP_X, STEP_Y = 92, 58
WIDTH, HEIGHT = 132, 46
MARGIN = 28
FIRST_PORT, PORT_STEP = 52, 6
"""Arrows end on the upper side of a box, right of the box before it."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = Path(__file__).parents[1]
    parser.add_argument("--src", type=Path, default=root / "src/annocoin", help="the package")
    parser.add_argument("--out", type=Path, default=root / "docs/images/import-graph.svg")
    options = parser.parse_args()
    order = list(ROOMS)
    imports = imports_of_rooms(options.src)
    leftward = [
        f"{where}: {room} imports {imported}, which is to its right"
        for room, rooms in imports.items()
        for imported, where in rooms.items()
        if order.index(imported) > order.index(room)
    ]
    if leftward:
        print(*leftward, sep="\n", file=sys.stderr)
        sys.exit(1)
    options.out.write_text(draw(imports, sizes_of_rooms(options.src)), encoding="utf-8")


def imports_of_rooms(src: Path) -> dict[str, dict[str, str]]:
    """The rooms that each room of the package at `src` imports, with the first such line.

    Imports inside of functions count. A room without files has no entry.

    Returns:
        room -> imported room -> "path:line".
    """
    imports: dict[str, dict[str, str]] = {}
    for room, paths in files_of_rooms(src).items():
        imports[room] = {}
        for path in paths:
            for module, line in _imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
                imported = _room_of(module)
                if imported not in (None, room):
                    imports[room].setdefault(str(imported), f"{path}:{line}")
    return imports


def files_of_rooms(src: Path) -> dict[str, list[Path]]:
    """The Python files of each room that has any, in the order of data flow."""
    files: dict[str, list[Path]] = {}
    for path in sorted(src.rglob("*.py")):
        name = path.relative_to(src).with_suffix("").parts[0]
        room = _room_of(name)
        if room is None:
            sys.exit(f"{path}: {name!r} belongs to no room; add it to ROOMS in {__file__}")
        files.setdefault(room, []).append(path)
    return {room: files[room] for room in ROOMS if room in files}


def sizes_of_rooms(src: Path) -> dict[str, tuple[int, int]]:
    """The number of files and of lines of each room."""
    return {
        room: (len(paths), sum(len(path.read_text("utf-8").splitlines()) for path in paths))
        for room, paths in files_of_rooms(src).items()
    }


def _imported_modules(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The modules and packages of annocoin's top level that a module imports, with their lines."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, module = name.partition(".")
            if package == "annocoin" and isinstance(node, ast.stmt):
                yield module.partition(".")[0], node.lineno


def _room_of(module: str) -> str | None:
    return next((room for room, modules in ROOMS.items() if module in modules), None)


def draw(imports: dict[str, dict[str, str]], sizes: dict[str, tuple[int, int]]) -> str:
    """The SVG: rooms on the diagonal, arrows to the right and then down."""
    rooms = list(sizes)
    width = 2 * MARGIN + (len(rooms) - 1) * STEP_X + WIDTH
    height = 2 * MARGIN + (len(rooms) - 1) * STEP_Y + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#fcfcfa"/>',
    ]
    for i, room in enumerate(rooms):
        for j in range(len(rooms) - 1, i, -1):
            if room in imports[rooms[j]]:
                lines.append(_arrow(i, j, _colour(i, 0.45, 0.62)))
    for i, room in enumerate(rooms):
        lines += _box(i, room, *sizes[room])
    files, total = (sum(size[k] for size in sizes.values()) for k in (0, 1))
    caption = [
        (20, "bold", "#222", "The rooms of annocoin, in the order of data flow"),
        (15, "normal", "#555", "An arrow leads from a room to each room that imports it."),
        (15, "normal", "#555", "No arrow points left: no room imports one to its right."),
        (15, "normal", "#555", f"{files} files, {total:,} lines."),
    ]
    y = height - MARGIN - 26 * len(caption) + 12
    for size, weight, colour, text in caption:
        y += 26
        lines.append(_text(MARGIN, y, text, size, weight, colour))
    return "\n".join([*lines, "</svg>", ""])


def _box(i: int, room: str, files: int, lines: int) -> list[str]:
    x, y = MARGIN + i * STEP_X, MARGIN + i * STEP_Y
    count = f"{files} file{'s' if files > 1 else ''}, {lines:,} lines"
    return [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7" '
        f'fill="{_colour(i, 0.93, 0.6)}" stroke="{_colour(i, 0.45, 0.62)}" stroke-width="1.5"/>',
        _text(x + 11, y + 20, room, 15, "bold", "#222"),
        _text(x + 11, y + 37, count, 11.5, "normal", "#555"),
    ]


def _arrow(i: int, j: int, colour: str) -> str:
    """From the right side of box i to the upper side of box j, with a round corner."""
    x0, y0 = MARGIN + i * STEP_X + WIDTH, MARGIN + i * STEP_Y + HEIGHT / 2
    # Arrows from near boxes end further left, so that arrows into one box do not cross.
    x1 = MARGIN + j * STEP_X + FIRST_PORT + (j - i - 1) * PORT_STEP
    y1 = MARGIN + j * STEP_Y
    return (
        f'<path d="M{x0} {y0:g}H{x1 - 8:g}q8 0 8 8V{y1 - 5}" fill="none" stroke="{colour}" '
        f'stroke-width="1.6"/><path d="M{x1 - 3:g} {y1 - 7}h6l-3 7z" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, size: float, weight: str, colour: str) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}>{text}</text>'


def _colour(i: int, lightness: float, saturation: float) -> str:
    """A hue for each room; grey for the foundation, which nearly all rooms import."""
    hue = (0.55 + 0.38 * i) % 1
    if i == 0:
        lightness, saturation = max(lightness, 0.65), 0
    rgb = colorsys.hls_to_rgb(hue, lightness, saturation)
    return "#" + "".join(f"{round(255 * value):02x}" for value in rgb)


if __name__ == "__main__":
    main()
