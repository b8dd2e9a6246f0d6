"""Many machines: answers in other styles, and wrong ones that no row can be."""

import torch
import torch.distributed as dist

from lessons.many_machines import exercises as ex
from tests.answers import edited, edits, right

test_any_world = edits(
    ex.any_world,
    ("return {slot: state", "return None and {slot: state", "did not return: [0, 1, 2, 3, 4]"),
)
test_averaged = right(ex.any_world)(edited(
    ex.any_world,
    ("/ slots", "* dist.get_world_size() / slots"),
    (ex.REDUCED, f"{ex.REDUCED}            parameter.grad /= dist.get_world_size()\n")))


@right(ex.any_world)
def test_blocks_of_slots_one_bucket_and_one_loss(net, optimizer, loss_of, steps, slots, random):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [slot for slot in range(slots) if slot * n // slots == rank]
    for step in steps:
        total = 0
        for slot in mine:
            torch.set_rng_state(random[slot])
            total = total + loss_of(step, slot)
            random[slot] = torch.get_rng_state()
        gradients = torch.autograd.grad(total / slots, list(net.parameters()))
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [parameter.numel() for parameter in net.parameters()]
        for parameter, gradient in zip(net.parameters(), flat.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()
    states = [torch.zeros_like(random[0]) for _ in range(slots)]
    for slot in range(slots):
        owner = slot * n // slots
        states[slot] = random[slot].clone()
        dist.broadcast(states[slot], owner)
    return dict(enumerate(states))


test_who_waits = edits(
    ex.who_waits,
    ("return found", "return list(found.items())", "what your function returns, and its type"),
    ("return found", "return {rank: said for rank, said in found.items() if said[2]}",
     "all have come: `waits`[0]"),
)


@right(ex.who_waits)
def test_by_how_far_each_rank_has_come_in_each_group(dumps, groups):
    far, found = {}, {}
    for rank, dump in dumps.items():
        for entry in sorted(dump["entries"], key=lambda entry: entry["record_id"]):
            place = rank, entry["process_group"][0]
            far[place] = max(far.get(place, 0), entry["collective_seq_id"])
            if not entry["retired"] and rank not in found:
                found[rank] = entry, dump["now"]
    return {rank: (entry["profiling_name"], (now - entry["time_created_ns"]) * 1e-9,
                   [one for one in sorted(groups[entry["process_group"][0]])
                    if far.get((one, entry["process_group"][0]), 0) < entry["collective_seq_id"]])
            for rank, (entry, now) in found.items()}


test_agent_options = edits(
    ex.agent_options,
    ("\"--max-restarts=3\"", "\"--standalone\"", "--standalone"),
    ("--rdzv-id=", "--rendezvous=", "unrecognized arguments: --rendezvous=lab"),
    ("--nnodes={len(addresses)}", "--nnodes {len(addresses)}", "the check adds the script"),
)


@right(ex.agent_options)
def test_a_generator(node, addresses, gpus, job):
    yield from ex.agent_options.answer(node, addresses, gpus, job)


@right(ex.agent_options)
def test_underscores_and_separate_words(node, addresses, gpus, job):
    return ("--max_restarts", 3, "--local_addr", addresses[node], "--rdzv_conf",
            "last_call_timeout=10,is_host=" + ("true" if addresses[node] == addresses[0] else "false"),
            "--rdzv_backend", "c10d",
            "--rdzv_endpoint", addresses[0] + ":29500", "--rdzv_id", job, "--nproc_per_node", gpus,
            "--nnodes", f"{len(addresses)}:{len(addresses)}")
