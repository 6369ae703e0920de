"""The 128 bytes of a tensor map as the CPU engine makes them; it reads the driver's (decoding.py) as well.

A slot of a TensorMapArray holds them until the map is encoded for a GPU, so that a kernel on the CPU engine can
copy a map, replace fields of it, and use it.
"""

import struct

from .decoding import decode, filled
from .encoding import MAP_BYTES
from .im2col import Im2colMap
from .maps import TensorMap
from .rules import ELEMENT_TYPES, FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES

MAGIC = b"NDTM"
LAYOUT = struct.Struct("<4s7BxQ5Q4Q20s5B")  # a record of these, the rest of the 128 bytes are zeros
NAMES = {
    "mode": ("tile", "im2col"), "dtype": tuple(ELEMENT_TYPES), "interleave": tuple(INTERLEAVES),
    "swizzle": tuple(SWIZZLES), "l2_promotion": tuple(L2_PROMOTIONS), "fill": tuple(FILLS),
}  # fmt: skip
TILE, IM2COL = struct.Struct("<5I"), struct.Struct("<2I6h")  # the box; with the corners of the bounding box


def fields_of(m) -> dict:
    """What a map consists of, by name; lists as long as they may be, with zeros behind the map's rank."""
    fields = {name: getattr(m, name) for name in (*NAMES, "rank", "address")}
    for name, count in (("dims", 5), ("strides", 4), ("element_strides", 5), ("box", 5)):
        fields[name] = filled(getattr(m, name), count)
    for name in ("lower", "upper"):
        fields[name] = filled(getattr(m, name, ()), 3)
    return fields


def pack(fields: dict) -> bytes:
    """The 128 bytes of such fields."""
    names = [NAMES[name].index(fields[name]) for name in NAMES]
    if fields["mode"] == "tile":
        box = TILE.pack(*fields["box"])
    else:
        box = IM2COL.pack(*fields["box"][:2], *fields["lower"], *fields["upper"])
    steps = [min(step, 255) for step in fields["element_strides"]]  # more than 8 is wrong anyway
    rank, address, sizes = fields["rank"], fields["address"], fields["dims"] + fields["strides"]
    return LAYOUT.pack(MAGIC, *names, rank, address, *sizes, box, *steps).ljust(MAP_BYTES, b"\0")


def unpack(data: bytes) -> dict | None:
    """The fields that 128 bytes hold, whoever has made them; None if they are no map."""
    magic, *numbers = LAYOUT.unpack(data[: LAYOUT.size])
    names, (rank, address, *rest) = numbers[: len(NAMES)], numbers[len(NAMES) :]
    if magic != MAGIC:
        return decode(data)
    if any(n >= len(NAMES[name]) for name, n in zip(NAMES, names, strict=True)):
        return None
    fields = {name: NAMES[name][n] for name, n in zip(NAMES, names, strict=True)}
    fields |= {"rank": rank, "address": address, "dims": rest[:5], "strides": rest[5:9]}
    fields |= {"element_strides": rest[10:], "lower": [0] * 3, "upper": [0] * 3}
    if fields["mode"] == "tile":
        return fields | {"box": list(TILE.unpack(rest[9]))}
    channels, pixels, *corners = IM2COL.unpack(rest[9])
    return fields | {"box": [channels, pixels, 0, 0, 0], "lower": corners[:3], "upper": corners[3:]}


def blank() -> dict:
    """The fields of 128 zeros, which a kernel may begin a map with: each is the first of its values."""
    fields = {name: values[0] for name, values in NAMES.items()} | {"rank": 1, "address": 0}
    return fields | {"dims": [0] * 5, "strides": [0] * 4, "element_strides": [0] * 5, "box": [0] * 5,
                     "lower": [0] * 3, "upper": [0] * 3}  # fmt: skip


def decoded(data: bytes):
    """The TensorMap or Im2colMap of 128 bytes, as the driver encodes it or as a TensorMapArray holds it.

    Raises ValueError for what is none, and TensorMapError for the first broken rule.
    """
    fields = unpack(bytes(data)) if len(data) == MAP_BYTES else None
    if fields is None:
        raise ValueError(f"these {len(data)} bytes are no tensor map")
    return map_of(fields)


def map_of(fields: dict, array=None):
    """The map of such fields; ``array``: what keeps its memory alive, which reaches as far as the map.

    Raises TensorMapError for the first broken rule.
    """
    rank, tile = fields["rank"], fields["mode"] == "tile"
    options = {name: fields[name] for name in ("interleave", "swizzle", "l2_promotion", "fill")}
    if not tile:
        options |= {name: fields[name][: rank - 2] for name in ("lower", "upper")}
    made = (TensorMap if tile else Im2colMap)(
        fields["address"], fields["dtype"], fields["dims"][:rank], fields["strides"][: max(rank - 1, 0)],
        fields["box"][: rank if tile else 2], element_strides=fields["element_strides"][:rank], **options
    )  # fmt: skip
    object.__setattr__(made, "array", array)
    return made
