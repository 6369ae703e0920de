"""Blackwell pipelines: bugs that people reported in public (kernels/blackwell_bugs.cu, with origins),
each named at its line, and silent and right with the mend that its cure names; and what is right although it
is unusual (kernels/blackwell_rights.cu)."""

import re
from functools import cache

import numpy as np
import pytest
from stored import KERNELS
from test_tcgen05 import core_matrices

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels

TEXT, RIGHTS_TEXT = ((KERNELS / f"blackwell_{name}.cu").read_text() for name in ("bugs", "rights"))
ENTRY = r'extern "C" __global__ void .*?__launch_bounds__\((?P<threads>\d+)\) (?P<name>\w+)\(const (?P<a>\w+)'
ORIGIN = r"// (?:\S+/\S+ (?:issue|pull request) \d+|our own): .*(?:\n// .*)*\n// (?P<fault>\w+): (?P<cure>.*)\n"
BUGS = {m["name"]: m for m in re.finditer(ORIGIN + ENTRY, TEXT)}
RIGHTS = {m["name"]: m for m in re.finditer(r"// .*\n" + ENTRY, RIGHTS_TEXT)}
pytestmark = pytest.mark.skipif(not cuda_kernels.nvcc(), reason="nvcc compiles CUDA C++, and is not there")


@cache
def kernels(name, mended=False):
    return nd.from_cuda(KERNELS / f"blackwell_{name}.cu", ["-arch=sm_100a", f"-DMENDED={int(mended)}"])


def words(stored):
    return stored.view(np.uint32).reshape(-1)


def flat(*parts):
    return np.concatenate([np.ravel(part) for part in parts])


ROWS, COLUMNS, TILES = np.arange(128), np.arange(64), np.arange(4)[:, None, None]


def most_of(at):
    return (words(at[0]) & 0x7FFF).reshape(4, 128, 8).max((0, 2))


def low_rows(d):
    return np.repeat(d[0, :64].reshape(4, 1, 16, 64), 2, 1).reshape(128, 64)


def of_halves(x):
    return x.astype(np.float32).astype(np.float16).astype(float)


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
    "scaled_in_place": (1, 16, 1, twice), "two_add_up": (1, 32), "waited_for_by_one": (2, 16),
    "freed_in_flight": (2, 16, 1, lambda at, a, b, d: d[0]),
    "rows_of_128": (1, 16, 1, lambda at, a, b, d: np.where(ROWS[:, None] % 32 < 16, low_rows(d), np.nan)),
    **dict.fromkeys(("relaxed", "no_fence_after", "no_fence_before"), (5, 16)),
    "relaxed_numbers": (1, 16, 1, lambda at, a, b, d: d[0, :, 0].sum(keepdims=True)),
    "one_fence": (2, 16), "holes": (3, 16),
    "two_issuers": (2, 32), "one_wait": (3, 16), "cluster_scope": (3, 16),
    **dict.fromkeys(("bare_commit", "many_commits", "polls", "issuer_waits", "elected"), (1, 64)),
    "handed_on": (1, 32), "freed_beside_products": (2, 16), "freed_after_use": (1, 16, 1, twice),
    "over_themselves": (2, 16, 1, lambda at, a, b, d: of_halves(d[0, :, :16]) @ b[1].T),
    "read_twice": (2, 16, 1, lambda at, a, b, d: [d, d]),
    "halves_of_lanes": (1, 16, 1, lambda at, a, b, d: d[0].reshape(2, 4, 16, 64).swapaxes(0, 1)),
    "queue_for_columns": (1, 16, 1, lambda at, a, b, d: np.arange(96 * 8)),
    "spilled": (1, 16, 1, lambda at, a, b, d: np.arange(128 * 8)),
    "with_itself": (1, 32, 1, lambda at, a, b, d: a[0] @ a[0, :64].T),
    "negated": (2, 16, 1, lambda at, a, b, d: d[0] - d[1]),
    "four_accumulators": (2, 16, 1, lambda at, a, b, d: [a[i // 2] @ b[i % 2].T for i in range(4)]),
    "rescaled": (3, 16, 1, lambda at, a, b, d: 4 * d[0] + 2 * d[1] + d[2]),
}  # fmt: skip


def run(kernel, head, **how):
    """Run the kernel that has this head, and compare."""
    case = CASES.get(head["name"], (1, 16))
    tiles, depth, grid, result = (*case, *(1, None)[len(case) - 2 :])
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((tiles, n, depth)).astype(np.float16) for n in (128, 64))
    plain = head["a"] == "uint32_t"
    at = a.view(np.uint32).copy() if plain else np.concatenate([core_matrices(x) for x in a])
    at = at, np.concatenate([core_matrices(x) for x in b])
    a, b = a.astype(float), b.astype(float)
    want = a @ b.swapaxes(1, 2)
    want = np.asarray(want if result is None else result(at, a, b, want), np.float32)
    out = np.full(want.shape, np.nan, np.float32)
    nd.simulate(kernel, grid, int(head["threads"]), [*at, out], **how)
    np.testing.assert_allclose(out, want, atol=1e-4)


def run_bug(name, mended, **how):
    run(kernels("bugs", mended)[name], BUGS[name], **how)


@pytest.mark.parametrize("name", RIGHTS)
def test_right(name):
    run(kernels("rights")[name], RIGHTS[name])
    run(kernels("rights")[name], RIGHTS[name], landing="random", schedules=2)


def blamed(name):
    """The numbers of the lines that the report has to name."""
    start = BUGS[name].end()
    inside = range(*(TEXT.count("\n", 0, place) for place in (start, TEXT.index("\n}", start) + 1)))
    marks = ((n, line.partition("<- fault")[1:]) for n, line in enumerate(TEXT.splitlines()))
    return {n + 1 for n, (mark, of) in marks if mark and (of == f" of {name}" or n in inside and not of)}


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_named(name):
    with pytest.raises(getattr(faults, BUGS[name]["fault"])) as caught:
        run_bug(name, False)
    fault = caught.value
    assert BUGS[name]["cure"] in fault.cure, str(fault)
    said = f"{fault.where} {fault.source} {fault.cure}"
    assert {int(n) for n in re.findall(r"blackwell_bugs.cu:(\d+)", said)} & blamed(name), str(fault)


@pytest.mark.parametrize("name", BUGS)
def test_mend_is_one(name):
    run_bug(name, True)
    run_bug(name, True, landing="random", schedules=2)


@pytest.mark.full
@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found_in_any_order(name):
    for seed in range(6):
        with pytest.raises(faults.SimFault):
            run_bug(name, False, landing="random", seed=seed)
