"""Processes: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
send_weights    waiting by guess (the parent reads when the child waits for certain, or has returned: no clock); numbers
                that need few digits; a right one that polls, has a limit, closes the queue, or saves to bytes
fill_my_slice   others' elements written back as found (torch's writes are counted; numpy's are not); small numbers,
                which uint8 and bfloat16 hold; blocks and steps of any kind are as right
bring_it_home   a copy of the copy trained; other memory under the same names; any way of copying, tensor by tensor too
start_safely    a thread in the place of a process; the parent's threads taken away; no clock: the work itself tells
                where it would hang, and returns; any start method, or one thread in a forked child
"""

from lessons.processes import exercises as ex
from tests.answers import edits, right

PUT, WAIT = "queue.put(model.state_dict())", "    done.wait()"

test_send_weights = edits(
    ex.send_weights,
    (WAIT, "", "when your function had returned, and got `FileNotFoundError`"),
    (WAIT, "    import time\n    time.sleep(30)", "when your function had returned, and got `FileNotFoundError`"),
    (WAIT, "    while not queue.empty():\n        pass", "`done` says, not the queue"),
    (WAIT, "    done.wait(0.5)", "after waiting 0.5 s, and got `FileNotFoundError`"),
    (WAIT, "    for _ in range(10):\n        done.is_set()", "after waiting 10 s, and got `FileNotFoundError`"),
    (WAIT, "    done.set()\n    done.wait()", "had returned, having set `done` itself, and got"),
    (WAIT, "    for tensor in model.state_dict().values():\n        tensor.zero_()\n    done.wait()",
     "their memory is shared until they are read"),
    (PUT, "done.wait()\n    queue.put(model.state_dict())", "while your function waited: nothing arrived"),
    (PUT, "pass", "what a child returns, nobody gets"),
    (PUT, "queue.put(dict(model.named_parameters()))", "\"1.running_mean\""),
    (PUT, "queue.put(list(model.parameters()))", "(`list`) could not be loaded"),
    (PUT, "import pickle\n    queue.put(pickle.dumps(model.state_dict()))", "(`bytes`) could not be loaded"),
    (PUT, "queue.put(model)", "(`Sequential`) could not be loaded"),
    (PUT, "queue.put({name: tensor.numpy() for name, tensor in model.state_dict().items()})", "ndarray"),
    (PUT, "queue.put({name: tensor.half() for name, tensor in model.state_dict().items()})", "as torch.float16"),
    (PUT, "queue.put({name: 1 * tensor for name, tensor in model.named_parameters()})", "Cowardly refusing"),
    (PUT, "queue.put({**model.state_dict(), **{name: one.grad for name, one in model.named_parameters()}})",
     "these are its gradients"),
    (WAIT, "    while not queue.empty():\n        pass", "had returned, and got `FileNotFoundError`"),
    (WAIT, "    queue.join()", "'Queue' object has no attribute 'join'"),
    (((PUT, f"torch.multiprocessing.set_sharing_strategy('file_system')\n    {PUT}"), (WAIT, ""),
      ("def answer(model, queue, done):\n", "def answer(model, queue, done):\n    import torch.multiprocessing\n")),
     "when your function had returned, and got `FileNotFoundError`"),
    ("model.state_dict()", "{name: one.half().to(one.dtype) for name, one in model.state_dict().items()}",
     "what rounds them before they are put"),
    ("queue.put(model.state_dict())", "[queue.put({name: one}) for name, one in model.state_dict().items()]",
     "first, of 7 things,"),
)


@right(ex.send_weights)
def test_as_bytes(model, queue, done):
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    queue.put(buffer.getvalue())


@right(ex.send_weights)
def test_asks_again_and_again(model, queue, done):
    queue.put(obj=model.state_dict())
    while not done.wait(0):
        pass



@right(ex.send_weights)
def test_closes_the_queue_and_looks_now_and_then(model, queue, done):
    import time

    queue.put({name: tensor.double() for name, tensor in model.state_dict().items()})
    queue.close()
    queue.join_thread()
    while not done.is_set():
        time.sleep(1)


@right(ex.send_weights)
def test_has_a_limit(model, queue, done):
    queue.put_nowait({name: tensor.clone() for name, tensor in model.state_dict().items()})
    if not done.wait(timeout=600):
        raise TimeoutError


MINE = "shared[rank::world_size] = squares[rank::world_size]"
BACK = "one of which wrote back what it had found there"

test_fill_my_slice = edits(
    ex.fill_my_slice,
    (MINE, "shared[rank::world_size] **= 2", "you square what was there"),
    (MINE, "shared[:] = squares", "2 ranks, 300 elements: element 299 was written by rank 0 and rank 1"),
    (MINE, "shared[rank % 2::2] = squares[rank % 2::2]", "3 ranks, 300 elements: element 298 was written by rank 0"),
    (MINE, "each = len(shared) // world_size\n    here = slice(rank * each, (rank + 1) * each)\n"
           "    shared[here] = squares[here]", "2 ranks, 305 elements: element 304 was written by no rank"),
    (MINE, "each, more = divmod(len(shared), world_size)\n    here = slice(rank * each, (rank + 1) * each)\n"
           "    shared[here] = squares[here]\n    if more and rank == 0:\n        shared[-1] = squares[-1]",
     "3 ranks, 305 elements: element 303 was written by no rank"),
    (MINE, "return squares[rank::world_size]", "returned a Tensor"),
    (MINE, "each = -(-len(shared) // world_size)\n    here = slice(rank * each, (rank + 1) * each)\n"
           "    shared[here] = squares[here]", "3 ranks, 4 elements: rank 2 wrote nothing"),
    ("torch.arange(len(shared)) ** 2", "torch.arange(1, 1 + len(shared)) ** 2", "indices are counted from 0"),
    (MINE, "shared = shared.clone()\n    " + MINE, "nothing that another rank can see"),
    (MINE, "shared.data = shared.data.clone()\n    " + MINE, "nothing that another rank can see"),
    (MINE, "mine = shared[rank::world_size]\n    mine[:] = squares[:len(mine)]",
     "rank 1 turned element 299 into 22201 instead of 89401"),
    (MINE, "squares[torch.arange(len(shared)) % world_size != rank] = 0\n    shared[:] = squares", "into 0 instead of"),
    (MINE, "for index in range(len(shared)):\n"
           "        shared[index] = squares[index] if index % world_size == rank else shared[index]", BACK),
    (MINE, "shared[:] = torch.where(torch.arange(len(shared)) % world_size == rank, squares, shared)", BACK),
    (MINE, "shared += torch.where(torch.arange(len(shared)) % world_size == rank, squares - shared, 0)", BACK),
    (MINE, "shared[rank::world_size] = squares[rank::world_size].to(torch.bfloat16)", "the dtype in which you compute"),
    ("torch.arange(len(shared))", "torch.arange(len(shared), dtype=torch.uint8)", "into 57 instead of 89401"),
    ("** 2", "** 2 % 256", "into 57 instead of 89401"),
    (MINE, "shared[rank::world_size] += squares[rank::world_size]", "you add to what was there"),
    (MINE, "mine = torch.arange(rank, len(shared), world_size)\n    shared[mine].copy_(mine**2)", "is a copy, unless"),
    (MINE, "shared[rank:] = squares[rank:]", "of 300 they wrote 300 and 299"),
    (MINE, "shared[rank::world_size] = 2 * torch.arange(len(shared))[rank::world_size]",
     "the square of no whole number"),
)


@right(ex.fill_my_slice)
def test_blocks_through_numpy(shared, rank, world_size):
    import numpy

    first, end = len(shared) * rank // world_size, len(shared) * (rank + 1) // world_size
    shared.numpy()[first:end] = numpy.arange(first, end) ** 2


@right(ex.fill_my_slice)
def test_one_by_one(shared, rank, world_size):
    for index in range(rank, len(shared), world_size):
        shared[index] = index ** 2


@right(ex.fill_my_slice)
def test_in_two_steps(shared, rank, world_size):
    import torch

    mine = torch.arange(len(shared)) % world_size == world_size - 1 - rank
    shared[mine] = torch.arange(0.0, len(shared))[mine]
    torch.square(shared[world_size - 1 - rank::world_size], out=shared[world_size - 1 - rank::world_size])


COPY, TRAIN, LOAD = "copy = to_device(model)", "train(copy)", "model.load_state_dict(copy.state_dict())"

test_bring_it_home = edits(
    ex.bring_it_home,
    (LOAD, "copy.load_state_dict(model.state_dict())", "so has the trained copy now"),
    (LOAD, "model.load_state_dict(dict(copy.named_parameters()), strict=False)", "but this is a buffer"),
    (LOAD, "model.load_state_dict({name: new - 1 for name, new in copy.state_dict().items()})", "it, after training"),
    (LOAD, "model = copy", "still has the weights from before"),
    (LOAD, "return copy", "your function returned a Sequential"),
    (TRAIN, "train(model)", "applied to the shared model"),
    (COPY, "import copy\n    copy = copy.deepcopy(to_device(model))", "applied to another copy"),
    (LOAD, "for mine, new in zip(model.parameters(), copy.parameters()):\n        mine.data.copy_(new)",
     "`1.running_mean` in the parent still has the weights from before; all parameters have the trained ones"),
    (LOAD, "model.load_state_dict(copy.state_dict(), assign=True)", "has the trained weights, in other memory"),
    (LOAD, "for mine, new in zip(model.parameters(), copy.parameters()):\n        mine.data = new.data",
     "has the trained weights, in other memory"),
    (((TRAIN, "model.load_state_dict(copy.state_dict())"), (LOAD + "\n    " + LOAD, LOAD + "\n    train(copy)")),
     "were written into its memory before `train` was called"),
    (TRAIN, "train(to_device(model))", "of 2 copies that `to_device` made, one was trained"),
    ("    " + TRAIN + "\n", "", "was never called"),
    (TRAIN, "train(copy)\n    train(copy)", "`train` was called 2 times"),
    (LOAD, "model.load_state_dict({name: tensor.half() for name, tensor in copy.state_dict().items()})",
     "neither the old nor the trained weights"),
)


@right(ex.bring_it_home)
def test_tensor_by_tensor(model, to_device, train):
    import copy

    trained = to_device(copy.deepcopy(model))
    train(trained)
    for name, tensor in model.state_dict().items():
        tensor[...] = trained.state_dict()[name]
    return trained


SPAWN, START = 'mp.get_context("spawn").Process(target=work)', "process.start()"
FORK = SPAWN.replace("spawn", "fork")

test_start_safely = edits(
    ex.start_safely,
    (((SPAWN, "mp.spawn(work, join=False).processes[0]"), (START, "")), "`work` was given 0, and takes nothing"),
    (((SPAWN, FORK), (START, "__import__('os').environ['OMP_NUM_THREADS'] = '1'\n    " + START)),
     "OMP_NUM_THREADS is 1"),
    ('"spawn"', '"fork"', "a copy of a parent that has computed, and wants 2 threads"),
    (((SPAWN, FORK), (START, f"{START}\n    import torch\n    torch.set_num_threads(1)")), "wants 2 threads"),
    (((SPAWN, FORK), (START, f"import torch\n    torch.set_num_threads(1)\n    {START}")),
     "the parent now computes with 1 thread(s)"),
    (((SPAWN, FORK), ("target=work", "target=work()")), "without parentheses"),
    (((SPAWN, "threading.Thread(target=work)"), ("import torch.multiprocessing as mp", "import threading")),
     "ran in the parent's own process"),
    (((SPAWN, FORK), ("target=work", "target=print")), "`work` had not come to its end"),
    ("return process", "process.join()", "returned None"),
    ("return process", "return mp.spawn(print, join=False)", "your function returned a ProcessContext"),
    (START, "pass", "returned a process that was never started"),
)


@right(ex.start_safely)
def test_one_thread_in_a_forked_child(work):
    import multiprocessing

    import torch

    def child():
        torch.set_num_threads(1)
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    return process


@right(ex.start_safely)
def test_one_thread_while_it_forks(work):
    import multiprocessing

    import torch

    torch.set_num_threads(1)
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    torch.set_num_threads(2)
    return process


@right(ex.start_safely)
def test_a_fork_server(work):
    import multiprocessing

    process = multiprocessing.get_context("forkserver").Process(target=work, daemon=True)
    process.start()
    return process
