"""Shared memory by name: where its parts lie, what reports call them, and pipelines that are made of them."""

import re

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.course.pipelines.two_producers import two_producers
from numba_deform.device.namespace import Namespace
from numba_deform.engines import faults

COPY = copy(steps=5)


@pytest.mark.parametrize("landing", ["late", "earliest", "random"])
def test_copy(landing):
    nd.simulate(copy(steps=5), landing=landing, seed=1, schedules=2)


@pytest.mark.parametrize("landing", ["late", "random"])
def test_column_sums(landing):
    nd.simulate(column_sums(), landing=landing, seed=1)


@pytest.mark.full
def test_product():
    nd.simulate(product(steps=2), seed=1)


def test_copy_in_every_order():
    assert nd.explore(copy(steps=2)).complete


# --- where the parts lie --------------------------------------------------------------------------
LAYOUT = nd.Shared(
    odd=nd.Array(3, nd.uint8), bars=nd.Ring(2), wide=nd.Array((2, 3, 5), nd.float16, alignment=1024),
    near=nd.Array((4, 4), np.float64), last=nd.Array(7, nd.uint32),
)  # fmt: skip


@nd.kernel(threads=1, shared=LAYOUT)
def places(out: nd.uint32[:]):
    out[0], out[1], out[2] = LAYOUT.odd.at(0), LAYOUT.wide.at(0), LAYOUT.wide.at(1)
    out[3], out[4], out[5] = LAYOUT.near.at(3), LAYOUT.last.at(0), LAYOUT.bars.full(LAYOUT.bars.start())
    out[6], out[7], out[8] = LAYOUT.wide.stride, LAYOUT.wide.nbytes, LAYOUT.bars.empty(LAYOUT.bars.start())


def test_parts_lie_behind_one_another_aligned():
    out = np.zeros(9, np.uint32)
    nd.simulate(places, 1, args=[out])
    odd, wide, wide_1, near_3, last, full, stride, nbytes, empty = map(int, out)
    assert odd % 1024 == wide % 1024 == 0
    assert full == odd + 8 and empty == full + 16 and wide == odd + 1024
    assert (stride, nbytes, wide_1 - wide) == (30, 60, 30)
    assert near_3 == wide + 64 + 3 * 32 and last == wide + 64 + 128
    assert last + 7 * 4 <= odd + LAYOUT.bytes - (1024 - 16)


def test_every_element_of_a_view_is_one_of_its_own():
    @nd.kernel(threads=32, shared=LAYOUT)
    def fill(out: nd.float64[:, :]):
        near, last = LAYOUT.near.view(), LAYOUT.last.view()
        i = nd.lane()
        if i < 16:
            near[i // 4, i % 4] = i
        if i < 7:
            last[i] = nd.uint32(100 + i)
        cuda.syncwarp()
        if i < 16:
            out[i // 4, i % 4] = near[3 - i // 4, i % 4] + last[i % 4]

    out = np.zeros((4, 4))
    nd.simulate(fill, 1, args=[out])
    assert np.array_equal(out, np.arange(16.0).reshape(4, 4)[::-1] + 100 + np.arange(4))


# --- boxes: padding, swizzle, a barrier of their own -----------------------------------------------
def boxes(swizzle, rows=8, columns=32, **options):
    """(tiles, launch): one box by TMA to ``tiles[1]``, read by its chunks."""
    tiles = nd.Array((2, rows, columns), nd.float32, swizzle=swizzle, **options)
    shared = nd.Shared(tiles=tiles, loaded=nd.Barrier())

    @nd.kernel(threads=32, shared=shared)
    def boxes(map: nd.u64, out: nd.u64):
        shared.init()
        if nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            shared.loaded.expect(shared.tiles.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.tiles.at(1), map, 0, 0, shared.loaded.at())
        shared.loaded.wait(0)
        for chunk in range(nd.lane(), rows * columns // 4, 32):
            row, place = chunk // (columns // 4), chunk % (columns // 4)
            words = nd.ld_shared_v4(shared.tiles.at(1, row, place))
            nd.st_global_v4(nd.global_at(out, chunk, 16), words[0], words[1], words[2], words[3])

    data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, tiles)])
    return tiles, nd.Launch(boxes, 1, [maps, np.empty_like(data)], {"out": data})


@pytest.mark.parametrize(
    "swizzle, columns", [("128B", 32), ("64B", 16), ("32B", 8), ("128B", 16), ("none", 20)]
)
def test_chunks_lie_where_the_map_puts_them(swizzle, columns):
    tiles, launch = boxes(swizzle, 16, columns, alignment=128 if swizzle == "none" else 0)
    assert launch.args[0][0].swizzle == tiles.swizzle and launch.args[0][0].box == (columns, 16)
    nd.simulate(launch)


def test_padding_between_boxes():
    tiles, launch = boxes("none", 3, 20, alignment=128, padding=16)
    assert (tiles.box_bytes, tiles.stride, tiles.bytes) == (240, 256, 512)
    nd.simulate(launch)
    layout = nd.Shared(tiles=tiles)
    names = "tiles[0, 0, 0]", "tiles[0, 2, 19]", "tiles[0], 0 bytes into its padding", "tiles[1, 1, 1]"
    assert tuple(layout.name_of(n, 0) for n in (0, 236, 240, 256 + 84)) == names


def test_one_box_as_an_array():
    layout = nd.Shared(tiles=nd.Array((3, 2, 5), nd.float32, alignment=64, padding=24))

    @nd.kernel(threads=32, shared=layout)
    def one(out: nd.float32[:, :]):
        if nd.lane() < 3:
            tile = layout.tiles.box_view(nd.lane())
            tile[1, 4] = nd.float32(nd.lane())
        cuda.syncwarp()
        if nd.lane() < 3:
            tile = layout.tiles.box_view((nd.lane() + 1) % 3)
            out[nd.lane(), 0] = tile[1, 4]

    out = np.zeros((3, 1), np.float32)
    nd.simulate(one, 1, args=[out])
    assert out[:, 0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("options, words", [
    ({"shape": (2, 3, 20), "alignment": 128, "padding": 8},
     "index 1 begins 248 bytes behind index 0, which is no multiple of alignment=128; padding=16"),
    ({"shape": (2, 4, 32), "swizzle": "128B"}, "index 1 begins 512 bytes .* padding=512 makes it one"),
    ({"shape": (2, 8, 64), "swizzle": "128B"}, "rows of 256 bytes.* rows of at most 128 bytes"),
    ({"shape": (2, 8, 32), "swizzle": "128B", "alignment": 128}, "alignment=128: it needs .* and 1024"),
    ({"shape": 8, "swizzle": "32B"}, "it needs two dimensions"),
    ({"shape": (2, 8), "swizzle": "96B"}, "swizzle='96B' must be one of none, 32B, 64B, 128B"),
    ({"shape": (2, 8), "padding": -1}, "padding=-1 must be a whole number"),
])  # fmt: skip
def test_boxes_that_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        nd.Array(**{"dtype": nd.float32, **options})


def test_a_barrier_without_a_ring():
    shared = nd.Shared(go=nd.Barrier(count=31), numbers=nd.Array(32, nd.uint32))
    assert shared.barrier_bytes == 8 and shared.rings == {}

    @nd.kernel(threads=32, shared=shared)
    def meet(out: nd.uint32[:], skip: nd.i32):
        shared.init()
        numbers = shared.numbers.view()
        for turn in range(3):
            if nd.lane() > 0:
                numbers[nd.lane()] = nd.uint32(turn + nd.lane())
                if nd.lane() != skip:
                    shared.go.arrive()
            else:
                shared.go.wait(turn & 1)
                for other in range(1, 32):
                    out[turn] += numbers[other]
            cuda.syncwarp()

    out = np.zeros(3, np.uint32)
    nd.simulate(meet, 1, args=[out, 0])
    assert out.tolist() == [496, 527, 558]
    with pytest.raises(ValueError, match="count=0 of a barrier"):
        nd.Barrier(0)
    assert "go: phase 0, pending 1 of 31" in str(fault_of(meet, [out, 5]))


# --- what reports call them -----------------------------------------------------------------------
def fault_of(kernel, args, **options):
    with pytest.raises(nd.SimFault) as caught:
        nd.simulate(kernel, 1, args=args, **options)
    return caught.value


def test_an_element_and_a_barrier_have_their_names():
    """The consumer does not wait."""
    shared = COPY.kernel.shared
    ring = shared.ring

    @nd.kernel(threads=64, shared=shared)
    def hasty(map: nd.u64, out: nd.float32[:, :], steps: nd.i32):
        shared.init()
        state, tiles = ring.advance(ring.start()), shared.tiles.view()
        if cuda.threadIdx.x == 0:
            nd.fence_proxy_tensormap_acquire_sys(map)
            ring.expect(state, shared.tiles.stride)
            nd.cp_async_bulk_tensor_2d(shared.tiles.at(state.stage), map, 0, 0, ring.full(state))
        cuda.syncthreads()
        out[0, nd.lane()] = tiles[1, 2, nd.lane()]

    fault = fault_of(hasty, COPY.args)
    assert type(fault) is faults.InFlightRead
    assert re.search(r"tiles\[1, 2, \d+\]", str(fault)) and "ring.full[1]" in str(fault)


def test_a_wait_for_nobody_names_its_barrier():
    shared = COPY.kernel.shared

    @nd.kernel(threads=64, shared=shared)
    def forever(out: nd.u64):
        ring = shared.ring
        shared.init()
        state = ring.advance(ring.advance(ring.start()))
        if nd.warp() == 1:
            ring.wait(state)
        else:
            ring.acquire(state)
            ring.release(state)

    assert "ring.full[2]" in str(fault_of(forever, [np.zeros(1, np.uint32)]))


def test_an_index_outside_names_the_array():
    @nd.kernel(threads=1, shared=LAYOUT)
    def outside(n: nd.i32):
        near = LAYOUT.near.view()
        near[n, 0] = 1

    fault = fault_of(outside, [4])
    assert type(fault) is faults.OutOfRange and "index (4, 0) of near(4, 4)" in str(fault)


def test_without_init_no_barrier_is_there():
    shared = COPY.kernel.shared

    @nd.kernel(threads=64, shared=shared)
    def uninitialised(n: nd.i32):
        shared.ring.wait(shared.ring.start())

    assert "ring.full[0]" in str(fault_of(uninitialised, [1]))


# --- a ring for each warp --------------------------------------------------------------------------
BOTH = nd.Shared(
    block=nd.Ring(2, empty=64), tiles=nd.Array((6, 32), nd.uint32, alignment=128), ring=nd.WarpRing(3, 2)
)


def copy_by_warps(wait, release):
    """Each warp copies ten tiles through its ring of three; wrong without ``wait`` or ``release``."""
    ring, WAIT, RELEASE = BOTH.ring, wait, release

    @nd.kernel(threads=64, shared=BOTH)
    def copy_by_warps(data: nd.u64, out: nd.uint32[:, :, :]):
        BOTH.init()
        tiles, ahead, now = BOTH.tiles.view(), ring.start(), ring.start()
        for step in range(12):
            if step < 10 and nd.lane() == 0:
                ring.expect(ahead, BOTH.tiles.stride)
                source = nd.global_at(data, 10 * nd.warp() + step, 128)
                nd.cp_async_bulk_load(BOTH.tiles.at(ring.slot(ahead)), source, 128, ring.full(ahead))
            ahead = ring.advance(ahead)
            if step >= 2:
                if WAIT:
                    ring.wait(now)
                out[nd.warp(), step - 2, nd.lane()] = tiles[ring.slot(now), nd.lane()]
                if RELEASE:
                    ring.release(now)
                now = ring.advance(now)
        BOTH.block.release(BOTH.block.start())  # its barriers are there as well
        BOTH.block.acquire(BOTH.block.advance(BOTH.block.start()))

    return copy_by_warps


def warp_data():
    data = np.arange(640, dtype=np.uint32).reshape(2, 10, 32)
    return data, [data, np.zeros_like(data)]


@pytest.mark.parametrize("landing", ["late", "earliest", "random"])
def test_each_warp_has_its_ring(landing):
    data, args = warp_data()
    nd.simulate(copy_by_warps(True, True), 1, args=args, landing=landing, schedules=2)
    assert np.array_equal(args[1], data)
    assert BOTH.barrier_bytes == 8 * (2 * 2 + 2 * 3) and BOTH.ring.stages == 3


def test_a_ring_of_a_warp_is_judged_and_named():
    fault = fault_of(copy_by_warps(False, True), warp_data()[1])
    assert type(fault) is faults.InFlightRead and re.search(r"ring\.full\[[01], 0\]", str(fault))
    assert type(fault_of(copy_by_warps(True, False), warp_data()[1])) is faults.RefillRace
    start = 1024
    barriers = range(BOTH.bytes - 48 - 112, BOTH.bytes - 112, 8)  # the last part, without the room to align
    assert [BOTH.name_of(start + offset, start) for offset in barriers] == [
        f"ring.full[{warp}, {stage}]" for warp in range(2) for stage in range(3)
    ]


# --- rings that warps fill and read themselves ------------------------------------------------------
def sums_of(ring, data, landing):
    """What each of two warps adds up of its own rows of ``data``, (2, 7, 32), which it asks for itself."""
    shared = nd.Shared(tiles=nd.Array((2, 3, 32), nd.uint32, alignment=128), ring=ring)

    @nd.kernel(threads=64, shared=shared)
    def own(data: nd.u64, out: nd.uint32[:, :]):
        shared.init()
        ring, tiles, rows = shared.ring, shared.tiles.view(), nd.global_at(data, nd.warp(), 7 * 128)
        ahead = now = ring.start()
        total = nd.uint32(0)
        for i in range(9):
            if i < 7:
                if nd.lane() == 0:
                    ring.expect(ahead, 128)
                    tile = nd.shared_at(shared.tiles.at(nd.warp()), ahead.stage, 128)
                    nd.cp_async_bulk_load(tile, nd.global_at(rows, i, 128), 128, ring.full(ahead))
                ahead = ring.advance(ahead)
            if i >= 2:
                ring.wait(now)
                total += tiles[nd.warp(), now.stage, nd.lane()]
                ring.release(now)
                now = ring.advance(now)
        out[nd.warp(), nd.lane()] = total

    out = np.zeros((2, 32), np.uint32)
    nd.simulate(own, 1, args=[data, out], landing=landing)
    return out


@pytest.mark.parametrize("landing", ["late", "earliest"])
@pytest.mark.parametrize("ring", [
    nd.WarpRing(3, 2), nd.WarpRing(3, 2, barriers=6), nd.WarpRing(3, 2, barriers=7),
    nd.Ring(3, full=2, empty=0), nd.Ring(3, full=2, empty=0, barriers=5),
], ids=str)  # fmt: skip
def test_warps_fill_their_own_stages(ring, landing):
    data = np.random.default_rng(1).integers(0, 1 << 20, (2, 7, 32)).astype(np.uint32)
    assert np.array_equal(sums_of(ring, data, landing), data.sum(1))


def test_barriers_of_all_kinds_have_their_names():
    shared = nd.Shared(a=nd.Ring(2, barriers=3), b=nd.WarpRing(2, 2, barriers=4), c=nd.Ring(2, empty=0))
    names = [shared.name_of(8 * i, 0) for i in range(shared.bytes // 8)]
    assert names[:5] == ["a.full[0]", "a.full[1]", "a.full[2]", "a.empty[0]", "a.empty[1]"]
    assert names[5:9] == [f"b.full[0, {i}]" for i in range(4)] and names[12] == "b.full[1, 3]"
    assert names[13:] == ["c.full[0]", "c.full[1]"]
    assert not hasattr(shared.b, "acquire") and not hasattr(shared.c, "acquire")


def test_each_warp_may_start_its_own_ring():
    """``ring.init()`` by a lane of each warp is enough for the copies that this lane waits for."""
    shared = nd.Shared(tiles=nd.Array((2, 32), nd.uint32, alignment=128), ring=nd.WarpRing(1, 2))

    @nd.kernel(threads=64, shared=shared)
    def own(data: nd.u64, out: nd.uint32[:]):
        ring, tiles = shared.ring, shared.tiles.view()
        if nd.lane() == 0:
            ring.init()
            state = ring.start()
            ring.expect(state, 128)
            slot = ring.slot(state)
            nd.cp_async_bulk_load(shared.tiles.at(slot), nd.global_at(data, slot, 128), 128, ring.full(state))
            ring.wait(state)
            out[nd.warp()] = tiles[slot, 5]

    data, out = np.arange(64, dtype=np.uint32), np.zeros(2, np.uint32)
    nd.simulate(own, 1, args=[data, out])
    assert list(out) == [5, 37]


@pytest.mark.parametrize("right", [True, False])
def test_named_barriers_in_a_row(right):
    """Each warp but the first begins when the one before it gives the turn, at a barrier of its own."""
    turn, total = nd.NamedBarrier(64, count=3), nd.Array(1, nd.int32)
    shared = nd.Shared(before=nd.NamedBarrier(32), turn=turn, total=total)

    @nd.kernel(threads=128, shared=shared)
    def turns(out: nd.int32[:]):
        total = shared.total.view()
        if nd.warp() == 0:
            shared.before.sync()
            if nd.lane() == 0:
                total[0] = 1
        else:
            shared.turn.sync(nd.warp() - 1)
        if nd.lane() == 0:
            total[0] = 3 * total[0] + nd.warp()
            out[nd.warp()] = total[0]
        cuda.syncwarp()
        if nd.warp() < 3:
            shared.turn.arrive(nd.warp() if right else 0)

    out = np.zeros(4, np.int32)
    if right:
        nd.simulate(turns, 1, args=[out], schedules=5)
        assert out.tolist() == [3, 10, 32, 99]
    else:
        with pytest.raises(faults.Deadlock, match="named barrier 3"):
            nd.simulate(turns, 1, args=[out])


# --- what a layout may be -------------------------------------------------------------------------
@pytest.mark.parametrize(
    "make, words", [
        (lambda: nd.Shared(init=nd.Ring(2)), "init= cannot be"),
        (lambda: nd.Shared(_x=nd.Ring(2)), "_x= cannot be"),
        (lambda: nd.Shared(a=nd.Array(200_000, nd.uint8), b=nd.Array(40_000, nd.uint8)), "a 200000, b 40000"),
        (lambda: nd.Shared(**{f"n{i}": nd.NamedBarrier(32) for i in range(16)}), "16 named barriers"),
        (lambda: nd.Array((3, 0), nd.float32), "shape=(3, 0)"),
        (lambda: nd.Array(3, nd.float32, alignment=48), "alignment=48"),
        (lambda: nd.Ring(0), "stages=0"), (lambda: nd.Ring(2, full=0), "full=0"),
        (lambda: nd.Ring(2, empty=-1), "empty=-1"),
        (lambda: nd.Ring(3, barriers=2), "barriers=2"), (lambda: nd.WarpRing(3, 2, barriers=2), "barriers=2"),
        (lambda: nd.WarpRing(0, 1), "stages=0"), (lambda: nd.WarpRing(2, 33), "warps=33"),
        (lambda: nd.Ring(2, empty=1 << 20), "empty=1048576"),
        (lambda: nd.NamedBarrier(48), "threads=48"), (lambda: nd.NamedBarrier(32, count=16), "count=16"),
        (lambda: nd.Shared(a=nd.NamedBarrier(32, 8), b=nd.NamedBarrier(32, 8)), "16 named barriers"),
        (lambda: nd.Ring(2, cluster=9), "cluster=9"), (lambda: nd.Ring(2, cluster=0), "cluster=0"),
        (lambda: nd.Array((2, 6, 32), nd.float32, cluster=4), "cluster=4"),
        (lambda: nd.Array((2, 8, 64), nd.float16, swizzle="128B", cluster=2), "cluster=2"),
        (lambda: nd.Shared(barrier_bytes=nd.Ring(2)), "barrier_bytes= cannot be"),
    ]
)  # fmt: skip
def test_what_cannot_be_laid_out_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_a_layout_of_arrays_alone_needs_no_start():
    one = nd.Shared(a=nd.Array(4, nd.uint32))

    @nd.kernel(threads=1, shared=one)
    def nothing(out: nd.uint32[:]):
        one.init()
        out[0] = one.a.nbytes

    out = np.zeros(1, np.uint32)
    nd.simulate(nothing, 1, args=[out])
    assert out[0] == 16 and one.bytes == 16


def test_forms_know_the_steps_of_a_ring():
    """The guarded form names the kernel's lines, and the traced one marks its steps."""
    assert [site.call for site in COPY.kernel.with_bounded_waits().sites] == [
        "shared.init()", "ring.acquire(state)", "ring.wait(state)"
    ]  # fmt: skip
    text = COPY.kernel.with_marks().plain.__code__.co_names
    assert "__mark" in text


def test_a_form_finds_what_nobody_has_asked_for_yet():
    """``nd`` imports its names when they are first used, and a form of a kernel may be the first to do so."""

    @nd.function
    def issue(n, state):
        if nd.lane() == 0:  # a function, which a form makes anew
            nd.fence_proxy_async()

    shared = nd.Shared(ring=nd.Ring(2))

    @nd.kernel(threads=32, shared=shared)
    def late(n: nd.i32):
        shared.init()
        issue(n, shared.ring.start())

    assert nd.lane, "this one has been asked for"
    vars(nd).pop("fence_proxy_async", None)
    nd.simulate(late.with_marks(), 1, args=[1, np.zeros(4096, np.uint32), 0])


def test_a_namespace_maps_its_members():
    mapped = Namespace("one", a=1, b=2).map(lambda value: 10 * value)
    assert (mapped.a, mapped.b) == (10, 20)


# --- producers in turn ----------------------------------------------------------------------------
@pytest.mark.parametrize("stages, producers", [(3, 2), (3, 3), (2, 2), (4, 3), (1, 1)])
def test_producers_in_turn(stages, producers):
    launch = two_producers(stages=stages, producers=producers, rows=8, steps=9)
    nd.simulate(launch, landing="random", schedules=2)


def test_producers_in_turn_in_every_order():
    assert nd.explore(two_producers(rows=2, steps=6)).complete


def test_more_producers_than_stages_are_found_out():
    with pytest.raises(faults.BarrierFault, match=r"ring.full\[0\]"):
        nd.simulate(two_producers(stages=2, producers=3))


@pytest.mark.parametrize("stages", [1, 3, 4])
def test_a_state_so_many_uses_on(stages):
    """start(n), and advance by n, are n times advance."""
    shared = nd.Shared(ring=nd.Ring(stages))

    @nd.kernel(threads=1, shared=shared)
    def states(out: nd.int32[:, :]):
        state = shared.ring.start()
        for use in range(12):
            near, there = shared.ring.start(use), shared.ring.advance(shared.ring.start(1), use)
            out[use, 0], out[use, 1] = near.stage, near.parity
            out[use, 2], out[use, 3] = state.stage, state.parity
            state = shared.ring.advance(state)
            out[use, 4], out[use, 5] = there.stage, there.parity
            out[use, 6], out[use, 7] = state.stage, state.parity

    out = np.zeros((12, 8), np.int32)
    nd.simulate(states, 1, args=[out])
    uses = np.arange(13)
    right = np.stack([uses % stages, uses // stages % 2], 1)
    assert np.array_equal(out, np.hstack([right[:-1], right[:-1], right[1:], right[1:]]))


# --- products by a warp ---------------------------------------------------------------------------
@pytest.mark.parametrize("columns", [16, 48])
def test_a_product_by_one_warp(columns):
    shared = nd.Shared(
        a=nd.Array((1, 32, 64), nd.float16, alignment=1024),
        b=nd.Array((1, columns, 64), nd.float16, alignment=1024),
        ring=nd.Ring(1),
    )  # fmt: skip
    by_warp = nd.WarpProduct(columns).functions()

    @nd.kernel(threads=32, shared=shared)
    def product(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :]):
        shared.init()
        state = shared.ring.start()
        if nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            shared.ring.expect(state, shared.a.stride + shared.b.stride)
            nd.cp_async_bulk_tensor_2d(shared.a.at(0), a_map, 0, 0, shared.ring.full(state))
            nd.cp_async_bulk_tensor_2d(shared.b.at(0), b_map, 0, 0, shared.ring.full(state))
        shared.ring.wait(state)
        sums = by_warp.zeros()
        by_warp.add(sums, shared.a.at(0), 16, shared.b.at(0))
        by_warp.add(sums, shared.a.at(0), 0, shared.b.at(0))
        by_warp.store(out, 1, 2, sums)

    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 4, (rows, 64)).astype(np.float16) for rows in (32, columns))
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, (64, len(m)), swizzle="128B")]) for m in (a, b)]
    out = np.full((18, columns + 3), np.nan, np.float32)
    nd.simulate(product, 1, args=[*maps, out])
    assert np.array_equal(out[1:17, 2:-1], (a[16:] + a[:16]).astype(np.float32) @ b.T.astype(np.float32))
    out[1:17, 2:-1] = np.nan
    assert np.isnan(out).all()


@pytest.mark.parametrize("columns", [0, 24, 272, 16.0])
def test_columns_of_a_product_that_cannot_be(columns):
    with pytest.raises(ValueError, match=f"columns={columns} of a WarpProduct must be a multiple of 16"):
        nd.WarpProduct(columns)
