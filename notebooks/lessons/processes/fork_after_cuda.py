"""Fork a process that has used CUDA: its child cannot. Needs a GPU.

    launch("fork_after_cuda.py", nprocs=1, gpus=1)
"""

import multiprocessing

import torch


def child(answers):
    """Make a tensor on the GPU, or send the reason why not."""
    try:
        answers.send(str(torch.ones(1, device="cuda")))
    except RuntimeError as error:
        answers.send(f"RuntimeError: {error}")


if __name__ == "__main__":
    print("parent:", torch.ones(1, device="cuda"))
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        process = context.Process(target=child, args=(there,))
        process.start()
        print(f"{method}:", here.recv() if here.poll(60) else "no answer within 60 s")
        process.join(10)
        process.kill()
