"""backward-window on the CPU engine: against float64, with strange numbers, with planted faults."""

import ast
import dataclasses
import linecache
import types

import numpy as np
import pytest
from gradient_cases import LIMITS, drawn
from mutants import source_of

from numba_deform import ConfigError, OperatorError, SimFault, relative_error
from numba_deform.attention import gradients
from numba_deform.attention.checks import check_problem
from numba_deform.kernels import backward_rows, backward_window, window_fit
from numba_deform.kernels.direct import FAR, GATE_WORDS
from numba_deform.kernels.problem import Constants, Problem, make_levels
from numba_deform.kernels.registry import Variant

full = pytest.mark.full
NAME = gradients.WINDOW.name
FAR_AWAY = dict(levels=((20, 24),), pattern="uniform")  # most samples lie outside of windows
SMALL = dict(warps=2, cell=(2, 4))  # 26 queries in several cells, more than two warps take at once


def near(**changes):
    """A case whose queries are pixels, most of whose samples lie near them."""
    shape = dict(batch=1, levels=((4, 5), (2, 3)), num_query=26, num_points=4, pattern="local", outside=0.1)
    return drawn(**{**shape, **changes})


def run(case, parameters=SMALL, **options):
    return case.gradients(kernel=NAME, parameters=parameters, **options)


def check(case, **options):
    found = run(case, **options)
    for gradient, exact in zip(found, case.exact(), strict=True):
        assert relative_error(gradient, exact) < LIMITS[gradient.dtype.name]
    return found


@pytest.mark.parametrize("changes", [
    dict(dtype="float16"),
    pytest.param(dict(dtype="bfloat16", location_dtype="float32"), marks=full),
    pytest.param(dict(dtype="float16", location_dtype="float32", num_points=8, num_heads=2), marks=full),
    pytest.param(dict(dtype="float16", channels=64, batch=2), marks=full),
    pytest.param(dict(dtype="bfloat16", channels=64, num_points=8), marks=full),
    pytest.param(
        dict(dtype="float16", levels=((3, 7), (6, 2), (1, 1)), num_query=35, pattern="uniform"), marks=full),
    pytest.param(dict(dtype="float16", levels=((1, 1),), num_query=3), marks=full),
    pytest.param(dict(dtype="float16", **FAR_AWAY), marks=full),
], ids=str)  # fmt: skip
def test_against_float64(changes):
    check(near(**changes), compiled=False)


@full
def test_equal_in_any_order():
    """With sums in integers, and in floats what one block adds up alone."""
    case = near(dtype="float16", location_dtype="float32")
    found = [check(case, deterministic=True, seed=seed, compiled=False) for seed in range(3)]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(other, found[0], strict=True))


@full
def test_the_largest_sum():
    """All samples in one pixel, all products of one sign; and far smaller ones beside them."""
    case = near(dtype="float16", levels=((4, 5),), num_query=20, outside=0)
    case.arguments[3][:, :10], case.arguments[4][...] = 0.5, 1.0
    case.given[...] = np.where(np.arange(case.given.shape[-1]) % 2, 2.0, 1e-3)
    check(case, compiled=False)


@full
@pytest.mark.parametrize("what", ["gradient", "weight", "location", "value"])
def test_what_is_no_number(what):
    """It goes as far as with ``backward``, and no farther."""
    case = near(dtype="float16", location_dtype="float32")
    value, _, _, locations, weights = case.arguments
    array = {"gradient": case.given, "weight": weights, "location": locations, "value": value}[what]
    array.reshape(-1)[[3, -1]] = np.nan, np.inf
    want = case.gradients(compiled=False)
    for gradient, other in zip(run(case, compiled=False), want, strict=True):
        assert np.array_equal(np.isfinite(gradient), np.isfinite(other))
        some = np.isfinite(other)
        assert relative_error(gradient[some], other[some].astype(np.float64)) < 2e-3


@full
def test_nothing_to_give_back():
    case = near(dtype="float16", location_dtype="float32")
    case.given[...] = 0
    assert not any(gradient.any() for gradient in run(case, compiled=False))


@full
@pytest.mark.parametrize("is_far", [False, True])
def test_the_second_launch_does_what_the_first_leaves(is_far):
    where = FAR_AWAY if is_far else dict(levels=((6, 6),), num_query=36, outside=0.0)
    case = near(dtype="float16", location_dtype="float32", **where)
    value, shapes, starts, locations, weights = case.arguments
    problem = check_problem(value, shapes, starts, locations, weights)
    limit = window_fit.probed_samples(problem) // 8
    shape, dtype = gradients.sums_shape(problem, "fp32")
    total, gate = np.zeros(shape, dtype), np.zeros(GATE_WORDS, np.uint32)
    of_locations, of_weights = np.full_like(locations, np.nan), np.full_like(weights, np.nan)
    extra = gradients.operands(case.given, total, of_locations, of_weights, np.ones(1, np.float32))
    first = gradients.bound(problem, None, NAME, limit=limit, warps=2, cell=(4, 6))
    second = gradients.bound(problem, None, is_gated=True)
    for call, written in ((first, not is_far), (second, True)):
        call.simulate([value, locations, weights], np.empty(0, value.dtype), extra=extra | {"gate": gate},
                      compiled=False)  # fmt: skip
        assert bool(gate[0] & FAR) == is_far
        assert np.isfinite(of_weights.astype(np.float32)).all() == written
    for found, exact in zip((total, of_locations, of_weights), case.exact(), strict=True):
        assert relative_error(found, exact) < 2e-3


@pytest.mark.parametrize("parameters, changes, text", [
    ({}, dict(dtype="float32"), "float32 with 32 channels; windows need 16 bits"),
    ({}, dict(dtype="float16", channels=16), "16 channels; windows need"),
    ({}, dict(dtype="float16", num_points=3), "points=3: must be a multiple of 4"),
    (dict(warps=33), dict(dtype="float16"), "warps=33: must be from 1 to 32"),
    (dict(sums="fp8"), dict(dtype="float16"), "sums=fp8"),
    (dict(blocks=0), dict(dtype="float16"), "blocks=0"),
], ids=str)  # fmt: skip
def test_what_is_refused(parameters, changes, text):
    with pytest.raises(ConfigError) as error:
        problem = check_problem(*near(**changes).arguments)
        gradients.bound(problem, None, NAME, **parameters)
    assert text in str(error.value)


def test_a_kernel_that_is_none_and_parameters_of_nobody():
    with pytest.raises(ConfigError, match="kernel=backwards: must be one of backward, backward-window"):
        near(dtype="float16").gradients(kernel="backwards")
    with pytest.raises(OperatorError, match=r"parameters=\{'warps': 2\}: say whose they are by kernel="):
        near(dtype="float16").gradients(parameters={"warps": 2})


def test_what_a_gpu_launches(monkeypatch):
    """Windows where they may pay, and behind them what works anywhere; else the latter alone."""
    def bound(problem, gpu, kernel="backward", **parameters):
        gradients.KERNELS[kernel].configure(problem.constants, **parameters)
        return kernel, parameters

    monkeypatch.setattr(gradients, "bound", bound)
    levels = make_levels(((100, 167), (50, 84), (25, 42), (13, 21)))
    types = "float16", "float32", "float16"
    encoder = Problem(1, 22223, 8, 22223, levels, Constants(4, 4, 32, *types))
    (near_by, first), (anywhere, second) = gradients.launches(encoder, None, sums="fixed")
    assert (near_by, anywhere) == (NAME, "backward")
    assert 0 < first["limit"] < window_fit.probed_samples(encoder) and first["sums"] == "fixed"
    assert second == {"sums": "fixed", "is_gated": True}
    alone = [
        dict(queries=300), dict(heads=1), *({"constants": Constants(*row)} for row in (
            (4, 4, 32, *3 * ("float32",)), (4, 4, 16, *types), (4, 3, 32, *types),
            (4, (4, 2, 4, 4), 32, *types))),
    ]  # fmt: skip
    for changes in alone:
        (call,) = gradients.launches(dataclasses.replace(encoder, **changes), None)
        assert call[0] == "backward" and not call[1].get("is_gated")
    for wanted in ((True, False), (False, True)):
        ((name, parameters),) = gradients.launches(encoder, None, *wanted)
        assert name == "backward" and (parameters["of_value"], parameters["of_samples"]) == wanted


# --- planted faults ---------------------------------------------------------------------------------
ROWS, MODULE = backward_rows.__name__, backward_window.__name__
WRONG = "wrong numbers"
SYNC = "cuda.syncwarp()  # the table is there"
AGAIN = "cuda.syncwarp()  # and may be overwritten"
FAULTS = {  # what: (the text, what the fault makes of it, how it ends)
    "no proxy fence before the next window": (
        "fence_proxy_async()  # the next window may overwrite what this thread has read", "pass",
        "MissingRefillFence"),
    "sums sent before all are there": ("cuda.syncthreads()  # all sums are there", "pass", "DataRace"),
    "sums added to before they are clear": ("cuda.syncthreads()  # and are clear", "pass", "DataRace"),
    "sums not cleared": ("st_shared_v4(place, zero, zero, zero, zero)", "pass", WRONG),
    "a table that is not there yet": (SYNC, "pass", "DataRace"),
    "a table that is still read": (AGAIN, "pass", "DataRace", dict(warps=1)),
    "more bytes announced than come": (
        "commit(ring, state, uint32(box_bytes(view.level)))",
        "commit(ring, state, uint32(box_bytes(view.level) + 16))", "MissingBytes"),
    "no wait for the window": ("wait(ring, state)", "pass", "InFlightRead"),
    "loaded and stored, not added": (
        "red_add_cta_shared_u32(\n            address,",
        "st_shared_b32(\n            address, ld_shared_b32(address) +", "DataRace"),
    "samples outside are left out": (
        "lost = sample.near and not sample.here", "lost = False", WRONG, dict(far=FAR_AWAY)),
    "units not taken back": ("send(shared, data, what, before, step)",
                             "send(shared, data, what, before, float32(step + step))", WRONG),
    "a stage's corner of the level before": ("send(shared, data, what, before, step)",
                                             "send(shared, data, what, view, step)", WRONG),
}  # fmt: skip
QUICK = {"no proxy fence before the next window"}


def planted(text, fault):
    """The kernel's module, with the fault in it or in its rows."""
    sources = {name: source_of(name) for name in (ROWS, MODULE)}
    count = sum(source.count(text) for source in sources.values())
    assert count == 1, "the kernel has changed: say where the fault is to be planted now"
    rows, module = (fresh(name, source.replace(text, fault)) for name, source in sources.items())
    vars(module).update({name: vars(rows)[name] for name in ("bounding", "sampling", "summing")})
    return module


def fresh(name, source):
    module, file = types.ModuleType(name), f"<{name}, planted>"
    module.__package__ = name.rpartition(".")[0]
    source = ast.unparse(ast.parse(source))
    linecache.cache[file] = len(source), None, source.splitlines(True), file  # for what rewrites it
    exec(compile(source, file, "exec"), vars(module))
    return module


class Faulty(Variant):
    def kernel(self, config, constants):
        return self.module.build(config, constants)


@pytest.mark.parametrize("what", [pytest.param(w, marks=() if w in QUICK else full) for w in FAULTS])
def test_is_noticed(what, monkeypatch):
    text, fault, end, *changes = FAULTS[what]
    module = planted(text, fault)
    monkeypatch.setitem(gradients.KERNELS, NAME, Faulty(**{**vars(gradients.WINDOW), "module": module}))
    changes = changes[0] if changes else {}
    far = changes.pop("far", {})
    case = near(dtype="float16", location_dtype="float32", **far)
    try:
        found = run(case, dict(SMALL, **changes), compiled=False)
        pairs = zip(found, case.exact(), strict=True)
        got = WRONG if any(relative_error(g, exact) > LIMITS[g.dtype.name] for g, exact in pairs) else None
    except SimFault as error:
        got = type(error).__name__
    assert got == end
