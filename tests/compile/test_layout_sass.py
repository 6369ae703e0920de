"""What `Shared`, `Ring` and `Array` cost: nothing beside shared arrays and addresses carved by hand."""

import pytest
from numba import cuda, float32, types, uint8, uint32, uint64

from numba_deform.compiler import i32, kernel, static_range, u64
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.device.matrix import ldmatrix_x4, mma_m16n8k16_f16
from numba_deform.device.memory import align_up, shared_address, shared_at
from numba_deform.device.pipeline import (
    Ring,
    acquire,
    commit,
    first_state,
    full_barrier,
    init_barriers,
    make_advance,
    release,
    wait,
)
from numba_deform.device.sync import bar_sync, fence_mbarrier_init, lane, warp
from numba_deform.device.tma import cp_async_bulk_tensor_2d, fence_proxy_tensormap_acquire_sys

advance3, advance4 = make_advance(3), make_advance(4)
TILE, SQUARE = 4096, 8192  # bytes: 32 x 32 floats, 64 x 64 halves


def test_a_parameter_has_no_address():
    """Why maps lie in global memory, as notebooks/site/api.md says: 128 bytes become sixteen numbers. Where it
    fails, Numba-CUDA may have learnt to pass a ``__grid_constant__`` map."""
    signature = types.UniTuple(types.uint64, 16), types.uint64[:]

    def read(map, out):
        out[0] = map[0] + map[15]

    ptx, _ = cuda.compile_ptx(read, signature, cc=(9, 0))
    parameters = ptx[ptx.index(".entry") :].partition(")")[0]
    assert parameters.count(".param .u64") >= 16 and ".align" not in parameters


@kernel(threads=64)
def copy_by_hand(map: u64, out: float32[:, :], steps: i32):
    tiles = cuda.shared.array((3, 32, 32), float32, alignment=128)
    barriers = cuda.shared.array(6, uint64)
    ring = Ring(shared_address(barriers), uint32(shared_address(barriers) + uint32(24)))
    if cuda.threadIdx.x == 0:
        init_barriers(ring.full, 3, 1)
        init_barriers(ring.empty, 3, 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    state = first_state()
    if warp() == 0:
        if lane() == 0:
            fence_proxy_tensormap_acquire_sys(map)
            for step in range(steps):
                acquire(ring, state)
                commit(ring, state, TILE)
                tile = shared_at(shared_address(tiles), state.stage, TILE)
                cp_async_bulk_tensor_2d(tile, map, 0, 32 * step, full_barrier(ring, state))
                state = advance3(state)
    else:
        for step in range(steps):
            wait(ring, state)
            for row in range(32):
                out[32 * step + row, lane()] = tiles[state.stage, row, lane()]
            release(ring, state)
            state = advance3(state)


@kernel(threads=160)
def column_sums_by_hand(map: u64, out: float32[:], steps: i32):
    tiles = cuda.shared.array((4, 16, 32), float32, alignment=128)
    barriers = cuda.shared.array(8, uint64)
    sums = cuda.shared.array((4, 32), float32)
    ring = Ring(shared_address(barriers), uint32(shared_address(barriers) + uint32(32)))
    if cuda.threadIdx.x == 0:
        init_barriers(ring.full, 4, 1)
        init_barriers(ring.empty, 4, 128)
        fence_mbarrier_init()
    cuda.syncthreads()
    state = first_state()
    if warp() > 0:
        number, total = warp() - 1, float32(0)
        for _ in range(steps):
            wait(ring, state)
            for row in range(number, 16, 4):
                total += tiles[state.stage, row, lane()]
            release(ring, state)
            state = advance4(state)
        sums[number, lane()] = total
        bar_sync(uint32(1), uint32(128))
        if number == 0:
            for other in range(1, 4):
                total += sums[other, lane()]
            out[lane()] = total
    elif lane() == 0:
        fence_proxy_tensormap_acquire_sys(map)
        for step in range(steps):
            acquire(ring, state)
            commit(ring, state, 2048)
            tile = shared_at(shared_address(tiles), state.stage, 2048)
            cp_async_bulk_tensor_2d(tile, map, 0, 16 * step, full_barrier(ring, state))
            state = advance4(state)


@kernel(threads=160)
def product_by_hand(a_map: u64, b_map: u64, out: float32[:, :], steps: i32):
    a_tiles = align_up(shared_address(cuda.shared.array(0, uint8)), uint32(1024))
    b_tiles = uint32(a_tiles + uint32(3 * SQUARE))
    full = uint32(a_tiles + uint32(6 * SQUARE))
    ring = Ring(full, uint32(full + uint32(24)))
    if cuda.threadIdx.x == 0:
        init_barriers(ring.full, 3, 1)
        init_barriers(ring.empty, 3, 128)
        fence_mbarrier_init()
    cuda.syncthreads()
    row, column, state = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64, first_state()
    if warp() > 0:
        sums, number, me = cuda.local.array(32, float32), warp() - 1, lane()
        for i in static_range(32):
            sums[i] = float32(0)
        for _ in range(steps):
            wait(ring, state)
            a, b = shared_at(a_tiles, state.stage, SQUARE), shared_at(b_tiles, state.stage, SQUARE)
            for k in static_range(4):
                line, chunk = 16 * number + (me & 15), 2 * k + (me >> 4)
                x = ldmatrix_x4(uint32(a + uint32(128 * line + 16 * (chunk ^ (line & 7)))))
                for j in static_range(4):
                    line, chunk = 16 * j + (me >> 4) * 8 + (me & 7), 2 * k + (me >> 3 & 1)
                    y = ldmatrix_x4(uint32(b + uint32(128 * line + 16 * (chunk ^ (line & 7)))))
                    for h in static_range(2):
                        s = 8 * j + 4 * h
                        d = mma_m16n8k16_f16(
                            x[0], x[1], x[2], x[3], y[2 * h], y[2 * h + 1],
                            sums[s], sums[s + 1], sums[s + 2], sums[s + 3],
                        )  # fmt: skip
                        for i in static_range(4):
                            sums[s + i] = d[i]
            release(ring, state)
            state = advance3(state)
        y, x = row + 16 * (warp() - 1) + lane() // 4, column + 2 * (lane() % 4)
        for i in static_range(32):
            out[y + i // 2 % 2 * 8, x + i // 4 * 8 + i % 2] = sums[i]
    elif lane() == 0:
        fence_proxy_tensormap_acquire_sys(a_map)
        fence_proxy_tensormap_acquire_sys(b_map)
        for step in range(steps):
            acquire(ring, state)
            commit(ring, state, 2 * SQUARE)
            a, b = shared_at(a_tiles, state.stage, SQUARE), shared_at(b_tiles, state.stage, SQUARE)
            cp_async_bulk_tensor_2d(a, a_map, 64 * step, row, full_barrier(ring, state))
            cp_async_bulk_tensor_2d(b, b_map, 64 * step, column, full_barrier(ring, state))
            state = advance3(state)


PAIRS = [
    (copy().kernel, copy_by_hand), (column_sums().kernel, column_sums_by_hand),
    (product().kernel, product_by_hand),
]  # fmt: skip
WORK = ("LDS", "LDSM", "HMMA", "FADD", "ST", "STG", "STS", "SYNCS", "UTMALDG", "BAR", "DEPBAR", "FENCE")


@pytest.mark.full
@pytest.mark.parametrize("one, by_hand", PAIRS, ids=lambda k: k.name)
def test_layouts_cost_nothing(one, by_hand):
    one, by_hand = inspect_kernel(one).instructions, inspect_kernel(by_hand).instructions
    assert {name: one.get(name, 0) for name in WORK} == {name: by_hand.get(name, 0) for name in WORK}
    assert sum(one.values()) <= 1.01 * sum(by_hand.values())
