"""A stand-in for the CUDA driver: numba-cuda's own host code runs, and each launch goes elsewhere.

    with stand_in(run, note, (9, 0)):
        kernel[grid, block](array)     # -> run(Launched(..))

Device memory is host memory, streams (``streams.py``) do at once what they are told, and there is one device.
A kernel gets its types once, for the engine; where it has none, and where the program asks for what generated
code alone tells, Numba compiles it as always, so that what it refuses it refuses in its own words. What Numba
types and then cannot lower, which is rare, is not noticed. All that is not public in numba-cuda and that whole
programs need stands in this file; tried with 0.30.4. ``session.py`` calls it.
"""

import contextlib
import ctypes
import functools
import inspect
import threading
import types as python
import uuid
import warnings
from dataclasses import dataclass
from unittest import mock

import numpy as np
from cuda.bindings import driver as binding
from numba.cuda import dispatcher, types
from numba.cuda.args import ArgHint, In, Out
from numba.cuda.compiler import compile_cuda
from numba.cuda.core import config
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.cudadrv import devicearray, devices, driver, nvvm
from numba.cuda.kernels.reduction import Reduce
from numba.cuda.launchconfig import current_launch_config
from numba.cuda.memory_management import nrt
from numba.cuda.np.numpy_support import as_dtype

from ..compiler.inference import infer
from ..device.limits import HOPPER
from ..engines.cpu.frontends.arguments import parts
from ..engines.cpu.frontends.numba_python.native_program import NumbaKernel
from ..engines.cpu.memory.scalars import bounds_of, start_of
from ..engines.faults import KernelError
from ..engines.launches import History
from .callers import program_frame
from .pinned import PAGE
from .reductions import reduce
from .streams import Streams

BLOCKS_PER_SM, MULTIPROCESSORS = 8, 132
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1024, "MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535, "WARP_SIZE": 32,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10, "MULTIPROCESSOR_COUNT": MULTIPROCESSORS, "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 1, "PCI_DEVICE_ID": 0, "COMPUTE_MODE": 0,
}  # fmt: skip
MEMORY = 80 << 30
POISON = 0xFF  # in memory that the host has asked for and not written


@dataclass
class CoreDevice:
    """What numba-cuda asks of ``cuda.core.Device``."""

    device_id: int = 0
    compute_capability: tuple = HOPPER
    name: str = "CPU engine of numba_deform"
    uuid: str = str(uuid.UUID(int=1))
    context = python.SimpleNamespace(handle=binding.CUcontext(1), _handle=binding.CUcontext(1))

    def set_current(self):
        """The context is made current by Numba, with cuCtxPushCurrent."""


class HostDriver(Streams):
    """The driver's functions, on the host's memory. They return what Numba's wrappers of them return."""

    def __init__(self, found, capability):
        super().__init__(found)
        major, minor = (f"COMPUTE_CAPABILITY_{part}" for part in ("MAJOR", "MINOR"))
        self.attributes = ATTRIBUTES | dict(zip((major, minor), capability, strict=True))
        self.contexts = threading.local()

    def nothing(self, *args):
        """A function whose effect nobody can see here."""

    cuInit = cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxReset = nothing
    cuLibraryUnload = cuStreamDestroy = cuEventDestroy = nothing

    def cuDriverGetVersion(self):
        return 13000

    def cuDeviceGetCount(self):
        return 1

    def cuDeviceGetAttribute(self, attribute, device):
        return self.attributes.get(attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 1)

    # --- contexts -------------------------------------------------------------------------------------
    def stack(self):
        """The contexts of this host thread."""
        return self.contexts.__dict__.setdefault("stack", [])

    def cuCtxGetCurrent(self):
        return self.stack()[-1] if self.stack() else binding.CUcontext(0)

    def cuCtxGetDevice(self):
        return 0

    def cuCtxPushCurrent(self, context):
        self.stack().append(context)

    def cuCtxPopCurrent(self):
        return self.stack().pop()

    # --- memory ---------------------------------------------------------------------------------------
    def cuMemAlloc(self, size):
        return binding.CUdeviceptr(self._allocated(size, 512))  # as allocations of the driver are aligned

    def _allocated(self, size, alignment):
        buffer = (ctypes.c_ubyte * (size + 2 * alignment))()  # its last unit is its own, too
        address = -(-ctypes.addressof(buffer) // alignment) * alignment
        ctypes.memset(address, POISON, size)
        self.memory[address] = buffer, size, self.line()
        self.unset.append((address, address + size))
        return address

    def cuMemAllocManaged(self, size, flags):
        return binding.CUdeviceptr(self._written_by_the_host(size, 512))

    def _written_by_the_host(self, size, alignment):
        address = self._allocated(size, alignment)
        self.set(address, address + size)  # when the host likes
        return address

    def cuMemHostAlloc(self, size, flags):
        address = self._written_by_the_host(size, PAGE)
        self.pinned[address] = address, address + -(-size // PAGE) * PAGE
        return address

    def cuMemHostRegister(self, address, size, flags):
        address = int(address)
        self.memory[address] = None, size, self.line()
        self.pinned[address] = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE

    def cuMemFree(self, address):
        self.cuCtxSynchronize()  # as a GPU does, before somebody else can have the memory
        self.free(int(address))

    cuMemFreeHost = cuMemHostUnregister = cuMemFree

    def cuMemHostGetDevicePointer(self, address, flags):
        return binding.CUdeviceptr(int(address))

    def cuMemGetInfo(self):
        return MEMORY - sum(size for _, size, _ in self.memory.values()), MEMORY

    def cuMemGetAddressRange(self, address):
        if found := self.memory_at(int(address)):
            return binding.CUdeviceptr(found[0]), found[1]
        raise driver.CudaAPIError(binding.CUresult.CUDA_ERROR_NOT_FOUND, "memory that nobody has asked for")

    def cuPointerGetAttribute(self, attribute, address):
        return address

    def copy(self, move, what, waits, target, source, size, stream=0):
        """``source`` is an address, or a byte, at which there is no memory; ``waits``: until it is over, None:
        if that is the host's."""
        target, source = int(target), int(source)
        self.set(target, target + size, what)
        with self.pages.open():
            move(target, source, size)
        self.done(stream, what, [(target, target + size, True), (source, source + size, False)])
        to, of = self.memory_at(target), self.memory_at(source)
        hosts = to and to[0] in self.pinned and (waits is None or move is ctypes.memmove)
        # A copy to pageable memory returns when it is over, and so does one from the host to the host.
        if waits or not to or hosts and (waits is None or not of or of[0] in self.pinned):
            self.cuStreamSynchronize(stream)
        else:
            self.in_flight(stream, what, target, source, size)

    cuMemcpyHtoD = functools.partialmethod(copy, ctypes.memmove, "a copy to the device", True)
    cuMemcpyDtoH = functools.partialmethod(copy, ctypes.memmove, "a copy to the host", True)
    cuMemcpyHtoDAsync = functools.partialmethod(copy, ctypes.memmove, "a copy to the device", False)
    cuMemcpyDtoHAsync = functools.partialmethod(copy, ctypes.memmove, "a copy to the host", False)
    cuMemcpyDtoDAsync = functools.partialmethod(copy, ctypes.memmove, "a copy on the device", False)
    cuMemsetD8Async = functools.partialmethod(copy, ctypes.memset, "a memset", False)
    cuMemsetD8 = functools.partialmethod(copy, ctypes.memset, "a memset", None)
    cuMemcpyDtoD = cuMemcpyDtoDAsync

    def cuEventQuery(self, event):
        if not self.event_is_over(event):
            raise driver.CudaAPIError(binding.CUresult.CUDA_ERROR_NOT_READY, "not ready")

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, dynamic_bytes):
        return BLOCKS_PER_SM


# --- kernels ------------------------------------------------------------------------------------------
ATTRIBUTES_OF_CODE = python.SimpleNamespace(max_threads_per_block=1024)
CODE = python.SimpleNamespace(handle=0, kernel=python.SimpleNamespace(attributes=ATTRIBUTES_OF_CODE))


def make_kernel(self, py_func, argtypes, link=None, debug=False, lineinfo=False, inline=False,
                forceinline=False, fastmath=False, extensions=None, max_registers=None, lto=False,
                opt=True, device=False, launch_bounds=None, shared_memory_carveout=None):  # fmt: skip
    """In place of ``_Kernel.__init__``: the function gets its types, or Numba refuses it."""
    if device:
        raise RuntimeError("Cannot compile a device function as a kernel")
    self.objectmode, self.entry_point = False, None
    self.py_func, self.argtypes, self.debug, self.lineinfo = frozen(py_func), argtypes, debug, lineinfo
    self.held = tuple(held(self.py_func, set()))
    self.extensions, self.launch_bounds, self.max_registers = extensions or [], launch_bounds, max_registers
    self.shared_memory_carveout = None
    if shared_memory_carveout is not None:
        self.shared_memory_carveout = self._parse_carveout(shared_memory_carveout)
    self.signature, self._referenced_environments, self.lifted = types.void(*argtypes), [], []
    nvvm_options = {"fastmath": fastmath, "opt": 3 if opt else 0} | ({"g": None} if debug else {})
    compiled = functools.partial(
        compile_cuda, py_func, types.void, argtypes, debug=debug, lineinfo=lineinfo, forceinline=forceinline,
        fastmath=fastmath, nvvm_options=nvvm_options, cc=HOPPER, max_registers=max_registers, lto=lto,
    )  # fmt: skip
    self.lower = functools.partial(lower, self, compiled)
    config = current_launch_config()  # where Numba's passes note that they have asked for it
    try:
        known = not debug and infer(self.py_func, argtypes).return_type == types.none
    except Exception:
        known = False  # Numba has its own words for it
    if not known:
        self.lower()
    else:
        self.launch_config_sensitive = bool(config and config._is_kernel_launch_config_sensitive())


def lower(self, compiled):
    """What Numba's own compilation makes of a kernel."""
    result = compiled()
    self.launch_config_sensitive = bool((result.metadata or {}).get("launch_config_sensitive"))
    library = result.library
    function = library.get_function(result.fndesc.llvm_func_name)
    library._entry_name = result.fndesc.llvm_func_name
    dispatcher.kernel_fixup(function, self.debug)
    nvvm.set_launch_bounds(function, self.launch_bounds)
    library.get_cufunc = lambda: CODE
    self.cooperative, self.entry_name, self.signature = library.use_cooperative, function.name, result.signature
    self._type_annotation, self._codelibrary = result.type_annotation, library
    self.call_helper, self.target_context = result.call_helper, result.target_context
    self.fndesc, self.environment = result.fndesc, result.environment


LOWERED = ("cooperative", "entry_name", "_type_annotation", "_codelibrary", "call_helper", "target_context",
           "fndesc", "environment")  # fmt: skip


def when_asked(self, name):
    """In place of ``_Kernel.__getattr__``: a program that asks for what only generated code has gets it."""
    if name not in LOWERED or "lower" not in vars(self):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    self.lower()
    return getattr(self, name)


def frozen(function):
    """A function whose closure is as it is now: Numba makes constants of what it holds."""
    cells = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one, of a name that is not assigned yet
            held = cell.cell_contents
            cell = python.CellType(held.copy() if isinstance(held, np.ndarray) else held)
        cells.append(cell)
    same = python.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells) or None
    )
    same.__module__, same.__qualname__ = function.__module__, function.__qualname__
    return same


def held(function, seen):
    """(name, device array) of all that a kernel's names hold, and those of its device functions: Numba takes
    them by their addresses."""
    seen.add(function)
    scope = inspect.getclosurevars(function)
    for name, value in {**scope.globals, **scope.nonlocals}.items():
        if hasattr(value, "__cuda_array_interface__"):
            yield name, value
        elif isinstance(getattr(value, "py_func", None), python.FunctionType) and value.py_func not in seen:
            yield from held(value.py_func, seen)


def at(address, shape, strides, dtype):
    """The array at an address."""
    shown = {"shape": tuple(shape), "strides": strides and tuple(strides), "data": (int(address or 0), False),
             "typestr": f"|V{dtype.itemsize}", "version": 3}  # fmt: skip
    if not np.prod(shape, dtype=int):
        return np.empty(shape, dtype)
    return np.asarray(python.SimpleNamespace(__array_interface__=shown)).view(dtype)


def argument(kind, value, back):
    """What ``simulate`` takes for an argument of type ``kind``. ``back``: what to call after the run."""
    if isinstance(kind, types.Array):
        array = _array(value, back)
        # Numba reads whole numbers of the same size by the declared sign, whatever the array's is.
        whole = array.dtype.kind in "iu" and isinstance(kind.dtype, types.Integer)
        if whole and array.itemsize * 8 == kind.dtype.bitwidth and array.dtype != as_dtype(kind.dtype):
            array = np.ndarray.view(array, as_dtype(kind.dtype))  # not that of a class of Numba's
        return array
    if isinstance(kind, types.Integer) and not hasattr(value, "__index__"):
        raise TypeError(f"argument {value!r} is no whole number, and {kind} is declared")
    if isinstance(kind, types.CPointer):  # a bare address: all that was asked for there, from it on
        start, size = driver.driver.cuMemGetAddressRange(value)
        dtype = as_dtype(kind.dtype)
        return at(value, ((int(start) + size - int(value)) // dtype.itemsize,), None, dtype)
    if isinstance(kind, types.Record):
        value = value.value if isinstance(value, ArgHint) else value
        if not isinstance(value, np.void):
            value = at(value.device_ctypes_pointer.value, (), None, value.dtype)[()]
        return value
    if isinstance(kind, types.BaseTuple):
        parts = [argument(k, v, back) for k, v in zip(kind, value, strict=True)]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    return value


def _array(value, back):
    """The NumPy array that a launch runs on, for one that the program gives."""
    hint = value if isinstance(value, ArgHint) else None
    value = hint.value if hint else value
    if not isinstance(value, (np.ndarray, np.void)):
        made, _ = devicearray.auto_device(value)
        return at(made.device_ctypes_pointer.value, made.shape, made.strides, made.dtype)
    devicearray.sentry_contiguous(value)
    if config.CUDA_WARN_ON_IMPLICIT_COPY and not config.DISABLE_PERFORMANCE_WARNINGS:
        text = "Host array used in CUDA kernel will incur copy overhead to/from device."
        warnings.warn(NumbaPerformanceWarning(text), stacklevel=program_frame()[1])
    if not isinstance(hint, (In, Out)) and value.flags.writeable:
        return value
    array = np.array(value, order="K")
    if type(hint) is Out:
        array = np.frombuffer(b"\xff" * array.nbytes, array.dtype).reshape(array.shape).copy()
    if not isinstance(hint, In) and value.flags.writeable:
        back.append(lambda: np.copyto(value, array))
    return array


@dataclass
class Launched:
    """A launch of the program's, as ``simulate`` takes it: its arguments by position."""

    kernel: NumbaKernel  # which holds (name, device array, the same of NumPy)
    grid: tuple
    block: tuple
    args: tuple
    shared_bytes: int
    debug: bool = False
    where: str = ""  # the program's line, which the session finds
    touched: list = ()  # (start, stop, whether written) of bytes, which the session says where the kernel is to
    unset: list = ()  # (start, stop) of those that still hold garbage, likewise

    def raised(self, fault):
        """What Numba raises on the host where a kernel has raised: the exception with the line and the place of
        the thread, of kernels with ``debug=True``; else None."""
        error = fault.__cause__
        if not self.debug or type(fault) is not KernelError or fault.rule != KernelError.rule:
            return None
        file, _, line = fault.where.rpartition(":")
        where = f"In function {self.kernel.py_func.__name__!r}, file {file}, line {line}, "
        where += f"tid={_place(fault.thread, self.block)} ctaid={_place(fault.block, self.grid)}"
        return type(error)(": ".join((where, *map(str, error.args[:1]))), *error.args[1:])


def _place(number, shape):
    """[z, y, x], as Numba prints it."""
    x, y, _ = (*shape, 1, 1, 1)[:3]
    return [number // (x * y), number // x % y, number % x]


def launch(self, run, args, griddim, blockdim, stream=0, sharedmem=0):
    """In place of ``_Kernel.launch``."""
    kinds, values, back = [], [], []
    for kind, value in zip(self.argument_types, args, strict=True):
        for extension in reversed(self.extensions):
            kind, value = extension.prepare_args(kind, value, stream=stream, retr=back)
        kinds.append(kind)
        values.append(argument(kind, value, back))
    arrays = tuple((name, value, _array(value, back)) for name, value in self.held)
    kernel = NumbaKernel(self.py_func, types.void(*kinds), arrays, unset(args, values))
    kernel.by_bytes, kernel.history = driver.driver.several, History(dict(driver.driver.ends))
    everything = (*values, *(array for _, _, array in arrays))
    for array, _ in parts(everything, [""] * len(everything)):
        if isinstance(array, np.ndarray):
            driver.driver.set(*bounds_of(array))
    launched = Launched(kernel, tuple(griddim), tuple(blockdim), tuple(values), sharedmem, self.debug)
    try:
        with driver.driver.pages.open():
            run(launched)
    finally:
        for function in back:
            function()
    driver.driver.left(launched.unset, self.py_func.__qualname__)
    driver.driver.done(stream, self.py_func.__qualname__, launched.touched)
    hosts = (arg.value if isinstance(arg, ArgHint) else arg for arg in args if not isinstance(arg, In))
    if any(isinstance(arg, np.ndarray) and not driver.driver.memory_at(start_of(arg)) for arg in hosts):
        driver.driver.cuStreamSynchronize(stream)  # which the copy back to pageable memory does


def unset(args, values):
    """(start, stop) of what nobody has set, or Out does not copy, of arrays ``values``, made of ``args``."""
    pairs = [(a, bounds_of(v)) for a, v in zip(args, values, strict=True) if isinstance(v, np.ndarray)]
    return sum(([at] if type(a) is Out and isinstance(a.value, np.ndarray) else driver.driver.unset_in(*at)
                for a, at in pairs), [])  # fmt: skip


THINGS = ("alloc", "hostalloc", "pin", "event", "stream", "module")
FINALIZERS = tuple(f"_{thing}_finalizer" for thing in THINGS)


def while_open(make, is_open):
    """Of a maker of finalizers: what outlives the stand-in has nothing to give back."""

    def maker(*args):
        finalizer = make(*args)
        return lambda: finalizer() if is_open else None

    return maker


class Counts:
    """In place of Numba's counters of memory that kernels ask for: Python has that here."""

    def get_allocation_stats(self):
        return nrt._nrt_mstats(0, 0, 0, 0)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@contextlib.contextmanager
def stand_in(run, note, capability):
    """Inside, numba-cuda in this process uses the host's memory, and hands each launch to ``run``; ``note``
    is called with a fault that is none of one launch, and a name. The device has that compute ``capability``.
    Kernels that are compiled inside, and arrays that are made inside, are of no use afterwards."""
    host, found, is_open = HostDriver(note, capability), driver.driver, [True]
    functions = [name for name in vars(found) if name.startswith("cu")]  # bound by a driver that is there
    changes = [
        mock.patch.dict(vars(found), is_initialized=True, initialization_error=None, devices={}),
        mock.patch.object(type(found), "__getattr__", lambda self, name: getattr(host, name)),
        mock.patch.object(driver, "_logger", driver.make_logger(), create=True),
        mock.patch.object(driver, "ExperimentalDevice", lambda number: CoreDevice(number, capability)),
        mock.patch.object(devices, "_runtime", devices._Runtime()),
        mock.patch.object(type(nrt.rtsys), "__getattribute__", lambda self, name: getattr(Counts(), name)),
        mock.patch.object(dispatcher._Kernel, "__init__", make_kernel),
        mock.patch.object(dispatcher._Kernel, "__getattr__", when_asked, create=True),
        mock.patch.object(dispatcher._Kernel, "bind", lambda self: None),
        mock.patch.object(dispatcher._Kernel, "launch", functools.partialmethod(launch, run)),
        mock.patch.object(Reduce, "__call__", functools.partialmethod(reduce, Reduce.__call__, note, set())),
        *(mock.patch.object(driver, f, while_open(getattr(driver, f), is_open)) for f in FINALIZERS),
    ]
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        for name in functions:
            del vars(found)[name]
        forget = devices._DeviceList.lst.fget.cache_clear
        forget()
        stack.callback(forget)
        stack.callback(is_open.clear)
        stack.callback(host.pages.end)
        yield
