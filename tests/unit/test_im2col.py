"""Tensor maps in im2col mode: loads against a loop, what is refused, what the driver is told."""

import re
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_deform.engines.tensormap import Im2colMap, TensorMapError, encode, encoding

ADDRESS = 0x7F00_0000_0000


def small_map(address=ADDRESS, **changes):
    """Four images of 10 x 12 pixels of 32 float16 channels, for a filter 3 wide and 2 high."""
    arguments = {
        "dtype": "float16", "dims": (32, 12, 10, 4), "strides": (64, 768, 7680), "box": (16, 20),
        "lower": (-1, 0), "upper": (-1, -1),
    }  # fmt: skip
    return Im2colMap(address, **(arguments | changes))


@st.composite
def maps_and_places(draw):
    """A map of rank 3 to 5 over random bytes, and coordinates and offsets for it."""
    spatial = draw(st.integers(1, 3))
    sizes = [draw(st.integers(1, 5)) for _ in range(spatial)]
    lower = [draw(st.integers(-2, size - 1)) for size in sizes]
    # The last place of the filter's corner, size - 1 + upper, is not before the first.
    upper = [draw(st.integers(low - size + 1, 2)) for low, size in zip(lower, sizes, strict=True)]
    shape = (draw(st.integers(1, 3)), *sizes[::-1], 8 * draw(st.integers(1, 3)))
    array = np.random.default_rng(draw(st.integers(0, 99))).integers(1, 1 << 16, shape).astype(np.uint16)
    steps = (1, *(draw(st.integers(1, 3)) for _ in sizes), 1)
    box = (8 * draw(st.integers(1, 2)), draw(st.integers(1, 40)))
    m = Im2colMap.of(array, box, lower=lower, upper=upper, element_strides=steps)
    corner = [draw(st.integers(first, last)) for first, last in m.bounds]
    coords = (8 * draw(st.integers(-1, 3)), *corner, draw(st.integers(-1, 3)))
    return m, coords, [draw(st.integers(0, 4)) for _ in sizes]


def rows_by_counting(m, coords, offsets):
    """(w, .., n) of each row, from the number of places between it and the start of its row of the box."""
    corner = list(coords[1:-1])
    places = []
    for (first, last), step, start in zip(m.bounds, m.element_strides[1:], corner, strict=False):
        rest = list(range(start, last + 1, step))  # from the start to the end of the box, once
        places.append((rest, list(range(first, last + 1, step))))

    def walk(axis, whole):
        """Places of the axes up to ``axis``, innermost first; ``whole`` from the start of the box."""
        if axis < 0:
            yield ()
            return
        for k, outer in enumerate(places[axis][whole]):
            for inner in walk(axis - 1, whole or k > 0):
                yield (*inner, outer)

    image, whole = coords[-1], False
    while True:
        for place in walk(len(places) - 1, whole):
            yield (*(p + o for p, o in zip(place, offsets, strict=True)), image)
        image, whole = image + 1, True


@settings(max_examples=150, deadline=None)
@given(maps_and_places())
def test_loads_against_a_count(drawn):
    m, coords, offsets = drawn
    rows = [row for row, _ in zip(rows_by_counting(m, coords, offsets), range(m.box[1]), strict=False)]
    expected, read = np.zeros(m.box[::-1], np.uint16), []
    for (r, row), c in product(enumerate(rows), range(m.box[0])):
        place = (*row[::-1], coords[0] + c)
        if all(0 <= x < size for x, size in zip(place, m.array.shape, strict=True)):
            expected[r, c] = m.array[place]
            read.append(np.ravel_multi_index(place, m.array.shape) * 2)
    got = m.load_box(coords, offsets)
    assert got.dtype == np.uint8 and got.shape == (m.box_bytes,) == (2 * m.box[0] * m.box[1],)
    np.testing.assert_array_equal(got.view(np.uint16).reshape(expected.shape), expected)
    runs = [byte - m.address for at, size in m.runs(coords, offsets) for byte in range(at, at + size, 2)]
    assert runs == read


def test_the_public_example():
    """Triton's tutorial on im2col mode, example 5: what its kernel loads on a GPU."""
    data = np.repeat(np.arange(1, 33, dtype=np.float32)[:, None], 32, axis=1).reshape(2, 4, 4, 32)
    m = Im2colMap.of(data, (32, 16), lower=(-1, -1), upper=(-1, -1))
    rows = m.load_box((0, 2, 1, 0), (0, 0)).view(np.float32).reshape(16, 32)
    assert rows[:, 0].tolist() == [7, 0, 9, 10, 11, 0, 0, 0, 0, 0, 17, 18, 19, 0, 21, 22]
    assert (rows == rows[:, :1]).all()


def test_nan_fill():
    m = Im2colMap.of(np.ones((1, 3, 3, 8), np.float16), (8, 2), lower=(-1, -1), upper=(-1, -1), fill="nan")
    rows = m.load_box((0, -1, 0, 0), (0, 0)).view(np.float16).reshape(2, 8)
    assert np.isnan(rows[0]).all() and (rows[1] == 1).all()


@pytest.mark.parametrize("coords, offsets, message", [
    ((0, 11, 0, 0), (0, 0), "coords[1], W, is 11, but must be -1 to 10, the bounding box"),
    ((0, -2, 0, 0), (0, 0), "coords[1], W, is -2, but must be -1 to 10"),
    ((0, 0, 9, 0), (0, 0), "coords[2], H, is 9, but must be 0 to 8"),
    ((0, 0, 0, 0), (256, 0), "offsets[0] is 256, but must be 0 to 255 for rank 4"),
    ((0, 0, 0, 0), (0, -1), "offsets[1] is -1, but must be 0 to 255 for rank 4"),
])  # fmt: skip
def test_places_outside(coords, offsets, message):
    m = small_map(np.zeros((4, 10, 12, 32), np.float16))
    with pytest.raises(TensorMapError, match=re.escape(message)):
        m.load_box(coords, offsets)
    assert len(list(m.pixels((0, -1, 8, 9), (255, 255)))) == 20


@pytest.mark.parametrize("changes, message", [
    ({"element_strides": (1, 1, 1, 2)}, "leaves open what a stride from image to image means"),
    ({"interleave": "16B"}, "interleave 16B is not modelled"),
    ({"dtype": "tfloat32", "dims": (16, 12, 10, 4), "box": (8, 20)}, "changes bits in flight"),
])  # fmt: skip
def test_what_is_not_modelled(changes, message):
    m = small_map(np.zeros((4, 10, 12, 32), np.float16), **changes)
    with pytest.raises(NotImplementedError, match=message):
        m.load_box((0, 0, 0, 0), (0, 0))


def test_a_map_past_the_end_of_its_array():
    with pytest.raises(TensorMapError, match="bytes past its base"):
        small_map(np.zeros((3, 10, 12, 32), np.float16))


def test_the_driver_is_told_everything(monkeypatch):
    """Corners innermost first, as the dimensions."""
    asked = []

    class Driver:
        CUtensorMapDataType = CUtensorMapInterleave = CUtensorMapSwizzle = CUtensorMapL2promotion = (
            CUtensorMapFloatOOBfill
        ) = type("Names", (), {"__getattr__": lambda self, name: name})()
        CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
        cuuint64_t = cuuint32_t = int

        def cuTensorMapEncodeIm2col(self, *arguments):
            asked.append(arguments)
            memory = np.full(128, 9, np.uint8)
            result = SimpleNamespace(getPtr=lambda memory=memory: memory.ctypes.data)
            return self.CUresult.CUDA_SUCCESS, result

    monkeypatch.setattr(encoding, "start_driver", Driver)
    m = small_map(element_strides=(1, 2, 3, 1), swizzle="32B", l2_promotion="128B", fill="nan")
    assert encode(m) == b"\x09" * 128
    assert asked == [(
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 4, ADDRESS, [32, 12, 10, 4], [64, 768, 7680], [-1, 0], [-1, -1],
        16, 20, [1, 2, 3, 1], "CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_32B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
    )]  # fmt: skip


def test_how_it_reads():
    m = small_map(element_strides=(1, 2, 1, 1))
    assert str(m).splitlines()[1:] == [
        "  dim              size  stride (bytes)   box  every",
        "  0 C                32               2    16      1",
        "  1 W                12              64 -1..10      2",
        "  2 H                10             768  0..8      1",
        "  3 N                 4            7680     -      1",
        "  swizzle=none, fill=zero; 640 bytes per box",
    ]
    start = "Im2colMap(float16, dims=(32, 12, 10, 4), strides=(64, 768, 7680), box=(16, 20), "
    assert repr(m).startswith(start)
    assert "lower=(-1, 0), upper=(-1, -1), element_strides=(1, 2, 1, 1), base=" in repr(m)
