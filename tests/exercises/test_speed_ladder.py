"""Speed ladder: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
predicted_gain   the price forgotten, or paid in each epoch; the beginning forgotten; constants; loops are right
beat_the_course  fewer images, no augmentation, frozen augmentation, labels astray; larger batches are right
prepared_once    the conversion repeated; order or moves frozen; one move for all; a loop over images; lists are right
"""

import torch

from helpers.exercises import speed_ladder as ex
from helpers.exercises.speed_ladder import course_loop
from tests.answers import edits, right, wrong

test_predicted_gain = edits(
    ex.predicted_gain,
    ("(seconds(faster) + price)", "seconds(faster)", "a compiler's price: 1.833"),
    ("(seconds(faster) + price)", "(seconds(faster) + epochs * price)", "once, and not in each epoch"),
    ("epochs * sum(took / faster.get(part, 1) for part, took in each", "sum(took / faster.get(part, 1) for part, took "
     "in each", "decoding at the beginning"),
    ("return start + epochs", "return epochs", "decoding at the beginning: "),
    ("seconds({}) / (seconds(faster) + price)", "(seconds(faster) + price) / seconds({})", "the old time over the new"),
    ("start = sum(took / faster.get(part, 1)", "start = epochs * sum(took / faster.get(part, 1)", "is spent once"),
    ("took / faster.get(part, 1) for part, took in once", "took for part, took in once", "decoding at the beginning"),
    ("took / faster.get(part, 1) for part, took in each", "took for part, took in each", "half of an epoch"),
    ("took / faster.get(part, 1) for part, took in each", "took * faster.get(part, 1) for part, took in each",
     "half of an epoch"),
    ("took / faster.get(part, 1) for part, took in each", "took / max(1, faster.get(part, 1)) for part, took in each",
     "one part slower"),
    ("took / faster.get(part, 1) for part, took in each", "took / faster[part] for part, took in each", "KeyError"),
    ("return seconds({}) / (seconds(faster) + price)", "return str(seconds({}))", "it returned a str"),
)


@wrong(ex.predicted_gain, "a part that is gone")
def test_a_constant_of_the_first_case(once, each, epochs, faster, price):
    return 4 / 3


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
def test_as_a_tensor_made_a_number(once, each, epochs, faster, price):
    names = sorted({*once, *each})
    took = torch.tensor([once.get(name, 0) + epochs * each.get(name, 0) for name in names], dtype=torch.float64)
    speed = torch.tensor([faster.get(name, 1.0) for name in names], dtype=torch.float64)
    return (took.sum() / ((took / speed).sum() + price)).item()


@right(ex.predicted_gain)
def test_by_what_is_saved(once, each, epochs, faster, price):
    old = sum(once.values()) + epochs * sum(each.values())
    saved = sum((once.get(part, 0) + epochs * each.get(part, 0)) * (1 - 1 / times) for part, times in faster.items())
    return old / (old - saved + price)


test_beat_the_course = edits(
    ex.beat_the_course,
    ("for _ in range(epochs):", "for _ in range(epochs // 2):", "2,560 images went through the network"),
    ("images[order][every, rows[:, :, None], columns[:, None]]", "images[order]", "moved in the same way in every"),
    ("    for _ in range(epochs):\n        order = torch.randperm(len(images), generator=dice)\n",
     "    order = torch.randperm(len(images), generator=dice)\n    for _ in range(epochs):\n", "the same order"),
    ("labels[order].split(32)", "labels.split(32)", "of the test digits are right"),
    ("(len(images), 2, 1), generator=dice)", "(1, 2, 1), generator=dice).expand(len(images), 2, 1)",
     "all images of a batch were moved in the same way"),
    ("torch.randint(-1, 2,", "torch.randint(-2, 3,", "by more than a pixel"),
    ("torch.randint(-1, 2,", "torch.randint(0, 2,", "4 of the 9 ways"),
    ("unsqueeze(1) / 128 - 0.5", "unsqueeze(1) / 128", "pixels went through the network that no image has"),
    ("lr=0.04, momentum=0.9", "lr=0.0001, momentum=0.9", "of the test digits are right"),
    ("split(32)", "split(16)", "as good a network, with"),
    (".unsqueeze(1) / 128 - 0.5", ".unsqueeze(1).double() / 128 - 0.5", "float"),
    ("torch.randperm(len(images), generator=dice)", "torch.randint(len(images), (len(images),), generator=dice)",
     "an image came twice"),
)


@wrong(ex.beat_the_course, "as good a network, with")
def test_the_course_itself(net, images, labels, epochs, dice):
    return course_loop(net, images, labels, epochs, dice)


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
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(pixels), wanted).backward()
        optimizer.step()


test_prepared_once = edits(
    ex.prepared_once,
    ("    for _ in range(epochs):\n        order = torch.randperm(len(images), generator=dice)\n",
     "    order = torch.randperm(len(images), generator=dice)\n    for _ in range(epochs):\n", "the same order"),
    ("    for _ in range(epochs):\n        order = torch.randperm(len(images), generator=dice)\n"
     "        moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)\n",
     "    moves = torch.randint(-1, 2, (len(images), 2, 1), generator=dice)\n    for _ in range(epochs):\n"
     "        order = torch.arange(len(images))\n", "the same order"),
    ("pixels[order][every, rows[:, :, None], columns[:, None]]",
     "pixels[every, (torch.arange(16) + 1)[None, :, None] % 16, torch.arange(16)[None, None]][order]",
     "each image was moved in the same way in every epoch"),
    ("labels[order].split(64)", "labels.split(64)", "labels are those of another image"),
    ("split(64)", "split(32)", "batches of 32"),
    ("(len(images), 2, 1), generator=dice)", "(1, 2, 1), generator=dice).expand(len(images), 2, 1)",
     "all images of a batch were moved in the same way"),
    ("(len(images), 2, 1), generator=dice)", "(len(images), 1, 1), generator=dice).expand(len(images), 2, 1)",
     "3 of the 9 ways"),
    ("torch.randint(-1, 2,", "torch.randint(-2, 3,", "by more than a pixel"),
    ("images / 128 - 0.5", "images / 255", "no image has"),
    ((("    pixels = images / 128 - 0.5\n", ""), ("pixels[order]", "(images / 128 - 0.5)[order]")),
     "2,048 images were converted"),
    ("columns[:, None]].unsqueeze(1)", "columns[:, None]]", "a batch is float32, [64, 16, 16]"),
    ("for _ in range(epochs):", "for _ in range(1):", "512 images went through the network"),
    ("yield from zip(moved.split(64), labels[order].split(64), strict=True)",
     "yield moved, labels[order]", "batches of 512"),
    ("yield from zip(moved.split(64), labels[order].split(64), strict=True)",
     "yield from moved.split(64)", "it gave a Tensor"),
)


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
