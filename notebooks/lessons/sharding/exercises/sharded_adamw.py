"""ZeRO-1, by hand: each rank keeps a share of AdamW's state, and all ranks have the same weights."""

import gc
import time

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils._pytree import tree_leaves

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, holds, same
from helpers.instruments.memory import held_bytes


def bytes_of_plain_state(dtype):
    """The bytes that a plain AdamW keeps: two numbers for each of the model's 4,825 weights."""
    return 2 * 4825 * dtype.itemsize


def most_to_keep(dtype):
    return bytes_of_plain_state(dtype) / 2 + 1024  # the step counters are small, and each rank has its own


def random_gradients(parameters):
    """A gradient for each parameter."""
    gradients = []
    for parameter in parameters:
        # Those of biases are so small that AdamW's eps counts, so a wrong factor shows in the weights.
        scale = 1 if parameter.dim() > 1 else 1e-5
        gradients.append(scale * torch.randn_like(parameter))
    return gradients


def bytes_beside(parameters, before, held):
    """The bytes that are held, without those of parameters that were given other storages than `before`."""
    gc.collect()
    places_before = [storage._cdata for storage in before]
    moved = {}
    for parameter in parameters:
        storage = parameter.untyped_storage()
        if storage._cdata not in places_before:
            moved[storage._cdata] = storage.nbytes()  # by its place: parameters may share a storage
    of_parameters = sum(moved.values())
    most = most_to_keep(parameters[0].dtype)
    end = time.monotonic() + 2  # a thread of gloo's holds tensors for a moment after their collective
    while held.now - of_parameters > most and time.monotonic() < end:
        time.sleep(0.01)
    return held.now - of_parameters


def bytes_of_optimizers():
    """The bytes that all of torch's optimizers in this process keep."""
    storages = {}
    for optimizer in gc.get_objects():
        if issubclass(type(optimizer), torch.optim.Optimizer):
            for tensor in tree_leaves([dict(states) for states in optimizer.state.values()]):
                if isinstance(tensor, torch.Tensor):
                    storages[tensor.untyped_storage()._cdata] = tensor.nbytes
    return sum(storages.values())


class ShardedAdamw(InGroup):
    title = "An AdamW that holds its share"
    task = ("Every rank holds the whole `model`, in float32 or float64. Each item of the iterator `steps` leaves "
            "new gradients in the parameters, which are averaged already and equal in all ranks. After each item, "
            "do what `torch.optim.AdamW(model.parameters(), lr=lr).step()` would do. All ranks must have the new "
            "weights before you ask for the next item. At the end return the optimizer, or whatever holds "
            "its state. Beside the parameters and their gradients never keep more than **half** of the bytes "
            "that a plain AdamW keeps. (A fair share for each of four ranks is a quarter.)")
    hints = (
        "Decide who steps what. Give each parameter to one rank, or cut all of them into pieces, as ZeRO-1 "
        "does.",
        "An AdamW of this rank's own parameters steps them. Then `dist.broadcast` each parameter from its "
        "owner (`src=`), in all ranks in the same order.",
        "`torch.distributed.optim.ZeroRedundancyOptimizer` is torch's own. By hand it is about ten lines.",
    )
    explanation = ("Each parameter goes to the rank that has least so far. The optimizer knows only its own "
                   "parameters, so its state is about a quarter. A broadcast makes the weights equal again.")
    why = ("the weights are those of a plain AdamW, bit for bit. Only the bytes tell whether an optimizer is "
           "sharded. Whole parameters give uneven shares. ZeRO cuts one flat tensor, so that all ranks hold "
           "equally much.")

    world_sizes = (4,)
    cases = {"float32": torch.float32, "float64": torch.float64}
    slow = True

    def answer(model, steps, lr):
        import torch
        import torch.distributed as dist

        owners, load = {}, [0] * dist.get_world_size()
        for parameter in model.parameters():
            owners[parameter] = load.index(min(load))
            load[owners[parameter]] += parameter.numel()
        mine = [parameter for parameter, owner in owners.items() if owner == dist.get_rank()]
        optimizer = torch.optim.AdamW(mine, lr=lr)                  #: optimizer
        for _ in steps:
            optimizer.step()                                        #: step
            for parameter, owner in owners.items():
                dist.broadcast(parameter.data, src=owner)           #: broadcast
        return optimizer                                            #: give

    def observe(sharded_adamw, dtype):
        torch.manual_seed(0)
        # 18 tensors, which four ranks cannot share evenly.
        model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(8)), nn.Linear(24, 1)).to(dtype)
        parameters = list(model.parameters())
        gradients_by_step = [random_gradients(parameters) for _ in range(3)]
        storages = [parameter.untyped_storage() for parameter in parameters]  # so that no new one gets their places
        not_moved, norms, of_optimizers = [], [], []

        def steps():
            for gradients in gradients_by_step:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                before = parameters_to_vector(parameters).detach()
                yield
                of_optimizers.append(bytes_of_optimizers())
                now = parameters_to_vector(parameter.contiguous() for parameter in parameters)
                not_moved.append((now == before).sum().item())
                norms.append({name: weights.detach().norm(1).item() for name, weights in model.named_parameters()})

        with held_bytes() as held:
            returned = sharded_adamw(model, steps(), 0.01)  # the name keeps the optimizer until its bytes are counted

        return {
            "returned": kind_of(returned),
            "steps": len(norms),
            "weights that have not moved": not_moved,
            "norms after the first step": norms[:1],
            "norms after the next ones": norms[1:],
            "bytes of optimizers while they step": max(of_optimizers, default=0),
            "bytes kept beside weights and gradients": bytes_beside(parameters, storages, held),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    every_number = ("each number, to the last one, has an owner, who steps it and hands it to the others before the "
                    "next item is asked for")
    as_adamw = ("compare with `torch.optim.AdamW`: its `lr`, its weight decay, its eps. The gradients are averaged "
                "already, so use them as they are")
    state_stays = "the first step is right. Is the optimizer's state kept as it is for the next one?"
    give_it_back = "`return` the optimizer, or whatever holds the state: its bytes are counted"
    its_share = "which parameters does this rank's optimizer know? Is there a second copy of them?"

    def not_all_returned(mine, wanted, dtype):
        together = sum(rank["bytes kept beside weights and gradients"] for rank in mine)
        plain = bytes_of_plain_state(dtype)
        if together < 0.9 * plain:
            return (f"the weights are right, but what the ranks returned (rank 0: {mine[0]['returned']}) holds "
                    f"{together:,} bytes together", f"{plain:,}: each part of the state in some rank")

    def up_to_half(wanted, dtype):
        return 0, most_to_keep(dtype)

    rules = (
        same("steps", "`for _ in steps:` goes on until there are no more"),
        same("weights that have not moved", every_number),
        same("norms after the first step", as_adamw, within=1e-5),
        same("norms after the next ones", state_stays, within=1e-5),
        holds(not_all_returned, give_it_back),
        between("bytes kept beside weights and gradients", up_to_half, its_share),
        between("bytes of optimizers while they step", up_to_half, its_share),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(every_number, broadcast=""),
        mistake(as_adamw, optimizer="optimizer = torch.optim.Adam(mine, lr=lr)"),
        mistake(state_stays, step="optimizer = torch.optim.AdamW(mine, lr=lr)\noptimizer.step()"),
        mistake(as_adamw, step="for parameter in mine:\n    parameter.grad /= 4\noptimizer.step()"),
        mistake(give_it_back, give=""),
        mistake(its_share, optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)"),
        mistake(its_share, optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)",
                give="for parameter, owner in owners.items():\n"
                     "    if owner != dist.get_rank():\n"
                     "        optimizer.state.pop(parameter)\n"
                     "return optimizer"),
    )


sharded_adamw = ShardedAdamw()
