"""Reading traces: nesting, kinds, many ranks, real files of a DDP run, and everything that is no trace."""

import json
import random

import pytest
from matplotlib.figure import Figure

from helpers import launch
from helpers.instruments import traces
from helpers.instruments.traces import TraceError, read, together, waited_for
from helpers.widgets.overlap import draw_overlap


def written(path, events, rank=None, groups=((0, 1),), **more):
    """A trace file: [(name, category, thread, begin, duration, its group's number)], as torch writes it."""
    rows = [{"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": begin, "dur": duration,
             "args": {"Process Group Name": str(group[0])} if group else {}}
            for name, category, thread, begin, duration, *group in events]
    content = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "traceEvents": rows} | more
    if rank is not None:
        config = [{"pg_name": str(number), "ranks": list(group)} for number, group in enumerate(groups)
                  if rank in group]
        content["distributedInfo"] = {"rank": rank, "world_size": max(map(max, groups)) + 1, "pg_config": config}
    path.write_text(json.dumps(content))
    return path


STEP = [("ProfilerStep#2", "user_annotation", 1, 100, 100), ("load", "user_annotation", 1, 100, 20),
        ("aten::linear", "cpu_op", 1, 120, 30), ("aten::addmm", "cpu_op", 1, 125, 20),
        ("aten::mm", "cpu_op", 1, 150, 40), ("gloo:all_reduce", "user_annotation", 7, 160, 35)]


def milli(trace):
    return {kind: round(seconds * 1e6) for kind, seconds in trace.seconds().items()}


# --------------------------------------------------------------------------------------------------- counting


def test_nested_events_count_once_and_the_innermost_wins(tmp_path):
    trace = read(written(tmp_path / "t.json", STEP))
    assert milli(trace) == {"compute": 70, "communication": 35, "waiting": 0, "other": 25}
    own = {name: round(seconds * 1e6) for name, seconds in trace.self_seconds().items()}
    assert own == {"aten::mm": 40, "gloo:all_reduce": 35, "load": 20, "aten::addmm": 20, "aten::linear": 10}
    assert trace.overlap() == pytest.approx(30 / 35)
    assert trace.steps == {2: (0, 100)} and trace.rank is None
    assert [event.depth for event in trace.events if event.name in ("aten::linear", "aten::addmm")] == [0, 1]


def test_a_part_of_a_trace_is_cut_at_its_ends(tmp_path):
    trace = read(written(tmp_path / "t.json", STEP))
    assert milli(trace.between(0, 30)) == {"compute": 10, "communication": 0, "waiting": 0, "other": 20}
    assert trace.between(0, 30).overlap() is None
    assert milli(trace.step(2)) == milli(trace)
    with pytest.raises(TraceError, match="no step 5 in this trace; its steps are: 2"):
        trace.step(5)


def test_seconds_agree_with_counting_microsecond_by_microsecond(tmp_path):
    draw = random.Random(0)
    kind = {"aten::a": "compute", "gloo:b": "communication", "cudaDeviceSynchronize": "waiting",
            "label": "other"}
    for attempt in range(20):
        events = []
        for thread in (1, 2, 3):
            stack = [(0, 400)]
            while stack:
                begin, end = stack.pop()
                if end - begin >= 4:
                    first, last = sorted(draw.sample(range(begin, end + 1), 2))
                    name = draw.choice(list(kind))
                    category = "user_annotation" if name in ("label", "gloo:b") else "cpu_op"
                    events.append((name, category, thread, first, last - first))
                    stack += [(first, (first + last) // 2), (last, end)]
        trace = read(written(tmp_path / f"{attempt}.json", [e for e in events if e[4]] or STEP))
        offset = min(e[3] for e in events if e[4])
        seen = {name: set() for name in traces.KINDS}
        for moment in range(400):
            for thread in (1, 2, 3):
                open_now = [e for e in events if e[2] == thread and e[3] <= moment < e[3] + e[4]]
                if open_now:
                    seen[kind[max(open_now, key=lambda e: (e[3], -e[4]))[0]]].add(moment - offset)
        counted = milli(trace)
        assert counted["compute"] == len(seen["compute"])
        assert counted["communication"] == len(seen["communication"])
        assert counted["waiting"] == len(seen["waiting"] - seen["compute"] - seen["communication"])
        if seen["communication"]:
            both = len(seen["communication"] & seen["compute"]) / len(seen["communication"])
            assert trace.overlap() == pytest.approx(both)


def test_a_gpus_trace_counts_kernels_and_not_their_launches(tmp_path):
    events = [("aten::mm", "cpu_op", 1, 0, 50), ("cudaLaunchKernel", "cuda_runtime", 1, 10, 5),
              ("cudaDeviceSynchronize", "cuda_runtime", 1, 60, 140),
              ("sgemm_128x128", "kernel", 7, 20, 100),
              ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)", "kernel", 20, 80, 60),
              ("nccl:all_reduce", "user_annotation", 1, 55, 2), ("Memcpy HtoD", "gpu_memcpy", 7, 0, 10),
              ("nccl:all_reduce", "gpu_user_annotation", 20, 80, 60)]
    trace = read(written(tmp_path / "t.json", events))
    assert milli(trace) == {"compute": 100, "communication": 60, "waiting": 60, "other": 20}
    assert trace.overlap() == pytest.approx(40 / 60)
    assert {event.thread for event in trace.events} == {"thread 1", "GPU 0 stream 7", "GPU 0 stream 20"}


def test_a_loader_that_is_waited_for(tmp_path):
    events = [("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", 1, 0, 80),
              ("aten::stack", "cpu_op", 1, 20, 10), ("aten::mm", "cpu_op", 1, 80, 20)]
    assert milli(read(written(tmp_path / "t.json", events))) == {
        "compute": 30, "communication": 0, "waiting": 70, "other": 0}


# ------------------------------------------------------------------------------------------------- many ranks


def two_ranks(folder, late=40):
    quick = [("aten::mm", "cpu_op", 1, 0, 60), ("gloo:all_reduce", "user_annotation", 7, 50, 70)]
    slow = [("aten::mm", "cpu_op", 1, 0, 50 + late), ("gloo:all_reduce", "user_annotation", 7, 50 + late, 30)]
    return [read(written(folder / "slow.json", slow, rank=1)),
            read(written(folder / "quick.json", quick, rank=0))]


def test_waiting_is_what_comes_before_the_last_rank_joins(tmp_path):
    first, second = together(two_ranks(tmp_path))
    assert (first.rank, second.rank) == (0, 1)
    # Of its 40 of waiting, 10 are while it computes.
    assert milli(first) == {"compute": 60, "communication": 30, "waiting": 30, "other": 0}
    assert milli(second)["waiting"] == 0
    assert waited_for([first, second]) == {(0, 1): pytest.approx(30e-6)}
    assert "waits for rank 1 (gloo:all_reduce)" in first.self_seconds()


def test_a_rank_that_had_left_before_the_other_came(tmp_path):
    """As the sender of a broadcast may: nothing may get lost, or be counted as negative."""
    early = read(written(tmp_path / "a.json", [("gloo:x", "user_annotation", 1, 0, 10)], rank=0))
    late = read(written(tmp_path / "b.json", [("gloo:x", "user_annotation", 1, 50, 10)], rank=1))
    assert milli(together([early, late])[0]) == {"compute": 0, "communication": 0, "waiting": 10, "other": 0}


def test_one_clock_for_all_ranks(tmp_path):
    late = [("aten::mm", "cpu_op", 1, 500, 10)]
    early = [("aten::mm", "cpu_op", 1, 300, 10)]
    ranks = together([read(written(tmp_path / f"{rank}.json", events, rank=rank))
                      for rank, events in enumerate((late, early))])
    assert [trace.events[0].begin_us for trace in ranks] == pytest.approx([200, 0])


def test_ranks_that_do_not_belong_together(tmp_path):
    slow, quick = two_ranks(tmp_path)
    with pytest.raises(TraceError, match="one trace of each rank is needed"):
        together([quick, quick])
    with pytest.raises(TraceError, match="not known: the traces of all ranks have not been put together"):
        waited_for([slow, quick])
    nothing = read(written(tmp_path / "n.json", STEP[:-1], rank=0))
    later = read(written(tmp_path / "l.json", [("gloo:all_reduce", "user_annotation", 7, 300, 5)], rank=0))
    other = read(written(tmp_path / "o.json", [("gloo:barrier", "user_annotation", 7, 95, 5)], rank=0))
    for both, said in (([slow], "the trace of rank 0 is missing"),
                       ([slow, nothing], r"different numbers of collectives \(rank 0: 0, rank 1: 1\)"),
                       ([slow, later], "collectives number 1 are not one and the same"),
                       ([slow, other], "collectives number 1 are not one and the same")):
        assert not any(trace.seconds()["waiting"] for trace in together(both))
        with pytest.raises(TraceError, match=f"who waited for whom is not known: .*{said}"):
            waited_for(together(both))


GROUPS = (0, 1, 2, 3), (0, 1), (2, 3)


@pytest.mark.parametrize("name, category", [("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "kernel"),
                                            ("gloo:all_reduce", "user_annotation")])
def test_groups_are_told_apart_where_the_events_name_them(tmp_path, name, category):
    """Ranks 0 and 2 are early in groups of their own, then rank 3 is late in the group of all."""
    ranks = []
    for rank, begins in enumerate((0, 50, 0, 100)):
        ends, all_begin = (60, 60, 110, 110)[rank], (120, 120, 120, 150)[rank]
        events = [(name, category, 20, begins, ends - begins, 1 + rank // 2),
                  (name, category, 24, all_begin, 160 - all_begin, 0)]
        if category != "kernel":
            events = [event[:-1] for event in events]  # gloo's do not name theirs
        ranks.append(read(written(tmp_path / f"{rank}.json", events, rank, GROUPS)))
    if category == "kernel":
        assert waited_for(together(ranks)) == {(0, 1): pytest.approx(50e-6), (2, 3): pytest.approx(130e-6),
                                               (0, 3): pytest.approx(30e-6), (1, 3): pytest.approx(30e-6)}
    else:
        with pytest.raises(TraceError, match="gloo:all_reduce does not name its group"):
            waited_for(together(ranks))


def test_a_broadcast_waits_for_its_root_alone(tmp_path):
    """Rank 1 waits for rank 0, the root, and not for rank 2, which comes last."""
    ranks = [read(written(tmp_path / f"{rank}.json", [("gloo:broadcast", "user_annotation", 7, begin, took)],
                          rank, groups=((0, 1, 2),)))
             for rank, (begin, took) in enumerate(((30, 5), (0, 35), (50, 5)))]
    with pytest.raises(TraceError, match="gloo:broadcast does not name its root"):
        waited_for(together(ranks))


def test_asking_and_waiting_for_communication_is_no_computing(tmp_path):
    """And a message that is on its way while something computes is hidden."""
    events = [("_c10d_functional::all_reduce", "cpu_op", 1, 0, 10), ("gloo:all_reduce", "user_annotation", 7, 5, 40),
              ("PythonSubclass", "cpu_op", 1, 10, 50), ("_c10d_functional::wait_tensor", "cpu_op", 1, 15, 40),
              ("gloo:recv", "user_annotation", 1, 60, 40), ("aten::mm", "cpu_op", 1, 70, 30)]
    trace = read(written(tmp_path / "t.json", events))
    assert milli(trace) == {"compute": 30, "communication": 80, "waiting": 10, "other": 10}
    assert trace.overlap() == pytest.approx(30 / 80)


# ------------------------------------------------------------------------------------------------- real files


def train(folder, slow_ms):
    import gzip
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.5)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
                 on_trace_ready=lambda prof: prof.export_chrome_trace(f"{folder}/{rank}.json.gz"),
                 profile_memory=True) as prof:
        for _ in range(6):
            if rank == 1:
                time.sleep(slow_ms / 1000)
            model(torch.ones(32, 256)).sum().backward()
            prof.step()
    packed = Path(folder, f"{rank}.json.gz").read_bytes()
    Path(folder, f"{rank}.json").write_bytes(gzip.decompress(packed))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    launch(train, 2, (str(folder), 100), timeout=60, show=False)
    return folder


def test_a_real_run(folder):
    first, second = ranks = together([read(folder / f"{rank}.json") for rank in (1, 0)])
    assert [trace.rank for trace in ranks] == [0, 1]
    assert read(folder / "0.json").events == read(folder / "0.json.gz").events
    for trace in ranks:
        seconds = trace.seconds()
        assert list(trace.steps) == [2, 3, 4] and seconds["compute"] > 0 and seconds["communication"] > 0
        assert 0 <= trace.overlap() <= 1
        begin, end = trace.span_us
        assert sum(seconds.values()) >= (end - begin) / 1e6 - 1e-6
        assert max(size for _, size in trace.memory) > 256 * 256 * 4
    waits = [trace.seconds()["waiting"] for trace in (first, second)]
    assert waits[0] > max(0.06, waits[1]), "rank 0 waits for the one that sleeps"
    lost = waited_for(ranks)
    assert max(lost, key=lost.get) == (0, 1)
    # 6 layers of 0.25 MB, buckets of 0.5 MB: three collectives in each of three steps
    assert sum(event.kind == "communication" for event in second.events) == 9


def test_overlap_is_drawn_from_real_files(folder):
    ax = Figure().add_subplot()
    draw_overlap(ax, [folder / "0.json", folder / "1.json"], title="Two ranks", step=3)
    assert ax.get_title("left") + ax.get_title() == "Two ranks" and ax.get_xlabel() == "ms"
    assert [tick.get_text() for tick in ax.get_yticklabels()].count("rank 1: compute") == 1
    shown = together([read(folder / f"{rank}.json") for rank in (0, 1)])
    assert any(text.get_text().endswith("hidden") for text in ax.texts)
    assert len(ax.collections) == 6, "three kinds in each of two ranks"
    begins, ends = zip(*(trace.steps[3] for trace in shown), strict=True)
    assert ax.dataLim.x1 <= (max(ends) - min(begins)) / 1000 + 1e-6, "one step, in milliseconds"
    for trace in shown:
        took = f"{1000 * trace.step(3).seconds()['compute']:,.0f} ms"
        assert f"rank {trace.rank}: compute {took}" in ax.figure.get_label(), "its own step alone"
    with pytest.raises(TraceError, match="no step 9"):
        draw_overlap(ax, [folder / "0.json"], step=9)


def many_programs(folder):
    """Four programs, each traced by every rank into FOLDER/PROGRAM-RANK.json."""
    import time

    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("gloo")
    rank, size, x = dist.get_rank(), dist.get_world_size(), torch.ones(4)

    def formed():
        return [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]

    def reduce_three_times(group=None):
        for _ in range(3):
            time.sleep({1: 0.02, 3: 0.04}.get(rank, 0))
            dist.all_reduce(x, group=group)

    def pipeline():
        for _ in range(2):
            y = torch.ones(4)
            if rank:
                dist.recv(y, rank - 1)
            if rank < size - 1:
                dist.send(y @ torch.ones(4, 4), rank + 1)

    def formed_inside():
        group = formed()
        for _ in range(3):
            reduce_three_times(group)
            dist.all_reduce(x)

    def traced(name, program, *args):
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            program(*args)
        prof.export_chrome_trace(f"{folder}/{name}-{rank}.json")

    traced("one group", reduce_three_times)
    traced("pipeline", pipeline)
    traced("formed inside", formed_inside)
    traced("two groups", reduce_three_times, formed())
    dist.barrier()
    dist.destroy_process_group()


def test_real_programs_are_paired_or_it_is_said_why_not(tmp_path):
    launch(many_programs, 4, (str(tmp_path),), timeout=60, show=False)

    def of(name):
        return together([read(tmp_path / f"{name}-{rank}.json") for rank in range(4)])

    lost = waited_for(of("one group"))
    assert {whom for (_, whom), seconds in lost.items() if seconds > 0.05} == {3}, lost
    for name, reason in (("two groups", "gloo:all_reduce does not name its group"),
                         ("formed inside", "gloo:all_reduce does not name its group"),
                         ("pipeline", "gloo:recv does not name the other rank")):
        assert all(event.kind != "waiting" for trace in of(name) for event in trace.events)
        with pytest.raises(TraceError, match=f"who waited for whom is not known: .*{reason}"):
            waited_for(of(name))
    ax = Figure().add_subplot()
    draw_overlap(ax, of("pipeline"))
    assert "does not name the other rank" in ax.get_xlabel() + ax.figure.get_label()
    assert "0 ms or more" in [text.get_text() for text in ax.texts], "of waiting"


# ------------------------------------------------------------------------------------------- what is no trace


@pytest.mark.parametrize("content, said", [
    ("", "breaks off, or is damaged"),
    (None, "there is no file t.json: "),
    ('[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]', "no trace of torch.profiler's"),
    ('{"schemaVersion": 1, "traceEvents": []}', "holds no events: nothing was recorded"),
])
def test_no_trace(tmp_path, content, said):
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    with pytest.raises(TraceError, match=r"t\.json") as caught:
        read(tmp_path / "t.json")
    assert said in str(caught.value)
