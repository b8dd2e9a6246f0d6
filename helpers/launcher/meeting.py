"""How the ranks of a launch meet: through files, so no port is opened. Beside each trap is its finding."""

import collections
import gc
import os
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from helpers.launcher.files import until

_stores = []  # by which this rank has met others: a group keeps only the C++ half of its store alive


def meet_by_file(path):
    """Let `init_process_group()` meet the others through files at `path`, not at MASTER_ADDR:MASTER_PORT.

    Finding: the TCPStore behind `env://` listens on every interface, and looks up its peer's name in reverse
    DNS, which cost 5 s in 7 of 100 launches (pytorch/pytorch#159007). A FileStore opens no port: 0 of 200.
    Each group gets one of its own: a store that was used before hands out the addresses of the group before.
    """
    import torch.distributed as dist
    from torch.cuda import device_count

    def address():
        return os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")

    handlers = sys.modules[dist.rendezvous.__module__]._rendezvous_handlers
    over_network = handlers["env"]
    address_from_launch = address()
    meetings = collections.Counter()  # {world size: how often}: two of four ranks may meet before all four do

    def by_file(url, timeout=dist.constants.default_pg_timeout, **options):
        if address() != address_from_launch:  # the learner's own: meet there, as under torchrun
            yield from over_network(url, timeout=timeout, **options)
            return
        # init_process_group(rank=…, world_size=…) puts its arguments into the URL.
        arguments = {name: values[0] for name, values in parse_qs(urlparse(url).query).items()}
        rank = int(arguments.get("rank") or os.environ["RANK"])
        world_size = int(arguments.get("world_size") or os.environ["WORLD_SIZE"])
        meetings[world_size] += 1
        where = f"{path}-{world_size}-{meetings[world_size]}"
        # With GPUs, a store in C++: NCCL's watchdog asks it from a thread, even while Python ends.
        store = dist.FileStore(where, world_size) if device_count() else quick_store(where, world_size)
        store.set_timeout(timeout)
        _stores.append(store)
        # `init_process_group` takes one item and drops this generator when it returns. Python then closes the
        # generator, and that runs the `finally`: it comes after the group is formed.
        try:
            yield store, rank, world_size
        finally:
            _let_all_connect(where, rank, world_size)

    handlers["env"] = by_file


def quick_store(path, world_size):
    """A FileStore that looks every 0.2 ms, at first, for what it waits for.

    Finding: torch's own sleeps for 10 ms between two looks (torch/csrc/distributed/c10d/FileStore.cpp), and a
    group is formed in two rounds of looks: a launch takes 53 ms with it, and 37 with this one.
    """
    from torch.distributed import DistStoreError, FileStore, Store

    file = FileStore(path, world_size)

    class QuickFileStore(Store):
        def wait(self, keys, timeout=None):
            until(lambda: file.check(keys), 0.05, pause=0.0002)
            try:
                file.wait(keys, timeout or self.timeout)
            except RuntimeError as error:
                raise DistStoreError(str(error)) from None  # as a TCPStore says it

        def get(self, key):
            self.wait([key])
            return file.get(key)

    def passed_on(name):
        return lambda self, *args: getattr(file, name)(*args)

    # Each in a function written in Python: C++, which calls the store, takes none of its own for an override.
    for name in ("set", "add", "check", "compare_set", "clone"):
        setattr(QuickFileStore, name, passed_on(name))
    # C++ has other names than Python for these two.
    QuickFileStore.deleteKey = passed_on("delete_key")
    QuickFileStore.getNumKeys = passed_on("num_keys")
    return QuickFileStore()


def _let_all_connect(where, rank, world_size, seconds=2.0):
    """Wait, but not for long, until all ranks have formed the group.

    Finding: `init_process_group` returns as soon as this rank's own connections stand. A rank that ends right
    after it closes them, and a slower one fails with "Gloo connectFullMesh failed" (18 of 300 launches).
    """
    Path(f"{where}-{rank}").touch()
    connected = [f"{where}-{other}" for other in range(world_size)]
    until(lambda: all(map(os.path.exists, connected)), seconds, pause=0.0005)


def stay_for_late_ranks(all_done, seconds=1.0):
    """Where a group was formed, stay until all ranks are done, but not for long: who ends closes connections.

    Finding: without this, ranks that count what their connections have sent find one gone, 1 time in 3. Under
    torchrun a rank stays for the 0.2 s that Python needs to end.
    """
    if _stores:
        until(all_done, seconds)


def destroy_groups_safely():
    """Have `destroy_process_group` neither hang later, nor take the time that a rank that ends does not need.

    Finding: the reducer of a DDP object that outlives its group holds it from C++. If that is the last
    reference, then gloo's threads are joined with the GIL held, and may want the GIL: 8 of 20 runs hung at
    the end of a function (pytorch/pytorch#56297). Python's own references give the GIL up. So each DDP object
    is to let go of its reducer first, and of the group last: its attributes go in their order.

    To join the threads takes 20 ms. So the group that was destroyed last is kept until the next one is.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    c10d = dist.distributed_c10d
    torchs_destroy = c10d.destroy_process_group
    destroyed_last = []

    def has_met_by_file(group):
        """Whether the store of this group is one of ours. (A learner's own file goes with its store.)"""
        _, store = c10d._world.pg_map.get(group, (None, None))
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return store in _stores

    def destroy_process_group(group=None):
        for thing in gc.get_objects():
            if issubclass(type(thing), DistributedDataParallel) and "process_group" in vars(thing):
                # Taken out of the dict and put back, the group is the last attribute, and goes last.
                its_group = vars(thing).pop("process_group")
                vars(thing)["process_group"] = its_group
        groups = list(c10d._world.pg_map) if group is None else [group]
        destroyed_last[:] = filter(has_met_by_file, groups)
        return torchs_destroy(group)

    c10d.destroy_process_group = dist.destroy_process_group = destroy_process_group
