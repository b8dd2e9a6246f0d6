"""Sphinx's settings for the reading edition: README, lessons and docs as a static site. Nothing is executed.

    pip install -r docs/requirements.txt
    sphinx-build -W -c docs . build/site

In it one can bet and play without a kernel. A section, a bet, an exercise and an explorer each have an address.
"""

import html
import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]

from helpers.exercises.feedback import as_html  # noqa: E402
from helpers.exercises.quiz import asked  # noqa: E402

project = "Parallel training with PyTorch, hands on"
copyright = "the course's authors; code MIT, text and figures CC BY 4.0"

extensions = ["myst_nb", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "data", "helpers", "tests", "tools"]  # or Sphinx would look through them
nitpicky = True
myst_heading_anchors = 4
nb_execution_mode = "off"  # what is stored is what is shown
nb_merge_streams = True
nb_render_error_lexer = "text"  # a RankError is no traceback of one process
nb_code_prompt_show, nb_code_prompt_hide = "Show the {type}", "Hide the {type}"
PREDICT_FIRST = "Predict first; then show the output"
copybutton_selector = "div.cell_input pre, div.highlight-none pre"

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_copy_source = False
html_use_index = False  # the glossary is one
html_show_search_summary = False  # search.js has better ones, also from a disk
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
#: On the first page, below its first paragraph. Two parts of lessons stand in it.
TO_TRY = """
Play with it: four processes, called ranks, add up their numbers, and each of them talks only to its neighbours.

{explorer}

In this course you bet before you run. Try it:

{bet}

<a href="{page}#bet-{key}">This bet</a> is one of {number} in the lessons of this course.
"""
TRY_EXPLORER = "05_distributed_data_parallel.ipynb", "ring"
TRY_BET = "00_start_here.ipynb", "counter_of_ranks"


def add_what_only_the_site_needs(app, page, source):
    """Change a page's text, `source[0]`, before Sphinx parses it."""
    if page == "README":
        title, what_it_is, rest = source[0].split("\n\n", 2)
        source[0] = "\n\n".join([title, what_it_is, to_try(), rest, CONTENTS])
    elif page == "docs/glossary":
        heading, *entries = source[0].split("\n- ")
        entries = sorted([*entries, *words_of_lessons()], key=str.lower)
        source[0] = "\n- ".join([heading, *entries])
    elif page.startswith("notebooks/"):
        source[0] = json.dumps(prepared(json.loads(source[0])))


def prepared(book):
    """A notebook with what myst-nb does not know: hidden cells, alternative texts, bets and addresses."""
    addresses = set()
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            prepare(cell, addresses)
    return book


def prepare(cell, addresses):
    """Change a cell of code in place; `addresses` are those that its page has so far."""
    metadata, code = cell["metadata"], "".join(cell["source"])
    shown = metadata.setdefault("mystnb", {})
    if metadata.get("jupyter", {}).get("source_hidden"):
        metadata["tags"] = [*metadata.get("tags", []), "remove-input"]
    if key := found(r'predict\("(\w+)"\)', code):
        cell["outputs"] = [output_of(question(key))]
    elif key := found(r'bet\("(\w+)"\)', code):
        shown["code_prompt_show"] = PREDICT_FIRST
        results = cell["outputs"][1:-1]  # without "You have not bet yet." and the answer
        cell["outputs"] = [output_of(your_bet(key)), *results, output_of(verdict(key))]
    address = address_of(cell, code)
    if address and address not in addresses:
        cell["outputs"].insert(0, output_of(f'<div class="place" id="{address}">{link_to(address)}</div>'))
        addresses.add(address)
    for output in cell["outputs"]:
        picture = output.get("metadata", {}).get("image/png", {})
        if "alt" in picture:
            shown["image"] = {"alt": picture["alt"]}
        for text in htmls_of(output):
            text = re.sub(r'(href="\w+)\.ipynb', r"\1.html", text)  # myst does the texts
            output["data"]["text/html"] = text.replace("run this cell to", "open this lesson in JupyterLab to")


def found(pattern, code):
    """What the group of a pattern matches at the beginning of a cell's code; None if it does not match."""
    match = re.match(pattern, code)
    return match and match[1]


def output_of(text):
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": text}}


def address_of(cell, code):
    """The name by which a link finds an exercise or an explorer; None for other cells."""
    if exercise := found(r"ex\.(\w+)$", code):
        return f"exercise-{exercise}"
    explorer = re.search(r"(\w+)_(?:explorer|viewer)\(", code)
    if explorer and any('class="stage-stored"' in text for output in cell["outputs"] for text in htmls_of(output)):
        return f"explorer-{explorer[1]}"
    return None


def link_to(address):
    """A link that a reader can copy."""
    what = f"Link to this {address.partition('-')[0]}"
    return f'<a class="headerlink" href="#{address}" title="{what}" aria-label="{what}">¶</a>'


def question(key):
    """A question with its options, of which course.js makes buttons."""
    quiz = asked()[key]
    options = "".join(f'<li data-option="{html.escape(option)}">{letter}) {as_html(option)}</li>'
                      for letter, option in quiz.shuffled())
    return (f'<div class="bet place" id="bet-{key}" data-key="{key}">{link_to(f"bet-{key}")}'
            f'{quiz.asked_as_html()}<ul>{options}</ul><p class="where" role="status"></p></div>')


def your_bet(key):
    """Where course.js says what a reader has bet."""
    return f'<p class="your-bet" data-key="{key}"></p>'


def verdict(key):
    """The answer to a question, folded; course.js puts the verdict on a reader's bet in its place."""
    quiz = asked()[key]
    verdicts = json.dumps({option: quiz.verdict(option) for option in quiz.options}).replace("</", "<\\/")
    return (f'<div class="verdict" data-key="{key}">{quiz.verdict(None)}</div>'
            f'<script type="application/json" data-verdicts="{key}">{verdicts}</script>')


def to_try():
    """An explorer and a bet from the lessons, for the first page."""
    lesson, name = TRY_EXPLORER
    explorer = next(text for cell in cells_of(lesson) if f"{name}_explorer(" in "".join(cell["source"])
                    for output in cell["outputs"] for text in htmls_of(output))
    lesson, key = TRY_BET
    cells = cells_of(lesson)
    asks = next(place for place, cell in enumerate(cells) if f'predict("{key}")' in "".join(cell["source"]))
    before, answers = cells[asks - 1], cells[asks + 1]
    printed = "".join("".join(output.get("text", "")) for output in answers["outputs"])
    summary = (f'<summary><p class="collapsed admonition-title">{PREDICT_FIRST}</p>'
               '<p class="expanded admonition-title">Hide the output</p></summary>')
    output = f'<div class="cell_output">{your_bet(key)}<pre>{html.escape(printed)}</pre>{verdict(key)}</div>'
    fold = (f'<div class="cell container"><details class="admonition hide below-input">{summary}{output}'
            "</details></div>")
    bet = "\n\n".join([code_block(before), raw(question(key)), code_block(answers), raw(fold)])
    explorer = raw(f'<div class="cell_output plays">{explorer}</div>')
    page = f"notebooks/{Path(lesson).stem}.html"
    return TO_TRY.format(explorer=explorer, bet=bet, page=page, key=key, number=len(asked()))


def cells_of(lesson):
    book = json.loads((ROOT / "notebooks" / lesson).read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def htmls_of(output):
    """The HTML that an output holds, as a list of one text, or none."""
    return ["".join(text) for kind, text in output.get("data", {}).items() if kind == "text/html"]


def raw(text):
    return f"````{{raw}} html\n{text}\n````"


def code_block(cell):
    code = "".join(line for line in cell["source"] if not line.startswith("bet("))
    return f"```python\n{code}\n```"


def words_of_lessons():
    """The glossary's entries from the lessons' recaps, which say `**Words**: *term*, meaning; *term*, meaning.`"""
    entries = []
    for path in ROOT.glob("notebooks/[0-9]*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            _, _, words = "".join(cell["source"]).partition("**Words**:")
            paragraph = " ".join(words.split("\n\n")[0].split())
            for terms, meaning in re.findall(r"((?:\*[^*]+\*(?: and |, )?)+)[,:] ([^;]+)", paragraph):
                lesson = f"[{path.name[:2]}](../notebooks/{path.name})"
                entries.append(f"**{terms.replace('*', '')}**: {meaning.rstrip('.')} ({lesson})")
    return entries


def read_all(app, env, added, changed, removed):
    """No page is as it was: they also take from questions, and from other pages."""
    return env.found_docs


def name_sections_alike(app):
    """A second section of the same name on a page is `name-1`, not `id1`, which would change with others."""
    app.env.settings["auto_id_prefix"] = "%"


def search_in_sections(app, page, template, context, doctree):
    if page == "search":
        app.add_js_file("sections.js")
        app.add_js_file("search.js")


def sections(doctree):
    """[[id, title, text], …] of a page's sections, for the search; without outputs, which may answer a bet."""
    from docutils import nodes

    rows = []
    for section in doctree.findall(nodes.section):
        texts = []
        for part in section.children[1:]:
            if "cell" in part.get("classes", ()):
                texts += [code.astext() for code in part.children if "cell_input" in code["classes"]]
            elif not isinstance(part, (nodes.section, nodes.raw)):
                texts.append(part.astext())
        rows.append([section["ids"][0], section[0].astext(), " ".join(" ".join(texts).split())])
    return rows


def finish(app, error):
    """Write the sections' texts, and copy README's page to where browsers and servers look for the first page."""
    if error or app.builder.name != "html":
        return
    pages = app.env.found_docs - {"docs/instructors"}  # which tells the answers to the bets
    texts = {page: sections(app.env.get_doctree(page)) for page in sorted(pages)}
    words = f"const SECTIONS = {json.dumps(texts, ensure_ascii=False)};\n"
    (app.outdir / "_static" / "sections.js").write_text(words, encoding="utf-8")
    shutil.copy(app.outdir / "README.html", app.outdir / "index.html")


def setup(app):
    app.connect("builder-inited", name_sections_alike)
    app.connect("env-get-outdated", read_all)
    app.connect("source-read", add_what_only_the_site_needs)
    app.connect("html-page-context", search_in_sections)
    app.connect("build-finished", finish)
