"""launch runs what torchrun runs: scripts in the styles that are found in the wild, unchanged."""

import textwrap

import pytest

from helpers import RankError, launch

pytestmark = pytest.mark.usefixtures("nothing_left")

SCRIPTS = {
    "explicit env:// and a main that exits": ("""
        import os, sys
        import torch.distributed as dist

        def main():
            dist.init_process_group("gloo", init_method="env://", world_size=int(os.environ["WORLD_SIZE"]),
                                    rank=int(os.environ["RANK"]))
            print(dist.get_rank(), dist.get_world_size())
            return 0

        if __name__ == "__main__":
            sys.exit(main())
    """, "1 2"),
    "the address and port of the environment": ("""
        import os
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                                rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        dist.barrier()
        print("met")
        dist.destroy_process_group()
    """, "met"),
    "record, and torchelastic's variables": ("""
        import os, torch.distributed as dist
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            dist.init_process_group()
            print(dist.is_torchelastic_launched(), os.environ["TORCHELASTIC_RESTART_COUNT"])
            dist.destroy_process_group()

        if __name__ == "__main__":
            main()
    """, "True 0"),
    "a DataLoader with workers of each kind": ("""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return torch.tensor(i * i)

        if __name__ == "__main__":
            for context in ("fork", "spawn", "forkserver"):
                loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=context)
                print(context, sum(batch.sum().item() for batch in loader))
    """, "fork 140\nspawn 140\nforkserver 140"),
    "a pool of processes": ("""
        from concurrent.futures import ProcessPoolExecutor

        def square(x):
            return x * x

        if __name__ == "__main__":
            with ProcessPoolExecutor(2) as pool:
                print(list(pool.map(square, range(4))))
    """, "[0, 1, 4, 9]"),
    "a device mesh and FSDP2": ("""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2,))
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=mesh)
        model(torch.ones(2, 8)).sum().backward()
        print(mesh.size(), model.weight.to_local().shape)
        torch.distributed.destroy_process_group()
    """, "2 torch.Size([4, 8])"),
    "RPC": ("""
        import os, torch
        import torch.distributed.rpc as rpc
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            print(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1)).item())
        rpc.shutdown()
    """, None),
    "a class that is saved and loaded": ("""
        import os, tempfile, torch

        class Net(torch.nn.Linear):
            pass

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.pt")
            torch.save(Net(1, 1), path)
            print(type(torch.load(path, weights_only=False)).__name__)
    """, "Net"),
    "threads, exit functions and logging": ("""
        import atexit, logging, sys, threading, time
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
        atexit.register(logging.info, "last")
        threading.Thread(target=lambda: (time.sleep(0.2), logging.info("late"))).start()
        logging.info("first")
    """, "first\nlate\nlast"),
    "no group at all, and a look at stdin": ("""
        import sys
        print(repr(sys.stdin.read()))
    """, "''"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_in_the_style_of(name, tmp_path):
    source, says = SCRIPTS[name]
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    run = launch(script, nprocs=2, show=False, timeout=90)
    if name == "RPC":  # rank 1 only serves; torch warns about itself there
        assert "2.0\n" in run.logs[0]
    else:
        assert run.logs[1].strip() == says


def test_a_recorded_exception_is_still_the_learners(tmp_path):
    script = tmp_path / "recorded.py"
    script.write_text("from torch.distributed.elastic.multiprocessing.errors import record\n\n\n@record\ndef main():\n"
                      "    raise ValueError('boom')\n\n\nmain()\n")
    with pytest.raises(RankError, match="ValueError: boom") as caught:
        launch(script, nprocs=2, show=False)
    assert 'recorded.py", line 6, in main' in caught.value.failures[0].traceback
