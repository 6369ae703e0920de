"""Tensor memory and tcgen05 (kernels/tcgen05.cu): right programs are silent and right, of wrong ones the rule, the
line and the cure are named. No GPU that has it has run these."""

import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.async_units.tcgen05 import lanes_of
from numba_deform.engines.cpu.async_units.tensor_memory import places

TEXT = (KERNELS / "tcgen05.ptx").read_text()
BLOCK = {"tile": 128, "ring": 192, "chain": 128}


def core_matrices(x):
    """The bytes of a matrix (rows, k) as ``descriptor`` of the kernels describes them, for each 16 of k."""
    rows, depth = x.shape
    return x.reshape(rows // 8, 8, depth // 16, 2, 8).transpose(2, 0, 3, 1, 4).copy().view(np.uint8).reshape(-1)


def problem(name):
    """(arguments but the last, what the last holds in the end)"""
    random, tiles, depth = np.random.default_rng(3), 3 if name == "ring" else 1, {"tile": 32, "ring": 64, "chain": 16}
    a, b = (random.standard_normal((tiles, rows, depth[name])).astype(np.float16) for rows in (128, 64))
    left = a.view(np.uint32).copy() if name == "chain" else np.concatenate([core_matrices(x) for x in a])
    return [left, np.concatenate([core_matrices(x) for x in b])], a.astype(float) @ b.transpose(0, 2, 1).astype(float)


def run(name, text=TEXT, **how):
    args, want = problem(name)
    out = np.full(want.shape, np.nan, np.float32)
    report = nd.simulate(nd.from_ptx(text)[name], 1, BLOCK[name], [*args, out], **how)
    np.testing.assert_allclose(out, want, atol=1e-4)
    return report


def changed(name, changes):
    """The text with changes in one kernel: (old, new), each of which is there as often as its third says, or once."""
    start = TEXT.index(f".entry {name}(")
    end = TEXT.find(".visible .entry", start)
    body = TEXT[start:end]
    for old, new, *times in changes:
        assert body.count(old) == (times[0] if times else 1), (old, body.count(old))
        body = body.replace(old, new)
    return TEXT[:start] + body + TEXT[end:]


@pytest.mark.parametrize("name", BLOCK)
def test_right(name):
    report = run(name)
    run(name, landing="random", schedules=2)
    run(name, landing="earliest")
    assert "PTX's text alone" in str(report)
