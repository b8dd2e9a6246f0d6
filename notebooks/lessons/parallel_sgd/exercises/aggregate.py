"""The mean of several models, weights and buffers of any dtype, as a server of federated learning takes it."""

from itertools import zip_longest

import torch
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import nothing, same


def state_of(worker):
    """A model's `state_dict`: adding in float32 loses the digits of `scale`, adding in uint8 overflows."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("levels", torch.zeros(3, dtype=torch.uint8))
    model.register_buffer("scale", torch.zeros(2, dtype=torch.float64))
    for number, tensor in enumerate(model.state_dict().values()):
        # The mean of three of these integers is whole; a sum of their thirds can be a little less.
        whole = 90 + (0, 17, -11)[worker] + 13 * torch.arange(tensor.numel()).view(tensor.shape) + number
        if tensor.is_floating_point():
            tensor.copy_(whole * 1.2345 + 37.3 * worker)
        else:
            tensor.copy_(whole)
    model.scale += (1e9, -1e9, 0)[worker]
    return model.state_dict()


def entries_of(states):
    """Which tensor, by its id, stands under which name, in order."""
    return [[(name, id(tensor)) for name, tensor in state.items()] for state in states]


class Aggregate(Alone):
    title = "The mean of models"
    task = ("`states` is a list with one `state_dict` for each worker. There may be any number of workers, "
            "and all dicts have the same names and shapes. Return a new dict of tensors, the mean of all, "
            "for the global model. Every tensor keeps its dtype. Integer tensors hold counts, which are never "
            "negative (BatchNorm counts its batches): cut off the fraction of their mean. Do not change the "
            "workers' models, nor `states`.")
    hints = (
        "`torch.stack([state[name] for state in states])` puts one tensor of every worker into a "
        "tensor with one more dimension. Along which dimension do you take the mean?",
        "`mean` refuses integers. Convert to double first, and back with `.to(states[0][name].dtype)`.",
    )
    explanation = ("Stacking makes a new tensor, so no worker's tensor is changed or shared. Converting the "
                   "mean back to the dtype cuts off the fraction of integers.")
    why = ("a server of federated learning does this. (Where workers have more samples than others, it weights "
           "the mean by them.) If you add into the first worker's tensors, or hand out the same memory twice, "
           "workers train one model without knowing it.")

    cases = {"2 workers": 2, "3 workers": 3, "1 worker": 1}

    def answer(states):
        import torch

        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {name: tensor.double().mean(0).to(tensor.dtype) for name, tensor in stacked.items()}     #: mean

    def observe(aggregate, n_workers):
        states = [state_of(worker) for worker in range(n_workers)]
        models = [dict(state) for state in states]  # the same tensors, also if `states` loses its entries
        before = [{name: tensor.clone() for name, tensor in model.items()} for model in models]
        entries_before = entries_of(states)

        returned = aggregate(states)

        mean = dict(returned) if isinstance(returned, dict) else {}
        memory = set()
        changed = []
        for worker, model in enumerate(models):
            for name, tensor in model.items():
                memory.add(tensor.untyped_storage().data_ptr())
                if not torch.equal(tensor, before[worker][name]):
                    changed.append(f"`{name}` of worker {worker}")
        missing, shared = [], []
        kinds, means = {}, {}
        for name in sorted({*models[0], *mean}):
            tensor = mean.get(name)
            if not isinstance(tensor, torch.Tensor):
                missing.append(name)
                continue
            kinds[name] = f"{tensor.dtype} of shape {list(tensor.shape)}"
            means[name] = tensor.flatten().tolist()
            if tensor.untyped_storage().data_ptr() in memory:
                shared.append(name)
        return {
            "changed": changed,
            "other entries": [
                f"`states[{worker}]`"
                for worker, (now, before) in enumerate(zip_longest(entries_of(states), entries_before))
                if now != before
            ],
            "type": "dict" if isinstance(returned, dict) else type(returned).__name__,
            "missing": missing,
            "kind": kinds,
            "mean": means,
            "in a worker's memory": shared,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    writes = "`+=` and methods that end with `_` write into the tensor that they are given"

    rules = (
        nothing("changed", writes, "the models of the workers stay as they are"),
        nothing("other entries", "look for `pop`, `clear`, `reverse` and assignments to what you were given",
                "`states` and its dicts hold what they held, in the same order"),
        same("type", "look at the line with `return`"),
        nothing("missing", "which names do you skip? A list or an array is no tensor",
                "a tensor for every name of the state dicts, and for no other"),
        same("kind", "convert the mean back to the dtype. And along which dimension is it?"),
        same("mean", "by what do you divide, and when? Add first, in double. Does every worker count the same?",
             within=1e-5),
        nothing("in a worker's memory", "you return a tensor as you got it, so both would be trained",
                "tensors of its own"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("what is missing between a sum and a mean?",
                mean="return {name: tensor.double().sum(0).to(tensor.dtype) for name, tensor in stacked.items()}"),
        mistake("there need not be two workers. By what do you divide?",
                mean="return {name: tensor.double().sum(0).div(2).to(tensor.dtype)\n"
                     "        for name, tensor in stacked.items()}"),
        mistake("its fraction is cut off, and not rounded",
                mean="return {name: tensor.double().mean(0).round().to(tensor.dtype)\n"
                     "        for name, tensor in stacked.items()}"),
        mistake("add first, then divide. Thirds are not exact, so an integer may be too small by one",
                mean="return {name: sum(one / len(states) for one in tensor).to(tensor.dtype)\n"
                     "        for name, tensor in stacked.items()}"),
        mistake("in which dtype do you compute? float32 keeps seven digits",
                mean="return {name: tensor.float().mean(0).to(tensor.dtype) for name, tensor in stacked.items()}"),
        mistake("in which dtype do you add? `uint8` ends at 255 and begins again. Convert first",
                mean="return {name: (sum(tensor) / len(states)).to(tensor.dtype) for name, tensor in stacked.items()}"),
        mistake("average integer tensors like the others. BatchNorm counts its batches in one",
                mean="return {name: tensor.double().mean(0).to(tensor.dtype) for name, tensor in stacked.items()\n"
                     "        if tensor.is_floating_point()}"),
        mistake("this is worker 0's own tensor, not the mean",
                mean="return {name: tensor[0].clone() for name, tensor in stacked.items()}"),
        mistake(writes,
                mean="return {name: states[0][name].copy_(tensor.double().mean(0))\n"
                     "        for name, tensor in stacked.items()}"),
    )


aggregate = Aggregate()
