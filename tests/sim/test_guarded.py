"""The guarded form of a kernel: which lines it bounds, and that it computes the same."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import nans, run
from numba import cuda, int32, types, uint32, uint64

import numba_deform as nd
from numba_deform.compiler import Kernel
from numba_deform.compiler.rewrite import rewritten
from numba_deform.course.bugs import BUGS
from numba_deform.device import guard
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_init, mbarrier_try_wait_parity
from numba_deform.device.memory import shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync
from numba_deform.device.tokens import mbarrier_arrive_state, mbarrier_try_wait, mbarrier_try_wait_parity_hint
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.gpu.guard import RECORD, read_record


def guarded(function):
    """(its guarded form, the sites) of a kernel's Python function."""
    return rewritten(function, guarded=True)


@pytest.fixture
def record(monkeypatch):
    """A launch's record for 4 blocks, which guarded kernels find as their first argument."""
    size = guard.BLOCKS_OFFSET + 4 * guard.BARRIERS * guard.COUNTER_BYTES
    made = np.zeros(size, np.uint8)
    made[8:12].view(np.uint32)[0] = 1 << 11
    address = made.__array_interface__["data"][0]
    monkeypatch.setattr(guard.guard_address, "model", lambda: address)
    return made


def waiting(record, out):
    """Uses a barrier in a helper of the library, one by hand, and both kinds of barriers of threads."""
    bars = cuda.shared.array(1, uint64)
    words = cuda.shared.array(64, uint32)
    bar, tid = shared_address(bars), int32(cuda.threadIdx.x)
    if tid == 0:
        mbarrier_init(bar, 64)
    cuda.syncthreads()
    words[tid] = tid
    mbarrier_arrive(bar)
    mbarrier_wait(bar, 0)
    total = words[63 - tid]
    mbarrier_arrive(bar)
    while mbarrier_try_wait_parity(bar, 1) == 0:
        pass
    if tid < 32:
        words[tid] = total
        bar_arrive(1, 64)
        out[tid] = total
        return
    bar_sync(1, 64)
    out[tid] = words[tid - 32]


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if text in line)


def test_every_line_that_waits_is_a_site():
    _, sites = guarded(waiting)
    texts = ["cuda.syncthreads()", "mbarrier_wait(bar, 0)", "mbarrier_try_wait_parity(bar, 1)",
             "bar_arrive(1, 64)", "bar_sync(1, 64)"]  # fmt: skip
    assert [site.call for site in sites] == texts
    for site, text in zip(sites, texts, strict=True):
        assert (site.file, site.line) == (__file__, line_of(waiting, text))
        assert text in site.source


def test_every_loop_that_waits_polls():
    """In its body, so that it can end: by hand, and in a helper of the library."""

    def by_hand(out):
        bars = cuda.shared.array(1, uint64)
        while mbarrier_try_wait_parity(shared_address(bars), 1) == 0:
            pass

    def with_helper(out):
        bars = cuda.shared.array(1, uint64)
        mbarrier_wait(shared_address(bars), 1)

    form, _ = guarded(by_hand)
    assert {"__guard_start", "__guard_poll"} <= set(form.__code__.co_names)
    form, _ = guarded(with_helper)
    inner = inspect.getclosurevars(form)
    helper = {**inner.globals, **inner.nonlocals}["mbarrier_wait"].py_func
    assert {"__guard_start", "__guard_poll"} <= set(helper.__code__.co_names)


def test_line_numbers_stay():
    code, rebuilt = waiting.__code__, guarded(waiting)[0].__code__
    assert rebuilt.co_filename == code.co_filename
    lines = [{line for *_, line in c.co_lines() if line} for c in (code, rebuilt)]
    assert lines[0] - {code.co_firstlineno} <= lines[1]


def test_it_computes_the_same(record):
    want = nans(64)
    run(waiting, record, want, block=64)
    for seed in range(4):
        out = nans(64)
        run(guarded(waiting)[0], record, out, block=64, seed=seed)
        assert (out == want).all()
        counters = record[guard.BLOCKS_OFFSET :].view(np.uint32)
        assert counters[1] == 1 and counters[5] == 1  # generations of syncthreads and of barrier 1
        record[guard.BLOCKS_OFFSET :] = 0
    assert not record[:8].any()  # nobody stopped


def test_syncthreads_does_not_wait_for_threads_that_have_left(record):
    def kernel(record, out):
        tid = cuda.threadIdx.x
        if tid >= 40:
            return
        cuda.syncthreads()
        out[tid] = tid

    out = nans(64)
    run(guarded(kernel)[0], record, out, block=64, seed=3)
    assert (out[:40] == np.arange(40)).all()


def test_a_second_syncthreads_elsewhere_is_noticed(record):
    def kernel(record, out):
        if cuda.threadIdx.x < 32:
            cuda.syncthreads()
        else:
            cuda.syncthreads()  # the other one
        out[cuda.threadIdx.x] = 1

    try:
        run(guarded(kernel)[0], record, nans(64), block=64)
    except SimFault as fault:  # who waits for the threads that have been ended polls for ever
        assert isinstance(fault, faults.Livelock)
    fault = read_record(SimpleNamespace(sites=guarded(kernel)[1]), record[: guard.BLOCKS_OFFSET])
    assert type(fault) is faults.DivergentBarrier
    assert fault.source == "cuda.syncthreads()  # the other one" and fault.block == 0
    assert f"{line_of(kernel, 'syncthreads')}" in str(fault)


def test_what_needs_no_bounds_stays_as_it_is():
    def kernel(out):
        i = 0
        while i < 4:
            out[i] = i
            i += 1

    assert guarded(kernel)[1] == ()
    out = nans(4)
    assert BUGS["fp16_coordinates"].kernel(False).with_bounded_waits().guarded
    run(kernel, out, block=1)
    assert (out == np.arange(4)).all()


@cuda.jit(device=True)
def add(out, i):
    """Has the name of an attribute that it uses."""
    cuda.atomic.add(out, i, 1)


@cuda.jit(device=True)
def syncwarp(bar):
    """The same, and waits."""
    cuda.syncwarp()
    mbarrier_wait(bar, 1)


def test_a_function_may_have_the_name_of_an_attribute(record):
    def kernel(record, out):
        add(out, cuda.threadIdx.x // 8)

    def waits(out):
        bars = cuda.shared.array(1, uint64)
        syncwarp(shared_address(bars))

    form, sites = guarded(kernel)
    out = np.zeros(4, np.int32)
    run(form, record, out, block=32)
    assert sites == () and (out == 8).all()
    assert [site.call for site in guarded(waits)[1]] == ["mbarrier_wait(bar, 1)"]


def test_without_source_it_says_so():
    scope = {}
    # Not "<string>": from Python 3.13 on that is what follows ``python -c``, such as a worker of pytest-xdist.
    exec(compile("def kernel(out):\n    out[0] = 1\n", "<without source>", "exec"), scope)
    with pytest.raises(ValueError, match="a form of kernel needs its source"):
        guarded(scope["kernel"])


def written(rows, thread, **fields):
    for name, value in fields.items():
        rows[thread][name] = value
    rows[thread]["written"] = 1


def test_a_record_becomes_a_report():
    """Thread 0 waits on one barrier, threads 32 to 63 for longer on another; 70 came after the stop."""
    kernel = BUGS["parity_inverted"].kernel()
    _, sites = guarded(kernel.py_func)
    record = np.zeros(guard.BLOCKS_OFFSET, np.uint8)
    header, rows = (
        record[: guard.HEADER_BYTES].view(np.uint32),
        record[guard.HEADER_BYTES :].view(RECORD),
    )
    header[:5] = 8, 3, 100, 0xFFFF_FFFF, 1  # block 7; 3 threads of others
    producer, consumer = (
        next(i for i, site in enumerate(sites) if site.call.startswith(f"mbarrier_wait({name}"))
        for name in ("empty", "full")
    )
    bar = {"kind": guard.MBARRIER, "address": 0x408}
    written(rows, 0, **{**bar, "address": 0x400}, site=producer, detail=1, value=1, since=50)
    for thread in range(32, 64):
        written(rows, thread, **bar, site=consumer, since=40)
    written(rows, 70, **bar, site=consumer, since=2 << 32)
    fault = read_record(kernel, record, limit=0.5)
    assert type(fault) is faults.IncompletePhase and fault.block == 7 and fault.thread == 32
    assert fault.where == sites[consumer].where and fault.source == sites[consumer].source
    text = " ".join(str(fault).split())
    for words in ("a wait took more than 0.5 s", "3 threads of other blocks", "threads 32-63",
                  "the phase of parity 1 of the barrier at 0x400: it is in a phase of parity 1"):  # fmt: skip
        assert words in text, words
    assert "70" not in text
    assert {wait.threads for wait in fault.waits} == {(0,), tuple(range(32, 64))}


def test_a_kernel_in_its_guarded_form_keeps_its_signature():
    kernel = Kernel(waiting, types.void(types.uint8[::1], types.float32[::1]), 64)
    assert kernel.with_bounded_waits().compile().cubin != kernel.compile().cubin


def by_token(record, out):
    """Waits for a token in a loop, and for a parity with a hint."""
    bar = shared_address(cuda.shared.array(1, uint64))
    if cuda.threadIdx.x == 0:
        mbarrier_init(bar, 32)
    cuda.syncthreads()
    state = mbarrier_arrive_state(bar)
    while mbarrier_try_wait(bar, state) == 0:
        pass
    while mbarrier_try_wait_parity_hint(bar, uint32(0), uint32(100)) == 0:
        pass
    out[cuda.threadIdx.x] = 1


def test_waits_by_token_are_bounded(record):
    """The record says which barrier, and that a token named the phase: the token itself is opaque."""
    function, sites = guarded(by_token)
    calls = [site.call for site in sites]
    assert "mbarrier_try_wait(bar, state)" in calls
    assert "mbarrier_try_wait_parity_hint(bar, uint32(0), uint32(100))" in calls
    run(function, record, out := nans(32))
    assert (out == 1).all()
    kernel = Kernel(by_token, types.void(types.uint8[::1], types.float32[::1]), 32)
    assert kernel.with_bounded_waits().compile().cubin != kernel.compile().cubin
    rows = np.zeros(guard.BLOCKS_OFFSET, np.uint8)
    rows[:8].view(np.uint32)[:] = 1, 0
    rows[12:20].view(np.uint32)[:] = 0, 2
    entry = dict(kind=guard.MBARRIER, site=calls.index("mbarrier_try_wait(bar, state)"), address=0x400)
    written(rows[guard.HEADER_BYTES :].view(RECORD), 0, **entry, detail=guard.BY_TOKEN, since=1 << 32)
    assert "the phase of its token of the barrier at 0x400" in " ".join(str(read_record(kernel, rows)).split())


def test_a_ring_that_is_given_to_a_function():
    """Its waits there are bounded, at the function's own lines, and the form compiles."""
    ring = nd.Ring(2, empty=32)
    shared = nd.Shared(ring=ring)

    @nd.function
    def take(state, ring, seconds=0):
        ring.wait(state)
        ring.release(state)

    @nd.function
    def both(ring, state):
        take(state, ring=ring)

    @nd.kernel(threads=32, shared=shared)
    def kernel(out: nd.float32[:]):
        shared.init()
        state = shared.ring.start()
        both(shared.ring, state)
        out[cuda.threadIdx.x] = state.stage

    sites = kernel.with_bounded_waits().sites
    assert [site.call for site in sites][-1] == "ring.wait(state)"
    assert sites[-1].line == line_of(take.py_func, "ring.wait(state)")
    assert kernel.with_bounded_waits().compile().cubin != kernel.compile().cubin
