"""The gather of DataParallel: the outputs of all devices as one, also those in tuples, lists and dicts."""

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import nothing, same
from lessons.data_parallel.exercises.nested_values import (
    GIVEN_STAYS,
    WAY_BACK_ENDS,
    made,
    shown,
    sources,
    unreached,
)


class GatherNested(Alone):
    title = "Gather: one output from many"
    task = ("`outputs` is a list with what each device's replica has returned: tensors, or tuples, lists or "
            "dicts of tensors, which may contain each other. All replicas return the same kind. Return one "
            "of that kind, in which the tensors of all devices are joined along dimension 0, in the "
            "devices' order. `None` stays `None`. If the replicas return scalars, tensors without a "
            "dimension, return a vector with one element per device, as the library does. `backward` must "
            "reach every device. Leave `outputs` alone.")
    hints = (
        "`torch.cat` joins tensors whose sizes differ in dimension 0 only. Give scalars a dimension.",
        "For dicts, gather the values of one name from all devices, then those of the next. For tuples, "
        "`zip(*outputs)` brings the first items together, then the second ones.",
    )
    explanation = ("The first device's output says which kind it is. `torch.cat` is differentiable: its "
                   "backward cuts the gradient and hands each device its part. So a gather needs no code for "
                   "the way back.")
    why = ("the backward of a gather is a scatter, and that of a scatter is a gather. And now you know where "
           "`Was asked to gather along dimension 0, but all input tensors were scalars` comes from: losses "
           "of replicas.")

    # The plan of a device's output, and how many samples each device has: 0 for scalars.
    cases = {
        "two devices": ("float32", (2, 2)),
        "uneven chunks": ("float64", (2, 1, 2)),
        "whole numbers": ("int64", (2, 2, 1)),
        "scalars": ("float64", (0, 0, 0)),
        "a scalar from one device": ("float32", (0,)),
        "tuples": (("float32", "bool"), (2, 2, 1)),
        "lists": (["bfloat16"], (2, 2, 1)),
        "one number from each device": ("float16", (1, 1)),
        "names in another order": ({"right": "bool", "label": "int64"}, (2, 1)),
        "things in things": ({"logits": "float32", "hidden": ["float64"], "attention": None}, (2, 2, 1)),
        "scalars in a dict": ({"loss": "float32", "right": ("int64",)}, (0, 0, 0)),
    }

    def answer(outputs):
        import torch

        def joined(values):
            first = values[0]
            if isinstance(first, torch.Tensor):
                return torch.cat([value.reshape(1) if value.dim() == 0 else value for value in values])  #: cat
            if first is None:                                                                            #: none
                return None
            if isinstance(first, dict):
                return {name: joined([value[name] for value in values]) for name in first}
            return type(first)(joined(items) for items in zip(*values))  # noqa: B905                    #: items

        return joined(outputs)                                                                           #: result

    def observe(gather_nested, case):
        plan, sizes = case
        outputs = [made(plan, samples, 10 * device) for device, samples in enumerate(sizes)]
        if isinstance(plan, dict):  # the same names, in another order
            outputs[1:] = [dict(reversed(output.items())) for output in outputs[1:]]
        by_device = [sources(output) for output in outputs]

        returned = gather_nested(outputs)

        return {
            "outputs": shown(outputs),
            "returned": shown(returned),
            "devices without a gradient": [device for device, own in enumerate(by_device) if unreached(returned, own)],
        }

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("outputs", GIVEN_STAYS),
        same("returned", "along which dimension, and in which order, tensors are joined (a dict's by their names); the "
                         "result's kind, dtype and number of dimensions"),
        nothing("devices without a gradient", WAY_BACK_ENDS, "`backward` reaches every device"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("one number may have a dimension: only a scalar has none",
                cat="return torch.cat([value.reshape(1) if value.numel() == 1 else value for value in values])"),
        mistake("`detach()` cuts the way back",
                cat="return torch.cat([value.reshape(1) if value.dim() == 0 else value.detach() for value in values])"),
        mistake("scalars become a vector, with one element per device: nobody takes the mean",
                cat="return sum(values) / len(values) if first.dim() == 0 else torch.cat(\n"
                    "    [value.reshape(1) if value.dim() == 0 else value for value in values])"),
        mistake("the result is of the kind that the devices gave",
                items="return list(joined(items) for items in zip(*values))"),
        stop("zero-dimensional tensor", "`torch.cat` refuses scalars: give them a dimension",
             cat="return torch.cat([value for value in values])"),
        stop("stack expects each tensor to be equal size",
             "`torch.stack` makes another dimension: samples are joined along one that is there",
             result="return torch.stack(outputs)"),
        stop("'tuple' object has no attribute", "gather a tuple item by item: the first ones of all devices …",
             result="return torch.cat(outputs) if outputs[0].dim() else torch.stack(outputs)"),
        stop("'NoneType' object is not iterable", "`None` stays `None`", none="if first is ...:"),
    )


gather_nested = GatherNested()
