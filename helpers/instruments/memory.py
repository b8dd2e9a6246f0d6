"""The bytes of tensors that are alive: what a rank holds, and the most that it ever held at once."""

import contextlib
import weakref
from dataclasses import dataclass


@dataclass
class Held:
    """Bytes of the memory that operators have allocated since the block began; views share their memory."""

    now: int = 0
    peak: int = 0


@contextlib.contextmanager
def held_bytes():
    """Within the block, count the memory behind every tensor that an operator returns, until it is freed.

    Works on any device and needs no allocator's help: each new storage is watched with a weak reference. What was there
    before the block is not counted; nor is what operators allocate and free inside themselves.

    Yields:
        `Held`, which goes on counting what is freed after the block.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    held, known = Held(), set()

    def freed(pointer, size):
        known.discard(pointer)
        held.now -= size

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            before = {storage._cdata for storage in _storages((args, kwargs))}
            result = operator(*args, **(kwargs or {}))
            for storage in _storages(result):
                pointer = storage._cdata
                if pointer not in known and pointer not in before:
                    known.add(pointer)
                    size = storage.nbytes()
                    weakref.finalize(storage, freed, pointer, size)
                    held.now += size
                    held.peak = max(held.peak, held.now)
            return result

    def _storages(tree):
        leaves = torch.utils._pytree.tree_leaves(tree)
        return [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]

    with Watch():
        yield held
