"""`nd.pipeline` and `nd.Launch`: parameters, what a launch checks, and how the CPU engine runs one."""

import re

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.stencil import stencil
from numba_deform.engines import faults
from numba_deform.engines.launches import PATTERN
from numba_deform.kernels.pipelines import PIPELINES


@pytest.fixture(autouse=True)
def no_more_pipelines():
    before = dict(PIPELINES)
    yield
    PIPELINES.clear()
    PIPELINES.update(before)


@nd.kernel(threads=32)
def twice(data: nd.float32[:], out: nd.float32[:], count: nd.i32):
    i = cuda.threadIdx.x
    if i < count:
        out[i] = 2 * data[i]


def launch_of(count=32, **options):
    data, out = np.arange(32, dtype=np.float32), np.empty(32, np.float32)
    options = {"expected": {"out": 2 * data}, **options}
    return nd.Launch(twice, 1, {"count": count, "data": data, "out": out}, **options)


# --- a launch -------------------------------------------------------------------------------------
def test_a_right_one_is_right_again_and_again():
    launch = launch_of()
    for _ in range(2):
        assert nd.simulate(launch, schedules=2).schedules == 2
        assert launch.errors() == {"out": 0.0} and launch.wrong() == ""
    assert nd.explore(launch).complete


def test_what_is_not_written_shows():
    """Also where the last run had left the right numbers there."""
    out = launch_of()
    nd.simulate(out)
    few = nd.Launch(twice, 1, [*out.args[:2], 30], expected=out.expected)
    words = r"2 of 32 .* out\[30\]: nan instead of 60.0; 2 still hold"
    with pytest.raises(faults.WrongResult, match=words) as caught:
        nd.simulate(few, seed=3)
    assert (caught.value.seed, caught.value.landing) == (3, "late")
    with pytest.raises(faults.WrongResult):
        nd.explore(few)
    assert np.isnan(few.errors()["out"])


def test_other_arrays_are_put_back():
    @nd.kernel(threads=1)
    def count(out: nd.uint32[:], calls: nd.uint32[:]):
        calls[0] += nd.uint32(1)
        out[0] = calls[0]

    launch = nd.Launch(count, 1, [np.zeros(1, np.uint32), np.zeros(1, np.uint32)], {"out": [1]})
    for _ in range(3):
        nd.simulate(launch, schedules=2)


def test_an_output_that_is_added_to():
    @nd.kernel(threads=32)
    def add(out: nd.uint32[:]):
        cuda.atomic.add(out, 0, nd.uint32(1))

    out = np.zeros(1, np.uint32)
    nd.simulate(nd.Launch(add, 2, [out], {"out": [69]}, initial={"out": 5}))
    with pytest.raises(faults.WrongResult, match=re.escape(f"{PATTERN * 0x01010101 + 64}")):
        nd.simulate(nd.Launch(add, 2, [out], {"out": [64]}))


@pytest.mark.parametrize("dtype, off, right", [
    (np.float32, 1e-6, True), (np.float32, 2e-5, False), (np.float16, 1e-3, True), (np.float16, 5e-3, False),
    (np.float64, 1e-15, True), (np.float64, 1e-12, False), (np.int64, 1, False), (np.bool_, 1, False),
])  # fmt: skip
def test_the_tolerance_is_the_types(dtype, off, right):
    @nd.kernel(threads=1)
    def nothing(out: nd.u64):
        pass

    out, expected = np.zeros(4, dtype), np.ones(4, dtype)
    launch = nd.Launch(nothing, 1, [out], {"out": expected})
    out[:] = expected
    assert launch.wrong() == ""
    out[2] = 1 - off
    assert (launch.wrong() == "") == right
    assert (nd.Launch(nothing, 1, [out], {"out": expected}, tolerance=2).wrong()) == ""


def test_large_integers_are_told_apart():
    launch = nd.Launch(twice, 1, launch_of().args)
    launch.outputs, launch.expected = {"x": np.array([2**60 + 1])}, {"x": np.array([2**60])}
    assert "x[0]: 1152921504606846977 instead of 1152921504606846976" in launch.wrong()


def test_infinities_and_nan_may_be_expected():
    launch = launch_of()
    launch.outputs["out"][:] = launch.expected["out"][:] = [np.nan, np.inf, -np.inf, *range(29)]
    assert launch.wrong() == ""
    launch.outputs["out"][1] = -np.inf
    assert "out[1]: -inf instead of inf" in launch.wrong()


def test_the_array_behind_a_map_can_be_an_output():
    """The copy's map named as the output: that array is poisoned, and nobody writes it."""
    maps = copy(steps=2).args[0]
    launch = nd.Launch(twice, 1, launch_of().args)
    args = [maps, *copy(steps=2).args[1:]]
    kernel = copy(steps=2).kernel
    data = maps[0].array.copy()
    launch = nd.Launch(kernel, 1, args, {"map": data}, initial={"map": data})
    assert launch.outputs["map"] is maps[0].array
    nd.simulate(launch)


@pytest.mark.parametrize("make, words", [
    (lambda: nd.Launch(twice, 1, [1]), "twice takes 3 arguments (data, out, count), 1 were given"),
    (lambda: nd.Launch(twice, 1, {"data": 1}), "args lacks out, count: twice has the parameters data, out"),
    (lambda: nd.Launch(twice, 1, {"data": 1, "out": 1, "count": 1, "n": 1}), "args has n, which is no"),
    (lambda: nd.Launch(len, 1, []), "must be made by @nd.kernel"),
    (lambda: launch_of(expected={"on": 1}), "expected names on, and twice has the parameters data, out, count"),
    (lambda: launch_of(expected={"count": 1}), "expected names count, which is a int and no array"),
    (lambda: launch_of(expected={"out": [1]}), "expected['out'] has the shape (1,), and the argument (32,)"),
    (lambda: launch_of(initial={"data": 0}), "initial={'data': ..} is no output"),
    (lambda: launch_of(tolerance=-1), "tolerance=-1 must be"),
    (lambda: nd.simulate(launch_of(), 1), "a Launch has its own grid"),
    (lambda: nd.explore(launch_of(cluster=1, grid=1)), "multiple values"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        make()


def test_capability():
    assert launch_of().capability == (8, 0) and copy().capability == (9, 0)
    assert launch_of(cluster=1).capability == (9, 0) and launch_of(capability=(9, 0)).capability == (9, 0)


def test_a_cluster():
    @nd.kernel(threads=32)
    def ranks(out: nd.uint32[:]):
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = nd.cluster_ctarank()

    launch = nd.Launch(ranks, 4, [np.zeros(4, np.uint32)], {"out": [0, 1, 0, 1]}, cluster=2)
    nd.simulate(launch)
    assert nd.explore(launch).complete


# --- a pipeline -----------------------------------------------------------------------------------
def test_a_call_is_built_once():
    made = []

    @nd.pipeline
    def mine(stages=3, scale=1.5, name="a", fast=False, size=(2, 3)):
        """What it does.

        More."""
        made.append((stages, scale, name, fast, size))
        return launch_of()

    assert PIPELINES["mine"] is mine and (mine.name, mine.summary) == ("mine", "What it does.")
    assert mine() is mine(stages=3) is mine(scale=1.5, name="a") is not mine(stages=4)
    assert mine(scale=2, size=[4, 5], fast=True) is mine(scale=2.0, size=(4, 5), fast=True)
    assert made == [(3, 1.5, "a", False, (2, 3)), (4, 1.5, "a", False, (2, 3)), (3, 2.0, "a", True, (4, 5))]
    assert "mine(stages=3, scale=1.5, name='a', fast=False, size=(2, 3))" in repr(mine)
    for parameters, words in [
        ({"stage": 3}, "stage=3: mine has the parameters stages, .*; did you mean stages?"),
        ({"stages": 3.0}, "stages=3.0: must be a whole number, such as the default 3"),
        ({"stages": True}, "stages=True: must be a whole number"), ({"fast": 1}, "fast=1: must be True"),
        ({"name": 1}, "name=1: must be a text"), ({"size": (1,)}, "a tuple of whole numbers"),
        ({"scale": "2"}, "scale='2': must be a number"),
    ]:  # fmt: skip
        with pytest.raises(nd.ConfigError, match=words):
            mine(**parameters)


def test_what_is_no_pipeline():
    def needs(stages):
        pass

    def takes(**stages):
        pass

    def none(stages=None):
        pass

    for function, words in (needs, "needs a default"), (takes, "keyword parameters"), (none, "stages=None: a"):
        with pytest.raises(nd.ConfigError, match=words):
            nd.pipeline(function)
    assert not {"needs", "takes", "none"} & set(PIPELINES)

    @nd.pipeline
    def returns():
        return 3

    with pytest.raises(nd.ConfigError, match="pipeline=returns: returned a int; it must return nd.Launch"):
        returns()
    with pytest.raises(ValueError, match=r"pipeline returns, which is called for its launch: returns\(\)"):
        nd.simulate(returns)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("launch, said", [
    (product(), "more than one block (by a larger tiles)"),
    (product(steps=2, tiles=2), "a stage filled twice (by a larger steps)"),
    pytest.param(product(steps=4, tiles=2), "", id="four steps", marks=pytest.mark.full),
    (copy(), ""),  # which has one block by itself
    (copy(steps=3), "a stage filled twice (by a larger steps)"),
    (stencil(), "a stage filled twice (by a smaller stages)"),
    (stencil(stages=1), ""),
], ids=lambda value: getattr(value, "title", None))  # fmt: skip
def test_what_a_run_has_not_tried(launch, said, compiled):
    """A ring that was never wrapped, or one block, is told beside the verdict, with what would try it."""
    report = nd.simulate(launch, compiled=compiled)
    assert report.untried == said
    assert str(report).endswith(f"; not tried: {said}" if said else f"{report.copies} copies"), report


def test_a_kernel_without_copies_has_nothing_to_try():
    def ones(out):
        out[cuda.threadIdx.x] = 1

    assert nd.simulate(ones, 1, 4, [np.zeros(4)]).untried == ""
