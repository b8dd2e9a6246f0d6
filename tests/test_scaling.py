"""Scaling: the planner against what is published and known, the explorer."""

import math

import pytest

from helpers.instruments import costs
from lessons.model_parallel.schedules import one_f_one_b, simulate
from lessons.scaling import planner
from lessons.scaling import scaling_explorer as scaling

TABLES = planner.published()
A = TABLES["A"]
GB = {kind: {int(gpus): 1e9 * gb for gpus, gb in A[kind].items()} for kind in ("all_reduce", "all_gather")}
CLUSTER = planner.Cluster(989e12, 50e9, **GB, reached=0.53, narrow=500)
LLAMA_8B, LLAMA_405B = (costs.Shape(**TABLES[name]["shape"]) for name in "DF")


def test_every_published_table_names_its_source():
    for name in "ABCDEF":
        assert TABLES[name]["source"] and TABLES[name]["url"].startswith("https://"), name
    for name in ("Llama 3 405B", "OPT-175B"):
        assert TABLES["failures"][name]["source"] and TABLES["failures"][name]["url"]


def test_shapes_have_the_published_parameters():
    for name, billions in {"1.34B": 1.34, "3.57B": 3.57, "8.86B": 8.86, "80B": 80.0}.items():
        shape = costs.Shape(**A["shapes_inferred"][name], vocabulary=A["vocabulary_inferred"])
        assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.003), name
    assert LLAMA_8B.parameters / 1e9 == pytest.approx(8.03, abs=0.01)
    assert LLAMA_405B.parameters / 1e9 == pytest.approx(405.85, abs=0.01)


def test_flops_are_what_torch_counts():
    """Against the counter, for Llama's own blocks, on `meta`; attention left to the formula."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from lessons.model_parallel.llama import LlamaBlock

    shape = costs.Shape(1, 256, 704, 0, tied=True)
    with torch.device("meta"):
        block, x = LlamaBlock(256, 704, 4, 4), torch.randn(2, 128, 256, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            block(x).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    matrices = sum(flops for operator, flops in counted.items()
                   if "mm" in str(operator) and "bmm" not in str(operator))
    assert 2 * 128 * (shape.flops(128) - 12 * 256 * 128) == matrices


@pytest.mark.parametrize("stages, m", [(1, 4), (8, 3)])
def test_bubble_is_that_of_the_logical_clock(stages, m):
    layout = planner.Layout(1, 1, stages, m, 1)
    parts = planner.seconds(LLAMA_8B, layout, CLUSTER, 4096, planner.Habits())
    clock = simulate([one_f_one_b(rank, stages, m) for rank in range(stages)])
    assert parts["bubble"] / sum(parts.values()) == pytest.approx(clock.bubble)
    halved = planner.seconds(LLAMA_8B, layout, CLUSTER._replace(cable=math.inf), 4096, planner.Habits(pieces=2))
    assert halved["bubble"] / (halved["compute"] or 1) == pytest.approx((stages - 1) / 2 / m)


def test_busiest_stage_is_that_of_the_best_cut():
    assert planner.longest_stage(32, 1, 2.0) == 34 and planner.longest_stage(126, 16, 0.6) == 8
    assert planner.longest_stage(16, 2, 3.6) == 10 and planner.longest_stage(112, 16, 0.5) == 7.5


def test_parts_of_a_step_are_there_for_a_reason():
    def parts(*layout, **habits):
        return planner.seconds(LLAMA_8B, planner.Layout(*layout), CLUSTER, 4096, planner.Habits(**habits))

    alone = parts(1, 1, 1, 8, 1)
    assert alone["tensor"] == alone["sends"] == alone["bubble"] == alone["data"] == 0
    split = parts(1, 8, 1, 8, 1)
    assert split["tensor"] > 0 and alone["compute"] / 8 == pytest.approx(split["compute"])
    assert parts(1, 8, 1, 8, 1, tensor_hidden=0.75)["tensor"] == pytest.approx(split["tensor"] / 4)
    assert parts(1, 1, 1, 8, 1, recompute=True)["compute"] == pytest.approx(4 / 3 * alone["compute"])
    assert parts(8, 1, 1, 1, 1)["data"] == pytest.approx(2 * 7 / 8 * 4 * LLAMA_8B.parameters / 436e9)
    assert parts(8, 1, 1, 1, 1, data_hidden=2 / 3)["data"] == 0


def test_layouts_are_all_there_are():
    found = list(planner.layouts(24, 48, 6))
    assert len(set(found)) == len(found)
    wanted = {(d, t, p, 48 // (d * b), b) for d in range(1, 25) for t in (1, 2, 4, 8, 16) for p in range(1, 7)
              for b in range(1, 49) if d * t * p == 24 and 48 % (d * b) == 0}
    assert set(map(tuple, found)) == wanted


@pytest.mark.parametrize("model", ["1.34B", "3.57B"])
def test_explorers_model_misses_published_rows_by_what_it_says(model):
    errors = scaling.errors(model)
    assert list(errors) == [16, 32, 64, 128, 256] and max(map(abs, errors.values())) < 0.08
    assert scaling.tokens(model, 8) == pytest.approx(scaling.published(model)[8])


def test_explorer_draws_the_model():
    explorer = scaling.scaling_explorer()
    for name, value in (("model", "8.86B"), ("bandwidth", 4), ("overlap", 50), ("batch", 1024)):
        explorer.controls[name].value = value
    figure = explorer.figure()
    assert len(figure.axes[0].get_legend().get_texts()) == 1, "nothing is published of this model"
    assert "no published row" in figure.get_label()
    drawn = figure.axes[0].lines[0].get_ydata()
    wanted = [scaling.tokens("8.86B", gpus, faster=4, overlap=0.5, batch=1024) for gpus in scaling.GPUS]
    assert list(drawn) == pytest.approx(wanted) and math.isfinite(sum(drawn))
    explorer.controls["model"].value = "1.34B"
    assert "16: +3.4%" in explorer.figure().get_label(), "the errors are those of the published setting"
