"""Arrays as a kernel sees them: shared, global and constant ones, and those of ``cuda.local.array``. Front ends
hand them to kernels."""

import math
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent as current
from numba.cuda import config

from ... import faults
from .same_value import decide
from .scalars import MayHoldUndefined, Undefined, Unsupported, as_int64, dtype_of, fits, limits, start_of, wrap


class Integers:
    """The elements of an array of integers that no memoryview can show, such as a field of packed records."""

    def __init__(self, data):
        self.data = data

    def __getitem__(self, place):
        return self.data[place].item()

    def __setitem__(self, place, value):
        self.data[place] = value


def integers(data):
    """The elements of an array as Python's integers."""
    view = memoryview(data)
    return view if len(view.format) == 1 else Integers(data)


class ArrayView:
    """A shared or global array as a kernel sees it: indexing that is checked."""

    __slots__ = (
        "space", "address", "data", "name", "integer", "itemsize", "strides", "shape", "items", "row", "low",
        "high", "said", "cost",
    )  # fmt: skip
    __array_ufunc__ = None  # NumPy would read it behind the engine's back

    def __new__(cls, space, address, data, name):
        return object.__new__(Records if data.dtype.names else ArrayView)

    def __init__(self, space, address, data, name):
        self.space, self.address, self.data, self.name = space, address, data, name
        self.integer = data.dtype.kind in "iub"
        self.itemsize, self.strides, self.shape = data.dtype.itemsize, data.strides, data.shape
        # The same elements; those of a memoryview are Python's integers, and cost less.
        self.items = integers(data) if self.integer else data
        self.row = data.shape[0] if data.ndim == 1 else 0  # a short way, for one number
        self.low, self.high = limits(data.dtype)
        self.said, self.cost = "", getattr(space, "cost", 0.0)  # registers, constants and no bytes cost nothing

    def __repr__(self):
        if not self.said:
            self.said = f"{self.name} at {self.address:#x}: {self.dtype}{self.shape}, strides {self.strides}"
        return self.said

    size, nbytes = property(attrgetter("data.size")), property(attrgetter("data.nbytes"))
    ndim, dtype = property(attrgetter("data.ndim")), property(attrgetter("data.dtype"))
    values = property(lambda self: self)  # where typed code looks for elements
    T = property(lambda self: self._part(self.data.T))
    flat = property(lambda self: Flat(self))
    real = property(lambda self: self._part(self.data.real))
    imag = property(lambda self: self._part(self.data.imag))
    ctypes = property(lambda self: SimpleNamespace(data=self.address))

    def __getattr__(self, name):
        raise AttributeError(f"array.{name} is not modelled by the CPU engine")

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _elements(self):
        """All elements in order."""
        return (self[place] for place in np.ndindex(self.shape))

    def places(self):
        """An array without dimensions for each element, in order: what ``np.nditer`` goes over."""
        return (self._part(self.data[(*place, ...)]) for place in np.ndindex(self.shape))

    def sum(self):
        total = 0 if self.integer else self.dtype.type(0)
        for value in self._elements():
            total = total + value
        return wrap(total, np.dtype("u8" if self.dtype.kind == "u" else "i8")) if self.integer else total

    def min(self):
        return min(self._elements())

    def max(self):
        return max(self._elements())

    def item(self):
        return self[(0,) * len(self.shape)]

    def fill(self, value):
        self[...] = value

    def view(self, dtype):
        """The same bytes as elements of another type."""
        return self._part(self.data.view(dtype_of(dtype)))

    def shaped(self, shape, dtype, order):
        """An array of that shape and type where this one begins; it may be no larger."""
        dtype = dtype_of(dtype) if dtype else self.dtype
        if math.prod(shape) * dtype.itemsize > self.nbytes:
            what = f"array {tuple(shape)} of {dtype} at {self.name}, which has {self.nbytes} bytes"
            raise current().fault(faults.OutOfRange, what, self.name)
        return self._part(np.ndarray(shape, dtype, self.data.data, order=order))

    def transpose(self, *axes):
        return self._part(self.data.transpose(*axes))

    def reshape(self, *shape):
        if not self.data.flags.c_contiguous:
            raise TypeError("reshape() supports contiguous array only")
        return self._part(self.data.reshape(*shape))

    def ravel(self):
        return self.reshape(-1)

    def flatten(self):
        """A new array of all elements in order."""
        made = new_array((self.size,), self.dtype, "flatten()")
        for i, value in enumerate(self._elements()):
            made[i] = value
        return made

    def copy(self):
        """A new array."""
        made = new_array(self.shape, self.dtype, "copy()")
        made[...] = self
        return made

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
            if type(i) is not int and not isinstance(i, np.integer):
                return None, None
            if not -n <= i < n:
                if fits(index):
                    raise self._outside(thread, index)
                return self._locate(thread, tuple(map(as_int64, index)))
            address += (i if i >= 0 else i + n) * stride
        return index, int(address)

    def _outside(self, thread, index):
        at = ", ".join(map(str, index if type(index) is tuple else (index,)))
        what = f"index {index} of {self.name}{self.shape}"
        fault = thread.fault(faults.OutOfRange, what, f"{self.name}[{at}]")
        if self.name in getattr(self.space, "dynamic_names", ()):
            self.space.tell_size(fault)
        return fault

    def _select(self, thread, index):
        """The part of the array that slices and numbers select."""
        for i in index if type(index) is tuple else (index,):
            if not isinstance(i, PARTS) or type(i) is bool:
                raise TypeError(f"{type(i).__name__} as an index is not modelled by the CPU engine")
        try:
            return self._part(self.data[index])
        except IndexError:
            raise self._outside(thread, index) from None

    def __getitem__(self, index):
        thread = current()
        if type(index) is int and 0 <= index < self.row:
            place, address = index, self.address + index * self.strides[0]
        else:
            place, address = self._locate(thread, index)
            if place is None:
                return self._select(thread, index)
        thread.time += self.cost
        try:
            self.space.on_read(thread, address, self.itemsize)
        except faults.UninitialisedRead:
            if (value := self.space.undefined_at(address, self.itemsize)) is None:
                raise
            return value
        return self.items[place]

    def __setitem__(self, index, value):
        thread = current()
        if type(index) is int and 0 <= index < self.row:
            place, address = index, self.address + index * self.strides[0]
        else:
            place, address = self._locate(thread, index)
            if place is None:
                self._select(thread, index)._assign(value)
                return
        thread.time += self.cost
        if type(value) is Undefined:
            self.space.on_write(thread, address, self.itemsize, thread.write_record())
            thread.put_undefined(self.space, address, self.itemsize, value)
            return
        if self.integer and not (type(value) is int and self.low <= value <= self.high):
            value = wrap(value, self.data.dtype)
        record = thread.write_record()
        try:
            self.space.on_write(thread, address, self.itemsize, record)
        except faults.DataRace as race:
            decide(race, self.space, thread, address, np.asarray(value, self.data.dtype).tobytes(), record)
        thread.block.progress += 1
        self.items[place] = value

    def _assign(self, value):
        """One value for all elements, or an array's, each."""
        values = np.broadcast_to(_values(value), self.shape)
        for place in np.ndindex(self.shape):
            self[place] = values[place]


class Flat:
    """``array.flat``: the elements in order, whatever the strides."""

    def __init__(self, view):
        self.view = view

    def __len__(self):
        return self.view.size

    def __iter__(self):
        return self.view._elements()

    def _place(self, i):
        return tuple(map(int, np.unravel_index(i, self.view.shape)))

    def __getitem__(self, i):
        return self.view[self._place(i)]

    def __setitem__(self, i, value):
        self.view[self._place(i)] = value


PARTS = (slice, type(None), type(...), int, np.integer)


def _values(value):
    """An object array of the elements of an array or tuple, all of which are read, or of a number."""
    if isinstance(value, LocalArray):
        value = value.whole()
    if isinstance(value, ArrayView):
        values = np.empty(value.shape, object)
        for place in np.ndindex(value.shape):
            values[place] = value[place]
        return values
    return np.array(value, object)


class Records(ArrayView):
    """An array of records: an element is a reference to its bytes, and a field is an array, too."""

    __slots__ = ()

    def __getattr__(self, name):
        if name not in self.data.dtype.names:
            raise AttributeError(f"record array.{name}: no such field")
        return self._part(self.data[name])

    def __getitem__(self, index):
        if type(index) is str:
            return getattr(self, index)
        thread = current()
        place, address = self._locate(thread, index)
        if place is None:
            return self._select(thread, index)
        name = f"{self.name}[{', '.join(map(str, place))}]"
        return Record(self.space, address, self.data[(*place, ...)], name)

    def __setitem__(self, index, value):
        element = self[index]
        if isinstance(element, Record):
            element._assign(value)
        else:
            ArrayView._assign(element, value)


class Record:
    """One record: its fields are memory, each of its own."""

    __slots__ = ("_space", "_address", "_data", "_name")

    def __init__(self, space, address, data, name):
        for slot, value in zip(self.__slots__, (space, address, data, name), strict=True):
            object.__setattr__(self, slot, value)

    def __repr__(self):
        return f"{self._name} at {self._address:#x}: {self._data.dtype}"

    def _field(self, name):
        names = self._data.dtype.names
        if type(name) is int:
            name = names[name]
        if name not in names:
            raise AttributeError(f"{self._name} has no field {name}")
        offset = self._data.dtype.fields[name][1]
        return ArrayView(self._space, self._address + offset, self._data[name], f"{self._name}.{name}")

    def __getitem__(self, name):
        field = self._field(name)
        return field if field.shape else field[()]

    def __setitem__(self, name, value):
        self._field(name)[... if self._data.dtype[name].shape else ()] = value

    __getattr__, __setattr__ = __getitem__, __setitem__

    def _assign(self, value):
        names = self._data.dtype.names
        for name, part in [(name, value[name]) for name in names]:
            self[name] = part


# --- memory that is nobody else's -----------------------------------------------------------------
class Constants:
    """The memory of arrays that are constants: those that a kernel's names hold."""

    base = 0

    @staticmethod
    def on_read(thread, address, size):
        pass

    @staticmethod
    def on_write(thread, address, size, record):
        raise thread.fault(faults.ReadOnlyWrite, "writes an array that is a constant of the kernel")


def constant_array(array):
    """A NumPy array that a kernel's name holds, as it is now: Numba makes it a constant."""
    return ArrayView(Constants, 0, array.copy(), "constant array")


class OwnBytes(MayHoldUndefined):
    """The bytes of one thread's local array."""

    def __init__(self, size):
        self.written, self.undefined = [0] * size, {}

    def on_read(self, thread, address, size):
        if not all(self.written[address : address + size]):
            what = f"reads byte {address} of a local array, never written"
            raise thread.fault(faults.UninitialisedRead, what)

    def on_write(self, thread, address, size, record):
        self.written[address : address + size] = [1] * size
        thread.block.progress -= 1  # nobody else sees it


def unwritten(index):
    what = f"reads element {index} of a local array, never written"
    raise current().fault(faults.UninitialisedRead, what)


class LocalArray:
    """``cuda.local.array``: one thread's own; reading an element nobody wrote is a fault.

    A list of numbers, until a part of it is taken or its elements are records: then bytes. Typed code goes to
    ``values`` itself, where it can."""

    __slots__ = ("shape", "dtype", "values", "row", "kind", "low", "high", "bytes")
    __array_ufunc__ = None

    def __init__(self, shape, dtype):
        self.shape = shape if isinstance(shape, tuple) else (int(shape),)
        self.dtype, self.bytes = dtype, None
        self.values = [None] * math.prod(self.shape)
        self.row = len(self.values) if len(self.shape) == 1 else 0  # a short way, for one number
        # What is stored as it is: numbers of this type, and integers only between these.
        self.kind = int if dtype.kind in "iu" else dtype.type
        self.low, self.high = limits(dtype)
        if dtype.names:
            self.whole()

    def __repr__(self):
        values = self.values if self.bytes is None else self.bytes.data.tolist()
        return f"local {self.dtype}{self.shape} {values}"

    def whole(self):
        """The array as bytes, which it is from now on."""
        if self.bytes is None:
            space, data = OwnBytes(len(self.values) * self.dtype.itemsize), np.zeros(self.shape, self.dtype)
            self.bytes = ArrayView(space, 0, data, "local array")
            for i, value in enumerate(self.values):
                if value is not None:
                    data.flat[i] = value
                    space.written[i * data.itemsize : (i + 1) * data.itemsize] = b"\1" * data.itemsize
            self.row, self.values = 0, self.bytes
        return self.bytes

    size, ndim = property(lambda self: math.prod(self.shape)), property(lambda self: len(self.shape))

    def __getattr__(self, name):
        if name.startswith("_") or name in ArrayView.__slots__[:4]:
            raise AttributeError(name)  # nobody else has an address of it
        return getattr(self.whole(), name)

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _place(self, index):
        """Where in the list an element is; None for a part of the array."""
        flat, shape = 0, self.shape
        if type(index) is not tuple:
            index = (index,)
        if self.bytes is not None or len(index) != len(shape):
            return None
        for i, n in zip(index, shape, strict=True):
            if type(i) is not int and not isinstance(i, np.integer):
                return None
            if not -n <= i < n:
                if not fits(index):
                    return self._place(tuple(map(as_int64, index)))
                raise current().fault(faults.OutOfRange, f"index {index} of a local array {shape}")
            flat = flat * n + (i if i >= 0 else i + n)
        return flat

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.row:
            value = self.values[index]
        else:
            place = self._place(index)
            if place is None:
                return self.whole()[index]
            value = self.values[place]
        return unwritten(index) if value is None else value

    def __setitem__(self, index, value):
        place = index if type(index) is int and 0 <= index < self.row else self._place(index)
        if place is None:
            self.whole()[index] = value
        elif type(value) is self.kind and (self.low is None or self.low <= value <= self.high):
            self.values[place] = value
        else:
            self.values[place] = wrap(value, self.dtype) if self.dtype.kind in "iub" else self._number(value)

    def _number(self, value):
        return value if type(value) is Undefined else self.kind(value)


def new_array(shape, dtype, maker):
    """An array that ``maker``, a function of Numba's, makes: the thread's own. Numba has to be told to."""
    if not getattr(config, "CUDA_ENABLE_NRT", False):
        raise Unsupported(f"{maker} makes an array, which Numba does only with NUMBA_CUDA_ENABLE_NRT=1")
    return LocalArray(shape, dtype)


def snapshot(value):
    """What a variable of a kernel holds, to be compared: the same for the same contents in every run."""
    if type(value) is ArrayView:
        return repr(value), value.data.tobytes() if type(value.space) is OwnBytes else b""
    if isinstance(value, (tuple, list)):
        return tuple(map(snapshot, value))
    if isinstance(value, (int, float, complex, np.generic, str, ArrayView, LocalArray, Record)):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__name__)
