"""The start-method explorer: situations are drawn legibly, and its errors are those of real processes."""

import inspect
import itertools
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from helpers.figures import alt, use_course_style
from lessons.processes import start_methods_explorer as explorer

SITUATIONS = list(itertools.product(explorer.METHODS, *[[False, True]] * 3))
MEASURED = {"fork": {"ms": 10}, "spawn": {"ms": 2000}, "launch": {"ms": 50}}


@pytest.mark.parametrize("situation", SITUATIONS[::10], ids=str)
def test_a_situation_is_drawn_legibly(situation):
    use_course_style()
    widget = explorer.start_method_explorer(MEASURED)
    figure = widget.draw(**dict(zip(widget.controls, situation, strict=True)))
    verdict, words = explorer.outcome(*situation)
    ax = figure.axes[0]
    shown = [text.get_text() for text in ax.texts]
    assert any(verdict in text for text in shown) and words in shown and situation[0] in ax.get_title("left")
    rows = explorer.received(*situation)
    assert len(rows) == 4 + situation[2] + situation[3]
    for parents, _, childs in rows:
        assert parents in shown and any(text.endswith(childs) for text in shown)
        assert childs in alt(figure)
    arrows = [line for line in ax.lines if line.get_marker() == ">"]
    assert len(arrows) == sum(how == explorer.COMES for _, how, _ in rows)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes), "nothing is cut off"
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert min(text.get_size() for text in ax.texts) >= 11


def test_a_function_without_a_file_is_refused_by_this_error():
    code = """
import multiprocessing

def train():
    pass

child = multiprocessing.get_context("spawn").Process(target=train)
child.start()
child.join(30)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    for words in (done.stderr.splitlines()[-1], explorer.NOT_FOUND):
        assert words.startswith("AttributeError: ") and "'__main__'" in words and "'train'" in words


def test_cuda_is_refused_in_these_words():
    import torch

    source = inspect.getsource(torch.cuda._lazy_init).replace('"\n                "', "")
    assert explorer.BAD_FORK.removeprefix("RuntimeError: ").removesuffix("…") in source


def test_bars_show_what_was_measured_and_nothing_else():
    ax = Figure().subplots()
    bars = explorer.draw_costs(ax, MEASURED)
    assert [bar.get_width() for bar in bars] == [10, 2000, 0, 50]
    assert [text.get_text() for text in ax.texts] == ["10 ms", "2.0 s", "not measured here", "50 ms"]
    assert "milliseconds" in ax.get_xlabel()
