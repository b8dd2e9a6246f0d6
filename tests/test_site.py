"""The reading edition: one can bet and play in it without a kernel or a network; each part has an address."""

import html
import json
import re
import runpy
import subprocess
import sys
from collections import Counter
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup

from helpers.exercises.quiz import asked
from tests.browser import NEEDS_CHROMIUM, axe_findings, chromium
from tests.conftest import LESSONS, ROOT

WIDTHS = [360, 390, 735, 737, 1007, 1009, 1024, *range(1280, 1501, 10), 1920]
GALLERY = ROOT / "notebooks" / "gallery.ipynb"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("myst_nb", reason="not installed: pip install -r docs/requirements.txt")
    folder = tmp_path_factory.mktemp("build") / "site"
    subprocess.run([sys.executable, "-m", "sphinx", "-Wq", "-c", "docs", ".", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture
def page():
    with chromium() as page:
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        yield page
        assert all(url.startswith(("file:", "data:", "blob:")) for url in page.requests), "from a network"


def parsed(path):
    return BeautifulSoup(path.read_bytes(), "html.parser")


def test_each_bet_becomes_a_question_and_verdicts():
    """Without Sphinx: what its configuration makes of the lessons' cells. A question says nothing of the answer."""
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    keys, ids = [], []
    for path in LESSONS:
        stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
        cells = conf["prepared"](json.loads(path.read_text(encoding="utf-8")))["cells"]
        for before, cell in zip(stored, cells, strict=True):
            shown = "".join(text for output in cell.get("outputs", ()) for text in conf["htmls_of"](output))
            ids += [f"{path.stem}#{one}" for one in re.findall(r'class="[\w ]*place" id="([\w-]+)"', shown)]
            if "".join(cell["source"]).startswith("predict("):
                quiz = asked()[re.search(r'data-key="(\w+)"', shown)[1]]
                keys.append(quiz.key)
                assert shown.count("data-option=") == len(quiz.options)
                assert not any(reason in shown for reason in quiz.options.values())
            elif "".join(cell["source"]).startswith("bet("):
                quiz = asked()[re.search(r'data-key="(\w+)"', shown)[1]]
                first, *results, last = before["outputs"]
                assert "".join(first["data"]["text/markdown"]) == "You have not bet yet."
                assert html.unescape(conf["htmls_of"](last)[0]) == html.unescape(quiz.verdict(None))
                assert len(results) == len(cell["outputs"][1:-1])
                verdicts = json.loads(BeautifulSoup(shown, "html.parser").script.string)
                assert verdicts == {option: quiz.verdict(option) for option in quiz.options}
    assert sorted(keys) == sorted(asked()), "each question is asked once"
    assert len(set(ids)) == len(ids) > len(keys)


@pytest.mark.long
def test_a_lesson_has_its_pictures_folded_answers_and_words(site):
    words = parsed(site / "docs" / "glossary.html")
    for path in LESSONS:
        page = parsed(site / "notebooks" / f"{path.stem}.html")
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        folded = [cell for cell in cells if "hide-output" in cell.metadata.get("tags", ())]
        assert page.select(".cell_output img") and not page.select("img[alt$='.png']"), "a picture without words"
        assert len(page.select("details.hide > .cell_output")) == len(folded) > 0
        assert "made_for" not in page.text, "the first cell is hidden"
        assert not page.select("a[href*='.ipynb']"), "Sphinx does not look at links in outputs"
        assert len(words.find_all("a", string=path.name[:2])) > 3
        exercises = [cell.source for cell in cells if re.fullmatch(r"ex\.\w+", cell.source)]
        assert len(page.select("[id^=exercise-]")) == len(exercises)
        assert len(page.select("[id^=bet-]")) == sum(cell.source.startswith("predict(") for cell in cells)


@pytest.mark.long
def test_links_lead_somewhere_and_each_section_has_an_address(site):
    pages = {path: parsed(path) for path in site.rglob("*.html")}
    ids = {path: Counter(tag["id"] for tag in page.select("[id]")) for path, page in pages.items()}
    for path, page in pages.items():
        assert set(ids[path].values()) == {1}, f"{path.name}: {ids[path].most_common(1)}"
        for link in page.select("a[href], area[href]"):
            address = urlsplit(link["href"])
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            assert target.exists(), f"{path.name}: {link}"
            if address.fragment and target in ids:
                assert ids[target][unquote(address.fragment)], f"{path.name}: {link}"
        for section in page.select("article section"):
            assert not re.fullmatch(r"id\d+", section["id"]), "an address that others change"
            assert section.find(re.compile("h[1-6]")).select_one(f"a.headerlink[href='#{section['id']}']")


@pytest.mark.long
@NEEDS_CHROMIUM
def test_pages_fit_each_window(site, page):
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path.name, width)
            cut = page.evaluate("""[...document.querySelectorAll('.cell_output:has(.stage, .bet)')].filter(
                output => output.scrollWidth > output.clientWidth).map(output => output.innerText)""")
            assert not cut, (path.name, width, cut)
    assert not page.errors


@pytest.mark.long
@NEEDS_CHROMIUM
@pytest.mark.parametrize("start, key", [("index.html", "counter_of_ranks"),
                                        ("notebooks/00_start_here.html", "hello_lines")])
def test_a_bet_by_keyboard_and_again_after_a_reload(site, page, start, key):
    quiz = asked()[key]
    wrong = list(quiz.options)[1]
    address = f"{(site / start).as_uri()}#bet-{key}"
    page.goto(address)
    question, verdict = page.locator(f"#bet-{key}"), page.locator(f".verdict[data-key={key}]")
    question.get_by_role("button", name=wrong).focus()
    page.keyboard.press("Enter")
    assert question.locator("[aria-pressed=true]").inner_text().endswith(wrong)
    assert wrong in question.get_by_role("status").inner_text() and not verdict.is_visible()
    where = question.get_by_role("link", name="below")
    for _ in range(len(quiz.options)):
        page.keyboard.press("Tab")
        if where.evaluate("link => link === document.activeElement"):
            break
    page.keyboard.press("Enter")
    assert page.url.endswith(f"#answer-{key}") and not verdict.is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Predict first; then show the output"
    page.keyboard.press("Enter")
    assert verdict.inner_text().startswith(f"✘ Your bet was: {wrong}.")
    assert page.locator(f".your-bet[data-key={key}]").inner_text() == f"Your bet: {wrong}"

    page.goto("about:blank")
    page.goto(address)
    assert question.locator("[aria-pressed=true]").inner_text().endswith(wrong)
    question.get_by_role("button", name=quiz.answer).press("Space")
    page.locator(f"#answer-{key} > summary").click()
    assert verdict.inner_text().startswith("✔ Your bet holds.")


@pytest.mark.long
@NEEDS_CHROMIUM
def test_all_bets_have_their_verdicts_also_where_nothing_is_kept(site, page):
    page.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('none here'); }})")
    for path in LESSONS:
        page.goto((site / "notebooks" / f"{path.stem}.html").as_uri())
        for question in page.locator(".bet").all():
            quiz = asked()[question.get_attribute("data-key")]
            fold, verdict = page.locator(f"#answer-{quiz.key}"), page.locator(f".verdict[data-key={quiz.key}]")
            assert not verdict.is_visible()
            assert fold.locator("> summary").inner_text() == "Predict first; then show the output"
            fold.evaluate("fold => fold.open = true")
            assert "It is:" not in verdict.inner_text(), "who has not bet opens the answer"
            said = question.locator("button").evaluate_all("""(buttons, key) => buttons.map((button) => {
                button.click();
                return document.querySelector(`.verdict[data-key=${key}]`).innerText[0];
            })""", quiz.key)
            assert said == ["✔" if option == quiz.answer else "✘" for _, option in quiz.shuffled()]


@pytest.mark.long
@NEEDS_CHROMIUM
def test_every_explorer_steps(site, page):
    for path in [*LESSONS, GALLERY]:
        page.goto((site / "notebooks" / f"{path.stem}.html").as_uri())
        for stage in page.locator(".stage:has(.moves:not(.single))").all():
            assert stage.locator(".title").evaluate("title => document.fonts.ready.then(() => title.innerText)")
            stage.get_by_role("button", name="Reset", exact=True).press("Enter")
            moment = stage.locator(".time")
            before = int(moment.input_value())
            way = "Step" if before < int(moment.get_attribute("max")) else "Back"
            stage.get_by_role("button", name=way, exact=True).press("Enter")
            assert abs(int(moment.input_value()) - before) == 1, (path.name, stage.inner_text())
    assert not page.errors


@pytest.mark.long
@NEEDS_CHROMIUM
def test_the_first_page_opens_with_an_explorer_that_moves(site, page):
    page.goto((site / "index.html").as_uri())
    moment = page.locator(".plays .time")
    assert moment.input_value() == "0", "who wants less motion starts it"
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    page.wait_for_function("document.querySelector('.plays .time').value > 1")
    assert page.locator("article p").first.inner_text().startswith("You can train a model on one device")
    assert page.locator(".plays").bounding_box()["y"] < 400
    assert page.locator(".bet").count() == 1
    assert page.locator("pre:has-text('python3 -m venv') ~ .copybtn").count() == 2, "commands are copied"


@pytest.mark.long
@NEEDS_CHROMIUM
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(site, page, theme):
    page.emulate_media(color_scheme=theme)
    for name in "index", "notebooks/00_start_here", "notebooks/07_mixed_precision":
        page.goto((site / f"{name}.html").as_uri())
        for button in page.locator(".bet li:first-child button").all():
            button.click()
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        assert not axe_findings(page), name


@pytest.mark.long
@NEEDS_CHROMIUM
def test_a_search_from_a_disk_finds_sections_and_shows_their_words(site, page):
    page.goto(f"{(site / 'search.html').as_uri()}?q=straggler")
    hits = page.locator("#search-results li")
    hits.filter(has=page.locator("a[href*='08_profiling.html#']")).first.wait_for(timeout=30_000)
    page.get_by_text("Search finished").wait_for()
    assert len({hit.inner_text() for hit in hits.all()}) == hits.count() > 1
    assert all("#" in hit.locator("a").get_attribute("href") for hit in hits.all())
    assert "straggler" in hits.first.inner_text() and not page.errors
    assert "They say" not in page.evaluate("JSON.stringify(SECTIONS)"), "the instructors' page tells the answers"
