"""The operator's kernels on the CPU engine against the float64 reference."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import check
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_deform import ConfigError, preset
from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import problem_of
from numba_deform.attention.reference import TOLERANCE, Exact
from numba_deform.kernels.registry import variant
from numba_deform.workloads.workload import Workload


def small(**changes):
    shape = dict(
        batch=2, levels=((5, 4), (2, 3), (1, 1)), num_query=5, num_heads=3, channels=32,
        num_points=4, pattern="uniform", outside=0.15,
    )  # fmt: skip
    return Workload("small", **{**shape, **changes})


CONFIGS = [
    ("direct", [{}, {"lanes": 4}, {"lanes": 16}, {"lanes": 32, "arithmetic": "fp32"}]),
    ("tile", [{"lanes": 4}, {"lanes": 32, "arithmetic": "fp32"}]),
    ("tile-cp-async", [{"stages": 1}, {"stages": 8, "points_per_stage": 1}, {"lanes": 4}, {"lanes": 16}]),
    ("tma", [
        {"stages": 1}, {"stages": 2}, {"stages": 3, "points_per_stage": 1},
        {"stages": 40, "threads": 32}, {"lanes": 4}, {"lanes": 16}, {"lanes": 32, "stages": 3},
        {"batches_abreast": 1}, {"threads": 512, "min_blocks": 2}, {"stages": 4, "arithmetic": "fp32"},
        {"barrier_scope": "block", "barriers": "ping_pong", "stages": 3}, {"box": (2, 5)},
        {"barriers": "point", "stages": 40, "threads": 32}, {"maps": "level", "lanes": 16},
    ]),
    ("persistent", [
        {"stages": 1}, {"stages": 5}, {"stages": 9, "points_per_stage": 1, "barriers": "point"},
        {"lanes": 4, "barriers": "ping_pong"}, {"lanes": 2, "stages": 3}, {"lanes": 16},
        {"lanes": 32, "prefetch": True}, {"maps": "level", "arithmetic": "fp32", "prefetch": True},
    ]),
    ("roles-recompute", [
        {"producers": 1, "consumers": 1, **changes} for changes in (
            {"stages": 1}, {"metadata": "shared", "lanes": 4}, {"metadata": "shuffle", "lanes": 2},
            {"lanes": 16, "points_per_stage": 1, "stages": 3}, {"metadata": "shared", "lanes": 32},
            {"metadata": "shared", "arithmetic": "fp32"}, {"sync": "flags", "metadata": "shuffle"},
            {"sync": "flags", "stages": 1}, {"prefetch": True, "maps": "level"}, {"box": (3, 3)},
        )
    ] + [
        {"producers": 3, "consumers": 1}, {"producers": 1, "consumers": 3, "metadata": "shared"},
        {"producers": 5, "consumers": 2, "sync": "flags", "metadata": "shared", "prefetch": True},
        {"producers": 2, "consumers": 2, "metadata": "shared", "arrivals": "warp"},
    ]),
]  # fmt: skip


full = pytest.mark.full
FEW = {"num_heads": 1, "num_query": 3}  # all levels and points of a row, but few rows
each_size = pytest.mark.parametrize("size", [FEW, pytest.param({}, marks=full)], ids=["few", "all"])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [pytest.param(n, p, marks=full if i % 4 else ()) for n, many in CONFIGS for i, p in enumerate(many)],
    ids=str,
)
@each_size
def test_configurations(name, parameters, size):
    threads = {} if name == "roles-recompute" else {"threads": 64}
    check(small(**size).generate(seed=1), name, **{**threads, "min_blocks": 0, **parameters})


FAMILIES = {  # one of each kernel, with a small block
    "direct": {"threads": 64},
    "tile-cp-async": {"threads": 32},
    "tma": {"threads": 64},
    "persistent-prefetch": {"threads": 32},
    "roles-recompute": {"producers": 1, "consumers": 2},
    "roles-shared": {"producers": 1, "consumers": 1},
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", *(pytest.param(t, marks=full) for t in ("float16", "float32"))])
@pytest.mark.parametrize("padded", [False, pytest.param(True, marks=full)], ids=["dense", "padded"])
@each_size
def test_types_and_layouts(name, dtype, padded, size):
    """Of float16, dense, are test_configurations."""
    inputs = small(dtype=dtype, padded=padded, **size).generate(seed=2)
    check(inputs, name, min_blocks=0, **FAMILIES[name])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("channels", "dtype"), [
        (8, "float16"), pytest.param(24, "float16", marks=full),
        pytest.param(128, "bfloat16", marks=full), pytest.param(4, "float32", marks=full),
    ]
)  # fmt: skip
@each_size
def test_channels(name, channels, dtype, size):
    inputs = small(channels=channels, dtype=dtype, **{**size, "num_query": 3}).generate(seed=3)
    check(inputs, name, min_blocks=0, **FAMILIES[name])


@pytest.mark.parametrize("landing", ["late", "random", "earliest"])
@pytest.mark.parametrize(
    ("name", "stages"), [pytest.param("direct", None, marks=full), ("tma", 1), ("tma", 3)]
)
@pytest.mark.parametrize("schedules", [2, pytest.param(20, marks=full)])
def test_clean_over_schedules(name, stages, landing, schedules):
    """Of direct, a schedule or two are in test_variants.py."""
    parameters = {"stages": stages} if stages else {}
    inputs = small(batch=1, levels=((4, 3), (2, 2)), num_heads=1, num_query=6).generate(seed=4)
    options = {"schedules": schedules, "landing": landing}
    check(inputs, name, options, threads=32, min_blocks=0, **parameters)


@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    check_a_shape(data)


@full
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape_of_many(data):
    check_a_shape(data)


def check_a_shape(data):
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
    name = data.draw(st.sampled_from(list(FAMILIES)))
    parameters = dict(FAMILIES[name])
    if name != "direct":
        # The persistent pipeline looks one row ahead, and a row may have a single step.
        parameters["stages"] = data.draw(st.integers(1, 2 if "persistent" in name else 5))
    check(inputs, name, min_blocks=0, **parameters)


def test_quick_workload_of_the_seeds():
    check(preset("quick", num_query=16).generate(seed=5), "tma", stages=2, threads=64, min_blocks=0)


# --- a bound call ---------------------------------------------------------------------------------
def bound(name, inputs, **parameters):
    problem, chosen = problem_of(inputs), variant(name)
    config = chosen.configure(problem.constants, **parameters)
    return Bound(problem, chosen, config)


@pytest.mark.full
def test_a_bound_call_runs_again_and_again():
    inputs = preset("tiny").generate(seed=4)
    arrays = (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    call = bound("window", inputs, consumers=2, cell=(2, 2))
    for seed in (0, 1):
        out, report = call.run(arrays, seed=seed)
        assert Exact.of(inputs).error(out) < TOLERANCE["float16"] and report.cycles > 0


def test_parameters_stand_for_operands_by_name():
    inputs = preset("tiny").generate(seed=4)
    call = bound("tma", inputs)
    problem = call.problem
    call.kernel = SimpleNamespace(parameters=("out", "rows", "trace_block", "debug_row", "value"))
    assert call.arguments("abcd") == ("d", problem.rows, -1, -1, "a")
    assert call.arguments("abcd", extra={"trace_block": 3})[2] == 3
    call.kernel = SimpleNamespace(parameters=("value", "maps"))
    maps = call.arguments("abcd", maps=lambda *options: options)[1]
    assert maps == (call.config.maps, call.config.map_box(problem.constants), call.config.l2_promotion)
    call.kernel = SimpleNamespace(parameters=("value", "heigth"))
    with pytest.raises(ConfigError, match="^parameter=heigth: of a kernel must be one of batches, debug, "):
        call.arguments("abcd")
