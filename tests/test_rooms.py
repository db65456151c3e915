"""Data flows one way through the rooms of the house: no room imports one to its right."""

from __future__ import annotations

import ast
from pathlib import Path

import annocoin

SOURCE = Path(annocoin.__file__).parent
ROOMS = ["data", "regions", "seeds", "conditional", "prediction", "objective", "training",
         "baselines", "evaluation", "report"]  # fmt: skip
FREE = {"demo", "workflow", "__init__", "__main__"}  # these, and the command line, see all


def imported_rooms(path: Path) -> set[str]:
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    parts = [module.split(".") for module in modules]
    return {p[1] for p in parts if p[0] == "annocoin" and len(p) > 1} & {
        *ROOMS,
        "cli",
        "demo",
        "workflow",
    }


def test_no_room_imports_one_to_its_right() -> None:
    seen = 0
    for path in SOURCE.rglob("*.py"):
        inner = path.relative_to(SOURCE).parts
        room = inner[0] if len(inner) > 1 else None
        if room == "cli" or (room is None and path.stem in FREE):
            continue
        allowed = set(ROOMS[: ROOMS.index(room) + 1]) if room else set()
        assert imported_rooms(path) <= allowed, path
        seen += 1
    assert seen > 10
