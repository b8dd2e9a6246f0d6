"""The engine of the exercises on whatever a learner writes; the journal of what was solved."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers.exercises import journal
from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import Feedback
from helpers.exercises.group import InGroup
from helpers.exercises.in_rank import Lost
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("own_progress", "nothing_left")


@pytest.fixture
def own_progress(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    monkeypatch.setattr(journal, "_warned", False)
    return path


# ------------------------------------------------------------------- whatever a learner's code may be


class Number(Exercise):
    title, task, why, explanation = "A number", "Return twice the number.", "why", "because"
    hints = ("first", "second")
    world_sizes = (2,)

    def answer(number):
        # twice
        return 2 * number

    def observe(double, case):
        return {"number": double(1)}

    rules = (same("number", "look"),)


def check(answer, exercise=Number):
    feedback = exercise().check(answer)
    assert feedback.status in repr(feedback) and feedback.status in feedback._repr_html_()
    return feedback


def not_yet_with(answer, *fragments, exercise=Number):
    feedback = check(answer, exercise)
    assert feedback.status == "not yet" and not feedback
    for fragment in fragments:
        assert fragment in repr(feedback), feedback
    return feedback


@pytest.mark.parametrize("given, said", [
    (None, "given None"), (Number.answer(1), "an int"), ("number", "a str"), (dict, "a class")])
def test_no_function(given, said):
    """Such as what comes back when the function was called, or its name as text."""
    not_yet_with(given, said, "the function itself", "`check(number)`")


def later_in_rank_1(number):
    if os.environ["RANK"] == "1":
        raise NotImplementedError("later")
    time.sleep(60)


@pytest.mark.parametrize("answer", [..., lambda number: ..., later_in_rank_1])
def test_not_attempted(answer):
    assert check(answer).status == "not attempted"


def test_the_own_line_is_told_where_torch_raises():
    def double(number):
        import torch
        return torch.nn.Module()(number)  # a NotImplementedError, and still an attempt

    not_yet_with(double, "forward", "return torch.nn.Module()(number)")


def test_other_parameters():
    not_yet_with(lambda *, number: 2, "your function takes", "`(number)`")


def test_callables_of_other_kinds_are_run():
    import functools

    import torch

    class Double:
        def __call__(self, number):
            return 2 * number

        def method(self, number):
            return 2 * number

    class Module(torch.nn.Module):
        def forward(self, number):
            return 2 * number

    for right in (functools.partial(lambda factor, number: factor * number, 2), lambda number: 2 * number,
                  Double(), Double().method, Module()):
        assert check(right), right
    not_yet_with(len, "TypeError", "has no len()")


def test_an_older_function_is_not_judged_in_the_place_of_one_that_did_not_compile():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.user_ns["number_exercise"] = Number()
        shell.run_cell("def double(number):\n    return 2 * number", store_history=True)
        shell.run_cell("feedback = number_exercise.check(double)", store_history=True)
        assert shell.user_ns["feedback"]
        shell.run_cell("def double(number):\n    return 3 * * number", store_history=True)
        shell.run_cell("feedback = number_exercise.check(double)", store_history=True)
        assert "`double` did not run: SyntaxError" in repr(shell.user_ns["feedback"])
    finally:
        InteractiveShell.clear_instance()


def test_cannot_be_sent():
    """The words name the variable, also beside one that is not assigned yet."""
    def outer():
        def double(number):
            return later, lock

        lock = threading.Lock()
        if not lock:
            later = 1
        return double

    not_yet_with(outer(), "the variable `lock`, which double() uses, cannot be sent to another process")


def test_raises():
    def double(number):
        assert os.environ["RANK"] == "0", f"I am {object()}"
        return [2, 2][number:] + [4][7]

    feedback = not_yet_with(double, "rank 0 of 2 raised IndexError",
                            "`return [2, 2][number:] + [4][7]` (line ", ", in double)")
    assert repr(feedback) == repr(check(double)), "the same in every execution, though both ranks raise"

    def boom(number):
        if os.environ["RANK"] == "1":
            raise ValueError(f"<b>boom</b> {object()}")
        return 2

    feedback = not_yet_with(boom, "rank 1 of 2 raised ValueError: <b>boom</b> <object object at 0x…>")
    assert "<b>boom" not in feedback._repr_html_()


def test_prints_a_lot():
    def double(number):
        for line in range(10_000):
            print("line", line)
        return 2 * number

    feedback = check(double)
    assert feedback and len(repr(feedback)) < 1000

    def wrong_and_loud(number):
        print("I was called with", number)

    feedback = not_yet_with(wrong_and_loud, "in rank 0, `number` is None", "_.logs[0]")
    assert feedback.logs == ("I was called with 1\n",) * 2


def interrupted(number):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("answer", "said"), [
    (lambda number: sys.exit(0), "left with sys.exit()"),
    (lambda number: os._exit(0), "exit code 0 (os._exit?)"),
    (lambda number: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    (interrupted, "raised KeyboardInterrupt"),
    (lambda number: threading.Lock(), "cannot be sent to the notebook"),
])
def test_ends_in_another_way(answer, said):
    not_yet_with(answer, said)


def test_returns_what_the_check_cannot_read():
    class Stubborn:
        def __eq__(self, other):
            raise RuntimeError("no")

    not_yet_with(lambda number: Stubborn(), "the check cannot read what came back", "RuntimeError: no")


def test_returns_a_lot():
    feedback = not_yet_with(lambda number: "x" * 1_000_000, "more characters")
    assert len(repr(feedback)) < 1000 and len(feedback._repr_html_()) < 1500


def test_torch_lists_all_that_a_function_takes():
    def answer(number):
        import torch

        return torch._C._distributed_c10d.ReduceOp("sum", number, number)

    feedback = not_yet_with(answer, "raised TypeError", "incompatible constructor arguments.")
    assert "supported" not in repr(feedback)


class NumberAlone(Number):
    world_sizes = (1,)
    timeout = 1


@pytest.mark.parametrize(("answer", "observed", "expected"), [
    (lambda number: [2][number], "observed: your function raised IndexError", "expected: it returns\n"),
    (lambda number: 2 * number.real + len(str(number))[0], "your function raised TypeError", "expected: it returns\n"),
    (lambda number: os._exit(3), "your function failed: left without", "expected: it returns, and what it returns"),
    (lambda number: time.sleep(60), "after 1 s: your function was at `", "expected: it returns within 1 s"),
])
def test_where_there_is_one_rank_feedback_speaks_of_the_function_alone(answer, observed, expected, monkeypatch):
    monkeypatch.setattr("helpers.exercises.exercise._busy", lambda: False)
    feedback = not_yet_with(answer, observed, expected, exercise=NumberAlone)
    assert "rank" not in repr(feedback).replace("`", ""), feedback


def test_sleeps_for_ever(monkeypatch):
    monkeypatch.setattr("helpers.exercises.exercise._busy", lambda: False)  # or it tries again, with more time

    class Impatient(Number):
        timeout = 1

    said = "rank 0 was at `", "rank 1 was at", "within 1 s"
    not_yet_with(lambda number: time.sleep(3600), *said, exercise=Impatient)


def test_interrupt_passes_through(interruptible):
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        Number().check(lambda number: time.sleep(60))
    timer.join()


class Total(InGroup):
    title, task, why, explanation, hints = "A sum", "Add it up.", "why", "because", ("hint",)
    world_sizes = (2, 3)
    cases = {"ones": 1, "twos": 2}

    def answer(number):
        import torch
        import torch.distributed as dist

        total = torch.tensor(number)  #: take
        dist.all_reduce(total)        #: add
        return total.item()

    def observe(total, number):
        return {"total": total(number)}

    rules = (same("total", "look"),)
    mistakes = (mistake("every rank adds", add=""),
                mistake("what it was given", take="total = torch.tensor(1)"))


def test_cases_and_ranks_stand_before_what_was_observed():
    assert check(Total.answer, Total)

    def for_ones(number):
        import torch.distributed as dist
        return dist.get_world_size()

    not_yet_with(for_ones, "2 ranks, twos: in rank 0, `total` is 2", "what it was given", exercise=Total)

    def for_two_ranks(number):
        return 2 * number

    not_yet_with(for_two_ranks, "3 ranks, ones: in rank 0, `total` is 2", "look", exercise=Total)

    def raises_for_twos(number):
        assert number == 1, "too many"
        return Total.answer(number)

    not_yet_with(raises_for_twos, "rank 0 of 2 raised AssertionError: given twos: too many", exercise=Total)


def test_who_waits_in_vain_is_told_with_the_line():
    def rank_0_asks(number):
        import torch
        import torch.distributed as dist
        total = torch.tensor(number)
        if dist.get_rank() == 0:
            dist.all_reduce(total)
        return total.item()

    said = "2 ranks, ones: rank 0 waited in vain at `dist.all_reduce(total)`, rank 1 had returned"
    not_yet_with(rank_0_asks, said, exercise=Total)

    def destroys(number):
        import torch.distributed as dist
        dist.destroy_process_group()

    not_yet_with(destroys, "it had destroyed the process group", exercise=Total)

    def rank_1_fails(number):
        import torch.distributed as dist
        if dist.get_rank() == 1:
            raise ValueError("boom")
        dist.barrier()

    not_yet_with(rank_1_fails, "rank 1 of 2 raised ValueError: given ones: boom", exercise=Total)


def test_a_right_answer_is_right_where_its_rank_gets_no_core():
    """A rank comes too late, and had no core to run on: the limit grows, and the check tries again."""
    class Starved(Total):
        world_sizes = (2,)
        timeout = 60  # on a busy machine `limit` may have grown to several seconds in the first try

        @classmethod
        def run(cls, answer, case, slowly):
            left = super().run(answer, case, slowly)
            return left._replace(starved=1.0) if isinstance(left, Lost) else left

    def late(number):
        import torch.distributed as dist
        limit = Starved.limit
        if dist.get_rank() == 1 and limit < 8 * Starved.patience:
            time.sleep(1.7 * limit)
        return Total.answer(number)

    assert check(late, Starved)


def test_hints_come_in_turn_then_end():
    exercise = Number()
    said = [repr(exercise.hint()) for _ in range(4)]
    assert said[:2] == ["**Hint 1 of 2:** first", "**Hint 2 of 2:** second"]
    assert "no more hints" in said[2] and said[3] == said[2]


def test_solution_shows_source():
    solution = Number().solution()
    assert repr(solution) == solution._repr_markdown_()
    code = "def number(number):\n    # twice\n    return 2 * number"
    assert repr(solution) == f"```python\n{code}\n```\n\nbecause"


def test_feedback_as_html_escapes_and_marks_code():
    shown = Feedback("not yet", "`a < b`", "<script>", title="T & U")._repr_html_()
    assert "<code>a &lt; b</code>" in shown and "&lt;script&gt;" in shown and "T &amp; U" in shown


def test_import_is_cheap():
    code = ("import sys, helpers.exercises, lessons.start_here.exercises\n"
            "assert not {'torch', 'helpers.launcher', 'IPython', 'cloudpickle'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# ------------------------------------------------------------------------------------------ progress


def test_best_status_is_kept(own_progress):
    for status in ("not attempted", "not yet", "correct", "not yet", "not attempted"):
        journal.record("a.b", status)
    kept = json.loads(own_progress.read_text())
    assert kept["a.b"]["status"] == "correct" and len(kept["a.b"]["date"]) == len("2026-01-31")
    assert os.listdir(own_progress.parent) == ["progress.json"]


def test_nothing_is_written_before_an_attempt_and_an_empty_file_is_a_beginning(own_progress, capsys):
    journal.record("a.b", "not attempted")
    assert not own_progress.exists()
    own_progress.touch()
    assert not journal.best_status()
    journal.record("a.b", "not yet")
    assert capsys.readouterr().out == "" and os.listdir(own_progress.parent) == ["progress.json"]


@pytest.mark.parametrize("content", [b'{"a.b": {"status": "corr', b"\xff\xfe\x00"])
def test_damaged_file_is_kept_aside(own_progress, capsys, content):
    own_progress.write_bytes(content)
    journal.record("a.b", "correct")
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and f"damaged; it is kept as {own_progress}.damaged" in said
    assert Path(f"{own_progress}.damaged").read_bytes() == content
    assert json.loads(own_progress.read_text())["a.b"]["status"] == "correct"


@pytest.mark.parametrize("place", ["file/progress.json", "folder"])
def test_unwritable(tmp_path, monkeypatch, capsys, place):
    (tmp_path / "file").write_text("regular")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / place))
    assert Number().check(Number.answer)
    journal.record("a.b", "correct")
    assert not journal.best_status()
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "COURSE_PROGRESS" in said


def test_without_a_home_it_lies_in_the_current_folder(tmp_path, monkeypatch):
    """As in a container whose user the system does not know: no folder named ~ appears."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COURSE_PROGRESS")
    monkeypatch.setattr(os.path, "expanduser", str)  # which leaves the ~ in its place
    journal.record("a.b", "correct")
    journal.record("a.c", "correct")
    file = tmp_path / ".parallel-pytorch-course.json"
    assert journal.best_status() == {"b": "correct", "c": "correct"} and os.listdir(tmp_path) == [file.name]


def test_write_is_atomic(own_progress, monkeypatch):
    journal.record("a.b", "correct")
    before = own_progress.read_text()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    journal.record("c.d", "correct")
    assert own_progress.read_text() == before and os.listdir(own_progress.parent) == ["progress.json"]


def test_another_kernels_progress_is_kept(own_progress):
    journal.record("a.b", "correct")
    kept = json.loads(own_progress.read_text())
    own_progress.write_text(json.dumps(kept | {"c.d": kept["a.b"]}))
    journal.record("e.f", "not yet")
    assert sorted(json.loads(own_progress.read_text())) == ["a.b", "c.d", "e.f"]
