"""Schedules in processes of their own: what comes of them is what comes of running them in turn."""

import multiprocessing
import threading
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from numba import cuda

from numba_deform.engines import faults
from numba_deform.engines.cpu import simulate
from numba_deform.engines.cpu.frontends.ptx.kernels import from_ptx
from numba_deform.engines.cpu.schedules import processes


def sums(data, out, seen):
    """Adds up what the threads have, in the order in which they come."""
    i = cuda.threadIdx.x
    before = cuda.atomic.add(out, 0, data[i])
    cuda.atomic.exch(seen, i, before)


SUMS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry sums(.param .u64 data, .param .u64 out, .param .u64 seen) {
    .reg .b32 %r<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [data];
    ld.param.u64 %rd2, [out];
    ld.param.u64 %rd3, [seen];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd1, %rd1, %rd4;
    add.s64 %rd3, %rd3, %rd4;
    ld.global.u32 %r2, [%rd1];
    atom.global.add.u32 %r3, [%rd2], %r2;
    atom.global.exch.b32 %r3, [%rd3], %r3;
    ret;
}
"""


def late_writer(data, out, seen):
    """A race in those orders only in which thread 33 comes before thread 0."""
    i = cuda.threadIdx.x
    if i == 33 and cuda.atomic.add(out, 0, 1) == 0:
        seen[0] = 1
    if i == 0 and cuda.atomic.add(out, 0, 1) == 1:
        seen[0] = 2


def talker(data, out, seen):
    if cuda.threadIdx.x == 7:
        print("seven", cuda.atomic.add(out, 0, data[1]))


def made():
    return np.arange(64, dtype=np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)


@pytest.fixture
def others(monkeypatch):
    """How many schedules have ended in other processes."""
    taken = []
    monkeypatch.setattr(processes, "_idle_cores", lambda: 2)
    monkeypatch.setattr(processes, "PAYS", 0)
    plain = processes.ProcessPoolExecutor.submit

    def submit(pool, run, number):
        taken.append(number)
        return plain(pool, run, number)

    monkeypatch.setattr(processes.ProcessPoolExecutor, "submit", submit)
    return taken


def in_turn(kernel, **options):
    """(arguments, report or fault) of the same schedules one by one."""
    args = made()
    try:
        return args, simulate(kernel, 1, 64, args, **options)
    except faults.SimFault as fault:
        return args, fault


def same(a, b):
    assert all(np.array_equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    fields = ("switches", "copies", "cycles", "shared_bytes", "schedules", "events")
    assert all(getattr(a[1], name) == getattr(b[1], name) for name in fields)


@pytest.mark.parametrize("kernel", (sums, from_ptx(SUMS)["sums"]), ids=("Numba", "PTX"))
def test_arrays_and_totals(others, monkeypatch, kernel):
    apart = in_turn(kernel, schedules=6, seed=3, trace=True)
    assert others == [4, 5, 6, 7]  # the first and the last one are run here
    assert apart[0][1] == apart[0][0].sum() and np.unique(apart[0][2]).size > 32
    monkeypatch.setattr(processes, "PAYS", float("inf"))
    same(apart, in_turn(kernel, schedules=6, seed=3, trace=True))
    assert len(others) == 4


def test_the_first_fault_in_order(others, monkeypatch):
    apart, fault = in_turn(late_writer, schedules=40)
    assert type(fault) is faults.DataRace and fault.seed > 0
    monkeypatch.setattr(processes, "PAYS", float("inf"))
    alone, again = in_turn(late_writer, schedules=40)
    assert (fault.seed, str(fault)) == (again.seed, str(again)) and others
    assert all(np.array_equal(x, y) for x, y in zip(apart, alone, strict=True))


def test_what_a_kernel_prints_comes_in_order(others, capfd):
    in_turn(talker, schedules=5)
    assert capfd.readouterr().out == "seven 0\n" * 5 and others == [1, 2, 3]


def test_a_process_that_dies(others, monkeypatch):
    """The first one, before there are others, which then cannot start."""
    monkeypatch.setattr(processes, "_one", dies)
    submit = processes.ProcessPoolExecutor.submit

    def submit_and_wait(*args):
        future = submit(*args)
        assert isinstance(future.exception(), BrokenProcessPool)
        return future

    monkeypatch.setattr(processes.ProcessPoolExecutor, "submit", submit_and_wait)
    apart = in_turn(sums, schedules=5)
    monkeypatch.setattr(processes, "PAYS", float("inf"))
    same(apart, in_turn(sums, schedules=5))
    assert others == [1, 2]


def dies(number):
    multiprocessing.process.os._exit(3)


def test_where_no_process_may_start(others, tmp_path):
    """Another thread could hold a lock for ever in a copy; memory of a file would be written by several."""
    shared = np.memmap(tmp_path / "out", np.int32, "w+", shape=1)
    data, _, seen = made()
    simulate(sums, 1, 64, (data, shared, seen), schedules=4)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    in_turn(sums, schedules=4)
    stop.set()
    thread.join()
    assert others == []
