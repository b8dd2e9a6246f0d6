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
        self._living, self._peak = weakref.WeakValueDictionary(), 0

    @property
    def now(self):
        return sum(storage.nbytes() for storage in self._living.values())

    def look(self):
        """Return the most bytes so far, those of this moment among them."""
        self._peak = max(self._peak, self.now)
        return self._peak

    peak = property(look)


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
                held._living[storage._cdata] = storage
        held.look()

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
def memory_by_kind(model, optimizer):
    """Within the block, write down after each operator, and at the block's end, what the memory is held for.

    Of sharded tensors (DTensors), this rank's shard counts. What backward allocates in one operator does not.

    Yields a list, of a `Memory` per operator.
    """
    moments, living = [], weakref.WeakValueDictionary()
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own += [parameter for parameter in model.parameters() if not parameter.requires_grad]

    def after(_before, made):
        living.update((storage._cdata, storage) for storage in made)
        state = [one for values in optimizer.state.values() for value in values.values()
                 for one in (value if isinstance(value, list) else [value])  # LBFGS keeps lists
                 if getattr(one, "ndim", 0)]
        inside = list(model.parameters())
        kinds = own, inside, [one.grad for one in (*own, *inside)], state
        counted, sizes = set(), []
        for storages in (*map(_storages, kinds), list(living.values())):
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
            if operator is torch.ops.aten.lift_fresh.default and args[0].untyped_storage().resizable():
                before = set()  # by this operator `torch.tensor` shows what it has made; `from_numpy` shares it
            result = operator(*args, **(kwargs or {}))
            after(before, _storages(tree_leaves(result)))
            return result

    return Watch()


def _storages(things):
    """The memory behind all tensors among these; of a sharded one, this rank's; a meta tensor has none."""
    storages = []
    for one in things:
        if not isinstance(one, torch.Tensor):
            continue
        if hasattr(one, "__tensor_flatten__"):  # such as a DTensor, not by `to_local()`, which makes a view
            storages += _storages([getattr(one, name) for name in one.__tensor_flatten__()[0]])
        elif one.layout is torch.sparse_coo:
            storages += _storages([one._indices(), one._values()])
        elif one.layout is torch.strided and not one.is_meta and not isinstance(one, FakeTensor):
            storages.append(one.untyped_storage())
    return storages
