"""A rung of one's own: the same training with fewer operators."""

import functools
from itertools import pairwise

import torch

from helpers.exercises.alone import Alone
from helpers.exercises.feedback import CORRECT, Feedback
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each, nothing
from lessons.speed_ladder.exercises.batches import (
    EACH_ONCE,
    MOVED,
    Operators,
    dice_of,
    digits,
    rules_of_batches,
    rules_of_dice,
    same_batches,
    same_draws,
    seen_in,
)
from lessons.speed_ladder.slow import network

IMAGES = 500  #: which leave a smaller last batch
EPOCHS = 10
SHARE = 0.85  #: the part of the course's operators that may remain
BATCH = 32  #: images in a batch at most: with larger ones, every loop calls fewer operators


def course_loop(net, images, labels, epochs, dice):
    """A plain loop on decoded images: float32, a constant rate, and for each batch all that a batch needs."""
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, fused=True)
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=dice).split(32):
            batch = images[indices]
            moves = torch.randint(-1, 2, (len(batch), 2, 1), generator=dice)
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            batch = batch[torch.arange(len(batch))[:, None, None], rows[:, :, None], columns[:, None]]
            loss = torch.nn.functional.cross_entropy(net(batch.unsqueeze(1) / 128 - 0.5), labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def trained(loop, epochs=EPOCHS, seed=0, dice=0):
    """Train a fresh network.

    Returns its batches, how many images it has learned from, batches that found the weights of the one before,
    the network, and its operators.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, operators = network(), Operators()
    batches, learned, weights = [], [], []

    def watch(module, inputs, output):
        before = operators.count
        if output.requires_grad:
            batches.append(inputs[0].detach().clone())
            weights.append(next(module.parameters()).detach().clone())
            output.register_hook(lambda grad: learned.append(len(grad)))
        operators.count = before  # what this check does is not the learner's

    net.register_forward_hook(watch)
    images, labels = digits(IMAGES)
    torch.manual_seed(seed)
    with operators:
        loop(net, images, labels, epochs, dice_of(0, further=dice))
    without_step = sum(torch.equal(before, after) for before, after in pairwise(weights))
    return batches, sum(learned), without_step, net, operators.count


def batches_of(loop, seed, dice=0):
    """Those of one epoch. Torch's own generator has `seed`, which the loop should not need."""
    batches, *_ = trained(loop, 1, seed, dice)
    return batches


@functools.cache
def operators_of_course():
    *_, count = trained(course_loop)
    return count


class BeatTheCourse(Alone):
    title = "A rung of your own"
    task = ("A plain loop (float32, constant learning rate) trains `net` on `images` (uint8, [N, 16, 16]) "
            "and `labels`. In every epoch each image comes once, in another order, moved by -1, 0 or 1 pixel "
            "up and left (rolled, as `shifted` does), another way each time, as float32 [batch, 1, 16, 16], "
            "`pixels / 128 - 0.5`. `dice` is the generator for all that is random. "
            "`Code(inspect.getsource(ex.course_loop))` shows the loop. Write a loop that does the same, in "
            "batches of at most 32 images and a step after each as there, ends with a network as good (at most 6 "
            "points of accuracy less), and calls at most **85%** of the loop's operators: PyTorch's, in the loop's "
            "own thread. Forward, backward, optimizer and autocast's casts are counted, too.")
    hints = (
        "Count the operators of one step. Which of them belong to the network and its optimizer, and which "
        "only prepare the batch?",
        "What does the loop do for each batch that could be done for all batches of an epoch at once? The "
        "order, the moves and the conversion. Then a batch is a slice.",
        "`pixels[order].split(32)` cuts an epoch into batches. With the labels in the same order, "
        "`zip(pixels.split(32), labels.split(32))` gives both.")
    explanation = ("All random numbers of an epoch are drawn at once. The same few operators that moved and "
                   "converted one batch now move and convert all images. Each step is left with a slice and "
                   "the network.")
    why = ("Each operator costs some microseconds before it computes anything. With small batches that adds "
           "up, so fewer operators are faster. Lesson 08 shows it for kernels on a GPU.")

    timeout = 120
    computing = 60
    slow = True

    def answer(net, images, labels, epochs, dice):
        import torch

        optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, fused=True)                    #: optimizer
        every = torch.arange(len(images))[:, None, None]
        for _ in range(epochs):                                                                             #: epochs
            order = torch.randperm(len(images), generator=dice)
            moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            moved = images[order][every, rows[:, :, None], columns[:, None]]                                #: move
            pixels = moved.unsqueeze(1) / 128 - 0.5
            for batch, wanted in zip(pixels.split(32), labels[order].split(32), strict=True):               #: batches
                loss = torch.nn.functional.cross_entropy(net(batch), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def observe(beat_the_course, case):
        batches, learned, without_step, net, operators = trained(beat_the_course)
        images, labels = digits(None, train=False)
        with torch.no_grad():
            right = (net(images.unsqueeze(1) / 128 - 0.5).argmax(1) == labels).float().mean().item()
        first = batches_of(beat_the_course, seed=1)
        again = batches_of(beat_the_course, seed=2)
        with_other_dice = batches_of(beat_the_course, seed=1, dice=1)
        given, _ = digits(IMAGES)
        seen, _ = seen_in(batches, given, EPOCHS)
        drawn, with_others = (seen_in(found, given, 1)[1] for found in (first, with_other_dice))
        return {
            **seen,
            "largest batch": max(map(len, batches), default=0),
            "learned from": learned,
            "batches before which no step was made": without_step,
            "right": right,
            "operators": operators,
            "operators of the course": operators_of_course(),
            "other batches for the same dice": not same_batches(first, again),
            "the same for other dice": same_draws(drawn, with_others),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    every_epoch = f"{EACH_ONCE} (Call `net(batch)`: what goes through `net.forward(batch)` is not seen.)"
    learns = ("does your loop train `net`, with enough steps and cleared gradients? Each label has to stay with "
              "its image")
    for_all_at_once = ("what do you do for each batch that could be done for all at once? "
                       "(Casts by autocast are operators, too.)")

    def learned_from(mine, wanted, case):
        if mine["learned from"] != wanted["learned from"]:
            return f"{mine['learned from']:,} images were learned from", f"{wanted['learned from']:,}"

    def too_large(mine, wanted, case):
        if mine["largest batch"] > BATCH:
            return f"the largest batch has {mine['largest batch']} images", f"at most {BATCH}, as in the plain loop"

    def worse(mine, wanted, case):
        if mine["right"] < wanted["right"] - 0.06:
            return f"{mine['right']:.1%} of the test digits are right", f"about {wanted['right']:.1%}"

    rules = (
        *rules_of_batches(every_epoch),
        *rules_of_dice(),
        each(learned_from, "a `backward` for each batch, and for each batch a gradient of its own"),
        nothing("batches before which no step was made", "an `optimizer.step()` after each batch: two batches for "
                                                         "one step are a larger batch"),
        each(too_large, "how many images does each step take?"),
        each(worse, learns),
        between("operators", lambda wanted, case: (EPOCHS, SHARE * wanted["operators of the course"]),
                for_all_at_once),
    )

    def judge(self, mine, wanted, case, answer):
        feedback = super().judge(mine, wanted, case, answer)
        if feedback is not None:
            return feedback
        count, of_course = mine[0]["operators"], mine[0]["operators of the course"]
        observed = f"as good a network, with {count:,} operators; the course's loop calls {of_course:,}"
        return Feedback(CORRECT, observed, why_it_matters=self.why)

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(every_epoch, epochs="for _ in range(1):"),
        mistake(MOVED, move="moved = images[order]"),
        mistake(learns, optimizer="optimizer = torch.optim.SGD(net.parameters(), lr=0.0001, momentum=0.9, fused=True)"),
        mistake(learns, batches="for batch, wanted in zip(pixels.split(32), labels.split(32), strict=True):"),
        mistake(for_all_at_once,
                optimizer="optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, fused=True)",
                batches="for batch, wanted in zip(pixels.split(16), labels[order].split(16), strict=True):"),
        mistake("how many images does each step take?",
                batches="for batch, wanted in zip(pixels.split(48), labels[order].split(48), strict=True):"),
    )


beat_the_course = BeatTheCourse()
