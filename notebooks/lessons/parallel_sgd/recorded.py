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
    task, models = replace(TASKS[name], lr=0.01), mp.get_context("fork").SimpleQueue()
    programs = {"neither bug": (workers, 1, None), "both bugs": (workers, workers, models), "one process": (1, 1, None)}
    return {"data": name, "workers": workers, "programs": {
        program: attempt(train, nprocs, task, epochs, samples, *bugs) for program, (nprocs, *bugs) in programs.items()}}


def train(nprocs, *args):
    """Rank 0's rows, by epoch."""
    return in_ranks(train_in_rank, nprocs, *args, backend="gloo")[0]


def train_in_rank(task, epochs, samples, passes, models):
    """Train on a shard, and average. With `models`, a queue, all ranks train rank 0's model instead: the bug."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(0)  # one card for all ranks, also where there are several
    torch.set_num_threads(1)
    shard = split(samples or len(labels_of(task)), world_size)[rank]
    images, labels = (part.cuda() for part in tensors(task, rows=shard))
    test_set = [part.cuda() for part in tensors(task, train=False)]
    model = task.model().cuda()
    one_pass(model, task.optimizer(model), [(images[:task.batch], labels[:task.batch])])  # starts cuDNN: not measured
    model = in_one_memory(task.model().cuda(), models) if models else task.model().cuda()
    rows, seconds = [], 0.0
    for epoch in range(epochs):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(passes):
            torch.manual_seed(seed(epoch, rank))
            order = [batch.cuda() for batch in batches(len(labels), task.batch, epoch, rank)]
            one_pass(model, task.optimizer(model), ((images[batch], labels[batch]) for batch in order))
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
    averaged, alone = (result["programs"][program] for program in ("neither bug", "one process"))
    if refused := [rows["refused"] for rows in (averaged, alone) if "refused" in rows]:
        return f"The program was refused: **{refused[0]}**"
    workers, epochs, seconds = result["workers"], len(averaged), averaged[-1]["seconds"]
    longer = alone[-1]["seconds"] / seconds
    words = (f"On {result['data']}, after epoch {epochs}, {workers} workers that average their models have "
             f"**{averaged[-1]['accuracy']:.1%}** of the test images right. They train for {seconds:.2f} s. One "
             f"process with all the images has {alone[-1]['accuracy']:.1%} right, and takes {longer:.1f} times as "
             "long.")
    rows = [row_of(f"{workers} workers, {program}" if "bug" in program else program, rows)
            for program, rows in result["programs"].items()]
    others = rows_of_others()
    rows += others if result["data"] == "MNIST" else []
    head = ["| | right, by epoch | test loss at the end | seconds |", "|---|---|---|---|"]
    return "\n".join([f"{words}\n", *head, *rows])


def row_of(program, rows):
    result = f"refused: {rows['refused']} | |" if "refused" in rows else (
        f"{listed(row['accuracy'] for row in rows)} | {rows[-1]['loss']:.4f} | {rows[-1]['seconds']:.2f}")
    return f"| {program} | {result} |"


def rows_of_others():
    """What the article says of MNIST, and what was recorded without a GPU."""
    record = stored(RECORDS / "parallel_sgd.json")
    article, cores = record["published"], record["results"]["ranks that stay"]
    return [f"| the article | {listed(article['accuracy'])} | {article['loss'][-1]:.4f} | |",
            f"| 4 workers on {record['machine']['cores']} cores, recorded | {listed(cores['accuracy'])} "
            f"| {cores['loss'][-1]:.4f} | {cores['seconds']:.2f} |"]


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

    return {"time slicing": attempt(samples_a_second, counts, width, seconds, steps),
            "MPS": attempt(with_mps, samples_a_second, counts, width, seconds, steps)}


def samples_a_second(counts, width, seconds, steps):
    """{case: {number of processes: samples/s of all of them together}}."""
    barrier = mp.get_context("fork").Barrier(counts[-1])
    ranks = in_ranks(train_in_company, counts[-1], counts, width, seconds, steps, barrier)
    return {case: {count: sum(rank[case][count] for rank in ranks[:count]) for count in counts} for case in ranks[0]}


def train_in_company(counts, width, seconds, steps, barrier):
    """In a rank: train every case with 1, 2, … ranks. Those that have no part in it wait at the barrier."""
    signal.alarm(60)  # a process that MPS does not answer might wait for ever
    torch.set_num_threads(1)
    result = {}
    for case, (network, inputs, batch) in cases(width).items():
        images, labels = torch.rand(batch, inputs, device="cuda"), torch.randint(10, (batch,), device="cuda")
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
    wide = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return {"digits, batches of 8": (digits_network(), 64, 8), "digits, batches of 64": (digits_network(), 64, 64),
            f"width {width:,}, batches of 256": (wide, width, 256)}


def training(model, images, labels):
    """A function that trains for some seconds, in rounds of so many steps, at least one, and returns samples/s."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def rate(seconds, steps):
        began, rounds = time.perf_counter(), 0
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
        # CUDA says nothing if it finds no MPS, and goes on without.
        return result if order("get_server_list").stdout.strip() else {"refused": "MPS has started no server for them"}


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


@one_card_many_processes.draws
def processes_drawn(result):
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.4))
    curves = []
    for (way, rows), look in zip(result.items(), ("o-", "s--"), strict=True):
        for ax, (case, by_count) in zip(axes, {} if "refused" in rows else rows.items(), strict=False):
            ax.plot(list(by_count), [speed / 1000 for speed in by_count.values()], look, label=way)
            ax.set(title=case.replace(", batches", "\nbatches"), xlabel="processes")
            curves.append(f"{case}, {way}: " + ", ".join(f"{speed:,.0f}" for speed in by_count.values()))
    for ax in axes:
        ax.set_ylim(0, 1.1 * ax.get_ylim()[1])
    axes[0].set_ylabel("1,000 samples/s, all together")
    axes[2].legend()
    figure.suptitle("Processes that share a GPU")
    figure.set_label("Samples/s by number of processes. " + "; ".join(curves))


@one_card_many_processes.tells
def processes_in_words(result):
    refusals = [f"Refused with {way}: **{rows['refused']}**" for way, rows in result.items() if "refused" in rows]
    if "refused" in result["time slicing"]:
        return ". ".join(refusals)
    few, more, wide = result["time slicing"]
    alone = {case: next(iter(by_count.values())) for case, by_count in result["time slicing"].items()}
    step = {case: 1000 * int(case.split()[-1]) / speed for case, speed in alone.items()}  # ms: its last word is a batch
    most = list(result["time slicing"][few])[-1]
    gain = {way: {case: by_count[most] / alone[case] for case, by_count in rows.items()}
            for way, rows in result.items() if "refused" not in rows}
    best, batch = max(gain, key=lambda way: gain[way][few]), alone[more] / alone[few]
    wide_gains = " and ".join(f"{by_case[wide]:.1f} times as much as one by {way}" for way, by_case in gain.items())
    turns = gain["time slicing"][few]
    free = "A step with 64 samples takes about as long as one with 8. " if step[more] < 1.2 * step[few] else ""
    first = "Try a larger batch before you share a GPU. " if batch > gain[best][few] else ""
    busy = " One process keeps the GPU busy." if all(0.9 < by_case[wide] < 1.1 for by_case in gain.values()) else ""
    words = (f"With batches of 8, {most} processes train **{gain[best][few]:.1f} times** the samples/s of one "
             f"(by {best}). One process with batches of 64 trains {batch:.1f} times the samples/s of one with batches "
             f"of 8. {free}{first}With time slicing, only one process has the GPU at a time. {most} processes still do "
             f"{turns:.1f} times the work of one, so one of them, with batches of 8, uses the GPU for at most "
             f"{min(1, 1 / turns):.0%} of its time. With the wide network, {most} processes train {wide_gains}.{busy}")
    rows = [f"| {case} | {step[case]:.2f} ms | " + " | ".join(f"{gain[way][case]:.1f}×" for way in gain) + " |"
            for case in alone]
    head = "| | a step of one process | " + " | ".join(f"{most} processes, {way}" for way in gain) + " |"
    return " ".join([words, *refusals]) + "\n\n" + "\n".join([head, "|---|---" + "|---" * len(gain) + "|", *rows])
