"""A tensor map as a checked description."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ...device.layout import Array
from . import rules
from .boxes import Boxes
from .rules import ElementType


def address_of(source) -> tuple[int, np.ndarray | None]:
    """The address of an int, a NumPy array or a device array, and the array if it is NumPy's."""
    if isinstance(source, np.ndarray):
        return source.__array_interface__["data"][0], source
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is not None:
        return interface["data"][0], None
    try:
        return operator.index(source), None
    except TypeError:
        required = "an int, a NumPy array or an object with __cuda_array_interface__"
        given = f"a {type(source).__name__}"
        raise rules.broken_rule("base type", "the base address", given, required) from None


@dataclass(frozen=True, repr=False)
class TensorMap(Boxes):
    """One tiled tensor map of rank 1 to 5, frozen. All lists are innermost dimension first.

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

    Source: PTX ISA section 5.5; CUDA driver API, cuTensorMapEncodeTiled.
    """

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    _: KW_ONLY
    element_strides: tuple[int, ...] | None = None
    interleave: str = "none"
    swizzle: str = "none"
    l2_promotion: str = "none"
    fill: str = "zero"
    names: Sequence[str] | None = field(default=None, compare=False)
    map_address: int = field(default=0, compare=False)
    array: np.ndarray | None = field(default=None, init=False, compare=False)
    check: InitVar[bool] = True  # False: no rule is checked, to ask the driver about a bad map

    mode = "tile"  # of the instructions that take it
    rules = rules.RULES  # that the driver has for such a map

    def __post_init__(self, check):
        dims = rules.integers("dims", self.dims)
        steps = (1,) * len(dims) if self.element_strides is None else self.element_strides
        address, array = address_of(self.address)
        values = {
            "address": address, "array": array, "dtype": rules.element_type(self.dtype).name,
            "dims": dims, "strides": rules.integers("strides", self.strides),
            "box": rules.integers("box", self.box), "element_strides": rules.integers("element_strides", steps),
            "names": tuple(self.names or rules.DIMENSION_NAMES.get(len(dims), ())),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the only place where a frozen map is written
        for name, table in rules.OPTIONS.items():
            rules.check_option(name, getattr(self, name), table)
        if check:
            rules.check_rules(self)
            self._check_array()

    @classmethod
    def of(cls, array, box: Sequence[int] | Array, *, dtype=None, **options) -> TensorMap:
        """The map of a whole array: dims and strides are its shape and strides, reversed.

        array    NumPy array or object with __cuda_array_interface__, shape outermost first
        box      elements, innermost first; or the ``nd.Array`` whose boxes it fills, with its swizzle, itself
                 or as a part of an ``nd.Shared``: ``shared.tiles``
        dtype    overrides the array's element type, e.g. for a uint16 array of bfloat16 bits
        options  as for TensorMap

        Raises TensorMapError if the elements of the last axis are not next to each other, or for
        any broken rule.
        """
        box = getattr(box, "_array", box)  # an Array as a part of a Shared
        if isinstance(box, Array):
            options, box = {"swizzle": box.swizzle, **options}, box.box
        shape, strides, own_dtype = _layout_of(array)
        element = rules.element_type(own_dtype if dtype is None else dtype)
        if element.itemsize != own_dtype.itemsize:
            given = f"{element.name} ({element.itemsize} bytes)"
            required = f"a type as large as the array's elements ({own_dtype.itemsize} bytes)"
            raise rules.broken_rule("element type", "dtype", given, required)
        if shape and shape[-1] > 1 and strides[-1] != element.itemsize:
            argument = f"the stride of the last axis of an array of shape {tuple(shape)}"
            given, required = strides[-1], f"{element.itemsize} bytes, the size of one element"
            hint = "a tensor map has no stride for the innermost dimension: reorder the axes or make the "
            hint += "array contiguous"
            rule = "innermost dimension dense"
            raise rules.broken_rule(rule, argument, f"{given} bytes", required, hint)
        return cls(array, element, shape[::-1], strides[:-1][::-1], box, **options)

    def _check_array(self) -> None:
        """Raise TensorMapError if the map reaches outside the memory of its NumPy array."""
        if self.array is None:
            return
        steps = zip(self.array.shape, self.array.strides, strict=True)
        reach = [(size - 1) * step for size, step in steps]
        rule = "inside the array"
        if min(reach, default=0) < 0:
            raise rules.broken_rule(rule, "a stride of the array", "negative", "positive", "copy the array")
        available = sum(reach) + self.array.itemsize if self.array.size else 0
        if self.extent > available:
            given, required = f"{self.extent} bytes past its base", f"within the array's {available} bytes"
            hint = "check dims and strides (bytes, not elements)"
            raise rules.broken_rule(rule, "the end of the map", given, required, hint)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def element(self) -> ElementType:
        """The element type with its properties."""
        return rules.ELEMENT_TYPES[self.dtype]

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.element.itemsize

    @cached_property
    def extent(self) -> int:
        """Bytes from the base to the end of the tensor's last element."""
        outer = zip(self.dims[1:], self.strides, strict=True)
        return self.dims[0] * self.itemsize + sum((dim - 1) * stride for dim, stride in outer)

    def _sizes(self) -> str:
        return f"box={self.box}"

    def _columns(self, i) -> tuple:
        """What the table of ``str`` says of dimension i beside size and stride: box, and every n-th element."""
        return self.box[i], self.steps[i]

    def _settings(self) -> str:
        """The options, without the two rare ones where they are at their defaults."""
        settings = [f"swizzle={self.swizzle}", f"fill={self.fill}"]
        rare = [(name, getattr(self, name)) for name in ("interleave", "l2_promotion")]
        return ", ".join(settings + [f"{name}={value}" for name, value in rare if value != "none"])

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self.dtype}, dims={self.dims}, strides={self.strides}, {self._sizes()}"
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
            box, every = self._columns(i)
            sizes = f"{self.dims[i]:>10} {strides[i]:>15} {box:>5} {every:>6}"
            lines.append(f"  {name:<10} {sizes}")
        lines.append(f"  {self._settings()}; {self.box_bytes} bytes per box")
        return "\n".join(lines)


def _layout_of(array):
    """(shape, strides in bytes, dtype) of a NumPy array or a device array, outermost first."""
    if isinstance(array, np.ndarray):
        return array.shape, array.strides, array.dtype
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        required = "a NumPy array or an object with __cuda_array_interface__"
        hint = "give address, dims and strides to TensorMap itself"
        raise rules.broken_rule("base type", "the array", f"a {type(array).__name__}", required, hint)
    shape, dtype = interface["shape"], np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is None:  # the interface's way of saying C-contiguous
        strides = tuple(prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape)))
    return shape, strides, dtype
