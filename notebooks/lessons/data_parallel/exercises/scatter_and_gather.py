"""The scatter and the gather of DataParallel: a dict cut into parts, a replica for each, their dicts joined."""

import torch
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, nothing, same
from lessons.data_parallel.exercises.nested_values import GIVEN_STAYS, made, shown

WAY_BACK_ENDS = "a `detach()`, `.data`, `no_grad()` or a new tensor made from numbers: the way back ends there"


class Replica(nn.Module):
    """A model on one device, which remembers what it was given."""

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.weight = nn.Parameter(torch.tensor(device + 2.0))
        self.given = []

    def __call__(self, **part):
        mode = "" if self.training else ", in eval mode"
        self.given.append(f"{shown(part)}{mode}")
        return super().__call__(**part)

    def forward(self, **part):
        output = part["x"] * self.weight.to(part["x"].dtype)
        outputs = {"output": output, "loss": output.mean()}
        if "labels" in part:
            outputs["labels"] = part["labels"] + self.device
        if self.device % 2 and "labels" in part:
            return dict(reversed(outputs.items()))  # the same names, in another order
        return outputs


def state(replicas):
    """What a call of replicas leaves as it was, as text."""
    return shown([(replica.training, replica.weight, replica.weight.requires_grad, replica.weight.grad)
                  for replica in replicas])


def rows_without_gradient(returned, leaf):
    """The rows of `leaf` to which no gradient leads back from the tensors in `returned`; for a scalar, row 0."""
    ends = [tensor.sum() for tensor in returned.values() if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    total = sum(ends) + torch.zeros(1, requires_grad=True)  # also where there is no end
    if not leaf.requires_grad:  # the learner's function has switched it off
        return list(range(len(torch.atleast_1d(leaf))))
    [gradient] = torch.autograd.grad(total, leaf, retain_graph=True, materialize_grads=True)
    return [number for number, row in enumerate(torch.atleast_1d(gradient)) if not row.any()]


class ScatterAndGather(Alone):
    title = "Scatter and gather: a batch in a dict"
    task = ("`replicas` is a list of models, one for each device. `inputs` is a dict. Its tensors all have the same "
            "number of samples. Cut each of them along dimension 0, as `torch.chunk` does; anything else in the dict, "
            "for example a number, goes to each replica as it is. Call a replica once for each part, by "
            "`replica(**part)`. A replica without samples is not called. Each call returns a dict of tensors, with the "
            "same names. Return one dict: the tensors of a name joined along dimension 0, in the devices' order. If "
            "they are scalars, tensors without a dimension, return a vector with one element per device, as "
            "the library does. `backward` must reach all replicas that worked, and `inputs`. Leave `inputs` and "
            "`replicas` alone.")
    hints = (
        "Begin with a dict for each replica: `[dict(inputs) for _ in replicas]`. Then put the chunks in. There may be "
        "fewer chunks than replicas.",
        "For the way back, go through the names of the first output. `torch.cat` wants tensors with a dimension: "
        "`torch.atleast_1d` gives a scalar one.",
    )
    explanation = ("`chunk` and `cat` are differentiable: the backward of one does what the other does forward. So "
                   "the way back needs no code. The library does the same, and also looks into tuples, lists and "
                   "dicts that lie in each other.")
    why = ("whoever cuts a batch, for devices, for micro-batches (lesson 10) or to save memory, has to know what is "
           "per sample. A tensor that is not is cut as well, and nothing warns. And 9 samples on 4 devices leave one "
           "device idle.")

    # The plan of `inputs`, its number of samples, and the number of devices.
    cases = {
        "4 samples on 2 devices": ({"x": "float32"}, 4, 2),
        "5 samples on 4 devices, a number and a text beside them":
            ({"scale": 0.5, "x": "float64", "mask": None, "mode": "fast"}, 5, 4),
        "9 samples on 4 devices, with labels": ({"x": "float32", "labels": "int64"}, 9, 4),
        "2 samples on 4 devices": ({"x": "bfloat16"}, 2, 4),
        "one number a sample": ({"x": "float16"}, 2, 2),
        "one device": ({"x": "float64", "labels": "int64"}, 3, 1),
    }

    def answer(replicas, inputs):
        import torch

        parts = [dict(inputs) for _ in replicas]                                        #: parts
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):                                         #: tensors
                chunks = value.chunk(len(replicas))                                     #: cut
                parts = parts[:len(chunks)]                                             #: shorten
                for part, chunk in zip(parts, chunks):  # noqa: B905
                    part[name] = chunk
        outputs = [replica(**part) for replica, part in zip(replicas, parts)]  # noqa: B905    #: apply
        joined = {}
        for name in outputs[0]:
            values = [torch.atleast_1d(output[name]) for output in outputs]             #: values
            joined[name] = torch.cat(values)                                            #: join
        return joined

    def observe(scatter_and_gather, case):
        plan, samples, n_devices = case
        inputs = made(plan, samples, start=1)
        replicas = [Replica(device) for device in range(n_devices)]
        inputs_before, replicas_before = dict(inputs), list(replicas)
        state_before = state(replicas)

        returned = scatter_and_gather(replicas, inputs)

        given = [replica.given for replica in replicas_before]
        tensors = returned if isinstance(returned, dict) else {}
        same_inputs = {name: id(value) for name, value in inputs.items()} == {
            name: id(value) for name, value in inputs_before.items()}
        x = inputs_before["x"]
        unchanged = shown(inputs_before) == shown(made(plan, samples, start=1)) and x.requires_grad and x.grad is None
        return {
            "`inputs` has changed": not same_inputs or not unchanged,
            "`replicas` has changed": list(map(id, replicas)) != list(map(id, replicas_before))
            or state(replicas_before) != state_before,
            "calls by device": [len(calls) for calls in given],
            "given to device": given,
            "returned": kind_of(returned),
            "shapes": {name: shown(getattr(tensor, "shape", tensor)) for name, tensor in sorted(tensors.items())},
            "replicas without a gradient": [replica.device for replica in replicas_before
                                            if rows_without_gradient(tensors, replica.weight)],
            "samples without a gradient": rows_without_gradient(tensors, x),
            "result": shown(dict(tensors)),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def no_dict(mine, wanted, case):
        if mine["returned"] != wanted["returned"] and not mine["shapes"]:
            return f"it returned {mine['returned']}", "a dict of tensors"

    def lost_replicas(mine, wanted, case):
        lost = mine["replicas without a gradient"]
        if lost != wanted["replicas without a gradient"]:
            return f"no gradient reaches the replicas of devices {lost}", (
                "it reaches each replica that has samples")

    rules = (
        nothing("`inputs` has changed", f"{GIVEN_STAYS}; and `backward` is the caller's", "it stays as it was"),
        nothing("`replicas` has changed", "work with the list and its models as they are", "they stay as they were"),
        same("calls by device", "one call for each chunk that `torch.chunk` makes: there may be fewer than devices"),
        same("given to device", "each replica gets its own samples, in the dtype that they have in `inputs`, and all "
                                "that is no tensor"),
        each(no_dict, "the line with `return`"),
        same("shapes", "one tensor for each name, with the samples of all devices; along which dimension they are "
                       "joined; and scalars become a vector with one element per device"),
        each(lost_replicas, WAY_BACK_ENDS),
        nothing("samples without a gradient", WAY_BACK_ENDS, "gradients flow from the result to each sample"),
        same("result", "in which order the tensors of a name are joined; their dtype"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("neighbouring samples stay together: `torch.chunk` cuts blocks",
                cut="chunks = [value[device::len(replicas)] for device in range(min(len(replicas), len(value)))]"),
        mistake("`torch.chunk` rounds a block's size up, and may leave a device idle; `tensor_split` is fairer",
                cut="chunks = value.tensor_split(min(len(replicas), len(value)))"),
        mistake("`torch.chunk` rounds a block's size up",
                cut="chunks = value.split(max(1, len(value) // len(replicas)))"),
        mistake("`detach()` cuts the way back to `inputs`",
                cut="chunks = [chunk.detach() for chunk in value.chunk(len(replicas))]"),
        mistake("a replica without samples is not called: `chunk` may make fewer chunks than there are devices",
                shorten=""),
        mistake("what is no tensor goes to each replica as it is", parts="parts = [{} for _ in replicas]"),
        mistake("a text has parts as well, but it is no tensor: each replica gets it as it is",
                tensors="if hasattr(value, '__len__'):",
                cut="size = -(-len(value) // len(replicas))\n"
                    "chunks = [value[start:start + size] for start in range(0, len(value), size)]"),
        mistake("`[{…}] * n` is one dict, n times: the last chunk replaces the others",
                parts="parts = [dict(inputs)] * len(replicas)"),
        mistake(GIVEN_STAYS, parts="parts = [inputs for _ in replicas]"),
        mistake("`detach()` or `no_grad()` cuts the way back to the replicas",
                join="joined[name] = torch.cat(values).detach()"),
        mistake("call the replica, and not its `forward`: a call also runs the hooks",
                apply="outputs = [replica.forward(**part) for replica, part in zip(replicas, parts)]"),
        mistake("scalars become a vector, with one element per device: nobody takes the mean",
                values="values = [output[name] for output in outputs]",
                join="joined[name] = torch.stack(values).mean() if values[0].dim() == 0 else torch.cat(values)"),
        mistake("one number may have a dimension: only a scalar has none",
                values="values = [output[name].reshape(1) if output[name].numel() == 1 else output[name]\n"
                       "          for output in outputs]"),
        stop("zero-dimensional tensor", "`torch.cat` refuses scalars: give them a dimension",
             values="values = [output[name] for output in outputs]"),
        stop("'float' object has no attribute", "a number has no parts: each replica gets it as it is",
             tensors="if value is not None:"),
        stop("stack expects each tensor to be equal size",
             "`torch.stack` makes another dimension: samples are joined along one that is there",
             join="joined[name] = torch.stack(values)"),
        stop("takes 1 positional argument", "the names are the keywords of a call: `replica(**part)`",
             apply="outputs = [replica(part) for replica, part in zip(replicas, parts)]"),
    )


scatter_and_gather = ScatterAndGather()
