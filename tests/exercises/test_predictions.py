"""Predictions: the first answer is kept, whatever becomes of the lesson, and shown; one command clears it all."""

import json
import os
import stat
import subprocess
import sys

import nbformat
import pytest

from helpers import notebooks
from helpers.exercises import journal, predict, progress
from helpers.exercises.catalogue import questions
from helpers.exercises.quiz import slug
from lessons.speed_ladder.ladder import best_so_far
from tests.conftest import ROOT
from tests.exercises.test_engine import own_progress  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("own_progress")
ASKED = ("How many lines does `print` leave?",
         {"one": "too few", "`two`": "each rank prints", "ten": "too many"}, "`two`")
WIDGET = "application/vnd.jupyter.widget-view+json"


def press(box, letter):
    """Click an option's button; return the verdict that is below it then."""
    below = dict(zip(box.children, box.children[1:], strict=False))
    button = next(child for child in box.children if getattr(child, "description", "").startswith(letter))
    button.click()
    return below[button].value


def shown(quiz):
    return " ".join(child.value for child in quiz.buttons().children if hasattr(child, "value"))


def elsewhere(code):
    """Run `code` in another kernel, so to say."""
    said = subprocess.run([sys.executable, *code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and not said.stderr, said.stderr
    return said.stdout


def test_the_first_click_is_kept_and_every_click_opens_or_closes(own_progress):  # noqa: F811
    box = predict(*ASKED).buttons()
    assert "✘ No.</strong> too few" in press(box, "A") and "Your first answer: <em>one</em>" in box.children[-1].value
    assert "✔ Yes.</strong> each rank prints" in press(box, "B") and press(box, "B") == ""
    (key, kept), = json.loads(own_progress.read_text()).items()
    assert key == "predict:how-many-lines-does-print-leave" and kept["first"] == "one" and kept["status"] == "not yet"
    assert stat.S_IMODE(own_progress.stat().st_mode) == 0o600


def test_asked_again_it_shows_what_was_answered_first():
    press(predict(*ASKED).buttons(), "B")
    assert "✔ Yes." in shown(predict(*ASKED)) and "too few" not in shown(predict(*ASKED))
    question, options, answer = ASKED
    anew = predict("How many lines does Print leave", dict(reversed(options.items())), answer)
    assert "each rank prints" in shown(anew) and "<em><code>two</code></em>" in shown(anew)
    other_options = predict(question, {"1": "too few", "2": "each rank prints"}, "2")
    assert "Your first answer: <em><code>two</code></em>" in shown(other_options) and "✔" not in shown(other_options)
    other_words = "What is left by `print`?"
    assert "first answer" not in shown(predict(other_words, options, answer))
    assert "first answer" in shown(predict(other_words, options, answer, key=slug(question)))


def test_what_is_stored_says_nothing_of_the_answer(monkeypatch):
    before = predict(*ASKED)._repr_html_(), repr(predict(*ASKED))
    press(predict(*ASKED).buttons(), "A")
    assert (predict(*ASKED)._repr_html_(), repr(predict(*ASKED))) == before
    bundle = predict(*ASKED)._repr_mimebundle_()
    assert bundle["text/plain"] == before[1] and set(bundle) == {"text/plain", WIDGET}
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert predict(*ASKED)._repr_mimebundle_() == {}


def test_another_notebooks_answer_came_first():
    here = predict(*ASKED).buttons()
    elsewhere(["-c", f"from helpers.exercises import journal; journal.keep_first({slug(ASKED[0])!r}, 'ten', False); "
                     "journal.record('a.b', 'correct'); journal.keep_first('other', 'x', True)"])
    press(here, "B")
    assert "<em>ten</em>" in here.children[-1].value
    journal.record("c.d", "not yet")
    firsts = {key: entry["first"] for key, entry in journal.first_answers().items()}
    assert firsts == {slug(ASKED[0]): "ten", "other": "x"}
    assert journal.best_status() == {"b": "correct", "d": "not yet"}


def test_old_and_new_read_each_others_files(own_progress):  # noqa: F811
    own_progress.write_text('{"a.b": {"status": "correct", "date": "2026-01-31"}}')
    journal.keep_first("q", "yes", True)
    kept = json.loads(own_progress.read_text())
    assert kept["a.b"]["status"] == "correct" and journal.best_status() == {"b": "correct"}
    assert all(entry["status"] in journal.STATUSES for entry in kept.values()), "or an older course finds it damaged"


@pytest.mark.parametrize("entry", ['{"status": "correct", "date": "2026", "first": 3}', '{"first": "yes"}', '"yes"',
                                   '{"status": "correct", "date": 5, "first": "yes"}', '{"status": "cor'])
def test_a_damaged_answer_is_kept_aside(own_progress, capsys, entry):  # noqa: F811
    own_progress.write_text(f'{{"predict:q": {entry}}}')
    assert "predicted nothing" in repr(progress()) and "damaged; it is kept as" in capsys.readouterr().out
    assert journal.keep_first("q", "no", False)["first"] == "no" and list(journal.first_answers()) == ["q"]


def test_where_nothing_can_be_written_the_first_answer_holds_while_the_question_stands(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "file" / "progress.json"))
    box = predict(*ASKED).buttons()
    press(box, "A")
    press(box, "B")
    assert "<em>one</em>" in box.children[-1].value and capsys.readouterr().out.count("\n") == 1


def test_progress_follows_questions_to_other_lessons_and_forgets_those_that_are_gone(monkeypatch, tmp_path):
    cell = nbformat.v4.new_code_cell("predict({!r}, {!r}, answer={!r})".format(*ASKED), id="here")
    book = nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_code_cell("predict(1 / 2, x) = %")])
    nbformat.write(book, tmp_path / "03_data_loading.ipynb")
    (tmp_path / "04_data_parallel.ipynb").write_text("{")  # damaged
    (tmp_path / "05_data_parallel-Copy1.ipynb").write_text("{}")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    journal.keep_first("not asked any more", "x", False)
    assert progress().predictions == {"03_data_loading": (None,)} and "predicted nothing" in repr(progress())
    press(predict(*ASKED).buttons(), "C")
    (tmp_path / "03_data_loading.ipynb").rename(tmp_path / "05_distributed_data_parallel.ipynb")
    now = progress()
    assert now.predictions == {"05_distributed_data_parallel": (False,)}
    assert "You predicted 0 of 1. Your surprise:" in repr(now) and "You said: ten" in repr(now)
    assert 'href="05_distributed_data_parallel.ipynb#cell-id=here"' in now._repr_html_()


def test_the_last_three_surprises_are_shown_the_latest_first(monkeypatch):
    some = [quiz for quizzes in questions().values() for quiz in quizzes.values()][:6]
    for day, quiz in enumerate(some):
        wrong = next(option for option, _ in quiz.options if option != quiz.answer)
        journal.keep_first(quiz.key, quiz.answer if day == 4 else wrong, day == 4)
    kept = json.loads(open(journal.path()).read())
    for day, quiz in enumerate(some):
        kept[f"predict:{quiz.key}"]["date"] = f"2026-01-0{day + 1}T08:00:00"
    journal.write(journal.path(), json.dumps(kept))
    assert [quiz for _, _, quiz, _ in progress().surprises] == [some[5], some[3], some[2]]
    assert "You predicted 1 of 6. Your last 3 surprises:" in repr(progress())


def test_every_question_of_the_course_is_found_and_no_two_are_the_same():
    found = questions()
    for lesson, quizzes in found.items():
        book = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4)
        cells = {cell.id: cell for cell in book.cells if cell.cell_type == "code" and "predict(" in cell.source}
        assert set(cells) == set(quizzes)
        for name, quiz in quizzes.items():
            assert cells[name].outputs[-1].data["text/plain"] == repr(quiz), "execute it anew"
    keys = [quiz.key for quizzes in found.values() for quiz in quizzes.values()]
    assert keys and len(set(keys)) == len(keys)


def test_one_command_shows_it_all_and_clears_it(tmp_path):
    press(predict(*ASKED).buttons(), "A")
    best_so_far("ladder", 3.0)
    (tmp_path / "progress.json.damaged").touch()
    (tmp_path / "progress.txt").touch()
    said = elsewhere(["-m", "helpers.exercises"])
    assert "0 of 3 solved" in said and said.count("--clear would remove ") == 3 and len(os.listdir(tmp_path)) == 4
    said = elsewhere(["-m", "helpers.exercises", "--clear"])
    assert said.count("\nremoved ") == 3 and os.listdir(tmp_path) == ["progress.txt"]
    assert "remove" not in elsewhere(["-m", "helpers.exercises"]) and not journal.first_answers()


def test_a_file_that_cannot_be_read_is_not_written_over(tmp_path, monkeypatch, capsys):
    """A lock that passes, or a file of somebody else's in a folder of ours: what is in it would be lost."""
    file = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(file))
    journal.record("start_here.my_share", "correct")
    before = file.read_bytes()

    def refuses(*args, **how):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(journal, "open", refuses, raising=False)
    journal.record("start_here.say_it_once", "correct")
    assert journal.keep_first("what", "this", True)["first"] == "this"
    assert journal.best_status() == journal.first_answers() == {}
    assert file.read_bytes() == before and [file.name] == os.listdir(tmp_path)
