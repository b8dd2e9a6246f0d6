"""The bytes of tensors that are alive: what a rank holds, the most that it held at once, and what for."""

import contextlib
import weakref
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held:
    """Bytes of the memory that operators have allocated since the block began; views share their memory."""

    def __init__(self):
        self._living = weakref.WeakValueDictionary()  # storages, by their addresses
        self._peak = 0

    @property
    def now(self):
        return sum(storage.nbytes() for storage in self._living.values())

    @property
    def peak(self):
        """The most bytes after any operator so far, and at this moment: a storage may be resized in between."""
        return max(self._peak, self.now)

    def _add(self, storage):
        self._living[storage._cdata] = storage

    def _note_peak(self):
        self._peak = self.peak


@contextlib.contextmanager
def held_bytes():
    """Within the block, count the memory behind every tensor that an operator of this thread returns.

    It counts until it is freed, also after the block. Works on any device and needs no allocator's help: each
    new storage is watched with a weak reference, and asked for its size, which may change. What was there
    before the block is not counted; nor is what operators allocate and free inside themselves, nor memory of
    another library (`torch.from_numpy`, oneDNN), nor sparse tensors other than COO.

    Yields `Held`.
    """
    held = Held()

    def after(before, made):
        for storage in made:
            if storage._cdata not in before:
                held._add(storage)
        held._note_peak()

    with _after_each_operator(after):
        yield held


class Memory(NamedTuple):
    """What a rank held at one moment of a step, in bytes, each byte counted once."""

    parameters: int
    """What the optimizer changes, and what is frozen: all parameters, or this rank's shard of them."""
    gathered: int
    """Other parameters that stand in the model: whole ones, for a moment, where this rank's are shards."""
    gradients: int
    optimizer: int
    """The optimizer's state, without its step counters."""
    activations: int
    """All else that operators have returned since the block began: what backward needs, what passes by."""


@contextlib.contextmanager
def memory_by_kind(model, optimizer, held=None):
    """Within the block, write down after each operator, and at the block's end, what the memory is held for.

    Of sharded tensors (DTensors), this rank's shard counts. What backward allocates in one operator does not.
    held: what `held_bytes` has counted, which then counts from the start.

    Yields a list, of a `Memory` per operator.
    """
    moments = []
    living = weakref.WeakValueDictionary(held._living if held else {})
    own = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for group in optimizer.param_groups:
        own += group["params"]

    def after(_before, made):
        living.update((storage._cdata, storage) for storage in made)
        inside = list(model.parameters())
        gradients = [parameter.grad for parameter in (*own, *inside)]
        counted = set()
        sizes = []
        # A storage counts for the first kind that it is found in.
        for tensors in (own, inside, gradients, _state_tensors(optimizer)):
            sizes.append(_fresh_bytes(_storages(tensors), counted))
        sizes.append(_fresh_bytes(list(living.values()), counted))
        moments.append(Memory(*sizes))

    with _after_each_operator(after):
        yield moments
    after(None, ())


def _state_tensors(optimizer):
    """What an optimizer keeps of its parameters, without its step counters, which have no dimension."""
    tensors = []
    for values in optimizer.state.values():
        for value in values.values():
            several = value if isinstance(value, list) else [value]  # LBFGS keeps lists
            tensors += [tensor for tensor in several if getattr(tensor, "ndim", 0)]
    return tensors


def _fresh_bytes(storages, counted):
    """The bytes of those storages whose addresses are not in `counted`, where they are then added."""
    total = 0
    for storage in storages:
        if storage._cdata not in counted:
            counted.add(storage._cdata)
            total += storage.nbytes()
    return total


def _after_each_operator(after):
    """A mode that calls `after(before, made)`: keys of the storages that went in, storages that came out."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            before = {storage._cdata for storage in _storages(tree_leaves((args, kwargs)))}
            # By this operator `torch.tensor` shows what it has made. (`from_numpy` does so too, but its memory
            # is numpy's, and cannot be resized.)
            if operator is torch.ops.aten.lift_fresh.default and args[0].untyped_storage().resizable():
                before = set()
            result = operator(*args, **(kwargs or {}))
            after(before, _storages(tree_leaves(result)))
            return result

    return Watch()


def _storages(things):
    """The memory behind all tensors among these; of a sharded one, this rank's; a meta tensor has none."""
    storages = []
    for thing in things:
        if not isinstance(thing, torch.Tensor):
            continue
        if hasattr(thing, "__tensor_flatten__"):  # such as a DTensor, not by `to_local()`, which makes a view
            names, _ = thing.__tensor_flatten__()
            storages += _storages([getattr(thing, name) for name in names])
        elif thing.layout is torch.sparse_coo:
            storages += _storages([thing._indices(), thing._values()])
        elif thing.layout is torch.strided and not thing.is_meta and not isinstance(thing, FakeTensor):
            storages.append(thing.untyped_storage())
    return storages
