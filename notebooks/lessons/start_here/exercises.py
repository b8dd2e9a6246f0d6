"""The exercises of the first lesson: one that is solved together, and two that learners solve alone."""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from unittest import mock

from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, each, holds

DEAL = "items[rank::world_size]"
RETURN = f"return {DEAL}"
BLOCK = "items[rank * each:(rank + 1) * each]"
DOWN, UP = "each = len(items) // world_size", "each = -(-len(items) // world_size)"


def no_list(mine, wanted, case):
    if mine["share"] is None:
        return f"your function returned a {mine['returned']}", "a list of items"


def not_dealt_once(mine, wanted, case):
    dealt = Counter(item for one in mine for item in one["share"])
    there = Counter(item for one in wanted for item in one["share"])
    for item in there | dealt:
        if dealt[item] != there[item]:
            told = f"the ranks got `{item}` {dealt[item]} times, and the list holds it {there[item]} times"
            return in_words(told if dealt[item] else f"`{item}` went to no rank", mine)


def uneven(mine, wanted, case):
    sizes = [len(one["share"]) for one in mine]
    most, least = max(sizes), min(sizes)
    if most - least > 1:
        told = f"rank {sizes.index(most)} got {most} items, rank {sizes.index(least)} only {least}"
        return in_words(told, mine)


def in_words(problem, mine):
    returned = "".join(f"\nrank {rank} returned `{one['share']}`" for rank, one in enumerate(mine))
    return problem + returned, "every item goes to one rank, and the shares differ by one item at most"


class MyShare(Table):
    title = "Share the work"
    task = ("`items` is a list of work, the same in every rank. Return the items that rank number `rank` of "
            "`world_size` ranks has to do. Every item goes to exactly one rank, and no rank gets two items "
            "more than another rank. The list may be empty, and some of its items may be equal.")
    hints = ("Deal the items out like cards. With three ranks, rank 0 takes items 0, 3, 6 …, and rank 1 "
             "takes items 1, 4, 7 …",
             "A slice can take steps: `items[first::step]`. Which is the first item of this rank? How far is "
             "its next item?")
    explanation = ("Dealing out like cards needs no special case. When the items run out, some ranks get one "
                   "item fewer. Blocks of neighbours are right, too, if you spread the remainder over the "
                   "ranks.")
    why = ("ranks share a dataset in this way, without talking to each other: each rank works out its own "
           "part from `rank` and `world_size`. If two ranks have the same item, it counts twice. If no rank "
           "has it, nobody learns from it. If one rank has more items, all others wait for that rank.")
    world_sizes = (2, 3, 4)
    timeout = 10
    cases = {"5 items": "abcde", "10 items": "jihgfedcba", "1 item": "a", "no items": "",
             "4 equal items": [0] * 4}

    def answer(items, rank, world_size):
        return items[rank::world_size]

    def observe(my_share, given):
        share = my_share(list(given), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        is_list = isinstance(share, Iterable) and not isinstance(share, str)
        return {"share": [str(item) for item in islice(share, 100)] if is_list else None,
                "returned": type(share).__name__}

    rules = (
        each(no_list, "is there a `return`?"),
        holds(not_dealt_once, "how do `rank` and `world_size` choose the items? Look at the last items and "
                              "at equal ones. Return the items themselves, without padding"),
        holds(uneven, "which ranks get the items that remain? And do equal items count one by one?"),
    )
    mistakes = (
        (RETURN, f"{DOWN}\n    return {BLOCK}", "`//` throws the remainder away. Who does the last items?"),
        (RETURN, f"{DOWN}\n    return items[rank * each:] if rank == world_size - 1 else {BLOCK}",
         "the last rank gets the whole remainder. Spread it over the ranks"),
        (RETURN, f"{UP}\n    return {BLOCK}", "blocks that are rounded up leave too little for the last "
                                              "rank"),
        (DEAL, "items", "every rank returns all items. Which of them belong to `rank`?"),
        ("items[rank::", "items[rank - 1::", "ranks are counted from 0"),
        (DEAL, "list(range(rank, len(items), world_size))", "these are the items' numbers. Return the items"),
    )


SUM, BY_ALL, REDUCE = "total.item()", " / dist.get_world_size()", "dist.all_reduce(total)"


def no_number(mine, wanted, case):
    if isinstance(mine["returned"], str):
        return f"your function returned a {mine['returned']}", "a float"


def no_mean(mine, wanted, case):
    got, given = mine["returned"], mine["given"]
    mean = sum(given) / len(given)
    if not abs(got - mean) <= 1e-5 * max(1, abs(mean)):  # NaN is no mean either
        told = f"your function returned {got:g}, where the numbers are {', '.join(map(str, given))}"
        return told, f"{mean:g}, to six digits"


class MeanOfRanks(Table, InGroup):
    title = "The mean over all ranks"
    task = ("Every rank calls your function with its own number, `value`. Return the mean of all these "
            "numbers as a `float`, to six digits, in every rank. The ranks have already formed a group, and "
            "`torch.distributed` is imported as `dist`.")
    hints = ("`dist.all_reduce` works in place on a tensor. It sums over the ranks unless you ask for "
             "something else.",
             "Turn the number into a tensor of floats, sum it over the ranks, and divide by the number of "
             "ranks, which is `dist.get_world_size()`.")
    explanation = ("`all_reduce` changes its tensor in place, in every rank. The sum divided by the number "
                   "of ranks is the mean, for any number of ranks.")
    why = ("this is the one step that makes training parallel. If you average gradients where you averaged "
           "`value`, N ranks train one model. DistributedDataParallel does that.")
    world_sizes = (2, 3)
    cases = {"whole numbers": (1, 12, 28), "a zero among them": (0, 7, 2),
             "fractions": (0.3, -7.25, 1000.125), "a fraction and a whole number": (0.5, 2, 7),
             "two equal numbers": (5, 5, 29)}

    def answer(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def observe(mean_of_ranks, values):
        given = values[:int(os.environ["WORLD_SIZE"])]
        returned = mean_of_ranks(given[int(os.environ["RANK"])])
        is_number = isinstance(returned, int | float) and not isinstance(returned, bool)
        return {"given": given, "returned": float(returned) if is_number else type(returned).__name__}

    rules = (
        each(no_number, "look at the line with `return`: `.item()` makes a number of a tensor with one "
                        "element"),
        each(no_mean, "does every rank have the sum of all numbers, in a dtype that keeps six digits? By "
                      "what does it divide?"),
    )
    mistakes = (
        (BY_ALL, "", "this is the sum. Divide it by the number of ranks"),
        ("dist.get_world_size()", "2", "how many ranks are there? `dist.get_world_size()` knows"),
        (f"    {REDUCE}\n", "", "no rank knows the numbers of the others. `all_reduce` adds them up"),
        (REDUCE, "dist.reduce(total, dst=0)", "`reduce` leaves the sum in one rank, `all_reduce` in all"),
        (f"{SUM}{BY_ALL}", "float(value)", "this is the rank's own number. How does it hear of the others?"),
        ("float(value)", "int(value)", "an integer has lost its digits. Make a tensor of floats"),
    )
    stops = (
        ("float(value)", "value", "where it expected",
         "a rank may have a whole number, another one a fraction: do all make a tensor of the same dtype?"),
        (REDUCE, f"if dist.get_rank() == 0:\n        {REDUCE}", "waited in vain",
         "does every rank come to the same collective? A condition that only some ranks meet keeps the other "
         "ranks away"),
        ("all_reduce(total)", "all_reduce(total, async_op=True)", "never waited for it",
         "`async_op=True`, `isend` and `irecv` return at once: call `.wait()` on what they return"),
    )


ZERO = 'int(os.environ["RANK"]) == 0'
ONCE = "Training begins."
EVERY_RANK = "every rank comes to the `print`. Which one should speak?"


def not_once(mine, wanted, message):
    printed = {rank: one["printed"] for rank, one in enumerate(mine) if one["printed"]}
    text = "".join(printed.values()).strip("\n")
    if text == message:
        return None
    if not printed:
        return "it was not printed", "once"
    if len(printed) > 1:
        return f"it was printed {len(printed)} times, by rank {', '.join(map(str, printed))}", "once"
    return f"what was printed is `{text}`", f"`{message}`, once and unchanged"


class SayItOnce(Table):
    title = "Say it once"
    task = ("Every rank calls your function. Print `message` exactly once, unchanged, for any number of "
            "ranks. There is no process group here. A rank knows its number from `os.environ['RANK']`, "
            "which is a string.")
    hints = ("Every rank can find out its own number: `int(os.environ['RANK'])`.",
             "Which rank is there in every run, even in a run with a single rank?")
    explanation = ("There is a rank 0 in every run, so rank 0 speaks for all. Programs save checkpoints and "
                   "show progress bars in the same way.")
    why = ("a script that every rank runs does everything N times unless you prevent it: prints, downloads, "
           "checkpoints. If two ranks write one file at the same time, they can break it.")
    world_sizes = (1, 3)
    timeout = 5
    cases = {"": ONCE, "another message": "  epoch 0:\n  loss 0.5"}

    def answer(message):
        if int(os.environ["RANK"]) == 0:
            print(message)

    def observe(say_it_once, message):
        text = io.StringIO()
        # As if each rank had a machine of its own, for one of the messages.
        local_rank = "0" if message == ONCE else os.environ["RANK"]
        with mock.patch.dict(os.environ, LOCAL_RANK=local_rank), contextlib.redirect_stdout(text):
            returned = say_it_once(message)
        return {"printed": text.getvalue(), "returned": type(returned).__name__}

    rules = holds(not_once, "which rank comes to the `print`? Does it print the message and nothing else? "
                            "(What it returns, nobody sees.)"),
    mistakes = (
        (f"if {ZERO}:\n        print", "print", EVERY_RANK),
        (ZERO, 'os.environ["RANK"]', f"{EVERY_RANK} (`'0'` is a text, and counts as true)"),
        (ZERO, 'os.environ["RANK"] == 0', "`os.environ['RANK']` is a string, and never equals the number 0"),
        (ZERO, 'os.environ["RANK"] == "1"', "which rank is there in every run? Ranks are counted from 0"),
        ("RANK", "LOCAL_RANK", "`LOCAL_RANK` is a rank's number on its own machine, so each machine has a 0"),
        ("print(message)", 'print("rank 0 says:", message)', "print the message alone"),
    )


my_share, mean_of_ranks, say_it_once = MyShare(), MeanOfRanks(), SayItOnce()
