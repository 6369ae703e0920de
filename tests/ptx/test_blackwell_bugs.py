"""Bugs of Blackwell pipelines that people reported in public (kernels/blackwell_bugs.cu, where their origins
stand): each is named at its line, and with the mend that its cure names it is silent and right."""

import re
from functools import cache

import numpy as np
import pytest
from stored import KERNELS
from test_tcgen05 import core_matrices

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels

SOURCE = KERNELS / "blackwell_bugs.cu"
TEXT = SOURCE.read_text()
HEAD = r"// (\S+/\S+ (?:issue|pull request) \d+): (.*(?:\n// .*)*)\n// (\w+): (.*)\n"
HEAD += r'extern "C" __global__ void .*?__launch_bounds__\((\d+)\) (\w+)\(const (\w+)'
BUGS = {m[6]: (*m.groups(), m.end()) for m in re.finditer(HEAD, TEXT)}
pytestmark = pytest.mark.skipif(not cuda_kernels.nvcc(), reason="nvcc compiles CUDA C++, and is not there")


@cache
def kernels(mended):
    return nd.from_cuda(SOURCE, ["-arch=sm_100a", f"-DMENDED={int(mended)}"])


def words(stored):
    return stored.view(np.uint32).reshape(-1)


def flat(*parts):
    return np.concatenate([np.ravel(part) for part in parts])


ROWS, COLUMNS, TILES = np.arange(128), np.arange(64), np.arange(4)[:, None, None]


def most_of(at):
    return (words(at[0]) & 0x7FFF).reshape(4, 128, 8).max((0, 2))


def twice(at, a, b, d):
    return 2 * d


# name -> (tiles, depth of each along k, blocks, what comes out, of A and B as they are stored, A, B, and their
# products, which come out else)
CASES = {
    "overlapping": (3, 16), "registers_used": (3, 16, 1, twice), "one_slot": (3, 16),
    "unused_lanes": (1, 16, 1, lambda at, a, b, d: np.where(ROWS[:, None] % 32 < 16, d[0, :, :8], np.nan)),
    "statistics": (3, 16, 1, lambda at, a, b, d: flat(np.add.outer(np.arange(3), ROWS), d[:, :, 63])),
    "late_address": (1, 16, 2), "no_allocation": (1, 64), "no_proxy_fence": (2, 16), "early_dealloc": (1, 32),
    "shared_accumulator": (4, 16, 1, lambda at, a, b, d: d[:, :, :16]), "older_release": (6, 16),
    "other_chunk": (2, 16, 1, twice), "commit_of_all": (3, 16),
    "narrow_alias": (4, 16, 1, lambda at, a, b, d: np.where(TILES % 2 & (COLUMNS > 31), np.nan, d)),
    "partition": (1, 16, 1, lambda at, a, b, d: np.add.outer(ROWS, 8 * np.arange(8))),
    "too_wide": (8, 16, 1, lambda at, a, b, d: a[0] @ b.swapaxes(1, 2)),
    "one_arrives": (1, 16, 1, lambda at, a, b, d: d * (COLUMNS + 1)), "no_store_fence": (1, 32),
    "store_slots": (1, 16, 1, lambda at, a, b, d: d.reshape(128, 8, 8).swapaxes(0, 1)),
    "released_before_store": (1, 64, 1, lambda at, a, b, d: flat(d, at[1].view(np.float32))),
    "no_refill_fence": (1, 64, 1, lambda at, a, b, d: flat(d, most_of(at))),
    "combine": (1, 16, 1, lambda at, a, b, d: flat(d, (words(at[1])[:192] & 0xFF).reshape(6, 32).sum(0))),
    "all_lanes_issue": (1, 32),
    "scales_in_flight": (1, 16, 1, lambda at, a, b, d: d * (words(at[0])[:128, None] & 3)),
    "one_phase_early": (4, 16), "nap": (1, 64),
    **dict.fromkeys(("commits_of_two", "leaves_early"), (2, 64, 2, lambda at, a, b, d: a @ b[0].T)),
    "arrives_twice": (2, 16, 1, lambda at, a, b, d: d[:, :, 0]),
}  # fmt: skip


def run(name, mended, **how):
    case = CASES.get(name, (1, 16))
    tiles, depth, grid, result = (*case, *(1, None)[len(case) - 2 :])
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((tiles, n, depth)).astype(np.float16) for n in (128, 64))
    plain = BUGS[name][6] == "uint32_t"
    at = a.view(np.uint32).copy() if plain else np.concatenate([core_matrices(x) for x in a])
    at = at, np.concatenate([core_matrices(x) for x in b])
    a, b = a.astype(float), b.astype(float)
    want = a @ b.swapaxes(1, 2)
    want = np.asarray(want if result is None else result(at, a, b, want), np.float32)
    out = np.full(want.shape, np.nan, np.float32)
    nd.simulate(kernels(mended)[name], grid, int(BUGS[name][4]), [*at, out], **how)
    np.testing.assert_allclose(out, want, atol=1e-4)


def blamed(name):
    """The numbers of the lines that the report has to name."""
    end = TEXT.index("\n}", BUGS[name][-1])
    inside = range(TEXT.count("\n", 0, BUGS[name][-1]), TEXT.count("\n", 0, end))
    marks = ((n, line.partition("<- fault")[1:]) for n, line in enumerate(TEXT.splitlines()))
    return {n + 1 for n, (mark, of) in marks if mark and (of == f" of {name}" or n in inside and not of)}


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_named(name):
    with pytest.raises(getattr(faults, BUGS[name][2])) as caught:
        run(name, False)
    fault = caught.value
    assert BUGS[name][3] in fault.cure, str(fault)
    lines = {int(n) for n in re.findall(rf"{SOURCE.name}:(\d+)", f"{fault.where} {fault.source} {fault.cure}")}
    assert lines & blamed(name), str(fault)


@pytest.mark.parametrize("name", BUGS)
def test_mend_is_one(name):
    run(name, True)
    run(name, True, landing="random", schedules=2)


@pytest.mark.full
@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found_in_any_order(name):
    for seed in range(6):
        with pytest.raises(faults.SimFault):
            run(name, False, landing="random", seed=seed)
