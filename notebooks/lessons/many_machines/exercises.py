"""The exercises of many machines: a loop for any world, a flight recorder's dumps, a failing rendezvous."""

import contextlib
import io
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
from torch.distributed.run import get_args_parser, parse_min_max_nnodes
from torch.nn.utils import parameters_to_vector

from helpers.exercises.alone import Alone
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, holds, nothing, same

SLOTS = 5
MINE = "range(dist.get_rank(), slots, dist.get_world_size())"
REDUCED = "            dist.all_reduce(parameter.grad)\n"
GATHERED = "return {slot: state for part in parts for slot, state in part.items()}"
FIRST = 'min(waits, key=lambda entry: entry["record_id"])'
KEPT = "a slot draws the same numbers in each step: keep the state that its loss has left"
SHARE = "each slot is one rank's work, once in each item of `steps`; and there are more slots than ranks"
DIVIDED_TWICE = "each loss is divided by `slots`: the sum over the ranks is the mean already"
RETURNED = "in the next world another rank may have that slot: how does it get the slot's state?"
DIGITS = ("that of the mean, for each `optimizer.step()`, the same in all ranks. Its digits, from the "
          "right, belong to slots 0, 1, …: is each in it once, from the random state that the slot's last "
          "time has left?")


def each_slot_once(mine, wanted, case):
    calls, right = (Counter(call for one in ranks for call in one["calls"]) for ranks in (mine, wanted))
    for step, slot in sorted({*calls, *right}):
        times = calls[step, slot]
        if times != right[step, slot]:
            return (f"in step {step}, `loss_of` was called {times} times for slot {slot}",
                    "once for each slot, in each of the steps, by all ranks together")


def a_training():
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    return net, optimizer, {slot: torch.Generator().manual_seed(slot).get_state() for slot in range(SLOTS)}


def next_number(state):
    generator = torch.Generator()
    generator.set_state(state)
    return torch.rand((), generator=generator).item()


class AnyWorld(Table, InGroup):
    title = "The same training in a world of any size"
    task = ("Train `net` in a world of any size. The batch of a step has the slots 0, 1, … `slots - 1`. "
            "There are more slots than ranks. In each step of `steps`:\n\n"
            "1. Each slot belongs to one rank, and no rank has more slots than its share, rounded up.\n"
            "2. For each of its slots, a rank sets torch's random state to `random[slot]` and calls "
            "`loss_of(step, slot)` once. It keeps the random state that this leaves: the slot's next step "
            "begins with it.\n"
            "3. The gradient is that of the **mean** of all slots' losses, in every rank. Then every rank "
            "calls `optimizer.step()`.\n\n"
            "At the end, return a dict with the random state of **every** slot, the same in all ranks.")
    hints = ("`range(rank, slots, world_size)` shares out evenly. How many ranks there are must not change "
             "the weight of a slot: divide by `slots`, and sum over the ranks.",
             "`torch.get_rng_state()`, `torch.set_rng_state(state)`, around a slot's loss and its backward.",
             "`dist.all_gather_object` collects a dict from each rank.")
    explanation = ("All that decides about the numbers belongs to a slot: its images, its random state, its "
                   "weight of one in `slots`. Ranks only share out the work.")
    why = ("torchrun may restart your script with more or fewer ranks at any moment. A training whose result "
           "depends on how many there were cannot be compared with itself.")
    world_sizes = (2, 3)
    waiting = "every rank sums the same tensors, equally often, however many slots it has"

    def answer(net, optimizer, loss_of, steps, slots, random):
        import torch
        import torch.distributed as dist
        mine = range(dist.get_rank(), slots, dist.get_world_size())
        for step in steps:
            optimizer.zero_grad()
            for slot in mine:
                torch.set_rng_state(random[slot])
                (loss_of(step, slot) / slots).backward()
                random[slot] = torch.get_rng_state()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, {slot: random[slot] for slot in mine})
        return {slot: state for part in parts for slot, state in part.items()}

    def observe(any_world, case):
        net, optimizer, states = a_training()
        calls, gradients, lacks = [], [], set()
        optimizer.register_step_pre_hook(
            lambda *_: gradients.append([float(one.grad or 0) for one in net.parameters()]))

        def loss_of(step, slot):  # digit `slot` of the gradient is a random one of this slot's
            calls.append((step, slot))
            return SLOTS * 10**slot * torch.randint(1, 10, ()) * net(torch.ones(1).double()).sum()

        for steps in (range(3, 5), range(5, 7)):  # twice, as before and after a restart
            returned = any_world(net, optimizer, loss_of, steps, SLOTS, dict(states)) or {}
            lacks |= states.keys() - returned.keys()
            states |= returned
        return {
            "slots whose state it did not return": sorted(lacks),
            "most slots in a step": max(Counter(step for step, _ in {*calls}).values(), default=0),
            "a share, rounded up": -(-SLOTS // dist.get_world_size()),
            "calls": calls,
            "gradient of each step": gradients,
            "weights": parameters_to_vector(net.parameters()).tolist(),
            "next random number of each slot": [next_number(state) for state in states.values()]}

    rules = (
        nothing("slots whose state it did not return", RETURNED, "the states of all slots, in every rank"),
        between("most slots in a step", lambda wanted, case: (0, wanted["a share, rounded up"]), SHARE),
        holds(each_slot_once, SHARE),
        same("gradient of each step", DIGITS, within=1e-9),
        same("weights", "one `optimizer.step()` in each step changes them, and nothing else", within=1e-9),
        same("next random number of each slot", "is a slot's state that of the rank that worked for it?"))
    mistakes = (
        (MINE, "range(slots)", "every rank works for all slots: which are this rank's?"),
        (MINE, "[dist.get_rank()]", "there are more slots than ranks"),
        ("loss_of(step, slot) / slots", "loss_of(step, slot)", "the sum of the losses is 5 times their mean"),
        ("/ slots", "/ len(mine)", "shares are uneven: then the slots of a small share weigh more"),
        ("        optimizer.zero_grad()\n", "", "a step's gradient still holds those of the steps before"),
        ("            random[slot] = torch.get_rng_state()\n", "", KEPT),
        ("dist.all_reduce(parameter.grad)", "pass", "a rank computes for its own slots only: who sums?"),
        (REDUCED, f"{REDUCED}            parameter.grad /= dist.get_world_size()\n", DIVIDED_TWICE),
        (GATHERED, "return random", "a rank knows the states of its own slots only: collect them"),
    )


def dumps_of(case):
    """What the recorders of a case hold; the clocks of the machines differ."""
    groups, ranks = case
    dumps = {}
    for rank, entries in enumerate(ranks):
        now = 1_795_000_000_000_000_000 + HOURS_AHEAD[rank] * 3600 * 10**9
        listed = [{"record_id": 40 + place, "process_group": [group, "a group"], "profiling_name": name,
                   "collective_seq_id": number, "retired": over, "time_created_ns": now - round(age * 1e9)}
                  for place, (group, name, number, over, age) in enumerate(entries)]
        dumps[rank] = {"now": now, "entries": listed[2:] + listed[:2]}
    return dumps, groups


HOURS_AHEAD = 0, 0, 2, -1
EVERYBODY = {"0": [0, 2, 1, 3]}
MESH = {**EVERYBODY, "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
#: Entries: group, name, number in the group, whether it is over, how many seconds ago the rank came to it.
DONE = ("0", "gloo:broadcast", 1, True, 60)
WAITS, CAME_LATER = (("0", "gloo:all_reduce", 2, False, seconds) for seconds in (5, 3.5))
SCATTER, GATHER = ("0", "gloo:reduce_scatter", 2, False, 6), ("0", "gloo:all_gather", 3, False, 5.5)
BARRIER = ("0", "gloo:barrier", 4, False, 5)
SEVENTH, EIGHTH = ("0", "gloo:broadcast", 7, True, 3), ("0", "gloo:all_reduce", 8, False, 2)
NINTH, TENTH = ("0", "gloo:all_reduce", 9, False, 6), ("0", "gloo:broadcast", 10, True, 1)
ROW_1, ROW_2 = ("1", "gloo:all_gather", 1, True, 9), ("1", "gloo:all_reduce", 2, False, 4)
ROW_SENT, ROW_WAITS = ("1", "gloo:broadcast", 2, True, 4), ("1", "gloo:all_gather", 1, False, 5)
COLUMN_2 = ("4", "gloo:all_reduce", 2, True, 8)
#: {in words: (groups, entries by rank)}
DUMPS = {
    "one group": (EVERYBODY, [[DONE, WAITS], [DONE, WAITS], [DONE], [DONE, CAME_LATER]]),
    # Rank 1 has come to number 2 of another group.
    "two groups that count alike": (
        MESH, [[DONE, ROW_1, ROW_2], [DONE, ROW_1, COLUMN_2], [DONE], [DONE, COLUMN_2]]),
    "asked for more before it waits": (
        MESH, [[DONE, SCATTER, GATHER, BARRIER], [DONE, ROW_1, SCATTER, GATHER], [DONE, SCATTER], [DONE]]),
    # The sender of a broadcast need not wait for those who receive it.
    "old entries have fallen out": (MESH, [[TENTH], [SEVENTH, EIGHTH], [SEVENTH], [TENTH]]),
    "nobody waits": (MESH, [[DONE], [DONE], [], [DONE]]),
    "a later one is over": (MESH, [[NINTH, ROW_WAITS, ROW_SENT], [ROW_SENT], [DONE], [DONE]]),
    "all have come": (MESH, [[DONE, WAITS]] * 4),  # a cable was pulled while they sent
}


class WhoWaits(Table, Alone):
    title = "Who waits for whom, since when?"
    task = ("`dumps[rank]` is what a rank wrote down, a dict. `\"now\"` is the moment, in nanoseconds, by "
            "that rank's clock. `\"entries\"` is a list, in no certain order, of collectives to which the "
            "rank came. (The oldest ones may be gone.) An entry is a dict, too:\n\n"
            "- `\"record_id\"` counts up in this rank, and `\"time_created_ns\"` says when the rank came;\n"
            "- `\"process_group\"` is a list that begins with the group's name, and `\"collective_seq_id\"` "
            "is the collective's number in that group;\n"
            "- `\"retired\"` says whether the collective is over for this rank, and `\"profiling_name\"` is "
            "its name.\n\n"
            "A rank **waits** in its first collective that is not over. `groups[name]` lists the ranks of a "
            "group. Return a dict with an item for each rank that waits, `rank: (profiling_name, seconds, "
            "missing)`: the name as it is, how long the rank has waited, and the sorted list of those ranks "
            "of the group that have not come to this collective.")
    hints = ("Not `retired` is not over. The smallest `record_id` among those is where the rank stands.",
             "A rank has come to number 7 of a group if it has that number in that group, or a later one: an "
             "old entry may have fallen out.", "The clocks of machines differ: take times of one dump only.")
    explanation = ("Numbers count within a group, and times within a machine. So compare numbers of the same "
                   "group, and times of the same dump.")
    why = ("in a job with hundreds of groups one rank that does not come stops all, through chains of groups "
           "that wait for groups. Following `missing` from rank to rank leads to the one that waits for "
           "nobody.")
    cases = DUMPS

    def answer(dumps, groups):
        def came(rank, name, number):
            return any(entry["process_group"][0] == name and entry["collective_seq_id"] >= number
                       for entry in dumps[rank]["entries"])

        found = {}
        for rank, dump in dumps.items():
            waits = [entry for entry in dump["entries"] if not entry["retired"]]
            if waits:
                first = min(waits, key=lambda entry: entry["record_id"])
                name, number = first["process_group"][0], first["collective_seq_id"]
                found[rank] = (first["profiling_name"], (dump["now"] - first["time_created_ns"]) / 1e9,
                               sorted(one for one in groups[name] if not came(one, name, number)))
        return found

    def observe(who_waits, case):
        found = who_waits(*dumps_of(case))
        waits = sorted((int(rank), *said) for rank, said in found.items())
        return {
            "waits": {rank: rank in found for rank in range(len(case[1]))},
            "profiling_name": {rank: str(name) for rank, name, _, _ in waits},
            "seconds": {rank: float(seconds) for rank, _, seconds, _ in waits},
            "missing": {rank: str([int(one) for one in missing]) for rank, *_, missing in waits}}

    rules = (
        same("waits", "a rank waits if any of its entries is not `retired`: look at all of them"),
        same("profiling_name", "the first by `record_id` that is not `retired`; its name, as it is"),
        same("seconds", "take both times from the same dump; a second has 10⁹ nanoseconds", within=1e-3),
        same("missing", "whose group is it, and who has come to that number *of that group*, or to a later "
                        "one? The list is sorted"),
    )
    mistakes = (
        (FIRST, "waits[0]", "entries come in no certain order: sort them by `record_id`"),
        ("min(waits", "max(waits", "it waits in the first; it has only asked for the later ones"),
        ('entry["record_id"])', 'entry["collective_seq_id"])', "each group counts for itself"),
        ('entry["process_group"][0] == name and ', "", "number 2 of another group is another collective"),
        (">= number", "== number", "a rank that has come to a later number has come to this"),
        (">= number", '>= number and entry["retired"]', "an entry says that its rank has come, over or not"),
        ('dump["now"]', 'dumps[0]["now"]', "the clocks of machines differ: take both times from one dump"),
        ("one in groups[name]", "one in dumps", "only the ranks of that group are missed there"),
        ('if not entry["retired"]', "", "a `retired` entry is over: nobody waits in it any more"),
    )


#: Options, as they are read, and where to look when one is wrong.
OPTIONS = {
    "refused by torchrun's parser": 'one list of texts, options only: "--nnodes=2", or "--nnodes", "2"; '
                                    "`torchrun --help` lists them",
    "script": "options only: the check adds the script, `train.py`, at the end",
    "--standalone": "that is for one machine, and overrides the endpoint",
    "--rdzv-backend": "without it there is no rendezvous that can restart",
    "--nnodes": "how many agents are there? (least and most)",
    "--nproc-per-node": "the ranks of one node",
    "--rdzv-id": "agents meet only those that give the same name",
    "--rdzv-endpoint": "where all meet: one address, and a port",
    "--local-addr": "how others reach this node, whose name leads nowhere",
    "--max-restarts": "torchrun's default is no restart at all",
    "is_host": "`--rdzv-conf=is_host=…`: an agent that is not told has to guess whether it opens the store",
}


def read_by_torchrun(given):
    """The values of `OPTIONS`, as torchrun's own parser reads them; where it refuses them, only why."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = get_args_parser().parse_args([*given, "train.py"])
        least, most = parse_min_max_nnodes(options.nnodes)
        host, port = parse_rendezvous_endpoint(options.rdzv_endpoint, 29400)
        conf = RendezvousParameters("c10d", "", "job", 1, 1, **_parse_rendezvous_config(options.rdzv_conf))
        is_host = conf.get_as_bool("is_host")
    except (SystemExit, ValueError) as error:
        return {"refused by torchrun's parser": (said.getvalue().strip() or str(error)).splitlines()[-1]}
    return {
        "script": " ".join([options.training_script, *options.training_script_args]),
        "--standalone": options.standalone,
        "--rdzv-backend": options.rdzv_backend,
        "--nnodes": f"{least}:{most}",
        "--nproc-per-node": str(options.nproc_per_node),
        "--rdzv-id": options.rdzv_id,
        "--rdzv-endpoint": f"{host}:{port}",
        "--local-addr": options.local_addr,
        "--max-restarts": options.max_restarts,
        "is_host": is_host}


class AgentOptions(Table, Alone):
    title = "Hunt: nobody opens the door"
    task = ("Return the list of torchrun's options for the agent on `node` (0, 1, …) of a job named `job`. "
            "`addresses[i]` is node i's address; names of nodes cannot be looked up. There are as many nodes "
            "as addresses, and each node starts `gpus` ranks. The agents meet over c10d at port 29500 of "
            "node 0, and must not have to guess who opens the store there. Torchrun may restart three times.")
    hints = ("Which options must be the same on all nodes, because they are what the nodes have in common?",
             "`--rdzv-conf=is_host=1` on the node whose address is the endpoint's, `is_host=0` elsewhere. "
             "Others reach a node at `--local-addr`.")
    explanation = "One name, one endpoint, one host. The rest is each node's own: its ranks, and its address."
    why = ("an agent that is not told guesses whether it is the host, by comparing names and addresses. On a "
           "cluster, in containers and on machines with two network cards that guess fails, with a time-out "
           "that says only that nobody answered.")
    cases = {"two nodes": (["10.0.0.1", "10.0.0.2"], 1, "lab"),
             "three nodes": (["10.1.7.30", "10.1.7.4", "10.1.10.1"], 8, "4711"),
             "one node": (["192.168.1.5"], 2, "small")}

    def answer(node, addresses, gpus, job):
        return [f"--nnodes={len(addresses)}", f"--nproc-per-node={gpus}", f"--rdzv-id={job}",
                "--rdzv-backend=c10d", f"--rdzv-endpoint={addresses[0]}:29500",
                f"--rdzv-conf=is_host={int(node == 0)}",
                f"--local-addr={addresses[node]}", "--max-restarts=3"]

    def observe(agent_options, case):
        addresses, gpus, job = case
        read = {}
        for node in range(len(addresses)):
            given = agent_options(node, addresses, gpus, job)
            options = [given] if isinstance(given, str) else [str(one) for one in given]
            read[f"node {node}"] = read_by_torchrun(options)
        return {name: {node: values.get(name) for node, values in read.items()} for name in OPTIONS}

    rules = tuple(same(name, look) for name, look in OPTIONS.items())
    mistakes = (
        ("--rdzv-id={job}", "--rdzv-id={job}-{node}", OPTIONS["--rdzv-id"]),
        ("addresses[0]}:29500", "addresses[node]}:29500", "all meet at node 0, none at its own door"),
        ("addresses[0]}:29500", "addresses[0]}", "without a port, torchrun takes 29400"),
        ('f"--rdzv-conf=is_host={int(node == 0)}",', "", "each agent has to guess: who opens the store?"),
        ("{int(node == 0)}", "1", "a node with a store of its own meets nobody: only node 0 opens one"),
        ("{int(node == 0)}", "0", "all wait for a store, and nobody opens it: node 0 does"),
        ("--local-addr={addresses[node]}", "--local-addr={addresses[0]}", OPTIONS["--local-addr"]),
        ("--nnodes={len(addresses)}", "--nnodes=2", "another job has another number of nodes"),
        ("--nproc-per-node={gpus}", "--nproc-per-node=1", OPTIONS["--nproc-per-node"]),
    )


any_world, who_waits, agent_options = AnyWorld(), WhoWaits(), AgentOptions()
