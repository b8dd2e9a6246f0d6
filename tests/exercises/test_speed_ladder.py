"""The speed ladder: cheats and kinds of mistakes that no row of a table can be, and right answers in other styles."""

import pytest
import torch

from lessons.speed_ladder import exercises as ex
from lessons.speed_ladder.exercises import course_loop
from tests.answers import edits, right, wrong

test_predicted_gain = edits(
    ex.predicted_gain,
    (ex.GAIN, "4 / 3", "a part that is gone: 1.333333"),
    (ex.GAIN, f"str({ex.GAIN})", "must be real number, not str"),
    (ex.GAIN, f"round({ex.GAIN}, 5)", "do not round"),
)


@wrong(ex.predicted_gain, "write down both times")
def test_a_part_of_the_beginning_is_no_part_of_an_epoch(once, each, epochs, faster, price):
    old = sum(once.values()) + epochs * sum(each.values())
    saved = sum((once[part] if part in once else epochs * each[part]) * (1 - 1 / times)
                for part, times in faster.items())
    return old / (old - saved + price)


@wrong(ex.predicted_gain, "in both dicts")
def test_both_dicts_in_one(once, each, epochs, faster, price):
    parts = once | {part: epochs * took for part, took in each.items()}
    return sum(parts.values()) / (sum(took / faster.get(part, 1) for part, took in parts.items()) + price)


@wrong(ex.predicted_gain, "dicts that you changed")
def test_divides_in_place(once, each, epochs, faster, price):
    before = sum(once.values()) + epochs * sum(each.values())
    for parts in (once, each):
        for part in parts:
            parts[part] /= faster.get(part, 1)
    return before / (price + sum(once.values()) + epochs * sum(each.values()))


@right(ex.predicted_gain)
def test_with_loops_and_fractions(once, each, epochs, faster, price):
    old, new = 0, price
    for times, parts in ((1, once), (epochs, each)):
        for part in parts:
            old += times * parts[part]
            if part not in faster:
                new += times * parts[part]
            elif faster[part] != float("inf"):
                new += times * parts[part] / faster[part]
    return old / new


@right(ex.predicted_gain)
def test_as_a_tensor(once, each, epochs, faster, price):
    names = sorted({*once, *each})
    took = torch.tensor([once.get(name, 0) + epochs * each.get(name, 0) for name in names], dtype=torch.float64)
    speed = torch.tensor([faster.get(name, 1.0) for name in names], dtype=torch.float64)
    return took.sum() / ((took / speed).sum() + price)


@right(ex.predicted_gain)
def test_by_what_is_saved(once, each, epochs, faster, price):
    old = sum(once.values()) + epochs * sum(each.values())
    saved = sum((once.get(part, 0) + epochs * each.get(part, 0)) * (1 - 1 / times) for part, times in faster.items())
    return old / (old - saved + price)


LEARN = "            optimizer.zero_grad()\n            loss.backward()\n"
test_beat_the_course = edits(
    ex.beat_the_course,
    (((LEARN, "            if number % 2 == 0:\n" + LEARN.replace(12 * " ", 16 * " ")),
      ("for batch, wanted in zip(", "for number, (batch, wanted) in enumerate(zip("),
      ("strict=True):", "strict=True)):")), "a gradient of its own"),
    ("net(batch)", "net.forward(batch)", "what goes through `net.forward(batch)` is not seen"),
    ("2, 1), generator=dice)", "2, 1))", "does every draw take `generator=dice`?"),
)


@wrong(ex.beat_the_course, "operators: 115")
def test_the_course_itself(net, images, labels, epochs, dice):
    return course_loop(net, images, labels, epochs, dice)


@wrong(ex.beat_the_course, "at least 10")
def test_hides_in_a_thread(net, images, labels, epochs, dice):
    import threading

    from lessons.speed_ladder.exercises import course_loop

    thread = threading.Thread(target=course_loop, args=(net, images, labels, epochs, dice))
    thread.start()
    thread.join()


@right(ex.beat_the_course)
def test_a_larger_batch_with_a_larger_rate(net, images, labels, epochs, dice):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.06, momentum=0.9, fused=True)
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=dice).split(48):
            batch = images[indices]
            moves = torch.randint(-1, 2, (len(batch), 2, 1), generator=dice)
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            batch = batch[torch.arange(len(batch))[:, None, None], rows[:, :, None], columns[:, None]]
            loss = torch.nn.functional.cross_entropy(net(batch.unsqueeze(1) / 128 - 0.5), labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@right(ex.beat_the_course)
def test_all_epochs_prepared_before_the_first(net, images, labels, epochs, dice):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, fused=True)
    pixels = images / 128 - 0.5
    versions = torch.stack([pixels.roll((up, left), (1, 2)) for up in (-1, 0, 1) for left in (-1, 0, 1)])
    order = torch.cat([torch.randperm(len(images), generator=dice) for _ in range(epochs)])
    moved = versions[torch.randint(9, order.shape, generator=dice), order].unsqueeze(1)
    for batch, wanted in zip(moved.split(32), labels[order].split(32), strict=True):
        torch.nn.functional.cross_entropy(net(batch), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()


@right(ex.beat_the_course)
def test_batches_of_the_hunts_generator(net, images, labels, epochs, dice):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)
    for pixels, wanted in ex.PreparedOnce.answer(images, labels, epochs, dice):
        parameters = list(net.parameters())
        gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(net(pixels), wanted), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


test_prepared_once = pytest.mark.long(edits(
    ex.prepared_once,
    (ex.TWO_EACH, "(64, 2, 1), generator=dice).repeat(-(-len(images) // 64), 1, 1)[:len(images)]",
     "batches with the moves of another batch: 12"),
    (((ex.LOOP, "    orders = [torch.randperm(len(images), generator=dice) for _ in range(2)]\n"
                "    for epoch in range(epochs):\n"),
      (ex.ORDER, "        order = orders[epoch % 2]\n")), "pairs of epochs with the same order: 6"),
    (((ex.LOOP, "    sets = torch.randint(-1, 2, (2, len(images), 2, 1), generator=dice)\n"
                "    for epoch in range(epochs):\n"),
      (ex.DRAW[16:-1], "sets[epoch % 2][order]")), "what is drawn once is frozen"),
    (((ex.PIXELS, ""), ("pixels[order]", "(images.int() / 128 - 0.5)[order]")), "1200"),
    (ex.LOOP, "    for epoch in range(epochs):\n        dice = torch.Generator().manual_seed(epoch)\n",
     "the same batches for other dice"),
    ("images / 128 - 0.5", "images / 255", "pictures that no image gives"),
))


@wrong(ex.prepared_once, "is there a loop over images?")
def test_image_by_image(images, labels, epochs, dice):
    pixels = images.unsqueeze(1) / 128 - 0.5
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=dice).split(64):
            moves = torch.randint(-1, 2, (len(indices), 2), generator=dice).tolist()
            pairs = zip(indices, moves, strict=True)
            yield torch.stack([pixels[i].roll(move, (1, 2)) for i, move in pairs]), labels[indices]


@right(ex.prepared_once)
def test_moves_batch_by_batch(images, labels, epochs, dice):
    pixels = images.float() / 128 - 0.5
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=dice).split(64):
            moves = torch.randint(-1, 2, (len(indices), 2, 1), generator=dice)
            rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
            batch = pixels[indices[:, None, None], rows[:, :, None], columns[:, None]]
            yield batch[:, None], labels[indices]


@right(ex.prepared_once)
def test_nine_rolls_of_all_images_once(images, labels, epochs, dice):
    """More memory, no index arithmetic: every moved version is made once, and picked from."""
    pixels = images.unsqueeze(1) / 128 - 0.5
    versions = torch.stack([pixels.roll((up, left), (2, 3)) for up in (-1, 0, 1) for left in (-1, 0, 1)])
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        picked = torch.randint(9, (len(images),), generator=dice)
        moved = versions[picked, order]
        yield from ((moved[start:start + 64], labels[order[start:start + 64]]) for start in range(0, len(order), 64))


@right(ex.prepared_once)
def test_bytes_moved_in_a_padded_picture(images, labels, epochs, dice):
    """Wrapped around by one pixel, then cut out: a roll as well."""
    pixels = images.unsqueeze(1).to(torch.float32).div_(128).sub_(0.5)
    wide = torch.nn.functional.pad(pixels, (1, 1, 1, 1), mode="circular").squeeze(1)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        up, left = torch.randint(0, 3, (2, len(images), 1), generator=dice)
        rows, columns = (up + torch.arange(16))[:, :, None], (left + torch.arange(16))[:, None]
        moved = wide[order[:, None, None], rows, columns][:, None]
        yield from zip(moved.split(64), labels[order].split(64), strict=True)


@right(ex.prepared_once)
def test_shuffles_what_it_was_given(images, labels, epochs, dice):
    pixels = images / 128 - 0.5
    images.zero_()  # no longer needed
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        pixels, labels[:] = pixels[order], labels[order]
        moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)
        rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
        moved = pixels[torch.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None]]
        yield from zip(moved.unsqueeze(1).split(64), labels.clone().split(64), strict=True)


@right(ex.prepared_once)
def test_nine_rolls_by_mask_in_each_batch(images, labels, epochs, dice):
    pixels = images.unsqueeze(1) / 128 - 0.5
    for _ in range(epochs):
        for numbers in torch.randperm(len(images), generator=dice).split(64):
            up, left = torch.randint(-1, 2, (2, len(numbers)), generator=dice)
            batch = pixels[numbers]
            moved = batch.clone()
            for i in (-1, 0, 1):
                for j in (-1, 0, 1):
                    mask = (up == i) & (left == j)
                    moved[mask] = batch[mask].roll((i, j), (2, 3))
            yield moved, labels[numbers]


@right(ex.prepared_once)
def test_one_buffer_for_all_epochs(images, labels, epochs, dice):
    pixels = images / 128 - 0.5
    every, moved = torch.arange(len(images))[:, None, None], torch.empty(len(images), 1, 16, 16)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)
        rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
        moved.copy_(pixels[order][every, rows[:, :, None], columns[:, None]].unsqueeze(1))
        yield from zip(moved.split(64), labels[order].split(64), strict=True)
