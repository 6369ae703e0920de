"""What is below a program that calls CuPy: arrays, which are NumPy's, on the host; streams and events, those of
the stand-in for the driver; and what launches kernels."""

import contextlib
import ctypes
import functools
import re
import sys
import tempfile
import weakref
from pathlib import Path

import numpy as np

from ..device.limits import capability_of
from ..engines.cpu.frontends.ptx.compilers import cuda_kernels
from ..engines.cpu.memory.scalars import bounds_of
from ..engines.faults import BadLaunch, StreamRace
from ..engines.launches import PATTERN
from .cuda_program import LAUNCH_FAILURE, LOW, SUCCESS, ArraysHost
from .driver import HostDriver
from .streams import Streams
from .torch_extension import Tensors

INCLUDE = Path(__file__).with_name("include")
OWN_FILE = "@ the file that is compiled @"
UNASKED = 48 << 10  # bytes of dynamic shared memory that a launch may have without asking for more
SCALARS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}  # what CuPy makes of them
SIZES = "Arguments are handed over as they are: an array as its address, a scalar as its bytes, which are 8 of "
SIZES += "Python's int and float, 16 of complex, 1 of bool."
CURE = "Give a pointer an array, and others a scalar of their type, as np.float32(x) or np.int64(n); a "
CURE += "structure a dtype with align=True."
# Types of C++, and those of NumPy's that they are for.
ELEMENTS = {"float": "float32", "double": "float64", "float16": "float16", "__half": "float16",
            "half": "float16", "signed char": "int8", "unsigned char": "uint8", "uint8_t": "uint8",
            "short": "int16", "unsigned short": "uint16", "int": "int32", "int32_t": "int32",
            "unsigned int": "uint32", "unsigned": "uint32", "uint32_t": "uint32", "long long": "int64",
            "int64_t": "int64", "long": "int64", "unsigned long long": "uint64", "uint64_t": "uint64",
            "unsigned long": "uint64", "size_t": "uint64", "bool": "bool"}  # fmt: skip
C_TYPES = {dtype: name for name, dtype in reversed(ELEMENTS.items())}
C_TYPES |= {"complex64": "complex<float>", "complex128": "complex<double>"}
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

    __repr__, data = lambda self: repr(self.view(np.ndarray)), property(lambda self: Pointer(self))
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
    ORDER = {StreamRace: "Put b.wait_event(a.record()), or a.synchronize(), between."}
    ASK = "max_dynamic_shared_size_bytes of the kernel"
    LOOK, COOPERATIVE = "", "enable_cooperative_groups=True of the kernel"

    @functools.cache  # noqa: B019 (there is one of it in a program)
    def compiled(self, code, file, options, compiler):
        """The kernels of a text."""
        file = Path(tempfile.mkdtemp(dir=self.folder.name), f"{file}.cu")
        file.write_text(code.replace(OWN_FILE, str(file)))
        options = [f"-arch={self.session.arch}", f"-I{INCLUDE}", *options]
        made = cuda_kernels.from_cuda(file, options, compiler, language="cupy")
        made.declared = cuda_kernels.declarations(code)
        return made

    def of(self, module):
        """The same, with the variables of a module."""
        self.modules, self.variables = [module], self.contents.setdefault(id(module), {})
        return self

    def start(self, kernel, grid, block, args, shared, limit, stream, cooperative):
        """Launch a kernel as a program does."""
        for name, shape in (("grid", grid), ("block", block)):
            if type(shape) is not tuple or not all(hasattr(n, "__index__") for n in shape) or len(shape) > 3:
                raise TypeError(f"{kernel.name}: {name}={shape!r} is no tuple of up to three whole numbers")
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"{kernel.name}: the arguments are a {type(args).__name__}, and no tuple of them")
        if len(args) != len(kernel.entry.params):
            raise TypeError(f"{kernel.name} takes {len(kernel.entry.params)} arguments, not {len(args)}")
        buffers = [self.argument(kernel, n, value) for n, value in enumerate(args)]
        places = (ctypes.c_void_p * max(1, len(buffers)))(*map(ctypes.addressof, buffers))
        six = [max(1, int(n)) for shape in (grid, block) for n in (*shape, 1, 1)[:3]]  # CuPy makes 1 of 0
        nine = (ctypes.c_uint * 9)(*six, 1, 1, 1)
        self.look()
        status = self.launch(kernel, ctypes.addressof(nine), shared, limit, stream, cooperative, False,
                             ctypes.addressof(places))  # fmt: skip
        if status not in (SUCCESS, LAUNCH_FAILURE):  # which is told later
            raise RuntimeError(f"{self.line()}: a GPU does not launch {kernel.name} so: the summary says why")

    def argument(self, kernel, number, given):
        """The bytes of one argument, as CuPy hands them over."""
        value = given
        if isinstance(value, (Array, Pointer)):
            value = np.uint64(value.ctypes.data if isinstance(value, Array) else value.ptr)
        elif value is None:
            value = np.uint64(0)
        elif type(value) in SCALARS:
            value = SCALARS[type(value)](value)
        elif not isinstance(value, (np.generic, np.ndarray)) or value.size != 1:
            what = f"{kernel.parameters[number]} is a {type(value).__module__}.{type(value).__name__}"
            raise TypeError(f"{kernel.name}: {what}; a kernel takes CuPy's arrays, which cupy.asarray makes, "
                            "and scalars")  # fmt: skip
        self.look_at_type(kernel, number, given, value)
        content, wanted = value.tobytes(), kernel.entry.params[number].size
        what = f"{kernel.name} takes {wanted} bytes for {kernel.parameters[number]}, and "
        what += f"{type(given).__name__} has {len(content)}"
        if wanted > len(content) or (wanted < len(content) and isinstance(value, np.inexact)):
            self.wrong(kernel, what)
        elif wanted < len(content) and not isinstance(value, np.integer):  # a structure's first bytes are read
            self.session.note(f"{self.line()}: {what}")
        return ctypes.create_string_buffer(content, max(wanted, len(content)))

    def wrong(self, kernel, what, ends=False):
        """Tell of an argument as a fault; with ``ends`` nothing is launched with it."""
        fault = self.fault(BadLaunch, what)
        fault.rule, fault.cure = SIZES, CURE
        self.found(fault, kernel.name)
        if ends:
            raise RuntimeError(f"{self.line()}: {kernel.name} is not launched: {what}")

    def look_at_type(self, kernel, number, given, value):
        """Say so where an argument is not what the source declares: arrays of another type, and views, are
        noted, since a program may mean them; what is of another kind is a fault."""
        words = self.modules[0].declared.get(kernel.name.partition("<")[0], ())[number : number + 1]
        if not words:
            return
        words, is_pointer = re.match(r"([^*[]*)([*[])?", re.sub(r"\b(const|volatile)\b", "", words[0])).groups()
        words = words.split() if is_pointer else words.split()[:-1]
        wanted, is_address = ELEMENTS.get(" ".join(words)), isinstance(given, (Array, Pointer)) or given is None
        what = f"{kernel.parameters[number]} of {kernel.name} is "
        if is_pointer and not is_address:
            if value.dtype.kind not in "iu" or 0 < abs(int(value)) < LOW:
                self.wrong(kernel, f"{what}a pointer, and {given!r} ({type(given).__name__}) is given", True)
        elif is_pointer and isinstance(given, Array) and not given.flags.c_contiguous:
            what += f"an array with strides {given.strides}, of which a kernel gets the address alone"
            self.session.note(f"{self.line()}: {what}")
        elif is_pointer and wanted and isinstance(given, Array) and wanted != given.dtype.name:
            what = f"{what}for {wanted}, and the array is of {given.dtype.name}"
            self.session.note(f"{self.line()}: {what}")
        elif wanted and not is_pointer:
            if is_address and wanted not in ("int64", "uint64"):
                self.wrong(kernel, f"{what}one {wanted}, and an address is given", True)
            if not is_address and {wanted[0] == "f", value.dtype.kind == "f"} == {True, False}:
                self.wrong(kernel, f"{what}a {wanted}, and gets the bits of {given!r} ({value.dtype.name})")


HERE = []  # the Runtime of the program that is judged


def cleared(array):
    """A new array, which holds garbage as on a GPU."""
    ctypes.memset(array.ctypes.data, PATTERN, array.nbytes)
    return array


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


STREAMS = {"Stream": Stream, "Event": Event, "get_current_stream": current_stream, "get_elapsed_time": elapsed,
           "ExternalStream": lambda pointer, *more: Stream.null}  # fmt: skip
CUDA = {"Device": Device, "MemoryPointer": Pointer, "is_available": lambda: True}
