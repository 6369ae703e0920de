"""Tensor maps in im2col mode: what a convolution reads of an image, as rows of a matrix.

One load brings ``pixels`` rows of ``channels`` elements. Its coordinates (c, w, .., n) say where the corner of
the filter stands for the first row, and its offsets which element of the filter is meant. From row to row the
corner moves on by an element stride along W, then H, then D, inside a bounding box, and from the end of the box
to its start in the next image.

Sources: PTX ISA section 5.5.4 (im2col mode); CUDA driver API, ``cuTensorMapEncodeIm2col``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from .boxes import NAN_FILL_HALFWORD
from .maps import TensorMap
from .rules import RULES, Broken, Rule, broken_rule, integers

# Least and greatest corner of the bounding box, and greatest offset of an instruction, for each rank.
CORNERS = {3: (-(2**15), 2**15 - 1), 4: (-(2**7), 2**7 - 1), 5: (-(2**4), 2**4 - 1)}
OFFSETS = {3: 2**16 - 1, 4: 2**8 - 1, 5: 2**5 - 1}
SIZES = {"channels of a pixel": 256, "pixels of a load": 1024}


@dataclass(frozen=True, repr=False)
class Im2colMap(TensorMap):
    """One tensor map in im2col mode, of rank 3 to 5, frozen. Lists are innermost dimension first.

    address .. strides  as of a TensorMap; the dimensions are C, W, H, D, N, without those that are not there
    box                 (channels, pixels): the elements of a row, and the rows, that one instruction loads
    lower               where the filter's corner may stand, along W, H, D: from here on ..
    upper               .. to here, counted from the last element of the dimension
    element_strides     as of a TensorMap: how far the corner moves along W, H, D; does not change the size
    and the options of a TensorMap

    A convolution with a filter of size k, padding p and dilation 1 has lower -p and upper p - (k - 1).
    """

    _: KW_ONLY
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    mode = "im2col"

    def __post_init__(self, check):
        for name in ("lower", "upper"):
            object.__setattr__(self, name, integers(name, getattr(self, name)))
        super().__post_init__(check)

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements in shared memory, innermost first: channels and pixels."""
        return self.box

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(first, last) place of the filter's corner along W, H, D."""
        spatial = zip(self.lower, self.upper, self.dims[1:-1], strict=True)
        return tuple((low, size - 1 + high) for low, high, size in spatial)

    def check_corner(self, coords: Sequence[int], offsets: Sequence[int]) -> None:
        """Raise TensorMapError for a corner outside the bounding box, and for an offset too large to encode."""
        for i, (start, (first, last)) in enumerate(zip(coords[1:], self.bounds, strict=False)):
            if not first <= start <= last:
                required = f"{first} to {last}, the bounding box"
                argument = f"coords[{i + 1}], {self.names[i + 1]},"
                raise broken_rule("im2col corner", argument, start, required)
        for i, offset in enumerate(offsets):
            if not 0 <= offset <= OFFSETS[self.rank]:
                required = f"0 to {OFFSETS[self.rank]} for rank {self.rank}"
                raise broken_rule("im2col offset", f"offsets[{i}]", offset, required)

    def pixels(self, coords: Sequence[int], offsets: Sequence[int]):
        """(w, .., n) of the element that each row of a load begins with, whether inside the tensor or not.

        Raises TensorMapError for a corner outside the bounding box, NotImplementedError for what is not
        modelled.
        """
        self.check_modelled()
        self.check_corner(coords, offsets)
        corner, steps = [int(c) for c in coords[1:]], self.element_strides[1:-1]
        for _ in range(self.box[1]):
            yield tuple(c + o for c, o in zip(corner, (*offsets, 0), strict=True))
            for i, ((first, last), step) in enumerate(zip(self.bounds, steps, strict=True)):
                corner[i] += step
                if corner[i] <= last:
                    break
                corner[i] = first
            else:
                corner[-1] += 1

    def check_modelled(self) -> None:
        """Raise NotImplementedError for a map whose loads are not modelled."""
        super().check_modelled()
        if self.element_strides[-1] != 1:
            what = f"element_strides[{self.rank - 1}] is {self.element_strides[-1]}: the PTX ISA leaves open "
            raise NotImplementedError(what + "what a stride from image to image means in im2col mode")

    def _parts(self, coords, offsets):
        """(row, its pixel's index in the array, first channel, last channel + 1) of rows partly inside."""
        start, sizes = int(coords[0]), self.dims[1:]
        first, last = max(start, 0), min(start + self.box[0], self.dims[0])
        for row, pixel in enumerate(self.pixels(coords, offsets)):
            if first < last and all(0 <= x < size for x, size in zip(pixel, sizes, strict=True)):
                yield row, pixel[::-1], first, last

    def load_box(self, coords: Sequence[int], offsets: Sequence[int]) -> np.ndarray:
        """The bytes that a load delivers, before swizzling: a uint8 array of ``box_bytes``, row after row.

        coords   (c, w, .., n): the first channel, the filter's corner, the image
        offsets  (w, ..): the element of the filter

        Raises TensorMapError for a corner outside the bounding box, and otherwise as TensorMap.load_box.
        """
        result = np.zeros(self.box[::-1], dtype=self._word)
        if self.fill == "nan":
            result.view(np.uint16)[...] = NAN_FILL_HALFWORD
        for row, pixel, first, last in self._parts(coords, offsets):
            result[row, first - int(coords[0]) :][: last - first] = self._view[pixel][first:last]
        return result.reshape(-1).view(np.uint8)

    def runs(self, coords: Sequence[int], offsets: Sequence[int]):
        """(address, bytes) of each dense run of the tensor that a load reads. Raises as load_box does."""
        for _, pixel, first, last in self._parts(coords, offsets):
            offset = sum(i * stride for i, stride in zip(pixel, self.strides[::-1], strict=True))
            yield self.address + offset + first * self.itemsize, (last - first) * self.itemsize

    def _sizes(self) -> str:
        return super()._sizes() + f", lower={self.lower}, upper={self.upper}"

    def _columns(self, i) -> tuple:
        """What the table of ``str`` says of dimension i beside size and stride."""
        if i == 0:
            return self.box[0], 1
        if i == self.rank - 1:
            return "-", 1
        first, last = self.bounds[i - 1]
        return f"{first}..{last}", self.element_strides[i]


# --- the rules --------------------------------------------------------------------------------------
# What both modes have in common; the box row is one of channels here.
COMMON = (
    "base alignment", "base alignment, interleave 32B", "dim range", "stride multiple",
    "stride multiple, interleave 32B", "stride range", "box row multiple", "element stride range",
    "swizzle span", "swizzle of interleave 32B", "NaN fill", "map alignment",
)  # fmt: skip


def _rank(m):
    """A map in im2col mode has 3 to 5 dimensions."""
    if not 3 <= m.rank <= 5:
        hint = "add dimensions of size 1" if m.rank < 3 else ""
        return Broken("rank, the number of dims,", m.rank, "3 to 5 in im2col mode", hint)


def _counts(m):
    """The box has two entries, the corners one for each of W, H, D, the strides one less than the dims."""
    spatial = m.rank - 2
    lists = {"strides": m.rank - 1, "box": 2, "lower": spatial, "upper": spatial, "element_strides": m.rank}
    for name, count in lists.items():
        if len(getattr(m, name)) != count:
            return Broken(f"len({name})", len(getattr(m, name)), f"{count} for {m.rank} dims in im2col mode")


def _box(m):
    """A load has 1 to 256 channels and 1 to 1024 pixels."""
    for i, (what, most) in enumerate(SIZES.items()):
        if not 1 <= m.box[i] <= most:
            return Broken(f"box[{i}], the {what},", m.box[i], f"1 to {most}")


def _corners(m):
    """The corners of the bounding box are -2^15 to 2^15 - 1 for rank 3, -128 to 127 for 4, -16 to 15 for 5."""
    least, most = CORNERS[m.rank]
    for name in ("lower", "upper"):
        for i, corner in enumerate(getattr(m, name)):
            if not least <= corner <= most:
                return Broken(f"{name}[{i}]", corner, f"{least} to {most} for rank {m.rank}")


def _not_empty(m):
    """The bounding box has at least one place along every dimension."""
    for i, (first, last) in enumerate(m.bounds):
        if last < first:
            required = f"at least lower[{i}] - (dims[{i + 1}] - 1) = {m.lower[i] - m.dims[i + 1] + 1}"
            return Broken(f"upper[{i}]", m.upper[i], required, "the bounding box is empty")


_OWN = {
    "im2col rank": _rank, "im2col argument counts": _counts, "im2col box range": _box,
    "im2col corner range": _corners, "im2col box not empty": _not_empty,
}  # fmt: skip
_BY_NAME = {rule.name: rule for rule in RULES}
IM2COL_RULES = [Rule(name, check.__doc__, check) for name, check in _OWN.items()]
IM2COL_RULES += [_BY_NAME[name] for name in COMMON]
Im2colMap.rules = IM2COL_RULES
