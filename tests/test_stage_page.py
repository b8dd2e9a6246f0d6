"""The stage in a browser, on a page without a kernel: it glides, is clicked, dragged and zoomed, fits a telephone."""

import contextlib

import pytest

from helpers.widgets.shapes import Lanes, box, doing
from helpers.widgets.stage import Stage, as_html, buttons, checkbox, field, preset, slider, window
from helpers.widgets.still import as_svg
from tests.browser import NEEDS_CHROMIUM, as_page, axe_findings, chromium

pytestmark = NEEDS_CHROMIUM


def scene(n, kind, on, word, window):
    """A message, a box to click, a box to drag, bars on an axis; four frames."""
    lanes = Lanes(["rank 0"], end=100, x=90, y=150, w=400, zoom=True)
    frames = []
    for step in range(4):
        places = [[100, 60], [200, 60], [300, 60]]
        x, y = places[n - 1]
        shapes = [box("mover", 100 * step, 0, 60, 30, text=f"at {step}", tip=f"it is at {step}", **doing("compute")),
                  box("late", 0, 110, 60, 30, text=f"got {step}", late=True),
                  box("handle", x, y, 60, 30, text=f"n = {n}", drag=("n", places), fill="#d3e4f3"),
                  box("press", 400, 60, 60, 30, text=kind, click={"kind": "second"}, fill="#d3e4f3"),
                  box("tile", *{"x": (400, 0)}.get(word, (460, 0)), 50, 30, text=word, fill="#d3e4f3",
                      drag=("word", [[400, 0], [460, 0]], ["x", "y"])),
                  lanes.bar("bar", 0, 40, 60, text="a long name", **doing("waiting")), *lanes.shapes()]
        if step:
            comes = {"from": {"x": 300}}
            shapes.append(box("message", 100, 110, 60, 30, text="go", passes=True, fill="#bb281a", **comes))
        frames.append({"title": f"step {step}, n {n}", "note": f"{kind} {on} {word}", "shapes": shapes})
    return {"size": [520, 240], "axis": lanes.axis, "pace": 300, "frames": frames}


CONTROLS = {"n": slider("n of them", 1, [1, 2, 3]), "kind": buttons("kind", "first", ["first", "second"]),
            "on": checkbox("switched on"), "word": field("any word", "x"), "window": window()}
PRESETS = {"three": preset("Why three?", n=3), "the end": preset("What has come?", frame=-1, kind="second"),
           "y": preset("What is y?", word="y")}


@pytest.fixture(scope="module")
def html():
    stage = Stage("try_explorer", "Shows a try.", scene, CONTROLS, "What moves?", PRESETS)
    shown = as_html(stage.story, as_svg(stage.story["scenes"]['[0,0,0,"x",null]'], -1), "Shows a try.")
    return as_page("A stage", shown)


@pytest.fixture(scope="module")
def browser():
    """A page that says that it wants less motion; `page.errors` is what it complains of."""
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser, html):
    browser.set_content(html)
    browser.locator(".stage svg .shape").first.wait_for()
    yield browser
    assert not browser.errors


@contextlib.contextmanager
def wanting_motion(page):
    page.emulate_media(reduced_motion="no-preference")
    try:
        yield
    finally:
        page.emulate_media(reduced_motion="reduce")


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def shape(page, name):
    return page.locator(f"[data-name='{name}']")


def says(page):
    return page.locator(".stage .said").inner_text().splitlines()[0]


def left(page, name):
    """How far a shape is from the picture's left edge, in units of the scene."""
    box_, svg = shape(page, name).bounding_box(), page.locator(".stage svg").bounding_box()
    return (box_["x"] - svg["x"]) / svg["width"] * 520


# Presses Step and looks, in the page itself: a test's own look may come when all is over.
STEP = """async () => {
    const shape = (name) => document.querySelector(`[data-name=${name}]`);
    const left = () => shape('mover').getBoundingClientRect().left;
    const before = left();
    [...document.querySelectorAll('.stage button')].find((button) => button.textContent === 'Step').click();
    const began = {message: shape('message') !== null, late: shape('late').textContent, moved: left() - before};
    while (shape('message')) await new Promise(requestAnimationFrame);
    return {...began, later: shape('late').textContent};
}"""


def test_a_shape_glides_and_a_message_is_gone_once_it_has_arrived(page):
    with wanting_motion(page):
        seen = page.evaluate(STEP)
        assert seen["message"] and seen["moved"] < 20, "it begins where it was"
        assert (seen["late"], seen["later"]) == ("got 0", "got 1"), "what the message changes, it changes on arrival"
        page.wait_for_timeout(300)
        assert abs(left(page, "mover") - 100) < 2


def test_less_motion_is_respected(page):
    press(page, "Step")
    assert abs(left(page, "mover") - 100) < 2 and shape(page, "message").count() == 0
    assert shape(page, "late").text_content() == "got 1"


def test_play_goes_to_the_end_and_reset_during_play_is_no_race(page):
    press(page, "▶ Play")
    page.wait_for_function("document.querySelector('.stage .title').textContent.startsWith('step 3')", timeout=10_000)
    page.get_by_role("button", name="▶ Play").wait_for()
    press(page, "▶ Play")
    press(page, "Reset")
    page.wait_for_timeout(700)
    assert says(page) == "step 0, n 1"


def test_presets_ask_and_are_marked_until_another_control_is_moved(page):
    press(page, "the end")
    assert says(page) == "step 3, n 1" and page.get_by_text("What has come?").is_visible()
    pressed = page.locator(".stage .ask [aria-pressed=true]")
    assert pressed.inner_text() == "the end"
    press(page, "three")
    assert says(page) == "step 0, n 3" and pressed.inner_text() == "three"
    press(page, "Reset")
    assert pressed.count() == 0 and page.get_by_text("What moves?").is_visible() and says(page) == "step 0, n 1"


def test_a_shape_is_clicked_by_mouse_and_by_key(page):
    shape(page, "press").click()
    assert shape(page, "press").text_content() == "second"
    press(page, "Reset")
    assert shape(page, "press").text_content() == "first"
    shape(page, "press").press("Enter")
    assert shape(page, "press").text_content() == "second"


def test_a_shape_is_dragged_by_mouse_and_by_key(page):
    start = shape(page, "handle").bounding_box()
    page.mouse.move(start["x"] + 5, start["y"] + 5)
    page.mouse.down()
    page.mouse.move(start["x"] + 230, start["y"] + 5, steps=5)
    page.mouse.up()
    assert says(page) == "step 0, n 3" or says(page) == "step 0, n 2"
    shape(page, "handle").press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert says(page) == "step 0, n 1" and shape(page, "handle").get_attribute("aria-valuetext") == "1"


def test_a_shape_is_dragged_to_a_place_that_stands_for_a_text(page):
    field, tile = page.get_by_label("any word"), shape(page, "tile")
    start, svg = tile.bounding_box(), page.locator(".stage svg").bounding_box()
    assert tile.get_attribute("aria-valuetext") == "1 of 2"
    page.mouse.move(start["x"] + 5, start["y"] + 5)
    page.mouse.down()
    page.mouse.move(start["x"] + 5 + 50 * svg["width"] / 520, start["y"] + 5, steps=3)
    page.mouse.up()
    assert field.input_value() == "y" and abs(left(page, "tile") - 460) < 2
    tile.press("ArrowRight")
    assert field.input_value() == "y" and tile.get_attribute("aria-valuetext") == "2 of 2", "there is no third place"
    page.keyboard.press("ArrowLeft")
    assert field.input_value() == "x"
    page.wait_for_timeout(100)
    assert page.evaluate("document.activeElement.dataset.name") == "tile", "it keeps the focus"


def test_the_axis_is_zoomed_and_moved_and_words_appear_where_there_is_room(page):
    bar, svg = shape(page, "bar"), page.locator(".stage svg")
    before = bar.bounding_box()
    zoom = page.get_by_label("zoom")
    zoom.fill("1")
    assert bar.bounding_box()["width"] > 1.8 * before["width"]
    place = svg.bounding_box()
    page.mouse.move(place["x"] + 0.5 * place["width"], place["y"] + 0.8 * place["height"])
    page.mouse.down()
    page.mouse.move(place["x"] + 0.4 * place["width"], place["y"] + 0.8 * place["height"], steps=3)
    page.mouse.up()
    ticks = page.locator(".stage .axis text").all_text_contents()
    assert "0" not in ticks and len(ticks) >= 4
    zoom.fill("0")
    assert page.locator(".stage .axis text").first.text_content() == "0"


def test_tips_are_told_by_mouse_and_keyboard(page):
    tip = page.locator(".stage .tip")
    shape(page, "mover").hover()
    assert tip.inner_text() == "it is at 0"
    page.mouse.move(1, 1)
    shape(page, "press").focus()
    page.keyboard.press("ArrowLeft")
    assert tip.is_visible() and tip.inner_text() == "it is at 0"


def test_without_a_kernel_a_control_says_what_it_needs(page):
    page.get_by_label("any word").fill("else")
    page.keyboard.press("Enter")
    hint = page.get_by_text("This needs Python: run this cell to change it.")
    hint.wait_for()
    assert page.locator(".stage figure").get_attribute("aria-busy") == "false", "nobody has been asked"
    press(page, "Reset")
    assert not hint.is_visible()
    page.get_by_label("switched on").check()
    assert page.get_by_text("first True x").is_visible(), "each value of a small control is stored"


@pytest.mark.parametrize("width, theme", [(390, "dark"), (1366, "light")])
def test_it_fits_and_axe_is_silent(page, width, theme):
    size = page.viewport_size
    page.set_viewport_size({"width": width, "height": 768})
    page.emulate_media(color_scheme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture, moves = page.locator(".stage svg").bounding_box(), page.locator(".stage .moves").bounding_box()
    if width == 390:
        assert picture["width"] > 350 and moves["y"] > picture["y"], "question, picture, keys: one below the other"
    else:
        assert picture["x"] > moves["x"] + moves["width"] and picture["y"] + picture["height"] < 768
    assert not axe_findings(page)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(size)
