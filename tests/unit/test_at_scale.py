"""bench/at_scale.py without a GPU: sizes, programs side by side, and what counts their wrong elements.

The CPU engine stands in for the GPU: it runs the same kernels on the same arguments, in fewer copies."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines.gpu.in_place import bytes_of, owner_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import at_scale  # noqa: E402
import scaled  # noqa: E402
from grown import WAVES, NotGrown, Output, Work, grown  # noqa: E402

NOTHING = {"wrong_launches": 0, "changed_launches": 0, "inputs_written": 0}
PIPELINES = {"copy": scaled.copy, "two_producers": scaled.two_producers, "reduction": scaled.column_sums,
             "cluster blocks=2": scaled.multicast}  # fmt: skip
GROWN = tuple(PIPELINES)


def has_size(work):
    """Whether it fills all SMs and every stage as often as it has to."""
    return work.waves >= 0.9 * WAVES and (work.laps is None or work.laps >= scaled.LAPS)


@pytest.mark.parametrize("name", GROWN)
def test_a_grown_program_has_its_size(name):
    (program,) = scaled.table()[name]()
    work = program.make(scaled.most_resident)
    assert has_size(work) and work.copies > 1


@pytest.mark.full
@pytest.mark.parametrize("chunk", [name for name in scaled.table() if not name.startswith("lessons")][::3])
def test_every_program_has_its_size_or_compiles(monkeypatch, chunk):
    """What is grown has its size by how many copies there are; two of them say whether it compiles. What is not
    is compiled by other tests. Every third: all of them run where there is a GPU (``bench/at_scale.py``)."""
    are_grown = "/" in chunk or chunk == "bugs"
    if are_grown:
        monkeypatch.setattr(scaled, "grown", lambda work, copies=None: grown(work, 2))
    for program in scaled.table()[chunk]():
        try:
            work = program.make(scaled.most_resident)
        except NotGrown:
            continue
        if are_grown:
            assert work.kernel.compile().cubin
        else:
            assert has_size(work), (program.name, work.waves, work.laps)


# --- the loop -------------------------------------------------------------------------------------
class Array(at_scale.DeviceArray):
    """Memory of this machine in place of a GPU's."""

    def __init__(self, gpu, shape, dtype):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.content = np.empty(self.shape, self.dtype)
        self.nbytes, self.address = self.content.nbytes, self.content.__array_interface__["data"][0]

    @classmethod
    def of(cls, gpu, array):
        copy = cls(gpu, array.shape, array.dtype)
        copy.content[...] = array
        return copy

    def to_numpy(self):
        return self.content.copy()

    def fill(self, byte):
        self.content.view(np.uint8)[...] = byte


class InPlace:
    """The arguments as they are, and a copy of all memory behind them, as OnGpu's."""

    def __init__(self, gpu, kernel, args):
        self.args, self.memory, copies = args, self, {}
        for arg in args:
            for array in [m.array for m in arg] if isinstance(arg, nd.TensorMapArray) else [arg]:
                if isinstance(array, np.ndarray):
                    start, content = bytes_of(owner_of(array))
                    copies.setdefault(start, (content.copy(), SimpleNamespace(
                        address=start, nbytes=content.size, to_numpy=content.copy)))  # fmt: skip
        self.copies = copies

    def address_of(self, array):
        return array.__array_interface__["data"][0]


def launched(gpu, kernel, grid, args, shared_bytes=0, cluster=None):
    args = [as_array(*pair) for pair in zip(kernel.signature.args, args, strict=True)]
    nd.simulate(kernel, grid, args=args, shared_bytes=shared_bytes, cluster=cluster)


def as_array(kind, arg):
    if not isinstance(arg, at_scale.ArrayArgument):
        return arg
    dtype = np.dtype(str(kind.dtype))
    last = sum((n - 1) * s for n, s in zip(arg.shape, arg.strides, strict=True)) + arg.itemsize
    memory = np.frombuffer((ctypes.c_uint8 * last).from_address(arg.address), np.uint8)
    return np.ndarray(arg.shape, dtype, memory, 0, arg.strides)


def copied(name, target, source, size, stream=None):
    ctypes.memmove(target, source, size)


@pytest.fixture
def engine(monkeypatch):
    """The CPU engine in place of a GPU."""
    for name, other in dict(DeviceArray=Array, OnGpu=InPlace, launch=launched, driver_call=copied).items():
        monkeypatch.setattr(at_scale, name, other)
    monkeypatch.setattr(at_scale, "ACROSS", 2)
    stream = SimpleNamespace(handle=0)
    return SimpleNamespace(device=SimpleNamespace(sync=lambda: None, default_stream=stream))


@pytest.mark.full
@pytest.mark.parametrize("name", GROWN)
def test_side_by_side(engine, name):
    """Each copy of a program does what the program does alone, in every launch."""
    work = grown(scaled.work_of(PIPELINES[name](steps=5)), copies=3)
    assert all(output.array.shape[0] == 3 for output in work.outputs)
    row = at_scale.Repeated(engine, work).row(3, 60)
    assert row == row | {"launches": 3, **NOTHING}


@nd.kernel(threads=32)
def double(data: nd.float32[:], out: nd.float32[:], times: nd.uint32[:]):
    out[nd.lane()] = nd.float32(2) * data[nd.lane()]
    if nd.lane() == 0:
        times[0] += nd.uint32(1)


def doubled(allowed=0.0, dtype=np.float32):
    """A Work that also counts its launches, which is put back before each."""
    data, times = np.arange(32, dtype=np.float32), np.zeros(1, np.uint32)
    out = np.full(32, np.nan, np.float32)
    outputs = [Output(out, 2 * data, allowed), Output(times, np.ones_like(times))]
    return Work(double, 1, [data, out, times], outputs)


def test_what_a_launch_writes_is_put_back(engine):
    row = at_scale.Repeated(engine, doubled()).row(30, 60)
    assert row == row | {"launches": 30, **NOTHING}


@pytest.mark.parametrize("copies", [1, 4])
def test_wrong_elements_are_counted(engine, copies):
    work = doubled()
    work.outputs[0].expected[[3, 5, 31]] += 1
    work = grown(work, copies)
    row = at_scale.Repeated(engine, work).row(4, 60)
    assert (row["launches"], row["wrong_launches"], row["wrong_worst"]) == (4, 4, 3 * copies)


def test_bits_that_change_are_counted(engine, monkeypatch):
    """Within what is allowed, but not what the launch before has left."""
    work, launches = doubled(allowed=0.5), []

    def unsteady(gpu, kernel, *rest, **more):
        launched(gpu, kernel, *rest, **more)
        if kernel is double:
            launches.append(kernel)
            work.args[1][7] += 0.25 * (len(launches) == 3)

    monkeypatch.setattr(at_scale, "launch", unsteady)
    row = at_scale.Repeated(engine, work).row(4, 60)
    assert (row["wrong_launches"], row["changed_launches"], row["changed_worst"]) == (0, 1, 1)


def test_what_is_wrong():
    """A row is wrong if a GPU or the engine says so, and if nobody could say."""
    right = {"engine": "silent", **NOTHING}
    assert not at_scale.is_wrong(right)
    for more in ({"engine": "DataRace"}, {"wrong_launches": 2}, {"changed_launches": 1}, {"error": "died"}):
        assert at_scale.is_wrong(right | more)


# --- child processes ------------------------------------------------------------------------------
class Scripted:
    """A child that says what is written in ``scripts``, the next one for each; then it has ended."""

    scripts, skipped, status = [], [], 0

    def __init__(self, chunk, only, skip, launches):
        self.skipped.append(skip)
        self.words, self.process = list(self.scripts.pop(0)), SimpleNamespace(poll=lambda: self.status)

    def next(self, limit):
        return self.words.pop(0) if self.words else ("lost", {"error": "died"})

    def go(self, seconds):
        assert seconds == 7

    def stop(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    """A function that has children say this."""

    def say(*scripts, status=0):
        child = type("Child", (Scripted,), {"scripts": list(scripts), "skipped": [], "status": status})
        monkeypatch.setattr(at_scale, "Child", child)
        return child

    return say


def said(name, *words):
    """A program's words, each but "lost" with its row."""
    return [(word, {"error": "no end"} if word == "lost" else {"name": name, "last": word}) for word in words]


def test_a_lost_process_is_replaced(scripted):
    """It goes on with the program after the one that hung; one that fails before it is ready is a row, too."""
    first = said("a", "begin", "ready", "end") + said("b", "begin", "ready", "lost")
    child = scripted(first, said("c", "begin", "end") + said("d", "begin", "ready", "end"))
    rows = list(at_scale.ask("chunk", 10, lambda: 7))
    assert child.skipped == [0, 2]
    assert [(row["name"], row["last"], row.get("error")) for row in rows] == [
        ("a", "end", None), ("b", "ready", "no end"), ("c", "end", None), ("d", "end", None)]  # fmt: skip


def test_a_process_that_cannot_begin_is_told_once(scripted):
    scripted(said("chunk", "lost"), status=1)
    assert list(at_scale.ask("chunk", 10, lambda: 7)) == [{"name": "chunk", "error": "no end"}]


@pytest.mark.full
@pytest.mark.parametrize("chunk", ["bugs", "whole/look_back", "instructions/clusters", "lessons/01_boxes"])
def test_others_side_by_side(engine, monkeypatch, chunk):
    """What is grown of them leaves in each copy what it should."""
    monkeypatch.setattr(scaled, "grown", lambda work, copies=None: grown(work, 2))
    monkeypatch.setenv("NUMBA_DEFORM_ENGINE", "cpu")  # as a lesson sets it
    for program in scaled.table()[chunk]()[::4]:
        row = at_scale.Repeated(engine, program.make(None)).row(1, 60)
        assert row == row | {"launches": 1, **NOTHING}, program.name
