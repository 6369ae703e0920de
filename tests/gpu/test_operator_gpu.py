"""Every variant on a real GPU against the float64 reference, and with other libraries' arrays."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numba_deform import OperatorError, ms_deform_attn, prepare, preset, reference, relative_error
from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import problem_of
from numba_deform.attention.debug import check_tiles
from numba_deform.attention.reference import TOLERANCE
from numba_deform.device.limits import limits_of
from numba_deform.engines.gpu import launch as gpu
from numba_deform.kernels.budget import Budget
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import VARIANTS, variant
from numba_deform.measure.systems import plan_operator
from numba_deform.measure.timeline import record
from numba_deform.workloads.workload import Workload

CONFIGS = [
    ("direct", {}),
    ("direct", {"lanes": 4}),
    ("direct", {"lanes": 32, "arithmetic": "fp32"}),
    ("tma", {"stages": 1}),
    ("tma", {"stages": 2}),
    ("tma", {"stages": 3, "batches_abreast": 2}),
    ("tma", {"stages": 9, "points_per_stage": 1}),
    ("tma", {"stages": 3, "threads": 512, "points_per_stage": 1}),
    ("tile-cp-async", {"stages": 5}),
    ("persistent", {"stages": 4, "barriers": "point"}),
    ("phase1", {"producers": 5, "consumers": 2, "min_blocks": 1}),
    ("phase3", {"stages": 3, "arithmetic": "fp32"}),
    ("phase6", {"lanes": 4, "maps": "level"}),
]
EDGES = {  # shapes at which a persistent pipeline may never end
    "one row": dict(batch=1, levels=((5, 7),), num_query=1, num_heads=1, num_points=1),
    "half a block": dict(
        batch=3, levels=((9, 7), (4, 3)), num_query=1001, num_heads=1, num_points=8
    ),
    "many rows": dict(batch=2, levels=((9, 7), (4, 3)), num_query=15391, num_heads=2, num_points=4),
}


def expected(inputs):
    return reference(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index,
        inputs.sampling_locations, inputs.attention_weights, padded=inputs.padded,
    )  # fmt: skip


def run(inputs, name, **options):
    out = np.full(
        (*inputs.sampling_locations.shape[:2], np.prod(inputs.value.shape[2:])),
        np.nan,
        inputs.value.dtype,
    )
    return ms_deform_attn(
        inputs.value,
        inputs.spatial_shapes,
        inputs.level_start_index,
        inputs.sampling_locations,
        inputs.attention_weights,
        name,
        engine="gpu",
        padded=inputs.padded,
        out=out,
        **options,
    )


@pytest.mark.parametrize(("name", "parameters"), CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("padded", [False, True], ids=["dense", "padded"])
def test_variant_equals_reference(hopper, name, parameters, dtype, padded):
    workload = Workload(
        "test", batch=3, levels=((37, 50), (19, 25), (10, 13), (1, 1)), num_query=333, num_heads=3,
        channels=32, num_points=5, dtype=dtype, padded=padded, outside=0.1,
    )  # fmt: skip
    inputs = workload.generate(seed=3)
    out = run(inputs, name, **parameters)
    assert relative_error(out, expected(inputs)) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("edge", EDGES)
def test_every_variant_ends(hopper, name, edge):
    workload = Workload("edge", channels=32, pattern="uniform", outside=0.1, **EDGES[edge])
    inputs = workload.generate(seed=6)
    assert relative_error(run(inputs, name), expected(inputs)) < TOLERANCE["float16"]


@pytest.mark.parametrize("name", [n for n, v in VARIANTS.items() if hasattr(v.config, "box")])
def test_tiles_are_what_plain_loads_find(hopper, name):
    workload = Workload(
        "edge", channels=32, pattern="uniform", outside=0.2, **EDGES["half a block"]
    )
    inputs = workload.generate(seed=7)
    plan = plan_operator(inputs, name, "gpu", debug=True)
    for row in (0, 1000, 3002):
        assert all(check.match for check in check_tiles(plan.bound, plan.case.arrays, row))


def test_resident_blocks_are_what_the_budget_says(hopper):
    """The formulas of kernels/budget.py against the driver."""
    constants = Constants(4, 8, 32)
    for name in VARIANTS:
        chosen = VARIANTS[name]
        config = chosen.configure(constants)
        kernel, shared = (
            chosen.kernel(config, constants),
            chosen.dynamic_shared_bytes(config, constants),
        )
        limits = limits_of(hopper.architecture)
        _, function = gpu._loaded(hopper, kernel, shared)
        registers = function.attributes.num_regs
        budget = Budget.of(config, constants, limits, registers)
        assert budget.occupancy.blocks * hopper.sms == gpu.resident_blocks(
            hopper, kernel, shared
        ), name


@pytest.mark.parametrize(
    "name", ["direct", "tile-cp-async", "tma", "persistent-prefetch", "phase2"]
)
@pytest.mark.parametrize(
    ("channels", "dtype"),
    [
        (8, "float16"),
        (24, "float16"),
        (64, "bfloat16"),
        (128, "float16"),
        (4, "float32"),
        (64, "float32"),
    ],
)
def test_channels(hopper, name, channels, dtype):
    workload = Workload(
        "test", batch=2, levels=((16, 20), (8, 10)), num_query=100, num_heads=2, channels=channels,
        num_points=4, dtype=dtype,
    )  # fmt: skip
    inputs = workload.generate(seed=4)
    assert relative_error(run(inputs, name), expected(inputs)) < TOLERANCE[dtype]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_odd_shapes(hopper, data):
    levels = data.draw(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4)
    )
    workload = Workload(
        "odd", batch=data.draw(st.integers(1, 3)), levels=tuple(levels),
        num_query=data.draw(st.integers(1, 40)), num_heads=data.draw(st.integers(1, 3)), channels=32,
        num_points=data.draw(st.integers(1, 6)), pattern="uniform", outside=0.2,
    )  # fmt: skip
    inputs = workload.generate(seed=5)
    inputs.sampling_locations.reshape(-1)[::7] = np.nan
    inputs.sampling_locations.reshape(-1)[3::11] = np.inf
    want = expected(inputs)
    for name, parameters in (
        ("direct", {}), ("tile-cp-async", {}), ("tma", {"stages": 3}), ("persistent-prefetch", {}),
        ("phase2", {}), ("phase6", {}),
    ):  # fmt: skip
        out = run(inputs, name, **parameters)
        assert np.isfinite(out.astype(np.float32)).all()
        if np.linalg.norm(want):
            assert relative_error(out, want) < TOLERANCE["float16"]
        else:
            assert not out.any()


def test_linked_form_is_the_same_function(hopper):
    inputs = preset("tiny").generate(seed=6)
    problem, chosen = problem_of(inputs), variant("tma")
    config = chosen.configure(problem.constants, stages=2)
    arrays = (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    linked, _ = Bound(problem, chosen, config, hopper, form="linked").run(arrays)
    assert np.array_equal(linked, run(inputs, "tma", stages=2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_torch_tensors_on_their_stream(hopper, dtype):
    torch = pytest.importorskip("torch")
    inputs = preset("tiny", dtype=dtype).generate(seed=7)

    def tensor(array):
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(array).cuda()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # The inputs are made on the stream, behind work that takes a while, so that a launch on
        # another stream would read them too early.
        torch.cuda._sleep(50_000_000)
        value = tensor(inputs.value) * 1
        out = ms_deform_attn(
            value, tensor(inputs.spatial_shapes), tensor(inputs.level_start_index),
            tensor(inputs.sampling_locations) * 1, tensor(inputs.attention_weights) * 1,
        )  # fmt: skip
    stream.synchronize()
    assert isinstance(out, torch.Tensor) and out.dtype == value.dtype
    assert relative_error(out.double().cpu().numpy(), expected(inputs)) < TOLERANCE[dtype]


def test_no_gradient_of_torch_is_lost(hopper):
    torch = pytest.importorskip("torch")
    from numba_deform import torch as door

    inputs = preset("tiny").generate(seed=7)
    index = (inputs.spatial_shapes, inputs.level_start_index)
    value, locations, weights = (
        torch.from_numpy(a).cuda()
        for a in (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    )
    learning = torch.nn.Parameter(weights)
    plan, want = door.prepare(value, *index, locations, weights), expected(inputs)
    for call in (
        lambda: ms_deform_attn(value, *index, locations, learning),
        lambda: ms_deform_attn(value, *index, locations, learning * 2),
        lambda: prepare(value, *index, locations, learning),
        lambda: plan(value, locations, learning),
    ):
        with pytest.raises(OperatorError, match="^attention_weights requires a gradient, which only"):
            call()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            for out in (
                door.ms_deform_attn(value, *index, locations, learning),
                door.prepare(value, *index, locations, learning)(value, locations, learning),
            ):
                error = relative_error(out.double().cpu().numpy(), want)
                assert error < TOLERANCE["float16"] and not out.requires_grad
    with pytest.raises(OperatorError, match="^value is a ndarray; numba_deform.torch takes"):
        door.ms_deform_attn(inputs.value, *index, locations, weights)


def test_what_jax_traces_is_refused(hopper):
    jax = pytest.importorskip("jax")
    inputs = preset("tiny", location_dtype="float32").generate(seed=8)
    arrays = [jax.numpy.asarray(a) for a in (inputs.value, inputs.sampling_locations)]
    weights = jax.numpy.asarray(inputs.attention_weights)

    def call(weights):
        value, locations = arrays
        index = (inputs.spatial_shapes, inputs.level_start_index)
        return ms_deform_attn(value, *index, locations, weights)

    with pytest.raises(OperatorError, match="^attention_weights is traced by JAX"):
        jax.jit(call)(weights)


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
def test_other_libraries(hopper, library):
    xp = pytest.importorskip(library)
    inputs = preset("tiny", location_dtype="float32").generate(seed=8)
    arrays = [
        xp.asarray(a)
        for a in (
            inputs.value, inputs.spatial_shapes, inputs.level_start_index,
            inputs.sampling_locations, inputs.attention_weights,
        )
    ]  # fmt: skip
    out = ms_deform_attn(*arrays, variant="tma")
    assert type(out) is type(arrays[0])
    host = out.get() if hasattr(out, "get") else np.asarray(out)
    assert relative_error(host, expected(inputs)) < TOLERANCE["float16"]


def test_value_is_used_where_it_is(hopper):
    """A second call with changed data at the same address must see them: only maps are cached."""
    torch = pytest.importorskip("torch")
    inputs = preset("tiny").generate(seed=9)
    value = torch.from_numpy(inputs.value).cuda()
    rest = [
        torch.from_numpy(a).cuda() for a in (inputs.sampling_locations, inputs.attention_weights)
    ]
    call = (inputs.spatial_shapes, inputs.level_start_index, *rest, "tma")
    first = ms_deform_attn(value, *call).double()
    value *= 2
    second = ms_deform_attn(value, *call).double()
    assert float((second - 2 * first).norm() / first.norm()) < 2e-3


@pytest.mark.parametrize(
    "name", ["tile-cp-async", "tma", "persistent-prefetch", "phase2", "phase3"]
)
def test_timeline_of_both_engines(hopper, name):
    """A warp comes to the same steps in the same order on the GPU and on the CPU engine."""
    workload = Workload("small", batch=1, levels=((9, 7), (4, 3)), num_query=50, num_heads=1, channels=32,
                        num_points=4)  # fmt: skip
    seen = []
    for engine in ("gpu", "cpu"):
        made = record(plan_operator(workload.generate(seed=8), name, engine, trace=True))
        assert min(span.start for span in made.spans) == 0
        seen.append([(s.activity, s.warp, s.stage, s.parity, s.use) for s in made.spans])
    if "persistent" in name or "phase" in name:  # a GPU's block 0 has the first rows only
        assert set(seen[0]) <= set(seen[1])
    else:
        assert seen[0] == seen[1]
