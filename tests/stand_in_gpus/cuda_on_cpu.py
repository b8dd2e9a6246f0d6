"""torch.cuda without a GPU: so many devices are there, tensors say which one they are on, and the CPU computes.

A TorchFunctionMode sees every call that Python makes to torch. It takes "cuda" out of the arguments, has the CPU do the
work, and notes on each tensor that comes back which device it would be on; tensors of two devices in one call raise, as
they do on GPUs. `torch.cuda`'s functions, NCCL and nn.DataParallel's copies are replaced one by one.

Honest about: which device a tensor is on, tensors of two devices in one call, CPU tensors given to NCCL, two NCCL ranks
on one GPU, a device that is not there, CUDA after a fork, other random numbers than the CPU's, running out of memory.
It cannot show: kernels and their speed or rounding, streams (all work is done when a call returns), NCCL itself (gloo
sends), what autograd and optimizers hold in memory (only what Python sees is counted), saved tensors (they arrive on
the CPU), torch.compile (it hands back what it gets), CUDA graphs. A large product is not computed: its result is zeros.
"""

import contextlib
import functools
import gzip
import json
import os
import pickle
import sys
import threading
import time
import traceback
import types
import warnings
import weakref
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist
from torch.multiprocessing import reductions
from torch.overrides import TorchFunctionMode

NAME, MEMORY, CAPABILITY = "Stand-in GPU", 4 * 2**30, (9, 0)  # the name is that of this folder's nvidia-smi
LARGE = 2**34  # multiply-adds; a product of more takes the CPU a second
RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
          "multinomial", "dropout", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"}
MIXES = {"copy_", "_foreach_copy_", "__setitem__", "__getitem__", "set_", "__deepcopy__",
         "_has_compatible_shallow_copy_type"}  # functions that take tensors of two devices
WAIT = {"item", "cpu", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__repr__"}  # for the GPU
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
               "reduce_scatter_tensor", "gather", "scatter", "all_to_all", "all_to_all_single")
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
CPU = torch.device("cpu")

_count = 0
_owner = None  # the process that has initialised CUDA
_here = threading.local()
_limit = [1.0]
_warns_of_waiting = [False]
_memory = {}  # device index -> bytes now, bytes at the peak
_known = set()  # storages that are counted
_history = None  # of what is allocated and freed, while it is recorded
_random = {}  # device index -> state of its generator


def _visible():
    """How many GPUs CUDA_VISIBLE_DEVICES leaves. (In a rank, it may say something else than in the fork server.)"""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return _count if visible is None else len([entry for entry in visible.split(",") if entry.strip().isdigit()])


def install(count):
    """Have `count` GPUs in this process, in its threads, and in what is forked from it."""
    global _count
    _count = count
    OnCPU().__enter__()
    bootstrap = threading.Thread._bootstrap_inner

    def with_mode(self):
        with OnCPU():
            bootstrap(self)

    threading.Thread._bootstrap_inner = with_mode
    _replace_cuda()
    _replace_tensors()
    _replace_amp_and_compile()
    _replace_data_parallel()
    if dist.is_available():
        _replace_nccl()


def on(tensor):
    """The stand-in device that a tensor is on; None for the CPU."""
    if hasattr(type(tensor), "device_mesh"):  # a DTensor
        return meant(tensor.device_mesh.device_type)
    return tensor.__dict__.get("_stand_in")


def put(tensor, device, is_new=True):
    """Note that a tensor is on a device; None for the CPU. Its memory is counted there; a new one needs some."""
    if device is None:
        tensor.__dict__.pop("_stand_in", None)
    else:
        tensor._stand_in = device
        if not torch._C._functorch.is_batchedtensor(tensor):  # vmap's tensors have no storage of their own
            _count_memory(tensor, device.index, is_new)
    return tensor


def _count_memory(tensor, index, is_new):
    storage = tensor.untyped_storage()
    key, size = storage._cdata, storage.nbytes()
    if key in _known:
        return
    held = _memory.setdefault(index, [0, 0])
    if is_new and held[0] + size > _limit[0] * MEMORY:
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {index} has a "
                                     f"total capacity of {MEMORY / 2**30:.2f} GiB (stand-in).")
    _known.add(key)
    held[0] += size
    held[1] = max(held)
    _note("alloc", key, size, index)

    def freed():
        _known.discard(key)
        held[0] -= size
        _note("free_requested", key, size, index)
        _note("free_completed", key, size, index)

    weakref.finalize(storage, freed).atexit = False


def _note(action, address, size, index):
    if _history is not None:
        frames = [{"name": frame.f_code.co_name, "filename": frame.f_code.co_filename, "line": line}
                  for frame, line in traceback.walk_stack(None) if frame.f_code.co_filename != __file__]
        _history[index].append({"action": action, "addr": address, "size": size, "stream": 0, "frames": frames})


def initialise():
    """What the first use of CUDA in a process does; in one that was forked after it, CUDA cannot be used."""
    global _owner
    if _owner is None:
        _owner = os.getpid()
    if _owner != os.getpid():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
                           "use the 'spawn' start method")


def meant(device):
    """The stand-in device that a device argument means; None for any other device."""
    if device is None or isinstance(device, bool):
        return None
    if not isinstance(device, torch.device):
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda":
        return None
    initialise()
    index = _current() if device.index is None else device.index
    if index >= _visible():
        raise RuntimeError("CUDA error: invalid device ordinal (stand-in)")
    return torch.device("cuda", index)


def _current():
    return getattr(_here, "device", 0)


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class OnCPU(TorchFunctionMode):
    """Within it, what is meant for a stand-in GPU is done by the CPU, and noted on the results."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE):
            return func(*args, **kwargs)  # fake tensors know devices that are not there
        if _owner is None and not _asks_for_cuda(args, kwargs) and name not in _METHODS:
            return func(*args, **kwargs)
        if name in ("__get__", "__set__"):
            return _attribute(func, name, *args)
        if func is torch.device or name == "_parse_to":  # they ask what an argument means
            return func(*args, **kwargs)
        if _warns_of_waiting[0] and name in WAIT and on(args[0]) is not None:
            warnings.warn("called a synchronizing CUDA operation (stand-in)", stacklevel=2)
        if name in _METHODS and args and isinstance(args[0], torch.Tensor):
            return _METHODS[name](func, *args, **kwargs)
        device = kwargs.get("device")
        for value in args:
            device = value if isinstance(value, torch.device) else device
        want = meant(device)
        if want is not None:
            args = [CPU if value is device else value for value in args]
            kwargs = {**kwargs, "device": CPU} if "device" in kwargs else kwargs
        given = [*_tensors(args), *_tensors(kwargs.values())]
        there = {on(tensor) for tensor in given if on(tensor) is not None}
        if there and name not in MIXES:
            _refuse_two_devices(there, given)
        if device is None and there:
            want = on(given[0]) or next(iter(there))
        if want is not None and name in RANDOM:
            with _random_of(want.index):
                result = func(*args, **kwargs)
        elif want is not None and name in _PRODUCTS and (zeros := _large(name, args)) is not None:
            result = zeros
        else:
            result = func(*args, **kwargs)
        if want is not None:
            mine = {id(tensor) for tensor in given}
            for tensor in _tensors([result]):
                if id(tensor) not in mine:
                    put(tensor, want)
        return result


def _asks_for_cuda(args, kwargs):
    asked = [kwargs["device"]] if "device" in kwargs else []
    return any(meant(device) for device in (*asked, *(value for value in args if isinstance(value, torch.device))))


def _refuse_two_devices(there, given):
    # A number on the CPU may go with any device. Within backward, tensors come from C++ with no note on them.
    others = [] if getattr(_here, "backward", False) else [t for t in given if on(t) is None and t.dim()]
    if len(there) > 1 or others:
        names = sorted({str(device) for device in there} | ({"cpu"} if others else set()))
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, "
                           + " and ".join(names) + "! (stand-in)")


_PRODUCTS = {"matmul", "mm", "__matmul__", "linear", "bmm"}


def _large(name, args):
    """Zeros in the place of a product that would take the CPU seconds; None for any other."""
    a, b = args[0], args[1]
    if (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)) or a.dim() < 2 or b.dim() < 2:
        return None
    columns = b.shape[0] if name == "linear" else b.shape[-1]
    return a.new_zeros(*a.shape[:-1], columns) if a.numel() * columns > LARGE else None


@contextlib.contextmanager
def _random_of(index):
    """The generator of a device in the place of the CPU's: each has numbers of its own."""
    before = torch.get_rng_state()
    if index in _random:
        torch.set_rng_state(_random[index])
    else:
        torch.default_generator.manual_seed(_seed(index))
    try:
        yield
    finally:
        _random[index] = torch.get_rng_state()
        torch.set_rng_state(before)


def _seed(index):
    return (torch.initial_seed() + 7919 * (index + 1)) % 2**63


def _attribute(func, kind, tensor, *rest):
    attribute = getattr(func.__self__, "__name__", "")
    if kind == "__set__":
        func(tensor, *rest)
        if attribute == "data":
            put(tensor, on(rest[0]))
        return None
    here = on(tensor)
    if here is not None and attribute == "device":
        return here
    if here is not None and attribute in ("is_cuda", "is_cpu"):
        return attribute == "is_cuda"
    result = func(tensor, *rest)
    if here is not None and isinstance(result, torch.Tensor):
        put(result, here, is_new=False)  # such as a gradient, which C++ has allocated
    return result


def _to(func, tensor, *args, copy=False, **kwargs):
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, torch.Tensor):  # like that one
        args, kwargs = (on(other) or other.device, other.dtype), {}
    args = list(args)
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args[0] = torch.device("cuda", args[0])
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    want = on(tensor) if device is None else meant(device)
    moved = want != on(tensor)
    result = func(tensor, CPU if want is not None or device is None else device, dtype or tensor.dtype,
                  copy=copy or moved, **({} if layout is None else {"memory_format": layout}))
    return result if result is tensor else put(result, want)


def _pin_memory(func, tensor, *_):
    if on(tensor) is not None:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
    initialise()
    pinned = tensor.clone()
    pinned._stand_in_pinned = True
    return pinned


def _numpy(func, tensor, *args, **kwargs):
    if on(tensor) is not None:
        raise TypeError(f"can't convert {on(tensor)} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
                        "to host memory first.")
    return func(tensor, *args, **kwargs)


def _repr(func, tensor, *args, **kwargs):
    text = func(tensor, *args, **kwargs)
    if on(tensor) is None or not text.endswith(")"):
        return text
    start, comma, rest = text[:-1].partition(", grad_fn=")
    return f"{start}, device='{on(tensor)}'{comma}{rest})"


_METHODS = {
    "to": _to, "pin_memory": _pin_memory, "numpy": _numpy, "__array__": _numpy, "__repr__": _repr,
    "cuda": lambda func, tensor, device=None, **_: _to(torch.Tensor.to, tensor,
                                                       meant("cuda" if device is None else device)),
    "cpu": lambda func, tensor, **_: _to(torch.Tensor.to, tensor, CPU),
    "get_device": lambda func, tensor: -1 if on(tensor) is None else on(tensor).index,
    "is_pinned": lambda func, tensor, *_: "_stand_in_pinned" in tensor.__dict__,
}


def _replace_tensors():
    make = torch.nn.Parameter.__new__
    state_of = torch._utils._get_obj_state
    load = torch.load
    run_backward = torch.autograd.graph._engine_run_backward

    @functools.wraps(make)
    def new_parameter(cls, data=None, *args, **kwargs):
        parameter = make(cls, data, *args, **kwargs)
        return parameter if data is None else put(parameter, on(data))

    @functools.wraps(run_backward)
    def backward_with_mode(*args, **kwargs):
        # Tensor.backward has left the mode when it comes here, and hooks would have left it, too.
        before, _here.backward = getattr(_here, "backward", False), True
        try:
            with contextlib.nullcontext() if torch._C._len_torch_function_stack() else OnCPU():
                return run_backward(*args, **kwargs)
        finally:
            _here.backward = before

    def state_without_notes(tensor):
        state = state_of(tensor)
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if not name.startswith("_stand_in")}
        return state

    @functools.wraps(load)
    def load_here(file, map_location=None, **kwargs):
        place = next(iter(map_location.values()), None) if isinstance(map_location, dict) else map_location
        want = None if place is None or callable(place) else meant(place)
        found = load(file, map_location=map_location if callable(map_location) else "cpu", **kwargs)
        for leaf in torch.utils._pytree.tree_leaves(found) if want else ():
            if isinstance(leaf, torch.Tensor):
                put(leaf, want)
        return found

    def sent(tensor):
        build, args = reductions.reduce_tensor(tensor)
        return (build, args) if on(tensor) is None else (_arrived, (build, args, on(tensor)))

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, sent)
    torch.nn.Parameter.__new__ = new_parameter
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = backward_with_mode
    torch.Tensor.record_stream = lambda self, stream: None  # torch looks at the stream's type before the mode is asked
    torch._utils._get_obj_state = state_without_notes
    torch.load = load_here


def _arrived(build, args, device):
    """The tensor that another process has sent, which shares its memory."""
    return put(build(*args), meant(device))


class Stream:
    """All work is done when a call returns, so there is nothing to order."""

    def __init__(self, device=None, priority=0, **_):
        self.device = meant("cuda" if device is None else device)
        self.stream_id, self.device_index, self.device_type = 0, self.device.index, 1  # 1: CUDA, to torch's C++

    def __enter__(self):
        self.before = _current()
        _here.device = self.device.index

    def __exit__(self, *_):
        _here.device = self.before

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def query(self):
        return True

    def is_capturing(self):
        return False

    def wait_stream(self, stream):
        pass

    wait_event = wait_stream

    def synchronize(self):
        pass


class Event:
    """Notes the time on the host's clock."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.timing, self.at = enable_timing, None

    def record(self, stream=None):
        initialise()
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        if not (self.timing and end.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end.at - self.at) * 1000

    def query(self):
        return True

    def wait(self, stream=None):
        pass

    synchronize = wait


class Graph:
    """A CUDA graph: what is captured has been done already, and a replay does nothing."""

    def replay(self):
        pass


class Device:
    """`with torch.cuda.device(1):`"""

    def __init__(self, device):
        self.index = _index(device)

    def __enter__(self):
        self.before = _current()
        _set_device(self.index)

    def __exit__(self, *_):
        _here.device = self.before


def _index(device=None):
    return meant("cuda" if device is None else device).index


def _set_device(device):
    if not (isinstance(device, int) and device < 0):
        _here.device = _index(device)


def _properties(device=None):
    _index(device)
    return types.SimpleNamespace(name=NAME, total_memory=MEMORY, major=CAPABILITY[0], minor=CAPABILITY[1],
                                 multi_processor_count=1)


def _reset_peak(device=None):
    held = _memory.setdefault(_index(device), [0, 0])
    held[1] = held[0]


def _seed_all(seed):
    _random.clear()
    for index in range(_visible()):
        generator = torch.Generator().manual_seed((seed + 7919 * (index + 1)) % 2**63)
        _random[index] = generator.get_state()


def _record_history(enabled="all", **_):
    global _history
    _history = [[] for _ in range(_visible())] if enabled else None


def _dump_snapshot(file="dump_snapshot.pickle", **_):
    with open(file, "wb") as opened:
        pickle.dump(_snapshot(), opened)


def _snapshot(*_, **__):
    return {"segments": [], "device_traces": _history or [[] for _ in range(_visible())]}


def _rng_state(device="cuda"):
    with _random_of(_index(device)):
        return torch.get_rng_state()


def _nothing(*_, **__):
    return None


def _replace_cuda():
    current_stream = functools.lru_cache(maxsize=None)(lambda index: Stream(index))
    held = lambda device=None: _memory.get(_index(device), [0, 0])  # noqa: E731
    replaced = {
        "is_available": lambda: _visible() > 0, "device_count": lambda: _visible(),
        "is_initialized": lambda: _owner == os.getpid(), "init": initialise, "_lazy_init": initialise,
        "_lazy_call": _nothing, "_is_in_bad_fork": lambda: _owner not in (None, os.getpid()),
        "current_device": lambda: _index(), "set_device": _set_device, "device": Device, "_DeviceGuard": Device,
        "synchronize": lambda device=None: _index(device) and None,
        "get_device_name": lambda device=None: _properties(device).name, "get_device_properties": _properties,
        "get_device_capability": lambda device=None: CAPABILITY, "is_bf16_supported": lambda *_, **__: True,
        "Stream": Stream, "Event": Event, "stream": lambda stream: stream or contextlib.nullcontext(),
        "current_stream": lambda device=None: current_stream(_index(device)),
        "default_stream": lambda device=None: current_stream(_index(device)), "set_stream": _nothing,
        "is_current_stream_capturing": lambda: False,
        "CUDAGraph": Graph, "graph": lambda graph, **_: contextlib.nullcontext(),
        "set_sync_debug_mode": lambda mode: _warns_of_waiting.__setitem__(0, mode in ("warn", 1)),
        "manual_seed": lambda seed: _seed_all(int(seed)), "manual_seed_all": lambda seed: _seed_all(int(seed)),
        "get_rng_state": _rng_state, "get_rng_state_all": lambda: [_rng_state(i) for i in range(_visible())],
        "set_rng_state": lambda state, device="cuda": _random.update({_index(device): state}),
        "set_rng_state_all": lambda states: _random.update(enumerate(states)),
    }
    memory = {
        "memory_allocated": lambda device=None: held(device)[0], "memory_reserved": lambda device=None: held(device)[0],
        "max_memory_allocated": lambda device=None: held(device)[1],
        "max_memory_reserved": lambda device=None: held(device)[1],
        "reset_peak_memory_stats": _reset_peak, "empty_cache": _nothing,
        "mem_get_info": lambda device=None: (MEMORY - held(device)[0], MEMORY),
        "memory_summary": lambda *_, **__: "stand-in", "memory_stats": lambda device=None: {},
        "set_per_process_memory_fraction": lambda fraction, device=None: _limit.__setitem__(0, fraction),
        "_record_memory_history": _record_history, "_dump_snapshot": _dump_snapshot, "_snapshot": _snapshot,
    }
    for name, function in (replaced | memory).items():
        setattr(torch.cuda, name, function)
    for module, names in ((torch.cuda.memory, memory), (torch.cuda.random, replaced), (torch.cuda.streams, replaced)):
        for name in [name for name in names if hasattr(module, name)]:
            setattr(module, name, (replaced | memory)[name])
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _nothing)
    torch.version.cuda = torch.version.cuda or "13.0"
    if hasattr(torch, "accelerator"):
        for name, function in {
            "is_available": replaced["is_available"], "device_count": replaced["device_count"],
            "current_accelerator": lambda check_available=False: (
                torch.device("cuda") if _visible() or not check_available else None),
            "device_index": Device,
            "current_device_index": replaced["current_device"], "set_device_index": _set_device,
            "current_device_idx": replaced["current_device"], "set_device_idx": _set_device,
            "current_stream": replaced["current_stream"], "set_stream": _nothing,
            "synchronize": replaced["synchronize"],
        }.items():
            setattr(torch.accelerator, name, function)


def _replace_amp_and_compile():
    autocast, compiled = torch.amp.autocast_mode.autocast.__init__, torch.compile

    @functools.wraps(autocast)
    def init(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda":  # its own default, and the CPU's lists of functions
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        autocast(self, device_type, dtype, enabled, cache_enabled)

    @functools.wraps(compiled)
    def uncompiled(model=None, **kwargs):
        if kwargs.get("backend") == "eager":  # a lesson looks at the names of what comes back, and calls nothing
            return compiled(model, **kwargs)
        return (lambda function: function) if model is None else model

    profiled = torch.autograd.profiler.profile.__init__

    @functools.wraps(profiled)
    def profile_the_cpu(self, *args, use_device=None, **kwargs):
        profiled(self, *args, use_device=None if use_device == "cuda" else use_device, **kwargs)

    torch.autograd.profiler.profile.__init__ = profile_the_cpu
    torch.profiler.profile.export_chrome_trace = _export_with_a_stream
    torch.amp.autocast_mode.autocast.__init__ = init
    torch.compile = uncompiled  # the compiler looks into modes, and into torch.cuda


def _export_with_a_stream(profiler, path):
    """A trace as from a GPU: its stream shows some operators of the CPU as kernels."""
    torch.profiler.profile.__base__.export_chrome_trace(profiler, path)
    if torch.profiler.ProfilerActivity.CUDA in profiler.activities:
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt") as file:
            content = json.load(file)
        content["traceEvents"] += [{**event, "cat": "kernel", "pid": 0, "tid": 7} for event in content["traceEvents"]
                                   if event["name"] in ("aten::mkldnn_convolution", "aten::addmm", "aten::mm")]
        with opened(path, "wt") as file:
            file.write(json.dumps(content))


def _replace_data_parallel():
    """nn.DataParallel's four copies, which are C++ for CUDA only."""
    comm = torch.nn.parallel.comm

    def cuda(index):
        return meant(index) if isinstance(index, int) and index >= 0 else meant("cuda") if index is None else index

    def broadcast_coalesced(tensors, devices, buffer_size=None):
        # The first device's are no copies, in C++ neither.
        return [[put(tensor.data if on(tensor) == cuda(device) else tensor.detach().clone(), cuda(device))
                 for tensor in tensors] for device in devices]

    def reduce_add_coalesced(inputs, destination=None, buffer_size=None):
        plain = [[put(tensor.detach().clone(), cuda(destination)) for tensor in tensors] for tensors in inputs]
        return tuple(sum(tensors[1:], tensors[0]) for tensors in zip(*plain, strict=True))

    def scatter(tensor, devices=None, chunk_sizes=None, dim=0, streams=None, *, out=None):
        chunks = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        return tuple(chunk.to(cuda(device)) for chunk, device in zip(chunks, devices, strict=False))

    def gather(tensors, dim=0, destination=None, *, out=None):
        place = CPU if destination in ("cpu", -1) else cuda(destination)
        return torch.cat([tensor.to(place) for tensor in tensors], dim)

    for function in (broadcast_coalesced, reduce_add_coalesced, scatter, gather):
        setattr(comm, function.__name__, function)
    torch.nn.parallel._functions._get_stream = Stream


@functools.cache  # each group asks for it
def _replace_dtensors():
    """What DTensors do below the functions that a mode sees: draw random numbers, and work out shapes."""
    from torch.distributed.tensor import DTensor, _dispatch, _op_schema

    def fake_argument(spec):
        meta = spec.tensor_meta
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=CPU)

    def local_here(dtensor, **how):
        return put(to_local(dtensor, **how), meant(dtensor.device_mesh.device_type), is_new=False)

    to_local, DTensor.to_local = DTensor.to_local, local_here
    _dispatch.is_rng_supported_mesh = lambda mesh: False  # they draw as on the CPU
    _op_schema._rebuild_tensor_from_dtensor_meta = fake_argument


def _replace_nccl():
    """NCCL's rules, kept by gloo: GPU tensors only, and one GPU for each rank."""
    c10d = dist.distributed_c10d
    start, new_group, get_backend = c10d.init_process_group, c10d.new_group, c10d.get_backend
    device_of_objects = c10d._get_object_coll_device
    nccl, seen = weakref.WeakSet(), set()

    def wants_nccl(backend):
        return backend is not None and str(backend).lower() in ("nccl", "cuda:nccl")

    def checked(tensors, group, everybody):
        group = c10d._get_default_group() if group is None or group is c10d.GroupMember.WORLD else group
        if group not in nccl:
            return
        if any(on(tensor) is None for tensor in tensors) and not getattr(_here, "backward", False):
            raise RuntimeError("No backend type associated with device type cpu (stand-in)")
        if everybody and group is c10d._get_default_group() and group not in seen:
            seen.add(group)
            store, rank = c10d._get_default_store(), dist.get_rank()
            store.set(f"stand-in-{rank}", str(tensors[0].device))
            devices = [store.get(f"stand-in-{other}") for other in range(dist.get_world_size())]
            if len(set(devices)) < len(devices):
                raise dist.DistBackendError("NCCL error: Duplicate GPU detected: two ranks use the same CUDA device, "
                                            f"{devices[rank].decode()} (stand-in)")

    @functools.wraps(start)
    def init_process_group(backend=None, *args, device_id=None, **kwargs):
        if device_id is not None:
            meant(device_id)
            backend = backend or "nccl"
        if backend is None and _visible():
            backend = "nccl"  # where torch sees a GPU, this is its choice: CPU tensors are then refused
        if "torch.distributed.tensor._dispatch" in sys.modules:
            _replace_dtensors()
        start("gloo" if backend is None or "nccl" in str(backend).lower() else backend, *args, **kwargs)
        if wants_nccl(backend):
            nccl.add(c10d._get_default_group())

    @functools.wraps(new_group)
    def new_group_here(ranks=None, timeout=None, backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        inherits = backend is None and c10d._get_default_group() in nccl
        group = new_group(ranks, timeout, "gloo" if wants_nccl(backend) else backend, *args, **kwargs)
        if (inherits or wants_nccl(backend)) and group is not c10d.GroupMember.NON_GROUP_MEMBER:
            nccl.add(group)
        return group

    @functools.wraps(get_backend)
    def backend_of(group=None):
        found = get_backend(group)
        return "nccl" if (group or c10d._get_default_group()) in nccl else found

    def device_for_objects(group=None):
        return meant("cuda") if (group or c10d._get_default_group()) in nccl else device_of_objects(group)

    def guarded(function, everybody):
        @functools.wraps(function)
        def call(*args, **kwargs):
            tensors = list(_tensors([*args, *kwargs.values()]))
            group = next((value for value in [*args, *kwargs.values()] if isinstance(value, dist.ProcessGroup)), None)
            if tensors and dist.is_initialized():
                checked(tensors, group, everybody)
            return function(*args, **kwargs)
        return call

    replaced = {"init_process_group": init_process_group, "new_group": new_group_here, "get_backend": backend_of,
                "is_nccl_available": lambda: True, "_get_object_coll_device": device_for_objects}
    for names, everybody in ((COLLECTIVES, True), (POINT_TO_POINT, False)):
        replaced |= {name: guarded(getattr(c10d, name), everybody) for name in names}
    for name, function in replaced.items():
        setattr(c10d, name, function)
        setattr(dist, name, function)
    ddp = torch.nn.parallel.DistributedDataParallel
    init = ddp.__init__

    @functools.wraps(init)
    def ddp_init(self, module, *args, process_group=None, **kwargs):
        checked(list(module.parameters()), process_group, True)
        init(self, module, *args, process_group=process_group, **kwargs)

    ddp.__init__ = ddp_init


