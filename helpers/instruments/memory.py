"""The bytes of tensors that are alive: what a rank holds, the most that it held at once, and what for."""

import contextlib
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Held:
    """Bytes of the memory that operators have allocated since the block began; views share their memory."""

    now: int = 0
    peak: int = 0


@contextlib.contextmanager
def held_bytes():
    """Within the block, count the memory behind every tensor that an operator returns, until it is freed.

    Works on any device and needs no allocator's help: each new storage is watched with a weak reference. What
    was there before the block is not counted; nor is what operators allocate and free inside themselves.

    Yields `Held`, which goes on counting what is freed after the block.
    """
    held, known = Held(), set()

    def freed(pointer, size):
        known.discard(pointer)
        held.now -= size

    def after(before, made):
        for storage in made:
            pointer = storage._cdata
            if pointer not in known and pointer not in before:
                known.add(pointer)
                size = storage.nbytes()
                weakref.finalize(storage, freed, pointer, size)
                held.now += size
                held.peak = max(held.peak, held.now)

    with _after_each_operator(after):
        yield held


class Memory(NamedTuple):
    """What a rank held at one moment of a step, in bytes, each byte counted once."""

    parameters: int
    """What the optimizer changes: all parameters, or this rank's shard of them."""
    gathered: int
    """Parameters that stand in the model and are not this rank's to change."""
    gradients: int
    optimizer: int
    """The optimizer's state, without its step counters."""
    activations: int
    """All else that operators have returned since the block began: what backward needs, what passes by."""


@contextlib.contextmanager
def memory_by_kind(model, optimizer):
    """Within the block, write down after each operator, and at the block's end, what the memory is held for.

    Of sharded tensors (DTensors), this rank's shard counts. What backward allocates in one operator does not.

    Yields a list, of a `Memory` per operator.
    """
    moments, live = [], {}
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def after(_before, made):
        for storage in made:
            key = storage._cdata
            if key not in live:
                live[key] = weakref.ref(storage)
                weakref.finalize(storage, live.pop, key, None)
        state = [value for values in optimizer.state.values() for value in values.values()
                 if getattr(value, "ndim", 0)]
        inside = list(model.parameters())
        kinds = own, inside, [one.grad for one in (*own, *inside)], state
        all_live = filter(None, (storage() for storage in list(live.values())))
        counted, sizes = set(), []
        for storages in (*map(_storages, kinds), all_live):
            fresh = {one._cdata: one.nbytes() for one in storages if one._cdata not in counted}
            counted |= fresh.keys()
            sizes.append(sum(fresh.values()))
        moments.append(Memory(*sizes))

    with _after_each_operator(after):
        yield moments
    after(None, ())


def _after_each_operator(after):
    """A mode that calls `after(before, made)`: keys of the storages that went in, storages that came out."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            before = {storage._cdata for storage in _storages(tree_leaves((args, kwargs)))}
            result = operator(*args, **(kwargs or {}))
            after(before, _storages(tree_leaves(result)))
            return result

    return Watch()


def _storages(things):
    """The memory behind all tensors among these; of a sharded one, this rank's."""
    tensors = [one for one in things if isinstance(one, torch.Tensor)]
    # Not `to_local()`: that makes a view, each time, and prepares a backward.
    return [getattr(one, "_local_tensor", one).untyped_storage() for one in tensors]
