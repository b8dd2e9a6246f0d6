"""A hunt: the first layer, in time, whose output is not finite in fp16."""

from types import MethodType

import torch
from torch import nn

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, nothing, same


class Block(nn.Module):
    """Layers in a row: numbers to multiply by, modules, or names of layers.

    They are called in this order: from the last one down to the fourth, then the first, the second and the third.
    """

    def __init__(self, *layers):
        super().__init__()
        for number, layer in enumerate(layers):
            if isinstance(layer, nn.Module):
                module = layer
            elif isinstance(layer, str):
                module = self.get_submodule(layer)
            else:
                module = nn.Linear(8, 8, bias=False)
                module.weight.data = layer * torch.eye(8)
            self.add_module(f"layer{number}", module)

    def forward(self, values):
        layers = list(self._modules.values())
        for layer in (*reversed(layers[3:]), *layers[:3]):
            values = layer(values)
        return values


class Difference(nn.Module):
    """The input, as the difference of two large numbers: in fp16, inf - inf."""

    def forward(self, values):
        return values * 800 - values * 799


class Repair(nn.Module):
    """Writes numbers over inf and NaN, in what comes in."""

    def forward(self, values):
        return values.nan_to_num_(nan=0, posinf=1, neginf=-1)


def hooks_of(module):
    return {name: list(value) for name, value in vars(module).items() if name.endswith("hooks")}


def seen_from_outside(model, images):
    """{what a function may have changed: what it is now}"""
    modules = dict(model.named_modules())
    return {
        "hooks of the layers": [hooks_of(module) for module in modules.values()],
        "hooks of all modules": [len(value) for name, value in vars(nn.modules.module).items()
                                 if name.startswith("_global") and name.endswith("hooks")],
        "the mode, `train` or `eval`": [module.training for module in modules.values()],
        "layers": [(name, id(module), module.forward == MethodType(type(module).forward, module))
                   for name, module in modules.items()],
        "weights": [f"{weight.dtype} {weight.tolist()}" for weight in model.parameters()],
        "`requires_grad` of the weights": [weight.requires_grad for weight in model.parameters()],
        "gradients of the weights": [weight.grad is None for weight in model.parameters()],
        "images": images.tolist(),
        "whether torch computes gradients": torch.is_grad_enabled(),
        "whether torch looks for anomalies": torch.is_anomaly_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "the default dtype": torch.get_default_dtype(),
    }


def switch_back():
    torch.set_grad_enabled(True)
    torch.autograd.set_detect_anomaly(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_default_dtype(torch.float32)


class FirstOverflow(Exercise):
    title = "Hunt: the layer where infinity begins"
    task = ("The loss is NaN from the first step on, under autocast in fp16. In fp32 all is well. Run "
            "`model(images)` once, under `torch.amp.autocast(\"cpu\", dtype=torch.float16)`. Return the name of "
            "the layer whose **output** is not finite first, in the order of time, or `None` if all outputs are "
            "finite. The name is the one in `model.named_modules()`. A layer is a module that holds no "
            "others. Here, modules that hold others only call them. Layers may be called twice, or in another order "
            "than they are listed. Leave all as it was: the model has no hooks but its own, its weights are in fp32, "
            "and whatever you switched is switched back.")
    hints = (
        "`module.register_forward_hook(hook)` calls `hook(module, inputs, output)` after each call of the "
        "module. It returns a handle with `remove()`. Hooks of inner modules run before those of outer "
        "modules.",
        "`output.isfinite().all()` notices inf and NaN. Keep the first name only, because later layers get "
        "numbers that are broken already. Call the model inside `with torch.amp.autocast(…)`.",
    )
    explanation = ("Hooks run in the order in which layers are called, so the first name that you note is the layer. "
                   "Later layers turn inf into NaN (inf - inf), or a `Tanh` turns it into a harmless-looking 1. "
                   "In your own models, look at modules that hold others, too: a residual block adds, and the "
                   "sum may overflow.")
    why = ("the forward itself overflows before there is a loss, so no loss scale helps. Now you know the "
           "layer. Run it in fp32 (`autocast(enabled=False)`), normalise its input, or use bf16.")

    # The networks of the hunt. The images are small, so the layer that is called first never overflows.
    cases = {
        "one layer overflows": lambda: Block(1, 1, 1, 800, 600.3, 1, 1000.3),
        "a later layer hides what overflows": lambda: Block(1, 1, Repair(), 800, 600.3, 1000.3),
        "a later layer writes over what overflows": lambda: Block(Repair(), 1, 1, 800, 600.3, 1000.3),
        "a weight is too large for fp16": lambda: Block(1, 1, 1e6).eval(),
        "nothing overflows": lambda: Block(1, 60000, 1, 1000.3).eval(),
        "a layer is called before and after the one that overflows": lambda: Block(1000.3, 1, 1, 800, 600.3, "layer0"),
        "a layer inside a module overflows": lambda: Block(1, 1, 1, Block(1, 1, 1, Block(1, 800, 1), 600.3), 1000.3),
        "a layer puts out NaN, and no inf": lambda: Block(1, 1, 1, Difference(), 600.3, 1000.3),
        "a layer that is called twice overflows the second time": lambda: Block(300, 1, 1, 100.3, "layer0", 1000.3),
    }

    def answer(model, images):
        found = []

        def looking_for(name):
            def hook(module, inputs, output):
                if not output.isfinite().all():                                                     #: broken
                    found.append(name)                                                              #: note
            return hook

        handles = [module.register_forward_hook(looking_for(name)) for name, module in model.named_modules()]
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):                       #: autocast
            model(images)
        for handle in handles:                                                                      #: remove
            handle.remove()
        return found[0] if found else None                                                          #: first

    def observe(first_overflow, network):
        model = network()
        forwards = []
        model.register_forward_pre_hook(lambda *_: forwards.append(1))  # hooks of the model's own
        model.register_forward_hook(lambda *_: None)
        images = torch.full((4, 8), 1e-5)
        images[2, 3:5] = -1e-3  # the only numbers that may overflow
        before = seen_from_outside(model, images)

        name = first_overflow(model, images)

        if not isinstance(name, str | None):
            name = kind_of(name)
        after = seen_from_outside(model, images)
        switch_back()
        changed = [what for what, was in before.items() if after[what] != was]
        return {"name": name, "changed": changed, "forwards": len(forwards)}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("name", "run under `autocast(\"cpu\", …)` in fp16. Of all layers, also those inside other modules, find "
                     "the first in time that puts out inf or NaN, in any call. Look when the output comes: a later "
                     "layer may write over it"),
        nothing("changed", "call `remove()` on each of your handles, leave the mode (`train`, `eval`) and the weights "
                           "alone, and switch in `with` blocks; only autocast computes in fp16",
                "a model as it was, and torch as it was"),
        between("forwards", lambda wanted, case: (0, 1), "hooks see all layers in one forward"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("run the forward under `autocast(\"cpu\", dtype=torch.float16)`", autocast="with torch.no_grad():"),
        mistake("the last layer got broken numbers: return the first in time",
                first="return found[-1] if found else None"),
        mistake("`named_modules()` lists layers as they were defined. Which one is the first in time?",
                first="listed = [name for name, _ in model.named_modules() if name in found]\n"
                      "return listed[0] if listed else None"),
        mistake("inf comes first, and turns into NaN in a later layer only", broken="if output.isnan().any():"),
        mistake("NaN is not finite either, and may come first: inf - inf is NaN", broken="if output.isinf().any():"),
        mistake("which name does a hook note? A function made in a loop reads the loop's variable when called",
                note="found.append([*model.named_modules()][-1][0])"),
        mistake("call `handle.remove()` for every handle of yours", remove=""),
    )


first_overflow = FirstOverflow()
