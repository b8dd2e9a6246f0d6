"""Who hangs? The rules of the hang explorer against real ranks; what it draws; what a reader may change."""

import random
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from helpers import RankError, launch
from lessons.ddp_in_practice import who_hangs_explorer
from lessons.ddp_in_practice.who_hangs import (
    FINISHED,
    LOCAL,
    NUMBERS,
    UNDEFINED,
    WAITS,
    End,
    Tried,
    as_python,
    as_rows,
    differences,
    from_rows,
    in_real_ranks,
    outcome,
    read,
    recorder,
    run,
    stays,
    written,
)
from lessons.ddp_in_practice.who_hangs_explorer import called_by, hang_explorer, moved, scene, without

pytestmark = pytest.mark.usefixtures("nothing_left")
COLLECTIVES = ["all_reduce", "bucket 0", "bucket 1", "broadcast", "barrier"]


def some_program(dice):
    """A script of 1 to 5 operations for 2 to 4 ranks, in which up to two ranks then leave one out, or swap two."""
    lanes = [[] for _ in range(dice.randint(2, 4))]
    for operation in dice.choices([*COLLECTIVES, "save", "send"], k=dice.randint(1, 5)):
        if operation == "send":
            sender, receiver = dice.sample(range(len(lanes)), 2)
            lanes[sender].append(f"send {receiver}")
            lanes[receiver].append(f"recv {sender}")
        else:
            for lane in lanes:
                lane.append(operation)
    for lane in filter(None, dice.sample(lanes, dice.randint(0, 2))):
        place = dice.randrange(len(lane))
        operation = lane.pop(place)
        if dice.random() < 0.5:
            lane.insert(dice.randint(0, len(lane)), operation)
    return lanes


def some_programs(seed, number):
    dice = random.Random(seed)
    return [some_program(dice) for _ in range(number)]


def assert_real_ranks_agree(programs, seconds=4):
    tried = in_real_ranks(*programs, seconds=seconds)
    found = {written(program): differences(program, one) for program, one in zip(programs, tried, strict=True)}
    assert not any(found.values()), {program: wrong for program, wrong in found.items() if wrong}
    return tried


# ------------------------------------------------------------------------------------------------ against real ranks


def test_real_ranks_end_as_the_rules_say():
    """The lesson's hangs, and a broadcast, whose ranks do not all need each other."""
    texts = [*(preset["setting"][0] for preset in hang_explorer().story["presets"]), who_hangs_explorer.WELL,
             "broadcast | | broadcast | broadcast"]
    tried = assert_real_ranks_agree([read(text) for text in texts], seconds=1)
    assert [end.state for end in tried[-1].ends] == [WAITS, FINISHED, FINISHED, WAITS]
    said = tried[0].words
    assert "rank 0 was at `dist.barrier()`" in said and "behind its last line" in said and "`dist.send(x, 1)`" in said


@pytest.mark.long
def test_twenty_programs_in_real_ranks():
    programs = some_programs(0, 20)
    states = {end.state for program in programs for end in outcome(program)}
    assert states == {FINISHED, WAITS, UNDEFINED}
    assert any("send" in written(program) for program in programs)
    assert_real_ranks_agree(programs)


@pytest.mark.long
def test_no_rank_finishes_an_all_reduce_of_different_sizes():
    programs = []
    for one in NUMBERS:
        for two in NUMBERS:
            lanes = [[one], [two], ["all_reduce"]]
            if one != two:
                programs += [lanes[:2], lanes, lanes[2:] + lanes[:2], [*lanes[:2], []], [*lanes, ["bucket 0"]]]
    assert all(UNDEFINED in {end.state for end in outcome(program)} for program in programs)
    assert_real_ranks_agree(programs)


@pytest.mark.long
def test_kinds_at_one_number_never_meet():
    """Two ranks, each pair of collectives: they meet, or wait for each other for ever, or differ in size."""
    programs = [[[one], [two]] for number, one in enumerate(COLLECTIVES) for two in COLLECTIVES[:number + 1]]
    for program in programs:
        (one,), (two,) = program
        states = {end.state for end in outcome(program)}
        assert states == {FINISHED if one == two else UNDEFINED if {one, two} <= set(NUMBERS) else WAITS}
    assert_real_ranks_agree(programs)


def given_up(operations):
    """What rank 0 raises in each of these, to which rank 1 never comes."""
    raised = []
    for operation in operations:
        dist.init_process_group("gloo", timeout=timedelta(seconds=0.5))
        try:
            if dist.get_rank() == 0:
                run(operation)
        except RuntimeError as error:
            raised.append(str(error))
        time.sleep(dist.get_rank())  # it stays in the meantime
        dist.destroy_process_group()
    return raised


def exits_or_waits(operation):
    """Rank 0 ends at once; rank 1 waits for it."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        run(operation)


@pytest.mark.long
def test_gloo_raises_when_a_finished_rank_exits():
    for operation in ["send 0", "recv 0", "barrier", "all_reduce", "broadcast"]:
        with pytest.raises(RankError, match="Connection closed by peer") as raised:
            launch(exits_or_waits, 2, args=(operation,), show=False, timeout=60)
        assert raised.value.rank == 1


@pytest.mark.long
def test_gloo_raises_after_its_timeout_whatever_it_waits_in():
    operations = ["send 1", "recv 1", "barrier", "all_reduce", "broadcast"]
    raised = launch(given_up, 2, args=(operations,), show=False, timeout=60).results[0]
    assert len(raised) == len(operations) and all("Timed out waiting 500ms" in error for error in raised)
    assert default_pg_timeout == timedelta(minutes=30)


# -------------------------------------------------------------------------------------------------------- the rules


def test_who_waits_for_whom():
    zero, one = outcome(read("save, barrier, all_reduce | all_reduce"))
    assert (zero.state, zero.operation, zero.waits_for) == (WAITS, "barrier", (1,))
    assert (one.state, one.operation, one.waits_for) == (WAITS, "all_reduce", (0,))
    ends = outcome(read("barrier, send 2 | barrier | recv 0, barrier"))
    assert [end.waits_for for end in ends] == [(2,), (2,), (0,)]
    ends = outcome(read("bucket 0 | bucket 0 | "))
    assert [(end.state, end.waits_for) for end in ends] == [(WAITS, (2,)), (WAITS, (2,)), (FINISHED, ())]


def test_time_is_counted_in_operations_and_in_waiting_for_the_last():
    (save, barrier, reduce), (early, later) = stays(read("save, barrier, all_reduce | barrier, all_reduce"))
    assert (save.comes, save.begins, save.ends, save.number) == (0, 0, 1, None)
    assert (barrier.comes, barrier.begins, barrier.number) == (1, 1, 1)
    assert (early.comes, early.begins, early.ends) == (0, 1, 2)
    assert reduce[1:4] == later[1:4] == (2, 2, 2)


def test_the_recorder_numbers_collectives_only():
    program = read("bucket 0, send 1, barrier, all_reduce | bucket 0, recv 0, all_reduce")
    assert recorder(program) == [[(1, "all_reduce", True), (2, "barrier", False)],
                                 [(1, "all_reduce", True), (2, "all_reduce", False)]]


def test_a_text_that_cannot_be_read_says_why():
    for text, why in {
        "barrier": "2 to 4",
        "barrier | barier": "“barier” is no operation",
        "send 2 | ": "no other rank",
        "send 0 | ": "no other rank",
        "send | ": "send 1",
        "save, save, save, save, save, save, save | ": "room for 6",
    }.items():
        with pytest.raises(ValueError, match=why):
            read(text)
        shown = scene(text, None, None)["frames"][0]
        assert why in shown["note"]
    assert read("save,  barrier| barrier ,") == [["save", "barrier"], ["barrier"]]


class Called(list):
    """Stands for torch.distributed: notes what is called, in the words of a program."""

    def all_reduce(self, tensor):
        self.append(tensor)

    def broadcast(self, tensor, source):
        self.append("broadcast")

    def barrier(self):
        self.append("barrier")

    def send(self, tensor, peer):
        self.append(f"send {peer}")

    def recv(self, tensor, peer):
        self.append(f"recv {peer}")

    def save(self, net, path):
        self.append("save")


def test_the_python_beside_the_lanes_is_the_program():
    for program in some_programs(1, 200):
        assert from_rows(as_rows(program), len(program)) == program
        for rank, lane in enumerate(program):
            called = Called()
            names = {"rank": rank, "dist": called, "torch": called, "net": None, "path": None, "x": None,
                     "weights": None, "loss": "all_reduce", "bucket_0": "bucket 0", "bucket_1": "bucket 1"}
            exec("\n".join(as_python(program)) or "pass", names)
            assert called == lane, written(program)
    assert as_python(read(who_hangs_explorer.WELL))[3:5] == ["if rank == 0:", "    torch.save(net, path)"]


# ----------------------------------------------------------------------------------------------------- the explorer


def last_frame(text, chosen=None):
    frame = scene(text, chosen, None)["frames"][-1]
    return frame, {shape["id"]: shape for shape in frame["shapes"]}


def test_its_last_frame_shows_who_waits_for_whom():
    for program in some_programs(2, 200):
        frame, shapes = last_frame(written(program))
        arrows = {name for name in shapes if name.startswith("arrow")}
        ends = outcome(program)
        assert arrows == {f"arrow {rank} {other}" for rank, end in enumerate(ends) for other in end.waits_for}
        finished = {name for name in shapes if name.startswith("end ")}
        assert finished == {f"end {rank}" for rank, end in enumerate(ends) if end.state == FINISHED}
        assert ("All ranks arrive" in frame["title"]) == (len(finished) == len(program))
        for rank, entries in enumerate(recorder(program)):
            _, name, is_retired = entries[-1] if entries else (0, "empty", None)
            assert name in shapes[f"recorder {rank}"]["text"]
            assert ("not" in shapes[f"recorder {rank}"]["text"]) == (is_retired is False)


def test_what_it_says_of_nccl_and_of_sizes():
    said = {text: last_frame(text)[1]["NCCL says"]["text"] for text in (
        "barrier | ", "barrier | broadcast", "bucket 0 | bucket 1", "send 1 | send 0", "barrier | all_reduce")}
    assert ["10 minutes" in text for text in said.values()] == [True, False, False, False, False]
    assert ["or\ndata corruption" in text for text in said.values()] == [False, True, True, False, False]
    assert "block the GPU" in said["send 1 | send 0"]
    assert "all-reduce of a\nnumber" in said["barrier | all_reduce"]
    assert "not defined" in last_frame("bucket 0 | bucket 1")[0]["title"]
    assert "NCCL says" not in last_frame("barrier | barrier")[1]


def test_gloo_need_not_wait_for_its_timeout_if_a_rank_has_finished():
    says = {text: last_frame(text)[1]["gloo says"]["text"] for text in ("barrier | ", "barrier | all_reduce")}
    assert ["finished rank exits" in text for text in says.values()] == [True, False]


def test_an_operation_is_dragged_along_its_lane():
    _, shapes = last_frame("save, barrier, all_reduce | all_reduce")
    control, places, texts = shapes["0 barrier 1"]["drag"]
    assert control == "program" and len(places) == 3
    assert texts == ["barrier, save, all_reduce | all_reduce", "save, barrier, all_reduce | all_reduce",
                     "save, all_reduce, barrier | all_reduce"]
    assert [shapes["0 barrier 1"]["x"], shapes["0 barrier 1"]["y"]] == places[1]


def test_an_operation_that_is_clicked_is_changed_by_buttons():
    text = "save, barrier, all_reduce | all_reduce"
    _, shapes = last_frame(text, [[0, 1], 2])
    does = {name[3:]: shape["click"] for name, shape in shapes.items() if name.startswith("do ")}
    assert does["take away"]["program"] == "save, all_reduce | all_reduce"
    assert does["on all ranks"]["program"] == "save, barrier, all_reduce | barrier, all_reduce"
    assert does["◂ earlier"] == {"program": "barrier, save, all_reduce | all_reduce", "chosen": [0, 0]}
    assert "only on rank 0" not in does, "it is so already"
    assert not any(name.startswith("do ") for name in last_frame(text, [[1, 5], 2])[1]), "it is no more"
    program = read("barrier | barrier | barrier")
    assert called_by(program, 2, 0, {0}) == [["barrier"], [], []]
    assert without(program, 1, 0) == [["barrier"], [], ["barrier"]]
    assert moved(read("save, barrier | "), 0, 1, 0) == [["barrier", "save"], []]


def test_the_button_shows_what_real_ranks_have_done(monkeypatch):
    asked = []

    def ranks_that_wait(program, seconds):
        asked.append((program, seconds))
        return [Tried([End(WAITS, "barrier"), End(WAITS, "all_reduce")], recorder(program), "no result.")]

    monkeypatch.setattr(who_hangs_explorer, "in_real_ranks", ranks_that_wait)
    frame = scene("barrier | all_reduce", None, [1, 0])["frames"][-1]
    assert asked == [([["barrier"], ["all_reduce"]], who_hangs_explorer.SECONDS)]
    assert (frame["title"], frame["note"]) == ("In real ranks: the same", "launch says: no result.")


@pytest.mark.long
def test_the_button_has_real_ranks_do_it():
    shown = scene("barrier | all_reduce", None, [1, 0])
    frame = shown["frames"][-1]
    assert shown["frame"] == -1
    assert frame["title"] == "In real ranks: the same" and "rank 1 was at `dist.all_reduce(loss)`" in frame["note"]
    assert shown["means"] == {"program": "barrier | all_reduce", "chosen": None, "tried": None}


def test_a_difference_would_be_shown():
    program = read("barrier | all_reduce")
    end = SimpleNamespace(state=FINISHED, operation="")
    tried = SimpleNamespace(ends=[end, end], recorder=recorder(program), words="")
    title, verdict, sentences = who_hangs_explorer._compared(program, tried)
    assert (title, verdict, len(sentences)) == ("In real ranks: something else", "not as drawn", 2)


def test_a_control_answers_at_once():
    text = " | ".join(["bucket 0, barrier, bucket 1, barrier, broadcast, save"] * 4)
    explorer = hang_explorer()
    began = time.perf_counter()
    explorer.packed(program=text, chosen=[[0, 1], 0], tried=None)
    assert time.perf_counter() - began < 0.06


def test_local_operations_have_no_counterpart():
    assert all(not stay.partners for lane in stays(read("save, compute | save")) for stay in lane)
    assert {"save", "compute"} == LOCAL
