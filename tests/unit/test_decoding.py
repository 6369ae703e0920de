"""Encoded tensor maps read back: those that a driver has made, and as the inverse of the encoder beside it.

``encoded_maps.json`` holds 53 of the 4,500 random maps that the layout was found from: their arguments, and
what cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col made of them (H100, CUDA 13.0; the first 76 bytes, the
others are zeros)."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from numba_deform.engines.tensormap import TensorMap, TensorMapArray, decoded, packed
from numba_deform.engines.tensormap.decoding import CORNER_BITS, TYPES, decode, encoded

MAPS = json.loads((Path(__file__).parent / "encoded_maps.json").read_text())


def fields_of(m):
    fields = {name: m[name] for name in (*packed.NAMES, "rank", "address")}
    for name, count in (("dims", 5), ("strides", 4), ("element_strides", 5), ("box", 5)):
        fields[name] = m[name] + [0] * (count - len(m[name]))
    for name in ("lower", "upper"):
        fields[name] = m.get(name, []) + [0] * (3 - len(m.get(name, [])))
    return fields


def test_what_the_driver_has_made():
    assert {m["dtype"] for m in MAPS} == set(TYPES) and {m["rank"] for m in MAPS} == {1, 2, 3, 4, 5}
    for m in MAPS:
        data = bytes.fromhex(m["encoded"]).ljust(128, b"\0")
        assert decode(data) == fields_of(m)
        assert encoded(fields_of(m)) == data


def test_random_maps_come_back():
    choose = random.Random(0)
    for _ in range(500):
        rank, tile = choose.randint(1, 5), True
        if rank >= 3:
            tile = choose.random() < 0.5
        fields = {name: choose.choice(values) for name, values in packed.NAMES.items()}
        fields["swizzle"] = choose.choice(packed.NAMES["swizzle"][:4])  # not known of later ones
        fields |= {"mode": "tile" if tile else "im2col", "rank": rank}
        fields["address"] = choose.randrange(1 << 43) << 4
        for name, count, most in (("dims", rank, 2**32), ("element_strides", rank, 8)):
            fields[name] = [choose.randint(1, most) for _ in range(count)] + [0] * (5 - rank)
        fields["strides"] = [choose.randrange(1 << 36) << 4 for _ in range(rank - 1)] + [0] * (5 - rank)
        corner = 0 if tile else 1 << CORNER_BITS[rank] - 1
        for name in ("lower", "upper"):
            spatial = 0 if tile else rank - 2
            fields[name] = [choose.randint(-corner, corner - 1) for _ in range(spatial)] + [0] * (3 - spatial)
        sizes = [256] * rank if tile else [256, 1024]
        fields["box"] = [choose.randint(1, n) for n in sizes] + [0] * (5 - len(sizes))
        assert decode(encoded(fields)) == fields


def test_what_is_no_map():
    assert decode(bytes(128)) is None
    data = bytearray(encoded(fields_of(MAPS[0])))
    data[100] = 1
    assert decode(bytes(data)) is None
    with pytest.raises(ValueError, match="these 64 bytes are no tensor map"):
        decoded(bytes(64))
    with pytest.raises(ValueError, match="these 128 bytes"):
        decoded(bytes(128))


def test_a_map_of_an_array():
    array = np.zeros((64, 32), np.float16)
    made = TensorMap.of(array, (32, 8), swizzle="64B")
    assert decoded(encoded(packed.fields_of(made))) == made == decoded(TensorMapArray([made]).host[0].tobytes())


