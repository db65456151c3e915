"""The report in Chromium, from disk, without network: what a person does with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from annocoin.report import page as report_page
from annocoin.report.comparison import write_comparison
from annocoin.report.page import TestSet, write_report
from report.worlds import HOSTILE, write_run

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
IMAGES = 60

if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("no chromium; apt-get install chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same run as one page, as a page with files beside it, and compared with itself."""
    folder = tmp_path_factory.mktemp("reports")
    truth = write_run(folder / "run", IMAGES)
    test = TestSet(truth, {image_id: truth.truth(image_id) for image_id in truth})
    pages = {"one": write_report(folder / "run", truth=truth, test=test)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "INLINE_IMAGES", 3)
        pages["beside"] = write_report(folder / "run", truth=truth, out=folder / "many <i>.html")
    runs = [folder / "run", folder / "run"]
    pages["comparison"] = write_comparison(runs, folder / "comparison.html")
    return pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any, reports: dict[str, Path]) -> Iterator[Any]:
    """Opens a page; every error, dialog and request that leaves the disk fails the test."""
    problems: list[str] = []
    requested: list[str] = []
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(60_000)

    def visited(name: str) -> Any:
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        page.on("request", lambda r: requested.append(r.url))
        page.goto(reports[name].as_uri())
        return page

    yield visited
    context.close()
    assert problems == []
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []


def shown(page: Any) -> list[str]:
    """The ids of the images in the grid."""
    texts: list[str] = page.locator("#grid .tile .caption b").all_inner_texts()
    return texts


def every_picture_loads(page: Any) -> bool:
    """Scroll through the grid; whether all its pictures have pixels."""
    page.wait_for_function(
        """() => { const tiles = [...document.querySelectorAll('#grid img')];
        tiles.at(-1).scrollIntoView();
        for (const image of tiles) image.loading = 'eager';
        return tiles.length >= 48 && tiles.every(i => i.complete && i.naturalWidth > 0); }"""
    )
    return True


@pytest.mark.parametrize("name", ["one", "beside"])
def test_pictures_and_masks_appear(visit: Any, name: str) -> None:
    page = visit(name)
    page.wait_for_selector("#grid .tile .layer-masks path", state="attached")
    assert every_picture_loads(page)
    page.evaluate("document.getElementById('sentinel').scrollIntoView()")
    page.wait_for_function(f"() => document.querySelectorAll('#grid .tile').length === {IMAGES}")
    outline = page.locator("#grid .tile >> nth=0").locator(".layer-masks path").first
    assert outline.get_attribute("d").startswith("M")


def test_filters_and_sorting(visit: Any) -> None:
    page = visit("one")
    assert page.locator("#count").inner_text() == f"{IMAGES} of {IMAGES} images"
    page.select_option("#class", "3")
    assert page.locator("#count").inner_text() == f"30 of {IMAGES} images"
    assert shown(page)[:2] == ["image <b>1", "image <b>3"]
    page.select_option("#class", "0")
    page.fill("#low", "0.95")
    assert shown(page) == [f"image <b>{n}" for n in range(0, IMAGES, 10)], "confidence 1 - n/10"
    page.click("button[type=reset]")
    page.wait_for_function(
        f"() => document.getElementById('count').textContent.startsWith('{IMAGES} of')"
    )
    page.select_option("#sort", "least")
    assert shown(page)[0] == "image <b>9"
    page.select_option("#sort", "failures")
    page.fill("#iou-high", "0.5")
    assert page.locator("#count").inner_text() == f"0 of {IMAGES} images", "all labels are right"
    page.click("button[type=reset]")
    page.select_option("#set", "1")
    assert page.locator("#measure").inner_text() == "Score"


def test_slider_over_rounds(visit: Any) -> None:
    page = visit("one")
    assert page.locator("#round-name").inner_text() == "final"
    strips = page.locator("#round-images article >> nth=0").locator(".strip")
    assert strips.count() == 2, "the first round and the last"
    last = strips.nth(1).locator(".panel.consensus path").nth(1).get_attribute("d")
    page.focus("#round")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#round-name").inner_text() == "round 1"
    assert strips.count() == 1
    assert strips.nth(0).locator(".panel.consensus path").nth(1).get_attribute("d") != last
    assert strips.nth(0).locator(".panel:not(.prediction)").count() == 2, "K samples"


def test_keys_layers_and_zoom(visit: Any) -> None:
    page = visit("one")
    page.focus("#grid .tile >> nth=0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    title = page.locator("#viewer-title")
    assert title.inner_text() == "image <b>1.png"
    page.keyboard.press("ArrowRight")
    assert title.inner_text() == "image <b>2.png"
    drawing = page.locator("#stage svg")
    assert drawing.get_attribute("viewBox") == "0 0 64 48"
    page.keyboard.press("+")
    assert float(drawing.get_attribute("viewBox").split()[2]) == pytest.approx(64 / 1.5)
    page.keyboard.press("0")
    assert drawing.get_attribute("viewBox") == "0 0 64 48"
    for layer, key in (("masks", "m"), ("seeds", "s"), ("edges", "e"), ("boxes", "b")):
        group = drawing.locator(f".layer-{layer}")
        before = group.is_visible()
        assert before == (layer == "masks")
        page.keyboard.press(key)
        assert group.is_visible() != before
        assert page.locator(f"#viewer-layers [data-layer={layer}]").is_checked() != before
    assert page.locator("#viewer-instances tbody tr").count() == 2
    page.keyboard.press("Escape")
    assert not page.locator("#viewer").is_visible()
    assert page.evaluate("document.activeElement.dataset.index") == "2"


def test_hostile_names_are_text(visit: Any) -> None:
    page = visit("one")
    assert HOSTILE[0] in page.locator("#class").inner_text()
    assert page.locator("#grid b b, #grid script, img[src=x]").count() == 0
    assert page.title() == "run · annocoin"
    assert visit("comparison").locator("#comparison .panel").count() == 2 * 24


def test_themes_and_a_narrow_screen(visit: Any) -> None:
    page = visit("one")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.set_viewport_size({"width": 390, "height": 800})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('img, svg[role=img]')]
        .filter(node => !node.alt && !node.getAttribute('aria-label')).length"""
    )
    assert unnamed == 0
