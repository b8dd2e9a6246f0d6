"""A lesson as a talk of a dozen slides: its own pictures, results and questions, by the ids of its cells.

    pip install -r docs/requirements.txt
    python tools/talk.py 05          to build/talks/05_….html; without a number, all lessons

notebooks/lessons/<lesson>/talk.md says what is on the slides. A heading begins one; then, a paragraph each:

    {all-reduce}              what the cell of this id has put out, as large as fits
    {code: all-reduce}        its code
    {predict: two_make_all}   the lesson's question; the next key shows the answer
    Ask: Are two ranks …      speaker notes: the question of docs/instructors.md that begins so
    Note: …                   speaker notes

and Markdown. The file needs no network. Space turns the pages, S opens the speaker's view, D makes it dark or
light, F fills the screen; with ?print-pdf behind the address the browser prints it.
"""

import argparse
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "instructors.md"


def talk(lesson):
    """The notebook of slides of a lesson's path.

    Raises:
        KeyError: talk.md names a cell or a question that the lesson has not.
        ValueError: no question of docs/instructors.md begins as talk.md says, or more than one does.
    """
    slug = lesson.stem[3:]
    text = (ROOT / "notebooks" / "lessons" / slug / "talk.md").read_text(encoding="utf-8")
    cells = {cell.id: cell for cell in nbformat.read(lesson, as_version=4).cells}
    questions = import_module(f"lessons.{slug}.questions").QUESTIONS
    slides = []
    for slide in re.split(r"^(?=#{1,2} )", text, flags=re.MULTILINE)[1:]:
        title, *parts = slide.strip().split("\n\n")
        slides.append(_cell(title, "slide"))
        notes = [part for part in parts if part.startswith(("Ask: ", "Note: "))]
        # Within a fragment, notes would not be shown: so they stand before all else.
        slides += [_cell(_notes(part, lesson.stem[:2]), "notes") for part in notes]
        for part in parts:
            kind, _, name = part.strip("{}").rpartition(": ")
            if part in notes:
                continue
            if not part.startswith("{"):
                slides.append(_cell(part))
            elif kind == "predict":
                slides += _question(name, *questions[name])
            elif kind == "code":
                slides.append(new_code_cell(cells[name].source, metadata={"slideshow": {"slide_type": "-"}}))
            else:
                slides.append(_result(cells[name]))
    return new_notebook(cells=slides, metadata={"language_info": {"name": "python"}})


def _cell(text, kind="-"):
    return new_markdown_cell(text, metadata={"slideshow": {"slide_type": kind}})


def _notes(part, number):
    if part.startswith("Note: "):
        return part.removeprefix("Note: ")
    guide = GUIDE.read_text(encoding="utf-8")
    section = re.search(rf"^## {number} · .*?(?=^## |\Z)", guide, re.DOTALL | re.MULTILINE)[0]
    begin = re.escape(part.removeprefix("Ask: ").removesuffix(" …"))
    (asked,) = re.findall(rf"^- (\*{begin}.+)", section, re.MULTILINE)
    return re.sub(r" (They say|True):", r"\n\n*\1*:", f"*Ask*: {asked}")


def _question(key, question, options):
    from helpers.exercises.quiz import Quiz

    quiz = Quiz(key, question, options)
    letters = {option: letter for letter, option in quiz.shuffled()}
    listed = "\n".join(f"- **{letter}** {option}" for option, letter in letters.items())
    answer = f"**{letters[quiz.answer]} {quiz.answer}.** {options[quiz.answer]}"
    return [_cell(f"{question}\n\n{listed}"), _cell(answer, "fragment")]


def _result(cell):
    outputs = cell.outputs
    if cell.source.startswith("bet("):  # without the bet, and the verdict on it
        outputs = outputs[1:-1]
    hidden = {"slideshow": {"slide_type": "-"}, "jupyter": {"source_hidden": True}}
    return new_code_cell(outputs=outputs, metadata=hidden)


def exporter():
    """nbconvert's, with docs/slides as its template, and reveal.js from sphinx-revealjs."""
    from nbconvert.exporters import SlidesExporter

    if find_spec("sphinx_revealjs") is None:
        sys.exit("For talks: pip install -r docs/requirements.txt")
    reveal = Path(find_spec("sphinx_revealjs").origin).parent / "_static" / "revealjs"
    made = SlidesExporter(extra_template_basedirs=[str(ROOT / "docs")], template_name="slides",
                          extra_template_paths=[str(reveal / "dist"), str(reveal / "plugin" / "notes")])
    made.display_data_priority = ["image/svg+xml", "image/png", "text/html", "text/markdown", "text/plain"]
    return made


def main():
    parser = argparse.ArgumentParser(description="Make talks, as pages of HTML in build/talks.")
    parser.add_argument("lesson", nargs="?", default="[0-9][0-9]", help="its number, such as 05; none: all")
    lessons = sorted(ROOT.glob(f"notebooks/{parser.parse_args().lesson}_*.ipynb"))
    if not lessons:
        parser.error("there is no lesson of that number")
    made = exporter()
    for lesson in lessons:
        body, _ = made.from_notebook_node(talk(lesson), {"metadata": {"name": lesson.stem}})
        file = ROOT / "build" / "talks" / f"{lesson.stem}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
