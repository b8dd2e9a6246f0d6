"""The exercises of lesson 00: one that is solved together, and two first ones of the learner's own."""

import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from string import ascii_lowercase

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "00_start_here"

#: How many items are dealt out; the first case that goes wrong is the one that the learner reads.
LENGTHS = (5, 10, 1, 0)


class MyShare(Exercise):
    title = "Share the work"
    task = ("`items` is a list of work, the same in every rank. Return the items that rank number `rank` of "
            "`world_size` ranks is to do. Every item goes to exactly one rank, and no rank gets two items more than "
            "another. There may be any number of items, zero too.")
    hints = (
        "Deal the items out like cards: with three ranks, rank 0 takes items 0, 3, 6 …, rank 1 takes items 1, 4, 7 …",
        "A slice can take steps: `items[first::step]`. Which is the first item of this rank, and how far is the next?",
    )
    explanation = ("Dealing out by steps needs no special case: when the items run out, some ranks get one fewer. "
                   "Blocks of neighbours are just as right, as long as the remainder is spread over the ranks.")
    why = ("this is how ranks share a dataset without talking to each other: each works out its own part from `rank` "
           "and `world_size` alone. An item that two ranks have counts twice in the gradient, an item that none has is "
           "never learned from, and a rank with more items keeps all others waiting.")
    world_sizes = (2, 3)
    timeout = 10

    @staticmethod
    def stub(items, rank, world_size):
        raise NotImplementedError

    @staticmethod
    def answer(items, rank, world_size):
        return items[rank::world_size]

    @wrong("more than one rank")
    def everything_to_everyone(items, rank, world_size):
        return items

    @wrong("no rank")
    def drops_the_remainder(items, rank, world_size):
        each = len(items) // world_size
        return items[rank * each:(rank + 1) * each]

    @wrong("3 ranks")
    def even_and_odd(items, rank, world_size):
        return items[rank % 2::2]

    @wrong("rank 2 got 3 items")
    def remainder_to_the_last(items, rank, world_size):
        each = len(items) // world_size
        return items[rank * each:] if rank == world_size - 1 else items[rank * each:(rank + 1) * each]

    @wrong("not among the items")
    def numbers_instead_of_items(items, rank, world_size):
        return range(rank, len(items), world_size)

    @wrong("ranks are counted from 0")
    def ranks_from_one(items, rank, world_size):
        return items[rank - 1::world_size]

    @wrong("changed the list")
    def takes_them_out(items, rank, world_size):
        share = items[rank::world_size]
        del items[rank::world_size]
        return share

    @wrong("returned None")
    def forgets_to_return(items, rank, world_size):
        items[rank::world_size]

    @staticmethod
    def probe(my_share):
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        observed = []
        for length in LENGTHS:
            items = list(ascii_lowercase[:length])
            share = my_share(items, rank, world_size)
            is_items = isinstance(share, Iterable) and not isinstance(share, str)
            taken = islice(share, 100) if is_items else ()
            observed.append({
                "items": [item if type(item) is str else repr(item) for item in taken] if is_items else None,
                "type": type(share).__name__,
                "changed": items != list(ascii_lowercase[:length]),
            })
        return observed

    def judge(self, observed):
        for length, by_rank in zip(LENGTHS, zip(*observed, strict=True), strict=True):
            items, shares = ascii_lowercase[:length], [seen["items"] for seen in by_rank]
            case = f"{length} item{'s' * (length != 1)}, {len(shares)} ranks"
            for rank, seen in enumerate(by_rank):
                if seen["items"] is None:
                    return not_yet(f"{case}: rank {rank} returned {seen['type'].replace('NoneType', 'None')}",
                                   "a list of items", "is there a `return`?")
                if seen["changed"]:
                    return not_yet(f"{case}: rank {rank} changed the list that it was given",
                                   "the list stays as it was: whoever called may need it again",
                                   "`del`, `pop`, `remove`, `sort` and assignments to `items[…]`")
            times = Counter(chain.from_iterable(shares))
            unknown = [item for item in times if item not in items]
            missing = [item for item in items if not times[item]]
            twice = [item for item in items if times[item] > 1]
            least, *_, most = sorted(range(len(shares)), key=[len(share) for share in shares].__getitem__)
            if unknown:
                problem = f"`{unknown[0]}` is not among the items"
                look = "return the items themselves, not their numbers"
            elif missing:
                problem = f"`{missing[0]}` went to no rank"
                look = "the last items, where `world_size` does not divide `len(items)`; ranks are counted from 0"
            elif twice:
                problem = f"`{twice[0]}` went to more than one rank"
                look = "how `rank` and `world_size` decide on an item"
            elif len(shares[most]) - len(shares[least]) > 1:
                problem = f"rank {most} got {len(shares[most])} items, rank {least} only {len(shares[least])}"
                look = "which ranks the remainder goes to"
            else:
                continue
            dealt = "".join(f"\nrank {rank} returned `{share}`" for rank, share in enumerate(shares))
            return not_yet(f"{case}: {problem}{dealt}",
                           "every item goes to exactly one rank, and the shares differ by one item at most", look)
        return None


my_share = MyShare()


class MeanOfRanks(Exercise):
    title = "The mean over all ranks"
    task = ("Every rank calls your function with a number of its own, `value`. Return the mean of all these numbers, "
            "the same in every rank, as a `float`. The process group is formed already; `torch.distributed` is "
            "imported as `dist`.")
    hints = (
        "`dist.all_reduce(tensor)` adds the tensor up over all ranks and leaves the sum in it, in every rank.",
        "Put `value` into a tensor of floats, sum it over the ranks, and divide by the number of ranks: "
        "`dist.get_world_size()`.",
    )
    explanation = ("`all_reduce` changes its tensor in place, in every rank. The sum divided by the number of ranks is "
                   "the mean, whatever that number is.")
    why = ("this one step is data-parallel training in small: put gradients in the place of `value`, and N ranks "
           "train one model. Lesson 05 builds DistributedDataParallel out of it.")
    world_sizes = (2, 3)
    timeout = 5

    @staticmethod
    def stub(value):
        raise NotImplementedError

    @staticmethod
    def answer(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    @wrong("the sum")
    def forgets_to_divide(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item()

    @wrong("3 ranks")
    def divides_by_two(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item() / 2

    @wrong("rank 1")
    def only_rank_0_has_it(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.reduce(total, dst=0)
        return total.item() / dist.get_world_size()

    @wrong("its own number")
    def talks_to_nobody(value):
        return float(value)

    @wrong("no result after 5 s")
    def only_rank_0_asks(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        if dist.get_rank() == 0:
            dist.all_reduce(total)
        dist.barrier()
        return total.item() / dist.get_world_size()

    @wrong("returned a Tensor")
    def returns_a_tensor(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def probe(mean_of_ranks):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        mean = mean_of_ranks(10 * dist.get_rank() + 1)
        dist.destroy_process_group()
        is_number = isinstance(mean, int | float) and not isinstance(mean, bool)
        return mean if is_number else f"returned a {type(mean).__name__}".replace("a NoneType", "None")

    def judge(self, observed):
        values = [10 * rank + 1 for rank in range(len(observed))]
        mean = sum(values) / len(values)
        case = f"{len(values)} ranks with the numbers {values}"
        for rank, got in enumerate(observed):
            if isinstance(got, str):
                return not_yet(f"{case}: rank {rank} {got}", "a float", "the line with `return`")
            if abs(got - mean) > 1e-6:
                guess = {sum(values): ", the sum", values[rank]: ", its own number"}.get(round(got, 6), "")
                look = {", the sum": "what is missing between a sum and a mean?",
                        ", its own number": "does every rank hear of the others' numbers?"}
                return not_yet(f"{case}: rank {rank} returned {got:g}{guess}", f"{mean:g} in every rank",
                               look.get(guess, "what you divide by; and which ranks get the result"))
        return None


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

    @staticmethod
    def stub(message):
        raise NotImplementedError

    @staticmethod
    def answer(message):
        if int(os.environ["RANK"]) == 0:
            print(message)

    @wrong("3 ranks: it was printed 3 times")
    def every_rank_says_it(message):
        print(message)

    @wrong("1 rank: it was not printed")
    def rank_one_says_it(message):
        if os.environ["RANK"] == "1":
            print(message)

    @wrong("1 rank: it was not printed")
    def text_is_no_number(message):
        if os.environ["RANK"] == 0:
            print(message)

    @wrong("3 ranks: it was printed 2 times")
    def all_but_the_first(message):
        if int(os.environ["RANK"]) > 0 or os.environ["WORLD_SIZE"] == "1":
            print(message)

    @staticmethod
    def probe(say_it_once):
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            say_it_once("Training begins.")
        return printed.getvalue().count("Training begins.")

    def judge(self, observed):
        times = sum(observed)
        case = f"{len(observed)} rank{'s' * (len(observed) != 1)}"
        if times == 0:
            return not_yet(f"{case}: it was not printed", "once", "is there a rank with that number? "
                           "`os.environ['RANK']` is a string. And is it `print`, with the message unchanged?")
        if times > 1:
            return not_yet(f"{case}: it was printed {times} times", "once", "which ranks come to the `print`?")
        return None


mean_of_ranks = MeanOfRanks()
say_it_once = SayItOnce()
