"""The GPU engine: find the device, move arrays, launch compiled kernels on a stream, time them.

Everything goes through cuda.core and the driver bindings; Numba only compiles. The context is the
device's primary one, so arrays of PyTorch, CuPy and JAX in this process are at home in it.
"""

import ctypes
import functools
import weakref
from dataclasses import dataclass

import numpy as np

from ...compiler import Kernel
from ...device.packages import CudaMissing, require_cuda


class GpuMissing(RuntimeError):
    """There is no GPU, or none that can run this; the text says what was looked for."""


@dataclass(frozen=True)
class Gpu:
    """One device as the rest of the package sees it."""

    device: object  # cuda.core.Device
    name: str
    capability: tuple[int, int]
    sms: int
    driver: int

    def describe(self):
        major, minor = self.capability
        return f"{self.name} (SM {major}.{minor}, {self.sms} SMs)"

    @property
    def architecture(self):
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


@functools.cache
def _find(number):
    try:
        require_cuda("the GPU engine")
        from cuda.bindings import driver
        from cuda.core import Device

        device = Device(number)
        device.set_current()
        status, version = driver.cuDriverGetVersion()
    except CudaMissing as error:
        raise GpuMissing(f"no CUDA GPU can be used: {error}") from None
    except Exception as error:  # no driver, no device, or one that cannot be initialised
        raise GpuMissing(f"no CUDA GPU can be used: {type(error).__name__}: {error}") from None
    capability = device.compute_capability
    return Gpu(
        device,
        str(device.name),
        (capability.major, capability.minor),
        device.properties.multiprocessor_count,
        version,
    )


def find_gpu(number=0):
    """The GPU of that number, made current; raises GpuMissing with the reason."""
    gpu = _find(number)
    gpu.device.set_current()
    return gpu


def gpu_or_none():
    """The first GPU, or None."""
    try:
        return find_gpu()
    except GpuMissing:
        return None


def require(gpu, capability, what):
    """Raise GpuMissing when ``gpu`` is older than ``what`` needs."""
    if gpu.capability < capability:
        raise GpuMissing(
            f"{what} needs a GPU of compute capability {capability[0]}.{capability[1]} or newer, and "
            f"{gpu.describe()} is older; it can run: " + ", ".join(_runnable(gpu.capability))
        )


def _runnable(capability):
    from ...kernels.registry import VARIANTS

    return [v.name for v in VARIANTS.values() if v.capability <= capability] or ["nothing"]


def is_cuda_error(error):
    """Whether an exception comes from the CUDA packages, which export no base class of theirs."""
    return type(error).__module__.partition(".")[0] == "cuda"


def _check(result):
    """The value of a driver call; raises RuntimeError with the driver's own words."""
    status, *values = result
    if status != 0:
        from cuda.bindings import driver

        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"{name.decode()}: {text.decode()}")
    return values[0] if len(values) == 1 else values


# --- memory ---------------------------------------------------------------------------------------
class DeviceArray:
    """Device memory with a shape: for NumPy callers, tensor maps and level tables."""

    def __init__(self, gpu, shape, dtype):
        self.gpu, self.shape, self.dtype = gpu, tuple(shape), np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.buffer = gpu.device.allocate(max(self.nbytes, 1), stream=gpu.device.default_stream)
        self.address = int(self.buffer.handle)

    @classmethod
    def of(cls, gpu, array):
        """A copy of a NumPy array on the GPU."""
        array = np.ascontiguousarray(array)
        made = cls(gpu, array.shape, array.dtype)
        made.copy_from(array)
        # The driver may return while the last bytes are on their way, and other streams do not wait.
        gpu.device.default_stream.sync()
        return made

    def copy_from(self, array):
        """Overwrite it from its start on; raises ValueError for an array that is larger."""
        from cuda.bindings import driver

        array = np.ascontiguousarray(array)
        if array.nbytes > self.nbytes:
            raise ValueError(
                f"{array.nbytes} bytes do not fit into the {self.nbytes} of a DeviceArray"
            )
        if array.nbytes:
            _check(driver.cuMemcpyHtoD(self.address, array.ctypes.data, array.nbytes))

    def to_numpy(self):
        from cuda.bindings import driver

        array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self.gpu.device.sync()
            _check(driver.cuMemcpyDtoH(array.ctypes.data, self.address, self.nbytes))
        return array

    def fill(self, byte):
        """Every byte; 0xFF poisons floats of any kind with NaN."""
        from cuda.bindings import driver

        _check(driver.cuMemsetD8(self.address, byte, self.nbytes))


def device_of(address):
    """The number of the GPU whose memory lies at ``address``; RuntimeError if it is none's."""
    from cuda.bindings import driver

    ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(_check(driver.cuPointerGetAttribute(ordinal, address)))


def copy_to_host(address, shape, dtype):
    """A NumPy copy of device memory at ``address``."""
    from cuda.bindings import driver

    array = np.empty(shape, dtype)
    _check(driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
    return array


class Mailbox:
    """Eight bytes of device memory, brought to the host without waiting for them.

    There is no event to ask for the copy's end: asking is forbidden while another stream is captured.
    The copy, which is written at once, overwrites what it could never be.
    """

    EMPTY = 2**64 - 1

    def __init__(self, gpu):
        from cuda.bindings import driver

        gpu.device.set_current()
        address = int(_check(driver.cuMemHostAlloc(8, 0)))
        self._word, self._asked = ctypes.c_uint64.from_address(address), False
        # A copy that is still under way ends before the memory goes. At exit the driver does it.
        weakref.finalize(self, driver.cuMemFreeHost, address).atexit = False

    def ask(self, address, stream):
        """Copy from ``address``, a multiple of 8, on the stream of that handle; not while one is under way."""
        from cuda.bindings import driver

        if not self._asked:
            self._word.value, self._asked = self.EMPTY, True
            _check(driver.cuMemcpyDtoHAsync(ctypes.addressof(self._word), address, 8, stream))

    def take(self):
        """Two 32-bit words that have come, the first one first; None if nothing has."""
        word = self._word.value
        if not self._asked or word == self.EMPTY:
            return None
        self._asked = False
        return word & 0xFFFFFFFF, word >> 32


# --- launching ------------------------------------------------------------------------------------
@functools.cache
def _loaded(gpu, kernel: Kernel, shared_bytes):
    """The kernel in the driver, allowed to use ``shared_bytes`` of dynamic shared memory."""
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    compiled = kernel.compile(gpu.architecture)
    code = ObjectCode.from_cubin(compiled.cubin)
    function = code.get_kernel(compiled.entry)
    if shared_bytes:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(
            driver.cuKernelSetAttribute(
                attribute,
                shared_bytes,
                driver.CUkernel(int(function.handle)),
                driver.CUdevice(gpu.device.device_id),
            )
        )
    return code, function


def set_variable(gpu, kernel, shared_bytes, name, value):
    """Write the 64-bit ``value`` to the variable ``name`` of the kernel's module."""
    from cuda.bindings import driver

    code, _ = _loaded(gpu, kernel, shared_bytes)
    address, size = _check(
        driver.cuLibraryGetGlobal(driver.CUlibrary(int(code.handle)), name.encode())
    )
    word = np.array([value], np.uint64)
    assert size == word.nbytes
    _check(driver.cuMemcpyHtoD(address, word.ctypes.data, size))


@functools.cache
def resident_blocks(gpu, kernel, shared_bytes=0):
    """How many blocks of ``kernel`` the whole GPU holds at once, as the driver says."""
    _, function = _loaded(gpu, kernel, shared_bytes)
    each = function.occupancy.max_active_blocks_per_multiprocessor(kernel.threads, shared_bytes)
    return gpu.sms * each


_SCALARS = {"uint64": np.uint64, "int32": np.int32, "uint32": np.uint32, "float32": np.float32}


def _scalar(kind, arg):
    return _SCALARS[str(kind)](arg.address if isinstance(arg, DeviceArray) else arg)


def launch(gpu, kernel, grid, args, shared_bytes=0, stream=None):
    """Launch ``kernel`` with ``grid`` blocks of its own size, without waiting for it.

    ``args`` are integers (addresses for ``uint64`` parameters), floats or DeviceArrays. ``stream`` is a
    cuda.core Stream, default the device's default stream.
    """
    from cuda.core import LaunchConfig
    from cuda.core import launch as core_launch

    _, function = _loaded(gpu, kernel, shared_bytes)
    values = [_scalar(*pair) for pair in zip(kernel.signature.args, args, strict=True)]
    config = LaunchConfig(grid=grid, block=kernel.threads, shmem_size=shared_bytes)
    core_launch(stream or gpu.device.default_stream, config, function, *values)


class ArgumentBlock:
    """A kernel's arguments as cuLaunchKernel reads them: at ``address``, pointers to the values.

    ``args`` are as for :func:`launch`. One that is a ``ctypes.c_uint64`` stays the caller's: what is
    written to its ``value`` is what the next launch gets, wherever among the arguments it stands.
    """

    def __init__(self, kernel, args):
        self._keep = tuple(args)  # DeviceArrays live as long as launches may read them
        self._values = [
            self._in_memory(*pair) for pair in zip(kernel.signature.args, args, strict=True)
        ]
        places = map(ctypes.addressof, self._values)
        self._pointers = (ctypes.c_void_p * len(self._values))(*places)
        self.address = ctypes.addressof(self._pointers)

    @staticmethod
    def _in_memory(kind, arg):
        if isinstance(arg, ctypes.c_uint64):
            assert str(kind) == "uint64"
            return arg
        scalar = _scalar(kind, arg)
        return np.ctypeslib.as_ctypes_type(scalar.dtype)(scalar.item())


def ready_launch(gpu, kernel, grid, shared_bytes, block):
    """A function ``run(stream)``, a stream's handle, that launches with what the ArgumentBlock holds.

    It calls the driver and nothing else, so it costs the host a few microseconds, and may be captured.
    """
    from cuda.bindings import driver

    _, function = _loaded(gpu, kernel, shared_bytes)
    function = driver.CUkernel(int(function.handle))
    _check(driver.cuKernelGetFunction(function))  # loads it now: a capture is no time for that
    gpu.device.set_current()
    context = _check(driver.cuCtxGetCurrent())
    threads = kernel.threads
    push, call, pop = driver.cuCtxPushCurrent, driver.cuLaunchKernel, driver.cuCtxPopCurrent

    def run(stream):
        # A default stream belongs to the current context, which may be another GPU's, or none.
        _check(push(context))
        try:
            _check(
                call(function, grid, 1, 1, threads, 1, 1, shared_bytes, stream, block.address, 0)
            )
        finally:
            pop()

    return run


# --- streams --------------------------------------------------------------------------------------
def stream_handle(stream):
    """The driver's handle of a stream: from a handle, or an object of CuPy, PyTorch or the protocol."""
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise TypeError(f"stream={stream!r} is not a CUDA stream")


def is_capturing(handle):
    """Whether the stream of that handle is being captured into a graph."""
    from cuda.bindings import driver

    return _check(driver.cuStreamIsCapturing(handle)) != 0


def stream_from(gpu, stream):
    """A cuda.core Stream from None (the default one), or what :func:`stream_handle` takes."""
    from cuda.core import Stream

    if stream is None:
        return gpu.device.default_stream
    return stream if isinstance(stream, Stream) else _foreign_stream(stream_handle(stream))


@functools.lru_cache(maxsize=64)
def _foreign_stream(handle):
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream

    return Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM


def profile_launch(gpu, run):
    """Call ``run()`` as what a profiler counts that was started off (``--profile-from-start off``)."""
    from cuda.bindings import driver

    gpu.device.sync()
    _check(driver.cuProfilerStart())
    run()
    gpu.device.sync()
    _check(driver.cuProfilerStop())


def time_launches(gpu, run, repeats=10, warm_up=3, between=None):
    """Milliseconds of each of ``repeats`` calls of ``run()``, by events, after ``warm_up`` calls.

    ``between()`` runs before every timed call, outside the clock: rotating buffers, clearing caches.
    """
    from cuda.core import EventOptions

    stream = gpu.device.default_stream
    for _ in range(warm_up):
        run()
    times = []
    for _ in range(repeats):
        if between:
            between()
        start = stream.record(options=EventOptions(timing_enabled=True))
        run()
        end = stream.record(options=EventOptions(timing_enabled=True))
        end.sync()
        times.append(end - start)
    return times
