"""S4's way, ranks that stay, and pure compute, side by side.

    COURSE_DATA=… .venv/bin/python tests/benchmarks/parallel_sgd.py     # MNIST, two minutes

It replaces the record that lesson 02 shows. S4's way spawns its workers anew every epoch and transforms
every sample by itself. Its seconds, and those of the ranks that stay, count from the call of `launch` to its
end, data and tests included. Pure compute is the same number of steps on tensors that are ready, in one
process per core, and nothing else.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from helpers import launch
from helpers.hardware import hardware
from helpers.places import RECORDS
from helpers.records import store
from tests.benchmarks.machine import this_machine

WORKERS, EPOCHS = 4, 3
COMMON = ["--task", "MNIST", "--epochs", str(EPOCHS)]
#: S4's published test accuracies and losses on MNIST, epoch by epoch.
PUBLISHED = {"accuracy": (0.87, 0.92, 0.93), "loss": (0.5926, 0.3062, 0.2283)}


def compute_only(passes):
    """What every process of the pure compute does: its passes over a worker's shard."""
    import torch.distributed as dist

    from lessons.parallel_sgd.ranks import train_step
    from lessons.parallel_sgd.shards import batches, labels_of, split, tensors
    from lessons.parallel_sgd.task import TASKS

    task = TASKS["MNIST"]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    images, labels = tensors(task, rows=split(len(labels_of(task)), WORKERS)[0])
    model = task.model()
    dist.barrier()
    began = time.perf_counter()
    for number in range(passes):
        optimizer = task.optimizer(model)
        for batch in batches(len(labels), task.batch, number, 0):
            train_step(model, optimizer, images[batch], labels[batch])
    return time.perf_counter() - began


def measured():
    """{way: {"seconds", and by epoch "accuracy" and "loss"}}."""
    results = {}
    own = ["--workers", str(WORKERS), "--threads", "1"]
    for way, script, nprocs, more in [("S4's way", "sgd_respawned.py", 1, own),
                                      ("ranks that stay", "sgd_staying.py", WORKERS, [])]:
        began = time.perf_counter()
        run = launch(script, nprocs, args=[*COMMON, *more], show=False, timeout=1800)
        seconds = time.perf_counter() - began
        rows = [row for row in run.reports[0] if "accuracy" in row]
        curves = {what: [row[what] for row in rows] for what in ("accuracy", "loss")}
        results[way] = {"seconds": seconds, **curves}
    processes = min(hardware.cores, WORKERS)
    passes = -(-WORKERS * EPOCHS // processes)
    seconds = max(launch(compute_only, processes, args=(passes,), show=False).results)
    return results | {"pure compute": {"seconds": seconds * WORKERS * EPOCHS / (passes * processes)}}


if __name__ == "__main__":
    content = {"machine": this_machine(), "task": "MNIST", "workers": WORKERS, "epochs": EPOCHS}
    launch(int, 1, show=False)  # the fork server's import of torch is nobody's time
    store(RECORDS / "parallel_sgd.json", content | {"results": measured(), "published": PUBLISHED})
