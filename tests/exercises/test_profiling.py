"""Profiling: right answers in other styles, and wrong ones that no row of the tables can be."""

import re

import pytest

from lessons.profiling import exercises as ex
from tests.answers import edited, edits, right, wrong

test_profile_the_loop = edits(
    ex.profile_the_loop,
    ("            prof.step()", "            prof.step()\n            if batch is batches[-2]:\n                break\n"
     "    train_step(batches[-1])", "is every batch trained while the profiler runs"))


@wrong(ex.profile_the_loop, "`trace`['step 2'] is ''")
def test_labels_around_nothing(prof, batches, train_step):
    from torch.profiler import record_function

    for batch in batches:
        train_step(batch)
    with prof:
        for number, _ in enumerate(batches):
            with record_function(f"batch {number}"):
                pass
            prof.step()


@wrong(ex.profile_the_loop, "calls of `step()`: 0")
def test_a_profiler_of_its_own(prof, batches, train_step):
    from torch.profiler import profile

    with profile() as mine:
        for batch in batches:
            train_step(batch)
            mine.step()


@right(ex.profile_the_loop)
def test_steps_between_the_batches(prof, batches, train_step):
    with prof:
        for number, batch in enumerate(batches):
            if number > 0:
                prof.step()
            train_step(batch)


@right(ex.profile_the_loop)
def test_started_and_stopped_by_hand(prof, batches, train_step):
    prof.start()
    try:
        for batch in batches:
            train_step(batch)
            prof.step()
    finally:
        prof.stop()


@right(ex.profile_the_loop)
def test_goes_on_without_the_profiler(prof, batches, train_step):
    rest = iter(batches)
    with prof as profiler:
        for _, batch in zip(range(6), rest, strict=False):
            train_step(batch)
            profiler.step()
    for batch in rest:
        train_step(batch)


@wrong(ex.profile_the_loop, "calls of `step()`: 0")
def test_a_profiler_of_its_own_for_the_same_trace(prof, batches, train_step):
    from torch.profiler import ProfilerActivity, profile, schedule

    plan = schedule(wait=1, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=prof.on_trace_ready) as mine:
        for batch in batches:
            train_step(batch)
            mine.step()


@right(ex.find_the_culprit)
def test_by_the_spread_of_each_label(traces):
    took = [{event.name: 0 for event in trace.events} for trace in traces]
    for of_rank, trace in zip(took, traces, strict=True):
        for event in trace.events:
            of_rank[event.name] += event.duration_us
    labels = ("read files", "augment", "forward", "write log")
    label = max(labels, key=lambda name: max(one[name] for one in took) - min(one[name] for one in took))
    return [max(range(len(traces)), key=lambda rank: took[rank][label]), label]


@right(ex.find_the_culprit)
def test_by_who_waits_least_and_with_tensors(traces):
    import torch

    waits = torch.tensor([trace.seconds()["waiting"] for trace in traces])
    rank = waits.argmin()
    own = [trace.self_seconds() for trace in traces]
    mean = {name: sum(one.get(name, 0) for one in own) / len(own) for name in own[rank]}
    return rank, max(own[rank], key=lambda name: own[rank][name] - mean[name])


def slow_training(*changes):
    """`train` of the slow script as the learner is given it, with each (old, new) replaced."""
    import inspect
    import linecache

    from lessons.profiling import slow_training as script

    source = inspect.getsource(script.train)
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    name = f"<train with {len(linecache.cache)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    scope = {"__name__": "a_notebook", "torch": script.torch, "nn": script.nn, "dist": script.dist,
             "normalised": script.normalised}
    exec(compile(source, name, "exec"), scope)
    return scope["train"]


ROWS = ("torch.stack([normalised(image) for image in pixels[i:i + 4]])",
        "(pixels[i:i + 4] - pixels[i:i + 4].mean(-1, keepdim=True)) / 64")
CONVERT = "    pixels = torch.tensor(images, dtype=torch.float32)\n"
COPIES = [(f"            {CONVERT}", ""), ("    for epoch", f"{CONVERT}    for epoch")]
PIECES = [("range(start, start + 32, 4)", "[start]"), ("i + 4", "i + 32"), (" / 8", ""), ("8 * ", "")]
MEETING = ("            states = [None] * dist.get_world_size()\n"
           "            dist.all_gather_object(states, model.state_dict())  # still equal?\n", "")


def said_of(*changes):
    return str(ex.make_it_fast.check(slow_training(*changes)))


REPAIRS = {"images normalised row by row": [ROWS], "all images converted again and again": COPIES,
           "small pieces": PIECES, "weights compared at every step": [MEETING]}


@pytest.mark.parametrize("count", (1, 4))
def test_what_is_repaired_is_told_and_no_other_fault_is_named(count):
    gone = list(REPAIRS)[:count]
    said = said_of(*(change for name in gone for change in REPAIRS[name]))
    assert f"faults left: {5 - count} of 5" in said and re.findall("gone: (.*)", said) == gone
    left = " ".join(re.findall("left: (.*)", said))
    assert not re.search("row|convert|piece|weight|log|flush", left), "symptoms only"


def test_a_fault_that_is_left_shows_how_often():
    half = said_of(ROWS, ("    pixels = torch.tensor", "    if i == start: pixels = torch.tensor"))
    assert "left: 8 times the same operator on all images" in half


def test_repaired_and_broken_at_once():
    said = said_of(ROWS, MEETING, ("lr=0.01", "lr=0.02"))
    assert "the loss ends lower" in said and "gone: weights compared" in said and "left: 64 forwards" in said


LOSS = "loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])"
NORMALISE = "    pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64\n"
STEP = "            optimizer.step()\n"
WRITE = '        log.write(f"epoch {epoch}: loss {loss.item():.4f}")\n'


def deeper(lines, levels=1):
    return "".join(f"{'    ' * levels}{line}\n" for line in lines.splitlines())


test_another_result = edits(
    ex.make_it_fast,
    ("range(epochs)", "range(epochs - 1)", "`images through the network` is 128"),
    (CONVERT, "    images -= images.mean(-1, keepdims=True)\n" + CONVERT, "`images` that have changed"),
    ("lr=0.01", "lr=0.01, weight_decay=1e-4", "and the same weights as before"),
    (WRITE, "", "the log holds no line of epoch 0"),
)

test_a_fault_of_its_kind_is_left = edits(
    ex.make_it_fast,
    ((("model(pixels[", "model.module(pixels["),
      (STEP, "            for parameter in model.parameters():\n"
             "                torch.distributed.all_reduce(parameter.grad)\n"
             "                parameter.grad /= 2\n" + STEP)),
     "left: 32 collectives that are not DDP's"),
    (STEP, f"{STEP}            from torch.distributed import _functional_collectives as fun\n"
           "            fun.all_reduce(loss.detach(), 'sum', torch.distributed.group.WORLD).item()\n",
     "left: 8 collectives that are not DDP's"),
    ("        for start", f"{deeper(CONVERT)}{deeper(NORMALISE)}        for start", "left: 3 times the same operator"),
    (((CONVERT, ""), (NORMALISE, ""), ("len(pixels)", "len(images)"),
      (LOSS, f"pixels = torch.from_numpy(images.astype('float32'))\n{deeper(NORMALISE, 2)}            {LOSS}")),
     "left: 8 times the same operator"),
    (((CONVERT, "    import numpy\n    images = [[(row - row.mean()) / 64 for row in image] for image in images]\n"
                "    pixels = torch.tensor(numpy.array(images), dtype=torch.float32)\n"), (NORMALISE, "")),
     "operators and lines besides the network"),
    (((CONVERT, "    rows = images.reshape(-1, 48).tolist()\n"
                "    rows = [[(one - sum(row) / 48) / 64 for one in row] for row in rows]\n"
                "    pixels = torch.tensor(rows).reshape(-1, 48, 48)\n"), (NORMALISE, "")),
     "operators and lines besides the network"),
    (((LOSS, "optimizer.zero_grad()\n            for half in range(0, 32, 16):\n                "
             "at = slice(start + half, start + half + 16)\n                "
             "loss = nn.functional.cross_entropy(model(pixels[at]), labels[at]) / 2\n                loss.backward()"),
      ("            optimizer.zero_grad()\n            loss.backward()\n", "")), "left: 16 forwards"),
    (STEP, f"{STEP}            import time\n            time.sleep = id\n            log.flush()\n", "left: 10 gaps"),
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
    [(CONVERT, "    images = (images - images.mean(axis=-1, keepdims=True)) / 64\n" + CONVERT), (NORMALISE, "")],
    # the same in single precision: three operators of NumPy's on all images, each once
    [(CONVERT, "    images = images.astype('float32')\n"
               "    images = (images - images.mean(axis=-1, keepdims=True)) / 64\n" + CONVERT), (NORMALISE, "")],
    # a batch at a time, converted as it is needed
    [(CONVERT, ""), (NORMALISE, ""), ("len(pixels)", "len(images)"), (
        LOSS, "batch = torch.from_numpy(images)[start:start + 32].float()\n            "
              "batch = (batch - batch.mean(-1, keepdim=True)) / 64\n            "
              "loss = nn.functional.cross_entropy(model(batch), labels[start:start + 32])")],
    # image by image, in every epoch: three operators each, and not 200
    [(LOSS, "batch = torch.stack([(image - image.mean(-1, keepdim=True)) for image in pixels[start:start + 32]])\n"
            "            loss = nn.functional.cross_entropy(model(batch / 64), labels[start:start + 32])"),
     (NORMALISE, "")],
    # a Dataset that normalises whole images, one operator after the other
    [(CONVERT, "    class Images(torch.utils.data.Dataset):\n"
               "        def __len__(self):\n            return len(images)\n"
               "        def __getitem__(self, index):\n"
               "            image = torch.tensor(images[index], dtype=torch.float32)\n"
               "            image = image - image.mean(dim=-1, keepdim=True)\n            image = image / 64\n"
               "            label = labels[index]\n            return image, label\n"),
     (NORMALISE, "    loader = torch.utils.data.DataLoader(Images(), batch_size=32)\n"),
     ("for start in range(0, len(pixels), 32)", "for batch, answers in loader"),
     (LOSS, "loss = nn.functional.cross_entropy(model(batch), answers)")],
    # the ranks compare once an epoch, in two ways; one flush at the end
    [("        log.flush()\n", "        torch.distributed.all_gather_object([None, None], model.state_dict())\n"
                              "    log.flush()\n")],
    # rank 0 alone keeps the log, and the others wait for it, once an epoch
    [("        log.write", "        torch.distributed.barrier()\n        log.write"),
     ("        log.flush()\n", "        log.flush() if torch.distributed.get_rank() == 0 else None\n")],
    # a thread flushes after every step, and holds nobody up
    [("    for epoch", "    from concurrent.futures import ThreadPoolExecutor\n    pool = ThreadPoolExecutor(1)\n"
                       "    for epoch"),
     (STEP, STEP + '            pool.submit(lambda line: [log.write(line), log.flush()], f"epoch {epoch}")\n'),
     (WRITE, ""), ("        log.flush()\n", "    pool.shutdown()\n")],
    # a DataLoader, and SGD by hand
    [("    for epoch", "    loader = torch.utils.data.DataLoader(list(zip(pixels, labels)), batch_size=32)\n"
                       "    for epoch"),
     ("for start in range(0, len(pixels), 32)", "for batch, answers in loader"),
     (LOSS, "loss = nn.functional.cross_entropy(model(batch), answers)"),
     ("optimizer.zero_grad", "model.zero_grad"),
     (STEP, "            with torch.no_grad():\n                for parameter in model.parameters():\n"
            "                    parameter -= 0.01 * parameter.grad\n")],
    # in place, and one mean of the losses over the ranks at the end of an epoch
    [(NORMALISE, "    pixels.sub_(pixels.mean(-1, keepdim=True)).div_(64)\n"),
     ("        log.flush()\n", "        log.flush()\n        torch.distributed.all_reduce(loss.detach())\n")],
)


test_other_repairs_that_are_right, *_ = [right(ex.make_it_fast)(edited(ex.make_it_fast, *changes))
                                         for changes in OTHER_REPAIRS]


def test_a_repaired_training_is_measured():
    feedback = ex.make_it_fast.check(ex.MakeItFast.answer)
    assert feedback.status == "correct" and "× as fast\ngone: images normalised" in feedback.observed
