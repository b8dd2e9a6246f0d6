"""All explorers without a browser: their presets, their sizes, what they say. (Each lesson's tests hold its frames.)"""

import functools

import pytest

from helpers.widgets.stage import Stage
from tests.browser import EXPLORERS, made_here

pytestmark = pytest.mark.usefixtures("nothing_left")


@functools.cache
def explorer(name):
    *before, made = EXPLORERS[name].splitlines()
    names = {}
    exec("\n".join(before), names)
    return eval(made, names)


def test_every_explorer_is_here():
    called = {cell.rpartition("\n")[2].partition("(")[0] for cell in EXPLORERS.values()}
    assert called == set(made_here())


@pytest.mark.parametrize("name", EXPLORERS)
def test_presets_ask_something_and_show_something_else(name):
    story = explorer(name).story
    assert isinstance(explorer(name), Stage) and 2 <= len(story["presets"]) <= 4
    looks = [story["look"], *(preset["look"] for preset in story["presets"])]
    assert len(set(looks)) == len(looks) and all("?" in look for look in looks[1:])
    begins = {str((preset["setting"], preset["frame"])) for preset in story["presets"]}
    assert len(begins) == len(story["presets"])


@pytest.mark.parametrize("name", EXPLORERS)
def test_scenes_are_for_a_telephone_too_and_each_frame_says_what_it_shows(name):
    for scene in explorer(name).story["scenes"].values():
        width, height = scene["size"]
        assert width <= 560 and height <= 480
        for frame in scene["frames"]:
            assert frame["title"] and frame.get("note", "").strip(), frame["title"]
            for shape in frame["set"].values():
                assert shape.get("size") is None or shape["size"] >= 12


@pytest.mark.parametrize("name", EXPLORERS)
def test_what_is_stored_is_small(name):
    html = explorer(name)._repr_mimebundle_()["text/html"]
    print(f"{name}: {len(html.encode()) / 1000:.0f} kB")
    assert len(html.encode()) <= 200_000
