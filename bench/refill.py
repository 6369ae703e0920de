"""When does a stage that ordinary loads have read, and that is then refilled, give wrong numbers on a GPU?

    python bench/refill.py --check                           # each form on the CPU engine, and its machine code
    python bench/refill.py --out bench/results/refill.json   # needs a Hopper GPU
    python bench/refill.py --table bench/results/refill.json

C = A B^T as ``course/pipelines/product.py`` has it: four warps multiply tiles out of a ring of stages, a fifth
fills them. A and B lie in memory tile by tile, swizzled, so that any kind of copy can bring them. The base form
is that pipeline's: ``ldmatrix``, every thread arrives on *empty*, TMA refills. Each row changes one thing. The
inputs are small integers, so that every element of C is compared exactly; C is NaN before each launch.
"""

import argparse
import functools
import itertools
import json
import re
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numba import cuda

import numba_deform as nd
from numba_deform.compiler import static_range
from numba_deform.compiler.sass import run_tool, tool
from numba_deform.device.matrix import mma_m16n8k16_f16
from numba_deform.engines.gpu.device import DeviceArray, driver_call, find_gpu
from numba_deform.engines.gpu.in_place import OnGpu
from numba_deform.engines.gpu.launch import launch, resident_blocks
from numba_deform.measure import record

SIDE, WARPS, TILE = 64, 4, 64 * 128  # tiles of 64 x 64 in fp16; bytes of one
TIMED = 50  # launches
product = nd.WarpProduct(SIDE).functions()


# --- what reads a stage ---------------------------------------------------------------------------
@cuda.jit(device=True, forceinline=True)
def word_of(tile, row, chunk):
    """The word of an A or B fragment: that of this lane in the chunk-th 16 bytes of a row."""
    return nd.ld_shared_b32(
        nd.uint32(tile + nd.uint32(128 * row + 16 * (chunk ^ (row & 7)) + 4 * (nd.lane() & 3)))
    )


@cuda.jit(device=True, forceinline=True)
def add_by_words(sums, a, row, b):
    """``product.add`` with four ``ld.shared.b32`` in place of each ``ldmatrix``."""
    g = nd.lane() >> 2
    for k in static_range(4):
        x0, x1 = word_of(a, row + g, 2 * k), word_of(a, row + g + 8, 2 * k)
        x2, x3 = word_of(a, row + g, 2 * k + 1), word_of(a, row + g + 8, 2 * k + 1)
        for j in static_range(8):
            y0, y1 = word_of(b, 8 * j + g, 2 * k), word_of(b, 8 * j + g, 2 * k + 1)
            s = 4 * j
            d = mma_m16n8k16_f16(x0, x1, x2, x3, y0, y1, sums[s], sums[s + 1], sums[s + 2], sums[s + 3])
            for i in static_range(4):
                sums[s + i] = d[i]


@cuda.jit(device=True, forceinline=True)
def no_words(words, a, row, b):
    """Reads nothing before the stage is given back."""


@cuda.jit(device=True, forceinline=True)
def load_all(words, a, row, b):
    """All fragments of a stage, by ``ldmatrix``: 16 words of A, then 64 of B."""
    for k in static_range(4):
        chunk, line = 2 * k + (nd.lane() >> 4), row + (nd.lane() & 15)
        x = nd.ldmatrix_x4(nd.uint32(a + nd.uint32(128 * line + 16 * (chunk ^ (line & 7)))))
        for i in static_range(4):
            words[4 * k + i] = x[i]
        for j in static_range(4):
            line, chunk = 16 * j + (nd.lane() >> 4) * 8 + (nd.lane() & 7), 2 * k + (nd.lane() >> 3 & 1)
            y = nd.ldmatrix_x4(nd.uint32(b + nd.uint32(128 * line + 16 * (chunk ^ (line & 7)))))
            for i in static_range(4):
                words[16 + 16 * k + 4 * j + i] = y[i]


@cuda.jit(device=True, forceinline=True)
def multiply_none(sums, words):
    """All has been multiplied before."""


@cuda.jit(device=True, forceinline=True)
def multiply_all(sums, words):
    """What ``load_all`` has loaded."""
    for k in static_range(4):
        for j in static_range(8):
            x, y, s = 4 * k, 16 + 16 * k + 2 * j, 4 * j
            d = mma_m16n8k16_f16(
                words[x], words[x + 1], words[x + 2], words[x + 3], words[y], words[y + 1],
                sums[s], sums[s + 1], sums[s + 2], sums[s + 3],
            )  # fmt: skip
            for i in static_range(4):
                sums[s + i] = d[i]


@cuda.jit(device=True, forceinline=True)
def add_none(sums, a, row, b):
    """Multiplies nothing before the stage is given back."""


# (what reads and multiplies, what only reads, what multiplies that behind the arrival)
READERS = {
    "ldmatrix": (product.add, no_words, multiply_none),
    "ld.shared": (add_by_words, no_words, multiply_none),
    "ldmatrix, used later": (add_none, load_all, multiply_all),
}


# --- what stands between the last read and the arrival: gives 0, to be added to the barrier's address ------
@cuda.jit(device=True, forceinline=True)
def nothing(sums):
    return nd.uint32(0)


@cuda.jit(device=True, forceinline=True)
def syncwarp(sums):
    cuda.syncwarp()
    return nd.uint32(0)


@cuda.jit(device=True, forceinline=True)
def used(sums):
    """The barrier's address depends on all sums: the arrival cannot be made before all loads have come back."""
    large = nd.uint32(0)
    for i in static_range(32):
        large = large | nd.uint32(sums[i] > nd.float32(1e30))
    return nd.uint32(8 * large)


@cuda.jit(device=True, forceinline=True)
def proxy_fence(sums):
    nd.fence_proxy_async()
    return nd.uint32(0)


@cuda.jit(device=True, forceinline=True)
def fence_of_a_lane(sums):
    cuda.syncwarp()
    if nd.lane() == 0:
        nd.fence_proxy_async()
    return nd.uint32(0)


@cuda.jit(device=True, forceinline=True)
def memory_fence(sums):
    nd.fence_acq_rel_cta()
    return nd.uint32(0)


@cuda.jit(device=True, forceinline=True)
def bar_sync(sums):
    nd.bar_sync(nd.uint32(1), nd.uint32(32 * WARPS))
    return nd.uint32(0)


@cuda.jit(device=True, forceinline=True)
def nap(sums):
    cuda.nanosleep(2000)
    return nd.uint32(0)


BEFORE = {
    "nothing": nothing,
    "syncwarp": syncwarp,
    "values used": used,
    "fence.proxy.async": proxy_fence,
    "syncwarp, fence.proxy.async by a lane": fence_of_a_lane,
    "fence.acq_rel.cta": memory_fence,
    "bar.sync": bar_sync,
    "nanosleep": nap,
}


# --- what refills a stage: 8 KB of A and of B from global memory ----------------------------------------------
@cuda.jit(device=True, forceinline=True)
def by_tensor(tile, source, rows, bar):
    nd.cp_async_bulk_tensor_2d(tile, source, nd.int32(0), rows, bar)


@cuda.jit(device=True, forceinline=True)
def by_bulk(tile, source, rows, bar):
    nd.cp_async_bulk_load(tile, nd.global_at(source, rows, 128), nd.uint32(TILE), bar)


@cuda.jit(device=True, forceinline=True)
def by_cp_async(tile, source, rows, bar):
    for i in range(16):
        place = 16 * nd.lane() + 512 * i
        there = nd.global_at(nd.global_at(source, rows, 128), place, 1)
        nd.cp_async_cg_16(nd.uint32(tile + nd.uint32(place)), there, nd.uint32(16))


@cuda.jit(device=True, forceinline=True)
def by_stores(tile, source, rows, bar):
    for i in range(16):
        place = 16 * nd.lane() + 512 * i
        w = nd.ld_global_nc_v4(nd.global_at(nd.global_at(source, rows, 128), place, 1))
        nd.st_shared_v4(nd.uint32(tile + nd.uint32(place)), w[0], w[1], w[2], w[3])


FILLS = {"tensor": by_tensor, "bulk": by_bulk, "cp.async": by_cp_async, "st.shared": by_stores}


@functools.cache
def ring_kernel(reader, before, acquired, arrives, refill, stages, padding):
    """The product with a ring of full and empty barriers; the parameters are those of :data:`BASE`."""
    (add, load, multiply), ready, fill = READERS[reader], BEFORE[before], FILLS[refill]
    BY_TMA, FENCE, ONE = refill in ("tensor", "bulk"), acquired == "fence.proxy.async", arrives == "a lane"
    MAPS, CP_ASYNC, LANES = refill == "tensor", refill == "cp.async", 1 if refill in ("tensor", "bulk") else 32
    tile = nd.Array((stages, SIDE, SIDE), nd.float16, alignment=1024)
    ring = nd.Ring(stages, full=LANES, empty=WARPS if ONE else 32 * WARPS)
    shared = nd.Shared(a=tile, b=tile, ring=ring, **({"room": nd.Array(padding, nd.uint8)} if padding else {}))

    @nd.kernel(threads=32 * WARPS + 32, shared=shared)
    def refilled(a: nd.u64, b: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        ring, state = shared.ring, shared.ring.start()
        if nd.warp() < WARPS:
            sums, words = product.zeros(), cuda.local.array(80, nd.uint32)
            for _ in range(steps):
                ring.wait(state)
                add(sums, shared.a.at(state.stage), 16 * nd.warp(), shared.b.at(state.stage))
                load(words, shared.a.at(state.stage), 16 * nd.warp(), shared.b.at(state.stage))
                empty = nd.uint32(ring.empty(state) + ready(sums))
                if ONE:
                    cuda.syncwarp()
                    if nd.lane() == 0:
                        nd.mbarrier_arrive(empty)
                else:
                    nd.mbarrier_arrive(empty)
                multiply(sums, words)
                state = ring.advance(state)
            y, x = SIDE * cuda.blockIdx.y + 16 * nd.warp(), SIDE * cuda.blockIdx.x
            product.store(out, y, x, sums)
        elif nd.lane() < LANES:
            if MAPS:
                nd.fence_proxy_tensormap_acquire_sys(a)
                nd.fence_proxy_tensormap_acquire_sys(b)
            for step in range(steps):
                ring.acquire(state)
                if FENCE:
                    nd.fence_proxy_async()
                full = ring.full(state)
                if BY_TMA:
                    ring.expect(state, 2 * TILE)
                fill(shared.a.at(state.stage), a, nd.int32(SIDE * (cuda.blockIdx.y * steps + step)), full)
                fill(shared.b.at(state.stage), b, nd.int32(SIDE * (cuda.blockIdx.x * steps + step)), full)
                if CP_ASYNC:
                    nd.cp_async_mbarrier_arrive_noinc(full)
                elif not BY_TMA:
                    nd.mbarrier_arrive(full)
                state = ring.advance(state)

    return refilled


@functools.cache
def syncthreads_kernel(reader, before, acquired, arrives, refill, stages, padding):
    """The same with one stage and ``syncthreads`` behind the reads, in place of an empty barrier."""
    (add, load, multiply), ready, fill = READERS[reader], BEFORE[before], FILLS[refill]
    FENCE = acquired == "fence.proxy.async"
    tile = nd.Array((1, SIDE, SIDE), nd.float16, alignment=1024)
    shared = nd.Shared(a=tile, b=tile, full=nd.Barrier())

    @nd.kernel(threads=32 * WARPS, shared=shared)
    def refilled_behind_syncthreads(a: nd.u64, b: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        sums, words, zero = product.zeros(), cuda.local.array(80, nd.uint32), nd.uint32(0)
        for step in range(steps + 1):
            if cuda.threadIdx.x == 0 and step < steps:
                if FENCE:
                    nd.fence_proxy_async()
                full = nd.uint32(shared.full.at() + zero)
                shared.full.expect(2 * TILE)
                fill(shared.a.at(0), a, nd.int32(SIDE * (cuda.blockIdx.y * steps + step)), full)
                fill(shared.b.at(0), b, nd.int32(SIDE * (cuda.blockIdx.x * steps + step)), full)
            if step > 0:
                multiply(sums, words)
            if step < steps:
                shared.full.wait(step & 1)
                add(sums, shared.a.at(0), 16 * nd.warp(), shared.b.at(0))
                load(words, shared.a.at(0), 16 * nd.warp(), shared.b.at(0))
                zero = ready(sums)
                cuda.syncthreads()
        product.store(out, SIDE * cuda.blockIdx.y + 16 * nd.warp(), SIDE * cuda.blockIdx.x, sums)

    return refilled_behind_syncthreads


@functools.cache
def warp_kernel(reader, before, acquired, arrives, refill, stages, padding):
    """The same with stages for each warp, which its lane 0 refills behind ``syncwarp``: no empty barriers."""
    (add, load, multiply), ready = READERS[reader], BEFORE[before]
    FENCE = acquired == "fence.proxy.async"
    PART = TILE // WARPS  # a warp's sixteen rows of A
    shared = nd.Shared(
        b=nd.Array((WARPS, SIDE, SIDE), nd.float16, alignment=1024),
        a=nd.Array((WARPS, SIDE // WARPS, SIDE), nd.float16, alignment=1024), ring=nd.WarpRing(1, WARPS),
    )  # fmt: skip

    @nd.kernel(threads=32 * WARPS, shared=shared)
    def refilled_by_its_warp(a: nd.u64, b: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        ring, state, warp = shared.ring, shared.ring.start(), nd.warp()
        sums, words, zero = product.zeros(), cuda.local.array(80, nd.uint32), nd.uint32(0)
        for step in range(steps + 1):
            if nd.lane() == 0 and step < steps:
                if FENCE:
                    nd.fence_proxy_async()
                ring.expect(state, TILE + PART)
                rows, full = SIDE * (cuda.blockIdx.y * steps + step), nd.uint32(ring.full(state) + zero)
                part = nd.global_at(nd.global_at(a, rows, 128), warp, PART)
                nd.cp_async_bulk_load(shared.a.at(warp), part, nd.uint32(PART), full)
                rows = SIDE * (cuda.blockIdx.x * steps + step)
                nd.cp_async_bulk_load(shared.b.at(warp), nd.global_at(b, rows, 128), nd.uint32(TILE), full)
            if step > 0:
                multiply(sums, words)
            if step < steps:
                ring.wait(state)
                add(sums, shared.a.at(warp), 0, shared.b.at(warp))
                load(words, shared.a.at(warp), 0, shared.b.at(warp))
                zero = ready(sums)
                cuda.syncwarp()
                state = ring.advance(state)
        product.store(out, SIDE * cuda.blockIdx.y + 16 * warp, SIDE * cuda.blockIdx.x, sums)

    return refilled_by_its_warp


KERNELS = {"threads": ring_kernel, "a lane": ring_kernel, "syncthreads": syncthreads_kernel,
           "its warp": warp_kernel}  # fmt: skip
BASE = {"reader": "ldmatrix", "before": "nothing", "acquired": "nothing", "arrives": "threads",
        "refill": "tensor", "stages": 1, "padding": 0}  # fmt: skip
ONE_BLOCK = 150_000  # bytes beside the ring, so that an SM has room for one block
SIZES = {"tiles": 64, "steps": 64}
BY_READERS, BY_PRODUCER = {"before": "fence.proxy.async"}, {"acquired": "fence.proxy.async"}
ONE_LANE, LANES_FENCE = {"arrives": "a lane"}, {"before": "syncwarp, fence.proxy.async by a lane"}
WORDS, LATER, CP_ASYNC = {"reader": "ld.shared"}, {"reader": "ldmatrix, used later"}, {"refill": "cp.async"}
BULK, BLOCK = {"refill": "bulk"}, {"arrives": "syncthreads", "refill": "bulk"}
WARP = {"arrives": "its warp", "refill": "bulk"}
CHANGES = [
    {}, {"stages": 2}, {"stages": 3}, {"padding": ONE_BLOCK}, {"padding": ONE_BLOCK, "stages": 3},
    *({"before": before} for before in BEFORE if before != "nothing"),
    BY_PRODUCER, BY_PRODUCER | {"before": "syncwarp"}, BY_PRODUCER | BY_READERS, {"stages": 3} | BY_READERS,
    ONE_LANE, ONE_LANE | BY_READERS, ONE_LANE | LANES_FENCE, ONE_LANE | BY_PRODUCER,
    ONE_LANE | {"before": "values used"},
    BULK, BULK | BY_READERS, CP_ASYNC, CP_ASYNC | {"stages": 3}, {"refill": "st.shared"},
    WORDS, WORDS | {"stages": 3}, WORDS | ONE_LANE, WORDS | {"before": "values used"}, WORDS | BY_READERS,
    WORDS | BY_PRODUCER, WORDS | CP_ASYNC,
    LATER, LATER | CP_ASYNC, LATER | BY_READERS, LATER | {"padding": ONE_BLOCK},
    BLOCK, BLOCK | WORDS, LATER | BLOCK, LATER | BLOCK | BY_READERS, LATER | BLOCK | BY_PRODUCER,
    WARP, WARP | WORDS, LATER | WARP, LATER | WARP | BY_READERS, LATER | WARP | BY_PRODUCER,
    {"sizes": {"tiles": 16, "steps": 64}}, {"sizes": {"tiles": 32, "steps": 64}},
    {"sizes": {"tiles": 64, "steps": 16}}, {"sizes": {"tiles": 132, "steps": 64}},
    {"stages": 3, "sizes": {"tiles": 132, "steps": 64}},
    {"stages": 3, "sizes": {"tiles": 132, "steps": 64}} | BY_READERS,
]  # fmt: skip


def row_of(change):
    """A row's parameters: :data:`BASE` and :data:`SIZES`, and what it changes."""
    parameters = dict(change)
    sizes = parameters.pop("sizes", SIZES)
    return {**BASE, **parameters}, sizes


def kernel_of(parameters):
    return KERNELS[parameters["arrives"]](**parameters)


@functools.cache
def inputs(tiles, steps):
    """(A, B as they lie in memory, C): small integers."""
    a, b = np.random.default_rng(1).integers(-4, 4, (2, SIDE * tiles, SIDE * steps)).astype(np.float16)
    c = a.astype(np.float32) @ b.T.astype(np.float32)
    return (*(_in_tiles(x, tiles, steps) for x in (a, b)), c)


def _in_tiles(matrix, tiles, steps):
    """The rows of 64 elements of each tile behind one another, permuted as a 128-byte swizzle does."""
    rows = matrix.reshape(tiles, SIDE, steps, SIDE).transpose(0, 2, 1, 3).reshape(-1, 8, 8)
    turned = np.arange(8) ^ (np.arange(len(rows)) % 8)[:, None]
    return np.take_along_axis(rows, turned[:, :, None], 1).reshape(-1, SIDE)


def launch_of(parameters, tiles, steps):
    """The ``nd.Launch`` of a form."""
    a, b, c = inputs(tiles, steps)
    sources = [a, b]
    if parameters["refill"] == "tensor":
        sources = [nd.TensorMapArray([nd.TensorMap.of(x, (SIDE, SIDE))]) for x in sources]
    kernel = kernel_of(parameters)
    return nd.Launch(kernel, (tiles, tiles), [*sources, np.empty_like(c), steps], {"out": c})


# --- on a GPU -----------------------------------------------------------------------------------------
@nd.kernel(threads=256)
def differing(found: nd.u64, wanted: nd.u64, wrong: nd.u64, words: nd.i32):
    """Adds to ``wrong`` how many 32-bit words of two arrays differ."""
    mine = nd.uint32(0)
    for i in range(cuda.grid(1), words, cuda.gridsize(1)):
        x, y = nd.ld_global_b32(nd.global_at(found, i, 4)), nd.ld_global_b32(nd.global_at(wanted, i, 4))
        mine = nd.uint32(mine + nd.uint32(x != y))
    if mine:
        nd.red_add_gpu_global_u64(wrong, nd.uint64(mine))


def measured(gpu, change, launches):
    """The row of one form: of so many launches, how many were wrong, in how many elements."""
    parameters, sizes = row_of(change)
    request = launch_of(parameters, **sizes)
    there, wanted = OnGpu(gpu, request.kernel, request.args), DeviceArray.of(gpu, request.expected["out"])
    wrong = [DeviceArray.of(gpu, np.zeros(1, np.uint64)) for _ in range(launches)]
    words, shared = request.expected["out"].size, request.kernel.shared_bytes
    out = there.args[2].address
    stream = gpu.device.default_stream
    for counter in wrong:
        driver_call("cuMemsetD32Async", out, 0x7FC00000, words, int(stream.handle))
        launch(gpu, request.kernel, request.grid, there.args, shared)
        launch(gpu, differing, 1056, [out, wanted.address, counter.address, words])
    gpu.device.sync()
    start = time.perf_counter()
    for _ in range(TIMED):
        launch(gpu, request.kernel, request.grid, there.args, shared)
    gpu.device.sync()
    each = 1e3 * (time.perf_counter() - start) / TIMED
    counts = [int(counter.to_numpy()[0]) for counter in wrong]
    return {
        **parameters, **sizes, "blocks_per_sm": resident_blocks(gpu, request.kernel, shared) // gpu.sms,
        "launches": launches, "wrong_launches": sum(map(bool, counts)), "elements": words,
        "least_wrong": min(counts), "most_wrong": max(counts), "ms": each,
    }  # fmt: skip


def compiled(change):
    kernel_of(row_of(change)[0]).compile()


# --- what the machine code does -------------------------------------------------------------------------
LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*(\S+).*/\* 0x[0-9a-f]{16} \*/")
GIVES_BACK = ("SYNCS.ARRIVE", "BAR.SYNC", "UBLKCP", "UTMALDG", "BRA")


def in_flight(kernel):
    """What gives the stage back, how many loads of it may still be in flight there, and the fence between them
    or None, by the machine code: the upper word of an instruction names the scoreboard that it
    sets and those that it waits for. Loads return in order: one stands for the loads before it, too."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernel.cubin"
        file.write_bytes(kernel.compile().cubin)
        lines = run_tool(tool("nvdisasm"), "-hex", "-c", file).splitlines()
    code = []
    for line, following in itertools.pairwise(lines):
        if found := LINE.match(line):
            control = int(re.search(r"0x([0-9a-f]{16})", following)[1], 16) >> 41
            code.append((found[1], control >> 5 & 7, control >> 11 & 63))
    last = max(i for i, (name, *_) in enumerate(code) if name.startswith(("LDS.", "LDSM", "LDS")))
    loads, fence = [], None
    for i, (name, sets, waits) in enumerate(code):
        met = [place for place, board in enumerate(loads) if board < 6 and waits >> board & 1]
        loads = loads[met[-1] + 1 :] if met else loads
        if name.startswith("LDS"):
            loads.append(sets)
        elif i > last and name.startswith("FENCE"):
            fence = name
        elif i > last and name.startswith(GIVES_BACK):
            return {"gives_back": name, "in_flight": len(loads), "fence": fence}
    return {}


def check():
    """What the CPU engine says of each form, and what its machine code does."""
    for change in CHANGES:
        parameters, _ = row_of(change)
        request = launch_of(parameters, 1, 5)
        print(change or "base", *in_flight(request.kernel), flush=True)
        nd.simulate(request)


def table(rows):
    """The rows in Markdown."""
    columns = ("reader", "before", "acquired", "arrives", "refill", "stages")
    heads = ("read by", "then", "behind the wait", "arrives", "refilled by", "stages", "blocks an SM", "blocks",
             "loads in flight", "wrong launches", "elements wrong", "ms")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row[column] for column in columns] + [row["blocks_per_sm"], row["tiles"] ** 2]
        cells += [row["in_flight"], f"{row['wrong_launches']} of {row['launches']}"]
        cells += [f"{row['least_wrong']:,} to {row['most_wrong']:,}", f"{row['ms']:.3f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines).replace("nothing", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", default="", help="forms whose parameters have this word")
    given = parser.parse_args()
    if given.check:
        return check()
    if given.table:
        return print(table(json.loads(given.table.read_text())["rows"]))
    changes = [change for change in CHANGES if given.only in str(change)]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compiled, changes))
    gpu, rows = find_gpu(), []
    for change in changes:
        rows.append(measured(gpu, change, given.launches) | in_flight(kernel_of(row_of(change)[0])))
        print(rows[-1], flush=True)
        record.write(given.out, gpu, rows)


if __name__ == "__main__":
    main()
