"""The report as a file: what it holds, what it says of bad input, and what it leaves alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from annocoin import files, masks
from annocoin.conditional.samples import Samples
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.report import page, plots
from annocoin.report.by_round import choose_images
from annocoin.report.charts import Chart, Series, averaged, ticks
from annocoin.report.comparison import write_comparison
from annocoin.report.figures import write_figures
from annocoin.report.gallery import draw_edges, outline
from annocoin.report.page import MARKER, TestSet, report_training, write_report
from annocoin.report.plots import reliability_chart
from annocoin.report.run_data import read_run, sample_diversity
from annocoin.types import Annotation, Instances
from report.worlds import LEFT, SIZE, write_run

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run, and the truth of its images; tests must not change it."""
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, write_run(path)


def content_of(path: Path) -> dict[str, Any]:
    """The data that the page's script reads."""
    found = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_the_page_has_everything_of_a_run(run: tuple[Path, Any], tmp_path: Path) -> None:
    path, truth = run
    nothing = {i: Instances(size=SIZE, masks=[], labels=[]) for i in truth}
    perfect = {i: truth.truth(i) for i in truth}
    write_report(path, test=TestSet(truth, nothing), out=tmp_path / "a.html")
    file = write_report(path, truth=truth, test=TestSet(truth, perfect), out=tmp_path / "b.html")
    text, data = file.read_text(), content_of(file)
    assert text.count(">100.0</b>") == 4, "mAP at four thresholds"
    for words in ("tag mAP is 30 %", "annocoin train &lt;x&gt;", "3.00 GB", "prediction.losses",
                  "AP at IoU 0.5 by class", "Precision and recall", "Quality of the pseudo labels",
                  "Reliability", "DIV(Pr_c, Pr_c)", "entropy of the prediction",
                  "1 round of K = "):  # fmt: skip
        assert words in text, words
    labels, predictions = data["sets"]
    assert (labels["measure"], predictions["measure"]) == ("confidence", "score")
    first = labels["rows"][0]
    assert (first["id"], first["w"], first["h"]) == ("image <b>0", 64, 48)
    assert (first["c"], first["v"], first["u"]) == ([1, 2], [1.0, 0.5], [1.0, 1.0])
    assert labels["details"][0]["m"][0] == outline(masks.encode(LEFT[None])[0])
    assert labels["details"][0]["s"] == [[10.0, 20.0, 1]]
    assert labels["layers"] == ["boxes", "edges", "masks", "regions", "seeds", "truth"]
    assert all(row["p"].startswith("data:image/jpeg") for row in labels["rows"])
    assert [round["name"] for round in data["rounds"][0]["rounds"]] == ["round 1", "final"]
    assert data["rounds"][0]["rounds"][0]["k"] == [[0, 1], [0]]
    assert json.loads((path / "evaluation.json").read_text())["iou"]["0.5"]["mean"] == 1.0
    assert ">100.0</b>" in write_report(path, out=tmp_path / "c.html").read_text(), "is kept"


def test_names_cannot_become_code(run: tuple[Path, Any], tmp_path: Path) -> None:
    text = write_report(run[0], truth=run[1], out=tmp_path / "a.html").read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "image <b>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_without_truth_and_images(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2, measured=False)
    (tmp_path / "run" / "dataset.json").unlink()
    data = content_of(write_report(tmp_path / "run"))
    assert not data["sets"][0]["truth"]
    assert [row["p"] for row in data["sets"][0]["rows"]] == [None, None]
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Reliability" not in text
    assert "not recorded" in text


def test_many_images_are_files_beside_the_page(
    run: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "INLINE_IMAGES", 3)
    out, folder = tmp_path / "a page.html", tmp_path / "a page-files"
    for _ in range(2):  # the second time it is replaced
        data = content_of(write_report(run[0], truth=run[1], out=out))
        rows, chunks = data["sets"][0]["rows"], data["sets"][0]["chunks"]
        assert rows[0]["p"] == "a%20page-files/000000.jpg"
        assert data["sets"][0]["details"] == []
        assert (folder / Path(chunks[0]).name).read_text().startswith("annocoinOutlines(")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a page-files", "a page.html"]
    monkeypatch.undo()
    write_report(run[0], out=out)
    assert not folder.exists()
    folder.mkdir()
    monkeypatch.setattr(page, "INLINE_IMAGES", 3)
    with pytest.raises(InputError, match="is not of a report"):
        write_report(run[0], out=out)
    assert not (folder / MARKER).exists()


def test_a_failure_does_not_lose_the_run(
    run: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no\nmemory")

    lines: list[str] = []
    monkeypatch.setattr(page, "_write_report", fail)
    monkeypatch.setattr(page, "record_dataset", lambda *_: None)
    report_training(run[0], None, None, lines.append, "cpu")  # type: ignore[arg-type]
    (line,) = lines
    assert line.startswith("no report (no memory); the run is complete")


def test_the_command(annocoin: Command, run: tuple[Path, Any], tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    outcome = annocoin("report", run[0], "--out", out, "--show", "image <b>4", "--limit", 5)
    assert outcome.code == 0, outcome.err
    assert str(out) in outcome.out
    assert [image["id"] for image in content_of(out)["rounds"]] == ["image <b>4"]
    assert len(content_of(out)["sets"][0]["rows"]) == 5
    assert "1 more images have pseudo labels" in out.read_text()
    other = tmp_path / "other.html"
    assert annocoin("report", "--compare", run[0], run[0], "--out", other).code == 0
    assert len(content_of(other)["comparison"]["images"]) == 6


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--show", "x"], "no pseudo labels of such an image"),
        (["--out", "report.txt"], "ends in .html"),
        (["--limit", "0"], "--limit"),
        (["--compare"], "two or more"),
        (["--compare", "--figures", "f"], "--compare uses what the runs have"),
        (["RUN"], "2 runs; give one"),
        (["--truth", "missing"], "missing"),
    ],
)
def test_bad_options(
    annocoin: Command, run: tuple[Path, Any], words: list[str], expected: str
) -> None:
    words = [str(run[0]) if word == "RUN" else word for word in words]
    outcome = annocoin("report", run[0], *words)
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1


def test_unfinished_runs_are_refused(tmp_path: Path) -> None:
    for call in (write_report, read_run):
        with pytest.raises(InputError, match="not a finished run"):
            call(tmp_path)


def test_figures_for_a_paper(run: tuple[Path, Any], tmp_path: Path) -> None:
    written = write_figures(run[0], tmp_path / "figures", truth=run[1])
    names = {path.name for path in written}
    assert {"reliability.pdf", "labels.png", "rounds.pdf", "disc.pdf"} <= names
    assert len([name for name in names if name.startswith("class-")]) == 6, "png and pdf of three"
    for path in written:
        start = b"%PDF" if path.suffix == ".pdf" else b"\x89PNG"
        assert path.read_bytes().startswith(start)
    with pytest.raises(InputError, match="a file"):
        write_figures(run[0], written[0])


def test_the_objective_is_drawn_after_each_training(run: tuple[Path, Any]) -> None:
    chart, *_ = plots.objective_charts(read_run(run[0]))
    assert chart.categories == ["1, Pr_p", "1, Pr_c"]
    drawn = {series.name: list(series.y) for series in chart.series}
    assert drawn == {
        "DISC": [1.25, 0.75],
        "DIV(Pr_p, Pr_c)": [2.0, 1.5],
        "DIV(Pr_c, Pr_c)": [1.0, 1.0],
        "DIV(Pr_p, Pr_p)": [0.5, 0.5],
    }


def test_comparisons_name_what_differs(tmp_path: Path) -> None:
    for name, rounds in (("a", 1), ("b", 2)):
        write_run(tmp_path / name, 2, stem="image")
        result = files.read_json(tmp_path / name / "run.json")
        result["config"]["rounds"] = rounds
        files.write_json(tmp_path / name / "run.json", result)
    out = write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "c.html")
    text = out.read_text()
    assert "<code>rounds</code></th><td>1</td><td>2</td>" in text
    assert "<code>gamma</code>" not in text
    assert "Pseudo labels, mAP at IoU 0.5" in text
    with pytest.raises(InputError, match="two or more"):
        write_comparison([tmp_path / "a"], out)


@pytest.mark.parametrize("seed", range(5))
def test_an_outline_covers_its_mask(seed: int) -> None:
    """Drawn again with the even-odd rule, an outline has the same pixels, but for its tolerance."""
    draw = np.random.default_rng(seed)
    dense = np.zeros((40, 50), np.uint8)
    for _ in range(4):
        x, y = draw.integers(0, 30, 2)
        dense[y : y + draw.integers(3, 12), x : x + draw.integers(3, 18)] ^= 1
    path = outline(masks.encode(dense[None])[0])
    inside = np.zeros_like(dense)
    for part in path.split("M")[1:]:
        first, steps = part.rstrip("z").split("l")
        corners = np.cumsum([[*map(int, first.split())],
                             *np.reshape([*map(int, steps.split())], (-1, 2))], axis=0)  # fmt: skip
        inside ^= np.array([[crossings(corners, x + 0.5, y + 0.5) % 2 for x in range(50)]
                            for y in range(40)], np.uint8)  # fmt: skip
    assert (inside != dense).sum() <= 0.06 * dense.sum() + 4


def crossings(corners: np.ndarray, x: float, y: float) -> int:
    """How many sides of a polygon a ray to the right crosses."""
    count = 0
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            count += 1
    return count


def test_outlines_of_tiny_and_empty_masks() -> None:
    dense = np.zeros((2, 8, 8), np.uint8)
    dense[1, 3, 4] = 1
    empty, pixel = masks.encode(dense)
    assert outline(empty) == ""
    assert outline(pixel).startswith("M")


def test_edges_are_drawn_between_superpixels() -> None:
    import io

    from PIL import Image

    regions = RegionSet.of(
        np.repeat([[0] * 4 + [1] * 4], 6, axis=0), [[1, 0]], edges=np.ones((6, 8))
    )
    picture = np.asarray(Image.open(io.BytesIO(draw_edges(regions, 8))))
    assert picture.shape == (6, 8, 2)
    assert (picture[:, 3, 1] >= 0xE0).all(), "strong"
    assert (np.delete(picture[:, :, 1], 3, axis=1) == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_diversity_is_that_of_the_samples(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = np.arange(12).reshape(3, 4)
    membership = torch.rand(6, 12, generator=generator) < 0.4
    membership[:, 0] = True
    labels = torch.randint(0, 3, (4, 6), generator=generator)
    empty = torch.zeros(4, 0, dtype=torch.int64)
    samples = Samples(RegionSet.of(ids, membership), labels, torch.zeros(4, 6), empty, ())
    pseudo = PseudoLabels.from_samples(samples, Annotation((3, 4)))
    assert sample_diversity(pseudo) == pytest.approx(samples.diversity)


def test_reliability_by_hand() -> None:
    chart = reliability_chart([0.05, 0.95, 0.97], [0.2, 0.4, 1.0])
    mean, right, _ = chart.series
    assert list(mean.x) == pytest.approx([0.05, 0.96])
    assert list(mean.y) == pytest.approx([0.2, 0.7])
    assert list(right.y) == [0.0, 0.5]


def test_charts_have_gaps_texts_and_escaped_names() -> None:
    series = Series("<b>", [0, 1, 2, 3], [1.0, math.nan, 3.0, 4.0])
    drawn = str(Chart("c", "t", "x", "y", [series], points=True).svg())
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 3
    assert "<b>" not in drawn
    assert "&lt;b&gt; from 1 to 4" in drawn
    bars = Chart("c", "t", "", "AP", [Series("AP", [0, 1], [0.5, math.nan])], "bars", ["a", "<i>"])
    assert str(bars.svg()).count("<rect") == 1
    assert "no data" in str(bars.svg())


def test_ticks_and_averages() -> None:
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-3, 7) == [-2, 0, 2, 4, 6]
    assert averaged([1, 2, 3, 4, 5], 2) == ([2.0, 4.5], [2.0, 4.5])


def test_images_of_every_class_are_chosen() -> None:
    rows = [
        {"c": [1], "v": [0.9]},
        {"c": [1, 1], "v": [0.3, 0.2]},
        {"c": [2], "v": [0.1]},
        {"c": [], "v": []},
    ]
    assert choose_images(rows, 2) == [1, 2]
    assert choose_images(rows, 9) == [1, 2, 0]
