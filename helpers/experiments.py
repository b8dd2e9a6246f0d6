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
    return lambda measure: Experiment(measure, gpus, seconds, wanted, small or {})


class Experiment:
    """What `@experiment` makes of a function. Calling it measures in this process; `show` is for a lesson's cell."""

    def __init__(self, measure, gpus, seconds, wanted, small):
        self.measure, self.gpus, self.seconds, self.wanted, self.small = measure, gpus, seconds, wanted, small
        self.name, self.lesson = measure.__name__, measure.__module__.split(".")[1]
        self.question, _, self.how = inspect.getdoc(measure).partition("\n\n")
        self.draw = self.tell = None

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
        done = launch(_measure, nprocs=1, args=(self.lesson, self.name, SMALL in os.environ), timeout=limit, show=False)
        return {"result": done.results[0], "seconds": round(done.seconds, 1), **machine()}

    def show(self, card=""):
        """Measure here, where there are GPUs; else show what was recorded; else fold away what would be.

        Args:
            card: A part of the name of the GPU whose record to show; nothing is measured. ValueError: it has none.
        """
        from IPython.display import display

        record = self.recorded(card) if card else self._measured_here() or self.recorded()
        if card and not record:
            cards = ", ".join(one["gpus"] for one in self.records()) or "none"
            raise ValueError(f"Nothing was recorded on {card!r}. There are records of: {cards}.")
        if record and self.draw:
            import matplotlib.pyplot as plt

            explorer = self.draw(record["result"])
            plt.show() if explorer is None else display(explorer)
        display(self.words(record), raw=True)

    def _measured_here(self):
        from helpers import RankError

        if hardware.usable_gpus < self.gpus:
            return None
        here = machine().items()
        if of_today := next((record for record in self.records() if here <= record.items()), None):
            return of_today  # tools/record.py has measured it on this machine: no need to wait for it again
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
        return next((record for record in self.records() if card.lower() in record["gpus"].lower()), None)

    def words(self, record):
        """What `show` says of a record, or, where there is none, the folded line: {MIME type: text}."""
        if record is None:
            number = "one GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
            code = html.escape(code_of(self.measure))
            question, how = (re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))
                             for text in (self.question, self.how))
            return {"text/plain": self.question, "text/html": (
                f"<details><summary>On {number}: <b>{question}</b></summary><p>{how}</p>"
                f"<p>On a machine with {number}, this cell measures it. We expect {self.seconds:g} s on an H100. The "
                f"code is in the module <code>lessons.{self.lesson}.recorded</code>, and begins here:</p>"
                f"<pre>{code}</pre></details>")}
        files = "".join(f"\n\nThe file: `{path}`" for path in self._files(record))
        others = {other["gpus"] for other in self.records()} - {record["gpus"]}
        text = "\n\n*{gpus}, driver {driver}, CUDA {cuda}, torch {torch}, {date}*".format(**record) + "".join(
            f". *On {other}:* `{self.name}.show({other!r})`" for other in sorted(others))
        words = f"**{self.question}**\n\n" + self.tell(record["result"]) + files + text
        return {"text/plain": words, "text/markdown": words}

    def headline(self, result):
        """The number that matters: what its words have in bold first."""
        words = self.tell(result)
        if not (bold := re.search(r"\*\*(.+?)\*\*", words, re.DOTALL)):
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
        self._file.parent.mkdir(parents=True, exist_ok=True)
        contents, written = {}, []
        for one in (record, *others):
            files = {key: value for key, value in one["result"].items() if isinstance(value, bytes)}
            contents |= {self._binary(one, key): content for key, content in files.items()}
            plain = {key: value for key, value in one["result"].items() if key not in files}
            written.append({**one, "result": plain, "files": list(files)})
        contents[self._file] = (json.dumps(written, indent=1, ensure_ascii=False) + "\n").encode()
        for path, content in contents.items():  # each file whole or not at all
            part = self._file.with_suffix(".part")
            part.write_bytes(content)
            part.replace(path)

    def _files(self, record):
        """Where the bytes of a record lie: in data/records/, or, if it was not stored, in a folder of this kernel's."""
        from helpers.launcher.files import run_folder

        is_stored = record in self.records()
        for key, content in record["result"].items():
            if isinstance(content, bytes) and is_stored:
                path = self._binary(record, key)
                yield path.relative_to(COURSE).as_posix() if IS_CHECKOUT else path
            elif isinstance(content, bytes):
                path = run_folder() / f"{self.name}.{key}"
                path.write_bytes(content)
                yield path

    def _binary(self, record, key):
        """The file that holds the bytes of a record: `trace.NVIDIA-H100.json.gz` for its `json.gz`."""
        return self._file.with_name(f"{self.name}.{re.sub('[^A-Za-z0-9]+', '-', record['gpus'])}.{key}")


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
    names = [gpu.name for gpu in hardware.gpus] or ["GPU without nvidia-smi"] * hardware.usable_gpus
    return {"gpus": " + ".join(f"{count} × {name}" for name, count in Counter(names).items()),
            "cpu": hardware.cpu, "cores": hardware.cores,  # on which it depends how fast work reaches a GPU
            "driver": hardware.driver, "cuda": torch.version.cuda, "torch": torch.__version__,
            "python": platform.python_version(), "date": datetime.date.today().isoformat()}


def _measure(lesson, name, small):
    """In the experiment's process: what it finds, as a record's JSON gives it back."""
    measured = experiments(lesson)[name]
    return as_stored(measured(**(measured.small if small else {})))


def as_stored(result):
    """A result as it will be read again: keys are texts, tuples lists; bytes stay."""
    return {str(key): value if isinstance(value, bytes) else json.loads(json.dumps(value))
            for key, value in result.items()}


# For functions that measure.

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
    return statistics.median(one.elapsed_time(two) for one, two in itertools.pairwise(events))


def returned_and_done(call, repeats=5, warm_up=0):
    """[ms until `call()` returns, ms until the GPU has finished what it ordered]: medians, by the CPU's clock."""
    import torch

    rows = []
    for _ in range(warm_up + repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        rows.append((1000 * (returned - began), 1000 * (time.perf_counter() - began)))
    return [statistics.median(column) for column in zip(*rows[warm_up:], strict=True)]


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
    below = re.sub(r"(?s).*Traceback \([^\n]*\n(?: [^\n]*\n)+", "", message)
    return textwrap.shorten(below.partition("\n")[0], 300)


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
        dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    result = work(*args)
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))
    if backend:
        dist.barrier()
        dist.destroy_process_group()
