"""The exercises of lesson 01: what crosses from one process to another, and what does not."""

import os
from pathlib import Path

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "01_processes"

#: Seconds that the parent of the first exercise lets pass before it reads, unless the child has returned by then.
LATE = 0.5
#: Seconds that it then waits for something to arrive.
PATIENCE = 2


class SendWeights(Exercise):
    title = "Weights through a queue"
    task = ("You are the child. `model` is trained; send all of its weights through `queue`: as a dict that "
            "`load_state_dict` takes, or as the bytes that `torch.save` writes. The parent is busy and reads late. It "
            "sets the event `done` once it has loaded them; `done.wait()` waits for that.")
    hints = (
        "`model.state_dict()` holds all that `load_state_dict` needs, buffers such as BatchNorm's averages included.",
        "A tensor in a queue is only a note that says where its memory can be fetched. Who has to be there when the "
        "parent fetches it?",
    )
    explanation = ("The child stays until the parent is done. Sending bytes is as right: `torch.save` into an "
                   "`io.BytesIO()` and put its `getvalue()`; bytes need nobody, and the child may leave at once.")
    why = ("the tensor itself never went through the queue: the parent fetched its memory from the child. Whoever puts "
           "tensors into a queue has to outlive those who read them, in a DataLoader's worker as well as here.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(model, queue, done):
        raise NotImplementedError

    @staticmethod
    def answer(model, queue, done):
        queue.put(model.state_dict())
        done.wait()

    @wrong("your function had returned")
    def puts_and_leaves(model, queue, done):
        queue.put(model.state_dict())

    @wrong("nothing arrived")
    def waits_before_it_puts(model, queue, done):
        done.wait()
        queue.put(model.state_dict())

    @wrong("`1.running_mean` is missing")
    def forgets_the_buffers(model, queue, done):
        queue.put(dict(model.named_parameters()))
        done.wait()

    @wrong("a list arrived")
    def sends_a_list(model, queue, done):
        queue.put(list(model.parameters()))
        done.wait()

    @wrong("bytes arrived that `torch.load` cannot read")
    def sends_pickled_bytes(model, queue, done):
        import pickle

        queue.put(pickle.dumps(model.state_dict()))

    @wrong("a Sequential arrived")
    def sends_the_model(model, queue, done):
        queue.put(model)
        done.wait()

    @wrong("`0.weight` arrived as float16")
    def saves_space(model, queue, done):
        queue.put({name: tensor.half() for name, tensor in model.state_dict().items()})
        done.wait()

    @wrong("nothing arrived")
    def sends_results_with_a_gradient(model, queue, done):
        queue.put({name: 1 * parameter for name, parameter in model.named_parameters()})
        done.wait()

    @wrong("other values")
    def goes_on_training(model, queue, done):
        queue.put(model.state_dict())
        for parameter in model.parameters():
            parameter.data.zero_()  # the parent has not read yet, and the memory is shared
        done.wait()

    @staticmethod
    def probe(send_weights):
        from multiprocessing import resource_sharer

        context = _context()
        queue, done, returned, (here, there) = context.Queue(), context.Event(), context.Event(), context.Pipe()
        parent = context.Process(target=_read_late, args=(queue, done, returned, there), daemon=True)
        parent.start()
        try:
            send_weights(_model(), queue, done)
            # What the end of a process does: put what waits to be put, and stop giving away the memory of tensors.
            queue.close()
            queue.join_thread()
            resource_sharer.stop(timeout=1)
            returned.set()
            return here.recv() if here.poll(10) else {"problem": "silent"}
        finally:
            parent.kill()
            parent.join()

    def judge(self, observed):
        seen = observed[0]
        problem, name = seen["problem"], f"`{seen.get('name')}`"
        if problem == "nothing":
            return not_yet(f"nothing arrived in the {PATIENCE} s that the parent waited for it",
                           "the weights are in the queue before you wait",
                           "the order of `put` and `wait`. And `put` gives its object to a thread of the child: what "
                           "cannot be sent is refused there, and the error is only printed")
        if problem == "unreadable":
            when = "when your function had returned" if seen["returned"] else "while your function was running"
            return not_yet(f"the parent read {when}, and got `{seen['error']}`", "the weights can still be fetched",
                           "who holds the memory of the tensors until the parent has it?")
        if problem == "bytes":
            return not_yet("bytes arrived that `torch.load` cannot read",
                           "the bytes that `torch.save` writes into an `io.BytesIO()`", "how the bytes were made")
        if problem == "type":
            return not_yet(f"a {seen['type']} arrived", "a dict of tensors by name, as `load_state_dict` takes it",
                           "what you put into the queue")
        if problem == "missing":
            return not_yet(f"{name} is missing", "every parameter and every buffer of the model",
                           "which method of the model returns all of them?")
        if problem == "dtype":
            return not_yet(f"{name} arrived as {seen['dtype']}", seen["expected"], "conversions on the way")
        if problem == "values":
            return not_yet(f"{name} arrived with other values than the model had", "the trained weights",
                           "what happens to the tensors after `put`: their memory is shared until they are read")
        if problem:
            return not_yet(f"the parent could not use what arrived ({problem})", "a dict of tensors by name",
                           "what you put into the queue")
        return None


def _context():
    """How an exercise starts its other process: forked where that is safe and quick, as nothing has computed yet."""
    import sys

    import torch
    import torch.multiprocessing as mp

    torch.set_num_threads(1)
    return mp.get_context("fork" if sys.platform == "linux" else "spawn")


def _model():
    """A small model with a buffer, the same in every process, with a different number in every place."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values(), start=1):
            tensor.copy_(100 * number + torch.arange(tensor.numel()).view(tensor.shape))
    return model


def _read_late(queue, done, returned, answers):
    """The parent of the first exercise."""
    returned.wait(LATE)
    was_returned = returned.is_set()
    try:
        seen = _looked_at(queue.get(timeout=PATIENCE))
    except Exception as error:
        seen = {"problem": "nothing" if type(error).__name__ == "Empty" else "unreadable",
                "error": type(error).__name__, "returned": was_returned}
    answers.send(seen)
    done.set()


def _looked_at(received):
    """What is wrong with the weights that have arrived, if anything."""
    import io

    import torch

    if isinstance(received, bytes):
        try:
            received = torch.load(io.BytesIO(received))
        except Exception:
            return {"problem": "bytes"}
    if not isinstance(received, dict):
        return {"problem": "type", "type": type(received).__name__}
    model = _model()
    for name, wanted in model.state_dict().items():
        if name not in received:
            return {"problem": "missing", "name": name}
        tensor = torch.as_tensor(received[name])
        if tensor.dtype != wanted.dtype:
            return {"problem": "dtype", "name": name, "dtype": _dtype(tensor), "expected": _dtype(wanted)}
        if not torch.equal(tensor, wanted):
            return {"problem": "values", "name": name}
    try:
        model.load_state_dict(received)
    except (RuntimeError, TypeError) as error:
        if all(isinstance(value, torch.Tensor) for value in received.values()):
            return {"problem": str(error).splitlines()[-1].strip()}
    return {"problem": None}


def _dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


# ---------------------------------------------------------------------------------------------------------------------

#: How long the shared tensor is; the first case that goes wrong is the one that the learner reads.
LENGTHS = (6, 7)


class FillMySlice(Exercise):
    title = "One tensor, filled by all ranks"
    task = ("`shared` is a tensor with one dimension whose memory all ranks share. Together they write the square of "
            "its index into every element: 0, 1, 4, 9 … Write your rank's part, and nothing else: every element is "
            "written by exactly one rank, also where `world_size` does not divide the length.")
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

    @staticmethod
    def stub(shared, rank, world_size):
        raise NotImplementedError

    @staticmethod
    def answer(shared, rank, world_size):
        import torch

        squares = torch.arange(len(shared)) ** 2
        shared[rank::world_size] = squares[rank::world_size]

    @wrong("written by rank 0 and rank 1")
    def everything_in_every_rank(shared, rank, world_size):
        for index in range(len(shared)):
            shared[index] = index ** 2

    @wrong("element 6 was written by no rank")
    def drops_the_remainder(shared, rank, world_size):
        each = len(shared) // world_size
        for index in range(rank * each, (rank + 1) * each):
            shared[index] = index ** 2

    @wrong("3 ranks")
    def even_and_odd(shared, rank, world_size):
        for index in range(rank % 2, len(shared), 2):
            shared[index] = index ** 2

    @wrong("returned a Tensor")
    def makes_a_new_tensor(shared, rank, world_size):
        import torch

        return torch.arange(len(shared))[rank::world_size] ** 2

    @wrong("nothing that another rank can see")
    def gives_the_name_away(shared, rank, world_size):
        shared.data = shared.data.clone()
        shared[rank::world_size] = 0

    @wrong("instead of")
    def counts_from_zero_in_every_slice(shared, rank, world_size):
        part = shared[rank::world_size]
        for index in range(len(part)):
            part[index] = index ** 2

    @wrong("into 0 instead of")
    def clears_what_is_not_its_own(shared, rank, world_size):
        for index in range(len(shared)):
            shared[index] = index ** 2 if index % world_size == rank else 0

    @staticmethod
    def probe(fill_my_slice):
        import torch
        import torch.distributed as dist

        from helpers.launcher.rank import RUN_FOLDER

        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo")
        seen = []
        for length in LENGTHS:
            shared = torch.from_file(str(Path(os.environ[RUN_FOLDER], f"shared-{length}")), shared=True, size=length)
            returned, after = None, []
            for turn in range(world_size):  # one after the other, so that it is known who wrote what
                if turn == rank:
                    shared.fill_(-1)
                    returned = type(fill_my_slice(shared, rank, world_size)).__name__
                dist.barrier()
                after.append(shared.tolist())
                dist.barrier()
            seen.append({"after": after, "returned": returned})
        return seen

    def judge(self, observed):
        ranks = range(len(observed))
        for number, length in enumerate(LENGTHS):
            case = f"{length} elements, {len(ranks)} ranks"
            # What a rank wrote is what its neighbour sees: a tensor that only the writer sees is not shared.
            after = [observed[(rank + 1) % len(ranks)][number]["after"][rank] for rank in ranks]
            wrote = [[index for index, value in enumerate(values) if value != -1] for values in after]
            for rank in ranks:
                returned = observed[rank][number]["returned"]
                if not wrote[rank]:
                    also = f"; it returned a {returned}" if returned != "NoneType" else ""
                    return not_yet(f"{case}: rank {rank} wrote nothing that another rank can see{also}",
                                   "it writes into the memory of `shared`, and returns nothing",
                                   "does the line write into `shared`, or make another tensor?")
                for index in wrote[rank]:
                    if after[rank][index] != index ** 2:
                        return not_yet(f"{case}: rank {rank} turned element {index} into "
                                       f"{after[rank][index]:g} instead of {index ** 2}",
                                       "the square of the index in the whole tensor; nothing where another rank writes",
                                       "how you get from a place in your part to its index in the whole tensor")
            for index in range(length):
                writers = [f"rank {rank}" for rank in ranks if index in wrote[rank]]
                if len(writers) != 1:
                    return not_yet(f"{case}: element {index} was written by {' and '.join(writers) or 'no rank'}",
                                   "every element is written by exactly one rank",
                                   "how `rank` and `world_size` decide which indices are yours"
                                   if writers else "the last elements, where `world_size` does not divide the length")
        return None


# ---------------------------------------------------------------------------------------------------------------------


class BringItHome(Exercise):
    title = "Repair the lost training"
    task = ("You are the child again, and `model` lies in memory that you share with your parent. "
            "`to_device(model)` returns a copy in the device's own memory, and `train(copy)` trains such a copy. Train "
            "on the device, and leave the trained weights, all of them, where the parent has its model.")
    hints = (
        "`train(to_device(model))` alone is the bug: the trained copy ends with the child. Keep it under a name.",
        "The shared memory belongs to the tensors of `model`. Which method of a module copies values into the tensors "
        "that it has already?",
    )
    explanation = ("`load_state_dict` copies value by value into the tensors that are there, buffers included, so the "
                   "parent sees them. With `assign=True`, or by `parameter.data = …`, it would get other tensors.")
    why = ("moving to a device makes a copy, and a copy has to be brought back, by shared memory as here, or through "
           "a queue. DistributedDataParallel, in lesson 05, spares you that: its copies never differ.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(model, to_device, train):
        raise NotImplementedError

    @staticmethod
    def answer(model, to_device, train):
        copy = to_device(model)
        train(copy)
        model.load_state_dict(copy.state_dict())

    @wrong("still has the weights from before")
    def as_in_the_article(model, to_device, train):
        model = to_device(model)
        train(model)

    @wrong("your function returned a Sequential")
    def returns_the_copy(model, to_device, train):
        copy = to_device(model)
        train(copy)
        return copy

    @wrong("not to a copy on the device")
    def trains_at_home(model, to_device, train):
        train(model)

    @wrong("`1.running_mean`")
    def forgets_the_buffers(model, to_device, train):
        import torch

        copy = to_device(model)
        train(copy)
        with torch.no_grad():
            for mine, trained in zip(model.parameters(), copy.parameters(), strict=True):
                mine.copy_(trained)

    @wrong("the child's `model` has the new weights")
    def exchanges_the_tensors(model, to_device, train):
        copy = to_device(model)
        train(copy)
        model.load_state_dict(copy.state_dict(), assign=True)

    @wrong("still has the weights from before")
    def copies_too_early(model, to_device, train):
        copy = to_device(model)
        model.load_state_dict(copy.state_dict())
        train(copy)

    @wrong("was never called")
    def forgets_to_train(model, to_device, train):
        model.load_state_dict(to_device(model).state_dict())

    @staticmethod
    def probe(bring_it_home):
        import copy

        import torch

        context = _context()
        model, on_device, trained = _model().share_memory(), [], []
        go, (here, there) = context.Event(), context.Pipe()
        parent = context.Process(target=_tell_weights, args=(model, go, there), daemon=True)
        parent.start()

        def to_device(module):
            on_device.append(copy.deepcopy(module))
            return on_device[-1]

        def train(module):
            trained.append(any(module is one for one in on_device))
            with torch.no_grad():
                for tensor in module.state_dict().values():
                    tensor.add_(1)

        try:
            returned = type(bring_it_home(model, to_device, train)).__name__
            go.set()
            return {"parent": here.recv() if here.poll(10) else {}, "child": _as_lists(model),
                    "trained": trained, "returned": returned}
        finally:
            parent.kill()
            parent.join()

    def judge(self, observed):
        seen = observed[0]
        before = _as_lists(_model())
        if not seen["trained"]:
            return not_yet("`train` was never called", "`train(…)` with the copy on the device")
        if not all(seen["trained"]):
            return not_yet("`train` was applied to the shared model, not to a copy on the device",
                           "`train(…)` with what `to_device` returned", "what you give to `train`")
        for name, old in before.items():
            wanted, parents, childs = [value + 1 for value in old], seen["parent"].get(name), seen["child"][name]
            if parents == wanted:
                continue
            if parents != old:
                return not_yet(f"`{name}` in the parent has neither the old nor the trained weights",
                               "exactly the trained weights", "what you write into `model`, and how often")
            observation = f"`{name}` in the parent still has the weights from before"
            if childs == wanted:
                observation += "; the child's `model` has the new weights, in other memory"
            elif seen["returned"] != "NoneType":
                observation += f"; your function returned a {seen['returned']}, which stays in the child"
            return not_yet(observation, "the trained weights, in the memory that child and parent share",
                           "write values into the tensors that `model` has; parameters and buffers, after training")
        return None


def _tell_weights(model, go, answers):
    """The parent of the third exercise: say which weights it sees once the child has done its work."""
    go.wait()
    answers.send(_as_lists(model))


def _as_lists(model):
    return {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}


send_weights, fill_my_slice, bring_it_home = SendWeights(), FillMySlice(), BringItHome()
