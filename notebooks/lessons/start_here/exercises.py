"""The exercises of the first lesson: one that is solved together, and two first ones of the learner's own."""

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
AS_IT_WAS = "`del`, `pop`, `remove`, `sort` and assignments to `items[…]`"
ITSELF = "return the items themselves: not their numbers, nor lists of them, nor padding"
LAST = ("the last items, where `world_size` does not divide `len(items)`; ranks are counted from 0; and do "
        "all ranks deal out the same order?")
DECIDE = "how `rank` and `world_size` decide on an item; and do all ranks deal out the same order?"
EQUAL = "equal items are items of their own; a set, or `index`, knows only one of them"


def unless_equal(look):
    """Where to look, unless only the case with equal items went wrong."""
    return lambda given: EQUAL if len(set(given)) < len(given) else look


def no_list(mine, wanted, case):
    if mine["share"] is None:
        return f"your function returned a {mine['returned']}", "a list of items"


def changed(mine, wanted, case):
    if mine["changed"]:
        return "your function changed the list that it was given", "the caller may need the list again"


def in_words(problem, mine):
    returned = "".join(f"\nrank {rank} returned `{one['share']}`" for rank, one in enumerate(mine))
    return problem + returned, "every item goes to one rank, and the shares differ by one item at most"


def count(shares):
    return Counter(item for one in shares for item in one["share"])


def unknown(mine, wanted, case):
    for item in count(mine):
        if item not in count(wanted):
            return in_words(f"`{item}` is not among the items", mine)


def too_few(mine, wanted, case):
    for item, there in count(wanted).items():
        dealt = count(mine)[item]
        if dealt == 0:
            return in_words(f"`{item}` went to no rank", mine)
        if dealt < there:
            return in_words(f"the shares hold `{item}` {dealt}×, the items {there}×", mine)


def too_many(mine, wanted, case):
    for item, there in count(wanted).items():
        dealt = count(mine)[item]
        if dealt > there:
            return in_words(f"the shares hold `{item}` {dealt}×, the items {there}×", mine)


def uneven(mine, wanted, case):
    sizes = [len(one["share"]) for one in mine]
    most, least = max(sizes), min(sizes)
    if most - least > 1:
        told = f"rank {sizes.index(most)} got {most} items, rank {sizes.index(least)} only {least}"
        return in_words(told, mine)


class MyShare(Table):
    title = "Share the work"
    task = ("`items` is a list of work, the same in every rank. Return the items that rank number `rank` of "
            "`world_size` ranks is to do. Every item goes to exactly one rank, and no rank gets two items "
            "more than another. There may be any number of items, zero too, and some may be equal.")
    hints = (
        "Deal the items out like cards: with three ranks, rank 0 takes items 0, 3, 6 …, rank 1 takes items "
        "1, 4, 7 …",
        "A slice can take steps: `items[first::step]`. Which is the first item of this rank, and how far is "
        "the next?",
    )
    explanation = ("Dealing out by steps needs no special case: when the items run out, some ranks get one "
                   "fewer. Blocks of neighbours are just as right, as long as the remainder is spread over "
                   "the ranks.")
    why = ("this is how ranks share a dataset without talking to each other: each works out its own part "
           "from `rank` and `world_size` alone. An item that two ranks have counts twice in the gradient, "
           "an item that none has is never learned from, and a rank with more items keeps all others "
           "waiting.")
    world_sizes = (2, 3, 4)
    timeout = 10
    cases = {"5 items": "abcde", "10 items": "jihgfedcba", "1 item": "a", "no items": "",
             "4 equal items": [0] * 4}

    def answer(items, rank, world_size):
        return items[rank::world_size]

    def observe(my_share, given):
        items = list(given)
        share = my_share(items, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        returned, taken = type(share).__name__, None
        if isinstance(share, Iterable) and not isinstance(share, str):
            taken = [str(item) for item in islice(share, 100)]
        return {"share": taken, "returned": returned, "changed": items != list(given)}

    rules = (
        each(no_list, "is there a `return`?"),
        each(changed, AS_IT_WAS),
        holds(unknown, ITSELF),
        holds(too_few, unless_equal(LAST)),
        holds(too_many, unless_equal(DECIDE)),
        holds(uneven, unless_equal("which ranks the remainder goes to")),
    )
    mistakes = (
        (RETURN, f"{DOWN}\n    return {BLOCK}", "`//` throws the remainder away: who does the last items?"),
        (RETURN, f"{DOWN}\n    return items[rank * each:] if rank == world_size - 1 else {BLOCK}",
         "the last rank alone has the remainder: spread it over the ranks"),
        (RETURN, f"{UP}\n    return {BLOCK}", "blocks that are rounded up leave too little for the last"),
        (DEAL, f"(items + items[:-len(items) % world_size]){DEAL[5:]}",
         "the items that the list is padded with are done twice"),
        (DEAL, "items", "every rank returns all items: which ones are those of `rank`?"),
        ("items[rank::", "items[rank - 1::", "ranks are counted from 0"),
        (DEAL, "list(range(rank, len(items), world_size))", "these are numbers of items: return the items"),
    )


SUM, BY_ALL, REDUCE = "total.item()", " / dist.get_world_size()", "dist.all_reduce(total)"
ITEM = "the line with `return`: `.item()` makes a number of a tensor with one element"
BOTH = ("the sum of all numbers, divided by how many there are: has every rank both, in a dtype that keeps "
        "six digits? And is anything kept from an earlier call?")
ONE_LINE = "    dist.all_reduce(total)\n"


def no_number(mine, wanted, case):
    if isinstance(mine["returned"], str):
        return f"your function returned a {mine['returned']}", "a float"


def no_mean(mine, wanted, case):
    got, given = mine["returned"], mine["given"]
    mean = sum(given) / len(given)
    if not abs(got - mean) <= 1e-5 * max(1, abs(mean)):  # NaN is no mean either
        numbers = ", ".join(map(str, given))
        return f"your function returned {got:g}, where the numbers are {numbers}", f"{mean:g} in every rank"


class MeanOfRanks(Table, InGroup):
    title = "The mean over all ranks"
    task = ("Every rank calls your function with a number of its own, `value`. Return the mean of all these "
            "numbers, the same in every rank, as a `float`, to six digits. The process group is formed "
            "already; `torch.distributed` is imported as `dist`.")
    hints = (
        "`dist.all_reduce(tensor)` adds the tensor up over all ranks and leaves the sum in it, in every "
        "rank.",
        "Put `value` into a tensor of floats, sum it over the ranks, and divide by the number of ranks: "
        "`dist.get_world_size()`.",
    )
    explanation = ("`all_reduce` changes its tensor in place, in every rank. The sum divided by the number "
                   "of ranks is the mean, whatever that number is.")
    why = ("this one step is data-parallel training in small: put gradients in the place of `value`, and N "
           "ranks train one model. DistributedDataParallel is built out of it.")
    world_sizes = (2, 3)
    cases = {"whole numbers": (1, 12, 28), "a zero among them": (0, 7, 2),
             "fractions": (0.3, -7.25, 1000.125), "two equal numbers": (5, 5, 29)}

    def answer(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def observe(mean_of_ranks, values):
        given = values[:int(os.environ["WORLD_SIZE"])]
        returned = mean_of_ranks(given[int(os.environ["RANK"])])
        if isinstance(returned, int | float) and not isinstance(returned, bool):
            return {"given": given, "returned": float(returned)}
        return {"given": given, "returned": type(returned).__name__}

    rules = (
        each(no_number, ITEM),
        each(no_mean, BOTH),
    )
    mistakes = (
        (BY_ALL, "", "this is the sum: divide it by the number of ranks"),
        ("dist.get_world_size()", "2", "how many ranks are there? `dist.get_world_size()` knows"),
        (ONE_LINE, "", "no rank hears of the others' numbers: `all_reduce` adds them up"),
        (REDUCE, "dist.reduce(total, dst=0)", "`reduce` leaves the sum in one rank, `all_reduce` in all"),
        (f"{SUM}{BY_ALL}", "float(value)", "this is the rank's own number: how does it hear of the others?"),
        (SUM, "(total.item() + value)", "your own number is in the sum already"),
        ("float(value)", "int(value)", "an integer has lost its digits: make a tensor of floats"),
        (f"{SUM} /", f"{SUM} //", "`//` cuts off the digits after the point"),
        (f"{SUM}{BY_ALL}", f"total{BY_ALL}", ITEM),
    )
    stops = (
        (REDUCE, f"if dist.get_rank() == 0:\n        {REDUCE}", "waited in vain",
         "does every rank come to the same collective? A condition that not all of them share keeps some "
         "away"),
        ("all_reduce(total)", "all_reduce(total, async_op=True)", "never waited for it",
         "`async_op=True` returns at once: call `.wait()` on what it returns, before you use the sum"),
    )


NEVER = ("is there a rank with that number? `os.environ['RANK']` is a string. Is it `print`, with the "
         "message unchanged? And is anything kept from an earlier call? Each process has its own variables")
ZERO = 'int(os.environ["RANK"]) == 0'


def never(mine, wanted, case):
    printed = "".join(text for one in mine for text in one["printed"].values())
    if case[0] in printed:
        return None
    if printed.strip("\n"):
        return f"it was not printed; what was printed is `{printed.strip()}`", "once"
    return "it was not printed", "once"


def several_times(mine, wanted, case):
    times = {rank: text.count(case[0]) for one in mine for rank, text in one["printed"].items()}
    if sum(times.values()) > 1:
        who = ", ".join(str(rank) for rank in sorted(times) if times[rank])
        return f"it was printed {sum(times.values())} times, by rank {who}", "once"


def more(mine, wanted, case):
    printed = "".join(text for one in mine for text in one["printed"].values()).strip("\n")
    if printed != case[0]:
        return f"more than the message was printed: `{printed}`", f"`{case[0]}`, unchanged"


class SayItOnce(Table):
    title = "Say it once"
    task = ("Every rank calls your function. However many ranks there are, `message` is to be printed "
            "exactly once, unchanged. No process group is formed here: a rank knows its number from "
            "`os.environ['RANK']`, a string.")
    hints = ("Every rank knows its own number: `int(os.environ['RANK'])`.",
             "Which rank is there in every run, even in one with a single rank?")
    explanation = ("Rank 0 exists in every run, so it speaks for all. Checkpoints and progress bars follow "
                   "suit.")
    why = ("a script that every rank runs does everything N times unless you say otherwise: prints, "
           "downloads, checkpoints. Two ranks that write one file at once leave it broken.")
    world_sizes = (1, 3)
    timeout = 5
    #: The message, and the power of ranks that are played: of 27, three have a 0 in their number.
    cases = {"": ("Training begins.", 1), "another message": ("  epoch 0:\n  loss 0.5", 1),
             "nine times as many": ("Training begins.", 3)}

    def answer(message):
        if int(os.environ["RANK"]) == 0:
            print(message)

    def observe(say_it_once, case):
        (message, power), rank, world_size = case, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        printed = {}  # by rank; two ranks share a machine
        for number in range(rank, world_size**power, world_size):
            told = {"RANK": number, "WORLD_SIZE": world_size**power, "LOCAL_RANK": number % 2}
            told = {name: str(value) for name, value in told.items()}
            with mock.patch.dict(os.environ, told), contextlib.redirect_stdout(io.StringIO()) as text:
                say_it_once(message)
            printed[number] = text.getvalue()
        return {"printed": printed}

    rules = (
        holds(never, NEVER),
        holds(several_times, "which ranks come to the `print`? (`'0'` is a text, and true.)"),
        holds(more, "what you add to it"),
    )
    mistakes = (
        (f"if {ZERO}:\n        print", "print", "every rank comes to the `print`: which one is to speak?"),
        (ZERO, 'os.environ["RANK"]', "`'0'` is a text, and true: compare a number with 0"),
        (ZERO, 'os.environ["RANK"] == 0', "`os.environ['RANK']` is a string, and never equals the number 0"),
        (ZERO, 'os.environ["RANK"] == "1"', "which rank is there in every run? Ranks are counted from 0"),
        ("RANK", "LOCAL_RANK", "`LOCAL_RANK` counts anew on each machine"),
        (ZERO, '__import__("torch").distributed.is_initialized() is False',
         "without a process group, `dist.is_initialized()` is false in every rank"),
        ("print(message)", 'print("rank 0 says:", message)', "print the message alone"),
    )


my_share, mean_of_ranks, say_it_once = MyShare(), MeanOfRanks(), SayItOnce()
