"""A hunt: a child trains a copy on its device, and the copy ends with the child."""

import copy

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each
from lessons.processes.exercises.trained_model import trained, values

ON_DEVICE = "the copy on the device"


class BringItHome(Exercise):
    title = "Repair the lost training"
    task = ("You are the child again. `model` lies in memory that you share with your parent. "
            "`to_device(model)` returns a copy in the device's own memory, like "
            "`copy.deepcopy(model).to(device)`. `train(copy)` trains such a copy. Train on the device, "
            "once. Then leave all of the trained weights where the parent has its model.")
    hints = (
        "`train(to_device(model))` alone is the bug: the trained copy ends with the child. Keep the "
        "copy under a name.",
        "The shared memory belongs to the tensors of `model`. Which method of a module copies values "
        "into the tensors that it has already?",
    )
    explanation = ("`load_state_dict` copies each value into the tensors that are there, buffers included, "
                   "so the parent sees them. `assign=True` or `parameter.data = …` would give `model` other "
                   "tensors.")
    why = ("moving a model to a device makes a copy, and somebody has to bring the copy back: by shared "
           "memory as here, or through a queue. DistributedDataParallel does not do that for you. It keeps the "
           "ranks' copies equal, so it is enough that one rank brings its copy home.")

    timeout = 10

    def answer(model, to_device, train):
        copy = to_device(model)                         #: copy
        train(copy)                                     #: train
        model.load_state_dict(copy.state_dict())        #: load

    def observe(bring_it_home, case):
        model = trained().share_memory()
        before = values(model)
        parents = model.state_dict()  # other tensors, on the same memory
        memory = {tensor.data_ptr() for tensor in parents.values()}
        versions = [tensor._version for tensor in parents.values()]
        copies = []
        calls = []

        def to_device(module):
            copies.append(copy.deepcopy(module))
            return copies[-1]

        def train(module):
            tensors = module.state_dict().values()
            if any(tensor.data_ptr() in memory for tensor in tensors):
                calls.append("the shared model")
            elif any(module is on_device for on_device in copies):
                calls.append(ON_DEVICE)
            else:
                calls.append("another copy")
            for tensor in tensors:
                tensor += 1

        returned = bring_it_home(model, to_device, train)

        return {
            "trained": calls,
            "before": before,
            "in the parent": {name: tensor.tolist() for name, tensor in parents.items()},
            "in the child": values(model),
            # No rule asks for what follows. It tells mistakes apart that leave the parent's weights as they were.
            "written into `model`": [tensor._version for tensor in parents.values()] != versions,
            "on the device": [values(on_device) for on_device in copies],
            "returned": type(returned).__name__,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def not_trained_once(mine, wanted, case):
        calls = mine["trained"]
        if len(calls) != 1:
            return f"`train` was called {len(calls)} times", f"once, with {ON_DEVICE}"
        if calls != [ON_DEVICE]:
            return f"`train` was applied to {calls[0]}", f"`train(…)` with what `to_device` returned, {ON_DEVICE}"

    def not_at_home(mine, wanted, case):
        expected = "the weights of the copy, trained once, in the memory that child and parent share"
        for name, right in wanted["in the parent"].items():
            weights = mine["in the parent"][name]
            if weights == right:
                continue
            if mine["in the child"][name] == right:
                return f"the child's `{name}` has the trained weights, but in other memory", expected
            if weights == mine["before"][name]:
                return f"`{name}` in the parent still has the weights from before", expected
            return f"`{name}` in the parent has neither the old nor the trained weights", expected

    rules = (
        each(not_trained_once, "what do you give to `train`, and how often?"),
        each(not_at_home, "write the values of the trained copy into the tensors of `model`, parameters and buffers, "
                          "after training"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("the trained copy ends with the child. In which tensors does the parent look?",
                copy="", train="train(to_device(model))", load=""),
        mistake("nobody gets what a child returns. Write the values into `model`", load="return copy"),
        mistake("which way round? `model` loads from the copy", load="copy.load_state_dict(model.state_dict())"),
        mistake("`parameters()` leaves the buffers out",
                load="for mine, new in zip(model.parameters(), copy.parameters()):\n"
                     "    mine.data.copy_(new)"),
        mistake("`assign=True` and `.data = …` give `model` other tensors. Copy values into the tensors that it has",
                load="model.load_state_dict(copy.state_dict(), assign=True)"),
        mistake("the device has its own memory. Train what `to_device` has returned", train="train(model)"),
        mistake("load after training, not before",
                train="model.load_state_dict(copy.state_dict())", load="train(copy)"),
    )


bring_it_home = BringItHome()
