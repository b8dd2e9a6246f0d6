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

from tests.test_launch_kernel import used

SAME = object()


class Refused(str):
    """What `launch` says at once."""


class Failed(str):
    """What a rank said."""


def row(name, expected, code, answers=None):
    """One row. `answers`, {prompt: lines}, is what the learner types. Without it, nobody can be asked."""
    return pytest.param(expected, code, answers, id=name)


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
    row("a module is edited ten times, and the cell has imported it", [[n, n] for n in range(10)], """
        seen = []
        for n in range(10):
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
    row("a variable, which a child process of the rank prints", SAME, """
        import subprocess
        os.environ["MINE"] = "a=b ü\\n"
        def work():
            return subprocess.run('echo "$MINE"', shell=True, capture_output=True, text=True).stdout"""),
    row("a variable deleted again, and one with which the kernel started", [["1", True], [None, False]], """
        def work(): return [os.environ.get("MINE"), "COURSE_TEST_MARK" in os.environ]
        os.environ["MINE"] = "1"
        first = launch(work, 1).results
        del os.environ["MINE"], os.environ["COURSE_TEST_MARK"]
        first + launch(work, 1).results"""),
    row("TZ and TMPDIR", SAME, """
        import tempfile
        os.environ.update(TZ="Asia/Tokyo", TMPDIR=os.getcwd())
        tempfile.tempdir = None
        time.tzset()
        def work(): return time.localtime(0).tm_hour, tempfile.gettempdir()"""),
    row("env=, for one run alone", [["run", None], ["session", "1"]], """
        os.environ.update(MINE="session", GONE="1")
        def work(): return [os.environ.get("MINE"), os.environ.get("GONE")]
        [*launch(work, 1, env={"MINE": "run", "GONE": None}).results, *launch(work, 1).results]"""),
    row("basicConfig, twice, and a named logger's level", [["INFO|hello\n"], ["two DEBUG\n"]], """
        logging.basicConfig(level=logging.INFO, format="%(levelname)s|%(message)s")
        def work(say="hello"):
            log = logging.getLogger("mine")
            log.info("hello") if say == "hello" else log.debug(say)
            logging.getLogger("mine_too").debug("not this")
        first = launch(work, 1).logs
        logging.basicConfig(format="two %(levelname)s", force=True)
        logging.getLogger("mine").setLevel(logging.DEBUG)
        [first, launch(work, 1, ("this",)).logs]"""),
    row("a named logger's own handler, by dictConfig", ["mine: this\n"] * 2, """
        import logging.config
        logging.config.dictConfig({
            "version": 1, "disable_existing_loggers": False,
            "formatters": {"short": {"format": "%(name)s: %(message)s"}},
            "handlers": {"screen": {"class": "logging.StreamHandler", "formatter": "short"}},
            "loggers": {"mine": {"level": "INFO", "handlers": ["screen"]}}})
        launch(lambda: logging.getLogger("mine").info("this")).logs"""),
    row("no logging set up, and the kernel's own is as before", [["this\n"], "INFO:mine:here\n"], """
        def work():
            logging.getLogger("mine").info("not this")
            logging.getLogger("mine").warning("this")
        said = launch(work, 1).logs
        import io
        here = io.StringIO()
        logging.basicConfig(level=logging.INFO, stream=here)
        launch(lambda: 1)
        logging.getLogger("mine").info("here")
        [said, here.getvalue()]"""),
    row("torch.load of a cell's network", SAME, """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)
            def forward(self, x): return self.layer(x).relu()
        torch.save(Net(), "net.pt")
        def work(): return torch.load("net.pt", weights_only=False)(torch.ones(2)).item()"""),
    row("pickle.load of things whose classes and functions are the cell's", SAME, """
        import collections, dataclasses, enum
        OFFSET = 10
        @dataclasses.dataclass
        class Settings: lr: float = 0.1
        class Mode(enum.Enum): TRAIN = 1
        Batch = collections.namedtuple("Batch", "x y")
        def moved(x): return x + OFFSET
        Path("all.pkl").write_bytes(pickle.dumps([Settings(0.5), Mode.TRAIN, Batch(1, 2), moved]))
        def work():
            *things, function = pickle.loads(Path("all.pkl").read_bytes())
            return things, function(3)"""),
    row("what the function draws differs in each rank and launch, whatever the cell has seeded", [[], True], """
        import random, tempfile, uuid
        from random import random as drawn
        from torch.utils.data import DataLoader
        random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
        def states(): return random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()
        def work():
            return {
                "torch": torch.rand(1).item(), "numpy": numpy.random.rand(), "random": random.random(),
                "by a name of its own": drawn(), "default_rng": numpy.random.default_rng().random(),
                "weights": torch.nn.Linear(1, 1).weight.item(), "initial_seed": torch.initial_seed(),
                "shuffled": tuple(map(int, DataLoader(range(100), shuffle=True))),
                "dropout": tuple(torch.nn.functional.dropout(torch.ones(200)).tolist()),
                "generator": torch.Generator().seed(), "uuid": uuid.uuid4().hex, "file": tempfile.mktemp()}
        before = states()
        first, second = launch(work).results, launch(work).results
        [[name for name in first[0] if len({values[name] for values in first + second}) < 4], states() == before]"""),
    row("exit(), quit() and sys.exit()", [[None, None]] * 3, """
        [launch(work).results for work in (lambda: exit(), lambda: quit(), lambda: sys.exit())]"""),
    row("!echo {variable}", ["hi Ada\n"] * 2, """
        def work():
            name = "Ada"
            !echo hi {name}
        launch(work).logs"""),
    row("files = !ls, %env and get_ipython()", SAME, """
        os.mkdir("a")
        def work():
            files = !ls
            %env MINE_IN_WORK=1
            return list(files), os.environ["MINE_IN_WORK"], get_ipython() is not None"""),
    row("__name__, no __file__, and inspect.getsource", SAME, """
        import inspect
        def helper(): return 1
        def work(): return __name__, work.__qualname__, "__file__" in globals(), inspect.getsource(helper)"""),
]

# --------------------------------------------------------------------------------------- what can be sent

SENT = [
    row("torch.backends, torch.ops and torch.nn.functional", SAME, """
        import torch.backends.cudnn as cudnn
        def work():
            torch.backends.cudnn.benchmark = True
            return cudnn.benchmark, torch.ops.aten.add(torch.ones(1), 2)"""),
    row("sys.stdout and sys.stderr by other names", ["out\nerr\n"] * 2, """
        out = sys.stdout
        def work(err=sys.stderr):
            print("out", file=out, flush=True)
            print("err", file=err)
        launch(work).logs"""),
    row("recursion between two functions, one of which a later cell defines", SAME, """
        def even(n): return n == 0 or odd(n - 1)
        # %%
        def odd(n): return n != 0 and even(n - 1)
        def work(): return even(10), odd(10)"""),
    row("functools.cache and singledispatch, which have been called", SAME, """
        import functools
        @functools.lru_cache(maxsize=7)
        def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
        @functools.singledispatch
        def shown(x): return "?"
        @shown.register
        def _(x: int): return "int"
        fibonacci(5), shown(3)
        def work(): return fibonacci(30), fibonacci.cache_parameters(), shown(1), shown("a")"""),
    row("a decorator, functools.wraps, which supplies the arguments", SAME, """
        import functools
        def configured(function):
            @functools.wraps(function)
            def inner(): return function({"lr": 1})
            return inner
        @configured
        @torch.no_grad()
        def work(config): return config, (torch.ones(1, requires_grad=True) * 2).requires_grad"""),
    row("a method, a class method, an object that can be called", [[4, 4], ["Trainer"] * 2, [6, 6]], """
        class Trainer:
            def __init__(self, lr): self.lr = lr
            def fit(self, n): return self.lr * n
            @classmethod
            def name(cls): return cls.__name__
            def __call__(self): return self.fit(3)
        [launch(one, args=args).results
         for one, args in ((Trainer(2).fit, (2,)), (Trainer.name, ()), (Trainer(2), ()))]"""),
    row("super(), a metaclass, annotations, classes that refer to themselves and to each other", SAME, """
        import typing
        class Registry(type):
            known = {}
            def __new__(meta, name, bases, body):
                meta.known[name] = made = super().__new__(meta, name, bases, body)
                return made
        class Net(metaclass=Registry): pass
        class Base:
            def words(self): return ["base"]
        class Tree(Base):
            def words(self): return [type(Tree()).__name__, Leaf.tree.__name__, *super().words()]
        class Leaf: tree = Tree
        def hinted(p: Tree = None, q: int | Tree = 1) -> list[Tree]: pass
        def work():
            hints = {name: str(hint) for name, hint in typing.get_type_hints(hinted).items()}
            return Tree().words(), sorted(Registry.known), Registry.known["Net"] is Net, hints"""),
    row("a dataclass, NamedTuple, TypedDict", SAME, """
        from dataclasses import asdict, dataclass, field, replace
        from typing import NamedTuple, TypedDict
        @dataclass(frozen=True, order=True)
        class Settings:
            lr: float = 0.1
            sizes: list = field(default_factory=list)
        class Batch(NamedTuple): x: int = 2
        class Row(TypedDict, total=False): loss: float
        settings = Settings(sizes=[1])
        def work():
            changed = settings, asdict(settings), replace(settings, lr=0.5), settings < Settings(1.0)
            return changed, Batch(3)._asdict(), Row(loss=1.0), sorted(Row.__annotations__)"""),
    row("an enum, which comes back as the same", [True, True], """
        import enum
        class Mode(enum.Enum): TRAIN = "train"
        mode = Mode.TRAIN
        def work(): return mode if mode is Mode.TRAIN is Mode("train") else None
        [result is Mode.TRAIN for result in launch(work).results]"""),
    row("an abstract class, a Protocol, a generic class", SAME, """
        from abc import ABC, abstractmethod
        from typing import Generic, Protocol, TypeVar, runtime_checkable
        @runtime_checkable
        class Sized(Protocol):
            def size(self) -> int: ...
        class Model(ABC):
            @abstractmethod
            def size(self): ...
        class Small(Model, Generic[TypeVar("T")]):
            def size(self): return 1
        small = Small[int]()
        def work(): return small.size(), isinstance(small, Model), isinstance(small, Sized)"""),
    row("cached_property, __getattr__, __getstate__, a list that was extended", SAME, """
        import functools
        class Mixed:
            @functools.cached_property
            def mean(self): return 2.0
            def __getattr__(self, name): raise AttributeError(f"no {name}")
        class Stack(list):
            def top(self): return self[-1]
        class Handle:
            def __init__(self, path): self.path, self.file = path, open(path, "a")
            def __getstate__(self): return {"path": self.path}
        fresh, asked, stack, handle = Mixed(), Mixed(), Stack([1, 2]), Handle("a.txt")
        asked.mean
        def work(): return fresh.mean, asked.mean, hasattr(fresh, "other"), stack.top(), handle.path"""),
    row("a network with hooks, an optimizer of its weights, tied weights", [(2, True, True)] * 2, """
        class Net(torch.nn.Sequential):
            def __init__(self):
                super().__init__(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
                self.seen = []
                self.register_forward_hook(lambda module, inputs, output: self.seen.append(len(output)))
        net = Net()
        net[1].weight = net[0].weight
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        def work(net, optimizer):
            net(torch.ones(2))
            weight = optimizer.param_groups[0]["params"][0]
            return net.seen[-1], weight is net[0].weight, weight is net[1].weight
        launch(work, args=(net, optimizer)).results"""),
    row("an autograd.Function and a Tensor class of a cell", SAME, """
        class Double(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: 2 * x)
            backward = staticmethod(lambda ctx, gradient: 3 * gradient)
        class Marked(torch.Tensor): pass
        marked = torch.ones(2).as_subclass(Marked)
        def work():
            x = torch.ones(1, requires_grad=True)
            Double.apply(x).backward()
            return x.grad, type(marked + 1).__name__"""),
    row("a Dataset of a cell with workers in the rank, a pool of processes and one of threads", SAME, """
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
                return batches, pool.map(square, range(4)), list(threads.map(square, range(4)))"""),
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
    row("lambdas, modules in a dict, an iterator where it stands, generators with seeds", SAME, """
        import collections, functools, random, types
        things = (lambda: 3, (lambda n: lambda x: x + n)(2), collections.defaultdict(lambda: 3),
                  functools.partial(lambda x, n: x ** n, n=2), {"made": types.ModuleType("made")}, iter([1, 2, 3]))
        seeded = random.Random(3), numpy.random.default_rng(3), torch.Generator().manual_seed(3)
        def work():
            one, add, counts, power, modules, left = things
            drawn = seeded[0].random(), seeded[1].random(), torch.rand(2, generator=seeded[2])
            return one(), add(3), counts["new"], power(3), modules["made"].__name__, list(left), drawn"""),
    row("a DataLoader with a generator, a scheduler with a lambda", SAME, """
        loader = torch.utils.data.DataLoader(range(8), 4, shuffle=True, collate_fn=lambda x: x,
                                             generator=torch.Generator().manual_seed(3))
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=1.0), lambda epoch: 0.5 ** epoch)
        def work(): return list(loader), scheduler.get_last_lr()"""),
    row("objects of Python's own library, of numpy and of torch", SAME, """
        import argparse, collections, datetime, decimal, fractions, operator, pathlib, re, types, typing, uuid
        thing = {
            "pattern": re.compile("a+", re.I), "path": pathlib.Path("a") / "b", "uuid": uuid.UUID(int=3),
            "date": datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc), "slice": slice(1, 2),
            "fraction": fractions.Fraction(1, 3), "decimal": decimal.Decimal("0.1"), "range": range(3),
            "deque": collections.deque([1, 2], maxlen=2), "chain": collections.ChainMap({"a": 1}),
            "namespace": argparse.Namespace(lr=0.1), "proxy": types.MappingProxyType({"a": 1}), "dots": ...,
            "hint": typing.Optional[int], "getter": operator.itemgetter(1), "error": ValueError("a", 1),
            "view": numpy.arange(3)[::-1], "dtype": numpy.dtype([("a", "f4")]), "scalar": numpy.float32(0.1),
            "objects": numpy.array([None, "x"], dtype=object), "date64": numpy.datetime64("2024-01-02"),
            "part": torch.arange(6).view(2, 3).T, "sparse": torch.eye(2).to_sparse(),
            "parameter": torch.nn.Parameter(torch.ones(2)), "bfloat16": torch.ones(1, dtype=torch.bfloat16),
            "expanded": torch.ones(1).expand(3), "distribution": torch.distributions.Normal(0.0, 1.0),
            "device": torch.device("cpu"), "size": torch.Size([2]), "torch.dtype": torch.float16,
            "meta": torch.nn.Linear(2, 1, device="meta").weight}
        def work(): return thing"""),
    row("kwargs", [(1, 0.1, {"nprocs": 5})] * 2, """
        def work(n, *, lr=1.0, **others): return n, lr, others
        launch(work, 2, (1,), kwargs={"lr": 0.1, "nprocs": 5}).results"""),
]


def refused(name, words, call, before="pass"):
    """A row of a call that is refused."""
    return row(name, Refused(words), f"""
        import concurrent.futures, multiprocessing, socket
        {before}
        {call}""")


def unsendable(name, thing, words="the variable `thing`"):
    """A row of a global variable that cannot be sent. It is named."""
    return refused(f"{name}, a global variable", words, "launch(lambda: thing)", f"thing = {thing}")


REFUSED = [
    unsendable("an open file", "open('losses.csv', 'w')"),
    unsendable("a generator", "(n for n in range(3))"),
    unsendable("a socket, in a dict in a list", "[{'socket': socket.socket()}]"),
    unsendable("a pool of threads", "concurrent.futures.ThreadPoolExecutor(2)"),
    unsendable("a shared tensor", "torch.zeros(2).share_memory_()"),
    unsendable("a function of torch.compile's", "torch.compile(abs, backend='eager')", "compile it in the rank"),
    refused("a lock as the second argument", "argument 1", "launch(print, args=(1, threading.Lock()))"),
    refused("a lock by name", "argument guard", "launch(lambda guard: 1, kwargs={'guard': threading.Lock()})"),
    refused("a lock in a closure", "`guard`", "launch((lambda guard: lambda: guard)(threading.Lock()))"),
    refused("a lock that a helper uses", "cannot be sent", "launch(lambda: helper())",
            "helper = (lambda guard: lambda: guard)(threading.Lock())"),
    refused("a network whose memory is shared, in an object", "shared memory",
            "launch(lambda state: None, 2, ({'state': [torch.nn.Linear(2, 2).share_memory()]},))"),
    refused("a queue of multiprocessing", "argument 0", "launch(print, 2, (multiprocessing.Queue(),))"),
    refused("a custom op of a cell", "in a module", "launch(lambda: double(1))",
            'double = torch.library.custom_op("course_test::double", lambda x: 2 * x, mutates_args=(), '
            'schema="(Tensor x) -> Tensor")'),
    refused("def worker(rank, world_size), without the rank", "passes no rank",
            "launch(lambda rank, world_size: 1, 2, (2,))"),
    refused("what is missing is no rank", "missing a required argument: 'lr'", "launch(lambda lr: lr)"),
    refused("kwargs that the function does not know", "(n, lr=1)",
            "launch(lambda n, lr=1: 1, 2, (1,), kwargs={'rate': 0.1})"),
    refused("kwargs that are no dict", "dict", "launch(lambda lr: lr, 2, kwargs=[0.1])"),
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
    row("the cause: an exception of torch", True, """
        cause = error_of(lambda: torch.linalg.inv(torch.zeros(2, 2))).__cause__
        type(cause) is torch.linalg.LinAlgError"""),
    row("the cause: one that cannot be rebuilt", [True, True], """
        class Odd(Exception):
            def __init__(self, code, reason): super().__init__(f"{code}: {reason}")
        def work(): raise Odd(7, "why")
        text = str(error_of(work).__cause__)
        ["in work" in text, "7: why" in text]"""),
    row("the cause: one that cannot be sent", [True, True], """
        def work():
            error = ValueError("locked")
            error.lock = threading.Lock()
            raise error
        text = str(error_of(work).__cause__)
        ["in work" in text, "ValueError: locked" in text]"""),
    row("input() in both ranks", ["zero", "ä€"], """
        launch(lambda: input("name? "), timeout=20).results""",
        {"[0] name? ": ["zero"], "[1] name? ": ["ä€"]}),
    row("input() twice, after print", [["Ada", ""], "hello\n"], """
        def work():
            print("hello")
            return [input("name? "), input()]
        run = launch(work, 1, timeout=20)
        [run.results[0], run.logs[0][:6]]""", {"[0] name? ": ["Ada"], "[0] ": [""]}),
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
    row("breakpoint() where nobody can be asked", Failed("BdbQuit"), "launch(breakpoint, timeout=20)"),
]

#: The last row: when such a variable changes, ranks come from a new fork server, which takes seconds.
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
        [launch(work).results, launch(work, env=variables).results]""")

# -------------------------------------------------------------------------------------- how a row is run

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
    for kernel in used(tmp_path_factory.mktemp("kernel")):
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
