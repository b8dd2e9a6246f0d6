"""The exercises of scaling: a curve from a few points, the quickest layout that fits, how often to save."""

import functools
import math
import numbers

from helpers.exercises.alone import Alone
from helpers.exercises.engine import not_yet


def _curve(gpus, compute, alpha, beta, size, step_tokens):
    """Tokens/s in all under strong scaling, as the lesson models it."""
    ring = 2 * (gpus - 1) * alpha + 2 * (gpus - 1) / gpus * size / beta
    return step_tokens / (compute / gpus + ring)


def _numbers(returned):
    """A flat list, tuple, array or tensor of numbers as a list of float; anything else as its repr."""
    if getattr(returned, "ndim", 1) == 1 and not isinstance(returned, (str, dict)):
        try:
            found = list(returned)
            if not any(isinstance(one, (str, bool)) for one in found):
                return [float(one) for one in found]
        except (TypeError, ValueError, OverflowError):
            pass
    return repr(returned)


class PredictCurve(Alone):
    title = "Predict a curve"
    task = ("Strong scaling: a step of `step_tokens` tokens takes compute/n seconds of computing on n GPUs, and then a "
            "ring all-reduce of `size` bytes, of which nothing is hidden. Computing, latency and bandwidth are not "
            "known; they are the same at all n. `gpus` is a list of numbers of GPUs, `tokens_per_second` what was "
            "measured on them, **in all**. Return the list of tokens per second, in all, on each of `wanted`, within "
            "1 %.")
    hints = (
        "Turn tokens per second into seconds of a step: a sum of three terms, each an unknown times something known.",
        "seconds = compute · 1/n + latency · 2(n − 1) + (1/bandwidth) · 2(n − 1)/n · size: linear in the three.",
        "`numpy.linalg.lstsq(A, seconds)` finds them, with a row of A for each measurement; scale the columns, or "
        "divide each row by its seconds, where the numbers are of very different sizes.",
    )
    explanation = ("The model is linear in compute, latency and one over the bandwidth. Least squares find them; "
                   "dividing each row by its seconds makes the errors relative.")
    why = ("a few small runs have told you a thousand GPUs, while the network stays what it was. Where it does not, as "
           "in table A, measure it at the size that you want.")
    # GPUs measured; wanted; seconds of one GPU's computing, latency, bandwidth, bytes, tokens of a step
    cases = {
        "8 to 64 GPUs": ((8, 16, 32, 64), (128, 256, 512), 26.0, 2e-5, 9e10, 5.4e9, 1_048_576),
        "no latency to speak of": ((2, 4, 8), (16, 64), 3.0, 0.0, 2e10, 1.2e9, 65_536),
        "a tiny tensor, much latency": ((4, 8, 16, 32), (2, 128, 1024), 0.02, 1e-3, 5e10, 1e6, 262_144),
        "one GPU among them": ((1, 2, 6), (3, 24, 1), 0.9, 3e-4, 1e9, 4e7, 10_000),
    }

    def answer(gpus, tokens_per_second, wanted, size, step_tokens):
        import numpy as np

        def terms(n):
            n = np.array(n, dtype=float)
            return np.stack([1 / n, 2 * (n - 1), 2 * (n - 1) / n * size / 1e9], 1)

        seconds = step_tokens / np.array(tokens_per_second)
        unknown = np.linalg.lstsq(terms(gpus) / seconds[:, None], np.ones(len(gpus)), rcond=None)[0]
        return list(step_tokens / (terms(wanted) @ unknown))

    def probe(predict_curve, case):
        gpus, wanted, *unknown, size, step_tokens = case
        measured = [_curve(n, *unknown, size, step_tokens) for n in gpus]
        got = _numbers(predict_curve(list(gpus), measured, list(wanted), size, step_tokens))
        right = [_curve(n, *unknown, size, step_tokens) for n in wanted]
        if not isinstance(got, list) or len(got) != len(wanted):
            return not_yet(f"it returned {got}", f"a list of {len(wanted)} numbers",
                           "a flat list: one number for each of `wanted`, in its order")
        for n, one, real in zip(wanted, got, right, strict=True):
            if not abs(one / real - 1) <= 0.01:  # nan, too
                return not_yet(f"on {n} GPUs: {one:,.0f} tokens/s", f"{real:,.0f}", PredictCurve._why(one, n, case))
        return None

    @staticmethod
    def _why(one, n, case):
        gpus, _, *unknown, size, step_tokens = case
        real, *measured = (_curve(m, *unknown, size, step_tokens) for m in (n, *gpus))
        (each,) = PredictCurve.answer(gpus, [m * rate for m, rate in zip(gpus, measured, strict=True)], [n], size,
                                      step_tokens)
        not_so = "that many times as many GPUs are not that many times as fast: the all-reduce does not shrink"
        known = (("that is each GPU's; what all do together is asked for", real / n),
                 ("these are seconds of a step; tokens per second are asked for", step_tokens / real),
                 ("that is the number of GPUs; their tokens per second are asked for", n),
                 ("`tokens_per_second` is in all, not of each GPU", each),
                 ("`tokens_per_second` is in all, not of each GPU", each / n),
                 (not_so, measured[0] * n / gpus[0]), (not_so, measured[-1] * n / gpus[-1]))
        if look := next((why for why, wrong in known if abs(one / wrong - 1) < 0.01), None):
            return look
        return ("a step has three terms, none of them known: computing, and an all-reduce's rounds and bytes. Are all "
                "in each measurement of several GPUs, and does each grow with n as it should: 2(n - 1) rounds in a "
                "ring, 2(n - 1)/n times `size` bytes? Fit seconds, which add up, in float64; tokens per second do not. "
                "And is it the order of `wanted`?")


def _cluster(kind):
    """(seconds, held) of a made-up model and cluster, functions of a layout, that reward different layouts."""
    work, states, kept, wire, width = {"small": (60, 20, 6, 0.02, 1), "large": (900, 900, 40, 0.01, 2),
                                       "slow network": (80, 120, 12, 0.5, 3), "huge": (5000, 90000, 500, 0.1, 1)}[kind]

    def seconds(data, tensor, pipeline, micro_batches, micro_batch):
        one = work * micro_batch / (tensor * pipeline) * (1 + 0.3 * width * tensor / micro_batch / 8)
        one += 0.4 * wire * (tensor - 1) * micro_batch
        return (micro_batches + pipeline - 1) * one + wire * 40 * (data - 1) / data * states / (tensor * pipeline) / 9

    def held(data, tensor, pipeline, micro_batches, micro_batch):
        return states / (tensor * pipeline) + kept * micro_batch * min(pipeline, micro_batches) / (tensor * pipeline)

    return seconds, held


def _allowed(layout, gpus, batch, node):
    """What is wrong with a layout's numbers; None if nothing."""
    if not all(isinstance(one, int) and one >= 1 for one in layout):
        return "its numbers are not all whole and at least 1"
    data, tensor, pipeline, micro_batches, micro_batch = layout
    if data * tensor * pipeline != gpus:
        return f"its ranks are {data} · {tensor} · {pipeline} = {data * tensor * pipeline}, not {gpus}"
    if data * micro_batches * micro_batch != batch:
        return f"its batch is {data * micro_batches * micro_batch}, not {batch}"
    if tensor > node or node % tensor:
        return f"its {tensor} tensor-parallel ranks do not fill nodes of {node} evenly"
    return None


class ChooseLayout(Alone):
    title = "The quickest layout that fits"
    task = ("A layout is a tuple `(data, tensor, pipeline, micro_batches, micro_batch)`. `seconds(*layout)` says how "
            "long a step takes, `held(*layout)` how many GiB a rank holds. Return the quickest layout with `data * "
            "tensor * pipeline == gpus` and `data * micro_batches * micro_batch == batch` that holds at most `limit` "
            "GiB. Tensor-parallel ranks sit in one node: `tensor` must divide `node`, the GPUs of a node. If no layout "
            "fits, return `None`.")
    hints = (
        "For each `tensor` that divides `node` and `gpus`, each `pipeline` that divides what is left: `data` follows.",
        "Then each `micro_batch` that divides `batch // data`, where `data` divides the batch; `micro_batches` "
        "follows.",
        "`min(fitting, key=lambda layout: seconds(*layout), default=None)`",
    )
    explanation = "Every layout is tried: here at most 146, and asking a model of the costs takes microseconds."
    why = ("this is all that a planner is. What makes it good or bad is the model of the costs: hold it against runs "
           "that were measured, as the lesson does with table B.")
    # GPUs, batch, GiB, GPUs of a node, kind
    cases = {f"{gpus} GPUs of {limit} GiB, batch {batch}, nodes of {node}": (gpus, batch, limit, node, kind)
             for gpus, batch, limit, node, kind in ((16, 64, 80, 8, "small"), (64, 128, 80, 8, "large"),
                                                    (32, 96, 39, 4, "slow network"), (12, 60, 60, 8, "small"),
                                                    (12, 48, 40, 4, "slow network"), (6, 8, 80, 6, "small"),
                                                    (64, 256, 80, 8, "huge"), (16, 4, 60, 8, "large"),
                                                    (4, 2, 80, 1, "small"), (20, 6, 80, 8, "small"))}

    def answer(gpus, batch, seconds, held, limit, node):
        fitting = []
        for tensor in (t for t in range(1, node + 1) if node % t == 0 and gpus % t == 0):
            for pipeline in (p for p in range(1, gpus // tensor + 1) if gpus // tensor % p == 0):
                data = gpus // tensor // pipeline
                for micro_batch in (m for m in range(1, batch + 1) if batch % (data * m) == 0):
                    layout = data, tensor, pipeline, batch // (data * micro_batch), micro_batch
                    if held(*layout) <= limit:
                        fitting.append(layout)
        return min(fitting, key=lambda layout: seconds(*layout), default=None)

    def probe(choose_layout, case):
        gpus, batch, limit, node, kind = case
        (seconds, held), asked = _cluster(kind), []

        def noted(cost):
            @functools.wraps(cost)
            def costs(data, tensor, pipeline, micro_batches, micro_batch):  # by name, too
                asked.append((data, tensor, pipeline, micro_batches, micro_batch))
                return cost(*asked[-1])

            return costs

        found = choose_layout(gpus, batch, noted(seconds), noted(held), limit, node)
        found = found.tolist() if hasattr(found, "tolist") else found  # an array, a tensor
        found = _numbers(found) if isinstance(found, (tuple, list)) else repr(found)
        if isinstance(found, list):
            found = tuple(int(one) if one.is_integer() else one for one in found)
        best, said = ChooseLayout.answer(gpus, batch, seconds, held, limit, node), f"it returned {found}"
        if best is None:
            return None if found == "None" else not_yet(
                said, "`None`: no layout fits",
                "what is compared with `limit`?" if found else "`None`, not an empty tuple")
        expected = f"{best}: {seconds(*best):.2f} s, {held(*best):.1f} GiB"
        if not isinstance(found, tuple) or len(found) != 5:
            return not_yet(said, expected, "some layouts fit (who holds just `limit` does): are all "
                           "tried, and is `limit` asked before the quickest is chosen?" if found == "None" else
                           "the layout alone: a tuple of five numbers")
        if wrong := _allowed(found, gpus, batch, node):
            return not_yet(f"{found}: {wrong}", expected, "what the task asks of the five numbers")
        if found != best and (*found[:3], found[4], found[3]) == best:
            return not_yet(said, expected, "micro_batches comes before micro_batch")
        if held(*found) > limit:
            return not_yet(f"{found} holds {held(*found):.1f} GiB", expected, f"it does not fit in {limit} GiB")
        if seconds(*found) > seconds(*best) * (1 + 1e-9):
            return not_yet(f"{found} takes {seconds(*found):.2f} s", expected,
                           "who holds just `limit` fits; and are those that fit compared by `seconds`?"
                           if best in asked else
                           "it was never tried: a copy's part of the batch is `micro_batches * micro_batch`; each "
                           "number divides itself, and 1 divides all")
        return None


def _lost(steps, case):
    """Time lost for each second of training, exactly, for failures at random: also where an interval is long."""
    gpus, hours, step, save = case
    mtbf, useful = 3600 * hours / gpus, steps * step
    spans = (useful + save) / mtbf
    if spans > 700:  # it would never come to the next save
        return math.inf
    return mtbf * math.expm1(spans) / useful - 1


class StepsBetweenSaves(Alone):
    title = "How many steps between two saves?"
    task = ("A training runs on `gpus` GPUs. One GPU alone would fail once in `hours_per_gpu` **hours**; if one fails, "
            "all that was done since the last save is done again. A step takes `step_seconds`, saving `save_seconds`, "
            "and training waits for it. Return after how many steps to save, a whole number of at least 1, so that "
            "the least time is lost. (The minimum is flat: whoever loses at most 1 % more time than the best is "
            "right.)")
    hints = ("How many seconds, on average, between two failures of the whole training?",
             "The lesson's √(2 · save · MTBF) gives seconds; divide by those of a step, round, and never save after 0 "
             "steps.")
    explanation = "Young's formula, in steps. All times are in seconds; N GPUs fail N times as often as one."
    why = ("with ten times the GPUs you save about three times as often, not ten times. And where a step takes longer "
           "than the best interval, there is no choice: save after each.")
    # GPUs, hours of one GPU between failures, seconds of a step, seconds of a save
    cases = {f"{gpus:,} GPUs, {hours:,} hours, a step of {step:g} s, a save of {save:g} s": (gpus, hours, step, save)
             for gpus, hours, step, save in
             ((16384, 50_000, 5.0, 60.0), (256, 50_000, 1.5, 20.0), (1024, 12_000, 12.0, 5.0), (8, 90_000, 0.25, 30.0),
              (200_000, 20_000, 60.0, 1.0), (100_000, 20_000, 28.0, 2.0), (120_000, 20_000, 44.0, 2.0))}

    def answer(gpus, hours_per_gpu, step_seconds, save_seconds):
        mtbf = 3600 * hours_per_gpu / gpus
        return max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))

    def probe(steps_between_saves, case):
        (gpus, hours, step, save), best, steps = case, StepsBetweenSaves.answer(*case), steps_between_saves(*case)
        steps = steps.item() if hasattr(steps, "item") else steps  # a number of numpy's or torch's
        is_number = isinstance(steps, numbers.Real) and not isinstance(steps, bool)
        try:
            steps = float(steps) if is_number else repr(steps)
        except OverflowError:
            steps = math.inf
        if not is_number or not steps.is_integer() or steps < 1:
            return not_yet(f"it returned {steps:g}" if is_number else f"it returned {steps}",
                           f"a whole number of at least 1, such as {best:,}", "`max(1, round(…))`")
        mtbf, lost = 3600 * hours / gpus, _lost(steps, case)
        if lost <= 1.01 * min(_lost(near, case) for near in {max(1, best - 1), best, best + 1}):
            return None
        known = {"`//` and `int` always go down: divide by `/`, and `round` at the end":
                 (2 * save * 3600 * (hours // gpus)) ** 0.5 / step,
                 "one GPU's time between failures; all of them fail that many times as often":
                 (2 * save * 3600 * hours) ** 0.5 / step,
                 "hours and seconds are mixed": (2 * save * hours / gpus) ** 0.5 / step,
                 "that is in seconds; steps are asked for": (2 * save * mtbf) ** 0.5,
                 "a failure costs half an interval, on average, not a whole one": (save * mtbf) ** 0.5 / step,
                 "a save comes once in an interval, not with each step": (2 * save * mtbf) ** 0.5 / (step + save),
                 "an hour has 3600 seconds, not 60": (2 * save * 60 * hours / gpus) ** 0.5 / step,
                 "more GPUs fail more often, not more seldom": (2 * save * 3600 * hours * gpus) ** 0.5 / step,
                 "that is without the root": 2 * save * mtbf / step,
                 "a square root, not a cube root": (2 * save * mtbf) ** (1 / 3) / step,
                 "the root gives seconds: divide by a step's after it": (2 * save * mtbf / step) ** 0.5,
                 "N GPUs fail N times as often as one":
                 (2 * save * 3600 * hours / gpus ** 0.5) ** 0.5 / step,
                 "what a save takes stands under the root, not what a step takes": (2 * step * mtbf) ** 0.5 / step,
                 "that is half the time between failures; how long a save takes counts, too": mtbf / 2 / step,
                 "that is the time between failures itself: half of it would be lost at each": mtbf / step}
        look = next((why for why, wrong in known.items() if abs(steps - wrong) <= max(1, 0.005 * wrong)),
                    "what does saving cost, for each second of training, and what does a failure? And are all four "
                    "numbers used?")
        costs = (f"on top of each hour of training {60 * lost:.2f} minutes are lost" if steps < best or lost < 1 else
                 "it would hardly ever come to the next save")
        return not_yet(f"every {steps:,.0f} step{'s' * (steps != 1)}: {costs}",
                       f"{60 * _lost(best, case):.2f} minutes, with {best:,} steps", look)


predict_curve, choose_layout, steps_between_saves = PredictCurve(), ChooseLayout(), StepsBetweenSaves()
