"""Make the skeleton of a lesson that passes its tests as it stands: tools/skeleton, with another name.

    python tools/new_lesson.py checkpoints

It becomes the last lesson: a notebook with the headings of every lesson and cells that work, a worker script,
an exercise, the tests of these three, a row in README.md. Nothing is overwritten; lesson 00,
which shows a table of all lessons, is executed anew. Its part of docs/instructors.md is yours to write.
"""

import argparse
import re

import nbformat
from execute import README, ROOT, execute_and_count
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SKELETON = ROOT / "tools" / "skeleton"


def notebook(text):
    """A notebook of Markdown: a ```python block is a code cell, and a heading begins a new cell of text."""
    cells = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)\n```$", text, flags=re.DOTALL | re.MULTILINE)):
        if number % 2:
            cells.append(new_code_cell(part))
        else:
            texts = map(str.strip, re.split(r"^(?=## |\*\*When)", part, flags=re.MULTILINE))
            cells += [new_markdown_cell(one) for one in texts if one]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    return new_notebook(cells=cells)


def main():
    parser = argparse.ArgumentParser(description="Make the skeleton of a lesson.")
    parser.add_argument("name", help="small letters and underscores, such as checkpoints")
    name = parser.parse_args().name
    readme = README.read_text(encoding="utf-8")
    number = f"{len(list(ROOT.glob('notebooks/[0-9][0-9]_*.ipynb'))):02}"
    files = {"lesson.md": f"notebooks/{number}_{name}.ipynb",
             "worker.py": f"notebooks/lessons/{name}/{name}.py",
             "exercises.py": f"notebooks/lessons/{name}/exercises/__init__.py",
             "exercise.py": f"notebooks/lessons/{name}/exercises/my_{name}.py",
             "questions.py": f"notebooks/lessons/{name}/questions.py",
             "test_lesson.py": f"tests/test_{name}.py",
             "test_exercises.py": f"tests/exercises/test_{name}.py"}
    if not re.fullmatch("[a-z]+(_[a-z]+)*", name):
        parser.error(f"{name!r}: small letters, with an underscore between words, for a module's name")
    if there := [path for path in files.values() if (ROOT / path).exists()]:
        parser.error(f"{', '.join(there)} is there already")

    words = {"new_lesson": name, "NewLesson": name.title().replace("_", ""), "NUMBER": number,
             "New lesson": name.replace("_", " ").capitalize()}
    for template, path in files.items():
        text = (SKELETON / template).read_text(encoding="utf-8")
        text = re.sub("|".join(words), lambda found: words[found[0]], text)
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        if template == "lesson.md":
            nbformat.write(notebook(text), ROOT / path)
        else:
            (ROOT / path).write_text(text, encoding="utf-8")
    lesson = ROOT / files["lesson.md"]
    last_row = list(re.finditer(r"^\| \[\d\d\]\(.*\n", readme, re.MULTILINE))[-1].end()
    row = (f"| [{number}](notebooks/{lesson.name}) | What does a lesson ask? | 0 | 0 | ? GiB | real "
           "| say what the reader will do |\n")
    README.write_text(readme[:last_row] + row + readme[last_row:], encoding="utf-8")
    gib = execute_and_count(lesson, fresh=True)  # which writes the minutes
    README.write_text(README.read_text(encoding="utf-8").replace("? GiB", f"{gib:.1f} GiB"), encoding="utf-8")
    print(*files.values(), sep="\n")


if __name__ == "__main__":
    main()
