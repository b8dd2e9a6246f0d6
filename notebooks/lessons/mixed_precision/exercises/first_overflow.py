"""A hunt: the first layer, in time, whose output is not finite in fp16."""

import torch
from torch import nn

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, nothing, same


class Block(nn.Module):
    """Calls its layers, the last one first: numbers to multiply by, modules, or names of layers."""

    def __init__(self, *layers, gain=1):
        super().__init__()
        self.gain = gain
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
        for layer in reversed(self._modules.values()):
            values = layer(values)
        return values * self.gain - values * (self.gain - 1)  # in fp16, with a large gain: inf - inf


def seen_from_outside(model):
    """{what a function may have left in a model: how much of it}"""
    hooks = 0
    for module in model.modules():
        hooks += len(module._forward_hooks) + len(module._forward_pre_hooks)
    return {
        "hooks": hooks,
        "hooks of all modules": len(nn.modules.module._global_forward_hooks),
        "weights": [f"{weight.dtype} {weight.sum():g}" for weight in model.parameters()],
    }


class FirstOverflow(Exercise):
    title = "Hunt: the layer where infinity begins"
    task = ("The loss is NaN from the first step on, under autocast in fp16. In fp32 all is well. Run "
            "`model(images)` once, under `torch.amp.autocast(\"cpu\", dtype=torch.float16)`. Return the name of "
            "the first layer whose **output** is not finite, or `None` if all outputs are finite. The name is "
            "the one in `model.named_modules()`. Layers may contain other layers and compute something "
            "themselves. They may be called twice, or in another order than they are listed. The model itself "
            "counts as a layer, and its name is the empty text. Leave the model as it was: with no hooks but its "
            "own, and with its weights in fp32.")
    hints = (
        "`module.register_forward_hook(hook)` calls `hook(module, inputs, output)` after each call of the "
        "module. It returns a handle with `remove()`. Hooks of inner modules run before those of outer "
        "modules.",
        "`output.isfinite().all()` notices inf and NaN. Keep the first name only, because later layers get "
        "numbers that are broken already. Call the model inside `with torch.amp.autocast(…)`.",
    )
    explanation = ("Hooks run in the order in which layers are called, so the first name that you note is the layer. "
                   "Later layers turn inf into NaN (inf - inf), or a `Tanh` turns it into a harmless-looking 1.")
    why = ("the forward itself overflows before there is a loss, so no loss scale helps. Now you know the "
           "layer. Run it in fp32 (`autocast(enabled=False)`), normalise its input, or use bf16.")

    # The networks of the hunt. The images are small, so the layer that is called first never overflows.
    cases = {
        "one layer overflows": lambda: Block(1, 1, 800, 600.3, 1, 1000.3),
        "a later layer hides what overflows": lambda: Block(1, nn.Hardtanh(inplace=True), 800, 600.3, 1000.3),
        "a weight is too large for fp16": lambda: Block(1, 1e6),
        "nothing overflows": lambda: Block(1, 60000, 1, 1000.3),
        "a layer is called before and after the one that overflows": lambda: Block(1000.3, 800, 600.3, "layer0"),
        "a layer inside another overflows": lambda: Block(1, Block(1, Block(800, 1), 600.3), 1000.3),
        "a layer around others puts out NaN by itself": lambda: Block(1, Block(1, 600.3, gain=800), 1000.3),
        "the model puts out NaN by itself": lambda: Block(1, 600.3, 1000.3, gain=800),
        "a layer that is called twice overflows the second time": lambda: Block(300, 100.3, "layer0", 1000.3),
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
        before = seen_from_outside(model)

        name = first_overflow(model, images)

        if not isinstance(name, str | None):
            name = kind_of(name)
        after = seen_from_outside(model)
        changed = []
        for what, was in before.items():
            if after[what] != was:
                changed.append(f"{what}: {was}, now {after[what]}")
        return {"name": name, "changed in the model": changed, "forwards": len(forwards)}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("name", "run under `autocast(\"cpu\", …)` in fp16. Of all modules, inner and outer, find the first in "
                     "time that puts out inf or NaN, in any call. Look when the output comes: a later layer may write "
                     "over it"),
        nothing("changed in the model", "call `remove()` on each of your handles; only autocast computes in fp16",
                "a model as it was"),
        between("forwards", lambda wanted, case: (0, 1), "hooks see all layers in one forward"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("run the forward under `autocast(\"cpu\", dtype=torch.float16)`", autocast="with torch.no_grad():"),
        mistake("the last layer got broken numbers: return the first", first="return found[-1] if found else None"),
        mistake("inf comes first, and turns into NaN in a later layer only", broken="if output.isnan().any():"),
        mistake("NaN is not finite either, and may come first: inf - inf is NaN", broken="if output.isinf().any():"),
        mistake("which name does a hook note? A function made in a loop reads the loop's variable when called",
                note="found.append([*model.named_modules()][-1][0])"),
        mistake("call `handle.remove()` for every handle of yours", remove=""),
    )


first_overflow = FirstOverflow()
