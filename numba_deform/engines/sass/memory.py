"""Memory that machine code reads and writes: global, shared, of a thread, and constants."""

import numpy as np
from numba import types

from ...compiler import Kernel
from ..gpu.in_place import bytes_of, owner_of
from ..gpu.launch import ArrayArgument, values_of
from ..tensormap import TensorMapArray
from ..tensormap.decoding import decode, encoded
from ..tensormap.packed import fields_of, map_of, unpack
from .operands import U32, U64

RESERVED = 1024  # bytes of shared memory that the system has, below the kernel's
WINDOW, OWN_WINDOW = 0x7E, 0x7D  # the upper words of generic addresses of shared memory, and of a thread's own
PAGE, GAP = 1 << 21, 512
PARAMETERS, COPY = 0x210, 0x198  # of constant bank 0: where they begin, and where the address of a copy is
BANK, BANK_BYTES = "constant bank 0", PARAMETERS + 32764 + 64  # parameters take at most 32,764
MAP_BYTES = 128


class OutsideMemory(RuntimeError):
    """An access outside of all that the launch has."""


class Space:
    """Bytes at addresses from ``base`` on; ``kind`` is what its accesses count as."""

    kind = "local"

    def __init__(self, size, base=0, content=None):
        self.base, self.size = base, size
        self.bytes = np.zeros(-(-size // 16) * 16, np.uint8) if content is None else content
        self.words = self.bytes.view(U32)

    def places(self, addresses, size):
        """Offsets of these addresses; OutsideMemory, also for one that is no multiple of ``size``."""
        offsets = (addresses - U64(self.base)).astype(np.int64)
        wrong = (offsets < 0) | (offsets > self.size - size) | (offsets & (size - 1) != 0)
        if wrong.any():
            raise OutsideMemory(f"{size} bytes at {int(addresses[wrong][0]):#x}")
        return offsets

    def read(self, addresses, size):
        """(n, words) of ``size`` bytes each; fewer than four bytes are the low ones of a word."""
        offsets = self.places(addresses, size)
        if size < 4:
            return self.bytes.view(f"u{size}")[offsets // size].astype(U32)[:, None]
        return self.words[(offsets >> 2)[:, None] + np.arange(size // 4)]

    def write(self, addresses, size, words):
        offsets = self.places(addresses, size)
        if size < 4:
            self.bytes.view(f"u{size}")[offsets // size] = words[:, 0].astype(f"u{size}")
        else:
            self.words[(offsets >> 2)[:, None] + np.arange(size // 4)] = words


class Global(Space):
    """Copies of all arrays of a launch, each at a multiple of 512 bytes, at true addresses of this process, and
    what a module brings: ``sections`` {name: bytes}, whose addresses are then ``starts``."""

    def __init__(self, arguments, sections):
        self.parts, self.maps, self.starts, size = {}, {}, {}, GAP
        slots = {maps.address for maps in arguments if isinstance(maps, TensorMapArray)}  # not written back
        for array in _arrays(arguments):
            start, host = bytes_of(array)
            if start not in self.parts:
                self.parts[start] = [size, host, False]
                size += -(-host.nbytes // GAP) * GAP + GAP
            self.parts[start][2] |= array.flags.writeable and start not in slots
        sections = sections | {BANK: bytes(BANK_BYTES)}
        for name, data in sections.items():
            self.starts[name] = size
            size += -(-len(data) // GAP) * GAP + GAP
        room = np.zeros(size + PAGE, np.uint8)
        start = room.__array_interface__["data"][0]
        super().__init__(size, start + -start % PAGE, room[-start % PAGE :][: -(-size // 16) * 16])
        for offset, host, _ in self.parts.values():
            self.bytes[offset : offset + host.nbytes] = host
        for name, data in sections.items():
            self.bytes[self.starts[name] :][: len(data)] = np.frombuffer(data, np.uint8)
            self.starts[name] += self.base
        for argument in arguments:
            if isinstance(argument, TensorMapArray):
                self._encode(argument)

    def _encode(self, maps):
        """The maps' slots as the driver makes them, whose fields machine code replaces bit by bit; with the
        addresses that hold here."""
        for slot, one in enumerate(maps):
            fields = fields_of(one) | {"address": self.translated(one.address)}
            at = self.address_of(maps.host) - self.base + MAP_BYTES * slot
            self.bytes[at : at + MAP_BYTES] = np.frombuffer(encoded(fields), np.uint8)

    def hold(self, bank):
        """The bytes of constant bank 0, which has the address of its copy here: of its parameters, where a
        kernel takes the address of one, such as of a tensor map."""
        bank[COPY : COPY + 8] = (self.starts[BANK] + PARAMETERS).to_bytes(8, "little")
        self.bytes[self.starts[BANK] - self.base :][: len(bank)] = np.frombuffer(bank, np.uint8)
        return bytes(bank)

    def address_of(self, array):
        return self.translated(array.__array_interface__["data"][0])

    def translated(self, host):
        """The address here of what is at an address of the host's."""
        for start, (offset, content, _) in self.parts.items():
            if start <= host < start + max(content.nbytes, 1):
                return self.base + offset + host - start
        raise OutsideMemory(f"memory at {host:#x} of the host, which is in no argument")

    def copy_back(self):
        """What the kernel may have written, into the host's arrays."""
        for offset, host, writeable in self.parts.values():
            if writeable:
                host[...] = self.bytes[offset : offset + host.nbytes]

    def map_at(self, address):
        """The tensor map at an address, whose box can be read and written."""
        at = int(address) - self.base
        data = self.bytes[at : at + MAP_BYTES].tobytes() if 0 <= at <= self.size - MAP_BYTES else b""
        if data not in self.maps:
            fields = (unpack(data) or decode(data, replaced=True)) if data else None
            if fields is None:
                raise OutsideMemory(f"a tensor map at {int(address):#x}: there is none")
            self.maps[data] = map_of(fields, self.bytes)
        return self.maps[data]


def _arrays(arguments):
    """The arrays that own what a launch reaches: arguments, what is behind tensor maps, and the maps' slots."""
    for argument in arguments:
        parts = argument if isinstance(argument, tuple) else (argument,)
        for part in parts:
            if isinstance(part, TensorMapArray):
                yield part.host
                yield from (owner_of(one.array) for one in part if one.array is not None)
            elif isinstance(part, np.ndarray):
                yield owner_of(part)


def parameters(kernel, arguments, memory):
    """Constant bank 0 with a launch's parameters, as a bytearray."""
    bank, is_own = bytearray(PARAMETERS), isinstance(kernel, Kernel)
    for kind, argument in zip(kernel.signature.args if is_own else kernel.entry.params, arguments, strict=True):
        if is_own:
            parts = [(value.tobytes(), value.itemsize) for value in _numbers(kind, argument, memory)]
        else:
            parts = [(_of_ptx(kind, argument, memory), kind.align if kind.array else kind.size)]
        for raw, align in parts:
            bank += bytes(-len(bank) % align) + raw
    return bank + bytes(64)


def _of_ptx(variable, argument, memory):
    """The bytes of a parameter that PTX declares: a structure's from an array of them, or a tensor map."""
    if variable.array:
        if isinstance(argument, TensorMapArray):
            at = memory.address_of(argument.host) - memory.base
            raw = memory.bytes[at : at + MAP_BYTES * len(argument)].tobytes()
        else:
            raw = np.asarray(argument).tobytes()
        if len(raw) != variable.size:
            raise ValueError(f"{variable.name} takes {variable.size} bytes, and {len(raw)} were given")
        return raw
    if isinstance(argument, (TensorMapArray, np.ndarray)) and variable.size == 8:
        argument = memory.address_of(argument.host if isinstance(argument, TensorMapArray) else argument)
    if variable.type in ("f32", "f64"):
        return np.array(argument, variable.type.replace("f32", "f4").replace("f64", "f8")).tobytes()
    return (int(argument) & (1 << 8 * variable.size) - 1).to_bytes(variable.size, "little")


def _numbers(kind, argument, memory):
    if isinstance(argument, TensorMapArray):
        argument = memory.address_of(argument.host)
    elif isinstance(argument, np.ndarray):
        address, array = memory.address_of(argument), argument
        is_array = isinstance(kind, types.Array)
        argument = ArrayArgument(address, array.shape, array.strides, array.itemsize) if is_array else address
    if isinstance(kind, types.BaseTuple):
        return [number for pair in zip(kind, argument, strict=True) for number in _numbers(*pair, memory)]
    return values_of(kind, argument)
