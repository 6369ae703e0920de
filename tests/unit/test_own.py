"""A function decorated by ``nd.variant`` is a variant like any other, and says what is wrong with it."""

import sys

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform import cli
from numba_deform.attention.checks import problem_of
from numba_deform.kernels import registry

TINY = nd.preset("tiny", num_query=3)
SEEDS = nd.Constants(levels=4, points=8, channels=32)


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    for name in [name for name in registry.VARIANTS if registry.is_registered(name)]:
        registry.Registration(registry.VARIANTS[name]).remove()


def kernel_of(threads=32, shared=None):
    @nd.kernel(threads=threads, shared=shared)
    def nothing(out: nd.u64, rows: nd.i32):
        pass

    return nothing


def nearest(constants, warps=2, scale=1.0):
    """the attention weight of each row's first sample, in all channels
    A second line."""
    CHANNELS, SCALE = constants.channels, nd.float32(scale)
    rows = nd.Rows(constants, per_item=warps)

    @nd.kernel(threads=32 * warps)
    def nearest(
        levels: nd.u64, locations: nd.u64, weights: nd.u64, out: nd.u64, batches: nd.i32,
        rows_per_batch: nd.i32, heads: nd.i32,
    ):  # fmt: skip
        for item in range(cuda.blockIdx.x, rows.count(batches, rows_per_batch), cuda.gridDim.x):
            row = rows.row(item, nd.warp(), batches, rows_per_batch, heads)
            weight = rows.sample(levels, locations, weights, row, 0).weight * SCALE
            if row.valid and nd.lane() < CHANNELS // 2:
                pair = nd.cvt_rn_f16x2_f32(weight, weight)
                nd.st_global_b32(nd.global_at(out, CHANNELS // 2 * row.number + nd.lane(), 4), pair)

    return nearest, lambda problem, resident: min(resident(), rows.items(problem))


def decorated(function=nearest, name="nearest", fetch="l1", capability=(8, 0), **more):
    return nd.variant(name, fetch=fetch, capability=capability, **more)(function)


def test_it_runs_by_its_name(monkeypatch):
    """An item more than blocks, rows that do not fill an item, and samples outside."""
    entry, inputs = decorated(), TINY.replace(outside=0.5).generate(1)
    assert registry.VARIANTS["nearest"] is entry and registry.is_registered("nearest")
    assert entry.summary == "the attention weight of each row's first sample, in all channels"
    weights = inputs.attention_weights[:, :, :, 0, 0].astype(np.float32)
    x, y = np.moveaxis(inputs.sampling_locations[:, :, :, 0, 0].astype(np.float32), -1, 0)
    height, width = inputs.spatial_shapes[0]
    inside = (-0.5 < x * width) & (x * width < width + 0.5) & (-0.5 < y * height) & (y * height < height + 0.5)
    for parameters in {}, {"warps": 4}, {"scale": 2.0}:
        out = nd.ms_deform_attn(
            inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
            inputs.attention_weights, variant="nearest", engine="cpu", **parameters,
        )  # fmt: skip
        expected = np.where(inside, weights, 0) * parameters.get("scale", 1)
        assert not inside.all() and inside.any()
        rows = out.reshape(*expected.shape, -1)
        assert np.array_equal(rows, np.broadcast_to(expected[..., None].astype(np.float16), rows.shape))


def test_its_parameters_are_those_of_the_function():
    entry = decorated()
    config = entry.configure(SEEDS, warps=4)
    assert (config.warps, config.scale, config.threads) == (4, 1.0, 128)
    assert not config.debug and not config.trace
    assert entry.kernel(config, SEEDS) is entry.kernel(entry.configure(SEEDS, warps=4), SEEDS)
    assert entry.kernel(entry.configure(SEEDS, trace=True), SEEDS).traced
    problem = problem_of(TINY.generate(1))
    assert entry.module.blocks(problem, config, lambda: 3) == 3
    assert entry.module.blocks(problem, config, lambda: 99) == TINY.batch * -(-3 * TINY.num_heads // 4)
    with pytest.raises(nd.ConfigError, match="lanes=4: nearest has the parameters warps, scale, debug, trace"):
        entry.configure(SEEDS, lanes=4)


def test_its_layout_says_its_bytes():
    def mine(constants, stages=2):
        shared = nd.Shared(tiles=nd.Array((stages, 1024), nd.uint8), ring=nd.Ring(stages))
        return kernel_of(64, shared), lambda problem, resident: 1

    entry = decorated(mine)
    config = entry.configure(SEEDS, stages=3)
    assert config.shared_bytes(SEEDS) == (3 * 1024, 3 * 16, 0)
    assert entry.dynamic_shared_bytes(config, SEEDS) == 3 * 1024 + 3 * 16
    with pytest.raises(nd.ConfigError, match="with stages=300: 312000 bytes of shared memory") as caught:
        entry.configure(SEEDS, stages=300)
    assert (caught.value.field, caught.value.value) == ("variant", "nearest")
    with pytest.raises(nd.ConfigError, match="variant=nearest: with stages=0: shape="):
        entry.configure(SEEDS, stages=0)


def test_what_its_maps_are():
    own = decorated(box=(4, 6), maps="level").config()
    assert (own.map_box(SEEDS), own.maps) == ((4, 6), "level")
    assert decorated().config().map_box(SEEDS) == (2, 2)


def test_a_cell_may_run_again_and_another_name_is_taken():
    def other(constants):
        return kernel_of(), lambda problem, resident: 1

    decorated()
    again = decorated()
    assert registry.VARIANTS["nearest"] is again
    with pytest.raises(nd.ConfigError, match="name=nearest: exists already"):
        decorated(other)
    with pytest.raises(nd.ConfigError, match="name=tma: exists already; it is one of the package's own"):
        decorated(name="tma")
    assert registry.VARIANTS["nearest"] is again


def grid(problem, resident):
    return 1


def without_default(constants, stages):
    return kernel_of(), grid


def with_trace(constants, trace=True):
    return kernel_of(), grid


@pytest.mark.parametrize(
    "change, field, words",
    [
        (dict(function=without_default), "parameter", "of without_default needs a default"),
        (dict(function=with_trace), "parameter", "comes by itself"),
        (dict(name="My Variant"), "name", "lower-case"),
        (dict(fetch="dma"), "fetch", "one of l1, tma, shared"),
        (dict(capability=9.0), "capability", "two numbers, such as"),
        (dict(maps="head"), "maps", "must be batch or level"),
        (dict(box=(2, 2, 2)), "box", "a height and a width from 1 to 256"),
        (dict(box=(0, 2)), "box", "a height and a width from 1 to 256"),
    ],
)
def test_a_variant_that_is_refused(change, field, words):
    with pytest.raises(nd.ConfigError, match=words) as caught:
        decorated(**change)
    assert caught.value.field == field and "nearest" not in registry.VARIANTS


@pytest.mark.parametrize(
    "made, field, words",
    [
        (lambda: kernel_of(), "variant", "must return a kernel and its grid"),
        (lambda: (kernel_of(), 4), "variant", "must return a kernel and its grid"),
        (lambda: (kernel_of().py_func, grid), "variant", "must return a kernel and its grid"),
        (lambda: (kernel_of(48), grid), "threads", "multiple of 32, at most 1024"),
        (lambda: (kernel_of(1056), grid), "threads", "multiple of 32, at most 1024"),
    ],
)
def test_a_function_that_makes_no_variant(made, field, words):
    entry = decorated(lambda constants: made())
    with pytest.raises(nd.ConfigError, match=words) as caught:
        entry.configure(SEEDS)
    assert caught.value.field == field


def test_a_refusal_is_the_functions_own():
    def refuses(constants, stages=2):
        raise nd.ConfigError("points", constants.points, "must be even")

    with pytest.raises(nd.ConfigError, match="^points=8: must be even$"):
        decorated(refuses).configure(SEEDS)


FILE = """
import numba_deform as nd


@nd.variant("of-a-file", fetch="tma", capability=(9, 0))
def of_a_file(constants, stages=2, warps=1):
    "asks for the first tile of each row, and writes nothing"
    shared = nd.Shared(tiles=nd.Array((stages * warps, 2, 2, 32), nd.float16, alignment=128),
                       ring=nd.WarpRing(stages, warps))
    rows, ring = nd.Rows(constants, per_item=warps), shared.ring

    @nd.function
    def issue(maps, state, row):
        if nd.lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(ring.slot(state))
            nd.cp_async_bulk_tensor_3d(tile, maps, 32 * row.head, 0, 0, ring.full(state))

    @nd.kernel(threads=32 * warps, shared=shared)
    def of_a_file(maps: nd.u64, batches: nd.i32, rows_per_batch: nd.i32, heads: nd.i32):
        nd.fence_proxy_tensormap_acquire_sys(maps)
        shared.init()
        row = rows.row(0, nd.warp(), batches, rows_per_batch, heads)
        state = ring.start()
        issue(maps, state, row)
        ring.wait(state)
        ring.release(state)

    return of_a_file, lambda problem, resident: 1
"""


@pytest.mark.parametrize(
    "words, status, says",
    [
        ("run engine=cpu workload=tiny num_query=2 channels=32", 1, "of-a-file: asks for the first tile"),
        ("budget stages=1,2 registers=32 markdown=1", 0, "| 2 | 624 | 16 | 640 |"),
        ("budget stages=1000 registers=32", 2, "with stages=1000 warps=1: 264112 bytes"),
        ("inspect show=ptx", 0, ".entry of_a_file("),
        ("timeline engine=cpu workload=tiny channels=32 out={}/t.json", 0, "of-a-file, block 0: CPU engine"),
        ("variants", 0, "of-a-file"),
    ],
)
def test_commands_know_it_from_a_file(tmp_path, monkeypatch, capsys, words, status, says):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_loaded", {})
    file = tmp_path / "my.py"
    file.write_text(FILE)
    command, *more = words.format(tmp_path).split()
    assert cli.main([command, *more, f"load={file}"]) == status
    captured = capsys.readouterr()
    assert says in (captured.out + captured.err).replace("│", "|")
