"""The operator's kernels on the CPU engine against the float64 reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_deform import preset, reference, relative_error
from numba_deform.op import run_numpy
from numba_deform.reference import TOLERANCE
from numba_deform.workload import Workload


def check(inputs, name, simulate_options=None, **parameters):
    """Run on a poisoned output; the whole of it must be the reference's."""
    want = reference(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index,
        inputs.sampling_locations, inputs.attention_weights, padded=inputs.padded,
    )  # fmt: skip
    out = np.full(want.shape, np.nan, inputs.value.dtype)
    run_numpy(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights, name, "cpu", inputs.padded, out=out,
        simulate_options=simulate_options, **parameters,
    )  # fmt: skip
    assert np.isfinite(out.astype(np.float32)).all()
    if np.linalg.norm(want):
        assert relative_error(out, want) < TOLERANCE[str(out.dtype)]
    else:
        assert not out.any()


def small(**changes):
    shape = dict(
        batch=2, levels=((5, 4), (2, 3), (1, 1)), num_query=5, num_heads=3, channels=32,
        num_points=4, pattern="uniform", outside=0.15,
    )  # fmt: skip
    return Workload("small", **{**shape, **changes})


DIRECT = [{}, {"lanes": 4}, {"lanes": 16}, {"lanes": 32, "arithmetic": "fp32"}]
TMA = [
    {"stages": 1}, {"stages": 2}, {"stages": 3, "points_per_stage": 1}, {"stages": 40, "threads": 32},
    {"lanes": 4}, {"lanes": 16}, {"lanes": 32, "stages": 3}, {"batches_abreast": 1},
    {"threads": 512, "min_blocks": 2}, {"stages": 4, "arithmetic": "fp32"},
]  # fmt: skip
CONFIGS = [("direct", c) for c in DIRECT] + [("tma", c) for c in TMA]


@pytest.mark.parametrize(("name", "parameters"), CONFIGS, ids=str)
def test_configurations(name, parameters):
    check(
        small().generate(seed=1),
        name,
        threads=parameters.get("threads", 64),
        **{k: v for k, v in {"min_blocks": 0, **parameters}.items() if k != "threads"},
    )


@pytest.mark.parametrize("name", ["direct", "tma"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_types_and_layouts(name, dtype, padded):
    check(small(dtype=dtype, padded=padded).generate(seed=2), name, threads=64, min_blocks=0)


@pytest.mark.parametrize("name", ["direct", "tma"])
@pytest.mark.parametrize(
    ("channels", "dtype"), [(8, "float16"), (24, "float16"), (128, "bfloat16"), (4, "float32")]
)
def test_channels(name, channels, dtype):
    inputs = small(channels=channels, dtype=dtype, num_query=3).generate(seed=3)
    check(inputs, name, threads=32, min_blocks=0)


@pytest.mark.parametrize("landing", ["late", "random", "earliest"])
@pytest.mark.parametrize(("name", "stages"), [("direct", None), ("tma", 1), ("tma", 3)])
def test_clean_over_twenty_schedules(name, stages, landing):
    parameters = {"stages": stages} if stages else {}
    inputs = small(batch=1, levels=((4, 3), (2, 2)), num_heads=1, num_query=6).generate(seed=4)
    options = {"schedules": 20, "landing": landing}
    check(inputs, name, options, threads=32, min_blocks=0, **parameters)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    """Odd sizes, 1x1 levels, locations that are far outside or no number at all."""
    size = st.integers(1, 6)
    levels = data.draw(st.lists(st.tuples(size, size), min_size=1, max_size=3))
    workload = Workload(
        "odd", batch=data.draw(st.integers(1, 2)), levels=tuple(levels),
        num_query=data.draw(st.integers(1, 4)), num_heads=data.draw(st.integers(1, 3)),
        channels=data.draw(st.sampled_from([8, 16, 32, 40])),
        num_points=data.draw(st.integers(1, 6)), pattern="uniform", outside=0.2,
        padded=data.draw(st.booleans()),
    )  # fmt: skip
    inputs = workload.generate(seed=data.draw(st.integers(0, 99)))
    odd = data.draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, -3e4, 6e4]), max_size=6))
    flat = inputs.sampling_locations.reshape(-1)
    for i, value in enumerate(odd):
        flat[(i * 37) % flat.size] = value
    name = data.draw(st.sampled_from(["direct", "tma"]))
    parameters = {"stages": data.draw(st.integers(1, 5))} if name == "tma" else {}
    check(inputs, name, threads=32, min_blocks=0, **parameters)


def test_quick_workload_of_the_seeds():
    check(preset("quick", num_query=16).generate(seed=5), "tma", stages=2, threads=64, min_blocks=0)
