"""What `launch` is given: refused with advice before anything starts, or made into work that can be sent."""

import difflib
import functools
import inspect
import io
import itertools
import linecache
import math
import operator
import os
import types
import weakref
from pathlib import Path

from helpers.reporting import RUN_FOLDER

WORKERS = Path(__file__).parents[1] / "workers"
_OWNER = os.getpid()


def refuse_inside_a_rank():
    """Refuse a launch from inside a rank, or from a process forked from the notebook's.

    Raises:
        RuntimeError: always in such a process; and where the current folder has been deleted.
    """
    if RUN_FOLDER in os.environ:
        raise RuntimeError("launch() was called inside a rank. A worker script or function is what launch() starts; "
                           "call launch() in the notebook only, not in the script.")
    if os.getpid() != _OWNER:
        raise RuntimeError("launch() was called in a process forked from the notebook; call it in the notebook")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RuntimeError("the folder in which this notebook works has been deleted; os.chdir() to another one, or "
                           "restart the kernel") from None


def checked_nprocs(nprocs, gpus):
    """`nprocs` as an int.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is below 1 or more than this machine can sensibly run, or `gpus` are more than are here.
    """
    try:
        if isinstance(nprocs, bool):
            raise TypeError
        nprocs = operator.index(nprocs)
    except TypeError:
        raise TypeError(f"nprocs, the number of ranks, must be a whole number such as 2, not {nprocs!r}") from None
    cores = os.cpu_count() or 1
    most = max(64, 4 * cores)
    if nprocs < 1:
        raise ValueError(f"nprocs={nprocs}: at least one rank is needed, for example nprocs=2")
    if nprocs > most:
        raise ValueError(f"nprocs={nprocs}: this machine has {cores} cores; at most {most} ranks can be launched here. "
                         "To see what more ranks do, 2 to 4 show the same.")
    if gpus:
        from helpers.hardware import hardware

        here = len(hardware.gpus)
        if gpus > here:
            raise ValueError(f"gpus={gpus}: this machine has {here} GPU{'s' * (here != 1)}. "
                             + (f"Launch at most {here} ranks with a GPU each" if here else "Run on the CPU")
                             + ", or let ranks share what there is over gloo.")
    return nprocs


def checked_timeout(timeout):
    """`timeout` as seconds.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not above zero, or endless.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds such as 60, not {timeout!r}")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout={timeout}: give the seconds after which a hanging run is ended, for example 60")
    return timeout


def packed_work(what, args):
    """A script's path or a function, and its arguments, as the picklable dict that `rank.py` runs.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such script.
        SyntaxError: the script cannot be compiled.
        TypeError: the arguments do not fit, or something cannot be sent to another process.
        ValueError: the script is a notebook.
    """
    if isinstance(args, str | bytes) or not isinstance(args, list | tuple):
        example = 'args=["--epochs", "3"]' if isinstance(what, str | os.PathLike) else "args=(0.1,)"
        raise TypeError(f"args must be a list or tuple, for example {example}, not {args!r:.60}")
    if isinstance(what, str | os.PathLike):
        return {"cells": _cells(), "script": _script(what), "args": [_word(arg) for arg in args]}
    if callable(what):
        return {"cells": _cells(), "call": _call(what, args)}
    raise TypeError(f"launch() runs a script (its file name) or a function, not {what!r:.60}")


def _script(name):
    """Absolute path of a script: as a path from here first (a learner's own), else among the course's workers."""
    path = Path(name).expanduser()
    for found in itertools.chain((path, WORKERS / path), (lesson / path for lesson in WORKERS.iterdir())):
        if found.is_dir():
            raise IsADirectoryError(f"{os.fspath(name)!r} is a folder; name the script in it")
        if found.is_file():
            if found.suffix == ".ipynb":
                raise ValueError(f"{os.fspath(name)!r} is a notebook; ranks run scripts (.py) and functions")
            compile(found.read_bytes(), os.fspath(found), "exec")
            return os.path.abspath(found)
    workers = {worker.name for worker in WORKERS.glob("*/*.py")}
    close = difflib.get_close_matches(path.name, workers, n=1)
    raise FileNotFoundError(f"there is no script {os.fspath(name)!r}, neither in {Path.cwd().name}/ nor in "
                            f"helpers/workers/. "
                            + (f"Did you mean {close[0]!r}?" if close else
                               f"The course's workers: {', '.join(sorted(workers))}"))


def _word(arg):
    if isinstance(arg, str | int | float | os.PathLike) and not isinstance(arg, bool):
        return os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg)
    raise TypeError(f"a script's args are words and numbers, as on a command line; {arg!r:.60} is neither. "
                    "To send objects, launch a function.")


def _call(function, args):
    name = getattr(function, "__name__", repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}() is async or a generator: calling it runs nothing; launch an ordinary function")
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args)
    except TypeError as error:
        signature = f"{name}{inspect.signature(function, follow_wrapped=False)}"
        raise TypeError(f"{signature} cannot be called with args={args!r:.200}: {error}") from None
    except ValueError:
        pass  # a builtin without a signature
    try:
        return _pickled((function, args))
    except Exception as error:
        culprit = unsendable(function, args)
        raise TypeError(f"{culprit or name} cannot be sent to another process: {error}. Make it inside the function "
                        "instead, or send what it is made from.") from None


def unsendable(function, args):
    """Names the argument or the global variable that pickling fails on."""
    candidates = [(f"argument {number}, a {type(arg).__name__},", arg) for number, arg in enumerate(args)]
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is not None:
        candidates += [(f"the variable `{name}`, which {function.__name__}() uses,", names[name])
                       for name in code.co_names if name in names]
        candidates += [(f"the variable `{name}`, which {function.__name__}() uses,", cell.cell_contents)
                       for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
                       if cell != types.CellType()]  # one that nothing has been assigned to yet
    for description, value in candidates:
        try:
            _pickled(value)
        except Exception:
            return description
    return None


def _pickled(thing):
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({
            type(functools.cache(_cached)): _reduced,
            # In which `functools.singledispatch` keeps what it has found.
            weakref.WeakKeyDictionary: lambda kept: (weakref.WeakKeyDictionary, (dict(kept),)),
            # By its name: a rank has an environment of its own.
            type(os.environ): lambda environ: "environ" if environ is os.environ else "environb"})

    with io.BytesIO() as file:
        Pickler(file).dump(thing)
        return file.getvalue()


def _reduced(cached):
    """A cached function of a cell goes by value, as it would without the cache: a rank does not have its `__main__`."""
    if cached.__module__ != "__main__":
        return cached.__qualname__
    return _cached, (cached.__wrapped__, cached.cache_parameters())


def _cached(function, how):
    return functools.lru_cache(**how)(function)


def _cells():
    """The source of notebook cells: what linecache holds that is not read from a file."""
    return {name: (entry[0], None, entry[2], name) for name, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None}
