"""Every lesson in JupyterLab in a browser: run whole, all controls moved by key and mouse, heard by axe-core.

Pictures of the lessons are left in the folder that COURSE_ARTEFACTS names, or else in build/browser.
"""

import os
from pathlib import Path

import nbformat
import pytest

from tests.browser import (
    NEEDS_CHROMIUM,
    SHOWS,
    axe_findings,
    choose_theme,
    chromium,
    jupyterlab,
    open_and_run_all,
    open_notebook,
    raised,
)
from tests.conftest import LESSONS, ROOT, eventually

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]
SITE = ROOT / "build" / "site"
ARTEFACTS = Path(os.environ.get("COURSE_ARTEFACTS") or ROOT / "build" / "browser")
THEMES = "Light", "Dark"
#: A lesson may take so long here, with other tests beside it.
SECONDS = 900


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with jupyterlab(tmp_path_factory.mktemp("lab"), windowingMode="none") as lab:
        yield lab


@pytest.fixture
def page():
    with chromium() as page:
        yield page


def in_both_themes(page, name):
    """What axe finds in a lesson's outputs, by theme; a picture of the whole lesson is left for each."""
    found = []
    for theme in THEMES:
        choose_theme(page, theme)
        found += [f"{theme}: {finding}" for finding in axe_findings(page, ".jp-OutputArea-output")]
        high, seen = page.evaluate("(({scrollHeight, clientHeight}) => [scrollHeight, clientHeight])"
                                   "(document.querySelector('.jp-WindowedPanel-outer'))")
        size = page.viewport_size
        page.set_viewport_size({"width": size["width"], "height": size["height"] + high - seen})
        page.screenshot(path=ARTEFACTS / f"{name}-{theme.lower()}.png")
        page.set_viewport_size(size)
    return found


def test_axe_finds_nothing_in_what_is_stored(page, lab):
    """As one reads a lesson before any cell has run."""
    found = []
    for path in LESSONS:
        open_notebook(page, lab, path.name)
        found += [f"{path.stem}: {finding}" for finding in in_both_themes(page, f"{path.stem}-stored")]
        page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_what_moves_can_be_moved(page, lab, path):
    cells = nbformat.read(path, as_version=4).cells
    raise_by_design = [number for number, cell in enumerate(cells)
                       if any(output.output_type == "error" for output in cell.get("outputs", ()))]
    open_and_run_all(page, lab, path.name, SECONDS)
    for number, error in raised(page):
        assert number in raise_by_design, f"cell {number} fails first:\n{cells[number].source}\n{error}"

    for number, cell in enumerate(cells):
        names = SHOWS.findall(cell.source) if cell.cell_type == "code" else ()
        if set(names) - {"launch_panel"}:  # which test_browser.py moves
            output = page.locator(f".jp-CodeCell[data-windowed-list-index='{number}'] .jp-OutputArea-output")
            still = move(output.locator(".stage").first)
            assert not still, f"{names}, cell {number}: these changed nothing: {still}"
    found = in_both_themes(page, path.stem)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    assert not found, "\n".join(found)
    assert not page.errors


def move(stage):
    """Move each control of an explorer by key; return the names of those that changed neither picture nor words."""
    stage.scroll_into_view_if_needed()
    still = []

    def shows():
        return stage.locator("svg").evaluate("svg => svg.outerHTML") + stage.locator(".said").inner_text()

    def try_keys(name, presses):
        before = shows()
        for control, key in presses:
            control.press(key)
            if eventually(lambda: shows() != before, 3):
                return
        still.append(name)

    for slider in stage.locator("input[type=range]:visible:enabled").all():
        keys = ["ArrowRight", "ArrowLeft", "End", "Home"]
        try_keys(slider.locator("..").inner_text(), [(slider, key) for key in keys])
    for box in stage.locator("input[type=checkbox]:enabled").all():
        try_keys(box.locator("..").inner_text(), [(box, "Space")])
    for choice in stage.locator(".choice:has(button:enabled)").all():
        others = choice.locator("button[aria-pressed=false]").all()  # early, two schedules may look the same
        try_keys(choice.inner_text(), [(other, "Enter") for other in others])
    for text in stage.locator("input[type=text]").all():
        before = shows()
        text.fill("3")
        text.press("Enter")
        if not eventually(lambda: shows() != before, 3):  # noqa: B023 - used at once
            still.append("a text")
    return still


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_on_the_site(page, theme):
    if not SITE.exists():
        pytest.skip("the site has not been built: CONTRIBUTING.md says how")
    page.emulate_media(color_scheme=theme.lower(), reduced_motion="reduce")
    found = []
    for path in sorted(SITE.rglob("*.html")):
        page.goto(path.as_uri())
        found += [f"{path.relative_to(SITE)}: {finding}" for finding in axe_findings(page)]
    assert not found, "\n".join(found)
