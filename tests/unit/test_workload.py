"""Workloads: sizes of the presets, what the patterns really draw, and what is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_deform.kernels.problem import NUMPY_DTYPES, interior_rows
from numba_deform.workloads.presets import PRESETS, SEED_LEVELS, levels_for, preset
from numba_deform.workloads.workload import Workload, WorkloadError

TWO_LEVELS = ((12, 20), (6, 10))

# name -> B, S, Q, H, L, P as the models' papers and configurations give them
PUBLISHED = {
    "seeds": (48, 19560, 20522, 1, 4, 8),
    "seeds-padded": (48, 20522, 20522, 1, 4, 8),
    "detr-encoder": (1, 22223, 22223, 8, 4, 4),
    "detr-encoder-b4": (4, 22223, 22223, 8, 4, 4),
    "detr-decoder": (1, 22223, 300, 8, 4, 4),
    "dino-decoder": (1, 22223, 900, 8, 4, 4),
    "dino-5scale": (1, 89023, 89023, 8, 5, 4),
    "rtdetr-decoder": (1, 8400, 300, 8, 3, 4),
    "dfine-decoder": (1, 8400, 300, 8, 3, 6),
    "mask2former": (1, 21504, 21504, 8, 3, 4),
    "bevformer-temporal": (2, 40000, 40000, 8, 1, 4),
    "bevformer-spatial": (6, 30825, 9675, 8, 4, 8),
    "quick": (1, 100, 100, 1, 4, 8),
}


def local(**fields):
    """A local workload whose queries are objects, so that few samples touch an edge."""
    fields = {"num_query": 700, "location_dtype": "float32", **fields}
    return Workload("test", 1, ((64, 96), (32, 48)), **fields)


def share_outside(inputs):
    where = inputs.sampling_locations
    return 1 - ((where >= 0) & (where <= 1)).all(axis=-1).mean()


def reference_points(workload):
    """What `generate` took as reference points, from locations without any spread."""
    workload = workload.replace(sigma=0.0, outside=0.0, location_dtype="float32")
    where = workload.generate().sampling_locations[:, :, 0, 0, 0]  # head 0 looks along +x
    return where - np.array([1 / workload.levels[0][1], 0], np.float32)


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    w = preset(name)
    found = (w.batch, w.spatial_size, w.num_query, w.num_heads, w.num_levels, w.num_points)
    assert found == PUBLISHED[name]
    assert w.channels == 32 and w.dtype == "float16"
    assert w.samples == np.prod([w.batch, *found[2:]], dtype=np.int64)


def test_every_preset_is_known_by_its_name_and_described_in_one_line():
    assert set(PRESETS) == {*PUBLISHED, "tiny"}
    for name, w in PRESETS.items():
        line = w.describe()
        assert line.startswith(name + ":") and f"S={w.spatial_size}" in line and "\n" not in line


def test_seed_layouts():
    plain, padded = preset("seeds"), preset("seeds-padded")
    assert plain.spatial_shapes.tolist() == padded.spatial_shapes.tolist() == [
        [92, 160], [46, 80], [23, 40], [12, 20],
    ]  # fmt: skip
    assert plain.level_start_index.tolist() == [0, 14720, 18400, 19320]
    assert padded.level_start_index.tolist() == [0, 15228, 19164, 20214]
    assert plain.spatial_shapes.dtype == plain.level_start_index.dtype == np.int64


def test_interior_rows_leave_out_one_border_per_level():
    # 2x1 padded is 4x3: rows 4 and 7; then 1x2 padded is 3x4 from 12 on: rows 17 and 18.
    assert interior_rows(((2, 1), (1, 2)), padded=True).tolist() == [4, 7, 17, 18]
    assert interior_rows(((2, 1), (1, 2))).tolist() == [0, 1, 2, 3]


@settings(deadline=None)
@given(spatial_size=st.integers(1, 200_000), num_levels=st.integers(1, 8))
def test_levels_for_adds_up(spatial_size, num_levels):
    if spatial_size < num_levels:
        with pytest.raises(WorkloadError, match="spatial_size"):
            levels_for(spatial_size, num_levels)
        return
    levels = levels_for(spatial_size, num_levels)
    assert len(levels) == num_levels
    assert all(h >= 1 and w >= 1 for h, w in levels)
    assert sum(h * w for h, w in levels) == spatial_size


@settings(deadline=None)
@given(spatial_size=st.integers(1, 50_000), num_levels=st.integers(1, 5))
def test_levels_for_padded_adds_up_or_says_that_it_cannot(spatial_size, num_levels):
    try:
        levels = levels_for(spatial_size, num_levels, padded=True)
    except WorkloadError as error:
        assert str(spatial_size) in str(error)
        # Several levels of a fair size can be had in many ways; a single one may be a prime.
        assert num_levels == 1 or spatial_size < 50 * num_levels
        return
    assert all(h >= 1 and w >= 1 for h, w in levels)
    assert sum((h + 2) * (w + 2) for h, w in levels) == spatial_size


def test_levels_for_knows_the_seeds_and_makes_pyramids():
    assert levels_for(19560, 4) == levels_for(20522, 4, padded=True) == SEED_LEVELS
    levels = levels_for(22223, 4)
    for (h, w), (next_h, next_w) in zip(levels, levels[1:], strict=False):
        assert abs(next_h - h / 2) <= 1 and abs(next_w - w / 2) <= 1.5


# --- the arrays ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_shapes_and_dtypes(dtype):
    w = preset("tiny", dtype=dtype)
    inputs = w.generate()
    assert inputs.value.shape == (2, 81, 2, 32)
    assert inputs.sampling_locations.shape == (2, 23, 2, 3, 4, 2)
    assert inputs.attention_weights.shape == (2, 23, 2, 3, 4)
    assert inputs.value.dtype == inputs.attention_weights.dtype == NUMPY_DTYPES[dtype]
    expected = np.float16 if dtype == "float16" else np.float32
    assert inputs.sampling_locations.dtype == expected


def test_value_and_weights_are_what_they_claim():
    inputs = local(dtype="float32").generate()
    value = inputs.value.ravel()
    assert abs(value.mean()) < 0.01 and abs(value.std() - 1) < 0.01
    sums = inputs.attention_weights.sum(axis=(3, 4))
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    # softmax(N(0, 1)): the logarithms of weights have that spread within a query, less its mean.
    logs = np.log(inputs.attention_weights).reshape(700, 8, 8)
    assert abs(logs.std(axis=-1, ddof=1).mean() - 1) < 0.05


def test_seed_decides_everything():
    w = preset("tiny")
    first, again, other = w.generate(3), w.generate(3), w.generate(4)
    for name in ("value", "sampling_locations", "attention_weights"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
        assert (getattr(first, name) != getattr(other, name)).mean() > 0.9
    assert (first.value[0] != first.value[1]).mean() > 0.9  # batch items differ too


def test_padding_only_adds_a_zero_border():
    w = preset("tiny")
    plain, padded = w.generate(), w.replace(padded=True).generate()
    rows = interior_rows(w.levels, padded=True)
    assert padded.padded and not plain.padded
    assert np.array_equal(padded.value[:, rows], plain.value)
    border = np.delete(padded.value, rows, axis=1)
    assert border.shape[1] == 11 * 9 + 7 * 5 + 5 * 3 - 81 and not border.any()
    assert np.array_equal(padded.sampling_locations, plain.sampling_locations)


def test_seed_and_uniform_patterns_fill_their_range():
    for pattern, low, high in (("seed", 0.3, 0.7), ("uniform", 0.0, 1.0)):
        where = local(pattern=pattern).generate().sampling_locations
        assert low <= where.min() < low + 0.01 and high - 0.01 < where.max() <= high
        assert abs(where.mean() - 0.5) < 0.01
        assert abs(where.std() - (high - low) / 12**0.5) < 0.01


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_local_offsets_are_bias_plus_spread_in_pixels(sigma):
    w = local(sigma=sigma, num_heads=4, outside=0.0)
    spread = w.generate().sampling_locations
    centre = w.replace(sigma=0.0).generate().sampling_locations
    size = w.spatial_shapes[:, None, ::-1]
    noise = ((spread - centre) * size)[0]
    assert abs(noise.mean()) < 0.02 * sigma and abs(noise.std() / sigma - 1) < 0.02
    # Head 1 of 4 looks along +y: point p is p + 1 pixels from the reference point of its level.
    first = (centre * size)[0, :, 1, :, 0]
    steps = (centre * size)[0, :, 1] - first[:, :, None]
    np.testing.assert_allclose(steps[..., 1], np.broadcast_to(np.arange(4), (700, 2, 4)), atol=1e-3)
    np.testing.assert_allclose(steps[..., 0], 0, atol=1e-3)


def test_encoder_queries_are_all_pixel_centres_and_start_again():
    positions = 12 * 20 + 6 * 10
    points = reference_points(Workload("w", 1, TWO_LEVELS, positions + 7))[0]
    pixels = points[: 12 * 20] * np.array([20, 12]) - 0.5
    y, x = np.divmod(np.arange(240), 20)
    np.testing.assert_allclose(pixels, np.stack([x, y], axis=1), atol=1e-4)
    pixels = points[240:300] * np.array([10, 6]) - 0.5
    y, x = np.divmod(np.arange(60), 10)
    np.testing.assert_allclose(pixels, np.stack([x, y], axis=1), atol=1e-4)
    assert np.array_equal(points[300:], points[:7])


def test_fewer_queries_are_a_sorted_subset_of_the_pixels():
    everything = reference_points(Workload("w", 2, TWO_LEVELS, 300))[0]
    some = reference_points(Workload("w", 2, TWO_LEVELS, 50))
    distances = abs(some[0][:, None] - everything[None]).max(axis=-1)
    found = distances.argmin(axis=1)
    assert (distances.min(axis=1) < 1e-6).all()
    assert (np.diff(found) > 0).all() and found.max() > 100
    assert np.array_equal(some[0], some[1])  # an encoder has the same queries in every image


def test_objects_are_anywhere_and_differ_between_images():
    points = reference_points(Workload("w", 2, TWO_LEVELS, 500, queries="objects"))
    assert (points[0] != points[1]).mean() > 0.9
    assert points.min() < 0.05 and points.max() > 0.95 and abs(points.std() - 12**-0.5) < 0.02


def test_samples_out_of_bounds():
    # One big level and a narrow spread: hardly any sample leaves it unless pushed.
    fields = dict(num_heads=1, num_points=1, sigma=0.1, location_dtype="float32")
    w = Workload("w", 1, ((200, 200),), 20000, **fields)
    assert share_outside(w.replace(outside=0.0).generate()) < 0.008
    inputs = w.generate()
    assert 0.0099 < share_outside(inputs) < 0.0101
    where = inputs.sampling_locations
    assert where.min() < -0.3 and where.max() > 1.7  # far outside, where all four neighbours are
    assert 0.199 < share_outside(w.replace(outside=0.2).generate()) < 0.201
    for pattern in ("seed", "uniform"):
        assert share_outside(w.replace(pattern=pattern).generate()) == 0
        pushed = w.replace(pattern=pattern, outside=0.05).generate()
        assert 0.049 < share_outside(pushed) < 0.051


def test_small_presets_have_samples_inside_and_outside():
    for name in ("tiny", "quick"):
        assert 0.03 < share_outside(preset(name).generate()) < 0.1


def test_points_per_level():
    w = preset("dfine-decoder", num_query=40)
    inputs = w.generate()
    weights, where = inputs.attention_weights, inputs.sampling_locations
    for level, count in enumerate((3, 6, 3)):
        assert (weights[..., level, :count] > 0).all()
        assert (weights[..., level, count:] == 0).all()
        assert (where[..., level, count:, :] == 0.5).all()
        assert (where[..., level, :count, :] != 0.5).mean() > 0.99
    np.testing.assert_allclose(weights.astype(np.float32).sum(axis=(3, 4)), 1, atol=3e-3)


# --- fields -------------------------------------------------------------------------------------


def test_pattern_with_sigma():
    w = Workload("w", 1, TWO_LEVELS, 10, pattern="local(8)")
    assert (w.pattern, w.sigma) == ("local", 8.0)
    assert w.replace(pattern="local(0.5)").sigma == 0.5
    assert "local(8)" in w.describe()


def test_defaults_follow_what_is_replaced():
    w = Workload("w", 1, TWO_LEVELS, 10)
    assert (w.location_dtype, w.outside) == ("float16", 0.01)
    assert w.replace(dtype="bfloat16").location_dtype == "float32"
    assert w.replace(pattern="seed").outside == 0.0
    assert w.replace(location_dtype="float32").replace(dtype="float32").location_dtype == "float32"
    assert w.replace(outside=0.3).replace(pattern="seed").outside == 0.3
    assert preset("dfine-decoder").replace(num_points=2).points_per_level is None


def test_a_workload_is_a_frozen_key():
    w = Workload("w", np.int64(1), [[12, 20], [6, 10]], 10)
    assert w == Workload("w", 1, TWO_LEVELS, 10) and hash(w) == hash(w.replace())
    with pytest.raises(dataclasses.FrozenInstanceError):
        w.batch = 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch", 0),
        ("num_query", -1),
        ("num_heads", True),
        ("channels", 32.0),
        ("num_points", "4"),
        ("levels", ()),
        ("levels", ((4, 4, 4),)),
        ("levels", 7),
        ("dtype", "float64"),
        ("location_dtype", "half"),
        ("pattern", "seeds"),
        ("pattern", "seed(2)"),
        ("sigma", -1.0),
        ("sigma", float("nan")),
        ("padded", 1),
        ("points_per_level", (3, 6, 3)),
        ("points_per_level", (0, 0)),
        ("queries", "boxes"),
        ("outside", 1.5),
    ],
)
def test_bad_fields_are_named_with_value_and_rule(field, value):
    with pytest.raises(WorkloadError, match=field) as caught:
        Workload(**{"name": "w", "batch": 1, "levels": TWO_LEVELS, "num_query": 10, field: value})
    assert str(value) in str(caught.value) and "must be" in str(caught.value)


@pytest.mark.parametrize("levels", [((4, 0),), ((4, 4), (2, -2)), ((4.5, 4),)])
def test_bad_level_sizes(levels):
    with pytest.raises(WorkloadError, match="of a level"):
        Workload("w", 1, levels, 10)


def test_bad_sigma_in_a_pattern():
    with pytest.raises(WorkloadError, match="sigma='wide'"):
        Workload("w", 1, TWO_LEVELS, 10, pattern="local(wide)")


def test_unknown_names():
    with pytest.raises(WorkloadError, match="did you mean detr-encoder.*mask2former"):
        preset("detr-encoders")
    with pytest.raises(WorkloadError, match="no field 'bach'.*batch"):
        preset("tiny", bach=3)
