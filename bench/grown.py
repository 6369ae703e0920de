"""Programs of a few blocks that fill a GPU: the same program many times side by side.

Each copy of the program has a copy of all its arrays, and ``blockIdx.z`` is its number. The program's code is
written out in a kernel that steps to that copy first; nothing else of it changes.
"""

import linecache
import math
import mmap
from dataclasses import dataclass, replace

import numpy as np
from numba import cuda, types, uint64

import numba_deform as nd
from numba_deform.device.limits import HOPPER, LIMITS
from numba_deform.engines.gpu.in_place import bytes_of, owner_of
from numba_deform.engines.shapes import shape_of
from numba_deform.engines.tensormap import TensorMapArray
from numba_deform.kernels.budget import occupancy

SMS, WAVES = 132, 3  # of an H100 and an H200; how often their blocks fill all of them
MAP_BYTES, UNIT = 128, 256  # of a tensor map; a copy of memory starts at a multiple of UNIT bytes


@dataclass
class Output:
    """An array, what it holds after a right run, and how far off an element may be: 0, not at all.

    ``steady``: whether all right runs leave the same bits, as where no order of additions is left open."""

    array: np.ndarray
    expected: np.ndarray
    allowed: float = 0.0
    steady: bool = True


@dataclass
class Work:
    """What a GPU is given. The arrays among ``args`` hold what they hold before each run.

    laps     how often a stage of a ring is filled, at least; None for what has no ring
    rounds   how often a block takes a tile or a row, where the grid is no larger than the GPU
    copies   of the program, side by side
    """

    kernel: object
    grid: object
    args: list
    outputs: list
    shared_bytes: int = 0
    cluster: object = None
    laps: float | None = None
    rounds: float = 1
    copies: int = 1

    @property
    def blocks(self):
        return math.prod(self.grid) if isinstance(self.grid, tuple) else self.grid

    @property
    def waves(self):
        """How often the blocks fill all SMs, if only threads and dynamic shared memory bound how many fit."""
        return self.blocks / (SMS * blocks_of_an_sm(self.kernel.threads, self.shared_bytes)) * self.rounds


def blocks_of_an_sm(threads, shared_bytes):
    """How many an SM holds at once at most; registers may let it hold fewer."""
    return occupancy(threads, None, shared_bytes, LIMITS[HOPPER]).blocks


class NotGrown(ValueError):
    """A program that does not run side by side; the text says why."""


def grown(work, copies=None):
    """A Work ``copies`` times side by side, each on its own copy of its arrays: as many as fill all SMs."""
    grid = shape_of("grid", work.grid)
    if grid[2] > 1:
        raise NotGrown("its grid has three dimensions")
    if copies is None:
        held = SMS * blocks_of_an_sm(work.kernel.threads, work.shared_bytes)
        copies = math.ceil(WAVES * held / work.blocks)
    memory = _Copies(copies)
    pairs = list(zip(work.kernel.signature.args, work.args, strict=True))
    outputs = [replace(o, array=memory.of(o.array), expected=o.expected[None]) for o in work.outputs]
    args = [memory.argument(arg) for arg in work.args]
    kernel = _side_by_side(work.kernel, [memory.step(*pair) for pair in pairs])
    return replace(work, kernel=kernel, grid=(*grid[:2], copies), args=args, outputs=outputs, copies=copies)


class _Copies:
    """Copies of the memory behind a kernel's arrays, one beside the other; views of it stay views."""

    def __init__(self, count):
        self.count, self._whole = count, {}

    def of(self, array):
        """An array of all copies of this one; the first axis is their number."""
        whole, start = self._copied(array)
        offset = array.__array_interface__["data"][0] - start
        shape, strides = (self.count, *array.shape), (whole.shape[1], *array.strides)
        return np.ndarray(shape, array.dtype, whole, offset, strides)

    def _copied(self, array):
        """(the copies as bytes, one in a line; the address of the original)"""
        start, content = bytes_of(owner_of(array))
        if start not in self._whole:
            line = -(-max(content.size, 1) // UNIT) * UNIT
            memory = mmap.mmap(-1, self.count * line)  # which begins at a page: as aligned as a GPU's memory
            whole = np.frombuffer(memory, np.uint8).reshape(self.count, line)
            whole[:, : content.size] = content
            self._whole[start] = whole, array
        return self._whole[start][0], start

    def argument(self, arg):
        """What stands for an argument of the original."""
        if isinstance(arg, TensorMapArray):
            if any(m.array is None for m in arg):
                raise NotGrown("a tensor map is of no array")
            pairs = [(m, self.of(m.array)) for m in arg]
            return TensorMapArray(replace(m, address=each[i]) for i in range(self.count) for m, each in pairs)
        return self.of(arg) if isinstance(arg, np.ndarray) else arg

    def step(self, kind, arg):
        """(the parameter's type, how the kernel comes from it to the argument of its copy)"""
        if isinstance(arg, TensorMapArray):
            return kind, f"{{}} + uint64({MAP_BYTES * len(arg)}) * uint64(__copy)"
        if not isinstance(arg, np.ndarray):
            if not isinstance(arg, (bool, int, float, np.number, np.bool_)):
                raise NotGrown(f"it has an argument of type {type(arg).__name__}")
            return kind, "{}"
        line = self.of(arg).strides[0]
        if not isinstance(kind, types.Array):
            return kind, f"{{}} + uint64({line}) * uint64(__copy)"
        layout = kind.layout if kind.layout == "C" and line == arg.nbytes else "A"
        more = {"readonly": not kind.mutable, "aligned": kind.aligned}
        return types.Array(kind.dtype, kind.ndim + 1, layout, **more), "{}[__copy]"


def _side_by_side(kernel, steps):
    """The kernel that runs another on the arrays of copy number blockIdx.z."""
    names = kernel.parameters
    taken = ", ".join(step.format(name) for name, (_, step) in zip(names, steps, strict=True))
    text = f"def {kernel.name}({', '.join(names)}):\n    __copy = cuda.blockIdx.z\n    __original({taken})\n"
    file = f"<side by side: {kernel.name}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    scope = {"cuda": cuda, "uint64": uint64, "__original": nd.function(kernel.py_func)}
    exec(compile(text, file, "exec"), scope)
    signature = types.void(*(kind for kind, _ in steps))
    return replace(kernel, py_func=scope[kernel.name], signature=signature)
