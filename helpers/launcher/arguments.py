"""What `launch` is given: refused with advice before anything starts, or made into work that can be sent."""

import contextlib
import inspect
import itertools
import linecache
import math
import operator
import os
import types
import zipfile
from pathlib import Path

from helpers import scripts
from helpers.launcher import sending
from helpers.reporting import RUN_FOLDER

_NOTEBOOKS_PID = os.getpid()

#: First parameters by which a function shows that it was written for `mp.spawn`.
_RANK_NAMES = {"rank", "local_rank", "global_rank", "proc_id", "process_index"}
NO_RANK = ("launch passes no rank, as `mp.spawn` does: every rank gets the same arguments; "
           'read the rank inside, int(os.environ["RANK"]), or from dist.get_rank()')


def refuse_inside_a_rank():
    """Refuse a launch from inside a rank, or from a process forked from the notebook's."""
    if RUN_FOLDER in os.environ:
        raise RuntimeError("launch() was called inside a rank. A worker script or function is what launch() "
                           "starts; call launch() in the notebook only, not in the script.")
    if os.getpid() != _NOTEBOOKS_PID:
        raise RuntimeError("launch() was called in a process forked from the notebook; "
                           "call it in the notebook")


def checked_nprocs(nprocs, gpus):
    """`nprocs` as an int: at least 1, and no more than this machine can sensibly run."""
    if isinstance(nprocs, bool) or not hasattr(nprocs, "__index__"):
        raise TypeError(f"nprocs, the number of ranks, must be a whole number such as 2, not {nprocs!r}")
    nprocs = operator.index(nprocs)
    cores = os.cpu_count() or 1
    most = max(64, 4 * cores)
    if nprocs < 1:
        raise ValueError(f"nprocs={nprocs}: at least one rank is needed, for example nprocs=2")
    if nprocs > most:
        raise ValueError(f"nprocs={nprocs}: this machine has {cores} cores; "
                         f"at most {most} ranks can be launched here")
    if gpus:
        from helpers.hardware import hardware

        here = "1 GPU" if hardware.usable_gpus == 1 else f"{hardware.usable_gpus} GPUs"
        if gpus > hardware.usable_gpus:
            raise ValueError(f"gpus={gpus}: this machine has {here}. Launch fewer "
                             "ranks, run on the CPU, or let ranks share what there is over gloo.")
    return nprocs


def checked_timeout(timeout):
    """`timeout` as seconds, above zero and not endless."""
    if not (isinstance(timeout, int | float) and timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout={timeout!r}: give the seconds after which a hanging run is ended, "
                         "for example 60")
    return timeout


def checked_environment(env):
    """The environment of a run: the notebook's own, changed by `env`, where None takes a variable away."""
    changes = env or {}
    if not _is_dict_of_texts(changes):
        example = 'env={"OMP_NUM_THREADS": "2"}'
        raise TypeError(f"env must be a dict of texts, for example {example}, not {env!r:.100}")
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def _is_dict_of_texts(changes):
    if not isinstance(changes, dict):
        return False
    return all(isinstance(name, str) and isinstance(value, str | None) for name, value in changes.items())


def current_folder():
    """The folder in which ranks work: that of the notebook."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError("the folder in which this notebook runs is not there any more (deleted, or moved?): "
                                "go to another one, for example os.chdir(os.path.expanduser('~'))") from None


def packed_work(what, args, kwargs, module):
    """What the ranks are to do, as a picklable dict that `rank.py` runs."""
    is_name = isinstance(what, str | os.PathLike)
    if isinstance(args, str | bytes) or not isinstance(args, list | tuple):
        example = 'args=["--epochs", "3"]' if is_name else "args=(0.1,)"
        raise TypeError(f"args must be a list or tuple, for example {example}, not {args!r:.60}")
    if is_name:
        if kwargs:
            raise TypeError('a script takes words, for example args=["--lr", "0.1"]; '
                            "kwargs are for functions")
        if module:
            name, how = os.fspath(what), "module"
        else:
            name, how = _script(what)
        return {"script": {"name": name, "how": how, "args": [_word(arg) for arg in args]}}
    if module or not callable(what):
        raise TypeError("launch() runs a script (its file name), a module (its name, and module=True), "
                        f"or a function, not {what!r:.60}")
    return {"call": _call(what, args, kwargs or {})}


def _script(name):
    """A script's name, and how Python runs it: first as a path from here, else among the lessons' scripts."""
    path = Path(name).expanduser()
    for place in itertools.chain([path], scripts.places_of(path)):
        if place.is_dir() and not (place / "__main__.py").is_file():
            raise IsADirectoryError(f"{os.fspath(name)!r} is a folder without a `__main__.py`; "
                                    "name the script in it")
        if place.exists():
            return os.fspath(place), _how_to_run(place)
    raise FileNotFoundError(f"there is no script {os.fspath(name)!r}, neither in {Path.cwd().name}/ nor "
                            f"among those of the lessons{scripts.advice_on(path)}")


def _how_to_run(path):
    if path.is_dir() or zipfile.is_zipfile(path):
        return "program"
    if path.suffix == ".ipynb":
        raise ValueError(f"{os.fspath(path)!r} is a notebook; ranks run scripts (.py) and functions")
    compile(path.read_bytes(), os.fspath(path), "exec", dont_inherit=True)  # a SyntaxError is shown here, and once
    return "source"


def _word(arg):
    if isinstance(arg, os.PathLike):
        return os.fspath(arg)
    if isinstance(arg, str | int | float) and not isinstance(arg, bool):
        return str(arg)
    raise TypeError(f"a script's args are words and numbers, as on a command line; {arg!r:.60} is neither. "
                    "To send objects, launch a function.")


def _call(function, args, kwargs):
    name = getattr(function, "__name__", repr(function))
    if not isinstance(kwargs, dict):
        raise TypeError(f'kwargs must be a dict, for example kwargs={{"lr": 0.1}}, not {kwargs!r:.60}')
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}() is async or a generator: calling it runs nothing; "
                        "launch an ordinary function")
    signature = None
    try:
        with contextlib.suppress(ValueError):  # a builtin without a signature
            signature = inspect.signature(function, follow_wrapped=False)
            signature.bind(*args, **kwargs)
    except TypeError as error:
        note = f". ({NO_RANK}.)" if wants_a_rank(function) else ""
        raise TypeError(f"{name}{signature} cannot be called with args={args!r:.200} "
                        f"and kwargs={kwargs!r:.200}: {error}{note}") from None
    try:
        return sending.packed_call(function, args, kwargs)
    except Exception as error:
        culprit = unsendable(function, args, kwargs) or name
        raise TypeError(cannot_be_sent(culprit, error)) from None


def cannot_be_sent(culprit, error):
    """What is said of something, in words, that pickling has failed on with this error."""
    words = f"{culprit} cannot be sent to another process: {error}"
    if "shared memory" in words:  # this error has advice of its own
        return words
    return f"{words}. Make it inside the function instead, or send what it is made from."


def wants_a_rank(function):
    """Whether the function's first parameter is called as that which `mp.spawn` passes."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] in _RANK_NAMES


def unsendable(function, args, kwargs=None):
    """The argument or the variable that pickling fails on, in words; None if each can be sent."""
    for name, value in {**dict(enumerate(args)), **(kwargs or {})}.items():
        if not _can_be_sent(value):
            return f"argument {name}, a {type(value).__name__},"
    if inspect.isfunction(function):
        for name, value in _variables_of(function).items():
            if not _can_be_sent(value):
                return f"the variable `{name}`, which {function.__name__}() uses,"
    return None


def _can_be_sent(value):
    try:
        sending.packed(value)
    except Exception:
        return False
    return True


def _variables_of(function):
    """The variables from outside that a function uses, {name: value}."""
    code = function.__code__
    variables = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # it has a value
            variables[name] = cell.cell_contents
    return variables


def sources_of_cells():
    """The source of notebook cells, as entries of linecache: what it holds of files that are not there."""
    entries = {}
    for name, entry in linecache.cache.items():
        if len(entry) == 4 and not os.path.exists(name):  # an entry of another length is not loaded yet
            _, _, lines, _ = entry
            entries[name] = (len(lines), None, lines, name)  # None: `checkcache` is to keep it
    return entries
