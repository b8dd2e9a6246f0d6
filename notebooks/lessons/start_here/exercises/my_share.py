"""Which items of a list belong to a rank: each item to one rank, and shares that differ by one at most."""

import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each, holds


def with_all_shares(problem, mine):
    """(observed, expected): the problem, and below it what each rank returned."""
    lines = [problem]
    for rank, observed in enumerate(mine):
        lines.append(f"rank {rank} returned `{observed['share']}`")
    return "\n".join(lines), "every item goes to one rank, and the shares differ by one item at most"


class MyShare(Exercise):
    title = "Share the work"
    task = ("`items` is a list of work, the same in every rank. Return the items that rank number `rank` of "
            "`world_size` ranks has to do. Every item goes to exactly one rank, and no rank gets two items "
            "more than another rank. The list may be empty, and some of its items may be equal. Leave `items` "
            "itself as it is.")
    hints = (
        "Deal the items out like cards. With three ranks, rank 0 takes items 0, 3, 6 …, and rank 1 "
        "takes items 1, 4, 7 …",
        "A slice can take steps: `items[first::step]`. Which is the first item of this rank? How far is "
        "its next item?",
    )
    explanation = ("Dealing out like cards needs no special case. When the items run out, some ranks get one "
                   "item fewer. Blocks of neighbours are right, too, if you spread the remainder over the "
                   "ranks.")
    why = ("ranks share a dataset in this way, without talking to each other: each rank works out its own "
           "part from `rank` and `world_size`. If two ranks have the same item, it counts twice. If no rank "
           "has it, nobody learns from it. If one rank has more items, all others wait for that rank.")

    world_sizes = (2, 3, 4)
    cases = {
        "5 items": "abcde",
        "10 items": "jihgfedcba",
        "1 item": "a",
        "no items": "",
        "4 equal items": [0] * 4,
    }
    timeout = 10

    def answer(items, rank, world_size):
        return items[rank::world_size]      #: share

    def observe(my_share, given):
        items = list(given)
        returned = my_share(items, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

        share, stranger = None, ""
        if isinstance(returned, Iterable) and not isinstance(returned, str | dict):
            share = []
            for item in islice(returned, 100):  # a generator may have no end
                share.append(str(item))
                is_many = isinstance(item, Iterable) and not isinstance(item, str)
                if is_many or item not in list(given):
                    stranger = stranger or f"{kind_of(item)}, `{item!r}`"
        return {"share": share, "stranger": stranger, "returned": kind_of(returned), "left": items[:100],
                "changed": items != list(given)}

    # ---------------------------------------------------------------------------------------- what must hold

    def nothing_returned(mine, wanted, case):
        if mine["returned"] == "None":
            return "your function returned None", "a list of items"

    def no_list(mine, wanted, case):
        if mine["share"] is None:
            return f"your function returned {mine['returned']}", "a list of items"

    def changed(mine, wanted, case):
        if mine["changed"]:
            return f"your function changed `items`, which are then `{mine['left']}`", f"`{list(case)}`, as before"

    def no_item(mine, wanted, case):
        if mine["stranger"]:
            return f"your function returned {mine['returned']} that holds {mine['stranger']}", "only what `items` holds"

    def not_dealt_once(mine, wanted, case):
        dealt, there = Counter(), Counter()
        for observed in mine:
            dealt.update(observed["share"])
        for observed in wanted:
            there.update(observed["share"])
        for item in there | dealt:
            if dealt[item] == 0:
                return with_all_shares(f"`{item}` went to no rank", mine)
            if dealt[item] != there[item]:
                return with_all_shares(f"the ranks got `{item}` {dealt[item]} times, and the list holds it "
                                       f"{there[item]} times", mine)

    def uneven(mine, wanted, case):
        sizes = [len(observed["share"]) for observed in mine]
        most, least = max(sizes), min(sizes)
        if most - least > 1:
            return with_all_shares(f"rank {sizes.index(most)} got {most} items, "
                                   f"rank {sizes.index(least)} only {least}", mine)

    rules = (
        each(nothing_returned, "is there a `return`?"),
        each(no_list, "a rank returns its items in a list, as a slice of `items` is one"),
        each(changed, "`pop`, `remove`, `del`, `sort`, `shuffle` and `+=` change the list itself, and your caller "
                      "still needs it. A slice is a new list"),
        each(no_item, "return the items themselves, in one list: no texts or numbers of them, no lists, no padding"),
        holds(not_dealt_once, "how do `rank` and `world_size` choose the items? Look at the last items and at equal "
                              "ones"),
        holds(uneven, "which ranks get the items that remain? And do equal items count one by one?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("`//` throws the remainder away. Who does the last items?",
                share="each = len(items) // world_size\n"
                      "return items[rank * each:(rank + 1) * each]"),
        mistake("the last rank gets the whole remainder. Spread it over the ranks",
                share="each = len(items) // world_size\n"
                      "return items[rank * each:] if rank == world_size - 1 else items[rank * each:(rank + 1) * each]"),
        mistake("blocks that are rounded up leave too little for the last rank",
                share="each = -(-len(items) // world_size)\n"
                      "return items[rank * each:(rank + 1) * each]"),
        mistake("every rank returns all items. Which of them belong to `rank`?", share="return items"),
        mistake("ranks are counted from 0", share="return items[rank - 1::world_size]"),
        mistake("these are the items' numbers. Return the items",
                share="return list(range(rank, len(items), world_size))"),
        mistake("these are the right items, but you took them out of the list itself, and your caller still needs it. "
                "The slice is a new list: return that",
                share="mine = items[rank::world_size]\n"
                      "for item in mine:\n"
                      "    items.remove(item)\n"
                      "return mine"),
    )


my_share = MyShare()
