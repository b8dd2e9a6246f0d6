"""Predictions: the first bet is kept, whatever becomes of the lesson, and stands beside the result."""

import importlib
import json
import os
import re
import runpy
import stat
import subprocess
import sys
from collections import Counter

import nbclient
import nbformat
import pytest

from helpers import notebooks
from helpers.exercises import journal, predict, progress, quiz
from lessons.speed_ladder.ladder import best_so_far
from tests.conftest import ROOT
from tests.exercises.test_engine import own_progress  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("own_progress")
QUESTION = quiz.Quiz("how_many", "How many <lines> does `print` leave?",
                     {"`two`": "each rank prints", "one & only": "too few", "ten": "too many"})
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setattr(quiz, "asked", lambda all_of_them=quiz.asked: {**all_of_them(), "how_many": QUESTION})


def press(box, option):
    """Click an option's button; return what the question says then."""
    next(child for child in box.children if getattr(child, "description", "").endswith(f") {option}")).click()
    return box.children[-1].value


def elsewhere(words):
    """What another Python says."""
    said = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and not said.stderr, said.stderr
    return said.stdout


def test_the_first_click_is_kept_and_says_nothing_of_the_answer(own_progress):  # noqa: F811
    box = predict("how_many").buttons()
    for option in ("one & only", "two"):
        said = press(box, option)
        assert "Your bet: <em>one &amp; only</em>" in said and "too few" not in said and "✘" not in said
    assert all("course-closed" in child._dom_classes for child in box.children[2:-1])
    (key, kept), = json.loads(own_progress.read_text()).items()
    assert key == "predict:how_many" and kept["first"] == "one & only" and kept["status"] == "not yet"
    assert stat.S_IMODE(own_progress.stat().st_mode) == 0o600
    assert predict("how_many").buttons().children[-1].value == said, "asked again, it shows the bet"


def test_what_is_stored_is_the_same_before_and_after_a_bet():
    before = QUESTION._repr_html_(), repr(QUESTION)
    assert "&lt;lines&gt;" in before[0] and "<code>two</code>" in before[0]
    assert "each rank prints" not in before[0]
    press(QUESTION.buttons(), "two")
    assert (QUESTION._repr_html_(), repr(QUESTION)) == before
    bundle = QUESTION._repr_mimebundle_()
    assert bundle["text/plain"] == before[1] and set(bundle) == {"text/plain", WIDGET}


def test_the_bet_stands_above_the_result_and_the_answer_below():
    """In a real kernel, with questions of the course: no bet, one that holds, one that does not."""
    nothing, right, wrong = list(quiz.asked().values())[:3]
    journal.keep_first(right.key, right.answer, True)
    journal.keep_first(wrong.key, list(wrong.options)[1], False)
    code = "from helpers.exercises import bet\nbet({!r})\nprint('the result')"
    cells = [nbformat.v4.new_code_cell(code.format(one.key)) for one in (nothing, right, wrong)]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=60, kernel_name="python3").execute()
    expected = [("You have not bet yet.", "<details>"),
                (f"Your bet: **{right.answer}**", "✔ Your bet holds."),
                ("Your bet: **", "✘ Your bet was: ")]
    for cell, (above, below) in zip(cells, expected, strict=True):
        said, result, answer = cell.outputs
        assert said.data["text/markdown"].startswith(above) and result.text == "the result\n"
        assert below in answer.data["text/html"]


def test_the_answer_is_explained_whatever_was_bet():
    assert "each rank prints" in QUESTION.verdict(None) == QUESTION.verdict("an option of an older course")
    assert "too few" not in QUESTION.verdict("`two`")
    assert "too many<br>" in QUESTION.verdict("ten") and "<code>two</code>." in QUESTION.verdict("ten")


def test_another_notebooks_bet_came_first():
    here = QUESTION.buttons()
    elsewhere(["-c", "from helpers.exercises import journal; journal.keep_first('how_many', 'ten', False); "
                     "journal.record('a.b', 'correct'); journal.keep_first('other', 'x', True)"])
    assert "<em>ten</em>" in press(here, "two")
    journal.record("c.d", "not yet")
    firsts = {key: entry["first"] for key, entry in journal.first_answers().items()}
    assert firsts == {"how_many": "ten", "other": "x"}
    assert journal.best_status() == {"b": "correct", "d": "not yet"}


def test_a_damaged_answer_is_kept_aside(own_progress, capsys):  # noqa: F811
    own_progress.write_text('{"predict:q": {"status": "cor')
    assert "predicted nothing" in repr(progress()) and "damaged; it is kept as" in capsys.readouterr().out
    assert journal.keep_first("q", "no", False)["first"] == "no" and list(journal.first_answers()) == ["q"]


def test_where_nothing_can_be_written_the_first_answer_holds_meanwhile(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "file" / "progress.json"))
    box = QUESTION.buttons()
    press(box, "one & only")
    assert "<em>one &amp; only</em>" in box.children[-1].value and capsys.readouterr().out.count("\n") == 1


def test_progress_follows_questions_to_other_lessons_and_forgets_those_that_are_gone(monkeypatch, tmp_path):
    cell = nbformat.v4.new_code_cell('predict("how_many")', id="here")
    book = nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_code_cell('predict("mine")')])
    nbformat.write(book, tmp_path / "03_data_loading.ipynb")
    (tmp_path / "04_data_parallel.ipynb").write_text("{")  # damaged
    (tmp_path / "05_data_parallel-Copy1.ipynb").write_text("{}")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    journal.keep_first("not asked any more", "x", False)
    assert progress().predictions == {"03_data_loading": (None,)} and "predicted nothing" in repr(progress())
    press(QUESTION.buttons(), "ten")
    (tmp_path / "03_data_loading.ipynb").rename(tmp_path / "05_distributed_data_parallel.ipynb")
    now = progress()
    assert now.predictions == {"05_distributed_data_parallel": (False,)}
    assert "You predicted 0 of 1. Your latest surprises:" in repr(now) and "You said: ten" in repr(now)
    assert 'href="05_distributed_data_parallel.ipynb#cell-id=here"' in now._repr_html_()


@pytest.mark.parametrize("lesson", notebooks.paths(), ids=lambda path: path.stem)
def test_each_question_is_asked_once_and_answered_by_a_cell_that_hides_its_output(lesson):
    module = importlib.import_module(f"lessons.{lesson.stem[3:]}.questions")
    cells = [cell for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code"]
    said = [(match[1], match[2], cell) for cell in cells
            if (match := re.match(r'(predict|bet)\("(\w+)"\)', cell.source))]
    assert [(call, key) for call, key, _ in said] == [(call, key) for key in module.QUESTIONS
                                                      for call in ("predict", "bet")]
    for call, key, cell in said:
        if call == "predict":
            assert cell.outputs[-1].data["text/plain"] == repr(predict(key)), "execute it anew"
        else:
            assert cell.metadata["jupyter"]["outputs_hidden"] and cell.metadata["collapsed"]
            assert "hide-output" in cell.metadata["tags"]


def test_questions_have_two_options_and_more_and_names_of_their_own():
    named = [key for lesson in notebooks.paths()
             for key in importlib.import_module(f"lessons.{lesson.stem[3:]}.questions").QUESTIONS]
    assert named and not [key for key, times in Counter(named).items() if times > 1]
    for one in quiz.asked().values():
        assert len(one.options) >= 2 and all([one.question, *one.options, *one.options.values()])
    letters = [letter for one in quiz.asked().values() if len(one.options) == 3
               for letter, option in one.shuffled() if option == one.answer]
    assert min(map(letters.count, "ABC")) > len(letters) / 6, "the answer may stand anywhere"


def test_a_name_that_no_lesson_has():
    with pytest.raises(ValueError, match="no lesson has a question 'this'"):
        predict("this")


def test_one_command_shows_it_all_and_clears_it(tmp_path, monkeypatch, capsys):
    def said(*words):
        monkeypatch.setattr(sys, "argv", ["exercises", *words])
        runpy.run_module("helpers.exercises", run_name="__main__")
        return capsys.readouterr().out

    press(QUESTION.buttons(), "ten")
    best_so_far("ladder", 3.0)
    (tmp_path / "progress.json.damaged").touch()
    (tmp_path / "progress.txt").touch()
    shown = said()
    assert "0 of 3 solved" in shown and shown.count("--clear would remove ") == 3
    assert len(os.listdir(tmp_path)) == 4
    assert said("--clear").count("\nremoved ") == 3 and os.listdir(tmp_path) == ["progress.txt"]
    assert not journal.first_answers()


def test_a_learner_clears_it_as_lesson_00_says(tmp_path):
    command = re.search(r"`(%run [^`]*)`", (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8"))[1]
    file = tmp_path / "progress.json"
    file.write_text("{}")
    subprocess.run([sys.executable, "-m", "IPython", "-c", command], cwd=ROOT, check=True, capture_output=True,
                   env={**os.environ, "COURSE_PROGRESS": str(file)}, timeout=60)
    assert not file.exists()


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


def test_the_first_cells_of_a_lesson_are_enough_for_its_bets():
    """`quiz._GONE` sends a reader to them."""
    for lesson, cells in notebooks.code_cells().items():
        first = "\n".join(source for _, source in cells[:4])
        assert re.search(r"^from helpers.exercises import .*\bpredict\b", first, re.MULTILINE), lesson
