"""Constants of the time model (engines/sass/units.py), measured one by one on a GPU by kernels of a few lines.

    python bench/calibrate.py --out bench/results/calibration.json
    python bench/calibrate.py --engine model   # plays the same kernels on the model of an SM, into that file
    python bench/calibrate.py --engine cpu     # whether the kernels break a rule; measures nothing
    python bench/calibrate.py --table          # what was measured beside what the model takes

    loads      a chain of loads, each of which says where the next one goes: in L1, L2 and memory, and in
               shared memory; with the addition that makes an address of an index
    shuffles   a chain of shuffles
    turns      a loop of a few dependent operations; phases: one of an arrival and a wait that it ends
    handover   two warps wake each other by two mbarriers: from an arrival to the warp that has waited
    copies     boxes by TMA into a ring of each warp, which nobody reads. One box at a time gives the latency,
               with a fence of the tensor map before it what that costs; many give what the copy engine takes
               for one, on one SM or on all of them. A lane waits alone, or its whole warp with it; a fence may
               be of a map that nobody uses
    blocks     blocks of a fixed time, one on an SM at a time: what lies between one and the next; of no
               time, many at once: how soon one after the other is handed out (not measured yet)

Cycles are of the SM's clock, read by the kernel, the smallest of several runs; those of ``blocks`` are a
launch's time at the clock that the GPU reaches."""

import argparse
import functools
import itertools
import json
from pathlib import Path

import numpy as np
from numba import cuda, int32, int64, uint8, uint32

import numba_deform as nd
from numba_deform.compiler.cache import save
from numba_deform.device.rings import WarpRing
from numba_deform.device.sync import clock64

RESULT = Path(__file__).resolve().parent / "results" / "calibration.json"
ROUNDS, RUNS, SMS, ROWS = 512, 5, 132, 4096
STEPS = 256  # of each warp; fewer without a GPU
GIGAHERTZ = 1.98  # the SM's highest clock, which it has in short runs
# What a chain of loads is measured in, its table's entries, how many of them it visits, and loads before
CHAINS = (("load from L1", 1024, 32, 64), ("load from L2", 1 << 21, 1 << 14, 1 << 15),
          ("load from memory", 1 << 26, 1 << 12, 0))  # fmt: skip
# {name: (box of channels, columns and rows; channels of the tensor)}
BOXES = {
    "256 bytes, 1 piece": ((32, 4, 1), 32), "256 bytes, 2 pieces": ((32, 2, 2), 32),
    "256 bytes, 4 pieces": ((32, 1, 4), 32), "256 bytes, 8 pieces": ((16, 1, 8), 16),
    "128 bytes, 1 piece": ((32, 2, 1), 32), "512 bytes, 2 pieces": ((32, 4, 2), 32),
    "1024 bytes, 4 pieces": ((32, 4, 4), 32), "4096 bytes, 4 pieces": ((32, 16, 4), 32),
}  # fmt: skip


@nd.kernel(threads=32)
def loads(table: int32[::1], out: int64[::1], warm: int32):
    """``out``: cycles of ROUNDS loads, and where they end. ``warm``: loads before that."""
    at = int32(0)
    if cuda.threadIdx.x == 0:
        for _ in range(warm):
            at = table[at]
        begin = clock64()
        for _ in range(ROUNDS):
            at = table[at]
        if at >= 0:  # the last load has come
            out[0] = int64(clock64() - begin)
        out[1] = at


@nd.kernel(threads=32)
def shared_loads(out: int64[::1]):
    words = cuda.shared.array(32, int32)
    words[cuda.threadIdx.x] = (cuda.threadIdx.x + 1) % 32
    cuda.syncwarp()
    at = int32(cuda.threadIdx.x)
    begin = clock64()
    for _ in range(ROUNDS):
        at = words[at]
    if at >= 0 and cuda.threadIdx.x == 0:
        out[0] = int64(clock64() - begin)
        out[1] = at


@nd.kernel(threads=32)
def shuffles(out: int64[::1]):
    value = uint32(cuda.threadIdx.x)
    begin = clock64()
    for _ in range(ROUNDS):
        value = nd.shfl_sync_idx_b32(uint32(0xFFFFFFFF), value, value)
    if value < 32 and cuda.threadIdx.x == 0:
        out[0] = int64(clock64() - begin)
        out[1] = value


@nd.kernel(threads=32)
def turns(out: int64[::1], count: int32):
    """Of a loop that ends when a number says so."""
    value, begin, done = uint32(1), clock64(), int32(0)
    while done < count:
        value ^= value << uint32(13)
        value ^= value >> uint32(17)
        if value & uint32(1):
            value ^= value << uint32(5)
        done += int32(1) + int32(value == uint32(0))
    if cuda.threadIdx.x == 0:
        out[0] = int64(clock64() - begin)
        out[1] = value


def build_phases():
    shared = nd.Shared(bar=nd.Barrier())

    @nd.kernel(threads=32, shared=shared)
    def phases(out: int64[::1]):
        shared.init()
        begin = clock64()
        if nd.lane() == 0:
            for turn in range(ROUNDS):
                shared.bar.arrive()
                shared.bar.wait(turn & 1)
            out[0] = int64(clock64() - begin)

    return phases


def build_handover():
    shared = nd.Shared(there=nd.Barrier(), back=nd.Barrier())

    @nd.kernel(threads=64, shared=shared)
    def handover(out: int64[::1]):
        shared.init()
        begin = clock64()
        if nd.lane() == 0:
            for turn in range(ROUNDS):
                if nd.warp() == 0:
                    shared.there.arrive()
                    shared.back.wait(turn & 1)
                else:
                    shared.there.wait(turn & 1)
                    shared.back.arrive()
            if nd.warp() == 0:
                out[0] = int64(clock64() - begin)

    return handover


def build_copies(box, warps, group, stages, fence, count, waiting="lane"):
    """``group`` boxes a stage, from rows all over the tensor. ``fence``: a "warp" acquires its map, one of
    ``count``, at its beginning, or for each "stage", where "other" acquires one more, which nobody uses; or the
    "block" acquires all, which its warps use one after the other; "none" uses them like that, unfenced.
    ``waiting``: one "lane" of each warp waits for its stages, or the "warp"."""
    size = 2 * box[0] * box[1] * box[2]
    shared = nd.Shared(tiles=nd.Array((warps * stages * group, size), uint8, alignment=128),
                       ring=WarpRing(stages, warps))  # fmt: skip
    ring, across, down, in_turn = shared.ring, box[1], box[2], fence in ("block", "none")
    each_stage, alone, fenced = fence in ("stage", "other"), waiting == "lane", count if fence == "other" else 0

    @nd.kernel(threads=32 * warps, shared=shared)
    def copies(maps: nd.u64, out: int64[::1], steps: nd.i32):
        """``out``: cycles of each warp."""
        if fence == "block":
            if int32(cuda.threadIdx.x) < count:
                nd.fence_proxy_tensormap_acquire_sys(nd.global_at(maps, cuda.threadIdx.x, 128))
            cuda.syncthreads()
        if alone and nd.lane() != 0:
            return
        if nd.lane() == 0:
            ring.init()
        if not alone:
            cuda.syncwarp()
        map = nd.global_at(maps, nd.warp() % count, 128)
        if not in_turn:
            nd.fence_proxy_tensormap_acquire_sys(map)
        ahead = now = ring.start()
        mine = int32(cuda.blockIdx.x) * int32(warps) + nd.warp()
        begin = clock64()
        for step in range(steps + stages - 1):
            if step < steps and (alone or nd.lane() == 0):
                if each_stage:
                    nd.fence_proxy_tensormap_acquire_sys(nd.global_at(maps, fenced, 128) if fenced else map)
                ring.expect(ahead, group * size)
                first, full = (nd.warp() * stages + ahead.stage) * group, ring.full(ahead)
                if in_turn:
                    map = nd.global_at(maps, step * count // steps, 128)
                y = (mine * 1637 + step * 29) % ROWS * down
                for i in nd.static_range(group):
                    nd.cp_async_bulk_tensor_3d(shared.tiles.at(first + i), map, 0, i % 4 * across, y, full)
            ahead = ring.advance(ahead)
            if step >= stages - 1:
                ring.wait(now)
                if not alone:
                    cuda.syncwarp()
                now = ring.advance(now)
        if nd.lane() == 0:
            out[mine] = int64(clock64() - begin)

    return copies


@nd.kernel(threads=32)
def blocks(out: int64[::1], cycles: int64):
    """A block of so many cycles from its first instruction on."""
    begin = clock64()
    while int64(clock64() - begin) < cycles:
        pass
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = int64(clock64() - begin)


def chain(entries, apart, links):
    """A table of ``entries``: a random way through ``links`` of them, ``apart`` from each other."""
    places = np.r_[0, 1 + np.random.default_rng(1).permutation(entries // apart - 1)[: links - 1]] * apart
    table = np.zeros(entries, np.int32)
    table[places] = np.roll(places, -1)
    return table


class Runs:
    """What runs a kernel: the smallest values of ``out`` in several runs on a ``gpu``; on the ``model`` what a
    block takes between two looks at the clock; else the CPU engine, once."""

    def __init__(self, gpu, model):
        self.gpu, self.model = gpu, model

    def __call__(self, kernel, grid, out, *args, before=(), runs=RUNS):
        from numba_deform.engines.gpu.in_place import run_launch
        from numba_deform.engines.sass import emulate
        from numba_deform.measure.predict import predict

        if self.model:
            launch = nd.Launch(kernel, grid, [*before, out, *args])
            run = emulate(kernel, grid, launch.args, launch.shared_bytes, only=[0], traced=True)
            return np.array([max(cycles[-1] - cycles[0] for cycles in predict(run).clocks.values())])
        best = None
        for _ in range(runs if self.gpu else 1):
            out[:] = -1
            launch = nd.Launch(kernel, grid, [*before, out, *args])
            run_launch(self.gpu, launch, guarded=False) if self.gpu else nd.simulate(launch)
            assert (out >= 0).all(), kernel
            best = out.copy() if best is None else np.minimum(best, out)
        return best


def source_of(name, count, rows):
    """``count`` tensor maps of one tensor with ``rows`` rows of boxes."""
    box, channels = BOXES[name]
    source = np.zeros((rows * box[2], 4 * box[1], channels), np.float16)
    return nd.TensorMapArray([nd.TensorMap.of(source, box)] * count)


def measured(gpu, model=False):
    """The rows: what was measured, and how many cycles it takes."""
    run, rows, scale = Runs(gpu, model), [], 1 if gpu or model else 64

    def row(what, cycles, **more):
        rows.append({"what": what, "cycles": round(float(cycles), 2), **more})
        print(rows[-1], flush=True)

    for what, entries, links, warm in CHAINS:
        table = chain(max(entries // scale, 1024), 32, max(links // scale, 32))
        cycles = run(loads, 1, np.zeros(2, np.int64), int32(warm // scale), before=[table], runs=3)[0]
        row(what, cycles / ROUNDS)
    row("load from shared memory", run(shared_loads, 1, np.zeros(2, np.int64))[0] / ROUNDS)
    row("shuffle", run(shuffles, 1, np.zeros(2, np.int64))[0] / ROUNDS)
    row("turn of a loop", run(turns, 1, np.zeros(2, np.int64), int32(ROUNDS))[0] / ROUNDS)
    row("phase of one thread", run(build_phases(), 1, np.zeros(1, np.int64))[0] / ROUNDS)
    row("handover", run(build_handover(), 1, np.zeros(1, np.int64))[0] / ROUNDS / 2)

    def copies(what, name, grid, warps, group, stages, fence="warp", count=1, **more):
        kernel, steps = build_copies(BOXES[name][0], warps, group, stages, fence, count, **more), STEPS
        if not gpu:
            steps = max(16, 512 // (warps * group)) if model else 4
        out, maps = np.zeros(grid * warps, np.int64), source_of(name, count + (fence == "other"), ROWS)
        each = run(kernel, grid, out, steps, before=[maps]).max() / steps / (warps * group)
        ring = {"grid": grid, "warps": warps, "group": group, "stages": stages, "fence": fence, "maps": count}
        row(what, each, box=name, **ring, **more)

    many = SMS if gpu or model else 2
    for name in ("256 bytes, 2 pieces", "4096 bytes, 4 pieces"):
        for fence in ("warp", "stage"):
            copies("one box at a time", name, 1, 1, 1, 1, fence)
    for name in BOXES:
        warps, group = (4, 4) if name.startswith("4096") else (16, 6) if name.startswith("1024") else (24, 8)
        for grid in (1, many):
            copies("boxes in stages", name, grid, warps, group, 2)
    for warps, group in ((4, 4), (4, 16), (12, 4), (12, 16)):
        for fence, count in (("warp", 1), ("warp", 4), ("stage", 1), ("stage", 4)):
            copies("stages of boxes", "256 bytes, 2 pieces", many, warps, group, 2, fence, count)
        for waiting in ("lane", "warp"):
            copies("stages of boxes", "256 bytes, 2 pieces", many, warps, group, 2, "other", 1, waiting=waiting)
    for warps in (1, 2, 4, 8, 16):
        copies("a box for each phase", "256 bytes, 2 pieces", many, warps, 1, 4)
    for warps, group in ((16, 1), (24, 2), (24, 4), (24, 8), (12, 16)):
        for waiting in ("lane", "warp"):
            copies("who waits", "256 bytes, 2 pieces", many, warps, group, 2, waiting=waiting)
    if gpu:
        for cycles in (1000, 4000):
            row("from block to block", between(gpu, blocks, [cycles], 200) - cycles, block=cycles)
        row("a block of many, of all SMs", between(gpu, blocks, [0], 1) / SMS, block=0)
        ways = itertools.product(list(BOXES)[1:3], (8, 16), ("none", "block"), (1, 4))
        for name, steps, fence, count in ways:
            kernel = build_copies(BOXES[name][0], 4, 8, 2, fence, count)
            cycles = between(gpu, kernel, [steps], 70, source_of(name, count, ROWS))
            row("a block, three on an SM", cycles, box=name, boxes=32 * steps, fence=fence, maps=count)
    return rows


def between(gpu, kernel, args, kilobytes, maps=None, turns=200):
    """Cycles of an SM for each block of a kernel that has so many kilobytes of shared memory, beside others: a
    launch of twice so many ``turns`` for each SM less one of that many."""
    from numba_deform.engines.gpu.device import DeviceArray
    from numba_deform.engines.gpu.in_place import OnGpu
    from numba_deform.engines.gpu.launch import ArrayArgument, launch, time_launches

    moved = OnGpu(gpu, None, [maps] if maps else [])  # keeps the tensor
    times = []
    for each in (turns, 2 * turns):
        out = DeviceArray.of(gpu, np.zeros(4 * each * SMS, np.int64))
        values = [*moved.args, ArrayArgument(out.address, (4 * each * SMS,), (8,), 8), *args]
        run = functools.partial(launch, gpu, kernel, each * SMS, values, 1024 * kilobytes)
        times.append(min(time_launches(gpu, run)))
    return 1e-3 * (times[1] - times[0]) / turns * GIGAHERTZ * 1e9


def table():
    """The rows as Markdown."""
    lines = ["| measured | with | cycles | model |", "|---|---|---|---|"]
    for row in json.loads(RESULT.read_text())["rows"]:
        words = ", ".join(f"{name} {row[name]}" for name in row if name not in ("what", "cycles", "model"))
        played = f"{row['model']:,.1f}" if "model" in row else ""
        lines.append(f"| {row['what']} | {words} | {row['cycles']:,.1f} | {played} |")
    return "\n".join(lines)


def beside(rows):
    """Write what the model takes beside what was measured."""
    document = json.loads(RESULT.read_text())
    taken = {tuple({**row, "cycles": 0}.items()): row["cycles"] for row in rows}
    for row in document["rows"]:
        row.pop("model", None)
        if (key := tuple({**row, "cycles": 0}.items())) in taken:
            row["model"] = taken[key]
    save(RESULT, document)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("gpu", "model", "cpu"), default="gpu")
    parser.add_argument("--out")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        return print(table())
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.measure import record

    gpu = find_gpu() if options.engine == "gpu" else None
    rows = measured(gpu, options.engine == "model")
    if options.engine == "model":
        beside(rows)
    if options.out:
        record.write(options.out, gpu, rows)


if __name__ == "__main__":
    main()
