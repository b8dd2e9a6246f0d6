"""The exercises of the first lesson: one that is solved together, and two first ones of the learner's own."""

import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice

from helpers.exercises.engine import Exercise, not_yet
from helpers.exercises.group import InGroup


class MyShare(Exercise):
    title = "Share the work"
    task = ("`items` is a list of work, the same in every rank. Return the items that rank number `rank` of "
            "`world_size` ranks is to do. Every item goes to exactly one rank, and no rank gets two items more than "
            "another. There may be any number of items, zero too, and some may be equal.")
    hints = (
        "Deal the items out like cards: with three ranks, rank 0 takes items 0, 3, 6 …, rank 1 takes items 1, 4, 7 …",
        "A slice can take steps: `items[first::step]`. Which is the first item of this rank, and how far is the next?",
    )
    explanation = ("Dealing out by steps needs no special case: when the items run out, some ranks get one fewer. "
                   "Blocks of neighbours are just as right, as long as the remainder is spread over the ranks.")
    why = ("this is how ranks share a dataset without talking to each other: each works out its own part from `rank` "
           "and `world_size` alone. An item that two ranks have counts twice in the gradient, an item that none has is "
           "never learned from, and a rank with more items keeps all others waiting.")
    world_sizes = (2, 3, 4)
    timeout = 10
    cases = {"5 items": "abcde", "10 items": "jihgfedcba", "1 item": "a", "no items": "", "4 equal items": [0] * 4}

    def answer(items, rank, world_size):
        return items[rank::world_size]

    def probe(my_share, given):
        items = list(given)
        share = my_share(items, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        is_items = isinstance(share, Iterable) and not isinstance(share, str)
        taken = islice(share, 100) if is_items else ()
        return {"items": list(map(str, taken)) if is_items else None, "type": type(share).__name__,
                "changed": items != list(given)}

    def judge(self, seen, given):
        for rank, one in enumerate(seen):
            if one["items"] is None:
                return not_yet(f"rank {rank} returned {one['type'].replace('NoneType', 'None')}", "a list of items",
                               "is there a `return`?")
            if one["changed"]:
                return not_yet(f"rank {rank} changed the list that it was given",
                               "the list stays as it was: whoever called may need it again",
                               "`del`, `pop`, `remove`, `sort` and assignments to `items[…]`")
        shares = [one["items"] for one in seen]
        sizes, there, dealt = list(map(len, shares)), Counter(map(str, given)), Counter(chain.from_iterable(shares))
        unknown = [item for item in dealt if item not in there]
        wrong = [item for item in there if dealt[item] != there[item]]
        most, least = sizes.index(max(sizes)), sizes.index(min(sizes))
        if unknown:
            problem = f"`{unknown[0]}` is not among the items"
            look = "return the items themselves: not their numbers, nor lists of them, nor padding"
        elif wrong:
            item = wrong[0]
            problem = (f"the shares hold `{item}` {dealt[item]}×, the items {there[item]}×" if dealt[item] else
                       f"`{item}` went to no rank")
            look = ("how `rank` and `world_size` decide on an item" if dealt[item] > there[item] else
                    "the last items, where `world_size` does not divide `len(items)`; ranks are counted from 0"
                    ) + "; and do all ranks deal out the same order?"
        elif max(sizes) - min(sizes) > 1:
            problem = f"rank {most} got {sizes[most]} items, rank {least} only {sizes[least]}"
            look = "which ranks the remainder goes to"
        else:
            return None
        if len(there) < len(given) and not unknown:
            look = "equal items are items of their own; a set, or `index`, knows only one of them"
        elif len(set(sizes)) == 1 and 0 < sum(sizes) - len(given) < len(sizes):
            problem += f"; together they hold {sum(sizes)}, and the items are {len(given)}"
            look = "what is done so that all shares are equally long: is the list padded, are blocks rounded up?"
        returned = "".join(f"\nrank {rank} returned `{share}`" for rank, share in enumerate(shares))
        return not_yet(problem + returned,
                       "every item goes to exactly one rank, and the shares differ by one item at most", look)


class MeanOfRanks(InGroup):
    title = "The mean over all ranks"
    task = ("Every rank calls your function with a number of its own, `value`. Return the mean of all these numbers, "
            "the same in every rank, as a `float`, to six digits. The process group is formed already; "
            "`torch.distributed` is imported as `dist`.")
    hints = (
        "`dist.all_reduce(tensor)` adds the tensor up over all ranks and leaves the sum in it, in every rank.",
        "Put `value` into a tensor of floats, sum it over the ranks, and divide by the number of ranks: "
        "`dist.get_world_size()`.",
    )
    explanation = ("`all_reduce` changes its tensor in place, in every rank. The sum divided by the number of ranks is "
                   "the mean, whatever that number is.")
    why = ("this one step is data-parallel training in small: put gradients in the place of `value`, and N ranks "
           "train one model. DistributedDataParallel is built out of it.")
    world_sizes = (2, 3)
    cases = {"whole numbers": (1, 12, 28), "a zero among them": (0, 7, 2),
             "fractions": (0.3, -7.25, 1000.125), "two equal numbers": (5, 5, 29)}

    def answer(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def probe(mean_of_ranks, values):
        rank, values = int(os.environ["RANK"]), values[:int(os.environ["WORLD_SIZE"])]
        got = mean_of_ranks(values[rank])
        if not isinstance(got, int | float) or isinstance(got, bool):
            return not_yet(f"rank {rank} returned a {type(got).__name__}", "a float", "the line with `return`")
        got, mean, given = float(got), sum(values) / len(values), f"given {', '.join(map(str, values))}"
        if abs(got - mean) <= 1e-5 * max(1, abs(mean)):
            return None

        def near(value):
            return abs(got - value) < 1e-4

        guess, look = "", ("the sum of all numbers, divided by how many there are: has every rank both? And is "
                           "anything kept from an earlier call?")
        if near(sum(values)):
            guess, look = ", the sum", "what does each rank divide by? All by the number of ranks"
        elif near(values[rank]):
            guess, look = ", its own number", "does every rank hear of the others' numbers, and wait for them?"
        elif near(mean + values[rank] / len(values)):
            guess, look = ", with its own number in it twice", "is your own number in the sum already?"
        elif near(values[rank] / len(values)):
            guess, look = ", its own number divided by the ranks", "who hears of the others' numbers?"
        elif abs(got - mean) < (1 if got % 1 == 0 else 0.01 * abs(mean)):
            guess = ", which has lost its digits"
            look = "the dtype of the tensor: `float32` keeps seven digits; and `int`, `round` and `//`"
        elif near(values[-1]):
            look = "is it one rank's number alone? `max` finds one, and `[tensor] * n` is one tensor under n names"
        elif lost := [one for one in values if near(mean - one / len(values))]:
            guess, look = f", as if {lost[0]} were 0", "which ranks' numbers does this rank hear of?"
        return not_yet(f"{given}, rank {rank} returned {got:g}{guess}", f"{mean:g} in every rank", look)


class SayItOnce(Exercise):
    title = "Say it once"
    task = ("Every rank calls your function. However many ranks there are, `message` is to be printed exactly once, "
            "unchanged. No process group is formed here: a rank knows its number from `os.environ['RANK']`, a string.")
    hints = ("Every rank knows its own number: `int(os.environ['RANK'])`.",
             "Which rank is there in every run, even in one with a single rank?")
    explanation = "Rank 0 exists in every run, so it speaks for all. Checkpoints and progress bars follow suit."
    why = ("a script that every rank runs does everything N times unless you say otherwise: prints, downloads, "
           "checkpoints. Two ranks that write one file at once leave it broken.")
    world_sizes = (1, 3)
    timeout = 5
    #: The message, and the power of ranks that are played: of 27, three have a 0 in their number.
    cases = {"": ("Training begins.", 1), "another message": ("  epoch 0:\n  loss 0.5", 1),
             "nine times as many": ("Training begins.", 3)}

    def answer(message):
        if int(os.environ["RANK"]) == 0:
            print(message)

    def probe(say_it_once, case):
        import contextlib
        import io
        from unittest import mock

        (message, power), rank, world_size = case, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        printed = {}
        with mock.patch("torch.distributed.is_initialized", return_value=False) as asked:
            for number in range(rank, world_size ** power, world_size):
                told = {"RANK": number, "WORLD_SIZE": world_size ** power, "LOCAL_RANK": number % 2}  # two a machine
                with (mock.patch.dict(os.environ, {name: str(value) for name, value in told.items()}),
                      contextlib.redirect_stdout(io.StringIO()) as text):
                    say_it_once(message)
                printed[number] = text.getvalue()
        return printed, asked.called

    def judge(self, seen, case):
        message, by_rank, asked = case[0], {rank: text for texts, _ in seen for rank, text in texts.items()}, seen[0][1]
        printed = "".join(by_rank.values())
        times = printed.count(message)
        if times == 0:
            said = printed.strip("\n")
            return not_yet(f"it was not printed{f'; what was printed is `{said}`' if said else ''}", "once",
                           "is there a rank with that number? `os.environ['RANK']` is a string. Is it `print`, with "
                           "the message unchanged? And is anything kept from an earlier call? Each process has its own "
                           "variables")
        if times > 1:
            who = ", ".join(str(rank) for rank in sorted(by_rank) if message in by_rank[rank])
            return not_yet(f"it was printed {times} times, by rank {who}", "once",
                           "which ranks come to the `print`? (`'0'` is a text, and true.)"
                           + " Without a process group, `dist.is_initialized()` is false in each" * asked
                           + " `LOCAL_RANK` counts anew on each machine" * (times < len(seen)))
        if printed.strip("\n") != message:
            return not_yet(f"more than the message was printed: `{printed}`", f"`{message}`, unchanged",
                           "what you add to it")
        return None


my_share, mean_of_ranks, say_it_once = MyShare(), MeanOfRanks(), SayItOnce()
