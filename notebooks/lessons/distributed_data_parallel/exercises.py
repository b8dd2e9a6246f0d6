"""The exercises of DistributedDataParallel: all-reduce and DDP by hand, gradients that travel once, a drift."""

import copy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from helpers.exercises.engine import not_yet
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, each, holds, nothing, same
from helpers.instruments.calls import counted_calls
from helpers.instruments.memory import held_bytes

WRITE = "`tensor += …` and `tensor.copy_(…)` write into it; `tensor = tensor + …` makes another one"
CHUNKS = "send chunks, not the tensor, in its own dtype; and add up on the way"
STEPS = ("which chunk goes out in which step? N − 1 steps add, N − 1 overwrite, and the first of these sends the "
         "chunk that is finished")
REST = "is it in any chunk? N need not divide the length"
AT_ONCE = "`isend` and `irecv` return at once: wait for them afterwards"
NEIGHBOURS = "to whom you send, from whom you receive: what rank 0 sends to rank 1, rank 1 receives from rank 0"
SEND, RECEIVE = "        dist.send(give, (rank + 1) % n)\n", "        dist.recv(received, (rank - 1) % n)\n"
SENDING = f"        sending = dist.isend(give, (rank + 1) % n)\n{RECEIVE}        sending.wait()\n"


def returned_instead(mine, wanted, case):
    if mine["tensor"] != wanted["tensor"] and mine["returned"] == wanted["tensor"]:
        return "the function returned the sums, but `tensor` holds other values", "the sums are in `tensor` itself"


def unchanged(mine, wanted, case):
    if all(one["tensor"] == one["before"] for one in mine):
        return "`tensor` holds what it held before, in every rank", "the sums are in it"


def too_little_sent(mine, wanted, case):
    sent, size = mine["elements sent"], case[0]
    if sent < size:
        return f"the sums are right, but {sent:g} elements were sent", f"all {size} go through `send`"


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
    task = ("`tensor` has one dimension and any number of elements, at least as many as there are ranks. Leave "
            "in every rank's `tensor` the **sum over all ranks**, in place, as `dist.all_reduce` does. Use only "
            "`send`, `recv`, `isend`, `irecv` or `batch_isend_irecv` of `torch.distributed`. No rank may send more "
            "than 2(N − 1) chunks, where a chunk is an N-th of the tensor, rounded up.")
    hints = (
        "`tensor.tensor_split(N)` gives N views, also where N does not divide the length. Every rank sends to "
        "`rank + 1` and receives from `rank - 1`, modulo N.",
        "First half, N − 1 steps: send a chunk on, add the one that you receive to yours. In step `s` rank `r` "
        "sends chunk `r - s` and receives chunk `r - s - 1`. Then each rank holds one finished chunk.",
        "Second half, N − 1 steps: send the finished chunk on, overwrite yours with the one that you receive. "
        "All `send` first, and nobody receives? Use `isend`, then `recv`, then `wait()` for the send.",
    )
    explanation = ("The chunks are views, so that adding to them changes `tensor`. The index runs on through both "
                   "halves: in step N − 1 a rank sends the chunk that it has just finished. `isend` returns at "
                   "once, so that every rank comes to its `recv`.")
    why = ("each rank sends 2(N − 1)/N of the tensor, however many ranks there are: less than twice its size. "
           "Sending everything to everybody would be (N − 1) times. So gradients are averaged on large clusters.")
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
            sending = dist.isend(give, (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
            sending.wait()
            if step < n - 1:
                take += received
            else:
                take.copy_(received)

    def observe(ring_all_reduce, case):
        (size, dtype), n = case, dist.get_world_size()
        memory = torch.arange(1, size + 1, dtype=getattr(torch, dtype)) * 10 ** dist.get_rank()
        before = memory.tolist()
        returned = ring_all_reduce(memory[:])  # who only exchanges the tensor's memory has not written into it
        traffic = RingAllReduce.traffic
        return {
            "before": before,
            "tensor": memory.tolist(),
            "elements sent": sum(traffic.sent) / memory.element_size(),
            "elements of 2(N − 1) chunks": 2 * (n - 1) * -(-size // n),
            "returned": returned.tolist() if isinstance(returned, torch.Tensor) else None,
            "collectives called": [one.name for one in traffic.collectives if one.name != "barrier"]}

    rules = (
        nothing("collectives called", "the collective is what you are to build", "only `send`, `recv` …"),
        each(returned_instead, WRITE),
        holds(unchanged, WRITE),
        same("tensor", STEPS, within=1e-6),
        each(too_little_sent, "a store, a file or another dtype is another way"),
        between("elements sent", lambda wanted, case: (0, wanted["elements of 2(N − 1) chunks"]), CHUNKS),
    )
    mistakes = (
        ("take.copy_(received)", "take += received", "in the second half a finished chunk comes in: overwrite"),
        ("take += received", "take.copy_(received)", "in the first half, what comes in is added to yours"),
        ("step < n - 1", "step < n", "how many steps add? Only N − 1 of them"),
        ("2 * (n - 1)", "2 * n - 3", "how many steps are there? N − 1 that add, N − 1 that overwrite"),
        ("2 * (n - 1)", "2", "the steps grow with N: try it with three ranks on paper"),
        ("tensor.tensor_split(n)", "tensor.clone().tensor_split(n)", "the chunks belong to a copy of `tensor`"),
        ("tensor.tensor_split(n)", "tensor.split(len(tensor) // n)", REST),
        ("            take.copy_(received)", "            take.copy_(received)\n    tensor /= n", "who divides?"),
        (everything_to_everybody, CHUNKS),
    )
    stops = (
        (SENDING, SEND + RECEIVE, "every rank waited in vain at `dist.send(", f"nobody receives. {AT_ONCE}"),
        (SENDING, RECEIVE + SEND, nothing_sent, f"nobody sends. {AT_ONCE}"),
        ("(rank - 1) % n)", "(rank + 1) % n)", as_many_sent_as_asked_for, NEIGHBOURS),
        ("        sending.wait()\n", "", "never waited for it", AT_ONCE),
        ("dist.recv(", "dist.irecv(", "never waited for it", AT_ONCE),
    )


def _near(ones, others, within=1e-6):
    """Whether numbers, or None, are the same but for a small part of each."""
    if ones is None or others is None:
        return ones is others
    return all(abs(one - other) <= within * abs(other) for one, other in zip(ones, others, strict=True))


class AverageGradients(InGroup):
    title = "Your own DDP: average the gradients"
    task = ("Every rank has run `backward` on its own batch. Replace each parameter's gradient by the **mean over all "
            "ranks**. A parameter that one rank did not use has no gradient there (`None`): it counts as zeros, and "
            "has the mean afterwards, like the others. Frozen parameters (`requires_grad` is False) are left alone.")
    hints = (
        "`dist.all_reduce(parameter.grad)` adds up, in place. How do you get from the sum to the mean?",
        "All ranks have to call the same collectives in the same order. What happens if one of them skips a "
        "parameter? Give it a gradient of zeros first: `torch.zeros_like(parameter)`.",
    )
    explanation = ("`requires_grad` is the same in all ranks; whether there is a gradient is not. So the loop asks for "
                   "the first, and makes up for the second with zeros.")
    why = ("this, after a broadcast of the weights, is DistributedDataParallel without its speed. And what may differ "
           "between ranks, such as `if parameter.grad is None`, must never decide who calls a collective.")
    world_sizes = (2, 3)
    cases = {"float32": ("float32", -1), "bfloat16, None in rank 0": ("bfloat16", 0)}
    sizes = "what decides whether a parameter is skipped, and in which order they come: is it the same in all ranks?"

    def answer(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def probe(average_gradients, case):
        rank, n, (dtype, without) = dist.get_rank(), dist.get_world_size(), case
        torch.manual_seed(rank)  # in a training all ranks have the same weights; here, who averages those shows it
        model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Linear(2, 2), nn.Linear(2, 2)).to(getattr(torch, dtype))
        parameters = dict(model.named_parameters())
        for name, one in parameters.items():
            one.requires_grad, own = name not in FROZEN, _gradient(name, rank, n, without)
            one.grad = None if own is None else torch.tensor(own, dtype=one.dtype).view_as(one)
        before = {name: one.detach().clone() for name, one in parameters.items()}
        returned = average_gradients(model)
        return {"grads": {name: one.grad if one.grad is None else one.grad.flatten().tolist()
                          for name, one in parameters.items()},
                "talked": AverageGradients.traffic.count(),
                "returned": "" if returned is None else f"; your function returned a {type(returned).__name__}",
                "moved": [name for name, one in parameters.items() if not torch.equal(one, before[name])]}

    def judge(self, seen, case):
        n, exact = len(seen), 1e-5 if case[0] == "float32" else 0.02
        for rank, name in ((rank, name) for name in seen[0]["grads"] for rank in range(n)):
            one, owns = seen[rank], [_gradient(name, rank, n, case[1]) for rank in range(n)]
            got, own = one["grads"][name], owns[rank]
            mean = [sum(column) / n for column in zip(*([0] * 6 if own is None else own for own in owns), strict=False)]
            if name in one["moved"]:
                return not_yet(f"the weights have changed, `{name}` for example", "only gradients change; the "
                               "optimizer will do the rest", "`parameter.grad`, not `parameter` or `parameter.data`")
            if _near(got, own if name in FROZEN else mean, exact):
                continue
            if name in FROZEN:
                return not_yet(f"`{name}` is frozen, and its gradient has changed", "it stays as it was, None or not",
                               "`parameter.requires_grad`: an optimizer with weight decay would move it")
            if not one["talked"]:
                return not_yet("it called no collective, so that no rank knows the others' gradients",
                               "the mean over all ranks", "`dist.all_reduce`, and whether the loop around it ever runs")
            guess, look = "", "what you divide by, and whether every rank gets the result"
            owners = n - owns.count(None)
            if owners < n and _near(got, [n / owners * value for value in mean], exact):
                guess, look = ", the mean of those that have one", "who has none counts as zeros, and is divided by"
            elif got is None or _near(got, own, exact):
                guess = ", as before" + one["returned"]
                look = "which parameters you skip; and `all_reduce` works in place: on which tensor?"
            elif _near(got, [n * value for value in mean], exact):
                guess, look = ", which is the sum", ("what is divided by the number of ranks; and when: what you write "
                                                     "before an asynchronous `all_reduce` is waited for may be lost")
            elif _near(got, mean, 0.02):
                guess, look = ", which has lost its digits", "the dtype in which they travel or are added up"
            shown, wanted = (numbers and f"{numbers[0]:g}, {numbers[1]:g} …" for numbers in (got, mean))
            return not_yet(f"rank {rank}'s gradient of `{name}` is {shown}{guess}", f"{wanted}, the mean", look)
        return None

    def lost(self, seen, case):
        return replace(super().lost(seen, case), where_to_look=(
            f"{self.sizes} Rank {range(len(seen))[case[1]]} has no gradient for `1.weight`"))


FROZEN = "0.bias", "1.bias"


def _gradient(name, rank, n, without):
    """What this rank's gradient holds, or None; `0.bias` is frozen, and has one from before."""
    numbers = {"0.weight": 6, "0.bias": 2, "1.weight": 4, "2.weight": 4, "2.bias": 2}.get(name)
    if numbers is None or (name == "1.weight" and rank == without % n):
        return None
    return [10 ** rank * (len(name) + int(name[0]) + place / 8) for place in range(numbers)]


class Accumulate(InGroup):
    title = "Accumulate gradients, talk once"
    task = ("`model` is a DDP model, `batches` a list of this rank's micro-batches `(x, y)`, equally many in every "
            "rank. Make **one** optimizer step with the mean gradient over all micro-batches of all ranks, "
            "`loss_fn(model(x), y)` being each micro-batch's mean loss. The gradients may be all-reduced only "
            "**once**, and memory is short: never hold the activations of two micro-batches. When your function is "
            "called, the gradients of an earlier step may still be there. Leave the list `batches` as it is.")
    hints = (
        "`with model.no_sync():` keeps DDP from averaging. For which of the micro-batches?",
        "DDP decides in the forward whether it will average in the backward. So forward and backward both belong into "
        "the `with`; only the last micro-batch is outside. `contextlib.nullcontext()` is a `with` that does nothing.",
    )
    explanation = ("Gradients add up over the micro-batches, so each loss is divided by their number. The last "
                   "backward averages what has piled up: all of it, and only once.")
    why = ("all-reduces are what a step over a slow network waits for: with K micro-batches and `no_sync` there are K "
           "times fewer. Without it, or with the forward outside, the result is the same, and nothing is saved.")
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

    def probe(accumulate, number):
        torch.manual_seed(0)  # few weights, and many activations to keep; no two micro-batches of a rank equally large
        plain = nn.Sequential(nn.Linear(2, 64), *(nn.Tanh() for _ in range(8)), nn.Linear(64, 1)).double()
        everyones = [[[10 * torch.randn(48 + 4 * place, width).double() for width in (2, 1)] for place in range(number)]
                     for _ in range(dist.get_world_size())]

        def loss_fn(outputs, targets):
            return (outputs - targets).pow(4).mean()

        def gradient(x, y):
            return parameters_to_vector(torch.autograd.grad(loss_fn(plain(x), y), plain.parameters()))

        with held_bytes() as by_one:
            gradients = torch.stack([torch.stack([gradient(*batch) for batch in own]) for own in everyones])
        mean, last, own = gradients.mean((0, 1)), gradients[:, -1].mean(0), gradients[dist.get_rank()].mean(0)
        model, synced, forwards, steps, old = DistributedDataParallel(plain), [], [], [], 5.0
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        model.register_forward_pre_hook(lambda *_: synced.append(model.require_backward_grad_sync))
        plain.register_forward_pre_hook(lambda *_: forwards.append(1))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, old)
        before = parameters_to_vector(model.parameters()).detach()
        batches = list(everyones[dist.get_rank()])
        with held_bytes() as held, counted_calls(DistributedDataParallel, "no_sync") as calls:
            accumulate(model, optimizer, batches, loss_fn)
        moved, traffic = before - parameters_to_vector(model.parameters()).detach(), Accumulate.traffic
        ratio = (moved @ mean / (mean @ mean)).item()
        guesses = {"right": mean, "nothing": 0 * mean, "old": mean + old, "old, too": mean + old / number, "last": last,
                   "first": gradients[:, 0].mean(0),
                   "last, too": last / number, "own": own, "scaled": ratio * mean}
        near = [name for name, one in guesses.items() if torch.allclose(moved, one, 1e-9, 1e-6)]
        asked = [sum(traffic.sent), *(traffic.bytes(one.name) for one in traffic.collectives)]
        return {"step": near[0] if near else "other", "ratio": ratio, "steps": len(steps),
                "times": round(max(asked) / before.nbytes), "outside": sum(synced) * bool(calls["no_sync"]),
                "early": any(synced) and not synced[-1],
                "plain": len(forwards) - len(synced), "changed": len(batches) != number,
                "held": held.peak / by_one.peak}

    def judge(self, seen, number):
        for rank, one in enumerate(seen):
            times, step, never = one["times"], one["step"].partition(",")[0], "the gradients were never all-reduced"
            if one["changed"]:
                return not_yet("the list `batches` has changed", "it stays as it was: the next epoch needs it again",
                               "`pop`, `remove`, `clear`, and assignments to `batches[…]`")
            if one["steps"] != 1:
                return not_yet(f"rank {rank}'s optimizer stepped {one['steps']} times", "once, at the end",
                               "where `optimizer.step()` stands")
            if times > 1:
                cause = f": {one['outside']} forwards were outside `no_sync`" if one["outside"] > 1 else ""
                return not_yet(f"the gradients were all-reduced {times} times{cause}", "once",
                               "what you send: outside `no_sync`, DDP has averaged already" if one["outside"] == 1 else
                               "what stands inside `with model.no_sync():`, forward **and** backward?")
            if times == 0 and step == "right":
                return not_yet(f"{never}, and yet each rank has the mean", "once", "a store or a file is another way")
            if times == 0 and one["plain"]:
                return not_yet(f"{never}: `model.module` was called, the model inside, which knows of no rank",
                               "once", "`model(x)`, at least for the last micro-batch")
            if times == 0 and step != "nothing":
                return not_yet(f"{never}; each rank stepped on its own", "once",
                               "the last micro-batch: it is the one that must not be in `no_sync`")
            if step == "right" and one["held"] > 1.4:
                return not_yet(f"the step is right, but rank {rank} held {one['held']:.1f} times the memory that one "
                               "micro-batch needs, at the peak", "the activations of one micro-batch at a time",
                               "a `backward` before the next forward frees what that micro-batch kept, unless "
                               "`retain_graph=True`, or a loss that you keep, holds on to it")
            scaled = {number: "gradients add up; what would make a mean of them?",
                      len(seen): "a sum over the ranks is no mean yet",
                      round(1 / number, 6): "by their number each loss, or the gradient, is divided once",
                      round(1 / len(seen), 6): "DDP's all-reduce has already made a mean over the ranks"}
            problem, look = {
                "right": ("", ""),
                "nothing": ("moved nothing: there were no gradients",
                            "is there a `backward`? `zero_grad` between it and `step` takes away what it has made"),
                "old": ("is wrong: the gradients from before were still there, and counted, too",
                        "`optimizer.zero_grad()`: once, and before the first backward"),
                "last": ("is wrong: only the last micro-batch counted", "where `optimizer.zero_grad()` stands"),
                "first": ("is wrong: only the first micro-batch counted", "which one does each pass take?"),
                "own": ("is wrong: it follows this rank's gradient only", "what travels, and when: before the step?"),
                "scaled": (f"is {one['ratio']:.3g} times as long as it should be",
                           scaled.get(round(one["ratio"], 6), "what scales it, or clips it")),
                "other": ("leads elsewhere",
                          "outside `no_sync` has to be the last micro-batch: what comes after it stays in its rank"
                          if one["early"] else "what you divide by, clip, or leave out (does a `backward` come after "
                          "`step`?); each micro-batch counts the same, whatever its size"),
            }[step]
            if problem:
                return not_yet(f"rank {rank}'s step {problem}", "the mean of all micro-batches of all ranks", look)
        return None


class FineTune(InGroup):
    title = "Hunt: the copies that drift apart"
    task = ("Repair the program. `net[0]` is frozen for the first three batches and trained from the fourth on; each "
            "rank has its own `batches`. Train with SGD, `lr=0.1`, one step a batch, on the **mean** gradient of all "
            "ranks. Afterwards every rank's `net` holds the same weights: those that one process would have got from "
            "the batches of all ranks together.")
    hints = (
        "After the last step, compare the weights of two ranks, layer by layer. Which ones differ?",
        "DDP asks each parameter `requires_grad` when the network is wrapped. Those that say no are none of its "
        "business, then and later.",
    )
    explanation = ("DDP is made for what is trainable at that moment. After unfreezing, wrap the network again; the "
                   "optimizer can stay, for its parameters are the same.")
    why = ("DDP averages what it knew when it was built. A parameter that begins to train later is stepped by each "
           "rank on its own, without an error, and only rank 0's is saved. Unfreeze, then wrap; or wrap anew.")
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

    def probe(fine_tune, number):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        loss_fn, rank = nn.MSELoss(), dist.get_rank()
        everyones = [[(torch.randn(6, 3).double(), torch.randn(6, 2).double()) for _ in range(number)]
                     for _ in range(dist.get_world_size())]
        untrained = copy.deepcopy(net)

        def trained(begin=3, clear=True, times=1):
            alone = copy.deepcopy(untrained)
            optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
            for place, batches in enumerate(zip(*everyones, strict=True)):
                alone[0].requires_grad_(place >= begin)
                if clear:
                    optimizer.zero_grad()
                loss = loss_fn(alone(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]))
                (times * loss).backward()
                optimizer.step()
            return alone.state_dict()

        def fits(wanted):
            return {name: torch.allclose(one, wanted[name], 1e-9, 1e-12) for name, one in net.named_parameters()}

        fine_tune(net, everyones[rank], loss_fn)
        right = fits(trained())
        guesses = () if all(right.values()) else (
            *((f"`net[0]` was frozen for {begin} batches, not for 3", trained(begin)) for begin in (0, 1, 2, 4)),
            ("`optimizer.zero_grad()`, in each step", trained(clear=False)),
            ("the steps are as long as with the gradients' sum, which is no mean yet; and `lr` is 0.1",
             trained(times=len(everyones))))
        return {"guess": next((words for words, wanted in guesses if all(fits(wanted).values())), ""),
                "weights": {name: (one.flatten().tolist(), right[name], torch.equal(one, untrained.get_parameter(name)))
                            for name, one in net.named_parameters()}}

    def judge(self, seen, number):
        weights = {name: list(zip(*(one["weights"][name] for one in seen), strict=True)) for name in seen[0]["weights"]}
        for name, (values, *_) in weights.items():
            if not _near(values[0], values[-1], 1e-12):
                return not_yet(f"after the last step, `{name}` differs between rank 0 and rank {len(seen) - 1}",
                               "the same weights in every rank",
                               "what does DDP know of this parameter, and since when? And do you call `model(x)`, not "
                               "`net(x)`?")
        for name, (_, fits, still) in sorted(weights.items(), key=lambda one: not all(one[1][2])):  # the unmoved first
            if all(fits):
                continue
            if all(still):
                return not_yet(f"`{name}` is what it was at the beginning", "it is trained"
                               + (" from the fourth batch on" if name.startswith("0.") else ""),
                               "what is frozen, and until when (a module has `requires_grad_(…)`; `requires_grad` is a "
                               "parameter's)? Does the optimizer know of it? And is it `net` itself "
                               "that is trained?")
            return not_yet(f"`{name}` is the same in all ranks, but not what training on the mean gradient gives",
                           "the weights of one process that has the batches of all ranks",
                           seen[0]["guess"] or "what is frozen when, and who clears its gradients meanwhile; what is "
                           "averaged: the gradients, in each step, before `optimizer.step()`; plain SGD with `lr=0.1`; "
                           "and is there a step for each batch?")
        return None

    def _of_error(self, error, answer):
        if "Expected to have finished reduction" in str(error):
            return not_yet("DDP waits for gradients that do not come: of what is frozen, and was not when it was made",
                           "it knows what is trainable", "DDP asks `requires_grad` when it wraps: freeze before")
        return super()._of_error(error, answer)


ring_all_reduce, average_gradients = RingAllReduce(), AverageGradients()
accumulate, fine_tune = Accumulate(), FineTune()
