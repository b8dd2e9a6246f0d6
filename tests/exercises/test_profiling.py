"""Profiling: right answers in other styles, and wrong ones that no row of the tables can be."""

import re
from textwrap import indent

from lessons.profiling import exercises as ex
from tests.answers import edited, edits, right, wrong

test_profile_the_loop = edits(
    ex.profile_the_loop,
    ("prof.step()", "batch = torch.randn(64, 64) @ torch.randn(64, 64); prof.step()",
     "step 2 also holds aten::randn"),
    ("enumerate(batches,", "enumerate(iter(lambda: batches and batches.pop(0), []),",
     "afterwards `batches` holds nothing"),
    ("number % 2", "(number + 1) % 2", "after batch a the training did update"),
    ("batches, start=1", "batches[:10], start=1", "after update the training did nothing"),
)


@wrong(ex.profile_the_loop, "step 0 holds nothing")
def test_labels_around_nothing(prof, batches, accumulate, update):
    from torch.profiler import record_function

    for number, batch in enumerate(batches):
        accumulate(batch)
        if number % 2:
            update()
    with prof:
        for number in range(len(batches) // 2):
            with record_function(f"batch {number}"):
                pass
            prof.step()


@wrong(ex.profile_the_loop, "step 0 holds batch a then batch b then update then batch c then")
def test_a_warm_up_around_nothing(prof, batches, accumulate, update):
    with prof:
        for number, batch in enumerate(batches, start=1):
            accumulate(batch)
            if number % 2 == 0:
                update()
                if number == 4:
                    prof.step()
                if number >= 4:
                    prof.step()


@wrong(ex.profile_the_loop, "step 0 holds nothing")
def test_an_update_before_the_profiler(prof, batches, accumulate, update):
    for number, batch in enumerate(batches, start=1):
        accumulate(batch)
        if number % 2 == 0:
            update()
            if number == 2:
                prof.start()
            prof.step()
    prof.stop()


@wrong(ex.profile_the_loop, "no trace was written")
def test_a_profiler_of_its_own(prof, batches, accumulate, update):
    from torch.profiler import profile

    with profile() as mine:
        for number, batch in enumerate(batches):
            accumulate(batch)
            if number % 2:
                update()
                mine.step()


@right(ex.profile_the_loop)
def test_steps_between_the_updates_and_labels_of_its_own(prof, batches, accumulate, update):
    from torch.profiler import record_function

    with prof:
        for number, batch in enumerate(batches):
            if number > 0 and number % 2 == 0:
                prof.step()
            with record_function(f"batch {number}"):
                accumulate(batch)
            if number % 2:
                update()


@right(ex.profile_the_loop)
def test_started_and_stopped_by_hand(prof, batches, accumulate, update):
    prof.start()
    try:
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            accumulate(first)
            accumulate(second)
            update()
            prof.step()
    finally:
        prof.stop()


@right(ex.profile_the_loop)
def test_what_the_schedule_leaves_out_is_trained_after_the_profiler(prof, batches, accumulate, update):
    with prof:
        for number, batch in enumerate(batches[:10], start=1):
            accumulate(batch)
            if number % 2 == 0:
                update()
                prof.step()
    for number, batch in enumerate(batches[10:], start=1):
        accumulate(batch)
        if number % 2 == 0:
            update()


@wrong(ex.find_the_culprit, "a whole number and a text")
def test_a_rank_that_is_no_whole_number(traces):
    rank, label = ex.find_the_culprit.answer(traces)
    return float(rank), label


@right(ex.find_the_culprit)
def test_by_who_waits_least_and_with_tensors(traces):
    from collections import Counter

    import torch

    waits = torch.tensor([trace.seconds()["waiting"] for trace in traces])
    rank = waits.argmin()
    own = [trace.self_seconds() for trace in traces]
    together = Counter()
    for seconds in own:
        together.update(seconds)
    return rank, max(own[rank], key=lambda name: own[rank][name] - together[name] / len(own))


CONVERT = "    pixels = torch.tensor(images, dtype=torch.float32)\n"
LOSS = ("loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), "
        "labels[start:start + 32])")
NORMALISE = "    pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64\n"
STEP = "            optimizer.step()\n"
WRITE = '        log.write(f"epoch {epoch}: loss {loss.item():.4f}")\n'
COMPARE = """            from torch.distributed import _functional_collectives as fun
            fun.all_reduce(loss.detach(), "sum", torch.distributed.group.WORLD).item()
"""


def test_what_is_repaired_is_told_and_no_other_fault_is_named():
    two_left = edited(ex.make_it_fast, (STEP, f"{STEP}{COMPARE}            log.flush()\n"))
    feedback = str(ex.make_it_fast.check(two_left))
    gone = ["images normalised row by row", "all images converted again and again", "small pieces"]
    assert "faults left: 2 of 5" in feedback and re.findall("gone: (.*)", feedback) == gone
    left = " ".join(re.findall("left: (.*)", feedback))
    assert not re.search("weight|log|flush", left), "symptoms only"


test_another_result = edits(
    ex.make_it_fast,
    ("range(epochs)", "range(epochs - 1)", "`images through the network` is 128"),
    (CONVERT, "    images -= images.mean(-1, keepdims=True)\n" + CONVERT, "`images` that have changed"),
    (WRITE, "", "the log holds no line of epoch 0"),
    (WRITE, WRITE.replace("epoch {", "Epoch {"), "its first line is 'Epoch 0: loss"),
)

test_a_fault_of_its_kind_is_left = edits(
    ex.make_it_fast,
    (STEP, STEP + COMPARE, "left: 8 collectives that are not DDP's"),
    ("        for start", f"{indent(CONVERT + NORMALISE, '    ')}        for start",
     "left: 3 times the same operator"),
    (((CONVERT, "    rows = images.reshape(-1, 48).tolist()\n"
                "    rows = [[(one - sum(row) / 48) / 64 for one in row] for row in rows]\n"
                "    pixels = torch.tensor(rows).reshape(-1, 48, 48)\n"), (NORMALISE, "")),
     "operators and lines of your Python besides the network"),
    (((LOSS, "optimizer.zero_grad()\n"
             "            for half in range(0, 32, 16):\n"
             "                at = slice(start + half, start + half + 16)\n"
             "                loss = nn.functional.cross_entropy(model(pixels[at]), labels[at]) / 2\n"
             "                loss.backward()"),
      ("            optimizer.zero_grad()\n            loss.backward()\n", "")), "left: 16 forwards"),
    (STEP, f"{STEP}            import time\n            time.sleep = id\n            log.flush()\n",
     "left: 10 gaps"),
)

# A long wait: on a busy machine the faulty training, beside which it is timed, is slow as well.
test_a_wait_that_hides_from_its_own_clock = edits(
    ex.make_it_fast,
    (STEP, f"{STEP}            import time\n            time.sleep(0.2)\n"
           "            time.perf_counter = lambda: 0\n"
           "            time.monotonic = time.time = time.perf_counter_ns = time.perf_counter\n",
     "times as fast: "))


OTHER_REPAIRS = (
    # normalised by NumPy, in double precision
    [(CONVERT, f"    images = (images - images.mean(axis=-1, keepdims=True)) / 64\n{CONVERT}"),
     (NORMALISE, "")],
    # image by image, in every epoch: three operators each, and not 200
    [(LOSS, "batch = [image - image.mean(-1, keepdim=True) for image in pixels[start:start + 32]]\n"
            "            batch = torch.stack(batch) / 64\n"
            "            loss = nn.functional.cross_entropy(model(batch), labels[start:start + 32])"),
     (NORMALISE, "")],
    # the ranks compare once an epoch, in two ways; one flush at the end
    [("        log.flush()\n", "        states = [None, None]\n"
                              "        torch.distributed.all_gather_object(states, model.state_dict())\n"
                              "    log.flush()\n")],
    # a thread flushes after every step, and holds nobody up
    [("    for epoch", "    from concurrent.futures import ThreadPoolExecutor\n"
                       "    pool = ThreadPoolExecutor(1)\n"
                       "    for epoch"),
     (STEP, STEP + "            said = f'epoch {epoch}'\n"
                   "            pool.submit(lambda line: [log.write(line), log.flush()], said)\n"),
     (WRITE, ""), ("        log.flush()\n", "    pool.shutdown()\n")],
    # a DataLoader, and SGD by hand
    [("    for epoch", "    dataset = list(zip(pixels, labels))\n"
                       "    loader = torch.utils.data.DataLoader(dataset, batch_size=32)\n"
                       "    for epoch"),
     ("for start in range(0, len(pixels), 32)", "for batch, answers in loader"),
     (LOSS, "loss = nn.functional.cross_entropy(model(batch), answers)"),
     ("optimizer.zero_grad", "model.zero_grad"),
     (STEP, "            with torch.no_grad():\n                for parameter in model.parameters():\n"
            "                    parameter -= 0.01 * parameter.grad\n")],
)


test_other_repairs_that_are_right, *_ = [right(ex.make_it_fast)(edited(ex.make_it_fast, *changes))
                                         for changes in OTHER_REPAIRS]


def test_a_repaired_training_is_measured():
    feedback = ex.make_it_fast.check(ex.make_it_fast.answer)
    assert feedback.status == "correct" and "× as fast\ngone: images normalised" in feedback.observed
