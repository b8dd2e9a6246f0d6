"""Fork a process that has used threads, and its child may wait for ever for threads that only the parent has.

    launch("fork_after_threads.py", nprocs=1, args=["--threads", "2"])
"""

import argparse
import multiprocessing

import torch


def product():
    """One matrix product, large enough that torch shares it among its threads."""
    return (torch.ones(512, 512) @ torch.ones(512, 512)).sum()


def forked_child_finishes(seconds):
    """Whether a forked child gets through `product` within `seconds`; it is ended if not."""
    child = multiprocessing.get_context("fork").Process(target=product)
    child.start()
    child.join(seconds)
    finished = child.exitcode == 0
    child.kill()
    child.join()
    return finished


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads

    torch.set_num_threads(threads)
    print(f"parent with {threads} thread(s) forks before it has computed: child finishes:", forked_child_finishes(3))
    product()
    print(f"parent with {threads} thread(s) forks after it has computed:  child finishes:", forked_child_finishes(3))
