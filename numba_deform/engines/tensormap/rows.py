"""Four rows of a tensor by one instruction: ``tile::gather4`` and ``tile::scatter4`` (PTX section 5.5)."""

import numpy as np

from .rules import TensorMapError

ROWS = 4


class Rows(tuple):
    """The coordinates of such a copy: that of the rows' first element, and four rows."""

    __slots__ = ()


class FourRows:
    """A map of rank 2 whose box is one row, as these modes see it: coordinates are ``Rows``. What is the same
    as in ``tile`` mode is the map's."""

    def __init__(self, tensor):
        if tensor.rank != 2 or tensor.box[1] != 1 or tensor.interleave != "none":
            required = "a map of rank 2 without interleave, whose box has 1 row"
            what = f"four rows take {required}, and this is {tensor!r}"
            raise TensorMapError(what, "four rows", required=required)
        self.tensor = tensor
        self.dims, self.box = (*tensor.dims[:1], *tensor.dims[1:] * ROWS), (*tensor.box[:1], *(1,) * ROWS)
        self.box_bytes = ROWS * tensor.box_bytes

    def __getattr__(self, name):
        return getattr(self.tensor, name)

    @staticmethod
    def _corners(coords):
        return [(coords[0], row) for row in coords[1:]]

    def load_box(self, coords):
        return np.concatenate([self.tensor.load_box(corner) for corner in self._corners(coords)])

    def store_box(self, coords, data, change=None):
        for corner, row in zip(self._corners(coords), np.split(data, ROWS), strict=True):
            if corner[1] >= 0:  # what lies outside the tensor is not written
                self.tensor.store_box(corner, row, change)

    def inside(self, coords):
        return np.concatenate([self.tensor.inside(corner) for corner in self._corners(coords)])

    def runs(self, coords):
        for corner in self._corners(coords):
            yield from self.tensor.runs(corner)
