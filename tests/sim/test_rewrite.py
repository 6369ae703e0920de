"""Forms of a kernel made from its source: loops written out, marks put in. Bounded waits: test_guarded.py."""

import importlib
import inspect
import linecache

import numpy as np
import pytest
from helpers import nans, run
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import kernel, static_range, u64
from numba_deform.compiler.rewrite import rewritten
from numba_deform.device.marks import ACQUIRE, CAPACITY, COMMIT, COMPUTE, ISSUE, RELEASE, WAIT
from numba_deform.device.memory import shared_address
from numba_deform.device.pipeline import (
    PipelineState,
    Ring,
    acquire,
    commit,
    first_state,
    init_barriers,
    release,
    wait,
)

VALUES = (3, 1, 4)


def names_of(function):
    return {*function.__code__.co_names, *function.__code__.co_varnames, *function.__code__.co_freevars}


def test_loops_are_written_out():
    count = 2

    def sums(out):
        for i in static_range(count):
            for j in static_range(i, len(VALUES)):
                out[4 * i + j] = VALUES[j] + 10 * i

    form, sites = rewritten(sums)
    assert "static_range" not in names_of(form) and not {"i", "j"} & names_of(form) and sites == ()
    for function in (form, sums):
        out = np.zeros(8, np.float32)
        function(out)
        assert out.tolist() == [3, 1, 4, 0, 0, 11, 14, 0]


def test_loops_of_device_functions_are_written_out():
    @cuda.jit(device=True)
    def total(x):
        for i in static_range(3):
            x = x + VALUES[i]
        return x

    @kernel(threads=32)
    def add(out: u64):
        total(int32(cuda.threadIdx.x))

    form, _ = rewritten(add.py_func)
    inner = inspect.getclosurevars(form).nonlocals["total"].py_func
    assert "static_range" not in names_of(inner) and inner(0) == 8
    assert inner.__code__.co_filename == __file__
    assert b"ELF" in add.compile().cubin[:4]  # Numba itself knows no static_range


def test_lines_stay_where_they_are():
    def faulty(out):
        for i in static_range(2):
            out[i] = 1
        out[5] = 1  # past its end

    _, first = inspect.getsourcelines(faulty)
    with pytest.raises(IndexError) as error:
        rewritten(faulty)[0](np.zeros(2))
    assert error.traceback[-1].lineno + 1 == first + 3


def refused(function, words):
    with pytest.raises(ValueError, match=words) as error:
        rewritten(function)
    _, first = inspect.getsourcelines(function)
    assert f"{__file__}:{first + 1}" in str(error.value)


def test_bounds_have_to_be_known():
    def by_argument(n):
        for _ in static_range(n):
            pass

    refused(by_argument, r"static_range\(n\) at .* known before compiling")

    def by_value(n):
        for _ in static_range(1.5):
            pass

    refused(by_value, "known before compiling")


def test_what_cannot_be_written_out_is_refused():
    def leaves(out):
        for i in static_range(3):
            if out[i]:
                break

    def goes_on(out):
        for i in static_range(3):
            if out[i]:
                continue

    def assigns(out):
        for i in static_range(3):
            i = i + 1

    def has_else(out):
        for i in static_range(3):
            out[i] = 0
        else:
            out[0] = 1

    for function in (leaves, goes_on):
        refused(function, "no break, no continue")
    refused(assigns, "i, of the static_range at .*, is assigned")
    refused(has_else, "no else")


def test_source_that_has_changed_is_refused(tmp_path, monkeypatch):
    """A file that was edited after its import: other lines stand where the function's were."""
    path = tmp_path / "edited.py"
    path.write_text(f"from {static_range.__module__} import static_range\n\n"
                    "def fill(out):\n    for i in static_range(2):\n        out[i] = i\n")  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    fill = importlib.import_module("edited").fill
    out = np.zeros(2)
    rewritten(fill)[0](out)
    assert out.tolist() == [0, 1]
    rewritten.cache_clear()
    path.write_text(path.read_text().replace("out[i] = i", "out[i] = i + 7"))
    linecache.clearcache()
    with pytest.raises(ValueError, match="source of fill in .*edited.py has changed"):
        rewritten(fill)


# --- marks ----------------------------------------------------------------------------------------
@cuda.jit(device=True, forceinline=True)
def issue(ring, state, tile, number):
    commit(ring, state, 0)
    return number


@cuda.jit(device=True, forceinline=True)
def take(ring, state, tile):
    """A device function in which steps are taken gets the thread's marks."""
    wait(ring, state)
    number = tile[0]
    release(ring, state)
    return number


@kernel(threads=64)
def two_roles(out: u64):
    bars, tile = cuda.shared.array(2, uint64), cuda.shared.array(1, float32)
    ring = Ring(shared_address(bars), uint32(shared_address(bars) + uint32(8)))
    if cuda.threadIdx.x == 0:
        init_barriers(ring.full, 1, 1)
        init_barriers(ring.empty, 1, 32)
    cuda.syncthreads()
    state = first_state()
    for n in range(2):
        if cuda.threadIdx.x == 0:
            acquire(ring, state)
            tile[0] = n
            n = issue(ring, state, tile, n)
        elif cuda.threadIdx.x >= 32:
            take(ring, state, tile)
        state = PipelineState(state.stage, state.barrier, int32(state.parity ^ 1))


@kernel(threads=(16, 8))
def in_two_dimensions(out: u64):
    """So many warps take a step as the block's number says."""
    ring = Ring(uint32(0), shared_address(cuda.shared.array(1, uint64)))
    state = first_state()
    if cuda.threadIdx.x + cuda.threadIdx.y == 0:
        init_barriers(ring.empty, 1, 1)
    cuda.syncthreads()
    if cuda.threadIdx.y < 2 * (cuda.blockIdx.x + 2 * cuda.blockIdx.y):
        acquire(ring, state)


def test_marks_stand_around_the_steps():
    """Acquiring ends in the mark of issuing, and so issuing is marked once."""
    marks = np.zeros((2, CAPACITY, 4), np.uint32)
    traced = two_roles.with_marks()
    assert traced.parameters == ("out", "trace_buffer", "trace_block")
    assert len(traced.signature.args) == 3 and two_roles.parameters == ("out",)
    run(traced, nans(1), marks, 0, block=64)
    producer, consumer = (m[m[:, 3] == 1] for m in marks)
    assert (producer[:, 2] & 0xFF).tolist() == [ACQUIRE, ISSUE, COMMIT] * 2
    assert (consumer[:, 2] & 0xFF).tolist() == [WAIT, COMPUTE, RELEASE] * 2
    assert (producer[:, 2] >> 16).tolist() == (consumer[:, 2] >> 16).tolist() == [0, 0, 0, 1, 1, 1]
    assert (np.diff(producer[:, 0].astype(np.int64)) >= 0).all()


def test_other_blocks_write_no_marks():
    marks = np.zeros((2, CAPACITY, 4), np.uint32)
    run(two_roles.with_marks(), nans(1), marks, 1, block=64)
    assert not marks.any()


def test_marks_are_of_one_block_in_any_dimensions():
    """Only the block asked for writes marks, and each of its warps in a place of its own."""
    traced, marks = in_two_dimensions.with_marks(), np.zeros((4, CAPACITY, 4), np.uint32)
    for block, warps in enumerate([0, 1, 2, 3, 4, 4]):
        marks[:] = 0
        run(traced, nans(1), marks, block, grid=(2, 3), block=(16, 8))
        assert (marks[:, :, 3] == 1).any(1).tolist() == [True] * warps + [False] * (4 - warps)


def test_marks_leave_nothing_in_the_plain_form():
    plain, traced = two_roles.compile().ptx, two_roles.with_marks().compile().ptx
    assert "%clock64" in traced and "%clock64" not in plain


@pytest.mark.full
def test_marks_and_bounded_waits_go_together():
    form, sites = rewritten(two_roles.py_func, guarded=True, traced=True)
    assert list(inspect.signature(form).parameters) == ["out", "trace_buffer", "trace_block"]
    assert {site.call for site in sites} == {
        "acquire(ring, state)", "wait(ring, state)", "cuda.syncthreads()"
    }  # fmt: skip
    assert two_roles.with_marks().with_bounded_waits().compile().ptx
