"""Many machines: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
any_world      every rank does all slots (right weights); one slot a rank; weights by rank; states lost or swapped
who_waits      numbers of another group; clocks of another machine; the last entry; right by looping over groups
agent_options  a name, endpoint or host of each node's own; --standalone; options in another order or spelling are right
"""

import torch
import torch.distributed as dist

from lessons.many_machines import exercises as ex
from tests.answers import edits, right, wrong

test_any_world = edits(
    ex.any_world,
    ("range(dist.get_rank(), slots, dist.get_world_size())", "range(slots)", "worked for 5 slots in a step"),
    ("range(dist.get_rank(), slots, dist.get_world_size())", "[dist.get_rank()]", "lacks the state of slot"),
    ("range(dist.get_rank(), slots, dist.get_world_size())", "range(0, slots, dist.get_world_size())", "lacks the"),
    ((("range(dist.get_rank(), slots, dist.get_world_size())", "[dist.get_rank()]"),
      ("return {slot", "return random | {slot")), "no rank called `loss_of` for slot"),
    ("(loss_of(step, slot) / slots)", "loss_of(step, slot)\n            (loss_of(step, slot) / slots)",
     "in step 3 `loss_of` was called 2 times for slot 0"),
    ("optimizer.zero_grad()", "optimizer.zero_grad()\n        loss_of(0, 0)", "in step 0 `loss_of` was called"),
    ("for step in steps:", "for step in range(len(steps)):", "takes an item of `steps`"),
    ("loss_of(step, slot) / slots", "loss_of(step, slot)", "first step is 5 times that of the mean"),
    ("loss_of(step, slot) / slots", "loss_of(step, slot) / len(mine)", "weights are off by"),
    ("        optimizer.zero_grad()\n", "", "still holds that of the first"),
    ("torch.set_rng_state(random[slot])", "torch.manual_seed(dist.get_rank())", "weights are off by"),
    ("            torch.set_rng_state(random[slot])\n", "", "of the first step is another one"),
    ("            random[slot] = torch.get_rng_state()\n", "", "a later one is not"),
    ("            dist.all_reduce(parameter.grad)\n", "            pass\n", "of the first step is another one"),
    ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad); parameter.grad /= dist.get_world_size()",
     "first step is 0.5 times that of the mean"),
    ("dist.all_reduce(parameter.grad)", "dist.reduce(parameter.grad, 0)", "is it summed over the ranks"),
    ("        optimizer.step()\n", "", "`optimizer.step()` 0 times"),
    ("range(dist.get_rank(), slots, dist.get_world_size())",
     "range(k := dist.get_rank() * (share := slots // dist.get_world_size()), "
     "k + share if dist.get_rank() < dist.get_world_size() - 1 else slots)", "worked for 3 slots in a step"),
    ("return {slot: state for part in parts for slot, state in part.items()}",
     "return {slot: random[slot] for slot in mine}", "lacks the state of slot"),
    ("return {slot: state for part in parts for slot, state in part.items()}", "return random",
     "a random state that rank 0 returned is not the slot's own"),
    ("return {slot: state for part in parts for slot, state in part.items()}",
     "return {slot: torch.Generator().manual_seed(slot).get_state() for slot in range(slots)}", "a later one is not"),
    ("for parameter in net.parameters()", "for parameter in list(net.parameters())[dist.get_rank():]", ""),
    ((("/ slots)", "* dist.get_world_size() / slots)"),
      ("            dist.all_reduce(parameter.grad)\n        optimizer.step()\n",
       "            dist.all_reduce(parameter.data)\n            parameter.data /= dist.get_world_size()\n"),
      ("        for parameter in", "        optimizer.step()\n        for parameter in")),
     "its gradient of the first step is another one"),
)


@wrong(ex.any_world, "worked for 5 slots in a step")
def test_everybody_does_everything(net, optimizer, loss_of, steps, slots, random):
    for step in steps:
        optimizer.zero_grad()
        for slot in range(slots):
            torch.set_rng_state(random[slot])
            (loss_of(step, slot) / slots).backward()
            random[slot] = torch.get_rng_state()
        optimizer.step()
    return random


@wrong(ex.any_world, "returned None")
def test_returns_nothing(net, optimizer, loss_of, steps, slots, random):
    pass


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


@right(ex.any_world)
def test_averaged_and_states_kept_before_backward(net, optimizer, loss_of, steps, slots, random):
    rank, n = dist.get_rank(), dist.get_world_size()
    random = dict(random)
    for step in steps:
        optimizer.zero_grad()
        for slot in range(rank, slots, n):
            torch.set_rng_state(random[slot])
            loss = loss_of(step, slot) * n / slots
            random[slot] = torch.get_rng_state()
            loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= n
        optimizer.step()
    parts = [None] * n
    dist.all_gather_object(parts, {slot: random[slot] for slot in range(rank, slots, n)})
    return {slot: state for part in parts for slot, state in part.items()}


@right(ex.any_world)
def test_scaled_afterwards_and_gathered_as_pairs(net, optimizer, loss_of, steps, slots, random):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = list(range(slots))[rank::n]
    for step in steps:
        optimizer.zero_grad(set_to_none=False)
        for slot in mine:
            torch.set_rng_state(random[slot])
            loss_of(step, slot).backward()
            random[slot] = torch.get_rng_state()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= slots
        optimizer.step()
    found = [None] * n
    dist.all_gather_object(found, [(slot, random[slot]) for slot in mine])
    return dict(pair for part in found for pair in part)


test_who_waits = edits(
    ex.who_waits,
    ("if not entry[\"retired\"]", "", "was said to wait"),
    ("min(waits, key=lambda entry: entry[\"record_id\"])", "waits[0]", "was said to wait in"),
    ("sorted(one for one in groups[name] if not came(one, name, number))",
     "[one for one in groups[name] if not came(one, name, number)]", "[1, 2, 3], sorted"),
    ("min(waits,", "max(waits,", "the first that is not over"),
    ("entry[\"process_group\"][0] == name and ", "", "was said to wait for"),
    (">= number", "== number", "old entries have fallen out"),
    (">= number", ">= number and entry['retired']", "An entry says that its rank has come, `retired` or not"),
    ("dump[\"now\"] - ", "dumps[0][\"now\"] - ", "clocks that differ"),
    (" / 1e9", " / 1e6", "how many nanoseconds"),
    ("sorted(one for one in groups[name] if not came(one, name, number))",
     "sorted(one for one in dumps if not came(one, name, number))", "two groups that count alike"),
    ("if not came(", "if came(", "was said to wait for"),
    ("        if waits:\n", "        if waits and rank == 0:\n", "rank 1 is not in what it returned"),
    ("return found", "return list(found.items())", "it returned a list"),
    ("found = {}", "found = dict.fromkeys(dumps)", "it returned a dict with None for rank 2"),
    ("return found", "return {rank: said for rank, said in found.items() if said[2]}",
     "all have come: rank 0 is not in what it returned"),
    ("min(waits, key=lambda entry: entry[\"record_id\"])", "waits[-1]", "the first that is not over"),
    ("entry[\"record_id\"])", "entry[\"collective_seq_id\"])", "a later one is over"),
    ("        if waits:\n", "        if waits and not max(dump[\"entries\"], key=lambda entry: entry[\"record_id\"])["
     "\"retired\"]:\n", "rank 0 is not in what it returned"),
    ("(first[\"profiling_name\"],", "(first[\"profiling_name\"].removeprefix(\"gloo:\"),", "as it is"),
)


@wrong(ex.who_waits, "it does not")
def test_last_entry_of_everybody(dumps, groups):
    return {rank: ("gloo:all_reduce", 5.0, [2]) if rank < 3 else ("gloo:all_reduce", 3.5, [2]) for rank in dumps}


@wrong(ex.who_waits, "rank 0 was said to wait for [1, 2, 3]")
def test_who_does_not_wait_here_too(dumps, groups):
    found = ex.who_waits.answer(dumps, groups)
    return {rank: (name, seconds, [one for one in dumps if one != rank]) for rank, (name, seconds, _) in found.items()}


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
    ("--rdzv-id={job}", "--rdzv-id={job}-{node}", "--rdzv-id is 'lab-0'"),
    ("addresses[0]}:29500", "addresses[node]}:29500", "on node 1 --rdzv-endpoint is '10.0.0.2:29500'"),
    ("addresses[0]}:29500", "addresses[0]}", "10.0.0.1:29400"),
    ("{addresses[0]}", "{min(addresses)}", "three nodes: on node 0 --rdzv-endpoint is '10.1.10.1:29500'"),
    ("{int(node == 0)}", "0", "node 0 does not open the store"),
    ("{int(node == 0)}", "1", "node 1 opens a store of its own"),
    ("f\"--rdzv-conf=is_host={int(node == 0)}\",", "", "has to guess"),
    ("f\"--local-addr={addresses[node]}\", ", "", "--local-addr is None"),
    ("--local-addr={addresses[node]}", "--local-addr={addresses[0]}", "on node 1 --local-addr"),
    ("\"--rdzv-backend=c10d\"", "f\"--node-rank={node}\"", "--rdzv-backend is 'static'"),
    ("--nnodes={len(addresses)}", "--nnodes=1:{len(addresses)}", "--nnodes is [1, 2]"),
    ("--nnodes={len(addresses)}", "--nnodes=2", "three nodes"),
    ("--nproc-per-node={gpus}", "--nproc-per-node=1", "--nproc-per-node is '1'"),
    ("\"--max-restarts=3\"", "\"--standalone\"", "--standalone is True"),
    (", \"--max-restarts=3\"", "", "--max-restarts is 0"),
    ("--rdzv-id=", "--rendezvous=", "torchrun's parser refuses"),
    ("return [f\"--nnodes={len(addresses)}\", ", "return [\"torchrun\", ", "torchrun takes 'torchrun' for the script"),
    ("--nnodes={len(addresses)}", "--nnodes {len(addresses)}", "for the script"),
    ("\"--max-restarts=3\"]", "\"--max-restarts=3\", \"train.py\"]", "the check itself adds the script"),
    ("{int(node == 0)}", "{'ja' if node == 0 else 'nein'}", "torchrun's parser refuses"),
)


@wrong(ex.agent_options, "it returned a str")
def test_one_text(node, addresses, gpus, job):
    return " ".join(ex.agent_options.answer(node, addresses, gpus, job))


@wrong(ex.agent_options, "it returned None")
def test_no_options(node, addresses, gpus, job):
    return None


@right(ex.agent_options)
def test_a_generator(node, addresses, gpus, job):
    yield from ex.agent_options.answer(node, addresses, gpus, job)


@right(ex.agent_options)
def test_underscores_and_separate_words(node, addresses, gpus, job):
    return ("--max_restarts", 3, "--local_addr", addresses[node], "--rdzv_conf",
            "last_call_timeout=10,is_host=" + ("true" if addresses[node] == addresses[0] else "false"),
            "--rdzv_backend", "c10d",
            "--rdzv_endpoint", addresses[0] + ":29500", "--rdzv_id", job, "--nproc_per_node", gpus, "--nnodes",
            f"{len(addresses)}:{len(addresses)}")


@right(ex.agent_options)
def test_old_spelling_of_torchruns_documentation(node, addresses, gpus, job):
    options = f"--nnodes {len(addresses)} --nproc-per-node {gpus} --rdzv-id {job} --rdzv-backend c10d --max-restarts 3"
    return [*options.split(), "--rdzv-endpoint", f"{addresses[0]}:29500", "--local-addr", addresses[node],
            "--rdzv-conf", f"is_host={node == 0}"]


@right(ex.agent_options)
def test_from_a_dict(node, addresses, gpus, job):
    options = {"nnodes": len(addresses), "nproc-per-node": gpus, "rdzv-id": job, "rdzv-backend": "c10d",
               "rdzv-endpoint": f"{addresses[0]}:29500", "rdzv-conf": f"is_host={1 - min(node, 1)},timeout=60",
               "local-addr": addresses[node], "max-restarts": 3}
    return [f"--{name}={value}" for name, value in options.items()]
