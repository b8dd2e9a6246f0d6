"""The exercises of processes: what crosses from one process to another, and what does not."""

import contextlib
import copy
import functools
import io
import os
import queue
import textwrap
import threading
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.exercises.engine import Exercise, not_yet, scratch


def _trained():
    """A model with weights, buffers and gradients that are all different, and need all of their digits."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values(), start=1):
            tensor.copy_(100 * number + torch.arange(tensor.numel()).view(tensor.shape) / 7)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() / 3
    return model


class SendWeights(Exercise):
    title = "Weights through a queue"
    task = ("You are the child. `model` is trained; send all of its weights through `queue`: as a dict that "
            "`load_state_dict` takes, or as the bytes that `torch.save` makes of it. The parent is busy, nobody knows "
            "for how long, and reads late. It sets the event `done` once it has loaded them; `done.wait()` waits for "
            "that. (A limit of a minute or more is a safety net; a shorter one, or a `sleep`, is a guess.)")
    hints = (
        "`model.state_dict()` holds all that `load_state_dict` needs, buffers such as BatchNorm's averages included.",
        "A tensor in a queue is only a note that says where its memory can be fetched. Who has to be there when the "
        "parent fetches it?",
    )
    explanation = ("The child stays until the parent is done. Sending bytes is as right: `torch.save` into an "
                   "`io.BytesIO()` and put its `getvalue()`; bytes need nobody, and the child may leave at once.")
    why = ("the tensor itself never went through the queue: the parent fetched its memory from the child. Whoever puts "
           "tensors into a queue has to stay until they are fetched, in a DataLoader's worker as well as here.")
    timeout = 10

    def answer(model, queue, done):
        queue.put(model.state_dict())
        done.wait()

    def probe(send_weights, case):
        mailbox, found = _Queue(), []
        done = _Done(lambda: found.append(_what_is_wrong(mailbox, "while your function waited")) or found[0])
        with mock.patch("time.sleep"), contextlib.suppress(_Enough):  # no `sleep` is long enough
            send_weights(_trained(), mailbox, done)
        if not found:
            resource_sharer.stop()  # as when a process ends: nobody gives away the memory of its tensors any more
            first = (", having set `done` itself" if done.set_here else
                     f", after waiting {done.waited:g} s" if done.waited else "")
            found.append(_what_is_wrong(mailbox, f"when your function had returned{first}"))
        return not_yet(*found[0]) if found[0] else None


class _Queue(queue.Queue):
    """Pickles what goes through it, as a queue of processes does, but at once; the error is kept, not printed."""

    error = None

    def put(self, obj, block=True, timeout=None):
        try:
            super().put(bytes(ForkingPickler.dumps(obj)))
        except Exception as error:
            self.error = error

    def empty(self):
        """The parent takes things at once. What they tell of, it fetches later."""
        return True

    def close(self):
        """All has been sent."""

    join_thread = close
    @property
    def join(self):
        raise AttributeError("'Queue' object has no attribute 'join'")  # as that of processes


class _Done(threading.Event):
    """The parent's event. The parent reads once it is certain that the child waits: nothing depends on a clock."""

    def __init__(self, read):
        super().__init__()
        self.read, self.waited, self.set_here = read, 0, False

    def set(self):
        """What only the learner's code calls: the event is the parent's to set."""
        self.set_here = True
        super().set()

    def wait(self, timeout=None):
        self.waited += 60 if timeout is None else max(timeout, 0.1)  # who asks again and again with 0 waits, too
        if self.waited >= 60 and not super().is_set():
            if self.read():
                raise _Enough
            super().set()
        return super().is_set()

    def is_set(self):
        return self.wait(1)  # who asks again and again waits, too


class _Enough(BaseException):
    """Ends a function that would wait for ever."""


def _what_is_wrong(queue, when):
    """What the parent finds, as (observed, expected, where to look); empty if these are the weights."""
    if not queue.qsize() and queue.error:
        return (f"nothing arrived; what you put could not be sent: {type(queue.error).__name__}: {queue.error}",
                "what can be pickled; tensors without a history",
                "what you put: a queue's own thread pickles it, and only prints the error")
    if not queue.qsize():
        return (f"the parent read {when}: nothing arrived", "the weights in `queue`",
                "`queue.put(…)` sends them, before you wait; what a child returns, nobody gets")
    try:
        sent = queue.get()
        if "returned" in when and b"rebuild_storage_filename" in sent:  # strategy "file_system": the files go as well
            raise FileNotFoundError
        received = ForkingPickler.loads(sent)
    except OSError as error:
        return (f"the parent read {when}, and got `{type(error).__name__}`", "the weights can still be fetched",
                "who holds the memory of the tensors until the parent has it? That it has, `done` says, not the queue")
    kind, trained, model = type(received).__name__, _trained().state_dict(), _trained()
    first = f" first, of {queue.qsize() + 1} things," if queue.qsize() else ""
    for tensor in model.state_dict().values():
        tensor.zero_()
    try:
        if isinstance(received, bytes | bytearray):
            received = torch.load(io.BytesIO(received), weights_only=True)
        model.load_state_dict(received)
    except Exception as error:
        said = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        return (f"what arrived{first} (`{kind}`) could not be loaded: {said}",
                "a dict with every parameter and every buffer of the model by name, or what `torch.save` makes of it",
                "what you put into the queue: which method of the model returns all of them? Are bytes those of "
                "`torch.save`, from the beginning (`getvalue`)?")
    for name, wanted in trained.items():
        if name not in received:
            return f"`{name}` is missing", "every parameter and every buffer", "which method returns all of them?"
        if not torch.equal(model.state_dict()[name], wanted):
            look = "what happens to the tensors after `put`: their memory is shared until they are read"
            if received[name].dtype != wanted.dtype:
                look = f"it was {wanted.dtype}, and arrived as {received[name].dtype}"
            elif torch.allclose(received[name], wanted, rtol=0.01):
                look = "nearly those of the model: what rounds them before they are put, or changes them later?"
            elif torch.equal(received[name], wanted / 3):
                look = "these are its gradients"
            return f"`{name}` arrived with other values than the model has", "the trained weights", look
    return ()


#: What the shared tensor holds at first.
UNWRITTEN = -0.25


class FillMySlice(Exercise):
    title = "One tensor, filled by all ranks"
    task = ("`shared` is a `float32` tensor with one dimension whose memory all ranks share; what it holds at first "
            "means nothing. Together they write the square of its index into every element: 0, 1, 4, 9 … Write your "
            "rank's part, and nothing else: every element is written by exactly one rank, also where `world_size` does "
            "not divide the length, and every rank writes some.")
    hints = (
        "Which indices are yours? `range(rank, len(shared), world_size)` is one way, neighbouring elements another.",
        "`shared = …` gives the name to another tensor, which nobody shares. Write into it: `shared[…] = …`.",
    )
    explanation = ("`shared[rank::world_size]` is a view: the same memory, every `world_size`-th element from `rank` "
                   "on. Assigning to a slice writes into that memory, where all ranks see it.")
    why = ("ranks that write to different places of shared memory need no lock and send nothing. This is how several "
           "workers fill one batch, and how gathered results land in one buffer.")
    world_sizes = (2, 3)
    timeout = 10
    #: Divided by 2 and by 3; by neither, with a remainder of 2; by 2 only, with a remainder of 1.
    cases = {"300 elements": 300, "305 elements": 305, "4 elements": 4}

    def answer(shared, rank, world_size):
        import torch

        squares = torch.arange(len(shared)) ** 2
        shared[rank::world_size] = squares[rank::world_size]

    def probe(fill_my_slice, length):
        memory = torch.full((length,), UNWRITTEN).share_memory_()
        with _writes_to(memory) as writes:
            returned = fill_my_slice(memory.view(length), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return {"wrote": (writes.mask | (memory != UNWRITTEN)).tolist(), "after": memory.tolist(),
                "returned": type(returned).__name__}

    def judge(self, seen, length):
        for rank, one in enumerate(seen):
            if not any(one["wrote"]):
                also = f"; it returned a {one['returned']}" if one["returned"] != "NoneType" else ""
                look = ("does the line write into `shared`, or make another tensor? Indexed with a tensor or a list, "
                        "`shared[…]` is a copy, unless you assign to it")
                if all(map(any, zip(*(other["wrote"] for other in seen), strict=True))):
                    also, look = "; the others wrote every element", ("a length that is rounded up leaves nothing for "
                                                                      "the last rank: is there a part for every rank?")
                return not_yet(f"rank {rank} wrote nothing that another rank can see{also}",
                               "it writes into the memory of `shared`, and returns nothing", look)
        for index in reversed(range(length)):  # the first two are their own squares, and would tell less
            square = index ** 2
            values = {rank: one["after"][index] for rank, one in enumerate(seen) if one["wrote"][index]}
            wrong = [rank for rank in values if values[rank] not in (square, UNWRITTEN if len(values) > 1 else square)]
            if wrong:
                value, look = values[wrong[0]], "how you get from a place in your part to its index in the whole tensor"
                if len(values) > 1:
                    look = "it belongs to another rank: to how much of `shared` does your line write?"
                elif value == square + UNWRITTEN:
                    look = "you add to what was there"
                elif value == UNWRITTEN ** 2:
                    look = "you square what was there, which means nothing"
                elif value in ((index - 1) ** 2, (index + 1) ** 2):
                    look = "indices are counted from 0"
                elif abs(value - square) < square / 100 or (value - square) % 256 == 0 or value == float("inf"):
                    look = "the dtype in which you compute: does it hold such numbers, with all their digits?"
                elif value < 0 or value ** 0.5 % 1:
                    look = "it is the square of no whole number: what do you make of the index?"
                return not_yet(f"rank {wrong[0]} turned element {index} into {value:g} instead of {square}",
                               "the square of the index in the whole tensor; nothing in another rank's place", look)
            if len(values) != 1:
                writers = " and ".join(f"rank {rank}" for rank in values) or "no rank"
                look = "how `rank` decides which are yours: counted from 0, and `world_size` need not divide the length"
                if UNWRITTEN in values.values():
                    writers += ", one of which wrote back what it had found there"
                    look = "what one rank finds, another one changes before it is written back"
                each = " and ".join(str(sum(seen[rank]["wrote"])) for rank in values)
                writers += f"; of {length} they wrote {each}" * bool(each)
                return not_yet(f"element {index} was written by {writers}", "every element by exactly one rank", look)
        return None


def _writes_to(memory):
    """A context; its `mask` tells which elements of `memory` operators have written to, through any view of it."""

    class Watch(TorchDispatchMode):
        mask = torch.zeros(memory.shape, dtype=torch.bool)

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            schema = operator._schema
            given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **(kwargs or {})}
            for argument in schema.arguments:
                targets = given.get(argument.name) if argument.alias_info and argument.alias_info.is_write else ()
                for target in targets if isinstance(targets, list | tuple) else [targets]:
                    if target.untyped_storage().data_ptr() != memory.data_ptr():
                        continue
                    written = torch.tensor(True)
                    if any(word in schema.name for word in ("index", "scatter", "mask", "put_")):
                        # It writes to some places of its target. To which? To those that are no NaN in a trial.
                        written = ~operator(**{**given, argument.name: torch.full_like(target, torch.nan)}).isnan()
                    self.mask.as_strided(target.shape, target.stride(), target.storage_offset()).logical_or_(written)
            return operator(*args, **(kwargs or {}))

    return Watch()


class BringItHome(Exercise):
    title = "Repair the lost training"
    task = ("You are the child again, and `model` lies in memory that you share with your parent. "
            "`to_device(model)` returns a copy in the device's own memory, as `copy.deepcopy(model).to(device)` does, "
            "and `train(copy)` trains such a copy. Train on the device, once, and leave the trained weights, all of "
            "them, where the parent has its model.")
    hints = (
        "`train(to_device(model))` alone is the bug: the trained copy ends with the child. Keep it under a name.",
        "The shared memory belongs to the tensors of `model`. Which method of a module copies values into the tensors "
        "that it has already?",
    )
    explanation = ("`load_state_dict` copies value by value into the tensors that are there, buffers included, so the "
                   "parent sees them. With `assign=True`, or by `parameter.data = …`, it would get other tensors.")
    why = ("moving to a device makes a copy, and a copy has to be brought back, by shared memory as here, or through "
           "a queue. DistributedDataParallel spares you that: there each rank trains a copy, and equal gradients keep "
           "all copies equal.")
    timeout = 10

    def answer(model, to_device, train):
        copy = to_device(model)
        train(copy)
        model.load_state_dict(copy.state_dict())

    def probe(bring_it_home, case):
        model, on_device, trained, written = _trained().share_memory(), [], [], []
        parents = model.state_dict()  # other tensors, on the same memory
        old, versions = copy.deepcopy(parents), {name: tensor._version for name, tensor in parents.items()}
        new = {name: tensor + 1 for name, tensor in old.items()}

        def to_device(module):
            on_device.append(copy.deepcopy(module))
            return on_device[-1]

        def train(module):
            tensors = module.state_dict().values()
            if {one.data_ptr() for one in tensors} & {one.data_ptr() for one in parents.values()}:
                trained.append("the shared model")
            else:
                trained.append("" if any(module is one for one in on_device) else "another copy")
            written.append(versions != {name: tensor._version for name, tensor in parents.items()})
            for tensor in tensors:
                tensor += 1

        returned = type(bring_it_home(model, to_device, train)).__name__
        if not trained:
            return not_yet("`train` was never called", "`train(…)` with the copy on the device")
        if any(trained):
            return not_yet(f"`train` was applied to {max(trained)}, not to the copy on the device",
                           "`train(…)` with what `to_device` returned", "what you give to `train`")
        if len(trained) > 1:
            return not_yet(f"`train` was called {len(trained)} times", "once")
        wrong = [name for name, tensor in parents.items() if not torch.equal(tensor, new[name])]
        if not wrong:
            return None
        name, in_child = wrong[0], model.state_dict()
        what = ("still has the weights from before" if torch.equal(parents[name], old[name]) else
                "has neither the old nor the trained weights")
        if torch.equal(in_child[name], new[name]):
            what += "; the child's `model` has the trained weights, in other memory"
        elif len(on_device) == 1 and torch.equal(on_device[0].state_dict()[name], old[name]):
            what += "; so has the trained copy now: they were copied the wrong way round"
        elif returned != "NoneType":
            what += f"; your function returned a {returned}, which stays in the child"
        elif any(written):
            what += "; values were written into its memory before `train` was called"
        elif torch.equal(parents[name], old[name] + new[name]):
            what += ", but their sum"
        elif len(on_device) > 1:
            what += f"; of {len(on_device)} copies that `to_device` made, one was trained"
        elif versions[name] != parents[name]._version and torch.equal(parents[name], old[name]):
            what += "; they were written to it, after training"
        elif not {name for name, _ in model.named_parameters()} & set(wrong):
            what += "; all parameters have the trained ones, but this is a buffer"
        return not_yet(f"`{name}` in the parent {what}",
                       "the weights of the copy, trained once, in the memory that child and parent share",
                       "write values into the tensors that `model` has, those of the very copy that was "
                       "trained; parameters and buffers, after training")


class StartSafely(Exercise):
    title = "Start a child that finishes"
    task = ("Your function is called in a parent that has computed with two threads. `work()` multiplies two matrices "
            "of 512 × 512, as above. Start it in a process of its own, in which it comes to its end, and return that "
            "process, as `Process(target=work)` makes one. The parent goes on with its two threads.")
    hints = (
        "What hangs is a copy of a parent that has computed, if it wants several threads. Change one or the other.",
        "`mp.get_context(\"spawn\").Process(target=work)` makes a process that is no copy. Or fork, and let the child "
        "call `torch.set_num_threads(1)` before `work()`.",
    )
    explanation = ("A spawned child is no copy: it starts threads of its own. It costs an import of torch. A forked "
                   "child is cheaper, and must set one thread before it computes, as a DataLoader's worker does.")
    why = ("this hang has no error, no output, and shows itself on some machines only. A library that forks in your "
           "name can bring it, too: look for the start method first.")
    timeout = 40

    def answer(work):
        import torch.multiprocessing as mp

        process = mp.get_context("spawn").Process(target=work)
        process.start()
        return process

    def probe(start_safely, case):
        torch.set_num_threads(2)
        torch.ones(512, 512) @ torch.ones(512, 512)
        _computed.append(True)
        with scratch() as folder:
            told = Path(folder, "told")
            process = start_safely(functools.partial(_work, told, os.getpid()))
            if not hasattr(process, "join") or (getattr(process, "pid", None) is None
                                                and not isinstance(process, threading.Thread)):  # it is waited for
                kind = "process that was never started" if hasattr(process, "pid") else type(process).__name__
                return not_yet(f"your function returned a {kind}", "the process that it has started",
                               "`Process(target=work)` makes one, `start()` starts it; a context holds many")
            process.join()
            said, exitcode = told.read_text() if told.exists() else "", getattr(process, "exitcode", None)
        if not said:
            return not_yet(f"the process ended, with exit code {exitcode}, and `work` had not come to its end",
                           "`work()` is called in the child", "what is its target, and does something end it early?")
        if said != "done":
            return not_yet(said, "`work()` comes to its end in a process of its own",
                           "a process, no thread; `target=work`, without parentheses" if "parent's own" in said else
                           "`mp.spawn` hands a number over; `Process(target=work)` does not" if "given" in said else
                           "is the child a copy of the parent? And how many threads does it want?")
        if (threads := torch.get_num_threads()) != 2:
            return not_yet(f"the parent now computes with {threads} thread(s)", "its two threads, as before",
                           "in which process do you set the number of threads?")
        return None


_computed = []  # what a forked child finds filled, as the threads' bookkeeping of torch, and a spawned one empty


def _work(told, parent, *given):
    """Multiply, and tell that it is done; or, where that would wait for ever, tell why. It needs no clock."""
    threads = torch.get_num_threads()
    if os.getpid() == parent:
        told.write_text("`work` ran in the parent's own process")
    elif given:
        told.write_text(f"`work` was given {', '.join(map(repr, given))}, and takes nothing")
    elif _computed and threads > 1:
        told.write_text(f"the child waits for ever: it is a copy of a parent that has computed, and wants {threads} "
                        "threads, which only the parent has"
                        + ". (OMP_NUM_THREADS is 1, but was read when torch was imported)"
                        * (os.environ.get("OMP_NUM_THREADS") == "1"))
    else:
        torch.ones(512, 512) @ torch.ones(512, 512)
        told.write_text("done")


send_weights, fill_my_slice, bring_it_home = SendWeights(), FillMySlice(), BringItHome()
start_safely = StartSafely()
