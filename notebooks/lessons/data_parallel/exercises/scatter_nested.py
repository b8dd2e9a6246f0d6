"""The scatter of DataParallel: each device's part of a batch, also of tensors in tuples, lists and dicts."""

from helpers.exercises.alone import Alone
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, nothing, same
from lessons.data_parallel.exercises.nested_values import (
    GIVEN_STAYS,
    WAY_BACK_ENDS,
    made,
    shown,
    sources,
    tensors,
    unreached,
)


def samples_in(part):
    """How many samples a device's part has, by its first tensor; 0 if it has none."""
    of_part = tensors(part)
    if not of_part:
        return 0
    return len(of_part[0])


class ScatterNested(Alone):
    title = "Scatter: who gets which samples?"
    task = ("Share `inputs` out among at most `n_devices` devices. Return a list with one item for each "
            "device that gets samples. Cut a tensor along dimension 0, as `torch.chunk` does. From a tuple, "
            "a list or a dict, every device gets the same kind of thing, with its part of each tensor. "
            "Tuples, lists and dicts may contain each other. Anything else, for example a number, goes to "
            "every device as it is. Gradients flow back through the parts. Leave `inputs` alone.")
    hints = (
        "`inputs.chunk(n_devices)` does all that a tensor needs, also with fewer samples than devices.",
        "For a tuple, scatter each of its items. You get a list of lists: by item, then by device. "
        "`zip(*…)` turns it around. A dict's values go the same way.",
        "A number has no parts: `[value] * n_devices` gives it to all. `zip` ends with the shortest list.",
    )
    explanation = ("The inner function calls itself for what lies inside. `zip` turns \"by item\" into \"by "
                   "device\" and ends with the shortest list, so a device without samples gets no number. "
                   "The library does the same.")
    why = ("scatter cuts every tensor along dimension 0. If the batch is another dimension, or a tensor is "
           "not per sample at all, it is cut as well, and nothing warns. And 9 samples on 4 devices leave "
           "one device idle.")

    # The plan of `inputs`, its number of samples, and the number of devices.
    cases = {
        "4 samples on 2 devices": ("float32", 4, 2),
        "5 samples on 4 devices": ("float64", 5, 4),
        "9 samples of whole numbers on 4 devices": ("int64", 9, 4),
        "2 samples on 4 devices": ("bfloat16", 2, 4),
        "a tuple of two tensors": (("float32", "int64"), 6, 3),
        "a dict with a number": ({"scale": 0.5, "x": "float64", "mask": None}, 5, 4),
        "things in things": (({"x": "float32", "y": ("float64",)}, ["bool", "train"]), 3, 2),
    }

    def answer(inputs, n_devices):
        import torch

        def parts(value):
            if isinstance(value, torch.Tensor):
                return value.chunk(n_devices)                                                           #: cut
            if isinstance(value, dict) and value:
                return [dict(zip(value, item)) for item in zip(*map(parts, value.values()))]  # noqa: B905
            if isinstance(value, (tuple, list)) and value:
                return [type(value)(item) for item in zip(*map(parts, value))]  # noqa: B905            #: items
            return [value] * n_devices                                                                  #: others

        return list(parts(inputs))                                                                      #: result

    def observe(scatter_nested, case):
        plan, samples, n_devices = case
        inputs = made(plan, samples)
        given = sources(inputs)

        returned = scatter_nested(inputs, n_devices)

        parts = []
        if isinstance(returned, list | tuple):
            parts = returned
        return {
            "inputs": shown(inputs),
            "returned": kind_of(returned),
            "sizes": [samples_in(part) for part in parts],
            "part of device": [shown(part) for part in parts],
            "devices without a gradient": [device for device, part in enumerate(parts) if unreached(part, given)],
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def no_list(mine, wanted, case):
        if mine["returned"] not in ("a list", "a tuple"):
            return f"it returned {mine['returned']}", "a list, with one item per device"

    def other_sizes(mine, wanted, case):
        _, _, n_devices = case
        if mine["sizes"] != wanted["sizes"]:
            return (f"{len(mine['sizes'])} parts for {n_devices} devices, of sizes {mine['sizes']}",
                    f"{len(wanted['sizes'])} parts, of sizes {wanted['sizes']}")

    rules = (
        same("inputs", GIVEN_STAYS),
        each(no_list, "the line with `return`"),
        each(other_sizes, "one item per device that gets samples, of the sizes that `torch.chunk` makes; and `zip` "
                          "ends with the shortest"),
        same("part of device", "each device gets the same kind of thing, with its own samples, in the dtype that they "
                               "have in `inputs`. (And `[{}] * 2` is one dict, twice.)"),
        nothing("devices without a gradient", WAY_BACK_ENDS, "gradients flow from each part to `inputs`"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("neighbouring samples stay together: `torch.chunk` cuts blocks",
                cut="return [value[device::n_devices] for device in range(n_devices)]"),
        mistake("`torch.chunk` rounds a block's size up, and may leave a device idle; `tensor_split` is fairer",
                cut="return value.tensor_split(n_devices)"),
        mistake("`torch.chunk` rounds a block's size up", cut="return value.split(max(1, len(value) // n_devices))"),
        mistake("`detach()` cuts the way back to `inputs`",
                cut="return [part.detach() for part in value.chunk(n_devices)]"),
        mistake("what has no parts goes to every device; `zip` ended after one", others="return [value]"),
        mistake("`zip` makes tuples: is the part of a list a list?",
                items="return [item for item in zip(*map(parts, value))]"),
        stop("'tuple' object has no attribute",
             "a tuple, a list or a dict has no parts of its own: scatter each thing that lies in it",
             result="return list(inputs.chunk(n_devices))"),
        stop("'float' object has no attribute", "a number has no parts: each device gets it as it is",
             others="return value.chunk(n_devices)"),
    )


scatter_nested = ScatterNested()
