"""The oracle against a loop that does one neighbour at a time, and against PyTorch if installed."""

import importlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_deform.attention.reference import TOLERANCE, Exact, reference, relative_error
from numba_deform.kernels.problem import NUMPY_DTYPES, interior_rows
from numba_deform.workloads.presets import preset
from numba_deform.workloads.workload import Workload

# Not `from numba_deform import reference`, which may be the function of that name.
module = importlib.import_module("numba_deform.attention.reference")


def call(inputs, **changes):
    fields = {**vars(inputs), **changes}
    return reference(
        fields["value"],
        fields["spatial_shapes"],
        fields["level_start_index"],
        fields["sampling_locations"],
        fields["attention_weights"],
        padded=fields["padded"],
        rows=fields.get("rows"),
    )


def slow(inputs):
    """The definition, sample by sample in Python floats, each level cut out as an image first."""
    value = inputs.value.astype(np.float64)
    locations = inputs.sampling_locations.astype(np.float64)
    weights = inputs.attention_weights.astype(np.float64)
    B, _, H, C = value.shape
    _, Q, _, L, P, _ = locations.shape
    out = np.zeros((B, Q, H, C))
    for level, (h, w) in enumerate(inputs.spatial_shapes.tolist()):
        start, edge = int(inputs.level_start_index[level]), 2 if inputs.padded else 0
        image = value[:, start : start + (h + edge) * (w + edge)]
        image = image.reshape(B, h + edge, w + edge, H, C)
        if inputs.padded:
            image = image[:, 1:-1, 1:-1]
        for b, q, k, p in np.ndindex(B, Q, H, P):
            x, y = (float(v) for v in locations[b, q, k, level, p])
            if not (math.isfinite(x) and math.isfinite(y)):
                continue
            x, y = x * w - 0.5, y * h - 0.5
            if not (-1 < x < w and -1 < y < h):
                continue
            for row in (math.floor(y), math.floor(y) + 1):
                for column in (math.floor(x), math.floor(x) + 1):
                    if 0 <= row < h and 0 <= column < w:
                        share = (1 - abs(x - column)) * (1 - abs(y - row))
                        factor = share * weights[b, q, k, level, p]
                        out[b, q, k] += factor * image[b, row, column, k]
    return out.reshape(B, Q, H * C)


@st.composite
def workloads(draw):
    side = st.integers(1, 7)
    return Workload(
        "drawn",
        batch=draw(st.integers(1, 2)),
        levels=tuple(draw(st.lists(st.tuples(side, side), min_size=1, max_size=3))),
        num_query=draw(st.integers(1, 5)),
        num_heads=draw(st.integers(1, 3)),
        channels=draw(st.sampled_from([1, 3, 8])),
        num_points=draw(st.integers(1, 3)),
        dtype=draw(st.sampled_from(list(NUMPY_DTYPES))),
        pattern=draw(st.sampled_from(["uniform", "local(0.5)"])),
        padded=draw(st.booleans()),
        outside=0.1,
    )


@settings(max_examples=60, deadline=None)
@given(workload=workloads(), seed=st.integers(0, 1000), bad=st.sampled_from([0, 1, 3]))
def test_equals_the_slow_loop(workload, seed, bad):
    inputs = workload.generate(seed)
    rng = np.random.default_rng(seed)
    flat = inputs.sampling_locations.reshape(-1)
    for place in rng.integers(0, flat.size, bad):
        flat[place] = rng.choice([np.nan, np.inf, -np.inf])
    np.testing.assert_allclose(call(inputs), slow(inputs), rtol=0, atol=1e-12)


def test_equals_the_slow_loop_across_chunks(monkeypatch):
    inputs = preset("tiny", num_query=40).generate()
    expected = slow(inputs)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 3 * 3 * 4 * 4 * 32)  # 3 queries at a time
    np.testing.assert_allclose(call(inputs), expected, rtol=0, atol=1e-12)


def test_the_edge_where_a_sample_starts_to_count():
    # 1x1 level, value 8: the sample fades linearly from the centre to zero one pixel away.
    value = np.full((1, 1, 1, 1), 8.0)
    x = np.array([-0.5, -0.25, 0.0, 0.5, 1.0, 1.25, 1.5])  # pixels -1, -.75, -.5, 0, .5, .75, 1
    locations = np.stack([x, np.full(7, 0.5)], axis=-1).reshape(1, 7, 1, 1, 1, 2)
    out = reference(value, [[1, 1]], [0], locations, np.ones((1, 7, 1, 1, 1)))
    assert out.ravel().tolist() == [0, 2, 4, 8, 4, 2, 0]


def test_x_is_along_the_width():
    value = np.arange(6.0).reshape(1, 6, 1, 1)  # 2 rows of 3
    locations = np.array([[2.5 / 3, 0.25], [0.5 / 3, 0.75]]).reshape(1, 2, 1, 1, 1, 2)
    out = reference(value, [[2, 3]], [0], locations, np.ones((1, 2, 1, 1, 1)))
    np.testing.assert_allclose(out.ravel(), [2, 3])


def test_skipped_neighbours_do_not_leak_nan():
    w = preset("tiny", padded=True)
    inputs = w.generate()
    clean = call(inputs)
    border = np.ones(w.spatial_size, bool)
    border[interior_rows(w.levels, padded=True)] = False
    inputs.value[:, border] = np.nan
    assert np.array_equal(call(inputs), clean)
    # Samples that are skipped whole read nothing of their level and may carry any weight.
    inputs.sampling_locations[:, :, :, 0] = [np.nan, 0.5]
    expected = call(inputs)
    inputs.value[:, : w.level_start_index[1]] = np.nan
    inputs.attention_weights[:, :, :, 0] = np.inf
    assert np.isfinite(expected).all() and np.array_equal(call(inputs), expected)


def test_a_nan_that_is_read_stays_with_its_readers():
    inputs = preset("tiny").generate()
    clean = call(inputs)
    inputs.value[1, 31, 1, 5] = np.nan  # the middle of the finest level
    out = call(inputs)
    wrong = np.isnan(out)
    assert wrong.any() and wrong[1, :, 32 + 5].sum() == wrong.sum()
    assert np.array_equal(out[~wrong], clean[~wrong])


def test_an_infinity_counts_as_on_the_gpu():
    def one(value, x):
        value = np.array(value).reshape(1, 2, 1, 1)
        locations = np.array([x, 0.5]).reshape(1, 1, 1, 1, 1, 2)
        return reference(value, [[1, 2]], [0], locations, np.ones((1, 1, 1, 1, 1))).item()

    assert one([3.0, np.inf], 0.25 - 1 / 8) == 2.25  # a quarter pixel left of the first pixel
    assert one([3.0, np.inf], 0.25 + 1 / 8) == np.inf  # between the two
    assert math.isnan(one([3.0, np.inf], 0.25))  # on the first: 1 * 3 + 0 * inf


def test_rows_in_any_order():
    inputs = preset("tiny").generate()
    rows = np.array([45, 0, 23, 22, 7, 45])
    out = call(inputs, rows=rows)
    assert np.array_equal(out, call(inputs).reshape(46, 64)[rows])
    assert call(inputs, rows=[]).shape == (0, 64)


def test_padding_makes_no_difference():
    w = preset("tiny")
    assert np.array_equal(call(w.generate()), call(w.replace(padded=True).generate()))


def test_levels_may_be_stored_in_any_order():
    w = Workload("w", 1, ((4, 5), (2, 3)), 9, num_heads=2)
    inputs = w.generate()
    swapped = np.concatenate([inputs.value[:, 20:], inputs.value[:, :20]], axis=1)
    out = call(inputs, value=swapped, level_start_index=np.array([6, 0]))
    assert np.array_equal(out, call(inputs))


def test_equals_grid_sample():
    torch = pytest.importorskip("torch")
    inputs = Workload(
        "w", 2, ((9, 7), (4, 5), (1, 1)), 30, 3, 8, dtype="float32", sigma=1.0
    ).generate()
    out = 0
    for level, (h, w) in enumerate(inputs.spatial_shapes.tolist()):
        start = inputs.level_start_index[level]
        image = inputs.value[:, start : start + h * w].reshape(2, h, w, 3, 8)
        image = torch.from_numpy(image.transpose(0, 3, 4, 1, 2).reshape(6, 8, h, w)).double()
        where = inputs.sampling_locations[:, :, :, level].transpose(0, 2, 1, 3, 4)
        where = torch.from_numpy(where.reshape(6, 30, 4, 2)).double()
        sampled = torch.nn.functional.grid_sample(
            image, 2 * where - 1, mode="bilinear", padding_mode="zeros", align_corners=False
        ).numpy()  # (B*H, C, Q, P)
        weights = inputs.attention_weights[:, :, :, level].transpose(0, 2, 1, 3).reshape(6, 30, 4)
        out = out + np.einsum("bcqp,bqp->bqc", sampled, weights.astype(np.float64))
    out = out.reshape(2, 3, 30, 8).transpose(0, 2, 1, 3).reshape(2, 30, 24)
    np.testing.assert_allclose(call(inputs), out, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": np.ones((2, 81, 32))}, "value has shape"),
        ({"spatial_shapes": [[9, 7]]}, "spatial_shapes"),
        ({"sampling_locations": np.ones((2, 23, 2, 2, 4, 2))}, "sampling_locations.*L=3"),
        ({"sampling_locations": np.ones((2, 23, 2, 3, 4, 3))}, "sampling_locations"),
        ({"attention_weights": np.ones((2, 23, 2, 3, 1))}, "attention_weights"),
        ({"level_start_index": [0, 63, 79]}, "leaves value"),
        ({"padded": True}, "149 padded positions but value has S=81"),
        ({"rows": [46]}, "0 .. 45"),
        ({"rows": [-1]}, "0 .. 45"),
        ({"rows": [0.5]}, "whole numbers"),
    ],
)
def test_shapes_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        call(preset("tiny").generate(), **change)


def test_forgotten_padding_is_named():
    inputs = preset("tiny", padded=True).generate()
    with pytest.raises(ValueError, match="81 positions but value has S=149.*needs padded=True"):
        call(inputs, padded=False)


# --- relative error -----------------------------------------------------------------------------


def test_relative_error():
    ref = np.array([[3.0, 4.0]])
    assert relative_error(np.array([[3.0, 4.5]]), ref) == pytest.approx(0.1)
    assert relative_error(ref, 0 * ref) == 5.0
    assert relative_error(ref, ref) == 0.0
    for broken in (np.array([[np.nan, 4.0]]), np.array([[np.nan, np.inf]])):
        assert math.isnan(relative_error(broken, ref))
        assert math.isnan(relative_error(ref, broken))
    assert relative_error(np.array([[np.inf, 4.0]]), ref) == math.inf
    with pytest.raises(ValueError, match=r"\(1, 2\).*\(2,\)"):
        relative_error(ref, ref[0])


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_tolerance_admits_rounding_and_little_else(dtype):
    inputs = preset("detr-decoder", dtype=dtype, pattern="uniform").generate()
    exact = call(inputs)
    rounded = relative_error(exact.astype(NUMPY_DTYPES[dtype]), exact)
    assert TOLERANCE[dtype] / 1000 < rounded < TOLERANCE[dtype] / 2
    # Coordinates kept in fp16 are the mistake it must catch in every dtype.
    size = inputs.spatial_shapes[:, None, ::-1].astype(np.float16)
    pixels = inputs.sampling_locations.astype(np.float16) * size - np.float16(0.5)
    moved = (pixels.astype(np.float64) + 0.5) / size
    assert relative_error(call(inputs, sampling_locations=moved), exact) > 2 * TOLERANCE[dtype]


def test_exact_rows_of_a_large_output():
    inputs = Workload("few", batch=2, levels=((3, 2),), num_query=9, num_heads=1, channels=8,
                      num_points=2).generate(seed=1)  # fmt: skip
    whole = reference(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index,
        inputs.sampling_locations, inputs.attention_weights,
    )  # fmt: skip
    every, some = Exact.of(inputs), Exact.of(inputs, most=5)
    assert every.rows.tolist() == list(range(18)) and np.array_equal(every.values, whole.reshape(18, 8))
    assert len(set(some.rows)) == 5 and np.array_equal(some.rows, Exact.of(inputs, most=5).rows)
    assert every.error(whole) == some.error(whole) == 0
    for row, wrong in ((some.rows[0], some), (int(np.setdiff1d(every.rows, some.rows)[0]), every)):
        spoilt = whole.copy()
        spoilt.reshape(18, 8)[row] += 1
        assert wrong.error(spoilt) > 0
    unwritten = whole.copy()
    unwritten.reshape(18, 8)[np.setdiff1d(every.rows, some.rows)[0], 0] = np.nan
    assert np.isnan(some.error(unwritten))  # though the row is none of those compared
