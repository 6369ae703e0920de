"""``window`` on the CPU engine: boxes that many samples share, and samples that no box holds."""

import inspect
import linecache
import types

import numpy as np
import pytest
from helpers import check

from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import problem_of
from numba_deform.attention.reference import TOLERANCE, Exact
from numba_deform.engines.faults import CopyOutlivesBlock
from numba_deform.kernels import window_fit
from numba_deform.kernels.direct import FAR, GATE_WORDS
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import Variant, variant
from numba_deform.kernels.window_rows import layout as layout_of
from numba_deform.workloads.workload import Workload


def small(**changes):
    """Two levels, of which a cell's windows are parts; samples near their queries."""
    shape = dict(
        batch=1, levels=((12, 10), (6, 5)), num_query=10, num_heads=2, channels=32, num_points=2,
        pattern="local", sigma=1.0,
    )  # fmt: skip
    return Workload("small", **{**shape, **changes})


CELL = (5, 4)
# With 8 or 16 points, a lane prepares samples of two rows.
FOUR = ((12, 10), (6, 5), (3, 3), (2, 2))


def run(inputs, simulate_options=None, **parameters):
    parameters = {"consumers": 2, "cell": CELL, **parameters}
    return check(inputs, "window", simulate_options, **parameters)


@pytest.fixture
def poor_windows(monkeypatch):
    """Boxes of about a cell, which hold few of the samples."""
    keep(monkeypatch, 0)


def keep(monkeypatch, share):
    """Windows start with that share of the samples along each axis, and do not grow."""
    monkeypatch.setattr(window_fit, "KEPT", (share,))
    monkeypatch.setattr(window_fit, "grow", lambda *_: None)
    monkeypatch.setattr(window_fit, "fit", window_fit.fit.__wrapped__)  # nothing that is kept


# --- types, points, levels ------------------------------------------------------------------------
full = pytest.mark.full


@pytest.mark.parametrize(
    ("dtype", "channels", "arithmetic"),
    [
        ("float16", 32, "packed"), ("float32", 16, "auto"), ("bfloat16", 32, "packed"),
        *(pytest.param(*more, marks=full) for more in (
            ("float16", 32, "fp32"), ("float16", 64, "packed"), ("bfloat16", 32, "fp32"),
            ("bfloat16", 64, "packed"), ("float32", 32, "auto"),
        )),
    ],
)  # fmt: skip
def test_types(dtype, channels, arithmetic):
    inputs = small(dtype=dtype, channels=channels).generate(seed=1)
    run(inputs, arithmetic=arithmetic)


@pytest.mark.parametrize("location_dtype", ["float32", pytest.param("bfloat16", marks=full)])
def test_locations_of_another_type(location_dtype):
    run(small(location_dtype=location_dtype).generate(seed=2), cell=(3, 3))


@pytest.mark.parametrize("channels", [32, pytest.param(64, marks=full)])
@pytest.mark.parametrize("points", [1, *(pytest.param(n, marks=full) for n in (3, 4, 8))])
def test_points(points, channels):
    """With 1 or 3 there are lanes without a run; with 8 a row goes through more than one round."""
    inputs = small(num_points=points, channels=channels, num_query=6).generate(seed=3)
    run(inputs, consumers=3)


@pytest.mark.parametrize(
    ("levels", "points", "channels", "dtype", "layout"),
    [  # lanes of a row, rows of a lane, run, rounds, samples of a run prepared at a time
        (5, 4, 32, "float16", (4, 2, 4, 1, 1)),  # three of eight
        (2, 3, 32, "float16", (4, 2, 1, 1, 1)),
        *(pytest.param(*more, marks=full) for more in (
            (4, 8, 32, "float16", (4, 2, 4, 1, 1)),
            (4, 8, 64, "bfloat16", (8, 2, 2, 1, 1)),
            (4, 8, 16, "float32", (4, 2, 4, 1, 1)),
            (4, 16, 32, "float16", (4, 2, 4, 2, 1)),
            (4, 4, 32, "float16", (4, 2, 2, 1, 1)),
            (3, 4, 32, "float16", (4, 2, 2, 1, 1)),  # two of eight lanes have none
            (5, 8, 32, "float16", (4, 2, 4, 2, 1)),  # in the second round six of eight
            (1, 4, 32, "float16", (4, 1, 1, 1, 1)),
            (4, 4, 64, "float16", (8, 2, 1, 1, 1)),
            (5, 4, 32, "float32", (8, 2, 2, 1, 1)),
        )),
    ],
)
@pytest.mark.parametrize("arithmetic", ["auto", pytest.param("fp32", marks=full)])
def test_layouts(levels, points, channels, dtype, layout, arithmetic):
    workload = small(
        levels=((7, 9), (4, 5), (2, 3), (2, 2), (1, 1))[:levels], dtype=dtype, channels=channels,
        num_points=points, num_query=9, num_heads=1,
    )  # fmt: skip
    assert layout_of(Constants(levels, points, channels, dtype)) == layout
    run(workload.generate(seed=26), arithmetic=arithmetic)


@pytest.mark.parametrize("points", [pytest.param(n, marks=full) for n in (3, 8)])
def test_wide_samples_of_many_points(points):
    """Prepared in fp32, four words each."""
    inputs = small(num_points=points, channels=16, dtype="float32", num_query=6).generate(seed=4)
    run(inputs)


@pytest.mark.parametrize(
    "levels", [
        ((7, 9),),
        *(pytest.param(more, marks=full) for more in (((6, 5), (12, 10)), ((8, 6), (4, 3), (2, 2), (1, 1)))),
    ]
)  # fmt: skip
def test_levels(levels):
    """Coarse first; one; one of a single pixel."""
    run(small(levels=levels).generate(seed=5), cell=(4, 3))


@pytest.mark.parametrize("maps", ["level", pytest.param("batch", marks=full)])
def test_maps(maps):
    run(small(batch=3, num_heads=2).generate(seed=9), maps=maps, cell=(4, 4))


# --- cells, items, the ring -----------------------------------------------------------------------
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=full), 3])
@pytest.mark.parametrize("consumers", [pytest.param(1, marks=full), 3])
def test_ring(stages, consumers):
    """Many items go through few stages; some warps find nothing to do in some items."""
    run(small(num_query=14).generate(seed=6), stages=stages, consumers=consumers, cell=(4, 4))


@pytest.mark.full
def test_all_pixels_of_an_encoder():
    levels = ((6, 5), (3, 3))
    run(small(levels=levels, num_query=39).generate(seed=7), cell=(3, 4), consumers=3)


@pytest.mark.parametrize("queries", [1, pytest.param(9, marks=full)])
def test_cells_of_one_query(queries):
    """The other rows of its warp are copies that nobody stores."""
    bound = run(small(num_query=queries).generate(seed=9), cell=(2, 2))
    assert 1 in bound.tables.schedule[:, 3]


def test_a_cell_of_many_queries():
    """More groups than consumers, the last one not full."""
    run(small(num_query=19, num_heads=1).generate(seed=10), cell=(12, 10), stages=1)


def test_fewer_items_than_blocks():
    run(small(num_query=3, num_heads=1).generate(seed=11), cell=(12, 10))


@pytest.mark.full
def test_more_queries_than_pixels():
    """As the seeds' shape has: after the last pixel the first follows."""
    inputs = small(levels=((6, 5), (3, 3)), num_query=50).generate(seed=27)
    lost, count = outside(run(inputs, cell=(3, 4), consumers=3), inputs)
    assert lost < 0.01 * count


@full
def test_more_heads_and_levels_than_warps():
    """Each warp then looks at the samples of several."""
    run(small(num_heads=5, num_query=40).generate(seed=28), consumers=1, cell=(6, 5))


@pytest.mark.parametrize("heads", [1, 3])
def test_batches_and_heads(heads):
    run(small(batch=2, num_heads=heads, num_query=7).generate(seed=12))


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=full)])
def test_padded_value(dtype):
    inputs = small(padded=True, batch=2, num_query=7, dtype=dtype, outside=0.2).generate(seed=13)
    run(inputs)


# --- locations ------------------------------------------------------------------------------------
ODD = (np.nan, np.inf, -np.inf, -3e4, 6e4, -1.0, 2.0)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_odd_locations(dtype):
    inputs = small(dtype=dtype).generate(seed=14)
    flat = inputs.sampling_locations.reshape(-1)
    huge = (*ODD, 1e30, -1e30, 2.0**31) if dtype == "float32" else ODD
    for i, odd in enumerate(huge * 2):
        flat[(i * 37) % flat.size] = odd
    run(inputs)


@pytest.mark.parametrize("odd", [np.nan, *(pytest.param(x, marks=full) for x in (-np.inf, 6e4, -0.7))])
def test_all_locations_outside(odd):
    inputs = small(num_query=5).generate(seed=15)
    inputs.sampling_locations[:] = odd
    run(inputs)


@pytest.mark.parametrize("kept", [None, 0], ids=["held", "lost"])
def test_locations_on_borders(kept, monkeypatch):
    """Of the level, of its pixels, half a pixel off, and next to all of these."""
    if kept is not None:
        keep(monkeypatch, kept)
    workload = small(levels=((8, 16), (4, 8)), dtype="float32", num_query=12)
    inputs = workload.generate(seed=16)
    size = np.array([(16, 8), (8, 4)])[:, None]  # powers of two: what follows is exact
    rng = np.random.default_rng(17)
    shape = inputs.sampling_locations.shape
    where = rng.choice([-0.5, 0.0, 0.5, 1.0, 2.5, 3.0], shape)
    where = np.where(rng.random(shape) < 0.5, where, size - where)
    where = (where / size).astype(np.float32)
    beside = np.nextafter(where, np.float32(1) - where)
    inputs.sampling_locations[:] = np.where(rng.random(shape) < 0.7, where, beside)
    run(inputs)


# --- samples outside their windows ----------------------------------------------------------------
TWICE = 2 * ((12, 20), (6, 10))
POOR = [
    {}, {"batch": 2, "num_heads": 3, "num_query": 2}, {"padded": True}, {"dtype": "float32", "channels": 16},
    *(pytest.param(more, marks=full) for more in (
        {"levels": TWICE, "num_points": 8},
        {"levels": TWICE, "num_points": 8, "num_query": 2, "dtype": "float32", "channels": 16},
        {"num_points": 3, "channels": 64}, {"num_points": 8, "num_query": 2, "arithmetic": "fp32"},
        {"num_points": 8}, {"dtype": "bfloat16", "channels": 64},
    )),
]  # fmt: skip


def outside(bound, inputs):
    """How many of the samples that are looked at no window holds, and how many these are."""
    _, count = window_fit.look(bound.problem, bound.fit, inputs.sampling_locations)
    return count, window_fit.probed_samples(bound.problem)


@pytest.mark.parametrize("changes", POOR, ids=str)
def test_samples_that_no_window_holds(changes, poor_windows):
    workload = small(pattern="uniform", num_query=5, levels=((12, 20), (6, 10)), outside=0.1)
    arithmetic = changes.get("arithmetic", "auto")
    changes = {field: value for field, value in changes.items() if field != "arithmetic"}
    inputs = workload.replace(**changes).generate(seed=18)
    inputs.attention_weights.reshape(-1)[::7] = 0
    lost, count = outside(run(inputs, cell=(1, 1), arithmetic=arithmetic), inputs)
    assert lost > 0.5 * count


@pytest.mark.full
def test_local_samples_are_held():
    """So that the other tests look at windows."""
    inputs = small(num_query=150).generate(seed=1)
    lost, count = outside(run(inputs), inputs)
    assert lost < 0.01 * count


@full
def test_samples_that_all_moved_are_held():
    """By 5 pixels of their level, to the right and up."""
    inputs = small(levels=((30, 20), (15, 10)), num_query=750, num_heads=1).generate(seed=1)
    inputs.sampling_locations[:] += (5 / np.array([(20, -30), (10, -15)]))[:, None].astype(np.float16)
    bound = run(inputs, cell=(6, 6))
    lost, count = outside(bound, inputs)
    assert lost < 0.01 * count and max(bound.config.boxes[0]) < 20


@pytest.mark.full
def test_equal_arguments_give_equal_bits(poor_windows):
    """Whatever ran before, and in whatever order its warps did."""
    inputs, other = (small(num_query=20, pattern=p).generate(seed=25) for p in ("local(1)", "uniform"))
    arrays = [(i.value, i.sampling_locations, i.attention_weights) for i in (inputs, other)]
    bound = run(inputs, cell=(4, 4))
    outs = [bound.run(arrays[which], seed=seed)[0] for seed, which in enumerate((0, 1, 0))]
    assert np.array_equal(outs[0], outs[2]) and not np.array_equal(outs[0], outs[1])


# --- two launches ---------------------------------------------------------------------------------
def near_and_far(pattern, limit):
    """(inputs, the Bounds of two launches on the CPU engine)."""
    workload = small(levels=((18, 22),), num_query=396, num_heads=1, pattern=pattern)
    inputs = workload.generate(seed=1)
    problem, window, direct = problem_of(inputs), variant("window"), variant("direct")
    config = window.configure(problem.constants, consumers=2, cell=(4, 4)).fitted(limit=limit)
    gated = direct.configure(problem.constants, min_blocks=0).gated()
    return inputs, (Bound(problem, window, config), Bound(problem, direct, gated))


@full
@pytest.mark.parametrize(("pattern", "limit", "left"), [("uniform", 9, True), ("local(0.5)", 9, False)])
def test_the_second_launch_runs_if_the_first_one_does_not(pattern, limit, left):
    inputs, bounds = near_and_far(pattern, limit)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    out, gate = np.full(bounds[0].problem.out_shape, np.nan, np.float16), np.full(GATE_WORDS, 12345, np.uint32)
    bounds[0].simulate(arrays, out, {"gate": gate})
    _, outside = window_fit.look(bounds[0].problem, bounds[0].fit, inputs.sampling_locations)
    assert gate[0] == (outside | FAR if left else outside)
    assert np.isnan(out.astype(np.float32)).all() == left
    before = out.copy()
    bounds[1].simulate(arrays, out, {"gate": gate})
    assert left or np.array_equal(out, before)  # which it would not have, bit for bit
    assert Exact.of(inputs).error(out) < TOLERANCE["float16"]


class Impatient(Variant):
    """``window`` whose blocks end without a wait for their first windows, where they leave the work."""

    def kernel(self, config, constants):
        text = "wait(ring, first_state())"
        source = inspect.getsource(self.module)
        assert source.count(text) == 1
        module = types.ModuleType(self.module.__name__)
        module.__package__, file = "numba_deform.kernels", "<window, impatient>"
        source = source.replace(text, "pass")
        linecache.cache[file] = len(source), None, source.splitlines(True), file
        exec(compile(source, file, "exec"), vars(module))
        return module.build(config, constants)


def test_first_windows_come_before_a_block_leaves_the_work():
    inputs, (window, _) = near_and_far("uniform", 9)
    impatient = Bound(window.problem, Impatient(**vars(window.variant)), window.config)
    out, gate = np.zeros(window.problem.out_shape, np.float16), np.zeros(GATE_WORDS, np.uint32)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    with pytest.raises(CopyOutlivesBlock):
        impatient.simulate(arrays, out, {"gate": gate})
    window.simulate(arrays, out, {"gate": gate})
    assert gate[0] & FAR and not out.any()


@pytest.mark.full
def test_as_many_as_the_limit_are_not_too_many():
    for more in (0, -1):
        inputs, (window, _) = near_and_far("local(6)", 0)
        _, outside = window_fit.look(window.problem, window.fit, inputs.sampling_locations)
        inputs, (window, _) = near_and_far("local(6)", outside + more)
        arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
        gate, out = np.zeros(GATE_WORDS, np.uint32), np.zeros(window.problem.out_shape, np.float16)
        window.simulate(arrays, out, {"gate": gate})
        assert outside > 0 and bool(gate[0] & FAR) == bool(more)


# --- schedules ------------------------------------------------------------------------------------
each_number = pytest.mark.parametrize("schedules", [1, pytest.param(4, marks=full)])


@pytest.mark.parametrize("landing", ["late", "random", "earliest"])
@pytest.mark.parametrize("stages", [1, 2])
@each_number
def test_clean_over_schedules(stages, landing, schedules):
    inputs = small(levels=((6, 5), (3, 3)), num_heads=1, num_points=1).generate(seed=20)
    run(inputs, {"schedules": schedules, "landing": landing}, stages=stages, cell=(3, 3))


@each_number
def test_clean_over_schedules_with_lost_samples(poor_windows, schedules):
    workload = small(levels=((6, 5), (3, 3)), num_heads=1, num_points=4, pattern="uniform")
    run(workload.generate(seed=21), {"schedules": schedules, "landing": "random"}, cell=(2, 2))
