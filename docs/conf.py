"""Sphinx's settings for the reading edition. tools/build_site.py collects its pages and runs Sphinx."""

import json
import re
from itertools import groupby
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

project = "Parallel training with PyTorch, hands on"
author = "the course's authors"
copyright = "the course's authors; code MIT, text and figures CC BY 4.0"
language = "en"

extensions = ["myst_nb", "sphinx_design", "sphinx_copybutton", "sphinxext.opengraph"]
myst_enable_extensions = ["colon_fence"]
copybutton_selector = "div.cell_input pre, div.highlight-default pre, div.highlight-sh pre"
ogp_site_url = ""  # the course has no public address: the pages have descriptions, and no cards
ogp_social_cards = {"enable": False}
exclude_patterns = []
nb_execution_mode = "off"  # what is stored is what is shown
nb_merge_streams = True
nb_render_error_lexer = "text"  # a RankError is no traceback of one process
nb_mime_priority_overrides = [("html", kind, rank) for rank, kind in enumerate(
    ["text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain"])]
nb_code_prompt_show = "Predict first; then show the {type}"  # of a cell that answers a question
myst_heading_anchors = 3

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files, html_js_files = ["course.css"], ["course.js", "steps.js"]
html_copy_source = False
html_use_index = False  # the glossary is one
html_show_sphinx = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

LESSONS = re.compile(r"\b([Ll]essons?\s\d\d(?:(?:,| and| to| or)*\s\d\d)*)\b")
AS_IT_IS = nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.raw, addnodes.pending_xref


def link_lessons(app, doctree):
    """Where a text says "lesson 06", make that a link; in "lessons 09 and 10", each number; not in code and titles."""
    here = app.env.current_document.docname
    pages = {name[10:12]: name for name in app.env.found_docs if re.match(r"notebooks/\d\d_", name)}

    def linked(words):
        page = pages.get(words[-2:])
        if page in (None, here):
            return nodes.Text(words)
        return addnodes.pending_xref("", nodes.inline("", words), refdomain="std", reftype="doc", reftarget=f"/{page}",
                                     refexplicit=True, refwarn=True, refdoc=here)

    for element in list(doctree.findall(nodes.TextElement)):
        if any(isinstance(one, AS_IT_IS) for one in with_ancestors(element)):
            continue
        children = []
        for is_text, group in groupby(element.children, lambda child: isinstance(child, nodes.Text)):
            if not is_text:
                children += group
                continue
            for number, part in enumerate(LESSONS.split("".join(group))):  # a line may end after "lesson"
                if number % 2 == 0:
                    children.append(nodes.Text(part))
                elif len(re.findall(r"\d\d", part)) == 1:
                    children.append(linked(part))
                else:
                    children += [linked(one) if one.isdigit() else nodes.Text(one) for one in re.split(r"(\d\d)", part)]
        element.clear()
        element.extend(children)


def with_ancestors(node):
    while node is not None:
        yield node
        node = node.parent


def write_texts(app, error):
    """The pages' texts in one script: from a disk, browsers refuse to fetch pages, from which search makes excerpts."""
    if error:
        return
    pages = {}
    for name in app.env.found_docs:
        doctree = app.env.get_doctree(name)
        for node in list(doctree.findall(nodes.Element)):  # of an output in several types, the plain text
            if isinstance(node, nodes.raw) or node.get("mime_type", "text/plain") != "text/plain":
                node.parent.remove(node)
        pages[app.builder.get_target_uri(name)] = doctree.astext()
    script = Path(app.outdir, "_static", "texts.js")
    script.write_text(f"const TEXTS = {json.dumps(pages, ensure_ascii=False)};\n{FETCH}", encoding="utf-8")


FETCH = """window.fetch = async url => {
  const box = document.createElement("div");
  box.textContent = TEXTS[decodeURIComponent(Object.keys(TEXTS).find(page => String(url).endsWith(page)) ?? "")] ?? "";
  return {ok: true, text: async () => `<div role="main">${box.innerHTML}</div>`};
};"""


def only_on_the_search_page(app, pagename, templatename, context, doctree):
    if pagename == "search":
        app.add_js_file("texts.js")


def setup(app):
    app.connect("doctree-read", link_lessons)
    app.connect("build-finished", write_texts)
    app.connect("html-page-context", only_on_the_search_page)
