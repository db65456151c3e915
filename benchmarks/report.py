"""Time and size of the report of a run with many images, and how fast it opens in Chromium.

    python benchmarks/report.py RUN --images 10000 [--json FILE]

RUN is a finished run with pseudo labels; the records of its images are repeated under other ids
until there are enough of them. Prints the CPU seconds to write the page, its megabytes and those of
the folder beside it, and the seconds from navigation to the load event, to the first pictures with
masks, and from a change of the sorting to the new grid; each the median of five visits.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from annocoin import files
from annocoin.files import read_json, read_record, write_record
from annocoin.report.page import write_report
from annocoin.report.run_data import DATASET, read_run

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
VISITS = 5
FIRST_PICTURES = """() => {
  const tiles = [...document.querySelectorAll('#grid .tile')].slice(0, 4);
  return tiles.length === 4 && tiles.every((tile) => tile.querySelector('.layer-masks'));
}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = enlarge(arguments.run.resolve(), Path(folder) / "run", arguments.images)
        started = time.process_time()
        page = write_report(run)
        figures = {"write CPU seconds": time.process_time() - started}
        figures["page MB"] = page.stat().st_size / 1e6
        beside = page.with_name(f"{page.stem}-files")
        figures["folder MB"] = sum(path.stat().st_size for path in beside.glob("*")) / 1e6
        figures |= visit(page)
    for name, value in figures.items():
        print(f"{name:22s} {value:8.2f}")
    if arguments.json is not None:
        files.write_json(arguments.json, figures, indent=1)


def enlarge(source: Path, run: Path, count: int) -> Path:
    """A run whose images are those of another one, again and again under new ids."""
    shutil.copytree(source, run, ignore=shutil.ignore_patterns("report*", "labelling"))
    data = read_run(run)
    for folder in data.labels.values():
        index = folder.path / folder.index_name
        content = read_record(index)
        content["images"] = _repeated(content["images"], "image_id", count)
        write_record(index, content)
    recorded = read_json(run / DATASET)
    rows = [{"image_id": row[0], "row": row[1:]} for row in recorded["images"]]
    recorded["images"] = [
        [row["image_id"], *row["row"]] for row in _repeated(rows, "image_id", count)
    ]
    files.write_json(run / DATASET, recorded)
    return run


def visit(page: Path) -> dict[str, float]:
    """Seconds of a person's first steps on the page."""
    from playwright.sync_api import sync_playwright

    seconds: dict[str, list[float]] = {"load": [], "first pictures": [], "sort": []}
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(VISITS):
            tab = browser.new_page()
            started = time.perf_counter()
            tab.goto(page.as_uri())
            seconds["load"].append(time.perf_counter() - started)
            tab.wait_for_function(FIRST_PICTURES)
            seconds["first pictures"].append(time.perf_counter() - started)
            started = time.perf_counter()
            tab.select_option("#sort", "least")
            tab.wait_for_function(FIRST_PICTURES)
            seconds["sort"].append(time.perf_counter() - started)
            tab.close()
        browser.close()
    return {f"{name} seconds": median(values) for name, values in seconds.items()}


def _repeated(entries: list[dict[str, Any]], key: str, count: int) -> list[dict[str, Any]]:
    return [
        {**entry, key: f"{number:05d}-{entry[key]}"}
        for number, entry in zip(range(count), itertools.cycle(entries), strict=False)
    ]


if __name__ == "__main__":
    main()
