"""The command line: what it prints, what it writes, and one line for everything that is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from annocoin.data.conversion import write_dataset
from annocoin.data.images import image_size
from annocoin.data.loading import load_evaluation, load_labelled
from end_to_end.quick import QUICK
from processes import interruptible

Run = Callable[..., Any]


@pytest.fixture
def voc(scenes: Path, tmp_path: Path) -> Path:
    """A copy of the scenes to spoil."""
    return Path(shutil.copytree(scenes, tmp_path / "voc"))


@pytest.fixture
def results(annocoin: Run, voc: Path, tmp_path: Path) -> Path:
    assert annocoin("convert", voc, tmp_path / "results.json", "--to", "results").code == 0
    return tmp_path / "results.json"


@pytest.mark.parametrize("protocol", ["chainercv", "sds", "bbtp", "coco"])
def test_truth_as_prediction_scores_a_hundred(
    annocoin: Run, voc: Path, results: Path, tmp_path: Path, protocol: str
) -> None:
    figures = tmp_path / "f.json"
    outcome = annocoin("evaluate", results, voc, "--protocol", protocol, "--json", figures)
    assert outcome.code == 0, outcome.err
    assert f"protocol {protocol}, 8 images" in outcome.out
    assert outcome.out.count("100.0") >= 4
    content = json.loads(figures.read_text())
    assert (content["protocol"], content["images"]) == (protocol, 8)
    assert [v["mean"] for v in content["iou"].values()] == [1.0] * 4
    assert list(content["iou"]) == ["0.25", "0.5", "0.7", "0.75"]


def test_thresholds_can_be_chosen(annocoin: Run, voc: Path, results: Path, tmp_path: Path) -> None:
    words = ("--iou", ".5", "--iou", "0.9", "--json", tmp_path / "f.json", "--split", "trainval")
    assert annocoin("evaluate", results, voc, *words).code == 0
    assert list(json.loads((tmp_path / "f.json").read_text())["iou"]) == ["0.5", "0.9"]


def test_evaluation_goes_the_same_way_through_every_dataset_format(
    annocoin: Run, voc: Path, tmp_path: Path
) -> None:
    for to, name in (("coco", "d.json"), ("labelme", "d"), ("voc", "v")):
        out = tmp_path / name
        assert annocoin("convert", voc, out, "--to", to, "--split", "train").code == 0
        found = tmp_path / f"{to}-results.json"
        assert annocoin("convert", out, found, "--to", "results").code == 0
        outcome = annocoin("evaluate", found, out, "--protocol", "coco")
        assert outcome.code == 0, outcome.err
        assert "7 images" in outcome.out
        assert "100.0" in outcome.out


def test_synth_show_and_version(annocoin: Run, tmp_path: Path) -> None:
    outcome = annocoin("synth", tmp_path / "s", "--images", 3, "--size", 48, "--seed", 5)
    assert (outcome.code, "3 images" in outcome.out) == (0, True)
    assert len(load_evaluation(tmp_path / "s")) == 3
    for supervision in ("image", "box", "point", "mixed"):
        picture = tmp_path / f"{supervision}.png"
        words = ("--count", 2, "--scale", 2, "--supervision", supervision)
        assert annocoin("show", tmp_path / "s", "--out", picture, *words).code == 0
        assert Image.open(picture).size == (2 * 102 + 6, 102 + 6)
    assert annocoin("--version").out.startswith("annocoin ")


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_names_every_command(annocoin: Run, words: list[str]) -> None:
    outcome = annocoin(*words)
    assert outcome.code == 0
    for command in ("evaluate", "convert", "synth", "show", "demo"):
        assert command in outcome.out


def spoil_image(voc: Path, results: Path) -> None:
    path = next((voc / "JPEGImages").iterdir())
    path.write_bytes(path.read_bytes()[:500])


def lose_image(voc: Path, results: Path) -> None:
    next((voc / "JPEGImages").iterdir()).unlink()


def empty_split(voc: Path, results: Path) -> None:
    (voc / "ImageSets" / "Segmentation" / "val.txt").write_text("")


def unknown_class(voc: Path, results: Path) -> None:
    path = next((voc / "Annotations").iterdir())
    path.write_text(path.read_text().replace("<object>\n    <name>", "<object><name>un", 1))


def entity_bomb(voc: Path, results: Path) -> None:
    path = next((voc / "Annotations").iterdir())
    path.write_text('<!DOCTYPE x [<!ENTITY a "b">]><annotation>&a;</annotation>')


def escaping_name(voc: Path, results: Path) -> None:
    path = next((voc / "Annotations").iterdir())
    path.write_text(path.read_text().replace("<filename>", "<filename>../../../"))


def change_result(**fields: Any) -> Callable[[Path, Path], None]:
    def spoil(voc: Path, results: Path) -> None:
        content = json.loads(results.read_text())
        content[0].update(fields)
        results.write_text(json.dumps(content))

    return spoil


BAD = {
    "truncated image": (spoil_image, "broken image", True),
    "missing image": (lose_image, "no image", True),
    "unknown class": (unknown_class, "unknown class", True),
    "entity bomb": (entity_bomb, "entities", True),
    "escaping name": (escaping_name, "a name inside", True),
    "NaN score": (change_result(score=float("nan")), "score is nan", True),
    "unknown image": (change_result(image_id="x"), "not in the dataset", True),
    "wrong RLE size": (change_result(segmentation={"size": [1, 1], "counts": "1"}), "RLE", True),
    "no results": (lambda voc, results: results.unlink(), "no such file", False),
    "no dataset": (lambda voc, results: shutil.rmtree(voc), "no such file or folder", False),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_one_line_and_exit_code_two(
    annocoin: Run, voc: Path, results: Path, tmp_path: Path, case: str
) -> None:
    spoil, expected, skippable = BAD[case]
    spoil(voc, results)
    before = sorted(tmp_path.rglob("*"))
    figures = tmp_path / "f.json"
    outcome = annocoin("evaluate", results, voc, "--json", figures)
    assert outcome.code == 2
    assert outcome.err.startswith("annocoin: ")
    assert outcome.err.count("\n") == 1
    assert expected in outcome.err
    assert outcome.out == ""
    assert sorted(tmp_path.rglob("*")) == before
    outcome = annocoin("evaluate", results, voc, "--json", figures, "--skip-bad")
    if skippable:
        assert outcome.code == 0, outcome.err
        assert expected in outcome.err
        assert "skipped" in outcome.err
        assert figures.exists()
    else:
        assert outcome.code == 2


def test_an_empty_split_is_one_line(annocoin: Run, voc: Path, results: Path) -> None:
    empty_split(voc, results)
    outcome = annocoin("evaluate", results, voc, "--split", "val")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "no usable image in split 'val'" in outcome.err


@pytest.mark.parametrize("to", ["coco", "voc", "yolo", "labelme", "folder", "results"])
def test_a_conversion_that_fails_leaves_nothing(
    annocoin: Run, voc: Path, tmp_path: Path, to: str
) -> None:
    last = sorted((voc / "JPEGImages").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:500])
    before = sorted(tmp_path.iterdir())
    out = tmp_path / ("out.json" if to == "coco" else "out")
    outcome = annocoin("convert", voc, out, "--to", to)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert sorted(tmp_path.iterdir()) == before
    outcome = annocoin("convert", voc, out, "--to", to, "--skip-bad")
    assert outcome.code == 0, outcome.err
    assert "7 images" in outcome.out
    assert "skipped 1" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate"],
        ["evaluate", "a", "b", "--iou", "many"],
        ["nonsense"],
        ["synth", "out", "--images", "0"],
        ["synth", "out", "--size", "8"],
        ["evaluate", "a", "b", "--what"],
        ["convert", "a", "b"],
        ["convert", "a", "b", "--to", "coco"],
        ["show", "a", "--out", "b.png", "--count", "0"],
    ],
)
def test_wrong_words_are_one_line(annocoin: Run, tmp_path: Path, words: list[str]) -> None:
    outcome = annocoin(*words)
    assert outcome.code == 2
    assert outcome.err.startswith("annocoin: ")
    assert outcome.err.count("\n") == 1


def test_wrong_choices_are_one_line(annocoin: Run, voc: Path, results: Path) -> None:
    for words, expected in (
        (["evaluate", results, voc, "--protocol", "voc"], "expected one of chainercv"),
        (["evaluate", results, voc, "--iou", "50"], "between 0 and 1"),
        (["evaluate", results, voc, "--kind", "pascal"], "expected one of voc"),
        (["evaluate", results, voc, "--split", "none"], "found: train, trainval, val"),
        (["convert", voc, voc.parent / "o", "--to", "tiff"], "expected one of coco"),
        (["evaluate", results, voc, "--json", voc], "that is the input"),
        (["evaluate", results, voc, "--json", results], "that is the input"),
        (["evaluate", results, voc, "--json", voc.parent], "a directory"),
        (["show", voc, "--out", voc.parent / "a.png", "--supervision", "x"], "expected one of"),
    ):
        outcome = annocoin(*words)
        assert outcome.code == 2, words
        assert outcome.err.count("\n") == 1, outcome.err
        assert expected in outcome.err


def test_predictions_can_be_converted(
    annocoin: Run, voc: Path, results: Path, tmp_path: Path
) -> None:
    folder, again = tmp_path / "per-image", tmp_path / "again.json"
    assert annocoin("convert", results, folder, "--to", "results", "--dataset", voc).code == 0
    assert len(list(folder.iterdir())) == 8
    assert annocoin("convert", folder, again, "--to", "results", "--dataset", voc).code == 0
    assert json.loads(again.read_text()) == json.loads(results.read_text())


def test_a_second_run_does_not_touch_the_first(annocoin: Run, tmp_path: Path) -> None:
    assert annocoin("synth", tmp_path / "s", "--images", 1, "--size", 48).code == 0
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")}
    outcome = annocoin("synth", tmp_path / "s", "--images", 2, "--size", 48)
    assert (outcome.code, "exists already" in outcome.err) == (2, True)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")} == before


def test_an_interrupted_command_leaves_nothing(
    annocoin: Run, voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[Path] = []

    def interrupt(root: Path, stem: str, *rest: object) -> None:
        if len(list((root / "JPEGImages").iterdir())) == 3:
            hidden.append(root)
            raise KeyboardInterrupt

    monkeypatch.setattr("annocoin.data.formats.voc.write_maps", interrupt)
    outcome = annocoin("convert", voc, tmp_path / "out", "--to", "voc")
    assert outcome.code == 130
    assert outcome.err == "annocoin: interrupted; nothing half-written is left\n"
    assert hidden
    assert [path.name for path in tmp_path.iterdir()] == ["voc"]


def test_control_c_in_a_real_process(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "annocoin", "synth", str(tmp_path / "s"), "--images", "100000"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with interruptible(words, env=environment) as process:
        while not any(scratch.rglob("*.jpg")):  # at work
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, "interrupted" in err, "Traceback" in err) == (130, True, False)
    assert list(tmp_path.rglob("*")) == [scratch]


def test_the_input_is_never_overwritten(annocoin: Run, voc: Path, results: Path) -> None:
    before = results.read_text()
    outcome = annocoin("convert", results, results, "--to", "results", "--dataset", voc)
    assert (outcome.code, "that is the input" in outcome.err) == (2, True)
    assert results.read_text() == before


def test_class_names_with_brackets_are_printed_as_they_are(annocoin: Run, tmp_path: Path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 4, "width": 4}],
        "categories": [{"id": 1, "name": "[/b]"}, {"id": 2, "name": "[red]"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 1,
                "segmentation": {"size": [4, 4], "counts": [0, 16]},
            }
        ],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    outcome = annocoin("evaluate", tmp_path / "a.json", tmp_path / "a.json")
    assert outcome.code == 0, outcome.err
    assert "[/b]" in outcome.out
    assert "[red]" in outcome.out


def test_when_nothing_is_left_the_reason_is_told(annocoin: Run, voc: Path, results: Path) -> None:
    shutil.rmtree(voc / "JPEGImages")
    (voc / "JPEGImages").mkdir()
    outcome = annocoin("evaluate", results, voc, "--skip-bad")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "skipped 8: " in outcome.err


def test_the_code_of_the_readme_runs(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a preset that takes seconds, on a folder with images and tags."""
    readme = Path(__file__).parent.parent / "README.md"
    code = readme.read_text().split("```python\n")[1].split("```")[0]
    assert '"voc-cpu"' in code
    code = code.replace('"voc-cpu"', '"synthetic", changes=QUICK, jobs=1')
    monkeypatch.chdir(tmp_path)
    write_dataset(load_labelled(scenes), tmp_path / "photos", "folder")
    shutil.copy(next((scenes / "JPEGImages").iterdir()), tmp_path / "new.jpg")
    variables = {"__name__": "__main__", "QUICK": QUICK}
    exec(code, variables)
    masks = json.loads((tmp_path / "masks.json").read_text())["annotations"]
    assert masks
    assert all(0 <= mask["confidence"] <= 1 for mask in masks)
    assert variables["found"].size == image_size(tmp_path / "new.jpg")  # type: ignore[attr-defined]
