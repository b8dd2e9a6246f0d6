"""A curve of scaling from a few measured points: three unknowns, by least squares."""

from typing import NamedTuple

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same
from lessons.scaling.exercises.flat_lists import flat_list


class Cluster(NamedTuple):
    """A case: what is measured and asked for, and what only the check knows."""

    gpus: tuple
    wanted: tuple
    compute: float
    """Seconds of one GPU's computing in a step."""
    latency: float
    """Seconds of a round."""
    bandwidth: float
    """Bytes a second."""
    size: float
    """Bytes of the gradients."""
    step_tokens: int

    def tokens_per_second(self, gpus):
        """Of all GPUs together, under strong scaling, as the lesson models it."""
        rounds = 2 * (gpus - 1) * self.latency
        bytes_sent = 2 * (gpus - 1) / gpus * self.size
        return self.step_tokens / (self.compute / gpus + rounds + bytes_sent / self.bandwidth)


class PredictCurve(Alone):
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

    cases = {
        "8 to 64 GPUs": Cluster((8, 16, 32, 64), (128, 256, 512), 26.0, 2e-5, 9e10, 5.4e9, 1_048_576),
        "no latency": Cluster((2, 4, 8), (16, 64), 3.0, 0.0, 2e10, 1.2e9, 65_536),
        "a tiny tensor, much latency": Cluster((4, 8, 16, 32), (2, 128, 1024), 0.02, 1e-3, 5e10, 1e6, 262_144),
        "one GPU among them": Cluster((1, 2, 6), (3, 24, 1), 0.9, 3e-4, 1e9, 4e7, 10_000),
    }

    def answer(gpus, tokens_per_second, wanted, size, step_tokens):
        import numpy as np

        def terms(n):
            n = np.array(n, dtype=float)
            return np.stack([1 / n, 2 * (n - 1), 2 * (n - 1) / n * size / 1e9], 1)                      #: terms

        seconds = step_tokens / np.array(tokens_per_second)                                             #: seconds
        unknown = np.linalg.lstsq(terms(gpus) / seconds[:, None], np.ones(len(gpus)), rcond=None)[0]
        return list(step_tokens / (terms(wanted) @ unknown))                                            #: rates

    def observe(predict_curve, cluster):
        measured = [cluster.tokens_per_second(n) for n in cluster.gpus]
        returned = predict_curve(list(cluster.gpus), measured, list(cluster.wanted), cluster.size,
                                 cluster.step_tokens)
        rates = flat_list(returned)
        if isinstance(rates, str):
            return {"returned": rates, "tokens per second": {}}
        pairs = zip(cluster.wanted, rates, strict=False)
        return {"returned": f"{len(rates)} numbers",
                "tokens per second": {f"{n} GPUs": float(f"{rate:.6g}") for n, rate in pairs}}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("returned", "return a flat list with one number for each of `wanted`, in its order"),
        same("tokens per second", within=0.01,
             look="A step has three unknown terms: computing, rounds and bytes. Does each grow with n as it "
                  "should: 2(n - 1) rounds, and 2(n - 1)/n times `size` bytes? Fit seconds, because seconds "
                  "add up"),
    )

    # ------------------------------------------------------------------------------------ what people write

    not_in_proportion = "N times as many GPUs are not N times as fast, because the all-reduce does not shrink"

    mistakes = (
        mistake("that is the rate of each GPU; return that of all GPUs together",
                rates="return list(step_tokens / (terms(wanted) @ unknown) / wanted)"),
        mistake("`tokens_per_second` counts all GPUs together, not each GPU",
                seconds="seconds = step_tokens / (np.array(tokens_per_second) * gpus)"),
        mistake("the rates stand in another order than `wanted`",
                rates="return list(step_tokens / (terms(sorted(wanted)) @ unknown))"),
        mistake("these are seconds of a step, not tokens per second", rates="return list(terms(wanted) @ unknown)"),
        mistake(not_in_proportion, rates="return [n / gpus[0] * tokens_per_second[0] for n in wanted]"),
        mistake(not_in_proportion, rates="return [n / gpus[-1] * tokens_per_second[-1] for n in wanted]"),
        mistake("a ring has 2(n - 1) rounds, so its latency grows with n",
                terms="return np.stack([1 / n, n ** 0, 2 * (n - 1) / n * size / 1e9], 1)"),
        mistake("the latency of the rounds is missing",
                terms="return np.stack([1 / n, 0 * n, 2 * (n - 1) / n * size / 1e9], 1)"),
    )


predict_curve = PredictCurve()
