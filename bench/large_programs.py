"""Large launches under ``nd.check``: how long they take, sampled, and whether the results are right.

    python bench/large_programs.py > bench/results/large_programs.json

pi: numba-cuda's own example of its random numbers (documentation, "Random Number Generation"), with 10^6
threads of 10 points each. product: the tiled product of its documentation ("Matrix multiplication", shared
memory), float32, 1024^3. Each also judged whole, on a share of its blocks, which says how long all take.
"""

import json
import time

import numpy as np
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

import numba_deform as nd
from numba_deform.measure.record import document

TILE, SIZE, POINTS, THREADS, BLOCKS = 16, 1024, 10, 256, 3907


@cuda.jit
def pi(states, points, out):
    thread, inside = cuda.grid(1), 0
    if thread < out.size:
        for _ in range(points):
            x = xoroshiro128p_uniform_float32(states, thread)
            y = xoroshiro128p_uniform_float32(states, thread)
            if x**2 + y**2 <= 1.0:
                inside += 1
        out[thread] = 4.0 * inside / points


@cuda.jit
def product(a, b, c):
    left = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    right = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for k in range(a.shape[1] // TILE):
        left[ty, tx] = a[y, tx + k * TILE]
        right[ty, tx] = b[ty + k * TILE, x]
        cuda.syncthreads()
        for j in range(TILE):
            total += left[ty, j] * right[j, tx]
        cuda.syncthreads()
    c[y, x] = total


def run_pi(blocks):
    """The mean is pi within five standard errors."""
    count = min(1_000_000, blocks * THREADS)
    states = create_xoroshiro128p_states(blocks * THREADS, seed=1)
    out = cuda.to_device(np.full(count, np.nan, np.float32))
    pi[blocks, THREADS](states, POINTS, out)
    error = abs(float(out.copy_to_host().astype(float).mean()) - np.pi)
    return error < 5 * 1.6422 / np.sqrt(count * POINTS), error


def run_product(rows):
    dice = np.random.default_rng(1)
    a, b = dice.random((rows * TILE, SIZE), np.float32), dice.random((SIZE, SIZE), np.float32)
    c = cuda.to_device(np.full((rows * TILE, SIZE), np.nan, np.float32))
    product[(SIZE // TILE, rows), (TILE, TILE)](cuda.to_device(a), cuda.to_device(b), c)
    error = float(np.abs(c.copy_to_host() / (a.astype(float) @ b.astype(float)) - 1).max())
    return error < 1e-4, error


def measured(run, size, **options):
    """What one program says under ``check``."""
    started = time.perf_counter()
    with nd.check(**options) as session:
        right, error = run(size)
    assert not session.faults and not session.whole, session
    return {
        "seconds": round(time.perf_counter() - started, 2), "right": bool(right), "error": error,
        "blocks_judged": session.blocks, "blocks": session.blocks + session.unjudged,
    }  # fmt: skip


if __name__ == "__main__":
    rows = []
    for name, run, size, some in (("pi", run_pi, BLOCKS, 16), ("product", run_product, SIZE // TILE, 1)):
        rows.append({"program": name, "part": 1, "all": False, **measured(run, size)})
        rows.append({"program": name, "part": some / size, "all": True, **measured(run, some, all=True)})
    print(json.dumps(document(None, rows), indent=1))
