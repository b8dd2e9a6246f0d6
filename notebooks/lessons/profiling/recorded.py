"""What profiling shows from a machine with a GPU."""

import functools
import gzip
import itertools
import linecache
import math
import pickle
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from statistics import median

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import DeviceType
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from helpers.experiments import attempt, experiment, milliseconds, returned_and_done
from helpers.instruments.traces import read
from helpers.models import GPT

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


# ---------------------------------------------------------------------------------------------------- clocks


@experiment(gpus=1, seconds=3, small={"size": 32})
def asynchronous(size=4096):
    """When does a call return, and when has the GPU finished the work?

    Ten products of two 4,096 × 4,096 matrices: once alone, once followed by NCCL's all-reduce and its `wait()`. Medians
    of five.
    """
    def products():
        for _ in range(10):
            big @ big

    def products_and_wait():
        products()
        dist.all_reduce(big, async_op=True).wait()

    big = torch.randn(size, size, device="cuda")  # zeros are multiplied faster
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    products_and_wait()  # warm up: kernels, NCCL's communicator
    result = {
        "products": returned_and_done(products),
        "with NCCL's wait()": returned_and_done(products_and_wait),
        "by events": milliseconds(products, repeats=5),
    }
    dist.destroy_process_group()
    return result


@asynchronous.tells
def asynchronous_in_words(result):
    returned, done = result["products"]
    wait_returned, all_done = result["with NCCL's wait()"]
    by_events = result["by events"]
    share = returned / done
    made = "did not make" if wait_returned < all_done / 2 else "made"
    return (f"The calls that order ten large products have returned after **{returned:.2f} ms**, and the products are "
            f"done after {done:.1f} ms. A clock around the calls alone shows {share:.1%} of the time; two events in "
            f"the stream show {by_events:.1f} ms. With an all-reduce after the products, `work.wait()` has returned "
            f"after {wait_returned:.2f} of {all_done:.1f} ms: it {made} Python wait for the products.")


@experiment(gpus=1, seconds=1.5, small={"size": 32, "calls": 20})
def two_events(size=8192, calls=200):
    """What lies between two CUDA events: only the kernels, or also Python's time?

    200 additions of 64 numbers between two events: once the queue is empty, once a long product runs before them.
    Medians of five.
    """
    large = torch.rand(size, size, device="cuda")
    small = torch.rand(64, device="cuda")

    def additions(work_before):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        work_before()
        began = time.perf_counter()
        begin.record()
        for _ in range(calls):
            small + small
        end.record()
        queued = time.perf_counter() - began
        torch.cuda.synchronize()
        return begin.elapsed_time(end), 1000 * queued

    result = {"additions": calls}
    for name, work_before in (("empty queue", lambda: None), ("full queue", lambda: large @ large)):
        additions(work_before)  # loads kernels
        rows = [additions(work_before) for _ in range(5)]
        between, queued = zip(*rows, strict=True)
        result[name] = {"between the events": median(between), "queued": median(queued)}
    return result


@two_events.tells
def two_events_in_words(result):
    empty = result["empty queue"]["between the events"]
    full = result["full queue"]["between the events"]
    queued = result["empty queue"]["queued"]
    idle = ("The additions were the same, so the difference is not work: the GPU stood still until Python ordered the "
            "next addition, and two events count that, too.")
    busy = "Here Python ordered additions as fast as the GPU did them, so both show the kernels alone."
    reason = idle if empty > 1.2 * full else busy
    return (f"Between the two events lie {result['additions']} additions of 64 numbers. They take **{empty:.2f} ms** "
            f"if the queue is empty, and {full:.2f} ms if a long product is queued before them. Python took "
            f"{queued:.2f} ms to order them. {reason}")


# -------------------------------------------------------------------------------------------- lines that wait

#: In which steps `loss.item()` is called: each one whose number this divides.
ITEM = {"in each step": 1, "in each tenth": 10, "never": math.inf}
LINES = ("loss.item()", "print(loss)", "loss.cpu()", "if loss > 0: pass", "many[many > 0.5]", "batch.to('cuda')",
         "pinned.to('cuda', non_blocking=True)", "losses.append(loss.detach())", "total += loss.detach()")


def training_step_of(width, batch):
    """A function that takes a training step on the GPU and returns the loss, without waiting."""
    layers = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(batch, width, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")

    def step():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def milliseconds_a_step(step, steps, every):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(1, steps + 1):
        loss = step()
        if number % every == 0:
            loss.item()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / steps


def named_by_sync_debug_mode():
    """{line: whether torch warned that it makes the CPU wait}."""
    variables = {
        "loss": torch.rand((), device="cuda"),
        "losses": [],
        "total": torch.zeros((), device="cuda"),
        "many": torch.rand(4096, device="cuda"),
        "batch": torch.rand(4096),
        "pinned": torch.rand(4096).pin_memory(),
    }
    named = {}
    torch.cuda.set_sync_debug_mode("warn")
    for line in LINES:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(line, variables)
        messages = [str(warning.message) for warning in caught]
        named[line] = any("called a synchronizing" in message for message in messages)
    torch.cuda.set_sync_debug_mode("default")
    return named


@experiment(gpus=1, seconds=4, wanted=1, small={"sizes": ((16, 4), (32, 8)), "steps": 3})
def item_waits(sizes=((256, 64), (1024, 1024), (4096, 1024)), steps=30):
    """What does loss.item() in each step cost, and which lines make Python wait for the GPU?

    Milliseconds of a training step of four layers, from 30 steps: medians of three. Then single lines, each under
    `torch.cuda.set_sync_debug_mode("warn")`.
    """
    rows = []
    for width, batch in sizes:
        step = training_step_of(width, batch)
        times = {name: [] for name in ITEM}
        for _ in range(4):  # in turn: what disturbs one, disturbs the others
            for name, every in ITEM.items():
                times[name].append(milliseconds_a_step(step, steps, every))
        row = {"width": width, "batch": batch}
        for name, in_turn in times.items():
            row[name] = median(in_turn[1:])  # the first turn warms up
        rows.append(row)
    return {"ms a step": rows, "named": named_by_sync_debug_mode()}


@item_waits.tells
def item_waits_in_words(result):
    rows = result["ms a step"]
    factors = []
    disturbances = []
    for row in rows:
        quickest = min(row[name] for name in ITEM)
        factors.append(row["in each step"] / row["never"])
        disturbances.append(row["never"] / quickest - 1)
    largest = max(factors)
    slowed = rows[factors.index(largest)]
    noise = max(disturbances)
    noisy = ("We expect no cost from not waiting. So where `never` is not the quickest way, something else has "
             f"disturbed the clock, here by up to {noise:.0%}. Smaller differences say nothing.\n\n")
    disturbed = noisy if noise else ""

    named = [f"`{line}`" for line, waits in result["named"].items() if waits]
    others = [f"`{line}`" for line, waits in result["named"].items() if not waits]
    listed = ", ".join(named) or "none of our lines"
    not_listed = ", ".join(others) or "no other line"
    return (f"With `loss.item()` in each step, a step takes up to **{largest:.2f}×** the time that it takes "
            f"without it ({slowed['width']:,} wide, batch {slowed['batch']:,}).\n\n"
            f"{item_waits_table(rows)}\n{disturbed}"
            f"`set_sync_debug_mode(\"warn\")` names {listed}. It does not name {not_listed}.")


def item_waits_table(rows):
    header = " | ".join(ITEM)
    table = f"| ms a step, with `.item()` | {header} |\n|---|---|---|---|\n"
    for row in rows:
        cells = " | ".join(f"{row[name]:.2f}" for name in ITEM)
        table += f"| {row['width']:,} wide, batch {row['batch']:,} | {cells} |\n"
    return table


# ------------------------------------------------------------------------------------------- small operators


def chain(x):
    """Fifty small operators, one after the other."""
    for _ in range(25):
        x = x * 0.99
        x = x + 0.01
    return x


def eager(x):
    return functools.partial(chain, x)


def as_a_graph(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # notes the kernels, and runs none
        result = chain(x)

    def replay():
        graph.replay()
        return result

    return replay


def compiled(x):
    return functools.partial(torch.compile(chain, dynamic=False), x)


WAYS = {"eager": eager, "CUDA graph": as_a_graph, "compiled": compiled}


def kernels(call):
    """How many kernels a call starts, by the profiler."""
    torch.cuda.synchronize()
    with profile(activities=BOTH) as prof:
        call()
        torch.cuda.synchronize()
    on_gpu = [event for event in prof.events() if event.device_type == DeviceType.CUDA]
    return sum(not event.is_user_annotation for event in on_gpu)


def measured(make, x):
    call = make(x)
    exact = chain(x.double())
    difference = (call() - exact).abs().max().item()

    def ten_calls():  # the mark of an event takes a little time, too
        return [call() for _ in range(10)]

    microseconds = 1000 * milliseconds(ten_calls) / 10
    return {"µs": microseconds, "kernels": kernels(call), "difference": difference}


@experiment(gpus=1, seconds=9, small={"sizes": (64, 4096)})
def small_operators(sizes=(1_000, 10_000_000)):
    """What do 50 small operators cost one by one (eager), as a CUDA graph, and compiled?

    Multiplications and additions of one tensor, on few and on many elements: microseconds by CUDA events, medians of
    20; kernels by the profiler; the largest difference from the same chain in float64.
    """
    from torch._inductor import config as inductor

    inductor.compile_threads = 1  # one kernel is compiled before a pool of processes has started
    result = {}
    for size in sizes:
        result[size] = {}
        for name, make in WAYS.items():
            result[size][name] = attempt(measured, make, torch.rand(size, device="cuda"))
    return result


@small_operators.tells
def small_operators_in_words(result):
    few, many = result  # numbers of elements, as texts
    on_few = not_refused(result[few])
    times = {name: row["µs"] for name, row in on_few.items()}
    best = min(times, key=times.get)
    faster = times["eager"] / times[best]
    compared = compared_with_eager(result[many])
    waits = waiting_for_python(result)
    table = small_operators_table(result)
    return (f"On {int(few):,} elements, the quickest way is {best}: **{times[best]:.1f} µs** for all fifty operators, "
            f"{faster:.1f} times as fast as eager, which starts them one by one. "
            f"On {int(many):,} elements, {compared}.{waits}\n\n{table}")


def not_refused(ways):
    return {name: row for name, row in ways.items() if "refused" not in row}


def compared_with_eager(ways):
    """In words: how many kernels each way starts, and how its time compares with eager's."""
    rows = not_refused(ways)
    eager_row = rows.pop("eager")
    is_seen = eager_row["kernels"] > 0  # the profiler may not be allowed to look at the GPU
    parts = [f"eager starts {eager_row['kernels']} kernels"] if is_seen else []
    for name, row in rows.items():
        share = row["µs"] / eager_row["µs"]
        starts = f" starts {row['kernels']} and" if is_seen else ""
        parts.append(f"{name}{starts} takes {share:.0%} of the time of eager")
    return "; ".join(parts)


def waiting_for_python(result):
    """In words: that the compiled chain waits for Python on few elements. Empty, if it does not, or was refused."""
    few, many = result
    on_few = result[few]["compiled"].get("µs", math.nan)
    on_many = result[many]["compiled"].get("µs", math.nan)
    longer = on_many / on_few
    a_kernel_of_eager = result[many]["eager"]["µs"] / 50  # it moves as many bytes as the compiled one
    more_elements = int(many) // int(few)
    words = (f" If the chain is compiled, {more_elements:,} times as many elements take {longer:.1f} times as long. "
             f"Its one kernel moves as many bytes as one of eager's fifty, which take {a_kernel_of_eager:.0f} µs each: "
             "on both sizes most of the time is Python's call, for which the GPU waits.")
    return words if longer < 2 and a_kernel_of_eager < on_many / 2 else ""  # NaN is never less


def small_operators_table(result):
    lines = ["| elements | how | µs | kernels | largest difference from float64 |", "|---|---|---|---|---|"]
    for size, ways in result.items():
        for name, row in ways.items():
            cells = small_operators_cells(row)
            lines.append(f"| {int(size):,} | {name} | {cells} |")
    return "\n".join(lines)


def small_operators_cells(row):
    if "refused" in row:
        return f"{row['refused']} |  | "
    kernels_seen = row["kernels"] or "not seen"
    return f"{row['µs']:,.1f} | {kernels_seen} | {row['difference']:.1e}"


# --------------------------------------------------------------------------------------- a trace, a snapshot

LABELS = ("load a batch", "copy to the GPU", "forward", "backward", "update", "loss.item()")


def photographs(batch, side):
    """What a loader would decode: a batch of pictures as bytes, made into numbers around 0."""
    pictures = numpy.random.default_rng(0).integers(0, 256, (batch, 3, side, side), dtype=numpy.uint8)

    def load():
        decoded = [picture.astype(numpy.float32) / 128 - 1 for picture in pictures]
        return torch.from_numpy(numpy.stack(decoded))

    return load


def convolutions(channels):
    """A small network for pictures: each layer has half the height and width, and twice the channels."""
    sizes = [3, channels, 2 * channels, 4 * channels, 8 * channels]
    layers = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 10))


@experiment(gpus=1, seconds=5, small={"batch": 2, "side": 16, "channels": 2})
def gpu_trace(batch=64, side=128, channels=128):
    """When does the GPU work in a training step, and when does it stand still?

    torch.profiler records three steps of a network of four convolutions, with loading and with `loss.item()`, after two
    steps that it skips.
    """
    load = photographs(batch, side)
    model = convolutions(channels).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    labels = torch.randint(10, (batch,), device="cuda")

    def step():
        with record_function("load a batch"):
            images = load()
        with record_function("copy to the GPU"):
            images = images.cuda()
        with record_function("forward"):
            loss = cross_entropy(model(images), labels)
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            optimizer.step()
            optimizer.zero_grad()
        with record_function("loss.item()"):
            loss.item()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json.gz")

        def save(prof):
            prof.export_chrome_trace(str(path))

        three_steps = schedule(wait=1, warmup=1, active=3, repeat=1)
        with profile(activities=BOTH, schedule=three_steps, acc_events=True, on_trace_ready=save) as prof:
            for _ in range(5):
                step()
                prof.step()
        return {
            "json.gz": path.read_bytes(),
            **steps_of(read(path)),
            "operators": operators(prof.key_averages()),
        }


def steps_of(trace):
    """Milliseconds a step: its length, each label on the CPU, and the time in which kernels ran."""
    begins, ends = zip(*trace.steps.values(), strict=True)
    count = len(begins)
    first = min(begins)
    last = max(ends)
    steps = trace.between(first, last)
    labels = Counter()
    for event in steps.events:
        if event.name in LABELS:
            labels[event.name] += event.duration_us / 1000 / count
    return {
        "events on the GPU": sum(event.thread.startswith("GPU") for event in steps.events),
        "labels": labels,
        "ms a step": (last - first) / 1000 / count,
        "kernels": 1000 * steps.seconds()["compute"] / count,
    }


def operators(rows):
    """The operators with the most time of their own on the GPU, in all steps together."""
    # The kernels have rows of their own, which say nothing of the operators that started them.
    rows = [row for row in rows if row.device_type == DeviceType.CPU and not row.is_user_annotation]
    rows.sort(key=lambda row: (-row.self_device_time_total, -row.self_cpu_time_total))
    largest = {}
    for row in rows[:5]:
        largest[row.key] = {
            "calls": row.count,
            "self CPU ms": row.self_cpu_time_total / 1000,
            "self device ms": row.self_device_time_total / 1000,
        }
    return largest


@gpu_trace.draws
def gpu_trace_drawn(result):
    from lessons.profiling.trace_viewer import trace_viewer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json.gz")
        path.write_bytes(result["json.gz"])
        return trace_viewer(read(path), zoom=3)


@gpu_trace.tells
def gpu_trace_in_words(result):
    labels = result["labels"]
    kernels_run = result["kernels"]
    step = result["ms a step"]
    share = kernels_run / step
    longest = max(labels, key=labels.get)
    item = labels["loss.item()"]
    queueing = labels["forward"] + labels["backward"] + labels["update"]
    longer = ". That is longer than the kernels run. Without the profiler, measure again"
    shorter = ". That is less than the kernels run"
    gpu = "**The profiler has recorded nothing on the GPU.**"
    compared = ""
    if result["events on the GPU"]:
        gpu = f"Kernels run during **{share:.0%}** of a step: {kernels_run:.1f} of {step:.1f} ms."
        compared = longer if queueing > kernels_run else shorter
    table = "| operator | calls | self CPU, ms | self device, ms |\n|---|---|---|---|\n"
    for name, row in result["operators"].items():
        table += f"| `{name}` | {row['calls']} | {row['self CPU ms']:.2f} | {row['self device ms']:.2f} |\n"
    return (f"{gpu} On the CPU, *{longest}* takes longest, "
            f"{labels[longest]:.1f} ms, and *loss.item()* takes {item:.2f} ms. While the "
            f"profiler runs, forward, backward and update take the CPU {queueing:.1f} ms{compared}.\n\n"
            f"{table}\n"
            "The table adds up the three steps. It counts copies, too, which are no kernels. Perfetto opens the file "
            "as it is.")


@experiment(gpus=1, seconds=2, small={"sizes": {"width": 8, "layers": 1, "heads": 2, "length": 16}, "batch": 2})
def memory_snapshot(sizes=None, batch=8):
    """Which lines of Python allocate a GPT's memory on the GPU?

    A snapshot of the weights and two training steps with AdamW: 4 blocks, 512 wide, 8 × 512 tokens.
    """
    sizes = sizes or {"width": 512, "layers": 4, "heads": 8, "length": 512, "vocabulary": 8192}
    torch.cuda.memory._record_memory_history(stacks="python")
    model = GPT(**sizes).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(256, (batch, sizes["length"]), device="cuda")
    for _ in range(2):
        # The model's output gets no name, which would keep it in memory until the next step's is there.
        cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    mib = Counter()
    count = Counter()
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            line = line_of(entry)
            mib[line] += entry["size"] / 2**20
            count[line] += 1
    largest = [{"MiB": size, "allocations": count[line], "line": line} for line, size in mib.most_common(5)]
    shorten_paths(snapshot)
    pickled = pickle.dumps(snapshot, protocol=4)  # the page that draws it knows no later one
    return {
        "pickle.gz": gzip.compress(pickled),
        "largest": largest,
        "MiB at the peak": torch.cuda.max_memory_allocated() / 2**20,
        "MiB reserved": torch.cuda.memory_reserved() / 2**20,
    }


def shorten_paths(value):
    """Keep of each file's path what says which file it is: the rest belongs to the machine."""
    if isinstance(value, dict):
        if "filename" in value:
            parts = Path(value["filename"]).parts
            value["filename"] = "/".join(parts[-3:])
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            shorten_paths(inner)


NO_LINE = "no line of Python: backward runs in a thread of its own"


def line_of(entry):
    """The innermost line outside torch that led to an allocation, and its function."""
    for frame in entry["frames"]:
        path = frame["filename"]
        if "torch" not in Path(path).parts:
            line = linecache.getline(path, frame["line"]).strip()
            return f"`{line}` in `{frame['name']}`"
    return NO_LINE


@memory_snapshot.tells
def memory_snapshot_in_words(result):
    peak = result["MiB at the peak"]
    reserved = result["MiB reserved"]
    by_backward = "backward. On a GPU, torch runs it in a thread of its own, so no line of Python stands there: "
    by_backward += "the line that ends in `.backward()` counts only what `cross_entropy` allocates"
    line = result["largest"][0]["line"]
    by = by_backward if line == NO_LINE else line
    table = "| MiB in all | allocations | by |\n|---|---|---|\n"
    for row in result["largest"]:
        table += f"| {row['MiB']:,.0f} | {row['allocations']} | {row['line']} |\n"
    return (f"Tensors held **{peak:,.0f} MiB** at the peak, and torch had reserved "
            f"{reserved:,.0f} MiB. The table adds up what two steps allocated. It counts memory again "
            "that was freed and allocated again, so its sum is larger than the peak. Most MiB were allocated "
            f"by {by}.\n\n"
            f"{table}\n"
            "Unpack the file with `gunzip`, and open it on https://docs.pytorch.org/memory_viz.")
