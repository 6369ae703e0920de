"""Arrays of other libraries (PyTorch, CuPy, JAX): where they are, and new ones like them."""

import sys
from types import SimpleNamespace

import numpy as np

from ..device.packages import require_cuda
from ..engines.gpu.device import DeviceArray, copy_to_host
from .checks import OperatorError


def library_of(array):
    """The name of the library an array comes from: torch, cupy, jax, numpy, ..."""
    return type(array).__module__.partition(".")[0].removesuffix("lib")


def view_of(name, array):
    """Address, shape, dtype and device of an array that is on a GPU and dense."""
    if isinstance(array, DeviceArray):
        return SimpleNamespace(
            address=array.address, shape=array.shape, dtype=str(array.dtype),
            device=array.gpu.device.device_id)  # fmt: skip
    if isinstance(array, np.ndarray):
        raise OperatorError(
            f"{name} is a NumPy array and others are not; pass all as NumPy arrays, or all on a GPU"
        )
    require_cuda(f"{name}, which is not a NumPy array,")
    from cuda.core.utils import StridedMemoryView

    if getattr(array, "requires_grad", False):
        array = array.detach()  # DLPack refuses it; check_gradient has seen that none is lost
    stream = -1  # the launch goes to the caller's own stream: nothing to synchronise
    if library_of(array) == "jax":
        array.block_until_ready()
        stream = 1  # JAX insists on a stream; the legacy default one
    try:
        view = StridedMemoryView.from_any_interface(array, stream_ptr=stream)
    except Exception as error:
        raise OperatorError(
            f"{name} ({type(array).__name__}) offers neither DLPack nor the CUDA array interface: {error}"
        ) from None
    if not view.is_device_accessible:
        raise OperatorError(f"{name} is not on a GPU; move it there, or pass NumPy arrays throughout")
    dense, strides = 1, view.strides
    for size, stride in zip(reversed(view.shape), reversed(strides or ()), strict=bool(strides)):
        if size != 1 and stride != dense and 0 not in view.shape:
            raise OperatorError(f"{name} is not contiguous (strides {strides}); make it contiguous")
        dense *= size
    dtype = str(array.dtype).rpartition(".")[2]
    return SimpleNamespace(address=int(view.ptr), shape=tuple(view.shape), dtype=dtype, device=view.device_id)


def checked_place(name, address):
    """The address of an operand on a GPU; OperatorError where kernels cannot read 16 bytes at once there."""
    if address % 16:
        raise OperatorError(
            f"{name} starts at address {address:#x}, which is no multiple of 16, the bytes that kernels read "
            "at once; pass a copy"
        )
    return address


def on_host(name, array):
    """A small index array as NumPy, wherever it is."""
    if isinstance(array, (np.ndarray, list, tuple)):
        return np.asarray(array)
    if library_of(array) == "torch":
        return array.cpu().numpy()
    if hasattr(array, "__cuda_array_interface__"):
        view = view_of(name, array)
        return copy_to_host(view.address, view.shape, np.dtype(view.dtype))
    return np.asarray(array)


def empty_like(value, shape):
    """A new array of the library and on the device of ``value``."""
    import array_api_compat

    try:
        library = array_api_compat.array_namespace(value)
    except TypeError:
        raise OperatorError(f"cannot allocate the output for a {type(value).__name__}: pass out=") from None
    return library.empty(shape, dtype=value.dtype, device=array_api_compat.device(value))


def current_stream(array):
    """The stream that the caller's library is working on."""
    library = library_of(array)
    if library == "torch":
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return None
