"""`matmul on Blackwell`, the rungs of course/pipelines/blackwell.py: right under schedules, machine code for
sm_100a; and without a line of theirs the CPU engine names what is wrong, where, and how to mend it."""
# ruff: noqa: E501  a wrong program is a line

import ast
import linecache
import re
import types
from pathlib import Path

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.compiler.build import NotBuilt
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.pipelines import blackwell
from numba_deform.engines import faults

TEXT = Path(blackwell.__file__).read_text()
SIZES = {"one_tile": {"steps": 3}, "staged": {"stages": 2, "steps": 5},
         "overlapped": {"stages": 2, "steps": 3, "down": 3, "across": 2},
         "paired": {"stages": 2, "steps": 5}}  # fmt: skip


@pytest.mark.parametrize("rung", SIZES)
def test_right(rung):
    launch = getattr(blackwell, rung)(**SIZES[rung])
    assert launch.capability == (10, 0)
    for how in ({}, {"landing": "earliest"}, {"landing": "random", "schedules": 5}):
        assert "PTX's text alone" in str(nd.simulate(launch, **how))
    a, b = (maps[0].array.astype(np.float64) for maps in launch.args[:2])
    np.testing.assert_array_equal(launch.outputs["out"], a @ b.T)


@pytest.mark.parametrize("rung, options", [
    ("one_tile", {"steps": 1, "down": 2, "across": 3}), ("staged", {"stages": 1}), ("staged", {"stages": 4, "steps": 9}),
    ("overlapped", {"sums": 1}), ("overlapped", {"sums": 4, "down": 5, "blocks": 3}),
    ("overlapped", {"down": 1, "across": 1, "blocks": 2}), ("paired", {"stages": 1, "pairs": 2, "across": 2}),
])  # fmt: skip
def test_of_other_sizes(rung, options):
    nd.simulate(getattr(blackwell, rung)(**options), landing="random")


def test_a_timeline_says_how_products_are_over():
    (note,) = nd.timeline(blackwell.staged(steps=2)).notes()
    assert note.startswith("8 x tcgen05.mma.kind::f16 (128 x 64): over by its commit")


@pytest.mark.full
@pytest.mark.parametrize("rung, options", [("one_tile", {"steps": 1}), ("staged", {"stages": 1, "steps": 2})])
def test_in_every_order(rung, options):
    assert nd.explore(getattr(blackwell, rung)(**options)).complete


@pytest.mark.parametrize("rung", SIZES)
def test_machine_code(rung):
    kernel = getattr(blackwell, rung)().kernel
    found = inspect_kernel(kernel, "sm_100a")
    assert found.spill_loads == found.spill_stores == found.stack == 0
    assert found.instructions["UTCHMMA"] >= 4 and found.instructions["UTCBAR"] >= 2
    assert found.instructions["LDTM"] in (1, 4) and found.instructions["UTMALDG"] >= 2
    with pytest.raises(NotBuilt, match=f"kernel {rung} does not compile for sm_90a: \\w+ is for sm_100a"):
        kernel.compile()


def test_no_profile_and_no_time():
    for kind in ({}, {"time": True}):
        with pytest.raises(ValueError, match="staged has tcgen05, which is neither profiled nor predicted"):
            nd.profile(blackwell.staged(), **kind)


# --- without a line -----------------------------------------------------------------------------------
def module_of(text):
    """The pipelines as the changed text has them."""
    file = f"<blackwell {hash(text)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    module = types.ModuleType("blackwell")
    exec(compile(text, file, "exec"), vars(module))
    return module


def run(rung, text):
    launch = getattr(module_of(text), rung)(**SIZES[rung])
    for how in ({}, {"landing": "earliest"}, {"landing": "random", "schedules": 3}):
        nd.simulate(launch, **how)


def body_of(name):
    """(first, last) line of a function of the file, the innermost of that name."""
    found = [n for n in ast.walk(ast.parse(TEXT)) if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[-1].lineno, found[-1].end_lineno


def changed(function, old, new="pass"):
    """The text with a part of one line changed, the first of the function that has it."""
    lines = TEXT.splitlines(True)
    first, last = body_of(function) if function else (0, len(lines))
    place = next(i for i in range(first, last) if old in lines[i])
    lines[place] = lines[place].replace(old, new)
    return "".join(lines)


# rung, function, what is changed there, to what; the fault, what stands on its line, words of the cure
WRONG = [
    ("one_tile", "one_tile", "full.wait(step & 1)", "pass", "InFlightRead", "mma(sums", "Wait on the full barrier"),
    ("one_tile", "one_tile", "empty.wait(step & 1)", "pass", "RefillRace", "bulk_tensor_2d", "Wait on empty, for the phase"),
    ("one_tile", "one_tile", "ready.wait(0)", "pass", "TensorInFlight", "tcgen05_ld", "for the phase that the commit"),
    ("one_tile", "one_tile", "cuda.syncthreads()", "pass", "DataRace", "memory.free", "Have both sides meet"),
    ("one_tile", "one_tile", "shared.memory.free()", "pass", "TensorMemoryMisuse", "shared.init", "tcgen05.dealloc"),
    ("one_tile", "store", "nd.tcgen05_wait_ld()", "pass", "TensorInFlight", "memory.free", "Call tcgen05.wait::ld"),
    ("one_tile", "multiply", "step + k", "1", "UninitialisedRead", "mma(sums", "enable-input-d false"),
    ("one_tile", "multiply", "nd.tcgen05_descriptor(a,", "nd.wgmma_descriptor(a,", "BadTensorOperand", "mma(sums", "Make it for tcgen05"),
    ("one_tile", "one_tile", "sums.warp_at()", "sums.at()", "BadTensorOperand", "tcgen05_ld", "Here the address begins at lane 32"),
    ("staged", "staged", "nd.tcgen05_commit(ring.empty(state))", "ring.arrive(state)", "ReadAfterRelease", "ring.arrive", "Let tcgen05.commit arrive on ring.empty"),
    ("staged", "staged", "nd.tcgen05_commit(ring.empty(state))", "pass", "MissingArrivals", "ring.acquire", "tcgen05_commit(ring.empty(state)) behind its products"),
    ("staged", "staged", "nd.tcgen05_commit(ready.at())", "ready.arrive()", "TensorInFlight", "tcgen05_ld", "Wait on ring.empty"),
    ("staged", "staged", "nd.tcgen05_commit(ready.at())", "pass", "MissingArrivals", "ready.wait", "and never on ready: is that one meant?"),
    ("one_tile", "one_tile", "nd.tcgen05_commit(empty.at())", "pass", "MissingArrivals", "empty.wait", ""),
    ("staged", "staged", "nd.warp() == MULTIPLIER and nd.lane() == 0", "nd.warp() == MULTIPLIER", "TensorInFlight", "mma(sums", "Let one thread issue it"),
    ("staged", "staged", "ring.acquire(state)", "pass", "TooManyArrivals", "ring.expect", "Call ring.acquire(state)"),
    ("staged", "staged", "ring.wait(state)", "pass", "InFlightRead", "mma(sums", "Wait on the full barrier"),
    ("overlapped", "overlapped", "turns.acquire(turn)", "pass", "DataRace", "mma(sums", "Have both sides meet"),
    ("overlapped", "overlapped", "turns.wait(turn)", "pass", "TensorInFlight", "tcgen05_ld", "for the phase that the commit"),
    ("overlapped", "overlapped", "turns.arrive(turn)", "pass", "MissingArrivals", "turns.acquire", "turns.release(state)"),
    ("overlapped", "overlapped", "sums.warp_at(turn.stage)", "sums.warp_at(0)", "DataRace", "mma(sums", "behind that one's tcgen05.wait"),
    ("overlapped", "overlapped", "multiply(sums.at(turn.stage)", "multiply(sums.at(0)", "DataRace", "mma(sums", "Wait, before this, until thread"),
    ("paired", "paired", "nd.cluster_sync()", "pass", "BlockNotStarted", "bulk_tensor", "Have all threads of the cluster"),
    ("paired", "paired", "nd.tcgen05_commit_multicast_pair(ring.empty(state), BOTH)", "nd.tcgen05_commit_pair(ring.empty(state))", "MissingArrivals", "ring.acquire", "multicast"),
    ("paired", "paired", "nd.tcgen05_commit_multicast_pair(ready.at(), BOTH)", "nd.tcgen05_commit_pair(ready.at())", "MissingArrivals", "ready.wait", "multicast"),
    ("paired", "paired", "nd.mapa_shared_cluster(ring.full(state), 0)", "ring.full(state)", "MissingBytes", "ring.wait", "this block's barrier"),
    ("paired", "paired", "2 * (shared.a.stride", "1 * (shared.a.stride", "MoreBytesThanExpected", "ring.expect", "Announce 40960"),
    ("paired", "", "TensorMemory(pair=True, ", "TensorMemory(", "BadTensorOperand", "mma(sums", ""),
    ("paired", "products", "rows, COLUMNS, **options", "128, COLUMNS, **options", "UninitialisedRead", "tcgen05_ld", "compare lanes"),
    ("overlapped", "store", "nd.tcgen05_wait_ld()", "pass", "TensorInFlight", "mma(sums", "Call tcgen05.wait::ld"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda c: f"{c[0]}: {c[2]} -> {c[3]}")
def test_a_changed_line(case):
    rung, function, old, new, kind, line, cure = case
    text = changed(function, old, new)
    with pytest.raises(getattr(faults, kind)) as caught:
        run(rung, text)
    fault = caught.value
    number = int(re.search(r":(\d+)", fault.where)[1])
    assert line in text.splitlines()[number - 1] and cure in fault.cure, str(fault)


def test_a_commit_before_its_products():
    lines = TEXT.splitlines(True)
    first, last = body_of("staged")
    place = next(i for i in range(first, last) if "nd.tcgen05_commit(ring.empty(state))" in lines[i])
    lines[place - 1 : place + 1] = lines[place], lines[place - 1]
    with pytest.raises(faults.ReadAfterRelease, match="before the product") as caught:
        run("staged", "".join(lines))
    assert "tcgen05_commit(ring.empty" in str(caught.value) and "behind the product at" in caught.value.cure


def test_an_arrival_behind_the_wait_for_the_products():
    """Of who knows that they are over an arrival says so too."""
    run("one_tile", changed("one_tile", "nd.tcgen05_commit(ready.at())", "ready.arrive()"))


# What orders nothing more for the engine (bench/ENGINE.md): PTX asks for the fences where waits are relaxed.
UNNOTICED = {"nd.tcgen05_fence_before_thread_sync()", "nd.tcgen05_fence_after_thread_sync()", "cuda.syncwarp()"}


def droppable():
    """(rung, function, line) of each call of the kernels and roles, and of each step of a state."""
    for function in ("load", "multiply", "store", *SIZES):
        first, last = body_of(function)
        for line in dict.fromkeys(x.partition("#")[0].strip() for x in TEXT.splitlines()[first:last]):
            used = SIZES.keys() - {"paired"} if function == "load" else SIZES
            if re.match(r"(nd\.|cuda\.sync|[\w.]+\(.*\)$|(state|turn) = .*advance)", line):
                for rung in [function] if function in SIZES else sorted(used):
                    yield rung, function, line


@pytest.mark.full
@pytest.mark.parametrize("rung, function, line", [*droppable()], ids=lambda text: text)
def test_without_a_line(rung, function, line):
    text = changed(function, line)
    if line in UNNOTICED:
        run(rung, text)
        return
    with pytest.raises(faults.SimFault):
        run(rung, text)
