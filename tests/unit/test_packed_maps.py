"""The 128 bytes of a tensor map that the CPU engine reads: all that a map says comes back from them."""

import numpy as np
import pytest

from numba_deform.engines.tensormap import Im2colMap, TensorMap, TensorMapArray, TensorMapError
from numba_deform.engines.tensormap.packed import fields_of, map_of, pack, unpack

ADDRESS = 0x7F12_3456_7890
MAPS = [
    TensorMap(ADDRESS, "uint8", (2**32,), (), (16,)),
    TensorMap(ADDRESS, "bfloat16", (8, 3), (2**40 - 16,), (256, 7), l2_promotion="256B", fill="nan"),
    TensorMap(ADDRESS, "float32", (4, 5, 6, 7, 8), (16, 80, 480, 3360), (4, 1, 2, 3, 256), swizzle="64B",
              element_strides=(1, 2, 3, 8, 1)),
    TensorMap(ADDRESS - 16, "uint16", (16, 3, 9), (32, 96), (16, 2, 2), interleave="32B", swizzle="32B"),
    Im2colMap(ADDRESS, "float64", (4, 9, 2), (32, 288), (4, 1024), lower=(-(2**15),), upper=(2**15 - 1,)),
    Im2colMap(ADDRESS, "int32", (256, 9, 8, 2), (1024, 9216, 73728), (256, 20), lower=(-128, 3),
              upper=(-2, 127), element_strides=(1, 2, 3, 1)),
    Im2colMap(ADDRESS, "tfloat32", (8, 9, 8, 7, 2), (32, 288, 2304, 16128), (8, 64), lower=(-1, -2, -3),
              upper=(-4, -5, 6), swizzle="32B"),
]  # fmt: skip


@pytest.mark.parametrize("m", MAPS, ids=repr)
def test_a_map_comes_back_from_its_bytes(m):
    data = pack(fields_of(m))
    assert len(data) == 128
    again = map_of(unpack(data))
    assert again == m and type(again) is type(m) and repr(again) == repr(m)


def test_other_bytes_are_no_map():
    good = pack(fields_of(MAPS[0]))
    assert unpack(bytes(128)) is None and unpack(b"\xff" * 128) is None
    assert unpack(good[:5] + b"\x0d" + good[6:]) is None  # there are 13 types of elements
    assert unpack(good[:4] + b"\x02" + good[5:]) is None and unpack(good) is not None


def test_rules_are_asked_of_what_comes_back():
    fields = fields_of(MAPS[2])
    fields["box"][1] = 257
    with pytest.raises(TensorMapError, match=r"box\[1\] is 257"):
        map_of(unpack(pack(fields)))
    fields = fields_of(MAPS[1]) | {"rank": 3}
    with pytest.raises(TensorMapError, match=r"dims\[2\] is 0"):
        map_of(unpack(pack(fields)))
    fields = fields_of(MAPS[0])
    fields["element_strides"][0] = 1 << 20
    with pytest.raises(TensorMapError, match="element_strides"):
        map_of(unpack(pack(fields)))


def test_slots_hold_them():
    array = np.zeros((4, 32), np.float32)
    maps = TensorMapArray([TensorMap.of(array, (8, 2)), TensorMap.of(array[2:], (8, 1), swizzle="32B")])
    for slot, m in zip(maps.host, maps, strict=True):
        assert map_of(unpack(slot.tobytes()), m.array) == m
