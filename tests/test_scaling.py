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


def drawn(frame):
    return {shape["id"]: shape for shape in frame["shapes"]}


@pytest.mark.parametrize("model, bandwidth, overlap, batch", [("1.34B", 1, 0, 256), ("8.86B", 4, 50, 1024),
                                                              ("3.57B", 0.25, 65, 4096)])
def test_explorer_draws_the_model(model, bandwidth, overlap, batch):
    frames = scaling.scene(model, bandwidth, overlap, batch)["frames"]
    how = {"faster": bandwidth, "overlap": overlap / 100, "batch": batch}
    for number, (frame, gpus) in enumerate(zip(frames, scaling.GPUS, strict=True), 1):
        shapes, rate = drawn(frame), scaling.tokens(model, gpus, **how)
        assert sum(name.startswith("computes ") for name in shapes) == number, "what comes later is not there"
        assert f"{gpus} GPUs: each {rate:,.0f} tokens/s" in frame["title"]
        works, sends = shapes[f"computes {gpus}"], shapes[f"sends {gpus}"]
        compute, away = scaling.step(model, gpus, **how)
        assert works["y"] == pytest.approx(sends["y"] + sends["h"])
        assert sends["h"] / (works["h"] + sends["h"]) == pytest.approx(away / (compute + away), abs=1e-9)
        assert works["h"] / drawn(frames[0])["computes 8"]["h"] == pytest.approx(
            rate / scaling.tokens(model, 8, **how))
        hidden = scaling.communication(model, gpus, bandwidth) - away
        assert shapes[f"hidden {gpus}"]["h"] / works["h"] == pytest.approx(hidden / compute, abs=1e-9)
    assert ("published 64" in shapes) == (model != "8.86B") == ("row error" in shapes)
    if model == "1.34B":
        assert shapes["error 16"]["text"] == "+3.4%" and shapes["error 8"]["text"] == "fitted"
        assert shapes["published 256"]["y"] + 6 == pytest.approx(
            shapes["computes 256"]["y"] + shapes["computes 256"]["h"] * (1 - 15700 / scaling.tokens(model, 256)))


def test_the_last_column_is_dragged_by_the_bandwidth():
    heights = []
    for bandwidth in scaling.BANDWIDTHS.values():
        handle = drawn(scaling.scene("3.57B", bandwidth, 0, 256)["frames"][-1])["handle"]
        control, places = handle["drag"]
        heights.append(handle["y"])
    assert control == "bandwidth" and heights == pytest.approx([y for _, y in places])
    assert heights == sorted(heights, reverse=True)


def test_presets_of_the_explorer_show_what_they_ask_for():
    def sent(**values):
        frames = scaling.scene(**{"model": "1.34B", "bandwidth": 1, "overlap": 0, "batch": 256, **values})["frames"]
        shapes = drawn(frames[-1])
        heights = {gpus: shapes[f"sends {gpus}"]["h"] for gpus in scaling.GPUS}
        return {gpus: high / (high + shapes[f"computes {gpus}"]["h"]) for gpus, high in heights.items()}

    first, slow, overlapped, larger = sent(), sent(bandwidth=0.25), sent(overlap=65), sent(batch=4096)
    assert slow[32] < 0.5 < slow[64], "from 64 GPUs on most of a step is communication"
    assert overlapped[128] == pytest.approx(0) and 0.4 < overlapped[256] < first[256]
    assert larger[256] < 0.1
    stage = scaling.scaling_explorer()
    assert [preset["setting"] for preset in stage.story["presets"]] == [[0, 0, 0, 0], [0, 2, 7, 0], [0, 2, 0, 4]]
    assert len(stage.story["scenes"]) == 19, "each value of each control"
