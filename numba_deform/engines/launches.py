"""A launch with all that belongs to it: a kernel, its grid, its arguments, and what it has to leave behind.

Both engines take a :class:`Launch` in place of a kernel and its arguments, and compare afterwards."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..compiler import Kernel
from ..compiler.build import intrinsics_of
from ..device.limits import AMPERE, BLACKWELL, HOPPER
from . import argument_types
from .faults import WrongResult
from .tensormap import TensorMapArray
from .wrong_places import difference

NEEDS_HOPPER = re.compile(
    r"bulk|mbarrier|cluster|proxy|tensormap|wgmma|setmaxnreg|griddepcontrol|stmatrix|elect|e4m3|e5m2|tcgen05"
    r"|(add|mul)[.:\w]*bf16|(atom|red)[.:\w]*\.v[248]"
)
SMALLEST = np.finfo(np.float64).tiny  # a difference that float64 does not show is one too
PATTERN = 0xA5  # the bytes of an integer output that nothing has written; those of a float are NaN


class History(NamedTuple):
    """What a program did to its memory before a launch, in words for reports."""

    ends: dict = {}  # noqa: RUF012 (address: who has written up to there, and no further)
    freed: tuple | None = None  # (start, stop, what was there); None where a launch does not know all memory


class Launchable:
    """What a launch asks of a kernel that is no ``compiler.Kernel``, and what it has where it says nothing.
    ``plain`` is its Python function on the CPU engine. ``held`` are (name, value, array) of the arrays that its
    names hold, ``unset`` (start, stop) of bytes that hold garbage, ``language`` is what cures are to speak;
    ``by_bytes``: whether a Report says which bytes were ``touched``; ``history``: that of the memory;
    ``cubin``: machine code to take."""

    signature = shared = cluster = cubin = None
    threads = min_blocks = max_registers = shared_bytes = 0
    whole_program = is_empty = False
    block, held, unset, language, by_bytes = (), (), (), "", False
    shared_alignment, history = 16, History()  # the first of dynamic shared memory


@dataclass(eq=False)
class Launch:
    """A kernel with all that a run of it takes, and what the run must leave.

    kernel      made by ``nd.kernel``, or from PTX; its block size and shared memory are its own
    grid        blocks: a number, or a tuple of up to three, x first
    args        a list in the order of the kernel's parameters, or a dict by their names: numbers, NumPy arrays
                and TensorMapArrays
    expected    {parameter: array}: the *outputs*, and what they hold after a right run. Before every run they
                are filled with NaN (integers: with a pattern), so that what is not written shows. The
                parameter is an array, or a TensorMapArray of one map, which stands for the array behind it
    tolerance   how far an output may be off, relative to its largest expected value. Left out: not at all for
                integers; for floats 64 times the rounding step of the type, of 16-bit types twice
    initial     {parameter: number or array}: what an output holds before a run instead, for kernels that add
    cluster     blocks of a cluster, in the shape of ``grid``
    bytes       what a run moves through global memory, for GB/s in ``bench``; None: not told
    flops       what it computes, for TFLOP/s
    capability  of the oldest GPU that runs it, such as (9, 0). Left out: (10, 0) if the kernel has tcgen05,
                (9, 0) if an instruction of Hopper's (TMA, mbarrier, clusters, wgmma, ..), else (8, 0)

    All other arrays are put back before a run to what they held when the Launch was made. Raises ValueError for
    arguments that do not fit the kernel.
    """

    kernel: Kernel
    grid: object
    args: object
    expected: dict = field(default_factory=dict)
    tolerance: float | None = None
    initial: dict = field(default_factory=dict)
    cluster: object = None
    bytes: int | None = None
    flops: int | None = None
    capability: tuple | None = None
    origin = None
    """(the pipeline that made it, the parameters that it was called with)"""

    def __post_init__(self):
        if not isinstance(self.kernel, (Kernel, Launchable)):
            raise ValueError(f"kernel={self.kernel!r} must be made by @nd.kernel(threads=...)")
        self.args = _in_order(self.kernel, self.args)
        by_name = dict(zip(self.kernel.parameters, self.args, strict=True))
        if isinstance(self.kernel, Kernel):
            for name, arg, kind in zip(by_name, self.args, self.kernel.signature.args, strict=True):
                argument_types.check(name, arg, kind)
        for name in (*self.expected, *self.initial):
            if name not in by_name:
                raise ValueError(f"expected names {name}, and {self.kernel.name} has the parameters "
                                 f"{', '.join(by_name)}")  # fmt: skip
        for name in self.initial:
            if name not in self.expected:
                raise ValueError(f"initial={{{name!r}: ..}} is no output: expected does not name it")
        self.outputs = {name: _output(name, by_name[name]) for name in self.expected}
        self.expected = {name: _fitting(name, self.outputs[name], e) for name, e in self.expected.items()}
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"tolerance={self.tolerance} must be a number of at least 0")
        outputs = {id(array) for array in self.outputs.values()}
        self._before = [(a, a.copy()) for a in _arrays(self.args) if a.flags.writeable and id(a) not in outputs]
        if self.capability is None:
            oldest = oldest_gpu(self.kernel) if isinstance(self.kernel, Kernel) else HOPPER  # of PTX
            self.capability = max(oldest, HOPPER) if self.cluster else oldest

    @property
    def title(self):
        """Its name: ``copy stages=4``."""
        pipeline, parameters = self.origin or (self.kernel, {})
        return " ".join([pipeline.name, *(f"{name}={value}" for name, value in parameters.items())])

    @property
    def shared_bytes(self):
        """The dynamic shared memory of a block."""
        return self.kernel.shared_bytes

    @cached_property
    def arrays(self):
        """All arrays among the arguments, those behind tensor maps too, each once."""
        return _arrays(self.args)

    def prepare(self):
        """Make ready for a run: outputs poisoned, or as ``initial`` says, everything else as it was."""
        for array, before in self._before:
            array[...] = before
        for name, out in self.outputs.items():
            if name in self.initial:
                out[...] = self.initial[name]
            elif out.dtype == bool:
                out[...] = ~self.expected[name]
            else:
                byte = PATTERN if out.dtype.kind in "iu" else 0xFF
                out[...] = np.frombuffer(bytes([byte]) * out.itemsize, out.dtype)[0]

    def errors(self):
        """{output: largest difference from what was expected, relative to the largest expected value}; NaN
        where an element of floats was not written."""
        return {name: float(self._off(name).max(initial=0)) for name in self.outputs}

    def allowed(self, name):
        """The tolerance of an output."""
        if self.tolerance is not None:
            return float(self.tolerance)
        dtype = self.outputs[name].dtype
        if dtype.kind in "iub":
            return 0.0
        return float((2 if dtype.itemsize == 2 else 64) * ml_dtypes.finfo(dtype).eps)

    def wrong(self):
        """What is not as expected, in words; nothing where all is right."""
        errors = self.errors()
        return "; ".join(self._told(name) for name in errors if not errors[name] <= self.allowed(name))

    def check(self, writer_of=None):
        """Raise WrongResult unless all outputs are as expected. ``writer_of(address)`` is (block, thread, line)
        of the last write to a byte, or None, where the engine knows it."""
        if wrong := self.wrong():
            raise WrongResult(wrong, self.differences(writer_of))

    def differences(self, writer_of=None):
        """What is wrong with each output that is not as expected: a list of ``wrong_places.Difference``."""
        found = []
        for name in self.outputs:
            wrong = ~(self._off(name) <= self.allowed(name))
            if wrong.any():
                found.append(difference(self, name, wrong, wrong & self._poisoned(name), writer_of))
        return found

    def _off(self, name):
        """How far each element of an output is from what was expected: 0 where it is the same."""
        out, expected = self.outputs[name], self.expected[name]
        got, right = out.astype(np.float64), expected.astype(np.float64)
        scale = np.abs(right[np.isfinite(right)]).max(initial=0) or 1.0
        with np.errstate(invalid="ignore"):
            same = (out == expected) | np.isnan(got) & np.isnan(right)
            off = np.maximum(np.abs(got - right) / scale, SMALLEST)
        return np.where(same, 0.0, off)

    def _told(self, name):
        """How one output differs: how many elements, and the first of them."""
        out, expected = self.outputs[name], self.expected[name]
        places = np.argwhere(~(self._off(name) <= self.allowed(name)))
        first = tuple(map(int, places[0]))
        where = f"{name}[{', '.join(map(str, first))}]" if first else name
        count = np.count_nonzero(self._poisoned(name))
        return (f"{len(places):,} of {out.size:,} elements of {name} are wrong; the first is {where}: "
                f"{out[first]} instead of {expected[first]}"
                + f"; {count:,} still hold what they were poisoned with" * bool(count))  # fmt: skip

    def _poisoned(self, name):
        """Flags: the elements of an output that hold what nobody has written, and should not."""
        out, expected = self.outputs[name], self.expected[name]
        if name in self.initial or out.dtype == bool:
            return np.zeros(out.shape, bool)
        if out.dtype.kind in "iu":
            poison = np.frombuffer(bytes([PATTERN]) * out.itemsize, out.dtype)[0]
            return (out == poison) & (expected != poison)
        bits = np.full(out.itemsize, 0xFF, np.uint8).view(f"u{out.itemsize}")[0]
        return (out.view(bits.dtype) == bits) & ~np.isnan(expected.astype(np.float64))


def _in_order(kernel, args):
    """The arguments as a list, from a list or from a dict by name."""
    names = kernel.parameters
    if isinstance(args, dict):
        missing, more = [n for n in names if n not in args], [n for n in args if n not in names]
        if missing or more:
            what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(more)}, which is no parameter"
            raise ValueError(f"args {what}: {kernel.name} has the parameters {', '.join(names)}")
        return [args[name] for name in names]
    if len(args) != len(names):
        raise ValueError(f"{kernel.name} takes {len(names)} arguments ({', '.join(names)}), "
                         f"{len(args)} were given")  # fmt: skip
    return list(args)


def _output(name, arg):
    """The array that an output's argument is, or stands for."""
    array = arg
    if isinstance(arg, TensorMapArray):
        if len(arg) != 1 or arg[0].array is None:
            raise ValueError(f"expected names {name}, of {len(arg)} maps: an output has one, of an array")
        array = arg[0].array
    if not isinstance(array, np.ndarray):
        raise ValueError(f"expected names {name}, which is a {type(arg).__name__} and no array")
    if array.dtype.names or array.dtype.kind == "c":
        raise ValueError(f"output {name} is of {array.dtype}; integers, floats and flags can be compared")
    if not array.flags.writeable:
        raise ValueError(f"output {name} is read-only: it is poisoned before every run")
    return array


def _fitting(name, out, expected):
    """A copy of what ``out`` is expected to hold; it has its shape."""
    expected = np.array(expected)
    if expected.shape != out.shape:
        raise ValueError(f"expected[{name!r}] has the shape {expected.shape}, and the argument {out.shape}")
    return expected


def _arrays(args):
    """The arrays among arguments and behind their tensor maps, each once."""
    found = {}
    for arg in args:
        parts = arg if isinstance(arg, tuple) else (arg,)
        for part in parts:
            inner = [m.array for m in part] if isinstance(part, TensorMapArray) else [part]
            found |= {id(a): a for a in inner if isinstance(a, np.ndarray)}
    return list(found.values())


def oldest_gpu(kernel):
    """The compute capability of the oldest GPU that has all that a kernel and its device functions call."""
    text = " ".join(s for one in intrinsics_of(kernel) for s in one.ptx.statements)
    return BLACKWELL if "tcgen05." in text else HOPPER if NEEDS_HOPPER.search(text) else AMPERE
