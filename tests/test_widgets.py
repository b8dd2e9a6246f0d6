"""The explorers' base without a browser (test_browser.py uses it with one)."""

import pytest
from matplotlib.figure import Figure

from helpers.figures import alt
from helpers.widgets import explorer as base
from lessons.distributed_data_parallel.ring_explorer import ring_explorer
from tests.browser import EXPLORERS, made_here

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_every_explorer_is_here():
    called = {cell.rpartition("\n")[2].partition("(")[0] for cell in EXPLORERS.values()}
    assert called == set(made_here())


@pytest.mark.parametrize("name", [name for name in EXPLORERS if name != "trace"])
def test_every_explorer_has_presets_that_show_something_else_and_say_what_to_look_for(name, monkeypatch):
    """By the text alternatives of its pictures: to render them all would take long."""
    monkeypatch.setattr(base, "as_html", alt)
    *before, made = EXPLORERS[name].splitlines()
    exec("\n".join(before), names := {})
    explorer = eval(made, names)
    first, said = explorer.picture.value, {explorer.words.value}
    assert 2 <= len(explorer.presets) <= 4
    for button in explorer.presets.values():
        button.click()
        said.add(explorer.words.value)
    assert len(said) == 1 + len(explorer.presets) and first != explorer.picture.value
    explorer.put()
    assert explorer.picture.value == first


def test_play_moves_its_slider_and_step_begins_anew_after_the_last(monkeypatch):
    monkeypatch.setattr(base, "as_html", alt)
    explorer, drawn = ring_explorer(), []
    explorer.picture.observe(drawn.append, "value")
    explorer.presets["2 ranks"].click()
    assert len(drawn) == 1, "several controls, one picture"
    said = explorer.words.value
    steps = [explorer.step() or explorer.controls["step"].value for _ in range(3)]
    assert steps == [1, 2, 0] and explorer.words.value == said, "it is still about the preset"
    explorer.controls["ranks"].value = 5
    assert explorer.words.value != said


def test_a_curtain_hides_what_is_still_to_come():
    ax = Figure().subplots()
    ax.set_xlim(0, 50)
    base.curtain(ax, 100)
    assert not ax.patches
    base.curtain(ax, 40)
    assert ax.patches[0].get_x() == 20 and ax.patches[0].get_width() == 30 and "first 40 %" in alt(ax.figure)
