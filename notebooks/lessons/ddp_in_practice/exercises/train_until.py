"""A hunt: ranks that stop early by their own losses wait for each other for ever."""

import torch
import torch.distributed as dist

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, same

#: By rank, the loss after each step. The mean of the fourth is 0.25, that of the fifth a little less.
LOSSES = (
    (0.9, 0.4, 0.3, 0.25, 0.1998, 0.1),
    (0.9, 0.8, 0.6, 0.25, 0.3, 0.2),
    (0.9, 0.75, 0.7, 0.25, 0.25, 0.2),
)


class TrainUntil(InGroup):
    title = "Hunt: the early stop that never ends"
    task = ("Train until the loss is low enough. Call `step(batch)` for one batch after the other; it "
            "returns **this rank's** loss. Stop when the **mean** of all ranks' losses is below `limit`, or "
            "when there are no more batches. Return the number of steps, an `int`. In `step` the ranks average "
            "their gradients, so all ranks must make equally many steps.")
    hints = (
        "Rank 0 stops when its own loss is small. Rank 1 then waits in its next step. Which rank does it "
        "wait for?",
        "If all ranks must decide alike, they need the same number. Average the losses with "
        "`dist.all_reduce` in every step and every rank, and compare that mean with the limit.",
    )
    explanation = ("The mean is the same number in all ranks, so they all stop after the same step. It costs "
                   "one all-reduce of one number.")
    why = ("Every `break`, `continue` or `return` that depends on a rank's own data can cause such a hang: "
           "early stopping, a skipped NaN, a time limit. Let the ranks agree first.")

    world_sizes = (2, 3)
    # The limit, and how many batches there are.
    cases = {
        "limit 0.5": (0.5, 6),
        "limit 0.25": (0.25, 6),
        "limit 0.2495": (0.2495, 6),
        "limit 0.01": (0.01, 6),
        "limit 1": (1, 6),
        "no batches": (0.5, 0),
    }

    def answer(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss)                                           #: reduce
            steps += 1                                                      #: count
            if loss / dist.get_world_size() < limit:                        #: compare
                break                                                       #: leave
        return steps

    def observe(train_until, case):
        limit, number = case
        n = dist.get_world_size()
        losses = LOSSES[dist.get_rank()]
        trained_on = []

        def step(batch):
            trained_on.append(batch)
            dist.all_reduce(torch.zeros(4))  # stands for the gradients
            return losses[min(len(trained_on), len(losses)) - 1]

        returned = train_until(list("abcdef"[:number]), step, limit)

        if not isinstance(returned, int | None):
            returned = kind_of(returned)
        return {
            "trained on": "".join(trained_on),
            "mean losses": [sum(of_step) / n for of_step in zip(*LOSSES[:n], strict=True)],
            "returned": returned,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = sizes = "what decides whether a rank goes on, or asks the others: is it the same in all ranks?"
    early_return = "the line with `return`, for an early stop, too"

    def stopped_elsewhere(mine, wanted, case):
        steps, right = len(mine["trained on"]), len(wanted["trained on"])
        if steps != right:
            means = ", ".join(f"{mean:.4g}" for mean in mine["mean losses"])
            return f"it stopped after {steps} steps; the mean losses of the steps are {means}", f"after {right}"

    rules = (
        each(stopped_elsewhere, "whose losses are averaged (those of all ranks, in this step), after which steps, and "
                                "how is the mean compared? Wait for what is asynchronous before you read it"),
        same("trained on", "one batch after the other"),
        same("returned", early_return),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("a sum of losses is no mean yet", compare="if loss < limit:"),
        mistake("there may be more than two ranks", compare="if loss / 2 < limit:"),
        mistake("that is one rank's loss, here the smallest, and no mean",
                reduce="dist.broadcast(loss, 0)", compare="if loss < limit:"),
        mistake("that is the largest of the losses, not their mean",
                reduce="dist.all_reduce(loss, dist.ReduceOp.MAX)", compare="if loss < limit:"),
        mistake("below the limit, not equal", compare="if loss / dist.get_world_size() <= limit:"),
        mistake(early_return, leave="return"),
        mistake("the last step was made, too: count it before you leave the loop",
                count="", compare="if loss / dist.get_world_size() < limit:\n"
                                  "    break\n"
                                  "steps += 1"),
        stop(lambda lost: not all(lost[0].lines) and "step(" in "".join(lost[0].lines),
             "a rank that stops alone leaves the others in their next step: what do they all have to know?",
             reduce="", compare="if loss < limit:"),
    )


train_until = TrainUntil()
