"""The exercises of the speed ladder: a gain predicted, a rung that beats the course, a rung repaired."""

import copy
import functools
import math
import sys
from itertools import combinations, pairwise

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.data import Digits
from helpers.exercises.alone import Alone
from helpers.exercises.engine import CORRECT, Feedback
from helpers.exercises.tables import Table, between, each, nothing, same
from lessons.speed_ladder.slow import network

INF = float("inf")
GAIN = "seconds({}) / (seconds(faster) + price)"
SHORTER = "took / faster.get(part, 1) for part, took in "


def another_gain(mine, wanted, case):
    if not math.isclose(mine["gain"], wanted["gain"], rel_tol=1e-6):
        once, each, epochs, faster, price = case
        given = f"once={once}, each={each}, epochs={epochs}, faster={faster}, price={price:g}"
        return f"{mine['gain']:.7g}", f"{wanted['gain']:.7g}, for {given}"


class PredictedGain(Table, Alone):
    title = "Predict: what does the rung give?"
    task = ("Parts of a training take seconds: `once` is a dict {part: seconds} of what happens once at its "
            "beginning, `each` of what happens in every one of its `epochs`. A rung makes parts faster: "
            "`faster` is a dict {part: how many times as fast}. A part of that name can stand in "
            "`once` and in `each`; then it becomes faster in both. `float(\"inf\")` means that the part is "
            "gone, and a number below 1 that it becomes slower. The rung itself costs `price` seconds once, "
            "as compiling does. Return how many times as fast the whole training becomes.")
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
        "half of an epoch, twice as fast": ({}, {"load": 2.0, "compute": 2.0}, 10, {"load": 2.0}, 0.0),
        "a part that is gone": ({}, {"load": 3.0, "compute": 1.0}, 5, {"load": INF}, 0.0),
        "decoding at the beginning": ({"decode": 8.0, "read": 2.0}, {"compute": 1.0}, 10,
                                      {"decode": 4.0, "compute": 2.0}, 0.0),
        "a part in both": ({"decode": 4.0, "read": 2.0}, {"decode": 1.0, "compute": 1.0}, 6,
                           {"decode": 2.0}, 0.0),
        "a compiler's price": ({"decode": 1.0}, {"compute": 2.0}, 5, {"compute": 2.0}, 12.0),
        "one part slower": ({}, {"load": 1.0, "compute": 4.0}, 3, {"load": 0.25, "compute": 4.0}, 0.0)}

    def answer(once, each, epochs, faster, price):
        def seconds(faster):
            start = sum(took / faster.get(part, 1) for part, took in once.items())
            return start + epochs * sum(took / faster.get(part, 1) for part, took in each.items())

        return seconds({}) / (seconds(faster) + price)

    def observe(predicted_gain, case):
        given = copy.deepcopy(case)
        gain = math.fsum([predicted_gain(*given)])  # refuses what is no number, and text that reads as one
        return {"gain": gain, "dicts that you changed": [one for one in given if one not in case]}

    rules = (
        nothing("dicts that you changed", "your function writes into a dict that it was given; compute new "
                                          "values instead", "none"),
        each(another_gain, "write down both times: the beginning once, and `epochs` times each epoch. In the "
                           "new time, divide each part's seconds in both dicts by its number, and add the "
                           "whole price. Then divide, and do not round"))
    mistakes = (
        (GAIN, "seconds({}) / seconds(faster)", "the price is missing: the rung itself takes time"),
        ("(seconds(faster) + price)", "(seconds(faster) + epochs * price)",
         "the price comes once, and not in each epoch"),
        (GAIN, "(seconds(faster) + price) / seconds({})", "how many times as fast: old time over the new"),
        (GAIN, "seconds({}) - seconds(faster) - price", "these are the seconds saved; return old time over "
                                                        "new time"),
        ("return start + epochs", "return epochs", "what the training spends at its beginning is missing"),
        ("epochs * sum(", "sum(", "the beginning is spent once, each epoch's parts `epochs` times"),
        (f"{SHORTER}once", "took for part, took in once", "parts at the beginning can become quicker, too"),
        ("took / faster", "took * faster", "twice as fast takes half of the time: divide"),
        ("/ faster.get(part, 1)", "/ max(1, faster.get(part, 1))", "below 1 a part becomes slower"))


#: 500 images leave a smaller last batch.
IMAGES, EPOCHS = 500, 10
#: The part of the course's operators that may remain; how much less of the test may be right.
SHARE, LESS = 0.85, 0.06
MOVES = [(up, left) for up in (-1, 0, 1) for left in (-1, 0, 1)]


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


def digits(count, train=True):
    """Images of 16×16 pixels, uint8, no two with the same pixels, and their labels."""
    found = Digits(train=train)
    larger = found.data.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return larger[:count], found.targets[:count]


def names(pixels):
    """A name for each image, by which it is known when it is rolled: its sorted pixels."""
    return [tuple(one) for one in pixels.flatten(1).sort(1).values.tolist()]


def seen_in(batches, images, epochs):
    """What can be seen of a training's batches (if their form is wrong, no more), and which image each is."""
    seen = {"form": sorted({f"{str(one.dtype)[6:]}, {['batch', *one.shape[1:]]}" for one in batches}),
            "images": sum(map(len, batches))}
    if seen != {"form": ["float32, ['batch', 1, 16, 16]"], "images": epochs * len(images)}:
        return seen, None
    prepared, given = images / 128 - 0.5, torch.cat(batches)[:, 0]
    known = {name: number for number, name in enumerate(names(prepared))}
    which = torch.tensor([known.get(name, -1) for name in names(given)])
    moves = torch.full_like(which, -1)
    for number, move in enumerate(MOVES):
        moves[(prepared[which].roll(move, (1, 2)) == given).flatten(1).all(1)] = number
    orders = which.view(epochs, -1)
    neighbours = [set(pairwise(order)) for order in orders.tolist()]
    by_image = moves.view(epochs, -1).gather(1, orders.argsort(1))
    by_batch = [tuple(one.tolist()) for one in moves.split([len(one) for one in batches]) if len(one) > 16]
    return seen | {
        "pictures that no image gives": (which < 0).sum().item(),
        "epochs that lack an image": sum(len(set(order)) < len(images) for order in orders.tolist()),
        "pairs of epochs with the same order": sum(
            2 * len(one & other) > len(images) for one, other in combinations(neighbours, 2)),
        "images moved in another way": (moves < 0).sum().item(),
        "ways to move": len(set(moves.tolist())),
        "pairs of epochs with most moves alike": sum(
            (one == other).float().mean().item() > 0.5 for one, other in combinations(by_image, 2)),
        "batches with the moves of another batch": len(by_batch) - len(set(by_batch))}, which


def same_batches(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


EACH_ONCE = "is there a loop over `epochs`? Does every image come once in each epoch, in the last batch, too?"
EACH_EPOCH = f"{EACH_ONCE} (Call `net(batch)`: what goes through `net.forward(batch)` is not seen.)"
BATCHES = (
    same("images", lambda case: EACH_ONCE if case else EACH_EPOCH),  # a case: of the exercise without a net
    same("form", "how a batch is prepared: `unsqueeze(1) / 128 - 0.5`"),
    nothing("pictures that no image gives",
            "a roll keeps all pixels; is each image converted once, to `pixels / 128 - 0.5`?"),
    nothing("epochs that lack an image", "a `randperm` for each epoch has every number once"),
    nothing("pairs of epochs with the same order", "does `dice` draw a `randperm` of all images for each?",
            "another order in each epoch"),
    nothing("images moved in another way",
            "`randint(-1, 2, …)` draws -1, 0 and 1; does each epoch move the images, or what the last epoch "
            "had moved already?", "rolled by -1, 0 or 1 up and left"),
    same("ways to move", "are the moves made at all? Up and left, each by -1, 0 or 1, each drawn on its own"),
    nothing("pairs of epochs with most moves alike", "what is drawn once is frozen: draw in each epoch"),
    nothing("batches with the moves of another batch", "how many moves are drawn? Two for each image of an "
                                                       "epoch, inside the loop over epochs"))
DICE = (
    nothing("other batches for the same dice", "does every draw take `generator=dice`?", "the same ones"),
    nothing("the same batches for other dice", "take the `dice` that is given, not your own", "others"))


def learned_from(mine, wanted, case):
    if mine["learned from"] != wanted["learned from"]:
        return f"{mine['learned from']:,} images were learned from", f"{wanted['learned from']:,}"


def worse(mine, wanted, case):
    if mine["right"] < wanted["right"] - LESS:
        return f"{mine['right']:.1%} of the test digits are right", f"about {wanted['right']:.1%}"


class Operators(TorchDispatchMode):
    """Counts the operators that are called, and the images that become something else than uint8."""

    count = converted = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        result = operator(*args, **(kwargs or {}))
        whole = any(torch.is_tensor(one) and one.dtype == torch.uint8 for one in args)
        if whole and torch.is_tensor(result) and result.dtype != torch.uint8:
            self.converted += result.numel() // 256
        return result


def trained(loop, epochs=EPOCHS, seed=0, dice=0):
    """Train a fresh network: its batches, what it has learned from, its network, and its operators."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, operators, batches, learned = network(), Operators(), [], []

    def watch(module, inputs, output):
        before = operators.count
        if output.requires_grad:
            batches.append(inputs[0].detach().clone())
            output.register_hook(lambda grad: learned.append(len(grad)))
        operators.count = before  # what this check does is not the learner's

    net.register_forward_hook(watch)
    images, labels = digits(IMAGES)
    torch.manual_seed(seed)
    with operators:
        loop(net, images, labels, epochs, torch.Generator().manual_seed(dice))
    return batches, sum(learned), net, operators.count


@functools.cache
def operators_of_course():
    return trained(course_loop)[-1]


MOVED = BATCHES[6].look
LEARNS = ("does your loop train `net`, with enough steps and cleared gradients? A larger batch needs a "
          "larger rate, and each label has to stay with its image")
FEWER = ("what do you do for each batch that could be done for all at once? "
         "(Casts by autocast are operators, too.)")


class BeatTheCourse(Table, Alone):
    title = "A rung of your own"
    task = ("A plain loop (float32, constant learning rate) trains `net` on `images` (uint8, [N, 16, 16]) "
            "and `labels`. In every epoch each image comes once, in another order, moved by -1, 0 or 1 pixel "
            "up and left (rolled, as `shifted` does), another way each time, as float32 [batch, 1, 16, 16], "
            "`pixels / 128 - 0.5`. `dice` is the generator for all that is random. "
            "`Code(inspect.getsource(ex.course_loop))` shows the loop. Write a loop that does the same, ends "
            "with a network as good (at most 6 points of accuracy less), and calls at most **85%** of the "
            "loop's operators. Forward, backward, optimizer and autocast's casts are counted, too.")
    hints = (
        "What does the loop do for each batch that could be done for all batches of an epoch at once? The "
        "order, the moves and the conversion. Then a batch is a slice.",
        "Or make fewer steps: take a larger batch and raise the learning rate with it. Watch the accuracy.",
        "`pixels[order].split(32)` cuts an epoch into batches. With the labels in the same order, "
        "`zip(pixels.split(32), labels.split(32))` gives both.")
    explanation = ("All random numbers of an epoch are drawn at once. The same few operators that moved and "
                   "converted one batch now move and convert all images. Each step is left with a slice and "
                   "the network.")
    why = ("Each operator costs some microseconds before it computes anything. With small batches that is "
           "much of the time, so fewer operators are faster. On a GPU the same holds for kernels.")
    timeout, computing, slow = 120, 60, True

    def answer(net, images, labels, epochs, dice):
        import torch

        optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, fused=True)
        every = torch.arange(len(images))[:, None, None]
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=dice)
            moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            moved = images[order][every, rows[:, :, None], columns[:, None]]
            pixels = moved.unsqueeze(1) / 128 - 0.5
            for batch, wanted in zip(pixels.split(32), labels[order].split(32), strict=True):
                loss = torch.nn.functional.cross_entropy(net(batch), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def observe(beat_the_course, case):
        batches, learned, net, operators = trained(beat_the_course)
        images, labels = digits(None, train=False)
        with torch.no_grad():
            right = (net(images.unsqueeze(1) / 128 - 0.5).argmax(1) == labels).float().mean().item()
        one, again = trained(beat_the_course, 1, seed=1)[0], trained(beat_the_course, 1, seed=2)[0]
        other = trained(beat_the_course, 1, seed=1, dice=1)[0]
        seen, _ = seen_in(batches, digits(IMAGES)[0], EPOCHS)
        return seen | {"learned from": learned, "right": right, "operators": operators,
                       "operators of the course": operators_of_course(),
                       "other batches for the same dice": not same_batches(one, again),
                       "the same batches for other dice": same_batches(one, other)}

    def judge(self, mine, wanted, case, answer):
        feedback = super().judge(mine, wanted, case, answer)
        if feedback is not None:
            return feedback
        own, course = mine[0]["operators"], mine[0]["operators of the course"]
        count = f"as good a network, with {own:,} operators; the course's loop calls {course:,}"
        return Feedback(CORRECT, count, why_it_matters=self.why)

    rules = (
        *BATCHES,
        *DICE,
        each(learned_from, "a `backward` for each batch, and for each batch a gradient of its own"),
        each(worse, LEARNS),
        between("operators", lambda wanted, case: (EPOCHS, SHARE * wanted["operators of the course"]),
                FEWER))
    mistakes = (
        ("for _ in range(epochs):", "for _ in range(1):", EACH_EPOCH),
        ("images[order][every, rows[:, :, None], columns[:, None]]", "images[order]", MOVED),
        ("lr=0.04", "lr=0.0001", LEARNS),
        ("labels[order].split(32)", "labels.split(32)", LEARNS),
        ((("split(32)", "split(16)"), ("lr=0.04", "lr=0.02")), FEWER))


PIXELS, MOVE = "    pixels = images / 128 - 0.5\n", "[every, rows[:, :, None], columns[:, None]]"
ORDER = "        order = torch.randperm(len(images), generator=dice)\n"
DRAW = "        moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)\n"
LOOP = "    for _ in range(epochs):\n"
TWO_EACH, EXPAND = "(len(images), 2, 1), generator=dice)", ".expand(len(images), 2, 1)"


def calls_of(function, *given):
    """How often Python calls something while this generator runs."""
    calls = []
    sys.setprofile(lambda frame, event, what: calls.append(event in ("call", "c_call")))
    try:
        list(function(*given))
    finally:
        sys.setprofile(None)
    return sum(calls)


class PreparedOnce(Table, Alone):
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

        pixels = images / 128 - 0.5
        every = torch.arange(len(images))[:, None, None]
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=dice)
            moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            moved = pixels[order][every, rows[:, :, None], columns[:, None]].unsqueeze(1)
            yield from zip(moved.split(64), labels[order].split(64), strict=True)

    def observe(prepared_once, case):
        torch.set_num_threads(1)
        count, epochs = case
        images, numbers = digits(count)[0], torch.arange(count)

        def batches(seed, dice):
            torch.manual_seed(seed)
            dice = torch.Generator().manual_seed(dice)
            given = prepared_once(images.clone(), numbers.clone(), epochs, dice)
            # Copies, because the next batch may be written into the same memory.
            return list(zip(*((pixels.clone(), labels.clone()) for pixels, labels in given), strict=True))

        with Operators() as operators:
            pixels, labels = batches(0, 3)
        seen, which = seen_in(pixels, images, epochs)
        few, many = (calls_of(prepared_once, *digits(size), 1, torch.Generator())
                     for size in (8, 64))  # one batch each
        return seen | {
            "labels": sorted({f"{one.dtype}, {one.dim()} dimension(s)" for one in labels}),
            "labels of another image": None if which is None else (torch.cat(labels) != which).sum().item(),
            "sizes of the batches": [len(one) for one in labels],
            "other batches for the same dice": not same_batches(pixels, batches(1, 3)[0]),
            "the same batches for other dice": same_batches(labels, batches(0, 4)[1]),
            "images converted": operators.converted, "calls for each image": int((many - few) / 56)}

    rules = (
        same("labels", "the `yield`: pairs (pixels, labels), and labels that are int64, [64]"),
        *BATCHES,
        nothing("labels of another image", "are both put into the same order?"),
        *DICE,
        same("sizes of the batches", "`split(64)`, on one epoch at a time"),
        between("images converted", lambda wanted, case: (0, case[0]), "what is the same in every epoch?"),
        nothing("calls for each image", "is there a loop over images?"))
    mistakes = (
        (((ORDER, ""), (LOOP, ORDER[4:] + LOOP)), "the order is drawn once, above the loop over epochs"),
        (((DRAW, ""), (LOOP, DRAW[4:] + LOOP)), "the moves are drawn once, above the loop over epochs"),
        (((PIXELS, ""), ("pixels[order]", "(images / 128 - 0.5)[order]")),
         "what is converted in each epoch is the same each time: convert once, above the loop"),
        (f"moved = pixels[order]{MOVE}", f"pixels = pixels{MOVE}\n        moved = pixels[order]",
         "each epoch moves pixels that the last epoch has moved already: keep the unmoved pixels"),
        ("labels[order]", "labels", "pixels and labels: are both put into the same order?"),
        (TWO_EACH, f"(1, 2, 1), generator=dice){EXPAND}", "one move for all images: draw two for each"),
        (TWO_EACH, f"(len(images), 1, 1), generator=dice){EXPAND}",
         "up and left are the same number, or one of them never moves: draw two numbers, and use both"),
        (", generator=dice", "", "`generator=dice` belongs to every draw"),
        (LOOP, f"{LOOP}        dice.manual_seed(0)\n", "`dice` has its seed already: do not seed it again"))


predicted_gain, beat_the_course, prepared_once = PredictedGain(), BeatTheCourse(), PreparedOnce()
