"""The exercises of lesson 05: collectives by hand, exact sums over ranks, snapshots, and the hangs in between."""

import contextlib
import itertools
import linecache
import os
import re
import time
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "05_distributed_data_parallel"

#: Seconds after which a rank gives up a collective to which not all ranks come.
GIVE_UP = 1.5
_WAITED = re.compile(r"Timed out waiting|[Tt]imeout|Connection (closed|reset) by peer|Broken pipe|monitoredBarrier")
#: What gloo says, and dies, when a message is longer than the tensor that it was meant for.
_SIZES = re.compile(r"(\d+) vs (\d+)\. Received data size doesn't match expected size")

_DESTROYED = "the process group was gone when the function returned"

_meetings = itertools.count()


class _InRanks(Exercise):
    """An exercise whose answer talks to other ranks: a collective that a rank waits for in vain ends after GIVE_UP."""

    timeout = 4

    def _of_error(self, error, answer):
        sizes = _SIZES.search("".join(error.logs))
        if sizes:
            return not_yet(f"a rank was sent {sizes[1]} bytes where it expected {sizes[2]}, and died of it",
                           "what one rank sends is as long as what the other one receives",
                           "do all ranks come to the same collective, or to a `recv` for this very `send`?")
        if _DESTROYED in str(error):
            return not_yet("when your function returned, it had destroyed the process group",
                           "the group is still there: the training goes on with it",
                           "leave out `destroy_process_group`; who formed the group ends it, at the end of the program")
        feedback = super()._of_error(error, answer)
        back = r"was at `[^`]*` \([^()]*in _meet\)"
        return replace(feedback, observed=re.sub(back, "had returned", feedback.observed))


def _join(give_up=GIVE_UP):
    """Form the group, whose collectives end after `give_up` seconds; return rank and world size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    _meet()  # on a busy machine ranks start late, and GIVE_UP is short
    dist.init_process_group("gloo", timeout=timedelta(seconds=give_up))
    return dist.get_rank(), dist.get_world_size()


def _attempt(function, *args):
    """Call the learner's function in this rank and wait until all ranks have come back from theirs.

    Returns what it returned; the learner's line at which this rank waited in vain, or None; and whether a rank did.
    """
    import torch.distributed as dist

    returned = stuck = None
    try:
        returned = function(*args)
        if not dist.is_initialized():
            raise AssertionError(_DESTROYED)
    except RuntimeError as error:
        if not _WAITED.search(str(error)):
            raise
        stuck = _own_line(error, function)
    return returned, stuck, _meet(stuck)


def _own_line(error, function):
    """The innermost line of the learner's own code in the traceback of `error`."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [frame.line or linecache.getline(file, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == file and frame.name not in ("_attempt", "asked", "probe", "step")]
    return (lines[-1] if lines else "").partition("  #")[0].strip() or "?"


def _meet(stuck=None):
    """Wait until every rank is here: who leaves takes its connections along. Return whether one of them was stuck."""
    from helpers.launcher.rank import RUN_FOLDER

    folder, number = Path(os.environ[RUN_FOLDER]), next(_meetings)
    marks = [folder / f"here-{number}-{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    mine = marks[int(os.environ["RANK"])]
    unfinished = mine.with_name(f"unfinished-{mine.name}")
    unfinished.write_text("stuck" if stuck else "")
    unfinished.replace(mine)
    while not all(mark.exists() for mark in marks):
        time.sleep(0.005)
    return any(mark.read_text() for mark in marks)


def _waited(case, seen, look):
    """Feedback if a rank waited in vain, else None. `seen`: by rank, dicts with the key "stuck"."""
    lines = [one["stuck"] for one in seen]
    if not any(lines):
        return None
    if len(set(lines)) == 1:
        words = f"every rank waited in vain at `{lines[0]}`"
    else:
        words = ", ".join(f"rank {rank} {f'waited in vain at `{line}`' if line else 'had returned'}"
                          for rank, line in enumerate(lines))
    return not_yet(f"{case}: {words}", "every rank returns", look)


#: What a process group can be asked for, {its method: torch.distributed's name}; not all versions of torch have all.
_ASKED = {
    "send": "send", "recv": "recv", "recv_anysource": "recv", "allreduce": "all_reduce", "broadcast": "broadcast",
    "allreduce_coalesced": "all_reduce_coalesced", "reduce": "reduce", "allgather": "all_gather",
    "all_gather_single": "all_gather_into_tensor", "_allgather_base": "all_gather_into_tensor", "gather": "gather",
    "allgather_coalesced": "all_gather_coalesced", "gather_single": "gather_single", "scatter": "scatter",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor", "alltoall": "all_to_all", "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single", "barrier": "barrier",
}


@contextlib.contextmanager
def _counted():
    """Count what this rank asks of its process group, by whichever of torch's functions it does so."""
    import torch.distributed as dist

    traffic = {"sent": 0, "asked": []}
    kept = {name: getattr(dist.ProcessGroup, name) for name in _ASKED if hasattr(dist.ProcessGroup, name)}

    def counting(name, method):
        def asked(group, *args, **kwargs):
            traffic["asked"].append(_ASKED[name])
            if name == "send":
                traffic["sent"] += sum(tensor.numel() * tensor.element_size() for tensor in args[0])
            return method(group, *args, **kwargs)

        return asked

    for name, method in kept.items():
        setattr(dist.ProcessGroup, name, counting(name, method))
    try:
        yield traffic
    finally:
        for name, method in kept.items():
            setattr(dist.ProcessGroup, name, method)


def _ranks(number):
    return f"{number} rank{'s' * (number != 1)}"


# ---------------------------------------------------------------------------------------------------------------------


#: Elements of the tensors that are to be summed. The second is divided by none of the world sizes.
SIZES = (12, 5)


class RingAllReduce(_InRanks):
    title = "All-reduce, by hand, in a ring"
    task = ("`tensor` has one dimension and any number of elements, at least as many as there are ranks. Leave in "
            "every rank's `tensor` the **sum over all ranks**, in place, as `dist.all_reduce` does. Use only `send`, "
            "`recv`, `isend`, `irecv` or `batch_isend_irecv` of `torch.distributed`. No rank may send more than "
            "2(N − 1) chunks, where a chunk is an N-th of the tensor, rounded up.")
    hints = (
        "`tensor.tensor_split(N)` gives N views, also where N does not divide the length. Every rank sends to `rank + "
        "1` and receives from `rank - 1`, modulo N.",
        "First half, N − 1 steps: send a chunk on, add the one that you receive to yours. In step `s` rank `r` sends "
        "chunk `r - s` and receives chunk `r - s - 1`. Then each rank holds one finished chunk.",
        "Second half, N − 1 steps: send the finished chunk on, and overwrite yours with the one that you receive. If "
        "all ranks call `send` first, nobody receives: use `isend`, then `recv`, then `wait()` for the send.",
    )
    explanation = ("The chunks are views, so that adding to them changes `tensor`. The index runs on through both "
                   "halves: in step N − 1 a rank sends the chunk that it has just finished. `isend` returns at "
                   "once, so that every rank comes to its `recv`.")
    why = ("each rank sends 2(N − 1)/N of the tensor, however many ranks there are: less than twice its size. Sending "
           "everything to everybody would be (N − 1) times. This is how gradients are averaged on large clusters.")
    world_sizes = (2, 3, 4)

    @staticmethod
    def stub(tensor):
        raise NotImplementedError

    @staticmethod
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

    @wrong("3 ranks, 12 elements: the sums are right, but rank 0 sent 24 elements")
    def everything_to_everybody(tensor):
        import torch
        import torch.distributed as dist

        others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
        own = tensor.clone()
        sends = [dist.isend(own, other) for other in others]
        for other in others:
            received = torch.empty_like(tensor)
            dist.recv(received, other)
            tensor += received
        for sending in sends:
            sending.wait()

    @wrong("rank 0 sent 24 elements")
    def everything_to_rank_0_and_back(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        if rank == 0:
            for other in range(1, n):
                received = torch.empty_like(tensor)
                dist.recv(received, other)
                tensor += received
            for other in range(1, n):
                dist.send(tensor, other)
        else:
            dist.send(tensor, 0)
            dist.recv(tensor, 0)

    @wrong("all ranks were sending, and nobody was receiving")
    def everybody_sends_first(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(n)
        for step in range(2 * (n - 1)):
            give, take = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
            received = torch.empty_like(take)
            dist.send(give, (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
            if step < n - 1:
                take += received
            else:
                take.copy_(received)

    @wrong("all ranks were receiving, and nobody was sending")
    def everybody_receives_first(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        received = torch.empty_like(tensor)
        dist.recv(received, (rank - 1) % n)
        dist.send(tensor, (rank + 1) % n)
        tensor += received

    @wrong("3 ranks, 12 elements: in rank 0, element 0 holds")
    def right_for_two(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        received = torch.empty_like(tensor)
        sending = dist.isend(tensor.clone(), (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        tensor += received

    @wrong("returned the sums, but")
    def returns_them(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        total, passing = tensor.clone(), tensor.clone()
        for _ in range(n - 1):
            received = torch.empty_like(tensor)
            sending = dist.isend(passing, (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
            sending.wait()
            total, passing = total + received, received
        return total

    @wrong("`tensor` holds what it held before, in every rank")
    def makes_another_tensor(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        passing = tensor
        for _ in range(n - 1):
            received = torch.empty_like(tensor)
            sending = dist.isend(passing, (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
            sending.wait()
            tensor, passing = tensor + received, received

    @wrong("rank 0 holds the mean")
    def divides(tensor):
        RingAllReduce.answer(tensor)
        tensor /= 2

    @wrong("it had destroyed the process group")
    def tidies_up_too_much(tensor):
        import torch.distributed as dist

        RingAllReduce.answer(tensor)
        dist.destroy_process_group()

    @wrong("initialize the default process group twice")
    def forms_the_group_again(tensor):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        RingAllReduce.answer(tensor)

    @wrong("it called `all_reduce`")
    def leaves_it_to_torch(tensor):
        import torch.distributed as dist

        dist.all_reduce(tensor)

    @wrong("it called `all_gather`")
    def gathers_everything(tensor):
        import torch
        import torch.distributed as dist

        everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everything, tensor)
        tensor.copy_(sum(everything))

    @wrong("rank 0's value twice")
    def adds_in_both_halves(tensor):
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
            take += received

    @wrong("IndexError")
    def splits_by_chunk(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        chunks = tensor.chunk(n)  # five elements over four ranks: three chunks
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

    @wrong("2 ranks, 5 elements: in rank 0, element 4 holds")
    def drops_the_remainder(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        size = len(tensor) // n
        chunks = [tensor[number * size:(number + 1) * size] for number in range(n)]
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

    @staticmethod
    def probe(ring_all_reduce):
        import torch

        rank, _ = _join()
        observed = []
        for size in SIZES:
            tensor = torch.tensor([_code(rank, index) for index in range(size)], dtype=torch.float64)
            with _counted() as traffic:
                returned, stuck, one_stuck = _attempt(ring_all_reduce, tensor)
            if isinstance(returned, torch.Tensor):
                returned = returned.flatten().tolist()
            elif returned is not None:
                returned = type(returned).__name__
            observed.append({**traffic, "size": size, "tensor": tensor.tolist(), "returned": returned, "stuck": stuck})
            if one_stuck:
                break
        return observed

    def judge(self, observed):
        n = len(observed)
        for number, first in enumerate(observed[0]):
            size, seen = first["size"], [rows[number] for rows in observed]
            case = f"{_ranks(n)}, {size} elements"
            before = [[_code(rank, index) for index in range(size)] for rank in range(n)]
            wanted = [sum(_code(rank, index) for rank in range(n)) for index in range(size)]
            for one in seen:
                others = [name for name in one["asked"] if name not in ("send", "recv", "barrier")]
                if others:
                    return not_yet(f"{case}: it called `{others[0]}`", "only `send`, `recv` and their relatives",
                                   "the collective is what you are to build")
            waiting = _waited(case, seen, "who sends while you receive, and who receives while you send?")
            if waiting is not None:
                last = {one["asked"][-1] for one in seen if one["asked"]}
                if len(last) == 1 and all(one["stuck"] for one in seen):
                    doing, missing = ("sending", "receiving") if "send" in last else ("receiving", "sending")
                    return replace(waiting, observed=f"{waiting.observed}: all ranks were {doing}, and nobody was "
                                                     f"{missing}",
                                   where_to_look="`isend` and `irecv` return at once; wait for them afterwards")
                return waiting
            for rank, one in enumerate(seen):
                if one["tensor"] == wanted:
                    continue
                if one["returned"] == wanted:
                    return not_yet(f"{case}: rank {rank} returned the sums, but `tensor` holds other values",
                                   "the sums are in `tensor` itself", "write into it: `tensor += …`, `tensor.copy_(…)`")
                if [row["tensor"] for row in seen] == before:
                    return not_yet(f"{case}: `tensor` holds what it held before, in every rank",
                                   "the sums are in `tensor` itself",
                                   "`tensor += …` and `tensor.copy_(…)` write into it; `tensor = tensor + …` makes "
                                   "another tensor, which nobody sees outside your function")
                if all(abs(n * got - value) < 1e-6 for got, value in zip(one["tensor"], wanted, strict=True)):
                    return not_yet(f"{case}: rank {rank} holds the mean", "the sum", "what is divided, and why?")
                index = next(i for i in range(size) if one["tensor"][i] != wanted[i])
                return not_yet(f"{case}: in rank {rank}, element {index} holds "
                               f"{_decoded(one['tensor'][index], index, n)}",
                               f"the value of each of the {n} ranks, once",
                               "which chunk goes out in which step, how many steps there are (N − 1 and N − 1), and "
                               "whether each `isend` and `irecv` is waited for before its tensor is used")
            most = 2 * (n - 1) * -(-size // n)
            for rank, one in enumerate(seen):
                if one["sent"] > 8 * most:
                    return not_yet(f"{case}: the sums are right, but rank {rank} sent {one['sent'] / 8:g} elements",
                                   f"at most {most}, which are 2 · {n - 1} chunks of {-(-size // n)}",
                                   "send chunks, not the tensor; and add up on the way")
        return None


def _code(rank, index):
    """A value that tells where it comes from: decimal places count the ranks, millions the index."""
    return float(10 ** rank + 1_000_000 * (index + 1))


def _decoded(value, index, n):
    """In words, which ranks' values were added up to this one."""
    millions, counts = divmod(value, 1_000_000) if 0 <= value < 1e12 and value == int(value) else (0, 0)
    times = [int(counts // 10 ** rank % 10) for rank in range(n)]
    if not sum(times) or millions != (index + 1) * sum(times) or counts >= 10 ** n:
        return "values that belong to other elements, or to none"
    words = {0: "not at all", 1: "once", 2: "twice"}
    return ", ".join(f"rank {rank}'s value {words.get(count, f'{count} times')}" for rank, count in enumerate(times))


# ---------------------------------------------------------------------------------------------------------------------


class AverageGradients(_InRanks):
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

    @staticmethod
    def stub(model):
        raise NotImplementedError

    @staticmethod
    def answer(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    @wrong("which is the sum")
    def forgets_to_divide(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    @wrong("3 ranks")
    def divides_by_two(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2

    @wrong("Rank 1 has no gradient for `1.weight`")
    def skips_what_has_no_gradient(model):
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    @wrong("has no attribute")
    def nothing_is_ever_none(model):
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad.div_(dist.get_world_size())
                dist.all_reduce(parameter.grad)

    @wrong("it called no collective")
    def averages_with_itself(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad /= dist.get_world_size()

    @wrong("still has its own gradient")
    def returns_them(model):
        import torch
        import torch.distributed as dist

        means = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                dist.all_reduce(mean)
                means.append(mean / dist.get_world_size())
        return means

    @wrong("the weights have changed")
    def averages_the_weights(model):
        import torch.distributed as dist

        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()

    @wrong("rank 1's gradient of `0.weight`")
    def only_rank_0_gets_it(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.reduce(parameter.grad, 0)
                parameter.grad /= dist.get_world_size()

    @wrong("frozen")
    def thaws_what_is_frozen(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    @staticmethod
    def probe(average_gradients):
        import torch
        from torch import nn

        rank, world_size = _join()
        torch.manual_seed(rank)  # in a training all ranks have the same weights; here, who averages those shows it
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1)).double()
        model[1].bias.requires_grad = False
        model[2].bias.requires_grad = False
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.requires_grad and not (name == "1.weight" and rank == world_size - 1):
                parameter.grad = torch.full_like(parameter, _gradient(rank, number))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with _counted() as traffic:
            returned, stuck, _ = _attempt(average_gradients, model)
        return {
            "asked": traffic["asked"], "stuck": stuck, "returned": type(returned).__name__,
            "changed": [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])],
            "grads": {name: None if parameter.grad is None else parameter.grad.flatten().tolist()
                      for name, parameter in model.named_parameters()},
            "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        }

    def judge(self, observed):
        n = len(observed)
        case, last = _ranks(n), n - 1
        counts = [sum(name != "barrier" for name in seen["asked"]) for seen in observed]
        names = list(observed[0]["grads"])
        trainable = [name for name in names if name not in observed[0]["frozen"]]
        waiting = _waited(case, observed, "what decides whether a parameter is skipped: is it the same in all ranks? "
                                          f"Rank {last} has no gradient for `1.weight`")
        if waiting is not None:
            return waiting
        for seen in observed:
            if seen["changed"]:
                return not_yet(f"{case}: the weights have changed, `{seen['changed'][0]}` for example",
                               "only gradients change; the optimizer will do the rest",
                               "`parameter.grad`, not `parameter` or `parameter.data`")
        if not counts[0]:
            return not_yet(f"{case}: it called no collective, so that no rank knows the others' gradients",
                           "the mean over all ranks", "`dist.all_reduce`")
        for name in trainable:
            number = names.index(name)
            owns = [0 if name == "1.weight" and rank == last else _gradient(rank, number) for rank in range(n)]
            mean = sum(owns) / n
            for rank, seen in enumerate(observed):
                got = seen["grads"][name]
                if got is not None and all(abs(value - mean) < 1e-9 for value in got):
                    continue
                where = f"{case}: rank {rank}'s gradient of `{name}`"
                if got is None:
                    return not_yet(f"{where} is still None", f"{mean:g} everywhere", "where it gets zeros at first")
                if all(value == owns[rank] for value in got):
                    also = f"; your function returned a {seen['returned']}" if seen["returned"] != "NoneType" else ""
                    return not_yet(f"{case}: rank {rank} still has its own gradient of `{name}`{also}",
                                   f"the mean of all ranks', {mean:g}, in `parameter.grad`",
                                   "`all_reduce` works in place: what do you give to it?")
                guess = ", which is the sum" if all(abs(value - n * mean) < 1e-9 for value in got) else ""
                return not_yet(f"{where} is {got[0]:g}{guess}", f"{mean:g}, the mean",
                               "what you divide by, and whether every rank gets the result")
        for seen in observed:
            thawed = [name for name in seen["frozen"] if seen["grads"][name] is not None]
            if thawed:
                return not_yet(f"{case}: `{thawed[0]}` is frozen and has a gradient now", "None, as before",
                               "an optimizer with weight decay would move it")
        return None


def _gradient(rank, number):
    return float(10 ** rank * (number + 1))


# ---------------------------------------------------------------------------------------------------------------------


#: Test samples; the first number divides by no world size, the second is smaller than the largest of them.
TEST_SIZES = (11, 3)
#: The samples that the model gets right. Sample 0 is the one that a DistributedSampler uses for padding.
RIGHT = {0, 3, 4, 7}


class ExactAccuracy(_InRanks):
    title = "The exact accuracy, by all ranks together"
    task = ("Return the accuracy of `model` on the whole `dataset`, a number from 0 to 1, the same in every rank. "
            "`dataset[i]` is an image and its label; the model returns one score per class and is in eval mode. Each "
            "rank looks at its own share only, no more than an N-th, rounded up. Every sample counts exactly once, "
            "also where there are fewer samples than ranks.")
    hints = (
        "`range(rank, len(dataset), world_size)` has no padding. `torch.utils.data.Subset` takes it.",
        "Do not average averages: count right answers and samples, add up both over all ranks with one `all_reduce`, "
        "and divide at the end. A rank without samples brings two zeros, but it comes.",
    )
    explanation = ("Two sums and one division. The rank with no samples takes part in the `all_reduce` like the "
                   "others; and no sampler that pads is involved.")
    why = ("a DistributedSampler pads, so that all ranks train equally many steps. In an evaluation that counts some "
           "samples twice, and the accuracy then depends on the number of GPUs. Papers have been compared on less.")
    world_sizes = (2, 4)

    @staticmethod
    def stub(model, dataset):
        raise NotImplementedError

    @staticmethod
    def answer(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        counts = torch.zeros(2)
        with torch.no_grad():
            for images, labels in DataLoader(mine, batch_size=64):
                right = model(images).argmax(1) == labels
                counts += torch.tensor([right.sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    @wrong("`DistributedSampler` repeats")
    def samples_with_padding(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler

        counts = torch.zeros(2)
        for images, labels in DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, shuffle=False)):
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    @wrong("the mean of the ranks' own accuracies")
    def averages_the_averages(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        rank, n = dist.get_rank(), dist.get_world_size()
        right = [float(model(images).argmax(1) == labels)
                 for images, labels in DataLoader(Subset(dataset, range(rank, len(dataset), n)))]
        own = torch.tensor(sum(right) / max(1, len(right)))
        dist.all_reduce(own)
        return (own / n).item()

    @wrong("read 11 of the 11 samples")
    def everybody_reads_everything(model, dataset):
        from torch.utils.data import DataLoader

        right = [float(model(images).argmax(1) == labels) for images, labels in DataLoader(dataset)]
        return sum(right) / len(right)

    @wrong("rank 1 returned None")
    def only_rank_0_knows(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        counts = torch.zeros(2)
        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        for images, labels in DataLoader(mine):
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
        dist.reduce(counts, 0)
        if dist.get_rank() == 0:
            return (counts[0] / counts[1]).item()

    @wrong("its own share only")
    def forgets_the_others(model, dataset):
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        right = [float(model(images).argmax(1) == labels) for images, labels in DataLoader(mine)]
        return sum(right) / len(right)

    @wrong("percent")
    def in_percent(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        counts = torch.zeros(2)
        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        for images, labels in DataLoader(mine):
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
        dist.all_reduce(counts)
        return (100 * counts[0] / counts[1]).item()

    @wrong("4 ranks, 3 samples: rank 0 waited in vain")
    def goes_home_without_samples(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        rank, n = dist.get_rank(), dist.get_world_size()
        if rank >= len(dataset):
            return 0.0
        counts = torch.zeros(2)
        for images, labels in DataLoader(Subset(dataset, range(rank, len(dataset), n))):
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    @wrong("sample 10 was read by no rank")
    def drops_the_last(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        rank, n = dist.get_rank(), dist.get_world_size()
        each, counts = len(dataset) // n, torch.zeros(2)
        for images, labels in DataLoader(Subset(dataset, range(rank * each, (rank + 1) * each))):
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    @staticmethod
    def probe(exact_accuracy):
        import torch
        from torch.utils.data import Dataset

        class Samples(Dataset):
            def __init__(self, size):
                self.size, self.read = size, []

            def __len__(self):
                return self.size

            def __getitem__(self, index):
                if not 0 <= index < self.size:
                    raise IndexError(index)
                self.read.append(int(index))
                return torch.eye(2)[int(index not in RIGHT)], 0

        _join()
        observed = []
        for size in TEST_SIZES:
            dataset = Samples(size)
            returned, stuck, one_stuck = _attempt(exact_accuracy, torch.nn.Identity().eval(), dataset)
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                returned = None if returned is None else float(returned)
            if not isinstance(returned, float | None):
                returned = f"a {type(returned).__name__}"
            observed.append({"size": size, "returned": returned, "stuck": stuck, "read": sorted(dataset.read)})
            if one_stuck:
                break
        return observed

    def judge(self, observed):
        n = len(observed)
        for number, first in enumerate(observed[0]):
            size, seen = first["size"], [rows[number] for rows in observed]
            case = f"{_ranks(n)}, {size} sample{'s' * (size != 1)}"
            waiting = _waited(case, seen, "does every rank come to the collective, one without samples, too?")
            if waiting is not None:
                return waiting
            reads = [index for one in seen for index in one["read"]]
            exact = len(RIGHT & set(range(size))) / size
            for rank, one in enumerate(seen):
                share = -(-size // n)
                if len(set(one["read"])) > share:
                    return not_yet(f"{case}: rank {rank} read {len(set(one['read']))} of the {size} samples",
                                   f"at most {share}: its own share", "which indices this rank looks at")
            if not reads:
                return not_yet(f"{case}: no rank read a sample", "every sample is read by one rank",
                               "`dataset[i]`, or a DataLoader on a Subset of it, without `num_workers`: what worker "
                               "processes read is not seen here")
            missing = sorted(set(range(size)) - set(reads))
            if missing:
                return not_yet(f"{case}: sample {missing[0]} was read by no rank", "every sample counts once",
                               "the remainder, where the number of ranks does not divide the samples")
            for rank, one in enumerate(seen):
                got, own = one["returned"], [index in RIGHT for index in one["read"]]
                if isinstance(got, float) and abs(got - exact) < 1e-5:
                    continue
                if not isinstance(got, float):
                    return not_yet(f"{case}: rank {rank} returned {got}", "a number, the same in every rank",
                                   "who gets the result: `all_reduce`, or only one rank?")
                return not_yet(f"{case}: rank {rank} returned {got:.4f}{self._guess(got, exact, own, seen, reads)}",
                               f"{exact:.4f}: {len(RIGHT & set(range(size)))} of {size} are right",
                               "what is summed over the ranks, and what is divided by what")
        return None

    @staticmethod
    def _guess(got, exact, own, seen, reads):
        """Where a wrong number may come from."""
        def is_(value):
            return abs(got - value) < 1e-5

        shares = [[index in RIGHT for index in one["read"]] for one in seen]
        means = [sum(share) / len(share) if share else 0 for share in shares]
        if is_(100 * exact):
            return ", which is percent"
        if len(reads) > len(set(reads)) and is_(sum(index in RIGHT for index in reads) / len(reads)):
            twice = next(index for index in reads if reads.count(index) > 1)
            return (f": sample {twice} counted {reads.count(twice)} times. `DistributedSampler` repeats samples, so "
                    "that all ranks get equally many")
        if own and is_(sum(own) / len(own)):
            return ", the accuracy of its own share only"
        if is_(sum(means) / len(means)):
            return ", the mean of the ranks' own accuracies, whose shares are not equal"
        return ""


# ---------------------------------------------------------------------------------------------------------------------


class Accumulate(_InRanks):
    title = "Accumulate gradients, talk once"
    task = ("`model` is a DDP model, `batches` a list of this rank's micro-batches `(x, y)`. Make **one** optimizer "
            "step with the mean gradient over all micro-batches of all ranks, `loss_fn(model(x), y)` being each "
            "micro-batch's mean loss. The gradients may be all-reduced only **once**. When your function is called, "
            "those of an earlier step may still be there.")
    hints = (
        "`with model.no_sync():` keeps DDP from averaging. For which of the micro-batches?",
        "DDP decides in the forward whether it will average in the backward. So forward and backward both belong into "
        "the `with`; only the last micro-batch is outside. `contextlib.nullcontext()` is a `with` that does nothing.",
    )
    explanation = ("Gradients add up over the micro-batches, so each loss is divided by their number. The last "
                   "backward averages what has piled up: all of it, and only once.")
    why = ("all-reduces are what a step over a slow network waits for: with K micro-batches and `no_sync` there are K "
           "times fewer. Without it, or with the forward outside, the result is the same, and nothing is saved.")

    @staticmethod
    def stub(model, optimizer, batches, loss_fn):
        raise NotImplementedError

    @staticmethod
    def answer(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()
        for number, (x, y) in enumerate(batches, start=1):
            last = number == len(batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_fn(model(x), y) / len(batches)
                loss.backward()
        optimizer.step()

    @wrong("all-reduced 4 times")
    def forgets_no_sync(model, optimizer, batches, loss_fn):
        optimizer.zero_grad()
        for x, y in batches:
            (loss_fn(model(x), y) / len(batches)).backward()
        optimizer.step()

    @wrong("all-reduced 4 times")
    def forward_outside(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()
        for number, (x, y) in enumerate(batches, start=1):
            loss = loss_fn(model(x), y) / len(batches)
            with contextlib.nullcontext() if number == len(batches) else model.no_sync():
                loss.backward()
        optimizer.step()

    @wrong("never all-reduced")
    def everything_inside(model, optimizer, batches, loss_fn):
        optimizer.zero_grad()
        with model.no_sync():
            for x, y in batches:
                (loss_fn(model(x), y) / len(batches)).backward()
        optimizer.step()

    @wrong("4 times as long as it should be")
    def forgets_to_divide(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()
        for number, (x, y) in enumerate(batches, start=1):
            with contextlib.nullcontext() if number == len(batches) else model.no_sync():
                loss_fn(model(x), y).backward()
        optimizer.step()

    @wrong("only the last micro-batch")
    def clears_every_time(model, optimizer, batches, loss_fn):
        import contextlib

        for number, (x, y) in enumerate(batches, start=1):
            optimizer.zero_grad()
            with contextlib.nullcontext() if number == len(batches) else model.no_sync():
                (loss_fn(model(x), y) / len(batches)).backward()
        optimizer.step()

    @wrong("the gradients from before were still there")
    def never_clears(model, optimizer, batches, loss_fn):
        import contextlib

        for number, (x, y) in enumerate(batches, start=1):
            with contextlib.nullcontext() if number == len(batches) else model.no_sync():
                (loss_fn(model(x), y) / len(batches)).backward()
        optimizer.step()

    @wrong("stepped 4 times")
    def steps_every_time(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()
        for number, (x, y) in enumerate(batches, start=1):
            with contextlib.nullcontext() if number == len(batches) else model.no_sync():
                (loss_fn(model(x), y) / len(batches)).backward()
            optimizer.step()

    @wrong("1 micro-batch")
    def knows_the_number_by_heart(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()
        for number, (x, y) in enumerate(batches):
            with contextlib.nullcontext() if number == 3 else model.no_sync():
                (loss_fn(model(x), y) / 4).backward()
        optimizer.step()

    @staticmethod
    def probe(accumulate):
        import torch
        from torch import nn
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        from torch.nn.parallel import DistributedDataParallel

        rank, world_size = _join()
        observed = []
        for micro_batches in (4, 1):
            everyones = [_micro_batches(other, micro_batches) for other in range(world_size)]
            gradients = [_gradient_of(*batch) for batches in everyones for batch in batches]
            model = DistributedDataParallel(_plain_model())
            calls, steps = [], []

            def hook(state, bucket, calls=calls):
                calls.append(bucket.index())
                return default_hooks.allreduce_hook(state, bucket)

            model.register_comm_hook(None, hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(1))
            model.module.weight.grad = torch.full_like(model.module.weight, OLD_GRADIENT)
            arguments = model, optimizer, list(everyones[rank]), nn.functional.mse_loss
            with _counted() as traffic:
                _, stuck, one_stuck = _attempt(accumulate, *arguments)
            by_hand = sum(name == "all_reduce" for name in traffic["asked"]) - len(calls)
            last = [batch[-1] for batch in everyones]
            observed.append({
                "micro_batches": micro_batches, "calls": len(calls) or by_hand, "steps": len(steps),
                "stuck": stuck, "moved": [-value for value in model.module.weight.flatten().tolist()],
                "mean": _mean(gradients), "last": _mean([_gradient_of(*batch) for batch in last]),
            })
            if one_stuck:
                break
        return observed

    def judge(self, observed):
        for number, first in enumerate(observed[0]):
            k, seen = first["micro_batches"], [rows[number] for rows in observed]
            case = f"{k} micro-batch{'es' * (k != 1)}"
            waiting = _waited(case, seen, "do all ranks run as many backwards outside `no_sync`?")
            if waiting is not None:
                return waiting
            if first["steps"] != 1:
                return not_yet(f"{case}: the optimizer stepped {first['steps']} times", "once, at the end",
                               "where `optimizer.step()` stands")
            if not first["calls"]:
                return not_yet(f"{case}: the gradients were never all-reduced; each rank stepped on its own",
                               "once", "the last micro-batch: it is the one that must not be in `no_sync`")
            if first["calls"] > 1:
                return not_yet(f"{case}: the gradients were all-reduced {first['calls']} times", "once",
                               "what stands inside `with model.no_sync():`, forward **and** backward?")
            mean, moved = first["mean"], first["moved"]
            if _near(moved, mean):
                continue
            if _near(moved, [k * value for value in mean]):
                return not_yet(f"{case}: the step is {k} times as long as it should be", "the mean of the gradients",
                               "gradients add up; what would make a mean of them?")
            if any(_near(moved, [value + old for value in mean]) for old in (OLD_GRADIENT, OLD_GRADIENT / k)):
                return not_yet(f"{case}: the gradients from before were still there, and counted, too",
                               "only those of these micro-batches",
                               "`optimizer.zero_grad()`: once, and before the first backward")
            if _near(moved, first["last"]) or _near(moved, [value / k for value in first["last"]]):
                return not_yet(f"{case}: only the last micro-batch counted", "all of them",
                               "where `optimizer.zero_grad()` stands")
            return not_yet(f"{case}: the step was {_numbers(moved)}", _numbers(mean),
                           "what you divide by, and which gradients are still there at the step")
        return None


#: What an earlier step has left in each gradient when the answer to `Accumulate` is called.
OLD_GRADIENT = 5.0


def _plain_model():
    import torch

    model = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    return model


def _micro_batches(rank, number):
    """This rank's micro-batches; the same whoever asks."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    return [tuple(torch.randn(3, columns, generator=generator, dtype=torch.float64) for columns in (2, 1))
            for _ in range(number)]


def _gradient_of(x, y):
    import torch

    model = _plain_model()
    torch.nn.functional.mse_loss(model(x), y).backward()
    return model.weight.grad.flatten().tolist()


def _mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _near(ones, others):
    return all(abs(one - other) < 1e-9 for one, other in zip(ones, others, strict=True))


def _numbers(values):
    return ", ".join(f"{value:.3f}" for value in values)


# ---------------------------------------------------------------------------------------------------------------------


class SaveSnapshot(_InRanks):
    title = "A snapshot that survives a crash"
    task = ("Every rank calls `save_snapshot(state, path)`. Rank 0 alone writes `state` with `torch.save`, so that "
            "`torch.load(path)` reads it. Nobody returns before the file is there. And if rank 0 dies **while** it "
            "writes, `path` still holds the whole snapshot from before.")
    hints = (
        "Write to another name in the same folder first, then `os.replace(that, path)`: it is all or nothing.",
        "`dist.barrier()` makes the others wait for rank 0. It has to be called by all ranks: not inside the `if`.",
    )
    explanation = ("`os.replace` exchanges the file in one step; a crash before it leaves the old one, a crash after "
                   "it the new one. The barrier stands outside the `if`, so that every rank comes to it.")
    why = ("machines are preempted at any moment, and a job that saves often is likely to be caught while it does. "
           "Half a snapshot under the right name costs all of the training that came before it.")

    @staticmethod
    def stub(state, path):
        raise NotImplementedError

    @staticmethod
    def answer(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)
        dist.barrier()

    @wrong("half a file")
    def writes_in_place(state, path):
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            torch.save(state, path)
        dist.barrier()

    @wrong("rank 0 waited in vain at `dist.barrier()`")
    def barrier_inside(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)
            dist.barrier()

    @wrong("rank 1 wrote a file")
    def everybody_writes(state, path):
        import os

        import torch
        import torch.distributed as dist

        torch.save(state, f"{path}.{dist.get_rank()}")
        os.replace(f"{path}.{dist.get_rank()}", path)
        dist.barrier()

    @wrong("rank 1 returned before")
    def nobody_waits(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)

    @wrong("rank 1 returned before")
    def waits_too_early(state, path):
        import os

        import torch
        import torch.distributed as dist

        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)

    @wrong("half a file")
    def keeps_a_copy(state, path):
        import os
        import shutil

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            if os.path.exists(path):
                shutil.copy(path, f"{path}.old")
            torch.save(state, path)
        dist.barrier()

    @wrong("no snapshot at all")
    def removes_the_old_one_first(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            if os.path.exists(path):
                os.remove(path)
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)
        dist.barrier()

    @wrong("no file")
    def forgets_to_rename(state, path):
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            torch.save(state, f"{path}.unfinished")
        dist.barrier()

    @staticmethod
    def probe(save_snapshot):
        from helpers.launcher.rank import RUN_FOLDER

        rank, _ = _join(give_up=2)  # the others wait for a disk that is made slow below
        path, observed = os.path.join(os.environ[RUN_FOLDER], "snapshot.pt"), []
        if rank > 0:
            _die_when_writing(more_than=_MOST_PRINTED)
        for epoch in (1, 2):
            with _slow_disk() if rank == 0 else contextlib.nullcontext():  # who does not wait for rank 0 shows it
                _, stuck, one_stuck = _attempt_and_look(save_snapshot, _state(epoch), path)
            observed.append(stuck)
            if one_stuck:
                break
        return observed

    def _tried(self, answer):
        feedback = super()._tried(answer)
        return self._killed(answer, feedback) if feedback else feedback

    def _killed(self, answer, feedback):
        """Kill rank 0 while it writes; `feedback` if the snapshot from before is still whole."""
        import tempfile

        import torch

        from helpers.launcher import RankError, launch

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pt")
            with contextlib.suppress(RankError):  # which is what we wanted
                launch(_save_then_die, 2, (answer, path), timeout=self.timeout, show=False)
            case = "rank 0 was killed while it wrote the second snapshot: there is"
            if not os.path.exists(path):
                return not_yet(f"{case} no snapshot at all", "the first one",
                               "until when is the old file needed? `os.replace` replaces without removing it first")
            try:
                torch.load(path)
            except Exception:
                return not_yet(f"{case} half a file, which `torch.load` cannot read", "the first one, whole",
                               "under which name do you write, and when does `path` become the new file?")
        return feedback

    def _of_error(self, error, answer):
        if "SIGXFSZ" in str(error) and error.rank > 0:
            if len(error.logs[error.rank].encode()) >= _MOST_PRINTED:
                return not_yet(f"rank {error.rank} printed more than this check can hold", "a few lines at most",
                               "what you print, or a loop around it")
            return not_yet(f"rank {error.rank} wrote a file, too", "rank 0 alone writes",
                           "on a shared disk, all ranks would write over each other")
        return super()._of_error(error, answer)

    def judge(self, observed):
        for number, epoch in enumerate((1, 2)):
            if number >= len(observed[0]):
                return None
            seen = [rows[number] for rows in observed]
            case = f"snapshot {epoch}"
            waiting = _waited(case, [{"stuck": one["stuck"]} for one in seen],
                              "which ranks come to the barrier, and which do not?")
            if waiting is not None:
                return waiting
            for rank, one in enumerate(seen):
                if rank == 0 and one["found"] is None:
                    return not_yet(f"{case}: when rank 0 returned, there was no file at `path`", "the snapshot",
                                   "the name under which you write")
                if one["found"] != epoch:
                    what = "there was a file" if one["found"] is None else "the new one was there"
                    return not_yet(f"{case}: rank {rank} returned before {what}", "nobody returns before",
                                   "who waits for whom, and when?")
        return None


#: Bytes; a snapshot has twice as many. What ranks print goes into files as well.
_MOST_PRINTED = 2**18


def _attempt_and_look(function, state, path):
    """As `_attempt`, but say which epoch's snapshot was there at the moment when the function returned."""
    found = None

    def looking(*args):
        nonlocal found
        function(*args)
        found = _epoch_in(path)

    looking.__wrapped__ = function
    _, stuck, one_stuck = _attempt(looking, state, path)
    return None, {"stuck": stuck, "found": found}, one_stuck


@contextlib.contextmanager
def _slow_disk():
    """Have saving and renaming take a while, wherever in the learner's function they stand."""
    import torch

    kept = [(torch, "save", torch.save), (os, "replace", os.replace), (os, "rename", os.rename)]

    def slowly(function):
        def slow(*args, **kwargs):
            time.sleep(0.15)
            return function(*args, **kwargs)

        return slow

    for module, name, function in kept:
        setattr(module, name, slowly(function))
    try:
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def _epoch_in(path):
    import torch

    try:
        return torch.load(path)["epoch"]
    except Exception:
        return None


def _state(epoch, size=2**17):
    import torch

    return {"epoch": epoch, "weights": torch.randn(size, generator=torch.Generator().manual_seed(epoch))}


def _die_when_writing(more_than):
    """Have the system kill this process as soon as a file that it writes grows beyond so many bytes."""
    try:
        import resource
        import signal
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and raises OSError instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (more_than, more_than))


def _save_then_die(answer, path):
    """Every rank saves once; then rank 0 dies while it saves again, twice as much: a copy of the first would do."""
    rank, _ = _join()
    with open(os.devnull, "w") as nowhere:  # a file that grows is what kills: none of what is printed
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    answer(_state(1), path)
    if rank == 0:
        _die_when_writing(more_than=os.path.getsize(path) * 3 // 2)
    answer(_state(2, size=2**18), path)


# ---------------------------------------------------------------------------------------------------------------------


class Resume(_InRanks):
    title = "Resume"
    task = ("Every rank calls `resume(path, model, optimizer)` before it trains. `model` is a DDP model. The snapshot "
            "at `path` is a dict: `\"model\"`, the state dict of the plain model; `\"optimizer\"`, the optimizer's; "
            "`\"epoch\"`, the last epoch that was finished. Load it and return the number of the epoch to go on "
            "with. If there is no snapshot, change nothing and return 0.")
    hints = (
        "The plain model inside a DDP model is `model.module`. Its state dict has no `module.` in its names.",
        "DDP broadcasts the weights when it is made, and never again: every rank has to load. After epoch 2 comes 3.",
    )
    explanation = ("Every rank reads the file, so that all hold the same weights and the same momentum. The "
                   "optimizer's state belongs to the training as much as the weights do.")
    why = ("a job that was restarted and begins at epoch 0 looks healthy; it has only forgotten everything. One that "
           "forgets the momentum, or loads in rank 0 only, looks healthier still.")

    @staticmethod
    def stub(path, model, optimizer):
        raise NotImplementedError

    @staticmethod
    def answer(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"] + 1

    @wrong("Missing key(s)")
    def loads_into_the_wrapper(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"] + 1

    @wrong("has the weights from before")
    def is_not_strict(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.load_state_dict(snapshot["model"], strict=False)
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"] + 1

    @wrong("rank 1")
    def loads_in_rank_0(path, model, optimizer):
        import os

        import torch
        import torch.distributed as dist

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        if dist.get_rank() == 0:
            model.module.load_state_dict(snapshot["model"])
            optimizer.load_state_dict(snapshot["optimizer"])
        dist.barrier()
        return snapshot["epoch"] + 1

    @wrong("the optimizer")
    def forgets_the_optimizer(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        return snapshot["epoch"] + 1

    @wrong("epoch 2 again")
    def repeats_the_last_epoch(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"]

    @wrong("there is no snapshot")
    def expects_a_file(path, model, optimizer):
        import torch

        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"] + 1

    @wrong("returned None")
    def says_nothing_of_the_epoch(path, model, optimizer):
        import os

        import torch

        if os.path.exists(path):
            snapshot = torch.load(path)
            model.module.load_state_dict(snapshot["model"])
            optimizer.load_state_dict(snapshot["optimizer"])

    @staticmethod
    def probe(resume):
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from helpers.launcher.rank import RUN_FOLDER

        rank, _ = _join()
        path, observed, snapshot = os.path.join(os.environ[RUN_FOLDER], "snapshot.pt"), [], _snapshot()
        wanted = {
            "weights": snapshot["model"]["weight"].flatten().tolist(),
            "momentum": [snapshot["optimizer"]["state"][0]["momentum_buffer"].flatten().tolist()],
        }
        if rank == 0:
            torch.save(snapshot, path)
        dist.barrier()
        for name in (path, f"{path}.nowhere"):
            model = DistributedDataParallel(_plain_model())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            missing = False
            try:
                returned, stuck, one_stuck = _attempt(resume, name, model, optimizer)
            except FileNotFoundError:
                if name == path:
                    raise
                returned, stuck, missing, one_stuck = None, None, True, _meet()
            buffers = [state.get("momentum_buffer") for state in optimizer.state.values()]
            observed.append({
                "returned": returned if isinstance(returned, int | float | None) else f"a {type(returned).__name__}",
                "stuck": stuck, "missing": missing, "weights": model.module.weight.flatten().tolist(),
                "momentum": [buffer.flatten().tolist() for buffer in buffers if buffer is not None], "wanted": wanted,
            })
            if one_stuck:
                break
        return observed

    def judge(self, observed):
        weights, momentum = observed[0][0]["wanted"]["weights"], observed[0][0]["wanted"]["momentum"]
        for number in range(len(observed[0])):
            seen = [rows[number] for rows in observed]
            waiting = _waited("a snapshot is there" if number == 0 else "there is no snapshot", seen,
                              "which ranks come to the collective?")
            if waiting is not None:
                return waiting
            for rank, one in enumerate(seen):
                if number == 0 and one["weights"] != weights:
                    return not_yet(f"rank {rank}'s model has the weights from before", "those of the snapshot",
                                   "which ranks load, and into what? `strict=False` hides names that do not fit")
                if number == 0 and one["momentum"] != momentum:
                    return not_yet(f"rank {rank}: the optimizer does not have the snapshot's momentum",
                                   "`optimizer.load_state_dict(…)`, in every rank", "what a snapshot holds")
                wanted = 3 if number == 0 else 0
                if one["missing"]:
                    return not_yet(f"there is no snapshot: rank {rank} raised FileNotFoundError", "0, a fresh start",
                                   "`os.path.exists(path)`")
                if one["returned"] != wanted:
                    again = ": it would train epoch 2 again" if number == 0 and one["returned"] == 2 else ""
                    return not_yet(f"{'epoch 2 is finished' if number == 0 else 'there is no snapshot'}: rank {rank} "
                                   f"returned {one['returned']}{again}", f"{wanted}", "the line with `return`")
                if number == 1 and any(one["weights"]):
                    return not_yet(f"there is no snapshot, and rank {rank}'s model has changed", "it stays as it is")
        return None


def _snapshot():
    """Taken from a model after two epochs, with momentum."""
    import torch

    model = _plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    return {"epoch": 2, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


# ---------------------------------------------------------------------------------------------------------------------


#: By rank, the loss after each step of the hunt. The limit is 0.5.
LOSSES = ([0.9, 0.4, 0.3, 0.2, 0.1, 0.1], [0.9, 0.8, 0.6, 0.4, 0.3, 0.2], [0.9, 0.75, 0.7, 0.45, 0.3, 0.2])


class TrainUntil(_InRanks):
    title = "Hunt: the early stop that never ends"
    task = ("Train until it is good enough: call `step(batch)`, which returns **this rank's** loss, for one batch "
            "after the other, until the **mean** of all ranks' losses is below `limit`, or the batches are used up. "
            "Return the number of steps made. In `step` the ranks average their gradients, so all must make equally "
            "many.")
    hints = (
        "Rank 0 stops when its own loss is small. Rank 1 then waits in its next step. For whom?",
        "A decision that all ranks have to make alike must be made from the same number: average the losses with "
        "`dist.all_reduce`, in every step, in every rank, and let everybody compare that mean.",
    )
    explanation = ("The mean is the same number in all ranks, so they all stop after the same step. It costs one "
                   "all-reduce of one number.")
    why = ("every `break`, `continue` and `return` that depends on a rank's own data is a hang that waits for its day: "
           "early stopping, a NaN that is skipped, a time limit. Make the ranks agree first.")
    world_sizes = (2, 3)

    @staticmethod
    def stub(batches, step, limit):
        raise NotImplementedError

    @staticmethod
    def answer(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss)
            steps += 1
            if loss / dist.get_world_size() < limit:
                break
        return steps

    @wrong("2 ranks: rank 0 had returned after 2 steps, rank 1 waited in vain in its 3rd step")
    def each_for_itself(batches, step, limit):
        steps = 0
        for batch in batches:
            loss = step(batch)
            steps += 1
            if loss < limit:
                break
        return steps

    @wrong("stopped after 2 steps, when the mean loss was 0.60")
    def rank_0_decides_alone(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.broadcast(loss, 0)
            steps += 1
            if loss < limit:
                break
        return steps

    @wrong("rank 0 had returned after 2 steps, rank 1 waited in vain at `dist.all_reduce(loss)` after 2 steps")
    def compares_before_it_asks(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            steps += 1
            if loss < limit:
                break
            dist.all_reduce(loss)
        return steps

    @wrong("stopped after 6 steps")
    def never_stops(batches, step, limit):
        steps = 0
        for batch in batches:
            step(batch)
            steps += 1
        return steps

    @wrong("stopped after 4 steps, when the mean loss had been 0.45 a step before")
    def takes_the_largest(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss, op=dist.ReduceOp.MAX)
            steps += 1
            if loss < limit:
                break
        return steps

    @wrong("3 ranks")
    def divides_by_two(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss)
            steps += 1
            if loss / 2 < limit:
                break
        return steps

    @wrong("returned None")
    def forgets_to_return(batches, step, limit):
        import torch
        import torch.distributed as dist

        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss)
            if loss / dist.get_world_size() < limit:
                return

    @staticmethod
    def probe(train_until):
        import torch
        import torch.distributed as dist

        rank, _ = _join()
        observed = []
        for limit in (0.5, 0.01):
            began, ended = [], []

            def step(batch, began=began, ended=ended):
                began.append(batch)
                dist.all_reduce(torch.zeros(4))  # stands for the gradients
                ended.append(batch)
                return LOSSES[rank][len(ended) - 1]

            returned, stuck, one_stuck = _attempt(train_until, list(range(6)), step, limit)
            observed.append({"began": began, "ended": ended, "stuck": stuck, "limit": limit,
                             "returned": returned if isinstance(returned, int | None) else type(returned).__name__})
            if one_stuck:
                break
        return observed

    def judge(self, observed):
        n = len(observed)
        means = _mean(LOSSES[:n]) if n > 1 else LOSSES[0]
        for number, first in enumerate(observed[0]):
            seen, limit = [rows[number] for rows in observed], first["limit"]
            case = _ranks(n)
            if any(one["stuck"] for one in seen):
                return not_yet(f"{case}: {', '.join(map(self._where, range(n), seen))}", "all make equally many steps",
                               "what decides whether a rank goes on: is it the same in all ranks?")
            wanted = next((step for step, mean in enumerate(means, start=1) if mean < limit), len(means))
            for rank, one in enumerate(seen):
                made = len(one["ended"])
                if made != wanted or one["ended"] != list(range(made)):
                    when = (f"when the mean loss was {means[made - 1]:.2f}" if 0 < made < wanted else
                            f"when the mean loss had been {means[wanted - 1]:.2f} a step before" if made == wanted + 1
                            else f"though the mean loss was {means[wanted - 1]:.2f} after {wanted}")
                    return not_yet(f"{case}, limit {limit:g}: rank {rank} stopped after {made} steps, {when}",
                                   f"{wanted} steps", "the number that is compared with the limit")
                if one["returned"] != wanted:
                    return not_yet(f"{case}, limit {limit:g}: rank {rank} made {made} steps and returned "
                                   f"{one['returned']}", f"{wanted}", "the line with `return`, for an early stop, too")
        return None

    @staticmethod
    def _where(rank, one):
        steps = len(one["ended"])
        if not one["stuck"]:
            return f"rank {rank} had returned after {steps} steps"
        if len(one["began"]) > steps:
            return f"rank {rank} waited in vain in its {_ordinal(steps + 1)} step"
        return f"rank {rank} waited in vain at `{one['stuck']}` after {steps} step{'s' * (steps != 1)}"


def _ordinal(number):
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th')}"


ring_all_reduce, average_gradients, exact_accuracy = RingAllReduce(), AverageGradients(), ExactAccuracy()
accumulate, save_snapshot, resume, train_until = Accumulate(), SaveSnapshot(), Resume(), TrainUntil()
