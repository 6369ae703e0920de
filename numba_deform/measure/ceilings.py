"""Times of the ceilings (measure/ceiling_kernels.py) on a GPU, and which of them a variant is up against.

Each ceiling is tried in several configurations and the fastest counts: a ceiling that a better launch
would lift is none. Its time is scaled to the tiles, or the bytes, that the workload needs.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from ..attention.call import gpu_launcher
from ..device.limits import SHARED_LIMIT
from ..device.memory import dynamic_bytes
from ..engines.gpu.device import DeviceArray
from ..engines.gpu.launch import launch, resident_blocks
from ..kernels import tma
from ..kernels.level_maps import level_maps
from ..kernels.problem import ITEMSIZE, ConfigError
from ..kernels.registry import variant
from . import ceiling_kernels as kernels
from .record import spread

COPY_BYTES = 512 << 20  # ten times the L2
WINDOW_TILES = 16_000_000  # of one launch; enough that its start and end do not show
TMA_TILES = 4_000_000
EVERYWHERE = 1 << 16  # pixels: no limit to where a level's tiles are drawn

# What a variant's tiles pass on their way, by Variant.fetch; the copy and the launch concern all.
PASSES = {"l1": ("l1",), "tma": ("tma", "shared"), "shared": ("shared",)}
ALWAYS = ("copy", "launch")

# (stages, points, warps, pixels of the region, whose map, whose barrier): depths and sizes of the ring; a
# region of each level that is small enough to stay in L2; as many maps at once as there are warps; barriers
# shared by a block.
TMA_CONFIGURATIONS = (
    (2, 8, 8, EVERYWHERE, "sm", "warp"),
    (4, 8, 8, EVERYWHERE, "sm", "warp"),
    (2, 4, 8, EVERYWHERE, "sm", "warp"),
    (2, 2, 16, EVERYWHERE, "sm", "warp"),
    (4, 1, 16, EVERYWHERE, "sm", "warp"),
    (2, 16, 8, EVERYWHERE, "sm", "warp"),
    (2, 16, 4, EVERYWHERE, "sm", "warp"),
    (2, 8, 8, 64, "sm", "warp"),
    (2, 8, 8, EVERYWHERE, "warp", "warp"),
    (2, 8, 8, EVERYWHERE, "sm", "block"),
    (2, 4, 8, EVERYWHERE, "sm", "block"),
    (2, 2, 16, EVERYWHERE, "sm", "block"),
    (4, 1, 16, EVERYWHERE, "sm", "block"),
)


# And the workload's own tiles, by the kernel of variant tma that adds nothing up.
OWN_TILES = (
    dict(),
    dict(points_per_stage=4),
    dict(barrier_scope="block", points_per_stage=2),
    dict(barrier_scope="block", points_per_stage=4, batches_abreast=48),
    dict(barrier_scope="block", points_per_stage=4, batches_abreast=48, prefetch_maps=True),
    dict(
        barrier_scope="block", stages=1, points_per_stage=4, batches_abreast=48, prefetch_maps=True
    ),
)


@dataclass(frozen=True, eq=False)
class Trial:
    """One configuration of one ceiling: ``run()`` moves ``amount`` ``unit`` (tiles, bytes, launches)."""

    ceiling: str
    config: str
    run: object
    amount: int
    unit: str


def trials(gpu, problem, operands):
    """All trials for a problem whose value, locations, weights and out are at these device addresses."""
    constants = problem.constants
    value = operands[0]
    row = constants.channels * ITEMSIZE[constants.dtype]
    return [
        *_window_trials(gpu, row, problem.heads * row),
        *_tma_trials(gpu, problem, value, row),
        *_own_tile_trials(gpu, problem, operands),
        *_copy_trials(gpu),
        _launch_trial(gpu),
    ]


def _window_trials(gpu, row, pixel):
    window = DeviceArray(gpu, (kernels.window_bytes(row, pixel),), np.uint8)
    window.fill(0x5A)
    built = [("l1", unroll, kernels.build_l1(row, pixel, unroll)) for unroll in (2, 4, 8)]
    built += [("shared", unroll, kernels.build_shared(row, unroll)) for unroll in (2, 4)]
    for name, unroll, kernel in built:
        blocks = resident_blocks(gpu, kernel)
        tiles_at_once = blocks * kernel.threads // kernels.tile_lanes(row) * unroll
        rounds = max(1, WINDOW_TILES // tiles_at_once)
        out = DeviceArray(gpu, (blocks * kernel.threads, 4), np.uint32)
        yield Trial(
            name,
            f"unroll={unroll} threads={kernel.threads}",
            _launcher(gpu, kernel, blocks, (window, out, rounds)),
            rounds * tiles_at_once,
            "tiles",
        )


def _tma_trials(gpu, problem, value, row):
    constants = problem.constants
    maps = level_maps(
        value, problem.batch, problem.heads, constants.channels, constants.dtype, problem.levels,
        problem.spatial_size, box_hw=(2, 2), l2_promotion="128B",
    )  # fmt: skip
    maps = DeviceArray.of(gpu, maps.encode_into_host())
    levels = DeviceArray.of(gpu, problem.level_table)
    for stages, points, warps, region, maps_of, barrier_of in TMA_CONFIGURATIONS:
        shared = kernels.ring_bytes(row, stages, points, warps)
        if dynamic_bytes(shared) > SHARED_LIMIT:
            continue
        kernel = kernels.build_tma(
            row,
            constants.channels,
            constants.levels,
            stages,
            points,
            warps,
            maps_of,
            barrier_of,
        )
        blocks = resident_blocks(gpu, kernel, dynamic_bytes(shared))
        out = DeviceArray(gpu, (blocks * kernel.threads, 4), np.uint32)
        refills = max(64 // points, TMA_TILES // (blocks * warps * points))
        where = "everywhere" if region == EVERYWHERE else f"{region}x{region} pixels"
        whose = f"a map per {maps_of}, a barrier per {barrier_of}"
        yield Trial(
            "tma",
            f"stages={stages} points={points} warps={warps} {where}, {whose}",
            _launcher(
                gpu, kernel, blocks,
                (maps, levels, out, problem.batch, problem.heads, region, refills, gpu.sms),
                dynamic_bytes(shared),
            ),
            blocks * warps * (refills + stages) * points,
            "tiles",
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _FetchOnly:
    """``kernels.tma`` as a module whose kernel adds nothing up."""

    blocks = staticmethod(tma.blocks)

    @staticmethod
    @functools.cache
    def build(config, constants):
        return tma.build(config, constants, add=False)


def _own_tile_trials(gpu, problem, operands):
    chosen = dataclasses.replace(variant("tma"), name="tma, tiles only", module=_FetchOnly())
    for parameters in OWN_TILES:
        try:
            config = chosen.configure(problem.constants, **parameters)
        except ConfigError:
            continue
        shown = " ".join(f"{k}={v}" for k, v in parameters.items())
        yield Trial(
            "tma",
            f"own tiles {shown}".strip(),
            gpu_launcher(gpu, problem, chosen, config, *operands),
            problem.samples,
            "tiles",
        )


def _copy_trials(gpu):
    source, target = (DeviceArray(gpu, (COPY_BYTES,), np.uint8) for _ in range(2))
    source.fill(0x5A)
    for unroll, waves in ((4, 1), (4, 4), (8, 1)):
        kernel = kernels.build_copy(unroll)
        blocks = waves * resident_blocks(gpu, kernel)
        yield Trial(
            "copy",
            f"unroll={unroll} waves of blocks={waves}",
            _launcher(gpu, kernel, blocks, (source, target, COPY_BYTES // 16)),
            2 * COPY_BYTES,
            "bytes",
        )


def _launch_trial(gpu):
    return Trial("launch", "", _launcher(gpu, kernels.build_empty(), 1, (0,)), 1, "launches")


def _launcher(gpu, kernel, blocks, arguments, shared=0):
    """A launch that keeps its arrays alive."""
    return lambda: launch(gpu, kernel, blocks, arguments, shared)


# --- figures --------------------------------------------------------------------------------------
def figures(trial, times, tiles, bytes_moved):
    """A row for the result file: a trial's ``times`` in ms, scaled to a workload's tiles or bytes."""
    wanted = {"tiles": tiles, "bytes": bytes_moved, "launches": 1}[trial.unit]
    measured = spread(times)
    scale = wanted / trial.amount
    return {
        "ceiling": trial.ceiling,
        "config": trial.config,
        "measured_ms": measured["median_ms"],
        "measured_amount": trial.amount,
        "unit": trial.unit,
        **{name: measured[name] * scale for name in ("median_ms", "min_ms", "max_ms")},
        "runs": measured["runs"],
    }


def best(rows):
    """``{ceiling: ms for the workload}``, each at its fastest configuration; marks it in the row."""
    found = {}
    for row in rows:
        name = row["ceiling"]
        if name not in found or row["median_ms"] < found[name]["median_ms"]:
            found[name] = row
    for row in rows:
        row["best"] = found[row["ceiling"]] is row
    return {name: row["median_ms"] for name, row in found.items()}


def attribute(milliseconds, fetch, ceilings):
    """What bounds a kernel of that time: ``{bounds, bounded_by, closeness}``.

    ``fetch`` is the variant's (a key of PASSES), or None where only memory and launch are known to
    apply; ``ceilings`` as :func:`best` returns them. The ceiling with the longest time among those
    that apply bounds it; closeness is that time over the kernel's, 1 at the ceiling.
    """
    names = (*PASSES.get(fetch, ()), *ALWAYS)
    bounds = {name: ceilings[name] for name in names if name in ceilings}
    if not bounds:
        return {}
    worst = max(bounds, key=bounds.get)
    return {"bounds": bounds, "bounded_by": worst, "closeness": bounds[worst] / milliseconds}
