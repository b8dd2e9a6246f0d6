"""The exercises of scaling: a curve from a few points, the quickest layout that fits, how often to save."""

import math
import numbers

import numpy as np

from helpers.exercises.alone import Alone
from helpers.exercises.tables import Table, each, same

FIT = "return list(step_tokens / (terms(wanted) @ unknown))"
TERMS = "1 / n, 2 * (n - 1), 2 * (n - 1) / n * size / 1e9"
NOT_SO = "that many times as many GPUs are not that many times as fast: the all-reduce does not shrink"
IN_ALL = "`tokens_per_second` is in all, not of each GPU"


def _curve(gpus, compute, latency, bandwidth, size, step_tokens):
    """Tokens/s in all under strong scaling, as the lesson models it."""
    ring = 2 * (gpus - 1) * latency + 2 * (gpus - 1) / gpus * size / bandwidth
    return step_tokens / (compute / gpus + ring)


def _plain(returned):
    """A flat list, tuple, array or tensor of numbers as a list; anything else as text."""
    found = np.asarray(returned)
    return found.tolist() if found.ndim == 1 and found.dtype.kind in "iufO" else repr(returned)


class PredictCurve(Table, Alone):
    title = "Predict a curve"
    task = ("Strong scaling: a step of `step_tokens` tokens takes compute/n seconds of computing on n GPUs, "
            "and then a ring all-reduce of `size` bytes, of which nothing is hidden. Computing, latency and "
            "bandwidth are not known; they are the same at all n. `gpus` is a list of numbers of GPUs, "
            "`tokens_per_second` what was measured on them, **in all**. Return the list of tokens per "
            "second, in all, on each of `wanted`, within 1 %.")
    hints = (
        "Turn tokens per second into seconds of a step: a sum of three terms, each an unknown times "
        "something known.",
        "seconds = compute · 1/n + latency · 2(n − 1) + (1/bandwidth) · 2(n − 1)/n · size: linear in the "
        "three.",
        "`numpy.linalg.lstsq(A, seconds)` finds them, with a row of A for each measurement; scale the "
        "columns, or divide each row by its seconds, where the numbers are of very different sizes.",
    )
    explanation = ("The model is linear in compute, latency and one over the bandwidth. Least squares find "
                   "them; dividing each row by its seconds makes the errors relative.")
    why = ("a few small runs have told you a thousand GPUs, while the network stays what it was. Where it "
           "does not, as in table A, measure it at the size that you want.")
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
        same("returned", "a flat list: one number for each of `wanted`, in its order"),
        same("tokens per second", within=0.01,
             look="a step has three terms, none of them known: computing, and an all-reduce's rounds and "
                  "bytes. Does each grow with n as it should: 2(n - 1) rounds in a ring, 2(n - 1)/n times "
                  "`size` bytes? Fit seconds, which add up, in float64; tokens per second do not"),
    )
    mistakes = (
        ("@ unknown)", "@ unknown) / wanted", "that is each GPU's; what all do together is asked for"),
        ("np.array(tokens_per_second)", "(np.array(tokens_per_second) * gpus)", IN_ALL),
        ((("np.array(tokens_per_second)", "(np.array(tokens_per_second) * gpus)"),
          ("@ unknown)", "@ unknown) / wanted")), IN_ALL),
        (FIT, "return list(terms(wanted) @ unknown)", "these are seconds of a step, not tokens per second"),
        (FIT, "return [n / gpus[0] * tokens_per_second[0] for n in wanted]", NOT_SO),
        (FIT, "return [n / gpus[-1] * tokens_per_second[-1] for n in wanted]", NOT_SO),
        (TERMS, TERMS.replace("2 * (n - 1),", "n ** 0,"), "a ring has 2(n - 1) rounds: latency grows with n"),
        (TERMS, TERMS.replace("2 * (n - 1),", "0 * n,"), "the latency of the all-reduce's rounds is missing"),
        ("terms(wanted)", "terms(sorted(wanted))", "the order of `wanted`"),
    )


def _cluster(kind):
    """(seconds, held) of a made-up model and cluster: functions of a layout."""
    work, states, kept, wire, width = {
        "small": (60, 20, 6, 0.02, 1), "large": (900, 900, 40, 0.01, 2),
        "slow network": (80, 120, 12, 0.5, 3), "huge": (5000, 90000, 500, 0.1, 1)}[kind]

    def seconds(data, tensor, pipeline, micro_batches, micro_batch):
        one = work * micro_batch / (tensor * pipeline) * (1 + 0.3 * width * tensor / micro_batch / 8)
        one += 0.4 * wire * (tensor - 1) * micro_batch
        all_reduce = wire * 40 * (data - 1) / data * states / (tensor * pipeline) / 9
        return (micro_batches + pipeline - 1) * one + all_reduce

    def held(data, tensor, pipeline, micro_batches, micro_batch):
        in_flight = min(pipeline, micro_batches)
        return (states + kept * micro_batch * in_flight) / (tensor * pipeline)

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
        return f"{mine['layout']}: {tensor} tensor-parallel ranks do not fill nodes of {node}", "they do"


def too_large(mine, wanted, case):
    if mine["GiB"] > case[2]:
        return f"{mine['layout']} holds {mine['GiB']:.1f} GiB", f"at most {case[2]}"


def too_slow(mine, wanted, case):
    if mine["seconds"] > wanted["seconds"]:
        best = f"{wanted['layout']}: {wanted['seconds']:.2f} s"
        return f"{mine['layout']} takes {mine['seconds']:.2f} s", best


TRIED = "are all tried? Each number divides itself; `micro_batches * micro_batch` is a copy's batch"
QUICKEST = "min(fitting, key=lambda layout: seconds(*layout), default=None)"


class ChooseLayout(Table, Alone):
    title = "The quickest layout that fits"
    task = ("A layout is a tuple `(data, tensor, pipeline, micro_batches, micro_batch)`. `seconds(*layout)` "
            "says how long a step takes, `held(*layout)` how many GiB a rank holds. Return the quickest "
            "layout with `data * tensor * pipeline == gpus` and `data * micro_batches * micro_batch == "
            "batch` that holds at most `limit` GiB. Tensor-parallel ranks sit in one node: `tensor` must "
            "divide `node`, the GPUs of a node. If no layout fits, return `None`.")
    hints = (
        "For each `tensor` that divides `node` and `gpus`, each `pipeline` that divides what is left: `data` "
        "follows.",
        "Then each `micro_batch` that divides `batch // data`, where `data` divides the batch; "
        "`micro_batches` follows.",
        "`min(fitting, key=lambda layout: seconds(*layout), default=None)`",
    )
    explanation = "Every layout is tried: at most 146 here, and a model of the costs answers in microseconds."
    why = ("this is all that a planner is. What makes it good or bad is the model of the costs: hold it "
           "against runs that were measured, as the lesson does with table B.")
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
        same("returned", "the layout alone; or `None`, where none fits (one that holds just `limit` does)"),
        each(breaks_a_rule, "what the task asks of the five numbers"),
        each(too_large, "what is compared with `limit`, and when?"),
        each(too_slow, f"which of those that fit is the quickest by `seconds`; and {TRIED}"),
    )
    mistakes = (
        ("held(*layout) <= limit", "True", "it does not fit: ask `held` before you choose"),
        ("held(*layout) <= limit", "held(*layout) < limit", "a layout that holds just `limit` fits, too"),
        ("if node % t == 0 and gpus % t == 0", "if gpus % t == 0", "`tensor` must divide the GPUs of a node"),
        (" and gpus % t == 0", "", "`tensor` must divide the number of GPUs, too"),
        ("range(1, gpus // tensor + 1) if", "range(1, 2) if", "does it try pipelines?"),
        ("for m in range(1, batch + 1) if batch % (data * m) == 0", "for m in (1,) if batch % data == 0",
         "does it try micro-batches of more than one sample?"),
        ("range(1, batch + 1)", "range(1, batch)", TRIED),
        ("range(1, gpus // tensor + 1) if", "(1, 2, 4, 8, 16, 32) if", "divisors need not be powers of 2"),
        (QUICKEST, QUICKEST.replace("seconds(", "held("), "the quickest is asked for, not the smallest"),
    )


def _lost(steps, case):
    """Minutes lost for each hour of training, exactly, for failures at random."""
    gpus, hours, step, save = case
    mtbf, useful = 3600 * hours / gpus, steps * step
    spans = (useful + save) / mtbf
    if spans > 700:  # it would never come to the next save
        return math.inf
    return 60 * (mtbf * math.expm1(spans) / useful - 1)


def too_much_lost(mine, wanted, case):
    if mine["minutes lost"] > 1.01 * mine["at best"]:
        return (f"every {mine['steps']:,} steps: {mine['minutes lost']:.4g} minutes are lost in each hour",
                f"{mine['at best']:.4g} minutes, with {wanted['steps']:,} steps")


ROOT = "(2 * save_seconds * mtbf) ** 0.5"


class StepsBetweenSaves(Table, Alone):
    title = "How many steps between two saves?"
    task = ("A training runs on `gpus` GPUs. One GPU alone would fail once in `hours_per_gpu` **hours**; if "
            "one fails, all that was done since the last save is done again. A step takes `step_seconds`, "
            "saving `save_seconds`, and training waits for it. Return after how many steps to save, a whole "
            "number of at least 1, so that the least time is lost. (The minimum is flat: whoever loses at "
            "most 1 % more time than the best is right.)")
    hints = ("How many seconds, on average, between two failures of the whole training?",
             "The lesson's √(2 · save · MTBF) gives seconds; divide by those of a step, round, and never "
             "save after 0 steps.")
    explanation = "Young's formula, in steps. All times are in seconds; N GPUs fail N times as often as one."
    why = ("with ten times the GPUs you save about three times as often, not ten times. And where a step "
           "takes longer than the best interval, there is no choice: save after each.")
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
        same("returned", "a whole number of at least 1: `max(1, round(…))`"),
        each(too_much_lost, "what does saving cost, for each second of training, and what does a failure? "
                            "Are all four numbers used, and rounded only at the end?"),
    )
    mistakes = (
        ("/ gpus", "", "one GPU's time between failures; all of them fail that many times as often"),
        ("/ gpus", "* gpus", "more GPUs fail more often, not more seldom"),
        ("3600 * ", "", "hours and seconds are mixed"),
        (" / step_seconds", "", "that is in seconds; steps are asked for"),
        ("2 * save_seconds", "save_seconds", "a failure costs half an interval, on average, not a whole one"),
        ("** 0.5", "", "that is without the root"),
        ("2 * save_seconds", "2 * step_seconds", "what a save takes stands under the root, not a step"),
        (ROOT, "mtbf", "that is the time between failures itself: half of it would be lost at each"),
        ("max(1, round(", "max(0, round(", "never after 0 steps: `max(1, …)`"),
    )


predict_curve, choose_layout, steps_between_saves = PredictCurve(), ChooseLayout(), StepsBetweenSaves()
