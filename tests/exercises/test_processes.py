"""Processes: rarer mistakes, which no row of a table names, and right answers in other styles."""

from lessons.processes import exercises as ex
from lessons.processes.exercises import COPY, FORK, LOAD, MINE, PUT, SPAWN, WAIT
from tests.answers import edits, right

FILES = "__import__('torch').multiprocessing.set_sharing_strategy('file_system')"

test_send_weights = edits(
    ex.send_weights,
    (WAIT, "    for _ in range(10):\n        done.is_set()", "having waited 10 s for `done`"),
    (((PUT, f"{FILES}\n    {PUT}"), (WAIT, "")), "could not be fetched: `FileNotFoundError`"),
    (PUT, "queue.put({name: 1 * one for name, one in model.named_parameters()})", "Cowardly refusing"),
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
def test_has_a_limit(model, queue, done):
    queue.put_nowait({name: tensor.clone() for name, tensor in model.state_dict().items()})
    if not done.wait(timeout=600):
        raise TimeoutError


OTHERS = "torch.arange(len(shared)) % world_size != rank"

test_fill_my_slice = edits(
    ex.fill_my_slice,
    (MINE, "shared[rank % 2::2] = squares[rank % 2::2]", "3 ranks, 300 elements: element 298 was written by rank 0"),
    (MINE, f"squares[{OTHERS}] = 0\n    shared[:] = squares", "into 0"),
    (MINE, "for index in range(len(shared)):\n"
           "        shared[index] = squares[index] if index % world_size == rank else shared[index]",
     "written by rank 0 and rank 1"),
    ("torch.arange(len(shared))", "torch.arange(len(shared), dtype=torch.uint8)", "which dtype do you compute?"),
)


@right(ex.fill_my_slice)
def test_blocks_through_numpy(shared, rank, world_size):
    import numpy

    first, end = len(shared) * rank // world_size, len(shared) * (rank + 1) // world_size
    shared.numpy()[first:end] = numpy.arange(first, end) ** 2


@right(ex.fill_my_slice)
def test_as_chunk_cuts_it(shared, rank, world_size):
    import torch

    squares = torch.arange(len(shared)) ** 2
    shared.chunk(world_size)[rank].copy_(squares.chunk(world_size)[rank])


@right(ex.fill_my_slice)
def test_in_two_steps(shared, rank, world_size):
    import torch

    mine = torch.arange(len(shared)) % world_size == world_size - 1 - rank
    shared[mine] = torch.arange(0.0, len(shared))[mine]
    torch.square(shared[world_size - 1 - rank::world_size], out=shared[world_size - 1 - rank::world_size])


test_bring_it_home = edits(
    ex.bring_it_home,
    (COPY, f"{COPY}\n    copy.load_state_dict(model.state_dict(), assign=True)", "applied to the shared model"),
    ("train(copy)", "train(copy)\n    train(copy)", "`train` was called 2 times"),
    (LOAD, "model.load_state_dict({name: one.half() for name, one in copy.state_dict().items()})", "neither the old"),
)


@right(ex.bring_it_home)
def test_tensor_by_tensor(model, to_device, train):
    import copy

    trained = to_device(copy.deepcopy(model))
    train(trained)
    for name, tensor in model.state_dict().items():
        tensor[...] = trained.state_dict()[name]
    return trained


test_start_safely = edits(
    ex.start_safely,
    (((SPAWN, FORK), ("target=work", "target=print")), "with exit code 0, before `work` did"),
    ("return process", "return mp.spawn(print, join=False)", "your function returned a ProcessContext"),
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
