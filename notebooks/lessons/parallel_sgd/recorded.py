"""What the lesson about parallel SGD shows of one GPU that several processes share: the article's own case."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from helpers.data import download_folder
from helpers.experiments import attempt, experiment, in_ranks
from helpers.places import RECORDS
from helpers.records import stored
from lessons.parallel_sgd.ranks import average, one_pass, train_step
from lessons.parallel_sgd.shards import batches, labels_of, seed, split, tensors, tested
from lessons.parallel_sgd.task import TASKS, digits_network

#: NVIDIA's program that starts MPS and gives it orders.
CONTROL = "nvidia-cuda-mps-control"


@experiment(gpus=1, seconds=14, wanted=2, small={"workers": 2, "epochs": 1, "samples": 16})
def article_on_a_gpu(workers=4, epochs=3, samples=None):
    """What does the article's program reach when its workers share a GPU, and what does a single process reach there?

    The article's network on MNIST where it has been downloaded, else the digits' network; learning rate 0.01, three
    epochs. Four workers that average their models; four with both bugs of the published program; one process with all
    images. The clock runs while they train and average, not while they start or test.
    """
    import torch._dynamo  # noqa: F401  (Every optimizer imports it. The ranks are forked, and share it.)

    name = "MNIST" if Path(download_folder(), "MNIST", "raw").exists() else "Digits"
    task = replace(TASKS[name], lr=0.01)

    def rows_of(nprocs, passes=1, models=None):
        return attempt(train, nprocs, task, epochs, samples, passes, models)

    shared_models = mp.get_context("fork").SimpleQueue()
    programs = {
        "neither bug": rows_of(workers),
        # Each worker makes as many passes over its shard as there are workers, and all train the same model.
        "both bugs": rows_of(workers, passes=workers, models=shared_models),
        "one process": rows_of(1),
    }
    return {"data": name, "workers": workers, "programs": programs}


def train(nprocs, *args):
    """Rank 0's rows, by epoch."""
    return in_ranks(train_in_rank, nprocs, *args, backend="gloo")[0]


def train_in_rank(task, epochs, samples, passes, models):
    """Train on a shard, and average. With `models`, a queue, all ranks train rank 0's model instead: the bug."""
    rank = dist.get_rank()
    torch.cuda.set_device(0)  # one card for all ranks, also where there are several
    torch.set_num_threads(1)
    samples = samples or len(labels_of(task))
    shard = split(samples, dist.get_world_size())[rank]
    images, labels = [part.cuda() for part in tensors(task, rows=shard)]
    test_set = [part.cuda() for part in tensors(task, train=False)]

    # One batch, for another model, starts cuDNN before the clock runs.
    model = task.model().cuda()
    first_batch = (images[:task.batch], labels[:task.batch])
    one_pass(model, task.optimizer(model), [first_batch])

    model = task.model().cuda()
    if models:
        model = in_one_memory(model, models)
    rows = []
    seconds = 0.0
    for epoch in range(epochs):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(passes):
            torch.manual_seed(seed(epoch, rank))
            order = batches(len(labels), task.batch, epoch, rank)
            order = [numbers.cuda() for numbers in order]
            shuffled = ((images[numbers], labels[numbers]) for numbers in order)
            one_pass(model, task.optimizer(model), shuffled)
            torch.cuda.synchronize()
            dist.barrier()
        if not models:
            average(model)
        seconds += time.perf_counter() - began
        loss, accuracy = tested(model, *test_set)
        rows.append({"loss": loss, "accuracy": accuracy, "seconds": seconds})
    return rows


def in_one_memory(model, models):
    """Rank 0's model, in every rank: the queue does not carry its weights, but tells where they are."""
    if dist.get_rank() > 0:
        return models.get()
    for _ in range(1, dist.get_world_size()):
        models.put(model)
    return model


@article_on_a_gpu.tells
def article_in_words(result):
    averaged = result["programs"]["neither bug"]
    alone = result["programs"]["one process"]
    for rows in (averaged, alone):
        if "refused" in rows:
            return f"The program was refused: **{rows['refused']}**"
    workers = result["workers"]
    end = averaged[-1]
    first_alone = alone[0]
    words = (
        f"On {result['data']}, after epoch {len(averaged)}, {workers} workers that average their models have "
        f"**{end['accuracy']:.1%}** of the test images right. They train for {end['seconds']:.2f} s. "
        f"One process with all the images has {first_alone['accuracy']:.1%} right after epoch 1, "
        f"at {first_alone['seconds']:.2f} s."
    )
    table = ["| | right, by epoch | test loss at the end | seconds |", "|---|---|---|---|"]
    for program, rows in result["programs"].items():
        title = f"{workers} workers, {program}" if "bug" in program else program
        table.append(row_of(title, rows))
    others = rows_of_others()  # always, so that a rehearsal without MNIST reads them
    if result["data"] == "MNIST":
        table += others
    return words + "\n\n" + "\n".join(table)


def row_of(title, rows):
    """A program's row of the table: its end, and how it came there."""
    if "refused" in rows:
        return f"| {title} | refused: {rows['refused']} | | |"
    accuracies = listed(row["accuracy"] for row in rows)
    end = rows[-1]
    return f"| {title} | {accuracies} | {end['loss']:.4f} | {end['seconds']:.2f} |"


def rows_of_others():
    """What the article says of MNIST, and what was recorded without a GPU."""
    record = stored(RECORDS / "parallel_sgd.json")
    article = record["published"]
    on_cores = record["results"]["ranks that stay"]
    number_of_cores = record["machine"]["cores"]
    article_end = article["loss"][-1]
    end_on_cores = on_cores["loss"][-1]
    return [
        f"| the article | {', '.join(f'{share:.0%}' for share in article['accuracy'])} | {article_end:.4f} | |",
        f"| 4 workers on {number_of_cores} cores, recorded | {listed(on_cores['accuracy'])} "
        f"| {end_on_cores:.4f} | {on_cores['seconds']:.2f} |",
    ]


def listed(shares):
    return ", ".join(f"{share:.1%}" for share in shares)


@experiment(gpus=1, seconds=30, wanted=1, small={"counts": (1, 2), "width": 16, "seconds": 0, "steps": 1})
def one_card_many_processes(counts=(1, 2, 4, 8), width=4096, seconds=0.7, steps=10):
    """Do several processes on one GPU train more samples a second than one?

    1, 2, 4 and 8 processes train a network each at the same time. Three cases: the digits' network with batches of 8
    and of 64, and three layers of width 4,096 with batches of 256. First with time slicing, which is what several
    processes on a GPU get; then with NVIDIA's Multi-Process Service (MPS), if it starts here.
    """
    import torch._dynamo  # noqa: F401  (Every optimizer imports it. The ranks are forked, and share it.)

    settings = (counts, width, seconds, steps)
    return {
        "time slicing": attempt(samples_a_second, *settings),
        "MPS": attempt(with_mps, samples_a_second, *settings),
    }


def samples_a_second(counts, width, seconds, steps):
    """{case: {number of processes: samples/s of all of them together}}."""
    barrier = mp.get_context("fork").Barrier(counts[-1])
    ranks = in_ranks(train_in_company, counts[-1], counts, width, seconds, steps, barrier)
    together = {}
    for case in ranks[0]:
        together[case] = {}
        for count in counts:
            rates = [rank[case][count] for rank in ranks[:count]]
            together[case][count] = sum(rates)
    return together


def train_in_company(counts, width, seconds, steps, barrier):
    """In a rank: train every case with 1, 2, … ranks. Those that have no part in it wait at the barrier."""
    signal.alarm(60)  # a process that MPS does not answer might wait for ever
    torch.set_num_threads(1)
    result = {}
    for case, (network, inputs, batch) in cases(width).items():
        images = torch.rand(batch, inputs, device="cuda")
        labels = torch.randint(10, (batch,), device="cuda")
        rate = training(network.cuda(), images, labels)
        rate(0, steps)  # warms up
        result[case] = {}
        for count in counts:
            barrier.wait()
            if int(os.environ["RANK"]) < count:
                result[case][count] = rate(seconds, steps)
    return result


def cases(width):
    """{words: (network, inputs, samples in a batch)}"""
    wide = nn.Sequential(
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )
    return {
        "digits, batches of 8": (digits_network(), 64, 8),
        "digits, batches of 64": (digits_network(), 64, 64),
        f"width {width:,}, batches of 256": (wide, width, 256),
    }


def training(model, images, labels):
    """A function that trains for some seconds, in rounds of so many steps, at least one, and returns samples/s."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def rate(seconds, steps):
        began = time.perf_counter()
        rounds = 0
        while rounds == 0 or time.perf_counter() < began + seconds:
            for _ in range(steps):
                train_step(model, optimizer, images, labels)
            torch.cuda.synchronize()  # steps that still wait in the queue do not count
            rounds += 1
        return rounds * steps * len(labels) / (time.perf_counter() - began)

    return rate


def with_mps(work, *args):
    """What `work(*args)` returns when the processes that it starts share the GPU by MPS."""
    with mps_daemon() as order:
        result = work(*args)
        # CUDA says nothing if it finds no MPS, and goes on without. So we ask MPS whom it has served.
        servers = order("get_server_list").stdout.strip()
        return result if servers else {"refused": "MPS has started no server for them"}


@contextlib.contextmanager
def mps_daemon():
    """MPS's daemon, in a folder of its own, for processes that start within. Gives a function that gives it orders.

    Raises FileNotFoundError: it is not installed. RuntimeError: it does not answer.
    """
    def order(words):
        return subprocess.run([CONTROL], input=f"{words}\n", capture_output=True, text=True, timeout=10)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, open(f"{folder}/log", "w") as log:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        os.environ["PATH"] += ":/usr/local/nvidia/bin"  # where some containers have the driver's programs
        daemon = subprocess.Popen([CONTROL, "-f"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 5
            while (answer := order("get_server_list")).returncode:
                if time.monotonic() > until:
                    raise RuntimeError(Path(log.name).read_text() or answer.stderr)
                time.sleep(0.1)
            yield order
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                order("quit")
            daemon.kill()
            daemon.wait()


def answered(result):
    """{way: its samples/s}, of the ways that this machine has not refused."""
    return {way: rows for way, rows in result.items() if "refused" not in rows}


@one_card_many_processes.draws
def processes_drawn(result):
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.4))
    looks = {"time slicing": "o-", "MPS": "s--"}
    curves = []
    for way, rows in answered(result).items():
        for ax, (case, by_count) in zip(axes, rows.items(), strict=True):
            thousands = [rate / 1000 for rate in by_count.values()]
            ax.plot(list(by_count), thousands, looks[way], label=way)
            ax.set(title=case.replace(", batches", "\nbatches"), xlabel="processes")
            numbers = ", ".join(f"{rate:,.0f}" for rate in by_count.values())
            curves.append(f"{case}, {way}: {numbers}")
    for ax in axes:
        _, top = ax.get_ylim()
        ax.set_ylim(0, 1.1 * top)
    axes[0].set_ylabel("1,000 samples/s, all together")
    axes[2].legend()
    figure.suptitle("Processes that share a GPU")
    figure.set_label("Samples/s by number of processes. " + "; ".join(curves))


@one_card_many_processes.tells
def processes_in_words(result):
    refusals = [f"Refused with {way}: **{rows['refused']}**" for way, rows in result.items() if "refused" in rows]
    sliced = result["time slicing"]
    if "refused" in sliced:
        return ". ".join(refusals)
    alone = {}  # case: samples/s of one process
    step_ms = {}  # case: how long a step of one process takes
    for case, by_count in sliced.items():
        alone[case] = next(iter(by_count.values()))
        batch = int(case.split()[-1])
        step_ms[case] = 1000 * batch / alone[case]
    batches_of_8, batches_of_64, wide = sliced
    most = list(sliced[batches_of_8])[-1]  # processes
    gains = {}  # way: {case: how many times as much most processes train as one}
    for way, rows in answered(result).items():
        gains[way] = {}
        for case, by_count in rows.items():
            gains[way][case] = by_count[most] / alone[case]

    best = max(gains, key=lambda way: gains[way][batches_of_8])
    best_gain = gains[best][batches_of_8]
    batch_gain = alone[batches_of_64] / alone[batches_of_8]
    free = step_ms[batches_of_64] < 1.2 * step_ms[batches_of_8]
    about_free = "A step with 64 samples takes about as long as one with 8. " if free else ""
    advice = "Try a larger batch before you share a GPU. " if batch_gain > best_gain else ""
    # If time slicing, in which one process at a time has the GPU, does 4 times the work of one process, then that one
    # uses the GPU for a quarter of its time.
    turns = gains["time slicing"][batches_of_8]
    at_most = min(1, 1 / turns)
    wide_gains = []
    wide_in_words = []
    for way, by_case in gains.items():
        wide_gains.append(by_case[wide])
        wide_in_words.append(f"{by_case[wide]:.1f} times ({way})")
    busy = all(0.9 < gain < 1.1 for gain in wide_gains)
    about_busy = " One process keeps the GPU busy." if busy else ""
    words = (
        f"With batches of 8, {most} processes ({best}) train **{best_gain:.1f} times** the samples/s of one without "
        "MPS. "
        f"One process with batches of 64 trains {batch_gain:.1f} times the samples/s of one with batches of 8. "
        f"{about_free}{advice}"
        "With time slicing, only one process has the GPU at a time. "
        f"{most} processes still do {turns:.1f} times the work of one, "
        f"so one of them, with batches of 8, uses the GPU for at most about {at_most:.0%} of its time. "
        f"With the wide network, {most} processes train {' and '.join(wide_in_words)} the samples/s of one without MPS."
        f"{about_busy}"
    )
    words = " ".join([words, *refusals])
    return words + "\n\n" + table_of_gains(gains, step_ms, most)


def table_of_gains(gains, step_ms, most):
    """A row a case, with a column for each way to share the GPU."""
    head = "| | a step of one process without MPS |"
    rule = "|---|---|"
    for way in gains:
        head += f" {most} processes, {way} |"
        rule += "---|"
    lines = [head, rule]
    for case, milliseconds in step_ms.items():
        line = f"| {case} | {milliseconds:.2f} ms |"
        for by_case in gains.values():
            line += f" {by_case[case]:.1f}× |"
        lines.append(line)
    return "\n".join(lines)
