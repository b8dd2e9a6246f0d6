"""Model parallelism: a schedule's clock against the formula, the dry run, the explorer."""

import ast
from itertools import product

import nbformat
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers import launch
from helpers.instruments.collectives import counted_traffic
from helpers.instruments.waits import form_group
from helpers.widgets.shapes import PALE, RANKS
from lessons.model_parallel import product_explorer, split_products
from lessons.model_parallel.dry_run import dry_run
from lessons.model_parallel.schedule_explorer import scene, schedule_explorer
from lessons.model_parallel.schedules import (
    COST,
    cost,
    dual_pipe_v,
    gpipe,
    interleaved,
    messages,
    most_held,
    one_f_one_b,
    parts_of,
    simulate,
    zero_bubble_1p,
    zero_bubble_v,
)
from tests.conftest import ROOT, shapes_of

LESSON = nbformat.read(ROOT / "notebooks" / "10_model_parallel.ipynb", as_version=4)

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("p, m", [(1, 1), (4, 8), (7, 3)])
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_bubble_is_the_formulas(schedule, p, m):
    timeline = simulate([schedule(rank, p, m) for rank in range(p)])
    assert timeline.end == 3 * (m + p - 1)
    assert timeline.bubble == pytest.approx((p - 1) / (m + p - 1))
    held = [m] * p if schedule is gpipe else [min(m, p - rank) for rank in range(p)]
    assert timeline.held == held


@pytest.mark.parametrize("p, m, v", [(4, 8, 4), (2, 6, 3)])
def test_interleaved_is_the_formulas_and_torchs(p, m, v):
    orders = [interleaved(rank, p, m, v) for rank in range(p)]
    assert simulate(orders).bubble == pytest.approx((p - 1) / (v * m + p - 1))
    assert messages(orders) == 2 * m * (p * v - 1)
    assert orders == torchs_own("ScheduleInterleaved1F1B", p, m, [i * p for i in range(v)])


def built(schedule, ranks, micro_batches, stages_of_rank_0):
    """Torch's schedule of that name, as rank 0 builds it: nothing runs."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    number = ranks * len(stages_of_rank_0)
    stages = [PipelineStage(nn.Linear(1, 1), i, number, torch.device("cpu")) for i in stages_of_rank_0]
    try:
        return getattr(schedules, schedule)(stages, micro_batches, loss_fn=nn.functional.mse_loss)
    finally:
        dist.destroy_process_group()


def torchs_own(schedule, ranks, micro_batches, stages_of_rank_0):
    """By rank, what torch's schedule of that name does, in our words."""
    table = built(schedule, ranks, micro_batches, stages_of_rank_0).pipeline_order
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}

    def step(action):
        if action.sub_actions:  # a forward and a backward that overlap
            return tuple(step(part) for part in action.sub_actions)
        return kinds[action.computation_type.name], action.microbatch_index, action.stage_index

    return [[step(action) for action in table[rank] if action] for rank in range(ranks)]


LIKE_A_V = {"ScheduleZBVZeroBubble": zero_bubble_v, "ScheduleDualPipeV": dual_pipe_v}


@pytest.mark.parametrize("p, m", [(1, 2), (3, 7), (4, 8), (8, 16), (5, 23)])
@pytest.mark.parametrize("name", LIKE_A_V)
def test_stages_like_a_v_are_torchs(name, p, m):
    orders = [LIKE_A_V[name](rank, p, m) for rank in range(p)]
    assert orders == torchs_own(name, p, m, [0, 2 * p - 1])
    timeline = simulate(orders)
    idle = 2 * (p - 1) if name == "ScheduleDualPipeV" else p - 1
    assert timeline.end == 6 * m + idle, "a stage costs 3 for each micro-batch, a rank has two"
    # One more where a rank does a forward before the backward that makes room for it.
    assert timeline.held == [2 * p + (name == "ScheduleDualPipeV")] * p
    assert messages(orders) == 4 * m * (p - 1), "between the two stages of the last rank there is none"


def test_dual_pipe_v_of_torch_sends_once_both_of_a_pair_are_done():
    orders = built("ScheduleDualPipeV", 4, 8, [0, 7]).pipeline_order_with_comms
    steps = [str(step) for step in orders[0]]
    pair = steps.index("(0F7;7B3)OVERLAP_F_B")
    assert steps[pair + 1:pair + 3] == ["0SEND_F7", "7SEND_B3"]


@pytest.mark.parametrize("p, m", [(2, 7), (4, 10), (6, 12)])
def test_each_rank_of_dual_pipe_v_is_idle_for_as_long_as_deepseek_says(p, m):
    timeline = simulate([dual_pipe_v(rank, p, m) for rank in range(p)])
    forward, backward, weights = (COST[kind] for kind in "FBW")
    pair, stages = forward + backward, 2 * p
    published = (stages / 2 - 1) * (pair + backward - 3 * weights)  # README of deepseek-ai/DualPipe
    assert [timeline.end - sum(map(cost, starts)) for starts in timeline.starts] == [published] * p


def test_a_pair_starts_when_both_can_and_sends_when_both_are_done():
    pair = ("F", 1, 0), ("B", 0, 0)
    orders = [[("F", 0, 0), pair, ("B", 1, 0)], [("F", 0, 1), ("B", 0, 1), ("F", 1, 1), ("B", 1, 1)]]
    first, second = simulate(orders).starts
    assert first[pair] == 4, "1 for F0 here, 1 for F0 there, 2 for its B"
    assert second["F", 1, 1] == 4 + 3


@pytest.mark.parametrize("p", [2, 4, 7])
def test_ranks_of_zero_bubble_never_wait_once_they_have_begun_from_2p_minus_1_micro_batches_on(p):
    waits = {}
    for m in (2 * p - 2, 2 * p - 1, 3 * p):
        timeline = simulate([zero_bubble_v(rank, p, m) for rank in range(p)])
        spans = [(min(starts.values()), max(starts.values()) + 1) for starts in timeline.starts]
        waits[m] = [end - begin - 6 * m for begin, end in spans]
        if m >= 2 * p - 1:
            assert spans == [(rank, timeline.end - (p - 1 - rank)) for rank in range(p)]
    assert waits.pop(2 * p - 2)[0] > 0
    assert list(waits.values()) == [[0] * p] * 2


@pytest.mark.parametrize("p, m, v", [(1, 1, 1), (4, 8, 1), (3, 8, 1), (8, 16, 1), (4, 8, 2), (3, 9, 3)])
def test_halved_backwards_leave_a_third_of_the_bubble_of_1f1b(p, m, v):
    orders = [zero_bubble_1p(rank, p, m, v) for rank in range(p)]
    assert orders == torchs_own("ScheduleInterleavedZeroBubble", p, m, [i * p for i in range(v)])
    timeline = simulate(orders)
    assert timeline.end == 3 * m * v + (p - 1), "1F1B's is 3 * (p - 1)"
    assert timeline.held == [v * p] * p, "each rank as much as rank 0 in 1F1B"
    assert messages(orders) == 2 * m * (v * p - 1), "as in 1F1B"


@pytest.mark.long
@pytest.mark.parametrize("p", range(2, 11))
def test_halved_backwards_of_any_shape_are_torchs(p):
    for m in [*range(1, 2 * p + 6), 3 * p + 1, 5 * p]:
        orders = [zero_bubble_v(rank, p, m) for rank in range(p)]
        assert orders == torchs_own("ScheduleZBVZeroBubble", p, m, [0, 2 * p - 1])
        assert simulate(orders).end == 6 * m + p - 1 + max(0, 3 * p - 1 - 2 * m), "too few do not fill the gaps"
        if m >= 2 * p:
            orders = [dual_pipe_v(rank, p, m) for rank in range(p)]
            assert orders == torchs_own("ScheduleDualPipeV", p, m, [0, 2 * p - 1])
            assert simulate(orders).end == 6 * m + 2 * (p - 1)
        if m % max(1, m // p) == 0:  # torch takes no others
            orders = [zero_bubble_1p(rank, p, m) for rank in range(p)]
            assert orders == torchs_own("ScheduleInterleavedZeroBubble", p, m, [0])
            assert simulate(orders).end == 3 * m + p - 1 + max(0, p - m)


@pytest.mark.parametrize("schedule, p, m", [(zero_bubble_1p, 3, 7), (zero_bubble_v, 3, 4), (dual_pipe_v, 3, 7)])
def test_a_whole_backward_or_both_its_halves_once(schedule, p, m):
    steps = [step for rank in range(p) for step in parts_of(schedule(rank, p, m))]
    stages = p if schedule is zero_bubble_1p else 2 * p
    for stage in range(stages):
        for i in range(m):
            done = sorted(kind for kind, *where in steps if where == [i, stage])
            assert done in (["B", "F"], ["F", "I", "W"])


@pytest.mark.parametrize("p, m", [(4, 3), (2, 1), (6, 10)])
def test_zero_bubble_of_few_micro_batches_is_torchs(p, m):
    orders = [zero_bubble_v(rank, p, m) for rank in range(p)]
    assert orders == torchs_own("ScheduleZBVZeroBubble", p, m, [0, 2 * p - 1])


def test_activations_are_held_until_the_weights_gradients_are_there():
    assert most_held([("F", 0), ("I", 0), ("F", 1), ("W", 0), ("I", 1), ("W", 1)]) == 2
    assert most_held([("F", 0), ("B", 0), ("F", 1), ("I", 1), ("W", 1)]) == 1


def test_the_lists_of_the_lesson_are_those_of_1f1b():
    (cell,) = [cell for cell in LESSON.cells if cell.id == "lists-of-1f1b"]
    names = {}
    exec(cell.source, names)
    assert [names["from_the_lists"](rank, 4, 8) for rank in range(4)] == [one_f_one_b(rank, 4, 8) for rank in range(4)]


def test_no_cell_but_the_learners_knows_the_answer_by_its_name():
    code = "\n".join(cell.source for cell in LESSON.cells if cell.cell_type == "code")
    bound = [getattr(node, "asname", None) or node.name for node in ast.walk(ast.parse(code))
             if isinstance(node, ast.FunctionDef | ast.alias)]
    for name in ("one_f_one_b", "column_parallel", "mean_gradient"):
        assert bound.count(name) == 1, "its stub"


@pytest.mark.parametrize("directions, together", [(("isend", "isend"), False), (("isend", "irecv"), True)])
def test_torch_starts_messages_together_where_a_rank_sends_and_receives(directions, together, monkeypatch):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    started = []
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda messages: started.append(len(messages)) or [])
    schedules._batch_p2p([dist.P2POp(getattr(dist, name), torch.ones(1), 1) for name in directions])
    dist.destroy_process_group()
    assert bool(started) == (together or torch.__version__ < "2.14")


@pytest.mark.parametrize("orders, said", [
    ([[("B", 0), ("F", 0)]], r"rank 0 is at \('B', 0\) and waits for ever for the output of micro-batch 0 by rank 0"),
    ([[("F", 0), ("B", 0)], [("B", 0), ("F", 0)]], "rank 0 is at .* waits for ever for the gradient .* by rank 1"),
    ([[("F", 0), ("F", 0)]], "twice"),
    ([[("F", 0), ("W", 0)]], r"rank 0 is at \('W', 0\) and waits for ever for the gradient"),
])
def test_a_schedule_that_cannot_be_run_is_refused(orders, said):
    with pytest.raises(ValueError, match=said):
        simulate(orders)


@pytest.mark.long  # lesson 10 runs it, too
def test_dry_run_counts_a_llama_of_70_billion():
    """Without a step of real size anywhere: one and two blocks, and a straight line to 80."""
    one, two, again = (dry_run((2, 4, 2), layers, length=256) for layers in (1, 2, 1))
    assert one == again, "the first model of a process must not count more, as it would in torch 2.11 with betas"
    block = two["parameters"] - one["parameters"]
    assert block == 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    assert one["parameters"] + 79 * block == pytest.approx(70.6e9, rel=0.01)
    # Shards of 4, and halves of all that is split: norms are not, and are next to nothing.
    assert one["states"] * 2**30 == pytest.approx(16 * one["parameters"] / 8, rel=0.01)
    # Forward and backward take 6 FLOPs for each parameter of a matrix, token and tensor half. (Attention, left out,
    # would add 0.3 %.)
    matrices = block - 2 * 8192
    assert two["tflop"] - one["tflop"] == pytest.approx(6 * matrices * 256 / 2 / 1e12, rel=0.001)
    assert two["calls"] > one["calls"] and two["peak"] > two["states"]
    # A reduce-scatter and an all-gather are one all-reduce.
    assert dry_run((2, 4, 2), 2, sequence=True, length=256)["sent"] == two["sent"]


def test_pipeline_holds_sends_and_computes_what_the_schedule_says():
    frames = scene("1F1B", 4, 8, 2)["frames"]
    assert len(frames) == 33 + 2
    assert "idle 27%; rank 0 held at most 4" in frames[-1]["title"]
    assert "48 messages; by rank, at most 4, 3, 2, 1 micro-batches were held" in frames[-1]["note"]
    now = shapes_of(frames[4])  # all go forward; rank 0 now holds as many as there are ranks, the last one its first
    assert [now[f"rank {rank}"]["text"] for rank in range(4)] == ["F3", "F2", "F1", "F0"]
    assert [sum(name.startswith(f"place {rank}") for name in now) for rank in range(4)] == [4, 3, 2, 1]
    assert [name for name in now if name.startswith("message")] == ["message 0 F", "message 1 F", "message 2 F"]
    later = shapes_of(frames[6])  # only the last one has gone backward, and sends what the others wait for
    assert [later[f"rank {rank}"].get("text") for rank in range(4)] == [None, None, None, "B0"]
    assert later["message 3 B"]["x"] < later["message 3 B"]["from"]["x"], "to the left"
    assert shapes_of(frames[7])["place 3 0"]["text"] == "1", "the place of micro-batch 0 is free, and is taken"
    assert sum("passes" in shape for frame in frames for shape in frame["shapes"]) == 48


def test_pipeline_is_waiting_behind_and_bars_in_front():
    for schedule, idle in (("GPipe", 3 / 11), ("1F1B", 3 / 11), ("Interleaved", 3 / 19)):
        last = shapes_of(scene(schedule, 4, 8, 2)["frames"][-1])
        bars = [shape["w"] for name, shape in last.items() if name[0].isdigit()]
        assert 1 - sum(bars) / (4 * last["wait"]["w"]) == pytest.approx(idle, abs=0.09), "with gaps between the bars"


def test_pipeline_of_many_tasks_has_few_frames():
    frames = scene("Interleaved", 8, 30, 4)["frames"]
    rounded_up = f"Interleaved, 32 micro-batches: idle {7 / (4 * 32 + 7):.0%}"
    assert frames[-1]["title"].startswith(rounded_up)
    assert len(frames) < 20, "2048 tasks"
    assert scene("GPipe", 8, 30, 4)["off"] == ["v"]


def test_pipeline_explorer_stores_its_presets():
    stage = schedule_explorer()
    assert len(stage.story["scenes"]) >= 1 + len(stage.story["presets"])
    assert len(str(stage.story)) < 140_000


def test_pipeline_shows_halves_of_backwards():
    frames = scene("DualPipeV", 4, 3, 2)["frames"]
    assert "0 to 7" in frames[0]["title"], "3 micro-batches are too few for four ranks"
    assert "cannot take 3, so it takes 8" in frames[0]["note"]
    assert "idle 11%; rank 0 held at most 4.5" in frames[-1]["title"]
    busy = {shape["text"][0]: shape for frame in frames for name, shape in shapes_of(frame).items()
            if name.startswith("rank ") and "text" in shape}
    keys = {name[4:] for name in shapes_of(frames[-1]) if name.startswith("key ")}
    assert keys == {"F forward", "B backward", "I of input", "W of weights"}
    assert scene("ZB-1P", 4, 8, 2)["axis"]["unit"] == "logical time: F 1, I 1, W 1"
    assert {kind: shape.get("hatch") for kind, shape in busy.items()} == {"F": None, "B": None, "I": "///", "W": "xx"}


#: (split, whether sequence parallel) of all products that the explorer shows.
PRODUCTS = [*((split, False) for split in split_products.SPLITS), ("columns, then rows", True)]
MATRICES = [torch.from_numpy(matrix).float()
            for matrix in (split_products.X, split_products.FIRST, split_products.SECOND)]


def products_in_real_ranks(matrices):
    """For each of `PRODUCTS`, what a rank holds after each step, and its collectives; and the same of torch's split."""
    form_group(30)
    rank, n = dist.get_rank(), dist.get_world_size()
    x, a, b = matrices
    asked = []

    def columns(tensor):
        return tensor.chunk(n, dim=1)[rank]

    def rows(tensor):
        return tensor.chunk(n)[rank]

    def gathered(tensor, dimension):
        whole = tensor.new_empty(n * len(tensor), tensor.shape[1])
        asked.append("all_gather")
        dist.all_gather_into_tensor(whole, tensor.contiguous())
        return torch.cat(whole.chunk(n), dimension)

    def reduced(tensor):
        asked.append("all_reduce")
        dist.all_reduce(tensor := tensor.clone())
        return tensor

    def scattered(tensor):
        own = tensor.new_empty(len(tensor) // n, tensor.shape[1])
        asked.append("reduce_scatter")  # the recorder calls gloo's an all-reduce
        dist.reduce_scatter_tensor(own, tensor)
        return own

    def steps(split, sequence):
        if split == "columns":
            yield {"X": x, "W": columns(a)}
            yield {"Y": (own := x @ columns(a))}
            yield {"Y": gathered(own, 1)}
        if split == "rows":
            yield {"X": columns(x), "W": rows(a)}
            yield {"Y": (own := columns(x) @ rows(a))}
            yield {"Y": reduced(own)}
        if split == "columns, then rows":
            yield {"X": rows(x) if sequence else x, "A": columns(a), "B": rows(b)}
            if sequence:
                yield {"X": gathered(rows(x), 0)}
            yield {"H": (own := x @ columns(a))}
            yield {"H": own.relu(), "X": rows(x) if sequence else x}
            yield {"Y": (own := own.relu() @ rows(b))}
            yield {"Y": (scattered if sequence else reduced)(own)}
        if split == "rows, then columns":
            yield {"X": columns(x), "A": rows(a), "B": columns(b)}
            yield {"H": (own := columns(x) @ rows(a))}
            yield {"H": (whole := reduced(own))}
            yield {"H": whole.relu()}
            yield {"Y": (own := whole.relu() @ columns(b))}
            yield {"Y": gathered(own, 1)}

    found = []
    for split, sequence in PRODUCTS:
        held, now = [], {}
        asked.clear()
        with counted_traffic() as traffic:
            for change in steps(split, sequence):
                now = {**now, **change}
                held.append({matrix: tensor.tolist() for matrix, tensor in now.items()})
        found.append((held, list(zip(asked, [each.bytes for each in traffic.collectives], strict=True))))
    return found, [by_plan(sequence, matrices) for sequence in (False, True)]


def by_plan(sequence, matrices):
    """Two layers that torch splits: a rank's pieces of both weights and of the result, and the collectives."""
    x, *weights = matrices
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    for layer, weight in zip((net[0], net[2]), weights, strict=True):
        layer.weight = nn.Parameter(weight.T.contiguous())
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    if sequence:
        plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
        x = x.chunk(dist.get_world_size())[dist.get_rank()]
    parallelize_module(net, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    with CommDebugMode() as counter, torch.no_grad():
        y = net(x)
    pieces = [net[0].weight.to_local().T, net[2].weight.to_local().T, y]
    return [piece.tolist() for piece in pieces], sorted(str(what).split(".")[-1] for what in counter.get_comm_counts())


def as_rows(piece):
    """A piece, {(row, column): Number}, as a list of rows."""
    rows = {}
    for (row, _), number in sorted(piece.items()):
        rows.setdefault(row, []).append(number.value)
    return list(rows.values())


def sent_by(collective, size, ranks):
    """Bytes that each rank sends at least, if it has handed in so many."""
    parts = {"all_reduce": 2 / ranks, "reduce_scatter": 1 / ranks, "all_gather": 1}
    return size * parts[collective] * (ranks - 1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_products_in_pieces_are_those_of_real_ranks(ranks):
    results = launch(products_in_real_ranks, nprocs=ranks, args=(MATRICES,), show=False).results
    for rank, (found, plans) in enumerate(results):
        for (split, sequence), (held, collectives) in zip(PRODUCTS, found, strict=True):
            every = split_products.moments(split, ranks, sequence)
            # Real ranks show an all-reduce once it is over.
            moments = [moment for moment in every if not (moment.is_half and moment.act == "reduce-scatter")]
            for moment, real in zip(moments, held, strict=True):
                assert {matrix: as_rows(by_rank[rank]) for matrix, by_rank in moment.held.items()} == real
                assert sum(moment.bytes_held(rank)) == sum(4 * len(rows) * len(rows[0]) for rows in real.values())
            sent = sum(sent_by(*collective, ranks) for collective in collectives)
            assert sum(moment.bytes_sent(rank) for moment in every) == sent, collectives
        for sequence, (pieces, collectives) in zip((False, True), plans, strict=True):
            *_, last = split_products.moments("columns, then rows", ranks, sequence)
            assert [as_rows(last.held[matrix][rank]) for matrix in "ABY"] == pieces, "torch cuts where we cut"
            assert collectives == (["all_gather_into_tensor", "reduce_scatter_tensor"] if sequence else ["all_reduce"])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("split, sequence", PRODUCTS)
def test_products_in_pieces_are_those_of_one_process(split, sequence, ranks):
    x, first, second = MATRICES
    right = x @ first if "then" not in split else (x @ first).relu() @ second
    moments = split_products.moments(split, ranks, sequence)
    pieces = moments[-1].held["Y"]
    if sequence:  # each rank has its own tokens
        assert [row for piece in pieces for row in as_rows(piece)] == right.tolist()
    else:
        assert [as_rows(piece) for piece in pieces] == [right.tolist()] * ranks
    for moment in moments:
        if moment.act != "product":
            continue
        left, _ = split_products.factors_of(moment.matrix, split)
        whole = (x @ first).relu() @ second if left == "H" else x @ first
        for row, column in product(range(4), repeat=2):
            parts = [piece[row, column] for piece in moment.held[moment.matrix] if (row, column) in piece]
            assert sum(part.value for part in parts) == whole[row, column]
            assert [part.is_term for part in parts] in ([False], [True] * ranks)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("split, sequence", PRODUCTS)
def test_product_explorer_draws_what_ranks_hold(split, sequence, ranks):
    moments = split_products.moments(split, ranks, sequence)
    frames = product_explorer.scene(split, ranks, sequence, marked=9)["frames"]
    sent = 0
    for moment, frame in zip(moments, frames, strict=True):
        now = shapes_of(frame)
        drawn = {}
        for name, shape in now.items():
            if name[0] in "XWABHY" and len(name) == 4:
                rank, row, column = map(int, name[1:])
                for below, text in enumerate(shape["text"].split("\n")):
                    drawn[name[0], rank, row + below, column] = int(text), shape["fill"]
        held = {(matrix, rank, *place): number for matrix, by_rank in moment.held.items()
                for rank, piece in enumerate(by_rank) for place, number in piece.items()}
        assert drawn.keys() == held.keys()
        for place, number in held.items():
            colours = PALE if number.maker is None else (product_explorer.TERMS if number.is_term else RANKS)
            colour = colours if number.maker is None else colours[number.maker]
            assert drawn[place] == (number.value, colour)
        messages = [shape for name, shape in now.items() if name.startswith("message")]
        assert len(messages) == len(moment.messages)
        sent += moment.bytes_sent(ranks - 1)
        weights, activations = moment.bytes_held(ranks - 1)
        assert now["numbers"]["text"] == f"Each rank: weights {weights} bytes, activations {activations}, sent {sent}"


@pytest.mark.parametrize("split, sequence", PRODUCTS)
def test_product_explorer_tells_how_each_number_came_about(split, sequence):
    before = None
    for moment in split_products.moments(split, 2, sequence):
        for row, column in product(range(4), repeat=2):
            for rank, text in product_explorer.workings(before, moment, split, (row, column)).items():
                value = moment.held[moment.matrix][rank][row, column].value
                if moment.act == "all-gather":
                    assert text.startswith(f"got {value} from rank {1 - rank}")
                else:
                    told, result = text.split(" = ")
                    assert eval(told.replace("·", "*"), {"relu": lambda number: max(0, number)}) == value == int(result)
        before = moment


@pytest.mark.parametrize("ranks", [2, 4])
def test_relu_of_terms_would_give_other_numbers_than_relu_of_their_sum(ranks):
    _, terms, *_ = split_products.moments("rows, then columns", ranks)
    wrong = sum(torch.tensor(as_rows(piece)).relu() for piece in terms.held["H"])
    x, first, _ = MATRICES
    assert (wrong != (x @ first).relu()).sum() >= 4


def test_between_a_layer_cut_by_columns_and_one_cut_by_rows_nothing_is_sent():
    both = [moment.act for moment in split_products.moments("columns, then rows", 4) if moment.messages]
    assert both == ["reduce-scatter", "all-gather"], "an all-reduce at the end"
    moments = split_products.moments("columns, then rows", 4, sequence=True)
    assert [moment.act for moment in moments if moment.messages] == ["all-gather", "reduce-scatter"]
    marked = product_explorer.scene("columns, then rows", 4, False, marked=6)["frames"][-3]
    assert marked["title"] == "Each rank computes a term of each number of Y"
    assert marked["alt"].endswith("Rank 3, Y: 2·(-1) = -2.")


def test_torchs_sequence_parallel_keeps_all_tokens_for_the_gradient_of_its_weight():
    # The lesson says so, and that the explorer, which drops them, would have to gather them again.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    kept = []
    net = parallelize_module(nn.Linear(64, 256), init_device_mesh("cpu", (2,)), ColwiseParallel(input_layouts=Shard(1)))
    keep = torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda kept: kept)
    with keep, CommDebugMode() as forward:
        y = net(torch.randn(4, 8, 64))
    with CommDebugMode() as backward:
        y.sum().backward()
    dist.destroy_process_group()
    assert (4 * 16, 64) in [tuple(tensor.shape) for tensor in kept], "each rank brought 8 of 16 tokens of each text"
    assert [str(kind) for kind in forward.get_comm_counts()] == ["c10d_functional.all_gather_into_tensor"]
    assert backward.get_total_counts() == 0, "no second gather"
