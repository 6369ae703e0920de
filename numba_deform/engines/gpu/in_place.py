"""Launch a kernel on the GPU on NumPy arrays, as the CPU engine does: they are changed in place."""

import ctypes
from dataclasses import replace

import numpy as np
from numba import types

from ..faults import SimFault
from ..tensormap import TensorMapArray
from .device import DeviceArray
from .guard import launch_guarded
from .launch import ArrayArgument
from .launch import launch as plain_launch


def launch_in_place(gpu, kernel, grid, args, shared_bytes=0, launch=launch_guarded, **options):
    """Copy ``args`` to the GPU, run ``kernel`` by ``launch``, and copy back all that it may have written.

    ``args`` are numbers, NumPy arrays (they go in as addresses, or as arrays where the signature says so) and
    TensorMapArray over NumPy arrays. Arrays that are views of one another's memory stay so on the GPU; those
    that are not writeable are not copied back. ``launch`` is ``launch_guarded``, which never hangs, or
    ``launch.launch``, and ``options`` more arguments for it, such as ``cluster``.

    Raises the SimFault of a guarded launch, with the arrays as the kernel left them; RuntimeError and what
    else the CUDA packages raise for a launch that failed; TensorMapError for a map the driver refuses.
    """
    there = OnGpu(gpu, kernel, args)
    try:
        launch(gpu, kernel, grid, there.args, shared_bytes, **options)
    except SimFault:
        there.copy_back()
        raise
    there.copy_back()


class OnGpu:
    """A kernel's arguments, copied to the GPU for as long as this lives.

    ``args`` are what a launch takes. There is one copy for each array that owns memory, whatever views of it go
    in."""

    def __init__(self, gpu, kernel, args):
        self.gpu, self.copies = gpu, {}
        kinds = kernel.signature.args if kernel else [None] * len(args)
        self.args = [self._moved(*pair) for pair in zip(args, kinds, strict=True)]

    def _moved(self, arg, kind):
        if isinstance(arg, TensorMapArray):
            moved = (replace(m, address=self.address_of(m.array)) for m in arg)
            return DeviceArray.of(self.gpu, TensorMapArray(moved).encode_into_host())
        if isinstance(kind, types.Array):
            return ArrayArgument(self.address_of(arg), arg.shape, arg.strides, arg.itemsize)
        return self.address_of(arg) if isinstance(arg, np.ndarray) else arg

    def address_of(self, array):
        """The address on the GPU of the array's first element."""
        owner = owner_of(array)
        start, host = bytes_of(owner)
        if start not in self.copies:
            self.copies[start] = [host, DeviceArray.of(self.gpu, host), False, owner]
        entry = self.copies[start]
        entry[2] |= array.flags.writeable
        return entry[1].address + array.__array_interface__["data"][0] - start

    def copy_back(self):
        """Bring what the kernel may have written into the arrays."""
        self.gpu.device.sync()
        for host, copy, writeable, _ in self.copies.values():
            if writeable:
                host[...] = copy.to_numpy()


def run_launch(gpu, request, guarded=True):
    """Run a ``launches.Launch`` on the GPU, outputs poisoned before and compared after: WrongResult.

    ``guarded`` takes the form that never hangs, where there is one: for grids and blocks of one dimension,
    without clusters. Raises as :func:`launch_in_place`."""
    request.prepare()
    plain = not guarded or not has_guarded_form(request)
    options = {"launch": plain_launch, "cluster": request.cluster} if plain else {}
    launch_in_place(gpu, request.kernel, request.grid, request.args, request.shared_bytes, **options)
    request.check()


def has_guarded_form(request):
    """Whether a Launch has a form that never hangs."""
    return isinstance(request.grid, int) and not request.kernel.block and not request.cluster


def owner_of(array):
    """The array whose memory it is a view of, or itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def bytes_of(array):
    """(address, uint8 view) of all the memory between an array's first and last byte."""
    start, stop = np.lib.array_utils.byte_bounds(array) if array.size else (array.ctypes.data,) * 2
    return start, np.frombuffer((ctypes.c_uint8 * (stop - start)).from_address(start), np.uint8)
