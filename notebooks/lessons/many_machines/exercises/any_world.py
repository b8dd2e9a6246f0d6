"""A training loop whose numbers do not depend on how many ranks there are: all belongs to a slot of the batch."""

from collections import Counter

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, holds, nothing, same

#: Of a batch: they divide evenly among none of the `world_sizes`.
SLOTS = 5


def next_number(state):
    """The random number that a generator in this state gives next: one can be read in feedback, a state cannot."""
    generator = torch.Generator()
    generator.set_state(state)
    return torch.rand((), generator=generator).item()


class AnyWorld(InGroup):
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
    hints = (
        "`range(rank, slots, world_size)` shares out evenly. How many ranks there are must not change "
        "the weight of a slot: divide by `slots`, and sum over the ranks.",
        "`torch.get_rng_state()`, `torch.set_rng_state(state)`, around a slot's loss and its backward.",
        "`dist.all_gather_object` collects a dict from each rank.",
    )
    explanation = ("All that decides about the numbers belongs to a slot: its images, its random state, its "
                   "weight of one in `slots`. Ranks only share out the work.")
    why = ("torchrun may restart your script with more or fewer ranks at any moment. A training whose result "
           "depends on how many there were cannot be compared with itself.")

    world_sizes = (2, 3)

    def answer(net, optimizer, loss_of, steps, slots, random):
        import torch
        import torch.distributed as dist

        mine = range(dist.get_rank(), slots, dist.get_world_size())                         #: share
        for step in steps:
            optimizer.zero_grad()                                                           #: clear
            for slot in mine:
                torch.set_rng_state(random[slot])
                (loss_of(step, slot) / slots).backward()                                    #: backward
                random[slot] = torch.get_rng_state()                                        #: keep
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)                                             #: add
            optimizer.step()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, {slot: random[slot] for slot in mine})
        return {slot: state for part in parts for slot, state in part.items()}              #: collected

    def observe(any_world, case):
        torch.manual_seed(0)
        net = torch.nn.ModuleDict({name: torch.nn.Linear(SLOTS, 1, bias=False).double() for name in ("once", "drawn")})
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        states = {slot: torch.Generator().manual_seed(slot).get_state() for slot in range(SLOTS)}
        calls = []
        weights = []
        numbers = []
        gradients = []
        not_returned = set()

        def note_gradients(*_):
            once, drawn = (torch.zeros(SLOTS) if layer.weight.grad is None else layer.weight.grad.flatten()
                           for layer in net.values())
            gradients.append(once.tolist() + drawn.tolist())
            weights.append({f"slot {slot}": once[slot].item() for slot in range(SLOTS)})
            numbers.append({f"slot {slot}": (drawn[slot] / once[slot]).item() for slot in range(SLOTS)})

        def loss_of(step, slot):  # the gradients of a slot's two inputs: its weight, and that times a random number
            calls.append((step, slot))
            own = torch.nn.functional.one_hot(torch.tensor(slot), SLOTS).double()
            return (net["once"](own) + torch.randint(1, 10, ()) * net["drawn"](own)).sum()

        optimizer.register_step_pre_hook(note_gradients)
        for steps in (range(3, 5), range(5, 7)):  # twice, as before and after a restart
            returned = any_world(net, optimizer, loss_of, steps, SLOTS, dict(states)) or {}
            not_returned |= states.keys() - returned.keys()
            states |= {slot: state.clone() for slot, state in returned.items()}  # a generator crashes on a table's row
        slots_by_step = Counter(step for step, slot in set(calls))
        return {
            "slots whose state it did not return": sorted(not_returned),
            "most slots in a step": max(slots_by_step.values(), default=0),
            "a share, rounded up": -(-SLOTS // dist.get_world_size()),
            "calls": calls,
            "steps of the optimizer": len(gradients),
            "gradients": gradients,
            "each step's weight of each slot": weights,
            "each step's random number of each slot": numbers,
            "weights": parameters_to_vector(net.parameters()).tolist(),
            "next random number of each slot": [next_number(state) for state in states.values()],
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = "every rank sums the same tensors, equally often, however many slots it has"
    shares = "each slot is one rank's work, once in each item of `steps`; and there are more slots than ranks"

    def each_slot_once(mine, wanted, case):
        times = Counter()
        right_times = Counter()
        for rank, right in zip(mine, wanted, strict=True):
            times.update(rank["calls"])
            right_times.update(right["calls"])
        for step, slot in sorted({*times, *right_times}):
            if times[step, slot] != right_times[step, slot]:
                return (f"in step {step}, `loss_of` was called {times[step, slot]} times for slot {slot}",
                        "once for each slot, in each of the steps, by all ranks together")

    def ranks_step_alike(mine, wanted, case):
        first, *others = [rank["gradients"] for rank in mine]
        for rank, gradients in enumerate(others, 1):
            if gradients != first:
                return (f"the gradients of ranks 0 and {rank} differ at an `optimizer.step()`",
                        "the same in all ranks, for every parameter")

    rules = (
        nothing("slots whose state it did not return",
                "in the next world another rank may have that slot: how does it get the slot's state?",
                "the states of all slots, in every rank"),
        between("most slots in a step", lambda wanted, case: (0, wanted["a share, rounded up"]), shares),
        holds(each_slot_once, shares),
        same("steps of the optimizer", "one in each step, when the gradients of all slots are summed"),
        same("each step's weight of each slot", within=1e-9,
             look="in the mean, each slot weighs 1 / `slots`: at each `optimizer.step()`, in every rank"),
        holds(ranks_step_alike, "which parameters' gradients are summed over the ranks?"),
        same("each step's random number of each slot", within=1e-9,
             look="a slot's loss begins with the random state that the slot's last one has left"),
        same("weights", "one `optimizer.step()` in each step changes them, and nothing else", within=1e-9),
        same("next random number of each slot", "is a slot's state that of the rank that worked for it?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("every rank works for all slots: which are this rank's?", share="mine = range(slots)"),
        mistake("there are more slots than ranks", share="mine = [dist.get_rank()]"),
        mistake("the sum of the losses is 5 times their mean", backward="loss_of(step, slot).backward()"),
        mistake("shares are uneven: then the slots of a small share weigh more",
                backward="(loss_of(step, slot) / len(mine)).backward()"),
        mistake("a step's gradient still holds those of the steps before", clear=""),
        mistake("a slot draws the same numbers in each step: keep the state that its loss has left", keep=""),
        mistake("a rank computes for its own slots only: who sums?", add=""),
        mistake("each loss is divided by `slots`: the sum over the ranks is the mean already",
                add="dist.all_reduce(parameter.grad)\nparameter.grad /= dist.get_world_size()"),
        mistake("a rank knows the states of its own slots only: collect them", collected="return random"),
    )


any_world = AnyWorld()
