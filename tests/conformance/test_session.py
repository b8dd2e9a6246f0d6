"""A function that `launch` runs sees the session as the cell does: a table of what learners do.

Each row is run in a real Jupyter kernel, whose state is put back before the next row. A row's name says what
the learner does. Its code is a few cells, divided by `# %%`. What is expected is one of these:

    SAME            The last cell defines `work`. Each rank returns what it returns in the kernel itself.
    a value         The last line of the last cell has this value.
    Refused(words)  The last cell raises TypeError or ValueError, with these words in its message.
    Failed(words)   The last cell raises RankError. These words stand in it or in the rank's traceback.

Each kind of thing has one row. The session has imported what is listed in FRESH, below.
"""

import ast
import re
import textwrap

import pytest

from tests.test_launch_kernel import COLLECTIVE, ENDLESS, used

SAME = object()


class Refused(str):
    """What `launch` says at once."""


class Failed(str):
    """What a rank said."""


def row(name, expected, code, answers=None, marks=()):
    """One row. `answers`, {prompt: lines}, is what the learner types. Without it, nobody can be asked."""
    return pytest.param(expected, code, answers, id=name, marks=marks)


SESSION = [
    row("%cd, and a module in a relative folder of sys.path", SAME, """
        os.makedirs("repo/lib")
        %cd repo
        Path("lib/mine.py").write_text("WORD = 'lib'")
        sys.path.append("lib")
        def work():
            import mine
            return mine.WORD, sys.path, os.getcwd()"""),
    row("an object of a class in the learner's module, and the module itself", [(3, 1), (3, 1)], """
        %%writefile points.py
        class Point: x = 3
        # %%
        import points, torch.nn.functional as F
        def work(point, module, F):
            return point.x if type(point) is module.Point else "another class", F.relu(torch.ones(1)).item()
        launch(work, args=(points.Point(), points, F)).results"""),
    row("a module is edited three times, and the cell has imported it", [[0, 0], [1, 1], [2, 2]], """
        seen = []
        for n in range(3):
            Path("settings.py").write_text(f"LR = {n}")
            import settings
            seen += [launch(lambda: settings.LR).results]
        seen"""),
    row("a module's function is launched, with %autoreload", ["one", "three"], """
        %load_ext autoreload
        %autoreload 2
        Path("training.py").write_text("def main(): return 'one'")
        import training
        first = launch(training.main, 1).results
        Path("training.py").write_text("def main(): return 'three'")
        # %%
        second = launch(training.main, 1).results
        %autoreload 0
        first + second"""),
    row("a helper function and a class of a cell are redefined", [(1, 1), (2, 2)], """
        def helper(): return 1
        class Net: size = 1
        def work(): return helper(), Net.size
        first = launch(work, 1).results
        # %%
        def helper(): return 2
        class Net: size = 2
        first + launch(work, 1).results"""),
    row("a variable deleted again, and one with which the kernel started", [["1", True], [None, False]], """
        def work(): return [os.environ.get("MINE"), "COURSE_TEST_MARK" in os.environ]
        os.environ["MINE"] = "1"
        first = launch(work, 1).results
        del os.environ["MINE"], os.environ["COURSE_TEST_MARK"]
        first + launch(work, 1).results"""),
    row("env=, for one run alone", [["run", None], ["session", "1"]], """
        os.environ.update(MINE="session", GONE="1")
        def work(): return [os.environ.get("MINE"), os.environ.get("GONE")]
        [*launch(work, 1, env={"MINE": "run", "GONE": None}).results, *launch(work, 1).results]"""),
    row("logging is that of a new process, whatever the session has set up", ["warning\n", "info\nwarning\n"], """
        class Unpicklable(logging.Formatter):
            lock = threading.Lock()
        logging.basicConfig(level=logging.INFO)
        logging.root.handlers[0].setFormatter(Unpicklable())
        def work(set_up):
            if set_up:
                logging.basicConfig(level=logging.INFO, format="%(message)s")
            log = logging.getLogger("mine")
            log.info("info")
            log.warning("warning")
        [launch(work, 1, (set_up,)).logs[0] for set_up in (False, True)]"""),
    row("torch.load of a cell's network, whose class the function uses", SAME, """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)
            def forward(self, x): return self.layer(x).relu()
        torch.save(Net(), "net.pt")
        def work():
            net = torch.load("net.pt", weights_only=False)
            return isinstance(net, Net), net(torch.ones(2)).item()"""),
    row("what the function draws differs in each rank and launch, whatever seeds are set", [[], True], """
        import random, tempfile, uuid
        from random import random as drawn
        from torch.utils.data import DataLoader
        random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
        def states():
            return random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()
        def work():
            return {
                "torch": torch.rand(1).item(), "numpy": numpy.random.rand(), "random": random.random(),
                "by a name of its own": drawn(), "default_rng": numpy.random.default_rng().random(),
                "weights": torch.nn.Linear(1, 1).weight.item(), "initial_seed": torch.initial_seed(),
                "shuffled": tuple(map(int, DataLoader(range(100), shuffle=True))),
                "dropout": tuple(torch.nn.functional.dropout(torch.ones(200)).tolist()),
                "generator": torch.Generator().seed(), "uuid": uuid.uuid4().hex,
                "file": tempfile.mktemp()}
        before = states()
        first, second = launch(work).results, launch(work).results
        equal = [name for name in first[0] if len({values[name] for values in first + second}) < 4]
        [equal, states() == before]"""),
    row("exit(), quit() and sys.exit()", [[None, None]] * 3, """
        [launch(work).results for work in (lambda: exit(), lambda: quit(), lambda: sys.exit())]"""),
]

# ------------------------------------------------------------------------------------------- what can be sent

SENT = [
    row("torch.backends, torch.ops and torch.nn.functional", SAME, """
        import torch.backends.cudnn as cudnn
        def work():
            torch.backends.cudnn.benchmark = True
            return cudnn.benchmark, torch.ops.aten.add(torch.ones(1), 2)"""),
    row("functools.cache, which has been called", SAME, """
        import functools
        @functools.lru_cache(maxsize=7)
        def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
        fibonacci(5)
        def work(): return fibonacci(30), fibonacci.cache_parameters()"""),
    row("super(), classes that refer to themselves and to each other, a dataclass, an enum", SAME, """
        import dataclasses, enum
        class Base:
            def words(self): return ["base"]
        class Tree(Base):
            def words(self): return [type(Tree()).__name__, Leaf.tree.__name__, *super().words()]
        class Leaf: tree = Tree
        class Mode(enum.Enum): TRAIN = 1
        @dataclasses.dataclass
        class Settings: mode: Mode = Mode.TRAIN
        settings = Settings()
        def work(): return Tree().words(), settings, settings.mode is Mode.TRAIN"""),
    row("a network with hooks, tied weights, and one of its weights", [(2, True, True)] * 2, """
        class Net(torch.nn.Sequential):
            def __init__(self):
                super().__init__(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
                self.seen = []
                self.register_forward_hook(lambda module, inputs, output: self.seen.append(len(output)))
        net = Net()
        net[1].weight = net[0].weight
        def work(net, weight):
            net(torch.ones(2))
            return net.seen[-1], weight is net[0].weight, weight is net[1].weight
        launch(work, args=(net, net[0].weight)).results"""),
    row("a Dataset of a cell with workers in the rank, a pool of processes and one of threads",
        [([[0, 10], [20, 30]], [0, 1, 4, 9], [0, 1, 4, 9])] * 2, """
        import multiprocessing
        from concurrent.futures import ThreadPoolExecutor
        from torch.utils.data import DataLoader, Dataset
        SCALE = 10
        class Numbers(Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): return torch.tensor(SCALE * index)
        def square(n): return n * n
        def work():
            batches = [batch.tolist() for batch in DataLoader(Numbers(), batch_size=2, num_workers=2)]
            with multiprocessing.get_context("fork").Pool(2) as pool, ThreadPoolExecutor(2) as threads:
                return batches, pool.map(square, range(4)), list(threads.map(square, range(4)))
        launch(work).results"""),
    row("processes that the rank starts anew, an argument of a cell's class, and what they raise",
        [["SPAWN", "FORKSERVER", "in check", "len(word.text) > 20"]], """
        import multiprocessing, traceback
        class Word:
            def __init__(self, text): self.text = text
        def shout(word): return type(word)(word.text.upper())
        def check(word): assert len(word.text) > 20
        def work(word):
            seen = []
            for method in "spawn", "forkserver":
                with multiprocessing.get_context(method).Pool(1) as pool:
                    word.text = method
                    loud = pool.apply(shout, [word])
                    seen += [loud.text] if type(loud) is type(word) else []
                    failed = pool.apply_async(check, [word])
                    failed.wait()
            try:
                failed.get()
            except AssertionError:
                expected = "in check", "len(word.text) > 20"
                return seen + [words for words in expected if words in traceback.format_exc()]
        launch(work, 1, (Word(""),)).results"""),
    row("objects of a cell's class are gathered", [["a", "b"]] * 2, """
        class Named:
            def __init__(self, name): self.name = name
        def work():
            dist.init_process_group("gloo")
            seen = [None, None]
            dist.all_gather_object(seen, Named("ab"[dist.get_rank()]))
            dist.destroy_process_group()
            return [one.name for one in seen]
        launch(work).results"""),
    row("kwargs", [(1, 0.1, {"nprocs": 5})] * 2, """
        def work(n, *, lr=1.0, **others): return n, lr, others
        launch(work, 2, (1,), kwargs={"lr": 0.1, "nprocs": 5}).results"""),
]


def refused(name, words, call, before="pass", marks=()):
    """A row of a call that is refused."""
    return row(name, Refused(words), f"{before}\n{call}", marks=marks)


REFUSED = [
    refused("an open file, a global variable", "the variable `thing`", "launch(lambda: thing)",
            "thing = open('losses.csv', 'w')"),
    refused("a function of torch.compile's", "compile it in the rank", "launch(lambda: thing)",
            "thing = torch.compile(abs, backend='eager')", marks=pytest.mark.long),
    refused("a lock by name", "argument guard",
            "launch(lambda guard: 1, kwargs={'guard': threading.Lock()})"),
    refused("a lock in a closure", "`guard`", "launch((lambda guard: lambda: guard)(threading.Lock()))"),
    refused("a network whose memory is shared, in an object", "shared memory",
            "launch(lambda state: None, 2, ({'state': [torch.nn.Linear(2, 2).share_memory()]},))"),
    refused("a custom op of a cell", "in a module", "launch(lambda: double(1))",
            'double = torch.library.custom_op("course_test::double", lambda x: 2 * x, mutates_args=(), '
            'schema="(Tensor x) -> Tensor")'),
    refused("def worker(rank, world_size), without the rank", "passes no rank",
            "launch(lambda rank, world_size: 1, 2, (2,))"),
    refused("kwargs that the function does not know", "(n, lr=1)",
            "launch(lambda n, lr=1: 1, 2, (1,), kwargs={'rate': 0.1})"),
]

FAILED = [
    row("def worker(rank, world_size), with the same rank for all", Failed("passes no rank"), """
        def worker(rank, world_size): dist.init_process_group("gloo", rank=rank, world_size=world_size)
        launch(worker, 2, (0, 2), timeout=0.4)"""),
    row("a lock that is returned", Failed("a lock, cannot be sent"), "launch(lambda: threading.Lock())"),
    row("results where time was up", {0: "done"}, """
        def work():
            if os.environ["RANK"] == "1":
                time.sleep(60)
            return "done"
        error_of(work, timeout=0.5).results"""),
    row("the cause: an exception of a cell, and its traceback in its own cause", [True, 3, True], """
        class Odd(Exception):
            def __init__(self, n):
                super().__init__(n)
                self.n = n
        def inner(): raise Odd(3)
        cause = error_of(lambda: inner()).__cause__
        [type(cause) is Odd, cause.n, "in inner" in str(cause.__cause__)]"""),
    row("the cause: one that cannot be rebuilt", [True, True], """
        class Odd(Exception):
            def __init__(self, code, reason): super().__init__(f"{code}: {reason}")
        def work(): raise Odd(7, "why")
        text = str(error_of(work).__cause__)
        ["in work" in text, "7: why" in text]"""),
    row("input() in both ranks", ["zero", "ä€"], """
        launch(lambda: input("name? "), timeout=20).results""",
        {"[0] name? ": ["zero"], "[1] name? ": ["ä€"]}),
    row("breakpoint()", [[5], True], """
        def work():
            x = 3
            breakpoint()
            return x + 1
        run = launch(work, 1, timeout=20)
        [run.results, "30303" in run.logs[0]]""", {"[0] (Pdb) ": ["p x * 10101", "x = 4", "c"]}),
    row("input() where nobody can be asked, at once", ["EOFError", True], """
        began = time.monotonic()
        cause = error_of(lambda: input("name? "), timeout=20).__cause__
        [type(cause).__name__, time.monotonic() - began < 5]"""),
]

#: When such a variable changes, ranks come from a new fork server, which takes seconds.
AT_START = row("env=, with what torch and Python read at their start", [
        [("OFF", 30, 1, False, False, False)] * 2, [("INFO", 10, 3, True, True, True)] * 2], """
        import importlib.util, subprocess, warnings
        os.makedirs("../lib", exist_ok=True)
        Path("../lib/mine.py").touch()
        variables = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_LOGS": "+dynamo", "OMP_NUM_THREADS": "3",
                     "PYTHONPATH": os.path.abspath("../lib"), "PYTHONWARNINGS": "error::BytesWarning",
                     "PYTHONHASHSEED": "5"}
        new = subprocess.check_output([sys.executable, "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": "5"})
        def work(seeded=int(new)):
            raised = [kind for action, _, kind, *_ in warnings.filters if action == "error"]
            return (dist.get_debug_level().name, logging.getLogger("torch._dynamo").getEffectiveLevel(),
                    torch.get_num_threads(), importlib.util.find_spec("mine") is not None,
                    BytesWarning in raised, hash("a") == seeded)
        [launch(work).results, launch(work, env=variables).results]""", marks=pytest.mark.long)

# ------------------------------------------------------------------------------------------- how a row is run

# A row finds the kernel as it was at its start, in a folder of its own, with nothing in it but these names.
# (IPython's `%reset` looks for garbage, which takes longer than a row.)
FRESH = """
def _fresh(folder, folders, path, environment):
    import logging, os, sys, tempfile, time

    os.chdir(folder)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    time.tzset()
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {{}})
        if any(folders in str(names.get(where)) for where in ("__file__", "__path__")):
            del sys.modules[name]
    for log in logging.root, *map(logging.getLogger, logging.Logger.manager.loggerDict):
        if log is logging.root or log.name.startswith("mine"):
            while log.handlers:
                log.handlers.pop().close()
            log.setLevel(logging.WARNING if log is logging.root else logging.NOTSET)
    for name in {{*globals()}} - {{*get_ipython().user_ns_hidden}}:
        if not name.startswith("__"):
            del globals()[name]

_fresh({folder!r}, {folders!r}, {path!r}, {environment!r})

import logging, os, pickle, sys, threading, time
from pathlib import Path
import numpy, torch, torch.distributed as dist
from helpers import RankError, launch

def error_of(*args, **settings):
    try:
        launch(*args, **settings)
    except RankError as error:
        return error
"""


class Raised(Exception):
    """An exception of a cell."""

    def __init__(self, name, text, traceback):
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text
        self.traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))


class Session:
    """A learner's kernel."""

    def __init__(self, kernel, folders):
        self.kernel, self.folders = kernel, str(folders)
        # torch._dynamo makes this folder at its import, and leaves it.
        cache = str(folders / "torchinductor")
        self.cell(f"import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = {cache!r}")
        self.path, self.environment = self.cell("import sys\n[sys.path, dict(os.environ)]")

    def begin(self, folder):
        """Put the kernel's state back, and have it work in `folder`."""
        self.cell(FRESH.format(folder=str(folder), folders=self.folders, path=self.path,
                               environment=self.environment))

    def cell(self, code, answers=None):
        """Execute a cell, and return the value of its last line. `answers` is what the learner types.

        Raises:
            Raised: what the cell raised.
        """
        texts = {prompt: iter(lines) for prompt, lines in (answers or {}).items()}
        values = []

        def output(message):
            if message["msg_type"] == "execute_result":
                text = message["content"]["data"]["text/plain"]
                values.append(text if text.startswith("<") else ast.literal_eval(text))

        def asked(message):
            prompt = message["content"]["prompt"]
            self.kernel.client.input(next(texts.get(prompt, iter([])), f"no answer to {prompt!r}"))

        try:
            reply = self.kernel.client.execute_interactive(
                code, timeout=60, output_hook=output, allow_stdin=bool(texts), stdin_hook=asked,
                stop_on_error=False)["content"]
        except TimeoutError:  # what follows needs a kernel that answers
            self.kernel.manager.restart_kernel(now=True)
            self.kernel.connect()
            raise
        if reply["status"] != "ok":
            raise Raised(reply["ename"], reply["evalue"], reply["traceback"])
        return values[-1] if values else None


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One for all rows: to start a kernel and its fork server takes as long as fifty of them."""
    for kernel in used():
        yield Session(kernel, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(("expected", "code", "answers"), [*SESSION, *SENT, *REFUSED, *FAILED, AT_START])
def test_a_function_sees_the_session_as_the_cell_does(session, tmp_path, expected, code, answers):
    session.begin(tmp_path)
    *before, last = re.split(r"^# %%\n", textwrap.dedent(code).strip() + "\n", flags=re.MULTILINE)
    for cell in before:
        session.cell(cell)
    if expected is SAME:
        session.cell(last)
        # The ranks first: what the function changes in the kernel must not help them.
        ranks, here = session.cell("[repr(result) for result in launch(work).results], repr(work())")
        assert ranks == [here, here]
    elif isinstance(expected, Refused | Failed):
        with pytest.raises(Raised) as raised:
            session.cell(last, answers)
        is_refused = isinstance(expected, Refused)
        assert raised.value.name in (("TypeError", "ValueError") if is_refused else ("RankError",))
        # What is refused has a traceback that shows the learner's own lines: words in it do not count.
        assert expected in raised.value.text + raised.value.traceback * (not is_refused)
    else:
        assert session.cell(last, answers) == expected


# ---------------------------------------------------------------------- what a learner sees, and an interrupt


@pytest.fixture
def kernel(session, tmp_path):
    session.begin(tmp_path)
    return session.kernel


def test_an_interrupted_cell_ends_its_ranks_and_the_next_cell_works(kernel):
    assert kernel.is_interrupted(COLLECTIVE)


def test_an_exception_shows_the_cells_own_line(kernel):
    assert kernel.shows_the_cells_own_line()


def test_what_stays_is_ordered_by_rank_and_what_comes_first_is_stable(kernel):
    code = ("def work():\n    import os, time\n    time.sleep(0.4 * (1 - int(os.environ['RANK'])))\n"
            "    print('hello')\n\nrun = launch(work, nprocs=2)")
    for _ in range(2):
        _, outputs = kernel.run(code)
        shown = [message for message in outputs if message["msg_type"] in ("stream", "display_data")]
        assert [message["msg_type"] for message in shown] == ["display_data", "stream"]
        assert shown[0]["content"]["data"] == {}, "nbval compares a display's first state: it is empty"
        assert shown[1]["content"]["text"] == "[0] hello\n[1] hello\n"
        updates = [one["content"]["data"] for one in outputs if one["msg_type"] == "update_display_data"]
        assert {"text/plain": "[1] hello"} in updates, "rank 1's line was seen while rank 0 was still asleep"
        assert updates[-1] == {}, "and in the end the display is empty again"


def test_a_killed_kernel_leaves_nothing(kernel):
    """The last test: what its ranks leave is gone when `session` ends, which kills the kernel and looks."""
    kernel.start(ENDLESS.format(how=COLLECTIVE))
