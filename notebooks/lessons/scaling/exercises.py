"""The exercises of scaling: a curve from a few points, the quickest layout that fits, how often to save."""

import math
import numbers

import numpy as np

from helpers.exercises.alone import Alone
from helpers.exercises.tables import Table, each, same

FIT = "return list(step_tokens / (terms(wanted) @ unknown))"
TERMS = "1 / n, 2 * (n - 1), 2 * (n - 1) / n * size / 1e9"
NOT_SO = "N times as many GPUs are not N times as fast, because the all-reduce does not shrink"
IN_ALL = "`tokens_per_second` counts all GPUs together, not each GPU"


def _curve(gpus, compute, latency, bandwidth, size, step_tokens):
    """Tokens/s of all GPUs under strong scaling, as the lesson models it."""
    ring = 2 * (gpus - 1) * latency + 2 * (gpus - 1) / gpus * size / bandwidth
    return step_tokens / (compute / gpus + ring)


def _plain(returned):
    """A flat list, tuple, array or tensor of numbers as a list; anything else as text."""
    try:
        found = np.asarray(returned)
    except ValueError:  # a list of unequal parts
        return repr(returned)
    return found.tolist() if found.ndim == 1 and found.dtype.kind in "iufO" else repr(returned)


class PredictCurve(Table, Alone):
    title = "Predict a curve"
    task = ("This is strong scaling. On n GPUs, a step of `step_tokens` tokens takes compute/n seconds of "
            "computing, followed by a ring all-reduce of `size` bytes. Nothing overlaps. You do not know the "
            "computing, the latency or the bandwidth, but they are the same for all n. `gpus` is a list of "
            "numbers of GPUs, and `tokens_per_second` holds what was measured on each of them, **for all "
            "GPUs together**. Return the list of tokens per second, for all GPUs together, on each of "
            "`wanted`, within 1 %.")
    hints = (
        "Turn tokens per second into seconds of a step. They are a sum of three terms. Each term is an "
        "unknown times something that you know.",
        "seconds = compute · 1/n + latency · 2(n − 1) + (1/bandwidth) · 2(n − 1)/n · size. This is linear in "
        "the three unknowns.",
        "`numpy.linalg.lstsq(A, seconds)` finds the unknowns; A has a row for each measurement. If the "
        "numbers have very different sizes, scale the columns, or divide each row by its seconds.",
    )
    explanation = ("The model is linear in the computing, the latency and one over the bandwidth, so least "
                   "squares find them. Dividing each row by its seconds makes the errors relative.")
    why = ("a few small runs predict a thousand GPUs, as long as the network stays what it was. If it does "
           "not, as in table A, measure it at the size that you will use.")
    # GPUs measured; wanted; seconds of one GPU's computing, latency, bandwidth, bytes, tokens of a step
    cases = {
        "8 to 64 GPUs": ((8, 16, 32, 64), (128, 256, 512), 26.0, 2e-5, 9e10, 5.4e9, 1_048_576),
        "no latency": ((2, 4, 8), (16, 64), 3.0, 0.0, 2e10, 1.2e9, 65_536),
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

    def observe(predict_curve, case):
        gpus, wanted, *unknown, size, step_tokens = case
        measured = [_curve(n, *unknown, size, step_tokens) for n in gpus]
        found = _plain(predict_curve(list(gpus), measured, list(wanted), size, step_tokens))
        if isinstance(found, str):
            return {"returned": found, "tokens per second": {}}
        return {"returned": f"{len(found)} numbers",
                "tokens per second": {f"{n} GPUs": float(f"{one:.6g}")
                                      for n, one in zip(wanted, found, strict=False)}}

    rules = (
        same("returned", "return a flat list with one number for each of `wanted`, in its order"),
        same("tokens per second", within=0.01,
             look="A step has three unknown terms: computing, rounds and bytes. Does each grow with n as it "
                  "should: 2(n - 1) rounds, and 2(n - 1)/n times `size` bytes? Fit seconds, because seconds "
                  "add up"),
    )
    mistakes = (
        ("@ unknown)", "@ unknown) / wanted", "that is the rate of each GPU; return that of all GPUs "
                                              "together"),
        ("np.array(tokens_per_second)", "(np.array(tokens_per_second) * gpus)", IN_ALL),
        (FIT, "return list(terms(wanted) @ unknown)", "these are seconds of a step, not tokens per second"),
        (FIT, "return [n / gpus[0] * tokens_per_second[0] for n in wanted]", NOT_SO),
        (FIT, "return [n / gpus[-1] * tokens_per_second[-1] for n in wanted]", NOT_SO),
        (TERMS, TERMS.replace("2 * (n - 1),", "n ** 0,"), "a ring has 2(n - 1) rounds, so its latency grows "
                                                          "with n"),
        (TERMS, TERMS.replace("2 * (n - 1),", "0 * n,"), "the latency of the rounds is missing"),
    )


def _cluster(kind):
    """(seconds, held) of an invented model and cluster: functions of a layout."""
    work, states, kept, wire, width = {
        "small": (60, 20, 6, 0.02, 1), "large": (900, 900, 40, 0.01, 2),
        "slow network": (80, 120, 12, 0.5, 3), "huge": (5000, 90000, 500, 0.1, 1)}[kind]

    def seconds(data, tensor, pipeline, micro_batches, micro_batch):
        one = work * micro_batch / (tensor * pipeline) * (1 + 0.3 * width * tensor / micro_batch / 8)
        one += 0.4 * wire * (tensor - 1) * micro_batch
        all_reduce = wire * 40 * (data - 1) / data * states / (tensor * pipeline) / 9
        return (micro_batches + pipeline - 1) * one + all_reduce

    def held(data, tensor, pipeline, micro_batches, micro_batch):
        return (states + kept * micro_batch * min(pipeline, micro_batches)) / (tensor * pipeline)

    return seconds, held


def breaks_a_rule(mine, wanted, case):
    gpus, batch, _, node, _ = case
    if mine["layout"] is None:
        return None
    data, tensor, pipeline, micro_batches, micro_batch = mine["layout"]
    ranks, samples = data * tensor * pipeline, data * micro_batches * micro_batch
    if ranks != gpus:
        return f"{mine['layout']}: its ranks are {data} · {tensor} · {pipeline} = {ranks}", f"{gpus}"
    if samples != batch:
        return f"{mine['layout']}: its batch is {samples}", f"{batch}"
    if node % tensor:
        return f"{mine['layout']}: {tensor} does not divide the {node} GPUs of a node", "it does"


def too_large(mine, wanted, case):
    if mine["GiB"] > case[2]:
        return f"{mine['layout']} holds {mine['GiB']:.1f} GiB", f"at most {case[2]}"


def too_slow(mine, wanted, case):
    if mine["seconds"] > wanted["seconds"]:
        best = f"{wanted['layout']}: {wanted['seconds']:.2f} s"
        return f"{mine['layout']} takes {mine['seconds']:.2f} s", best


QUICKEST = "min(fitting, key=lambda layout: seconds(*layout), default=None)"


class ChooseLayout(Table, Alone):
    title = "The quickest layout that fits"
    task = ("A layout is a tuple `(data, tensor, pipeline, micro_batches, micro_batch)`. `seconds(*layout)` "
            "returns how long a step takes, and `held(*layout)` how many GiB a rank holds. Return the "
            "quickest layout with `data * tensor * pipeline == gpus` and `data * micro_batches * micro_batch "
            "== batch` that holds at most `limit` GiB. Tensor-parallel ranks share one node, so `tensor` "
            "must divide `node`, the number of GPUs in one machine. If no layout fits, return `None`.")
    hints = (
        "Loop over each `tensor` that divides `node` and `gpus`, then over each `pipeline` that divides the "
        "rest. `data` follows.",
        "Then loop over each `micro_batch` that divides `batch // data`. `micro_batches` follows.",
        f"`{QUICKEST}`",
    )
    explanation = "The answer tries every layout, at most 146 here. A cost model answers in microseconds."
    why = ("a planner does no more than this. Its quality is that of its cost model, so compare the model "
           "with measured runs, as the lesson does with table B.")
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

    def observe(choose_layout, case):
        gpus, batch, limit, node, kind = case
        seconds, held = _cluster(kind)
        layout = _plain(choose_layout(gpus, batch, seconds, held, limit, node))
        if isinstance(layout, str) or len(layout) != 5 or any(one < 1 or one % 1 for one in layout):
            return {"returned": str(layout), "layout": None, "seconds": 0.0, "GiB": 0.0}
        layout = tuple(map(int, layout))
        return {"returned": "five whole numbers", "layout": layout,
                "seconds": float(f"{seconds(*layout):.9g}"), "GiB": held(*layout)}

    rules = (
        same("returned", "return the layout alone, or `None` if none fits. Do you try all layouts? One "
                         "that holds exactly `limit` fits"),
        each(breaks_a_rule, "the task says what the five numbers must satisfy"),
        each(too_large, "where do you compare `held` with `limit`?"),
        each(too_slow, "Do you try all layouts? Is the quickest one, by `seconds`, among those that you "
                       "compare?"),
    )
    mistakes = (
        ("held(*layout) <= limit", "True", "it does not fit: ask `held` before you choose"),
        ("held(*layout) <= limit", "held(*layout) < limit", "a layout that holds exactly `limit` fits, too"),
        ("if node % t == 0 and gpus % t == 0", "if gpus % t == 0", "`tensor` must divide the GPUs of a node"),
        (" and gpus % t == 0", "", "`tensor` must divide the number of GPUs, too"),
        ("range(1, gpus // tensor + 1) if", "range(1, 2) if", "do you try pipelines?"),
        ("for m in range(1, batch + 1) if batch % (data * m) == 0", "for m in (1,) if batch % data == 0",
         "do you try micro-batches of more than one sample?"),
        ("range(1, gpus // tensor + 1) if", "(1, 2, 4, 8, 16, 32) if", "divisors need not be powers of 2"),
        (QUICKEST, QUICKEST.replace("seconds(", "held("), "return the quickest layout, not the smallest"),
    )


ROUNDED = "always down, or always up, can be far from the best interval: `round` takes the nearer number"


def _lost(steps, case):
    """Minutes lost in each hour of training, exactly, if failures come at random."""
    gpus, hours, step, save = case
    mtbf, useful = 3600 * hours / gpus, steps * step
    spans = (useful + save) / mtbf
    return math.inf if spans > 700 else 60 * (mtbf * math.expm1(spans) / useful - 1)  # e^710 is no float


def too_much_lost(mine, wanted, case):
    if mine["minutes lost"] > 1.01 * mine["at best"]:
        return (f"every {mine['steps']:,} steps: {mine['minutes lost']:.4g} minutes are lost in each hour",
                f"{mine['at best']:.4g} minutes, with {wanted['steps']:,} steps")


class StepsBetweenSaves(Table, Alone):
    title = "How many steps between two saves?"
    task = ("A training runs on `gpus` GPUs. One GPU alone would fail once in `hours_per_gpu` **hours**. If "
            "any GPU fails, everything since the last save must be done again. A step takes `step_seconds`. "
            "A save takes `save_seconds`, and training waits for it. Return after how many steps to save, a "
            "whole number of at least 1, so that as little time as possible is lost. (You may lose 1 % more "
            "than the best answer.)")
    hints = ("How many seconds pass, on average, between two failures of the whole training?",
             "The lesson's √(2 · save · MTBF) is in seconds. Divide it by the seconds of a step, and round. "
             "Return at least 1.")
    explanation = "This is Young's formula, in steps. Times are in seconds. N GPUs fail N times as often."
    why = ("with ten times the GPUs, you save about three times as often. If a step takes longer than the "
           "best interval, save after each step.")
    # GPUs, hours of one GPU between failures, seconds of a step, seconds of a save
    cases = {f"{gpus:,} GPUs, {hours:,} hours, a step of {step:g} s, a save of {save:g} s":
             (gpus, hours, step, save) for gpus, hours, step, save in
             ((16384, 50_000, 5.0, 60.0), (256, 50_000, 1.5, 20.0), (1024, 12_000, 12.0, 5.0),
              (8, 90_000, 0.25, 30.0), (200_000, 20_000, 60.0, 1.0), (100_000, 20_000, 28.0, 2.0),
              (120_000, 20_000, 44.0, 2.0))}

    def answer(gpus, hours_per_gpu, step_seconds, save_seconds):
        mtbf = 3600 * hours_per_gpu / gpus
        return max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))

    def observe(steps_between_saves, case):
        steps = steps_between_saves(*case)
        steps = steps.item() if hasattr(steps, "item") else steps  # a number of numpy's or torch's
        if isinstance(steps, bool) or not isinstance(steps, numbers.Real) or not steps >= 1 or steps % 1 != 0:
            return {"returned": f"{steps!r:.60}", "steps": 0, "minutes lost": 0.0, "at best": 0.0}
        young = StepsBetweenSaves.answer(*case)
        return {"returned": "a whole number", "steps": int(steps), "minutes lost": _lost(int(steps), case),
                "at best": min(_lost(near, case) for near in (max(1, young - 1), young, young + 1))}

    rules = (
        same("returned", "return a whole number of at least 1: `max(1, round(…))`"),
        each(too_much_lost, "What does a save cost for each second of training, and what does a failure "
                            "cost? Do you use all four numbers, and round only at the end?"),
    )
    mistakes = (
        ("/ gpus", "", "this is the time between failures of one GPU; all of them fail that many times as "
                       "often"),
        ("/ gpus", "* gpus", "more GPUs fail more often, not less often"),
        ("3600 * ", "", "hours and seconds are mixed"),
        (" / step_seconds", "", "this is in seconds; the task asks for steps"),
        ("2 * save_seconds", "save_seconds", "a failure costs half an interval on average, not a whole one"),
        ("** 0.5", "", "the root is missing"),
        ("2 * save_seconds", "2 * step_seconds", "under the root stands the time of a save, not of a step"),
        ("max(1, round(", "max(0, round(", "never after 0 steps: `max(1, …)`"),
        ("round(", "int(", ROUNDED),
        ("round(", "math.ceil(", ROUNDED),
    )


predict_curve, choose_layout, steps_between_saves = PredictCurve(), ChooseLayout(), StepsBetweenSaves()
