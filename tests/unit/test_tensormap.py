"""Tensor maps: rules and messages, boxes on the CPU, swizzle, arrays of maps, level maps."""

import importlib.util
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_deform.engines.tensormap import (
    ELEMENT_TYPES,
    FILLS,
    IM2COL_RULES,
    INTERLEAVES,
    L2_PROMOTIONS,
    RULES,
    SWIZZLES,
    DriverMissing,
    TensorMap,
    TensorMapArray,
    TensorMapError,
    driver_arguments,
    element_type,
    encode,
    encoding,
    swizzle_offsets,
)
from numba_deform.engines.tensormap.packed import map_of, unpack
from numba_deform.kernels.level_maps import level_maps, level_maps_rank5
from numba_deform.kernels.problem import Level, make_levels


def load_sweep():
    """bench/tensormap_rules.py as a module: it holds the two sides of every rule."""
    path = Path(__file__).resolve().parents[2] / "bench" / "tensormap_rules.py"
    spec = importlib.util.spec_from_file_location("tensormap_rules", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


sweep = load_sweep()
ADDRESS = 0x7F00_0000_0000  # any 256-byte aligned address: nothing reads it


def aligned(nbytes: int) -> np.ndarray:
    """A uint8 array of random bytes at a 128-byte aligned address."""
    room = np.random.default_rng(nbytes).integers(0, 256, nbytes + 128, dtype=np.uint8)
    skip = -room.__array_interface__["data"][0] % 128
    return room[skip : skip + nbytes]


def small_map(**changes) -> TensorMap:
    """100 x 100 pixels of 32 float16 channels at a made-up address, box 2 x 2 pixels."""
    arguments = {
        "address": ADDRESS,
        "dtype": "float16",
        "dims": (32, 100, 100),
        "strides": (64, 6400),
        "box": (32, 2, 2),
    }
    return TensorMap(**(arguments | changes))


# ---------------------------------------------------------------------------------------------
# Rules

ROW = "the box row, box[0] * itemsize, is"
NEVER_EMPTY = "nothing can be copied from an empty tensor"
DIMS = "but must be 1 to 2^32 = 4294967296 elements"
MESSAGES = {
    "rank: rank 0": "rank, the number of dims, is 0, but must be 1 to 5",
    "rank: rank 6": "rank, the number of dims, is 6, but must be 1 to 5; "
    "merge dimensions that are dense in memory",
    "rank, interleaved: rank 2": "rank, the number of dims, is 2, but must be 3 to 5 when "
    "interleaved; add dimensions of size 1, or use interleave 'none'",
    "argument counts: one stride for 3 dims": "len(strides) is 1, but must be 2 for 3 dims; "
    "the innermost dimension is dense and has no entry",
    "argument counts: three strides for 3 dims": "len(strides) is 3, but must be 2 for 3 dims; "
    "the innermost dimension is dense and has no entry",
    "argument counts: box of 2 for 3 dims": "len(box) is 2, but must be 3, one for each of the "
    "dims",
    "argument counts: 2 element strides for 3 dims": "len(element_strides) is 2, but must be 3, "
    "one for each of the dims",
    "base alignment: base + 8": "the base address is 0x7f0000000008, but must be a multiple of "
    "16 bytes; it lies 8 bytes past such an address: start there, or copy the data",
    "base alignment, interleave 32B: base + 16": "the base address is 0x7f0000000010, but must "
    "be a multiple of 32 bytes with interleave 32B; it lies 16 bytes past such an address: "
    "start there, or copy the data",
    "dim range: dims[2] = 0": f"dims[2] is 0, {DIMS}; {NEVER_EMPTY}",
    "dim range: dims[2] = 4294967297": f"dims[2] is 4294967297, {DIMS}",
    "stride multiple: strides[0] = 56": "strides[0] (of dimension 1) is 56 bytes, but must be a "
    "multiple of 16 bytes; pad dimension 0 in memory so that the next one starts 64 bytes on",
    "stride multiple: strides[1] = 6408": "strides[1] (of dimension 2) is 6408 bytes, but must "
    "be a multiple of 16 bytes; pad dimension 1 in memory so that the next one starts 6416 bytes "
    "on",
    "stride multiple, interleave 32B: strides[0] = 48": "strides[0] (of dimension 1) is 48 "
    "bytes, but must be a multiple of 32 bytes with interleave 32B; pad dimension 0 in memory so "
    "that the next one starts 64 bytes on",
    "stride range: strides[1] = 1099511627776": "strides[1] (of dimension 2) is 1099511627776 "
    "bytes, but must be 0 to 2^40 - 1 bytes",
    "box range: box[1] = 0": "box[1] is 0, but must be 1 to 256 elements",
    "box range: box[1] = 257": "box[1] is 257, but must be 1 to 256 elements; "
    "copy a larger region with several boxes",
    "box row multiple: box[0] = 4 of 2 bytes": f"{ROW} 4 * 2 = 8 bytes, but must be a multiple "
    "of 16 bytes; choose box[0] = 8, the next that fits",
    "box row multiple: box[0] = 12 of 2 bytes": f"{ROW} 12 * 2 = 24 bytes, but must be a "
    "multiple of 16 bytes; choose box[0] = 16, the next that fits",
    "element stride range: element_strides[1] = 0": "element_strides[1] is 0, but must be 1 to 8",
    "element stride range: element_strides[1] = 9": "element_strides[1] is 9, but must be 1 to 8",
    "swizzle span: 48 bytes with 32B": f"{ROW} 24 * 2 = 48 bytes, but must be at most 32 bytes "
    "with swizzle 32B; choose box[0] <= 16, or swizzle '64B'",
    "swizzle span: 80 bytes with 64B": f"{ROW} 40 * 2 = 80 bytes, but must be at most 64 bytes "
    "with swizzle 64B; choose box[0] <= 32, or swizzle '128B'",
    "swizzle span: 144 bytes with 128B": f"{ROW} 72 * 2 = 144 bytes, but must be at most 128 "
    "bytes with swizzle 128B; choose box[0] <= 64, or swizzle 'none'",
    **{
        f"swizzle of interleave 32B: swizzle {name}": f"swizzle is '{name}', but must be '32B' "
        "with interleave 32B"
        for name in ("none", "64B", "128B")
    },
    **{
        f"NaN fill: {name}": f"fill is 'nan' for {name}, but must be 'zero' unless dtype is "
        "floating; use fill='zero'"
        for name in ("uint8", "uint16", "uint32", "int32", "uint64", "int64")
    },
    **{
        f"im2col rank: rank {rank}": f"rank, the number of dims, is {rank}, but must be 3 to 5 in im2col "
        f"mode{hint}"
        for rank, hint in ((2, "; add dimensions of size 1"), (6, ""))
    },
    "im2col argument counts: one corner for 4 dims": "len(lower) is 1, but must be 2 for 4 dims in im2col "
    "mode",
    **{
        f"im2col box range: {size} {name}": f"box[{i}], the {name} of a {whole}, is {size}, but must be 1 to "
        f"{most}"
        for i, name, whole, most, sizes in (
            (0, "channels", "pixel", 256, (0, 264)), (1, "pixels", "load", 1024, (0, 1025)),
        )
        for size in sizes
    },
    **{
        f"im2col corner range: {name}[0] = {at}, rank {rank}": f"{name}[0] is {at}, but must be {least} to "
        f"{most} for rank {rank}"
        for rank, least, most in ((3, -32768, 32767), (4, -128, 127), (5, -16, 15))
        for name, at in (("lower", least - 1), ("upper", most + 1))
    },
    "im2col box not empty: upper[0] = -101": "upper[0] is -101, but must be at least lower[0] - (dims[1] - 1) "
    "= -100; the bounding box is empty",
    "map alignment: map at aligned address + 32": "the address of the encoded map is 0x20, but "
    "must be a multiple of 64 bytes; TensorMapArray aligns its maps",
}


EVERY_RULE = RULES + [rule for rule in IM2COL_RULES if rule not in RULES]


def test_every_rule_has_both_sides():
    sides = {(case.rule, case.expected) for case in sweep.rule_cases()}
    assert sides == {(rule.name, side) for rule in EVERY_RULE for side in ("legal", "illegal")}


def test_every_illegal_case_has_a_pinned_message():
    assert set(MESSAGES) == {c.name for c in sweep.rule_cases() if c.expected == "illegal"}


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.name)
def test_rule_on_both_sides(rule):
    for case in (case for case in sweep.rule_cases() if case.rule == rule.name):
        if case.expected == "legal":
            case.tensor_map(ADDRESS, checked=True)
            continue
        # Exactly this rule is broken; the unchecked map can still be made, to ask the driver.
        case.tensor_map(ADDRESS, checked=False)
        with pytest.raises(TensorMapError) as caught:
            case.tensor_map(ADDRESS, checked=True)
        assert str(caught.value) == f"tensor map rule '{rule.name}': {MESSAGES[case.name]}"
        assert caught.value.rule == rule.name
        assert f"is {caught.value.given}, but must be {caught.value.required}" in str(caught.value)


# Where the lists do not fit together, the other rules cannot be asked.
SEPARABLE = [c for c in sweep.rule_cases() if "rank" != c.rule.split()[-1] and "argument counts" not in c.rule]


@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: case.name)
def test_only_the_rule_in_question_is_broken(case):
    """Otherwise the sweep would ask the driver about two mistakes at once."""
    m = case.tensor_map(ADDRESS, checked=False)
    broken = [rule.name for rule in m.rules if rule.check(m)]
    assert broken == ([case.rule] if case.expected == "illegal" else [])


@pytest.mark.parametrize("stride", [0, 32])
def test_strides_smaller_than_a_row_pass(stride):
    """The documentation does not clearly forbid overlap, and broadcasting needs stride 0."""
    assert small_map(strides=(stride, 6400)).strides == (stride, 6400)


def test_negative_stride():
    with pytest.raises(TensorMapError, match=r"-64 bytes, but must be 0 to 2\^40 - 1.*flipped"):
        small_map(strides=(-64, 6400))


def test_an_array_that_runs_backwards():
    """By one byte already: the memory is before the base, whatever the map's end."""
    array = aligned(32)[15:17][::-1]
    with pytest.raises(TensorMapError, match="a stride of the array is negative"):
        TensorMap(array, "uint8", (16,), (), (16,))


def test_interleave_relaxes_the_box_row():
    small_map(box=(4, 2, 2), interleave="16B")
    small_map(interleave="16B", swizzle="32B")


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("swizzle", "256B", "swizzle is '256B', but must be one of 'none', '32B', '64B', '128B'"),
        ("interleave", 16, "interleave is 16, but must be one of 'none', '16B', '32B'"),
        ("fill", "one", "fill is 'one', but must be one of 'zero', 'nan'"),
        ("l2_promotion", "1B", "l2_promotion is '1B', but must be one of"),
        ("dims", (32, 1.5, 1), "dims[1] is 1.5, but must be an integer"),
        ("dtype", "int8", "dtype is int8, but must be one of"),
        ("dtype", np.dtype(np.int16), "view the data as 'uint16': the bits move unchanged"),
        ("dtype", np.dtype(">f4"), "convert the array to the machine's byte order"),
        ("address", "0x10", "the base address is a str, but must be an int"),
    ],
)
def test_unusable_arguments(option, value, message):
    with pytest.raises(TensorMapError) as caught:
        small_map(**{option: value})
    assert message in str(caught.value)


# ---------------------------------------------------------------------------------------------
# What a map knows


def test_properties():
    m = small_map(box=(32, 5, 4), element_strides=(1, 2, 3))
    assert (m.rank, m.itemsize, m.array) == (3, 2, None)
    assert m.box_shape == (32, 3, 2)
    assert m.box_bytes == 32 * 3 * 2 * 2
    assert m.extent == 100 * 100 * 32 * 2


def test_first_element_stride_counts_only_when_interleaved():
    assert small_map(element_strides=(2, 1, 1)).box_shape == (32, 2, 2)
    assert small_map(element_strides=(2, 1, 1), interleave="16B").box_shape == (16, 2, 2)


def test_frozen_and_comparable():
    m = small_map()
    with pytest.raises(AttributeError):
        m.dims = (1,)
    assert m == small_map() and hash(m) == hash(small_map())
    assert m != small_map(box=(32, 4, 4))


@pytest.mark.parametrize(
    "dtype, name",
    [(np.float32, "float32"), ("float16", "float16"), (np.dtype("<i8"), "int64"), (">u1", "uint8")],
)
def test_element_type(dtype, name):
    assert element_type(dtype) is ELEMENT_TYPES[name]


def test_bfloat16_array():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert element_type(ml_dtypes.bfloat16).name == "bfloat16"
    array = aligned(2 * 4 * 8).view(ml_dtypes.bfloat16).reshape(4, 8)
    m = TensorMap.of(array, (8, 2))
    assert m.dtype == "bfloat16"
    assert m.load_box((0, 1)).tobytes() == array[1:3].tobytes()


def test_of_numpy_array():
    array = aligned(5 * 6 * 16 * 4).view(np.float32).reshape(5, 6, 16)[:, :4, :8]
    m = TensorMap.of(array, (8, 2, 2), swizzle="32B")
    assert (m.dims, m.strides, m.dtype, m.swizzle) == ((8, 4, 5), (64, 384), "float32", "32B")
    assert m.array is array


@pytest.mark.parametrize("strides", [None, (256, 32, 2)])
def test_of_device_array(strides):
    interface = {"shape": (9, 8, 16), "typestr": "<f2", "data": (ADDRESS, False)}
    if strides:
        interface["strides"] = strides
    m = TensorMap.of(SimpleNamespace(__cuda_array_interface__=interface), (16, 2, 2))
    assert (m.address, m.dims, m.strides, m.array) == (ADDRESS, (16, 8, 9), (32, 256), None)
    bits = TensorMap.of(
        SimpleNamespace(__cuda_array_interface__=interface), (16, 2, 2), dtype="bfloat16"
    )
    assert bits.dtype == "bfloat16"


def test_of_refuses_sparse_innermost():
    array = aligned(64 * 32).view(np.float16).reshape(32, 32)
    with pytest.raises(TensorMapError, match="last axis .* is 64 bytes, but must be 2 bytes"):
        TensorMap.of(array.T, (8, 8))
    with pytest.raises(TensorMapError, match="is 4 bytes, but must be 2 bytes"):
        TensorMap.of(array[:, ::2], (8, 8))


def test_of_refuses_other_itemsize_and_lists():
    with pytest.raises(TensorMapError, match=r"float32 \(4 bytes\)"):
        TensorMap.of(np.zeros((4, 8), np.float16), (8, 2), dtype="float32")
    with pytest.raises(TensorMapError, match="the array is a list"):
        TensorMap.of([[1, 2]], (8, 2))


def test_map_past_the_end_of_its_array():
    array = aligned(4 * 64).view(np.float16)
    TensorMap(array, "float16", (32, 4), (64,), (32, 2))
    with pytest.raises(
        TensorMapError, match="320 bytes past its base, but must be within the array's 256 bytes"
    ):
        TensorMap(array, "float16", (32, 5), (64,), (32, 2))


def test_str_and_repr():
    m = small_map(dims=(32, 100, 90), swizzle="64B", element_strides=(1, 2, 1))
    assert str(m).splitlines() == [
        "tensor map: float16, rank 3, base 0x7f0000000000 (device memory)",
        "  dim              size  stride (bytes)   box  every",
        "  0 C                32               2    32      1",
        "  1 W               100              64     2      2",
        "  2 H                90            6400     2      1",
        "  swizzle=64B, fill=zero; 128 bytes per box",
    ]
    assert repr(m) == (
        "TensorMap(float16, dims=(32, 100, 90), strides=(64, 6400), box=(32, 2, 2), "
        "element_strides=(1, 2, 1), base=0x7f0000000000, swizzle=64B, fill=zero)"
    )


# ---------------------------------------------------------------------------------------------
# Boxes against a loop over elements


@st.composite
def maps_and_corners(draw):
    """A map of rank 1..5 over random bytes, and a corner in and around it."""
    rank = draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(["uint8", "float16", "float32", "float64", "int64", "bfloat16"]))
    itemsize = ELEMENT_TYPES[dtype].itemsize
    row = 16 // itemsize  # elements of the narrowest legal box row
    dims = [draw(st.integers(1, 3 * row))] + [draw(st.integers(1, 5)) for _ in range(rank - 1)]
    strides, dense = [], dims[0] * itemsize
    for dim in dims[1:]:
        stride = -(-dense // 16) * 16 + 16 * draw(st.integers(0, 2))
        strides.append(stride)
        dense = stride * dim
    box = [row * draw(st.integers(1, 2))] + [draw(st.integers(1, 4)) for _ in range(rank - 1)]
    steps = [draw(st.integers(1, 3)) for _ in range(rank)]
    floating = ELEMENT_TYPES[dtype].floating
    fill = draw(st.sampled_from(["zero", "nan"])) if floating else "zero"
    m = TensorMap(
        aligned(max(dense, 16)), dtype, dims, strides, box, element_strides=steps, fill=fill
    )
    corner = [draw(st.integers(-size - 1, dim + 1)) for size, dim in zip(box, dims, strict=True)]
    return m, corner


def elements_of_box(m, corner):
    """(byte offset in the array or None if outside, byte offset in the box) of each element."""
    steps = (1, *m.element_strides[1:])
    counts = [-(-size // step) for size, step in zip(m.box, steps, strict=True)]
    strides = (m.itemsize, *m.strides)
    for number, index in enumerate(product(*(range(count) for count in counts[::-1]))):
        at = [c + i * s for c, i, s in zip(corner, index[::-1], steps, strict=True)]
        inside = all(0 <= x < dim for x, dim in zip(at, m.dims, strict=True))
        offset = sum(x * stride for x, stride in zip(at, strides, strict=True))
        yield offset if inside else None, number * m.itemsize


@settings(max_examples=60, deadline=None)
@given(maps_and_corners())
def test_load_box_against_a_loop(drawn):
    m, corner = drawn
    raw = m.array.tobytes()
    fill = b"\0" if m.fill == "zero" else b"\xf7\x7f"
    fill *= m.itemsize // len(fill)
    sources = [source for source, _ in elements_of_box(m, corner)]
    expected = b"".join(fill if s is None else raw[s : s + m.itemsize] for s in sources)
    got = m.load_box(corner)
    assert got.dtype == np.uint8 and got.shape == (m.box_bytes,)
    assert got.tobytes() == expected

    runs = [(address - m.address, nbytes) for address, nbytes in m.runs(corner)]
    inside = [byte for s in sources if s is not None for byte in range(s, s + m.itemsize)]
    assert [byte for start, nbytes in runs for byte in range(start, start + nbytes)] == inside


@settings(max_examples=100, deadline=None)
@given(maps_and_corners())
def test_store_box_against_a_loop(drawn):
    m, corner = drawn
    data = np.random.default_rng(1).integers(0, 256, m.box_bytes, dtype=np.uint8)
    before = m.array.tobytes()
    if min(corner) < 0:
        with pytest.raises(TensorMapError, match="only loads may start before the tensor"):
            m.store_box(corner, data)
        assert m.array.tobytes() == before
        return
    expected = bytearray(before)
    for target, source in elements_of_box(m, corner):
        if target is not None:
            expected[target : target + m.itemsize] = data[source : source + m.itemsize].tobytes()
    m.store_box(corner, data)
    assert m.array.tobytes() == bytes(expected)


def test_nan_fill_is_nan():
    for dtype in ("float16", "float32", "float64"):
        m = TensorMap.of(np.zeros((4, 16), dtype), (16, 2), fill="nan")
        assert np.isnan(m.load_box((0, 4)).view(dtype)).all()


def test_load_box_is_a_copy():
    m = TensorMap.of(np.zeros((4, 16), np.float16), (16, 4))
    m.load_box((0, 0))[:] = 255
    assert not m.array.any()


def test_load_box_with_numpy_coordinates():
    """32-bit coordinates near the limit must not overflow."""
    m = TensorMap.of(np.ones((4, 16), np.float16), (16, 2))
    far = np.array([0, 2**31 - 1], dtype=np.int32)
    assert not m.load_box(far).any()
    assert not m.load_box(-far).any()
    assert m.load_box(np.array([0, 1], dtype=np.int32)).any()


@pytest.mark.parametrize("corner, message", [((0, 0), "must be 3"), ((0, 0, 2**31), "32-bit")])
def test_unusable_corner(corner, message):
    m = TensorMap.of(np.zeros((4, 4, 16), np.float16), (16, 2, 2))
    with pytest.raises(TensorMapError, match=message):
        m.load_box(corner)


def test_store_refuses_wrong_size_and_read_only():
    array = np.zeros((4, 16), np.float16)
    m = TensorMap.of(array, (16, 2))
    with pytest.raises(TensorMapError, match="is 32 bytes, but must be 64 bytes, one box"):
        m.store_box((0, 0), bytes(32))
    m.store_box((0, 2), np.arange(32, dtype=np.float16).reshape(2, 16))
    assert array[2:].ravel().tolist() == list(range(32))
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        TensorMap.of(array, (16, 2)).store_box((0, 0), bytes(64))


def test_no_cpu_copy_where_it_is_not_modelled():
    with pytest.raises(ValueError, match="device address 0x7f0000000000"):
        small_map().load_box((0, 0, 0))
    last_pixel = ADDRESS + 99 * 64  # the box overhangs: one pixel of each of its rows is there
    assert list(small_map().runs((0, 99, 7))) == [(last_pixel + y * 6400, 64) for y in (7, 8)]
    with pytest.raises(NotImplementedError, match="interleave 16B"):
        small_map(interleave="16B").load_box((0, 0, 0))
    with pytest.raises(NotImplementedError, match="tfloat32 changes bits"):
        small_map(dtype="tfloat32", dims=(16, 9, 9), box=(16, 2, 2)).load_box((0, 0, 0))


# ---------------------------------------------------------------------------------------------
# Swizzle


@pytest.mark.parametrize("mode, bits", [("none", 0), ("32B", 1), ("64B", 2), ("128B", 3)])
def test_swizzle_bit_by_bit(mode, bits):
    offsets = swizzle_offsets(4096, mode)
    for offset in range(4096):
        expected = offset
        for bit in range(bits):
            if offset & (1 << (7 + bit)):
                expected ^= 1 << (4 + bit)
        assert offsets[offset] == expected
    assert sorted(offsets) == list(range(4096))  # nothing lost, nothing doubled


def test_swizzle_name():
    with pytest.raises(TensorMapError, match="swizzle is '128'"):
        swizzle_offsets(16, "128")


# ---------------------------------------------------------------------------------------------
# Arrays of maps


def test_array_of_maps():
    maps = [small_map(dims=(32, 100, n)) for n in range(1, 8)]
    array = TensorMapArray(maps)
    assert len(array) == 7 and array[-1] is maps[-1] and list(array) == maps
    assert array.host.shape == (7, 128) and array.host.dtype == np.uint8
    assert array.host.flags.c_contiguous
    assert array.address % 128 == 0 and array.address == array.host.ctypes.data
    for i in range(7):
        assert array.slot_address(i) == array.address + 128 * i
    assert array.slot_address(-1) == array.slot_address(6)
    assert not array.encoded
    assert map_of(unpack(array.host[3].tobytes())) == maps[3]


def test_empty_array():
    assert TensorMapArray([]).host.shape == (0, 128)


# ---------------------------------------------------------------------------------------------
# Encoding


class FakeDriver:
    """Takes the place of cuda.bindings.driver: remembers what it was asked, answers ``status``.

    Every enumerator is its own name, and the n-th map it encodes is 128 times the byte n.
    """

    cuuint64_t = cuuint32_t = int

    class Names:
        def __getattr__(self, name):
            return name

    CUtensorMapDataType = CUtensorMapInterleave = CUtensorMapSwizzle = Names()
    CUtensorMapL2promotion = CUtensorMapFloatOOBfill = Names()

    def __init__(self, status="CUDA_SUCCESS"):
        self.status = SimpleNamespace(name=status)
        success = self.status if status == "CUDA_SUCCESS" else None
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=success)
        self.asked = []

    def cuTensorMapEncodeTiled(self, *arguments):
        self.asked.append(arguments)
        memory = np.full(128, len(self.asked), dtype=np.uint8)
        # The default argument keeps the memory alive as long as the result.
        return self.status, SimpleNamespace(getPtr=lambda memory=memory: memory.ctypes.data)


def test_encode_passes_every_argument(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(encoding, "start_driver", lambda: fake)
    m = small_map(element_strides=(1, 2, 1), swizzle="64B", l2_promotion="256B", fill="nan")
    assert encode(m) == b"\1" * 128
    assert fake.asked == [
        (
            "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
            3,
            ADDRESS,
            [32, 100, 100],
            [64, 6400],
            [32, 2, 2],
            [1, 2, 1],
            "CU_TENSOR_MAP_INTERLEAVE_NONE",
            "CU_TENSOR_MAP_SWIZZLE_64B",
            "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
            "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
        )
    ]


def test_encode_rank_1_passes_an_array_of_strides(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(encoding, "start_driver", lambda: fake)
    encode(small_map(dims=(64,), strides=(), box=(32,)))
    assert len(fake.asked[0][4]) == 1  # an empty list would reach the driver as a null pointer


def test_driver_refusal_shows_every_argument(monkeypatch):
    fake = FakeDriver("CUDA_ERROR_INVALID_VALUE")
    monkeypatch.setattr(encoding, "start_driver", lambda: fake)
    m = small_map()
    with pytest.raises(TensorMapError) as caught:
        encode(m)
    assert caught.value.rule == "driver" and caught.value.given == "CUDA_ERROR_INVALID_VALUE"
    for name in driver_arguments(m):
        assert f"\n  {name} = " in str(caught.value)
    assert "globalAddress = 0x7f0000000000" in str(caught.value)


def test_encode_into_host(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(encoding, "start_driver", lambda: fake)
    array = TensorMapArray([small_map(), small_map(box=(32, 4, 4))])
    assert array.encode_into_host() is array.host and array.encoded
    assert [set(slot) for slot in array.host.tolist()] == [{1}, {2}]


def test_no_cuda_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    array = TensorMapArray([small_map()])
    with pytest.raises(DriverMissing, match="cuda-python is not installed"):
        array.encode_into_host()
    assert not array.encoded


def driver_starts() -> bool:
    try:
        encoding.start_driver()
    except DriverMissing:
        return False
    return True


def test_no_driver():
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python")
    if driver_starts():
        pytest.skip("this machine has a CUDA driver")
    with pytest.raises(DriverMissing, match="the CPU engine does not encode"):
        encode(small_map())


def test_names_are_the_drivers():
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python")
    for element in ELEMENT_TYPES.values():
        assert element.driver_name in driver.CUtensorMapDataType.__members__
    for table, enum in (
        (INTERLEAVES, driver.CUtensorMapInterleave),
        (SWIZZLES, driver.CUtensorMapSwizzle),
        (L2_PROMOTIONS, driver.CUtensorMapL2promotion),
        (FILLS, driver.CUtensorMapFloatOOBfill),
    ):
        assert set(table.values()) <= set(enum.__members__)


def test_encode_with_a_driver():
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python")
    if not driver_starts():
        pytest.skip("encoding needs a CUDA driver")
    try:
        array = TensorMapArray([small_map(), small_map(box=(32, 4, 4))])
        array.encode_into_host()
    except TensorMapError as error:
        if error.given == "CUDA_ERROR_INVALID_VALUE":  # the map is legal, so this is our mistake
            raise
        pytest.skip(f"the GPU has no tensor maps: {error.given}")
    assert array.host[0].tobytes() != array.host[1].tobytes()
    assert encode(small_map()) == array.host[0].tobytes()


def test_sweep_marks_agreement_and_goes_through_every_case():
    answers = {"illegal": "CUDA_ERROR_INVALID_VALUE", "legal": "CUDA_SUCCESS"}

    def ask(case, base):
        return answers.get(case.expected, "CUDA_SUCCESS") if case.ask_driver else None

    rows = sweep.sweep(ADDRESS, ask)
    totals = sweep.summary(rows)
    assert totals["disagree"] == [] and totals["agree"] == totals["judged"] > 50
    assert len(rows) == len(sweep.rule_cases()) + len(sweep.observe_cases())
    assert len({(row["rule"], row["case"]) for row in rows}) == len(rows)


def test_sweep_without_gpu(monkeypatch, capsys):
    def missing():
        raise DriverMissing("no driver here")

    monkeypatch.setattr(sweep, "start_driver", missing)
    assert sweep.main([]) == 2
    assert "no GPU with tensor maps: no driver here" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------
# Level maps

SHAPES = [(5, 7), (3, 4), (1, 2)]


def value_tensor(batch, heads, channels, padded):
    """(value (B, S, H, C), levels, S); a border is filled with data that must never be seen."""
    border = 2 if padded else 0
    spatial = sum((h + border) * (w + border) for h, w in SHAPES)
    count = batch * spatial * heads * channels
    value = aligned(2 * count).view(np.uint16)
    value[:] = np.arange(1, count + 1)  # every element different, none of them zero
    value = value.reshape(batch, spatial, heads, channels)
    starts = np.cumsum([0] + [(h + border) * (w + border) for h, w in SHAPES])[:-1]
    return value, make_levels(SHAPES, starts, padded), spatial


def planes(value, level, shape, padded):
    """(B, h, w, H, C): the level cut out of value by reshaping and slicing only."""
    h, w = shape
    border = 2 if padded else 0
    first = level.start - (w + border + 1 if padded else 0)
    count = (h + border) * (w + border)
    full = value[:, first : first + count].reshape(-1, h + border, w + border, *value.shape[2:])
    return full[:, 1:-1, 1:-1] if padded else full


def test_make_levels():
    assert make_levels([(92, 160), (46, 80)], [0, 14720]) == (
        Level(92, 160, 0, 160),
        Level(46, 80, 14720, 80),
    )
    padded = (Level(92, 160, 163, 162), Level(46, 80, 94 * 162 + 83, 82))
    shapes = np.array([(92, 160), (46, 80)])
    assert make_levels(shapes, np.array([0, 94 * 162]), padded=True) == padded
    assert make_levels(shapes, padded=True) == padded
    with pytest.raises(TensorMapError, match=r"len\(level_start_index\) is 1, but must be 2"):
        make_levels(shapes, [0])


@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("heads, box_hw", [(1, (2, 2)), (3, (2, 2)), (2, (3, 4))])
def test_level_maps_against_slicing(padded, heads, box_hw):
    batch, channels = 2, 8
    value, levels, spatial = value_tensor(batch, heads, channels, padded)
    maps = level_maps(value, batch, heads, channels, "uint16", levels, spatial, box_hw)
    shared = level_maps_rank5(value, batch, heads, channels, "uint16", levels, spatial, box_hw)
    assert len(maps) == batch * len(SHAPES) and len(shared) == len(SHAPES)
    box_h, box_w = box_hw
    for number, (shape, level) in enumerate(zip(SHAPES, levels, strict=True)):
        h, w = shape
        # A wide zero frame, so that slicing can leave the level on every side.
        frame = np.pad(
            planes(value, level, shape, padded), [(0, 0), (5, 5), (5, 5), (0, 0), (0, 0)]
        )
        for b, head, y, x in product(
            range(batch), range(heads), range(-5, h + 1), range(-5, w + 1)
        ):
            expected = frame[b, y + 5 : y + 5 + box_h, x + 5 : x + 5 + box_w, head]
            m = maps[b * len(SHAPES) + number]
            assert m.load_box((head * channels, x, y)).tobytes() == expected.tobytes()
            assert shared[number].load_box((0, head, x, y, b)).tobytes() == expected.tobytes()


def test_level_maps_over_a_device_address():
    levels = make_levels([(92, 160), (46, 80)])
    spatial = 92 * 160 + 46 * 80
    maps = level_maps(ADDRESS, 3, 8, 32, "float16", levels, spatial, swizzle="64B", fill="nan")
    last = maps[-1]
    assert last.address == ADDRESS + (2 * spatial + 92 * 160) * 512
    assert (last.dims, last.strides, last.box) == ((256, 80, 46), (512, 40960), (32, 2, 2))
    assert (last.swizzle, last.fill, last.box_bytes) == ("64B", "nan", 256)
    shared = level_maps_rank5(ADDRESS, 3, 8, 32, "float16", levels, spatial)[1]
    assert shared.address == ADDRESS + 92 * 160 * 512
    assert shared.dims == (32, 8, 80, 46, 3)
    assert shared.strides == (64, 512, 40960, spatial * 512)
    assert shared.box == (32, 1, 2, 2, 1) and shared.box_bytes == 256
    assert "head" in str(shared)


@pytest.mark.parametrize("build", [level_maps, level_maps_rank5])
def test_level_errors_name_the_level(build):
    place = "level 1 of batch 0" if build is level_maps else "level 1"
    levels = (Level(4, 4, 0, 4), Level(4, 4, 10, 4))
    with pytest.raises(TensorMapError, match=f"{place}: .*'level inside value'.*padded=True"):
        build(ADDRESS, 2, 1, 32, "float16", levels, 20)
    with pytest.raises(TensorMapError, match=r"level 0.*'box range': box\[0\] is 512"):
        build(ADDRESS, 1, 1, 512, "float16", levels, 32)
    with pytest.raises(TensorMapError, match="level 0.*'stride multiple'.* 24 bytes") as caught:
        build(ADDRESS, 1, 1, 12, "float16", levels, 32)
    assert caught.value.given == "24 bytes"
    assert caught.value.required == "a multiple of 16 bytes"


def test_value_of_the_wrong_size():
    value, levels, spatial = value_tensor(2, 1, 8, padded=False)
    with pytest.raises(
        TensorMapError,
        match=r"'value size': value is \d+ bytes, but must be \d+ "
        r"bytes for \(B=3, S=49, H=1, C=8\)",
    ):
        level_maps(value, 3, 1, 8, "uint16", levels, spatial)
    with pytest.raises(TensorMapError, match="not contiguous"):
        level_maps(value[:, ::-1], 2, 1, 8, "uint16", levels, spatial)
