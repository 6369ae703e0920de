"""The GPU: found, with its memory and its streams.

Everything goes through cuda.core and the driver bindings; Numba only compiles. The context is the
device's primary one, so arrays of PyTorch, CuPy and JAX in this process are at home in it.
"""

import contextlib
import functools
from dataclasses import dataclass

import numpy as np

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
        device, str(device.name), (capability.major, capability.minor),
        device.properties.multiprocessor_count, version
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


def require(gpu, capability, what, instead=()):
    """Raise GpuMissing when ``gpu`` is older than ``what`` needs; ``instead``: what it can run, by name."""
    if gpu.capability < capability:
        text = f"{what} needs a GPU of compute capability {capability[0]}.{capability[1]} or newer, "
        text += f"and {gpu.describe()} is older"
        raise GpuMissing(text + (f"; it can run: {', '.join(instead)}" if instead else ""))


def is_cuda_error(error):
    """Whether an exception comes from the CUDA packages, which export no base class of theirs."""
    return type(error).__module__.partition(".")[0] == "cuda"


def driver_call(name, *args):
    """What the driver's function ``name`` returns; RuntimeError with the driver's own words."""
    from cuda.bindings import driver

    return check(getattr(driver, name)(*args))


def check(result):
    """The values in the result of a driver's function; see :func:`driver_call`."""
    status, *values = result
    if status != 0:
        from cuda.bindings import driver

        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"{name.decode()}: {text.decode()}")
    return values[0] if len(values) == 1 else values


@contextlib.contextmanager
def beside_captures():
    """Inside, this thread may allocate and copy while some stream is captured: none of it becomes part of a
    graph. The stream must be none that waits for the default one; those of PyTorch and cuda.core do not."""
    from cuda.bindings import driver

    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = driver_call("cuThreadExchangeStreamCaptureMode", mode)
    try:
        yield
    finally:
        driver_call("cuThreadExchangeStreamCaptureMode", before)


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
        with beside_captures():
            copy = cls(gpu, array.shape, array.dtype)
            copy.copy_from(array)
            # The driver may return while the last bytes are on their way, and other streams do not wait.
            gpu.device.default_stream.sync()
        return copy

    def copy_from(self, array):
        """Overwrite it from its start on; raises ValueError for an array that is larger."""
        array = np.ascontiguousarray(array)
        if array.nbytes > self.nbytes:
            raise ValueError(f"{array.nbytes} bytes do not fit into the {self.nbytes} of a DeviceArray")
        if array.nbytes:
            driver_call("cuMemcpyHtoD", self.address, array.ctypes.data, array.nbytes)

    def to_numpy(self):
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        self.gpu.device.sync()
        return copy_to_host(self.address, self.shape, self.dtype)

    def fill(self, byte):
        """Every byte; 0xFF poisons floats of any kind with NaN."""
        driver_call("cuMemsetD8", self.address, byte, self.nbytes)


def device_of(address):
    """The number of the GPU whose memory lies at ``address``; RuntimeError if it is none's."""
    from cuda.bindings import driver

    ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(driver_call("cuPointerGetAttribute", ordinal, address))


def copy_to_host(address, shape, dtype):
    """A NumPy copy of device memory at ``address``."""
    array = np.empty(shape, dtype)
    driver_call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)
    return array


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
    return driver_call("cuStreamIsCapturing", handle) != 0


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
