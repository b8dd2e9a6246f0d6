"""Scaling: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
predict_curve        a straight line; a term left out; each GPU's rate; the shown sizes only; other solvers are right
choose_layout        a limit forgotten; the first that fits; never None; in another order, as a list, is right
steps_between_saves  a unit, the GPUs or the two forgotten; 0 steps; Daly's formula and a search are right
"""

import math
from fractions import Fraction

import numpy as np
import torch

from lessons.scaling import exercises as ex
from tests.answers import edits, right, wrong

test_predict_curve = edits(
    ex.predict_curve,
    ((("1 / n, 2 * (n - 1), 2 * (n - 1) / n * size / 1e9", "1 / n, n ** 0, n"), ("@ unknown", "@ unknown.clip(min=0)")),
     "a tiny tensor, much latency: on 2 GPUs"),  # a sum of the same kind, of which a term may be negative
    ("2 * (n - 1), 2 * (n - 1) / n", "0 * n, 2 * (n - 1) / n", "8 to 64 GPUs: on 256 GPUs"),
    ("2 * (n - 1), 2 * (n - 1) / n * size / 1e9", "2 * (n - 1), 0 * n", "rounds and bytes. Are all in each"),
    ("1 / n, 2 * (n - 1),", "0 * n, 2 * (n - 1),", "tokens/s"),
    ("terms(wanted)", "terms(sorted(wanted))", "one GPU among them: on 3 GPUs"),
    ("1 / n, 2 * (n - 1),", "1 / n, np.log2(n),", "tokens/s"),
    ("(terms(wanted) @ unknown)", "(terms(wanted) @ unknown) / wanted", "that is each GPU's"),
    ("return list(step_tokens / (terms(wanted) @ unknown))", "return list(1 / (terms(wanted) @ unknown))", "tokens/s"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return [n / gpus[0] * tokens_per_second[0] for n in wanted]", "the all-reduce does not shrink"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return list(np.interp(wanted, gpus, tokens_per_second))", "8 to 64 GPUs: on 128 GPUs"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return list(np.polyval(np.polyfit(gpus, tokens_per_second, 2), wanted))", "tokens per second do not"),
    ("return list(step_tokens / (terms(wanted) @ unknown))", "return step_tokens / (terms(wanted[:1]) @ unknown)",
     "one number for each of `wanted`, in its order"),
    ("return list(step_tokens / (terms(wanted) @ unknown))", "return 1.0", "a list of 3 numbers"),
    ("return list(step_tokens / (terms(wanted) @ unknown))", "return None", "one number for each of `wanted`"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return [str(one) for one in step_tokens / (terms(wanted) @ unknown)]", "it returned ['"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return dict(zip(wanted, step_tokens / (terms(wanted) @ unknown)))", "a flat list"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return (step_tokens / (terms(wanted) @ unknown))[:, None]", "a flat list"),
    ("return list(step_tokens / (terms(wanted) @ unknown))", "return list(terms(wanted) @ unknown)",
     "these are seconds of a step"),
    ("return list(step_tokens / (terms(wanted) @ unknown))", "return wanted", "that is the number of GPUs"),
    ("np.array(tokens_per_second)", "(np.array(tokens_per_second) * gpus)", "is in all, not of each GPU"),
    ((("np.array(tokens_per_second)", "(np.array(tokens_per_second) * gpus)"),
      ("(terms(wanted) @ unknown)", "(terms(wanted) @ unknown) / wanted")), "is in all, not of each GPU"),
    ("return list(step_tokens / (terms(wanted) @ unknown))",
     "return [n / gpus[-1] * tokens_per_second[-1] for n in wanted]", "the all-reduce does not shrink"),
)


@wrong(ex.predict_curve, "no latency to speak of")
def test_knows_the_first_case(gpus, tokens_per_second, wanted, size, step_tokens):
    return [step_tokens / (26.0 / n + 2 * (n - 1) * 2e-5 + 2 * (n - 1) / n * 5.4e9 / 9e10) for n in wanted]


@right(ex.predict_curve)
def test_by_elimination_in_torch(gpus, tokens_per_second, wanted, size, step_tokens):
    def terms(n):
        n = torch.tensor(n, dtype=torch.float64)
        return torch.stack([1 / n, n - 1, (n - 1) / n], 1)

    seconds = step_tokens / torch.tensor(tokens_per_second, dtype=torch.float64)
    unknown = torch.linalg.solve(terms(gpus[:3]), seconds[:3])
    return step_tokens / (terms(wanted) @ unknown)


@right(ex.predict_curve)
def test_as_a_polynomial_of_n_times_seconds(gpus, tokens_per_second, wanted, size, step_tokens):
    n = np.array(gpus, float)  # n · seconds = compute + 2 α n (n − 1) + 2 (n − 1) size/β, of degree 2
    curve = np.polynomial.Polynomial.fit(n, n * step_tokens / np.array(tokens_per_second), 2)
    return [step_tokens * m / curve(m) for m in wanted]


@right(ex.predict_curve)
def test_numbers_of_another_type(gpus, tokens_per_second, wanted, size, step_tokens):
    return np.array([np.float32(ex._curve(n, *_unknown(size), size, step_tokens)) for n in wanted])


def _unknown(size):
    return {5.4e9: (26.0, 2e-5, 9e10), 1.2e9: (3.0, 0.0, 2e10), 1e6: (0.02, 1e-3, 5e10), 4e7: (0.9, 3e-4, 1e9)}[size]


test_choose_layout = edits(
    ex.choose_layout,
    ("if held(*layout) <= limit:", "if True:", "it does not fit in 80 GiB"),
    ("if held(*layout) <= limit:", "if held(*layout) > limit:", "GiB"),
    ("if node % t == 0 and gpus % t == 0", "if gpus % t == 0", "do not fill nodes"),
    (" and gpus % t == 0", "", "its ranks are 2 · 8 · 1 = 16, not 20"),
    (" if gpus // tensor % p == 0", "", "its ranks are 2 · 4 · 2 = 16, not 20"),
    ("range(1, node + 1) if node", "range(1, 3) if node", "it was never tried"),
    ("range(1, gpus // tensor + 1) if", "range(1, 2) if", "some layouts fit (who holds just `limit` does)"),
    ("for m in range(1, batch + 1) if batch % (data * m) == 0", "for m in (1,) if batch % data == 0",
     "it was never tried"),
    ("batch // (data * micro_batch), micro_batch", "2 * batch // (data * micro_batch), micro_batch", "its batch is"),
    ("data = gpus // tensor // pipeline", "data = gpus // tensor", "its ranks are"),
    ("min(fitting, key=lambda layout: seconds(*layout), default=None)", "fitting[0] if fitting else None", "takes"),
    ("key=lambda layout: seconds(*layout)", "key=lambda layout: held(*layout)", "takes"),
    ("min(fitting", "max(fitting", "takes"),
    (", default=None)", ")", "ValueError"),
    ("min(fitting, key=lambda layout: seconds(*layout), default=None)",
     "min(fitting, key=lambda layout: seconds(*layout), default=(1, 1, 1, 1, 1))", "`None`: no layout fits"),
    ("min(fitting, key=lambda layout: seconds(*layout), default=None)", "(4, 4, 1, 1, 16)", "its ranks are"),
    ("min(fitting, key=lambda layout: seconds(*layout), default=None)", "None", "it returned None"),
    ("held(*layout) <= limit", "held(*layout) < limit", "32 GPUs of 39 GiB"),
    ("held(*layout) <= limit", "held(*layout) <= limit and layout[3] >= pipeline", "4 GPUs of 80 GiB, batch 2"),
    ("range(1, gpus // tensor + 1) if", "range(1, gpus // tensor + (tensor > 1)) if", "12 GPUs of 40 GiB"),
    ("range(1, batch + 1)", "range(1, batch)", "6 GPUs of 80 GiB"),
    ((("range(1, node + 1) if", "(1, 2, 4, 8) if"), ("range(1, gpus // tensor + 1) if", "(1, 2, 4, 8, 16, 32, 64) if")),
     "12 GPUs of 40 GiB"),
    ("batch // (data * micro_batch), micro_batch\n",
     "batch // (data * micro_batch), micro_batch\n                layout = tuple(one + 0.4 for one in layout)\n",
     "not all whole"),
    ("return min(", "return fitting and tuple(-one for one in fitting[0]) or min(", "not all whole and at least 1"),
    ("return min(", "best = min(fitting, key=lambda one: seconds(*one), default=None)\n"
     "    return (*best[:3], best[4], best[3]) if best else min(", "micro_batches comes before micro_batch"),
    ("return min(", "return fitting and (0.1, fitting[0]) or min(", "the layout alone"),
    ("default=None)", "default=())", "`None`, not an empty tuple"),
    ("return min(", "return fitting and [str(one) for one in fitting[0]] or min(", "the layout alone"),
)


@right(ex.choose_layout)
def test_in_another_order_and_as_a_list(gpus, batch, seconds, held, limit, node):
    best = None
    for data in range(gpus, 0, -1):
        for pipeline in range(gpus, 0, -1):
            tensor, rest = divmod(gpus, data * pipeline)
            if rest or not tensor or node % tensor or batch % data:
                continue
            for micro_batches in range(1, batch // data + 1):
                layout = [data, tensor, pipeline, micro_batches, batch // data // micro_batches]
                if batch // data % micro_batches == 0 and held(*layout) <= limit:
                    best = layout if best is None or seconds(*layout) < seconds(*best) else best
    return best


def _best(gpus, batch, seconds, held, limit, node):
    return ex.ChooseLayout.answer(gpus, batch, seconds, held, limit, node)


@right(ex.choose_layout)
def test_an_array(*given):
    return None if _best(*given) is None else np.array(_best(*given))


@right(ex.choose_layout)
def test_a_tensor(*given):
    return None if _best(*given) is None else torch.tensor(_best(*given))


@right(ex.choose_layout)
def test_costs_asked_by_name(gpus, batch, seconds, held, limit, node):
    from helpers.instruments.costs import Layout

    seconds, held = (lambda *layout, cost=cost: cost(**Layout(*layout)._asdict()) for cost in (seconds, held))
    return _best(gpus, batch, seconds, held, limit, node)


@wrong(ex.choose_layout, "6 GPUs of 80 GiB")
def test_only_the_lessons_layouts(gpus, batch, seconds, held, limit, node):
    from helpers.instruments.costs import layouts

    fitting = [one for one in layouts(gpus, batch, gpus) if node % one.tensor == 0 and held(*one) <= limit]
    return sorted(fitting, key=lambda one: seconds(*one))[0] if fitting else None


@right(ex.choose_layout)
def test_sorted_and_named(gpus, batch, seconds, held, limit, node):
    from helpers.instruments.costs import Layout

    fitting = [Layout(d, t, gpus // d // t, batch // d // m, m) for d in range(1, gpus + 1) if gpus % d + batch % d == 0
               for t in range(1, node + 1) if node % t + gpus // d % t == 0
               for m in range(1, batch + 1) if batch // d % m == 0]
    return next((one for one in sorted(fitting, key=lambda one: seconds(*one)) if held(*one) <= limit), None)


@right(ex.choose_layout)
def test_tries_every_number(gpus, batch, seconds, held, limit, node):
    import itertools

    divisors = [n for n in range(1, max(gpus, batch) + 1) if gpus % n == 0 or batch % n == 0]
    fitting = {}
    for data, tensor, pipeline in itertools.product(divisors, repeat=3):
        if data * tensor * pipeline == gpus and node % tensor == 0 and batch % data == 0:
            for micro_batch in divisors:
                if batch // data % micro_batch == 0:
                    one = data, tensor, pipeline, batch // data // micro_batch, micro_batch
                    fitting.update({one: seconds(*one)} if held(*one) <= limit else {})
    return min(fitting, key=fitting.get) if fitting else None


test_steps_between_saves = edits(
    ex.steps_between_saves,
    ("3600 * hours_per_gpu / gpus", "3600 * hours_per_gpu", "all of them fail that many times as often"),
    ("3600 * hours_per_gpu", "hours_per_gpu", "hours and seconds are mixed"),
    (" / step_seconds", "", "that is in seconds"),
    ("2 * save_seconds", "save_seconds", "costs half an interval"),
    ("(2 * save_seconds * mtbf) ** 0.5", "mtbf", "that is the time between failures itself"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))",
     "round((2 * save_seconds * mtbf) ** 0.5 / step_seconds)", "a save of 1 s: it returned 0"),
    ("max(1, round(", "max(1, 0.3 + round(", "a whole number of at least 1"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))", "230", "a save of 20 s: every 230 steps"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))", "1", "a save of 60 s: every 1 step:"),
    ("** 0.5", "** 1", "that is without the root"),
    ("2 * save_seconds", "2 * step_seconds", "what a save takes stands under the root"),
    ("3600 * hours_per_gpu / gpus", "3600 * hours_per_gpu * gpus", "it would hardly ever come to the next save"),
    ("3600 * hours_per_gpu / gpus", "3600 * hours_per_gpu * gpus", "more GPUs fail more often"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))", "'often'", "it returned 'often'"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))", "float('nan')", "a whole number"),
    ("save_seconds * mtbf", "step_seconds * mtbf", "on top of each hour"),
    ("return max(1,", "return {1: True}.get(max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))) or max(1,",
     "a save of 1 s: it returned True"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))", "float('inf')", "it returned inf"),
    ("max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))", "10**400", "a whole number"),
    ("(2 * save_seconds * mtbf) ** 0.5", "mtbf / 2", "that is half the time between failures"),
    ("3600 * hours_per_gpu", "60 * hours_per_gpu", "an hour has 3600 seconds"),
    ("** 0.5", "** (1 / 3)", "a square root, not a cube root"),
    (" * mtbf) ** 0.5 / step_seconds", " * mtbf / step_seconds) ** 0.5", "divide by a step's after it"),
    ("/ gpus", "/ gpus**0.5", "N GPUs fail N times as often as one"),
)


@wrong(ex.steps_between_saves, "what does saving cost")
def test_a_limit_is_not_called_seconds(*given):
    return min(49_999, ex.StepsBetweenSaves.answer(*given))


@right(ex.steps_between_saves)
def test_dalys_formula(gpus, hours_per_gpu, step_seconds, save_seconds):
    mtbf = 3600 * hours_per_gpu / gpus
    share = math.sqrt(save_seconds / (2 * mtbf))
    return max(1, round((math.sqrt(2 * save_seconds * mtbf) * (1 + share / 3) - save_seconds) / step_seconds))


@right(ex.steps_between_saves)
def test_searched_with_the_formula_of_the_lesson(gpus, hours_per_gpu, step_seconds, save_seconds):
    mtbf = 3600 * hours_per_gpu / gpus
    tries = {int(1.01**power) for power in range(1500)}
    return min(tries, key=lambda n: save_seconds / (n * step_seconds) + n * step_seconds / (2 * mtbf))


@right(ex.steps_between_saves)
def test_a_number_of_numpys(gpus, hours_per_gpu, step_seconds, save_seconds):
    return np.float64(max(1, np.rint(math.sqrt(7200 * save_seconds * hours_per_gpu / gpus) / step_seconds)))


@right(ex.steps_between_saves)
def test_a_fraction(*given):
    return Fraction(ex.StepsBetweenSaves.answer(*given))


test_steps_between_saves_always_down_or_up = edits(
    ex.steps_between_saves,
    ("round(", "math.floor(", "a step of 28 s, a save of 2 s: every 1 step:"),
    ("round(", "math.ceil(", "a step of 44 s, a save of 2 s: every 2 steps"))
