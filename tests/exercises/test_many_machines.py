"""Many machines: answers in other styles, and wrong ones that no row can be."""

import torch
import torch.distributed as dist

from lessons.many_machines import exercises as ex
from tests.answers import edited, edits, right

test_any_world = edits(
    ex.any_world,
    ("return {slot: state", "return None and {slot: state", "did not return: [0, 1, 2, 3, 4]"),
    ((("(loss_of(step, slot) / slots)", "(loss_of(step, slot) / len(mine))"),
     ("    dist.all_reduce(parameter.grad)\n",
      "    dist.all_reduce(parameter.grad)\n            parameter.grad /= dist.get_world_size()\n")),
     "['slot 0'] is 0.1666"),
    ("in net.parameters():", "in list(net.parameters())[:1]:", "gradients of ranks 0 and 1 differ"),
    ("        optimizer.step()", "        optimizer.step(); optimizer.step()", "`steps of the optimizer` is 8"),
)
test_averaged = right(ex.any_world)(edited(
    ex.any_world,
    ("/ slots", "* dist.get_world_size() / slots"),
    ("    dist.all_reduce(parameter.grad)\n",
     "    dist.all_reduce(parameter.grad)\n            parameter.grad /= dist.get_world_size()\n")))


@right(ex.any_world)
def test_states_as_rows_of_a_table(net, optimizer, loss_of, steps, slots, random):
    mine = range(dist.get_rank(), slots, dist.get_world_size())
    for step in steps:
        optimizer.zero_grad()
        for slot in mine:
            torch.set_rng_state(random[slot])
            loss_of(step, slot).backward()
            random[slot] = torch.get_rng_state()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= slots
        optimizer.step()
    table = torch.zeros(slots, len(random[0]), dtype=torch.uint8)
    for slot in mine:
        table[slot] = random[slot]
    dist.all_reduce(table)
    return {slot: table[slot] for slot in range(slots)}


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
    ("return waiting", "return list(waiting.items())", "what your function returns, and its type"),
    ("return waiting", "return {rank: row for rank, row in waiting.items() if row[2]}",
     "all have come: `waits`[0]"),
    ("sorted(other for other in groups[name] if not came(other, name, number))",
     "{other for other in groups[name] if not came(other, name, number)}", "`missing`[0] is '{2}'"),
)


@right(ex.who_waits)
def test_by_how_far_each_rank_has_come_in_each_group(dumps, groups):
    far = {}  # {(rank, group): the highest number that the rank has come to}
    stands_in = {}
    for rank, dump in dumps.items():
        for entry in sorted(dump["entries"], key=lambda entry: entry["record_id"]):
            group = entry["process_group"][0]
            far[rank, group] = max(far.get((rank, group), 0), entry["collective_seq_id"])
            if not entry["retired"] and rank not in stands_in:
                stands_in[rank] = entry
    waiting = {}
    for rank, entry in stands_in.items():
        group = entry["process_group"][0]
        seconds = (dumps[rank]["now"] - entry["time_created_ns"]) * 1e-9
        missing = [other for other in sorted(groups[group]) if far.get((other, group), 0) < entry["collective_seq_id"]]
        waiting[rank] = (entry["profiling_name"], seconds, missing)
    return waiting


test_agent_options = edits(
    ex.agent_options,
    ("\"--max-restarts=3\"", "\"--standalone\"", "--standalone"),
    ("--rdzv-id=", "--rendezvous=", "unrecognized arguments: --rendezvous=lab"),
    ("--nnodes=1:{len(addresses)}", "--nnodes 1:{len(addresses)}", "the check adds the script"),
    ("return options", "return ' '.join(options)", "one text, not a list of texts"),
)


@right(ex.agent_options)
def test_a_generator(node, addresses, gpus, job):
    yield from ex.agent_options.answer(node, addresses, gpus, job)


@right(ex.agent_options)
def test_underscores_and_separate_words(node, addresses, gpus, job):
    return ("--max_restarts", 3, "--local_addr", addresses[node], "--rdzv_conf",
            "last_call_timeout=10,is_host=" + ("true" if addresses[node] == addresses[-1] else "false"),
            "--rdzv_backend", "c10d",
            "--rdzv_endpoint", addresses[-1] + ":29500", "--rdzv_id", job, "--nproc_per_node", gpus,
            "--nnodes", f"1:{len(addresses)}")
