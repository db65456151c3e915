"""The documentation: links lead somewhere, code compiles, names and options exist."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer.main

import annocoin
from annocoin.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/annocoin/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
NOTEBOOK = ROOT / "docs" / "first-steps.ipynb"
SHELL = re.compile(r"^ {4}(annocoin (?:.*\\\n)*.*)", re.M)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def code_blocks() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, code in enumerate(CODE.findall(page.read_text())):
            yield f"{page.name}:{number}", code


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in code_blocks()])
def test_python_code_compiles_and_its_names_of_annocoin_exist(code: str) -> None:
    check_names(code)


def check_names(code: str) -> None:
    """Raise unless all that the code takes from annocoin exists."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("annocoin"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or importlib.util.find_spec(name), name
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "annocoin":
            assert node.attr in (*annocoin.__all__, "__file__"), f"annocoin.{node.attr}"


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for command in SHELL.findall(page.read_text()):
            line = command.replace("\\\n", " ").split("  #")[0]
            yield f"{page.name}: {line[:60].strip()}", line


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in commands()])
def test_options_of_documented_commands_exist(line: str) -> None:
    group = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    subcommands = getattr(command, "commands", {})
    if subcommands:
        command = subcommands[words[1]] if words[1] in subcommands else subcommands["make"]
    known = {name for parameter in command.params for name in parameter.opts}
    used = {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}
    assert used <= known, f"{sorted(used - known)} of {line}"


def notebook_cells() -> list[dict[str, Any]]:
    return [
        cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]


def test_the_notebook_was_executed_and_is_small() -> None:
    assert NOTEBOOK.stat().st_size < 400_000
    assert str(Path.home()) not in NOTEBOOK.read_text()
    cells = notebook_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/jpeg" in output.get("data", {}) for output in outputs) >= 4


def test_the_notebook_uses_names_that_exist_and_its_cells_before_the_training_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = ["".join(cell["source"]) for cell in notebook_cells()]
    for code in codes:
        check_names(code)
    notebook = ModuleType("IPython")  # no dependency of the tests
    notebook.display = SimpleNamespace(Image=bytes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.chdir(tmp_path)
    before = next(i for i, code in enumerate(codes) if "annocoin.train(" in code)
    assert before >= 3
    variables: dict[str, Any] = {}
    for code in codes[:before]:
        exec(code, variables)
    assert len(variables["found"]) == 2
    assert variables["summary"].kinds["box"] > 32
    assert (tmp_path / "scenes").is_dir()
