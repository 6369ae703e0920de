"""CuPy under ``numba-deform check program.py``, where there is neither CuPy nor a GPU: a module in its place.

Its arrays are NumPy's, on the host. ``RawKernel`` and ``RawModule`` compile their code with NVRTC, as CuPy
does, and each launch is judged; streams and events are those of the stand-in for the driver. Other functions
are NumPy's of the same name, and what has neither is refused by its name."""

import contextlib
import copy
import ctypes
import functools
import importlib.abc
import importlib.machinery
import re
import sys
import tempfile
import types as python
import weakref
from pathlib import Path

import numpy as np

from ..device.limits import LIMITS, capability_of
from ..engines.cpu.frontends.ptx.compilers import cuda_kernels
from ..engines.cpu.memory.scalars import bounds_of
from ..engines.faults import BadLaunch
from ..engines.launches import PATTERN
from .callers import located
from .cuda_program import LAUNCH_FAILURE, SUCCESS, ArraysHost
from .driver import MULTIPROCESSORS, HostDriver
from .streams import Streams
from .torch_extension import Tensors

UNASKED = 48 << 10  # bytes of dynamic shared memory that a launch may have without asking for more
SCALARS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}  # what CuPy makes of them
SIZES = "A scalar is handed over as it is: 8 bytes of Python's int and float, 16 of complex, 1 of bool."
CURE = "Give a scalar of the parameter's type, as np.float32(x) or np.int64(n); for a structure a dtype with "
CURE += "align=True."
# What a pointer points to, and the type of arrays that it is for.
ELEMENTS = {"float": "float32", "double": "float64", "__half": "float16", "half": "float16", "short": "int16",
            "int": "int32", "unsigned int": "uint32", "unsigned": "uint32", "long long": "int64",
            "unsigned long long": "uint64", "int64_t": "int64", "int32_t": "int32", "bool": "bool"}  # fmt: skip
NUMPY = ("linalg", "random", "fft", "testing", "polynomial")  # submodules that are NumPy's
ALIVE = {}  # id: an Array, weakly


class Refused(NotImplementedError, AttributeError):
    """What CuPy has, and this module has not."""


class Array(np.ndarray):
    """``cupy.ndarray``: NumPy's, with what CuPy's has beside it."""

    def __new__(cls, shape, dtype=float, memptr=None, strides=None, order="C"):
        made = super().__new__(cls, shape, dtype, memptr and memptr.array, 0, strides, order)
        return made if memptr else cleared(made)

    def __array_finalize__(self, other):
        key = id(self)
        ALIVE[key] = weakref.ref(self, lambda _: ALIVE.pop(key, None))

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return array.view(Array)  # sums are arrays, too

    data = property(lambda self: Pointer(self))
    device = property(lambda self: Device())

    def get(self, stream=None, order="C", out=None, blocking=True):
        copied = np.array(self, order=order, subok=False)
        if out is None:
            return copied
        out[...] = copied
        return out

    def set(self, array, stream=None):
        self[...] = array


class Pointer:
    """``cupy.cuda.MemoryPointer``: to the first byte of an array."""

    def __init__(self, array):
        self.array, self.ptr = array, array.ctypes.data


class Arrays:
    """The memory of all Arrays, for ``ArraysHost``, and of PyTorch's tensors, whose addresses kernels may
    get."""

    def __init__(self):
        self.tensors = Tensors()

    def search(self):
        if "torch" in sys.modules:
            self.tensors.search()

    def memory(self):
        found = self.tensors.memory()
        for array in [reference() for reference in list(ALIVE.values())]:
            shown = f"a cupy array {getattr(array, 'shape', '')}"
            while isinstance(getattr(array, "base", None), np.ndarray):
                array = array.base
            if array is not None and array.size:
                start, stop = bounds_of(array)
                found.setdefault(start, (array, stop - start, shown))
        return found


class Runtime(ArraysHost):
    """What launches kernels; streams and events are its own."""

    def __init__(self, session):
        self.capability = capability_of(session.arch)
        HostDriver.__init__(self, session.found, self.capability)
        self.session, self.arrays, self.of_arrays = session, Arrays(), {}
        self.modules, self.refusal, self.kinds, self.contents = [], None, {}, {}
        self.folder = tempfile.TemporaryDirectory(prefix="numba_deform_cupy_")

    place, entry = Streams.place, staticmethod(lambda kernel: kernel)
    ORDER, ASK = "b.wait_event(a.record()), or a.synchronize(),", "max_dynamic_shared_size_bytes of the kernel"
    LOOK = ""

    @functools.cache  # noqa: B019 (there is one of it in a program)
    def compiled(self, code, file, options, compiler):
        """The kernels of a text."""
        file = Path(tempfile.mkdtemp(dir=self.folder.name), f"{file}.cu")
        file.write_text(code)
        options = [f"-arch={self.session.arch}", *options]
        made = cuda_kernels.from_cuda(file, options, compiler)
        made.declared = cuda_kernels.declarations(code)
        return made

    def of(self, module):
        """The same, with the variables of a module."""
        self.modules, self.variables = [module], self.contents.setdefault(id(module), {})
        return self

    def start(self, kernel, grid, block, args, shared, limit, stream, cooperative):
        """Launch a kernel as a program does."""
        if len(args) != len(kernel.entry.params):
            raise TypeError(f"{kernel.name} takes {len(kernel.entry.params)} arguments, not {len(args)}")
        buffers = [self.argument(kernel, n, value) for n, value in enumerate(args)]
        places = (ctypes.c_void_p * max(1, len(buffers)))(*map(ctypes.addressof, buffers))
        if not (type(grid) is type(block) is tuple):
            raise TypeError(f"grid={grid!r} and block={block!r}: both are tuples")
        six = [max(1, int(n)) for shape in (grid, block) for n in (*shape, 1, 1)[:3]]  # CuPy makes 1 of 0
        nine = (ctypes.c_uint * 9)(*six, 1, 1, 1)
        self.look()
        status = self.launch(kernel, ctypes.addressof(nine), shared, limit, stream, cooperative, False,
                             ctypes.addressof(places))  # fmt: skip
        if status not in (SUCCESS, LAUNCH_FAILURE):  # which is told later
            raise RuntimeError(f"{self.line()}: a GPU does not launch {kernel.name} so: the summary says why")

    def argument(self, kernel, number, value):
        """The bytes of one argument, as CuPy hands them over."""
        given = value
        if isinstance(value, Array):
            self.look_at_type(kernel, number, value.dtype.name)
        if isinstance(value, (Array, Pointer)):
            value = np.uint64(value.ctypes.data if isinstance(value, Array) else value.ptr)
        elif type(value) in SCALARS:
            value = SCALARS[type(value)](value)
        elif not isinstance(value, (np.generic, np.ndarray)) or value.size != 1:
            what = f"{kernel.parameters[number]} is a {type(value).__module__}.{type(value).__name__}"
            raise TypeError(f"{kernel.name}: {what}; a kernel takes CuPy's arrays, which cupy.asarray makes, "
                            "and scalars")  # fmt: skip
        content, wanted = value.tobytes(), kernel.entry.params[number].size
        what = f"{kernel.name} takes {wanted} bytes for {kernel.parameters[number]}, and "
        what += f"{type(given).__name__} has {len(content)}"
        if wanted > len(content) or (wanted < len(content) and isinstance(value, np.inexact)):
            fault = self.fault(BadLaunch, what)
            fault.rule, fault.cure = SIZES, CURE
            self.found(fault, kernel.name)
        elif wanted < len(content) and not isinstance(value, np.integer):  # a structure's first bytes are read
            self.session.note(f"{self.line()}: {what}")
        return ctypes.create_string_buffer(content, max(wanted, len(content)))


    def look_at_type(self, kernel, number, dtype):
        """Say so where an array is of another type than the source says of the pointer that it is given for."""
        declared = self.modules[0].declared.get(kernel.name.partition("<")[0], ())[number : number + 1]
        words = re.match(r"(.*?)\*", re.sub(r"\bconst\b", "", declared[0])) if declared else None
        wanted = ELEMENTS.get(" ".join(words[1].split())) if words else None
        if wanted and wanted != dtype:
            what = f"is for {wanted}, and the array is of {dtype}"
            self.session.note(f"{self.line()}: {kernel.parameters[number]} of {kernel.name} {what}")


HERE = []  # the Runtime of the program that is judged


def cleared(array):
    """A new array, which holds garbage as on a GPU."""
    ctypes.memset(array.ctypes.data, PATTERN, array.nbytes)
    return array


# --- kernels ------------------------------------------------------------------------------------------
class Function:
    """A kernel of a module."""

    def __init__(self, module, name, cooperative=False):
        self.module, self.kernel, self.cooperative = module, (kernel := module[name]), cooperative
        self.max_dynamic_shared_size_bytes = UNASKED - kernel.static_bytes
        self.max_threads_per_block, self.shared_size_bytes = kernel.threads or 1024, kernel.static_bytes

    def __call__(self, grid, block, args, *, shared_mem=0, stream=None):
        stream = getattr(stream or current_stream(), "ptr", stream)
        runtime, most = HERE[-1].of(self.module), self.max_dynamic_shared_size_bytes
        runtime.start(self.kernel, grid, block, args, shared_mem, most, stream, self.cooperative)


class RawModule:
    """``cupy.RawModule``. ``file``: the name of its text, where that does not stand in the program."""

    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc", translate_cucomplex=False,
                 enable_cooperative_groups=False, name_expressions=None, jitify=False, file="code"):
        if code is None or translate_cucomplex or jitify:
            raise Refused("RawModule of a path, translate_cucomplex and jitify are not supported by check")
        wanted = (f"template __global__ decltype({name}) {name};" for name in name_expressions or ())
        text, compiler = "\n".join((*located([code]), *wanted)), None if backend == "nvcc" else "nvrtc"
        self.module = HERE[-1].compiled(text, file, tuple(options), compiler)
        self.cooperative = enable_cooperative_groups

    def compile(self, log_stream=None):
        """It is compiled."""

    def get_function(self, name):
        return Function(self.module, name, self.cooperative)

    def get_global(self, name):
        return Pointer(HERE[-1].of(self.module).variable(name))


class RawKernel(Function):
    """``cupy.RawKernel``."""

    compile = RawModule.compile

    def __init__(self, code, name, options=(), backend="nvrtc", **more):
        made = RawModule(code, options=options, backend=backend, file=name, **more)
        super().__init__(made.module, name, made.cooperative)


# --- cupy.cuda ----------------------------------------------------------------------------------------
class Device(contextlib.nullcontext):
    """``cupy.cuda.Device``: there is one."""

    def __init__(self, device=0):
        super().__init__(self)
        if device not in (None, 0):
            raise ValueError(f"there is one device, and no device {device}")
        self.id, self.use = 0, lambda: None
        self.compute_capability, self.mem_info = "{}{}".format(*HERE[-1].capability), HERE[-1].cuMemGetInfo()

    def __int__(self):
        return self.id

    def synchronize(self):
        HERE[-1].cuCtxSynchronize()


class Stream:
    """``cupy.cuda.Stream``."""

    now = []  # those that ``with`` blocks are inside of, or the one in use

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self.ptr = 0 if null or ptds else int(HERE[-1].cuStreamCreate(0))

    def __enter__(self):
        self.now.append(self)
        return self

    def __exit__(self, *error):
        self.now.remove(self)

    def use(self):
        self.now[:] = [self]
        return self

    def synchronize(self):
        HERE[-1].cuStreamSynchronize(self.ptr)

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        HERE[-1].cuStreamWaitEvent(self.ptr, event.ptr, 0)


class Event:
    """``cupy.cuda.Event``."""

    done = True

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.ptr = int(HERE[-1].cuEventCreate(0))

    def record(self, stream=None):
        HERE[-1].cuEventRecord(self.ptr, (stream or current_stream()).ptr)

    def synchronize(self):
        HERE[-1].cuEventSynchronize(self.ptr)


def current_stream():
    return Stream.now[-1] if Stream.now else Stream.null


def elapsed(start, end):
    HERE[-1].session.note("times between events are the host's: get_elapsed_time says nothing of a GPU")
    return HERE[-1].cuEventElapsedTime(start.ptr, end.ptr)


# --- the module ---------------------------------------------------------------------------------------
class Module(python.ModuleType):
    """Names of its own, and those of a module of NumPy's."""

    def __init__(self, name, own, of_numpy=None):
        super().__init__(name)
        vars(self).update(own, __path__=[], of_numpy=of_numpy)

    def __getattr__(self, name):
        value = getattr(self.of_numpy, name, None)
        if value is None or isinstance(value, python.ModuleType):
            raise Refused(f"{self.__name__}.{name} is not supported by check")
        if value is np.random.RandomState or callable(value) and not isinstance(value, (type, np.ufunc)):
            value = on_device(value, self.of_numpy is np.random)
        setattr(self, name, value)
        return value


def on_device(function, has_no_types=False):
    """A function of NumPy's whose arrays are Arrays. Those of ``random`` take no ``dtype`` there."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        HERE[-1].session.note("cupy's functions of arrays ran in NumPy: of theirs no kernel was judged")
        kind = kwargs.pop("dtype", None) if has_no_types else None
        made = function(*args, **kwargs)
        if isinstance(made, (np.random.Generator, np.random.RandomState)):
            return Drawing(made)
        made = _as_arrays(np.asarray(made, kind) if kind else made, args)
        return cleared(made) if function.__name__ in ("empty", "empty_like") else made

    return call


class Drawing:
    """One of NumPy's generators of random numbers, which draws Arrays."""

    def __init__(self, of):
        self._of = of

    def __getattr__(self, name):
        value = getattr(self._of, name)
        return on_device(value) if callable(value) else value


def _as_arrays(made, args):
    """Arrays for NumPy's; none has its memory from one of the host."""
    if isinstance(made, (list, tuple)):
        each = [_as_arrays(one, args) for one in made]
        return type(made)(*each) if hasattr(made, "_fields") else type(made)(each)
    if not isinstance(made, np.ndarray) or isinstance(made, Array):
        return made
    from_host = any(type(arg) is np.ndarray and np.may_share_memory(arg, made) for arg in args)
    return (made.copy(order="K") if from_host else made).view(Array)


def modules(major, minor):
    """{name: module}, of all that there is on a GPU of that compute capability."""
    properties = {"name": b"CPU engine of numba_deform", "major": major, "minor": minor, "warpSize": 32,
                  "multiProcessorCount": MULTIPROCESSORS, "maxThreadsPerBlock": 1024,
                  "sharedMemPerBlock": UNASKED,
                  "sharedMemPerBlockOptin": LIMITS[major, minor].block_shared}  # fmt: skip
    pool = python.SimpleNamespace(free_all_blocks=lambda: None, used_bytes=lambda: 0, total_bytes=lambda: 0)
    streams = {"Stream": Stream, "Event": Event, "get_current_stream": current_stream,
               "get_elapsed_time": elapsed,
               "ExternalStream": lambda pointer, *more: Stream.null}  # fmt: skip
    runtime = Module("cupy.cuda.runtime", {
        "getDeviceCount": lambda: 1, "getDevice": lambda: 0, "setDevice": Device,
        "getDeviceProperties": lambda device: properties,
        "deviceSynchronize": lambda: Device().synchronize()})  # fmt: skip
    cuda = {"Device": Device, "MemoryPointer": Pointer, "is_available": lambda: True, "runtime": runtime}
    numpys = {name: Module(f"cupy.{name}", {}, getattr(np, name)) for name in NUMPY}
    own = {
        "ndarray": Array, "RawKernel": RawKernel, "RawModule": RawModule, "__version__": "14.0.0",
        "asnumpy": lambda array, *more, **named: array.get() if isinstance(array, Array) else np.array(array),
        "get_array_module": lambda *args: cupy if any(isinstance(arg, Array) for arg in args) else np,
        "get_default_memory_pool": lambda: pool, "get_default_pinned_memory_pool": lambda: pool,
        "is_available": lambda: True,
    }  # fmt: skip
    names = [Module(f"cupy.cuda{name}", own) for name, own in
             (("", cuda | streams), (".stream", streams), (".device", cuda))]  # fmt: skip
    vars(names[0]).update(stream=names[1], device=names[2])
    cupy = Module("cupy", own | numpys | {"cuda": names[0]}, np)
    return {module.__name__: module for module in (cupy, *names, runtime, *numpys.values())}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Brings the modules when the program asks for them."""

    def __init__(self, session):
        self.session, self.modules = session, {}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("cupy", "cupyx"):
            return None
        if not HERE:
            HERE.append(Runtime(self.session))
            Stream.null, self.modules = Stream(null=True), modules(*HERE[-1].capability)
        if name not in self.modules:
            raise ModuleNotFoundError(f"{name} is not supported by check", name=name)
        return importlib.machinery.ModuleSpec(name, copy.copy(self), is_package=True)

    def create_module(self, spec):
        return self.modules[spec.name]

    def exec_module(self, module):
        """It is complete."""


@contextlib.contextmanager
def stand_in(session):
    """Inside, programs that import CuPy find this module, and each launch goes to ``session``."""
    sys.meta_path.insert(0, finder := Finder(session))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.modules:
            sys.modules.pop(name, None)
        HERE.clear(), Stream.now.clear()
