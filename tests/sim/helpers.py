"""What the tests of the CPU engine share."""

import re

import numpy as np
import pytest
from numba import cuda

from numba_deform import reference, relative_error
from numba_deform.attention.call import run_on_host
from numba_deform.attention.reference import TOLERANCE
from numba_deform.attention.request import ask
from numba_deform.engines.cpu import SimFault, simulate
from numba_deform.engines.cpu.frontends.numba_python import program
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

LANDINGS = ("late", "random", "earliest")


def run(kernel, *args, grid=1, block=32, **options):
    """``simulate`` in the order in which the tests think of it; 32 threads if not told otherwise."""
    return simulate(kernel, grid, block, args, **options)


def device(function):
    """A device function of a plain one, as Numba wants it for what a kernel calls."""
    return cuda.jit(device=True)(function)


@pytest.fixture
def untyped(monkeypatch):
    """For kernels that run a program which they are given as a list: Numba does not compile them."""
    monkeypatch.setattr(program, "_inferred_form", lambda *args: None)


@cuda.jit(device=True)
def syncthreads():
    cuda.syncthreads()


@cuda.jit(device=True)
def syncwarp():
    cuda.syncwarp()


def fault_of(kernel, *args, **options):
    """The fault that the kernel ends in; fails if there is none."""
    with pytest.raises(SimFault) as caught:
        run(kernel, *args, **options)
    fault = caught.value
    assert str(fault).startswith(f"{type(fault).__name__}: {fault.what}")
    return fault


def expect(kind, kernel, *args, words=(), source=None, **options):
    """The kernel ends in exactly ``kind``; the text has ``words``; the line blamed has ``source``."""
    fault = fault_of(kernel, *args, **options)
    assert type(fault) is kind, fault
    for word in (words,) if isinstance(words, str) else words:
        assert word in str(fault), (word, str(fault))
    if source is not None:
        assert source in fault.source, (source, str(fault))
        file, line = fault.where.rsplit(":", 1)
        with open(file) as text:
            assert text.read().splitlines()[int(line) - 1].strip() == fault.source
    return fault


def always(kind, kernel, *args, seeds=4, **options):
    """As ``expect``, for every landing and several seeds: the verdict is no matter of luck."""
    for landing in LANDINGS:
        for seed in range(seeds):
            expect(kind, kernel, *args, seed=seed, landing=landing, **options)


def clean(kernel, *args, seeds=4, **options):
    """The kernel runs without a fault for every landing and several seeds."""
    for landing in LANDINGS:
        run(kernel, *args, schedules=seeds, landing=landing, **options)


def floats(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


def nans(n):
    return np.full(n, np.nan, np.float32)


def maps_of(*arrays, box, **options):
    """One tensor map for each array, the box innermost dimension first."""
    return TensorMapArray([TensorMap.of(a, box, **options) for a in arrays])


def aligned(array, step=16):
    """A copy of the array whose address is a multiple of ``step``."""
    room = np.zeros(array.size + step, array.dtype)
    room = room[-room.__array_interface__["data"][0] % step // array.itemsize :][: array.size]
    room[:] = array
    return room


def check(inputs, name, simulate_options=None, **parameters):
    """Run on a poisoned output; the whole of it must be the reference's; the Bound that ran."""
    want = reference(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index,
        inputs.sampling_locations, inputs.attention_weights, padded=inputs.padded,
    )  # fmt: skip
    out = np.full(want.shape, np.nan, inputs.value.dtype)
    request = ask(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights, name, "cpu", inputs.padded, parameters=parameters,
    )  # fmt: skip
    bound = run_on_host(request, request.output(inputs.value, out), **(simulate_options or {}))
    assert np.isfinite(out.astype(np.float32)).all()
    if np.linalg.norm(want):
        assert relative_error(out, want) < TOLERANCE[str(out.dtype)]
    else:
        assert not out.any()
    return bound


# --- machine code ---------------------------------------------------------------------------------
def outcome(kernel, args, **options):
    """(what a run comes to, whether it ended as machine code)"""
    try:
        report = run(kernel, *args, **options)
    except SimFault as fault:
        return (type(fault), fault.where, re.sub("0x[0-9a-f]{6,}", "0x", str(fault))), False
    arrays = [a.tobytes() for a in args if isinstance(a, np.ndarray)]
    return (report.switches, report.cycles, arrays), report.compiled


def alike(kernel, *args, **options):
    """The outcome of a kernel, the same both ways, and whether machine code came to its end."""
    given = [[a.copy() if isinstance(a, np.ndarray) else a for a in args] for _ in range(2)]
    (interpreted, _), (machine, ended) = (
        outcome(kernel, some, compiled=bool(i), **options) for i, some in enumerate(given)
    )
    assert machine == interpreted
    return machine, ended
