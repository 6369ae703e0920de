"""What orders the streams of a program under ``check``: right ones are silent; the race of a wrong one is named
at its second line, and what the report names mends it."""

import ctypes
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.engines.faults import HostRace, StreamRace
from numba_deform.programs.pinned import LIBC, Action

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages are closed on Linux alone")
N, GRID = 2048, 16  # of 8 bytes: arrays without records, unless they are asked for


@cuda.jit
def add_one(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + 1


@cuda.jit
def add_one_from(first, a, out):
    i = first + cuda.grid(1)
    out[i] = a[i] + 1


class Things:
    """Two streams, an event, memory of the device, and pinned memory. ``cured``: whether the mend is there."""

    def __init__(self, cured):
        self.a, self.b, self.event, self.cured = cuda.stream(), cuda.stream(), cuda.event(), cured
        self.host, self.pinned = np.arange(float(N)), cuda.pinned_array(N)
        self.pinned[:] = self.host
        self.large = np.zeros(1 << 18)
        self.x, self.y, self.z = (cuda.to_device(np.zeros(N)) for _ in range(3))

    def order(self):
        """What is told to b from here on comes after what a was told."""
        if self.cured:
            self.event.record(self.a)
            self.event.wait(self.b)

    def synchronise(self):
        if self.cured:
            self.a.synchronize()


# --- wrong, unless cured: the last line of each is the second of the two -------------------------------
def copy_in_then_launch(t):
    t.x.copy_to_device(t.pinned, stream=t.a)
    t.order()
    add_one[GRID, 128, t.b](t.x, t.y)


def pageable_copy_in_then_launch(t):
    t.x.copy_to_device(t.host, stream=t.a)
    t.synchronise()
    add_one[GRID, 128, t.b](t.x, t.y)


def launch_then_copy_out(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.order()
    t.y.copy_to_host(t.pinned, stream=t.b)


def launch_then_copy_to_pageable(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.synchronise()
    t.y.copy_to_host(stream=t.b)


def launch_then_launch(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.order()
    add_one[GRID, 128, t.b](t.y, t.z)


def refill_of_what_is_read(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.order()
    t.x.copy_to_device(t.pinned, stream=t.b)


def copies_to_one_place(t):
    t.x.copy_to_device(t.pinned, stream=t.a)
    t.order()
    t.x.copy_to_device(t.y, stream=t.b)


def copied_out_and_in_without_a_sync(t):
    t.x.copy_to_host(t.pinned, stream=t.a)
    t.synchronise()
    t.y.copy_to_device(t.pinned, stream=t.b)


def event_before_the_copy(t):
    if not t.cured:
        t.event.record(t.a)
    t.x.copy_to_device(t.pinned, stream=t.a)
    if t.cured:
        t.event.record(t.a)
    t.event.wait(t.b)
    add_one[GRID, 128, t.b](t.x, t.y)


def wrong_stream_synchronised(t):
    t.x.copy_to_device(t.pinned, stream=t.a)
    (t.a if t.cured else t.b).synchronize()
    add_one[GRID, 128, t.b](t.x, t.y)


def halves_that_overlap(t):
    half = N // 2
    add_one[GRID, 128, t.a](t.x, t.y[:half])
    first = half if t.cured else half - 1
    add_one[GRID, 128, t.b](t.x, t.y[first:])


def offsets_that_overlap(t):
    add_one_from[1, 128, t.a](0, t.x, t.y)
    add_one_from[1, 128, t.b](128 if t.cured else 127, t.x, t.y)


def per_thread_default_stream(t):
    t.x.copy_to_device(t.pinned, stream=t.a)
    t.synchronise()
    add_one[GRID, 128, cuda.per_thread_default_stream()](t.x, t.y)


WRONG = (
    copy_in_then_launch, pageable_copy_in_then_launch, launch_then_copy_out, launch_then_copy_to_pageable,
    launch_then_launch, refill_of_what_is_read, copies_to_one_place, copied_out_and_in_without_a_sync,
    event_before_the_copy, wrong_stream_synchronised, halves_that_overlap, offsets_that_overlap,
    per_thread_default_stream,
)  # fmt: skip


# --- the host touches, unless cured, what a copy still uses ---------------------------------------------
def read_before_the_copy_is_over(t):
    t.x.copy_to_host(t.pinned, stream=t.a)
    t.synchronise()
    assert t.pinned[7] == 0


def refilled_while_it_is_copied(t):
    t.x.copy_to_device(t.pinned, stream=t.a)
    t.synchronise()
    t.pinned[7] = 5


def another_stream_was_waited_for(t):
    t.x.copy_to_host(t.pinned, stream=t.a)
    (t.a if t.cured else t.b).synchronize()
    assert t.pinned.sum() == 0


def event_from_before_the_copy(t):
    if not t.cured:
        t.event.record(t.a)
    t.x.copy_to_host(t.pinned, stream=t.a)
    if t.cured:
        t.event.record(t.a)
    t.event.synchronize()
    assert t.pinned[-1] == 0


def registered_memory(t):
    with cuda.pinned(t.large):
        cuda.to_device(t.large, stream=t.a)
        t.synchronise()
        t.large[N:] = 1


def first_of_two_copies(t):
    """The host has waited for the one on b alone."""
    half = N // 2
    t.x[:half].copy_to_host(t.pinned[:half], stream=t.a)
    t.x[half:].copy_to_host(t.pinned[half:], stream=t.b)
    t.b.synchronize()
    assert t.pinned[half] == 0
    t.synchronise()
    assert t.pinned[half - 1] == 0


EARLY = (
    read_before_the_copy_is_over, refilled_while_it_is_copied, another_stream_was_waited_for,
    event_from_before_the_copy, registered_memory, first_of_two_copies,
)  # fmt: skip


# --- right -------------------------------------------------------------------------------------------------
def overlap_of_copies_and_launches(t):
    """As NVIDIA's guides have it: each half is copied in, computed and copied out on a stream of its own."""
    for first, stream in (0, t.a), (N // 2, t.b):
        part = slice(first, first + N // 2)
        t.x[part].copy_to_device(t.pinned[part], stream=stream)
        add_one_from[N // 256, 128, stream](first, t.x, t.y)
        t.y[part].copy_to_host(t.pinned[part], stream=stream)
    cuda.synchronize()
    assert list(t.pinned) == list(t.host + 1)


def both_read_it(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    add_one[GRID, 128, t.b](t.x, t.z)


def default_stream_between(t):
    t.x.copy_to_device(t.pinned, stream=t.a)
    add_one[GRID, 128, 0](t.x, t.y)
    add_one[GRID, 128, t.b](t.y, t.z)


def legacy_stream_between(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    add_one[GRID, 128, cuda.legacy_default_stream()](t.z, t.x)
    add_one[GRID, 128, t.b](t.y, t.z)


def device_synchronised(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    cuda.synchronize()
    add_one[GRID, 128, t.b](t.y, t.z)


def event_synchronised(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.event.record(t.a)
    t.event.synchronize()
    add_one[GRID, 128, t.b](t.y, t.z)


def event_asked(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.event.record(t.a)
    while not t.event.query():
        pass
    add_one[GRID, 128, t.b](t.y, t.z)


def events_there_and_back(t):
    for _ in range(3):
        t.x.copy_to_device(t.pinned, stream=t.a)
        t.event.record(t.a)
        t.event.wait(t.b)
        add_one[GRID, 128, t.b](t.x, t.y)
        t.event.record(t.b)
        t.event.wait(t.a)


def order_over_a_third_stream(t):
    c, event = cuda.stream(), cuda.event()
    add_one[GRID, 128, t.a](t.x, t.y)
    t.event.record(t.a)
    t.event.wait(c)
    event.record(c)
    event.wait(t.b)
    add_one[GRID, 128, t.b](t.y, t.z)


def copy_to_pageable_memory_waits(t):
    add_one[GRID, 128, t.a](t.x, t.y)
    t.y.copy_to_host(stream=t.a)
    add_one[GRID, 128, t.b](t.y, t.z)


def host_array_waits(t):
    add_one[GRID, 128, t.a](t.x, t.host)
    add_one[GRID, 128, t.b](t.z, t.x)


def memory_of_another(t):
    """What is freed and asked for again may have the same address."""
    for stream in (t.a, t.b) * 3:
        array = cuda.device_array(N, stream=stream)
        add_one[GRID, 128, stream](t.x, array)
        del array
        cuda.current_context().deallocations.clear()


def other_bytes_of_a_page(t):
    """A neighbour of what is copied, on a page with it; and what a copy reads may be read."""
    t.x[:8].copy_to_host(t.pinned[:8], stream=t.a)
    t.pinned[8:16] = t.pinned[16:24]
    t.a.synchronize()
    t.x.copy_to_device(t.pinned, stream=t.a)
    assert t.pinned[0] == 0 and t.pinned[17] == 17


def copies_that_wait(t):
    t.x.copy_to_host(t.pinned)
    assert t.pinned[7] == 0
    t.x.copy_to_device(t.pinned)
    t.pinned[7] = 5


def an_event_for_each_chunk(t):
    """As a pipeline does: a chunk is filled again when its copy is over, while the next one is in flight."""
    chunks, events = np.split(t.pinned, 4), [cuda.event() for _ in range(4)]
    for n in range(12):
        if n >= 4:
            events[n % 4].synchronize()
        chunks[n % 4][:] = n
        t.x[: N // 4].copy_to_device(chunks[n % 4], stream=t.a)
        events[n % 4].record(t.a)
    cuda.synchronize()
    assert t.x.copy_to_host()[0] == 11


def the_engine_reads_and_writes_it(t):
    """A kernel on pinned memory, in the stream's order."""
    t.x.copy_to_host(t.pinned, stream=t.a)
    add_one[GRID, 128, t.a](t.pinned, t.pinned)
    t.a.synchronize()
    assert list(t.pinned[:3]) == [1, 1, 1]


def freed_before_it_is_over(t):
    """Freeing waits."""
    array = cuda.pinned_array(N)
    t.x.copy_to_host(array, stream=t.a)
    del array
    cuda.current_context().deallocations.clear()


def auto_synchronised(t):
    with t.a.auto_synchronize():
        add_one[GRID, 128, t.a](t.x, t.y)
    add_one[GRID, 128, t.b](t.y, t.z)


RIGHT = (
    overlap_of_copies_and_launches, both_read_it, default_stream_between, legacy_stream_between,
    device_synchronised, event_synchronised, event_asked, events_there_and_back, order_over_a_third_stream,
    copy_to_pageable_memory_waits, host_array_waits, memory_of_another, auto_synchronised,
    other_bytes_of_a_page, copies_that_wait, an_event_for_each_chunk, the_engine_reads_and_writes_it,
    freed_before_it_is_over,
)  # fmt: skip


def judged(program, cured=True, **options):
    with nd.check(**options) as session:
        program(Things(cured))
    return session.faults


def last_line(program):
    code = program.__code__
    return f"{Path(__file__).name}:{max(line for *_, line in code.co_lines() if line)}"


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_wrong(program):
    (found,) = judged(program, cured=False)
    fault = found.fault
    assert type(fault) is StreamRace and fault.where.endswith(last_line(program))
    assert "nothing orders the two" in fault.what and "stream 1 (made at test_streams.py:" in fault.what
    assert judged(program) == []


@ON_LINUX
@pytest.mark.parametrize("program", EARLY, ids=lambda program: program.__name__)
def test_the_host_comes_too_early(program):
    (found,) = judged(program, cured=False)
    fault = found.fault
    assert type(fault) is HostRace and fault.where.endswith(last_line(program))
    line = r"test_streams.py:\d+"
    assert re.search(rf"stream 1 \(made at {line}\) (reads|writes), at {line}: nothing has waited", fault.what)
    assert judged(program) == []


@ON_LINUX
def test_stop_where_the_host_comes_too_early():
    """The program's next call of CUDA raises it, and the signal is as it was."""
    went_on = False

    def handler():
        now = Action()
        LIBC.sigaction(signal.SIGSEGV, None, ctypes.byref(now))  # what Python knows of it does not change
        return now.handler

    before = handler()
    with pytest.raises(HostRace, match="the host touches byte 56 of"), nd.check(stop=True):
        t = Things(False)
        read_before_the_copy_is_over(t)
        went_on = True
        t.a.synchronize()
        raise AssertionError
    assert went_on and handler() == before


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right(program):
    assert judged(program) == []
