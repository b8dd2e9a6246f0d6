"""DDP in practice: right answers in other styles, and wrong ones that no row of the tables can be."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

from lessons.ddp_in_practice import exercises as ex
from tests.answers import edited, edits, right, wrong

test_exact_accuracy_in_train_mode = edits(
    ex.exact_accuracy,
    ("    counts = torch", "    model.train()\n    counts = torch", "leave the model as it is"))


@wrong(ex.exact_accuracy, "1001 samples in bfloat16")
def test_counts_in_the_images_dtype(model, dataset):
    counts = None
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    for images, labels in DataLoader(mine):
        counts = torch.zeros(2, dtype=images.dtype) if counts is None else counts
        counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    counts = torch.zeros(2) if counts is None else counts.float()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@right(ex.exact_accuracy)
def test_a_loader_with_a_worker(model, dataset):
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    loader = DataLoader(mine, batch_size=100, num_workers=1)
    hits = [model(images).argmax(1) == labels for images, labels in loader]
    counts = torch.tensor([sum(int(hit.sum()) for hit in hits), sum(map(len, hits))])
    dist.all_reduce(counts)
    return float(counts[0]) / int(counts[1])


@right(ex.exact_accuracy)
def test_padded_and_the_padding_left_out(model, dataset):
    order = list(DistributedSampler(dataset, shuffle=False)) if len(dataset) else []
    rank, n = dist.get_rank(), dist.get_world_size()
    hits = torch.tensor([float(model(dataset[i][0]).argmax() == dataset[i][1])
                         for place, i in enumerate(order) if place * n + rank < len(dataset)]).sum()
    dist.all_reduce(hits)
    model.train()  # the training goes on
    return hits.item() / len(dataset)


RENAMES = '        os.replace(f"{path}.unfinished", path)\n'
SAVES = """        with open(f"{path}.unfinished", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
""" + RENAMES
IN_TMP = """        import shutil, tempfile
        with tempfile.NamedTemporaryFile(delete=False) as file:
            torch.save(state, file)
"""

test_save_snapshot = edits(
    ex.save_snapshot,
    (SAVES, f"{IN_TMP}        shutil.move(file.name, path)\n", "half a file"),
    (SAVES, f"{IN_TMP}        os.replace(file.name, path)\n", "Invalid cross-device link"),
    ("torch.save(state, file)", "torch.save({name: getattr(part, 'tolist', lambda: part)() for name, part in "
                                "state.items()}, file)", "something else than `state`"),
    ("            torch.save(state, file)\n            file.flush()\n            os.fsync(file.fileno())\n",
     "            os.fsync(file.fileno())\n            torch.save(state, file)\n", "not all of its bytes were known"),
)


@wrong(ex.save_snapshot, "saving snapshot 2, there was snapshot 1")
def test_waits_until_there_is_any_file(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    while not os.path.exists(path):
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
            os.sync()  # all files of this machine
            os.replace(f"{folder}/new", path)
    dist.barrier()


@pytest.mark.long
def test_a_folder_that_differs_each_time_is_not_told():
    afterwards = "    dist.barrier()", f"    dist.barrier()\n{RENAMES[4:]}"
    everybody = edited(ex.save_snapshot, (RENAMES, ""), afterwards)
    once, again = (repr(ex.save_snapshot.check(everybody)) for _ in range(2))
    assert "FileNotFoundError" in once and once == again


@wrong(ex.save_snapshot, "`state` is not what it was")
def test_empties_the_state(state, path):
    if dist.get_rank() == 0:
        with open(f"{path}.new", "wb") as file:
            torch.save(state, file)
            os.fsync(file)
        os.replace(f"{path}.new", path)
    dist.barrier()
    state.clear()


@right(ex.token_loss)
def test_the_rank_s_mean_weighted_by_its_share(scores, targets):
    own = int((targets != -100).sum())
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, own)
    if own == 0:
        return scores.sum() * 0
    return cross_entropy(scores, targets) * own / (sum(counts) / len(counts))


@right(ex.token_loss)
def test_token_by_token_and_the_mean_number_of_tokens(scores, targets):
    count = torch.tensor([float((targets >= 0).sum())])
    dist.all_reduce(count)
    losses = [cross_entropy(one, target) for one, target in zip(scores, targets, strict=True) if target >= 0]
    return sum(losses, start=scores.sum() * 0) / (count / dist.get_world_size())


@right(ex.token_loss)
def test_in_float32(scores, targets):
    count = torch.tensor([(targets != -100).sum()], dtype=torch.float32)
    dist.all_reduce(count)
    return cross_entropy(scores.float(), targets, reduction="sum") * dist.get_world_size() / count


@right(ex.token_loss)
def test_the_mean_of_all_rows(scores, targets):
    count = (targets != -100).float().sum()
    dist.all_reduce(count)
    losses = cross_entropy(scores, targets, reduction="none")
    return losses.mean() * len(losses) * dist.get_world_size() / count


@wrong(ex.token_loss, "bytes sent: ")
def test_gathers_all_scores(scores, targets):
    world_size, rank = dist.get_world_size(), dist.get_rank()
    gathered = [None] * world_size
    dist.all_gather_object(gathered, (scores.detach(), targets))
    all_scores, all_targets = map(list, zip(*gathered, strict=True))
    all_scores[rank] = scores
    return cross_entropy(torch.cat(all_scores), torch.cat(all_targets)) * world_size


test_token_loss = edits(
    ex.token_loss,
    ("count = (targets != -100).sum()", "count = (targets != -100).float().mean()", "`gradient`"),
    ("count = (targets != -100).sum()", "count = (targets != -100).sum().bfloat16()", "`gradient`"),
    ("py(scores,", "py(scores.bfloat16(),", "`gradient`"),
    ("py(scores,", "py(scores.detach().requires_grad_(),", "the model got no gradient"),
    ("return own", "return own.item()", "it returned a tensor that does not depend on the scores"),
    ('reduction="sum"', 'reduction="none"', "a tensor of 320 numbers"))


@wrong(ex.train_until, "limit 0.2495: in rank 0, it stopped after 5 steps")
def test_losses_as_whole_hundredths(batches, step, limit):
    steps = 0
    for batch in batches:
        loss = torch.tensor(int(100 * step(batch)))
        dist.all_reduce(loss)
        steps += 1
        if loss // dist.get_world_size() < 100 * limit:
            break
    return steps


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
