"""The command line: what it prints and writes, one line for every error, and a fast start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import typer
from PIL import Image

import annocoin as package
from annocoin.cli import app, options
from end_to_end.quick import QUICK
from pictures import picture, tagged_picture
from processes import interruptible

Run = Callable[..., Any]

MAIN = "from annocoin.cli import main; main()"


@pytest.fixture
def voc(scenes: Path, tmp_path: Path) -> Path:
    """A copy of the scenes that a test may damage."""
    return Path(shutil.copytree(scenes, tmp_path / "voc"))


@pytest.fixture
def results(annocoin: Run, voc: Path, tmp_path: Path) -> Path:
    assert annocoin("convert", voc, tmp_path / "results.json", "--to", "results").code == 0
    return tmp_path / "results.json"


@pytest.mark.parametrize("protocol", ["chainercv", "sds", "bbtp", "coco"])
def test_ground_truth_as_predictions_has_ap_100(
    annocoin: Run, voc: Path, results: Path, tmp_path: Path, protocol: str
) -> None:
    results_file = tmp_path / "f.json"
    outcome = annocoin("evaluate", results, voc, "--protocol", protocol, "--json", results_file)
    assert outcome.code == 0, outcome.err
    assert f"protocol {protocol}, 8 images" in outcome.out
    assert outcome.out.count("100.0") >= 4
    content = json.loads(results_file.read_text())
    assert (content["protocol"], content["images"]) == (protocol, 8)
    assert [v["mean"] for v in content["iou"].values()] == [1.0] * 4
    assert list(content["iou"]) == ["0.25", "0.5", "0.7", "0.75"]


def test_iou_thresholds(annocoin: Run, voc: Path, results: Path, tmp_path: Path) -> None:
    extra = ("--iou", ".5", "--iou", "0.9", "--json", tmp_path / "f.json", "--split", "trainval")
    assert annocoin("evaluate", results, voc, *extra).code == 0
    assert list(json.loads((tmp_path / "f.json").read_text())["iou"]) == ["0.5", "0.9"]


def test_evaluation_after_conversion_of_the_dataset(
    annocoin: Run, voc: Path, tmp_path: Path
) -> None:
    for to, name in (("coco", "d.json"), ("labelme", "d"), ("voc", "v")):
        out = tmp_path / name
        assert annocoin("convert", voc, out, "--to", to, "--split", "train").code == 0
        predictions = tmp_path / f"{to}-results.json"
        assert annocoin("convert", out, predictions, "--to", "results").code == 0
        outcome = annocoin("evaluate", predictions, out, "--protocol", "coco")
        assert outcome.code == 0, outcome.err
        assert "7 images" in outcome.out
        assert "100.0" in outcome.out


def test_synth_show_and_version(annocoin: Run, tmp_path: Path) -> None:
    outcome = annocoin("synth", tmp_path / "s", "--images", 3, "--size", 48, "--seed", 5)
    assert (outcome.code, "3 images" in outcome.out) == (0, True)
    assert len(package.load_evaluation(tmp_path / "s")) == 3
    for supervision in ("image", "box", "point", "mixed"):
        picture = tmp_path / f"{supervision}.png"
        extra = ("--count", 2, "--scale", 2, "--supervision", supervision)
        assert annocoin("show", tmp_path / "s", "--out", picture, *extra).code == 0
        assert Image.open(picture).size == (2 * 102 + 6, 102 + 6)
    assert annocoin("--version").out.startswith("annocoin ")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_command(annocoin: Run, arguments: list[str]) -> None:
    outcome = annocoin(*arguments)
    assert outcome.code == 0
    for command in ("demo", "check", "train", "label", "predict", "export", "report", "evaluate",
                    "benchmark", "convert", "show", "synth", "classifier", "regions",
                    "seeds"):  # fmt: skip
        assert f"  {command}  " in outcome.out
    assert "..." not in outcome.out.split("Commands:")[1]  # no summary is cut


def all_commands(command: Any, name: str = "annocoin") -> Iterator[tuple[str, Any]]:
    yield name, command
    for subname, subcommand in getattr(command, "commands", {}).items():
        yield from all_commands(subcommand, f"{name} {subname}")


def test_every_command_and_option_is_described() -> None:
    commands = dict(all_commands(typer.main.get_command(app)))
    assert {"annocoin train", "annocoin regions export", "annocoin seeds show"} <= commands.keys()
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            assert str(parameter.help).endswith("."), f"{name}: {parameter.name}"


HEAVY = ("torch", "torchvision", "cv2", "numpy", "scipy", "PIL", "annocoin.types")
IN_PROCESS = f"""
import sys
import annocoin.cli
try:
    annocoin.cli.main()
except SystemExit:
    pass
print([name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--help", "Commands:"),
        ("--version", package.__version__),
        ("train --help", "--more-images"),
        ("classifier --help", "--validation-split"),
        ("seeds make --help", "--validation-split"),
        ("train data --out run --sede 1", "--sede"),
        ("trian data --out run", "trian"),
        ("train data --out run --preset voc", "expected one of synthetic"),
        ("label run data --out x --format pdf", "expected one of coco"),
        ("export run --out x --to pdf", "expected one of onnx"),
    ],
)
def test_help_and_mistyped_arguments_import_nothing_heavy(arguments: str, expected: str) -> None:
    command = [sys.executable, "-c", IN_PROCESS, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert expected in done.stdout + done.stderr


def test_public_names_are_imported_on_first_use() -> None:
    code = f"""
import sys, annocoin
assert set(annocoin.__all__) <= set(dir(annocoin))
print([name for name in {HEAVY!r} if name in sys.modules])
for name in annocoin.__all__:
    assert getattr(annocoin, name).__class__
from annocoin import *
assert load_weak is annocoin.load_weak and Instances is annocoin.Instances
assert not hasattr(annocoin, "nonsense")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    lazy = {*package.__all__} - {"InputError", "Problems", "__version__"}
    assert lazy == package._MODULE_OF.keys()


def test_constants_of_options_are_those_of_the_package() -> None:
    from annocoin.benchmark.rows import Benchmark
    from annocoin.data.conversion import Format
    from annocoin.data.dataset import Supervision
    from annocoin.data.loading import DatasetKind
    from annocoin.demo import IMAGES
    from annocoin.engine.distribution import AUTO, PRECISIONS
    from annocoin.engine.methods import METHODS
    from annocoin.engine.presets import PRESETS
    from annocoin.evaluation.evaluator import PROTOCOLS, THRESHOLDS
    from annocoin.prediction.export import ExportFormat
    from annocoin.prediction.predictor import SCORE
    from annocoin.regions.boundaries import DetectorKind
    from annocoin.report.page import MAX_IMAGES
    from annocoin.synthetic.creatures import STYLES

    expected = {
        "SUPERVISION": get_args(Supervision),
        "METHODS": {name: method.supervision[0] for name, method in METHODS.items()},
        "BENCHMARKS": get_args(Benchmark),
        "DATASET_KINDS": get_args(DatasetKind),
        "FORMATS": get_args(Format),
        "EXPORT_FORMATS": get_args(ExportFormat),
        "PROTOCOLS": tuple(PROTOCOLS),
        "PRECISIONS": PRECISIONS,
        "DETECTORS": get_args(DetectorKind),
        "SCENE_STYLES": tuple(STYLES),
        "AUTO_DEVICE": AUTO,
        "SCORE": SCORE,
        "IOU_THRESHOLDS": THRESHOLDS,
        "DEMO_IMAGES": IMAGES,
        "GALLERY_IMAGES": MAX_IMAGES,
    }
    assert {name: getattr(options, name) for name in expected} == expected
    assert list(options.METHODS) == list(METHODS)
    assert list(options.PRESETS) == list(PRESETS)
    assert set(options.GPU_PRESETS) < set(PRESETS)


def test_shells_complete_commands() -> None:
    words = {"_ANNOCOIN_COMPLETE": "complete_bash", "COMP_WORDS": "annocoin ev", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'annocoin'\n" + MAIN]
    done = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == (["evaluate"], 0)


def test_label_with_a_limit_takes_the_first_images(
    annocoin: Run, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = []

    def label(run: Any, dataset: Any, **_: Any) -> Any:
        datasets.append(dataset)
        return package.load_labelled(scenes)[: len(dataset)]

    monkeypatch.setattr(
        "annocoin.trained.TrainedRun", lambda path: SimpleNamespace(supervision="box")
    )
    monkeypatch.setattr("annocoin.api.label", label)
    outcome = annocoin("label", tmp_path, scenes, "--out", tmp_path / "l.json", "--limit", 3)
    assert (outcome.code, outcome.err) == (0, "")
    assert "3 images" in outcome.out
    (dataset,) = datasets
    assert dataset.supervision == "box"
    assert [image.image_id for image in dataset] == [
        image.image_id for image in package.load_weak(scenes, "box")
    ][:3]
    assert annocoin("label", tmp_path, scenes, "--out", "l.json", "--limit", 0).code == 2


def truncate_image(voc: Path, results: Path) -> None:
    path = next((voc / "JPEGImages").iterdir())
    path.write_bytes(path.read_bytes()[:500])


def remove_image(voc: Path, results: Path) -> None:
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
    def change(voc: Path, results: Path) -> None:
        content = json.loads(results.read_text())
        content[0].update(fields)
        results.write_text(json.dumps(content))

    return change


BAD = {
    "truncated image": (truncate_image, "broken image", True),
    "missing image": (remove_image, "no image", True),
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
    damage, expected, skippable = BAD[case]
    damage(voc, results)
    before = sorted(tmp_path.rglob("*"))
    results_file = tmp_path / "f.json"
    outcome = annocoin("evaluate", results, voc, "--json", results_file)
    assert outcome.code == 2
    assert outcome.err.startswith("annocoin: ")
    assert outcome.err.count("\n") == 1
    assert expected in outcome.err
    assert outcome.out == ""
    assert sorted(tmp_path.rglob("*")) == before
    outcome = annocoin("evaluate", results, voc, "--json", results_file, "--skip-bad")
    if skippable:
        assert outcome.code == 0, outcome.err
        assert expected in outcome.err
        assert "skipped" in outcome.err
        assert results_file.exists()
    else:
        assert outcome.code == 2


def test_an_empty_split_is_one_line(annocoin: Run, voc: Path, results: Path) -> None:
    empty_split(voc, results)
    outcome = annocoin("evaluate", results, voc, "--split", "val")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "no usable image in split 'val'" in outcome.err


@pytest.mark.parametrize("to", options.FORMATS)
def test_a_conversion_that_fails_leaves_nothing(
    annocoin: Run, voc: Path, tmp_path: Path, to: str
) -> None:
    last = sorted((voc / "JPEGImages").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:500])
    before = sorted(tmp_path.iterdir())
    out = tmp_path / ("out.json" if to in ("coco", "labelstudio") else "out")
    outcome = annocoin("convert", voc, out, "--to", to)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert sorted(tmp_path.iterdir()) == before
    outcome = annocoin("convert", voc, out, "--to", to, "--skip-bad")
    assert outcome.code == 0, outcome.err
    assert "7 images" in outcome.out
    assert "skipped 1" in outcome.err


@pytest.mark.parametrize(
    "arguments",
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
        ["show", "a", "--out", "b.png", "--scale", "17"],
    ],
)
def test_usage_errors_are_one_line(annocoin: Run, arguments: list[str]) -> None:
    outcome = annocoin(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("annocoin: ")
    assert outcome.err.count("\n") == 1


def test_wrong_choices_are_one_line(annocoin: Run, voc: Path, results: Path) -> None:
    for arguments, expected in (
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
        outcome = annocoin(*arguments)
        assert outcome.code == 2, arguments
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


def test_existing_output_is_not_overwritten(annocoin: Run, tmp_path: Path) -> None:
    assert annocoin("synth", tmp_path / "s", "--images", 1, "--size", 48).code == 0
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")}
    outcome = annocoin("synth", tmp_path / "s", "--images", 2, "--size", 48)
    assert (outcome.code, "exists already" in outcome.err) == (2, True)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")} == before


def test_an_interrupted_command_leaves_nothing(
    annocoin: Run, voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary: list[Path] = []

    def interrupt(root: Path, stem: str, *rest: object) -> None:
        if len(list((root / "JPEGImages").iterdir())) == 3:
            temporary.append(root)
            raise KeyboardInterrupt

    monkeypatch.setattr("annocoin.data.formats.voc._write_maps", interrupt)
    outcome = annocoin("convert", voc, tmp_path / "out", "--to", "voc")
    assert outcome.code == 130
    assert outcome.err == "annocoin: interrupted; nothing half-written is left\n"
    assert temporary
    assert [path.name for path in tmp_path.iterdir()] == ["voc"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [("train", "the same command continues"), ("show", "nothing half-written is left")],
)
def test_an_interruption_says_whether_the_command_resumes(
    annocoin: Run, voc: Path, monkeypatch: pytest.MonkeyPatch, command: str, expected: str
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("annocoin.data.formats.voc.read", interrupt)
    outcome = annocoin(command, voc, "--out", "out.png")
    assert (outcome.code, outcome.err) == (130, f"annocoin: interrupted; {expected}\n")


def test_check_summarises_a_dataset(annocoin: Run, voc: Path) -> None:
    outcome = annocoin("check", voc, "--split", "train")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("7 images: 64 x 64 pixels\nlabels: ")
    assert "--supervision mask --preset synthetic --split train --out RUN" in outcome.out
    assert "in all about " in outcome.out
    truncate_image(voc, voc)
    outcome = annocoin("check", voc)
    assert outcome.code == 1
    assert "7 images" in outcome.out
    assert "error: " in outcome.out
    assert "broken image" in outcome.out
    assert "train stops at 1 error: correct the labels" in outcome.out
    outcome = annocoin("check", voc / "ImageSets")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


def test_check_and_train_report_surplus_cells(annocoin: Run, tmp_path: Path) -> None:
    root = tagged_picture(tmp_path / "d", "a.jpg", "person")
    picture(root / "images" / "b.jpg")
    (root / "labels.csv").write_text("image,class\na.jpg,person\nb.jpg,person,dog\n")
    outcome = annocoin("check", root)
    assert outcome.code == 1
    assert "labels.csv:3: ['dog'] beyond the 2 columns" in outcome.out
    outcome = annocoin("train", root, "--preset", "synthetic", "--out", tmp_path / "run")
    assert (outcome.code, "beyond the 2 columns" in outcome.err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_check_of_coco_without_images(annocoin: Run, voc: Path, tmp_path: Path) -> None:
    assert annocoin("convert", voc, tmp_path / "c.json", "--to", "coco").code == 0
    outcome = annocoin("check", tmp_path / "c.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "--supervision mask" in outcome.out


@pytest.mark.parametrize("supervision", ["image", "tags"])
def test_a_dry_run_does_no_work(annocoin: Run, voc: Path, tmp_path: Path, supervision: str) -> None:
    run = tmp_path / "run"
    command = ("train", voc, "--out", run, "--preset", "synthetic", "--dry-run")
    outcome = annocoin(*command, "--supervision", supervision)
    assert (outcome.code, outcome.err) == (0, "")
    assert "8 images: 64 x 64 pixels\n" in outcome.out
    assert "6 classes, supervision image\n" in outcome.out
    assert "  1 round      " in outcome.out
    assert "in all about " in outcome.out
    assert not run.exists()


def test_overlays_are_named_by_the_stem() -> None:
    from annocoin.cli.runs import _overlay_names

    names = _overlay_names(["sub/x.jpg", "y.jpg", "y.png", "z.tar.jpg"])
    assert list(names.values()) == ["sub/x.png", "y.jpg.png", "y.png.png", "z.tar.png"]


def test_masks_as_polygons(annocoin: Run, voc: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    outcome = annocoin("convert", voc, out, "--to", "coco", "--polygons")
    assert outcome.code == 0, outcome.err
    assert "masks changed: mean IoU with the original 0.9" in outcome.out
    annotations = json.loads(out.read_text())["annotations"]
    assert all(isinstance(a["segmentation"], list) for a in annotations)
    assert len(package.load_evaluation(out)) == 8
    outcome = annocoin("convert", voc, tmp_path / "m1.json", "--to", "voc")
    assert (outcome.code, "voc is a folder" in outcome.err) == (2, True)
    assert not (tmp_path / "m1.json").exists()


def test_control_c_in_a_real_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "annocoin", "synth", str(tmp_path / "s"), "--images", "100000"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with interruptible(command, env=environment) as process:
        while not any(scratch.rglob("*.jpg")):  # it has begun
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


def test_class_names_with_brackets_are_printed_verbatim(annocoin: Run, tmp_path: Path) -> None:
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


def test_without_a_usable_image_the_reason_is_printed(
    annocoin: Run, voc: Path, results: Path
) -> None:
    shutil.rmtree(voc / "JPEGImages")
    (voc / "JPEGImages").mkdir()
    outcome = annocoin("evaluate", results, voc, "--skip-bad")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "skipped 8: " in outcome.err


def test_the_code_of_the_readme_runs(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a preset that takes seconds, on a folder with images and labels.csv."""
    readme = Path(__file__).parent.parent / "README.md"
    code = readme.read_text().split("```python\n")[1].split("```")[0]
    assert '"voc-cpu"' in code
    code = code.replace('"voc-cpu"', '"synthetic", changes=QUICK, jobs=1')
    monkeypatch.chdir(tmp_path)
    package.write_dataset(package.load_labelled(scenes), tmp_path / "photos", "folder")
    shutil.copy(next((scenes / "JPEGImages").iterdir()), tmp_path / "new.jpg")
    variables = {"__name__": "__main__", "QUICK": QUICK}
    exec(code, variables)
    masks = json.loads((tmp_path / "masks.json").read_text())["annotations"]
    assert masks
    assert all(0 <= mask["label_confidence"] <= 1 for mask in masks)
    assert variables["instances"].size == package.read_image(tmp_path / "new.jpg").shape[:2]  # type: ignore[attr-defined]
