"""The exercises of DDP in practice: exact sums over ranks, snapshots that survive, and the hangs in between."""

import contextlib
import functools
import os
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from helpers.exercises.engine import Exercise, not_yet
from helpers.exercises.group import InGroup, Lost
from helpers.instruments.files import changed_last, deaths
from helpers.instruments.hangs import dumps_of, parted
from helpers.instruments.waits import meet
from helpers.reporting import RUN_FOLDER


class ExactAccuracy(InGroup):
    title = "The exact accuracy, by all ranks together"
    task = ("Return the accuracy of `model` on the whole `dataset`, a number from 0 to 1, the same in every rank. "
            "`dataset[i]` is an image and its label; the model returns one score per class and is in eval mode. Each "
            "rank looks at its own share only, no more than an N-th, rounded up. Every sample counts exactly once, "
            "also where there are fewer samples than ranks.")
    hints = (
        "`range(rank, len(dataset), world_size)` has no padding. `torch.utils.data.Subset` takes it.",
        "Do not average averages: count right answers and samples, add up both over all ranks with one `all_reduce`, "
        "and divide at the end. A rank without samples brings two zeros, but it comes.",
    )
    explanation = ("Two sums and one division. The rank with no samples takes part in the `all_reduce` like the "
                   "others; and no sampler that pads is involved.")
    why = ("a DistributedSampler pads, so that all ranks train equally many steps. In an evaluation that counts some "
           "samples twice, and the accuracy then depends on the number of GPUs. Papers have been compared on less.")
    world_sizes = (2, 4)
    cases = {"11 samples": (11, "float32"), "3 samples": (3, "float32"), "1001 samples in bfloat16": (1001, "bfloat16")}
    waiting = "does every rank come to the collective, one without samples, too?"

    def answer(model, dataset):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Subset

        mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
        counts = torch.zeros(2)
        with torch.no_grad():
            for images, labels in DataLoader(mine, batch_size=64):
                right = model(images).argmax(1) == labels
                counts += torch.tensor([right.sum(), len(labels)])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    def probe(exact_accuracy, case):
        dataset, model, training = _Samples(*case), torch.nn.Identity().eval(), []
        model.register_forward_pre_hook(lambda module, _: training.append(module.training))
        returned = exact_accuracy(model, dataset)
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            returned = float(returned)
        value = returned if isinstance(returned, float) else type(returned).__name__
        return value, dataset.reads.tolist(), any(training)

    def judge(self, seen, case):
        n, size, answers, reads, training = len(seen), case[0], *zip(*seen, strict=True)
        each, most, rights = list(map(sum, zip(*reads, strict=True))), -(-size // n), sum(map(_is_right, range(size)))

        def hits(counts):
            return sum(count * _is_right(index) for index, count in enumerate(counts))

        def accuracy(counts):
            return hits(counts) / max(1, sum(counts))

        if any(training):
            return not_yet("the model was called in train mode", "eval mode, as it was: no dropout, and BatchNorm's "
                           "averages stay", "`model.train()`")
        for rank, read in enumerate(size - one.count(0) for one in reads):
            if read > most:
                return not_yet(f"rank {rank} read {read} of the {size} samples", f"at most {most}: its own share",
                               "which indices this rank looks at")
        if 0 in each:
            return not_yet(f"sample {each.index(0)} was read by no rank", "every sample counts once",
                           "the remainder, where the number of ranks does not divide the samples, or a batch's size a "
                           "share; and do all ranks share out the same order?")
        for rank, got in enumerate(answers):
            if isinstance(got, str):
                return not_yet(f"rank {rank} returned {got.replace('NoneType', 'None')}", "a number, the same in every "
                               "rank", "who gets the result: `all_reduce`, or only one rank?")
            if abs(got - rights / size) < 1e-6:
                continue
            twice = (f": sample {each.index(max(each))} counted {max(each)} times. `DistributedSampler` repeats "
                     "samples, so that all ranks get equally many")
            guesses = [(100 * rights / size, ", which is percent"), (accuracy(each), twice), (hits(each) / size, twice),
                       (accuracy(reads[rank]), ", the accuracy of its own share only"),
                       (hits(reads[rank]) / size, ", its own right answers alone: `reduce` gives the sum to one rank"),
                       (sum(map(accuracy, reads)) / n, ", the mean of the ranks' own accuracies, of unequal shares")]
            if 0.01 < got <= rights and abs(rights / got - round(rights / got)) < 1e-4:
                guesses.append((got, f", as {rights} of {round(rights / got)} would be"))
            if 0 <= got <= 1:
                guesses.append((round(got * size) / size, f", as {round(got * size)} of {size} would be"))
            guess = next((words for value, words in guesses if abs(got - value) < 1e-6), "")
            return not_yet(f"rank {rank} returned {got:.7g}{guess}", f"{rights / size:.7g}, {rights} of {size}",
                           "what is summed over the ranks, in which dtype, what is divided by what, and is it rounded?"
                           " Are means averaged, of batches for example?"
                           + " And what is compared with the label? `max(1)` gives scores and classes"
                           * (got == 0 or guess.endswith(f" of {size} would be")))
        return None


def _is_right(index):
    """Whether the model gets this sample right; it does sample 0, which a DistributedSampler uses for padding."""
    return index * index % 7 < 3


class _Samples:
    """A dataset that counts, in memory that worker processes share, how often each sample is read."""

    def __init__(self, size, dtype):
        self.size, self.dtype, self.reads = size, dtype, torch.zeros(size, dtype=torch.int32).share_memory_()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        self.reads[index] += 1
        scores = torch.full((3,), -2, dtype=getattr(torch, self.dtype))
        scores[(index + (not _is_right(index))) % 3] = -1
        return scores, index % 3


class SaveSnapshot(InGroup):
    title = "A snapshot that survives a crash"
    task = ("Every rank calls `save_snapshot(state, path)`. Rank 0 alone writes `state` with `torch.save`, so that "
            "`torch.load(path)` reads it. Nobody returns before the file is there. And if rank 0 dies **while** it "
            "saves, at whatever moment, or the disk is full, `path` still holds the whole snapshot from before, or the "
            "whole new one.")
    hints = (
        "Write to another name in the same folder first, then `os.replace(that, path)`: it is all or nothing.",
        "`dist.barrier()` makes the others wait for rank 0. It has to be called by all ranks: not inside the `if`.",
    )
    explanation = ("`os.replace` exchanges the file in one step; a crash before it leaves the old one, a crash after "
                   "it the new one. The barrier stands outside the `if`, so that every rank comes to it.")
    why = ("machines are preempted at any moment, and a job that saves often is likely to be caught while it does. "
           "Half a snapshot under the right name costs all of the training that came before it.")
    patience, timeout = 5, 20
    cases = {"rank 0 stopped while it saved": 0, "the first snapshot": 1, "the second snapshot": 2}
    waiting = "which ranks come to the barrier, and which do not?"

    def answer(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            torch.save(state, f"{path}.unfinished")
            os.replace(f"{path}.unfinished", path)
        dist.barrier()

    @classmethod
    def run(cls, answer, epoch, slowly):
        folder = Path(os.environ[RUN_FOLDER], "saved" if epoch else "dying")
        folder.mkdir(exist_ok=True)
        path = str(folder / "snapshot.pt")
        if not epoch:  # before the group is formed: its threads would not be there in a forked child
            return _left_by_deaths(answer, path) if os.environ["RANK"] == "0" and hasattr(os, "fork") else None

        @functools.wraps(answer)
        def looking(state):
            with changed_last(folder) as changes:
                answer(state, path)
                return _found(path), len(changes)

        return super().run(looking, epoch, slowly)

    def probe(looking, epoch):
        return looking(_state(epoch))

    def judge(self, seen, epoch):
        if not epoch:
            look = ("`os.replace` replaces and removes in one step; before it, write to another name in the same "
                    "folder, to the end: an error on the way (a full disk) leaves half of it there")
            return seen[0] and not_yet(f"there was {seen[0]}", "the whole snapshot from before, or the new one", look)
        for rank in (rank for rank, (_, changes) in enumerate(seen) if rank and changes):
            return not_yet(f"rank {rank} wrote a file", "rank 0 alone writes",
                           "who writes? On a shared disk, ranks would write over each other")
        for rank, (found, _) in enumerate(seen):
            if found != epoch and rank:
                what = "there was a file" if epoch == 1 else "the new one was there"
                return not_yet(f"rank {rank} returned before {what}", "nobody does",
                               "who waits for whom, and when? To `sleep` is to guess")
            if found != epoch:
                return not_yet(f"when rank 0 returned, there was {'the one from before' if found == 1 else found}",
                               "all of `state`, at `path`",
                               "what you write, under which name, and whether it is finished (a thread may not be)")
        return None


_NONE, _HALF = "no snapshot at all: no file at `path`", "half a file, or another that `torch.load` cannot read"


def _state(epoch):
    weights = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(epoch))
    optimizer = {"state": {0: {"momentum_buffer": weights / 2}}, "param_groups": [{"lr": 0.1 / epoch, "params": [0]}]}
    return {"epoch": epoch, "model": {"weight": weights, "seen": torch.tensor(epoch)}, "optimizer": optimizer}


def _found(path):
    """Which epoch's whole snapshot there is; or, in words, what else."""
    if not os.path.exists(path):
        return _NONE
    try:
        snapshot = torch.load(path)
    except Exception:
        return _HALF
    lacks = [f"`{key}`" for key in _state(1) if not isinstance(snapshot, dict) or key not in snapshot]
    other = f"a snapshot without {' and '.join(lacks)}" if lacks else "a snapshot with other values than `state`"
    return next((epoch for epoch in (1, 2) if _same(snapshot, _state(epoch))), other)


def _same(one, other):
    """Whether two trees of tensors and numbers are the same."""
    try:
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    except (AssertionError, TypeError):
        return False
    return True


def _left_by_deaths(answer, path):
    """What rank 0 leaves if it dies while it saves a second snapshot, or a first; None if that is always whole."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401, which registers the backend "fake"

    def left(path, *fine):
        def save():
            dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)  # collectives return at once
            with mock.patch.object(dist, "monitored_barrier"):  # the one that this backend has not
                answer(_state(2), path)

        *found, by_who_lived = [_found(path) for _ in deaths(save, Path(path).parent)]
        return next((one for one in found if isinstance(one, str) and one not in (by_who_lived, *fine)), None)

    torch.save(_state(1), path)
    return left(path) or left(f"{path}.first", _NONE)  # where there was none before, there may still be none


class Resume(InGroup):
    title = "Resume"
    task = ("Every rank calls `resume(path, model, optimizer)` before it trains. `model` is a DDP model. The snapshot "
            "at `path` is a dict: `\"model\"`, the state dict of the plain model; `\"optimizer\"`, the optimizer's; "
            "`\"epoch\"`, the last epoch that was finished. Load it and return the number of the epoch to go on "
            "with. If there is no snapshot, change nothing and return 0.")
    hints = (
        "The plain model inside a DDP model is `model.module`. Its state dict has no `module.` in its names.",
        "DDP broadcasts the weights when it is made, and never again: every rank has to load. After epoch 2 comes 3.",
    )
    explanation = ("Every rank reads the file, so that all hold the same weights and the same momentum. The "
                   "optimizer's state belongs to the training as much as the weights do.")
    why = ("a job that was restarted and begins at epoch 0 looks healthy; it has only forgotten everything. One that "
           "forgets the momentum, or loads in rank 0 only, looks healthier still.")
    cases = {"epoch 2 is finished": 2, "epoch 0 is finished": 0, "there is no snapshot": None}
    waiting = "which ranks come to the collective?"

    def answer(path, model, optimizer):
        import os

        import torch

        if not os.path.exists(path):
            return 0
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        return snapshot["epoch"] + 1

    def probe(resume, epoch):
        plain, its = _model_after(0 if epoch is None else 2)
        path = f"{os.environ[RUN_FOLDER]}/snapshot-{epoch}.pt"
        wanted = {"model": plain.state_dict(), "optimizer": its.state_dict()}
        if epoch is not None and dist.get_rank() == 0:
            torch.save({"epoch": epoch, **wanted}, path)
        dist.barrier()
        fresh, optimizer = _model_after(0)
        model = DistributedDataParallel(fresh)
        try:
            returned = resume(path, model, optimizer)
        except FileNotFoundError as error:
            raise FileNotFoundError("torch.load found no file") from error  # whose name differs every time
        dist.barrier()
        made = epoch is None and os.path.exists(path)
        has = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        other = [(part, name) for part in wanted for name in wanted[part]
                 if not _same(wanted[part][name], has[part].get(name))]
        _step(model, optimizer)
        _step(plain, its)
        return {"returned": returned if isinstance(returned, int | None) else f"a {type(returned).__name__}",
                "other": other, "made": made, "goes on": _same(model.module.state_dict(), plain.state_dict())}

    def judge(self, seen, epoch):
        wanted = 0 if epoch is None else epoch + 1
        for rank, one in enumerate(seen):
            for part, name in one["other"]:
                if epoch is None:
                    return not_yet(f"rank {rank}'s {part} has changed", "it stays as it is")
                return not_yet(f"rank {rank}'s {part} has what it had before, `{name}` for example", "what the "
                               "snapshot holds: weights, buffers, momentum, lr", "which ranks load, into what, and all "
                               "of it? `strict=False`, or an `except` for every error, hides names that do not fit")
            if one["made"]:
                return not_yet("there was no snapshot, and now there is one", "nothing is changed, on the disk either",
                               "who writes? The next start would take an untrained model for one that has been trained")
            if one["returned"] != wanted:
                again = f": it would train epoch {epoch} again" if one["returned"] == epoch else ""
                return not_yet(f"rank {rank} returned {one['returned']}{again}", f"{wanted}", "the line with `return`")
        if not all(one["goes on"] for one in seen):
            return not_yet("the model holds the snapshot, but its next step leads elsewhere", "it goes on as if there "
                           "had been no break", "the optimizer and DDP hold on to the parameters that were there: copy "
                           "into these, as `load_state_dict` does without `assign`")
        return None


def _model_after(steps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + steps), momentum=0.9)
    for _ in range(steps):
        _step(model, optimizer)
    return model, optimizer


def _step(model, optimizer):
    optimizer.zero_grad()
    model(torch.arange(8, dtype=torch.float64).view(4, 2) ** 2).pow(2).mean().backward()
    optimizer.step()


#: By rank, the loss after each step. The mean of the fourth is 0.25, that of the fifth a little less.
_LOSSES = ((0.9, 0.4, 0.3, 0.25, 0.1998, 0.1), (0.9, 0.8, 0.6, 0.25, 0.3, 0.2), (0.9, 0.75, 0.7, 0.25, 0.25, 0.2))


class TrainUntil(InGroup):
    title = "Hunt: the early stop that never ends"
    task = ("Train until it is good enough: call `step(batch)`, which returns **this rank's** loss, for one batch "
            "after the other, until the **mean** of all ranks' losses is below `limit`, or the batches are used up. "
            "Return the number of steps made. In `step` the ranks average their gradients, so all must make equally "
            "many.")
    hints = (
        "Rank 0 stops when its own loss is small. Rank 1 then waits in its next step. For whom?",
        "A decision that all ranks have to make alike must be made from the same number: average the losses with "
        "`dist.all_reduce`, in every step, in every rank, and let everybody compare that mean.",
    )
    explanation = ("The mean is the same number in all ranks, so they all stop after the same step. It costs one "
                   "all-reduce of one number.")
    why = ("every `break`, `continue` and `return` that depends on a rank's own data is a hang that waits for its day: "
           "early stopping, a NaN that is skipped, a time limit. Make the ranks agree first.")
    world_sizes = (2, 3)
    sizes = "what decides whether a rank asks the others, and goes on: is it the same in all ranks?"
    #: The limit, and how many batches there are.
    cases = {"limit 0.5": (0.5, 6), "limit 0.25": (0.25, 6), "limit 0.01": (0.01, 6), "limit 1": (1, 6),
             "no batches": (0.5, 0)}

    def answer(batches, step, limit):
        import torch
        import torch.distributed as dist

        steps = 0
        for batch in batches:
            loss = torch.tensor(float(step(batch)))
            dist.all_reduce(loss)
            steps += 1
            if loss / dist.get_world_size() < limit:
                break
        return steps

    @classmethod
    def run(cls, answer, case, slowly):
        cls.began, cls.ended = [], []
        seen = super().run(answer, case, slowly)
        if not isinstance(seen, Lost):
            return seen
        line, made = seen.lines[int(os.environ["RANK"])], len(cls.ended)
        place = f"in step {made + 1}" if len(cls.began) > made else f"at `{line}` after {made} steps"
        return seen._replace(lines=meet(f"waited in vain {place}" if line else f"had returned after {made} steps"))

    def lost(self, seen, case):
        return not_yet(", ".join(f"rank {rank} {line}" for rank, line in enumerate(seen[0].lines)),
                       "all make equally many steps",
                       "what decides whether a rank goes on: is it the same in all ranks?")

    def probe(train_until, case):
        (limit, number), rank, n = case, dist.get_rank(), dist.get_world_size()
        losses, means = _LOSSES[rank], [sum(column) / n for column in zip(*_LOSSES[:n], strict=True)]

        def step(batch):
            TrainUntil.began.append(batch)
            dist.all_reduce(torch.zeros(4))  # stands for the gradients
            TrainUntil.ended.append(batch)
            return losses[min(len(TrainUntil.ended), len(losses)) - 1]

        def stop(limit):
            return next((step for step, mean in enumerate(means[:number], start=1) if mean < limit), number)

        returned = train_until(list("abcdef"[:number]), step, limit)
        returned = returned if isinstance(returned, int | None) else type(returned).__name__
        batches, wanted = "".join(TrainUntil.ended), stop(limit)
        made = len(batches)
        if made != wanted:
            when = ("before any loss was known" if not made else
                    f"when the mean loss was {means[made - 1]:.4g}" if made < wanted else
                    f"when the mean loss had been {means[wanted - 1]:.4g} after {wanted}")
            return not_yet(f"rank {rank} stopped after {made} step{'s' * (made != 1)}, {when}", f"{wanted}",
                           "a sum of losses is no mean yet; and only the losses of this step count"
                           if made == stop(limit / n) else
                           "whose losses are averaged (those of all ranks, in this step), after which steps; and "
                           "how the mean is compared: below the limit, not equal; what is asynchronous is waited for "
                           "before it is read")
        if batches != "abcdef"[:made]:
            return not_yet(f"rank {rank} trained on the batches {batches} of abcdef", "one after the other")
        if returned != wanted:
            return not_yet(f"rank {rank} made {made} steps and returned {returned}", f"{wanted}",
                           "the line with `return`, for an early stop, too")
        return None


class WhoHangs(Exercise):
    title = "Hunt: find the culprit from the dump"
    task = ("Four ranks hang. `dumps[rank]` is what that rank's flight recorder holds: a list of dicts, one for each "
            "collective that the rank came to, the oldest first; of a long program only the last eight, of a rank "
            "that came to none an empty list. One rank is the culprit: it stays away from a collective in which all "
            "others wait, or asks for another one in its place. Return two numbers: the culprit's rank, and the "
            "`collective_seq_id` of the first collective that the others wait for in vain.")
    hints = (
        "Of each rank, look at the entries that are not `retired`: these it still waits for. The lowest number among "
        "all of them is where the ranks part company; later ones wait behind it.",
        "Ask every rank for the `profiling_name` of its entry with that number; some rank may have none. Three of the "
        "four agree. Look the number up in `collective_seq_id`: an old entry may have fallen out of the list.",
    )
    explanation = ("Collectives are numbered in the order in which a rank comes to them, and one rank's number 7 meets "
                   "number 7 of the others. So the first number that is not finished tells where to look, and who has "
                   "nothing there, or something else, is the one.")
    why = ("of a thousand ranks that hang, 999 are innocent and wait, and each of them shows the same line. The one "
           "that is elsewhere is found by comparing numbers, and torch's `torchfrtrace` does just that with the files "
           "that NCCL's watchdog leaves.")
    world_sizes = (4,)
    #: The culprit, and the collectives to which it and all others come, by their initials.
    cases = {"program 1": (2, "rrr", "rrrr"), "program 2": (1, "rgb", "rgrrr"), "program 3": (1, "", "rgr"),
             "program 4": (0, "rrg", "rrgrrr"), "program 5": (2, "rrgr" * 3, "rrgr" * 2 + "rrrb"),
             "program 6": (0, "bgrgb", "bgrrgb"), "program 7": (3, "r" * 11, "r" * 14)}

    def answer(dumps):
        waiting = [entry["collective_seq_id"] for dump in dumps for entry in dump if not entry["retired"]]
        asked = [[entry["profiling_name"] for entry in dump if entry["collective_seq_id"] == min(waiting)]
                 for dump in dumps]
        culprit = next(rank for rank, names in enumerate(asked) if asked.count(names) == 1)
        return culprit, min(waiting)

    def probe(who_hangs, program):
        returned = who_hangs(dumps_of(*program))
        try:
            rank, number = map(int, returned)
        except (TypeError, ValueError):
            return f"`{returned!r:.60}`"
        return rank, number

    def judge(self, seen, program):
        rank, number = program[0], parted(*program[1:])
        for got in seen:
            if isinstance(got, str) or got[0] not in range(4):
                return not_yet(f"it returned {got}", "two numbers: a rank, from 0 to 3, and a `collective_seq_id`",
                               "" if isinstance(got, str) else
                               "the rank comes first" if got[0] > 3 and got[1] in range(4) else
                               "a culprit that asked for another one in its place waits as well: compare names")
            if got[1] > number:
                return not_yet(f"it returned number {got[1]}, but three ranks wait in number {number} already",
                               "the first collective that the others wait for in vain", "a rank may have asked for "
                               "more before it waits: which of its entries is the first that is not `retired`? And "
                               "who asked for another one in its place is not behind")
            if got[1] < number:
                return not_yet(f"it returned number {got[1]}, but all ranks have come to that one, and finished it",
                               "a collective in which ranks wait", "`retired`; and the place of an entry in its list, "
                               "which is not its number")
            if got[0] != rank:
                return not_yet(f"it returned rank {got[0]} and number {number}: that rank came to this collective, as "
                               "two others did", "the one that did not, or that asked for another one there",
                               "each rank's entry with that `collective_seq_id`, which is no place in the list: is it "
                               "there, and what is its `profiling_name`?")
        return None


exact_accuracy, resume, save_snapshot = ExactAccuracy(), Resume(), SaveSnapshot()
train_until, who_hangs = TrainUntil(), WhoHangs()
