"""The exercises of mixed precision: the right order, a dtype for a job, the largest batch, a hunt for inf."""

import math

import torch
from torch import nn

from helpers.exercises.tables import Table, between, each, nothing, same
from helpers.instruments.memory import held_bytes

#: By call: the size of the gradients. 24 overflows at the first scale, 4096, and not at its half.
CALLS = {"1, gradients too small for fp16": 2.5e-8, "2, gradients to be clipped": 5,
         "3, a gradient that overflows once it is scaled": 24, "4, the same again": 24,
         "5, gradients not to be clipped": 1e-3, "6, gradients to be clipped a little": 0.06,
         "7, a loss that is NaN": math.nan}
BACKWARD, UNSCALE = "    scaler.scale(loss).backward()\n", "    scaler.unscale_(optimizer)\n"
CLIP = "    torch.nn.utils.clip_grad_norm_(parameters, max_norm)\n"
STEP, UPDATE, OWN_STEP = "    scaler.step(optimizer)\n", "    scaler.update()\n", "    optimizer.step()\n"
NO_SCALER = (BACKWARD, "    loss.backward()\n"), (UNSCALE, ""), (STEP, OWN_STEP), (UPDATE, "")
CALLED_ONCE = "one `unscale_`, one `step`, one `update`, in this order: does each call end with `update`?"


def loss_of(weights, size, came):
    """A loss with gradients of this size, rounded as on a GPU. `came` gets longer with each of them."""

    def as_on_gpu(gradient):
        came.append(1)
        return gradient.half().float()

    loss = 0
    for weight in weights:
        used = weight * 1  # its hook sees what flows back, whichever function the learner calls
        used.register_hook(as_on_gpu)
        loss = loss + (used * (size if weight is weights[-1] else -size / 2)).sum()
    return loss


class TrainStep(Table):
    title = "The loop in the right order"
    task = (
        "`loss` has been computed under autocast, and there are no gradients yet. Do the rest of a training "
        "step. Scale the loss and call `backward` once, so that no gradient is lost. Clip the true "
        "gradients, all `parameters` together, to the norm `max_norm`. Let the optimizer make its step, "
        "unless a gradient is infinite or NaN. Let the scaler adapt its scale. Your function is called "
        "several times, with the same `scaler` and `optimizer`. Gradients are rounded to fp16 as they come, "
        "as on a GPU.")
    hints = (
        "You need five calls: `scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, "
        "`torch.nn.utils.clip_grad_norm_(parameters, max_norm)`, `scaler.step(optimizer)`, "
        "`scaler.update()`. In which order?",
        "`max_norm` is meant for true gradients. Right after `backward`, they are still multiplied by the "
        "scale.")
    explanation = (
        "`unscale_` divides the gradients by the scale, so that clipping sees true gradients. `scaler.step` "
        "knows that they are divided already. It leaves the step out if a gradient is infinite or NaN. "
        "`update` then halves the scale. After many good steps it doubles the scale.")
    why = (
        "each call depends on what the calls before it have done. Some wrong orders raise no error: the "
        "training is slow, or does not move, or breaks at the first infinite gradient.")
    cases = {"`max_norm` 1": 1.0, "`max_norm` 0.5": 0.5}

    def answer(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()

    def observe(train_step, max_norm):
        weights = [nn.Parameter(torch.zeros(64)) for _ in range(24)]
        optimizer = torch.optim.SGD(weights, lr=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
        after = {}
        for words, size in CALLS.items():
            came = []
            train_step(scaler, optimizer, list(weights), loss_of(weights, size, came), max_norm)
            after[words] = {"gradients that came": len(came),
                            "weights": [weight[0].item() for weight in weights],
                            "scale": scaler.get_scale()}
            optimizer.zero_grad()
            for weight in weights:
                weight.data.zero_()
        return {"after call": after}

    rules = (
        same("after call", "the order is scale and `backward`, `unscale_`, clip, `step`, `update`, each once "
                           "in every call, whatever the gradients are; clip all parameters together to "
                           "`max_norm`", 0.02),)
    mistakes = (
        (UNSCALE, "", "clipped while they are still multiplied by the scale: call `unscale_` first"),
        (CLIP, "", "the gradients were not clipped: call `clip_grad_norm_` after `unscale_`"),
        (STEP, OWN_STEP, "`optimizer.step()` does not look for infinite gradients, but `scaler.step` does"),
        (UNSCALE + CLIP + STEP + UPDATE, OWN_STEP, "who divides the gradients by the scale?"),
        (NO_SCALER, "fp16 has rounded gradients to 0: multiply the loss by the scale before `backward`"),
        ("clip_grad_norm_", "clip_grad_value_", "clip the norm of all parameters together, not each number"))
    stops = (
        (UPDATE, "", "is being called after step()", CALLED_ONCE),
        (STEP + UPDATE, UPDATE + STEP, "is being called after step()", CALLED_ONCE),
        (CLIP, CLIP + UNSCALE, "has already been called", CALLED_ONCE))


#: By job: the largest and the smallest number, the relative error, and what the hardware is fast in.
JOBS = {
    "activations of a classifier, GPU with fp16 cores": (6e4, 1e-4, 6e-4, "float16"),
    "gradients without a loss scale, newer GPU": (1e2, 1e-12, 5e-3, "float16 bfloat16"),
    "weights that an optimizer adds up": (1e1, 1e-8, 1e-7, "float16 bfloat16"),
    "forward pass for serving, GPU with fp8": (4e2, 2e-2, 7e-2, "float16 bfloat16 float8_e4m3fn float8_e5m2"),
    "outliers in a language model, GPU with fp16 only": (1e6, 1e-4, 4e-3, "float16"),
    "activations that either 16-bit format holds": (1e3, 1e-3, 4e-3, "float16 bfloat16"),
    "what fp8 and fp16 would hold, CPU with bf16": (4e2, 2e-2, 7e-2, "bfloat16"),
    "numbers that either fp8 format holds": (1e2, 1e-1, 2e-1, "float8_e5m2 float8_e4m3fn"),
    "exactly what fp16 can": (65504.0, 2**-14, 2**-11, "float16"),
    "a little more than fp16's largest": (65510.0, 1e-3, 1e-3, "float16"),
    "numbers that fp16 holds as subnormal ones": (1e2, 1e-6, 1e-3, "float16 bfloat16"),
    "exactly what bf16 can": (255 * 2.0**120, 2.0**-126, 2**-8, "bfloat16"),
    "a sum of money in cents, exact to the cent": (1e12, 1.0, 1e-13, "float16 bfloat16"),
    "a probability of many coins": (1.0, 1e-310, 1e-3, "float16 bfloat16")}
JUST_MET = "a limit that is just met is met: use `<=`, not `<`"
ALL_FAST = "*(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16)"


class InOrder(set):
    """A set that is iterated by name, or backwards, so that no answer is right by a lucky order."""

    backwards = False

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=str, reverse=self.backwards))

    def union(self, *others):
        made = InOrder(super().union(*others))
        made.backwards = self.backwards
        return made

    __or__ = __ror__ = union


class ChooseDtype(Table):
    title = "A dtype for a job"
    task = (
        "A job needs numbers up to `largest` and down to `smallest` (as *normal* numbers, with all of their "
        "bits). It tolerates a relative rounding error of `error`. Rounding is wrong by at most half of "
        "`eps`. A limit that is just met is met. Return the torch dtype with the fewest bytes that meets all "
        "three limits. If two have equally many bytes, return the more precise one. You may choose `float32` "
        "and `float64` always, but `float8_e4m3fn`, `float8_e5m2`, `float16` and `bfloat16` only if they are "
        "in `fast`, the set of formats that the hardware is fast in. Raise `ValueError` if no format meets "
        "the limits.")
    hints = (
        "`torch.finfo(dtype)` knows `max`, `smallest_normal`, `eps` and `bits`. (`min` is the most "
        "*negative* number.)",
        "Rounding goes to the nearer neighbour. So it is wrong by at most half the distance between two "
        "numbers, `eps / 2`.")
    explanation = (
        "Ask each format three questions: how far up, how far down, and how fine? Take the cheapest format "
        "that meets all three limits. Sorting by bytes and then by `eps` puts the more precise of two first.")
    why = (
        "fp16 and bf16 take the same memory, but fp16 is finer and bf16 reaches farther. The job's numbers "
        "decide which one you need, and then the hardware decides whether it is fast.")
    cases = JOBS

    def answer(largest, smallest, error, fast):
        formats = sorted([*fast, torch.float32, torch.float64],
                         key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps))
        for dtype in formats:
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError("no format will do")

    def observe(choose_dtype, case):
        largest, smallest, error, fast = case
        chosen = {}
        for backwards in (False, True):
            kinds = InOrder(getattr(torch, name) for name in fast.split())
            kinds.backwards = backwards
            try:
                chosen[backwards] = str(choose_dtype(largest, smallest, error, kinds))
            except ValueError:
                chosen[backwards] = "a ValueError"
        return {"dtype": chosen[True], "dtype, with the set in another order": chosen[False]}

    rules = (
        same("dtype", "compare `max`, `smallest_normal` and half of `eps` with their limits, for the formats "
                      "in `fast` and for `float32` and `float64`; then the fewest bytes win, then the "
                      "smaller `eps`"),
        same("dtype, with the set in another order", "which format comes first? A set has no order"))
    mistakes = (
        ("info.max >= largest", "info.max > largest", JUST_MET),
        ("info.smallest_normal <= smallest", "info.smallest_normal < smallest", JUST_MET),
        ("info.eps / 2 <= error", "info.eps / 2 < error", JUST_MET),
        ("info.eps / 2", "info.eps", "rounding is wrong by `eps / 2` at most"),
        ("info.smallest_normal", "info.min", "`min` is the most negative number, not the smallest one"),
        ("info.smallest_normal", "info.smallest_normal * info.eps", "below `smallest_normal`, bits are lost"),
        ("*fast", ALL_FAST, "is the format that you return in `fast`?"),
        ("torch.float32, torch.float64", "", "`float32` and `float64` are allowed always"),
        (", torch.finfo(dtype).eps))", ", -torch.finfo(dtype).max))", "of two, the smaller `eps` wins"),
        ('raise ValueError("no format will do")', "return None", "after the last format, `raise ValueError`"))


#: In words: the largest batch that fits, the largest that is allowed, and with which one a bug shows.
MACHINES = {f"the largest that fits is {largest}, `most` is {most}": (largest, most, math.inf)
            for largest, most in ((100, 4096), (1, 64), (0, 64), (64, 64), (50, 50), (1023, 100_000))}
BUGS = {"a bug in the model": (100, 4096, 1), "a bug that shows from 3 samples on": (100, 4096, 3)}
DOUBLING = """while bad <= most and ok(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
"""
COUNT_DOWN = "good = most\n    while good and not ok(good):\n        good -= 1\n    return good\n"
COUNT_UP = "while bad <= most and ok(bad):\n        good, bad = bad, bad + 1\n"


class WrongShape(RuntimeError):
    """A bug in the model."""


class Enough(BaseException):
    """Ends a function that tries on and on, whatever it catches."""


def differs(mine, wanted, case):
    if mine["outcome"] != wanted["outcome"]:
        tried = ", ".join(map(str, mine["tried"])) or "nothing"
        return f"it {mine['outcome']}; it tried {tried}", f"it {wanted['outcome']}"


class LargestBatch(Table):
    title = "The largest batch"
    task = (
        "`fits(batch)` tries a training step with `batch` samples. It returns `True`, or raises "
        "`torch.OutOfMemoryError`. Find by trying the largest batch from 1 to `most` that fits, and return "
        "it. Return 0 if not even one sample fits. If a batch fits, all smaller ones fit. Others use this "
        "machine, too: never try more than **twice** what fits, and try at most **30** sizes. Before each "
        "try, the memory of earlier tries has to be free. A step that failed keeps its memory until you "
        "leave the `except` block. All other errors are bugs: do not catch them.")
    hints = (
        "First double: 1, 2, 4, 8 …, until it does not fit, or `most` is reached. Then you know one size "
        "that fits and a larger one that does not. Try the size in the middle, again and again.",
        "Catch `torch.OutOfMemoryError` only. It is a `RuntimeError`, but a wrong shape raises "
        "`RuntimeError`, too. In the `except` block, note that the try failed. Leave the block before you "
        "try again.")
    explanation = (
        "Doubling never tries more than twice what fits, and it finds an interval in few tries. Halving the "
        "interval finds the exact size. Only the error that means *too large* is caught.")
    why = (
        "a search that begins with a large batch can take a shared machine down. A search that catches every "
        "error calls a broken model *too large*. In practice, leave some room, because batches differ in "
        "memory use.")
    timeout = 10
    cases = MACHINES | BUGS

    def answer(fits, most):
        def ok(batch):
            try:
                return fits(batch)
            except torch.OutOfMemoryError:
                return False

        good, bad = 0, 1
        while bad <= most and ok(bad):
            good, bad = bad, 2 * bad
        bad = min(bad, most + 1)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if ok(middle) else (good, middle)
        return good

    def observe(largest_batch, case):
        largest, most, bug = case
        tried, before = [], []

        def fits(batch):
            tried.append(batch)
            before.append(held.now)
            if len(tried) > 30:
                raise Enough("more than 30 tries")
            if batch >= bug:
                raise WrongShape("mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10)")
            activations = torch.zeros(batch, dtype=torch.int8)
            if held.now > largest:
                raise torch.OutOfMemoryError(f"no room for {activations.nbytes} bytes: out of memory")
            return True

        try:
            with held_bytes() as held:
                outcome = f"returned {largest_batch(fits, most)}"
        except (Enough, WrongShape) as error:
            outcome = f"raised {type(error).__name__}: {error}"
        return {"tried": tried, "outcome": outcome, "largest try": max(tried, default=1),
                "samples still held": max(before, default=0)}

    rules = (
        between("largest try", lambda wanted, case: (0, min(case[1], 2 * max(case[0], 1))),
                "begin with 1, and never try more than `most` or twice what has fit"),
        nothing("samples still held", "leave the `except` block before you try again, and keep no exception"),
        each(differs, "return the last size that fits, try all sizes that may be larger, in few tries, and "
                      "catch one error only"))
    mistakes = (
        (DOUBLING, COUNT_DOWN, "a first try of `most` may be far too much: begin with 1"),
        (DOUBLING, COUNT_UP, "sizes that grow by 1 take too many tries: double"),
        ("bad = min(bad, most + 1)", "return good", "the largest need not be a power of two: go on halving"),
        ("torch.OutOfMemoryError", "RuntimeError", "a bug is a `RuntimeError`, too: catch less"),
        ("bad <= most and ", "", "stop doubling at `most`"),
        ("min(bad, most + 1)", "min(bad, most)", "`most` itself may fit, and you do not try it"),
        ("good, bad = 0, 1", "good, bad = 1, 2", "perhaps not even one sample fits: try it"))


class Block(nn.Module):
    """Calls its layers, the last one first: numbers to multiply by, modules, or names of layers."""

    def __init__(self, *layers, gain=1):
        super().__init__()
        self.gain = gain
        for number, layer in enumerate(layers):
            factor, layer = layer, self._modules.get(layer, layer)
            if not isinstance(layer, nn.Module):
                layer = nn.Linear(8, 8, bias=False)
                layer.weight.data = factor * torch.eye(8)
            self.add_module(f"layer{number}", layer)

    def forward(self, values):
        for layer in reversed(self._modules.values()):
            values = layer(values)
        return values * self.gain - values * (self.gain - 1)  # in fp16, with a large gain: inf - inf


#: The networks of the hunt. The images are small, so the layer that is called first never overflows.
NETWORKS = {
    "one layer overflows": lambda: Block(1, 1, 800, 600.3, 1, 1000.3),
    "a later layer hides what overflows": lambda: Block(1, nn.Hardtanh(inplace=True), 800, 600.3, 1000.3),
    "a weight is too large for fp16": lambda: Block(1, 1e6),
    "nothing overflows": lambda: Block(1, 60000, 1, 1000.3),
    "a layer is called before and after the one that overflows": lambda: Block(1000.3, 800, 600.3, "layer0"),
    "a layer inside another overflows": lambda: Block(1, Block(1, Block(800, 1), 600.3), 1000.3),
    "a layer around others puts out NaN by itself": lambda: Block(1, Block(1, 600.3, gain=800), 1000.3),
    "the model puts out NaN by itself": lambda: Block(1, 600.3, 1000.3, gain=800),
    "a layer that is called twice overflows the second time": lambda: Block(300, 100.3, "layer0", 1000.3)}
AUTOCAST, FOUND = ', torch.amp.autocast("cpu", dtype=torch.float16)', "found[0] if found else None"
REMOVE, FINITE = "    for handle in handles:\n        handle.remove()\n", "not output.isfinite().all()"


def state(model):
    """What can be seen of a model from outside."""
    return {"hooks": sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()),
            "hooks of all modules": len(nn.modules.module._global_forward_hooks),
            "weights": [f"{weight.dtype} {weight.sum():g}" for weight in model.parameters()]}


class FirstOverflow(Table):
    title = "Hunt: the layer where infinity begins"
    task = (
        "The loss is NaN from the first step on, under autocast in fp16. In fp32 all is well. Run "
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
        "numbers that are broken already. Call the model inside `with torch.amp.autocast(…)`.")
    explanation = (
        "Hooks run in the order in which layers are called, so the first name that you note is the layer. "
        "Later layers turn inf into NaN (inf - inf), or a `Tanh` turns it into a harmless-looking 1.")
    why = (
        "the forward itself overflows before there is a loss, so no loss scale helps. Now you know the "
        "layer. Run it in fp32 (`autocast(enabled=False)`), normalise its input, or use bf16.")
    cases = {words: words for words in NETWORKS}

    def answer(model, images):
        found = []

        def looking_for(name):
            def hook(module, inputs, output):
                if not output.isfinite().all():
                    found.append(name)
            return hook

        handles = [module.register_forward_hook(looking_for(name)) for name, module in model.named_modules()]
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        for handle in handles:
            handle.remove()
        return found[0] if found else None

    def observe(first_overflow, network):
        model, forwards = NETWORKS[network](), []
        model.register_forward_pre_hook(lambda *_: forwards.append(1))  # hooks of the model's own
        model.register_forward_hook(lambda *_: None)
        images = torch.full((4, 8), 1e-5)
        images[2, 3:5] = -1e-3  # the only numbers that may overflow
        before, found, after = state(model), first_overflow(model, images), state(model)
        return {"name": found if isinstance(found, str | None) else f"a {type(found).__name__}",
                "changed in the model": [f"{what}: {was}, now {after[what]}" for what, was in before.items()
                                         if after[what] != was],
                "forwards": len(forwards)}

    rules = (
        same("name", "run under `autocast(\"cpu\", …)` in fp16. Of all modules, inner and outer, find the "
                     "first in time that puts out inf or NaN, in any call. Look when the output comes: a "
                     "later layer may write over it"),
        nothing("changed in the model", "call `remove()` on each of your handles; only autocast computes in "
                                        "fp16", "a model as it was"),
        between("forwards", lambda wanted, case: (0, 1), "hooks see all layers in one forward"))
    mistakes = (
        (AUTOCAST, "", "run the forward under `autocast(\"cpu\", dtype=torch.float16)`"),
        (FOUND, "found[-1] if found else None", "the last layer got broken numbers: return the first"),
        (FINITE, "output.isnan().any()", "inf comes first, and turns into NaN in a later layer only"),
        (FINITE, "output.isinf().any()", "NaN is not finite either, and may come first: inf - inf is NaN"),
        ("append(name)", "append([*model.named_modules()][-1][0])",
         "which name does a hook note? A function made in a loop reads the loop's variable when called"),
        (REMOVE, "", "call `handle.remove()` for every handle of yours"))


train_step, choose_dtype = TrainStep(), ChooseDtype()
largest_batch, first_overflow = LargestBatch(), FirstOverflow()
