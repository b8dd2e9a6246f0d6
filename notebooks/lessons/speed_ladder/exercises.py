"""The exercises of the speed ladder: a gain predicted, a rung that beats the course's loop, a rung repaired."""

import copy
import inspect
import sys
from contextlib import ExitStack
from itertools import combinations, pairwise
from threading import Thread
from time import perf_counter
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from helpers.data import Digits
from helpers.exercises.alone import Alone
from helpers.exercises.engine import CORRECT, Feedback, not_yet
from lessons.speed_ladder.slow import network

INF = float("inf")


class PredictedGain(Alone):
    title = "Predict: what does the rung give?"
    task = ("A training spends `once`, a dict {part: seconds}, at its beginning, and `each`, a dict {part: seconds}, "
            "in every one of its `epochs`. A rung makes parts quicker: `faster` is a dict {part: how many times}, of "
            "parts in either dict (a part may stand in both; infinite: `float(\"inf\")`, the part is gone; below 1: "
            "slower). The rung itself takes `price` seconds once, as compiling does. Return how many times as fast the "
            "whole training becomes.")
    hints = ("How long does the training take without the rung? The beginning once, and the epochs.",
             "With it, each part's seconds are divided by its number; parts that are not in `faster` stay as they are.",
             "Python divides by infinity: `3 / float(\"inf\")` is 0.0. And the price comes once, not in each epoch.")
    explanation = "The old time over the new one; the price belongs to the new one, and to no epoch."
    why = ("that is Amdahl's law with a price tag. A part of a third, made infinitely fast, gives 1.5 times, and no "
           "more. And a compiler that takes a minute needs a training that lasts.")
    cases = {
        "half of an epoch, twice as fast": ({}, {"load": 2.0, "compute": 2.0}, 10, {"load": 2.0}, 0.0),
        "a part that is gone": ({}, {"load": 3.0, "compute": 1.0}, 5, {"load": INF}, 0.0),
        "decoding at the beginning": ({"decode": 8.0, "read": 2.0}, {"compute": 1.0}, 10,
                                      {"decode": 4.0, "compute": 2.0}, 0.0),
        "a part in both": ({"decode": 4.0, "read": 2.0}, {"decode": 1.0, "compute": 1.0}, 6, {"decode": 2.0}, 0.0),
        "a compiler's price": ({"decode": 1.0}, {"compute": 2.0}, 5, {"compute": 2.0}, 12.0),
        "one part slower": ({}, {"load": 1.0, "compute": 4.0}, 3, {"load": 0.25, "compute": 4.0}, 0.0),
        "nothing made faster": ({"decode": 2.0}, {"compute": 1.0}, 3, {}, 0.0),
    }

    def answer(once, each, epochs, faster, price):
        def seconds(faster):
            start = sum(took / faster.get(part, 1) for part, took in once.items())
            return start + epochs * sum(took / faster.get(part, 1) for part, took in each.items())

        return seconds({}) / (seconds(faster) + price)

    def probe(predicted_gain, case):
        given = copy.deepcopy(case)
        returned = predicted_gain(*given)
        if given != case:
            return not_yet("your function has changed the dicts that were given to it", "they stay as they are",
                           "what is assigned to")
        try:
            got = f"the text {returned!r}" if isinstance(returned, str) else float(returned)
        except (TypeError, ValueError, RuntimeError):
            got = f"a {type(returned).__name__}"
        if isinstance(got, str):
            return not_yet(f"it returned {got}", "a number", "the `return`")
        (once, each, epochs, faster, price), right = case, PredictedGain.answer(*case)
        if abs(got - right) <= 1e-6 * right:
            return None
        given = f"once={once}, each={each}, epochs={epochs}, faster={faster}, price={price:g}"
        look = next((words for words, value in mistakes(*case) if abs(got - value) <= 1e-6 * abs(value)),
                    "write down both times: the beginning, and the epochs, each part's seconds by a number of its own; "
                    "then divide")
        return not_yet(f"{got:.7g}", f"{right:.7g}, for {given}", look)


def mistakes(once, each, epochs, faster, price):
    """What wrong calculations of the gain give, as pairs (what to look at, value)."""
    def seconds(parts, change=lambda part, took: took / faster.get(part, 1)):
        return sum(change(part, took) for part, took in parts.items())

    start, epoch, before, each_before = seconds(once), seconds(each), sum(once.values()), sum(each.values())
    old, new = before + epochs * each_before, start + epochs * epoch + price
    yield "how many times as fast: the old time over the new one", new / old
    yield "the price comes once, and not in each epoch", old / (new + (epochs - 1) * price)
    yield "the price is paid in full, not shared out among the epochs", old / (new - price + price / epochs)
    for times in epochs - 1, epochs + 1:
        yield ("there are `epochs` epochs, with the first one",
               (before + times * each_before) / (start + times * epoch + price))
    if price:
        yield "the price is missing: the rung itself takes time", old / (new - price)
        yield "the price belongs to the new time, not to the old one", (old + price) / (new - price)
        yield "the price belongs to the new time alone", (old + price) / new
    for starts, times in ((epochs, epochs), (1, 1)):
        yield ("the beginning is spent once, each epoch's parts `epochs` times",
               (starts * before + times * each_before) / (starts * start + times * epoch + price))
    yield "parts at the beginning can become quicker, too", old / (before + epochs * epoch + price)
    yield "what the training spends at its beginning is missing", epochs * each_before / (epochs * epoch + price)
    both = once | {part: epochs * took for part, took in each.items()}
    yield "a part that stands in both dicts is spent in both: is one overwritten?", sum(both.values()) / (
        seconds(both) + price)
    for words, change in (
            ("by infinity a part is gone",
             lambda part, took: took / (faster[part] if faster.get(part, INF) < INF else 1)),
            ("below 1 a part becomes slower", lambda part, took: took / max(1, faster.get(part, 1))),
            ("twice as fast is half of the time: divide", lambda part, took: took * min(faster.get(part, 1), 1e99)),
            *((f"what becomes of `{one}`? It stands in `faster`, and counts as before (is an error hidden?)",
               lambda part, took, one=one: took / (faster | {one: 1}).get(part, 1)) for one in faster)):
        yield words, old / (seconds(once, change) + epochs * seconds(each, change) + price)
    yield "that is what is saved; asked is the old time over the new one", old - new
    yield "that is the part that is saved; asked is the old time over the new one", 1 - new / old
    yield from (("do not round", round(old / new, digits)) for digits in range(1, 6))


#: Of the two exercises below: images, which leave a smaller last batch; epochs of the loop; and the part of the
#: course's operators that may remain.
IMAGES, EPOCHS, SHARE = 500, 10, 0.85
#: How much less of the test may be right: more than luck makes of one training.
LESS = 0.12
OTHER_DICE = ("two calls with the same `dice` gave other batches", "the same ones",
              "does every draw take `generator=dice`?")
SAME_DICE = ("a `dice` of another seed gave the same batches, or the same order", "other ones",
             "the `dice` that your function is given, and no generator or seed of its own")


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


class BeatTheCourse(Alone):
    title = "A rung of your own"
    task = ("A plain loop (float32, constant rate) trains `net` on `images` (uint8, [N, 16, 16]) and their `labels`: "
            "in every epoch each image once, in another order, each moved by -1, 0 or 1 pixel up and left (rolled, as "
            "in `shifted`), another way each time; as float32 [batch, 1, 16, 16], `pixels / 128 - 0.5`; `dice` is the "
            "generator for what is random. Its source: `Code(inspect.getsource(ex.course_loop))`. Write a loop that "
            f"does all this, ends with a network as good (at most {100 * LESS:.0f} points of accuracy less), and calls "
            f"at most **{SHARE:.0%}** of its operators, forward, backward and optimizer included. (Casts by autocast "
            "are operators, too.)")
    hints = (
        "What is done for each batch, and could be done for all batches of an epoch at once? The order, the moves, the "
        "conversion: then a batch is a slice.",
        "Or make fewer steps: a larger batch, with a rate that grows along. Watch what it learns.",
        "`pixels[order].split(32)` cuts an epoch into batches; with the labels in the same order, "
        "`zip(pixels.split(32), labels.split(32))` gives both.",
    )
    explanation = ("Everything that is random is drawn for a whole epoch, and all images are moved and converted "
                   "by the same few operators that a batch needed. Each step is left with a slice, and the network.")
    why = ("each operator costs some microseconds before it does anything. With small batches that is much of the "
           "time, so whoever calls fewer of them wins; on a GPU it is the same with kernels.")
    timeout, computing = 120, 60

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

    def probe(beat_the_course, case):
        images, labels, test = digits(IMAGES)
        own, best = trained(beat_the_course, images, labels, test), {}
        if own["broken"]:
            return not_yet(*own["broken"])
        if own["learned"] != EPOCHS * IMAGES:
            return not_yet(f"{own['learned']:,} of {EPOCHS * IMAGES:,} images were learned from", "all of them",
                           "a `backward` for each batch, and for each batch a gradient of its own")
        course = trained(course_loop, images, labels, test)
        if own["right"] < course["right"] - LESS:
            return not_yet(f"{own['right']:.1%} of the test digits are right",
                           f"about {course['right']:.1%}, as with the course's loop",
                           "is it `net` that is trained, in steps enough? A larger batch needs a larger rate; each "
                           "label has to stay with its image; each step uses its own gradient")
        first, same, other = (
            torch.cat(trained(beat_the_course, images, labels, test, 1, seed=seed, dice=dice)["given"])
            for seed, dice in ((1, 0), (2, 0), (1, 1)))
        if not torch.equal(first, same):
            return not_yet(*OTHER_DICE)
        if torch.equal(first, other):
            return not_yet(*SAME_DICE)
        count = f"{own['operators']:,} operators; the course's loop calls {course['operators']:,}"
        if own["operators"] > SHARE * course["operators"]:
            return not_yet(f"as good a network, with {count}", f"at most {SHARE:.0%} of them",
                           "what is done for each batch, and could be done for all batches at once? (Casts by autocast "
                           "are operators, too.)")
        for loop in 2 * (course_loop, beat_the_course):  # in turn: what disturbs one, disturbs the other
            began = perf_counter()
            trained(loop, images, labels, test, epochs=2, count=False)
            best[loop] = min(best.get(loop, INF), perf_counter() - began)
        faster = best[course_loop] / best[beat_the_course]
        busy = "" if faster > 1 else " (fewer operators, but not quicker just now: is the machine busy?)"
        return Feedback(CORRECT, f"{faster:.1f}× as fast, with {count}{busy}", why_it_matters=BeatTheCourse.why)


def digits(count):
    """Images of 16×16 pixels for training, uint8, their labels, and the test: prepared images and labels."""
    train, test = Digits(train=True), Digits(train=False)
    larger = [one.data.repeat_interleave(2, 1).repeat_interleave(2, 2) for one in (train, test)]
    return larger[0][:count], train.targets[:count], (larger[1].unsqueeze(1) / 128 - 0.5, test.targets)


def trained(loop, images, labels, test, epochs=EPOCHS, count=True, seed=0, dice=0):
    """Train a fresh network with a loop: {"operators", "learned", "right", "broken": what `not_yet` takes, or None,
    "given": the batches}. With another seed, only what is not drawn from `dice` differs; `dice` seeds the rest."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, seen, made, learned, watching = network(), [], [], [], []
    torch.manual_seed(seed)

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            if not watching:
                made.append(operator)
            return operator(*args, **(kwargs or {}))

    def enter(module, inputs):
        watching.append(True)
        if torch.is_grad_enabled():
            seen.append(inputs[0].detach().clone())
        watching.clear()

    def leave(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda grad: learned.append(len(grad)))

    def run(thread, runs=Thread.run):
        with Operators():  # a mode is that of one thread
            runs(thread)

    with ExitStack() as watched:
        if count:
            for one in Operators(), mock.patch.object(Thread, "run", run):
                watched.enter_context(one)
            for hook in net.register_forward_pre_hook(enter), net.register_forward_hook(leave):
                watched.callback(hook.remove)
        loop(net, images.clone(), labels.clone(), epochs, torch.Generator().manual_seed(dice))
    if not count:
        return None
    with torch.no_grad():
        right = (net(test[0]).argmax(1) == test[1]).float().mean().item()
    wrong = broken(seen, images, epochs) if seen else (
        "nothing went through the network", f"{len(images)} images in each epoch",
        "call `net(batch)`; what goes through `net.forward` or the layers alone is not seen")
    return {"operators": len(made), "learned": sum(learned), "right": right, "broken": wrong,
            "given": seen}


def names(pixels):
    """A name for each image, by which it is known when it is rolled: its sorted pixels, for a roll changes none."""
    return [tuple(one) for one in pixels.flatten(1).sort(1).values.tolist()]


def broken(seen, images, epochs):
    """What is wrong with the batches that went through a network, as `not_yet` takes it; None if nothing is."""
    count = sum(len(batch) for batch in seen)
    bad = next((batch for batch in seen if batch.dtype != torch.float32 or batch.shape[1:] != (1, 16, 16)), None)
    if bad is not None:
        return (f"a batch is {str(bad.dtype).removeprefix('torch.')}, {list(bad.shape)}",
                "float32, [batch, 1, 16, 16]", "how a batch is prepared: `unsqueeze(1) / 128 - 0.5`")
    if count != epochs * len(images):
        return (f"{count:,} images went through the network, with gradients",
                f"{epochs * len(images):,}: {len(images)} in each of {epochs} epochs",
                "is there a loop over `epochs`?" if count == len(images)
                else "does every image have its turn in every epoch, in the last batch, too?")
    prepared = images.unsqueeze(1) / 128 - 0.5
    keys = {name: number for number, name in enumerate(names(prepared))}  # no two have the same pixels
    given = torch.cat(seen)
    numbers = [keys.get(name) for name in names(given)]
    if None in numbers:
        return ("pixels went through the network that no image has", "each image rolled, and then `/ 128 - 0.5`",
                "a roll keeps all pixels; and are they converted once, not twice or not at all?")
    numbers = torch.tensor(numbers).view(epochs, -1)
    if any(len(set(epoch.tolist())) < len(images) for epoch in numbers):
        return ("in some epoch an image came twice, and another not at all", "each image once in every epoch",
                "a `randperm` for each epoch has every number once")
    neighbours = [set(pairwise(epoch)) for epoch in numbers.tolist()]
    if any(2 * len(one & other) > len(one) for one, other in combinations(neighbours, 2)):
        return ("two epochs had the same order, at least in parts", "another order in each epoch",
                "where is the `randperm` drawn, and by which generator? One for each epoch, of all images, by `dice` "
                "itself, which is never seeded again")
    grid = [(up, left) for up in (-1, 0, 1) for left in (-1, 0, 1)]
    original = prepared[numbers.flatten(), 0]
    kinds = torch.full((len(given),), -1)
    for kind, (up, left) in enumerate(grid):
        same = (original.roll((up, left), (1, 2)) == given[:, 0]).flatten(1).all(1)
        kinds[same & (kinds < 0)] = kind
    if (kinds < 0).any():
        return ("an image was moved by more than a pixel, or in another way", "rolled by -1, 0 or 1 up and left",
                "`randint(-1, 2, …)` draws -1, 0 and 1; and are the unmoved pixels moved in each epoch, or those that "
                "the last epoch had moved already?")
    if (kinds == grid.index((0, 0))).all():
        return ("no image was moved", "rolled by -1, 0 or 1 up and left", "are the moves made at all?")
    by_place = kinds.view(epochs, -1)
    by_image = by_place.gather(1, numbers.argsort(1))
    if (by_image == by_image[0]).all():
        return ("each image was moved in the same way in every epoch", "another way each time",
                "what is drawn once is frozen: the moves have to be drawn in each epoch")
    batches = [tuple(batch.tolist()) for batch in kinds.split([len(batch) for batch in seen]) if len(batch) > 16]
    if any(len(set(batch)) == 1 for batch in batches):
        return ("all images of a batch were moved in the same way", "each image in a way of its own",
                "how many moves are drawn? Two for each image")
    if len(set(kinds.tolist())) < 9:
        return (f"{len(set(kinds.tolist()))} of the 9 ways to move an image were seen", "all nine",
                "up and left, each by -1, 0 or 1 (`randint(-1, 2, …)` draws these), and each drawn on its own")
    if any((one == other).float().mean() > 0.5 for one, other in combinations(by_image, 2)):
        return ("in two epochs the images were moved in the same way", "another way each time",
                "what is drawn once is frozen: the moves have to be drawn in each epoch")
    if any((one == other).float().mean() > 0.5 for one, other in combinations(by_place, 2)):
        return ("the moves came in the same order in two epochs", "drawn anew in each epoch",
                "is the `randint` inside the loop over epochs?")
    if len(set(batches)) < len(batches):
        return ("two batches had the same moves, one after the other", "moves of its own for each image",
                "how many moves are drawn? Two for each image of an epoch")
    return None


class PreparedOnce(Alone):
    title = "Hunt: the cache that froze the dice"
    task = ("A generator that gives the batches of all `epochs`, as pairs (pixels, labels): float32 [64, 1, 16, 16], "
            "`pixels / 128 - 0.5`, and int64 [64] (the last one of an epoch may be smaller). `images` is uint8 [N, 16, "
            "16]. In every epoch each image comes once, in another order, rolled by -1, 0 or 1 pixel up and left, each "
            "image in a way of its own, another one in every epoch; `dice` is the generator for what is random. Keep "
            "what is good about the rung: all images are converted to float **once**, and no loop goes over images.")
    hints = (
        "What is drawn once is the same for ever. Which of the lines above the loop draw something?",
        "One `roll` moves all images alike. `shifted` in the rung *Augment whole batches* moves each in its own way, "
        "with an index for each image.",
        "Conversion may stay above the loop: moving pixels and converting them can change places.",
    )
    explanation = ("Only the conversion is the same in every epoch, so only that may be done once. Order and moves "
                   "are drawn anew, the moves two for each image.")
    why = ("a cache is right for what is always the same, and wrong for what is meant to change. Nothing fails: the "
           "loss even falls faster, for the network learns a few fixed pictures by heart. Look at what you cache: is "
           "anything random above that line?")
    cases = {"512 images, 4 epochs": (512, 4), "200 images, 6 epochs": (200, 6)}

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

    def probe(prepared_once, case):
        count, epochs = case
        images, _, _ = digits(count)
        images[:, 0, 0] = torch.arange(count) % 251  # no two are alike
        images[:, 0, 1] = torch.arange(count) // 251
        labels = torch.arange(count)
        converted, calls = [], []

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
                result = operator(*args, **(kwargs or {}))
                tensors = [one for one in args if torch.is_tensor(one)]
                whole = any(one.is_floating_point() for one in tensors)
                if torch.is_tensor(result) and result.is_floating_point() and any(
                        one.dtype == torch.uint8 or (not whole and one.shape[-2:] == (16, 16)) for one in tensors):
                    converted.append(result.numel() // 256)
                calls.append(operator)
                return result

        def batches(seed, dice=3):
            torch.manual_seed(seed)
            given = prepared_once(images.clone(), labels.clone(), epochs, torch.Generator().manual_seed(dice))
            return [tree_map_only(torch.Tensor, torch.clone, one) for one in given]  # the next may be written over it

        file = getattr(getattr(inspect.unwrap(prepared_once), "__code__", None), "co_filename", None)

        def called(frame, event, function):  # by the lines of the answer itself: what numpy does is no operator
            caller = frame if event == "c_call" else frame.f_back if event == "call" else None
            if caller and caller.f_code.co_filename == file:
                own_calls.append(event)

        with Operators():
            found = batches(seed=0)
        own_calls = []
        sys.setprofile(called)
        try:
            again = batches(seed=1)
        finally:
            sys.setprofile(None)
        form = "pairs (pixels, labels), and labels that are int64, [64]", "the `yield`"
        if not all(isinstance(one, tuple | list) and len(one) == 2 for one in found):
            return not_yet(f"it gave a {type(found[0]).__name__}", *form)
        odd = next((one for _, one in found if one.dtype != torch.int64 or one.dim() != 1), None)
        if odd is not None:
            return not_yet(f"it gave labels that are {str(odd.dtype)[6:]}, {list(odd.shape)}", *form)
        if wrong := broken([pixels.detach().clone() for pixels, _ in found], images, epochs):
            return not_yet(*wrong)
        keys = {name: number for number, name in enumerate(names(images / 128 - 0.5))}
        own = torch.tensor([keys[name] for name in names(torch.cat([pixels for pixels, _ in found]))])
        if apart := int((own != torch.cat([given for _, given in found])).sum()):
            return not_yet(f"{apart:,} of {count * epochs:,} labels are those of another image",
                           "each image comes with its own label", "are both put into the same order?")
        sizes = [len(pixels) for pixels, _ in found]
        if sizes != epochs * [len(part) for part in labels.split(64)]:
            return not_yet(f"batches of {', '.join(map(str, sorted(set(sizes), reverse=True)))} images",
                           "64, and what is left at the end of an epoch", "`split(64)`, on one epoch at a time")
        if len(found) != len(again) or not all(torch.equal(*two) for one, other in zip(found, again, strict=True)
                                               for two in zip(one, other, strict=True)):
            return not_yet(*OTHER_DICE)
        other = batches(seed=0, dice=4)
        if len(found) == len(other) and any(
                all(torch.equal(two[place], three[place]) for two, three in zip(found, other, strict=True))
                for place in (0, 1)):
            return not_yet(*SAME_DICE)
        if sum(converted) > count:
            return not_yet(f"the batches are right, but {sum(converted):,} images were converted to float",
                           f"{count}: each once, for all epochs", "what is the same in every epoch?")
        # A loop over images calls for each; one over the nine moves, for each batch, has up to 60 operators in a batch.
        if max(len(calls) / 2, len(own_calls)) > count * epochs:
            return not_yet(f"the batches are right, made by {max(len(calls), len(own_calls)):,} calls",
                           "a few for each epoch or batch", "is there a loop over images?")
        return None


predicted_gain, beat_the_course, prepared_once = PredictedGain(), BeatTheCourse(), PreparedOnce()
