"""The import graph: of the package as it is, and of a small package with a wrong import."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tools.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("import_graph")


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["import_graph", *map(str, arguments)])
    script.main()


def package(root: Path, **modules: str) -> Path:
    """A package of modules such as data__images="import ..." for data/images.py."""
    for name, content in modules.items():
        path = root / "annocoin" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root / "annocoin"


def test_no_arrow_of_the_package_points_left(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(script, monkeypatch, "--out", tmp_path / "a.svg")
    run(script, monkeypatch, "--out", tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    texts = [
        element.text for element in ElementTree.parse(tmp_path / "a.svg").iter() if element.text
    ]
    assert {"foundation", "data", "regions", "engine", "cli"} <= set(texts)


def test_imports_of_every_form_are_found(script: ModuleType, tmp_path: Path) -> None:
    src = package(
        tmp_path,
        types="import numpy\n",
        data__images="from annocoin import types, __version__\nfrom annocoin.data import voc\n",
        regions__proposals="import annocoin.types\n",
        seeds__votes="def f():\n    from annocoin.regions.proposals import propose\n",
    )
    assert script.imports_of_rooms(src) == {
        "foundation": {},
        "data": {"foundation": f"{src / 'data/images.py'}:1"},
        "regions": {"foundation": f"{src / 'regions/proposals.py'}:1"},
        "seeds": {"regions": f"{src / 'seeds/votes.py'}:2"},
    }
    assert script.sizes_of_rooms(src)["data"] == (1, 2)


def test_an_arrow_to_the_left_is_an_error(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    src = package(tmp_path, data__images="\nfrom annocoin.seeds import votes\n", seeds__votes="")
    with pytest.raises(SystemExit) as ended:
        run(script, monkeypatch, "--src", src, "--out", tmp_path / "a.svg")
    assert ended.value.code == 1
    assert "images.py:2: data imports seeds" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()
    with pytest.raises(SystemExit, match="'extra' belongs to no room"):
        run(script, monkeypatch, "--src", package(tmp_path, extra=""), "--out", tmp_path / "a.svg")
