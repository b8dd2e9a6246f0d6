"""The checkpoint of a wrapped model: the names without `module.`, the tensors the very same."""

from collections import OrderedDict

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import nothing, same
from lessons.data_parallel.exercises.nested_values import GIVEN_STAYS, SAMPLE, made, shown


def is_the_very(value, tensor):
    """Whether `value` is this very tensor, or another view of its memory."""
    return (isinstance(value, torch.Tensor) and value.data_ptr() == tensor.data_ptr()
            and value.requires_grad == tensor.requires_grad and shown(value) == shown(tensor))


class WithoutPrefix(Alone):
    title = "A checkpoint with `module.`"
    task = ("`state` is a state dict from a project that you do not know: all names, some, or none "
            "begin with `module.`. Return a new dict in which that one prefix is gone from the beginning of "
            "each such name. All else stays as it is, and the tensors are the very same, not copies. Leave "
            "`state` itself alone: somebody may still want to load it into a wrapped model.")
    hints = (
        "`name.replace(\"module.\", \"\")` also finds it in the middle of a name. `lstrip` takes letters, not words.",
        "Strings have a method that does just this: try `\"module.a\".removeprefix(\"module.\")`, and the same with "
        "`\"submodule.a\"`.",
    )
    explanation = ("`removeprefix` takes away the prefix once, and only at the beginning. Torch has "
                   "`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present`, which changes the dict "
                   "that it is given.")
    why = ("`Missing key(s) … Unexpected key(s) \"module.…\"` comes from saving the wrapper. It is better to "
           "save `wrapped.module.state_dict()`. A plain model loads it as it is, a wrapped one by "
           "`wrapped.module.load_state_dict(…)`.")

    # The names in `state`.
    cases = {
        "a state dict saved from a DataParallel": ("module.conv.weight", "module.conv.bias"),
        "one saved without": ("conv.weight", "conv.bias"),
        "a mixture": ("conv.weight", "module.dense.weight", "module.dense.bias"),
        "a part called `submodule`": ("submodule.weight", "module.submodule.bias", "encoder.module.weight"),
        "a part called `module`": ("module.module.weight", "module.mode.bias", "modules.0.bias",
                                   "modules.0.module.weight"),
    }

    def answer(state):
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}     #: renamed

    def observe(without_prefix, names):
        values = [made(dtype, 2).detach() for dtype in SAMPLE]
        state = OrderedDict(zip(names, values, strict=False))  # there are more dtypes than names
        state._metadata = {"": {"version": 1}, "module": {"version": 2}}  # as `state_dict()` gives it
        tensor_of = dict(state)
        before = shown([dict(state), state._metadata])

        returned = without_prefix(state)

        if returned is state:
            instead = "`state` itself"
        elif isinstance(returned, dict):
            instead = ""
        else:
            instead = kind_of(returned)
        result = returned if isinstance(returned, dict) else {}
        new_name_of = {}
        names_of_tensors = set()
        for name, tensor in tensor_of.items():
            new_names = [new for new, value in result.items() if is_the_very(value, tensor)]
            new_name_of[name] = " and ".join(new_names) or "missing"
            names_of_tensors.update(new_names)
        return {
            "returned": instead,
            "`state` has changed": shown([dict(state), state._metadata]) != before,
            "no tensor of `state`": [new for new in result if new not in names_of_tensors],
            "new name of": new_name_of,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        nothing("returned", f"the `return`; {GIVEN_STAYS}", "a new dict of tensors by name"),
        nothing("`state` has changed", f"{GIVEN_STAYS}; a `copy.copy` shares `_metadata`", "it stays as it was"),
        nothing("no tensor of `state`", "what you do with the tensors, and what you add",
                "the very tensors, not copies"),
        same("new name of", "each name by itself: only at the beginning, only the whole word with its dot, only once"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("`replace` also finds it in the middle of a name",
                renamed='return {name.replace("module.", ""): tensor for name, tensor in state.items()}'),
        mistake("not every name begins with `module.`",
                renamed="return {name[7:]: tensor for name, tensor in state.items()}"),
        mistake("`lstrip` takes letters away, not a word",
                renamed='return {name.lstrip("module."): tensor for name, tensor in state.items()}'),
        mistake("`modules` begins with `module` as well: the dot belongs to the prefix",
                renamed='return {(name.replace("module.", "", 1) if name.startswith("module") else name): tensor\n'
                        "        for name, tensor in state.items()}"),
        mistake("names without the prefix stay as they are",
                renamed='return {name.removeprefix("module."): tensor for name, tensor in state.items()\n'
                        '        if name.startswith("module.")}'),
        mistake("`clone` and `deepcopy` make copies",
                renamed='return {name.removeprefix("module."): tensor.clone() for name, tensor in state.items()}'),
        mistake(GIVEN_STAYS,
                renamed="for name in list(state):\n"
                        '    state[name.removeprefix("module.")] = state.pop(name)\n'
                        'return {name.removeprefix("module."): tensor for name, tensor in state.items()}'),
    )


without_prefix = WithoutPrefix()
