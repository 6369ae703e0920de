"""The ceilings' kernels load what they say: their XOR equals NumPy's, TMA issues every tile."""

import numpy as np
import pytest

from numba_deform.device.memory import dynamic_bytes
from numba_deform.engines.cpu import simulate
from numba_deform.kernels.level_maps import level_maps
from numba_deform.kernels.problem import make_levels
from numba_deform.measure import ceilings, scatter
from numba_deform.measure.case import case_on
from numba_deform.workloads.presets import preset


def draws(seeds, count):
    """(count, len(seeds)) uint32: the generator's first ``count`` numbers of every seed."""
    state = np.asarray(seeds, np.uint64) * ceilings.SPREAD % 2**32
    found = []
    for _ in range(count):
        state = (state * ceilings.MULTIPLIER + ceilings.INCREMENT) % 2**32
        found.append(state)
    return np.array(found)


def window_result(window, threads, tiles, row_bytes, pixel_bytes):
    """(threads, 4) uint32: XOR over ``tiles`` tiles of each thread's 16 bytes of either row."""
    lanes, chunks = ceilings.tile_lanes(row_bytes), row_bytes // 16
    thread = np.arange(threads)
    sub = thread % lanes
    chunk = np.minimum(sub % (lanes // 2), chunks - 1)
    own = sub // (lanes // 2) * pixel_bytes + chunk * 16
    slots = (draws(thread // lanes, tiles) >> 16) & (ceilings.window_slots(row_bytes) - 1)
    at = (own + slots.astype(np.int64) * row_bytes) // 16
    words = window.view(np.uint32).reshape(-1, 4)
    return np.bitwise_xor.reduce(words[at] ^ words[at + ceilings.WINDOW // 32], axis=0)


def random_bytes(count):
    return np.random.default_rng(1).integers(0, 256, count, np.uint8)


@pytest.mark.parametrize(
    ("row_bytes", "heads", "unroll"), [(64, 1, 4), (64, 8, 2), (48, 1, 2), (256, 1, 1), (16, 2, 1)]
)
def test_l1(row_bytes, heads, unroll):
    kernel = ceilings.build_l1(row_bytes, heads * row_bytes, unroll, threads=64)
    window = random_bytes(ceilings.window_bytes(row_bytes, heads * row_bytes))
    out = np.zeros((128, 4), np.uint32)
    simulate(kernel, 2, 64, (window, out, 3))
    assert np.array_equal(out, window_result(window, 128, 3 * unroll, row_bytes, heads * row_bytes))


@pytest.mark.parametrize(("row_bytes", "unroll"), [(64, 4), (48, 2), (128, 1)])
def test_shared(row_bytes, unroll):
    kernel = ceilings.build_shared(row_bytes, unroll, threads=64)
    window = random_bytes(ceilings.window_bytes(row_bytes, row_bytes))
    out = np.zeros((64, 4), np.uint32)
    simulate(kernel, 1, 64, (window, out, 3))
    assert np.array_equal(out, window_result(window, 64, 3 * unroll, row_bytes, row_bytes))


SMS = 2  # of the pretended GPU


def tma_result(value, shapes, threads, stages, points, refills, region, maps_of):
    """(threads, 4) uint32: XOR of what the last ``stages`` stages of every warp hold."""
    batches, heads = value.shape[0], value.shape[2]
    out = np.zeros((len(range(threads)), 4), np.uint32)
    starts = np.cumsum([0] + [h * w for h, w in shapes])
    tile_words = 4 * value.shape[3] * value.itemsize // 16
    for thread in range(threads):
        lane, warp, block = thread % 32, thread % 64 // 32, thread // 64
        if lane >= points:
            continue
        sm = block % SMS
        level, batch = sm % len(shapes), sm // len(shapes) % batches
        if maps_of == "warp":
            level, batch = warp % len(shapes), block % batches
        height, width = shapes[level]
        plane = value[batch, starts[level] : starts[level + 1], thread % heads]
        plane = np.pad(plane.reshape(height, width, -1), ((0, 1), (0, 1), (0, 0)))
        random = draws([thread], 2 * (stages + refills))[:, 0].reshape(-1, 2)[-stages:] >> 16
        for across, down in random:
            x = int(across) * min(width, region) >> 16
            y = int(down) * min(height, region) >> 16
            tile = np.ascontiguousarray(plane[y : y + 2, x : x + 2]).view(np.uint32).reshape(-1, 4)
            first = thread - lane
            for word in range(tile_words):
                out[first + word % 32] ^= tile[word]
    return out


@pytest.mark.full
@pytest.mark.parametrize(
    ("stages", "points", "refills", "region", "heads"),
    [(2, 8, 3, 10**6, 1), (1, 3, 2, 10**6, 2), (3, 32, 4, 2, 1)],
)
@pytest.mark.parametrize(("maps_of", "barrier_of"), [("sm", "warp"), ("warp", "block")])
@pytest.mark.parametrize("landing", ["late", "random"])
def test_tma(stages, points, refills, region, heads, landing, maps_of, barrier_of):
    shapes, channels, batches, blocks, warps = ((5, 7), (3, 2), (1, 1)), 32, 2, 3, 2
    spatial = sum(h * w for h, w in shapes)
    value = np.random.default_rng(2).standard_normal((batches, spatial, heads, channels))
    value = value.astype(np.float16)
    levels = make_levels(shapes)
    maps = level_maps(value, batches, heads, channels, "float16", levels, spatial)
    kernel = ceilings.build_tma(
        2 * channels, channels, len(shapes), stages, points, warps, maps_of, barrier_of
    )
    out = np.zeros((blocks * 32 * warps, 4), np.uint32)
    report = simulate(
        kernel, blocks, kernel.threads,
        (maps, np.array(levels, np.int32), out, batches, heads, region, refills, SMS),
        shared_bytes=dynamic_bytes(ceilings.ring_bytes(2 * channels, stages, points, warps)),
        schedules=3, landing=landing,
    )  # fmt: skip
    assert report.copies == 3 * blocks * warps * (refills + stages) * points
    want = tma_result(value, shapes, len(out), stages, points, refills, region, maps_of)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("words", [1, 64 * 4, 64 * 9 + 5])
def test_copy(words):
    source = random_bytes(16 * words)
    target = np.zeros_like(source)
    simulate(ceilings.build_copy(unroll=2, threads=32), 2, 32, (source, target, words))
    assert np.array_equal(source, target)


def test_empty_and_delay():
    simulate(ceilings.build_empty(), 1, 32, (0,))
    assert simulate(ceilings.build_delay(), 1, 32, (1000,)).cycles >= 1000


@pytest.mark.full
@pytest.mark.parametrize("instruction", scatter.FORMS)
@pytest.mark.parametrize(
    ("channels", "points"),
    [(32, 4), pytest.param(24, 5, marks=pytest.mark.full), pytest.param(64, 1, marks=pytest.mark.full)],
)
def test_scatter(instruction, channels, points):
    """Every sample's four neighbours get one each, in every channel of the row's head, and nothing else."""
    workload = preset("tiny", num_query=3, channels=channels, num_points=points)
    problem, form = (case := case_on(None, workload, 1)).problem, scatter.FORMS[instruction]
    places = scatter.places_of(problem, case.arrays[1])
    pixels, stride = places.astype(int).T.reshape(2, problem.rows, -1)
    heads = np.arange(problem.rows)[:, None] % problem.heads
    wanted = np.zeros((problem.batch * problem.spatial_size + 1, problem.heads, 1), form.dtype)
    for neighbour in (pixels, pixels + 1, pixels + stride, pixels + stride + 1):
        np.add.at(wanted, (neighbour, heads), 1)
    sums = np.zeros((*wanted.shape[:2], channels), form.dtype)
    grid = scatter.blocks(problem.rows, channels, instruction)
    arguments = (places, sums, problem.rows, problem.heads, problem.constants.samples)
    simulate(scatter.build_scatter(channels, instruction), grid, scatter.THREADS, arguments)
    assert np.array_equal(sums, np.broadcast_to(wanted, sums.shape)) and wanted.sum() == 4 * problem.samples


def test_places_are_those_of_the_samples():
    """The upper left neighbour, and at the border the one whose three others are inside too."""
    case = case_on(None, preset("tiny", batch=2, num_query=1, num_heads=1, num_points=3), 1)
    locations = np.full_like(case.arrays[1], 0.5)
    locations[1, 0, 0, 0, :, 0] = (3.6 / 7, 5.0, np.nan)  # x in a level of 9 lines of 7 pixels
    places = scatter.places_of(case.problem, locations).reshape(2, 3, 3, 2)
    middle = 4 * 7 + 3
    assert places[0, 0].tolist() == [[middle, 7]] * 3
    size = case.problem.spatial_size
    assert (places[1, 0, :, 0] - size).tolist() == [4 * 7 + 3, 4 * 7 + 5, 4 * 7]
    assert places[0, 2].tolist() == [[63 + 15 + 1, 1]] * 3  # one pixel wide: the next line is the next pixel
