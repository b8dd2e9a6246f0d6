"""A hunt: what is drawn once, above the loop, stays the same in every epoch."""

import sys

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, nothing, same
from lessons.speed_ladder.exercises.batches import (
    Operators,
    dice_of,
    digits,
    rules_of_batches,
    rules_of_dice,
    same_batches,
    same_draws,
    seen_in,
)


def calls_of(function, *arguments):
    """How often Python calls something while this generator runs; an index into a tensor is a call, too."""
    calls = []
    sys.setprofile(lambda frame, event, what: calls.append(event in ("call", "c_call")))
    try:
        with Operators():  # which Python calls for each operator
            list(function(*arguments))
    finally:
        sys.setprofile(None)
    return sum(calls)


class PreparedOnce(Alone):
    title = "Hunt: the cache that froze the dice"
    task = ("Write a generator that gives the batches of all `epochs` as pairs (pixels, labels): float32 "
            "[64, 1, 16, 16], `pixels / 128 - 0.5`, and int64 [64]. The last batch of an epoch may be "
            "smaller. `images` is uint8 [N, 16, 16]. In every epoch each image comes once, in another order, "
            "rolled by -1, 0 or 1 pixel up and left, each image in its own way and in another way each "
            "epoch. `dice` is the generator for all that is random. Keep what is good about the rung: images "
            "are converted to float **once**, and no loop goes over images.")
    hints = (
        "What is drawn once stays the same in every epoch. Which lines above the loop draw something?",
        "One `roll` moves all images alike. `shifted` in the rung *Augment whole batches* moves each in its "
        "own way, with an index for each image.",
        "The conversion may stay above the loop, because it gives the same pixels whether it comes before or "
        "after the move.")
    explanation = ("Only the conversion is the same in every epoch, so only the conversion may be done once. "
                   "Draw the order and two moves for each image in every epoch.")
    why = ("A cache is right for what is always the same, and wrong for what is meant to change. Nothing "
           "fails: the loss even falls faster, because the network learns a few fixed pictures by heart. So "
           "look at what you cache: is anything random above that line?")

    cases = {"200 images, 6 epochs": (200, 6)}

    def answer(images, labels, epochs, dice):
        import torch

        pixels = images / 128 - 0.5                                                                 #: convert
        every = torch.arange(len(images))[:, None, None]                                            #: every
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=dice)                                     #: order
            moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)                       #: draw
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            moved = pixels[order][every, rows[:, :, None], columns[:, None]].unsqueeze(1)           #: move
            yield from zip(moved.split(64), labels[order].split(64), strict=True)                   #: batches

    def observe(prepared_once, case):
        torch.set_num_threads(1)
        count, epochs = case
        images, _ = digits(count)
        numbers = torch.arange(count)  # as labels: each says which image it belongs to

        def batches(seed, dice):
            torch.manual_seed(seed)
            all_pixels, all_labels = [], []
            for pixels, labels in prepared_once(images.clone(), numbers.clone(), epochs, dice_of(3, further=dice)):
                # Copies, because the next batch may be written into the same memory.
                all_pixels.append(pixels.clone())
                all_labels.append(labels.clone())
            return all_pixels, all_labels

        with Operators() as operators:
            pixels, labels = batches(seed=0, dice=0)
        pixels_again, _ = batches(seed=1, dice=0)
        pixels_of_other_dice, _ = batches(seed=0, dice=1)
        seen, drawn = seen_in(pixels, images, epochs)
        of_another_image = None
        if drawn:
            of_another_image = (torch.cat(labels) != drawn["order"]).sum().item()
        # Both are one batch. A loop over images calls at least 20 times for each; one over the moves that were
        # drawn, perhaps a few times.
        calls_for_32 = calls_of(prepared_once, *digits(32), 1, torch.Generator())
        calls_for_64 = calls_of(prepared_once, *digits(64), 1, torch.Generator())
        return {
            **seen,
            "labels": sorted({f"{batch.dtype}, {batch.dim()} dimension(s)" for batch in labels}),
            "labels of another image": of_another_image,
            "sizes of the batches": [len(batch) for batch in labels],
            "other batches for the same dice": not same_batches(pixels, pixels_again),
            "the same for other dice": same_draws(drawn, seen_in(pixels_of_other_dice, images, epochs)[1]),
            "images converted": operators.converted,
            "calls for each image": max(0, int((calls_for_64 - calls_for_32) / 32)),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("labels", "the `yield`: pairs (pixels, labels), and labels that are int64, [64]"),
        *rules_of_batches(),
        nothing("labels of another image", "are both put into the same order?"),
        *rules_of_dice(),
        same("sizes of the batches", "`split(64)`, on one epoch at a time"),
        between("images converted", lambda wanted, case: (0, 2 * case[0]), "what is the same in every epoch?"),
        between("calls for each image", lambda wanted, case: (0, 10), "is there a loop over images?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("the order is drawn once, above the loop over epochs", order="",
                every="every = torch.arange(len(images))[:, None, None]\n"
                      "order = torch.randperm(len(images), generator=dice)"),
        mistake("the moves are drawn once, above the loop over epochs", draw="",
                every="every = torch.arange(len(images))[:, None, None]\n"
                      "moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)"),
        mistake("what is converted in each epoch is the same each time: convert once, above the loop", convert="",
                move="moved = (images / 128 - 0.5)[order][every, rows[:, :, None], columns[:, None]].unsqueeze(1)"),
        mistake("each epoch moves pixels that the last epoch has moved already: keep the unmoved pixels",
                move="pixels = pixels[every, rows[:, :, None], columns[:, None]]\n"
                     "moved = pixels[order].unsqueeze(1)"),
        mistake("pixels and labels: are both put into the same order?",
                batches="yield from zip(moved.split(64), labels.split(64), strict=True)"),
        mistake("one move for all images: draw two for each",
                draw="moves = torch.randint(-1, 2, (1, 2, 1), generator=dice).expand(len(images), 2, 1)"),
        mistake("up and left are the same number, or one of them never moves: draw two numbers, and use both",
                draw="moves = torch.randint(-1, 2, (len(images), 1, 1), generator=dice).expand(len(images), 2, 1)"),
        mistake("`generator=dice` belongs to every draw", order="order = torch.randperm(len(images))",
                draw="moves = torch.randint(-1, 2, (len(images), 2, 1))"),
        mistake("`dice` has its seed already: do not seed it again",
                order="dice.manual_seed(0)\norder = torch.randperm(len(images), generator=dice)"),
    )


prepared_once = PreparedOnce()
