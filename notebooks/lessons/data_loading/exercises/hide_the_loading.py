"""A DataLoader whose workers read while the device computes."""

import multiprocessing
import os
import time
from collections import Counter
from itertools import accumulate, chain, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from helpers.exercises.exercise import Exercise
from helpers.exercises.in_rank import scratch
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each, nothing, same
from helpers.instruments.calls import counted_calls
from lessons.data_loading.exercises.quick_workers import allow_quick_workers

#: The samples. None equals its place, and the batch size does not divide their number.
VALUES = [1000 - 3 * place for place in range(50)]
BATCH = 4
#: Milliseconds that a sample waits for its disk, and that the device needs for a step.
READ_MS, STEP_MS = 8, 10
SPEED_UP = 3.5
MOST_WORKERS = 4

sleep_as_it_is = time.sleep  # whatever is patched later


class SlowDisk:
    """A dataset whose samples wait for a disk, asleep.

    It logs when each read begins (3) and ends (-3), in which process, and whether sleeping was still what it is.
    """

    def __init__(self, log):
        self.log = log

    def __len__(self):
        return len(VALUES)

    def __getitem__(self, index):
        value = VALUES[index]
        self.write(value)
        sleep_as_it_is(READ_MS / 1000)
        self.write(-value)
        return value

    def write(self, mark):
        asleep = time.sleep is sleep_as_it_is
        with open(self.log, "a") as log:  # one write, at its end: many processes write, line by line
            log.write(f"{mark} {os.getpid()} {asleep:d}\n")


def children():
    """The numbers of the processes that this one has started with `multiprocessing`, and that still run."""
    return {child.pid for child in multiprocessing.active_children()}


def batches_of(loader):
    """The values in each batch of one epoch; stops in good time."""
    batches = []
    for batch in islice(loader, 2 * len(VALUES)):
        values = []
        for leaf in tree_leaves(batch):
            values.extend(torch.as_tensor(leaf).flatten().tolist())
        batches.append(values)
    return batches


class HideTheLoading(Exercise):
    title = "Hide the loading"
    task = ("`dataset` has 50 samples, and each of them waits 8 ms for a disk. The device needs 10 ms for a "
            "batch of 4. Return a `DataLoader` that gives batches of 4 and every sample once per epoch. With so "
            "many samples that the start does not count, an epoch must be at least 3.5 times as fast as without "
            "workers. Let at most 4 processes run besides the training, and start none after the first epoch. The "
            "samples do not fit into memory: read them anew in each epoch, and ask for fewer than 50 in advance. The "
            "disk stays as slow as it is.")
    hints = (
        "One process needs 4 × 8 ms for a batch, and the device takes a batch every 10 ms. How many "
        "processes must load side by side?",
        "`DataLoader(dataset, batch_size=…, num_workers=…)`. And `persistent_workers=True` keeps the "
        "workers from one epoch to the next.",
    )
    explanation = ("Loading a batch takes 3.2 times as long as the step, so four workers keep the device busy, and "
                   "three almost do. They sleep most of the time, so they do not need as many cores.")
    why = ("a device that waits costs as much as one that computes. Once loading is hidden behind computing, "
           "an epoch takes as long as its steps, and more workers bring nothing.")

    timeout = 30
    slow = True

    def answer(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)        #: loader

    def observe(hide_the_loading, case):
        allow_quick_workers()
        with scratch() as folder, mock.patch.object(time, "sleep", sleep_as_it_is):  # as it was, afterwards
            log = Path(folder, "reads")
            before = children()
            loader = hide_the_loading(SlowDisk(log))
            returned = "DataLoader" if isinstance(loader, DataLoader) else type(loader).__name__
            workers = getattr(loader, "num_workers", 0)
            if returned != "DataLoader" or workers > MOST_WORKERS:
                return {"returned": returned, "processes": workers}
            batches_of(loader)
            processes = len(children() - before)

            # What follows is observed in the second epoch.
            log.write_text("")
            with counted_calls(BaseProcess, "start") as calls:
                batches = batches_of(loader)
            lines = [line.split() for line in log.read_text().splitlines()]
            quicker = time.sleep is not sleep_as_it_is or any(asleep == "0" for *_, asleep in lines)
        marks = [int(mark) for mark, _, _ in lines]
        came = Counter(chain.from_iterable(batches))
        reads = Counter(mark for mark in marks if mark > 0)
        under_way = accumulate(1 if mark > 0 else -1 for mark in marks)
        return {
            "returned": returned,
            "num_workers": workers,
            "processes": max(workers, processes),
            "samples asked for in advance": workers * (getattr(loader, "prefetch_factor", 0) or 0) * BATCH,
            "replaced": "`time.sleep`" if quicker else "",
            "samples that came more than once": sum(came[value] > 1 for value in VALUES),
            "samples that never came": sum(came[value] == 0 for value in VALUES),
            "sizes of batches": dict(Counter(sorted(map(len, batches), reverse=True))),
            "samples not read exactly once": sum(reads[value] != 1 for value in VALUES),
            "read at once": max(under_way, default=0),
            "read ahead": all(int(process) != os.getpid() for _, process, _ in lines),
            "workers started": len(calls["start"]),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    the_loader_itself = "return the loader itself; the training loop will iterate over it"
    fewer_workers = ("each worker costs memory and time to start: how many are needed? Those of a loader that you "
                     "only tried run on as long as it is there")
    fewer_in_advance = ("`prefetch_factor` counts batches of each worker. They wait in memory, into which the samples "
                        "do not fit: how many bridge what here takes equally long each time?")
    as_slow_as_it_is = "leave `time.sleep` alone: it stands for a disk. Who can wait for it while the device computes?"
    all_come = "is a last, smaller batch dropped? Does the sampler give every sample, and begin anew in each epoch?"
    each_sample_once = "each sample once, also in the second epoch"
    read_anew = "`DataLoader(dataset, …)`: a real dataset is too large to be read beforehand, or kept"
    not_hidden = "`num_workers`: who loads while the device computes, and how many at a time?"
    workers_kept = "`persistent_workers` keeps the workers of the first epoch"

    def too_slow(mine, wanted, case):
        # Nothing is timed: how many samples are read at once says how long a batch takes, beside a step.
        reading = BATCH * READ_MS / mine["read at once"]
        if mine["read ahead"]:
            batch_ms = max(reading, STEP_MS)
            meanwhile = "computed"
        else:
            batch_ms = reading + STEP_MS
            meanwhile = "waited"
        speed_up = (BATCH * READ_MS + STEP_MS) / batch_ms
        if speed_up < SPEED_UP:
            return (f"with num_workers={mine['num_workers']}, samples were read {mine['read at once']} at a time, "
                    f"while the device {meanwhile}: an epoch is {speed_up:.1f} times as fast as without workers",
                    f"at least {SPEED_UP} times")

    rules = (
        same("returned", the_loader_itself),
        between("processes", lambda wanted, case: (0, MOST_WORKERS), fewer_workers),
        between("samples asked for in advance", lambda wanted, case: (0, len(VALUES) - 1), fewer_in_advance),
        nothing("replaced", as_slow_as_it_is, "a disk that is as slow as before"),
        nothing("samples that came more than once",
                "does the sampler draw an index twice? Or does each worker read a whole iterable dataset?",
                each_sample_once),
        nothing("samples that never came", all_come, each_sample_once),
        same("sizes of batches", "another batch size is another training"),
        nothing("samples not read exactly once", read_anew, "each is read once, in each epoch"),
        each(too_slow, not_hidden),
        nothing("workers started", workers_kept, "none in the second epoch"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(not_hidden, loader="return DataLoader(dataset, batch_size=4)"),
        mistake(not_hidden, loader="return DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)"),
        mistake(not_hidden, loader="return DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)"),
        mistake(workers_kept, loader="return DataLoader(dataset, batch_size=4, num_workers=4)"),
        mistake(fewer_workers,
                loader="return DataLoader(dataset, batch_size=4, num_workers=32, persistent_workers=True)"),
        mistake(fewer_workers,
                loader="tried = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)\n"
                       "list(tried)\n"
                       "better = DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)\n"
                       "better.tried = tried\n"
                       "return better"),
        mistake(fewer_in_advance,
                loader="return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True,\n"
                       "                  prefetch_factor=4)"),
        mistake(as_slow_as_it_is,
                loader="import time\n"
                       "time.sleep = lambda seconds: None\n"
                       "return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)"),
        mistake(as_slow_as_it_is,
                loader="def quicker(worker):\n"
                       "    import time\n"
                       "    time.sleep = lambda seconds: None\n"
                       "return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True,\n"
                       "                  worker_init_fn=quicker)"),
        mistake(all_come,
                loader="return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True,\n"
                       "                  drop_last=True)"),
        mistake(read_anew,
                loader="return DataLoader(list(dataset), batch_size=4, num_workers=4, persistent_workers=True)"),
        mistake(the_loader_itself,
                loader="return list(DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True))"),
    )


hide_the_loading = HideTheLoading()
