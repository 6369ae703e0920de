"""``simulate`` itself: arguments, schedules, reports, events; and that it leaves nothing behind."""

import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from greenlet import greenlet
from helpers import LANDINGS, expect, fault_of, floats, maps_of, nans, run
from numba import cuda, float32, int32, types, uint32, uint64
from ring import THREADS, arguments, ring

from numba_deform.compiler import kernel as typed
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_address,
    ld_global_b32,
    shared_address,
    st_global_b32,
    st_release_cta_shared_b32,
)
from numba_deform.device.pipeline import flag_wait, mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults, gc_pauses
from numba_deform.engines.cpu import Report, SimFault, simulate
from numba_deform.engines.cpu.machine.thread import Thread
from numba_deform.engines.gc_pauses import short_collections
from numba_deform.engines.launches import Launch

u64, i32 = types.uint64, types.int32


def add_one(values, out):
    i = cuda.grid(1)
    out[i] = values[i] + float32(1)


@cuda.jit
def add_one_jit(values, out):
    i = cuda.grid(1)
    out[i] = values[i] + float32(1)


@typed(types.void(u64, u64, i32), threads=32)
def add_by_address(values, out, step):
    at = cuda.grid(1) * step
    st_global_b32(out + at, ld_global_b32(values + at))


# --- arguments ------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", [add_one, add_one_jit])
def test_plain_functions_and_dispatchers(kernel):
    values, out = floats(64), nans(64)
    report = simulate(kernel, 2, 32, (values, out))
    np.testing.assert_array_equal(out, values + np.float32(1))
    assert isinstance(report, Report)


def test_an_array_is_an_address_where_the_signature_says_so():
    values, out = floats(64), nans(64)
    simulate(add_by_address, 2, 32, (values, out, 4))
    np.testing.assert_array_equal(out, values)

    @typed(types.void(u64, types.Array(types.float32, 1, "C")), threads=1)
    def both(address, array):
        array[0] = address == cuda_address(array)

    @cuda.jit(device=True)
    def cuda_address(array):
        return global_address(array)

    same = floats(4)
    simulate(both, 1, 1, (same, same))
    assert same[0] == 1


def test_numbers_take_the_type_of_the_signature():
    @typed(types.void(types.Array(types.float64, 1, "C"), i32, types.uint32, types.float32, u64),
           threads=1)  # fmt: skip
    def kernel(out, a, b, c, d):
        out[0], out[1], out[2], out[3] = a, b, c, d

    out = np.zeros(4)
    simulate(kernel, 1, 1, (out, (1 << 32) - 5, -1, 0.1, np.int64(7)))
    np.testing.assert_array_equal(out, [-5, 2**32 - 1, np.float32(0.1), 7])


def test_numpy_integers_do_not_overflow_in_a_kernel():
    def kernel(out, n):
        out[0] = n * n

    out = np.zeros(1, np.int64)
    run(kernel, out, np.int32(1 << 20), block=1)
    assert out[0] == 1 << 40


ARGUMENT_ERRORS = {
    "too few": (add_one, (floats(4),), "add_one takes 2 arguments (values, out), 1 were given"),
    "too many": (add_one, (floats(4),) * 3, "add_one takes 2 arguments (values, out), 3 were given"),
    "a list": (add_one, (floats(4), [1, 2]),
               "argument out is a list; the CPU engine takes numbers, NumPy arrays and records, tuples"),
    "a list in a tuple": (add_one, (floats(4), (1, [2])), "argument out[1] is a list; the CPU engine takes"),
    "nothing": (add_one, (None, floats(4)), "argument values is a NoneType; the CPU engine takes"),
    "objects": (add_one, (np.array([None]), floats(4)), "argument values has dtype object, which no"),
    "swapped bytes": (add_one, (floats(4).astype(">f4"), floats(4)), "argument values has dtype >f4"),
    "array for a number": (add_by_address, (floats(4), floats(4), floats(4)),
                           "argument step is float32[:], the kernel says int32"),
    "map for a number": (add_by_address, (floats(4), floats(4), maps_of(floats(4), box=(4,))),
                         "argument step is a TensorMapArray, the kernel says int32"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENT_ERRORS)
def test_argument_errors(case):
    kernel, args, message = ARGUMENT_ERRORS[case]
    with pytest.raises(ValueError) as caught:
        simulate(kernel, 1, 4, args)
    assert str(caught.value).startswith(message), caught.value


DECLARED = {
    "number for an array": (float32[::1], 3, "=3, the kernel says float32[:]"),
    "other type": (i32[:], np.zeros(4, np.int64),
                   " is int64[:], the kernel says int32[:]: give p.astype(np.int32)"),
    "fewer dimensions": (float32[:, :], floats(4), " is float32[:], the kernel says float32[:, :]"),
    "other order": (float32[:, ::1], np.zeros((4, 4), np.float32, "F"),
                    " is float32[:, :], the kernel says float32[:, :], in C order: give "
                    "np.asarray(p, order='C')"),
    "no whole number": (i32, 7.5, "=7.5, the kernel says int32: a whole number"),
    "not a number": (i32, float("nan"), "=nan, the kernel says int32: a whole number"),
    "too large": (i32, 1 << 40, "=1099511627776, the kernel says int32: 32 bits"),
    "one map": (u64, maps_of(floats(4), box=(4,))[0],
                " is a TensorMap, the kernel says uint64: a number, or the address of an array or a TensorMap"
                "Array"),
    "a list": (float32, [1.0], " is a list, the kernel says float32"),
    "complex": (float32, 1j, " is a complex, the kernel says float32"),
    "in a tuple": (types.UniTuple(i32, 2), (1, 2.5), "[1]=2.5, the kernel says int32: a whole number"),
    "longer tuple": (types.UniTuple(i32, 2), (1, 2, 3),
                     " is a tuple of 3, the kernel says UniTuple(int32 x 2)"),
}  # fmt: skip


@pytest.mark.parametrize("case", DECLARED)
def test_an_argument_that_does_not_fit_what_is_declared(case):
    kind, arg, message = DECLARED[case]

    @typed(types.void(kind), threads=1)
    def kernel(p):
        raise AssertionError("it has been launched")

    with pytest.raises(ValueError) as caught:
        Launch(kernel, 1, [arg])
    assert str(caught.value) == f"argument p{message}"


def test_arguments_that_fit_what_is_declared():
    kinds = types.complex64, u64, i32, float32, float32, types.boolean, float32[:], float32[:, :]
    given = (1j, maps_of(floats(4), box=(4,)), 2.0, 3, np.float64(0.1), np.bool_(1), floats(8)[::2],
             floats(4).reshape(2, 2).T)  # fmt: skip

    @typed(types.void(*kinds), threads=1)
    def kernel(z, a, b, c, d, e, f, g):
        pass

    simulate(Launch(kernel, 1, given))


def test_launch_errors():
    args = floats(4), nans(4)
    for options, message in (
        ({"landing": "soon"}, "landing='soon' is not one of late, random, earliest"),
        ({"schedules": 0}, "schedules=0 must be at least 1"),
        ({"schedules": 1.5}, "schedules=1.5 must be an integer"),
        ({"seed": "a"}, "seed='a' must be an integer"),
        ({"shared_bytes": "48"}, "shared_bytes='48' must be an integer"),
    ):
        with pytest.raises(ValueError) as caught:
            simulate(add_one, 1, 4, args, **options)
        assert str(caught.value).startswith(message)
    for grid, block in ((2, (4, 4, 1, 1)), ((), 32), (1, 4.0), (1, (4, 4.0)), ("1", 4)):
        with pytest.raises(ValueError, match="must be an integer, or a tuple of up to three"):
            simulate(add_one, grid, block, args)
    wrong = (0, 4), (-1, 4), (1, 0), (1, 1025), (1, -3), (1, (32, 33)), (1, (1, 1, 65)), (1, (4, 0))
    for grid, block in (*wrong, ((1, 65536), 1)):
        with pytest.raises(faults.BadLaunch) as caught:
            simulate(add_one, grid, block, args)
        assert f"grid={grid}, block={block}" in str(caught.value)
    with pytest.raises(faults.BadLaunch, match="block=64, and the kernel is compiled for 32"):
        simulate(add_by_address, 1, 64, (*args, 4))
    for bytes in (-1, 227 * 1024 + 1):
        with pytest.raises(faults.BadLaunch, match=f"{bytes} bytes of dynamic shared memory"):
            simulate(add_one, 1, 4, args, shared_bytes=bytes)


def test_what_is_no_kernel():
    def generator(values, out):
        yield values

    for kernel in (generator, "kernel", 3, len):
        with pytest.raises(ValueError, match="is no function that a GPU could run"):
            simulate(kernel, 1, 1, (floats(1), nans(1)))


def test_all_options_are_documented():
    for name in inspect.signature(simulate).parameters:
        assert f"``{name}" in simulate.__doc__, name


# --- schedules ------------------------------------------------------------------------------------
def test_arguments_are_put_back_between_schedules():
    def kernel(counter, untouched):
        if cuda.threadIdx.x == 0:
            counter[0] = counter[0] + 1

    counter, untouched = np.array([5, 6]), np.arange(3)
    untouched.flags.writeable = False
    report = run(kernel, counter, untouched, schedules=7)
    assert list(counter) == [6, 6] and report.schedules == 7


def test_tensors_behind_maps_are_put_back_too():
    from test_copies import store_kernel

    array = floats(16)
    before = array.copy()
    maps = maps_of(array, box=(8,))

    def kernel(maps, corner, data, out):
        add(out)
        store(maps, corner, data)

    store = cuda.jit(store_kernel(1, 32), device=True)

    @cuda.jit(device=True)
    def add(out):
        if cuda.threadIdx.x == 0:
            out[0] = out[0] + 1

    run(kernel, maps, np.zeros(1, np.int32), np.zeros(32, np.uint8), array[8:], schedules=4)
    np.testing.assert_array_equal(array[:8], np.zeros(8, np.float32))
    np.testing.assert_array_equal(array[9:], before[9:])
    assert array[8] == before[8] + np.float32(1)


def sometimes(out):
    """Wrong only if thread 31 comes before thread 0."""
    order = cuda.shared.array(1, int32)
    tid = cuda.threadIdx.x
    if tid == 5:
        order[0] = 0
    cuda.syncthreads()
    if cuda.atomic.add(order, 0, 1) == 0 and tid == 0:
        out[1] = 1  # which is not there


def test_the_failing_seed_is_reported_and_replays():
    found = None
    for landing in LANDINGS:
        with pytest.raises(SimFault) as caught:
            run(sometimes, np.zeros(1, np.int32), schedules=300, seed=10, landing=landing)
        found = caught.value
        assert found.seed >= 10 and found.landing == landing
        again = fault_of(sometimes, np.zeros(1, np.int32), seed=found.seed, landing=found.landing)
        assert str(again) == str(found) and again.seed == found.seed
        for seed in range(10, found.seed):
            run(sometimes, np.zeros(1, np.int32), seed=seed, landing=landing)


def test_seeds_are_different_schedules_and_the_same_seed_is_the_same():
    def kernel(out):
        ticket = cuda.shared.array(1, int32)
        tid = cuda.threadIdx.x
        if tid == 0:
            ticket[0] = 0
        cuda.syncthreads()
        out[tid] = cuda.atomic.add(ticket, 0, 1)

    orders = {}
    for seed in range(8):
        for _ in range(2):
            out = np.zeros(32, np.int32)
            run(kernel, out, seed=seed)
            assert orders.setdefault(seed, tuple(out)) == tuple(out)
    assert len(set(orders.values())) == 8


# --- reports and events ---------------------------------------------------------------------------
def test_the_report():
    args, _ = arguments()
    report = simulate(ring(), 1, THREADS, args, schedules=3)
    assert (report.blocks, report.threads, report.schedules) == (1, THREADS, 3)
    assert report.copies == 3 * 32
    assert report.shared_bytes == 4 * 1024 + 64
    assert report.switches > 3 * 32 * 200
    assert 600 < report.cycles < 32 * 700
    assert report.seconds > 0 and report.events == []
    assert str(report) == repr(report) == "clean: 3 schedules, 96 copies; not tried: " + report.untried
    assert report.untried == "more than one block (by a larger grid)"
    few = Report(schedules=1, copies=1, waived={"init-fence": (2, ["a.py:3"])})
    assert str(few) == "clean: 1 schedule, 1 copy; waived init-fence: 2 times, at a.py:3"


def ring_events(seed, landing, iterations=16):
    args, _ = arguments(iterations)
    return simulate(ring(), 1, THREADS, args, seed=seed, landing=landing, trace=True).events


@pytest.mark.parametrize("landing", LANDINGS)
def test_the_same_seed_gives_the_same_events(landing):
    for seed in (0, 3):
        events = ring_events(seed, landing)
        assert events == ring_events(seed, landing)
    assert events != ring_events(4, landing)


def twelve_words():
    data = np.zeros(16, np.uint32)
    return data[-(data.ctypes.data % 16) // 4 % 4 :][:12]


ROUNDS = 30


def three_copies(data):
    """Three copies are issued, many rounds of a barrier follow, and only then are the copies waited for."""
    tile = cuda.shared.array((3, 4), uint32, alignment=128)
    bars = cuda.shared.array(4, uint64)
    bar, tid = shared_address(bars), cuda.threadIdx.x
    if tid == 0:
        for i in range(4):
            mbarrier_init(bar + 8 * i, 1)
        fence_mbarrier_init()
        for i in range(3):
            mbarrier_arrive_expect_tx(bar + 8 * i, 16)
            cp_async_bulk_load(shared_address(tile) + 16 * i, global_address(data) + 16 * i, 16, bar + 8 * i)
    for i in range(ROUNDS):
        cuda.syncthreads()
        if tid == 0:
            mbarrier_arrive_expect_tx(bar + 24, 0)
        mbarrier_wait(bar + 24, i & 1)
    for i in range(3):
        mbarrier_wait(bar + 8 * i, 0)


def landings(seed):
    """{copy: the round in which it lands}, in the order of landing."""
    events = simulate(three_copies, 1, 32, (twelve_words(),), seed=seed, landing="random", trace=True).events
    rounds, found = 0, {}
    for event in events:
        rounds += event.kind == "complete" and event.barrier == "bars[3]"
        if event.kind == "flight":
            found[event.barrier] = rounds
    return found


def test_random_landings_are_spread_over_the_run():
    found = [landings(seed) for seed in range(10)]
    assert found == [landings(seed) for seed in range(10)]
    for bar in ("bars[0]", "bars[1]", "bars[2]"):
        when = {rounds[bar] for rounds in found}
        assert min(when) == 0 and max(when) == ROUNDS and len(when) > 2
    assert len({tuple(rounds) for rounds in found}) > 3  # orders


def ping_pong(data, rounds):
    """Two threads poll each other's flag while a copy is in flight."""
    tile = cuda.shared.array(4, uint32, alignment=128)
    bars = cuda.shared.array(2, uint64)
    flags = cuda.shared.array(2, uint32)
    bar, flag, tid = shared_address(bars), shared_address(flags), cuda.threadIdx.x
    flags[tid] = 0
    if tid == 0:
        mbarrier_init(bar, 1)
        mbarrier_init(bar + 8, 1)
        fence_mbarrier_init()
        mbarrier_arrive_expect_tx(bar, 16)
        cp_async_bulk_load(shared_address(tile), global_address(data), 16, bar)
    cuda.syncwarp()
    for i in range(rounds):
        if tid == 0:
            st_release_cta_shared_b32(flag, i + 1)
            flag_wait(flag + 4, i + 1)
        else:
            flag_wait(flag, i + 1)
            st_release_cta_shared_b32(flag + 4, i + 1)
    if tid == 0:
        mbarrier_arrive_expect_tx(bar + 8, 0)
    mbarrier_wait(bar, 0)


def test_a_late_copy_lands_when_those_who_poll_get_no_further():
    for seed in range(3):
        events = simulate(ping_pong, 1, 2, (twelve_words(), 5), seed=seed, trace=True).events
        kinds = [(e.kind, e.barrier) for e in events]
        assert kinds.index(("flight", "bars[0]")) > kinds.index(("complete", "bars[1]"))


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("seed", [0, 5])
def test_the_times_of_events(landing, seed):
    events = ring_events(seed, landing)
    by_kind = {kind: [e for e in events if e.kind == kind]
               for kind in ("issue", "flight", "wait", "arrive", "complete", "meet")}  # fmt: skip
    assert sum(map(len, by_kind.values())) == len(events)
    assert len(by_kind["meet"]) == 256  # the syncthreads of all eight warps behind the inits
    assert len(by_kind["issue"]) == len(by_kind["flight"]) == 16
    assert len(by_kind["arrive"]) == 16 + 16 * THREADS
    full = [e for e in by_kind["complete"] if e.barrier in {f"bars[{s}]" for s in range(4)}]
    assert sorted((e.barrier, e.phase) for e in full) == [(f"bars[{s}]", p) for s in range(4)
                                                          for p in range(4)]  # fmt: skip
    source = inspect.getsource(sys.modules["ring"]).splitlines()
    flights = {(e.barrier, e.phase): e for e in by_kind["flight"]}
    assert len(flights) == 16
    for event in events:
        assert event.end >= event.start >= 0 and event.block == 0
        assert 0 <= event.warp < 8 and 0 <= event.lane < 32
    for issue in by_kind["issue"]:
        flight = flights[issue.barrier, issue.phase]
        assert flight.start >= issue.start and flight.end >= issue.start + 600
        assert flight.bytes == issue.bytes == 1024 and flight.address == issue.address
        assert issue.address % 128 == 0
        assert issue.line == flight.line
        assert "cp_async_bulk_tensor_1d" in source[issue.line - 1]
    for wait in by_kind["wait"]:
        assert "mbarrier_wait" in source[wait.line - 1]
        if (wait.barrier, wait.phase) in flights:
            assert wait.end >= flights[wait.barrier, wait.phase].end
    for complete in full:
        assert complete.end >= flights[complete.barrier, complete.phase].end
    for arrive in by_kind["arrive"]:
        assert "mbarrier_arrive" in source[arrive.line - 1]


def test_no_events_unless_asked_for():
    args, _ = arguments(4)
    assert simulate(ring(), 1, THREADS, args).events == []


def test_waiting_takes_virtual_time():
    """Twice the bytes through the same copy engine take longer; so do twice the phases."""
    cycles = {}
    for n in (8, 16, 32):
        args, _ = arguments(n)
        cycles[n] = simulate(ring(), 1, THREADS, args).cycles
    assert cycles[8] < cycles[16] < cycles[32]


# --- nothing is left ------------------------------------------------------------------------------
def bad_kernels():
    def deadlock(out):
        if cuda.threadIdx.x != 3:
            cuda.syncthreads()
        else:
            cuda.syncwarp(8)
            cuda.nanosleep(1)
            while out[0] == out[0] or out[1] != 5:
                cuda.nanosleep(1)

    def race(out):
        tile = cuda.shared.array(32, float32)
        tile[cuda.threadIdx.x] = float32(0)
        out[cuda.threadIdx.x] = tile[31 - cuda.threadIdx.x]

    def error(out):
        cuda.syncthreads()
        out[0] = 1 // int32(0)

    def endless(out):
        if cuda.threadIdx.x == 1:
            while True:
                pass
        cuda.syncthreads()

    return [deadlock, race, error, endless]


@pytest.fixture
def made(monkeypatch):
    """Weak references to the threads that are made during the test."""
    references, make = [], Thread.__init__

    def init(thread, *args):
        make(thread, *args)
        references.append(weakref.ref(thread))

    monkeypatch.setattr(Thread, "__init__", init)
    return references


@pytest.mark.full
@pytest.mark.parametrize("kernel", bad_kernels(), ids=lambda k: k.__name__)
def test_no_thread_is_left_after_a_fault(kernel, made):
    out = np.zeros(32, np.float32)
    fault = fault_of(kernel, out, timeout=0.5 if kernel.__name__ == "endless" else 600)
    threads = [r() for r in made if r() is not None]
    assert threads and all(thread.dead for thread in threads)
    del fault, threads
    gc.collect()
    assert all(r() is None for r in made)


@pytest.mark.parametrize("often", [False, True])
def test_no_thread_is_left_after_a_clean_run(often, made, monkeypatch):
    """Also where the collector comes often: of a tuple that holds a thread that runs, which greenlet hides from
    it, it no longer minds what becomes of it."""
    args, _ = arguments(8)
    before = gc.get_threshold()
    if often:
        monkeypatch.setattr(gc_pauses, "SELDOM", 50)
        gc.set_threshold(50)
    try:
        with short_collections():
            simulate(ring(), 1, THREADS, args, schedules=2)
            gc.collect()
    finally:
        gc.set_threshold(*before)
    assert made and all(r() is None for r in made)


def test_no_watching_thread_is_left():
    before = threading.active_count()
    for _ in range(5):
        run(add_one, floats(32), nans(32))
        fault_of(bad_kernels()[2], nans(1))
    assert threading.active_count() == before


def test_shared_memory_starts_afresh():
    def kernel(out, write):
        tile = cuda.shared.array(32, float32)
        if write:
            tile[cuda.threadIdx.x] = float32(1)
        cuda.syncwarp()
        out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]

    run(kernel, nans(32), True)
    expect(faults.UninitialisedRead, kernel, nans(32), False)

    def second_block(out):
        tile = cuda.shared.array(32, float32)
        if cuda.blockIdx.x == 0:
            tile[cuda.threadIdx.x] = float32(1)
        out[cuda.grid(1)] = tile[cuda.threadIdx.x]

    expect(faults.UninitialisedRead, second_block, nans(64), grid=2)


def test_the_original_function_is_untouched():
    scope, closure = dict(add_one.__globals__), ring().py_func.__closure__
    run(add_one, floats(32), nans(32))
    assert add_one.__globals__ == scope and add_one.__globals__["cuda"] is cuda
    kernel = ring()
    cells = [c.cell_contents for c in kernel.py_func.__closure__]
    args, _ = arguments(4)
    simulate(kernel, 1, THREADS, args)
    assert [c.cell_contents for c in kernel.py_func.__closure__] == cells
    assert len(closure) == len(cells)


def test_it_runs_beside_the_compiler():
    """No environment variable, no other process: compile, simulate, compile again."""
    assert "NUMBA_ENABLE_CUDASIM" not in os.environ
    signature = types.void(types.Array(types.float32, 1, "C"), types.Array(types.float32, 1, "C"))
    first, _ = cuda.compile_ptx(add_one, signature.args, cc=(9, 0))
    values, out = floats(32), nans(32)
    run(add_one, values, out)
    second, _ = cuda.compile_ptx(add_one, signature.args, cc=(9, 0))
    assert "add.f32" in first or "add.rn.f32" in first
    assert first.count("ld.global") == second.count("ld.global") == 1
    np.testing.assert_array_equal(out, values + np.float32(1))


def test_a_fresh_process_without_a_gpu_or_variables():
    code = """if True:
        import numpy as np
        from numba import cuda, float32
        from numba_deform.engines.cpu import simulate
        def kernel(out):
            out[cuda.grid(1)] = float32(cuda.grid(1))
        out = np.zeros(64, np.float32)
        simulate(kernel, 2, 32, (out,))
        assert (out == np.arange(64)).all()
        print("fine")
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "CUDA"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "fine\n", done.stderr


def test_inside_another_greenlet_and_another_thread():
    results = []

    def work():
        out = nans(32)
        run(add_one, floats(32), out)
        results.append(np.isnan(out).any())

    greenlet(work).switch()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [False, False]


def test_two_simulations_at_once():
    """Each OS thread has its own engine; a timeout ends its own run only."""
    errors = []

    def good():
        for _ in range(10):
            args, expected = arguments(8)
            simulate(ring(), 1, THREADS, args)
            if not np.allclose(args[1], expected, atol=1e-4):
                errors.append("wrong")

    def bad():
        for _ in range(3):
            fault = fault_of(bad_kernels()[3], nans(1), timeout=0.1)
            if type(fault) is not faults.Unfinished:
                errors.append(fault)

    threads = [threading.Thread(target=good), threading.Thread(target=bad)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_floats_overflow_silently_as_on_a_gpu():
    def kernel(out, zero):
        big = float32(3e38)
        out[0] = big * big
        out[1] = float32(1) / float32(zero)
        out[2] = float32(1e300)
        cuda.syncthreads()
        out[3] = big * big - big * big

    with np.errstate(all="raise"):
        out = nans(4)
        run(kernel, out, 0, block=1)
    np.testing.assert_array_equal(out, [np.inf, np.inf, np.inf, np.nan])


# --- the names a kernel may use -------------------------------------------------------------------
def test_casts():
    def kernel(out):
        out[0] = int32(2**31) + 2**31
        out[1] = uint32(-1) - (2**32 - 1)
        out[2] = int32(float32(-2.7)) + 2
        out[3] = uint32(float32(-5))
        out[4] = int32(float32(np.inf)) - (2**31 - 1)
        out[5] = int32(True) - 1
        out[6] = int32(int32(2**31 - 1) + 1) + 2**31

    out = np.full(7, 9, np.int64)
    run(kernel, out, block=1)
    assert (out == 0).all()


def test_names_imported_from_numba_cuda():
    from numba.cuda import grid, syncthreads

    def kernel(out):
        tile = cuda.shared.array(32, int32)
        tile[cuda.threadIdx.x] = 1
        syncthreads()
        cuda.atomic.add(out, 0, tile[31 - cuda.threadIdx.x] + 0 * grid(1))

    out = np.zeros(1, np.int32)
    run(kernel, out)
    assert out[0] == 32


def test_names_of_arrays_in_messages():
    def kernel(out):
        first = cuda.shared.array(4, float32)
        at = shared_address(cuda.shared.array(4, float32, alignment=16))
        first[0] = out[0] + at
        first[1] = first[2]

    fault = expect(faults.UninitialisedRead, kernel, floats(1), block=1)
    assert "first[2]" in fault.what


def test_a_step_of_a_thread_takes_few_calls():
    """256 threads x 32 steps of the ring, all checks on: 21 Python calls a step, when this was written.

    What a run takes on this machine is counted, not timed.
    """
    args, _ = arguments()
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    kernel = ring()
    simulate(kernel, 1, THREADS, args)  # types are inferred once
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        simulate(kernel, 1, THREADS, args)
    finally:
        sys.setprofile(before)
    assert THREADS * 32 < calls < 40 * THREADS * 32
