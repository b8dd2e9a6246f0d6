"""DDP in practice: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
exact_accuracy   counts in a dtype that is too small; shares that nearly agree; a loader with workers, objects are right
save_snapshot    saves half of it; a crash between two calls, or in a copy; `sleep` to wait; prints and stores are right
resume           half of it loaded; parameters replaced, so that nobody trains them; epoch 0; loaded once, and sent
train_until      a mean that equals the limit; a limit at once or never reached; no batches; any way to agree is right
who_hangs        guesses; the shortest list, the last entry, a place taken for a number; comparing names alone is right
"""

import os
import shutil
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset

from lessons.ddp_in_practice import exercises as ex
from tests.answers import edited, edits, right, wrong

test_exact_accuracy = edits(
    ex.exact_accuracy,
    ("all_reduce(counts)", "reduce(counts, 0)\n    counts[1] = len(dataset)", "its own right answers alone"),
    ("DataLoader(mine, batch_size=64)", "DataLoader(dataset, sampler=torch.utils.data.DistributedSampler(dataset))",
     "`DistributedSampler` repeats"),
    ("range(dist.get_rank(), len(dataset), dist.get_world_size())", "range(len(dataset))", "read 11 of the 11 samples"),
    ("dist.all_reduce(counts)", "dist.reduce(counts, 0)", "rank 1 returned"),
    ("(counts[0] / counts[1]).item()", "round((counts[0] / counts[1]).item(), 5)", "is it rounded?"),
    ("    return (counts", "    if dist.get_rank() == 0:\n        return (counts", "rank 1 returned None"),
    ("    dist.all_reduce(counts)\n", "", "its own share only"),
    ("dist.all_reduce(counts)", "dist.all_reduce(counts, async_op=True)", "never waited for it"),
    ("(counts[0] / counts[1])", "(100 * counts[0] / counts[1])", "percent"),
    ("(counts[0] / counts[1])", "(counts[0] / (counts[1] + 1))", "as 8 of 12 would be"),
    ("argmax(1)", "max(1)[0]", "`max(1)` gives scores and classes"),
    ("    dist.all_reduce(counts)\n    return (counts[0] / counts[1]).item()",
     "    own = counts[0] / counts[1].clamp(min=1)\n    dist.all_reduce(own)\n"
     "    return (own / dist.get_world_size()).item()",
     "the mean of the ranks' own accuracies"),
    ("    counts = torch.zeros(2)\n",
     "    counts = torch.zeros(2)\n    if dist.get_rank() >= len(dataset):\n        return 0.0\n",
     "4 ranks, 3 samples: rank 0 waited in vain at `dist.all_reduce(counts)`"),
    ("range(dist.get_rank(), len(dataset), dist.get_world_size())",
     "range(dist.get_rank(), len(dataset) // dist.get_world_size() * dist.get_world_size(), dist.get_world_size())",
     "sample 10 was read by no rank"),
    ("range(dist.get_rank(), ", "range(dist.get_rank() + 1, ", "sample 0 was read by no rank"),
    ("DataLoader(mine, batch_size=64)", "DataLoader(mine, batch_size=64, drop_last=True)", "was read by no rank"),
    ("torch.zeros(2)", "torch.zeros(2, dtype=torch.bfloat16)", "in which dtype"),
    ("torch.zeros(2)", "torch.zeros(2, dtype=torch.uint8)", "1001 samples in bfloat16: rank 0 returned"),
    ("argmax(1)", "argmax(0)", "Error"),
    ("(counts[0] / counts[1]).item()", "counts.tolist()", "returned list"),
    ("    counts = torch", "    model.train()\n    counts = torch", "the model was called in train mode"),
    ((("DataLoader(mine, batch_size=64)", "DataLoader(dataset, sampler=torch.utils.data.DistributedSampler(dataset))"),
      ("counts[1]", "len(dataset)")), "`DistributedSampler` repeats"),
    ("dist.all_reduce(counts)", "dist.all_reduce(counts)\n    counts[1] = len(mine)", "1.333333, as 8 of 6 would be"),
    ("model(images).argmax(1) == labels", "(model(images).topk(2).indices == labels[:, None]).any(1)",
     "as 9 of 11 would be"),
)


@wrong(ex.exact_accuracy, "1001 samples in bfloat16")
def test_counts_in_the_images_dtype(model, dataset):
    counts = None
    for images, labels in DataLoader(Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))):
        counts = torch.zeros(2, dtype=images.dtype) if counts is None else counts
        counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    counts = torch.zeros(2) if counts is None else counts.float()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@right(ex.exact_accuracy)
def test_a_loader_with_a_worker(model, dataset):
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    hits = [model(images).argmax(1) == labels for images, labels in DataLoader(mine, batch_size=100, num_workers=1)]
    counts = torch.tensor([sum(int(hit.sum()) for hit in hits), sum(map(len, hits))])
    dist.all_reduce(counts)
    return float(counts[0]) / int(counts[1])


@right(ex.exact_accuracy)
def test_blocks_one_by_one_and_objects(model, dataset):
    rank, n, size = dist.get_rank(), dist.get_world_size(), len(dataset)
    hits = [model(dataset[i][0]).argmax() == dataset[i][1] for i in range(rank * size // n, (rank + 1) * size // n)]
    everyones = [None] * n
    dist.all_gather_object(everyones, [bool(hit) for hit in hits])
    return torch.tensor([hit for hits in everyones for hit in hits]).double().mean()


@right(ex.exact_accuracy)
def test_padded_and_the_padding_left_out(model, dataset):
    order = list(DistributedSampler(dataset, shuffle=False)) if len(dataset) else []
    rank, n = dist.get_rank(), dist.get_world_size()
    hits = torch.tensor([float(model(dataset[i][0]).argmax() == dataset[i][1])
                         for place, i in enumerate(order) if place * n + rank < len(dataset)]).sum()
    dist.all_reduce(hits)
    model.train()  # the training goes on
    return hits.item() / len(dataset)


# ------------------------------------------------------------------------------------------------------ save_snapshot

replaces = "        os.replace(f\"{path}.unfinished\", path)\n"
saves = "        torch.save(state, f\"{path}.unfinished\")\n"

test_save_snapshot = edits(
    ex.save_snapshot,
    (saves + replaces, "        torch.save(state, path)\n", "rank 0 stopped while it saved: there was half a file"),
    (saves + replaces, "        with open(path, 'wb') as file:\n            torch.save(state, file)\n", "half a file"),
    (saves + replaces, "        import shutil\n        if os.path.exists(path):\n"
     "            shutil.copy(path, f'{path}.old')\n        torch.save(state, path)\n", "half a file"),
    (replaces, "        import shutil\n        shutil.copy(f\"{path}.unfinished\", path)\n", "half a file"),
    (replaces, "        open(path, 'wb').write(open(f\"{path}.unfinished\", 'rb').read())\n", "half a file"),
    (saves, "        if os.path.exists(path):\n            os.remove(path)\n" + saves, "no snapshot at all"),
    (replaces,
     "        if os.path.exists(path):\n            os.remove(path)\n        os.rename(f\"{path}.unfinished\", path)\n",
     "no snapshot at all"),
    (replaces,
     "        import pathlib\n        if os.path.exists(path):\n            pathlib.Path(path).rename(f'{path}.old')\n"
     + replaces, "no snapshot at all"),
    ("    dist.barrier()", "        dist.barrier()", "the first snapshot: rank 0 waited in vain at `dist.barrier()`"),
    ("    dist.barrier()", "    pass", "the first snapshot: rank 1 returned before there was a file"),
    ("    dist.barrier()", "    dist.barrier(async_op=True)", "never waited for it"),
    ("    dist.barrier()", "    import time\n    time.sleep(3)", "rank 1 returned before there was a file"),
    ("    dist.barrier()", "    import threading\n    threading.Event().wait(5)", "rank 1 returned before there was a"),
    ((("    dist.barrier()", "    pass"), ("    if dist", "    dist.barrier()\n    if dist")),
     "rank 1 returned before there"),
    (saves + replaces, saves + "    dist.barrier()\n    if dist.get_rank() == 0:\n" + replaces + "    return\n",
     "rank 1 returned before there was a file"),
    ("    if dist.get_rank() == 0:\n" + saves + replaces,
     "    own = f\"{path}.{dist.get_rank()}\"\n    torch.save(state, own)\n    os.replace(own, path)\n",
     "rank 1 wrote a file"),
    ("if dist.get_rank() == 0", "if dist.get_rank() == 1", "rank 1 wrote a file"),
    (saves + replaces, "        if os.path.exists(path):\n    " + saves + "    " + replaces
     + "        else:\n            torch.save(state, path)\n", "half a file"),
    ((("        os.replace", "        pass\n    dist.barrier()\n    if dist.get_rank() == 1:\n        os.replace"),),
     "rank 1 wrote a file"),
    (replaces, "", "the first snapshot: when rank 0 returned, there was no snapshot at all: no file at `path`"),
    (replaces, "        if not os.path.exists(path):\n    " + replaces,
     "rank 0 returned, there was the one from before"),
    ("torch.save(state, ", "torch.save(state['model'], ", "a snapshot without `epoch`"),
    ("torch.save(state, ", "torch.save({k: state[k] for k in ('epoch', 'model')}, ", "without `optimizer`"),
    ("torch.save(state, ", "torch.save({**state, 'optimizer': {}}, ", "other values than `state`"),
    ("torch.save(state, f\"{path}.unfinished\")", "__import__('pickle').dump(state, open(f'{path}.unfinished', 'wb'))",
     "`torch.load` cannot read"),
    (saves + replaces, "        import shutil, tempfile\n"
     "        with tempfile.NamedTemporaryFile(delete=False) as file:\n            torch.save(state, file)\n"
     "        shutil.move(file.name, path)\n", "half a file"),
    (saves + replaces, "        import tempfile\n        with tempfile.NamedTemporaryFile(delete=False) as file:\n"
     "            torch.save(state, file)\n        os.replace(file.name, path)\n", "Invalid cross-device link"),
    (saves + replaces, "        try:\n    " + saves + "        finally:\n    " + replaces, "an error on the way"),
    ((("    if dist.get_rank() == 0:\n", "    dist.monitored_barrier()\n    if dist.get_rank() == 0:\n"),
      (saves + replaces, "        torch.save(state, path)\n")), "half a file"),
)


@wrong(ex.save_snapshot, "rank 0 stopped while it saved: there was a snapshot with other values than `state`")
def test_writes_over_the_old_one(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        if os.path.exists(path):
            with open(path, "r+b") as file, open(f"{path}.new", "rb") as new:
                file.write(new.read())
                file.truncate()
        else:
            os.rename(f"{path}.new", path)
    dist.barrier()


@wrong(ex.save_snapshot, "the second snapshot: rank 1 returned before the new one was there")
def test_waits_until_there_is_any_file(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    while not os.path.exists(path):
        time.sleep(0.01)


@wrong(ex.save_snapshot, "rank 1 returned before there was a file")
def test_looks_a_few_times(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    for _ in range(1000):
        if os.path.exists(path):
            break
        time.sleep(0.01)


@right(ex.save_snapshot)
def test_through_pathlib_and_a_broadcast(state, path):
    from pathlib import Path

    print("saving " * 20_000)
    done = [False]
    if dist.get_rank() == 0:
        with open(f"{path}.new", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        Path(f"{path}.new").replace(path)
        done = [True]
    dist.broadcast_object_list(done, 0)


@right(ex.save_snapshot)
def test_in_a_folder_of_its_own(state, path):
    import os
    import tempfile

    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
            torch.save(state, f"{folder}/new")
            os.replace(f"{folder}/new", path)
    dist.barrier()


@right(ex.save_snapshot)
def test_a_message_to_each(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        if os.path.exists(path):
            shutil.copy(path, f"{path}.backup")
        shutil.move(f"{path}.new", path)
        for other in range(1, dist.get_world_size()):
            dist.send(torch.zeros(1), other)
    else:
        dist.recv(torch.zeros(1), 0)


@right(ex.save_snapshot)
def test_a_link_to_the_newest(state, path):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.{state['epoch']}")
        os.symlink(f"{path}.{state['epoch']}", f"{path}.link")
        os.rename(f"{path}.link", path)
    dist.monitored_barrier()


@right(ex.save_snapshot)
def test_through_the_store(state, path):
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
        store.set(f"saved {state['epoch']}", "yes")
    store.get(f"saved {state['epoch']}")


# ------------------------------------------------------------------------------------------------------------- resume

loads = "    optimizer.load_state_dict(snapshot[\"optimizer\"])\n"

test_resume = edits(
    ex.resume,
    ("        return 0", "        torch.distributed.barrier()\n        open(path, 'w').close()\n        return 0",
     "and now there is one"),
    ("model.module.load", "model.load", "Missing key(s)"),
    ((("model.module.load", "model.load"), ("snapshot[\"model\"])", "snapshot[\"model\"], strict=False)")),
     "epoch 2 is finished: rank 0's model has what it had before, `0.weight` for example"),
    ("    model.module.load", "    if not int(os.environ['RANK']):\n        model.module.load",
     "rank 1's model has what it had before"),
    (loads, "    if not int(os.environ['RANK']):\n    " + loads, "rank 1's optimizer has what it had before"),
    (loads, "", "optimizer has what it had before, `state`"),
    (loads, "    optimizer.state.update(snapshot['optimizer']['state'])\n", "rank 0's optimizer"),
    (loads, "    optimizer.load_state_dict({**optimizer.state_dict(), 'state': snapshot['optimizer']['state']})\n",
     "optimizer has what it had before, `param_groups`"),
    (loads, "    optimizer.load_state_dict({**snapshot['optimizer'], 'state': {}})\n",
     "optimizer has what it had before, `state`"),
    ("    model.module.load_state_dict(snapshot[\"model\"])",
     "    for name, one in model.module.named_parameters():\n        one.data.copy_(snapshot['model'][name])",
     "`0.running_mean` for example"),
    ("snapshot[\"model\"])", "snapshot[\"model\"], assign=True)", "its next step leads elsewhere"),
    (" + 1", "", "epoch 2 is finished: rank 0 returned 2: it would train epoch 2 again"),
    ("snapshot[\"epoch\"] + 1", "snapshot['epoch'] and snapshot['epoch'] + 1",
     "epoch 0 is finished: rank 0 returned 0: it"),
    ("snapshot[\"epoch\"] + 1", "3", "epoch 0 is finished: rank 0 returned 3"),
    ("    if not os.path.exists(path):\n        return 0\n", "", "there is no snapshot: torch.load found no file"),
    ("return 0", "return None", "there is no snapshot: rank 0 returned None"),
    ("        return 0", "        torch.nn.init.zeros_(model.module[0].weight)\n        return 0",
     "rank 0's model has changed"),
    ("    return snapshot[\"epoch\"] + 1", "", "returned None"),
    ("    return snapshot",
     "    import torch.distributed as dist\n    if dist.get_rank() == 0:\n        dist.barrier()\n    return snapshot",
     "rank 0 waited in vain at `dist.barrier()`, rank 1 had returned"),
)


@right(ex.resume)
def test_loads_into_the_wrapper_with_its_names(path, model, optimizer):
    try:
        snapshot = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return 0
    model.load_state_dict({f"module.{name}": tensor for name, tensor in snapshot["model"].items()})
    optimizer.load_state_dict(snapshot["optimizer"])
    return int(snapshot["epoch"]) + 1


@right(ex.resume)
def test_rank_0_reads_and_sends_it_to_all(path, model, optimizer):
    box = [torch.load(path, weights_only=False) if dist.get_rank() == 0 and os.path.isfile(path) else None]
    dist.broadcast_object_list(box, src=0)
    if box[0] is None:
        return 0
    with torch.no_grad():
        for name, tensor in model.module.state_dict().items():
            tensor.copy_(box[0]["model"][name])
    optimizer.load_state_dict(box[0]["optimizer"])
    return box[0]["epoch"] + 1


# -------------------------------------------------------------------------------------------------------- train_until

test_train_until = edits(
    ex.train_until,
    (" / dist.get_world_size()", "", "a sum of losses is no mean yet"),
    ((("        dist.all_reduce(loss)\n", ""), (" / dist.get_world_size()", "")),
     "2 ranks, limit 0.5: rank 0 had returned after 2 steps, rank 1 waited in vain in step 3"),
    ((("dist.all_reduce(loss)", "dist.broadcast(loss, 0)"), (" / dist.get_world_size()", "")),
     "rank 0 stopped after 2 steps, when the mean loss was 0.6"),
    ((("        dist.all_reduce(loss)\n", ""), (" / dist.get_world_size()", ""),
      ("            break\n", "            break\n        dist.all_reduce(loss)\n")),
     "rank 0 had returned after 2 steps, rank 1 waited in vain at `dist.all_reduce(loss)` after 2 steps"),
    ("            break\n", "            pass\n",
     "limit 0.5: rank 0 stopped after 6 steps, when the mean loss had been 0.45 after 3"),
    ((("dist.all_reduce(loss)", "dist.all_reduce(loss, op=dist.ReduceOp.MAX)"), (" / dist.get_world_size()", "")),
     "stopped after 4 steps, when the mean loss had been 0.45 after 3"),
    ("dist.get_world_size()", "2", "3 ranks, limit 0.25: rank 0 stopped after 6"),
    (" / dist.get_world_size()", "", "limit 0.5: rank 0 stopped after 5 steps"),
    ("    steps = 0\n", "    return 0\n", "stopped after 0 steps, before any loss was known"),
    ("< limit", "<= limit", "limit 0.25: rank 0 stopped after 4 steps, when the mean loss was 0.25"),
    ("< limit", "<= limit", "below the limit, not equal"),
    ("in batches:", "in batches * 2:", "limit 0.01: rank 0 stopped after 12 steps"),
    ("loss / dist.get_world_size() < limit", "loss / dist.get_world_size() < limit and steps > 1",
     "limit 1: rank 0 stopped after 2"),
    ("    return steps", "", "returned None"),
    ("break", "return", "returned None"),
    ("        steps += 1\n", "", "made 3 steps and returned 0"),
    ("in batches", "in batches[::-1]", "trained on the batches fed of abcdef"),
    ("in batches", "in batches[:-1]", "limit 0.01: rank 0 stopped after 5 steps"),
    ("    steps = 0\n", "", "Error"),
    ("all_reduce(loss)", "all_reduce(loss, async_op=True)", "never waited for it"),
    ("        dist.all_reduce(loss)\n",
     "        if steps % 2:\n            dist.all_reduce(loss)\n        else:\n"
     "            loss *= dist.get_world_size()\n",
     "rank"),
)


@right(ex.train_until)
def test_rank_0_collects_and_decides(batches, step, limit):
    for made, batch in enumerate(batches, start=1):
        losses = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(step(batch), losses)
        stop = [losses is not None and sum(losses) / len(losses) < limit]
        dist.broadcast_object_list(stop, 0)
        if stop[0]:
            return made
    return len(batches)


@right(ex.train_until)
def test_agrees_on_stopping(batches, step, limit):
    made, going, n = 0, bool(batches), dist.get_world_size()
    while going:
        losses = [torch.zeros(1, dtype=torch.float64) for _ in range(n)]
        dist.all_gather(losses, torch.tensor([step(batches[made])], dtype=torch.float64), async_op=True).wait()
        made += 1
        going = torch.cat(losses).mean() >= limit and made < len(batches)
    return made


# ---------------------------------------------------------------------------------------------------------- who_hangs

unique = "next(rank for rank, names in enumerate(asked) if asked.count(names) == 1)"

test_who_hangs = edits(
    ex.who_hangs,
    ("    waiting", "    dumps = [dump for dump in dumps if dump]\n    waiting", "program 3"),
    ("return culprit, min(waiting)", "return culprit, max(waiting)", "three ranks wait in number 3 already"),
    (unique, "min(range(4), key=lambda rank: len(dumps[rank]))", "program 5: it returned rank 0 and number 11"),
    (unique, "next(rank for rank, names in enumerate(asked) if not names)", "StopIteration"),
    ("return culprit, min(waiting)", "return culprit, 1 + min(map(len, dumps))", "program 2: it returned number 4"),
    ("return culprit, min(waiting)", "return [rank for rank in range(4) if rank != culprit][0], min(waiting)",
     "program 1: it returned rank 0 and number 4: that rank came to this collective, as two others did"),
    ("return culprit, min(waiting)", "return min(waiting), culprit", "the rank comes first"),
    ("return culprit, min(waiting)", "return culprit", "program 1: it returned `2`"),
    ("return culprit, min(waiting)", "print(culprit, min(waiting))", "it returned `None`"),
)


@wrong(ex.who_hangs, "program 2: it returned number 5, but three ranks wait in number 3 already")
def test_where_the_ranks_wait_last(dumps):
    last = [dump[-1]["collective_seq_id"] if dump else 0 for dump in dumps]
    return last.index(min(last)), max(last)


@wrong(ex.who_hangs, "program 5: it returned number 7")
def test_the_place_in_the_list_for_the_number(dumps):
    rows = [[dump[place]["profiling_name"] if place < len(dump) else "" for dump in dumps] for place in range(20)]
    place, names = next(((place, names) for place, names in enumerate(rows) if len(set(names)) > 1), (0, "abcd"))
    return next(rank for rank in range(4) if names.count(names[rank]) == 1), place + 1


@right(ex.who_hangs)
def test_compares_names_number_by_number(dumps):
    by_number = [{entry["collective_seq_id"]: (entry["profiling_name"], str(entry["input_sizes"])) for entry in dump}
                 for dump in dumps]
    begins = max(min(names, default=1) for names in by_number)
    for number in range(begins, 100):
        asked = [names.get(number) for names in by_number]
        for rank in range(4):
            if asked.count(asked[rank]) == 1:
                return torch.tensor([rank, number])


@right(ex.who_hangs)
def test_as_a_table(dumps):
    from collections import Counter

    first = min(next((e["collective_seq_id"] for e in dump if not e["retired"]), 10 ** 9) for dump in dumps)
    names = [next((e["profiling_name"] for e in dump if e["collective_seq_id"] == first), "absent") for dump in dumps]
    return [names.index(Counter(names).most_common()[-1][0]), first]


@right(ex.save_snapshot)
def test_arguments_by_name(state, path):
    if dist.get_rank() == 0:
        torch.save(obj=state, f=f"{path}.new")
        os.replace(src=f"{path}.new", dst=path)
    dist.barrier()


def test_a_folder_that_differs_each_time_is_not_told():
    everybody = edited(ex.save_snapshot, (replaces, ""), ("    dist.barrier()", "    dist.barrier()\n    os.replace("
                                                          "f\"{path}.unfinished\", path)"))
    once, again = (repr(ex.save_snapshot.check(everybody)) for _ in range(2))
    assert "FileNotFoundError" in once and once == again
