"""Amdahl's law with a price: how many times as fast does a rung make the whole training?"""

import copy
import math
from typing import NamedTuple

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each, nothing


class Rung(NamedTuple):
    """A case: what the learner's function is given."""

    once: dict
    each: dict
    epochs: int
    faster: dict
    price: float = 0.0


class PredictedGain(Alone):
    title = "Predict: what does the rung give?"
    task = ("Parts of a training take seconds: `once` is a dict {part: seconds} of what happens once at its "
            "beginning, `each` of what happens in every one of its `epochs`. A rung makes parts faster: "
            "`faster` is a dict {part: how many times as fast}. A part of that name can stand in "
            "`once` and in `each`; then it becomes faster in both. `float(\"inf\")` means that the part is "
            "gone, and a number below 1 that it becomes slower. The rung itself costs `price` seconds once, "
            "as compiling does. Return how many times as fast the whole training becomes, and leave the dicts "
            "as they are.")
    hints = (
        "How long does the training take without the rung? The beginning once, and each epoch `epochs` "
        "times.",
        "With the rung, divide each part's seconds by its number. Parts that are not in `faster` stay as "
        "they are.",
        "Python divides by infinity: `3 / float(\"inf\")` is 0.0. The price comes once, and not in each "
        "epoch.")
    explanation = "Divide the old time by the new time. The price belongs to the new time, once."
    why = ("This is Amdahl's law with a price. If a part takes a third of the time, removing it makes the "
           "whole 1.5 times as fast, and no more. A compiler that takes a minute pays only in a long "
           "training.")

    cases = {
        "half of an epoch, twice as fast": Rung({}, {"load": 2.0, "compute": 2.0}, 10, {"load": 2.0}),
        "a part that is gone": Rung({}, {"load": 3.0, "compute": 1.0}, 5, {"load": math.inf}),
        "decoding at the beginning": Rung({"decode": 8.0, "read": 2.0}, {"compute": 1.0}, 10,
                                          {"decode": 4.0, "compute": 2.0}),
        "a part in both": Rung({"decode": 4.0, "read": 2.0}, {"decode": 1.0, "compute": 1.0}, 6, {"decode": 2.0}),
        "a compiler's price": Rung({"decode": 1.0}, {"compute": 2.0}, 5, {"compute": 2.0}, price=12.0),
        "one part slower": Rung({}, {"load": 1.0, "compute": 4.0}, 3, {"load": 0.25, "compute": 4.0}),
    }

    def answer(once, each, epochs, faster, price):
        def seconds(faster):
            start = sum(took / faster.get(part, 1) for part, took in once.items())                          #: start
            return start + epochs * sum(took / faster.get(part, 1) for part, took in each.items())          #: whole

        return seconds({}) / (seconds(faster) + price)                                                      #: gain

    def observe(predicted_gain, rung):
        given = copy.deepcopy(rung)
        gain = math.fsum([predicted_gain(*given)])  # refuses what is no number, and text that reads as one
        return {"gain": gain, "dicts that you changed": [part for part in given if part not in rung]}

    # ---------------------------------------------------------------------------------------- what must hold

    def another_gain(mine, wanted, rung):
        if not math.isclose(mine["gain"], wanted["gain"], rel_tol=1e-6):
            given = (f"once={rung.once}, each={rung.each}, epochs={rung.epochs}, faster={rung.faster}, "
                     f"price={rung.price:g}")
            return f"{mine['gain']:.7g}", f"{wanted['gain']:.7g}, for {given}"

    rules = (
        nothing("dicts that you changed", "your function writes into a dict that it was given; compute new "
                                          "values instead", "none"),
        each(another_gain, "write down both times: the beginning once, and `epochs` times each epoch. In the "
                           "new time, divide each part's seconds in both dicts by its number, and add the "
                           "whole price. Then divide, and do not round"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("the price is missing: the rung itself takes time", gain="return seconds({}) / seconds(faster)"),
        mistake("the price comes once, and not in each epoch",
                gain="return seconds({}) / (seconds(faster) + epochs * price)"),
        mistake("how many times as fast: old time over the new",
                gain="return (seconds(faster) + price) / seconds({})"),
        mistake("these are the seconds saved; return old time over new time",
                gain="return seconds({}) - seconds(faster) - price"),
        mistake("what the training spends at its beginning is missing",
                whole="return epochs * sum(took / faster.get(part, 1) for part, took in each.items())"),
        mistake("the beginning is spent once, each epoch's parts `epochs` times",
                whole="return start + sum(took / faster.get(part, 1) for part, took in each.items())"),
        mistake("parts at the beginning can become quicker, too",
                start="start = sum(took for part, took in once.items())"),
        mistake("twice as fast takes half of the time: divide",
                start="start = sum(took * faster.get(part, 1) for part, took in once.items())",
                whole="return start + epochs * sum(took * faster.get(part, 1) for part, took in each.items())"),
        mistake("below 1 a part becomes slower",
                start="start = sum(took / max(1, faster.get(part, 1)) for part, took in once.items())",
                whole="return start + epochs * sum(took / max(1, faster.get(part, 1)) for part, took in each.items())"),
    )


predicted_gain = PredictedGain()
