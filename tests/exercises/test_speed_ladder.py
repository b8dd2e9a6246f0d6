"""The speed ladder: right answers in other styles, and wrong ones that no row of a table can be."""

import torch

from lessons.speed_ladder import exercises as ex
from tests.answers import edits, right, wrong


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
    took = [once.get(name, 0) + epochs * each.get(name, 0) for name in names]
    took = torch.tensor(took, dtype=torch.float64)
    speed = torch.tensor([faster.get(name, 1.0) for name in names], dtype=torch.float64)
    return took.sum() / ((took / speed).sum() + price)


LEARN = "            optimizer.zero_grad()\n            loss.backward()\n"
#: Of both exercises whose `dice` is the generator for all that is random.
SEEDED_AGAIN = ("    every =", "    dice = torch.Generator().manual_seed(dice.initial_seed())\n    every =",
                "do not seed it again")
OWN_MOVES = ((("    every =", "    own = torch.Generator().manual_seed(0)\n    every ="),
              ("2, 1), generator=dice)", "2, 1), generator=own)")), "the same for other dice: ['moves']")

test_beat_the_course = edits(
    ex.beat_the_course,
    (((LEARN, "            if number % 2 == 0:\n" + LEARN.replace(12 * " ", 16 * " ")),
      ("for batch, wanted in zip(", "for number, (batch, wanted) in enumerate(zip("),
      ("strict=True):", "strict=True)):")), "a gradient of its own"),
    ((("            optimizer.step()", "            if number % 2:\n                optimizer.step()"),
      ("for batch, wanted in zip(", "for number, (batch, wanted) in enumerate(zip("),
      ("strict=True):", "strict=True)):")), "two batches for one step are a larger batch"),
    SEEDED_AGAIN,
    ("net(batch)", "net.forward(batch)", "what goes through `net.forward(batch)` is not seen"),
    ("2, 1), generator=dice)", "2, 1))", "does every draw take `generator=dice`?"),
    OWN_MOVES,
)


@wrong(ex.beat_the_course, "at least 10")
def test_hides_in_a_thread(net, images, labels, epochs, dice):
    import threading

    from lessons.speed_ladder.exercises import course_loop

    thread = threading.Thread(target=course_loop, args=(net, images, labels, epochs, dice))
    thread.start()
    thread.join()


@wrong(ex.beat_the_course, "the largest batch has 48 images")
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
def test_an_index_for_all_batches_of_an_epoch(net, images, labels, epochs, dice):
    """Converts once, and moves by one index into flat images."""
    pixels = (images / 128 - 0.5).flatten(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, fused=True)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        up, left = torch.randint(-1, 2, (2, len(images), 1, 1), generator=dice)
        rows = (torch.arange(16)[:, None] - up) % 16
        columns = (torch.arange(16) - left) % 16
        moved = pixels[order].gather(1, (16 * rows + columns).flatten(1)).view(-1, 1, 16, 16)
        for start in range(0, len(images), 32):
            optimizer.zero_grad()
            wanted = labels[order[start:start + 32]]
            torch.nn.functional.cross_entropy(net(moved[start:start + 32]), wanted).backward()
            optimizer.step()


test_prepared_once = edits(
    ex.prepared_once,
    ("(len(images), 2, 1), generator=dice)",
     "(64, 2, 1), generator=dice).repeat(-(-len(images) // 64), 1, 1)[:len(images)]",
     "times that 16 moves in a row have come before"),
    ((("moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)", "moves = drawn.roll(_, 0)"),
      ("    every =", "    drawn = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)\n    every =")),
     "times that 16 moves in a row have come before"),
    ((("images / 128 - 0.5", "images.to(torch.int16)"), ("pixels[order]", "(pixels / 128 - 0.5)[order]")),
     "images converted: 1400"),
    OWN_MOVES,
    ((("images / 128 - 0.5", "torch.arange(256) / 128 - 0.5"),
      ("pixels[order][every, rows[:, :, None], columns[:, None]]",
       "pixels[images[order][every, rows[:, :, None], columns[:, None]].long()]")), "images converted: 1201"),
    SEEDED_AGAIN,
    ("images / 128 - 0.5", "images / 255", "pictures that no image gives"),
)


@wrong(ex.prepared_once, "is there a loop over images?")
def test_image_by_image(images, labels, epochs, dice):
    pixels = images.unsqueeze(1) / 128 - 0.5
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=dice).split(64):
            moves = torch.randint(-1, 2, (len(indices), 2), generator=dice).tolist()
            pairs = zip(indices, moves, strict=True)
            yield torch.stack([pixels[i].roll(move, (1, 2)) for i, move in pairs]), labels[indices]


@wrong(ex.prepared_once, "is there a loop over images?")
def test_takes_each_image_by_an_index(images, labels, epochs, dice):
    pixels = images.unsqueeze(1) / 128 - 0.5
    ways = torch.stack([pixels.roll((up, left), (2, 3)) for up in (-1, 0, 1) for left in (-1, 0, 1)])
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        moves = torch.randint(9, (len(images),), generator=dice)
        moved = torch.stack([ways[move, i] for move, i in zip(moves.tolist(), order.tolist(), strict=True)])
        yield from zip(moved.split(64), labels[order].split(64), strict=True)


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
def test_one_buffer_for_all_epochs(images, labels, epochs, dice):
    pixels = images / 128 - 0.5
    every, moved = torch.arange(len(images))[:, None, None], torch.empty(len(images), 1, 16, 16)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)
        rows, columns = ((torch.arange(16) - moves) % 16).unbind(1)
        moved.copy_(pixels[order][every, rows[:, :, None], columns[:, None]].unsqueeze(1))
        yield from zip(moved.split(64), labels[order].split(64), strict=True)


@right(ex.prepared_once)
def test_loops_over_the_moves_that_were_drawn(images, labels, epochs, dice):
    pixels = images.unsqueeze(1) / 128 - 0.5
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=dice)
        moves = torch.randint(-1, 2, (len(images), 2), generator=dice)
        moved = pixels[order]
        for move in moves.unique(dim=0):
            alike = (moves == move).all(1)
            moved[alike] = moved[alike].roll(move.tolist(), (2, 3))
        yield from zip(moved.split(64), labels[order].split(64), strict=True)
