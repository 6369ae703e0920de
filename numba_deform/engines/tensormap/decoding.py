"""The 128 bytes of a tensor map as the driver encodes them, read back.

NVIDIA does not document them. What stands here was found by encoding 4,500 random maps, tiled and im2col, with
the driver (CUDA 13.0, an H100): each bit is that of one field, and the last two words follow from the others.
``tests/unit/test_decoding.py`` holds some of those maps, and compares both directions.
"""

import math

from .encoding import MAP_BYTES
from .rules import ELEMENT_TYPES, FILLS, INTERLEAVES, L2_PROMOTIONS, SWIZZLES

# (first bit, bits) of each field
ADDRESS, IM2COL, RANK, DTYPE, TENSOR_FLOAT = (0, 57), (64, 1), (68, 3), (71, 4), (80, 1)
INTERLEAVE, SWIZZLE, FILL, L2 = (75, 2), (77, 2), (79, 1), (81, 2)
STRIDES = tuple(((96 + 32 * i, 32), (224 + 4 * i, 4)) for i in range(4))  # low and high part, in 16 bytes
DIMS = tuple((256 + 32 * i, 32) for i in range(5))  # less one, as steps, boxes, channels and pixels are
STEPS = tuple((416 + 3 * i, 3) for i in range(5))
BOX = tuple((440 + 8 * i, 8) for i in range(5))  # the first one of im2col: channels
PIXELS = (480, 10)
CORNER_BITS = {3: 16, 4: 8, 5: 5}  # of one coordinate by rank; lower corners from bit 448, upper ones from 464
BYTES, ROW = (512, 32), (576, 32)  # of a box in shared memory; after which the swizzle begins anew
ROWS = {"none": 16, "32B": 256, "64B": 512, "128B": 1024}
# (type, whether it is rounded to tf32) by number
TYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7,
    "float32_ftz": 8, "float64": 9, "bfloat16": 10, "tfloat32": 7 | 16, "tfloat32_ftz": 8 | 16,
}  # fmt: skip


def decode(data: bytes, replaced=False) -> dict | None:
    """The fields that 128 encoded bytes hold, as ``packed.unpack`` has them; None if they are no map.
    ``replaced``: what follows from fields may be of others, for ``tensormap.replace`` leaves it as it was."""
    bits = int.from_bytes(data, "little")

    def field(place):
        return bits >> place[0] & (1 << place[1]) - 1

    number = field(DTYPE) | field(TENSOR_FLOAT) << 4
    names = [name for name, value in TYPES.items() if value == number]
    rank, tile = field(RANK) + 1, not field(IM2COL)
    if not names or rank > 5 or field(INTERLEAVE) > 2 or rank < 3 and not tile:
        return None
    dims = [field(place) + 1 for place in DIMS[:rank]]
    strides = [(field(low) | field(high) << 32) << 4 for low, high in STRIDES[: rank - 1]]
    steps = [field(place) + 1 for place in STEPS[:rank]]
    corners = [[0] * 3, [0] * 3]
    if tile:
        box = [field(place) + 1 for place in BOX[:rank]]
    else:
        box, width = [field(BOX[0]) + 1, field(PIXELS) + 1], CORNER_BITS[rank]
        for corner, first in zip(corners, (448, 464), strict=True):
            for i in range(rank - 2):
                value = field((first + width * i, width))
                corner[i] = value - (value >> width - 1 << width)
    fields = {
        "mode": "tile" if tile else "im2col", "dtype": names[0],
        "interleave": tuple(INTERLEAVES)[field(INTERLEAVE)], "swizzle": tuple(SWIZZLES)[field(SWIZZLE)],
        "l2_promotion": tuple(L2_PROMOTIONS)[field(L2)], "fill": tuple(FILLS)[field(FILL)], "rank": rank,
        "address": field(ADDRESS), "dims": filled(dims, 5), "strides": filled(strides, 4),
        "element_strides": filled(steps, 5), "box": filled(box, 5), "lower": corners[0], "upper": corners[1],
    }  # fmt: skip
    compared = slice(0, BYTES[0] // 8 if replaced else None)
    return fields if encoded(fields)[compared] == data[compared] else None


def encoded(fields: dict) -> bytes:
    """The 128 bytes that the driver makes of such fields."""
    bits, rank, tile = 0, fields["rank"], fields["mode"] == "tile"

    def put(place, value):
        nonlocal bits
        bits |= (int(value) & (1 << place[1]) - 1) << place[0]

    put(ADDRESS, fields["address"])
    put(IM2COL, not tile)
    put(RANK, rank - 1)
    put(DTYPE, TYPES[fields["dtype"]])
    put(TENSOR_FLOAT, TYPES[fields["dtype"]] >> 4)
    for place, name, table in ((INTERLEAVE, "interleave", INTERLEAVES), (SWIZZLE, "swizzle", SWIZZLES),
                               (FILL, "fill", FILLS), (L2, "l2_promotion", L2_PROMOTIONS)):  # fmt: skip
        put(place, tuple(table).index(fields[name]))
    box = fields["box"][: rank if tile else 2]
    for places, values in ((DIMS, fields["dims"][:rank]), (STEPS, fields["element_strides"][:rank]),
                           (BOX if tile else (BOX[0], PIXELS), box)):  # fmt: skip
        for place, value in zip(places, values, strict=False):
            put(place, value - 1)
    for (low, high), value in zip(STRIDES, fields["strides"][: rank - 1], strict=False):
        put(low, value >> 4)
        put(high, value >> 36)
    if not tile:
        width = CORNER_BITS[rank]
        for name, first in (("lower", 448), ("upper", 464)):
            for i in range(rank - 2):
                put((first + width * i, width), fields[name][i])
    taken = [n // step for n, step in zip(box, fields["element_strides"], strict=False)] if tile else box
    put(BYTES, math.prod(taken) * ELEMENT_TYPES[fields["dtype"]].itemsize)
    put(ROW, ROWS[fields["swizzle"]])
    return bits.to_bytes(MAP_BYTES, "little")


def filled(values, count):
    """So many integers, with zeros behind the values."""
    return [*map(int, values), *[0] * (count - len(values))]
