"""The checks of lesson 8, half a variant, and the pipeline that they take for right: sums of columns."""

import numpy as np
from numba import cuda

from ...compiler import Kernel, float32, function, i32, kernel, u64
from ...device.layout import Array, Shared
from ...device.rings import WarpRing
from ...device.sync import lane, warp
from ...device.tma import cp_async_bulk_tensor_2d, fence_proxy_tensormap_acquire_sys
from ...engines import faults
from ...engines.tensormap import TensorMap, TensorMapArray
from .exercise import Wrong, exercise, number, require
from .lesson4 import cycles
from .running import run, traced

ROWS, COLUMNS, WARPS, STEPS = 32, 32, 2, 12  # of a tile; and a block's warps, each with so many tiles
TILE_BYTES = 4 * ROWS * COLUMNS
DEEPEST = 7  # stages that ``depth`` looks at
LANDINGS = ("late", "random", "earliest")


# --- the pipeline, as the exercises want it -------------------------------------------------------
def right_layout(stages, warps=WARPS):
    return Shared(
        tiles=Array((warps * stages, ROWS, COLUMNS), float32, alignment=128), ring=WarpRing(stages, warps)
    )


def right_issue(shared):
    ring = shared.ring

    @function
    def issue(map, state, step):
        if lane() == 0:
            ring.expect(state, shared.tiles.stride)
            tile = shared.tiles.at(ring.slot(state))
            cp_async_bulk_tensor_2d(tile, map, COLUMNS * warp(), ROWS * step, ring.full(state))

    return issue


def right_kernel(shared, issue, stages, warps=WARPS):
    ring, AHEAD = shared.ring, stages - 1

    @kernel(threads=32 * warps, shared=shared)
    def column_sums(map: u64, out: float32[:], steps: i32):
        fence_proxy_tensormap_acquire_sys(map)
        shared.init()
        tiles, total = shared.tiles.view(), float32(0)
        ahead = now = ring.start()
        for step in range(min(AHEAD, steps)):
            issue(map, ahead, step)
            ahead = ring.advance(ahead)
        for step in range(steps):
            if step + AHEAD < steps:
                issue(map, ahead, step + AHEAD)
                ahead = ring.advance(ahead)
            ring.wait(now)
            for row in range(ROWS):
                total += tiles[ring.slot(now), row, lane()]
            ring.release(now)
            now = ring.advance(now)
        out[cuda.threadIdx.x] = total

    return column_sums


def pipeline(stages):
    """The whole of it, for a picture of what the exercises are to reach."""
    shared = right_layout(stages)
    return right_kernel(shared, right_issue(shared), stages)


# --- running --------------------------------------------------------------------------------------
def sums(kernel, steps=STEPS, engine=None, marks=None, hint="", **simulated):
    """The ``lessons.Ran`` of kernel(map, out, steps); Wrong, with ``hint``, unless ``out`` has the sums of all
    columns."""
    columns = kernel.threads // 32 * COLUMNS
    data = np.random.default_rng(1).integers(-9, 9, (ROWS * steps, columns)).astype(np.float32)
    maps = TensorMapArray([TensorMap.of(data, (COLUMNS, ROWS))])
    out, more = np.full(columns, np.nan, np.float32), () if marks is None else (marks, 0)
    ran = run(kernel, 1, (maps, out, steps, *more), engine, kernel.shared_bytes, **simulated)
    wrong = int(np.count_nonzero(out != data.sum(axis=0)))
    require(not wrong, f"{wrong} of {columns} sums are not those of their columns. {hint}")
    return ran


def trace(kernel, title, engine=None):
    """The ``timeline.Timeline`` of kernel(map, out, steps)."""
    return traced(kernel, title, lambda form, marks: sums(form, engine=engine, marks=marks))


def _check_all(make, engine, hint, stages, steps=(STEPS,)):
    """``make(stages)`` in all landing modes, and on a GPU once more there; ``hint`` as for :func:`sums`."""
    for count in stages:
        kernel = make(count)
        require(isinstance(kernel, Kernel), f"It returns {kernel!r}, and not the kernel.")
        for tiles in steps:
            for landing in LANDINGS:
                sums(kernel, tiles, "cpu", hint=hint, landing=landing)
            if engine == "gpu":
                sums(kernel, tiles, "gpu", hint=hint)


# --- exercises ------------------------------------------------------------------------------------
@exercise("Every warp has a ring of its own: how many tiles are there in all, and how large is each?")
def layout(answer):
    """answer(stages, warps) -> Shared."""
    for stages, warps in ((3, 2), (1, 4), (2, 5)):
        shared = answer(stages, warps)
        given = f"With {stages} stages and {warps} warps "
        require(isinstance(shared, Shared), given + f"it returns {shared!r}, and not an nd.Shared.")
        require(shared.ring.stages == stages, given + f"each ring has {shared.ring.stages} stages: the stages "
                "come first, then the warps.")  # fmt: skip
        require(shared.barrier_bytes == 8 * stages * warps, given + f"there are {shared.barrier_bytes // 8} "
                "barriers; there must be one for each stage of each warp.")  # fmt: skip
        tiles = shared.tiles
        require(tiles.stride == TILE_BYTES, given + f"`shared.tiles.at(1)` lies {tiles.stride} bytes behind "
                f"`at(0)`. It must be one tile further, {TILE_BYTES} bytes, since `ring.slot` counts the "
                "stages of all warps in one row.")  # fmt: skip
        count = tiles.nbytes // TILE_BYTES
        if count != stages * warps:
            given += f"there are {count} tiles, "
            require(count != stages, given + "as for one warp. All warps would share them.")
            require(count != warps, given + "as for one stage: the ring could never turn.")
            raise Wrong(given + f"and {stages * warps} stages.")
    return "A tile and a full barrier for each stage of each warp; `ring.slot` says which of them it is."


@exercise(
    "The barrier counts the bytes of one copy. `ring.slot(state)` is the stage's number among all of them.",
    faults={
        faults.MissingBytes: "The barrier waits for more bytes than the copy brings. One tile comes, and its "
        "size is `shared.tiles.stride`.",
        faults.MoreBytesThanExpected: "The copy brings more bytes than the barrier was told of. One tile "
        "comes, and its size is `shared.tiles.stride`.",
        faults.CopyCollision: "Both warps send their tiles to one place: `step` and `state.stage` are the "
        "same in both. `ring.slot(state)` counts the stages of all warps.",
        faults.OutOfRange: "`at(i)` is the address of part i: i counts tiles, not bytes.",
        faults.MisalignedBox: "A coordinate counts elements, not tiles: a tile is 32 columns wide, and 32 rows "
        "high.",
    },
)
def issue(answer, engine=None):
    """answer(shared) -> the device function issue(map, state, step)."""

    def make(stages):
        shared = right_layout(stages)
        return right_kernel(shared, answer(shared), stages)

    hint = "So other tiles have come: is the column first, that of this warp, and the row of this step second?"
    _check_all(make, engine, hint, stages=(1, 3))
    return "The bytes are announced, and the tile of this step and warp comes into the warp's own stage."


@exercise(
    "In step 0 the tiles 0 to stages - 2 are under way already. Which tile comes next, and in which state?",
    faults={
        faults.CopyOutlivesBlock: "A tile is asked for that nobody waits for. Two places need a limit: the "
        "prologue (there may be fewer steps than stages), and the prefetch (the last steps ask for nothing "
        "more).",
        faults.RefillRace: "A tile is asked for into a stage that is still being read. Only `stages - 1` may "
        "be under way while one is read, and each is asked for in the state `ahead`.",
        faults.TooManyArrivals: "A stage is asked for once more while its tile is still to come, or to be "
        "read. Only `stages - 1` tiles may be under way while one is read, each in the state `ahead`.",
        faults.MissingArrivals: "A tile is waited for that nobody has asked for: the last tile is number "
        "`steps - 1`, and it has to be asked for too.",
    },
)
def prefetch(answer, engine=None):
    """answer(shared, issue, stages, warps) -> the kernel."""

    def make(stages):
        shared = right_layout(stages)
        return answer(shared, right_issue(shared), stages, WARPS)

    hint = "So other tiles are added up than those of steps 0, 1, 2, ..: which one is asked for in which step?"
    _check_all(make, engine, hint, stages=(1, 4), steps=(STEPS, 2))
    return ("The prologue fills the ring but for one stage, each step asks for the tile that is `stages - 1` "
        "ahead, and what is asked for is waited for. Right with 1 and with 4 stages, for 12 tiles and for 2.")


@exercise("Print the cycles for 1, 2, 3, .. stages. From which on does one more bring nothing?")
def depth(answer):
    """answer: the least number of stages that brings all there is to gain."""
    answer = number(answer, "number of stages")
    require(answer >= 1, f"{answer} is no number of stages.")
    deeper = max(answer + 1, DEEPEST)
    tried = filter(None, (answer - 1, answer, deeper))
    taken = {stages: cycles(trace(pipeline(stages), "", "cpu")) for stages in tried}
    more, less = taken[deeper], taken.get(answer - 1)
    require(more > 0.98 * taken[answer], f"With stages = {answer} it takes {taken[answer]} cycles, and with "
            f"{deeper} only {more}: there is more to gain.")  # fmt: skip
    if less is not None and less < 1.02 * taken[answer]:
        raise Wrong(f"With {answer - 1} stages it takes {less} cycles, and with {answer} still "
                    f"{taken[answer]}. The last stage is memory for nothing.")  # fmt: skip
    return ("With so many tiles under way the copies themselves take turns: look at the orange bars, where a "
        "warp waits until it may ask. A deeper ring cannot help there. On a GPU the number may differ: what "
        "counts is measured.")  # fmt: skip
