"""What the lesson about processes shows of a GPU: what a context costs, who may use CUDA, what a queue carries."""

import itertools
import os
import subprocess
import time
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp

from helpers.experiments import attempt, experiment, in_ranks


@experiment(gpus=1, seconds=5, wanted=2, small={"counts": (1, 2)})
def cost_of_a_context(counts=(1, 2, 4)):
    """How much of a GPU's memory does a CUDA context take, and how many seconds does it take to make one?

    One process watches how much of the GPU's memory is in use while others make a tensor of one number there: first one
    process, then another, then two at the same time. At the end, each multiplies two matrices.
    """
    barrier = mp.get_context("fork").Barrier(counts[-1] + 1)
    watched, *seconds = in_ranks(touch_in_turns, counts[-1] + 1, counts, barrier)
    return {**watched, "seconds": seconds}


def touch_in_turns(counts, barrier):
    """In a rank: touch CUDA when its turn comes. Rank 0 comes first, and returns MiB; the others return seconds."""
    rank = int(os.environ["RANK"])
    used = {}  # MiB, by number of processes that have touched CUDA beside rank 0
    for before, count in itertools.pairwise((-1, 0, *counts)):
        barrier.wait()
        if before < rank <= count:
            began = time.perf_counter()
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        barrier.wait()
        if rank == 0:
            used[count] = used_mib()
    barrier.wait()
    if rank > 0:
        ones = torch.ones(1024, 1024, device="cuda")
        (ones @ ones).sum().item()
    barrier.wait()
    result = seconds
    if rank == 0:
        _, total = torch.cuda.mem_get_info()
        result = {
            "used": used,
            "after a product": used_mib(),
            "of": total / 2**20,
            "nvidia-smi": listed_by_nvidia_smi(),
        }
    barrier.wait()  # until rank 0 has looked, all processes stay
    return result


def used_mib():
    """MiB of the GPU's memory that all processes use together."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def listed_by_nvidia_smi():
    """MiB of each process. In a container, nvidia-smi may see none."""
    query = ["--query-compute-apps=used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, timeout=10).stdout
    return [int(word) for word in listed.split() if word.isdigit()]


@cost_of_a_context.tells
def cost_in_words(result):
    with_no_process, with_one, *_, with_all = result["used"].values()
    one_process = with_one - with_no_process
    all_processes = with_all - with_no_process
    after_product = result["after a product"] - with_no_process
    share = all_processes / result["of"]
    seconds = result["seconds"]
    listed = result["nvidia-smi"]
    words = (
        f"A process that has made only a tensor of one number takes **{one_process:,.0f} MiB** "
        "of the GPU's memory for its context. "
        f"{len(seconds)} such processes take {all_processes:,.0f} MiB, which is {share:.1%} of this GPU, "
        f"and {after_product:,.0f} MiB after one matrix product in each. "
        f"The first tensor took {min(seconds):.2f} to {max(seconds):.2f} s."
    )
    if listed:
        words += (f" `nvidia-smi` lists {len(listed)} processes, with {min(listed):,} to {max(listed):,} MiB each. "
                  "One of them only watches.")
    return words


@experiment(gpus=1, seconds=8, wanted=3, small={"methods": ("fork",)})
def fork_after_cuda(methods=("fork", "spawn")):
    """What can a child do with the GPU if its parent has used CUDA, or has only asked about it?

    Each row is a process that does something and then starts a child. The child tries to make a tensor on the GPU.
    """
    cases = [("has made a tensor on the GPU", use_cuda, method) for method in methods]
    cases += [
        ("has called `torch.cuda.is_available()`", torch.cuda.is_available, "fork"),
        ("has called `torch.cuda.device_count()`", torch.cuda.device_count, "fork"),
    ]
    rows = []
    for parent, first, method in cases:
        [answer] = in_ranks(what_the_child_says, 1, first, method)
        rows.append([parent, method, answer])
    return {"rows": rows}


def use_cuda():
    return str(torch.ones(1, device="cuda"))


def what_the_child_says(first, method):
    """In a process of its own: do something, start a child, and hear what it says."""
    first()
    context = mp.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=use_and_say, args=(there,))
    child.start()
    answer = here.recv() if here.poll(20) else "nothing within 20 s"
    child.kill()
    child.join()
    return answer


def use_and_say(pipe):
    answer = attempt(use_cuda)
    if isinstance(answer, dict):
        answer = answer["refused"]
    pipe.send(answer)


@fork_after_cuda.tells
def fork_in_words(result):
    _, _, first_answer = result["rows"][0]
    words = f"The child that was forked from a parent with a tensor on the GPU says: **{first_answer}**"
    table = ["| the parent | starts its child by | the child says |", "|---|---|---|"]
    for parent, method, answer in result["rows"]:
        table.append(f"| {parent} | {method} | `{answer}` |")
    return words + "\n\n" + "\n".join(table)


@experiment(gpus=1, seconds=4, wanted=2, small={"sizes": (1_000, 4_000)})
def cuda_tensor_in_a_queue(sizes=(1_000_000, 250_000_000)):
    """How many bytes does a queue carry for a CUDA tensor, and when does the tensor arrive?

    Tensors of 4 MB and of 1 GB: the bytes that the queue carries, the milliseconds until the receiver has the tensor,
    and whether the sender sees the 1 that the receiver writes. The receiver was forked before anything touched CUDA.
    """
    context = mp.get_context("fork")
    queue = context.SimpleQueue()
    here, there = context.Pipe()
    elements_sent = (sizes[0], *sizes)  # the first is not counted
    receiver = context.Process(target=receive_all, args=(queue, len(elements_sent), there), daemon=True)
    receiver.start()
    here.recv()  # the receiver is ready
    rows = []
    for elements in elements_sent:
        rows.append(attempt(send, torch.zeros(elements, device="cuda"), queue, here))
    tensor = torch.zeros(1, device="cuda")
    moved = tensor.data_ptr() != tensor.share_memory_().data_ptr()
    return {"rows": rows[1:], "share_memory_ moved it": moved}


def send(tensor, queue, answers):
    """Send a tensor, and look at it when the receiver has answered."""
    carried = len(ForkingPickler.dumps(tensor))
    began = time.perf_counter()
    queue.put(tensor)
    arrived = answers.recv() if answers.poll(8) else {"refused": "nothing arrived within 8 s"}
    if isinstance(arrived, dict):
        return arrived
    return {
        "of": tensor.nbytes,
        "bytes": carried,
        "ms": 1000 * (arrived - began),
        "sender sees": tensor[0].item(),
    }


def receive_all(queue, count, answers):
    answers.send(use_cuda())  # so that the start of CUDA is not part of what is measured
    for _ in range(count):
        answers.send(attempt(receive, queue))


def receive(queue):
    """Add 1 to the tensor that arrives. Returns when that was."""
    tensor = queue.get()
    arrived = time.perf_counter()
    tensor[0] += 1
    torch.cuda.synchronize()
    return arrived


@cuda_tensor_in_a_queue.tells
def queue_in_words(result):
    rows = result["rows"]
    for row in rows:
        if "refused" in row:
            return f"Here a CUDA tensor cannot be sent: **{row['refused']}**"
    arrivals = []
    for row in rows:
        megabytes = row["of"] / 1e6
        arrivals.append(f"for a tensor of {megabytes:,g} MB the queue carries **{row['bytes']:,} bytes**, "
                        f"and the receiver has the tensor after {row['ms']:.1f} ms")
    words = "; ".join(arrivals)
    words = words[0].upper() + words[1:]
    small = rows[0]
    large = rows[-1]
    same_time = large["ms"] < 1.5 * small["ms"]
    why = "The larger tensor takes no longer, because its numbers stay where they are. " if same_time else ""
    sees_it = large["sender sees"] == 1
    sees = "sees it, because both use the same memory" if sees_it else "does not see it"
    does = "gave it other memory" if result["share_memory_ moved it"] else "left it where it was"
    return (
        f"{words}. {why}"
        f"The receiver writes a 1, and the sender {sees}. "
        f"`share_memory_()`, called for another CUDA tensor, {does}."
    )
