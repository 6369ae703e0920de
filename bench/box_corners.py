"""Which corners of a tensor map's box does the copy engine take? Asked of a GPU.

    python bench/box_corners.py --out bench/results/box_corners.json
    python bench/box_corners.py --table

A corner that it does not take ends the kernel as an illegal instruction, which names nothing, so each
case runs in a child process that may be lost. Where the box arrives, its bytes are compared with the CPU
engine's model of a load (``TensorMap.load_box``), and of a store with the box cut off at the tensor's border.
"""

import argparse
import functools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from corpus import outcomes, serve
from numba import cuda, int32, types, uint32, uint64

from numba_deform.compiler import i32, kernel, u64
from numba_deform.compiler.build import built
from numba_deform.device import tma
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_at,
    ld_global_b32,
    ld_shared_b32,
    shared_address,
    shared_at,
    st_global_b32,
    st_shared_b32,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init, fence_proxy_async
from numba_deform.engines.tensormap import TensorMap, TensorMapArray, swizzle_offsets

CHILDREN, LANES = 14, 32
BYTES = (0, 16, -16, 32, 8, 24, -8, 4, 1)  # from the tensor's corner to the box's, where elements allow it
# name: (element type, shape of the tensor, box innermost first, options of the map)
MAPS = {
    "rank 1": ("int32", (256,), (32,), {}),
    "rank 2": ("int32", (16, 64), (16, 4), {}),
    "rank 3": ("int32", (4, 8, 64), (16, 4, 2), {}),
    "rank 4": ("int32", (2, 4, 8, 64), (16, 2, 2, 2), {}),
    "rank 5": ("int32", (2, 2, 4, 8, 64), (16, 2, 2, 1, 1), {}),
    "uint8": ("uint8", (16, 256), (64, 4), {}),
    "float16": ("float16", (16, 128), (32, 4), {}),
    "float64": ("float64", (16, 32), (8, 4), {}),
    "swizzle 32B": ("int32", (16, 64), (8, 8), {"swizzle": "32B"}),
    "swizzle 64B": ("int32", (16, 64), (16, 8), {"swizzle": "64B"}),
    "swizzle 128B": ("int32", (16, 64), (32, 8), {"swizzle": "128B"}),
    "swizzle 128B, rank 3": ("int32", (4, 8, 64), (32, 4, 2), {"swizzle": "128B"}),
}  # fmt: skip


def cases():
    """{name without spaces: (map's name, "load" or "store", the corner in words, its coordinates)}."""
    found = []
    for map_name, (dtype, shape, _, _) in MAPS.items():
        size = np.dtype(dtype).itemsize
        corners = {b // size: b for b in BYTES if b % size == 0}
        corners.setdefault(1, size)
        for operation in ("load", "store"):
            for element, offset in corners.items():
                outer = [0] * (len(shape) - 1)
                found.append((map_name, operation, str(offset), (element, *outer)))
            for step in (1, -1) if len(shape) > 1 else ():
                outer = [step] * (len(shape) - 1)
                found.append((map_name, operation, f"0, outer {step}", (0, *outer)))
    return {"|".join(case[:3]).replace(" ", "~"): case for case in found}


def build(rank, store, size):
    """Kernel(map, words, corner): the box of ``size`` bytes from the tensor into ``words``, or back."""
    load = getattr(tma, f"cp_async_bulk_tensor_{rank}d")
    store_box = getattr(tma, f"cp_async_bulk_tensor_{rank}d_store")
    RANK, STORE, SIZE = rank, store, size

    @kernel(threads=LANES)
    def move(map: u64, words: u64, c0: i32, c1: i32, c2: i32, c3: i32, c4: i32):
        tile = shared_address(cuda.shared.array(SIZE, types.uint8, alignment=1024))
        bar = shared_address(cuda.shared.array(1, uint64))
        lane, corner = int32(cuda.threadIdx.x), (c0, c1, c2, c3, c4)
        if lane == 0:
            mbarrier_init(bar, uint32(1))
            fence_mbarrier_init()
            tma.fence_proxy_tensormap_acquire_sys(map)
        cuda.syncthreads()
        if STORE:
            for i in range(lane, SIZE // 4, LANES):
                st_shared_b32(shared_at(tile, i, 4), ld_global_b32(global_at(words, i, 4)))
            fence_proxy_async()
            cuda.syncthreads()
            if lane == 0:
                store_box(map, *corner[:RANK], tile)
                tma.cp_async_bulk_commit_group()
                tma.cp_async_bulk_wait_group(uint32(0))
        else:
            if lane == 0:
                mbarrier_arrive_expect_tx(bar, uint32(SIZE))
                load(tile, map, *corner[:RANK], bar)
            mbarrier_wait(bar, int32(0))
            for i in range(lane, SIZE // 4, LANES):
                st_global_b32(global_at(words, i, 4), ld_shared_b32(shared_at(tile, i, 4)))

    return move


def ask(name):
    """"right", or how many bytes are not what the model says."""
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.engines.gpu.in_place import launch_in_place
    from numba_deform.engines.gpu.launch import launch

    map_name, operation, _, corner = cases()[name]
    dtype, shape, box, options = MAPS[map_name]
    random = np.random.default_rng(1)
    tensor = random.integers(0, 100, shape).astype(dtype)
    before, tensor_map = tensor.copy(), TensorMap.of(tensor, box, **options)
    size, store = tensor_map.box_bytes, operation == "store"
    words = random.integers(0, 256, size, np.uint8) if store else np.full(size, 0xFF, np.uint8)
    sent = words.copy()
    args = [TensorMapArray([tensor_map]), words, *corner, *[0] * (5 - len(corner))]
    launch_in_place(find_gpu(), built(build, len(shape), store, size), 1, args, 0, launch)
    order = swizzle_offsets(size, options["swizzle"]) if "swizzle" in options else slice(None)
    if store:
        return difference(tensor, stored(before, box, corner, sent[order]))
    want = np.empty(size, np.uint8)
    want[order] = np.frombuffer(np.ascontiguousarray(tensor_map.load_box(corner)), np.uint8)
    return difference(words, want)


def stored(tensor, box, corner, data):
    """``tensor`` with the part of the box that lies inside replaced by ``data``."""
    wide = np.pad(tensor, [(n, n) for n in box[::-1]])
    place = tuple(slice(c + n, c + 2 * n) for c, n in zip(corner[::-1], box[::-1], strict=True))
    wide[place] = data.view(tensor.dtype).reshape(box[::-1])
    return np.ascontiguousarray(wide[tuple(slice(n, -n) for n in box[::-1])])


def difference(got, want):
    wrong = int(np.count_nonzero(got.view(np.uint8) != want.view(np.uint8)))
    return f"{wrong} bytes differ" if wrong else "right"


def table():
    """Markdown: for every map and operation which corners were taken."""
    path = Path(__file__).parent / "results" / "box_corners.json"
    rows, groups = json.loads(path.read_text())["rows"], {}
    lines = ["| map | copy | right | illegal instruction | other |", "|---" * 5 + "|"]
    for row in rows:
        kinds = groups.setdefault((row["map"], row["copy"]), {"right": [], "refused": [], "other": []})
        said = row["gpu"]
        refused = "refused" if said == "cudaErrorIllegalInstruction" else "other"
        kind = "right" if said == "right" else refused
        kinds[kind].append(row["corner"] + (f": {said}" if kind == "other" else ""))
    for (name, copy), kinds in groups.items():
        lines.append(f"| {name} | {copy} | " + " | ".join("; ".join(kinds[k]) for k in kinds) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve(options.serve, ask)
    if options.table:
        return print(table())
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.measure import record

    names = list(cases())
    child = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    with ThreadPoolExecutor(CHILDREN) as pool:
        parts = [names[i::CHILDREN] for i in range(CHILDREN)]
        seen = {}
        for part in pool.map(functools.partial(outcomes, child), parts):
            seen |= part
    rows = []
    for name, (map_name, copy, corner, _) in cases().items():
        rows.append({"map": map_name, "copy": copy, "corner": corner, "gpu": seen[name][0]})
        print(rows[-1], flush=True)
    if options.out:
        record.write(options.out, find_gpu(), rows)


if __name__ == "__main__":
    main()
