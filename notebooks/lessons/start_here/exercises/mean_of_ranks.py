"""The mean of all ranks' numbers: the one step that makes training parallel."""

import os

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each


class MeanOfRanks(InGroup):
    title = "The mean over all ranks"
    task = ("Every rank calls your function with its own number, `value`. Return the mean of all these "
            "numbers as a `float`, to six digits, in every rank. The ranks have already formed a group.")
    hints = (
        "`dist.all_reduce` works in place on a tensor. It sums over the ranks unless you ask for "
        "something else.",
        "Turn the number into a tensor of floats, sum it over the ranks, and divide by the number of "
        "ranks, which is `dist.get_world_size()`.",
    )
    explanation = ("`all_reduce` changes its tensor in place, in every rank. The sum divided by the number "
                   "of ranks is the mean, for any number of ranks.")
    why = ("this is the one step that makes training parallel. If you average gradients where you averaged "
           "`value`, N ranks train one model. DistributedDataParallel does that.")

    world_sizes = (2, 3)
    cases = {  # the number of rank 0, of rank 1, and of rank 2
        "whole numbers": (1, 12, 28),
        "a zero among them": (0, 7, 2),
        "fractions": (0.3, -7.25, 1000.125),
        "a fraction and a whole number": (0.5, 2, 7),
        "two equal numbers": (5, 5, 29),
    }

    def answer(value):
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(value)])                #: tensor
        dist.all_reduce(total)                              #: reduce
        return total.item() / dist.get_world_size()         #: divide

    def observe(mean_of_ranks, numbers):
        given = numbers[:int(os.environ["WORLD_SIZE"])]

        returned = mean_of_ranks(given[int(os.environ["RANK"])])

        # True is an int in Python, and no mean.
        if isinstance(returned, bool) or not isinstance(returned, int | float):
            return {"given": given, "no number": kind_of(returned)}
        return {"given": given, "no number": "", "mean": float(returned)}

    # ---------------------------------------------------------------------------------------- what must hold

    def nothing_returned(mine, wanted, case):
        if mine["no number"] == "None":
            return "your function returned None", "a float"

    def no_number(mine, wanted, case):
        if mine["no number"]:
            return f"your function returned {mine['no number']}", "a float"

    def no_mean(mine, wanted, case):
        given = mine["given"]
        mean = sum(given) / len(given)
        if not abs(mine["mean"] - mean) <= 1e-5 * max(1, abs(mean)):  # NaN is no mean either
            numbers = ", ".join(map(str, given))
            return (f"your function returned {mine['mean']:g}, where the numbers are {numbers}",
                    f"{mean:g}, to six digits")

    rules = (
        each(nothing_returned, "does every rank come to a `return`?"),
        each(no_number, "`.item()` makes a number of a tensor with one element, and `float()` of other things"),
        each(no_mean, "does every rank have the sum of all numbers, in a dtype that keeps six digits? By what does it "
                      "divide?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    def asked_for_more_than_was_sent(lost):
        return sum(rank.asked_for for rank in lost) > sum(rank.sent for rank in lost)

    def had_returned(lost):
        return not all(lost[0].lines)

    def at_one_line(lost):
        return len(set(lost[0].lines)) == 1

    the_sum = "this is the sum. Divide it by the number of ranks, and call `all_reduce` only once"

    mistakes = (
        mistake(the_sum, divide="return total.item()"),
        mistake(the_sum, reduce="dist.all_reduce(total)\n"
                                "dist.all_reduce(total)"),
        mistake("how many ranks are there? `dist.get_world_size()` knows", divide="return total.item() / 2"),
        mistake("no rank knows the numbers of the others. `all_reduce` adds them up", reduce=""),
        mistake("`reduce` leaves the sum in one rank, `all_reduce` in all", reduce="dist.reduce(total, dst=0)"),
        mistake("this is the rank's own number. How does it hear of the others?", divide="return float(value)"),
        mistake("an integer has lost its digits. Make a tensor of floats", tensor="total = torch.tensor([int(value)])"),
        stop("where it expected",
             "a rank may have a whole number, another one a fraction: do all make a tensor of the same dtype?",
             tensor="total = torch.tensor([value])"),
        stop(asked_for_more_than_was_sent,
             "a rank waits for a message that nobody sends. Each `recv` needs a `send` to this rank",
             reduce="dist.recv(total, (dist.get_rank() + 1) % dist.get_world_size())"),
        stop(had_returned,
             "the rank that had returned did not come to that line as often as the other one. Is it a condition, an "
             "early `return` or the rounds of a loop that keeps it away?",
             reduce="if dist.get_rank() == 0:\n"
                    "    dist.all_reduce(total)"),
        stop(at_one_line,
             "all ranks are at that line, but not with the same call: do `src`, `dst`, the shape or the dtype differ "
             "between them?",
             reduce="dist.broadcast(total, src=dist.get_rank())"),
        stop("waited in vain",
             "the ranks wait at different lines. Do all of them call the same collectives, in the same order?",
             reduce="if dist.get_rank() == 0:\n"
                    "    dist.reduce(total, 0)\n"
                    "    dist.broadcast(total, 0)\n"
                    "else:\n"
                    "    dist.broadcast(total, 0)\n"
                    "    dist.reduce(total, 0)"),
        stop("never waited for it",
             "`async_op=True`, `isend` and `irecv` return at once: call `.wait()` on what they return",
             reduce="dist.all_reduce(total, async_op=True)"),
    )


mean_of_ranks = MeanOfRanks()
