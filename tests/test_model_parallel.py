"""Model parallelism: a schedule's clock against the formula, the dry run, the explorer."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers import launch
from helpers.figures import title
from lessons.model_parallel.schedule_explorer import schedule_explorer
from lessons.model_parallel.schedules import gpipe, interleaved, messages, one_f_one_b, simulate

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
    # Torch only builds: nothing runs.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=p)
    stages = [PipelineStage(nn.Linear(1, 1), i * p, p * v, torch.device("cpu")) for i in range(v)]
    table = ScheduleInterleaved1F1B(stages, m, loss_fn=nn.functional.mse_loss).pipeline_order
    dist.destroy_process_group()
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
    assert orders == [[(kinds[step.computation_type.name], step.microbatch_index, step.stage_index)
                       for step in table[rank] if step] for rank in range(p)]


@pytest.mark.parametrize("orders, said", [
    ([[("B", 0), ("F", 0)]], r"rank 0 is at \('B', 0\) and waits for ever for rank 0's \('F', 0\)"),
    ([[("F", 0), ("B", 0)], [("B", 0), ("F", 0)]], "rank 0 is at .* waits for ever for rank 1's"),
    ([[("F", 0), ("F", 0)]], "twice"),
])
def test_a_schedule_that_cannot_be_run_is_refused(orders, said):
    with pytest.raises(ValueError, match=said):
        simulate(orders)


@pytest.mark.long  # lesson 10 runs it, too
def test_dry_run_counts_a_llama_of_70_billion():
    """Without a step of real size anywhere: one and two blocks, and a straight line to 80."""
    args = ["--mesh", "2", "4", "2", "--layers", "1", "2", "1", "--length", "256"]
    one, two, again = launch("dry_run.py", 1, args=args, show=False, timeout=200).results[0]
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


def test_explorer_draws_the_simulated_timeline():
    explorer = schedule_explorer()
    for name, value in (("schedule", "1F1B"), ("ranks", 8), ("micro_batches", 20)):
        explorer.controls[name].value = value
    figure = explorer.figure()
    assert "held by rank: [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]" in figure.get_label()
    assert [len(rank.get_paths()) for rank in figure.axes[0].collections] == [2 * 20] * 8
    assert title(figure) == "Figure: 1F1B, 20 micro-batches: idle 26%, rank 0 holds 8, 280 messages"
    explorer.controls["schedule"].value = "Interleaved"
    assert "24 micro-batches: idle 12.7%" in explorer.figure().get_label()  # 7 / (2 · 24 + 7)
