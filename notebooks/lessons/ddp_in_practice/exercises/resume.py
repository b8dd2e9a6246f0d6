"""The start of a training that goes on: every rank loads the snapshot, all of it, if there is one."""

import itertools
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, same
from helpers.reporting import RUN_FOLDER

#: Each function that a rank runs has a file of its own, the same one in all ranks.
_files = itertools.count()


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
    values = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    [group] = optimizer.param_groups
    values["momentum"] = []
    for parameter in group["params"]:
        momentum = optimizer.state[parameter].get("momentum_buffer")
        values["momentum"].append(None if momentum is None else momentum.tolist())
    values["lr"] = group["lr"]
    return values


class Resume(InGroup):
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

        if not os.path.exists(path):                                        #: absent
            return 0
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])                     #: weights
        optimizer.load_state_dict(snapshot["optimizer"])                    #: momentum
        return snapshot["epoch"] + 1                                        #: epoch

    def observe(resume, epoch):
        path = f"{os.environ[RUN_FOLDER]}/snapshot-{next(_files)}.pt"
        if epoch is not None and dist.get_rank() == 0:
            model, optimizer = trained(2)
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"epoch": epoch, **states}, path)
        dist.barrier()
        plain, optimizer = trained(0)
        model = DistributedDataParallel(plain)
        before = held_by(plain, optimizer)

        returned = resume(path, model, optimizer)

        if not isinstance(returned, int | None):
            returned = kind_of(returned)
        loaded = held_by(model.module, optimizer)
        is_there = os.path.exists(path)
        train_a_step(model, optimizer)
        return {
            "before": before,
            "loaded": loaded,
            "there is a snapshot": is_there,
            "returned": returned,
            "after the next step": held_by(model.module, optimizer),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def has_what_it_had(mine, wanted, case):
        for name, had in mine["before"].items():
            if mine["loaded"][name] == had != wanted["loaded"][name]:
                return f"`{name}` is as it was before", "what the snapshot holds: weights, buffers, momentum, lr"

    rules = (
        each(has_what_it_had, "which ranks load, into what, and all of it? `strict=False`, or an `except` for every "
                              "error, hides names that do not fit"),
        same("loaded", "what is changed, and by which line?", within=1e-9),
        same("there is a snapshot", "which line writes a file, or removes one? The next start loads what is there"),
        same("returned", "the lines with `return`"),
        same("after the next step", "the optimizer and DDP hold on to the parameters that were there: copy into these, "
                                    "as `load_state_dict` does without `assign`", within=1e-9),
    )

    # ------------------------------------------------------------------------------------ what people write

    epoch_0_counts = "epoch 0 may be finished: 0 does not mean that there is no snapshot"

    mistakes = (
        mistake("the names in a DDP model begin with `module.`, and `strict=False` hides that none fits",
                weights='model.load_state_dict(snapshot["model"], strict=False)'),
        mistake("every rank has to load, because DDP broadcasts the weights only when it is made",
                weights='if int(os.environ["RANK"]) == 0:\n'
                        '    model.module.load_state_dict(snapshot["model"])'),
        mistake("the optimizer has a state of its own: momentum, and the learning rate", momentum=""),
        mistake("BatchNorm's buffers are no parameters: load them, too",
                weights="for name, parameter in model.module.named_parameters():\n"
                        '    parameter.data.copy_(snapshot["model"][name])'),
        mistake("the model has new parameters (so `assign` does it); the optimizer and DDP go on with the old ones",
                weights='model.module.load_state_dict(snapshot["model"], assign=True)'),
        mistake("this would train the finished epoch again: return the next one", epoch='return snapshot["epoch"]'),
        mistake(epoch_0_counts, epoch='return snapshot["epoch"] and snapshot["epoch"] + 1'),
        mistake(epoch_0_counts,
                weights='if not snapshot["epoch"]:\n'
                        "    return 0\n"
                        'model.module.load_state_dict(snapshot["model"])'),
        stop("Missing key(s)", "the plain model is inside: `model.module`",
             weights='model.load_state_dict(snapshot["model"])'),
        stop("FileNotFoundError", "the first start, where there is no file yet: ask before you load", absent=""),
    )


resume = Resume()
