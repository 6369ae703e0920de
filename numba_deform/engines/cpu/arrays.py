"""Arrays as a kernel sees them: shared and global ones, and those of ``cuda.local.array``."""

from operator import attrgetter

import numpy as np
from greenlet import getcurrent as current

from .. import faults
from .values import dtype_of, start_of, wrap


class ArrayView:
    """A shared or global array as a kernel sees it: indexing that is checked."""

    __slots__ = ("space", "address", "data", "name", "integer", "itemsize", "strides", "shape")

    def __init__(self, space, address, data, name):
        self.space, self.address, self.data, self.name = space, address, data, name
        self.integer = data.dtype.kind in "iub"
        self.itemsize, self.strides, self.shape = data.dtype.itemsize, data.strides, data.shape

    def __repr__(self):
        return f"{self.name} at {self.address:#x}: {self.dtype}{self.shape}, strides {self.strides}"

    size, nbytes = property(attrgetter("data.size")), property(attrgetter("data.nbytes"))
    ndim, dtype = property(attrgetter("data.ndim")), property(attrgetter("data.dtype"))

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def view(self, dtype):
        """The same bytes as elements of another type."""
        return self._part(self.data.view(dtype_of(dtype)))

    def reshape(self, *shape):
        return self._part(self.data.reshape(*shape))

    def _part(self, data):
        offset = start_of(data) - start_of(self.data)
        return ArrayView(self.space, self.address + offset, data, self.name)

    def _locate(self, thread, index):
        """(tuple of ints, byte address) of one element, or (None, None) for a slice."""
        if type(index) is not tuple:
            index = (index,)
        if len(index) != len(self.shape):
            return None, None
        address = self.address
        for i, n, stride in zip(index, self.shape, self.strides):  # noqa: B905  this runs a lot
            if type(i) is slice:
                return None, None
            if not -n <= i < n:
                raise self._outside(thread, index)
            address += (i if i >= 0 else i + n) * stride
        return index, int(address)

    def _outside(self, thread, index):
        at = ", ".join(map(str, index if type(index) is tuple else (index,)))
        what = f"index {index} of {self.name}{self.shape}"
        return thread.fault(faults.OutOfRange, what, f"{self.name}[{at}]")

    def __getitem__(self, index):
        thread = current()
        place, address = self._locate(thread, index)
        if place is None:
            try:
                return self._part(self.data[index])
            except IndexError:
                raise self._outside(thread, index) from None
        self.space.on_read(thread, address, self.itemsize)
        value = self.data[place]
        return value.item() if self.integer else value

    def __setitem__(self, index, value):
        thread = current()
        place, address = self._locate(thread, index)
        if place is None:
            raise thread.fault(faults.KernelError, f"assignment to a slice of {self.name}")
        self.space.on_write(thread, address, self.itemsize, thread.write_record())
        thread.block.progress += 1
        self.data[place] = wrap(value, self.data.dtype) if self.integer else value


class LocalArray:
    """``cuda.local.array``: one thread's own; reading an element nobody wrote is a fault."""

    __slots__ = ("shape", "dtype", "values", "convert", "row")

    def __init__(self, shape, dtype):
        self.shape = shape if isinstance(shape, tuple) else (int(shape),)
        self.dtype = dtype
        self.values = [None] * int(np.prod(self.shape))
        self.row = len(self.values) if len(self.shape) == 1 else 0  # a short way, for one number
        self.convert = (lambda v: wrap(v, dtype)) if dtype.kind in "iub" else dtype.type

    def __repr__(self):
        return f"local {self.dtype}{self.shape} {self.values}"

    @property
    def size(self):
        return len(self.values)

    @property
    def ndim(self):
        return len(self.shape)

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _place(self, index):
        flat, shape = 0, self.shape
        if type(index) is not tuple:
            index = (index,)
        if len(index) != len(shape) or slice in map(type, index):
            raise TypeError(f"index {index} of a local array {shape}: one number for each dimension")
        for i, n in zip(index, shape, strict=True):
            if not -n <= i < n:
                raise current().fault(faults.OutOfRange, f"index {index} of a local array {shape}")
            flat = flat * n + (i if i >= 0 else i + n)
        return flat

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.row:
            value = self.values[index]
        else:
            value = self.values[self._place(index)]
        if value is None:
            what = f"reads element {index} of a local array, never written"
            raise current().fault(faults.UninitialisedRead, what)
        return value

    def __setitem__(self, index, value):
        place = index if type(index) is int and 0 <= index < self.row else self._place(index)
        self.values[place] = self.convert(value)
