"""Start a child before and after its parent has computed with several threads: does the child finish?

    launch("fork_after_threads.py", nprocs=1, args=["--threads", "2"])
"""

import argparse
import multiprocessing

import torch


def product(pipe, threads):
    """One matrix product, large enough that torch shares it among its threads."""
    if threads:
        torch.set_num_threads(threads)
    pipe.send("begins")
    (torch.ones(512, 512) @ torch.ones(512, 512)).sum()
    pipe.send("done")


def child_finishes(method, threads):
    """Whether a child comes to the end of `product` within three seconds. If not, it is ended."""
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=product, args=(there, threads))
    child.start()
    try:
        return here.poll(60) and here.recv() == "begins" and here.poll(3) and here.recv() == "done"
    finally:
        child.kill()
        child.join()


def main():
    """Start a child, compute, start another child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2, help="of the parent")
    parser.add_argument("--child-threads", type=int, default=0, help="of the child; 0 sets none")
    parser.add_argument("--method", default="fork")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    print("started before the parent computes, the child finishes:",
          child_finishes(options.method, options.child_threads))
    torch.ones(512, 512) @ torch.ones(512, 512)
    print("started after the parent computes,  the child finishes:",
          child_finishes(options.method, options.child_threads))


if __name__ == "__main__":
    main()
