"""A training that wastes its time in five ways: a trace shows them, and without them it is timed."""

import math
from dataclasses import replace
from typing import NamedTuple

from helpers.exercises.feedback import CORRECT, Feedback
from helpers.exercises.group import InGroup
from helpers.exercises.in_rank import Lost
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each, first_difference, holds, nothing, same
from helpers.instruments.waits import meet
from lessons.profiling.counted import BATCH, EPOCHS, FASTER, IMAGES, STEPS, counted, times_as_fast


class Fault(NamedTuple):
    """One of the five ways in which the training wastes its time."""

    words: str
    shown: str
    """What a trace shows of it; {} is how often."""
    most: int
    """How often that may be: far from what it is with the fault, and without."""


#: By the names of what is counted.
FAULTS = {
    "operators": Fault("images normalised row by row", "{:,} operators and lines of your Python besides the network",
                       20 * IMAGES * EPOCHS),
    "copies": Fault("all images converted again and again", "{} times the same operator on all images", EPOCHS),
    "forwards": Fault("small pieces", f"{{}} forwards in {STEPS} steps of the optimizer", STEPS),
    "collectives": Fault("weights compared at every step", "{} collectives that are not DDP's", 3 * EPOCHS),
    "flushes": Fault("the log flushed at every step", "{} gaps of 8 ms in which no operator runs", EPOCHS + 1),
}


def left_in(mine):
    """{name of what is counted: how often, in the worst rank}, for the faults that are left."""
    left = {}
    for name, fault in FAULTS.items():
        count = max(rank[name] for rank in mine)
        if count > fault.most:
            left[name] = count
    return left


def gone_and_left(mine):
    """A line for each fault: that it is gone, or what a trace shows of it."""
    left = left_in(mine)
    if len(left) == len(FAULTS):
        return ""  # what the first one is, the trace has to tell
    lines = ""
    for name, fault in FAULTS.items():
        if name in left:
            lines += f"\nleft: {fault.shown.format(left[name])}"
        else:
            lines += f"\ngone: {fault.words}"
    return lines


class MakeItFast(InGroup):
    title = "Performance detective"
    task = (f"`train` wastes most of its time in five ways. Repair it: make it at least {FASTER} times as "
            "fast, with none of the five left and with the same result. The result is the same if the images "
            f"are the same, normalised in the same way, {BATCH} per optimizer step and rank, for as many "
            "epochs, with the same weights at the end. The log must hold a flushed line for each epoch that "
            "begins with `epoch` and its number. `model` is in DistributedDataParallel; `images` is a NumPy "
            "array, [images, 48, 48].")
    hints = (
        "Look at the trace first. It has thousands of tiny operators in a row. Which line makes them? Could "
        "one operator on the whole batch, or on all images, do the same? `x.mean(-1, keepdim=True)` is a "
        "mean for each row.",
        "`aten::lift_fresh` with a long `aten::copy_` beside it is `torch.tensor(…)` of a large array. How "
        "often is it called, and how often do the images change?",
        "Count the forwards for each optimizer step. Every backward under DDP communicates. Do 32 of these "
        "images not fit at once?",
        "DDP does not call `gloo:all_gather`; the script does. What for, and how often would be enough?",
        "In the gaps nothing is recorded: Python runs, or something outside of torch. What does "
        "`log.flush()` wait for? On a GPU, `loss.item()` in each step makes Python wait, too.",
    )
    explanation = ("Operators on all images convert and normalise them once. 32 images at a time go through "
                   "the network, so there is one all-reduce of gradients per step. The ranks need not "
                   "compare their weights, because DDP keeps them equal. The log stays in memory and is "
                   "flushed once an epoch.")
    why = ("Only the copies of all images are slow operators. The other time goes into Python between many short "
           "operators, and into waiting for other ranks and for a disk. A trace shows how long each of them takes.")

    timeout = 40
    patience = 3
    slow = True

    def answer(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64                                                 #: mean
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):                                                            #: loop
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])  #: loss
                optimizer.zero_grad()                                                                          #: clear
                loss.backward()
                optimizer.step()                                                                               #: step
            log.write(f"epoch {epoch}: loss {loss.item():.4f}")
            log.flush()

    def observe(make_it_fast, case):
        return counted(make_it_fast)

    @classmethod
    def run(cls, answer, case, slowly):
        left = super().run(answer, case, slowly)
        # Timing means to train many times more. So nothing is timed whose time decides nothing: our own answer, and
        # what has a fault. It happens here and not in `observe`, whose function counts the traffic, which takes time.
        if answer is cls.answer or isinstance(left, Lost):
            return left
        # All ranks train for the timing, or none does; and a fault may show in a single rank.
        faulty_ranks = meet("faulty" if left_in([left]) else "")
        if not any(faulty_ranks):
            left["times as fast"] = times_as_fast(answer)
        return left

    def judge(self, mine, wanted, case, answer):
        """Says of a right answer how fast it is, too; and of any answer which faults are gone."""
        feedback = super().judge(mine, wanted, case, answer)
        if feedback is None:
            faster = min(rank["times as fast"] for rank in mine)
            feedback = Feedback(CORRECT, f"{faster:.1f}× as fast", why_it_matters=self.why)
        return replace(feedback, observed=feedback.observed + gone_and_left(mine))

    # ---------------------------------------------------------------------------------------- what must hold

    other_pixels = "compare your batch with `normalised(image)`, image by image: `torch.allclose`"
    who_averages = "`model(…)` averages gradients; `model.module(…)`, or one under `no_sync()`, does not"
    larger_batches = "larger batches change the training and its result"
    each_step = (f"in each step: the gradient of the mean loss of {BATCH} images (`/ 8` made it from eight "
                 "parts), of this step alone (`zero_grad`), the same optimizer, precision and order of images")
    in_the_trace = "a trace: what is in it that a training does not need, and which line makes that?"

    def other_images(mine, wanted, case):
        share = mine["pixels, squared and added up"] / wanted["pixels, squared and added up"]
        if not math.isclose(share, 1, rel_tol=0.001):
            return (f"the pixels that the network got, squared and added up, are {share:.3g} times what they were",
                    "1: the same images, normalised in the same way")

    def different_models(mine, wanted, case):
        if any(first_difference(rank["weights"], mine[0]["weights"], 1e-7) for rank in mine):
            return "the ranks hold different models at the end", "the same model everywhere"

    def other_weights(mine, wanted, case):
        if first_difference(mine["weights"], wanted["weights"], 2e-6):
            way = "lower" if mine["loss"] < wanted["loss"] else "higher"
            return f"the loss ends {way}: {mine['loss']:.5f}", f"{wanted['loss']:.5f}, and the same weights as before"

    def no_log(mine, wanted, case):
        for epoch in range(EPOCHS):
            if not any(f"\nepoch {epoch}" in rank["log"] for rank in mine):  # one rank may speak for all
                lines = mine[0]["log"].splitlines()
                first = f"; its first line is {lines[1]!r}" if lines[1:] else ""
                return (f"the log holds no line of epoch {epoch}{first}",
                        f"one that begins with `epoch {epoch}`, flushed")

    def faults_left(mine, wanted, case):
        left = left_in(mine)
        if left:
            return (f"the result is right; faults left: {len(left)} of {len(FAULTS)}",
                    "none of the five is left, and the result stays as it is")

    rules = (
        same("images through the network", "does it see every image in every epoch?"),
        each(other_images, other_pixels),
        nothing("numbers in `images` that have changed",
                "`-=` and `sub_` write into it, and so they do where `torch.from_numpy` shares its memory",
                "none: they are not yours"),
        holds(different_models, who_averages),
        between("forwards", lambda wanted, case: (STEPS, math.inf), larger_batches),
        each(other_weights, each_step),
        holds(no_log, "`log.write(…)` and `log.flush()`"),
        holds(faults_left, in_the_trace),
        between("times as fast", lambda wanted, case: (FASTER, math.inf),
                "something new takes time: record a trace of your training, and look at its gaps"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(other_pixels, mean="pixels = (pixels - pixels.mean((1, 2), keepdim=True)) / 64"),
        mistake(who_averages,
                loss="loss = nn.functional.cross_entropy(model.module(pixels[start:start + 32]), "
                     "labels[start:start + 32])"),
        mistake(larger_batches,
                loop="for start in range(0, len(pixels), 128):",
                loss="loss = nn.functional.cross_entropy(model(pixels[start:start + 128]), labels[start:start + 128])"),
        mistake(each_step, clear=""),
        mistake(in_the_trace, step="optimizer.step()\nlog.flush()"),
    )


make_it_fast = MakeItFast()
