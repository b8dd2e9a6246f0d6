"""A hunt: DDP does not average what was frozen when it was made."""

import operator

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import holds, nothing, same


class FineTune(InGroup):
    title = "Hunt: the copies that drift apart"
    task = ("Repair the program. `net[0]` is frozen for the first three batches and trained from the fourth "
            "on; each rank has its own list `batches`, which stays as it is. Train with SGD, `lr=0.1`, one "
            "step a batch, on the **mean** gradient of all ranks. Afterwards every rank's `net` holds the same "
            "weights: those that one process would have got from the batches of all ranks together.")
    hints = (
        "`net[0]` gets another `requires_grad` after DDP has been made. When does DDP look at it?",
        "DDP looks at `requires_grad` of each parameter when it wraps the network. It never averages those "
        "that are frozen at that moment.",
    )
    explanation = ("DDP averages the parameters that are trainable when it wraps the network. So wrap the "
                   "network again after unfreezing. The optimizer can stay, because its parameters are the "
                   "same.")
    why = ("If a parameter begins to train later, each rank changes it by its own gradient. There is no "
           "error, the copies differ, and only rank 0's copy is saved. Unfreeze before you wrap, or wrap "
           "again.")

    world_sizes = (2, 3)
    cases = {"5 batches": 5, "2 batches": 2}

    def answer(net, batches, loss_fn):
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP

        net[0].requires_grad_(False)                                    #: freeze
        model = DDP(net)                                                #: wrap
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)           #: optimizer
        for number, (x, y) in enumerate(batches):                       #: loop
            if number == 3:                                             #: fourth
                net[0].requires_grad_(True)                             #: unfreeze
                model = DDP(net)                                        #: again
            optimizer.zero_grad()                                       #: clear
            loss_fn(model(x), y).backward()                             #: backward
            optimizer.step()

    def observe(fine_tune, number):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        untrained = {name: parameter.tolist() for name, parameter in net.named_parameters()}
        torch.manual_seed(dist.get_rank())
        batches = [(torch.randn(6, 3).double(), torch.randn(6, 2).double()) for _ in range(number)]

        given = list(batches)
        fine_tune(net, batches, nn.MSELoss())

        trained, weights = {}, {}
        for name, parameter in net.named_parameters():
            trained[name] = parameter.tolist() != untrained[name]
            weights[name] = [round(value, 6) for value in parameter.flatten().tolist()]
        return {"batches taken away": number - sum(map(operator.is_, given, batches)), "trained": trained,
                "weights": weights}

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = "is the network wrapped in every rank, and at the same batch?"
    not_averaged = ("is this parameter's gradient the same in all ranks after each backward? From which batch on is it "
                    "not? (DDP averages only what `model(x)` began, not `net(x)`)")

    def copies_differ(mine, wanted, case):
        for name, numbers in mine[0]["weights"].items():
            if numbers != mine[-1]["weights"][name]:
                return (f"after the last step, `{name}` differs between rank 0 and rank {len(mine) - 1}",
                        "the same weights in every rank")

    rules = (
        holds(copies_differ, not_averaged),
        nothing("batches taken away", "`pop`: the next epoch needs the list again"),
        same("trained", "what is frozen, and until when? (Modules have `requires_grad_(…)`, parameters have "
                        "`requires_grad`.) Does the optimizer hold the parameter? Do you train `net` itself, and "
                        "no copy?"),
        same("weights", "is `net[0]` frozen for three batches? Are gradients cleared and averaged in each step, before "
                        "`optimizer.step()`? Is it plain SGD with `lr=0.1`, with one step a batch?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    three = "for how many batches is `net[0]` frozen? The fourth is the first that trains it"

    mistakes = (
        mistake(not_averaged, again=""),
        mistake("`model(x)`, not `net(x)`: DDP averages what its own forward began",
                backward="loss_fn(net(x), y).backward()"),
        mistake("`net[0]` stays frozen: who sets `requires_grad` to True again?", unfreeze=""),
        mistake("does the optimizer know of `net[0]`?",
                optimizer="optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.1)"),
        mistake(three, fourth="if number == 2:"),
        mistake(three, fourth="if number == 4:"),
        mistake("`net[0]` is trained from the first batch on: freeze it before the network is wrapped", freeze=""),
        mistake("`optimizer.zero_grad()`, in each step", clear=""),
        mistake("what is averaged? The gradients in each step, not the weights",
                loop="for number, (x, y) in enumerate(batches):\n"
                     "    if number == 3:\n"
                     "        net[0].requires_grad_(True)\n"
                     "    optimizer.zero_grad()\n"
                     "    loss_fn(model(x), y).backward()\n"
                     "    optimizer.step()\n"
                     "for parameter in net.parameters():\n"
                     "    torch.distributed.broadcast(parameter.data, 0)"),
        stop("Expected to have finished reduction",
             "DDP waits for gradients of what is frozen, and was not when it was made: freeze before you wrap",
             freeze="", wrap="model = DDP(net)\nnet[0].requires_grad_(False)"),
    )


fine_tune = FineTune()
