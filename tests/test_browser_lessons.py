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
        for name in set(names) - {"launch_panel"}:  # which test_browser.py moves
            output = page.locator(f".jp-CodeCell[data-windowed-list-index='{number}'] .jp-OutputArea-output")
            view = output.locator(".explorer").first
            still = move(page, view)
            if still:  # with all shown, say, there is nowhere to move to: again, with the others moved
                again = [one.splitlines()[0] for one in move(page, view, put_back=False)]
                still = [one for one in still if one.splitlines()[0] in again]
            assert not still, f"{name}, cell {number}: these changed nothing: {still}"
    found = in_both_themes(page, path.stem)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    assert not found, "\n".join(found)
    assert not page.errors


def changes(picture, act):
    before = picture.get_attribute("src")
    act()
    return eventually(lambda: picture.get_attribute("src") != before, 3)


def move(page, explorer, put_back=True):
    """Move each control by key and, where the page itself answers the mouse, by mouse.

    Returns the names of those that changed nothing.
    """
    picture = explorer.locator(".widget-html-content img").first
    picture.scroll_into_view_if_needed()
    still = []

    def some(name, acts):
        if not any(changes(picture, act) for act in acts):
            still.append(name)

    def key(control, name):
        def act():
            control.focus()
            page.keyboard.press(name)
        return act

    def click(bar, share):
        def act():
            bar.scroll_into_view_if_needed()
            box = bar.bounding_box()
            page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        return act

    for slider in explorer.locator(".widget-slider").all():
        name = slider.inner_text()
        handle, bar = slider.locator("[role=slider]"), slider.locator(".noUi-target")
        at, whole = handle.bounding_box(), bar.bounding_box()
        share = (at["x"] + at["width"] / 2 - whole["x"]) / whole["width"]
        some(f"{name} by key", [key(handle, name) for name in ("ArrowRight", "ArrowLeft", "End", "Home")])
        some(f"{name} by mouse", [click(bar, share) for share in (0.9, 0.1, 0.5)])
        page.wait_for_timeout(500)  # while the handle glides, a slider does not hear the mouse
        if put_back:  # or others may have nothing to change
            changes(picture, click(bar, share))
    for box in explorer.locator("input[type=checkbox]").all():
        some(f"{box.locator('..').inner_text()} by key", [key(box, "Space")])
        some(f"{box.locator('..').inner_text()} by mouse", [box.click])
    for group in explorer.locator(".widget-toggle-buttons").all():
        buttons = group.locator("button").all()
        some(f"{group.inner_text()} by key", [key(button, "Enter") for button in buttons])
        some(f"{group.inner_text()} by mouse", [button.click for button in buttons])
    for menu in explorer.locator("select").all():  # the list that a mouse opens is the system's
        keys = [key(menu, name) for name in ("ArrowDown", "ArrowUp")]
        some(f"{menu.locator('..').inner_text()} by key", keys)
    for text in explorer.locator("input[type=text]").all():
        some("a text", [lambda text=text: text.fill("3"), lambda text=text: text.fill("0.7")])
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
