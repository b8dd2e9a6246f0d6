"""Experiments that need a GPU: one function measures, one file stores, one call in a cell shows.

    @experiment(gpus=1, seconds=8, small={"sizes": (32,)})     # in notebooks/lessons/<lesson>/recorded.py
    def products(sizes=(1024, 8192)):
        \"""How many TFLOP/s does a matrix product reach?\"""
        return {n: tflops(n) for n in sizes}

    @products.draws
    def products_drawn(result):
        plt.bar(result.keys(), result.values())

    @products.tells
    def products_in_words(result):
        return f"The largest product reaches **{result['8192']:.0f} TFLOP/s**."

    products.show()     # in the lesson: measured on this GPU, or as recorded on the card it names, or one folded line

`tools/record.py` measures them all on a machine with GPUs and stores what they find: data/records/gpus/.
"""

import ast
import datetime
import gc
import html
import importlib
import inspect
import itertools
import json
import os
import pickle
import platform
import re
import runpy
import statistics
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path

from helpers.exercises.feedback import as_html
from helpers.hardware import hardware
from helpers.places import COURSE, IS_CHECKOUT, RECORDS
from helpers.records import DataError

#: Where it is set, experiments run in sizes that a CPU manages. For tests, under tests/stand_in_gpus.
SMALL = "COURSE_SMALL_EXPERIMENTS"


def experiment(gpus, seconds, wanted=2, small=None):
    """Make an experiment of a function that measures, and returns a dict that JSON can hold.

    The function's docstring is the question that it answers; a second paragraph says how. It runs in a process of its
    own, which has imported torch and not touched CUDA. A value that is `bytes` becomes a file of its own, whose name
    ends with the value's key, such as "json.gz".

    Args:
        gpus: How many GPUs it needs.
        seconds: What it may take on an H100, about.
        wanted: 1 for what is measured first on a machine with GPUs, 2, 3, ….
        small: Keyword arguments with which it takes a CPU seconds, for tests.
    """
    def decorate(measure):
        return Experiment(measure, gpus, seconds, wanted, small or {})

    return decorate


class Experiment:
    """What `@experiment` makes of a function. Calling it measures in this process; `show` is for a lesson's cell."""

    def __init__(self, measure, gpus, seconds, wanted, small):
        self.measure = measure
        self.gpus = gpus
        self.seconds = seconds
        self.wanted = wanted
        self.small = small
        self.name = measure.__name__
        self.lesson = measure.__module__.split(".")[1]  # of lessons.<lesson>.recorded
        self.question, _, self.how = inspect.getdoc(measure).partition("\n\n")
        self.draw = None
        self.tell = None

    def __call__(self, *args, **kwargs):
        return self.measure(*args, **kwargs)

    def draws(self, function):
        """Decorator of the function that draws what was found: in matplotlib's current figure, or what it returns."""
        self.draw = function
        return function

    def tells(self, function):
        """Decorator of the function that says in Markdown what was found; what is in bold first matters most."""
        self.tell = function
        return function

    def run(self, limit=600):
        """Measure on this machine, in a process of its own, which is ended after at most `limit` seconds.

        Returns a record, as `records` does. Raises RankError: it failed, or has not ended in time.
        """
        from helpers import launch

        limit = min(limit, 10 + 5 * self.seconds)  # a card may be slower than an H100
        run = launch(_measure, nprocs=1, args=(self.lesson, self.name, SMALL in os.environ), timeout=limit, show=False)
        return {"result": run.results[0], "seconds": round(run.seconds, 1), **machine()}

    def show(self, card=""):
        """Measure here, where there are GPUs; else show what was recorded; else fold away what would be.

        Args:
            card: A part of the name of the GPU whose record to show; nothing is measured. ValueError: it has none.
        """
        from IPython.display import display

        if card:
            record = self.recorded(card)
            if record is None:
                cards = ", ".join(other["gpus"] for other in self.records()) or "none"
                raise ValueError(f"Nothing was recorded on {card!r}. There are records of: {cards}.")
        else:
            record = self._measured_here() or self.recorded()
        if record and self.draw:
            import matplotlib.pyplot as plt

            explorer = self.draw(record["result"])
            if explorer is None:
                plt.show()
            else:
                display(explorer)
        display(self.words(record), raw=True)

    def _measured_here(self):
        from helpers import RankError

        if hardware.usable_gpus < self.gpus:
            return None
        for record in self.records():
            if machine().items() <= record.items():
                return record  # tools/record.py has measured it here today: no need to wait for it again
        try:
            record = self.run()
        except RankError as error:
            print(f"Here, it did not work: {own_words(error.failures[0].message)}")
            return None
        try:
            self.tell(record["result"])
        except (ArithmeticError, LookupError, TypeError, ValueError):  # the words need rows that a small card refused
            numbers = {key: value for key, value in record["result"].items() if not isinstance(value, bytes)}
            print("This GPU refuses too much for a comparison. What it did:", numbers, sep="\n")
            return None
        return record

    def recorded(self, card=""):
        """The newest record of a card of that name; None if there is none."""
        for record in self.records():
            if card.lower() in record["gpus"].lower():
                return record
        return None

    def words(self, record):
        """What `show` says of a record, or, where there is none, the folded line: {MIME type: text}."""
        if record is None:
            return {"text/plain": self.question, "text/html": self._folded()}
        paragraphs = [f"**{self.question}**", self.tell(record["result"])]
        paragraphs += [f"The file: `{path}`" for path in self._files(record)]
        source = "*{gpus}, driver {driver}, CUDA {cuda}, torch {torch}, {date}*".format(**record)
        others = {other["gpus"] for other in self.records()} - {record["gpus"]}
        for other in sorted(others):
            source += f". *On {other}:* `{self.name}.show({other!r})`"
        words = "\n\n".join([*paragraphs, source])
        return {"text/plain": words, "text/markdown": words}

    def _folded(self):
        """The line that opens to what would be measured, as HTML."""
        number = "one GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        code = html.escape(code_of(self.measure))
        return (f"<details><summary>On {number}: <b>{as_html(self.question)}</b></summary>"
                f"<p>{as_html(self.how)}</p>"
                f"<p>On a machine with {number}, this cell measures it. We expect {self.seconds:g} s on an H100. The "
                f"code is in the module <code>lessons.{self.lesson}.recorded</code>, and begins here:</p>"
                f"<pre>{code}</pre></details>")

    def headline(self, result):
        """The number that matters: what its words have in bold first."""
        words = self.tell(result)
        bold = re.search(r"\*\*(.+?)\*\*", words, re.DOTALL)
        if bold is None:
            raise ValueError(f"nothing is **bold** in {words!r}")
        return bold[1]

    @property
    def _file(self):
        return RECORDS / "gpus" / self.lesson / f"{self.name}.json"

    def records(self):
        """What was measured, the newest first, one of each kind of machine.

        [{"result", "seconds", and what `machine` says}]. Raises DataError: one is damaged.
        """
        if not self._file.exists():
            return []
        try:
            records = json.loads(self._file.read_text(encoding="utf-8"))
            for record in records:
                for key in record.pop("files"):
                    record["result"][key] = self._binary(record, key).read_bytes()
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"Cannot read {self._file.name}: {error!r}. To restore it: git checkout -- data/records, "
                            "or, without git, install the course again.") from None
        return records

    def store(self, record):
        """Keep a record, in the place of an earlier one of the same kind of machine."""
        others = [other for other in self.records() if other["gpus"] != record["gpus"]]
        contents = {}  # by path
        plain_records = []
        for each in (record, *others):
            plain = {}
            files = []
            for key, value in each["result"].items():
                if isinstance(value, bytes):
                    contents[self._binary(each, key)] = value
                    files.append(key)
                else:
                    plain[key] = value
            plain_records.append({**each, "result": plain, "files": files})
        # The JSON last, because it names the others.
        contents[self._file] = (json.dumps(plain_records, indent=1, ensure_ascii=False) + "\n").encode()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():  # each file whole or not at all
            part = self._file.with_suffix(".part")
            part.write_bytes(content)
            part.replace(path)

    def _files(self, record):
        """Where the bytes of a record lie: in data/records/, or, if it was not stored, in a folder of this kernel's."""
        from helpers.launcher.files import run_folder

        is_stored = record in self.records()
        for key, content in record["result"].items():
            if not isinstance(content, bytes):
                continue
            if is_stored:
                path = self._binary(record, key)
                yield path.relative_to(COURSE).as_posix() if IS_CHECKOUT else path
            else:
                path = run_folder() / f"{self.name}.{key}"
                path.write_bytes(content)
                yield path

    def _binary(self, record, key):
        """The file that holds the bytes of a record: `trace.NVIDIA-H100.json.gz` for its `json.gz`."""
        gpus = re.sub("[^A-Za-z0-9]+", "-", record["gpus"])
        return self._file.with_name(f"{self.name}.{gpus}.{key}")


def code_of(function):
    """The source of a function without its decorators and its docstring."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    [definition] = ast.parse("\n".join(lines)).body
    docstring, *_ = definition.body
    return "\n".join([*lines[definition.lineno - 1:docstring.lineno - 1], *lines[docstring.end_lineno:]])


def experiments(lesson):
    """{name: experiment} of a lesson, in the order of its file."""
    module = importlib.import_module(f"lessons.{lesson}.recorded")
    return {name: value for name, value in vars(module).items()
            if isinstance(value, Experiment) and value.lesson == lesson}


def machine():
    """What a record says of the machine that it is from."""
    import torch

    # Some containers have GPUs and no nvidia-smi.
    names = hardware.gpus or ["GPU without nvidia-smi"] * hardware.usable_gpus
    gpus = " + ".join(f"{count} × {name}" for name, count in Counter(names).items())
    return {"gpus": gpus,
            "cpu": hardware.cpu, "cores": hardware.cores,  # on which it depends how fast work reaches a GPU
            "driver": hardware.driver, "cuda": torch.version.cuda, "torch": torch.__version__,
            "python": platform.python_version(), "date": datetime.date.today().isoformat()}


def _measure(lesson, name, small):
    """In the experiment's process: what it finds, as a record's JSON gives it back."""
    experiment = experiments(lesson)[name]
    settings = experiment.small if small else {}
    return as_stored(experiment(**settings))


def as_stored(result):
    """A result as it will be read again: keys are texts, tuples lists; bytes stay."""
    stored = {}
    for key, value in result.items():
        if not isinstance(value, bytes):
            value = json.loads(json.dumps(value))
        stored[str(key)] = value
    return stored


# --------------------------------------------------------------------------------- for functions that measure


def milliseconds(work, repeats=20, warm_up=3, ahead=lambda: None):
    """The median time of `work()` on the GPU, by CUDA events between calls that are queued without waiting.

    Where the GPU is quicker than Python, this is the time that Python needs to queue a call; unless `ahead()`, which is
    queued first, keeps the GPU busy until all calls are in the queue.
    """
    import torch

    if SMALL in os.environ:
        repeats, warm_up = 2, 1
    for _ in range(warm_up):
        work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    ahead()
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in itertools.pairwise(events))


def returned_and_done(call, repeats=5, warm_up=0):
    """[ms until `call()` returns, ms until the GPU has finished what it ordered]: medians, by the CPU's clock."""
    import torch

    until_returned = []
    until_done = []
    for _ in range(warm_up + repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        until_returned.append(1000 * (returned - began))
        until_done.append(1000 * (done - began))
    return [statistics.median(until_returned[warm_up:]), statistics.median(until_done[warm_up:])]


def peak_mib(work):
    """The most MiB that tensors held at a time during `work()`."""
    import torch

    free_memory()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def free_memory():
    """Give back to the GPU what no tensor holds any more."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def attempt(work, *args, **kwargs):
    """What `work(*args, **kwargs)` returns, or what the card says when it refuses: {"refused": first line}."""
    try:
        return work(*args, **kwargs)
    except Exception as error:
        return {"refused": own_words(f"{type(error).__name__}: {str(error).strip()}")}
    finally:
        free_memory()


def own_words(message):
    """The first line of an error's message; where torch gives a rank's whole traceback, the line below it."""
    below_traceback = re.sub(r"(?s).*Traceback \([^\n]*\n(?: [^\n]*\n)+", "", message)
    first_line, _, _ = below_traceback.partition("\n")
    return textwrap.shorten(first_line, 300)


def in_ranks(work, nprocs, *args, backend=None):
    """What `work(*args)` returns in each of `nprocs` ranks, which are forked: before this process touches CUDA.

    backend: where given, `work` finds torch.distributed's default group, over this backend.

    Raises torch.multiprocessing.ProcessRaisedException: a rank raised.
    """
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (nprocs, folder, work, args, backend), nprocs, start_method="fork")
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(nprocs)]


def run_script(script, *words):
    """In a rank of `in_ranks`: what `torchrun SCRIPT WORDS` runs."""
    sys.argv = [str(script), *words]
    runpy.run_path(str(script), run_name="__main__")


def _rank(rank, nprocs, folder, work, args, backend):
    import torch
    import torch.distributed as dist

    from helpers.launcher.meeting import meet_by_file

    # Threads of autograd would all make this fork's thread pool at once, and end the process.
    torch.set_num_threads(torch.get_num_threads())
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nprocs), LOCAL_WORLD_SIZE=str(nprocs))
    meet_by_file(Path(folder, "meeting"))  # so `init_process_group` opens no port
    if backend:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        device_id = device if backend == "nccl" else None  # other backends do without
        dist.init_process_group(backend, device_id=device_id)
    result = work(*args)
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))
    if backend:
        dist.barrier()
        dist.destroy_process_group()
