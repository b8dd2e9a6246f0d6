"""Lesson 13: answers that are right in another style, and wrong ones that no row of the tables can be."""

import math
from fractions import Fraction

import numpy as np
import torch

from lessons.scaling import exercises as ex
from tests.answers import edits, right

FIT, ITS = "return list(step_tokens / (terms(wanted) @ unknown))", "step_tokens / (terms(wanted) @ unknown)"

test_predict_curve = edits(
    ex.predict_curve,
    (FIT, f"return ({ITS})[:1]", "one number for each of `wanted`"),
    (FIT, "return [float('nan')] * len(wanted)", "is nan"),
    (FIT, "return [None] * len(wanted)", "return a flat list with one number"),
)


@right(ex.predict_curve)
def test_by_elimination_in_torch(gpus, tokens_per_second, wanted, size, step_tokens):
    def terms(n):
        n = torch.tensor(n, dtype=torch.float64)
        return torch.stack([1 / n, n - 1, (n - 1) / n], 1)

    seconds = step_tokens / torch.tensor(tokens_per_second, dtype=torch.float64)
    unknown = torch.linalg.solve(terms(gpus[:3]), seconds[:3])
    return step_tokens / (terms(wanted) @ unknown)


@right(ex.predict_curve)
def test_in_fractions(gpus, tokens_per_second, wanted, size, step_tokens):
    times = np.polyfit(gpus, step_tokens * np.array(gpus) / np.array(tokens_per_second), 2)  # n · seconds
    return [Fraction(step_tokens * n) / Fraction(np.polyval(times, n)) for n in wanted]


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


test_steps_between_saves = edits(
    ex.steps_between_saves,
    ("round(", "math.ceil(", "a step of 44 s, a save of 2 s: every 2 steps"),
    ("return max(1,", "import numpy as np; return np.ones(2) * max(1,", "return a whole number of at least 1"),
)


@right(ex.steps_between_saves)
def test_dalys_formula(gpus, hours_per_gpu, step_seconds, save_seconds):
    mtbf = 3600 * hours_per_gpu / gpus
    share = math.sqrt(save_seconds / (2 * mtbf))
    return max(1, round((math.sqrt(2 * save_seconds * mtbf) * (1 + share / 3) - save_seconds) / step_seconds))


@right(ex.steps_between_saves)
def test_a_number_of_numpys(gpus, hours_per_gpu, step_seconds, save_seconds):
    return np.float64(max(1, np.rint(math.sqrt(7200 * save_seconds * hours_per_gpu / gpus) / step_seconds)))
