"""The exercises of lesson 07: record the right steps, find who is to blame, and make a slow training quick."""

import os

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "07_profiling"


def _quiet():
    """Keep the profiler from writing its own log to stderr; it reads this when it is first used."""
    os.environ["KINETO_LOG_LEVEL"] = "6"


# ---------------------------------------------------------------------------------------------------------------------

#: Of the profiler in the first exercise: steps that it waits, warms up, and records.
WAIT, WARMUP, ACTIVE = 1, 1, 3
#: The numbers of batches that are tried: enough for a trace and more, and so few that the training ends meanwhile.
BATCHES = (8, 4)


class ProfileTheLoop(Exercise):
    title = "Repair the profiled loop"
    task = ("Train on every batch of `batches`, with `train_step(batch)`, and profile it with `prof`: a profiler whose "
            f"schedule waits {WAIT} step, warms up for {WARMUP}, and records {ACTIVE}. Step number n of the profiler "
            "is to hold batch number n, and nothing else.")
    hints = (
        "The schedule counts calls of `prof.step()`. How many does the profiler see, and how many are there batches?",
        "`prof.step()` says: this step is over, the next one begins. Where in the loop is that so?",
        "`with prof:` around the loop starts the profiler, and ends it: a trace that has begun is written then.",
    )
    explanation = ("One `step()` at the end of each round, inside the `with` block. The training goes on as long as "
                   "there are batches, whatever the profiler does.")
    why = ("a profiler records only what its schedule tells it to, and the schedule counts nothing but `step()`. "
           "Called once after the loop, it leaves the profiler in the first waiting step for the whole training: no "
           "error, and no trace.")
    world_sizes = (1,)
    timeout = 20

    @staticmethod
    def stub(prof, batches, train_step):
        raise NotImplementedError

    @staticmethod
    def answer(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)
                prof.step()

    @wrong("`step()` was called once for 8 batches, and no trace was written")
    def steps_after_the_loop(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)
        prof.step()

    @wrong("`step()` was called once for 8 batches, and no trace was written")
    def steps_after_the_loop_inside_with(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)
            prof.step()

    @wrong("step 2 of the profiler holds batch 1")
    def steps_before_the_work(prof, batches, train_step):
        with prof:
            for batch in batches:
                prof.step()
                train_step(batch)

    @wrong("`step()` was never called")
    def forgets_the_steps(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)

    @wrong("4 batches: 3 steps of the profiler were begun, but no trace was written")
    def never_starts_it(prof, batches, train_step):
        for batch in batches:
            train_step(batch)
            prof.step()

    @wrong("batches 5, 6, 7 were not trained on")
    def stops_with_the_profiler(prof, batches, train_step):
        with prof:
            for number, batch in enumerate(batches):
                if number >= 5:
                    break
                train_step(batch)
                prof.step()

    @wrong("the profiler was started 8 times")
    def starts_it_for_each_batch(prof, batches, train_step):
        for batch in batches:
            with prof:
                train_step(batch)
                prof.step()

    @wrong("`step()` was called 7 times for 8 batches")
    def steps_between_the_batches(prof, batches, train_step):
        with prof:
            for number, batch in enumerate(batches):
                if number > 0:
                    prof.step()
                train_step(batch)

    @wrong("step 2 of the profiler holds no batch")
    def steps_in_a_loop_of_their_own(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)
            for _ in batches:
                prof.step()

    @wrong("`step()` was called 16 times for 8 batches")
    def steps_twice(prof, batches, train_step):
        with prof:
            for batch in batches:
                prof.step()
                train_step(batch)
                prof.step()

    @wrong("`step()` was called 64 times for 8 batches")
    def trains_inside_a_second_loop(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)
                for _ in batches:
                    prof.step()

    @staticmethod
    def probe(profile_the_loop):
        _quiet()
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function, schedule

        torch.set_num_threads(1)
        observed = []
        for count in BATCHES:
            trained, traces, steps, starts = [], [], [0], [0]

            def train_step(batch, trained=trained):
                with record_function(f"batch {batch}"):
                    trained.append(batch)
                    torch.ones(16, 16) @ torch.ones(16, 16)

            prof = profile(activities=[ProfilerActivity.CPU], on_trace_ready=lambda p, t=traces: t.append(_held(p)),
                           schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1))
            step, start = prof.step, prof.start

            def counted(steps=steps, step=step):
                steps[0] += 1
                if steps[0] < 1000:
                    step()

            def started(starts=starts, start=start):
                starts[0] += 1
                start()

            prof.step, prof.start = counted, started
            try:
                profile_the_loop(prof, list(range(count)), train_step)
            finally:
                if prof.profiler is not None and not traces:
                    _ended(prof)
            observed.append({"count": count, "trained": trained, "traces": traces[:1], "steps": steps[0],
                             "starts": starts[0], "written": len(traces)})
        return observed

    def judge(self, observed):
        for seen in observed[0]:
            count, steps = seen["count"], seen["steps"]
            missing = [str(batch) for batch in range(count) if batch not in seen["trained"]]
            if missing:
                return not_yet(f"{count} batches: batch{'es' * (len(missing) > 1)} {', '.join(missing)} "
                               f"{'were' if len(missing) > 1 else 'was'} not trained on",
                               "training goes on when the profiler has what it wants", "what ends the loop")
            if seen["trained"] != list(range(count)):
                return not_yet(f"{count} batches: they were trained on in the order {seen['trained']}",
                               "each batch once, in order", "how often `train_step` is called")
            if steps != count:
                times = "never called" if not steps else f"called {'once' if steps == 1 else f'{steps} times'}"
                trace = ", and no trace was written" if not seen["written"] else ""
                return not_yet(f"`step()` was {times} for {count} batches{trace}", "one call for each batch",
                               "the line in which `prof.step()` stands, and how far it is indented")
            if seen["starts"] > 1:
                return not_yet(f"the profiler was started {seen['starts']} times for {count} batches",
                               "once, for all of them", "where `with prof:` stands: around the loop, or inside it?")
            if not seen["written"]:
                return not_yet(f"{count} batches: {max(0, steps - WAIT)} steps of the profiler were begun, but no "
                               "trace was written", "a trace that has begun is written when the training ends",
                               "who starts and ends the profiler? `with prof:`")
            held, wanted = seen["traces"][0], range(WAIT + WARMUP, min(count, WAIT + WARMUP + ACTIVE))
            for number in wanted:
                if held.get(number) != [number]:
                    has = " and ".join(f"batch {batch}" for batch in held.get(number, ())) or "no batch"
                    return not_yet(f"{count} batches: step {number} of the profiler holds {has}", f"batch {number}",
                                   "`step()` says that a step is over: is it called at the end of the round?")
        return None


def _held(prof):
    """{number of the profiler's step: the batches inside it}, from the trace that the profiler writes."""
    from helpers import traces as tracing
    from helpers.launcher.rank import RUN_FOLDER

    path = f"{os.environ[RUN_FOLDER]}/loop.json"
    prof.export_chrome_trace(path)
    try:
        trace = tracing.read(path)
    except tracing.TraceError:  # the steps that were recorded hold nothing
        return {}
    return {number: sorted(int(event.name[6:]) for event in trace.events if event.name.startswith("batch ")
                           and begin <= event.begin_us and event.end_us <= end)
            for number, (begin, end) in trace.steps.items()}


def _ended(prof):
    """End a profiler that the learner's code has left running, so that the next one can start."""
    prof.on_trace_ready = None
    try:
        prof.stop()
    except Exception:
        pass  # it was not running


profile_the_loop = ProfileTheLoop()

# ---------------------------------------------------------------------------------------------------------------------

LABELS = ("read files", "augment", "forward", "write log")
#: Seconds per step: of an ordinary part, of one that is long in every rank, and what the culprit takes longer.
SHORT, LONG, EXTRA = 0.001, 0.030, 0.018
#: Traced steps of each case; and how often it is recorded, each time with twice the times, until the traces show the
#: culprit clearly: on a busy machine some other rank may have been held up as well.
STEPS, TRIES = 2, 4


class FindTheCulprit(Exercise):
    title = "Who holds everybody up, and with what?"
    task = ("`traces` are those of all ranks, by rank, on one clock. In one rank one part of the work takes longer "
            "than in the others, so these wait for it in the all-reduce. Return `(rank, label)`: that rank, and the "
            f"label of that part. The parts are labelled with `record_function`: {', '.join(LABELS)}. The traces are "
            "recorded anew, with another culprit, each time.")
    hints = (
        "Who waits is not to blame. `waited_for(traces)` of `helpers.traces` is a dict {(who waits, for whom): "
        "seconds}.",
        "The label with the most time need not be the one: it may take as long in every rank. Compare the ranks.",
        "`traces[rank].self_seconds()` is a dict {name: seconds}. Which name has the largest difference to another "
        "rank?",
    )
    explanation = ("The rank that is waited for most is the late one. What it spends more time on than a rank that "
                   "waits is the reason; a part that takes long in all ranks delays nobody in particular.")
    why = ("with real training the slow rank is the one with a slow disk, a hot GPU, or more to log. Its own trace "
           "looks innocent: it never waits. Only beside the others' does it show.")
    world_sizes = (2, 3)
    timeout = 20

    @staticmethod
    def stub(traces):
        raise NotImplementedError

    @staticmethod
    def answer(traces):
        from helpers.traces import waited_for

        lost = waited_for(traces)
        rank = max(lost, key=lost.get)[1]
        late, other = traces[rank].self_seconds(), traces[rank - 1].self_seconds()
        return rank, max(late, key=lambda name: late[name] - other.get(name, 0))

    @wrong("it waits for the other")
    def blames_who_waits(traces):
        from helpers.traces import waited_for

        lost = waited_for(traces)
        rank = max(lost, key=lost.get)[0]
        mine, other = traces[rank].self_seconds(), traces[rank - 1].self_seconds()
        return rank, max(mine, key=lambda name: mine[name] - other.get(name, 0))

    @wrong("takes as long in the other ranks")
    def the_longest_part(traces):
        from helpers.traces import waited_for

        lost = waited_for(traces)
        rank = max(lost, key=lost.get)[1]
        own = traces[rank].self_seconds()
        labels = ("read files", "augment", "forward", "write log")
        return rank, max(labels, key=lambda name: own.get(name, 0))

    @wrong("3 ranks")
    def two_ranks_only(traces):
        waits = [trace.seconds()["waiting"] for trace in traces]
        rank = 1 - waits.index(max(waits)) if len(traces) == 2 else 0
        late, other = traces[rank].self_seconds(), traces[rank - 1].self_seconds()
        return (rank, max(late, key=lambda name: late[name] - other.get(name, 0))) if len(traces) == 2 else (-1, "")

    @wrong("kept the others waiting")
    def always_the_same(traces):
        return 0, "read files"

    @wrong("returned (str, int)")
    def the_label_first(traces):
        waits = [trace.seconds()["waiting"] for trace in traces]
        return "augment", waits.index(min(waits))

    @wrong("returned an int")
    def only_the_rank(traces):
        waits = [trace.seconds()["waiting"] for trace in traces]
        return waits.index(min(waits))

    @wrong("'gloo:all_reduce' is none of the labels")
    def blames_the_messenger(traces):
        waits = [trace.seconds()["waiting"] for trace in traces]
        return waits.index(min(waits)), "gloo:all_reduce"

    @staticmethod
    def probe(find_the_culprit):
        _quiet()
        import random

        import torch
        import torch.distributed as dist

        from helpers import traces as tracing
        from helpers.launcher.rank import RUN_FOLDER

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        draw = random.SystemRandom()
        long, *labels = draw.sample(LABELS, len(LABELS))
        plans = [[*list(zip(draw.sample(range(size), size), labels, strict=False))[:2], (-1, long)]]
        dist.broadcast_object_list(plans)  # another culprit each time, the same for all ranks
        *cases, (_, long) = plans[0]
        observed = []
        for number, (culprit, label) in enumerate(cases):
            for attempt in range(TRIES):
                files = [f"{os.environ[RUN_FOLDER]}/{number}-{attempt}-{other}.json" for other in range(size)]
                _recorded(files[rank], culprit, label, long, 2**attempt)
                dist.barrier()
                traces = tracing.together([tracing.read(file) for file in files]) if rank == 0 else None
                clear = [rank == 0 and _shows(traces, culprit, label, long)]
                dist.broadcast_object_list(clear)
                if clear[0]:
                    break
            if rank == 0:
                found = find_the_culprit(traces)
                is_pair = isinstance(found, tuple | list) and len(found) == 2
                fits = is_pair and isinstance(found[0], int | float) and isinstance(found[1], str)
                kind = f"({', '.join(type(one).__name__ for one in found)})" if is_pair else type(found).__name__
                observed.append({"culprit": culprit, "label": label, "long": long, "type": kind,
                                 "named": tuple(found) if fits else None})
            dist.barrier()
        return observed

    def judge(self, observed):
        for number, seen in enumerate(observed[0], start=1):
            case = f"{len(observed)} ranks, traces number {number}"
            if seen["named"] is None:
                kind = "None" if seen["type"] == "NoneType" else seen["type"]
                article = "" if kind[0] in "N(" else "an " if kind[0] in "aeiou" else "a "
                return not_yet(f"{case}: your function returned {article}{kind}",
                               "`(rank, label)`, a number and a text", "the `return`")
            rank, label = seen["named"]
            truth = f"rank {seen['culprit']} kept the others waiting, with {seen['label']!r}"
            if rank != seen["culprit"]:
                waits = ": it waits for the other" if len(observed) == 2 and rank in (0, 1) else ""
                return not_yet(f"{case}: you named rank {rank}{waits}", truth,
                               "who waits, and for whom? `waited_for(traces)`")
            if label not in LABELS:
                return not_yet(f"{case}: {label!r} is none of the labels", f"one of {', '.join(LABELS)}",
                               "the all-reduce is where the waiting shows; what came before it?")
            if label != seen["label"]:
                why = ", which takes as long in the other ranks" if label == seen["long"] else ""
                return not_yet(f"{case}: rank {rank} is right, but you named {label!r}{why}", truth,
                               "compare the rank with one that waits, name by name")
        return None


def _recorded(path, culprit, label, long, factor):
    """Trace STEPS steps of this rank, in which `culprit` takes longer for `label`, and all take long for `long`."""
    import time

    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    gradient = torch.ones(1000)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(STEPS):
            for part in LABELS:
                late = EXTRA * factor if (dist.get_rank(), part) == (culprit, label) else 0
                with record_function(part):
                    time.sleep((LONG * factor if part == long else SHORT) + late)
            dist.all_reduce(gradient)
    prof.export_chrome_trace(path)


def _shows(traces, culprit, label, long):
    """Whether traces show clearly who is to blame, and with what."""
    from helpers.traces import waited_for

    lost, own = waited_for(traces), [trace.self_seconds() for trace in traces]
    for_culprit = sum(seconds for (_, whom), seconds in lost.items() if whom == culprit)
    waits = [trace.seconds()["waiting"] for trace in traces]
    clear = max(lost, key=lost.get)[1] == culprit and for_culprit > 3 * (sum(lost.values()) - for_culprit)
    clear = clear and all(waits[rank] > 3 * waits[culprit] for rank in range(len(traces)) if rank != culprit)
    clear = clear and max(LABELS, key=lambda name: own[culprit].get(name, 0)) == long
    for other in own[:culprit] + own[culprit + 1:]:
        more = {name: seconds - other.get(name, 0) for name, seconds in own[culprit].items()}
        clear = clear and more[label] > 1.5 * max(seconds for name, seconds in more.items() if name != label)
    return clear


find_the_culprit = FindTheCulprit()

# ---------------------------------------------------------------------------------------------------------------------

#: Of the last exercise: images per rank, a multiple of BATCH; images per optimizer step and rank; epochs.
IMAGES, BATCH, EPOCHS = 64, 32, 2
#: The least that the repaired training must be faster than the slow one, in the same run.
FASTER = 3
#: How far its test loss may be off. Both do the same arithmetic, so a right repair differs in the last digits.
TOLERANCE = 0.05


class MakeItFast(Exercise):
    title = "Performance detective"
    task = ("`train` wastes most of its time, in five ways. Repair it, so that it is at least "
            f"{FASTER} times as fast and has none of the five left, while the result stays the same: the same images, "
            f"normalised in the same way, {BATCH} per optimizer step and rank, as many epochs, the same loss; and the "
            "log holds at least a line per epoch (`epoch 0 …`), flushed. `model` is in DistributedDataParallel; "
            "`images` is a NumPy array, [images, 48, 48].")
    hints = (
        "Look at the trace first. Thousands of tiny operators in a row: what makes them, and could one operator on the "
        "whole batch, or on all images at once, do the same? `x.mean(-1, keepdim=True)` is a mean for each row.",
        "`aten::lift_fresh` with a long `aten::copy_` beside it is `torch.tensor(…)` of a large array. How often is it "
        "called, and how often do the images change?",
        "Count forwards for each optimizer step. A backward under DDP communicates every time. Do 32 of these images "
        "not fit at once?",
        "`gloo:all_gather` is none of DDP's: somebody asked for it. What is it for, and how often would do?",
        "Gaps in which nothing is recorded are Python, or waiting for something outside of torch. What does "
        "`log.flush()` wait for? `loss.item()` in each step makes a GPU wait, too.",
    )
    explanation = ("All images are converted and normalised once, by operators that take them all. 32 at a time go "
                   "through the network, so there is one all-reduce of gradients per step. The ranks need not compare "
                   "their weights, DDP keeps them equal. The log is kept in memory, and flushed once an epoch.")
    why = ("none of the five is a slow operator. Time goes where nobody looks: into Python between operators, copies "
           "and conversions, waiting for other ranks and for a disk. A trace shows each of them, and the order in "
           "which to repair them.")
    world_sizes = (2,)
    timeout = 40

    @staticmethod
    def stub(model, images, labels, epochs, log):
        raise NotImplementedError

    @staticmethod
    def answer(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}: loss {loss.item():.4f}")
            log.flush()

    @wrong("the network was asked 32 times, for 4 images at a time")
    def as_it_was(model, images, labels, epochs, log):
        from helpers.workers.slow_training import train

        train(model, images, labels, epochs, log)

    @wrong("64 images went through the network instead of 128")
    def one_epoch_less(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for start in range(0, len(pixels), 32):
            loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log.write("epoch 0\nepoch 1")
        log.flush()

    @wrong("other pixels")
    def one_mean_for_the_whole_image(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean((1, 2), keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}")
            log.flush()

    @wrong("the ranks hold different models")
    def without_ddp(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model.module(pixels[start:start + 32]), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}")
            log.flush()

    @wrong("the test loss ends higher")
    def keeps_the_division(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32]) / 8
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}: loss {8 * loss.item():.4f}")
            log.flush()

    @wrong("the test loss ends lower")
    def clears_no_gradients(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}: loss {loss.item():.4f}")
            log.flush()

    @wrong("the network was asked 2 times, for 64 images at a time")
    def all_images_at_once(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"epoch {epoch}: loss {loss.item():.4f}")
            log.flush()

    @wrong("the log holds no line of epoch 0")
    def logs_nothing(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for _ in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    @wrong("the log was flushed 4 times")
    def flushes_every_step(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log.write(f"epoch {epoch}: loss {loss.item():.4f}")
                log.flush()

    @wrong("`torch.stack` was called 132 times")
    def image_by_image(model, images, labels, epochs, log):
        import torch
        from torch import nn

        from helpers.workers.slow_training import normalised

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                batch = torch.stack([normalised(image) for image in pixels[start:start + 32]])
                loss = nn.functional.cross_entropy(model(batch), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}")
            log.flush()

    @wrong("not 3 times as fast")
    def row_by_row(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        batch = torch.empty(32, 48, 48)
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                for number in range(32):
                    for row in range(48):
                        exact = pixels[start + number, row].double()
                        batch[number, row] = (exact - exact.mean()).float()
                loss = nn.functional.cross_entropy(model(batch / 64), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}")
            log.flush()

    @staticmethod
    def probe(make_it_fast):
        _quiet()
        import torch
        import torch.distributed as dist

        from helpers.workers.slow_training import digits, train

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        data, test = digits(rank, size, IMAGES), digits(0, 1, 360, train=False)
        _trained(train, data, test, 1, images=BATCH)  # once without the clock: first calls are slow
        slow = _trained(train, data, test, EPOCHS)
        own = _trained(make_it_fast, data, test, EPOCHS)
        again = _trained(make_it_fast, data, test, EPOCHS) if own["seen"] else own
        return {"slow": slow, "own": own | {"seconds": min(own["seconds"], again["seconds"])}}

    def judge(self, observed):
        slow, own = observed[0]["slow"], observed[0]["own"]
        if own["seen"] != slow["seen"]:
            return not_yet(f"{own['seen']} images went through the network instead of {slow['seen']}",
                           f"{IMAGES} images in each rank, {EPOCHS} times",
                           "does the training see every image in every epoch?")
        if abs(own["squares"] / slow["squares"] - 1) > 0.01:
            return not_yet("other pixels went through the network than in the slow training",
                           "the same images, and from each row its own mean is taken",
                           "compare your batch with `normalised(image)`, image by image: `torch.allclose`")
        if any(abs(rank["own"]["weights"] / own["weights"] - 1) > 1e-7 for rank in observed):
            return not_yet("the ranks hold different models at the end", "the same model everywhere",
                           "`model(…)` averages gradients, `model.module(…)` does not")
        steps = IMAGES // BATCH * EPOCHS
        if own["forwards"] < steps:
            return not_yet(f"the network was asked {own['forwards']} times, for {own['seen'] // own['forwards']} "
                           "images at a time", f"{steps} times, for {BATCH}",
                           "larger batches are another training: fewer steps, and another result")
        if not own["loss"] < slow["loss"] + TOLERANCE:
            return not_yet(f"the test loss ends higher: {own['loss']:.2f}", f"{slow['loss']:.2f}, as before",
                           f"every step needs forward, backward and `optimizer.step()`, on the mean loss of {BATCH} "
                           "images (`/ 8` made it from eight parts)")
        if own["loss"] < slow["loss"] - TOLERANCE:
            return not_yet(f"the test loss ends lower: {own['loss']:.2f}", f"{slow['loss']:.2f}, as before",
                           "is it still the same training? `optimizer.zero_grad()`, the learning rate")
        for epoch in range(EPOCHS):
            if not any(line.startswith(f"epoch {epoch}") for line in own["log"]):
                return not_yet(f"the log holds no line of epoch {epoch}", "at least one line for each epoch, flushed",
                               "`log.write(…)` and `log.flush()`")
        if own["forwards"] > steps:
            return not_yet(f"the network was asked {own['forwards']} times, for {own['seen'] // own['forwards']} "
                           f"images at a time", f"{steps} times, for {BATCH}",
                           "small pieces: each has its own forward, backward and all-reduce")
        if own["collectives"] > EPOCHS:
            return not_yet(f"the ranks met {own['collectives']} times besides DDP's own all-reduces",
                           "at most once an epoch", "what do the ranks tell each other in every step?")
        if own["flushes"] > EPOCHS + 1:
            return not_yet(f"the log was flushed {own['flushes']} times", "once an epoch will do",
                           "the gaps in the trace after each step")
        if own["conversions"] > 1:
            return not_yet(f"all images were copied {own['conversions']} times", "once: they do not change",
                           "`torch.tensor(images)`")
        if own["stacks"] > IMAGES:
            return not_yet(f"`torch.stack` was called {own['stacks']} times", "far less often than there are images",
                           "thousands of tiny operators: could one operator normalise all rows of all images?")
        if own["seconds"] * FASTER > slow["seconds"]:
            return not_yet(f"not {FASTER} times as fast: {slow['seconds'] / own['seconds']:.1f}×",
                           f"at least {FASTER} times as fast as the slow training",
                           "the counts of steps, messages, flushes and copies are right: how are images normalised?")
        return None


def _trained(train, data, test, epochs, images=IMAGES):
    """Run a training function on a fresh model; what it did, and how long it took."""
    import time

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from helpers.workers.slow_training import Log, network

    torch.manual_seed(0)
    model, log, seen = DistributedDataParallel(network()), Log(), {"images": 0, "squares": 0.0, "forwards": 0}
    counts = {"flushes": 0, "collectives": 0, "conversions": 0, "stacks": 0}

    def look(module, inputs):
        if torch.is_grad_enabled():
            seen["images"] += len(inputs[0])
            seen["squares"] += inputs[0].double().pow(2).sum().item()
            seen["forwards"] += 1

    def counted(function, name, counts_it=lambda *args: True):
        def counting(*args, **kwargs):
            counts[name] += counts_it(*args)
            return function(*args, **kwargs)
        return counting

    model.module.register_forward_pre_hook(look)
    log.flush = counted(log.flush, "flushes")
    collectives = ("all_reduce", "all_gather", "all_gather_object", "barrier", "broadcast", "gather", "gather_object")
    kept = [*((dist, name) for name in collectives), *((torch, name) for name in ("tensor", "as_tensor", "stack"))]
    kept = [(module, name, getattr(module, name)) for module, name in kept]
    large = data[0][:images].size
    dist.barrier()
    try:
        for module, name, function in kept:
            if module is dist or name == "stack":
                setattr(module, name, counted(function, "collectives" if module is dist else "stacks"))
            else:
                setattr(module, name, counted(function, "conversions", lambda x, *_: getattr(x, "size", 0) == large))
        began = time.perf_counter()
        train(model, data[0][:images], data[1][:images], epochs, log)
        seconds = time.perf_counter() - began
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
    dist.barrier()
    with torch.no_grad():
        pixels = torch.tensor(test[0], dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        loss = torch.nn.functional.cross_entropy(model.module(pixels), test[1]).item()
        weights = sum(parameter.double().abs().sum().item() for parameter in model.parameters())
    text = [line for entry in log.safe for line in str(entry).splitlines()]
    return {"seconds": seconds, "loss": loss, "weights": weights, "log": text, "seen": seen["images"],
            "squares": seen["squares"], "forwards": seen["forwards"], **counts}


make_it_fast = MakeItFast()
