"""The exercises of DDP in practice: exact sums, snapshots that survive, a stop that all ranks share."""

import inspect
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, each, holds, nothing, same
from helpers.reporting import RUN_FOLDER
from lessons.ddp_in_practice.crashes import Saving, left_by_a_crash, snapshot

REPEATS = "`DistributedSampler` repeats samples, so that all ranks get equally many: some count twice"
SAMPLER = "torch.utils.data.DistributedSampler"
MEAN_OF_MEANS = """    own = counts[0] / counts[1].clamp(min=1)
    dist.all_reduce(own)
    return (own / dist.get_world_size()).item()
"""
NONE_AT_ALL = "    counts = torch.zeros(2)\n    if dist.get_rank() >= len(dataset):\n        return 0.0\n"


def is_known(index):
    """Whether the model knows this sample; it knows sample 0, which a DistributedSampler uses for padding."""
    return index * index % 7 < 3


class Samples:
    """A dataset that counts, in memory that worker processes share, how often each sample is read."""

    def __init__(self, size, dtype):
        self.size, self.dtype = size, dtype
        self.reads = torch.zeros(size, dtype=torch.int32).share_memory_()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.reads[index] += 1  # raises an IndexError behind the end
        label = index % 3
        best = label if is_known(index) else (label + 1) % 3
        scores = torch.full((3,), -2, dtype=getattr(torch, self.dtype))
        scores[best] = -1
        return scores, label


def more_than_its_share(mine, wanted, case):
    size, most = case[0], -(-case[0] // len(mine))
    for rank, one in enumerate(mine):
        read = size - one["reads"].count(0)
        if read > most:
            return f"rank {rank} read {read} of the {size} samples", f"at most {most}: its own share"


def read_by_nobody(mine, wanted, case):
    for index, reads in enumerate(zip(*(one["reads"] for one in mine), strict=True)):
        if not any(reads):
            return f"sample {index} was read by no rank", "every sample counts once"


class ExactAccuracy(Table, InGroup):
    title = "The exact accuracy, by all ranks together"
    task = ("Return the accuracy of `model` on the whole `dataset`: a number from 0 to 1, the same in every "
            "rank. `dataset[i]` is an image and its label. The model returns one score per class and is in "
            "eval mode. Each rank reads only its own share, at most an N-th of the samples, rounded up. "
            "Every sample counts exactly once, also if there are fewer samples than ranks.")
    hints = (
        "`range(rank, len(dataset), world_size)` repeats nothing. `torch.utils.data.Subset` takes it.",
        "Do not average averages. Count right answers and samples, add up both over all ranks with one "
        "`all_reduce`, and divide at the end. A rank without samples adds two zeros, but it calls "
        "`all_reduce`, too.",
    )
    explanation = "There are two sums and one division. A rank without samples calls `all_reduce`, too."
    why = ("A DistributedSampler repeats samples, so that all ranks train equally many steps. In a test some "
           "samples then count twice, and the accuracy depends on the number of GPUs.")
    world_sizes = (2, 4)
    cases = {"11 samples": (11, "float32"), "3 samples": (3, "float32"),
             "1001 samples in bfloat16": (1001, "bfloat16")}

    def answer(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        counts = torch.zeros(2)
        with torch.no_grad():
            for images, labels in DataLoader(mine, batch_size=64):
                right = model(images).argmax(1) == labels
                counts += torch.tensor([right.sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    def observe(exact_accuracy, case):
        dataset, model, trained = Samples(*case), torch.nn.Identity().eval(), []
        model.register_forward_pre_hook(lambda module, _: trained.append(module.training))
        accuracy = exact_accuracy(model, dataset)
        try:
            accuracy = float(accuracy)
        except (TypeError, ValueError, RuntimeError):
            accuracy = f"a {type(accuracy).__name__}"
        return {"calls in train mode": sum(trained), "reads": dataset.reads.tolist(), "accuracy": accuracy}

    rules = (
        nothing("calls in train mode", "`model.train()`: leave the model as it is", "eval mode, as it was"),
        holds(more_than_its_share, "which indices this rank looks at"),
        holds(read_by_nobody, "the remainder, where the number of ranks does not divide the samples, or a "
                              "batch's size a share; and do all ranks share out the same order?"),
        same("accuracy",
             "what is added up over the ranks, in which dtype, and what is divided by what? Is it rounded? "
             "Does a sampler repeat samples? Does every rank return one number?", within=1e-6),
    )
    mistakes = (
        ("mine, batch_size=64", f"dataset, sampler={SAMPLER}(dataset)", REPEATS),
        ("mine, batch_size=64", f"dataset, sampler={SAMPLER}(dataset, shuffle=False)", REPEATS),
        ("    dist.all_reduce(counts)\n", "", "that is the accuracy of a rank's own share: add up over all"),
        ("dist.all_reduce(counts)", "dist.reduce(counts, 0)", "`reduce` gives the sums to one rank only"),
        ("    return", "    if dist.get_rank() == 0:\n        return", "every rank returns it"),
        ("    dist.all_reduce(counts)\n    return (counts[0] / counts[1]).item()\n", MEAN_OF_MEANS,
         "that is the mean of the ranks' own accuracies: are their shares equal?"),
        ("(counts[0]", "(100 * counts[0]", "that is percent"),
        ("zeros(2)", "zeros(2, dtype=torch.bfloat16)", "the dtype of the counts: 256 + 1 is 256 in it"),
        ("argmax(1)", "max(1)[0]", "not one is right: is the class compared with the label (`max(1)` gives "
                                   "scores first)? Or does a whole number, or `//`, cut off the result?"),
    )
    stops = (("    counts = torch.zeros(2)\n", NONE_AT_ALL, "had returned",
              "does every rank come to the collective, one without samples, too?"),)


CRASH = ("`os.replace` replaces and removes in one step. Before it, write to another name in the same "
         "folder, to the end: after an error on the way (a full disk), half of it is there")
WHAT = "what you write, all of it, under which name, and whether it is finished (a thread may not be)"
WHO = "which rank writes? On a shared disk, ranks would write over each other"
WAITS = "which rank waits for which, and when? `sleep` is only a guess"
WRITES = """        with open(f"{path}.unfinished", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
"""
RENAMES = "        os.replace(f\"{path}.unfinished\", path)\n"
_folders = itertools.count()


def dies_of_a_crash(mine, wanted, case):
    if mine[0]["left by a crash"]:
        return f"there was {mine[0]['left by a crash']}", "the whole snapshot from before, or the new one"


def other_ranks_write(mine, wanted, case):
    for rank, one in enumerate(mine):
        if rank > 0 and one["files changed"]:
            return f"rank {rank} wrote a file", "rank 0 alone writes"


def missing(rank):
    def broken(mine, wanted, case):
        for number, what in enumerate(mine[rank]["found"], start=1):
            if what != f"snapshot {number}":
                observed = f"when rank {rank} returned from saving snapshot {number}, there was {what}"
                return observed, "all of `state` is at `path` when a rank returns"

    return broken


class SaveSnapshot(Table, Saving):
    title = "A snapshot that survives a crash"
    task = ("Every rank calls `save_snapshot(state, path)`. Rank 0 alone writes `state` with `torch.save`, "
            "so that `torch.load(path)` reads it. No rank returns before the file is there. If rank 0 dies "
            "**while** it saves, at whatever moment, or if the disk is full, `path` still holds the whole "
            "old snapshot or the whole new one.")
    hints = (
        "Write to another name in the same folder first, then call `os.replace(that, path)`, which is all or "
        "nothing.",
        "`dist.barrier()` makes the other ranks wait for rank 0. All ranks have to call it, so it must not "
        "stand inside the `if`.",
    )
    explanation = ("`os.replace` exchanges the file in one step: a crash before it leaves the old file, a "
                   "crash after it leaves the new one. `fsync` makes sure that the bytes are on the disk "
                   "before that. The barrier stands outside the `if`, so that every rank calls it.")
    why = ("Machines are taken away at any moment, and a job that saves often is likely to be saving at that "
           "moment. Half a snapshot under the right name costs the whole training before it.")
    cases = {"rank 0 stopped while it saved": True, "saved twice": False}
    patience, timeout = 5, 20
    slow = True

    def answer(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            with open(f"{path}.unfinished", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.unfinished", path)
        dist.barrier()

    def observe(save_snapshot, dies):
        if dies:
            left = left_by_a_crash(inspect.unwrap(save_snapshot))  # without the other ranks
            return {"left by a crash": left, "found": [], "files changed": 0}
        path = Path(os.environ[RUN_FOLDER], f"saved-{next(_folders)}", "snapshot.pt")
        path.parent.mkdir(exist_ok=True)
        SaveSnapshot.calls = []
        for number in (1, 2):
            save_snapshot(snapshot(number), str(path))
        found, changes = zip(*SaveSnapshot.calls, strict=True)
        return {"left by a crash": None, "found": found, "files changed": sum(changes)}

    rules = (
        holds(dies_of_a_crash, CRASH),
        holds(other_ranks_write, WHO),
        holds(missing(0), WHAT),
        holds(missing(1), WAITS),
    )
    mistakes = (
        (WRITES + RENAMES, "        torch.save(state, path)\n", CRASH),
        (RENAMES, "        import shutil\n        shutil.copy(f\"{path}.unfinished\", path)\n", CRASH),
        (RENAMES, "        if os.path.exists(path):\n            os.remove(path)\n" + RENAMES, CRASH),
        ("    dist.barrier()", "    pass", WAITS),
        (RENAMES, f"    dist.barrier()\n    if dist.get_rank() == 0:\n{RENAMES}    return\n", WAITS),
        ("dist.get_rank() == 0", "True", WHO),
        ("torch.save(state, ", "torch.save(state[\"model\"], ", WHAT),
    )
    stops = (("    dist.barrier()", "        dist.barrier()", "waited in vain",
              "which ranks come to the barrier, and which do not?"),)


KEEPS = ("which ranks load, into what, and all of it? `strict=False`, or an `except` for every error, hides "
         "names that do not fit")
EVERY_RANK = "every rank has to load, because DDP broadcasts the weights only when it is made"
ZERO = "epoch 0 may be finished: 0 does not mean that there is no snapshot"
LOADS_MODEL = "    model.module.load_state_dict(snapshot[\"model\"])\n"
LOADS_OPTIMIZER = "    optimizer.load_state_dict(snapshot[\"optimizer\"])\n"
PARAMETERS_ONLY = """    for name, parameter in model.module.named_parameters():
        parameter.data.copy_(snapshot["model"][name])
"""


def trained(steps):
    """A network and its optimizer after some steps."""
    torch.manual_seed(0)
    layers = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + steps), momentum=0.9)
    for _ in range(steps):
        train_a_step(model, optimizer)
    return model, optimizer


def train_a_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.arange(8, dtype=torch.float64).view(4, 2) ** 2).pow(2).mean().backward()
    optimizer.step()


def held_by(model, optimizer):
    """{name of a part: its values}"""
    [group] = optimizer.param_groups
    momentum = [optimizer.state[one].get("momentum_buffer") for one in group["params"]]
    weights = {name: one.tolist() for name, one in model.state_dict().items()}
    return {**weights, "momentum": [one if one is None else one.tolist() for one in momentum],
            "lr": group["lr"]}


def has_what_it_had(mine, wanted, case):
    for name, had in mine["before"].items():
        if mine["loaded"][name] == had != wanted["loaded"][name]:
            return f"`{name}` is as it was before", "what the snapshot holds: weights, buffers, momentum, lr"


class Resume(Table, InGroup):
    title = "Resume"
    task = ("Every rank calls `resume(path, model, optimizer)` before it trains. `model` is a DDP model. The "
            "snapshot at `path` is a dict: `\"model\"` is the state dict of the plain model, `\"optimizer\"` "
            "the optimizer's, and `\"epoch\"` the last epoch that was finished. Load it and return the "
            "number of the next epoch. If there is no snapshot, change nothing and return 0.")
    hints = (
        "The plain model inside a DDP model is `model.module`. Its state dict has no `module.` in its names.",
        "DDP broadcasts the weights only when it is made, so every rank has to load. After epoch 2 comes "
        "epoch 3.",
    )
    explanation = ("Every rank reads the file, so all ranks hold the same weights and the same momentum. The "
                   "optimizer's state is a part of the training, as the weights are.")
    why = ("A job that begins again at epoch 0 looks healthy, although it has lost everything. A job that "
           "loses the momentum, or loads in rank 0 only, looks healthy, too.")
    cases = {"epoch 2 is finished": 2, "epoch 0 is finished": 0, "there is no snapshot": None}

    def answer(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"] + 1

    def observe(resume, epoch):
        path = f"{os.environ[RUN_FOLDER]}/snapshot-{next(_folders)}.pt"
        if epoch is not None and dist.get_rank() == 0:
            model, optimizer = trained(2)
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"epoch": epoch, **states}, path)
        dist.barrier()
        plain, optimizer = trained(0)
        model, before = DistributedDataParallel(plain), held_by(plain, optimizer)
        returned = resume(path, model, optimizer)
        loaded, is_there = held_by(model.module, optimizer), os.path.exists(path)
        train_a_step(model, optimizer)
        return {"before": before, "loaded": loaded, "there is a snapshot": is_there,
                "returned": returned if isinstance(returned, int | None) else f"a {type(returned).__name__}",
                "after the next step": held_by(model.module, optimizer)}

    rules = (
        each(has_what_it_had, KEEPS),
        same("loaded", "what is changed, and by which line?", within=1e-9),
        same("there is a snapshot", "which line writes a file, or removes one? The next start loads what is "
                                    "there"),
        same("returned", "the lines with `return`"),
        same("after the next step", "the optimizer and DDP hold on to the parameters that were there: copy "
                                    "into these, as `load_state_dict` does without `assign`", within=1e-9),
    )
    mistakes = (
        ((("model.module.load", "model.load"), ("[\"model\"])", "[\"model\"], strict=False)")),
         "the names in a DDP model begin with `module.`, and `strict=False` hides that none fits"),
        (LOADS_MODEL, f"    if int(os.environ[\"RANK\"]) == 0:\n    {LOADS_MODEL}", EVERY_RANK),
        (LOADS_OPTIMIZER, "", "the optimizer has a state of its own: momentum, and the learning rate"),
        (LOADS_MODEL, PARAMETERS_ONLY, "BatchNorm's buffers are no parameters: load them, too"),
        ("[\"model\"])", "[\"model\"], assign=True)",
         "the model has new parameters (so `assign` does it); the optimizer and DDP go on with the old ones"),
        (" + 1", "", "this would train the finished epoch again: return the next one"),
        ("snapshot[\"epoch\"] + 1", "snapshot[\"epoch\"] and snapshot[\"epoch\"] + 1", ZERO),
        (LOADS_MODEL, f"    if not snapshot[\"epoch\"]:\n        return 0\n{LOADS_MODEL}", ZERO),
    )
    stops = (
        ("model.module.load", "model.load", "Missing key(s)", "the plain model is inside: `model.module`"),
        ("    if not os.path.exists(path):\n        return 0\n", "", "FileNotFoundError",
         "the first start, where there is no file yet: ask before you load"),
    )


AGREE = "what decides whether a rank goes on, or asks the others: is it the same in all ranks?"
#: By rank, the loss after each step. The mean of the fourth is 0.25, that of the fifth a little less.
LOSSES = ((0.9, 0.4, 0.3, 0.25, 0.1998, 0.1),
          (0.9, 0.8, 0.6, 0.25, 0.3, 0.2),
          (0.9, 0.75, 0.7, 0.25, 0.25, 0.2))
ALL_REDUCE, DIVIDE = "        dist.all_reduce(loss)\n", " / dist.get_world_size()"
BROADCAST = "        dist.broadcast(loss, 0)\n"
COUNT, STOP = "        steps += 1\n", "        if loss / dist.get_world_size() < limit:\n            break\n"


def stopped_elsewhere(mine, wanted, case):
    made, right = len(mine["trained on"]), len(wanted["trained on"])
    if made != right:
        means = ", ".join(f"{mean:.4g}" for mean in mine["mean losses"])
        return f"it stopped after {made} steps; the mean losses of the steps are {means}", f"after {right}"


class TrainUntil(Table, InGroup):
    title = "Hunt: the early stop that never ends"
    task = ("Train until the loss is low enough. Call `step(batch)` for one batch after the other; it "
            "returns **this rank's** loss. Stop when the **mean** of all ranks' losses is below `limit`, or "
            "when there are no more batches. Return the number of steps. In `step` the ranks average their "
            "gradients, so all ranks must make equally many steps.")
    hints = (
        "Rank 0 stops when its own loss is small. Rank 1 then waits in its next step. Which rank does it "
        "wait for?",
        "If all ranks must decide alike, they need the same number. Average the losses with "
        "`dist.all_reduce` in every step and every rank, and compare that mean with the limit.",
    )
    explanation = ("The mean is the same number in all ranks, so they all stop after the same step. It costs "
                   "one all-reduce of one number.")
    why = ("Every `break`, `continue` or `return` that depends on a rank's own data can cause such a hang: "
           "early stopping, a skipped NaN, a time limit. Let the ranks agree first.")
    world_sizes = (2, 3)
    #: The limit, and how many batches there are.
    cases = {"limit 0.5": (0.5, 6), "limit 0.25": (0.25, 6), "limit 0.01": (0.01, 6), "limit 1": (1, 6),
             "no batches": (0.5, 0)}
    waiting = sizes = AGREE

    def answer(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss)
            steps += 1
            if loss / dist.get_world_size() < limit:
                break
        return steps

    def observe(train_until, case):
        limit, number = case
        losses, trained_on = LOSSES[dist.get_rank()], []

        def step(batch):
            trained_on.append(batch)
            dist.all_reduce(torch.zeros(4))  # stands for the gradients
            return losses[min(len(trained_on), len(losses)) - 1]

        returned = train_until(list("abcdef"[:number]), step, limit)
        n = dist.get_world_size()
        return {"trained on": "".join(trained_on),
                "mean losses": [sum(of_step) / n for of_step in zip(*LOSSES[:n], strict=True)],
                "returned": returned if isinstance(returned, int | None) else f"a {type(returned).__name__}"}

    rules = (
        each(stopped_elsewhere, "whose losses are averaged (those of all ranks, in this step), after which "
                                "steps, and how is the mean compared? Wait for what is asynchronous before "
                                "you read it"),
        same("trained on", "one batch after the other"),
        same("returned", "the line with `return`, for an early stop, too"),
    )
    mistakes = (
        (DIVIDE, "", "a sum of losses is no mean yet"),
        (DIVIDE, " / 2", "there may be more than two ranks"),
        (((ALL_REDUCE, BROADCAST), (DIVIDE, "")), "that is one rank's loss, here the smallest, and no mean"),
        (((ALL_REDUCE, "        dist.all_reduce(loss, dist.ReduceOp.MAX)\n"), (DIVIDE, "")),
         "that is the largest of the losses, not their mean"),
        ("< limit", "<= limit", "below the limit, not equal"),
        ("break", "return", "the line with `return`, for an early stop, too"),
        (COUNT + STOP, STOP + COUNT, "the last step was made, too: count it before you leave the loop"),
    )
    stops = ((((ALL_REDUCE, ""), (DIVIDE, "")), "waited in vain", AGREE),)


exact_accuracy, resume = ExactAccuracy(), Resume()
save_snapshot, train_until = SaveSnapshot(), TrainUntil()
