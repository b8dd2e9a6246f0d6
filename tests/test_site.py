"""The reading edition: built by one command with no warning, whole, usable on a telephone and offline."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from tests.browser import NEEDS_CHROMIUM, chromium
from tests.conftest import LESSONS, ROOT
from tools.build_site import for_the_site, glossary, links, words


def book(text):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def test_terms_are_collected_with_all_that_lessons_say_of_them():
    first = book("**Words**: *rank*, a process; *local* and *global model*, its own and\nthe mean.\n\n"
                 "**Next:** *x* y")
    second = book("**Words**: *Rank*: a process; *mesh*: ranks in rows.")
    assert words(first) == {"rank": "a process", "local and global model": "its own and the mean"}
    page = glossary({Path("notebooks/00_a.ipynb"): first, Path("notebooks/01_b.ipynb"): second})
    assert "rank\n  a process ([00](notebooks/00_a.ipynb), [01](notebooks/01_b.ipynb))\n" in page
    with pytest.raises(ValueError, match="'mesh without a comma'"):
        words(book("**Words**: *rank*, a process; mesh without a comma."))


def test_links_to_files_that_readers_do_not_have_become_text():
    text = "[a](../README.md#start) [b](../helpers/data.py) [c](https://x.org) [d](#e) ![f](g.png)"
    assert for_the_site(text, [ROOT / "README.md"], ROOT / "docs") == (
        "[a](../index.md#start) b [c](https://x.org) [d](#e) ![f](g.png)")


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#gone">2</a><img src="gone.png">')
    (tmp_path / "b.html").write_text('<p id="here"><a href="https://x.org">3</a>')
    broken, external = links(tmp_path)
    assert [target for _, target in broken] == ["b.html#gone", "gone.png"]
    assert [target for _, target in external] == ["https://x.org"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package, reason="not installed: pip install -r docs/requirements.txt")
    folder = tmp_path_factory.mktemp("build")
    command = [sys.executable, ROOT / "tools" / "build_site.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder / "site"


def parsed(path):
    return BeautifulSoup(path.read_bytes(), "html.parser")


@pytest.fixture(scope="module")
def page(site):
    with chromium() as page:
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        yield page


@pytest.mark.long
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_pictures_and_questions_and_links(site, path):
    cells = nbformat.read(path, as_version=4).cells
    tree = parsed(site / "notebooks" / f"{path.stem}.html").find("article")
    outputs = [output for cell in cells for output in cell.get("outputs", ()) if "metadata" in output]
    alts = [output.metadata["image/png"]["alt"] for output in outputs if "image/png" in output.data]
    calls = re.compile(r"(?m)^(?:display\()?(\w+_explorer)\(")
    moving = [cell for cell in cells for name in calls.findall(cell.source)
              if (ROOT / "docs" / "moving" / f"{name}.svg").exists()]
    assert len(tree.select("figure.steps svg")) == len(moving)
    replaced = [cell.outputs[0].metadata["image/png"]["alt"] for cell in moving
                if "_explorer()" in cell.source and len(cell.outputs) == 1]
    assert [picture["alt"] for picture in tree.select(".cell_output img")] == [
        alt for alt in alts if alt not in replaced] and alts
    code = "\n".join(tag.get_text() for tag in tree.select(".cell_input"))
    hidden = [cell for cell in cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert "launch" in code and not any(cell.source in code for cell in hidden)
    questions = [cell for cell in hidden if cell.source.startswith("predict(")]
    assert len(tree.find_all("strong", string="Predict:")) == len(questions) > 0
    terms = words(nbformat.read(path, as_version=4))
    assert len(tree.select("a[href*='glossary.html#term-']")) == len(terms) > 3


@pytest.mark.long
def test_mentions_of_lessons_lead_there(site):
    tree = parsed(site / "notebooks" / f"{LESSONS[5].stem}.html")
    assert {link["href"] for link in tree.find_all("a", string="lesson 07")} == {f"{LESSONS[7].stem}.html"}
    assert not tree.select("pre a.reference"), "code stays as it is"


@pytest.mark.long
def test_the_first_page_has_a_card_for_each_lesson(site):
    tree = parsed(site / "index.html").find("article")
    cards = tree.select(".sd-card")
    assert [card.find("a")["href"] for card in cards] == [f"notebooks/{path.stem}.html" for path in LESSONS]
    assert all(card.find("img") and "minutes" in card.get_text() for card in cards)
    assert not tree.find("table", string="question"), "cards are there in its place"


SIDEWAYS = """() => [...document.querySelectorAll('body, body *')].filter(
    tag => tag.scrollWidth > tag.clientWidth + 1
        && ['auto', 'scroll'].includes(getComputedStyle(tag).overflowX)
        && !tag.matches('pre, .cell_output:has(img)')
).map(tag => tag.outerHTML.slice(0, 200))"""


@pytest.mark.long
@NEEDS_CHROMIUM
def test_on_a_telephone_only_code_and_figures_scroll_sideways_and_nothing_needs_a_network(site, page):
    page.set_viewport_size({"width": 390, "height": 844})
    for html in sorted(site.rglob("*.html")):
        page.goto(html.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, html.name
        assert not page.evaluate(SIDEWAYS), html.name
    assert all(url.startswith(("file:", "data:")) for url in page.requests)
    assert not page.errors


@pytest.mark.long
@NEEDS_CHROMIUM
def test_search_finds_a_word_from_a_disk(site, page):
    page.goto((site / "search.html").as_uri() + "?q=straggler")
    page.wait_for_selector("#search-results li a", timeout=30_000)
    found = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.href)")
    assert "the rank that all others wait for" in page.locator("#search-results").inner_text(), "an excerpt"
    assert any("08_profiling" in link for link in found) and not any("12_many" in link for link in found)


@pytest.mark.long
@NEEDS_CHROMIUM
def test_a_moving_picture_moves_by_key_and_when_asked(site, page):
    """For a reader who wants no motion, as `chromium` asks: Play makes one step."""
    page.goto((site / "notebooks" / "05_distributed_data_parallel.html").as_uri())
    figure = page.locator("figure.steps").first
    seen = figure.locator(".step:visible desc")
    for button, step in ("Next", 3), ("Back", 2), ("Play", 3):
        figure.get_by_role("button", name=button).press("Enter")
        assert f"step {step} of 6" in seen.text_content() == figure.get_by_role("status").inner_text()
