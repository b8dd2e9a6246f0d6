"""The reading edition: built without a warning, with bets folded; it fits a telephone, and needs no network."""

import subprocess
import sys

import nbformat
import pytest
from bs4 import BeautifulSoup

from tests.browser import NEEDS_CHROMIUM, chromium
from tests.conftest import LESSONS, ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("myst_nb", reason="not installed: pip install -r docs/requirements.txt")
    folder = tmp_path_factory.mktemp("build") / "site"
    subprocess.run([sys.executable, "-m", "sphinx", "-Wq", "-c", "docs", ".", folder], cwd=ROOT, check=True)
    return folder


def test_a_lesson_has_its_pictures_folded_answers_and_words(site):
    words = BeautifulSoup((site / "docs" / "glossary.html").read_bytes(), "html.parser")
    for path in LESSONS:
        page = BeautifulSoup((site / "notebooks" / f"{path.stem}.html").read_bytes(), "html.parser")
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        folded = [cell for cell in cells if "hide-output" in cell.metadata.get("tags", ())]
        assert page.select(".cell_output img") and not page.select("img[alt$='.png']"), "a picture without words"
        assert len(page.select("details.hide > .cell_output")) == len(folded) > 0
        assert "made_for" not in page.text, "the first cell is hidden"
        assert not page.select("a[href*='.ipynb']"), "Sphinx does not look at links in outputs"
        assert len(words.find_all("a", string=path.name[:2])) > 3


@NEEDS_CHROMIUM
def test_pages_fit_the_window_and_search_works_from_a_disk(site):
    with chromium() as page:
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        for width in 390, 1366:
            page.set_viewport_size({"width": width, "height": 800})
            for html in sorted(site.rglob("*.html")):
                page.goto(html.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, html.name
        assert not page.errors and all(url.startswith(("file:", "data:")) for url in requests)
        page.goto(f"{(site / 'search.html').as_uri()}?q=straggler")
        page.locator("#search-results a[href*='08_profiling']").first.wait_for(timeout=30_000)
