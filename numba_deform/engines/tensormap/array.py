"""Many tensor maps in one buffer, as a kernel receives them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .encoding import MAP_BYTES, encode
from .maps import TensorMap, address_of
from .packed import fields_of, pack

MAP_ALIGNMENT = 128  # what TensorMapArray gives; the driver asks for 64


class TensorMapArray:
    """n tensor maps in one buffer, as a kernel receives them.

    maps     the TensorMap objects, in order
    host     uint8 array of shape (n, 128) whose start is 128-byte aligned; copy it to the device
             after ``encode_into_host``. Until then each slot holds what the CPU engine reads: the
             fields of its map (packed.py).
    encoded  whether the slots hold encoded maps
    """

    def __init__(self, maps: Iterable[TensorMap]):
        self.maps = tuple(maps)
        count = len(self.maps)
        room = np.zeros(count * MAP_BYTES + MAP_ALIGNMENT, dtype=np.uint8)
        skip = -address_of(room)[0] % MAP_ALIGNMENT
        self.host = room[skip : skip + count * MAP_BYTES].reshape(count, MAP_BYTES)
        for slot, one in zip(self.host, self.maps, strict=True):
            slot[:] = np.frombuffer(pack(fields_of(one)), np.uint8)
        self.made, self.encoded = self.host.copy(), False
        self.offsets = tuple(range(0, count * MAP_BYTES, MAP_BYTES))

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index):
        return self.maps[index]

    def __repr__(self) -> str:
        return f"TensorMapArray({len(self)} maps, {'' if self.encoded else 'not '}encoded)"

    @classmethod
    def in_struct(cls, content, maps) -> TensorMapArray:
        """Maps inside a structure, such as a ``__grid_constant__`` parameter of CUDA C++ that holds more.

        content  the structure's bytes: a NumPy record or array, whose size is a multiple of 16
        maps     {byte offset: TensorMap}, each offset a multiple of 64

        ``host`` has shape (n,) then. Raises ValueError for an offset that does not fit.
        """
        raw = np.frombuffer(np.asarray(content).tobytes(), np.uint8)
        for offset in maps:
            if offset % 64 or not 0 <= offset <= raw.size - MAP_BYTES:
                what = f"a tensor map at byte {offset} of {raw.size}"
                raise ValueError(f"{what}: it has 128, and starts at a multiple of 64")
        made = cls(maps.values())
        room = np.zeros(raw.size + MAP_ALIGNMENT, np.uint8)
        skip = -address_of(room)[0] % MAP_ALIGNMENT
        struct = room[skip : skip + raw.size]
        struct[:] = raw
        for offset, slot in zip(maps, made.made, strict=True):
            struct[offset : offset + MAP_BYTES] = slot
        made.host, made.offsets = struct, tuple(maps)
        return made

    def intact(self) -> dict[int, TensorMap]:
        """The maps by the addresses of their slots, without those that a kernel here has replaced."""
        content = self.host.reshape(-1)
        slots = (content[first : first + MAP_BYTES] for first in self.offsets)
        same = [np.array_equal(*pair) for pair in zip(slots, self.made, strict=True)]
        return {self.slot_address(i): m for i, m in enumerate(self.maps) if self.encoded or same[i]}

    @property
    def address(self) -> int:
        """Address of the first slot in host memory."""
        return address_of(self.host)[0]

    def slot_address(self, index: int) -> int:
        """Address of one slot in host memory; negative indices count from the end."""
        return self.address + self.offsets[index]

    def encode_into_host(self) -> np.ndarray:
        """Encode every map into its slot; returns ``host``. Raises as :func:`encode` does."""
        encoded, content = [encode(m) for m in self.maps], self.host.reshape(-1)  # all or nothing
        for first, data in zip(self.offsets, encoded, strict=True):
            content[first : first + MAP_BYTES] = np.frombuffer(data, np.uint8)
        self.encoded = True
        return self.host
