"""``from_mlir``: a kernel of numba-cuda-mlir, with its arguments as a launch there takes them. Tried with
numba-cuda-mlir 0.6, which hands an array over as a memref does: where it was allocated, where it begins, an
offset, its sizes and its steps in elements."""

import contextlib
import copy

import numpy as np

from .....launches import Launch
from ..kernels import from_ptx
from .cuda_kernels import ARCHITECTURE
from .triton_kernels import memory

# Of the options of a kernel those that change what it computes; the others are of caches and listings.
KEPT = ("experimental_ast_transforms", "extensions", "fastmath", "launch_bounds", "link", "max_registers")


def from_mlir(kernel):
    """A kernel of numba-cuda-mlir for the CPU engine: ``nd.simulate(nd.from_mlir(kernel)[grid, block](x, n))``.

    ``kernel`` is a Python function, or what numba-cuda-mlir's ``cuda.jit`` makes of one; it is compiled with
    line information for sm_90a, once for all arguments of the same types, which needs no GPU.
    ``[grid, block](..)``, after which a stream and bytes of shared memory may follow, takes NumPy arrays,
    PyTorch tensors on the CPU, and numbers; it returns a :class:`launches.Launch`. A fault names the line of
    the Python source. Raises ValueError as ``from_ptx`` does, TypeError for an argument of another kind,
    ImportError without numba-cuda-mlir, and what that raises where it does not compile the kernel."""
    return MlirKernel(kernel)


class MlirKernel:
    """``function`` is the kernel in Python, ``options`` what its decorator was given."""

    def __init__(self, kernel):
        self.function = getattr(kernel, "py_func", kernel)
        options = getattr(kernel, "targetoptions", {})
        self.options = {name: options[name] for name in KEPT if options.get(name)}
        self.compiled = {}  # types of the arguments -> PtxKernel

    def __repr__(self):
        return f"<{self.function.__name__} from numba-cuda-mlir>"

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise ValueError(f"{self!r}[{configuration!r}] must be [grid, block], and after that a stream "
                             "and bytes of shared memory")  # fmt: skip
        grid, block, _, shared_bytes = (*configuration, 0, 0)[:4]

        def launch(*args):
            names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
            if len(args) != len(names):
                raise TypeError(f"{self.function.__name__} takes {', '.join(names)}; {len(args)} were given")
            kernel = copy.copy(self._kernel(names, args))
            kernel.threads, kernel.shared_bytes = block, shared_bytes
            given = [word for pair in zip(names, args, strict=True) for word in words(*pair)]
            return Launch(kernel, grid, given)

        return launch

    def _kernel(self, names, args):
        """What is compiled for arguments of these types."""
        from numba_cuda_mlir import cuda, types
        from numba_cuda_mlir.numba_cuda.typing.typeof import typeof

        kinds = tuple(typeof(_of_numpy(name, value)) for name, value in zip(names, args, strict=True))
        if kinds not in self.compiled:
            made = cuda.jit(self.function, chip=ARCHITECTURE, lineinfo=True, **self.options)
            signature = types.void(*kinds)
            with _as_on_hopper():
                made.compile(signature)
            parameters = [p for pair in zip(names, args, strict=True) for p in parameters_of(*pair)]
            (self.compiled[kinds],) = from_ptx(made.inspect_asm(signature), parameters).values()
        return self.compiled[kinds]


@contextlib.contextmanager
def _as_on_hopper():
    """Inside, numba-cuda-mlir compiles for sm_90a without asking a GPU what it is."""
    from numba_cuda_mlir import tools

    before, tools._cached_cc = tools._cached_cc, (9, 0)
    try:
        yield
    finally:
        tools._cached_cc = before


def _of_numpy(name, value):
    """An array for a tensor, and other values as they are; TypeError for what no parameter takes."""
    if hasattr(value, "data_ptr") and value.device.type == "cpu":
        return value.numpy()
    if not isinstance(value, (np.ndarray, np.generic, int, float)):
        raise TypeError(f"argument {name} is a {type(value).__name__}; the engine takes arrays, tensors on the "
                        "CPU, and numbers")  # fmt: skip
    return value


def parameters_of(name, value):
    """Names of the PTX's parameters for an argument; that of its first byte has the argument's own."""
    if not hasattr(value, "shape") or isinstance(value, np.generic):
        return [name]
    each = [f"{name}_{what}_{i}" for what in ("size", "step") for i in range(value.ndim)]
    return [f"{name}_allocated", name, f"{name}_offset", *each]


def words(name, value):
    """What the engine hands the PTX for an argument."""
    value = _of_numpy(name, value)
    if not isinstance(value, np.ndarray):
        if isinstance(value, (float, np.float32, np.float64)):
            return [value]
        bits = value if isinstance(value, (bool, int)) else value.view(f"u{value.itemsize}")
        return [int(bits) & (1 << 64) - 1]
    upwards = value[tuple(slice(None, None, -1 if step < 0 else 1) for step in value.strides)]
    offset, steps = value.ctypes.data - upwards.ctypes.data, [step // value.itemsize for step in value.strides]
    return [upwards.ctypes.data, memory(name, upwards, "u8"), offset // value.itemsize, *value.shape, *steps]
