"""How functions, arguments, results and exceptions travel between the notebook and its ranks: by cloudpickle.

What a cell has defined goes by value, for a rank has another `__main__`; a module goes by its name.
"""

import builtins
import functools
import importlib.util
import io
import os
import pkgutil
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import cloudpickle

_CACHED = type(functools.cache(len))  # the class has no public name
#: Of these, every process has its own: they travel by their names.
_EVERYWHERE = ("os:environ", "sys:stdout", "sys:stderr", "random:_inst", "numpy.random.mtrand:_rand",
               "torch:default_generator")


def packed(thing, of_cells=None):
    """`thing` as bytes; an exception of any kind where it, or something in it, cannot be sent.

    Classes and functions of cells that go with it are noted in the dict `of_cells`, by name.
    """
    with io.BytesIO() as file:
        _Pickler(file, of_cells).dump(thing)
        return file.getvalue()


def unpacked(content):
    """What `packed` has made bytes of."""
    return cloudpickle.loads(content)


def _is_of_a_cell(thing):
    """Whether pickle, which knows classes and functions by name only, would look for it in `__main__`."""
    goes_by_name = issubclass(type(thing), type | types.FunctionType | _CACHED)
    if not goes_by_name or thing.__module__ != "__main__":
        return False
    return vars(sys.modules["__main__"]).get(thing.__qualname__) is thing


def _reduced(thing):
    """How to send what cloudpickle cannot; None for all else."""
    if isinstance(thing, types.ModuleType) and type(thing) is not types.ModuleType:
        return pkgutil.resolve_name, (thing.__name__,)  # torch.backends.cudnn, say: an object as a module
    if "torch" in sys.modules:
        _refuse_what_torch_holds(thing)
    if "IPython" in sys.modules:
        from IPython.core.autocall import ExitAutocall

        if isinstance(thing, ExitAutocall):  # a notebook's `exit` and `quit`
            return getattr, (builtins, "exit")
    return None


def _refuse_what_torch_holds(thing):
    torch = sys.modules["torch"]
    kind = type(thing)
    if kind is types.FunctionType and hasattr(thing, "_torchdynamo_orig_callable"):
        raise TypeError("torch.compile has made it; send the function itself, and compile it in the rank")
    # An operator is registered with torch in C++, by a name; a rank would have the object and not the operator.
    if kind is torch.library.CustomOpDef:
        raise TypeError("it is an operator that this process has registered; "
                        "define it in a module, and import that")
    is_tensor = kind in (torch.Tensor, torch.nn.Parameter) and thing.layout == torch.strided
    if is_tensor and thing.device.type == "cpu" and thing.is_shared():
        raise TypeError("it is a tensor in shared memory, and ranks would get copies of it; "
                        "share tensors between processes that one rank starts (torch.multiprocessing), "
                        "or send `tensor.clone()`")


def _reduced_cache(cached):
    """A cached function of a cell goes by value, because a rank does not have the notebook's `__main__`."""
    if cached.__module__ == "__main__":
        return _cached, (cached.__wrapped__, cached.cache_parameters())
    return cached.__qualname__  # to pickle, a string is the name of something that a module has


def _cached(function, how):
    return functools.lru_cache(**how)(function)


def _reduced_code(code):
    """With the name of its file, by which tracebacks find its lines: cloudpickle 3.1.3 sends code without."""
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _code, (code.co_filename, make, arguments)


def _code(file, make, arguments):
    return make(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's, and what it cannot do."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {_CACHED: _reduced_cache, types.CodeType: _reduced_code})

    def __init__(self, file, of_cells):
        super().__init__(file)
        self.of_cells = of_cells
        # By `id`, because it must be this very object, not an equal one; and `os.environ` cannot be a dict's key.
        self.name_by_id = {}
        for name in _EVERYWHERE:
            module, _, _ = name.partition(":")
            if module in sys.modules:
                self.name_by_id[id(pkgutil.resolve_name(name))] = name

    def reducer_override(self, thing):
        """How to send this object. pickle asks it for every one, before its own tables."""
        name = self.name_by_id.get(id(thing))
        if name is not None:
            return pkgutil.resolve_name, (name,)
        if self.of_cells is not None and _is_of_a_cell(thing):
            self.of_cells[thing.__qualname__] = thing
        return _reduced(thing) or super().reducer_override(thing)


def packed_call(function, args, kwargs):
    """A call as bytes: first `sys.path`, which the rest needs."""
    of_cells = {}  # is complete when it is packed itself: after all else
    return packed((sys.path, packed((function, args, kwargs, of_cells), of_cells)))


def unpacked_call(content):
    """In a rank: a function that makes the call, which finds `sys.path` and a cell's names as the cell does."""
    path, content = unpacked(content)
    # The notebook's; then what this process has beyond it, of a new PYTHONPATH, but for the course's own folder.
    sys.path[:] = path + [entry for entry in sys.path[1:] if entry not in path]
    function, args, kwargs, of_cells = unpacked(content)
    # An object of a class from a cell can then be pickled here, too (all_gather_object, a loader's workers).
    vars(sys.modules["__main__"]).update(of_cells)
    return functools.partial(function, *args, **kwargs)


def names_of_cells(content):
    """In a process that a rank has started: the classes and functions of cells that came with the call, by name."""
    _, content = unpacked(content)
    return unpacked(content)[-1]


def trust_no_older_bytecode():
    """Have imports take no bytecode that is older than its source.

    Finding: Python compares whole seconds, and sizes. One second is enough to edit and launch a module twice.
    """
    path_stats = SourceFileLoader.path_stats

    def checked(loader, path):
        bytecode = importlib.util.cache_from_source(path)
        if os.path.exists(bytecode) and os.stat(bytecode).st_mtime_ns <= os.stat(path).st_mtime_ns:
            Path(bytecode).unlink(missing_ok=True)
        return path_stats(loader, path)

    SourceFileLoader.path_stats = checked


def packed_exception(error):
    """An exception as bytes; nothing if it cannot be sent, or is huge."""
    try:
        content = packed(error)
    except BaseException:  # its own __reduce__ is the learner's
        return b""
    return content if len(content) < 2**20 else b""
