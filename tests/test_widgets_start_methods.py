"""The start-method explorer: every situation is drawn, and its words are those of real processes."""

import inspect
import itertools
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.widgets import start_methods as explorer

SITUATIONS = list(itertools.product(explorer.METHODS, *[[False, True]] * 3))
MEASURED = {"fork": {"ms": 10, "first_ms": 12}, "spawn": {"ms": 2000, "first_ms": 2100}, "launch": {"ms": 50}}


def texts(picture):
    return [element.text or "" for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_every_situation_is_drawn_legibly(situation):
    picture = explorer.draw(*situation, measured=MEASURED)
    root = ElementTree.fromstring(picture)
    verdict, words = explorer.outcome(*situation)
    assert root.get("role") == "img" and situation[0] in root.get("aria-label") and verdict in root.get("aria-label")
    assert any(verdict in text for text in texts(picture)) and words in texts(picture)
    sizes = [int(element.get("font-size", 16)) for element in root.iter()]
    assert min(sizes) >= 14
    assert all(len(text) <= 100 for text in texts(picture))
    assert len(explorer.received(*situation)) == 4 + situation[2] + situation[3]


def test_outcomes():
    outcome = {situation: explorer.outcome(*situation) for situation in SITUATIONS}
    for (method, in_cell, threads, cuda), (verdict, words) in outcome.items():
        if method == "launch":
            assert verdict == "works"
        elif method == "fork":
            assert verdict == ("is refused" if cuda else "can hang" if threads else "works")
            assert words.startswith("RuntimeError: Cannot re-init") or not cuda
        else:
            assert verdict == ("is refused" if in_cell else "works")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_without_a_file_is_refused_in_these_words(method):
    code = f"""
import multiprocessing

def train():
    pass

child = multiprocessing.get_context({method!r}).Process(target=train)
child.start()
child.join(30)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == explorer.NOT_FOUND


def test_cuda_is_refused_in_these_words():
    import torch

    source = inspect.getsource(torch.cuda._lazy_init).replace('"\n                "', "")
    assert explorer.BAD_FORK.removeprefix("RuntimeError: ").removesuffix("…") in source


def test_bars_show_what_was_measured_and_nothing_else():
    shown = texts(explorer.draw("fork", measured=MEASURED))
    assert "10 ms (the first 12 ms)" in shown and "2.0 s (the first 2.1 s)" in shown and "50 ms" in shown
    assert shown.count("not measured here") == 1
    assert texts(explorer.draw("fork")).count("not measured here") == 4


def test_controls_redraw_quickly():
    widget = explorer.start_method_explorer(MEASURED)
    seen = {widget.picture.value}
    began = time.perf_counter()
    for method, in_cell in (("spawn", True), ("spawn", False), ("launch", False)):
        widget.controls["method"].value, widget.controls["in_cell"].value = method, in_cell
        seen.add(widget.picture.value)
    for name in ("threads_used", "cuda_used"):
        widget.controls[name].value = True
        seen.add(widget.picture.value)
    assert len(seen) == 6
    assert (time.perf_counter() - began) / 5 < 0.05


def test_static_picture_and_stable_text():
    bundles = [explorer.start_method_explorer(measured)._repr_mimebundle_() for measured in (None, MEASURED)]
    assert bundles[0]["text/plain"] == bundles[1]["text/plain"]
    assert "<img alt=" in bundles[0]["text/html"] and " ms" not in bundles[1]["text/html"]
