"""A loss of which DDP's average is that of one process, though the ranks hold unequal numbers of tokens that count."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, each, same

#: By rank: with as many in each, an answer that averages fractions would be right.
TOKENS = (320, 40, 56)
CLASSES = 16
#: Bytes that a rank may send: a few numbers, as objects too; 40 rows of scores have 5,120.
FEW = 2000


def tokens_of(rank, counting):
    """What the model is given, and the targets, of which the first `counting` are classes."""
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(TOKENS[rank], 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (TOKENS[rank],), generator=generator)
    targets[counting:] = -100
    return inputs, targets


def no_loss(loss):
    """What it is, in words, that has no `backward`; empty for a loss."""
    if not isinstance(loss, torch.Tensor):
        return kind_of(loss)
    if loss.numel() != 1:
        return f"a tensor of {loss.numel()} numbers"
    return "" if loss.requires_grad else "a tensor that does not depend on the scores"


class TokenLoss(InGroup):
    title = "A loss in which every token counts the same"
    task = ("Every rank calls `token_loss(scores, targets)` with its own tokens, more or fewer than other ranks. "
            "`scores` are what a DDP model returns, a row for each token. `targets` are the right classes, or −100 "
            "where a token does not count. Return a loss, computed in float32 or finer. After each rank's "
            "`.backward()`, DDP's gradient must be that of one process that takes the mean cross entropy of **all** "
            "tokens that count. If a rank has none that count, but another has, its loss is a number, not NaN. Leave "
            "`scores` and `targets` as they are. The ranks may send each other a few numbers, but no scores.")
    hints = (
        "In one process, the loss is a sum over all tokens that count, divided by their number. Which part of it "
        "can a rank compute alone, and what does it have to ask the others?",
        "`cross_entropy(scores, targets, reduction=\"sum\")` adds up what counts. Divide it by the number of tokens "
        "that count in all ranks. DDP's gradient is the sum of the ranks' gradients, divided by the number of ranks.",
    )
    explanation = ("Each rank has its part of the sum. The number below it is that of all ranks, from one "
                   "all-reduce of one number. DDP divides by the number of ranks, so the loss is multiplied by it. "
                   "The sum of no losses is 0, where their mean would be NaN.")
    why = ("Texts differ in length, and prompts and filling tokens do not count. With a mean in each rank, the tokens "
           "of a rank with few of them weigh more. Micro-batches, whose gradients you accumulate, differ in that, too.")

    world_sizes = (2, 3)
    # How many tokens count, by rank.
    cases = {"equally many tokens count": (32, 32, 32), "301, 16 and 24 tokens count": (301, 16, 24),
             "rank 1 has no token that counts": (40, 0, 8)}

    def answer(scores, targets):
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy

        count = (targets != -100).sum()                                     #: count
        dist.all_reduce(count)                                              #: reduce
        own = cross_entropy(scores, targets, reduction="sum")               #: own
        return own * dist.get_world_size() / count                          #: scale

    def observe(token_loss, counting):
        rank = dist.get_rank()
        torch.manual_seed(0)
        net = nn.Linear(3, CLASSES).double()
        inputs, targets = tokens_of(rank, counting[rank])
        scores = DistributedDataParallel(net)(inputs)
        given = {"scores": scores.tolist(), "targets": targets.tolist()}

        loss = token_loss(scores, targets)

        traffic = token_loss.traffic
        left = {"scores": scores.tolist(), "targets": targets.tolist()}
        missing = torch.tensor(float(bool(no_loss(loss))))
        dist.all_reduce(missing)
        if not missing:
            loss.sum().backward()
        gradient = [] if net.weight.grad is None else net.weight.grad.flatten().tolist()
        return {
            "returned": no_loss(loss),
            "is NaN": not no_loss(loss) and bool(loss.isnan()),
            "changed": [name for name, values in given.items() if left[name] != values],
            "gradient": gradient,
            "bytes sent": sum(traffic.sent) + sum(call.bytes for call in traffic.collectives),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def is_no_loss(mine, wanted, case):
        if mine["returned"]:
            return f"it returned {mine['returned']}", "a tensor of one number, which depends on the scores"

    def changes(mine, wanted, case):
        if mine["changed"]:
            return f"it changed the {mine['changed'][0]}", "they are as they were"

    def no_gradient(mine, wanted, case):
        if not mine["gradient"]:
            return "the model got no gradient", "the loss depends on the scores that the model returned"

    def is_nan(mine, wanted, case):
        if mine["is NaN"]:
            return "the loss is NaN", "a number"

    on_a_copy = "which line writes into the scores or the targets? Work on a copy"
    few = "which numbers must all ranks know? Count before you send"

    forgotten = "what is returned, in every rank? `.item()`, `detach()` and a new tensor forget the scores"

    rules = (
        each(is_no_loss, forgotten),
        each(no_gradient, forgotten),
        each(is_nan, "a mean of no tokens is 0 / 0, and NaN stays NaN, whatever you multiply it by"),
        each(changes, on_a_copy),
        same("gradient", "which tokens are added up, and what is their sum divided by: in the rank, and by DDP?",
             within=3e-4),
        between("bytes sent", lambda wanted, case: (0, FEW), few),
    )

    # ------------------------------------------------------------------------------------ what people write

    a_mean_in_each = "a token in a rank with few of them weighs more: divide by the number of tokens of all ranks"

    mistakes = (
        mistake(a_mean_in_each, scale="return cross_entropy(scores, targets)"),
        mistake(a_mean_in_each, reduce=""),
        mistake("ranks have more or fewer tokens: add up how many count, not the fractions that do",
                count="count = (targets != -100).float().mean()",
                own='own = cross_entropy(scores, targets, reduction="none").mean()'),
        mistake("DDP divides by the number of ranks, too", scale="return own / count"),
        mistake("that is multiplied by 2, whatever the number of ranks is", scale="return own * 2 / count"),
        mistake("a sum is no mean yet: what is it divided by?", scale="return own"),
        mistake("that divides by the number of ranks twice: DDP does it once",
                scale="return own / count / dist.get_world_size()"),
        mistake("tokens with the target −100 do not count", count="count = torch.tensor(len(targets))"),
        mistake("where no token counts, `cross_entropy` takes the mean of nothing, which is NaN; 0 × NaN is NaN, too",
                own="own = cross_entropy(scores, targets) * (targets != -100).sum()"),
        mistake("a rank's loss depends on its scores, in a rank without tokens that count, too: DDP waits for it",
                scale="if not (targets != -100).any():\n"
                      "    return torch.zeros(())\n"
                      "return own * dist.get_world_size() / count"),
        stop("had returned", "does every rank come to the collective, one without tokens that count, too?",
             count="count = (targets != -100).sum()\n"
                   "if not count:\n"
                   "    return scores.sum() * 0"),
        stop("inplace operation", on_a_copy,
             scale="targets.clamp_(min=0)\n"
                   "return own * dist.get_world_size() / count"),
        stop("a second time", "the check calls `.backward()`: return the loss, and leave that to the caller",
             scale="loss = own * dist.get_world_size() / count\n"
                   "loss.backward()\n"
                   "return loss"),
    )


token_loss = TokenLoss()
