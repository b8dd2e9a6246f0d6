"""The lessons as files: whole, executed in order, readable, naming no machine. (nbval executes them.)"""

import re
import statistics
import subprocess
import sys

import nbformat
import pytest

from helpers.widgets.stage import PLAYER, player
from tests.conftest import LESSONS, ROOT
from tools.execute import KERNEL, comparable, stable


@pytest.fixture(params=LESSONS, ids=lambda path: path.name)
def book(request):
    return nbformat.read(request.param, as_version=4)


def code_of(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_every_cell_was_executed_in_order_and_only_marked_ones_raised(book):
    nbformat.validate(book)
    assert [cell.execution_count for cell in code_of(book)] == list(range(1, len(code_of(book)) + 1))
    for cell in code_of(book):
        raised = any(output.output_type == "error" for output in cell.outputs)
        assert raised == ("raises-exception" in cell.metadata.get("tags", ())), cell.source


def test_outputs_and_metadata_name_no_machine(book):
    text = nbformat.writes(book)
    here = re.escape(str(ROOT))
    for name in (r"/root/", r"/home/", r"/tmp/", r"/Users/", r"ipykernel_\d", r"site-packages", here):
        found = re.search(name, text)
        assert not found, text[found.start() - 60:found.end() + 60]


def test_notebooks_say_of_their_kernel_what_jupyterlab_would_write():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert nbformat.read(path, as_version=4).metadata == KERNEL, "run tools/execute.py --normalise"


def test_cells_are_short_and_prose_and_code_keep_each_other_company(book):
    lines = [len(cell.source.splitlines()) - cell.source.startswith("bet(")
             for cell in code_of(book)[1:]]  # without the one that sets the course up
    words = [len(cell.source.split()) for cell in book.cells if cell.cell_type == "markdown"]
    assert max(lines) <= 20 and statistics.median(lines) <= 5
    assert 0.6 <= len(words) / len(lines) <= 1.6
    assert statistics.median(words) >= 30


@pytest.fixture(scope="module")
def line_magics():
    """The names that IPython takes for a command while no variable is called so: `run (…)` is then `%run (…)`."""
    code = "from ipykernel.zmqshell import ZMQInteractiveShell as S; print(*S.instance().magics_manager.magics['line'])"
    names = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert {"run", "time", "who"} <= names
    return names


def test_no_line_is_a_magic_where_its_function_is_missing(book, line_magics):
    """Whoever runs a cell too early is to be told which one makes the name, and not what `%run` does not find."""
    for cell in code_of(book):
        calls = re.findall(r"^(\w+)(?: (?!=[^=])|\().*", cell.source, re.MULTILINE)
        assert not line_magics & set(calls), f"{cell.id}: {cell.source}"


def test_pictures_show_where_a_notebook_is_only_read(book):
    """As image/png, with a text beside it: one inside text/html may be dropped, a widget needs a kernel.

    What moves is text/html, and so that something is there in any case, image/svg+xml, and a sentence in plain HTML.
    """
    for cell in code_of(book):
        for output in cell.outputs:
            data = output.get("data", {})
            assert "application/vnd.jupyter.widget-view+json" not in data, "run tools/execute.py"
            if "stage-stored" in data.get("text/html", ""):
                assert '<div class="stage-stored"><p>' in data["text/html"] and data["text/plain"], cell.source
                assert data["image/svg+xml"].startswith("<svg"), cell.source
                plays = data["text/html"].partition(PLAYER)[2]
                assert f"{PLAYER}{plays}" in (player(), PLAYER), "run tools/execute.py --normalise"
                continue
            assert not re.search(r"<(img|svg)", data.get("text/html", "")), cell.source
            if "image/png" in data:
                assert data["text/plain"] and output.metadata["image/png"]["alt"], cell.source


def test_another_output_is_stored_also_behind_one_that_may_differ():
    def outputs(tier, listing):
        return [nbformat.v4.new_output("stream", text=f"scaled down here: this wants {tier}\n"),
                nbformat.v4.new_output("display_data", {"text/plain": listing})]

    assert comparable(outputs("2 GPUs", "x = 1")) == comparable(outputs("4 GPUs", "x = 1"))
    assert comparable(outputs("2 GPUs", "x = 1")) != comparable(outputs("2 GPUs", "x = 2"))


def test_streams_that_came_in_pieces_are_joined_each_time_anew():
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("one\n", "two\n")]
    assert [stable(pieces, 1)[0].text for _ in range(2)] == ["one\ntwo\n"] * 2


def test_scripts_have_names_of_their_own():
    """`launch("train.py")` takes whichever lesson's it finds first."""
    names = [path.name for path in (ROOT / "notebooks" / "lessons").glob("*/*.py")]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"pictures.py", "questions.py", "recorded.py"}
