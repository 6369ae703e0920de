"""Large launches: some blocks are judged, all have run, and a fault where a sample looks is found."""

import math

import numpy as np
import pytest
from numba import cuda, float32

import numba_deform as nd

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
from numba_deform.programs.sampling import gaps, sample  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
LARGE = 64
T = 8


@cuda.jit(device=True)
def doubled(x):
    return x + x


@cuda.jit
def points(a, out, count, at):
    """Twice each number; a histogram by atomics; ``at``: where a thread reads beyond its array."""
    i = cuda.grid(1)
    if i < a.size:
        out[i] = doubled(a[i + (a.size if i == at else 0)])
        cuda.atomic.add(count, a[i] % count.size, 1)


@cuda.jit
def product(a, b, c):
    left, right = cuda.shared.array((T, T), float32), cuda.shared.array((T, T), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], T):
        left[ty, tx] = a[y, k + tx] if y < a.shape[0] and k + tx < a.shape[1] else 0
        right[ty, tx] = b[k + ty, x] if k + ty < b.shape[0] and x < b.shape[1] else 0
        cuda.syncthreads()
        for j in range(T):
            total += left[ty, j] * right[j, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


def test_which_blocks():
    for grid in ((1, 1, 1), (1000, 1, 1), (40, 30, 1), (7, 8, 9)):
        chosen, size = sample(grid), math.prod(grid)
        assert chosen == sample(grid) == sorted(set(chosen)) and 0 in chosen and size - 1 in chosen
        assert len(chosen) <= 18 and chosen[-1] == size - 1
        rest = [n for first, stop in gaps(chosen, size) for n in range(first, stop)]
        assert sorted(chosen + rest) == list(range(size))


@pytest.mark.parametrize("every", [True, pytest.param(False, marks=pytest.mark.full)])
def test_points(every):
    a, out, count = np.random.default_rng(1).integers(0, 99, 1003), np.zeros(1003, int), np.zeros(9, int)
    with nd.check(large=LARGE, all=every) as session:
        points[32, 32](a, out, count, -1)
    np.testing.assert_array_equal(out, 2 * a)
    np.testing.assert_array_equal(count, np.bincount(a % 9, minlength=9))
    assert not session.faults and not session.whole and session.blocks + session.unjudged == 32
    assert (session.unjudged == 0) == every
    assert every or f"{session.blocks} of 32 blocks and" in str(session)
    assert every == ("with no look at races and barriers: all=yes" not in str(session))


@pytest.mark.parametrize("at", [0, 1002, 500])
def test_a_fault_at_either_end_and_where_nobody_looks(at):
    """The last is outside the sample; it is found since the bounds of arrays are watched in all blocks."""
    a = np.arange(1003)
    with nd.check(large=LARGE) as session:
        points[32, 32](a, np.zeros_like(a), np.zeros(9, int), at)
    (found,) = session.faults
    assert type(found.fault).__name__ == "OutOfRange" and found.fault.block == at // 32
    assert "doubled(a[i" in found.fault.source


def test_a_race_in_the_last_block_alone():
    @cuda.jit
    def kernel(out):
        out[0 if cuda.blockIdx.x == cuda.gridDim.x - 1 else cuda.grid(1)] = cuda.threadIdx.x

    with nd.check(large=LARGE) as session:
        kernel[32, 32](np.zeros(1024))
    assert [type(f.fault).__name__ for f in session.faults] == ["DataRace"]


def test_a_product_by_tiles():
    """Barriers, shared arrays, ragged edges: threads that have ended wait for nobody."""
    dice = np.random.default_rng(2)
    a, b = dice.random((61, 43), np.float32), dice.random((43, 77), np.float32)
    c = cuda_result = np.zeros((61, 77), np.float32)
    with nd.check(large=LARGE) as session:
        product[(10, 8), (T, T)](a, b, c)
    np.testing.assert_allclose(cuda_result, a @ b, rtol=1e-5)
    assert not session.faults and not session.whole and session.unjudged > 50


def test_what_cannot_be_run_so_is_judged_whole():
    @cuda.jit
    def locked(lock, out):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        out[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def shuffled(out):
        out[cuda.grid(1)] = cuda.shfl_sync(0xFFFFFFFF, cuda.threadIdx.x, 3)

    with nd.check(large=LARGE) as session:
        locked[65, 1](np.zeros(1, np.int32), np.zeros(1))
        out = np.zeros(128)
        shuffled[4, 32](out)
    assert (out == 3).all() and session.unjudged == 0 and session.blocks >= 4
    (first, second) = session.whole.items()
    assert "locked" in first[0] and "may wait for another thread (line " in first[1]
    assert "shuffled" in second[0] and second[1].startswith("is nothing that Numba compiles for the CPU: ")
    assert "was judged whole: it may wait" in str(session) and "whole: it is nothing that" in str(session)
