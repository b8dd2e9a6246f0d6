"""The exercises of mixed precision: the right order, a dtype for a job, the largest batch, a hunt for inf."""

import math
import numbers
import operator

import torch
from torch import nn

from helpers.exercises.engine import Exercise, not_yet
from helpers.instruments.memory import held_bytes


def _first(*rows, case=""):
    """Feedback on the first row (whether it is wrong, observed, expected, where to look) that is wrong."""
    return next((not_yet(case + observed, *said) for is_wrong, observed, *said in rows if is_wrong), None)


#: The scale that the scaler of the first exercise begins with; the bytes of all weights there.
SCALE, BYTES = 2.0**12, 24 * 256
#: By call: the size of the gradients. 24 overflows at SCALE, not at its half; 0.06 is too much only for all together.
CALLS = {"gradients too small for fp16": 2.5e-8, "gradients to be clipped": 5,
         "a gradient that overflows once it is scaled": 24, "the same, after that": 24,
         "gradients not to be clipped": 1e-3, "gradients to be clipped a little; the third good step": 0.06,
         "a loss that is NaN": math.nan}


class TrainStep(Exercise):
    title = "The loop in the right order"
    task = ("`loss` has been computed under autocast, and no gradients are there yet. Do the rest of a training step: "
            "scale and `backward`, once, so that no gradient is lost; clip the true gradients, all `parameters` "
            "together, to the norm `max_norm`; let the optimizer make its step, unless a gradient is infinite or NaN; "
            "and let the scaler adapt. Your function is called several times, with the same `scaler` and `optimizer`. "
            "The gradients are rounded to fp16 as they come, as on a GPU. Make no copy of all weights or gradients.")
    hints = (
        "Five calls: `scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, "
        "`torch.nn.utils.clip_grad_norm_(parameters, max_norm)`, `scaler.step(optimizer)`, `scaler.update()`. In which "
        "order?",
        "`max_norm` is meant for true gradients. Right after `backward`, they are still multiplied by the scale.",
    )
    explanation = ("`unscale_` divides the gradients by the scale, so that clipping sees true ones. `scaler.step` "
                   "knows that this was done and does not divide again; it leaves the step out if a gradient is "
                   "infinite. `update` then halves the scale, or, after many good steps, doubles it.")
    why = ("each of these calls depends on what the ones before it have done, and not every wrong order raises an "
           "error: some train slowly, or not at all, or until the first infinity.")
    cases = {"`max_norm` 1": 1.0, "`max_norm` 0.5": 0.5}

    def answer(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()

    def probe(train_step, max_norm):
        trainings = (_training(step, max_norm) for step in (train_step, TrainStep.answer))
        said = (TrainStep._compared(f"call {call} ({what}): ", *both, max_norm)  # before the next call
                for call, (what, *both) in enumerate(zip(CALLS, *trainings, strict=True), start=1))
        return next(filter(lambda feedback: feedback is not None, said), None)

    def _of_error(self, error, answer):
        if "is being called after step()" in str(error):
            return not_yet("`unscale_` was refused: a `step` came before it, and no `update` since",
                           "`unscale_`, `step`, `update`", "their order; and does each call end with `update`?")
        return super()._of_error(error, answer)

    @staticmethod
    def _compared(case, mine, wanted, max_norm):
        moved, right, scale = math.hypot(*mine["moved"]), math.hypot(*wanted["moved"]), wanted["before"]
        times, unclipped = moved / right if right else 1, wanted["norm"] / max_norm
        often, way = (times, "far") if times > 1 else (1 / (times or 1), "little")
        is_scale, lost = abs(often / scale - 1) < 0.02, mine["came"] and not any(mine["came"])
        move, extra = f"the weights move by {right:.3g}", mine["peak"] - wanted["peak"]
        return _first(
            (not right and moved, f"the weights moved by {moved:.3g}", "this step is left out",
             "who makes the optimizer's step, and does it know of gradients that are not finite?"),
            (len(mine["came"]) > len(wanted["came"]), "gradients came twice", "one `backward`", "who calls it"),
            (right and mine["early"], "`scaler.update()` came before the weights had moved", "it ends the step",
             "the order of `scaler.step(optimizer)` and `scaler.update()`"),
            (right and lost, "the gradients were rounded to 0", move,
             "what makes gradients large enough for fp16, before they are computed?"),
            (right and not moved, "the weights did not move", move, "is there a `backward`, a step, a "
             "gradient? With a scale of your own, it may have been infinite, and the step was left out"),
            (math.dist(mine["moved"], [times * one for one in wanted["moved"]]) > 0.05 * moved,
             "the weights moved in another direction than that of the gradient", "one factor for all gradients",
             "clip neither each number, nor each parameter, but the norm of all of them together"),
            (unclipped > 1 and abs(times / unclipped - 1) < 0.02, "the gradients were not clipped", move,
             "`torch.nn.utils.clip_grad_norm_`: when, and to which norm? Is it `max_norm`, or a multiple of it?"),
            (not often < 1.02, f"the weights moved {scale if is_scale else often:.4g} times too {way}"
             f"{' (that is the scale)' * is_scale}", move,
             "by which scale are gradients multiplied (it changes), and how often divided? `step` does it, unless "
             "`unscale_` has. Clipped to which norm, and only if larger?"),
            (mine["scale"] != wanted["scale"], f"the scale was {scale:g}, and is {mine['scale']:g} after it",
             f"{wanted['scale']:g}", "who tells the scaler that the step is over"),
            (extra > BYTES / 2, f"{extra:,} bytes more were held than a step needs; all weights have {BYTES:,}",
             "no copy of all weights or gradients", "`clone`, `deepcopy`, `cat`"), case=case)


def _training(step, max_norm):
    """Yields what came of each call of `step`, in a training of its own."""
    kinds = [torch.float32, torch.bfloat16, torch.float64] * 8
    weights = [nn.Parameter(torch.zeros(256 // kind.itemsize, dtype=kind)) for kind in kinds]
    optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}], lr=1, momentum=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)
    update, early = scaler.update, []

    def watched(*args, **kwargs):
        early.append(not any(weight.any() for weight in weights))
        update(*args, **kwargs)

    scaler.update = watched
    for size in CALLS.values():
        came, loss, norm = [], 0, 0
        for weight in weights:
            number = size if weight is weights[-1] else -size / 2

            def as_on_gpu(gradient, came=came):
                came.append(gradient.half().any().item())
                return gradient.half().to(gradient.dtype)

            weight.data.zero_()
            used = weight * 1  # its hook sees what flows back, by whichever function it is asked for
            used.register_hook(as_on_gpu)
            loss = loss + (used * number).sum().float()
            norm = math.hypot(norm, number * weight.numel()**0.5)
        optimizer.zero_grad()
        before = scaler.get_scale()
        early.clear()
        with held_bytes() as held:
            step(scaler, optimizer, list(weights), loss, max_norm)
        moved = torch.cat([weight.detach().double() for weight in weights]).tolist()
        yield {"moved": moved, "came": came, "norm": norm, "before": before, "scale": scaler.get_scale(),
               "peak": held.peak, "early": any(moved) and any(early)}
        for group in optimizer.param_groups:
            group["lr"] *= 0.9  # as a schedule does


FORMATS = "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"


class InOrder(set):
    """A set that is iterated by name, or backwards: who relies on the order of a set shall not be right by luck."""

    def __init__(self, items=(), backwards=False):  # as `copy` calls it
        super().__init__(items)
        self.backwards = backwards

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=str, reverse=self.backwards))

    def union(self, *others):
        return InOrder(super().union(*others), self.backwards)

    __or__ = __ror__ = union


class ChooseDtype(Exercise):
    title = "A dtype for a job"
    task = ("A job needs numbers up to `largest`, and down to `smallest` (as *normal* numbers, with all of their "
            "bits), and bears a relative rounding error of `error` (rounding goes to the nearest number: it is wrong "
            "by at most half of `eps`). A limit that is just met is met. Return the torch dtype that takes the fewest "
            "bytes and will do: of `float8_e4m3fn`, `float8_e5m2`, `float16`, `bfloat16`, which may be used only if "
            "they are in `fast`, the set of those that the hardware is fast in, and `float32`, `float64`, which run "
            "everywhere. Of two that take equally many bytes, the more precise one. Raise `ValueError` if none will "
            "do.")
    hints = (
        "`torch.finfo(dtype)` knows `max`, `smallest_normal`, `eps` and `bits`. (`min` is the most *negative* number.)",
        "Rounding goes to the nearer neighbour: it is wrong by at most half the distance between two numbers, "
        "`eps / 2`.",
    )
    explanation = ("Three questions to each format: how far up, how far down, how fine? Then the cheapest that says "
                   "yes three times. Sorting by bytes and then by `eps` puts the more precise one first.")
    why = ("fp16 and bf16 take the same memory and answer differently: fp16 is finer, bf16 reaches farther. What a "
           "job needs decides, and then what the hardware is fast in.")
    #: By job: the largest and the smallest number, the relative error that it bears, what the hardware is fast in.
    cases = {
        "activations of a classifier, GPU with fp16 cores": (6e4, 1e-4, 6e-4, "float16"),
        "gradients without a loss scale, newer GPU": (1e2, 1e-12, 5e-3, "float16 bfloat16"),
        "weights that an optimizer adds up": (1e1, 1e-8, 1e-7, "float16 bfloat16"),
        "forward pass for serving, GPU with fp8": (4e2, 2e-2, 7e-2, "float16 bfloat16 float8_e4m3fn float8_e5m2"),
        "outliers in a language model, GPU with fp16 only": (1e6, 1e-4, 4e-3, "float16"),
        "the same, newer GPU": (1e6, 1e-4, 4e-3, "float16 bfloat16"),
        "activations that either 16-bit format holds": (1e3, 1e-3, 4e-3, "float16 bfloat16"),
        "what fp8 and fp16 would hold, CPU with bf16": (4e2, 2e-2, 7e-2, "bfloat16"),
        "gradients in fp8 with a scale": (5e4, 1e-4, 2e-1, "bfloat16 float8_e4m3fn float8_e5m2"),
        "numbers that either fp8 format holds": (1e2, 1e-1, 2e-1, "float8_e5m2 float8_e4m3fn"),
        "exactly what fp16 can": (65504.0, 2**-14, 2**-11, "float16"),
        "a little more than fp16's largest": (65510.0, 1e-3, 1e-3, "float16"),
        "numbers that fp16 holds as subnormal ones": (1e2, 1e-6, 1e-3, "float16 bfloat16"),
        "exactly what bf16 can": (255 * 2.0**120, 2.0**-126, 2**-8, "bfloat16"),
        "a little finer than bf16": (1e6, 1e-4, 3.8e-3, "bfloat16"),
        "exactly what fp8 e4m3 can": (448.0, 2**-6, 2**-4, "float8_e4m3fn float8_e5m2"),
        "exactly what fp8 e5m2 can": (57344.0, 2**-14, 2**-3, "float8_e4m3fn float8_e5m2"),
        "a sum of money in cents, exact to the cent": (1e12, 1.0, 1e-13, "float16 bfloat16"),
        "exactly what fp64 can": (1.7976931348623157e308, 2.0**-1022, 2.0**-53, "float16 bfloat16"),
        "a distance in the universe": (1e300, 1.0, 1e-20, "float16 bfloat16"),
        "a probability of many coins": (1.0, 1e-310, 1e-3, "float16 bfloat16"),
    }

    def answer(largest, smallest, error, fast):
        formats = sorted([*fast, torch.float32, torch.float64],
                         key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps))
        for dtype in formats:
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError("no format will do")

    def probe(choose_dtype, job):
        largest, smallest, error, fast = job
        kinds, observed = [getattr(torch, name) for name in fast.split()], []
        for choose, backwards in ((choose_dtype, False), (choose_dtype, True), (ChooseDtype.answer, False)):
            try:
                got = choose(largest, smallest, error, InOrder(kinds, backwards))
                observed.append(str(got)[6:] if isinstance(got, torch.dtype) else f"a {type(got).__name__}")
            except ValueError:
                observed.append("ValueError")
        one, other, right = observed
        got = other if one == right else one
        wanted = "`raise ValueError`: none of the formats will do" if right == "ValueError" else f"torch.{right}"
        info, best = (torch.finfo(getattr(torch, name) if name in FORMATS else torch.float64) for name in (got, right))
        just = best.max == largest or best.smallest_normal == smallest or best.eps / 2 == error
        rows = (
            (got == right, "", ""),
            (got == "ValueError", "", "all formats; `float32` and `float64` run everywhere, in `fast` or not"),
            (got not in FORMATS, "", "what your function returns, and what it does after the last format"),
            (got not in (*fast.split(), "float32", "float64"), f", but this hardware is not fast in {got}", "`fast`"),
            (info.max < largest, f"; it reaches only up to {info.max:.6g}, the job up to {largest:.6g}", "`max`"),
            (info.smallest_normal > smallest, f"; it reaches only as far down as {info.smallest_normal:.2g}, the job "
             f"to {smallest:.2g}", "numbers below `smallest_normal` lose bits; `min` is another thing"),
            (info.eps / 2 > error, f"; it is too coarse, wrong by {info.eps / 2:.2g}, not {error:.2g}", "`eps`"),
            (info.bits > best.bits, f"; {right} takes fewer bytes, and will do", "a limit just met is met: `<=`, not "
             "`<`, of `finfo`'s own numbers, not of rounded ones" if just else
             "rounding is wrong by `eps / 2` at most; and the order of the formats"),
            (True, f"; {right} is more precise, and takes as many bytes", "which one comes first? A set has no order"))
        problem, look = next(said for is_wrong, *said in rows if is_wrong)
        did = "raised" if got == "ValueError" else "returned"
        return not_yet(f"it {did} {got}{problem}", wanted, look) if look else None


BUG = "mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10)"


class LargestBatch(Exercise):
    title = "The largest batch"
    task = ("`fits(batch)` tries a training step with `batch` samples: it returns `True`, or raises "
            "`torch.OutOfMemoryError`. Find, by trying, the largest batch from 1 to `most` that fits, and return it; 0 "
            "if not even one sample does. You know it when it has fit and the next size has not (or it is `most`): if "
            "a batch fits, so do all smaller ones. Be careful with a machine that others use: never try more than "
            "**twice** what fits, and at most **30** sizes, none of them again. Before each try, the memory of the "
            "tries before it has to be free: a step that failed lives as long as its exception is being handled. All "
            "other errors are bugs: let them through.")
    hints = (
        "First double: 1, 2, 4, 8 … until it does not fit, or `most` is reached. Then you know a size that fits and a "
        "larger one that does not: try the one in the middle, again and again.",
        "`except torch.OutOfMemoryError` and nothing wider. It is a `RuntimeError`, but so is a wrong shape. Note in "
        "the `except` block that it failed, leave the block, and go on.",
    )
    explanation = ("Doubling never tries more than twice what fits, and finds an interval in few tries; halving it "
                   "finds the exact size. Only the one error that means *too large* is caught.")
    why = ("finders that begin large take a shared machine down, and those that catch every error call a broken model "
           "*too large* and answer 0. In real life, leave some room: memory use differs from batch to batch.")
    timeout = 10
    #: In words: the largest batch that fits, the largest that is allowed, and with which one a bug shows.
    cases = {f"the largest that fits is {largest}, `most` is {most}": (largest, most, None) for largest, most in
             ((100, 4096), (1, 64), (0, 64), (64, 64), (37, 50), (50, 50), (1023, 100_000), (1, 1))}
    cases |= {"a bug in the model": (100, 4096, 1), "a bug that shows from 3 samples on": (100, 4096, 3)}

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

    def probe(largest_batch, case):
        largest, most, bug = case
        tried, earlier = [], []

        def fits(batch):
            tried.append(operator.index(batch))
            earlier.append(held.now)
            if not 1 <= batch <= min(2 * max(largest, 1), most) or len(tried) > 30:
                raise BaseException("enough")  # which ends a function that catches too much as well
            if bug and batch >= bug:
                raise RuntimeError(BUG)
            activations = torch.zeros(batch, dtype=torch.int8)
            if held.now > largest:
                # in the words of the allocator cudaMallocAsync: not all errors of this class say "CUDA out of memory"
                raise torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory. (out of memory)\n"
                                             f"Requested: {activations.nbytes} bytes")
            return True

        try:
            with held_bytes() as held:
                got = largest_batch(fits, most)
        except BaseException as error:
            if type(error) is not BaseException and not bug:
                raise
            got = str(error)
        whole = isinstance(got, numbers.Integral) and not isinstance(got, bool)  # NumPy's, too
        return int(got) if whole else f"{got}", next(filter(None, earlier), 0), tried

    def judge(self, seen, case):
        (largest, most, bug), (got, held, tried), again = case, seen[0], len(seen[0][2]) - len(set(seen[0][2]))
        shown = f"\ntried: {', '.join(map(str, tried[:16])) or 'nothing'}{' …' if len(tried) > 16 else ''}"
        least, top, twice = min(tried, default=1), max(tried, default=1), 2 * max(largest, 1)
        unknown = [size for size in (largest, min(largest + 1, most)) if size and size not in tried]
        return _first(
            (least < 1 or top > most, f"it tried a batch of {least if least < 1 else top}, though only 1 up to {most} "
             f"is allowed{shown}", f"sizes from 1 to {most}", "what doubling does near `most`, and halving near 0"),
            (top > twice, f"it tried a batch of {top}{shown}", f"at most {twice}, twice what fits",
             "with which size you begin; how far the next may be from the largest that has fit so far"),
            (held, f"the memory of an earlier try, {held} samples, was still held when the next began{shown}",
             "all of it is free", "leave the `except` block before the next try, and keep no exception"),
            (len(tried) > 30 or again, f"{len(tried)} sizes were tried, {again} of them again{shown}",
             "30 at most, each once", "doubling, then halving; the same size more than once tells nothing new"),
            (bug and got != BUG, f"`fits` raised `RuntimeError: {BUG}`, and your function returned {got}{shown}",
             "that error comes through: it is a bug in the model", "what you catch"),
            (not bug and got != largest, f"it returned {got}{shown}", f"{largest}",
             "which do you return: the last that has fit? Is there a size in between that you have not tried? And what "
             "if nothing fits?"),
            (not bug and unknown, f"it returned {got}, and never tried {', '.join(map(str, unknown))}{shown}",
             "a size that has fit, while the next one has not", "no formula knows all that takes memory: try"))


class Block(nn.Module):
    """Calls its layers, the last one first: numbers, that linear layers multiply by, and names of layers it has."""

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


#: The networks of the hunt. The largest weights do no harm: the images are small, and 1000.3 is called first.
NETWORKS = {
    "one layer overflows": lambda: Block(1, 1, 800, 600.3, 1, 1000.3),
    "one layer overflows and a later one hides it": lambda: Block(1, nn.Hardtanh(inplace=True), 800, 600.3, 1000.3),
    "a weight is too large for fp16": lambda: Block(1, 1e6),
    "nothing overflows": lambda: Block(1, 60000, 1, 1000.3),
    "the last layer overflows": lambda: Block(800, 600.3, 1000.3),
    "a layer is called before and after the one that overflows": lambda: Block(1000.3, 800, 600.3, "layer0"),
    "a layer inside another overflows": lambda: Block(1, Block(1, Block(800, 1), 600.3), 1000.3),
    "a layer around others puts out NaN, by what it does itself": lambda: Block(1, Block(1, 600.3, gain=800), 1000.3),
    "the model puts out NaN, by what it does itself": lambda: Block(1, 600.3, 1000.3, gain=800),
    "a layer that is called twice overflows the second time": lambda: Block(300, 100.3, "layer0", 1000.3),
}


class FirstOverflow(Exercise):
    title = "Hunt: the layer where infinity begins"
    task = ("The loss is NaN from the first step on, under autocast in fp16, and in fp32 all is well. Return the name, "
            "as `model.named_modules()` gives it, of the layer whose **output** is the first that is not finite when "
            "`model(images)` runs, once, under `torch.amp.autocast(\"cpu\", dtype=torch.float16)`; `None` if all "
            "outputs are finite. Layers may stand inside others, compute something themselves around them, and be "
            "called in another order than that in which they are listed, or twice; the model itself counts as one, "
            "and its name is the empty text. Leave each model as it was: with no hooks but its own, and its weights "
            "in fp32.")
    hints = (
        "`module.register_forward_hook(hook)` calls `hook(module, inputs, output)` after each call of the module, and "
        "returns a handle with `remove()`. Hooks of inner modules come before those of outer ones.",
        "`output.isfinite().all()` sees inf and NaN. Keep the first name only; layers after it inherit the trouble. "
        "The forward belongs inside `with torch.amp.autocast(…)`.",
    )
    explanation = ("Hooks run in the order in which layers are called, so the first name that is noted is the one. "
                   "After that, inf turns into NaN (inf - inf), or, in a `Tanh`, into a harmless-looking 1.")
    why = ("a loss scale cannot cure this one: the forward itself overflows, and no loss has been computed yet. Now "
           "you know the layer: run it in fp32 (`autocast(enabled=False)`), normalise before it, or use bf16.")
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

    def probe(first_overflow, network):
        model, broken, forwards = NETWORKS[network](), [], []
        names = {module: name for name, module in model.named_modules()}
        images = torch.full((4, 8), 1e-5)
        images[2, 3:5] = -1e-3  # the only numbers that may overflow
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, inputs, output: None if output.isfinite().all() else broken.append(names[module]))
        with handle, torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        model.register_forward_pre_hook(lambda *_: forwards.append(1))  # hooks of the model's own
        model.register_forward_hook(lambda *_: None)
        before, found, after = _state(model), first_overflow(model, images), _state(model)
        changed = [f"its {what} were {old}, now {after[what]}" for what, old in before.items() if old != after[what]]
        found = found if found is None or isinstance(found, str) else f"a {type(found).__name__}"
        return found, list(names.values()), broken, len(forwards), changed

    def judge(self, seen, network):
        found, names, broken, forwards, changed = seen[0]
        right = broken[0] if broken else None
        shown = f"`{found}`" if found else "the model itself"
        inside = ", inside it," * (found == "" or str(right).startswith(f"{found}."))
        return _first(
            (found not in (None, *names), f"it returned {found}, which is not the name of a layer", "a layer's name",
             "what you note, and where it comes from"),
            (found is None and broken, "it found nothing", "the first layer whose output is not finite",
             "does the forward run under `autocast(\"cpu\", …)` in fp16, and does the hook see inf as well as NaN, "
             "one among many (`all`, not `any`)?"
             if right else
             "the empty text is a name too, and not true"),
            (found != right and found not in broken, f"the output of {shown} is finite wherever it is called",
             "the first layer whose output is not" if broken else "`None`",
             "whose name does each hook note (a function made in a loop reads the loop's variable when it is called)? "
             "And layers are not called in the order in which they are listed" if broken else
             "test each number with `isfinite`: a sum can overflow by itself, and large weights alone do no harm"),
            (found != right, f"the output of {shown} is not finite, but that of another layer{inside} was not finite "
             "before that", "the first one",
             "does every module have a hook, inner and outer ones, that looks at what comes out, in each call? The "
             "first in time counts, not in a list; and inf is not finite either"),
            (changed, f"the right answer, but the model is not as it was: {', '.join(changed)}", "a model as it was",
             "`handle.remove()` for every handle of yours; autocast leaves the weights alone; `eval()` is not needed"),
            (forwards > 1, f"the right answer, but the model ran {forwards} times", "one forward", "hooks"))


def _state(model):
    """What can be seen of a model from outside: {what: its value}."""
    modules, weights = list(model.modules()), list(model.parameters())
    hooks = [vars(one)[name] for one in (*modules, nn.modules.module) for name in vars(one) if name.endswith("_hooks")]
    return {"hooks": sum(map(len, hooks)), "layers in training mode": sum(one.training for one in modules),
            "attributes": ", ".join(sorted({name for one in modules for name in vars(one) if name[0] != "_"})),
            "weights": ", ".join(f"{str(weight.dtype)[6:]} {weight.double().sum().item():g}" for weight in weights),
            "weights that are trained": sum(weight.requires_grad for weight in weights),
            "gradients": sum(weight.grad is not None for weight in weights)}


train_step, choose_dtype, largest_batch, first_overflow = TrainStep(), ChooseDtype(), LargestBatch(), FirstOverflow()
