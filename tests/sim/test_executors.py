"""Schedules in the workers of an executor: what comes of them is what comes of running them here."""

import multiprocessing
import pickle
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.engines import faults
from numba_deform.engines.cpu.schedules import executors, subtrees
from numba_deform.engines.cpu.schedules.simulate import Report


class Fresh:
    """An executor of one process that knows nothing of this one; counts what it is sent."""

    def __init__(self):
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.sent = []

    def submit(self, function, *args):
        self.sent.append(args[1])
        return self.pool.submit(function, *args)


class Here:
    """An executor that runs what it is given at once, out of the same bytes."""

    def __init__(self):
        self.results = []

    def submit(self, function, *args):
        future = Future()
        self.results.append(function(*pickle.loads(pickle.dumps(args))))
        future.set_result(self.results[-1])
        return future


@pytest.fixture(scope="module")
def fresh():
    executor = Fresh()
    yield executor
    executor.pool.shutdown()


def sums(data, out, seen):
    """Adds up what the threads have, in the order in which they come."""
    i = cuda.threadIdx.x
    seen[i] = cuda.atomic.add(out, 0, data[i])


def late_writer(data, out, seen):
    """A race in those orders only in which thread 33 comes before thread 0."""
    i = cuda.threadIdx.x
    if i == 33 and cuda.atomic.add(out, 0, 1) == 0:
        seen[0] = 1
    if i == 0 and cuda.atomic.add(out, 0, 1) == 1:
        seen[0] = 2


def overlapping(even, all_of_them):
    """One thread of each warp writes to one number, by two arrays."""
    if cuda.threadIdx.x == 0:
        even[1] = 1
    if cuda.threadIdx.x == 32:
        all_of_them[2] = 1


def made():
    return np.arange(64, dtype=np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)


def same(a, b):
    names = ("blocks", "threads", "switches", "copies", "cycles", "shared_bytes", "schedules")
    assert [getattr(a, name) for name in names] == [getattr(b, name) for name in names]


def test_a_process_that_knows_nothing(fresh):
    here, there = made(), made()
    alone = nd.simulate(sums, 1, 64, here, schedules=9)
    same(alone, nd.simulate(sums, 1, 64, there, schedules=9, executor=fresh))
    assert [number for piece in fresh.sent for number in piece] == list(range(8))  # the last is run here
    assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("pipeline", [copy, column_sums], ids=["copy", "column_sums"])
def test_a_launch_with_tensor_maps(fresh, pipeline):
    same(nd.simulate(pipeline(), schedules=3, landing="random"),
         nd.simulate(pipeline(), schedules=3, landing="random", executor=fresh))  # fmt: skip


def test_nothing_is_run_again_without_need():
    executor = Here()
    nd.simulate(copy(), schedules=4, executor=executor)
    assert [type(totals) for piece in executor.results for totals in piece] == [Report] * 3


def test_the_first_fault_in_order():
    met = []
    for executor in (None, Here()):
        with pytest.raises(faults.DataRace) as caught:
            nd.simulate(late_writer, 1, 64, made(), schedules=40, executor=executor)
        met.append((caught.value.seed, str(caught.value)))
    assert met[0] == met[1] and met[0][0] > 0


def test_arrays_that_overlap_do_so_there():
    numbers = np.zeros(8, np.int32)
    executor = Here()
    with pytest.raises(faults.DataRace):
        nd.simulate(overlapping, 1, 64, (numbers[::2], numbers[::-1][::-1]), schedules=2, executor=executor)
    assert executor.results == [[None]]


@pytest.mark.parametrize("array", [
    np.arange(24, dtype=np.int16).reshape(4, 6)[::-1, 1::2], np.arange(6.0).reshape(2, 3).T,
    np.zeros((3, 0), "f4"), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.frombuffer(b"12345678", np.int32),
    np.zeros(2, [("a", "i1"), ("b", "f8")]),
], ids=str)  # fmt: skip
def test_an_array_arrives_as_it_is(array):
    (again,) = executors.pickle.loads(executors.dumped((array,)))
    assert np.array_equal(again, array) and (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.strides == array.strides and again.flags.writeable == array.flags.writeable
    assert (executors.start_of(again) - executors.start_of(array)) % executors.ALIGNED == 0


def test_the_slots_of_maps_have_the_new_addresses():
    """As a kernel that copies a map and changes it there reads them."""
    maps = nd.TensorMapArray([nd.TensorMap.of(np.zeros((32, 32), np.float32), (32, 8))])
    (again,) = executors.pickle.loads(executors.dumped((maps,)))
    assert again[0].address == executors.start_of(again[0].array) != maps[0].address
    assert np.array_equal(again.host, nd.TensorMapArray(again.maps).host) and again.address % 128 == 0


def test_an_executor_that_fails():
    class Broken(Here):
        def submit(self, function, *args):
            future = super().submit(int)
            future._exception = ModuleNotFoundError("No module named 'numba_deform'")
            return future

    with pytest.raises(ModuleNotFoundError, match="numba_deform"):
        nd.simulate(sums, 1, 64, made(), schedules=3, executor=Broken())


BYTES = bytearray(256)


@pytest.mark.parametrize("args, options, words", [
    ((made()[0], np.frombuffer(BYTES, np.int32, 8), np.frombuffer(BYTES, np.int32, 8, 16)), {}, "views of one"),
    (made(), {"executor": 4}, "executor=4 must be a concurrent.futures.Executor"),
])  # fmt: skip
def test_what_cannot_be_sent(args, options, words):
    with pytest.raises(ValueError, match=words):
        nd.simulate(sums, 1, 64, args, schedules=3, **{"executor": Here(), **options})


def test_a_map_of_a_bare_address():
    maps = nd.TensorMapArray([nd.TensorMap(1 << 20, "float32", (32, 32), (128,), (32, 1))])
    with pytest.raises(ValueError, match="has an address of this process: map an array"):
        executors.dumped((maps,))


# --- every order --------------------------------------------------------------------------------------
def taking_turns(out, seen):
    """Three warps count, and note what they saw: six orders, and as many results."""
    if cuda.threadIdx.x % 32 == 0:
        warp = cuda.threadIdx.x // 32
        for k in range(2):
            seen[2 * warp + k] = cuda.atomic.add(out, 0, 1)


def two_maxima(out, seen):
    """Blocks after each other; in each a warp looks for what the other has left."""
    if cuda.threadIdx.x % 32 == 0:
        place = 2 * cuda.blockIdx.x + cuda.threadIdx.x // 32
        cuda.atomic.max(out, cuda.blockIdx.x, place)
        seen[place] = cuda.atomic.max(out, 1 - cuda.blockIdx.x, 0)


def in_one_order(out, seen):
    """A race if warp 2 comes first, and warp 0 last."""
    if cuda.threadIdx.x % 32 == 0:
        came = cuda.atomic.add(out, 0, 1)
        if cuda.threadIdx.x == 64 and came == 0 or cuda.threadIdx.x == 0 and came == 2:
            seen[0] = came


def counters():
    return np.zeros(2, np.int32), np.zeros(8, np.int32)


def explored(kernel, executor, grid=1, block=96, **options):
    """What was tried, without its time, or the fault and its schedule."""
    arguments = () if callable(getattr(kernel, "prepare", None)) else (grid, block, counters())
    try:
        found = nd.explore(kernel, *arguments, executor=executor, **options)
    except faults.SimFault as fault:
        return str(fault), fault.seed
    found.seconds = 0
    return found


@pytest.mark.parametrize("piece", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 64))])
@pytest.mark.parametrize("kernel, options", [
    (taking_turns, {"limit": 1}), (taking_turns, {"limit": 17}), (in_one_order, {}),
    (two_maxima, {"grid": 2, "block": 64}), (two_maxima, {"grid": 2, "block": 64, "limit": 3}),
    *(pytest.param(taking_turns, {"limit": n}, marks=pytest.mark.full) for n in (2, 89, 90, 10_000)),
    *(pytest.param(copy(steps=2), {"limit": n}, marks=pytest.mark.full) for n in (4, 1000)),
])  # fmt: skip
def test_the_same_orders(monkeypatch, kernel, options, piece):
    monkeypatch.setattr(subtrees, "PIECE", piece)
    assert explored(kernel, Here(), **options) == explored(kernel, None, **options)


def test_orders_in_a_process_that_knows_nothing(fresh):
    found = explored(taking_turns, fresh, block=64)
    assert found == explored(taking_turns, None, block=64) and found.results == 6 and found.complete
    assert explored(in_one_order, fresh) == explored(in_one_order, None)


@pytest.mark.full
def test_dask():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client, client.get_executor() as executor:
            same(nd.simulate(copy(), schedules=200), nd.simulate(copy(), schedules=200, executor=executor))
            with pytest.raises(faults.DataRace) as caught:
                nd.simulate(late_writer, 1, 64, made(), schedules=40, executor=executor)
            orders = explored(taking_turns, executor)
    assert orders == explored(taking_turns, None) and orders.results == 90
    with pytest.raises(faults.DataRace) as again:
        nd.simulate(late_writer, 1, 64, made(), schedules=40)
    assert caught.value.seed == again.value.seed
