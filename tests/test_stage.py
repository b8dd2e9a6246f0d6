"""The stage without a browser: what it refuses, what it sends and stores, its still picture."""

import base64
import json
import re

import pytest

from helpers.widgets.shapes import Chart, Lanes, box, ink, path, ticks, words
from helpers.widgets.stage import Stage, buttons, checkbox, clicks, field, preset, slider, window
from helpers.widgets.still import as_svg

pytestmark = pytest.mark.usefixtures("nothing_left")


def moving(n=2, word="a"):
    """Frames in which a box moves to the right, and a circle stands still."""
    frames = [{"title": f"step {step}", "note": f"{n} {word}",
               "shapes": [box("mover", 10.0 * step, 0, 8, 8, text=word), words("still", 0, 20, "here")]}
              for step in range(n + 1)]
    return {"size": [100, 50], "frames": frames}


def stage(scene=moving, **controls):
    return Stage("try_explorer", "Shows a box.\n\nMore.", scene, controls, "Look?", {})


def played(packed):
    """All shapes by name, frame by frame, as the browser puts them together."""
    shapes, frames = {}, []
    for frame in packed["frames"]:
        shapes = {name: dict(shape) for name, shape in shapes.items() if name not in frame.get("gone", ())}
        for name, change in frame["set"].items():
            shapes.setdefault(name, {}).update(change)
        frames.append({name: {key: value for key, value in shape.items() if value is not None}
                       for name, shape in shapes.items()})
    return frames


def test_only_what_changes_is_sent_from_frame_to_frame():
    packed = stage().packed(n=2)
    assert packed["frames"][1]["set"] == {"mover": {"x": 10}}
    assert [frame["mover"]["x"] for frame in played(packed)] == [0, 10, 20]
    assert all(frame["still"]["text"] == "here" for frame in played(packed))


@pytest.mark.parametrize("shapes, complaint", [
    ([box("a", 0, 0, 1, 1, colour="red")], "the shape 'a' has colour; known are"),
    ([box("a", 0, 0, 1, 1), words("a", 0, 0, "b")], "two shapes have the name 'a' in the frame 'wrong'"),
    ([box("a", float("nan"), 0, 1, 1)], "JSON"),
    ([box("a", 0, 0, 1, 1, text={1})], "not JSON serializable"),
    ([box("a", 0, 0, 1, 1, click={})], "the shape 'a' can be used, and has neither words nor a tip"),
])
def test_a_bad_frame_is_refused_with_the_explorers_name(shapes, complaint):
    with pytest.raises(ValueError, match=r"^try_explorer, \{\}: ") as refused:
        stage(lambda: {"size": [9, 9], "frames": [{"title": "wrong", "shapes": shapes}]})
    assert complaint in str(refused.value)


def test_an_unknown_key_of_a_scene_or_a_frame_is_refused():
    with pytest.raises(ValueError, match="a scene has speed"):
        stage(lambda: {"size": [9, 9], "frames": [], "speed": 1})
    with pytest.raises(ValueError, match="the frame 'one' has words"):
        stage(lambda: {"size": [9, 9], "frames": [{"title": "one", "words": "", "shapes": []}]})


def test_presets_and_small_controls_are_stored_and_others_are_asked_for():
    explorer = Stage("try_explorer", "Shows.", moving, {"n": slider("steps", 2, [1, 2, 3]), "word": field("word", "a")},
                     "Look?", {"one, b": preset("What?", frame=1, n=1, word="b")})
    assert set(explorer.story["scenes"]) == {'[1,"a"]', '[0,"b"]', '[0,"a"]', '[2,"a"]'}
    assert explorer.story["presets"] == [{"words": "one, b", "look": "What?", "frame": 1, "setting": [0, "b"]}]
    explorer.asked = {"setting": [2, "é"], "number": 1}
    assert explorer.answer["setting"] == [2, "é"]
    assert [frame["mover"]["text"] for frame in played(explorer.answer["scene"])] == ["é"] * 4


def test_presets_are_stored_even_where_there_is_no_room():
    explorer = Stage("try_explorer", "Shows.", moving, {"n": slider("steps", 2, [1, 2, 3]), "word": field("word", "a")},
                     "Look?", {"one, b": preset("What?", n=1, word="b")}, room=0)
    assert set(explorer.story["scenes"]) == {'[1,"a"]', '[0,"b"]'}


def test_options_may_have_labels_and_a_click_sets_a_control_by_its_number():
    def scene(kind, on):
        shape = box("a", 0, 0, 9, 9, text="a", click={"kind": 7}, drag=("kind", [[0, 0], [5.55555, 0]]))
        return {"size": [9, 9], "frames": [{"title": f"{kind} {on}", "shapes": [shape]}]}

    explorer = stage(scene, kind=buttons("kind", 3, [("three", 3), ("seven", 7)]), on=checkbox("on"))
    assert [control["labels"] for control in explorer.story["controls"]] == [["three", "seven"], ["False", "True"]]
    shape = explorer.story["scenes"]["[0,0]"]["frames"][0]["set"]["a"]
    assert shape["click"] == [1, None]
    assert shape["drag"] == {"control": "kind", "places": [[0, 0], [5.6, 0]]}


def test_a_click_that_changes_other_controls_is_over_once_it_is_answered():
    def scene(bits, flip):
        if flip is not None:
            place, _frame = flip
            bits ^= 1 << place
        shapes = [box("bit", 0, 0, 9, 9, text=str(bits), click={"flip": 2})]
        means = {"bits": bits, "flip": None}
        return {"size": [9, 9], "frames": [{"title": f"{bits}", "shapes": shapes}], "means": means}

    explorer = stage(scene, bits=slider("bits", 1, range(8)), flip=clicks())
    explorer.asked = {"setting": [1, [2, 0]], "number": 1}
    assert explorer.answer["scene"]["means"] == [5, None]
    assert played(explorer.answer["scene"])[0]["bit"]["text"] == "5"


def test_a_part_of_the_axis_is_asked_for_and_the_whole_is_stored():
    def scene(window):
        lanes = Lanes(["a"], end=10, zoom=True)
        begins = range(10) if window else range(0, 10, 5)
        bars = [lanes.bar(f"bar {begin}", 0, begin, begin + 1 / 3) for begin in begins]
        return {"size": [560, 90], "axis": lanes.axis, "frames": [{"title": f"{window}", "shapes": bars}]}

    explorer = stage(scene, window=window([2, 4]))
    assert list(explorer.story["scenes"]) == ["[null]"] and explorer.story["first"] == [[2, 4]]
    explorer.asked = {"setting": [[2, 4]], "number": 1}
    assert len(played(explorer.answer["scene"])[0]) == 10
    assert played(explorer.answer["scene"])[0]["bar 1"]["w"] == 15, "450 units for 10"
    picture = explorer._repr_mimebundle_()["image/svg+xml"]
    assert ">2<" in picture and ">4<" in picture and ">10<" not in picture, "the still picture is zoomed, too"


def test_what_is_put_later_is_shown_and_stored():
    explorer = stage(n=slider("n", 2, [1, 2]))
    explorer.put(moving(1, "later"))
    assert explorer.answer["setting"] == [1] and "later" in explorer._repr_mimebundle_()["text/html"]


def test_what_a_notebook_stores_plays_by_itself_and_shows_a_picture_where_no_script_runs():
    bundle = stage(lambda: {"size": [9, 9], "frames": [{"title": "</script> & co", "shapes": []}]})._repr_mimebundle_()
    page = bundle["text/html"]
    data = re.search(r'<script type="application/json">(.*?)</script>', page)[1]
    assert json.loads(data)["scenes"]["[]"]["frames"][0]["title"] == "</script> & co"
    image = base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,(.*?)"', page)[1]).decode()
    assert image == bundle["image/svg+xml"] and "&lt;/script&gt; &amp; co" in image
    assert page.endswith("playStored(document);\n</script>") and "export" not in page
    assert bundle["text/plain"] == "Shows a box."


def test_the_still_picture_shows_a_frame_at_rest():
    lanes = Lanes(["rank 0"], end=10)
    shapes = [lanes.bar("bar", 0, 2, 4, text="no room for this"), lanes.bar("too short", 0, 5, 5.01),
              path("way", [[0, 0], [5, 5]], arrow=True),
              box("message", 0, 0, 5, 5, text="gone", passes=True), words("above", 0, 0, "above", layer=1)]
    scene = {"size": [560, 100], "axis": lanes.axis, "frames": [{"title": "t", "shapes": shapes}]}
    picture = as_svg(stage(lambda: scene).packed(), 0)
    assert "no room" not in picture and "gone" not in picture and 'points="0,0 5,5"' in picture
    assert [re.search(r'x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', picture).groups()] == [("180", "90")]
    assert picture.count('text-anchor="middle" font-size="13">') == 6, "ticks at 0, 2, … 10"


def test_ticks_are_round_and_few():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.93, 1.21) == [0.95, 1.0, 1.05, 1.1, 1.15, 1.2]
    assert ticks(0, 123_456) == [0, 50_000, 100_000]


def test_lanes_grow_and_charts_put_data_in_their_places():
    lanes = Lanes(["a"], end=100, x=0, w=200)
    assert lanes.at(25) == 50
    spans = [("first", 0, 0, 40, {}), ("second", 0, 60, 90, {})]
    assert [(bar["id"], bar["w"]) for bar in lanes.bars(spans, now=70)] == [("first", 80), ("second", 20)]
    assert [bar["id"] for bar in lanes.bars(spans, now=60)] == ["first"]
    chart = Chart("c", 10, 10, 100, 50, (0, 10), (0, 1), {0: "0"}, {1: "1"})
    assert chart.curve("line", [(0, 0), (10, 1)])["points"] == [[10, 60], [110, 10]]


def test_words_show_on_every_fill():
    assert ink("#ffffff") == ink("#6294e2") == "#111111"
    assert ink("#264bfb") == ink("#bb281a") == "#ffffff"
