"""Sphinx's settings for the reading edition: README, lessons and docs as a static site. Nothing is executed.

    pip install -r docs/requirements.txt
    sphinx-build -W -c docs . build/site
"""

import json
import re
import shutil
from pathlib import Path

project = "Parallel training with PyTorch, hands on"
copyright = "the course's authors; code MIT, text and figures CC BY 4.0"

extensions = ["myst_nb", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "data", "helpers", "tests", "tools"]  # or Sphinx would look through them
myst_heading_anchors = 3
nb_execution_mode = "off"  # what is stored is what is shown
nb_merge_streams = True
nb_render_error_lexer = "text"  # a RankError is no traceback of one process
nb_code_prompt_show = "Predict first; then show the {type}"  # of a cell that answers a question
copybutton_selector = "div.cell_input pre, div.highlight-default pre, div.highlight-sh pre"

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_copy_source = False
html_use_index = False  # the glossary is one
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

CONTENTS = """
```{toctree}
:hidden:
:glob:
:caption: Lessons

notebooks/[0-9]*
```

```{toctree}
:hidden:
:glob:
:caption: Around them

notebooks/gallery
docs/*
*
```
"""


def add_what_only_the_site_needs(app, page, source):
    """Change a page's text, `source[0]`, before Sphinx parses it."""
    if page == "README":
        source[0] += CONTENTS
    elif page == "docs/glossary":
        heading, *entries = source[0].split("\n- ")
        entries = sorted([*entries, *words_of_lessons()], key=str.lower)
        source[0] = "\n- ".join([heading, *entries])
    elif page.startswith("notebooks/"):
        book = json.loads(source[0])
        for cell in book["cells"]:
            prepare(cell)
        source[0] = re.sub(r'(href=\\"\w+)\.ipynb', r"\1.html", json.dumps(book))  # in outputs; myst does the texts


def prepare(cell):
    """Change a notebook's cell in place: myst-nb does not know hidden cells, alternative texts and bets."""
    metadata = cell["metadata"]
    if metadata.get("jupyter", {}).get("source_hidden"):
        metadata["tags"] = [*metadata.get("tags", []), "remove-input"]
    if "".join(cell["source"]).startswith("bet("):
        del cell["outputs"][:1]  # "You have not bet yet.": nobody bets on the site
    for output in cell.get("outputs", []):
        picture = output.get("metadata", {}).get("image/png", {})
        if "alt" in picture:
            metadata["mystnb"] = {"image": {"alt": picture["alt"]}}


def words_of_lessons():
    """The glossary's entries from the lessons' recaps, which say `**Words**: *term*, meaning; *term*, meaning.`"""
    entries = []
    for path in Path(__file__).parents[1].glob("notebooks/[0-9]*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            _, _, words = "".join(cell["source"]).partition("**Words**:")
            paragraph = " ".join(words.split("\n\n")[0].split())
            for terms, meaning in re.findall(r"((?:\*[^*]+\*(?: and |, )?)+)[,:] ([^;]+)", paragraph):
                lesson = f"[{path.name[:2]}](../notebooks/{path.name})"
                entries.append(f"**{terms.replace('*', '')}**: {meaning.rstrip('.')} ({lesson})")
    return entries


def open_with_the_first_page(app, error):
    """Copy the README's page to where browsers and servers look for the first page."""
    if not error and app.builder.name == "html":
        shutil.copy(app.outdir / "README.html", app.outdir / "index.html")


def setup(app):
    app.connect("source-read", add_what_only_the_site_needs)
    app.connect("build-finished", open_with_the_first_page)
