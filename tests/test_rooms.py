"""The rules of the package's layout, checked on the source files.

Data flows one way: no room (subpackage) imports one to its right. Imports inside functions count.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import annocoin

SOURCE = Path(annocoin.__file__).parent
ROOMS = ["data", "synthetic", "regions", "seeds", "objective", "conditional", "prediction",
         "engine", "baselines", "evaluation", "report"]  # fmt: skip
FOUNDATION = {"types", "masks", "errors", "files", "network_files", "progress", "backbones"}
SEE_ALL = {"api", "trained", "demo", "benchmark", "cli", "__init__", "__main__"}
STORAGE = ["data.artefacts", "regions.storage", "seeds.seed_set", "network_files", "files"]
MAX_FILES, MAX_LINES = 145, 420


def module_name(path: Path) -> str:
    """The dotted name below annocoin, such as data.formats.coco; of a package without __init__."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py")}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported_names(module: str) -> set[str]:
    """Absolute names of all imports of a module: `from a import b` imports a and a.b."""
    names = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{MODULES[module]}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def imported_modules(module: str) -> set[str]:
    """The modules of annocoin that a module imports; "__init__" is the public interface."""
    names = imported_names(module)
    public = {f"annocoin.{name}" for name in annocoin.__all__ if name != "__version__"}
    found = {name.removeprefix("annocoin.") for name in names} & MODULES.keys()
    uses_package = any(name in public for name in names) or any(
        isinstance(node, ast.Import) and any(alias.name == "annocoin" for alias in node.names)
        for node in ast.walk(TREES[module])
    )
    return found | ({"__init__"} if uses_package else set())


def reachable(module: str) -> set[str]:
    """The module and all that it imports, directly or through others."""
    found, todo = {module}, [module]
    while todo:
        new = imported_modules(todo.pop()) - found
        found |= new
        todo += new
    return found


def room(module: str) -> str:
    """The subpackage, or the module itself if it is at the top level."""
    return module.split(".")[0]


def imported_rooms(module: str) -> set[str]:
    return {room(name) for name in imported_modules(module)}


def test_every_module_belongs_to_a_room_or_is_known() -> None:
    assert {room(module) for module in MODULES} <= {*ROOMS, *FOUNDATION, *SEE_ALL}
    assert len(MODULES) > 50


def test_no_room_imports_one_to_its_right() -> None:
    wrong = {
        f"{module} imports {other}"
        for module in MODULES
        if room(module) in ROOMS
        for other in imported_rooms(module) & set(ROOMS)
        if ROOMS.index(other) > ROOMS.index(room(module))
    }
    assert not wrong


def test_only_the_top_of_the_package_sees_all() -> None:
    wrong = {
        f"{module} imports {other}"
        for module in MODULES
        if room(module) not in SEE_ALL
        for other in imported_rooms(module) & SEE_ALL
    }
    assert not wrong


def test_the_objective_imports_no_other_room() -> None:
    modules = [module for module in MODULES if room(module) == "objective"]
    assert modules
    assert all(imported_rooms(module) & set(ROOMS) <= {"objective"} for module in modules)


@pytest.mark.parametrize("module", sorted(FOUNDATION))
def test_the_foundation_imports_no_room(module: str) -> None:
    assert {room(name) for name in reachable(module)} <= FOUNDATION


@pytest.mark.parametrize("module", ["files", "errors"])
def test_files_and_errors_are_light(module: str) -> None:
    names = {name.split(".")[0] for other in reachable(module) for name in imported_names(other)}
    assert not names & {"torch", "torchvision", "numpy", "cv2"}


@pytest.mark.parametrize("module", STORAGE)
def test_storage_does_not_depend_on_training(module: str) -> None:
    assert "engine" not in {room(name) for name in reachable(module)}


def test_conditional_and_prediction_meet_only_in_the_engine() -> None:
    for module in MODULES:
        if room(module) in ("conditional", "prediction"):
            others = {room(name) for name in reachable(module)}
            assert not {"conditional", "prediction"} <= others, module


def test_public_names_are_unique() -> None:
    """No two public classes or functions of one name, but `read` and `write` of file formats."""
    modules = defaultdict(list)
    for module, tree in TREES.items():
        allowed = ("read", "write") if module.startswith("data.formats.") else ()
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in allowed:
                modules[node.name].append(module)
    public = {name: found for name, found in modules.items() if not name.startswith("_")}
    assert {name: found for name, found in public.items() if len(found) > 1} == {}


def test_files_are_few_and_short() -> None:
    assert len(MODULES) <= MAX_FILES
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
