"""The exercises of many machines: a loop for a world of any size, a flight recorder's dumps, a failing rendezvous."""

import contextlib
import io

import torch
from torch.nn.utils import parameters_to_vector

from helpers.exercises.alone import Alone
from helpers.exercises.engine import not_yet
from helpers.exercises.group import InGroup

SLOTS = 5


class AnyWorld(InGroup):
    title = "The same training in a world of any size"
    task = ("A batch has `slots` slots, 0, 1, …; more than there are ranks. For each step of `steps`: share out the "
            "slots among the ranks that there are now, each slot to one rank. For each of its slots a rank sets torch's"
            " random state to `random[slot]`, calls `loss_of(step, slot)` once, and keeps the random state that it "
            "leaves for the slot's next time. The gradient of the step is that of the **mean** of all slots' losses. "
            "Then `optimizer.step()`. Return a dict with the random state of **every** slot, the same in all ranks. No "
            "rank may work for more slots than its share, rounded up.")
    hints = ("`range(rank, slots, world_size)` shares out evenly. How many ranks there are must not change the weight "
             "of a slot: divide by `slots`, and sum over the ranks.",
             "`torch.get_rng_state()` and `torch.set_rng_state(state)`, around each slot's loss and its backward.",
             "`dist.all_gather_object` collects a dict from each rank.")
    explanation = ("All that decides about the numbers belongs to a slot: its images, its random state, its weight of "
                   "one in `slots`. Ranks only share out the work.")
    why = ("torchrun may restart your script with more or fewer ranks at any moment. A training whose result depends on"
           " how many there were cannot be compared with itself, and nobody will find out why it got worse.")
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

    def probe(any_world, case):
        def training():
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)).double()
            x = torch.randn(10, SLOTS, 6, 8).double()
            random = {slot: torch.Generator().manual_seed(slot).get_state() for slot in range(SLOTS)}
            optimizer = torch.optim.Adam(net.parameters(), lr=0.05, eps=1.0)  # steps do not add up
            calls, gradients = [], []
            optimizer.register_step_pre_hook(lambda *_: gradients.append(torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in net.parameters()])))

            def loss_of(step, slot):
                calls.append((step, slot))
                return (1 + slot) * net(x[step, slot]).square().mean()

            return (net, optimizer, loss_of, random), calls, gradients

        (net, optimizer, loss_of, states), _, right = training()
        for step in range(3, 9):  # by one process
            optimizer.zero_grad()
            for slot in range(SLOTS):
                torch.set_rng_state(states[slot])
                (loss_of(step, slot) / SLOTS).backward()
                states[slot] = torch.get_rng_state()
            optimizer.step()
        weights = parameters_to_vector(net.parameters()).detach()
        (net, optimizer, loss_of, random), calls, gradients = training()
        for steps in (range(3, 6), range(6, 9)):  # twice, as before and after a restart
            given = dict(random)
            random = any_world(net, optimizer, loss_of, steps, SLOTS, random)
            if not isinstance(random, dict):
                return {"returned": type(random).__name__}
            if missing := [slot for slot in given if slot not in random]:
                return {"lacks": missing}
        off = (parameters_to_vector(net.parameters()) - weights).abs().max().item()
        return {"calls": calls, "right": off < 1e-9, "off": f"{off:.1e}", "fault": _fault(gradients, right),
                "states": all(torch.equal(torch.as_tensor(random[slot]), state) for slot, state in states.items())}

    def judge(self, seen, case):
        for rank, one in enumerate(seen):
            if "returned" in one:
                return not_yet(f"rank {rank} returned a {one['returned']}", "a dict: a random state for each slot",
                               "the line with `return`")
            if "lacks" in one:
                return not_yet(f"what rank {rank} returned lacks the state of slot {one['lacks'][0]}",
                               "the states of all slots, in every rank",
                               "in the next world another rank may have that slot: who has its state?")
        calls = [call for one in seen for call in one["calls"]]
        wanted = [(step, slot) for step in range(3, 9) for slot in range(SLOTS)]
        if missing := [call for call in wanted if call not in calls]:
            step, slot = missing[0]
            others = any(call[0] == step for call in calls)
            return not_yet(f"in step {step} no rank called `loss_of` for slot {slot}", "each slot once in each step",
                           "are there more slots than ranks?" if others else
                           "`loss_of` takes an item of `steps`, and every one")
        share = -(-SLOTS // len(seen))
        for rank, one in enumerate(seen):
            most = max(sum(call[0] == step for call in set(one["calls"])) for step in range(3, 9))
            if most > share:
                return not_yet(f"rank {rank} worked for {most} slots in a step", f"at most {share}",
                               "each slot is one rank's work")
        if more := [call for call in calls if calls.count(call) > (call in wanted)]:  # once, or not at all
            step, slot = min(more)
            return not_yet(f"in step {step} `loss_of` was called {calls.count(min(more))} times for slot {slot}",
                           "each slot once in each step", "who has which slot, and how often does it call `loss_of`?")
        # A rank whose first step is right may have been misled by another's.
        for rank, one in sorted(enumerate(seen), key=lambda item: item[1]["fault"][0].startswith("its first step")):
            if not one["right"]:
                return not_yet(f"rank {rank}'s weights are off by {one['off']} from those of a world of one; "
                               + one["fault"][0], "the same weights, up to rounding", one["fault"][1])
            if not one["states"]:
                return not_yet(f"a random state that rank {rank} returned is not the slot's own",
                               "the state from after the slot's last loss",
                               "when is it kept? And it is where its slot was worked for: who hears of it?")
        return None


def _fault(found, right):
    """Where the gradients of the steps first differ from the right ones: what was seen, and where to look."""
    def times(one, other):  # the factor between two gradients, or None
        factor = (one @ other / (other @ other)).item()
        return factor if (one - factor * other).abs().max() < 1e-9 else None

    if len(found) != len(right):
        return f"it called `optimizer.step()` {len(found)} times", f"once for each of the {len(right)} steps"
    first = times(found[0], right[0])
    if first is None:
        return ("its gradient of the first step is another one", "is it summed over the ranks, in every rank? Does "
                "each slot weigh the same, also where shares are uneven, and begin with `random[slot]`?")
    if abs(first - 1) > 1e-6:
        return (f"its gradient of the first step is {first:.3g} times that of the mean", "by what is each slot's loss "
                "divided, and what do the ranks do with the sum?")
    if abs(times(found[1] - right[1], right[0]) or 0) > 1e-6:
        return "its gradient of the second step still holds that of the first", "when are gradients set to zero?"
    return ("its first step is right, a later one is not", "does `random[slot]` hold the state from after its last "
            "loss, also in what you return? Whose state of a slot wins there?")


class WhoWaits(Alone):
    title = "Who waits for whom, since when?"
    task = ("`dumps[rank]` is a dict: `\"now\"`, that rank's clock in nanoseconds when it wrote it down, and "
            "`\"entries\"`, the collectives that it came to and its recorder still holds, in no certain order. An entry"
            " has a `\"record_id\"` (which counts up), `\"process_group\"` (a list: the group's name comes first),"
            " `\"collective_seq_id\"` (its number in that group), `\"profiling_name\"`, `\"retired\"` and "
            "`\"time_created_ns\"`. `groups[name]` lists a group's ranks. Return a dict with an item for each rank that"
            " waits: `rank: (profiling_name, seconds, missing)`: the **first** collective that is not over for it "
            "(`profiling_name`, as it is), for how many seconds by now, and the sorted list of its group's ranks "
            "that have not come to it.")
    hints = ("Not `retired` is not over. The smallest `record_id` among those is where the rank stands.",
             "A rank has come to number 7 of a group if it has that number in that group, or a later one: an old entry "
             "may have fallen out.", "The clocks of machines differ: take times of one dump only.")
    explanation = ("Numbers count within a group, and times within a machine. So compare numbers of the same group, and"
                   " times of the same dump.")
    why = ("in a job with hundreds of groups one rank that does not come stops all, through chains of groups that wait "
           "for groups. Following `missing` from rank to rank leads to the one that waits for nobody.")
    cases = {"one group": 0, "two groups that count alike": 1, "clocks that differ": 2,
             "asked for more before it waits": 3, "old entries have fallen out": 4, "nobody waits": 5, "a chain": 6,
             "a later one is over": 7, "all have come": 8}

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

    def probe(who_waits, number):
        found, wanted = who_waits(*_case(number)), WhoWaits.answer(*_case(number))
        form = ("a dict: rank: (profiling_name, seconds, missing), of ranks that wait, and no others",
                "the line with `return`")
        if not isinstance(found, dict):
            return not_yet(f"it returned a {type(found).__name__}", *form)
        for rank, said in found.items():
            if not isinstance(said, tuple | list) or len(said) != 3:
                return not_yet(f"it returned a dict with {said!r} for rank {rank}", *form)
        found = {int(rank): (str(name), round(float(seconds), 3), list(missing))
                 for rank, (name, seconds, missing) in found.items()}
        for rank, (name, seconds, missing) in wanted.items():
            if rank not in found:
                return not_yet(f"rank {rank} is not in what it returned, but it waits in {name}", f"all of {[*wanted]}",
                               "which entries are not `retired`? They come in any order, so look at all; and all ranks "
                               "may have come, and none be over")
            got = found[rank]
            if got[0] == name.removeprefix("gloo:"):
                return not_yet(f"rank {rank} was said to wait in {got[0]!r}", f"{name!r}", "`profiling_name`, as it is")
            if got[0] != name:
                return not_yet(f"rank {rank} was said to wait in {got[0]}", f"{name}: the first that is not over",
                               "look at all entries, in any order: of those that are not `retired`, which has the "
                               "smallest `record_id`? Each group counts its own `collective_seq_id`")
            if abs(got[1] - seconds) > 0.01:
                return not_yet(f"rank {rank} was said to wait since {got[1]:g} s", f"{seconds:g} s",
                               "whose clock is `now`, and how many nanoseconds has a second?")
            if got[2] != missing:
                return not_yet(f"rank {rank} was said to wait for {got[2]}", f"{missing}, sorted",
                               "whose group is it, and who has come to that number *of that group*, or to a later one? "
                               "An entry says that its rank has come, `retired` or not")
        if extra := [rank for rank in found if rank not in wanted]:
            return not_yet(f"rank {extra[0]} was said to wait", "it does not: all that it came to is over", "`retired`")
        return None


def _case(number):
    """The dumps and the groups of a case."""
    everybody = {"0": [0, 2, 1, 3]}
    mesh = {**everybody, "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    # A rank's entries: group, name, number, whether it is over, how many seconds ago it came.
    done = [("0", "gloo:broadcast", 1, True, 60)]
    wait = [*done, ("0", "gloo:all_reduce", 2, False, 5)]
    clocks, groups = [0, 0, 0, 0], mesh
    if number in (0, 2):
        ranks = [wait, wait, done, [*done, ("0", "gloo:all_reduce", 2, False, 3.5)]]
        clocks, groups = ([0, 0, 0, 0] if number == 0 else [0, 0, 7200, -3600]), everybody
    elif number == 1:  # rank 1 is at number 2 of its other group: that is not this one's
        ranks = [[*done, ("1", "gloo:all_gather", 1, True, 9), ("1", "gloo:all_reduce", 2, False, 4)],
                 [*done, ("1", "gloo:all_gather", 1, True, 9), ("4", "gloo:all_reduce", 2, True, 8)],
                 [*done, ("2", "gloo:all_reduce", 2, True, 8)], [*done, ("4", "gloo:all_reduce", 2, True, 8)]]
    elif number == 3:
        more = [("0", "gloo:reduce_scatter", 2, False, 6), ("0", "gloo:all_gather", 3, False, 5.5),
                ("0", "gloo:barrier", 4, False, 5)]
        ranks = [[*done, *more], [*done, *more[:2]], [*done, more[0]], done]
    elif number == 4:  # the sender of a broadcast need not wait for those who receive
        late = [("0", "gloo:broadcast", 9, True, 2), ("0", "gloo:broadcast", 10, True, 1)]
        ranks = [late, [("0", "gloo:broadcast", 7, True, 3), ("0", "gloo:all_reduce", 8, False, 2)],
                 [("0", "gloo:broadcast", 7, True, 3)], late]
    elif number == 5:
        ranks = [done, done, [], done]
    elif number == 8:  # a cable was pulled while they sent
        ranks = [wait, wait, wait, wait]
    elif number == 7:  # who counts only in a group, or looks at the last one only, is misled
        ranks = [[("0", "gloo:all_reduce", 9, False, 6), ("1", "gloo:all_gather", 1, False, 5),
                  ("1", "gloo:broadcast", 2, True, 4)], [("1", "gloo:broadcast", 2, True, 4)], done, done]
    else:  # 0 waits for 1 in their group, 1 for 3, 3 for 2, and 2 is in no collective
        ranks = [[*done, ("1", "gloo:all_reduce", 1, False, 4)], [*done, ("4", "gloo:all_gather", 1, False, 3)],
                 done, [*done, ("2", "gloo:reduce", 1, False, 2)]]
    dumps = {}
    for rank, (entries, clock) in enumerate(zip(ranks, clocks, strict=True)):
        now = 1_795_000_000_000_000_000 + round(clock * 1e9)
        listed = [{"record_id": 40 + place, "process_group": [group, "a group"], "profiling_name": name,
                   "collective_seq_id": seq, "retired": over, "time_created_ns": now - round(age * 1e9)}
                  for place, (group, name, seq, over, age) in enumerate(entries)]
        dumps[rank] = {"now": now, "entries": listed[-1:] + listed[:-1] if number else listed}
    return dumps, groups


class AgentOptions(Alone):
    title = "Hunt: nobody opens the door"
    task = ("Return the list of torchrun's options for the agent on `node` (0, 1, …) of a job named `job`. "
            "`addresses[i]` is node i's address; no node's name leads to it. There are as many nodes as addresses; "
            "`gpus` ranks on each. The agents meet over c10d at port 29500 of node 0, and must not have to guess who "
            "opens the store there. Up to three restarts.")
    hints = ("Which options must be the same on all nodes, because they are what the nodes have in common?",
             "`--rdzv-conf=is_host=1` on the node whose address is the endpoint's, `is_host=0` elsewhere. Others reach "
             "a node at `--local-addr`.")
    explanation = ("One name, one endpoint, one host. The rest says what each node is: its ranks, and its address.")
    why = ("an agent that is not told guesses whether it is the host, by comparing names and addresses. On a cluster, "
           "in containers and on machines with two network cards that guess fails, with a time-out that says only that "
           "nobody answered.")
    cases = {"two nodes": (["10.0.0.1", "10.0.0.2"], 1, "lab"),
             "three nodes": (["10.1.7.30", "10.1.7.4", "10.1.10.1"], 8, "4711"),
             "one node": (["192.168.1.5"], 2, "small")}

    def answer(node, addresses, gpus, job):
        return [f"--nnodes={len(addresses)}", f"--nproc-per-node={gpus}", f"--rdzv-id={job}", "--rdzv-backend=c10d",
                f"--rdzv-endpoint={addresses[0]}:29500", f"--rdzv-conf=is_host={int(node == 0)}",
                f"--local-addr={addresses[node]}", "--max-restarts=3"]

    def probe(agent_options, case):
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
        from torch.distributed.run import get_args_parser, parse_min_max_nnodes

        addresses, gpus, job = case
        options_only = "one list of texts, options only: \"--nnodes=2\", or \"--nnodes\", \"2\""
        for node in range(len(addresses)):
            given, said = agent_options(node, addresses, gpus, job), io.StringIO()
            if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
                return not_yet(f"it returned a {type(given).__name__}", options_only, "the line with `return`")
            given = [str(part) for part in given]
            try:
                with contextlib.redirect_stderr(said):  # torchrun's own parser
                    options = get_args_parser().parse_args([*given, "train.py"])
                if options.training_script != "train.py" or options.training_script_args:
                    return not_yet(f"torchrun takes {options.training_script!r} for the script", options_only,
                                   "the check itself adds the script, `train.py`, at the end")
                conf = RendezvousParameters("c10d", "", "job", 1, 1, **_parse_rendezvous_config(options.rdzv_conf))
                opens = conf.get_as_bool("is_host")
                host, port = parse_rendezvous_endpoint(options.rdzv_endpoint, 29400)
                nodes = parse_min_max_nnodes(options.nnodes)
            except (SystemExit, ValueError) as error:
                refused = (said.getvalue().strip().splitlines() or [str(error)])[-1]
                return not_yet(f"torchrun's parser refuses {given}: {refused}", "options of torchrun",
                               "`torchrun --help` lists them; a list of texts such as \"--nnodes=2\"")
            for name, got, wanted, look in (
                    ("--standalone", options.standalone, False, "that is for one machine, and overrides the endpoint"),
                    ("--rdzv-backend", options.rdzv_backend, "c10d",
                     "without it there is no rendezvous that can restart"),
                    ("--nnodes", list(nodes), [len(addresses)] * 2, "how many agents are there? (least and most)"),
                    ("--nproc-per-node", str(options.nproc_per_node), str(gpus), "the ranks of one node"),
                    ("--rdzv-id", options.rdzv_id, job, "agents meet only those that give the same name"),
                    ("--rdzv-endpoint", f"{host}:{port}", f"{addresses[0]}:29500",
                     "where all meet: one address, and a port"),
                    ("--local-addr", options.local_addr, addresses[node],
                     "how others reach this node, whose name leads nowhere"),
                    ("--max-restarts", options.max_restarts, 3, "torchrun's default is no restart at all")):
                if got != wanted:
                    return not_yet(f"on node {node} {name} is {got!r}", f"{wanted!r}", look)
            if opens is not (node == 0):
                said = {None: "has to guess whether it opens the store", True: "opens a store of its own",
                        False: "does not open the store"}[opens]
                return not_yet(f"node {node} {said}", "node 0 opens it, and no other", "`is_host` in `--rdzv-conf`")
        return None


any_world, who_waits, agent_options = AnyWorld(), WhoWaits(), AgentOptions()
