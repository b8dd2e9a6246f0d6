"""A class: what a journal keeps of the way to a solution, its export, and the summary of thirty of them."""

import json
import random
from pathlib import Path

import pytest

from helpers.exercises import catalogue, classroom, journal, predict, progress
from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import cause, not_yet
from tests.browser import NEEDS_CHROMIUM, axe_findings, chromium
from tests.conftest import ROOT
from tests.exercises.test_predictions import elsewhere

COURSE = ["start_here.my_share", "start_here.mean_of_ranks", "processes.send_weights"]
REMAINDER = "`//` throws the remainder away. Who does the last items?"


class Number(Exercise):
    title, hints = "A number", ("three", "two")

    def answer():
        return 1

    def observe(answer, case):
        return answer()

    def judge(self, mine, wanted, case, answer):
        if mine != (1,):
            return not_yet(f"`{mine}` is not 1", "1", "" if mine == (2,) else "is it 1, or 12?")


def two():
    return 2


def three():
    return 3


def undefined():
    return a_name_of_mine  # noqa: F821


def test_the_way_to_a_solution_is_kept_and_what_comes_after_is_not():
    exercise = Number()
    exercise._repr_markdown_()
    exercise.hint()
    for answer in (..., two, three, three, undefined, exercise.answer, three):
        exercise.check(answer)
    exercise.hint()
    exercise.solution()
    (kept,) = journal.exercises().values()
    assert kept.pop("began") <= kept.pop("solved") and kept.pop("date")
    assert kept == {"status": "correct", "tries": 5, "hints": 1, "solution": False, "causes": {
        "`…` is not #": 1, "is it #, or #?": 2, "your function raised NameError": 1}}


def test_the_solution_before_one_is_found_counts():
    exercise = Number()
    exercise.solution()
    exercise.check(exercise.answer)
    (kept,) = journal.exercises().values()
    assert kept["solution"] and kept["tries"] == 1 and "began" not in kept


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Exports of thirty simulated learners: learner 0 solves all at once, later ones more slowly or not."""
    chance = random.Random(0)
    folder = tmp_path / "room"
    folder.mkdir()
    for number in range(30):
        monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / f"{number}.json"))
        for place, name in enumerate(COURSE[:3 - number // 10]):
            minute = f"2026-11-26T1{place}"
            monkeypatch.setattr(journal, "_now", lambda minute=minute: f"{minute}:00:00")
            journal.begin(name)
            for _ in range(min(number, 3)):
                journal.record(name, "not yet", REMAINDER if chance.random() < 0.9 else "another")
            monkeypatch.setattr(journal, "_now", lambda minute=minute: f"{minute}:12:00")
            if number < 25:
                journal.record(name, "correct")
        journal.begin("parallel_sgd.split")  # shown, and not tried
        journal.keep_first("hello_lines", "eight" if number % 3 else "two", number % 3 > 0)
        classroom.export(folder / f"{number}.json", f"Learner {number}")
    return folder


#: By how many pixels a page is too high, and too wide.
OVERFLOW = """[document.documentElement.scrollHeight - innerHeight,
               document.documentElement.scrollWidth - innerWidth]"""


def everything_tried(number, lessons, questions, folder, monkeypatch):
    """An export of a learner who bet on the option of their number, and met one of each exercise's mistakes."""
    monkeypatch.setenv("COURSE_PROGRESS", str(folder / f"{number}.json"))
    for lesson in lessons:
        for place, exercise in enumerate(catalogue.exercises_of(catalogue.module_of(lesson))):
            journal.begin(exercise.key)
            looks = [row.look for row in (*exercise.rules, *exercise.mistakes) if isinstance(row.look, str)]
            look = max(looks, key=len, default="is it 1?") if number % 2 else "Something else."
            journal.record(exercise.key, "not yet", cause(not_yet("seen", "wanted", look)))
            if number % 5 >= place:
                journal.record(exercise.key, "correct")
        for question in questions[lesson].values():
            option = list(question.options)[number % len(question.options)]
            journal.keep_first(question.key, option, option == question.answer)
    classroom.export(folder / "room" / f"{number}.json", f"Learner {number}")


def test_thirty_learners(room, capsys):
    (room / "notes.json").write_text("{}")
    (room / "cut.json").write_text((room / "0.json").read_text()[:90])
    capsys.readouterr()
    classroom.summary(room)
    said = capsys.readouterr().out
    for words in (*(f"Left out: {name}.json is no" for name in ("cut", "notes")), "30 learners\n",
                  "Learner 0                            3      3     0 of 1  01_processes\n",
                  "Learner 29                           0      3     1 of 1  00_start_here\n",
                  "   20 ✔ eight\n   10   two\n", "Anyone can edit such a file"):
        assert words in said, said
    rows = [line.split()[:6] for line in said.splitlines() if line.startswith(tuple(COURSE))]
    assert rows == [[name, *counts.split(), "4", "12", "0"]
                    for name, counts in zip(COURSE, ("30 25", "20 20", "10 10"), strict=True)]
    assert f"{REMAINDER} (29 of 30)" in said
    page = (room / "class.html").read_text()
    assert "29 read: <code>//</code> throws the remainder away." in page and "Learner" not in page
    assert "25 solved it, 5 have not solved it yet. Those who solved it took 4 tries and 12 minutes (medians)." in page
    assert page.count("</section>") == 2 and 'id="lesson-00" class="first"' in page


def test_the_page_begins_with_the_lesson_that_is_asked_for(room, capsys):
    classroom.summary(room, "01")
    assert 'id="lesson-01" class="first"' in (room / "class.html").read_text()
    with pytest.raises(SystemExit, match="There is nothing of lesson 05, but of 00, 01"):
        classroom.summary(room, "05")


@NEEDS_CHROMIUM
@pytest.mark.parametrize("lessons", [["07_mixed_precision"], pytest.param(None, marks=pytest.mark.long)],
                         ids=["one lesson", "all"])
def test_what_is_projected_fits_the_screen_and_tells_an_answer_when_asked(lessons, tmp_path, monkeypatch, capsys):
    """Thirty learners have bet on everything, and tried every exercise."""
    lessons = lessons or [*catalogue.modules()]
    questions = catalogue.questions()
    (tmp_path / "room").mkdir()
    for number in range(30):
        everything_tried(number, lessons, questions, tmp_path, monkeypatch)
    classroom.summary(tmp_path / "room", "07")
    with chromium() as page:
        page.context.set_offline(True)
        page.set_viewport_size({"width": 1280, "height": 720})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            for lesson in lessons:
                page.goto((tmp_path / "room" / "class.html").as_uri() + f"#lesson-{lesson[:2]}")
                assert page.evaluate(OVERFLOW) == [0, 0], lesson
                assert page.locator("section:visible").count() == 1
            assert not axe_findings(page)
        page.goto((tmp_path / "room" / "class.html").as_uri())  # of lesson 07
        page.get_by_role("button", name="In fp16, what is 2048 + 1?").press("Enter")
        told = page.get_by_role("dialog")
        assert told.locator(".options").inner_text().split("\n")[1::2] == ["10", "10", "10"]
        assert not told.get_by_text("✔").is_visible()
        told.get_by_text("The answer, and why").click()
        assert told.locator(".right").inner_text().startswith("✔")
        assert not axe_findings(page)
        page.keyboard.press("Escape")
        assert not told.is_visible()
    assert not page.errors


def test_what_a_real_class_sends(tmp_path, capsys):
    """As Moodle packs it: a folder each; Windows' endings and marks; twice; two of one name; and something else."""
    def sent(name, file, solved, encoding="utf-8"):
        kept = {"status": "correct" if solved else "not yet", "tries": solved + 1}
        one = {"format": classroom.FORMAT, "name": name, "exercises": {COURSE[0]: kept}, "predictions": {}}
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(one), encoding=encoding)
        return path

    first = sent("Anna", "Anna Abel_1_assignsubmission_file/anna.json", True)
    sent("Anna", "Anna Zech_2_assignsubmission_file/anna.JSON", False, "utf-8-sig")
    sent("Bert", "bert.json", True, "utf-16")
    (tmp_path / "anna (1).json").write_text(first.read_text())
    (tmp_path / "newer.json").write_text(json.dumps({"format": "parallel-pytorch-course, progress, 2"}))
    (tmp_path / "progress.json").write_text(json.dumps({COURSE[0]: {"status": "correct"}}))
    (tmp_path / "rest.zip").write_bytes(b"PK")
    for _ in range(2):  # the second time, the first one's page lies there
        classroom.summary(tmp_path)
        said = capsys.readouterr().out
        assert "3 learners\n" in said and "class.html is" not in said
        for words in ("Counted once: anna (1).json is the same export as Anna Abel_1_assignsubmission_file/anna.json",
                      "Left out: newer.json is no export of this course",
                      "Left out: progress.json is no export of this course",
                      "Left out: rest.zip is no export of this course"):
            assert words in said, said
        rows = [line for line in said.splitlines() if line.startswith(("Anna (", "Bert"))]
        assert [row.split()[-6] for row in rows] == ["1", "0", "1"] and "Anna Zech_2" in rows[1], said


@pytest.mark.parametrize("edited", [
    {"name": None}, {"predictions": []}, {"predictions": {"hello_lines": "two"}},
    {"predictions": {"hello_lines": {"status": "correct"}}}, {"predictions": {"hello_lines": {"first": ["two"]}}},
    *({"exercises": {COURSE[0]: entry}} for entry in (
        {}, {"status": "correct", "tries": "many"}, {"status": "not yet", "causes": ["a"]},
        {"status": "correct", "began": "yesterday", "solved": "today"})),
], ids=str)
def test_an_edited_export_is_left_out_and_stops_nobody(edited, tmp_path, capsys):
    good = {"format": classroom.FORMAT, "name": "Anna", "predictions": {},
            "exercises": {COURSE[0]: {"status": "correct", "tries": 1}}}
    (tmp_path / "good.json").write_text(json.dumps(good))
    (tmp_path / "edited.json").write_text(json.dumps({**good, **edited}))
    classroom.summary(tmp_path, "0")
    said = capsys.readouterr().out
    assert "Left out: edited.json" in said and "1 learners\n" in said and "To project: " in said


def test_a_folder_without_exports_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"No file in .* is an export"):
        classroom.summary(tmp_path)
    with pytest.raises(SystemExit, match=r"nowhere is no folder\."):
        classroom.summary(tmp_path / "nowhere")


def test_an_export_holds_nothing_but_what_it_says(tmp_path):
    journal.record(COURSE[0], "correct")
    said = elsewhere(["-m", "helpers.exercises", "export", str(tmp_path / "anna.json"), "--name", "Anna"])
    assert "1 exercises and 0 predictions of Anna: read it" in said
    text = (tmp_path / "anna.json").read_text()
    assert sorted(json.loads(text)) == ["exercises", "format", "name", "predictions"]
    assert str(ROOT) not in text


def test_an_older_course_and_a_newer_one_read_each_others_progress():
    older = {"a.b": {"status": "correct", "date": "2026"}, "a.c": {"status": "not yet"}}
    journal.write(journal.path(), json.dumps(older))
    journal.record("a.b", "not yet", "x")
    journal.record("a.c", "correct")
    kept = journal.exercises()
    assert kept["a.b"] == older["a.b"] and kept["a.c"]["tries"] == 1


def test_an_export_does_not_replace_the_progress_itself():
    journal.record("a.b", "correct")
    with pytest.raises(SystemExit, match="is your progress itself"):
        classroom.export(journal.path(), "Anna")
    assert journal.best_status() == {"b": "correct"}


def test_what_version_0_1_0_has_kept_is_read_and_added_to():
    """The file is that version's own: six exercises solved, two failed, five bets. Some are gone since."""
    before = json.loads((ROOT / "tests/progress_of_0_1_0.json").read_text())
    journal.write(journal.path(), json.dumps(before))
    shown = progress()
    solved = {lesson: sum(solved) for lesson, solved in shown.lessons.items() if any(solved)}
    assert solved == {"00_start_here": 2, "01_processes": 1, "02_parallel_sgd": 1, "05_distributed_data_parallel": 1}
    assert "You predicted 2 of 3. Your latest surprises:" in repr(shown)
    assert journal.best_status()["average_gradients"] == journal.best_status()["train_step"] == "not yet"
    answers = journal.first_answers()
    assert answers == {key.removeprefix("predict:"): entry for key, entry in before.items() if "first" in entry}
    assert len(answers) == 5
    for gone in "which_repeats", "cut_finishes_last":  # their lessons ask something else in their place
        del answers[gone]
    assert all(entry["first"] in predict(key).options for key, entry in answers.items())

    exercise = catalogue.module_of("00_start_here").say_it_once
    assert exercise.check(exercise.answer)
    journal.record("mixed_precision.train_step", "correct")
    after = json.loads(Path(journal.path()).read_text())
    assert after.pop(exercise.key)["status"] == "correct"
    assert after.pop("mixed_precision.train_step")["tries"] == 2 and len(before) == 13
    assert after == {key: entry for key, entry in before.items() if key != "mixed_precision.train_step"}
