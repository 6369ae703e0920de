"""Launching compiled kernels on a stream, with arguments that a launch can share, and timing them."""

import ctypes
import functools
import math
from typing import NamedTuple

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype

from ...device.limits import PORTABLE_CLUSTER
from ..shapes import cluster_of, shape_of
from .device import DeviceArray, check, driver_call


@functools.cache
def _loaded(gpu, kernel, shared_bytes):
    """The kernel in the driver, allowed to use ``shared_bytes`` of dynamic shared memory."""
    from cuda.core import ObjectCode

    compiled = kernel.compile(gpu.architecture)
    code = ObjectCode.from_cubin(compiled.cubin)
    function = code.get_kernel(compiled.entry)
    if shared_bytes:
        _allow(gpu, function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
    return code, function


def _allow(gpu, function, attribute, value):
    from cuda.bindings import driver

    attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")
    kernel, device = driver.CUkernel(int(function.handle)), driver.CUdevice(gpu.device.device_id)
    driver_call("cuKernelSetAttribute", attribute, value, kernel, device)


def set_variable(gpu, kernel, shared_bytes, name, value):
    """Write the 64-bit ``value`` to the variable ``name`` of the kernel's module."""
    from cuda.bindings import driver

    code, _ = _loaded(gpu, kernel, shared_bytes)
    library = driver.CUlibrary(int(code.handle))
    address, size = driver_call("cuLibraryGetGlobal", library, name.encode())
    word = np.array([value], np.uint64)
    assert size == word.nbytes
    driver_call("cuMemcpyHtoD", address, word.ctypes.data, size)


@functools.cache
def resident_blocks(gpu, kernel, shared_bytes=0):
    """How many blocks of ``kernel`` the whole GPU holds at once, as the driver says."""
    _, function = _loaded(gpu, kernel, shared_bytes)
    each = function.occupancy.max_active_blocks_per_multiprocessor(kernel.threads, shared_bytes)
    return gpu.sms * each


class ArrayArgument(NamedTuple):
    """An array on the GPU for a kernel's parameter of an array type; ``strides`` are bytes."""

    address: int
    shape: tuple
    strides: tuple
    itemsize: int


def values_of(kind, arg):
    """What the driver takes for one argument: a number, or the members of Numba's structure for an array."""
    if isinstance(kind, types.Array):
        size, nothing = math.prod(arg.shape), np.uint64(0)  # no memory manager, no owner
        counts = (np.int64(n) for n in (*arg.shape, *arg.strides))
        return [nothing, nothing, np.int64(size), np.int64(arg.itemsize), np.uint64(arg.address), *counts]
    return [_scalar(kind, arg)]


def _scalar(kind, arg):
    return as_dtype(kind).type(arg.address if isinstance(arg, DeviceArray) else arg)


def _configured(kernel, grid, cluster):
    """(grid, block, cluster) of a launch, all in blocks or threads and in three dimensions."""
    grid = shape_of("grid", grid)
    return grid, shape_of("block", kernel.block or kernel.threads), cluster_of(grid, cluster)


def launch(gpu, kernel, grid, args, shared_bytes=0, stream=None, cluster=None):
    """Launch ``kernel`` with ``grid`` blocks of its own size, without waiting for it.

    ``grid`` and ``cluster``, the blocks of a cluster, are numbers or tuples of up to three, x first;
    BadLaunch for a cluster that does not fit the grid. ``args`` are integers (addresses for ``uint64``
    parameters), floats or DeviceArrays, and ArrayArgument for parameters of array types. ``stream`` is a
    cuda.core Stream, default the device's default stream.
    """
    from cuda.core import LaunchConfig
    from cuda.core import launch as core_launch

    grid, block, cluster = _configured(kernel, grid, cluster)
    _, function = _loaded(gpu, kernel, shared_bytes)
    if math.prod(cluster) > PORTABLE_CLUSTER:  # more than every GPU has
        _allow(gpu, function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    values = [v for pair in zip(kernel.signature.args, args, strict=True) for v in values_of(*pair)]
    options = {"is_cooperative": True} if kernel.compile(gpu.architecture).cooperative else {}
    if math.prod(cluster) > 1:  # LaunchConfig's grid then counts clusters
        options["cluster"] = cluster
        grid = tuple(blocks // n for blocks, n in zip(grid, cluster, strict=True))
    config = LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes, **options)
    core_launch(stream or gpu.device.default_stream, config, function, *values)


class ArgumentBlock:
    """A kernel's arguments as cuLaunchKernel reads them: at ``address``, pointers to the values.

    ``args`` are as for :func:`launch`. One that is a ``ctypes.c_uint64`` stays the caller's: what is
    written to its ``value`` is what the next launch gets, wherever among the arguments it stands. So does a
    ctypes array of them, for a parameter that is a tuple.
    """

    def __init__(self, kernel, args):
        self._keep = tuple(args)  # DeviceArrays live as long as launches may read them
        self._values = [self._in_memory(*pair) for pair in zip(kernel.signature.args, args, strict=True)]
        places = [place for value in self._values for place in self._places(value)]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        self.address = ctypes.addressof(self._pointers)

    @staticmethod
    def _in_memory(kind, arg):
        if isinstance(kind, types.UniTuple):
            assert isinstance(arg, ctypes.c_uint64 * kind.count) and str(kind.dtype) == "uint64"
            return arg
        if isinstance(arg, ctypes.c_uint64):
            assert str(kind) == "uint64"
            return arg
        scalar = _scalar(kind, arg)
        return np.ctypeslib.as_ctypes_type(scalar.dtype)(scalar.item())

    @staticmethod
    def _places(value):
        """Where the arguments lie: Numba hands a kernel the members of a tuple one by one."""
        first, size = ctypes.addressof(value), ctypes.sizeof(value)
        return range(first, first + size, 8) if isinstance(value, ctypes.Array) else [first]


def ready_launch(gpu, kernel, grid, shared_bytes, block):
    """A function ``run(stream)``, a stream's handle, that launches with what the ArgumentBlock holds.

    It calls the driver and nothing else, so it costs the host a few microseconds, and may be captured.
    """
    return in_context(gpu, [launch_step(gpu, kernel, grid, shared_bytes, block)])


def in_context(gpu, steps):
    """A function ``run(stream)`` that takes the steps in the GPU's context; each is a function of a stream's
    handle that returns what the driver did."""
    from cuda.bindings import driver

    gpu.device.set_current()
    context = driver_call("cuCtxGetCurrent")
    number, current = int(context), driver.cuCtxGetCurrent

    def run(stream):
        # A default stream belongs to the current context, which may be another GPU's, or none.
        is_elsewhere = int(current()[1]) != number
        if is_elsewhere:
            driver_call("cuCtxPushCurrent", context)
        try:
            for step in steps:
                if (status := step(stream))[0]:  # quicker than to compare it
                    check(status)
        finally:
            if is_elsewhere:
                driver_call("cuCtxPopCurrent")

    return run


def launch_step(gpu, kernel, grid, shared_bytes, block):
    """A step for :func:`in_context`: a launch with what the ArgumentBlock holds."""
    from cuda.bindings import driver

    grid, threads, _ = _configured(kernel, grid, None)
    _, function = _loaded(gpu, kernel, shared_bytes)
    function = driver.CUkernel(int(function.handle))
    driver_call("cuKernelGetFunction", function)  # loads it now: a capture is no time for that
    start = functools.partial(driver.cuLaunchKernel, function, *grid, *threads, shared_bytes)
    return lambda stream: start(stream, block.address, 0)


def clear_step(place, size):
    """A step for :func:`in_context`: ``size`` bytes at the address in ``place``, a ``ctypes.c_uint64``, become
    0."""
    from cuda.bindings import driver

    return lambda stream: driver.cuMemsetD8Async(place.value, 0, size, stream)


def profile_launch(gpu, run):
    """Call ``run()`` as what a profiler counts that was started off (``--profile-from-start off``)."""
    gpu.device.sync()
    driver_call("cuProfilerStart")
    run()
    gpu.device.sync()
    driver_call("cuProfilerStop")


def time_launches(gpu, run, repeats=10, warm_up=3, between=None):
    """Milliseconds of each of ``repeats`` calls of ``run()``, by events, after ``warm_up`` calls.

    ``between()`` runs before every timed call, outside the clock: rotating buffers, clearing caches.
    """
    from cuda.core import EventOptions

    stream, timed = gpu.device.default_stream, EventOptions(timing_enabled=True)
    for _ in range(warm_up):
        run()
    times = []
    for _ in range(repeats):
        if between:
            between()
        start = stream.record(options=timed)
        run()
        end = stream.record(options=timed)
        end.sync()
        times.append(end - start)
    return times
