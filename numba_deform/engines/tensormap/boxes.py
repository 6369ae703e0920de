"""What a TMA instruction moves: boxes, copied between NumPy arrays and bytes as the hardware does it."""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import prod
from types import SimpleNamespace

import numpy as np

from .rules import SWIZZLES, broken_rule, check_option

# Every 16 bits of an element that the NaN fill wrote. The manuals only call it a special NaN; this
# pattern is what GPUs were seen to deliver.
NAN_FILL_HALFWORD = 0x7FF7


class Boxes:
    """The boxes of a map: sizes and copies. What TensorMap has beside its arguments."""

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

    def load_box(self, coords: Sequence[int]) -> np.ndarray:
        """The bytes that a TMA load at these coordinates delivers, before swizzling.

        coords  corner of the box in elements, innermost first; may be negative or past the end
        Returns a fresh uint8 array of ``box_bytes``, dense, innermost dimension fastest; elements
        outside the tensor are fill.

        Raises TensorMapError for a wrong number of coordinates or one beyond 32 bits, ValueError
        for a map over a device address, NotImplementedError for interleaved maps and for element
        types that change bits in flight.
        """
        tensor, box, inside = self._overlap(coords)
        if inside:
            return self._view[tensor].copy().reshape(-1).view(np.uint8)
        result = np.zeros(self.box_shape[::-1], dtype=self._word)
        if self.fill == "nan":
            result.view(np.uint16)[...] = NAN_FILL_HALFWORD
        if tensor is not None:
            result[box] = self._view[tensor]
        return result.reshape(-1).view(np.uint8)

    def store_box(self, coords: Sequence[int], data, change=None) -> None:
        """Write a box to the NumPy array as a TMA store does; the part outside is dropped.

        coords  corner of the box in elements, innermost first; not negative, may overhang the end
        data    ``box_bytes`` bytes (uint8 array or bytes-like), dense, before swizzling
        change  of a reduction: given the bytes that are there and those of the box, what to write

        Raises TensorMapError for a negative corner or the wrong number of bytes, and otherwise as
        load_box does; ValueError for a read-only array.
        """
        if isinstance(data, np.ndarray):
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            data = np.frombuffer(data, dtype=np.uint8)
        if data.nbytes != self.box_bytes:
            required = f"{self.box_bytes} bytes, one box"
            raise broken_rule("box bytes", "len(data)", f"{data.nbytes} bytes", required)
        tensor, box, _ = self._overlap(coords)
        for i, start in enumerate(map(int, coords)):
            if start < 0:
                hint = "only loads may start before the tensor"
                raise broken_rule("store corner", f"coords[{i}] of a store", start, "0 or more", hint)
        if tensor is not None:
            new = data.view(self._word).reshape(self.box_shape[::-1])[box]
            if change is not None:
                changed = change(self._view[tensor].tobytes(), new.tobytes())
                new = np.frombuffer(changed, self._word).reshape(new.shape)
            self._view[tensor] = new

    @cached_property
    def _view(self) -> np.ndarray:
        """The tensor's elements as unsigned integers, shape and order of the NumPy world."""
        if self.array is None:
            base = f"this map's base is the device address {self.address:#x}"
            raise ValueError(f"{base}; only a map over a NumPy array can be copied on the CPU")
        memory = {
            "version": 3, "data": (self.address, not self.array.flags.writeable),
            "shape": self.dims[::-1], "strides": (*self.strides[::-1], self.itemsize),
            "typestr": self._word.str,
        }
        # What numpy.asarray takes for an array keeps the real one alive.
        return np.asarray(SimpleNamespace(__array_interface__=memory, array=self.array))

    @cached_property
    def _word(self) -> np.dtype:
        """Unsigned integer as large as one element: copies move bits, not numbers."""
        return np.dtype(f"u{self.itemsize}")

    @cached_property
    def _axes(self) -> tuple[tuple[int, int, int], ...]:
        """(elements of the tensor, elements of the box, step) per dimension, innermost first."""
        self.check_modelled()
        return tuple(zip(self.dims, self.box_shape, self.steps, strict=True))

    def check_modelled(self) -> None:
        """Raise NotImplementedError for a map whose boxes are not modelled."""
        if self.interleave != "none":
            raise NotImplementedError(f"interleave {self.interleave} is not modelled on the CPU")
        if self.element.converts:
            raise NotImplementedError(f"{self.dtype} changes bits in flight: not modelled on the CPU")

    def _overlap(self, coords: Sequence[int]):
        """Where the box at these coordinates meets the tensor, outermost dimension first.

        Returns (slices of the tensor, slices of the box, whether the whole box is inside), with
        None in place of the slices when they do not meet.
        """
        axes = self._axes
        if len(coords) != len(axes):
            required = f"{self.rank}, innermost first"
            raise broken_rule("box corner", "len(coords)", len(coords), required)
        tensor, box, inside = [], [], True
        for start, (dim, count, step) in zip(coords, axes, strict=True):
            start = int(start)  # NumPy's 32-bit integers would overflow below
            if not -(2**31) <= start < 2**31:
                raise broken_rule("box corner", "a coordinate", start, "a signed 32-bit integer")
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

    def inside(self, coords: Sequence[int]) -> np.ndarray:
        """Which bytes of the box at these coordinates belong to the tensor: bools, before swizzling.

        Raises TensorMapError and NotImplementedError as load_box does.
        """
        tensor, box, _ = self._overlap(coords)
        inside = np.zeros(self.box_shape[::-1], bool)
        if tensor is not None:
            inside[box] = True
        return np.repeat(inside.reshape(-1), self.itemsize)

    def runs(self, coords: Sequence[int]):
        """(address, bytes) of each dense run of the tensor that the box at these coordinates holds.

        Raises TensorMapError and NotImplementedError as load_box does.
        """
        tensor, _, _ = self._overlap(coords)
        if tensor is None:
            return
        *outer, inner = tensor
        start, size = self.address + inner.start * self.itemsize, inner.stop - inner.start
        for index in product(*(range(part.start, part.stop, part.step) for part in outer)):
            offset = sum(i * stride for i, stride in zip(index, self.strides[::-1], strict=True))
            yield start + offset, size * self.itemsize


def swizzle_offsets(n: int, mode: str, start: int = 0) -> np.ndarray:
    """Where each of the first n bytes of a box lies in shared memory after swizzling, counted from the
    box's own address.

    start  that address, a multiple of 128. The hardware permutes bits of the address itself: 128B: bits
           4-6 ^= bits 7-9; 64B: bits 4-5 ^= bits 7-8; 32B: bit 4 ^= bit 7; 128B with atoms of 32B: bits
           5-6 ^= bits 7-8. So the pattern begins at
           line ``start / 128 % 8``: at its own start where the address is a multiple of 1024 (of 512
           for 64B, of 256 for 32B).

    Returns int64 offsets, shape (n,): byte i lies at result[i]. Where the last row of the box is not as
    long as the swizzle is wide, some lie behind the n bytes: up to the next multiple of the width.

    Raises TensorMapError for an unknown mode. Source: PTX ISA section 5.5, swizzling modes.
    """
    check_option("swizzle", mode, SWIZZLES)
    addresses = np.arange(start, start + n, dtype=np.int64)
    mask = {"none": 0b000, "32B": 0b001, "64B": 0b011, "128B": 0b111, "128B_atom_32B": 0b011}[mode]
    return (addresses ^ (((addresses >> 7) & mask) << (5 if mode.endswith("atom_32B") else 4))) - start
