"""What can be seen of a training's batches: which images they hold, how these were moved, who drew the dice."""

from itertools import combinations, pairwise

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.data import Digits
from helpers.exercises.rules import nothing, same

#: By how many pixels an image may be rolled, up and left.
MOVES = [(up, left) for up in (-1, 0, 1) for left in (-1, 0, 1)]


def digits(count, train=True):
    """Images of 16×16 pixels, uint8, no two with the same pixels, and their labels."""
    dataset = Digits(train=train)
    larger = dataset.data.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return larger[:count], dataset.targets[:count]


def names(pixels):
    """A name for each image, by which it is known when it is rolled: its sorted pixels."""
    return [tuple(image) for image in pixels.flatten(1).sort(1).values.tolist()]


def seen_in(batches, images, epochs):
    """What can be seen of a training's batches, and the order and moves drawn; if their form is wrong, no more."""
    forms = {f"{str(batch.dtype)[6:]}, {['batch', *batch.shape[1:]]}" for batch in batches}
    seen = {"form": sorted(forms), "images": sum(map(len, batches))}
    if seen != {"form": ["float32, ['batch', 1, 16, 16]"], "images": epochs * len(images)}:
        return seen, {}

    prepared = images / 128 - 0.5
    given = torch.cat(batches)[:, 0]
    known = {name: number for number, name in enumerate(names(prepared))}
    which = torch.tensor([known.get(name, -1) for name in names(given)])
    moves = torch.full_like(which, -1)
    for number, move in enumerate(MOVES):
        moves[(prepared[which].roll(move, (1, 2)) == given).flatten(1).all(1)] = number

    orders = which.view(epochs, -1)
    seen["pictures that no image gives"] = (which < 0).sum().item()
    seen["epochs that lack an image"] = sum(len(set(order)) < len(images) for order in orders.tolist())
    # An order is known by who comes after whom: it stays the same order if it only begins elsewhere.
    neighbours = [set(pairwise(order)) for order in orders.tolist()]
    seen["pairs of epochs with the same order"] = sum(
        2 * len(first & second) > len(images) for first, second in combinations(neighbours, 2))

    by_image = moves.view(epochs, -1).gather(1, orders.argsort(1))
    again = 0
    for table in (moves.view(epochs, -1), by_image):
        # Sixteen moves in a row do not come twice by chance.
        in_a_row = [tuple(row) for row in table.unfold(1, 16, 1).flatten(0, 1).tolist()]
        again = max(again, len(in_a_row) - len(set(in_a_row)))
    seen["images moved in another way"] = (moves < 0).sum().item()
    seen["ways to move"] = len(set(moves.tolist()))
    seen["pairs of epochs with most moves alike"] = sum(
        (first == second).float().mean().item() > 0.5 for first, second in combinations(by_image, 2))
    seen["times that 16 moves in a row have come before"] = again
    return seen, {"order": which, "moves": moves, "moves of each image": by_image}


def dice_of(seed, further):
    """A generator that has drawn `further` numbers already: other dice cannot be had from their seed."""
    generator = torch.Generator().manual_seed(seed)
    torch.rand(further, generator=generator)
    return generator


def same_draws(drawn, others):
    """What of the order and the moves is the same in both."""
    return [what for what in drawn if what in others and torch.equal(drawn[what], others[what])]


def same_batches(batches, others):
    return len(batches) == len(others) and all(map(torch.equal, batches, others))


EACH_ONCE = "is there a loop over `epochs`? Does every image come once in each epoch, in the last batch, too?"
MOVED = "are the moves made at all? Up and left, each by -1, 0 or 1, each drawn on its own"


def rules_of_batches(each_once=EACH_ONCE):
    """What must hold of `seen_in`."""
    return (
        same("images", each_once),
        same("form", "how a batch is prepared: `unsqueeze(1) / 128 - 0.5`"),
        nothing("pictures that no image gives",
                "a roll keeps all pixels; is each image converted once, to `pixels / 128 - 0.5`?"),
        nothing("epochs that lack an image", "a `randperm` for each epoch has every number once"),
        nothing("pairs of epochs with the same order", "does `dice` draw a `randperm` of all images for each?",
                "another order in each epoch"),
        nothing("images moved in another way",
                "`randint(-1, 2, …)` draws -1, 0 and 1; does each epoch move the images, or what the last epoch "
                "had moved already?", "rolled by -1, 0 or 1 up and left"),
        same("ways to move", MOVED),
        nothing("pairs of epochs with most moves alike", "what is drawn once is frozen: draw in each epoch"),
        nothing("times that 16 moves in a row have come before", "how many moves are drawn? Two for each image of "
                                                                 "an epoch, inside the loop over epochs"),
    )


def rules_of_dice():
    return (
        nothing("other batches for the same dice", "does every draw take `generator=dice`?", "the same ones"),
        nothing("the same for other dice", "draw from the `dice` that is given, and do not seed it again",
                "others"),
    )


class Operators(TorchDispatchMode):
    """Counts the operators that are called, and the images that become numbers of another type."""

    count = converted = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        result = operator(*args, **(kwargs or {}))
        taken = {argument.dtype for argument in args if torch.is_tensor(argument)}
        if taken and torch.is_tensor(result) and result.dtype not in taken | {torch.bool}:
            self.converted += result.numel() // 256
        return result
