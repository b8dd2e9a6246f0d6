"""Every explorer as a notebook stores it, in a browser: whole on a telephone and a laptop, in both themes."""

import pytest

from tests.browser import EXPLORERS, NEEDS_CHROMIUM, as_page, axe_findings, chromium
from tests.test_widgets import explorer

pytestmark = [NEEDS_CHROMIUM, pytest.mark.long]

# Words that leave their box or the picture, or stand on other words, while nothing moves.
MISPLACED = """() => {
    const svg = document.querySelector('.stage svg'), [, , width, height] = svg.getAttribute('viewBox').split(' ');
    const toScene = svg.getScreenCTM().inverse(), found = [], seen = [];
    for (const text of svg.querySelectorAll('text')) {
        const box = text.getBoundingClientRect(), group = text.closest('g.shape');
        if (!box.width || (group && getComputedStyle(group).display === 'none')) continue;
        const from = new DOMPoint(box.left, box.top).matrixTransform(toScene);
        const to = new DOMPoint(box.right, box.bottom).matrixTransform(toScene);
        const words = text.textContent, rect = group?.querySelector('rect')?.getBoundingClientRect();
        if (from.x < -1 || from.y < -1 || to.x > +width + 1 || to.y > +height + 1) found.push(`outside: ${words}`);
        if (rect && box.width > rect.width + 2) found.push(`wider than its box: ${words}`);
        if (getComputedStyle(group ?? text).opacity < 0.1) continue;
        for (const [other, x, y, x2, y2] of seen) {
            const wide = Math.min(to.x, x2) - Math.max(from.x, x), high = Math.min(to.y, y2) - Math.max(from.y, y);
            if (wide > 3 && high > 5) found.push(`on each other: ${words} | ${other}`);
        }
        seen.push([words, from.x, from.y, to.x, to.y]);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def page():
    with chromium() as page:
        yield page


def stored(name):
    """What a notebook stores of an explorer, as a page."""
    html = explorer(name)._repr_mimebundle_()["text/html"]
    return as_page(name, html)


def open_stored(page, name, width, theme="light"):
    page.set_viewport_size({"width": width, "height": 768})
    page.emulate_media(color_scheme=theme)
    page.set_content(stored(name))
    page.locator(".stage svg .shape").first.wait_for(state="attached")


def each_view(page):
    """Go through the first picture, each preset, and each value of each control that is stored; yield its name."""
    yield "at first"
    for button in page.locator(".stage .ask button").all():
        button.click()
        yield button.inner_text()
    page.get_by_role("button", name="Reset", exact=True).click()
    for slider in page.locator(".stage .controls input[type=range]:enabled").all():
        for key in "Home", "End":
            slider.press(key)
            yield f"{slider.locator('..').inner_text()} {key}"
        page.get_by_role("button", name="Reset", exact=True).click()


@pytest.mark.parametrize("name", EXPLORERS)
def test_no_word_leaves_its_place(page, name):
    open_stored(page, name, 1366)
    found = []
    for view in each_view(page):
        time = page.locator(".stage .time")
        last = int(time.get_attribute("max"))
        for moment in sorted({0, last // 3, 2 * last // 3, last}):
            if last:
                time.fill(str(moment))
            found += [f"{view}, moment {moment}: {one}" for one in page.evaluate(MISPLACED)]
    assert not found, "\n".join(found[:30])
    assert not page.errors


@pytest.mark.parametrize("width, theme", [(390, "dark"), (1366, "light")])
@pytest.mark.parametrize("name", EXPLORERS)
def test_it_fits_and_axe_is_silent(page, name, width, theme):
    open_stored(page, name, width, theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture = page.locator(".stage svg").bounding_box()
    if width == 1366:
        assert picture["y"] + picture["height"] <= 768 and picture["width"] >= 500
    else:
        assert picture["width"] >= 340 and picture["y"] + picture["height"] <= 768, "question and picture on one screen"
    assert not axe_findings(page)
