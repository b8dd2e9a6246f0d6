"""The exercises of lesson 06: the loop in the right order, a dtype for a job, the largest batch, and a hunt for inf."""

import math
import random

import torch
from torch import nn

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "06_mixed_precision"

#: The loss scale that the scaler of the first exercise begins with, and the learning rate of its optimizer.
SCALE, RATE = 2.0**12, 1.0
#: By call: (what is special about it, the gradient of the two weights). The third overflows at SCALE, not at its half.
CALLS = (("a gradient too small for fp16", (2e-8, -2.5e-8)), ("a gradient to be clipped", (3.0, -4.0)),
         ("a gradient that overflows once it is scaled", (18.0, -24.0)), ("the same, after that", (18.0, -24.0)))
MAX_NORM = 1.0


class TrainStep(Exercise):
    title = "The loop in the right order"
    task = ("`loss` has been computed under autocast, and no gradients are there yet. Do the rest of a training step: "
            "scale and `backward`, so that no gradient is lost; clip the true gradients of `parameters` to the norm "
            "`max_norm`; let the optimizer make its step, unless a gradient is infinite; and let the scaler adapt. "
            "Your function is called several times, with the same `scaler` and `optimizer`. The gradients are rounded "
            "to fp16 as they come, as on a GPU.")
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
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(scaler, optimizer, parameters, loss, max_norm):
        raise NotImplementedError

    @staticmethod
    def answer(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()

    @wrong("4096 times too little")
    def clips_before_it_unscales(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    @wrong("4096 times too little")
    def never_unscales(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()

    @wrong("unscale_() is being called after step()")
    def forgets_to_update(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.step(optimizer)

    @wrong("not finite any more")
    def steps_without_the_scaler(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        scaler.update()

    @wrong("unscale_() has already been called on this optimizer since the last update()")
    def unscales_twice(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    @wrong("4096 times too far")
    def does_not_know_of_the_scale(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        optimizer.step()

    @wrong("rounded to 0")
    def without_a_scaler(scaler, optimizer, parameters, loss, max_norm):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()

    @wrong("4096 times too little")
    def updates_before_the_step(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.update()
        scaler.step(optimizer)

    @wrong("was not clipped")
    def clips_before_there_are_gradients(scaler, optimizer, parameters, loss, max_norm):
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    @wrong("unscale_() is being called after step()")
    def unscales_after_the_step(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.unscale_(optimizer)
        scaler.update()

    @wrong("was not clipped")
    def forgets_to_clip(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    @wrong("1.414 times too far")
    def clips_each_number(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()

    @wrong("did not move")
    def empties_the_gradients_too_early(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in parameters:
            parameter.grad.zero_()
        scaler.step(optimizer)
        scaler.update()

    @staticmethod
    def probe(train_step):
        torch.set_num_threads(1)
        calls, weights = [], torch.nn.Parameter(torch.zeros(2))

        class Scaler(torch.amp.GradScaler):
            """Torch's own, with a note of each call."""

            def scale(self, outputs):
                calls.append("scale")
                return super().scale(outputs)

            stepping = False

            def unscale_(self, optimizer):
                if not self.stepping:  # a step that unscales by itself is no call of the learner's
                    calls.append("unscale_")
                return super().unscale_(optimizer)

            def step(self, optimizer, *args, **kwargs):
                calls.append("step")
                self.stepping = True
                try:
                    return super().step(optimizer, *args, **kwargs)
                finally:
                    self.stepping = False

            def update(self, new_scale=None):
                calls.append("update")
                return super().update(new_scale)

        def as_fp16(gradient):
            calls.append("backward")
            return gradient.half().float()

        def clip(*args, **kwargs):
            calls.append("clip")
            return original(*args, **kwargs)

        original, torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_, clip  # this rank lives for this
        weights.register_hook(as_fp16)
        scaler = Scaler("cpu", init_scale=SCALE)
        optimizer = torch.optim.SGD([weights], lr=RATE)
        observed = []
        for _, gradient in CALLS:
            calls.clear()
            optimizer.zero_grad()
            with torch.no_grad():
                weights.zero_()
            before = scaler.get_scale()
            loss, error = (weights * torch.tensor(gradient)).sum(), None
            try:
                train_step(scaler, optimizer, [weights], loss, MAX_NORM)
            except (RuntimeError, AssertionError) as raised:
                if isinstance(raised, NotImplementedError):
                    raise
                error = f"{type(raised).__name__}: {raised}"
            observed.append({"moved": weights.detach().tolist(), "scale": scaler.get_scale(), "before": before,
                             "calls": list(calls), "error": error})
            if error:
                break
        return observed

    def judge(self, observed):
        for number, ((what, gradient), seen) in enumerate(zip(CALLS, observed[0], strict=False), start=1):
            case, order = f"call {number} ({what})", f"\nyour calls: {', '.join(seen['calls']) or 'none'}"
            if seen["error"]:
                return not_yet(f"{case}: {seen['error']}{order}", "no error, in no call",
                               "what does the scaler want to be called, how often, and in which order?")
            feedback = self._judged(case, gradient, seen, order)
            if feedback is not None:
                return feedback
        return None

    @staticmethod
    def _judged(case, gradient, seen, order):
        norm, moved = math.hypot(*gradient), math.hypot(*seen["moved"])
        overflows = max(map(abs, gradient)) * seen["before"] > 65504
        if not math.isfinite(moved):
            return not_yet(f"{case}: the weights are not finite any more{order}",
                           "a step that is left out where a gradient is infinite", "who makes the optimizer's step")
        if overflows:
            if moved:
                return not_yet(f"{case}: the weights moved by {moved:.3g}{order}", "this step is left out",
                               "who makes the optimizer's step")
            if seen["scale"] != seen["before"] / 2:
                return not_yet(f"{case}: the scale is still {seen['scale']:g}{order}", f"{seen['before'] / 2:g}",
                               "who tells the scaler that the step is over")
            return None
        wanted = RATE * min(norm, MAX_NORM)
        times = moved / wanted
        if abs(times - 1) < 0.01:
            return None
        if not moved:
            lost = norm < 1e-7 and "scale" not in seen["calls"] and "backward" in seen["calls"]
            return not_yet(f"{case}: the weights did not move" + ("; the gradient was rounded to 0" if lost else "")
                           + order, f"they move by {wanted:.3g}",
                           "what makes the gradient large enough for fp16, before it is computed?" if lost else
                           "is there a `backward`, a step, and a gradient between them?")
        if norm > MAX_NORM and abs(moved / (RATE * norm) - 1) < 0.01:
            return not_yet(f"{case}: the gradient, of norm {norm:g}, was not clipped{order}",
                           f"a gradient of the norm {MAX_NORM:g}", "`torch.nn.utils.clip_grad_norm_`, and when")
        far = f"{times:.4g} times too far" if times > 1 else f"{1 / times:.4g} times too little"
        scale = " (that is the scale)" if abs(max(times, 1 / times) / seen["before"] - 1) < 0.02 else ""
        return not_yet(f"{case}: the weights moved {far}{scale}{order}", f"they move by {wanted:.3g}",
                       "when are the gradients multiplied by the scale, and when are they true?")


train_step = TrainStep()

# ---------------------------------------------------------------------------------------------------------------------

#: In the second exercise, by job: what it is, the largest and the smallest number, the relative error that it bears,
#: the names of the 8- and 16-bit formats that the hardware is fast in, and the right answer (None: there is none).
JOBS = (
    ("activations of a classifier, GPU with fp16 cores", 6e4, 1e-4, 6e-4, "float16", "float16"),
    ("gradients without a loss scale, newer GPU", 1e2, 1e-12, 5e-3, "float16 bfloat16", "bfloat16"),
    ("weights that an optimizer adds up", 1e1, 1e-8, 1e-7, "float16 bfloat16", "float32"),
    ("forward pass for serving, GPU with fp8", 4e2, 2e-2, 7e-2, "float16 bfloat16 float8_e4m3fn float8_e5m2",
     "float8_e4m3fn"),
    ("outliers in a language model, newer GPU", 1e6, 1e-4, 4e-3, "float16 bfloat16", "bfloat16"),
    ("outliers in a language model, GPU with fp16 only", 1e6, 1e-4, 4e-3, "float16", "float32"),
    ("activations that either 16-bit format holds", 1e3, 1e-3, 4e-3, "float16 bfloat16", "float16"),
    ("the same, on another machine", 1e3, 1e-3, 4e-3, "bfloat16 float16", "float16"),
    ("gradients in fp8 with a scale", 5e4, 1e-4, 2e-1, "bfloat16 float8_e4m3fn float8_e5m2", "float8_e5m2"),
    ("a count to ten million, one by one", 1e7, 1.0, 1e-7, "float16 bfloat16", "float32"),
    ("a sum of money in cents, exact to the cent", 1e12, 1.0, 1e-13, "float16 bfloat16", "float64"),
    ("a distance in the universe", 1e300, 1.0, 1e-20, "float16 bfloat16", None),
)


class InOrder(set):
    """A set that is iterated in the order of `items`: who relies on that order shall not be right by luck."""

    def __init__(self, items):
        super().__init__(items)
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def union(self, other):
        return InOrder([*self.items, *(item for item in other if item not in self)])

    __or__ = __ror__ = union


class ChooseDtype(Exercise):
    title = "A dtype for a job"
    task = ("A job needs numbers up to `largest`, and down to `smallest` (as *normal* numbers, with all of their "
            "bits), and bears a relative rounding error of `error`. Return the torch dtype that takes the fewest bytes "
            "and will do: of `float8_e4m3fn`, `float8_e5m2`, `float16`, `bfloat16`, which may be used only if they are "
            "in `fast`, the set of those that the hardware is fast in, and `float32`, `float64`, which run everywhere. "
            "Of two that take equally many bytes, the more precise one. Raise `ValueError` if none will do.")
    hints = (
        "`torch.finfo(dtype)` knows `max`, `smallest_normal`, `eps` and `bits`. (`min` is the most *negative* number.)",
        "Rounding goes to the nearer neighbour: it is wrong by at most half the distance between two numbers, "
        "`eps / 2`.",
    )
    explanation = ("Three questions to each format: how far up, how far down, how fine? Then the cheapest that says "
                   "yes three times. Sorting by bytes and then by `eps` puts the more precise one first.")
    why = ("fp16 and bf16 take the same memory and answer differently: fp16 is finer, bf16 reaches farther. What a "
           "job needs decides, and then what the hardware is fast in.")
    world_sizes = (1,)
    timeout = 10

    @staticmethod
    def stub(largest, smallest, error, fast):
        raise NotImplementedError

    @staticmethod
    def answer(largest, smallest, error, fast):
        formats = sorted([*fast, torch.float32, torch.float64],
                         key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps))
        for dtype in formats:
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError("no format will do")

    @wrong("it is too coarse")
    def always_bf16(largest, smallest, error, fast):
        return torch.bfloat16 if torch.bfloat16 in fast else torch.float16

    @wrong("not fast in bfloat16")
    def does_not_ask_the_hardware(largest, smallest, error, fast):
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32,
                      torch.float64):
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError

    @wrong("only as far down as")
    def takes_the_most_negative_for_the_smallest(largest, smallest, error, fast):
        for dtype in sorted([*fast, torch.float32, torch.float64],
                            key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps)):
            info = torch.finfo(dtype)
            if info.max >= largest and info.min <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError

    @wrong("float16 takes fewer bytes, and will do")
    def compares_eps_itself(largest, smallest, error, fast):
        for dtype in sorted([*fast, torch.float32, torch.float64],
                            key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps)):
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps <= error:
                return dtype
        raise ValueError

    @wrong("float16 is more precise")
    def the_one_that_reaches_farther(largest, smallest, error, fast):
        for dtype in sorted([*fast, torch.float32, torch.float64],
                            key=lambda dtype: (torch.finfo(dtype).bits, -torch.finfo(dtype).max)):
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError

    @wrong("float16 is more precise")
    def asks_for_the_fewest_bytes_only(largest, smallest, error, fast):
        fitting = []
        for dtype in [*fast, torch.float32, torch.float64]:
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                fitting.append(dtype)
        if not fitting:
            raise ValueError
        return min(fitting, key=lambda dtype: dtype.itemsize)

    @wrong("in `fast` or not")
    def forgets_what_runs_everywhere(largest, smallest, error, fast):
        for dtype in sorted(fast, key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps)):
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype
        raise ValueError

    @wrong("it returned a str")
    def by_name(largest, smallest, error, fast):
        return "float16"

    @wrong("it returned None")
    def says_nothing_if_none_will_do(largest, smallest, error, fast):
        for dtype in sorted([*fast, torch.float32, torch.float64],
                            key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps)):
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:
                return dtype

    @staticmethod
    def probe(choose_dtype):
        observed = []
        for _, largest, smallest, error, fast, _ in JOBS:
            try:
                got = choose_dtype(largest, smallest, error, InOrder([getattr(torch, name) for name in fast.split()]))
                is_dtype = isinstance(got, torch.dtype)
                observed.append(str(got).removeprefix("torch.") if is_dtype else f"a {type(got).__name__}")
            except ValueError:
                observed.append("ValueError")
        return observed

    def judge(self, observed):
        for (what, largest, smallest, error, fast, right), got in zip(JOBS, observed[0], strict=True):
            if got == (right or "ValueError"):
                continue
            verb = "raised" if got == "ValueError" else "returned"
            case = f"{what}: it {verb} {got.replace('a NoneType', 'None')}"
            dtype = getattr(torch, got, None)
            if got == "ValueError":
                return not_yet(case, f"torch.{right}", "the three questions, for every format; `float32` and `float64` "
                               "run everywhere, in `fast` or not")
            if not isinstance(dtype, torch.dtype) or right is None:
                return not_yet(case, f"torch.{right}" if right else "`raise ValueError`: none of the formats will do",
                               "what your function returns, and what it does after the last format")
            if not dtype.is_floating_point:
                return not_yet(case, f"torch.{right}", "the formats in the task")
            if got not in (*fast.split(), "float32", "float64"):
                return not_yet(f"{case}, but this hardware is not fast in {got}", f"torch.{right}", "`fast`")
            info = torch.finfo(dtype)
            if info.max < largest:
                problem = f"it reaches only up to {info.max:.3g}, the job up to {largest:.3g}"
            elif info.smallest_normal > smallest:
                problem = f"it reaches only as far down as {info.smallest_normal:.2g}, the job down to {smallest:.2g}"
            elif info.eps / 2 > error:
                problem = f"it is too coarse, wrong by up to {info.eps / 2:.1g}; the job bears {error:.1g}"
            elif info.bits > torch.finfo(getattr(torch, right)).bits:
                problem = f"{right} takes fewer bytes, and will do"
            else:
                problem = f"{right} is more precise, and takes as many bytes"
            return not_yet(f"{case}; {problem}", f"torch.{right}", "the three questions, and the order of the formats")
        return None


choose_dtype = ChooseDtype()

# ---------------------------------------------------------------------------------------------------------------------

#: In the third exercise: (largest batch that fits, largest that is allowed).
BATCHES = ((100, 4096), (1, 64), (0, 64), (64, 64), (37, 50), (1023, 100_000))


def most_tries(largest, most):
    """How often `fits` may be asked: doubling up to the first batch that does not fit, then halving the interval."""
    return 2 * math.ceil(math.log2(min(2 * max(largest, 1), most) + 1)) + 1


class LargestBatch(Exercise):
    title = "The largest batch"
    task = ("`fits(batch)` tries a training step with `batch` samples: it returns `True`, or raises "
            "`torch.OutOfMemoryError`. Return the largest batch, from 1 to `most`, that fits, and 0 if not even one "
            "sample does. What fits is known: if a batch does, so do all smaller ones. Be careful with a machine that "
            "others use: never try more than **twice** what fits, and try few sizes, as by doubling and halving. All "
            "other errors are bugs: let them through.")
    hints = (
        "First double: 1, 2, 4, 8 … until it does not fit, or `most` is reached. Then you know a size that fits and a "
        "larger one that does not: try the one in the middle, again and again.",
        "`except torch.OutOfMemoryError` and nothing wider. It is a `RuntimeError`, but so is a wrong shape.",
    )
    explanation = ("Doubling never tries more than twice what fits, and finds an interval in few tries; halving it "
                   "finds the exact size. Only the one error that means *too large* is caught.")
    why = ("finders that begin large take a shared machine down, and those that catch every error call a broken model "
           "*too large* and answer 0. In real life, leave some room: memory use differs from batch to batch.")
    world_sizes = (1,)
    timeout = 10

    @staticmethod
    def stub(fits, most):
        raise NotImplementedError

    @staticmethod
    def answer(fits, most):
        def ok(batch):
            try:
                return fits(batch)
            except torch.OutOfMemoryError:
                return False

        good, bad = 0, None
        while bad is None and good < most:
            batch = min(max(1, 2 * good), most)
            good, bad = (batch, None) if ok(batch) else (good, batch)
        while bad is not None and bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if ok(middle) else (good, middle)
        return good

    @wrong("it returned 64")
    def powers_of_two_only(fits, most):
        batch = 1
        try:
            while batch <= most and fits(batch):
                batch *= 2
        except torch.OutOfMemoryError:
            pass
        return batch // 2

    @wrong("it tried a batch of 4096")
    def begins_at_the_top(fits, most):
        batch = most
        while batch > 0:
            try:
                fits(batch)
                return batch
            except torch.OutOfMemoryError:
                batch -= 1
        return 0

    @wrong("it tried a batch of 2048")
    def halves_from_the_start(fits, most):
        good, bad = 0, most + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                fits(middle)
                good = middle
            except torch.OutOfMemoryError:
                bad = middle
        return good

    @wrong("sizes were tried")
    def one_by_one(fits, most):
        for batch in range(1, most + 1):
            try:
                fits(batch)
            except torch.OutOfMemoryError:
                return batch - 1
        return most

    @wrong("how far the next size may be")
    def doubles_its_step(fits, most):
        def ok(batch):
            try:
                return batch <= most and fits(batch)
            except torch.OutOfMemoryError:
                return False

        batch, step = 0, 1
        while ok(batch + step):
            batch, step = batch + step, 2 * step
        while step:
            batch, step = batch + step if ok(batch + step) else batch, step // 2
        return batch

    @wrong("the same size more than once")
    def tries_each_size_twice(fits, most):
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
            if ok(middle):
                good = middle
            if not ok(middle):
                bad = middle
        return good

    @wrong("OutOfMemoryError")
    def expects_false(fits, most):
        batch = 1
        while fits(batch):
            batch *= 2
        return batch // 2

    @wrong("it returned 1")
    def one_always_fits(fits, most):
        good, bad = 1, None
        while bad is None and good < most:
            try:
                fits(min(2 * good, most))
                good = min(2 * good, most)
            except torch.OutOfMemoryError:
                bad = min(2 * good, most)
        while bad is not None and bad - good > 1:
            middle = (good + bad) // 2
            try:
                fits(middle)
                good = middle
            except torch.OutOfMemoryError:
                bad = middle
        return good

    @wrong("shapes cannot be multiplied")
    def takes_every_error_for_too_large(fits, most):
        def ok(batch):
            try:
                return fits(batch)
            except RuntimeError:
                return False

        good, bad = 0, None
        while bad is None and good < most:
            batch = min(max(1, 2 * good), most)
            good, bad = (batch, None) if ok(batch) else (good, batch)
        while bad is not None and bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if ok(middle) else (good, middle)
        return good

    @wrong("only up to 64")
    def forgets_the_limit(fits, most):
        def ok(batch):
            try:
                return fits(batch)
            except torch.OutOfMemoryError:
                return False

        good, bad = 0, 1
        while ok(bad):
            good, bad = bad, 2 * bad
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if ok(middle) else (good, middle)
        return good

    @staticmethod
    def probe(largest_batch):
        class Enough(BaseException):
            """Ends a function that has tried too much, whatever it catches."""

        def asked(largest, most, broken):
            tried = []

            def fits(batch):
                tried.append(batch)
                if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1 or len(tried) > 400:
                    raise Enough
                if broken:
                    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10)")
                if batch > min(2 * max(largest, 1), most):
                    raise Enough
                if batch > largest:
                    raise torch.OutOfMemoryError("tried to allocate more memory than there is")
                return True

            try:
                got = repr(largest_batch(fits, most))
            except Enough:
                got = "stopped"
            except torch.OutOfMemoryError:
                got = "OutOfMemoryError"
            except RuntimeError as error:
                if not broken:
                    raise
                got = str(error)
            return {"got": got, "tried": tried, "last": repr(tried[-1]) if tried else ""}

        return [asked(*case, False) for case in BATCHES] + [asked(8, 64, True)]

    def judge(self, observed):
        *ordinary, broken = observed[0]
        for (largest, most), seen in zip(BATCHES, ordinary, strict=True):
            case, tried = f"the largest that fits is {largest}, `most` is {most}", seen["tried"]
            shown = f"\ntried: {', '.join(map(str, tried[:16])) or 'nothing'}{' …' if len(tried) > 16 else ''}"
            if seen["got"] == "stopped" and (not isinstance(tried[-1], int) or tried[-1] < 1):
                return not_yet(f"{case}: it tried a batch of {seen['last']}{shown}", "whole numbers from 1 on",
                               "how the next size is computed")
            if any(batch > most for batch in tried):
                return not_yet(f"{case}: it tried a batch of {max(tried)}, though it may go only up to {most}{shown}",
                               f"sizes from 1 to {most}", "what the doubling does when it comes near `most`")
            if any(batch > 2 * max(largest, 1) for batch in tried):
                return not_yet(f"{case}: it tried a batch of {max(tried)}{shown}",
                               f"at most {2 * max(largest, 1)}, twice what fits",
                               "with which size you begin" if len(tried) == 1 else
                               "how far the next size may be from the largest that has fit so far")
            if len(tried) > most_tries(largest, most):
                return not_yet(f"{case}: more than {most_tries(largest, most)} sizes were tried{shown}",
                               f"at most {most_tries(largest, most)}", "doubling, then halving the interval" +
                               ("; the same size more than once tells nothing new" if len(set(tried)) < len(tried)
                                else ""))
            if seen["got"] == "OutOfMemoryError":
                return not_yet(f"{case}: your function let an OutOfMemoryError through{shown}", f"{largest}",
                               "`try: … except torch.OutOfMemoryError: …` around `fits`")
            if seen["got"] != str(largest):
                return not_yet(f"{case}: it returned {seen['got'][:40]}{shown}", f"{largest}",
                               "is there a size in between that you have not tried? And what if nothing fits?")
        if broken["got"] in ("stopped", "OutOfMemoryError") or "shapes" not in broken["got"]:
            return not_yet("`fits` raised `RuntimeError: mat1 and mat2 shapes cannot be multiplied`, and your function "
                           f"returned {broken['got'][:40]}", "that error comes through: it is a bug in the model",
                           "what you catch")
        return None


largest_batch = LargestBatch()

# ---------------------------------------------------------------------------------------------------------------------


class FirstOverflow(Exercise):
    title = "Hunt: the layer where infinity begins"
    task = ("The loss is NaN from the first step on, under autocast in fp16, and in fp32 all is well. Return the name, "
            "as `model.named_modules()` gives it, of the layer whose **output** is the first that is not finite when "
            "`model(images)` runs under `torch.amp.autocast(\"cpu\", dtype=torch.float16)`; `None` if all outputs are "
            "finite. The layers are not called in the order in which they are listed. Each check draws new networks. "
            "Leave each model as it was: without hooks, and its weights in fp32.")
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
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(model, images):
        raise NotImplementedError

    @staticmethod
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

    @wrong("found nothing")
    def forgets_autocast(model, images):
        found = []
        handles = [module.register_forward_hook(lambda module, inputs, output, name=name:
                                                None if output.isfinite().all() else found.append(name))
                   for name, module in model.named_modules()]
        with torch.no_grad():
            model(images)
        for handle in handles:
            handle.remove()
        return found[0] if found else None

    @wrong("was not finite before that")
    def takes_the_last(model, images):
        found = []
        handles = [module.register_forward_hook(lambda module, inputs, output, name=name:
                                                None if output.isfinite().all() else found.append(name))
                   for name, module in model.named_modules() if name]
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        for handle in handles:
            handle.remove()
        return found[-1] if found else None

    @wrong("was not finite before that")
    def looks_for_nan_only(model, images):
        found = []
        handles = [module.register_forward_hook(lambda module, inputs, output, name=name:
                                                found.append(name) if output.isnan().any() else None)
                   for name, module in model.named_modules() if name]
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        for handle in handles:
            handle.remove()
        return found[0] if found else None

    @wrong("layers are not called in the order in which they are listed")
    def runs_them_as_listed(model, images):
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            for name, layer in model.named_children():
                images = layer(images)
                if not images.isfinite().all():
                    return name
        return None

    @wrong("is finite")
    def suspects_the_largest_weights(model, images):
        return max(model.named_parameters(), key=lambda pair: pair[1].abs().max())[0].rpartition(".")[0]

    @wrong("hooks are left in the model")
    def leaves_its_hooks(model, images):
        found = []
        for name, module in model.named_modules():
            module.register_forward_hook(lambda module, inputs, output, name=name:
                                         None if output.isfinite().all() else found.append(name))
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        return found[0] if found else None

    @wrong("float16 now")
    def converts_the_model(model, images):
        found, model = [], model.half()
        handles = [module.register_forward_hook(lambda module, inputs, output, name=name:
                                                None if output.isfinite().all() else found.append(name))
                   for name, module in model.named_modules()]
        with torch.no_grad():
            model(images.half())
        for handle in handles:
            handle.remove()
        return found[0] if found else None

    @wrong("the output of `layer6` is")
    def all_hooks_share_one_name(model, images):
        found, handles = [], []
        for name, module in model.named_modules():
            def hook(module, inputs, output):
                if not output.isfinite().all():
                    found.append(name)  # noqa: B023 (the mistake: all hooks see the last name)
            handles.append(module.register_forward_hook(hook))
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        for handle in handles:
            handle.remove()
        return found[0] if found else None

    @wrong("not the name of a layer")
    def returns_the_module(model, images):
        found = []
        handles = [module.register_forward_hook(lambda module, inputs, output:
                                                None if output.isfinite().all() else found.append(module))
                   for module in model.modules()]
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            model(images)
        for handle in handles:
            handle.remove()
        return found[0] if found else None

    @staticmethod
    def probe(first_overflow):
        torch.set_num_threads(1)
        observed = []
        for kind in ("one layer overflows", "one layer overflows and a later one hides it", "nothing overflows"):
            model, order, images = _network(kind)
            found = first_overflow(model, images)
            hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
            weights = sorted({str(weight.dtype).removeprefix("torch.") for weight in model.parameters()})
            finite, value = [], images
            with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
                for name in order:
                    value = getattr(model, name)(value)
                    finite.append(bool(value.isfinite().all()))
            observed.append({"kind": kind, "order": order, "finite": finite, "hooks": hooks, "weights": weights,
                             "found": found if isinstance(found, str) else None if found is None else ...,
                             "type": type(found).__name__})
        return [dict(seen, found=f"a {seen['type']}" if seen["found"] is ... else seen["found"]) for seen in observed]

    def judge(self, observed):
        for number, seen in enumerate(observed[0], start=1):
            case, order, finite = f"network {number} ({seen['kind']})", seen["order"], seen["finite"]
            right = None if all(finite) else order[finite.index(False)]
            found = seen["found"]
            if found == right:
                if seen["hooks"]:
                    return not_yet(f"{case}: the right layer, but hooks are left in the model", "a model as it was",
                                   "`handle.remove()` for every handle")
                if seen["weights"] != ["float32"]:
                    return not_yet(f"{case}: the right layer, but weights are {' and '.join(seen['weights'])} now",
                                   "a model as it was", "autocast, which leaves the weights alone")
                continue
            if found is None:
                return not_yet(f"{case}: it found nothing", "the name of a layer",
                               "does the forward run under autocast in fp16, and does the hook see inf as well as NaN?")
            if found not in order:
                shown = "the model itself" if found == "" else f"{found}"
                return not_yet(f"{case}: it returned {shown}, which is not the name of a layer", "one layer's name",
                               "what you note, and where it comes from")
            if right is None:
                return not_yet(f"{case}: it returned `{found}`, whose output is finite in every place",
                               "`None`", "what is returned if no hook has noted anything")
            place = order.index(found)
            if place < order.index(right) or finite[place]:
                return not_yet(f"{case}: the output of `{found}` is finite, in the place where the model calls it",
                               "the first layer whose output is not", "layers are not called in the order in which "
                               "they are listed; and large weights alone do no harm")
            look = ("the first that is noted, not the last; inf is not finite either; and the layers are not called in "
                    "the order in which they are listed")
            return not_yet(f"{case}: the output of `{found}` is not finite, but that of another layer was not finite "
                           "before that", "the first one", look)
        return None


def _network(kind):
    """(model, names in the order of calling, images): a network drawn anew; unless `kind` says otherwise, it overflows.

    The images are small and the layers harmless, but for three: the first that is called has the largest weights, and
    only brings the values to size 1; a later one makes them large; and the one after that, the guilty one, too large.
    """
    chance, width, depth = random.SystemRandom(), 16, 7
    guilty = chance.randrange(2, depth - 2)
    names = [f"layer{number}" for number in range(depth)]
    order = chance.sample(names, depth)
    while order[guilty] == max(order[0], order[guilty - 1], order[guilty]):  # else the order as listed would do as well
        order = chance.sample(names, depth)

    def linear(gain):
        layer = nn.Linear(width, width, bias=False)
        signs = [[chance.choice((-1.0, 1.0)) for _ in range(width)] for _ in range(width)]
        layer.weight.data = gain * torch.tensor(signs) / width**0.5
        return layer

    gains = {0: 1000.0} if "nothing" in kind else {0: 1000.0, guilty - 1: 600.0, guilty: 800.0}
    layers = {name: linear(gains.get(place, 1.0)) for place, name in enumerate(order)}
    if "hides" in kind:
        layers[order[guilty + 2]] = nn.Hardtanh()
    return Shuffled(layers, order), order, 1e-3 * torch.randn(4, width)


class Shuffled(nn.Module):
    """Calls its layers in another order than that in which they are listed."""

    def __init__(self, layers, order):
        super().__init__()
        for name, layer in sorted(layers.items()):
            self.add_module(name, layer)
        self.order = order

    def forward(self, images):
        for name in self.order:
            images = getattr(self, name)(images)
        return images


first_overflow = FirstOverflow()
