"""What a rank asks of its process groups: each collective and its bytes, messages, what nobody waited for."""

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest import mock

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from helpers.instruments.calls import counted_calls


class Collective(NamedTuple):
    """One collective, as torch's flight recorder keeps it."""

    name: str
    """As `torch.distributed` calls it: "all_reduce", "all_gather", "broadcast" …"""
    bytes: int
    """Of the tensors that this rank handed in; a broadcast fills them in all ranks but one. nan where the
    recorder does not tell: it keeps the shape of a sparse tensor, and not how many numbers are in it."""
    group: str = "default_pg"
    """Its group, as torch describes it: of a mesh, "mesh_" and the name of the axis; else its name."""


@dataclass
class Traffic:
    """What one rank asked for within a block."""

    collectives: list = field(default_factory=list)
    """Of `Collective`, in order, DDP's own among them. Known when the block ends."""
    sent: list = field(default_factory=list)
    """Bytes of each message given to `send`, `isend` or `batch_isend_irecv`."""
    received: int = 0
    """How many messages were asked for by `recv`, `irecv` or `batch_isend_irecv`."""
    failed: int = 0
    """How many operations ended with an error, when they were waited for."""
    unwaited: int = 0
    """How many asynchronous operations nobody waited for, of those that Python handed to a group: DDP's own
    and functional collectives are not among them."""

    def count(self, *names):
        """How many collectives there were of these names; without names, of all but barriers."""
        if not names:
            return sum(collective.name != "barrier" for collective in self.collectives)
        return sum(collective.name in names for collective in self.collectives)

    def bytes(self, *names):
        """The bytes that this rank put into collectives of these names; of all, without names."""
        return sum(collective.bytes for collective in self.collectives if not names or collective.name in names)


_ITEM = {"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
         "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16}
#: The methods of a group that return something to wait for, as their signatures say: each torch has others.
_METHODS = [name for name, method in vars(dist.ProcessGroup).items()
            if re.search(r"-> .*\bWork$", method.__doc__ or "", re.MULTILINE)]
#: Names that the recorder gives to one and the same thing in different versions of torch.
_SAME = {"_all_gather_base": "all_gather_into_tensor", "_allgather_base": "all_gather_into_tensor",
         "_reduce_scatter_base": "reduce_scatter_tensor", "all_to_all_base": "all_to_all_single"}


def _recorder():
    """What torch's flight recorder tells in this rank, of the groups and of the collectives that it keeps."""
    return json.loads(c10d._dump_fr_trace_json())


def recorder_entries():
    """The collectives that torch's flight recorder keeps, as dicts, the oldest first; NCCL has one of its own."""
    return _recorder().get("entries", [])


def _collective(entry):
    """An entry of the recorder, as a `Collective`."""
    name = entry["profiling_name"].rpartition(":")[2]
    if name.startswith("sparse"):
        size = math.nan
    else:
        tensors = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
        size = sum(math.prod(shape) * _ITEM.get(dtype, math.nan) for shape, dtype in tensors)
    return Collective(_SAME.get(name, name), size, _description(*entry["process_group"]))


def _description(name, description):
    return name if description == "undefined" else description


class _Reader:
    """Reads what the flight recorder adds from now on, before it is lost to newer entries."""

    def __init__(self):
        self.collectives = []
        self.missed = ""  # in words, what had been lost the first time
        self._next = 1 + _last_number(recorder_entries())

    def read_on(self):
        fresh = [entry for entry in recorder_entries() if entry["record_id"] >= self._next]
        if not fresh:
            return
        missing = fresh[0]["record_id"] - self._next
        if missing and not self.missed:
            self.missed = (f"{missing} collectives after number {len(self.collectives)} were not counted: torch's "
                           "flight recorder had lost them. Set TORCH_FR_BUFFER_SIZE to more than "
                           f"{missing + len(fresh)} before the first group is formed")
        self._next = fresh[-1]["record_id"] + 1
        self.collectives += map(_collective, fresh)


@contextlib.contextmanager
def counted_traffic():
    """Count what this rank asks of its process groups within the block.

    Collectives come from the flight recorder, which sees them below all of torch's functions and DDP. It keeps
    the last 2,000, or `TORCH_FR_BUFFER_SIZE`, as it was when the first group was formed: it is read in time,
    as often as Python asks a group for something. Messages are seen where Python hands them to the group.

    Yields `Traffic`, complete when the block ends.
    Raises RuntimeError, when the block ends: collectives were asked for that could not be counted, because the
    recorder is off, or has lost them between two readings, or because they were NCCL's.
    """
    reader = _Reader()
    traffic = Traffic(reader.collectives)
    works, waited = [], set()
    nccl_before = _last_number(_of_nccl())
    requests_between_readings = max(1, int(os.environ.get("TORCH_FR_BUFFER_SIZE", 2000)) // 2)

    def asking(name):
        method = getattr(dist.ProcessGroup, name)

        def asked(group, *args, **kwargs):
            if name == "send":
                traffic.sent.append(sum(tensor.nbytes for tensor in args[0]))
            elif name in ("recv", "recv_anysource"):
                traffic.received += 1
            work = method(group, *args, **kwargs)
            works.append(work)  # and so kept alive: no later work gets its `id`
            if len(works) % requests_between_readings == 0:
                reader.read_on()
            return work

        return asked

    def waiting(method):
        def asked(work, *args, **kwargs):
            try:
                result = method(work, *args, **kwargs)
            except RuntimeError:
                traffic.failed += 1
                raise
            if result:  # `is_completed` says no until it is
                waited.add(id(work))
            return result

        return asked

    with contextlib.ExitStack() as patches:
        for name in _METHODS:
            patches.enter_context(mock.patch.object(dist.ProcessGroup, name, asking(name)))
        # Whoever has asked for the future, or has heard that the work is done, need not call `wait` as well.
        for name in ("wait", "get_future", "is_completed"):
            patches.enter_context(mock.patch.object(dist.Work, name, waiting(getattr(dist.Work, name))))
        monitored = patches.enter_context(counted_calls(dist.ProcessGroup, "monitored_barrier"))
        yield traffic

    reader.read_on()
    for (group, *_), _ in monitored["monitored_barrier"]:  # which the recorder does not keep
        description = _description(group.group_name, group.group_desc)
        traffic.collectives.append(Collective("barrier", 0, description))
    # (Another type of work, such as that of a meta tensor, is none that can be waited for.)
    traffic.unwaited = sum(type(work) is dist.Work and id(work) not in waited for work in works)
    if _last_number(_of_nccl()) != nccl_before:
        raise RuntimeError("NCCL's collectives cannot be counted: only those on the CPU are")
    if dist.is_initialized() and not _recorder()["pg_config"]:
        raise RuntimeError("collectives cannot be counted: torch's flight recorder is off, or the group is NCCL's")
    if reader.missed:
        raise RuntimeError(reader.missed)


def _of_nccl():
    """What NCCL's own flight recorder keeps; nothing where torch is built without NCCL."""
    if not hasattr(c10d, "_dump_nccl_trace_json"):
        return []
    return json.loads(c10d._dump_nccl_trace_json()).get("entries", [])


def _last_number(entries):
    """The number of the latest of these entries of a recorder; -1 if there are none."""
    return max((entry["record_id"] for entry in entries), default=-1)


@contextlib.contextmanager
def late_results():
    """Within the block, `all_reduce` changes a tensor when it is waited for, or its future asked for.

    That moment is torch's to choose, between the call and the wait. So who writes into the tensor before
    loses what was written: here each time, and otherwise by the clock.
    """
    allreduce, get_future = dist.ProcessGroup.allreduce, dist.Work.get_future
    late = {}  # by its id: a work, the tensors that were handed in, the copies that hold the results

    def asked(group, tensors, *args):
        copies = [tensor.data.clone() for tensor in tensors]
        work = allreduce(group, copies, *args)
        late[id(work)] = work, tensors, copies
        return work

    def waiting(method):
        def waited(work, *args, **kwargs):
            result = method(work, *args, **kwargs)
            if result and id(work) in late:
                _, tensors, copies = late[id(work)]
                while copies:  # whoever waits a second time finds none left, and changes nothing
                    tensors[len(copies) - 1].data.copy_(copies.pop())  # `.data`: the version stays
            return result

        return waited

    def in_future(work):
        if id(work) not in late:
            return get_future(work)
        work.wait()  # what a future calls would see the result at a time of its own
        _, tensors, _ = late[id(work)]
        return get_future(work).then(lambda _: tensors)

    with (mock.patch.object(dist.ProcessGroup, "allreduce", asked),
          mock.patch.object(dist.Work, "wait", waiting(dist.Work.wait)),
          mock.patch.object(dist.Work, "is_completed", waiting(dist.Work.is_completed)),
          mock.patch.object(dist.Work, "get_future", in_future)):
        yield
