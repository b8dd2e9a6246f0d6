"""Several ranks fill one tensor in shared memory, each its own part."""

import os

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import holds

#: What the shared tensor holds at first.
UNWRITTEN = -0.25


class WritesTo(TorchDispatchMode):
    """Notes in `mask` which elements of `memory` operators write to, through any view of it."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory
        self.mask = torch.zeros(memory.shape, dtype=torch.bool)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        arguments = operator._schema.arguments
        given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
        for argument in arguments:
            if argument.alias_info and argument.alias_info.is_write:
                self.note(operator, given, argument.name)
        return operator(*args, **kwargs)

    def note(self, operator, given, name):
        """Note what the operator writes to its argument `name`, if that is a view of the memory."""
        view = given[name]
        if not isinstance(view, torch.Tensor) or view.untyped_storage().data_ptr() != self.memory.data_ptr():
            return
        written = torch.tensor(True)
        if any(word in operator._schema.name for word in ("index", "scatter", "mask", "put_")):
            # It writes to some places of its target. To which? To those that are no NaN in a trial.
            written = ~operator(**{**given, name: torch.full_like(view, torch.nan)}).isnan()
        self.mask.as_strided(view.shape, view.stride(), view.storage_offset()).logical_or_(written)


class FillMySlice(Exercise):
    title = "One tensor, filled by all ranks"
    task = ("All ranks share the memory of `shared`, a `float32` tensor with one dimension and hundreds of "
            "elements. Together they write the square of its index into every element: 0, 1, 4, 9 … Ignore "
            "what the tensor holds at first. Write your rank's part and nothing else. Exactly one "
            "rank writes each element, also if `world_size` does not divide the length, and each rank "
            "writes some.")
    hints = (
        "Which indices are yours? `range(rank, len(shared), world_size)` is one way. Blocks of "
        "neighbours are another.",
        "`shared = …` gives the name to another tensor, which nobody shares. Write into it: `shared[…] "
        "= …`.",
    )
    explanation = ("`shared[rank::world_size]` is a view: the same memory, every `world_size`-th element "
                   "from `rank` on. Assigning to a slice writes into that memory, so all ranks see it.")
    why = ("ranks that write to different places of shared memory need no lock, and send nothing. Several "
           "workers can fill one batch in this way.")

    world_sizes = (2, 3)
    cases = {
        "300 elements": 300,  # divided by 2 and by 3
        "305 elements": 305,  # by neither; by 3 with a remainder of 2
        "304 elements": 304,  # by 2 only; by 3 with a remainder of 1
    }
    timeout = 10

    def answer(shared, rank, world_size):
        import torch

        squares = torch.arange(len(shared)) ** 2                    #: squares
        shared[rank::world_size] = squares[rank::world_size]        #: write

    def observe(fill_my_slice, length):
        rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        memory = torch.full((length,), UNWRITTEN).share_memory_()
        with WritesTo(memory) as writes:
            returned = fill_my_slice(memory.view(length), rank, world_size)
        # Through numpy, torch sees no write, but the numbers are other ones.
        wrote = writes.mask | (memory != UNWRITTEN)
        return {"wrote": wrote.tolist(), "after": memory.tolist(), "returned": kind_of(returned)}

    # ---------------------------------------------------------------------------------------- what must hold

    not_into_it = ("does the line write into `shared`, or does it make another tensor? `shared[…]` with a "
                   "tensor or a list as index is a copy, unless you assign to it")

    def writes_nothing(mine, wanted, case):
        for rank, observed in enumerate(mine):
            if not any(observed["wrote"]):
                return (f"rank {rank} wrote nothing that another rank can see, and returned {observed['returned']}",
                        "it writes into the memory of `shared`")

    def writes_no_square(mine, wanted, length):
        for index in reversed(range(length)):  # the first two are their own squares, and would tell less
            for rank, observed in enumerate(mine):
                value = observed["after"][index]
                if observed["wrote"][index] and value not in (index**2, UNWRITTEN):
                    return (f"rank {rank} turned element {index} into {value:g}",
                            f"{index**2}, the square of its index; nothing in another rank's place")

    def not_by_one_rank(mine, wanted, length):
        for index in reversed(range(length)):
            writers = [rank for rank, observed in enumerate(mine) if observed["wrote"][index]]
            if len(writers) != 1:
                names = " and ".join(f"rank {rank}" for rank in writers) or "no rank"
                return f"element {index} was written by {names}", "every element by exactly one rank"
            if mine[writers[0]]["after"][index] == UNWRITTEN:
                return f"rank {writers[0]} wrote back what it found in element {index}", f"{index**2}, its square"

    rules = (
        holds(writes_nothing, not_into_it),
        holds(writes_no_square, "how do you get from a place in your part to its index in the whole tensor? And in "
                                "which dtype do you compute?"),
        holds(not_by_one_rank, "how does `rank` decide which elements are yours? Ranks are counted from 0, and "
                               "`world_size` need not divide the length"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("nobody gets what you return. Write into `shared`", write="return squares[rank::world_size]"),
        mistake(not_into_it,
                write="mine = torch.arange(rank, len(shared), world_size)\n"
                      "shared[mine].copy_(squares[mine])"),
        mistake("who has the remainder?",
                write="each = len(shared) // world_size\n"
                      "here = slice(rank * each, (rank + 1) * each)\n"
                      "shared[here] = squares[here]"),
        mistake("to how much of `shared` does your line write? Write only to your part", write="shared[:] = squares"),
        mistake("each rank writes its own part, and rank 0 not all of it",
                write="if rank == 0:\n"
                      "    shared[:] = squares"),
        mistake("the first place of your part is not index 0 of the whole tensor",
                write="mine = shared[rank::world_size]\n"
                      "mine[:] = squares[:len(mine)]"),
        mistake("you square what was there before, which means nothing", write="shared[rank::world_size] **= 2"),
        mistake("indices are counted from 0", squares="squares = torch.arange(1, 1 + len(shared)) ** 2"),
    )


fill_my_slice = FillMySlice()
