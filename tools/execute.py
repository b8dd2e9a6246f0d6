"""Execute lessons in fresh kernels, and store their outputs so that an unchanged cell stays unchanged.

    python tools/execute.py                      all lessons
    python tools/execute.py notebooks/00*.ipynb  these
    python tools/execute.py --fresh …            keep no old output
    python tools/execute.py --experiments        only the cells that show what was recorded on GPUs
    python tools/execute.py --normalise …        execute nothing; take out what differs for no reason

Measured times differ at every execution, and so do pictures of them. A cell whose outputs differ in nothing else
(after the patterns of tests/sanitize.cfg, which nbval uses too) keeps those that it has: say --fresh after a change
to a picture, or to a cell tagged `nbval-ignore-output`.

A lesson's minutes are written into its row in README.md. Where it has more exercises than before, or fewer, lesson 00
is executed as well, whose table counts them. Each time, a lesson's first cell and the
links beside its title are written as pyproject.toml has the version and the address of the course.
"""

import argparse
import configparser
import contextlib
import copy
import functools
import os
import re
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from helpers.widgets.stage import PLAYER, player

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
README = ROOT / "README.md"
GALLERY = "gallery.ipynb"
FIRST_CELL = "set-up"  #: the id of each lesson's first code cell
LINKS = re.compile(r"\n\n<a href[^\n]*>Open in [^\n]*")  #: beside a lesson's title

#: A cell that shows an experiment (helpers/experiments.py): `from lessons.….recorded import name`, and `name.show()`.
EXPERIMENT = re.compile(r"^from lessons\.\w+\.recorded import (\w+)\n+\1\.show\(\)$")
#: A lesson's row in README.md: its beginning, the minutes to read, and those for exercises.
ROW = r"^(\| \[\d\d\]\(notebooks/{}\) \| .*?) \| \d+ \| (\d+) \|"
WIDGET = "application/vnd.jupyter.widget-view+json"

# JupyterLab writes both into a notebook that it opens, as the kernel reports them. Where they stand already, opening a
# lesson leaves its file as it is. Another Python's version replaces this one: a change of one line.
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": "3.11.7",
    },
}


@functools.cache
def _patterns():
    config = configparser.ConfigParser()
    config.read(ROOT / "tests" / "sanitize.cfg")
    return [(config[name]["regex"], config[name]["replace"]) for name in config.sections()]


def sanitised(text):
    """The text as nbval compares it, after the patterns of tests/sanitize.cfg."""
    for pattern, replacement in _patterns():
        text = re.sub(pattern, replacement, text)
    return text


def first_cell():
    """The source of the first code cell, the same in all lessons. Where the course is there, it does nothing."""
    version, source = project()
    install = f'%pip install -q "parallel-pytorch-course @ {source}"' if source else (
        'raise RuntimeError("The course is not installed in this kernel: its docs/installing.md says how.") from None')
    return ("try: import helpers\n"
            "except ModuleNotFoundError:\n"
            f"    {install}\n"
            f'from helpers import made_for; made_for("{version}")')


def links(lesson):
    """Links that open a lesson (its file's name) in Colab and Kaggle, as HTML; none without an address on GitHub.

    They show no picture from elsewhere: opening a lesson at home needs no network, and tells nobody.
    """
    there = re.fullmatch(r"git\+https://github\.com/([\w-]+/[\w.-]+)@(.+)", project()[1])
    if not there:
        return ""
    file = f"{there[1]}/blob/{there[2]}/notebooks/{lesson}"
    services = {"Colab": f"https://colab.research.google.com/github/{file}",
                "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}"}
    return " ".join(f'<a href="{address}"><kbd>Open in {name}</kbd></a>' for name, address in services.items())


def project():
    """(version, what pip installs where the course is missing, or nothing) of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = settings["project"]["version"]
    return version, settings["tool"]["course"]["install_from"].format(version=version)


def place_first_cell(book, lesson):
    """Write the first cell and the links into a lesson, in place of those that it has."""
    place = next(number for number, cell in enumerate(book.cells) if cell.cell_type == "code")
    if book.cells[place].id != FIRST_CELL:
        book.cells.insert(place, nbformat.v4.new_code_cell(id=FIRST_CELL))
    book.cells[place].source = first_cell()
    title, _, text = LINKS.sub("", book.cells[0].source, count=1).partition("\n\n")
    book.cells[0].source = "\n\n".join(filter(None, [title, links(lesson), text]))


def execute(path, fresh):
    """Execute one lesson and write it back; return the seconds it took.

    Raises:
        CellExecutionError: a cell raised that is not tagged `raises-exception`. The file is left as it was.
    """
    book = nbformat.read(path, as_version=4)
    place_first_cell(book, path.name)
    before = [list(cell.get("outputs", ())) for cell in book.cells]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_PROGRESS"] = str(Path(folder, "progress.json"))  # lessons show a new learner's
        _run(book, path.parent)
    seconds = time.monotonic() - began
    for cell, outputs in zip(book.cells, before, strict=True):
        if cell.cell_type == "code" and not fresh and unchanged(cell, outputs):
            cell.outputs = outputs
    store(book, path)
    return seconds


def _run(book, folder):
    """Execute a notebook's cells in a new kernel, which works in `folder`."""
    # The kernel warns of its sockets, which are this machine's own: nobody else can read them.
    quiet = ["--IPKernelApp.log_level=ERROR"]
    NotebookClient(book, timeout=120, kernel_name="python3", store_widget_state=False, extra_arguments=quiet,
                   resources={"metadata": {"path": str(folder)}}).execute()


def show_records(path):
    """Store what the cells of a lesson that show experiments print now: after tools/record.py has found something."""
    book = nbformat.read(path, as_version=4)
    cells = [cell for cell in book.cells if EXPERIMENT.search(cell.source)]
    style = nbformat.v4.new_code_cell("from helpers.figures import use_course_style\nuse_course_style()")
    apart = nbformat.v4.new_notebook(cells=[style, *copy.deepcopy(cells)])
    _run(apart, path.parent)
    for cell, executed in zip(cells, apart.cells[1:], strict=True):
        cell.outputs = executed.outputs
    store(book, path)


def unchanged(cell, old):
    """Whether nbval would take what a cell has shown for its `old` outputs."""
    ignored = "nbval-ignore-output" in cell.metadata.get("tags", ()) and old
    return ignored or comparable(stable(cell.outputs, cell.execution_count)) == comparable(old)


def store(book, path):
    """Write a lesson without what differs from one execution, or one front end, to another for no reason.

    Which cells were executed is left as it is: `tests/test_notebooks.py` asks for all of them, in order.
    """
    for cell in book.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "tags"}
        if cell.cell_type == "code":
            if (cell.source.startswith("predict(") or cell.id == FIRST_CELL
                    or "hide-input" in cell.metadata.get("tags", ())):
                cell.metadata["jupyter"] = {"source_hidden": True}  # not what to read first
            if cell.source.startswith("bet("):
                cell.metadata["tags"] = sorted({*cell.metadata.get("tags", ()), "hide-output"})
            if "hide-output" in cell.metadata.get("tags", ()):
                # Front ends show the answer once the cell runs, or at a click.
                cell.metadata.setdefault("jupyter", {})["outputs_hidden"] = True
                cell.metadata["collapsed"] = True
            cell.outputs = stable(cell.outputs, cell.execution_count)
    if path.name == GALLERY:
        play_once(book)
    book.metadata = nbformat.from_dict(KERNEL)
    nbformat.validate(book)
    nbformat.write(book, path)


def play_once(book):
    """Leave what plays stored explorers beside the last one only: a page of many is half a megabyte smaller."""
    stored = [output.data for cell in book.cells for output in cell.get("outputs", ())
              if PLAYER in output.get("data", {}).get("text/html", "")]
    for data in stored[:-1]:
        data["text/html"] = data["text/html"].partition(f"\n{PLAYER}")[0]


def execute_and_count(path, fresh):
    """Execute one lesson, and write its minutes into README.md's table, and how many exercises it has into lesson 00's.

    Returns its GiB, which differ a little from one execution to the next: they are written by hand.
    """
    with measured_memory() as gib:
        seconds = execute(path, fresh)
    reading, exercises = minutes(path)
    print(f"{path.name}: {seconds:.1f} s, {gib[0]:.1f} GiB; "
          f"{reading} minutes, and {exercises} for exercises", flush=True)
    text = README.read_text(encoding="utf-8")
    row = re.search(ROW.format(re.escape(path.name)), text, re.MULTILINE)
    if row is None:  # the gallery has none
        return gib[0]
    beginning, exercises_before = row.groups()
    columns = f"{beginning} | {reading} | {exercises} |"
    README.write_text(text[:row.start()] + columns + text[row.end():], encoding="utf-8")
    if exercises != int(exercises_before):
        (start_here,) = NOTEBOOKS.glob("00_*.ipynb")
        execute(start_here, fresh=False)
    return gib[0]


def minutes(path):
    """(minutes to read and run a lesson, minutes for its exercises), for a reader who does all of it once.

    Text at 200 words a minute, code and outputs at 100, half a minute a prediction, three an explorer, one
    for running the cells; ten minutes an exercise.
    """
    return minutes_of(nbformat.read(path, as_version=4).cells)


def minutes_of(cells):
    """The same of some of a lesson's cells."""
    slow, total, exercises = 0, 1.0, set()
    for cell in cells:
        if cell.cell_type == "markdown":
            total += len(LINKS.sub("", cell.source).split()) / 200
            continue
        if checked := re.search(r"\b(\w+)\.check\(", cell.source):
            exercises.add(checked[1])
            continue
        total += 0.5 * cell.source.startswith("predict(")
        total += 3 * bool(re.search(r"^\w+_explorer\(|^trace_viewer\(", cell.source, re.MULTILINE))
        if cell.id != FIRST_CELL and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            slow += len(cell.source.split())
            slow += sum(len(shown(output).split()) for output in cell.outputs)
    return round(total + slow / 100), 10 * len(exercises)


def shown(output):
    """The text of an output; nothing of a picture's."""
    data = output.get("data", {})
    if "image/png" in data or "image/svg+xml" in data:
        return ""
    return output.get("text", "") or data.get("text/plain", "") or output.get("evalue", "")


@contextlib.contextmanager
def measured_memory():
    """A list that ends with the most memory, in GiB, that the processes started meanwhile held at a time.

    Pages that processes share are counted once (PSS, `proc(5)`).
    """
    most, done = [0.0], threading.Event()

    def watch():
        while not done.wait(0.3):
            held = 0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    held += process.memory_full_info().pss
            most[0] = max(most[0], held / 2**30)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def stable(outputs, number):
    """A copy of outputs without what differs for no reason: empty displays, split streams, random ids."""
    kept = []
    for output in copy.deepcopy(outputs):
        if output.output_type == "display_data" and not output.data:
            continue  # where live output was
        if kept and output.output_type == "stream" == kept[-1].output_type and output.name == kept[-1].name:
            kept[-1].text += output.text
            continue
        if output.output_type == "execute_result":
            output.execution_count = number
        if WIDGET in output.get("data", {}):
            # Without a kernel there is no widget to show: leave the picture, or the text, stored beside it.
            del output.data[WIDGET]
        html = output.get("data", {}).get("text/html", "")
        if "stage-stored" in html:  # its data may be old; what plays them is of today
            output.data["text/html"] = f"{html.partition(PLAYER)[0].rstrip()}\n{player()}"
        kept.append(output)
    return kept


def comparable(outputs):
    """What nbval would compare: texts, sanitised; no pictures, no tracebacks."""
    texts = []
    for output in outputs:
        texts.append([output.output_type, output.get("name"), output.get("ename"), output.get("evalue"),
                      sanitised(output.get("text", "")),  # by itself: a pattern may take all to a line's end
                      {kind: sanitised(str(data)) for kind, data in output.get("data", {}).items()
                       if not kind.startswith("image/")}])
    return texts


def main():
    parser = argparse.ArgumentParser(description="Execute lessons and store their outputs.")
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(NOTEBOOKS.glob("*.ipynb")))
    parser.add_argument("--fresh", action="store_true", help="keep no old output")
    parser.add_argument("--experiments", action="store_true", help="only cells that show what was recorded on GPUs")
    parser.add_argument("--normalise", action="store_true", help="execute nothing")
    options = parser.parse_args()
    for path in options.notebooks:
        if options.normalise:
            book = nbformat.read(path, as_version=4)
            place_first_cell(book, path.name)
            store(book, path)
            continue
        if options.experiments:
            show_records(path)
            continue
        try:
            execute_and_count(path, options.fresh)
        except CellExecutionError as error:
            sys.exit(f"{path.name}: {error}")


if __name__ == "__main__":
    main()
