"""The start-method explorer: what stands where after which frame, and that its errors are those of real processes."""

import inspect
import itertools
import json
import subprocess
import sys

import pytest

from helpers import launch
from helpers.figures import ACTIVITIES
from lessons.processes import start_methods_explorer as explorer

SITUATIONS = list(itertools.product(explorer.METHODS, *[[False, True]] * 3))
VARIABLES = explorer.THINGS.index("variables, changed")
MEASURED = {"fork": {"ms": 10}, "spawn": {"ms": 2000}, "launch": {"ms": 50}}


def frames(*situation, measured=None):
    """Of each frame: its title and note, and {name: shape}."""
    scene = explorer.scene(*situation, measured=measured)
    return [(f"{frame['title']}. {frame['note']}", {shape["id"]: shape for shape in frame["shapes"]})
            for frame in scene["frames"]]


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_one_thing_after_the_other_comes_to_the_border_and_then_it_ends(situation):
    rows = explorer.received(*situation)
    assert len(rows) == 4 + situation[2] + situation[3]
    (_, before), (made, _), *crossings, (end, ended) = frames(*situation)
    assert "child room" not in before and situation[0] in made and len(crossings) == len(rows)
    for number, (row, (thing, how, childs)) in enumerate(rows.items()):
        title, shapes = crossings[number]
        assert title == f"{thing}: {how}. Child: {childs}."
        stamps = [shape["text"] for name, shape in shapes.items() if name.startswith("stamp")]
        assert stamps.count("?") == len(rows) - number - 1, "what has not come yet is open"
        assert shapes["child"]["text"] == "Child: a new process", "its end is not told before"
        assert (shapes[f"parent {row}"]["text"], shapes[f"child {row}"]["text"]) == (thing, childs)
        assert shapes[f"stamp {row}"]["text"] == {"taken over": "✔", "made anew": "○", "lost": "✘"}[how]
        assert (f"moving {row}" in shapes) == (how == explorer.LOST or "name" in childs)
        assert ("from" in shapes[f"child {row}"]) == (how == explorer.COMES), "only then it comes from the parent"
    verdict, words, _ = explorer.outcome(*situation)
    assert end == f"train() {verdict}. {words}"
    thick = [shape["text"] for name, shape in ended.items() if name.startswith("child ") and shape.get("width") == 4]
    lacks = {"can hang": ["locks, but no threads"], "works": [],
             "is refused": ["handles that do not work" if situation[0] == "fork" else "only its name: not found"]}
    assert thick == lacks[verdict]


def test_the_child_comes_from_where_it_is_made():
    begins = {}
    for method in explorer.METHODS:
        (_, before), (_, shapes), *_ = frames(method, False, False, False)
        assert ("server" in before) == (method in ("forkserver", "launch"))
        begins[method] = shapes["child room"]["from"]
        if "server" in before:
            assert begins[method].items() <= before["server"].items()
    parent = before["parent room"]
    assert begins["fork"] == {side: parent[side] for side in "xywh"} and begins["spawn"]["w"] == 0


def test_a_click_on_a_thing_sets_its_control():
    (_, shapes), *_ = frames("fork", True, False, True, measured=MEASURED)
    clicks = [shape["click"] for shape in shapes.values() if shape.get("click")]
    assert clicks == [{"in_cell": False}, {"threads_used": True}, {"cuda_used": False},
                      *({"method": method} for method in MEASURED)]
    assert shapes["parent 4"]["text"] == "no threads yet" and shapes["parent 5"]["text"] == "CUDA, in use"


def test_bars_show_what_was_measured_and_nothing_else():
    (_, shapes), *_ = frames("spawn", True, False, False, measured=MEASURED)
    wide = [shapes[f"cost {method}"]["w"] for method in MEASURED]
    assert [200 * each / wide[1] for each in wide] == pytest.approx([1, 200, 5])
    assert [shapes[f"time {method}"]["text"] for method in MEASURED] == ["10 ms", "2,000 ms", "50 ms"]
    assert shapes["chosen"]["y"] == shapes["method spawn"]["y"]
    assert not any(name.startswith("cost") for name in frames("fork", 0, 0, 0)[0][1])


def test_all_situations_are_stored_and_each_preset_ends_as_its_question_asks():
    stage = explorer.start_method_explorer(MEASURED)
    assert len(stage.story["scenes"]) == len(SITUATIONS)
    assert len(json.dumps(stage.story, separators=(",", ":"))) < 90_000
    ends = {}
    for one in stage.story["presets"]:
        scene = stage.story["scenes"][json.dumps(one["setting"], separators=(",", ":"))]
        ends[one["words"]] = scene["frames"][-1]["set"]["child"]
    assert [end["text"] for end in ends.values()] == ["Child: fails", "Child: may hang", "Child: fails",
                                                     "Child: computes"]
    assert ends["fork with threads"]["fill"] == ACTIVITIES["waiting"]


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


def test_a_new_python_has_no_file_to_set_a_notebooks_variables(tmp_path):
    code = """
import multiprocessing

WORD = "as the file sets it"
if __name__ == "__main__":
    WORD = "changed"
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print(pool.apply(eval, ("vars(__import__('__main__')).get('WORD')",)))
"""
    (tmp_path / "script.py").write_text(code)
    for command, childs in ((["-c", code], "None"), ([str(tmp_path / "script.py")], "as the file sets it")):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == childs, done.stderr
    assert explorer.received("spawn", True, False, False)[VARIABLES].how == explorer.LOST
    assert explorer.received("spawn", False, False, False)[VARIABLES].how == explorer.ANEW


def test_launch_sends_the_code_of_a_cells_function_and_the_name_of_a_files(tmp_path, monkeypatch):
    (tmp_path / "module_of_a_learner.py").write_text("word = 'as in the file'\n\ndef train():\n    return word\n")
    monkeypatch.syspath_prepend(tmp_path)
    import module_of_a_learner

    module_of_a_learner.word = "changed"
    of_a_cell = {"word": "changed"}
    exec("def train():\n    return word", of_a_cell)
    functions = (module_of_a_learner.train, of_a_cell["train"])
    words = [launch(train, nprocs=1, show=False).results[0] for train in functions]
    assert words == ["as in the file", "changed"]
    hows = [explorer.received("launch", in_cell, False, False)[VARIABLES].how for in_cell in (False, True)]
    assert hows == [explorer.ANEW, explorer.COMES]


def test_cuda_is_refused_in_these_words():
    import torch

    source = inspect.getsource(torch.cuda._lazy_init).replace('"\n                "', "")
    assert explorer.BAD_FORK.removeprefix("RuntimeError: ").removesuffix("…") in source
