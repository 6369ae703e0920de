"""Tensor maps: what one TMA instruction copies, checked before the driver sees it.

A *tensor map* is 128 opaque bytes that tell the Tensor Memory Accelerator where a tensor of rank 1
to 5 lies in global memory and how large a *box* one instruction moves into shared memory. The
driver encodes it (``cuTensorMapEncodeTiled``) and answers every mistake with the same
``CUDA_ERROR_INVALID_VALUE``. Here each of its requirements is one small rule with a name, so that a
mistake says which argument broke which rule and how to mend it.

Conventions, the same everywhere in this file:

- Dimensions are listed innermost first: an array of shape (H, W, C) has ``dims == (C, W, H)``, and
  a box corner is given as (c, x, y).
- ``dims``, ``box`` and ``element_strides`` count elements; ``strides`` are bytes, one for each
  dimension but the innermost, whose elements must be dense.

Sources: PTX ISA section 5.5 (tensors: boxes, out-of-bound elements, swizzle); CUDA driver API,
``cuTensorMapEncodeTiled``. ``bench/tensormap_rules.py`` compares the rules with a real driver.

The packed sub-byte element types (16 x 4 bit and 16 x 6 bit) and the swizzle modes with 32- and
64-byte atoms are left out: they belong to later architectures, and no kernel here uses them.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

MAP_BYTES = 128  # size of one encoded tensor map
MAP_ALIGNMENT = 128  # what TensorMapArray gives; the driver asks for 64


# ---------------------------------------------------------------------------------------------
# Errors


class TensorMapError(ValueError):
    """A tensor map, a box or a level breaks a rule.

    Attributes: ``rule`` (its name), ``given`` and ``required`` (texts, as in the message).
    """

    def __init__(self, message: str, rule: str, given: str = "", required: str = ""):
        super().__init__(message)
        self.rule = rule
        self.given = given
        self.required = required


class DriverMissing(RuntimeError):
    """There is no CUDA driver (or no cuda-python) to encode a tensor map with."""


class Broken(NamedTuple):
    """What a rule found wrong: the argument, its value, the value required, a way to mend it."""

    argument: str
    given: str
    required: str
    hint: str = ""


def _error(rule: str, broken: Broken) -> TensorMapError:
    """Put a broken rule into words."""
    text = f"tensor map rule '{rule}': {broken.argument} is {broken.given}, "
    text += f"but must be {broken.required}"
    if broken.hint:
        text += f"; {broken.hint}"
    return TensorMapError(text, rule, broken.given, broken.required)


# ---------------------------------------------------------------------------------------------
# Names of element types and options, and what the driver calls them


@dataclass(frozen=True)
class ElementType:
    """One element type of a tensor map. ``itemsize`` in bytes.

    ``converts`` marks the types for which the copy changes bits on its way (denormals flushed,
    mantissa rounded to TF32); the others move unchanged.
    """

    name: str
    itemsize: int
    floating: bool = False
    converts: bool = False

    @property
    def driver_name(self) -> str:
        """The enumerator of CUtensorMapDataType."""
        return f"CU_TENSOR_MAP_DATA_TYPE_{self.name.upper()}"


ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("uint8", 1),
        ElementType("uint16", 2),
        ElementType("uint32", 4),
        ElementType("int32", 4),
        ElementType("uint64", 8),
        ElementType("int64", 8),
        ElementType("float16", 2, floating=True),
        ElementType("float32", 4, floating=True),
        ElementType("float64", 8, floating=True),
        ElementType("bfloat16", 2, floating=True),
        ElementType("float32_ftz", 4, floating=True, converts=True),
        ElementType("tfloat32", 4, floating=True, converts=True),
        ElementType("tfloat32_ftz", 4, floating=True, converts=True),
    )
}

INTERLEAVES = {
    "none": "CU_TENSOR_MAP_INTERLEAVE_NONE",
    "16B": "CU_TENSOR_MAP_INTERLEAVE_16B",
    "32B": "CU_TENSOR_MAP_INTERLEAVE_32B",
}
SWIZZLES = {
    "none": "CU_TENSOR_MAP_SWIZZLE_NONE",
    "32B": "CU_TENSOR_MAP_SWIZZLE_32B",
    "64B": "CU_TENSOR_MAP_SWIZZLE_64B",
    "128B": "CU_TENSOR_MAP_SWIZZLE_128B",
}
L2_PROMOTIONS = {
    "none": "CU_TENSOR_MAP_L2_PROMOTION_NONE",
    "64B": "CU_TENSOR_MAP_L2_PROMOTION_L2_64B",
    "128B": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
    "256B": "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
}
FILLS = {
    "zero": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    "nan": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
}
SWIZZLE_SPANS = {"32B": 32, "64B": 64, "128B": 128}  # bytes of the widest box row each allows

# Conventional names of the dimensions, innermost first, for each rank (channels last).
DIMENSION_NAMES = {1: "C", 2: "CW", 3: "CWH", 4: "CWHN", 5: "CWHDN"}

# Every 16 bits of an element that the NaN fill wrote. The manuals only call it a special NaN; this
# pattern is what GPUs were seen to deliver.
_NAN_FILL_HALFWORD = 0x7FF7


def element_type(dtype) -> ElementType:
    """The element type for a name ("float16"), a NumPy dtype, or ml_dtypes.bfloat16.

    Raises TensorMapError (rule "element type") for anything a tensor map cannot describe.
    """
    if isinstance(dtype, ElementType):
        return dtype
    if isinstance(dtype, str) and dtype in ELEMENT_TYPES:
        return ELEMENT_TYPES[dtype]
    size, swapped = 0, False
    try:
        as_numpy = np.dtype(dtype)
        name, size, swapped = as_numpy.name, as_numpy.itemsize, not as_numpy.isnative
    except TypeError:
        name = str(dtype)
    name = name.removeprefix("torch.")
    if name in ELEMENT_TYPES and not swapped:
        return ELEMENT_TYPES[name]
    hint = ""
    if swapped:
        hint = "convert the array to the machine's byte order"
    elif size in (1, 2, 4, 8):
        hint = f"view the data as 'uint{8 * size}': the bits move unchanged"
    given = f"{name} (byte-swapped)" if swapped else name
    raise _error("element type", Broken("dtype", given, "one of " + ", ".join(ELEMENT_TYPES), hint))


def _choice(argument: str, value: str, table: dict) -> str:
    if value not in table:
        names = ", ".join(repr(name) for name in table)
        raise _error("option name", Broken(argument, repr(value), f"one of {names}"))
    return value


def _integers(argument: str, values: Iterable) -> tuple[int, ...]:
    result = []
    for i, value in enumerate(values):
        try:
            result.append(operator.index(value))
        except TypeError:
            broken = Broken(f"{argument}[{i}]", repr(value), "an integer")
            raise _error("integers", broken) from None
    return tuple(result)


# ---------------------------------------------------------------------------------------------
# The rules


@dataclass(frozen=True)
class Rule:
    """One requirement of cuTensorMapEncodeTiled: a name, a sentence, and the check.

    ``check(tensor_map)`` returns None, or a Broken that says what is wrong.
    """

    name: str
    text: str
    check: Callable[[TensorMap], Broken | None]


RULES: list[Rule] = []  # in the order they are checked


def _rule(name: str):
    """Add a function to RULES under this name; its docstring becomes the rule's sentence."""

    def register(check):
        RULES.append(Rule(name, check.__doc__, check))
        return check

    return register


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@_rule("rank")
def _rank(m):
    """A map has 1 to 5 dimensions."""
    if not 1 <= m.rank <= 5:
        hint = "merge dimensions that are dense in memory" if m.rank > 5 else ""
        return Broken("rank, the number of dims,", str(m.rank), "1 to 5", hint)


@_rule("rank, interleaved")
def _rank_interleaved(m):
    """An interleaved map has at least 3 dimensions."""
    if m.interleave != "none" and m.rank < 3:
        hint = "add dimensions of size 1, or use interleave 'none'"
        return Broken("rank, the number of dims,", str(m.rank), "3 to 5 when interleaved", hint)


@_rule("argument counts")
def _argument_counts(m):
    """The box and the element strides have one entry per dimension, the strides one less."""
    if len(m.strides) != m.rank - 1:
        hint = "the innermost dimension is dense and has no entry"
        return Broken("len(strides)", str(len(m.strides)), f"{m.rank - 1} for {m.rank} dims", hint)
    for name in ("box", "element_strides"):
        count = len(getattr(m, name))
        if count != m.rank:
            return Broken(f"len({name})", str(count), f"{m.rank}, one for each of the dims")


def _base(m, step, when=""):
    off = m.address % step
    if off:
        hint = f"it lies {off} bytes past such an address: start there, or copy the data"
        return Broken(
            "the base address", f"{m.address:#x}", f"a multiple of {step} bytes{when}", hint
        )


@_rule("base alignment")
def _base_alignment(m):
    """The base address is a multiple of 16 bytes."""
    return _base(m, 16)


@_rule("base alignment, interleave 32B")
def _base_alignment_32(m):
    """With interleave 32B the base address is a multiple of 32 bytes."""
    if m.interleave == "32B":
        return _base(m, 32, " with interleave 32B")


@_rule("dim range")
def _dim_range(m):
    """Every dimension has 1 to 2^32 elements."""
    for i, dim in enumerate(m.dims):
        if not 1 <= dim <= 2**32:
            hint = "nothing can be copied from an empty tensor" if dim == 0 else ""
            return Broken(f"dims[{i}]", str(dim), "1 to 2^32 = 4294967296 elements", hint)


def _stride(m, step, when=""):
    for i, stride in enumerate(m.strides):
        if stride % step:
            mended = _round_up(stride, step)
            hint = f"pad dimension {i} in memory so that the next one starts {mended} bytes on"
            return Broken(
                f"strides[{i}] (of dimension {i + 1})",
                f"{stride} bytes",
                f"a multiple of {step} bytes{when}",
                hint,
            )


@_rule("stride multiple")
def _stride_multiple(m):
    """Every stride is a multiple of 16 bytes."""
    return _stride(m, 16)


@_rule("stride multiple, interleave 32B")
def _stride_multiple_32(m):
    """With interleave 32B every stride is a multiple of 32 bytes."""
    if m.interleave == "32B":
        return _stride(m, 32, " with interleave 32B")


@_rule("stride range")
def _stride_range(m):
    """Every stride is at least 0 and less than 2^40 bytes."""
    for i, stride in enumerate(m.strides):
        if not 0 <= stride < 2**40:
            hint = "a flipped dimension has to be copied first" if stride < 0 else ""
            argument = f"strides[{i}] (of dimension {i + 1})"
            return Broken(argument, f"{stride} bytes", "0 to 2^40 - 1 bytes", hint)


@_rule("box range")
def _box_range(m):
    """The box has 1 to 256 elements along every dimension."""
    for i, size in enumerate(m.box):
        if not 1 <= size <= 256:
            hint = "copy a larger region with several boxes" if size > 256 else ""
            return Broken(f"box[{i}]", str(size), "1 to 256 elements", hint)


@_rule("box row multiple")
def _box_row_multiple(m):
    """Without interleave one row of the box, box[0] * itemsize, is a multiple of 16 bytes."""
    row = m.box[0] * m.itemsize
    if m.interleave == "none" and row % 16:
        argument = "the box row, box[0] * itemsize,"
        mended = _round_up(row, 16) // m.itemsize
        hint = f"choose box[0] = {mended}, the next that fits"
        given = f"{m.box[0]} * {m.itemsize} = {row} bytes"
        return Broken(argument, given, "a multiple of 16 bytes", hint)


@_rule("element stride range")
def _element_stride_range(m):
    """Every element stride is 1 to 8."""
    for i, step in enumerate(m.element_strides):
        if not 1 <= step <= 8:
            return Broken(f"element_strides[{i}]", str(step), "1 to 8")


@_rule("swizzle span")
def _swizzle_span(m):
    """Without interleave one row of the box fits the swizzle: 32, 64 or 128 bytes."""
    span = SWIZZLE_SPANS.get(m.swizzle)
    row = m.box[0] * m.itemsize
    if m.interleave == "none" and span and row > span:
        argument = "the box row, box[0] * itemsize,"
        wider = [name for name, bytes_ in SWIZZLE_SPANS.items() if bytes_ >= row] + ["none"]
        hint = f"choose box[0] <= {span // m.itemsize}, or swizzle {wider[0]!r}"
        given = f"{m.box[0]} * {m.itemsize} = {row} bytes"
        return Broken(argument, given, f"at most {span} bytes with swizzle {m.swizzle}", hint)


@_rule("swizzle of interleave 32B")
def _swizzle_of_interleave_32(m):
    """Interleave 32B goes with swizzle 32B only."""
    if m.interleave == "32B" and m.swizzle != "32B":
        return Broken("swizzle", repr(m.swizzle), "'32B' with interleave 32B")


@_rule("NaN fill")
def _nan_fill(m):
    """Only floating-point elements can be filled with NaN."""
    if m.fill == "nan" and not m.element.floating:
        hint = "use fill='zero'"
        return Broken("fill", f"'nan' for {m.dtype}", "'zero' unless dtype is floating", hint)


@_rule("map alignment")
def _map_alignment(m):
    """The encoded map itself lies at a multiple of 64 bytes."""
    return _map_place(m.map_address)


def _map_place(address):
    if address % 64:
        argument = "the address of the encoded map"
        hint = "TensorMapArray aligns its maps"
        return Broken(argument, f"{address:#x}", "a multiple of 64 bytes", hint)


def check_map_address(address: int) -> None:
    """Raise TensorMapError unless 128 encoded bytes may lie at this address (64-byte aligned)."""
    if broken := _map_place(address):
        raise _error("map alignment", broken)


def check_rules(m: TensorMap) -> None:
    """Raise TensorMapError for the first rule that this map breaks."""
    for rule in RULES:
        if broken := rule.check(m):
            raise _error(rule.name, broken)


# ---------------------------------------------------------------------------------------------
# One tensor map


def _address_of(source) -> tuple[int, np.ndarray | None]:
    """The address of an int, a NumPy array or a device array, and the array if it is NumPy's."""
    if isinstance(source, np.ndarray):
        return source.__array_interface__["data"][0], source
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is not None:
        return interface["data"][0], None
    try:
        return operator.index(source), None
    except TypeError:
        broken = Broken(
            "the base address",
            f"a {type(source).__name__}",
            "an int, a NumPy array or an object with __cuda_array_interface__",
        )
        raise _error("base type", broken) from None


class _Memory:
    """Raw memory of a map over a NumPy array, shaped for numpy.asarray; keeps the array alive."""

    def __init__(self, m: TensorMap):
        self.array = m.array
        self.__array_interface__ = {
            "version": 3,
            "data": (m.address, not m.array.flags.writeable),
            "shape": m.dims[::-1],
            "strides": (*m.strides[::-1], m.itemsize),
            "typestr": f"|u{m.itemsize}" if m.itemsize == 1 else f"<u{m.itemsize}",
        }


@dataclass(frozen=True, init=False, repr=False)
class TensorMap:
    """One tiled tensor map of rank 1 to 5, frozen. All lists are innermost dimension first.

    TensorMap(address, dtype, dims, strides, box, ...)

    address          device address (int), device array (__cuda_array_interface__), or a NumPy
                     array for the CPU engine. The caller keeps device memory alive.
    dtype            element type: a name of ELEMENT_TYPES or a NumPy dtype
    dims             elements of the tensor along each dimension
    strides          bytes from one element to the next along dimensions 1..rank-1
    box              elements that one instruction spans along each dimension
    element_strides  take every n-th element of the span; default 1 along every dimension. Along
                     dimension 0 it is ignored unless the map is interleaved.
    interleave       "none", "16B", "32B"
    swizzle          "none", "32B", "64B", "128B": how the box is permuted in shared memory
    l2_promotion     "none", "64B", "128B", "256B": how much L2 fetches at once (speed only)
    fill             "zero" or "nan": what elements outside the tensor read as
    names            names of the dimensions, for printing
    map_address      where the encoded map will lie, if that is known already; only checked

    ``array`` is the NumPy array, or None. Raises TensorMapError for the first broken rule, or when
    the map reaches past the end of the NumPy array.

    Source: PTX ISA 5.5; CUDA driver API, cuTensorMapEncodeTiled.
    """

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: str
    swizzle: str
    l2_promotion: str
    fill: str
    names: tuple[str, ...] = field(compare=False)
    map_address: int = field(compare=False)
    array: np.ndarray | None = field(compare=False)

    def __init__(
        self,
        address,
        dtype,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        *,
        element_strides: Sequence[int] | None = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        fill: str = "zero",
        names: Sequence[str] | None = None,
        map_address: int = 0,
        _check: bool = True,
    ):
        dims = _integers("dims", dims)
        if element_strides is None:
            element_strides = (1,) * len(dims)
        address, array = _address_of(address)
        values = {
            "address": address,
            "dtype": element_type(dtype).name,
            "dims": dims,
            "strides": _integers("strides", strides),
            "box": _integers("box", box),
            "element_strides": _integers("element_strides", element_strides),
            "interleave": _choice("interleave", interleave, INTERLEAVES),
            "swizzle": _choice("swizzle", swizzle, SWIZZLES),
            "l2_promotion": _choice("l2_promotion", l2_promotion, L2_PROMOTIONS),
            "fill": _choice("fill", fill, FILLS),
            "names": tuple(names or DIMENSION_NAMES.get(len(dims), ())),
            "map_address": map_address,
            "array": array,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the only place where a frozen map is written
        if _check:
            check_rules(self)
            self._check_array()

    @classmethod
    def _unchecked(cls, *arguments, **options) -> TensorMap:
        """The same map with no rule checked: to ask the driver what it says about a bad one."""
        return cls(*arguments, **options, _check=False)

    @classmethod
    def of(cls, array, box: Sequence[int], *, dtype=None, **options) -> TensorMap:
        """The map of a whole array: dims and strides are its shape and strides, reversed.

        array    NumPy array or object with __cuda_array_interface__, shape outermost first
        box      elements, innermost first
        dtype    overrides the array's element type, e.g. for a uint16 array of bfloat16 bits
        options  as for TensorMap

        Raises TensorMapError if the elements of the last axis are not next to each other, or for
        any broken rule.
        """
        if isinstance(array, np.ndarray):
            shape, strides, found = array.shape, array.strides, array.dtype
        elif hasattr(array, "__cuda_array_interface__"):
            interface = array.__cuda_array_interface__
            shape, found = interface["shape"], np.dtype(interface["typestr"])
            strides = interface.get("strides")
            if strides is None:  # the interface's way of saying C-contiguous
                strides = tuple(
                    prod(shape[axis + 1 :]) * found.itemsize for axis in range(len(shape))
                )
        else:
            broken = Broken(
                "the array",
                f"a {type(array).__name__}",
                "a NumPy array or an object with __cuda_array_interface__",
                "give address, dims and strides to TensorMap itself",
            )
            raise _error("base type", broken)
        element = element_type(found if dtype is None else dtype)
        if element.itemsize != found.itemsize:
            broken = Broken(
                "dtype",
                f"{element.name} ({element.itemsize} bytes)",
                f"a type as large as the array's elements ({found.itemsize} bytes)",
            )
            raise _error("element type", broken)
        if shape and shape[-1] > 1 and strides[-1] != element.itemsize:
            broken = Broken(
                f"the stride of the last axis of an array of shape {tuple(shape)}",
                f"{strides[-1]} bytes",
                f"{element.itemsize} bytes, the size of one element",
                "a tensor map has no stride for the innermost dimension: "
                "reorder the axes or make the array contiguous",
            )
            raise _error("innermost dimension dense", broken)
        return cls(array, element, shape[::-1], strides[:-1][::-1], box, **options)

    def _check_array(self) -> None:
        """Raise TensorMapError if the map reaches outside the memory of its NumPy array."""
        if self.array is None:
            return
        steps = zip(self.array.shape, self.array.strides, strict=True)
        reach = [(size - 1) * step for size, step in steps]
        if min(reach, default=0) < 0:
            broken = Broken("a stride of the array", "negative", "positive", "copy the array")
            raise _error("inside the array", broken)
        available = sum(reach) + self.array.itemsize if self.array.size else 0
        if self.extent > available:
            broken = Broken(
                "the end of the map",
                f"{self.extent} bytes past its base",
                f"within the array's {available} bytes",
                "check dims and strides (bytes, not elements)",
            )
            raise _error("inside the array", broken)

    # What follows from the arguments

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def element(self) -> ElementType:
        """The element type with its properties."""
        return ELEMENT_TYPES[self.dtype]

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.element.itemsize

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Distance in elements between neighbours of the box, as the hardware applies it."""
        if self.interleave == "none":
            return (1, *self.element_strides[1:])  # the innermost element stride is ignored
        return self.element_strides

    @cached_property
    def box_shape(self) -> tuple[int, ...]:
        """Elements of the box in shared memory, innermost first: ceil(box / element stride)."""
        return tuple(-(-size // step) for size, step in zip(self.box, self.steps, strict=True))

    @cached_property
    def box_bytes(self) -> int:
        """Bytes one load writes and adds to its barrier's tx-count, outside elements included."""
        return prod(self.box_shape) * self.itemsize

    @property
    def extent(self) -> int:
        """Bytes from the base to the end of the tensor's last element."""
        outer = zip(self.dims[1:], self.strides, strict=True)
        return self.dims[0] * self.itemsize + sum((dim - 1) * stride for dim, stride in outer)

    # Encoding

    def driver_arguments(self) -> dict:
        """Every argument of cuTensorMapEncodeTiled by its name there, as plain Python values."""
        return {
            "tensorDataType": self.element.driver_name,
            "tensorRank": self.rank,
            "globalAddress": self.address,
            "globalDim": list(self.dims),
            # For rank 1 the driver reads no stride, but wants an array to point to.
            "globalStrides": list(self.strides) or [16],
            "boxDim": list(self.box),
            "elementStrides": list(self.element_strides),
            "interleave": INTERLEAVES[self.interleave],
            "swizzle": SWIZZLES[self.swizzle],
            "l2Promotion": L2_PROMOTIONS[self.l2_promotion],
            "oobFill": FILLS[self.fill],
        }

    def _ask_driver(self) -> tuple[str, bytes]:
        """What the driver says (name of the CUresult) and the 128 bytes it wrote."""
        driver = _driver()
        u64, u32 = driver.cuuint64_t, driver.cuuint32_t
        a = self.driver_arguments()
        status, encoded = driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, a["tensorDataType"]),
            a["tensorRank"],
            a["globalAddress"],
            [u64(value) for value in a["globalDim"]],
            [u64(value) for value in a["globalStrides"]],
            [u32(value) for value in a["boxDim"]],
            [u32(value) for value in a["elementStrides"]],
            getattr(driver.CUtensorMapInterleave, a["interleave"]),
            getattr(driver.CUtensorMapSwizzle, a["swizzle"]),
            getattr(driver.CUtensorMapL2promotion, a["l2Promotion"]),
            getattr(driver.CUtensorMapFloatOOBfill, a["oobFill"]),
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            return status.name, b""
        return status.name, ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)

    def encode(self) -> bytes:
        """The 128 bytes of the encoded map, for the device of the current context.

        Raises DriverMissing without a driver, and TensorMapError (rule "driver") if the driver
        refuses a map that passes every rule.
        """
        status, encoded = self._ask_driver()
        if status != "CUDA_SUCCESS":
            lines = [
                f"  {name} = {_show(value, name)}"
                for name, value in self.driver_arguments().items()
            ]
            text = f"cuTensorMapEncodeTiled answered {status}, though every known rule holds; "
            text += "tensor maps need a GPU of compute capability 9.0 or higher. Arguments:\n"
            raise TensorMapError(text + "\n".join(lines), "driver", status, "CUDA_SUCCESS")
        return encoded

    # Copying boxes on the CPU

    @cached_property
    def _view(self) -> np.ndarray:
        """The tensor's elements as unsigned integers, shape and order of the NumPy world."""
        if self.array is None:
            raise ValueError(
                f"this map's base is the device address {self.address:#x}; "
                "only a map over a NumPy array can be copied on the CPU"
            )
        return np.asarray(_Memory(self))

    @cached_property
    def _word(self) -> np.dtype:
        """Unsigned integer as large as one element: copies move bits, not numbers."""
        return np.dtype(f"u{self.itemsize}")

    @cached_property
    def _fill_word(self) -> int:
        """One element's worth of fill."""
        if self.fill == "zero":
            return 0
        halfwords = _NAN_FILL_HALFWORD.to_bytes(2, "little") * (self.itemsize // 2)
        return int.from_bytes(halfwords, "little")

    @cached_property
    def _axes(self) -> tuple[tuple[int, int, int], ...]:
        """(elements of the tensor, elements of the box, step) per dimension, innermost first."""
        if self.interleave != "none":
            raise NotImplementedError(f"interleave {self.interleave} is not modelled on the CPU")
        if self.element.converts:
            raise NotImplementedError(
                f"{self.dtype} changes bits in flight: not modelled on the CPU"
            )
        return tuple(zip(self.dims, self.box_shape, self.steps, strict=True))

    def _overlap(self, coords: Sequence[int]):
        """Where the box at these coordinates meets the tensor, outermost dimension first.

        Returns (slices of the tensor, slices of the box, whether the whole box is inside), with
        None in place of the slices when they do not meet.
        """
        axes = self._axes
        if len(coords) != len(axes):
            broken = Broken("len(coords)", str(len(coords)), f"{self.rank}, innermost first")
            raise _error("box corner", broken)
        tensor, box, inside = [], [], True
        for start, (dim, count, step) in zip(coords, axes, strict=True):
            start = int(start)  # NumPy's 32-bit integers would overflow below
            if not -(2**31) <= start < 2**31:
                broken = Broken("a coordinate", str(start), "a signed 32-bit integer")
                raise _error("box corner", broken)
            first, stop = 0, count
            if start < 0 or start + (count - 1) * step >= dim:
                inside = False
                if start < 0:
                    first = -(start // step)  # ceil(-start / step)
                stop = min(count, -((start - dim) // step))  # ceil((dim - start) / step)
                if first >= stop:
                    return None, None, False
            tensor.append(slice(start + first * step, start + (stop - 1) * step + 1, step))
            box.append(slice(first, stop))
        return tuple(tensor[::-1]), tuple(box[::-1]), inside

    def load_box(self, coords: Sequence[int], read: Callable | None = None) -> np.ndarray:
        """The bytes that a TMA load at these coordinates delivers, before swizzling.

        coords  corner of the box in elements, innermost first; may be negative or past the end
        read    read(address, nbytes) -> bytes-like; called for each dense run of bytes instead of
                reading the NumPy array, so that the caller can check every access
        Returns a fresh uint8 array of ``box_bytes``, dense, innermost dimension fastest; elements
        outside the tensor are fill.

        Raises TensorMapError for a wrong number of coordinates or one beyond 32 bits, ValueError
        for a map over a device address (without ``read``), NotImplementedError for interleaved
        maps and for element types that change bits in flight.
        """
        tensor, box, inside = self._overlap(coords)
        if inside and read is None:
            return self._view[tensor].copy().reshape(-1).view(np.uint8)
        result = np.zeros(self.box_shape[::-1], dtype=self._word)
        if self._fill_word:
            result[...] = self._fill_word
        if tensor is None:
            pass
        elif read is None:
            result[box] = self._view[tensor]
        else:
            part = result[box]
            for index, address, nbytes in self._runs(tensor):
                part[index] = np.frombuffer(read(address, nbytes), dtype=result.dtype)
        return result.reshape(-1).view(np.uint8)

    def _runs(self, tensor):
        """Each dense run of bytes of a part of the tensor: (outer index, address, bytes)."""
        *outer, inner = tensor
        start = self.address + inner.start * self.itemsize
        nbytes = (inner.stop - inner.start) * self.itemsize
        ranges = [range(part.start, part.stop, part.step) for part in outer]
        for index in product(*(range(len(numbers)) for numbers in ranges)):
            offset = sum(
                numbers[i] * stride
                for numbers, i, stride in zip(ranges, index, self.strides[::-1], strict=True)
            )
            yield index, start + offset, nbytes

    def store_box(self, coords: Sequence[int], data) -> None:
        """Write a box to the NumPy array as a TMA store does; the part outside is dropped.

        coords  corner of the box in elements, innermost first; not negative, may overhang the end
        data    ``box_bytes`` bytes (uint8 array or bytes-like), dense, before swizzling

        Raises TensorMapError for a negative corner or the wrong number of bytes, and otherwise as
        load_box does; ValueError for a read-only array.
        """
        if isinstance(data, np.ndarray):
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            data = np.frombuffer(data, dtype=np.uint8)
        if data.nbytes != self.box_bytes:
            broken = Broken("len(data)", f"{data.nbytes} bytes", f"{self.box_bytes} bytes, one box")
            raise _error("box bytes", broken)
        tensor, box, _ = self._overlap(coords)
        for i, start in enumerate(coords):
            if start < 0:
                broken = Broken(
                    f"coords[{i}] of a store",
                    str(int(start)),
                    "0 or more",
                    "only loads may start before the tensor",
                )
                raise _error("store corner", broken)
        if tensor is not None:
            words = data.view(self._word).reshape(self.box_shape[::-1])
            self._view[tensor] = words[box]

    # Printing

    def _settings(self) -> str:
        """The options that are not at their defaults."""
        settings = [f"swizzle={self.swizzle}", f"fill={self.fill}"]
        if self.interleave != "none":
            settings.append(f"interleave={self.interleave}")
        if self.l2_promotion != "none":
            settings.append(f"l2_promotion={self.l2_promotion}")
        return ", ".join(settings)

    def __repr__(self) -> str:
        text = f"TensorMap({self.dtype}, dims={self.dims}, strides={self.strides}, box={self.box}"
        if any(step != 1 for step in self.element_strides):
            text += f", element_strides={self.element_strides}"
        return f"{text}, base={self.address:#x}, {self._settings()})"

    def __str__(self) -> str:
        where = "device memory" if self.array is None else "NumPy array"
        lines = [
            f"tensor map: {self.dtype}, rank {self.rank}, base {self.address:#x} ({where})",
            f"  {'dim':<10} {'size':>10} {'stride (bytes)':>15} {'box':>5} {'every':>6}",
        ]
        strides = (self.itemsize, *self.strides)
        for i in range(self.rank):
            name = f"{i} {self.names[i]}" if i < len(self.names) else str(i)
            lines.append(
                f"  {name:<10} {self.dims[i]:>10} {strides[i]:>15} {self.box[i]:>5} "
                f"{self.steps[i]:>6}"
            )
        lines.append(f"  {self._settings()}; {self.box_bytes} bytes per box")
        return "\n".join(lines)


def _show(value, name: str) -> str:
    return f"{value:#x}" if name == "globalAddress" else str(value)


def _driver():
    """The driver module of cuda-python, initialised; DriverMissing if that is impossible."""
    advice = "encoding a tensor map needs an NVIDIA driver; the CPU engine does not encode"
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverMissing(f"cuda-python is not installed ({error}); {advice}") from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # how cuda-python reports that libcuda was not found
        raise DriverMissing(f"no CUDA driver: {error} ({advice})") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverMissing(f"the CUDA driver does not start: cuInit says {status.name} ({advice})")
    return driver


def swizzle_offsets(n: int, mode: str) -> np.ndarray:
    """Where each of the first n bytes of a box lies in shared memory after swizzling.

    The base must be aligned to 1024 bytes (to 256 and 512 for modes 32B and 64B), because the
    hardware permutes bits of the address itself: 128B: bits 4-6 ^= bits 7-9; 64B: bits 4-5 ^= bits
    7-8; 32B: bit 4 ^= bit 7. Returns int64 offsets, shape (n,): byte i lies at result[i].

    Raises TensorMapError for an unknown mode. Source: PTX ISA 5.5, swizzling modes.
    """
    _choice("swizzle", mode, SWIZZLES)
    offsets = np.arange(n, dtype=np.int64)
    mask = {"none": 0b000, "32B": 0b001, "64B": 0b011, "128B": 0b111}[mode]
    return offsets ^ (((offsets >> 7) & mask) << 4)


# ---------------------------------------------------------------------------------------------
# Many tensor maps


def _placeholder(index: int) -> np.ndarray:
    """128 readable bytes that stand in a slot until it is encoded."""
    text = f"numba_deform tensor map {index}, not encoded".encode().ljust(MAP_BYTES, b".")
    return np.frombuffer(text, dtype=np.uint8)


class TensorMapArray:
    """n tensor maps in one buffer, as a kernel receives them.

    maps     the TensorMap objects, in order
    host     uint8 array of shape (n, 128) whose start is 128-byte aligned; copy it to the device
             after ``encode_into_host``. Until then each slot holds a readable placeholder, which is
             enough for the CPU engine: it finds a map by the address of its slot.
    encoded  whether the slots hold encoded maps
    """

    def __init__(self, maps: Iterable[TensorMap]):
        self.maps = tuple(maps)
        count = len(self.maps)
        room = np.zeros(count * MAP_BYTES + MAP_ALIGNMENT, dtype=np.uint8)
        skip = -room.__array_interface__["data"][0] % MAP_ALIGNMENT
        self.host = room[skip : skip + count * MAP_BYTES].reshape(count, MAP_BYTES)
        for i in range(count):
            self.host[i] = _placeholder(i)
        self.encoded = False

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index):
        return self.maps[index]

    def __iter__(self):
        return iter(self.maps)

    def __repr__(self) -> str:
        state = "encoded" if self.encoded else "not encoded"
        return f"TensorMapArray({len(self)} maps, {state})"

    @property
    def address(self) -> int:
        """Address of the first slot in host memory."""
        return self.host.__array_interface__["data"][0]

    def slot_address(self, index: int) -> int:
        """Address of one slot in host memory; negative indices count from the end."""
        return self.address + range(len(self))[index] * MAP_BYTES

    def map_at(self, address: int, base: int | None = None) -> TensorMap:
        """The map whose slot starts at this address.

        base  where the slots start, if not in this object's own buffer (a copy of it)
        Raises TensorMapError if no slot starts there.
        """
        base = self.address if base is None else base
        index, rest = divmod(int(address) - base, MAP_BYTES)
        if rest or not 0 <= index < len(self):
            end = base + len(self) * MAP_BYTES
            broken = Broken(
                "the address of a tensor map",
                f"{int(address):#x}",
                f"the start of a {MAP_BYTES}-byte slot in {base:#x}..{end:#x}",
                f"map i lies at the base + {MAP_BYTES} * i",
            )
            raise _error("map slot", broken)
        return self.maps[index]

    def encode_into_host(self) -> np.ndarray:
        """Encode every map into its slot; returns ``host``. Raises as TensorMap.encode does."""
        encoded = b"".join(m.encode() for m in self.maps)  # all or nothing
        self.host[...] = np.frombuffer(encoded, dtype=np.uint8).reshape(self.host.shape)
        self.encoded = True
        return self.host


# ---------------------------------------------------------------------------------------------
# Maps for deformable attention


class Level(NamedTuple):
    """Where one pyramid level lies in ``value``, all in pixels (one pixel is H*C elements).

    height, width  the level without any border
    start          first pixel of the level itself, counted from the start of its batch
    row_stride     pixels from one row to the next (the width, or more with a border)
    """

    height: int
    width: int
    start: int
    row_stride: int


def make_levels(spatial_shapes, level_start_index=None, padded: bool = False) -> tuple[Level, ...]:
    """The levels of a value tensor.

    spatial_shapes     (L, 2) heights and widths in pixels, without border
    level_start_index  (L,) first pixel of each level, its border included; None: one after another
    padded             one pixel of border on every side of every level is stored. The border is
                       left outside the map, where the copy fills in zeros by itself.
    """
    border = 1 if padded else 0
    shapes = [(int(h), int(w)) for h, w in spatial_shapes]
    if level_start_index is None:
        sizes = [(h + 2 * border) * (w + 2 * border) for h, w in shapes]
        level_start_index = [sum(sizes[:i]) for i in range(len(sizes))]
    if len(level_start_index) != len(shapes):
        broken = Broken(
            "len(level_start_index)", str(len(level_start_index)), f"{len(shapes)}, one per level"
        )
        raise _error("levels", broken)
    levels = []
    for (height, width), start in zip(shapes, level_start_index, strict=True):
        row_stride = width + 2 * border
        first = int(start) + border * (row_stride + 1)  # past the top border row and left pixel
        levels.append(Level(height, width, first, row_stride))
    return tuple(levels)


class _Value:
    """The value tensor (B, S, H, C) as raw memory that maps can start inside of."""

    def __init__(self, value, batch, spatial_size, heads, channels, dtype):
        self.dtype = element_type(dtype)
        self.pixel = heads * channels * self.dtype.itemsize  # bytes
        self.batch_stride = spatial_size * self.pixel
        self.spatial_size = spatial_size
        self.address, array = _address_of(value)
        self.raw = None
        if array is not None:
            shape = f"(B={batch}, S={spatial_size}, H={heads}, C={channels})"
            required = f"{batch * self.batch_stride} bytes for {shape} of {self.dtype.name}"
            if array.nbytes != batch * self.batch_stride:
                raise _error("value size", Broken("value", f"{array.nbytes} bytes", required))
            if not array.flags.c_contiguous:
                broken = Broken(
                    "value", "not contiguous", "C-contiguous", "use numpy.ascontiguousarray"
                )
                raise _error("value contiguous", broken)
            self.raw = array.reshape(-1).view(np.uint8)

    def at(self, offset: int):
        """The address (or the NumPy memory) this many bytes into the tensor."""
        return self.address + offset if self.raw is None else self.raw[offset:]

    def check_level(self, level: Level) -> None:
        """Raise TensorMapError unless the level lies inside one batch."""
        end = level.start + (level.height - 1) * level.row_stride + level.width
        if level.start < 0 or end > self.spatial_size:
            broken = Broken(
                "the level's pixels",
                f"{level.start}..{end}",
                f"within 0..{self.spatial_size} (spatial_size)",
                "padded layouts need make_levels(..., padded=True) and the padded spatial_size",
            )
            raise _error("level inside value", broken)


def _at_place(error: TensorMapError, place: str) -> TensorMapError:
    """The same error, saying which level it is about."""
    return TensorMapError(f"{place}: {error}", error.rule, error.given, error.required)


def _box_of_each(box_hw, levels):
    """A box for each level, from such a list or from one for all."""
    return box_hw if isinstance(box_hw[0], Sequence) else [box_hw] * len(levels)


def level_maps(
    value,
    batch: int,
    heads: int,
    channels: int,
    dtype,
    levels: Sequence[Level],
    spatial_size: int,
    box_hw: tuple = (2, 2),
    **options,
) -> TensorMapArray:
    """One rank-3 map for each batch b and level l, at index b*L + l.

    value         (B, S, H, C): device address, device array or contiguous NumPy array
    dtype         element type of value
    levels        from make_levels
    spatial_size  S, pixels of one batch (with borders, if the layout has them)
    box_hw        height and width of the box in pixels, or one such pair for each level
    options       swizzle, fill, l2_promotion, ... as for TensorMap

    Each map has dims (H*C, w, h) and box (C, box_w, box_h); a load at (head * C, x, y) fetches one
    head's channels of a box of pixels. Raises TensorMapError that names the batch and the level.
    """
    memory = _Value(value, batch, spatial_size, heads, channels, dtype)
    boxes = _box_of_each(box_hw, levels)
    maps = []
    for b in range(batch):
        for number, (level, (box_h, box_w)) in enumerate(zip(levels, boxes, strict=True)):
            try:
                memory.check_level(level)
                maps.append(
                    TensorMap(
                        memory.at(b * memory.batch_stride + level.start * memory.pixel),
                        memory.dtype,
                        dims=(heads * channels, level.width, level.height),
                        strides=(memory.pixel, level.row_stride * memory.pixel),
                        box=(channels, box_w, box_h),
                        names=("H*C", "W", "H"),
                        **options,
                    )
                )
            except TensorMapError as error:
                raise _at_place(error, f"level {number} of batch {b}") from error
    return TensorMapArray(maps)


def level_maps_rank5(
    value,
    batch: int,
    heads: int,
    channels: int,
    dtype,
    levels: Sequence[Level],
    spatial_size: int,
    box_hw: tuple = (2, 2),
    **options,
) -> TensorMapArray:
    """One rank-5 map for each level, shared by all heads and batches.

    Arguments as for level_maps. Each map has dims (C, H, w, h, B) and box (C, 1, box_w, box_h, 1);
    a load at (0, head, x, y, b) fetches what level_maps' map b*L + l fetches at (head * C, x, y).
    Raises TensorMapError that names the level.
    """
    memory = _Value(value, batch, spatial_size, heads, channels, dtype)
    boxes = _box_of_each(box_hw, levels)
    maps = []
    for number, (level, (box_h, box_w)) in enumerate(zip(levels, boxes, strict=True)):
        try:
            memory.check_level(level)
            maps.append(
                TensorMap(
                    memory.at(level.start * memory.pixel),
                    memory.dtype,
                    dims=(channels, heads, level.width, level.height, batch),
                    strides=(
                        channels * memory.dtype.itemsize,
                        memory.pixel,
                        level.row_stride * memory.pixel,
                        memory.batch_stride,
                    ),
                    box=(channels, 1, box_w, box_h, 1),
                    names=("C", "head", "W", "H", "B"),
                    **options,
                )
            )
        except TensorMapError as error:
            raise _at_place(error, f"level {number}") from error
    return TensorMapArray(maps)
