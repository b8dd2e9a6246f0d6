"""Processes: rarer mistakes, which no row of a table names, and right answers in other styles."""

from lessons.processes import exercises as ex
from tests.answers import edits, right, wrong

test_send_weights = edits(
    ex.send_weights,
    ("{name: tensor.clone() for name, tensor in model.state_dict().items()}",
     "{name: 1 * one for name, one in model.named_parameters()}", "Cowardly refusing"),
    ("queue.put(weights)\n    train_on()", "train_on()\n    queue.put(model.state_dict())",
     "as `train_on()` has left it"),
)


@wrong(ex.send_weights, "the child keeps what it learns")
def test_takes_back_what_was_learned(model, queue, done, train_on):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    queue.put(model.state_dict())
    train_on()
    model.load_state_dict(before)
    done.wait()


@right(ex.send_weights)
def test_as_bytes(model, queue, done, train_on):
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    queue.put(buffer.getvalue())
    train_on()


@right(ex.send_weights)
def test_asks_again_and_again(model, queue, done, train_on):
    import copy

    queue.put(obj=copy.deepcopy(model).state_dict())
    train_on()
    while not done.wait(0):
        pass


test_fill_my_slice = edits(
    ex.fill_my_slice,
    ("shared[rank::world_size] = squares[rank::world_size]", "shared[rank % 2::2] = squares[rank % 2::2]",
     "3 ranks, 300 elements: element 298 was written by rank 0"),
)


@right(ex.fill_my_slice)
def test_blocks_through_numpy(shared, rank, world_size):
    import numpy

    first, end = len(shared) * rank // world_size, len(shared) * (rank + 1) // world_size
    shared.numpy()[first:end] = numpy.arange(first, end) ** 2


@right(ex.fill_my_slice)
def test_in_two_steps(shared, rank, world_size):
    import torch

    mine = torch.arange(len(shared)) % world_size == world_size - 1 - rank
    shared[mine] = torch.arange(0.0, len(shared))[mine]
    torch.square(shared[world_size - 1 - rank::world_size], out=shared[world_size - 1 - rank::world_size])


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
    ((('"spawn"', '"fork"'), ("target=work", "target=print")), "with exit code 0, before `work` did"),
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

    process = multiprocessing.get_context("fork").Process(target=work)
    torch.set_num_threads(1)
    process.start()
    torch.set_num_threads(2)
    return process
