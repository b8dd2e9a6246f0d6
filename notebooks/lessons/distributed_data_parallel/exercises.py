"""The exercises of DistributedDataParallel: all-reduce and DDP by hand, gradients sent once, a drift."""

import math
import operator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, holds, nothing, same
from helpers.instruments.memory import held_bytes

WRITE = "`tensor += …` and `tensor.copy_(…)` write into it; `tensor = tensor + …` makes another one"
CHUNKS = "send chunks, not the tensor, in its own dtype; and add up on the way"
STEPS = ("which chunk goes out in which step? N − 1 steps add, N − 1 overwrite, and the first of these sends "
         "the chunk that is finished")
HOW_MANY = "how many steps are there? N − 1 that add, N − 1 that overwrite: try it with three ranks on paper"
REST = "is it in any chunk? N need not divide the length"
AT_ONCE = "`isend` and `irecv` return at once: wait for them afterwards"
NEIGHBOURS = "to which rank do you send, and from which do you receive? Rank 1 receives what rank 0 sends"
ALL = "the sums are right, but did all go through `send`? A store, a file or another dtype is another way"
SPLIT, LAST = "tensor.tensor_split(n)", "            take.copy_(received)\n"
ANOTHER_TENSOR = (
    ("take += received", "take = take + received", WRITE),
    (((SPLIT, f"list({SPLIT})"), ("take +=", "chunks[(rank - step - 1) % n] = take +")), WRITE))
SEND, RECEIVE = "        dist.send(give, (rank + 1) % n)\n", "        dist.recv(received, (rank - 1) % n)\n"
WAITING = "        for work in dist.batch_isend_irecv(exchange):\n            work.wait()\n"
SENDING = ("        exchange = [dist.P2POp(dist.isend, give, (rank + 1) % n),\n"
           f"                    dist.P2POp(dist.irecv, received, (rank - 1) % n)]\n{WAITING}")


def unchanged(mine, wanted, case):
    if all(one["tensor"] == one["before"] for one in mine):
        return "`tensor` holds what it held before, in every rank", "the sums are in it"


def nothing_sent(lost):
    return all(sent == 0 for sent, _ in (one.messages for one in lost))


def as_many_sent_as_asked_for(lost):
    return all(sent == asked for sent, asked in (one.messages for one in lost))


def everything_to_everybody(tensor):
    import torch
    import torch.distributed as dist

    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    sends = [dist.isend(tensor, other) for other in others]
    parts = [torch.empty_like(tensor) for _ in others]
    for other, part in zip(others, parts, strict=True):
        dist.recv(part, other)
    for sending in sends:
        sending.wait()
    tensor.copy_(sum([tensor, *parts]))


class RingAllReduce(Table, InGroup):
    title = "All-reduce, by hand, in a ring"
    task = ("`tensor` has one dimension, and at least as many elements as there are ranks. Leave in every "
            "rank's `tensor` the **sum over all ranks**, in place, as `dist.all_reduce` does. Use only "
            "`send`, `recv`, `isend`, `irecv` or `batch_isend_irecv` of `torch.distributed`. No rank may "
            "send more than 2(N − 1) chunks, where a chunk is an N-th of the tensor, rounded up.")
    hints = (
        "`tensor.tensor_split(N)` gives N views, also where N does not divide the length. Every rank sends "
        "to `rank + 1` and receives from `rank - 1`, modulo N.",
        "First half, N − 1 steps: send a chunk on, add the one that you receive to yours. In step `s` rank "
        "`r` sends chunk `r - s` and receives chunk `r - s - 1`. Then each rank holds one finished chunk.",
        "Second half, N − 1 steps: send the finished chunk on, overwrite yours with the one that you "
        "receive. If all ranks `send` first, no rank receives: use `batch_isend_irecv`, then `wait()`.",
    )
    explanation = ("The chunks are views, so that adding to them changes `tensor`. The index runs on through "
                   "both halves: in step N − 1 a rank sends the chunk that it has just finished. "
                   "`batch_isend_irecv` starts both at once, so that no rank waits for another to receive.")
    why = ("each rank sends 2(N − 1)/N of the tensor, which is less than twice its size for any number of "
           "ranks. If every rank sent its tensor to all others, it would send N − 1 times the size.")
    world_sizes = (2, 3, 4)
    cases = {"12 elements": (12, "float64"), "5 elements": (5, "float32")}  # divided by all, and by none
    waiting = "who sends while you receive, and who receives while you send?"
    sizes = "the tensor that you receive into: is it as long as the chunk that is sent, and of its dtype?"

    def answer(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(n)
        for step in range(2 * (n - 1)):
            give, take = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
            received = torch.empty_like(take)
            exchange = [dist.P2POp(dist.isend, give, (rank + 1) % n),
                        dist.P2POp(dist.irecv, received, (rank - 1) % n)]
            for work in dist.batch_isend_irecv(exchange):
                work.wait()
            if step < n - 1:
                take += received
            else:
                take.copy_(received)

    def observe(ring_all_reduce, case):
        (size, dtype), n = case, dist.get_world_size()
        memory = torch.arange(1, size + 1, dtype=getattr(torch, dtype)) * 10 ** dist.get_rank()
        before = memory.tolist()
        ring_all_reduce(memory[:])  # who only exchanges the tensor's memory has not written into it
        traffic = RingAllReduce.traffic
        return {
            "before": before,
            "tensor": memory.tolist(),
            "elements sent": sum(traffic.sent) / memory.element_size(),
            "the most to send": 2 * (n - 1) * -(-size // n),
            "collectives called": [one.name for one in traffic.collectives if one.name != "barrier"]}

    rules = (
        nothing("collectives called", "the collective is what you are to build", "only `send`, `recv` …"),
        holds(unchanged, WRITE),
        same("tensor", STEPS, within=1e-6),
        between("elements sent", lambda wanted, case: (case[0], math.inf), ALL),
        between("elements sent", lambda wanted, case: (0, wanted["the most to send"]), CHUNKS),
    )
    mistakes = (
        ("take.copy_(received)", "take += received", "in the second half what comes in is finished: keep it"),
        ("take += received", "take.copy_(received)", "in the first half, what comes in is added to yours"),
        *ANOTHER_TENSOR,
        ("step < n - 1", "step < n", "how many steps add? Only N − 1 of them"),
        ("2 * (n - 1)", "2 * (n - 2)", HOW_MANY),
        ("2 * (n - 1)", "2", HOW_MANY),
        (SPLIT, "tensor.clone().tensor_split(n)", "the chunks belong to a copy of `tensor`"),
        (SPLIT, "tensor.split(len(tensor) // n)", REST),
        (LAST, f"{LAST}    tensor /= n\n", "the task asks for the sum, not for the mean"),
        (everything_to_everybody, CHUNKS),
    )
    stops = (
        (SENDING, SEND + RECEIVE, "every rank waited in vain at `dist.send(", f"nobody receives. {AT_ONCE}"),
        (SENDING, RECEIVE + SEND, nothing_sent, f"nobody sends. {AT_ONCE}"),
        ("(rank - 1) % n)", "(rank + 1) % n)", as_many_sent_as_asked_for, NEIGHBOURS),
        (WAITING, "        dist.batch_isend_irecv(exchange)\n", "never waited for it", AT_ONCE),
    )


FROZEN = "0.bias", "1.bias"
ALL_REDUCE = "dist.all_reduce(parameter.grad)"
REDUCE, DIVIDE = f"            {ALL_REDUCE}\n", "            parameter.grad /= dist.get_world_size()\n"
ZEROS = ("            if parameter.grad is None:\n"
         "                parameter.grad = torch.zeros_like(parameter)\n")
NOT_DATA = "`parameter.grad`, not `parameter` or `parameter.data`"
LATE = "            work = dist.all_reduce(parameter.grad, async_op=True)\n"
WAIT = "            work.wait()\n"
IN_PLACE = "`all_reduce` works in place: on which tensor?"
DIGITS = "the dtype in which the gradients are added up: it has too few digits"
HALF = "            parameter.grad = parameter.grad.half().to(parameter.dtype)\n"
FREE = "`parameter.requires_grad`: an optimizer with weight decay would move what is frozen"
AVERAGED = ("is `parameter.grad` itself averaged, of each parameter that is not frozen, in every rank? And "
            "what do you divide by?")


def another_mean(mine, wanted, case):
    digits = {"float32": 1e-5, "bfloat16": 0.02}
    return same("gradients", AVERAGED, within=digits[case[0]]).broken(mine, wanted, case)


class AverageGradients(Table, InGroup):
    title = "Your own DDP: average the gradients"
    task = ("Every rank has run `backward` on its own batch. Replace each parameter's gradient by the **mean "
            "over all ranks**. A parameter that one rank did not use has no gradient there (`None`): it "
            "counts as zeros, and has the mean afterwards, like the others. Frozen parameters "
            "(`requires_grad` is False) are left alone.")
    hints = (
        "`dist.all_reduce(parameter.grad)` adds up, in place. How do you get from the sum to the mean?",
        "All ranks have to call the same collectives in the same order. What happens if one of them skips a "
        "parameter? Give it a gradient of zeros first: `torch.zeros_like(parameter)`.",
    )
    explanation = ("`requires_grad` is the same in all ranks, so it may decide which gradients to average. A "
                   "gradient may be missing in one rank only, so a missing one becomes zeros.")
    why = ("with a broadcast of the weights at the start, this is DistributedDataParallel without its speed. "
           "If something may differ between ranks, such as `parameter.grad is None`, it must never decide "
           "whether a rank calls a collective.")
    world_sizes = (2, 3)
    cases = {"float32, `1.weight.grad` is None in the last rank": ("float32", -1),
             "bfloat16, it is None in rank 0": ("bfloat16", 0)}
    waiting = sizes = ("what decides whether a parameter is skipped, and in which order they come: is it the "
                       "same in all ranks?")

    def answer(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def observe(average_gradients, case):
        rank, (dtype, without) = dist.get_rank(), case
        torch.manual_seed(rank)  # weights that differ: averaging those shows
        model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Linear(2, 2), nn.Linear(2, 2))
        parameters = dict(model.to(getattr(torch, dtype)).named_parameters())
        for number, one in enumerate(parameters.values(), start=1):
            own = 10 ** rank * (1000 * number + torch.arange(1, one.numel() + 1))  # 2003: the second's third
            one.grad = own.view_as(one).to(one.dtype)
        for name in FROZEN:
            parameters[name].requires_grad = False
        parameters["1.bias"].grad = None  # the other frozen one has a gradient from before
        if rank == range(dist.get_world_size())[without]:
            parameters["1.weight"].grad = None
        before = {name: one.detach().clone() for name, one in parameters.items()}
        average_gradients(model)
        gradients = {name: None if one.grad is None else one.grad.flatten().tolist()
                     for name, one in parameters.items()}
        return {
            "collectives called": AverageGradients.traffic.count(),
            "weights changed": [name for name in before if not before[name].equal(parameters[name])],
            "frozen gradients": {name: gradients.pop(name) for name in FROZEN},
            "gradients": gradients}

    rules = (
        nothing("weights changed", NOT_DATA,
                "none: only gradients change; the optimizer will do the rest"),
        same("frozen gradients", FREE),
        between("collectives called", lambda wanted, case: (1, math.inf),
                "`dist.all_reduce`, and whether the loop around it ever runs"),
        holds(another_mean, AVERAGED),
    )
    mistakes = (
        (DIVIDE, "", "`all_reduce` adds up: what makes a mean of the sum?"),
        (REDUCE + DIVIDE, LATE + DIVIDE + WAIT,
         "what you write before an asynchronous `all_reduce` is waited for may be lost"),
        (ALL_REDUCE, "dist.all_reduce(parameter.grad.clone())", IN_PLACE),
        (ALL_REDUCE, "dist.reduce(parameter.grad, 0)", "`reduce` gives the sum to one rank alone"),
        (ALL_REDUCE, "dist.broadcast(parameter.grad, 0)", "`broadcast` adds nothing up"),
        (ZEROS, ZEROS + HALF, DIGITS),
        ("parameter.grad", "parameter.data", NOT_DATA),
        ("if parameter.requires_grad:", "if True:", "who decides what is frozen? `parameter.requires_grad`"),
    )
    stops = (
        ("if parameter.requires_grad:", "if parameter.grad is not None:", "waited in vain",
         "a rank without a gradient skips the collective in which the others wait: it counts as zeros"),
        (ZEROS, "", "NoneType", "a rank without a gradient counts as zeros: `torch.zeros_like(parameter)`"),
    )


NO_SYNC = "contextlib.nullcontext() if last else model.no_sync()"
LOSS = "loss = loss_fn(model(x), y) / len(batches)\n"
LOOP = "    for number, (x, y) in enumerate(batches, start=1):\n"
CLEAR, STEP = "    optimizer.zero_grad()\n", "    optimizer.step()\n"
AGAIN = "    for one in model.parameters():\n        torch.distributed.all_reduce(one.grad)\n"
ONCE = ("DDP averages in the backward whose forward was outside `no_sync`: that of the last micro-batch, and "
        "no other. (A store is another way.)")
NO_RANKS = "`model.module`, the model inside, knows no ranks: `model(x)`, at least for the last micro-batch"
IN_BACKWARD = "DDP averages in each backward: which of them belong into `no_sync`?"
SCALED = ("does something scale or clip the step? Each micro-batch counts the same, whatever its size. DDP "
          "has averaged over the ranks already. And does every `backward` come before `step`?")
FREED = ("call `backward` before the next forward: it frees the activations of its micro-batch. They stay "
         "with `retain_graph=True`, or while you keep the loss")
LAST_ONE = "the last micro-batch belongs outside `no_sync`: no rank sends the gradients of those that follow"
BEFORE = ("gradients of an earlier step are still there: call `optimizer.zero_grad()` before the first "
          "backward")
TAKEN = "`zero_grad` between backward and `step` deletes the gradients that backward has made"


class Accumulate(Table, InGroup):
    title = "Accumulate gradients, talk once"
    task = ("`model` is a DDP model. `batches` is a list of this rank's micro-batches `(x, y)`; every rank "
            "has equally many. `loss_fn(model(x), y)` is a micro-batch's mean loss. Make **one** optimizer "
            "step with the mean gradient over all micro-batches of all ranks. All-reduce the gradients only "
            "**once**. Never hold the activations of two micro-batches. Gradients of an earlier step may "
            "still be there. Leave `batches` as it is.")
    hints = (
        "`with model.no_sync():` keeps DDP from averaging. For which of the micro-batches?",
        "DDP decides in the forward whether it will average in the backward. So forward and backward both "
        "belong into the `with`; only the last micro-batch is outside. `contextlib.nullcontext()` is a "
        "`with` that does nothing.",
    )
    explanation = ("Gradients add up over the micro-batches, so each loss is divided by their number. The "
                   "last backward averages what has piled up: all of it, and only once.")
    why = ("over a slow network, a step waits for its all-reduces. With K micro-batches and `no_sync` there "
           "are K times fewer. If the forward is outside, the result is the same, but nothing is saved.")
    world_sizes = (3,)
    cases = {"4 micro-batches": 4, "1 micro-batch": 1}
    waiting = "do all ranks run as many backwards outside `no_sync`?"

    def answer(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()
        for number, (x, y) in enumerate(batches, start=1):
            last = number == len(batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_fn(model(x), y) / len(batches)
                loss.backward()
        optimizer.step()

    def observe(accumulate, number):
        def loss_fn(outputs, targets):  # so the gradient of each bias is the mean target
            return (outputs * targets).sum(1).mean()

        plain = nn.Sequential(nn.Linear(16, 16), *(nn.ReLU() for _ in range(16))).double()
        for parameter in plain.parameters():
            nn.init.ones_(parameter)
            parameter.grad = torch.full_like(parameter, 5)  # of an earlier step
        ramps = [torch.linspace(0.5, 1.5, 48 + 4 * place, dtype=torch.float64)[:, None].expand(-1, 16).clone()
                 for place in range(number)]  # each has a mean of 1, and its own length
        batches = [(torch.full_like(ramp, 3), (place + 1) * 10 ** dist.get_rank() * ramp)
                   for place, ramp in enumerate(ramps)]
        model, averaged, steps, given = DistributedDataParallel(plain), [], [], list(batches)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        model.register_forward_pre_hook(lambda *_: averaged.append(model.require_backward_grad_sync))
        with held_bytes() as held:
            accumulate(model, optimizer, batches, loss_fn)
        traffic, size = Accumulate.traffic, sum(one.nbytes for one in plain.parameters())
        sent = [sum(traffic.sent), *(traffic.bytes(one.name) for one in traffic.collectives)]
        return {
            "batches taken away": number - sum(map(operator.is_, given, batches)),
            "optimizer steps": len(steps),
            "all-reduces of the gradients": round(max(sent) / size),
            "forwards whose backward averages": averaged,
            "step": {name: round((1 - one).mean().item(), 6) for name, one in plain.named_parameters()},
            "micro-batches held at once": round(held.peak / (17 * ramps[-1].nbytes))}

    rules = (
        nothing("batches taken away", "`pop`, `batches[…] = …`: the next epoch needs the list again"),
        same("optimizer steps", "where `optimizer.step()` stands: once in every rank, at the end"),
        same("all-reduces of the gradients", ONCE),
        same("step", SCALED, within=1e-6),
        between("micro-batches held at once", lambda wanted, case: (0, 1), FREED),
    )
    mistakes = (
        (NO_SYNC, "contextlib.nullcontext()", IN_BACKWARD),
        (((f"with {NO_SYNC}:\n            {LOSS}", f"{LOSS}        with {NO_SYNC}:\n"),),
         "forward **and** backward belong inside `no_sync`: DDP decides in the forward"),
        (NO_SYNC, "model.no_sync()", "the last micro-batch: it must not be in `no_sync`"),
        ("model(x)", "model.module(x)", NO_RANKS),
        (STEP, AGAIN + STEP, "DDP has averaged already, in the backward outside `no_sync`"),
        (" / len(batches)", "", "gradients add up: what makes a mean of them?"),
        ("last = number == len(batches)", "last = number == 1", LAST_ONE),
        (((CLEAR, ""), (LOOP, f"{LOOP}    {CLEAR}")), "`zero_grad` in the loop: all but the last is lost"),
        (CLEAR, "", BEFORE),
        (STEP, CLEAR + STEP, TAKEN),
    )


FREEZE, UNFREEZE = "    net[0].requires_grad_(False)\n", "            net[0].requires_grad_(True)\n"
WRAP, AGAIN_WRAPPED = "    model = DDP(net)\n", "            model = DDP(net)\n"
SEND_WEIGHTS = "    for one in net.parameters():\n        torch.distributed.broadcast(one.data, 0)\n"
KNOWN = "what does DDP know of this parameter, and since when? And do you call `model(x)`, not `net(x)`?"
THREE = "for how many batches is `net[0]` frozen? The fourth is the first that trains it"
STILL = ("what is frozen, and until when? (Modules have `requires_grad_(…)`, parameters have "
         "`requires_grad`.) Does the optimizer hold the parameter? Do you train `net` itself, and no copy?")
OTHERWISE = ("is `net[0]` frozen for three batches? Are gradients cleared and averaged in each step, before "
             "`optimizer.step()`? Is it plain SGD with `lr=0.1`, with one step a batch?")


def copies_differ(mine, wanted, case):
    for name, numbers in mine[0]["weights"].items():
        if numbers != mine[-1]["weights"][name]:
            return (f"after the last step, `{name}` differs between rank 0 and rank {len(mine) - 1}",
                    "the same weights in every rank")


class FineTune(Table, InGroup):
    title = "Hunt: the copies that drift apart"
    task = ("Repair the program. `net[0]` is frozen for the first three batches and trained from the fourth "
            "on; each rank has its own `batches`. Train with SGD, `lr=0.1`, one step a batch, on the "
            "**mean** gradient of all ranks. Afterwards every rank's `net` holds the same weights: those "
            "that one process would have got from the batches of all ranks together.")
    hints = (
        "After the last step, compare the weights of two ranks, layer by layer. Which ones differ?",
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
    waiting = "is the network wrapped in every rank, and at the same batch?"

    def answer(net, batches, loss_fn):
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP

        net[0].requires_grad_(False)
        model = DDP(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number, (x, y) in enumerate(batches):
            if number == 3:
                net[0].requires_grad_(True)
                model = DDP(net)
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

    def observe(fine_tune, number):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        untrained = {name: one.tolist() for name, one in net.named_parameters()}
        torch.manual_seed(dist.get_rank())
        batches = [(torch.randn(6, 3).double(), torch.randn(6, 2).double()) for _ in range(number)]
        fine_tune(net, batches, nn.MSELoss())
        return {
            "trained": {name: one.tolist() != untrained[name] for name, one in net.named_parameters()},
            "weights": {name: [round(value, 6) for value in one.flatten().tolist()]
                        for name, one in net.named_parameters()}}

    rules = (
        holds(copies_differ, KNOWN),
        same("trained", STILL),
        same("weights", OTHERWISE),
    )
    mistakes = (
        (AGAIN_WRAPPED, "", KNOWN),
        ("(model(x)", "(net(x)", "`model(x)`, not `net(x)`: DDP averages what its own forward began"),
        (UNFREEZE, "", "`net[0]` stays frozen: who sets `requires_grad` to True again?"),
        ("SGD(net.parameters()", "SGD([one for one in net.parameters() if one.requires_grad]",
         "does the optimizer know of `net[0]`?"),
        ("number == 3", "number == 2", THREE),
        ("number == 3", "number == 4", THREE),
        (FREEZE, "", "`net[0]` is trained from the first batch on: freeze it before the network is wrapped"),
        ("        optimizer.zero_grad()\n", "", "`optimizer.zero_grad()`, in each step"),
        (((AGAIN_WRAPPED, ""), ("        optimizer.step()\n", "        optimizer.step()\n" + SEND_WEIGHTS)),
         "what is averaged? The gradients in each step, not the weights"),
    )
    stops = (
        (FREEZE + WRAP, WRAP + FREEZE, "Expected to have finished reduction",
         "DDP waits for gradients of what is frozen, and was not when it was made: freeze before you wrap"),
    )


ring_all_reduce, average_gradients = RingAllReduce(), AverageGradients()
accumulate, fine_tune = Accumulate(), FineTune()
