"""The exercises of processes: what crosses from one process to another, and what does not."""

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

from helpers.exercises.engine import scratch
from helpers.exercises.tables import Table, each, holds, same

PUT, WAIT = "queue.put(model.state_dict())", "    done.wait()"


def trained():
    """A model with weights, buffers and gradients that are all different, and need all of their digits."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values(), start=1):
            tensor.copy_(100 * number + torch.arange(tensor.numel()).view(tensor.shape) / 7)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() / 3
    return model


def values(model):
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


class Queue(queue.SimpleQueue):
    """Pickles what goes through it, as a queue of processes does, but at once. It keeps the error."""

    trouble = "nothing arrived"

    def put(self, obj, block=True, timeout=None):
        try:
            super().put(bytes(ForkingPickler.dumps(obj)))
        except Exception as error:
            self.trouble = f"nothing arrived; what you put could not be sent: {type(error).__name__}: {error}"

    def empty(self):
        """The parent takes a message at once. It fetches the memory of its tensors later."""
        return True

    def close(self):
        """All has been sent."""

    put_nowait, join_thread = put, close


class Done(threading.Event):
    """The parent's event. The parent reads as soon as the child waits for a minute; no clock has a say."""

    def __init__(self, queue):
        super().__init__()
        self.queue, self.waited, self.seen = queue, 0, None

    def wait(self, timeout=None):
        if not super().is_set():
            self.waited += 60 if timeout is None else max(timeout, 0.1)  # asking again and again is waiting
            if self.waited >= 60:
                self.seen = read(self.queue, "while your function waited")
                self.set()
        return super().is_set()

    def is_set(self):
        return self.wait(1)


def read(messages, when):
    """What the parent gets, if it reads now and loads that into a model of zeros."""
    model, received, trouble = trained(), None, ""
    for tensor in model.state_dict().values():
        tensor.zero_()
    try:
        sent = messages.get_nowait()
        if "returned" in when and b"rebuild_storage_filename" in sent:
            raise FileNotFoundError  # the sharing strategy is "file_system", and the child's files are gone
        received = ForkingPickler.loads(sent)
        if isinstance(received, bytes | bytearray):
            received = torch.load(io.BytesIO(received), weights_only=True)
        model.load_state_dict(received)
    except queue.Empty:
        trouble = messages.trouble
    except OSError as error:
        trouble = f"the tensors' memory could not be fetched: `{type(error).__name__}`"
    except Exception as error:
        said = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        trouble = f"what arrived first (`{type(received).__name__}`) could not be loaded: {said}"
    return {"trouble": f"the parent read {when}: {trouble}" if trouble else "", "weights": values(model)}


def without(sign, expected, look):
    """The observation `trouble` has no `sign` in its words."""

    def broken(mine, wanted, case):
        if sign in mine["trouble"]:
            return mine["trouble"], expected

    return each(broken, look)


class SendWeights(Table):
    title = "Weights through a queue"
    task = ("You are the child, and `model` is trained. Send all of its weights through `queue`: as a dict "
            "that `load_state_dict` takes, or as the bytes that `torch.save` makes of it. The parent is "
            "busy and reads late; nobody knows when. It sets the event `done` after it has loaded the "
            "weights. You can wait for that with `done.wait()`. (A time limit of a minute or more is fine. "
            "A shorter one, or a `sleep`, is a guess.)")
    hints = ("`model.state_dict()` holds all that `load_state_dict` needs, also buffers such as BatchNorm's "
             "averages.",
             "A tensor in a queue is only a note that says where to fetch its memory. Which process has to "
             "be there when the parent fetches it?")
    explanation = ("The child stays until the parent has the weights. Bytes are right, too: `torch.save` "
                   "into an `io.BytesIO()`, and put its `getvalue()`. Bytes need nobody, so the child may "
                   "then leave at once.")
    why = ("the tensor itself did not go through the queue: the parent fetched its memory from the child. A "
           "process that puts tensors into a queue has to stay until they are fetched. This is true of a "
           "DataLoader's workers as well.")
    timeout = 10

    def answer(model, queue, done):
        queue.put(model.state_dict())
        done.wait()

    def observe(send_weights, case):
        queue = Queue()
        done = Done(queue)
        with mock.patch("time.sleep"):  # no `sleep` is long enough
            send_weights(trained(), queue, done)
        if done.seen is None:
            resource_sharer.stop()  # as when a process ends: nobody hands out its tensors' memory any more
            when = f"when your function had returned, having waited {done.waited:g} s for `done`"
            done.seen = read(queue, when)
        return done.seen

    rules = (
        without("could not be sent", "something that can be pickled, such as tensors without a history",
                "what do you put? A queue pickles it in a thread of its own, which only prints the error"),
        without("nothing arrived", "the weights in `queue`",
                "`queue.put(…)` sends them. Put them before you wait; nobody gets what a child returns"),
        without("could not be fetched", "the memory can still be fetched",
                "which process holds the tensors' memory until the parent has it? Only `done` says that it "
                "has it"),
        without("could not be loaded", "every parameter and every buffer by name, or `torch.save`'s bytes "
                                       "of that",
                "which method of the model returns all weights? Bytes are those of `torch.save`, from "
                "`getvalue`"),
        same("weights", "what happens to the tensors before and after `put`? Their memory is shared until "
                        "the parent has read it"),
    )
    mistakes = (
        (WAIT, "", "the memory of the tensors goes with your process. Stay until `done` is set"),
        (WAIT, "    import time\n    time.sleep(30)", "nobody knows when the parent reads. Wait for `done`"),
        (WAIT, "    while not queue.empty():\n        pass",
         "an empty queue says that the note was read. Only `done` says that the memory was fetched"),
        (WAIT, "    done.set()", "the parent sets `done`. You have to wait for it"),
        (WAIT, "    done.wait(0.5)", "nobody knows when the parent reads. Wait without a limit"),
        (PUT, f"done.wait()\n    {PUT}", "the parent sets `done` after it has the weights. Put them first"),
        (PUT, "queue.put(dict(model.named_parameters()))", "`named_parameters()` leaves the buffers out"),
    )


#: What the shared tensor holds at first.
UNWRITTEN = -0.25
MINE = "shared[rank::world_size] = squares[rank::world_size]"
BLOCK = "here = slice(rank * each, (rank + 1) * each)\n    shared[here] = squares[here]"
NOT_INTO_IT = ("does the line write into `shared`, or does it make another tensor? `shared[…]` with a "
               "tensor or a list as index is a copy, unless you assign to it")


class WritesTo(TorchDispatchMode):
    """Notes in `mask` which elements of `memory` operators write to, through any view of it."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.mask = memory, torch.zeros(memory.shape, dtype=torch.bool)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        arguments = operator._schema.arguments
        given = {**dict(zip((one.name for one in arguments), args, strict=False)), **(kwargs or {})}
        for name in [one.name for one in arguments if one.alias_info and one.alias_info.is_write]:
            view = given[name]
            if isinstance(view, torch.Tensor) and view.untyped_storage().data_ptr() == self.memory.data_ptr():
                written = torch.tensor(True)
                if any(word in operator._schema.name for word in ("index", "scatter", "mask", "put_")):
                    # It writes to some places of its target. To which? To those that are no NaN in a trial.
                    written = ~operator(**{**given, name: torch.full_like(view, torch.nan)}).isnan()
                self.mask.as_strided(view.shape, view.stride(), view.storage_offset()).logical_or_(written)
        return operator(*args, **(kwargs or {}))


def writes_nothing(mine, wanted, case):
    for rank, one in enumerate(mine):
        if not any(one["wrote"]):
            told = f"rank {rank} wrote nothing that another rank can see, and returned a {one['returned']}"
            return told, "it writes into the memory of `shared`"


def writes_no_square(mine, wanted, case):
    for index in reversed(range(case)):  # the first two are their own squares, and would tell less
        for rank, one in enumerate(mine):
            if one["wrote"][index] and one["after"][index] not in (index**2, UNWRITTEN):
                told = f"rank {rank} turned element {index} into {one['after'][index]:g}"
                return told, f"{index**2}, the square of its index; nothing in another rank's place"


def not_by_one_rank(mine, wanted, case):
    for index in reversed(range(case)):
        writers = [rank for rank, one in enumerate(mine) if one["wrote"][index]]
        if len(writers) != 1:
            names = " and ".join(f"rank {rank}" for rank in writers) or "no rank"
            return f"element {index} was written by {names}", "every element by exactly one rank"
        if mine[writers[0]]["after"][index] == UNWRITTEN:
            return f"rank {writers[0]} wrote back what it found in element {index}", f"{index**2}, its square"


class FillMySlice(Table):
    title = "One tensor, filled by all ranks"
    task = ("All ranks share the memory of `shared`, a `float32` tensor with one dimension and hundreds of "
            "elements. Together they write the square of its index into every element: 0, 1, 4, 9 … Ignore "
            "what the tensor holds at first. Write your rank's part and nothing else. Exactly one "
            "rank writes each element, also if `world_size` does not divide the length, and each rank "
            "writes some.")
    hints = ("Which indices are yours? `range(rank, len(shared), world_size)` is one way. Blocks of "
             "neighbours are another.",
             "`shared = …` gives the name to another tensor, which nobody shares. Write into it: `shared[…] "
             "= …`.")
    explanation = ("`shared[rank::world_size]` is a view: the same memory, every `world_size`-th element "
                   "from `rank` on. Assigning to a slice writes into that memory, so all ranks see it.")
    why = ("ranks that write to different places of shared memory need no lock, and send nothing. Several "
           "workers can fill one batch in this way.")
    world_sizes = (2, 3)
    timeout = 10
    #: Divided by 2 and by 3; by neither, with a remainder of 2; by 2 only, with a remainder of 1.
    cases = {"300 elements": 300, "305 elements": 305, "304 elements": 304}

    def answer(shared, rank, world_size):
        import torch

        squares = torch.arange(len(shared)) ** 2
        shared[rank::world_size] = squares[rank::world_size]

    def observe(fill_my_slice, length):
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        memory = torch.full((length,), UNWRITTEN).share_memory_()
        with WritesTo(memory) as writes:
            returned = fill_my_slice(memory.view(length), rank, world_size)
        wrote = writes.mask | (memory != UNWRITTEN)
        return {"wrote": wrote.tolist(), "after": memory.tolist(), "returned": type(returned).__name__}

    rules = (
        holds(writes_nothing, NOT_INTO_IT),
        holds(writes_no_square, "how do you get from a place in your part to its index in the whole tensor? "
                                "And in which dtype do you compute?"),
        holds(not_by_one_rank, "how does `rank` decide which elements are yours? Ranks are counted from 0, "
                               "and `world_size` need not divide the length"),
    )
    mistakes = (
        (MINE, "return squares[rank::world_size]", "nobody gets what you return. Write into `shared`"),
        (MINE, "mine = torch.arange(rank, len(shared), world_size)\n    shared[mine].copy_(squares[mine])",
         NOT_INTO_IT),
        (MINE, f"each = len(shared) // world_size\n    {BLOCK}", "who has the remainder?"),
        (MINE, "shared[:] = squares", "to how much of `shared` does your line write? Write only to your "
                                      "part"),
        (MINE, "mine = shared[rank::world_size]\n    mine[:] = squares[:len(mine)]",
         "the first place of your part is not index 0 of the whole tensor"),
        (MINE, "shared[rank::world_size] **= 2", "you square what was there before, which means nothing"),
        ("torch.arange(len(shared))", "torch.arange(1, 1 + len(shared))", "indices are counted from 0"),
    )


COPY, TRAIN, LOAD = "copy = to_device(model)", "train(copy)", "model.load_state_dict(copy.state_dict())"
ON_DEVICE = "the copy on the device"
OTHER_MEMORY = ("`assign=True` and `.data = …` give `model` other tensors. Copy values into the tensors that "
                "it has")


def not_trained_once(mine, wanted, case):
    calls = mine["trained"]
    if len(calls) != 1:
        return f"`train` was called {len(calls)} times", f"once, with {ON_DEVICE}"
    if calls != [ON_DEVICE]:
        return f"`train` was applied to {calls[0]}", f"`train(…)` with what `to_device` returned, {ON_DEVICE}"


def not_at_home(mine, wanted, case):
    expected = "the weights of the copy, trained once, in the memory that child and parent share"
    for name, right in wanted["in the parent"].items():
        found = mine["in the parent"][name]
        if found == right:
            continue
        if mine["in the child"][name] == right:
            return f"the child's `{name}` has the trained weights, but in other memory", expected
        if found == mine["before"][name]:
            return f"`{name}` in the parent still has the weights from before", expected
        return f"`{name}` in the parent has neither the old nor the trained weights", expected


class BringItHome(Table):
    title = "Repair the lost training"
    task = ("You are the child again. `model` lies in memory that you share with your parent. "
            "`to_device(model)` returns a copy in the device's own memory, like "
            "`copy.deepcopy(model).to(device)`. `train(copy)` trains such a copy. Train on the device, "
            "once. Then leave all of the trained weights where the parent has its model.")
    hints = ("`train(to_device(model))` alone is the bug: the trained copy ends with the child. Keep the "
             "copy under a name.",
             "The shared memory belongs to the tensors of `model`. Which method of a module copies values "
             "into the tensors that it has already?")
    explanation = ("`load_state_dict` copies each value into the tensors that are there, buffers included, "
                   "so the parent sees them. `assign=True` or `parameter.data = …` would give `model` other "
                   "tensors.")
    why = ("moving a model to a device makes a copy, and somebody has to bring the copy back: by shared "
           "memory as here, or through a queue. With DistributedDataParallel you need not do that, because "
           "equal gradients keep the copies of all ranks equal.")
    timeout = 10

    def answer(model, to_device, train):
        copy = to_device(model)
        train(copy)
        model.load_state_dict(copy.state_dict())

    def observe(bring_it_home, case):
        model, calls, copies = trained().share_memory(), [], []
        before, parents = values(model), model.state_dict()  # other tensors, on the same memory
        untouched = [tensor._version for tensor in parents.values()]
        memory = {tensor.data_ptr() for tensor in parents.values()}

        def to_device(module):
            copies.append(copy.deepcopy(module))
            return copies[-1]

        def train(module):
            tensors = module.state_dict().values()
            if any(tensor.data_ptr() in memory for tensor in tensors):
                calls.append("the shared model")
            elif any(module is one for one in copies):
                calls.append(ON_DEVICE)
            else:
                calls.append("another copy")
            for tensor in tensors:
                tensor += 1

        returned = bring_it_home(model, to_device, train)
        return {
            "trained": calls,
            "before": before,
            "in the parent": {name: tensor.tolist() for name, tensor in parents.items()},
            "in the child": values(model),
            "written into `model`": [tensor._version for tensor in parents.values()] != untouched,
            "on the device": [values(one) for one in copies],
            "returned": type(returned).__name__}

    rules = (
        each(not_trained_once, "what do you give to `train`, and how often?"),
        each(not_at_home, "write the values of the trained copy into the tensors of `model`, parameters and "
                          "buffers, after training"),
    )
    mistakes = (
        (f"{COPY}\n    {TRAIN}\n    {LOAD}", "train(to_device(model))",
         "the trained copy ends with the child. Keep it under a name, and write its values into `model`"),
        (LOAD, "return copy", "nobody gets what a child returns. Write the values into `model`"),
        (LOAD, "copy.load_state_dict(model.state_dict())", "which way round? `model` loads from the copy"),
        (LOAD, "for mine, new in zip(model.parameters(), copy.parameters()):\n        mine.data.copy_(new)",
         "`parameters()` leaves the buffers out"),
        (LOAD, "model.load_state_dict(copy.state_dict(), assign=True)", OTHER_MEMORY),
        (TRAIN, "train(model)", "the device has its own memory. Train what `to_device` has returned"),
        (((TRAIN, LOAD), (f"{LOAD}\n    {LOAD}", f"{LOAD}\n    {TRAIN}")), "load after training, not before"),
    )


SPAWN, START = 'mp.get_context("spawn").Process(target=work)', "process.start()"
FORK = SPAWN.replace("spawn", "fork")
ONE_THREAD = "__import__('torch').set_num_threads(1)"
RETURN = "`Process(target=work)` makes a process, and `start()` starts it. Return it; a thread is no process"
NO_CALL = "write `target=work`, without parentheses"
A_COPY = "is the child a copy of the parent? And how many threads does it use?"
WHICH = "in which process do you set the number of threads?"
TO_ITS_END = "`work()` comes to its end in a process of its own"

#: A forked child finds it filled, as torch's bookkeeping of threads, and a spawned child finds it empty.
computed = []


def multiply(told, parent):
    """Multiply, and tell that it is done. Where the product would wait for ever, tell why instead."""
    threads = torch.get_num_threads()
    if os.getpid() == parent:
        told.write_text("`work` ran in the parent's own process")
    elif computed and threads > 1:
        told.write_text("the child waits for ever: it is a copy of a parent that has computed, and wants "
                        f"{threads} threads, which only the parent has")
    else:
        torch.ones(512, 512) @ torch.ones(512, 512)
        told.write_text("done")


class StartSafely(Table):
    title = "Start a child that finishes"
    task = ("Your function is called in a parent that has computed with two threads. `work()` multiplies "
            "two matrices of 512 × 512, as above. Start it in a process of its own in which it comes to its "
            "end, and return that process, as `Process(target=work)` makes one. The parent keeps its two "
            "threads.")
    hints = ("A child hangs if it is a copy of a parent that has computed, and uses several threads. Change "
             "one of the two.",
             "`mp.get_context(\"spawn\").Process(target=work)` makes a process that is no copy. Or fork, "
             "and let the child call `torch.set_num_threads(1)` before `work()`.")
    explanation = ("A spawned child is no copy: it starts threads of its own, and has to import torch. A "
                   "forked child is cheaper, and must set one thread before it computes, as a DataLoader's "
                   "worker does.")
    why = ("this hang has no error and no output, and it shows on some machines only. A library that forks "
           "for you can cause it, too. Look for the start method first.")
    timeout, slow = 40, True
    beside_the_answer = False  # the answer would import torch once more, for nothing

    def answer(work):
        import torch.multiprocessing as mp

        process = mp.get_context("spawn").Process(target=work)
        process.start()
        return process

    def observe(start_safely, case):
        torch.set_num_threads(2)
        torch.ones(512, 512) @ torch.ones(512, 512)
        computed.append(True)
        with scratch() as folder:
            told = Path(folder, "told")
            process = start_safely(functools.partial(multiply, told, os.getpid()))
            kind = type(process).__name__
            if not hasattr(process, "exitcode"):
                return {"trouble": f"your function returned a {kind}"}
            if process.pid is None:
                return {"trouble": f"your function returned a {kind} that was never started"}
            process.join()
            said = told.read_text() if told.exists() else ""
        if not said:
            return {"trouble": f"the process ended, with exit code {process.exitcode}, before `work` did"}
        if said != "done":
            return {"trouble": said}
        if torch.get_num_threads() != 2:
            return {"trouble": f"the parent now computes with {torch.get_num_threads()} thread(s)"}
        return {"trouble": ""}

    rules = (
        without("your function returned", "the process that it has started", RETURN),
        without("the process ended", TO_ITS_END, "what is its target, and does something end it early?"),
        without("`work` ran", TO_ITS_END, NO_CALL),
        without("waits for ever", TO_ITS_END, A_COPY),
        without("now computes with", "its two threads, as before", WHICH),
    )
    mistakes = (
        (SPAWN, FORK, A_COPY),
        (((SPAWN, FORK), (START, f"{START}\n    {ONE_THREAD}")), A_COPY),
        (((SPAWN, FORK), (START, f"{ONE_THREAD}\n    {START}")), WHICH),
        (SPAWN, "__import__('threading').Thread(target=work)", RETURN),
        (((SPAWN, FORK), ("target=work", "target=work()")), NO_CALL),
        (START, "pass", RETURN),
        ("return process", "process.join()", RETURN),
    )


send_weights, fill_my_slice, bring_it_home = SendWeights(), FillMySlice(), BringItHome()
start_safely = StartSafely()
