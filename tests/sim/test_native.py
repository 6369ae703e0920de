"""A kernel's machine code: numbers bit for bit, the records that it shares with Python, and when it runs."""

import gc
import weakref
from collections import Counter

import expressions
import numpy as np
import pytest
from helpers import alike, device, outcome, run
from numba import cuda, float32, int32, int64, uint32, uint64
from numba.types import float16

from numba_deform.compiler import cache, i32, inference, kernel, static_range, u64
from numba_deform.device import float32 as float32s
from numba_deform.device import half2, integer
from numba_deform.device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from numba_deform.device.memory import (
    global_address,
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    ld_shared_b32,
    ld_shared_v2,
    ld_shared_v4,
    red_add_release_gpu_global_u32,
    shared_address,
    st_global_b32,
    st_shared_b32,
    st_shared_v4,
)
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_sync, fence_mbarrier_init, fence_proxy_async
from numba_deform.device.tma import cp_async_bulk_load
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.cpu.frontends.numba_python import native_body, program
from numba_deform.engines.cpu.machine.block import Block
from numba_deform.engines.cpu.native.codegen import code_cache, jit, packed_halves, writer
from numba_deform.engines.cpu.native.runtime import layout
from numba_deform.engines.cpu.native.state import memory, record_table
from numba_deform.engines.cpu.native.state.block import NativeBlock
from numba_deform.engines.cpu.native.state.requests import RequestHandler
from numba_deform.engines.cpu.schedules import execution, prepared_launch
from numba_deform.engines.gc_pauses import short_collections

THREADS = 64
NEGATIVE_DIVISORS = (9, 12)  # of a uint64, in these random expressions: left to the interpreter


@pytest.fixture
def codes(monkeypatch):
    """No machine code is known, in memory or on disk. A function that makes it so again, and returns what is in
    memory; ``codes(kept=PATH)`` leaves what is there on disk."""

    def forget(kept="off"):
        codes = {}
        monkeypatch.setenv(cache.VARIABLE, str(kept))
        monkeypatch.setattr(program, "FORMS", {})
        for module in code_cache, prepared_launch:
            monkeypatch.setattr(module, "CODES", codes)
        return codes

    forget()
    return forget


# --- numbers --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return expressions.write(tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize("group", (*expressions.NUMBERS, *expressions.PACKED, *expressions.HALVES))
def test_random_expressions(module, group):
    function, results = device(getattr(module, f"group_{group}")), []
    for compiled in (False, True):
        values, made = expressions.inputs(group), expressions.results()
        report = run(expressions.kernel_of(function), *values.values(), *made, block=expressions.ELEMENTS,
                     compiled=compiled)  # fmt: skip
        assert report.compiled == (compiled and group not in NEGATIVE_DIVISORS)
        results.append(made)
    wrong = expressions.differ(*results)
    assert not wrong.size, [expressions.expressions(group)[e] for e in wrong]


def halves(a, b, singles, factor, out):
    t = cuda.threadIdx.x
    tile, mine = cuda.shared.array(64, float16), cuda.local.array(2, float16)
    tile[t] = a[t]
    cuda.syncthreads()
    mine[0], mine[1] = tile[63 - t], float16(singles[t])
    total = mine[0] * b[t] + mine[1]
    total += factor if total > b[t] else -total
    out[0, t], out[1, t], out[2, t] = total, min(a[t], b[t]), max(a[t], b[t])
    out[3, t] = cuda.fp16.hsqrt(abs(a[t]))


def test_arrays_and_arguments_of_float16():
    """In global, shared and local memory; what machine code asks of Python comes back as it went."""
    rng = np.random.default_rng(0)
    a, b = (10 * rng.standard_normal((2, 64))).astype(np.float16)
    singles, out = rng.standard_normal(64, np.float32), np.full((4, 64), np.nan, np.float16)
    assert alike(halves, a, b, singles, np.float16(0.3), out, block=64)[1]


PARTICLE = np.dtype([("x", np.float32), ("n", np.int32), ("m", np.float64)], align=True)


@device
def pushed(particle, by):
    particle.x += by
    return particle.n


def particles(given, first, fence, out):
    t, tile = cuda.threadIdx.x, cuda.shared.array(64, PARTICLE)
    particle = given[first + t]
    tile[t].x = particle.x
    tile[t]["n"] = pushed(particle, 2) + t
    tile[t].m = particle["m"]
    if fence:
        cuda.syncthreads()
    other = tile[63 - t]
    if t % 2:
        other = tile[t]
    for i in range(3):
        particle.m += other.x * i
    out[t] = other.n + particle.m


@pytest.mark.parametrize(("first", "fence", "kind"), [(0, 1, None), (1, 1, "OutOfRange"), (0, 0, "DataRace")])
def test_records(first, fence, kind):
    """Of shared and global arrays, their fields by both spellings; handed to functions; one of two."""
    rng = np.random.default_rng(0)
    given, out = np.zeros(64, PARTICLE), np.full(64, np.nan)
    for name in PARTICLE.names:
        given[name] = rng.integers(0, 99, 64)
    found, ended = alike(particles, given, first, fence, out, block=64)
    assert ended == (kind is None) and (kind is None or kind in str(found))


def test_records_whose_fields_are_not_aligned_are_interpreted():
    def kernel(given, out):
        out[cuda.threadIdx.x] = given[cuda.threadIdx.x].m

    given, out = np.zeros(8, [("m", np.float64), ("n", np.int32)]), np.full(8, np.nan)
    report = run(kernel, given, out, block=8, compiled=True)
    assert not report.compiled and "the field m" in report.why_interpreted and not out.any()


def words(count, seed):
    """Random words, and pairs of halves at the ends of their range."""
    rng = np.random.default_rng(seed)
    ends = [0, 0x8000, 1, 0x83FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00, 0x7F7F]
    pairs = rng.choice(np.array(ends, np.uint32), (count, 2))
    near = rng.standard_normal((count, 2)).astype(np.float16).view(np.uint16).astype(np.uint32)
    kinds = rng.random(count)
    special, close = (p[:, 0] | p[:, 1] << 16 for p in (pairs, near))
    anything = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return np.where(kinds < 0.3, special, np.where(kinds < 0.6, close, anything)).astype(np.uint32)


def numbers(bits, name):
    """Which results are numbers, of fp32 or, packed, of fp16."""
    if bits.dtype == np.float32:
        return ~np.isnan(bits)
    if "f16" not in name or "bf16" in name:
        return np.full(len(bits), True)
    return ~np.isnan(bits.view(np.float16).reshape(-1, 2)).any(axis=1)


@pytest.mark.parametrize("name", packed_halves.OPERATIONS)
def test_packed_halves(name):
    function = next(f for m in (half2, integer, float32s) if (f := getattr(m, name, None)))
    kinds, result = function.signature.args, function.signature.return_type
    count, floats = len(kinds), str(kinds[0]) == "float32"

    def one(x, y, z, out):
        t = cuda.grid(1)
        out[t] = function(x[t])

    def two(x, y, z, out):
        t = cuda.grid(1)
        out[t] = function(x[t], y[t])

    def three(x, y, z, out):
        t = cuda.grid(1)
        out[t] = function(x[t], y[t], z[t])

    kernel, launch = (one, two, three)[count - 1], {"grid": 2, "block": 128}
    operands = [words(1024, seed) for seed in range(3)]
    if name in ("div_u32", "rem_u32"):
        operands[1] |= 1
    if floats:
        operands = [word.view(np.float32) for word in operands]
    out = np.zeros(1024, np.float32 if str(result) == "float32" else np.uint32)
    run(kernel, *operands, out, grid=8, block=128, compiled=False)
    fine = np.flatnonzero(numbers(out, name))
    assert alike(kernel, *(x[fine[:256]] for x in operands), out[:256], **launch)[1]
    if len(fine) < 1024:  # one that is none is left to the interpreter
        odd = np.flatnonzero(~numbers(out, name))[0]
        some = [x[[*fine[:200], odd, *fine[200:255]]] for x in operands]
        assert alike(kernel, *some, out[:256], **launch)[1] == (name.startswith("cvt_f32_bf16"))


def test_sums_towards_minus_infinity():
    """Those that cancel, that are exact, that lack next to nothing, and that are too large."""

    def sums(x, y, out):
        t = cuda.grid(1)
        out[t] = float32s.add_rm_f32(x[t], y[t])

    ends = [0, -0.0, 1, -1, 1e-45, -1e-45, 3.4e38, -3.4e38, np.inf, 1 + 2**-23, 2**-30, 12582912, -0.3]
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(ends, ends[:-1]))
    assert alike(sums, x, y, np.zeros(len(x), np.float32), grid=len(x), block=1)[1]


def test_division_and_shifts_at_the_ends():
    def ends(x, y, n, out):
        t = cuda.threadIdx.x
        out[t, 0], out[t, 1] = x[t] // y[t], x[t] % y[t]
        out[t, 2], out[t, 3] = x[t] << n[t], x[t] >> n[t]
        out[t, 4], out[t, 5] = int32(float32(x[t]) * float32(1e6)), uint32(float32(y[t]) * float32(-3.5))

    rng = np.random.default_rng(1)
    x, y = (rng.integers(-(1 << 31), 1 << 31, 32, dtype=np.int64) for _ in range(2))
    x[0], y[1], x[2], y[3] = -(1 << 63), 3, 7, -2
    n = np.array([0, 1, 31, 32, 63, 64, 65, 1 << 20] * 4)
    assert alike(ends, x, y, n, np.zeros((32, 6), np.int64))[1]


@pytest.mark.parametrize("shape", (4, 9))
def test_what_it_leaves_to_the_interpreter(shape):
    """An index outside, an element that nobody has written: a fault, and its line."""

    def faulty(index, out):
        part = cuda.local.array(4, int32)
        part[0] = 7
        out[0] = part[index[0]]

    told, ended = alike(faulty, np.array([shape - 1]), np.zeros(1, np.int64), block=1)
    assert not ended and issubclass(told[0], SimFault) and "test_native.py" in told[1]


# --- records --------------------------------------------------------------------------------------
def sharing(out, rounds, barriers):
    tile = cuda.shared.array(THREADS, int32)
    t, total = cuda.threadIdx.x, 0
    for r in range(rounds):
        tile[t] = t * r
        if barriers > 0:
            cuda.syncthreads()
        for i in range(THREADS):
            total += tile[i]
        if barriers > 1:
            cuda.syncthreads()
    out[cuda.grid(1)] = total


@pytest.mark.parametrize("seed", (0, 1))
@pytest.mark.parametrize("barriers", (2, 1, 0))
def test_many_readers_of_each_word(barriers, seed):
    told, ended = alike(sharing, np.zeros(THREADS, np.int64), 3, barriers, block=THREADS, seed=seed)
    assert ended == (barriers == 2)
    assert barriers == 2 or told[0] in (faults.DataRace, faults.UninitialisedRead)


@pytest.mark.parametrize("room, sets", [(64, 1 << 20), (1 << 16, 0), (64, 600)])
def test_tables_that_are_full(monkeypatch, room, sets):
    """Records and sets of readers beyond the room for them are Python's."""
    monkeypatch.setattr(record_table, "ROOM", room)
    monkeypatch.setattr(record_table, "SET_ROOM", sets)
    assert alike(sharing, np.zeros(THREADS, np.int64), 3, 2, block=THREADS)[1]
    assert alike(sharing, np.zeros(THREADS, np.int64), 3, 1, block=THREADS)[0][0] is faults.DataRace


def test_a_block_takes_back_the_sets_of_the_one_before(monkeypatch):
    """With sets for one block and a half, machine code checks the reads of sixteen by itself."""
    asked = []
    plain = memory.Checked.on_read
    monkeypatch.setattr(memory.Checked, "on_read", lambda *args: asked.append(args[2]) or plain(*args))
    monkeypatch.setattr(record_table, "SET_ROOM", 3 * THREADS // 2 * (layout.SET_THREADS + 2 * THREADS))
    report = run(sharing, np.zeros(16 * THREADS, np.int64), 3, 2, grid=16, block=THREADS, compiled=True)
    assert report.compiled and len(asked) < THREADS


@pytest.mark.parametrize("waits, writes", [(True, False), (False, False), (True, True)])
def test_records_of_ended_blocks_are_forgotten(monkeypatch, waits, writes):
    """The first block lives while others end, and knows afterwards who has accessed what. Mutants: nothing is
    forgotten; records that arrays or sets of readers hold keep their old numbers."""

    def first_waits(data, done, waits, writes):
        tile, i, t = cuda.shared.array(THREADS, int32), cuda.blockIdx.x, cuda.threadIdx.x
        for r in range(20):
            tile[t] = t * r + i
            cuda.syncthreads()
            data[cuda.grid(1)] += tile[(t + 1) % THREADS] + tile[0]
            if i == 0 and r == 10 and t == 0:
                n = 0
                while waits and ld_acquire_gpu_global_b32(global_address(done)) < 5:
                    data[t] += tile[n % THREADS]
                    n += 1
                if writes:
                    tile[0] = 7
            cuda.syncthreads()
        if i == 0 and t == 0:
            for other in range(6 * THREADS):
                data[t] += data[other]
        elif t == 0:
            red_add_release_gpu_global_u32(global_address(done), 1)

    counts, sweep = [], record_table.Table.sweep

    def counted(table, lists):
        sweep(table, lists)
        counts.append(table.words[layout.COUNT])
        table.full = 0

    monkeypatch.setattr(record_table, "FULL", 0)
    monkeypatch.setattr(record_table.Table, "sweep", counted)
    args = np.zeros(6 * THREADS, np.int64), np.zeros(1, np.uint32)
    told, ended = alike(first_waits, *args, waits, writes, grid=6, block=THREADS)
    right = waits and not writes
    assert ended if right else told[0] is faults.DataRace, told
    assert not right or len(counts) > 5 and max(counts) < 12 * THREADS


def test_blocks_that_read_the_same_words_and_write_them():
    def blocks(data, out, write):
        i = cuda.blockIdx.x
        out[cuda.grid(1)] = data[cuda.threadIdx.x // 2]
        if write and i == 1 and cuda.threadIdx.x == 5:
            data[2] = 1

    args = np.arange(16, dtype=np.int32), np.zeros(128, np.int32)
    assert alike(blocks, *args, 0, grid=4)[1]
    assert alike(blocks, *args, 1, grid=4)[0][0] is faults.DataRace


@pytest.mark.parametrize("ordered", (True, False))
def test_accesses_of_different_sizes(ordered):
    def sizes(out, ordered):
        area = cuda.shared.array(128, uint32, alignment=16)
        at, t = shared_address(area), uint32(cuda.threadIdx.x)
        st_shared_v4(at + 16 * t, t, t + 1, t + 2, t + 3)
        cuda.syncthreads()
        low, high = ld_shared_v2(at + 16 * t + 8)
        total = low + high + ld_shared_b32(at + (16 * t + 20) % 512) + ld_shared_v4(at + 16 * t)[1]
        if ordered:
            cuda.syncthreads()
        st_shared_b32(at + 16 * t + 4, 7)
        cuda.syncthreads()
        out[t] = total + ld_shared_v4(at + 16 * t)[1] + area[4 * t + 3]

    told, ended = alike(sizes, np.zeros(32, np.int64), ordered)
    assert ended if ordered else told[0] is faults.DataRace, told


def test_copies_and_plain_accesses_share_the_records():
    def through(data, out, waits):
        tile, bars = cuda.shared.array(64, uint32, alignment=16), cuda.shared.array(1, uint64)
        at, bar, t = shared_address(tile), shared_address(bars), cuda.threadIdx.x
        if t == 0:
            mbarrier_init(bar, 1)
            fence_mbarrier_init()
        cuda.syncthreads()
        for phase in range(2):
            if t == 0:
                mbarrier_arrive_expect_tx(bar, 256)
                cp_async_bulk_load(at, global_address(data) + uint64(256 * phase), 256, bar)
            if waits or phase == 0:
                mbarrier_wait(bar, phase)
            out[t] += tile[t] + tile[63 - t]
            fence_proxy_async()
            cuda.syncthreads()

    data = np.arange(128, dtype=np.uint32)
    told, ended = alike(through, data, np.zeros(64, np.int64), 1, block=64)
    assert ended, told
    assert issubclass(alike(through, data, np.zeros(64, np.int64), 0, block=64)[0][0], SimFault)


# --- device functions -----------------------------------------------------------------------------
@device
def mixed(x, y):
    """Arithmetic alone: an LLVM function."""
    return x * 3 - y, float32(x) / float32(2)


@device
def pick(shift, values, i):
    """May leave the kernel to the interpreter."""
    values[i % 4 + shift] += 7 // (shift + 1)
    return values[i % 4]


@device
def neighbour(tile, t, by):
    """Reads what another thread has written: a part of the coroutine."""
    return tile[(t + by) % THREADS]


@device
def both(tile, t, by):
    left, right = neighbour(tile, t, by), neighbour(tile, t, by + 1)
    return mixed(left, right)[0] + mixed(neighbour(tile, t, 5), right)[0] - left


@cuda.jit(device=True, inline="always")
def two_words(seed):
    """An array of each call's own."""
    words = cuda.local.array(2, int32)
    words[0], words[1] = seed, seed + 1
    return words


def calling(out, shifts, waits):
    tile, t = cuda.shared.array(THREADS, int32), int64(cuda.threadIdx.x)
    values, total = cuda.local.array(4, int32), 0
    for i in range(4):
        values[i] = i
    for r in range(3):
        tile[t] = t * r
        if waits:
            cuda.syncthreads()
        before = 2 * r  # lives on behind the calls
        total += both(tile, t, r) - neighbour(tile, t, before) * both(tile, r, t)
        total += before + pick(shifts[r], values, r)
        cuda.syncthreads()
    one, other = two_words(t), two_words(total)
    one[1] += 5
    out[t] = total + one[0] + one[1] * other[1]


@pytest.mark.parametrize("seed", (0, 3))
def test_functions_called_from_several_places(seed):
    assert alike(calling, np.zeros(THREADS, np.int64), np.arange(3) % 2, 1, block=THREADS, seed=seed)[1]


@pytest.mark.parametrize("shifts, waits, line", [
    ((0, 0, 0), 0, "return tile[(t + by) % THREADS]"), ((0, 9, 0), 1, "values[i % 4 + shift] += 7"),
])  # fmt: skip
def test_faults_inside_of_functions(shifts, waits, line):
    """A race in one that is part of the coroutine, an index outside in one that is an LLVM function."""
    told, ended = alike(calling, np.zeros(THREADS, np.int64), np.array(shifts), waits, block=THREADS)
    assert not ended and issubclass(told[0], SimFault) and line in told[2]


def test_a_function_of_the_library_stands_for_the_line_that_calls_it():
    """Two lines of the kernel are two barriers, though it is one line of the function."""

    def meet():
        cuda.syncthreads()

    meet.__module__ = "numba_deform.device.made_up"
    meet = device(meet)

    def branches(out):
        if cuda.threadIdx.x < 32:
            meet()
            out[cuda.threadIdx.x] = 1
        else:
            meet()

    told, _ = alike(branches, np.zeros(32, np.int64), block=64)
    assert told[0] is faults.DivergentBarrier and "meet()" in told[2]


def unrolled(turns):
    """A kernel with many calls, over which many variables live."""

    def kernel(out, data):
        tile, t = cuda.shared.array(THREADS, int64), int64(cuda.threadIdx.x)
        tile[t] = data[t]
        cuda.syncthreads()
        a, b, c, d, e, f = data[0], data[1], data[2], data[3], data[4], data[5]
        for _ in static_range(turns):
            a += neighbour(tile, t, b & 7)
            b += neighbour(tile, t, c & 7) ^ d
            c ^= neighbour(tile, t, d & 3) + e
            d, e, f = d + (e ^ a), e + (f & c), f ^ (a + b * c)
        out[t] = a + b + c + d + e + f

    return kernel


def test_code_grows_with_the_calls_and_not_with_their_square(codes, tmp_path):
    data, sizes = np.arange(THREADS), []
    assert alike(unrolled(1), np.zeros(THREADS, np.int64), data, block=THREADS)[1]
    for turns in (8, 24):
        codes(kept=tmp_path / str(turns))
        assert alike(unrolled(turns), np.zeros(THREADS, np.int64), data, block=THREADS)[1]
        sizes += [file.stat().st_size for file in (tmp_path / str(turns)).glob("*.object")]
    assert len(sizes) == 2 and sizes[1] < 4 * sizes[0]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_run_leaves_nothing_behind(compiled):
    """Blocks, records and words refer to each other: without a look at them they would stay for long."""
    data, out = np.arange(3) % 2, np.zeros(THREADS, np.int64)
    gc.disable()
    try:
        with short_collections():
            run(calling, out, data, 1, block=THREADS, schedules=3, compiled=compiled)
            assert not parts_of_runs()  # made since
    finally:
        gc.enable()


def parts_of_runs():
    parts = (execution.Execution, Block, NativeBlock, RequestHandler)
    return sum(type(each) in parts for each in gc.get_objects())


def test_machine_code_is_freed(monkeypatch, codes):
    """Of kernels that nobody runs any more: so many are kept, and no more engines of LLVM are there."""
    jit.check_functions()  # their code stays
    codes, made, before = codes(), weakref.WeakSet(), jit.machine_code

    def count(*args, **options):
        made.add(code := before(*args, **options))
        return code

    monkeypatch.setattr(code_cache, "machine_code", count)
    monkeypatch.setattr(code_cache, "KEPT", 2)
    with short_collections():
        for turns in range(5):
            assert run(unrolled(turns + 1), np.zeros(THREADS, np.int64), np.arange(THREADS), block=THREADS,
                       compiled=True).compiled  # fmt: skip
        gc.collect()
    assert len(made) == len(codes) == 2


def test_functions_of_which_most_is_forgotten(monkeypatch, codes):
    """What inference no longer keeps of them is inferred again."""
    monkeypatch.setattr(inference, "WHOLE", 1)
    monkeypatch.setattr(inference, "_known", {})
    assert alike(calling, np.zeros(THREADS, np.int64), np.arange(3) % 2, 1, block=THREADS)[1]


def test_functions_are_written_once(monkeypatch, codes):
    """Calls of a function share its code, but for one that makes an array of its own."""
    written = Counter()
    before = native_body.Body.__init__

    def count(self, maker, found, *args):
        written[found.function.__name__] += 1
        before(self, maker, found, *args)

    monkeypatch.setattr(native_body.Body, "__init__", count)
    assert run(calling, np.zeros(THREADS, np.int64), np.arange(3) % 2, 1, block=THREADS, compiled=True).compiled
    assert written["neighbour"] == written["both"] == 2  # tried as an LLVM function first
    assert written["mixed"] == written["pick"] == 1
    assert written["two_words"] == 2  # for each call


# --- when it runs ---------------------------------------------------------------------------------
@kernel(threads=32)
def copy(source: u64, out: u64, n: i32):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(source, i, 4)))


def copied(**options):
    source, out = np.arange(4000, dtype=np.uint32), np.zeros(4000, np.uint32)
    report = run(copy, source, out, 4000, grid=8, **options)
    assert np.array_equal(source, out)
    return report.compiled


def test_it_runs_where_it_is_asked_for_or_pays(monkeypatch, codes, tmp_path):
    codes(kept=tmp_path)
    monkeypatch.setattr(prepared_launch, "PATIENCE", float("inf"))
    assert not copied() and not copied(schedules=3)
    monkeypatch.setattr(prepared_launch, "PATIENCE", 0)
    assert copied() and not copied(compiled=False) and not copied(trace=True)
    monkeypatch.setattr(prepared_launch, "PATIENCE", float("inf"))
    assert copied(seed=3)  # it is there now
    codes(kept=tmp_path)
    assert copied() and not copied(compiled=False)  # in another process, from the first step


def test_it_takes_over_between_blocks(monkeypatch, codes):
    """A launch that turns out to be slow starts over, with the arrays as they were; not close to its end."""
    slow = iter([False, False, True, True])

    def is_slow(self, blocks=0):
        return not prepared_launch.CODES and next(slow)

    monkeypatch.setattr(prepared_launch.PreparedLaunch, "is_slow", is_slow)

    def count(out):
        out[cuda.grid(1)] += 1

    out = np.zeros(256, np.int32)
    assert run(count, out, grid=8).compiled and (out == 1).all() and not list(slow)


def test_a_slow_launch_that_has_no_machine_code_goes_on(monkeypatch, codes):
    """It does not start over for nothing. The watchdog rests while code is made, and looks again after that."""
    codes()
    told, grids = [], []

    class Execution(prepared_launch.Execution):
        def __init__(self, grid, *more):
            super().__init__(grid, *more)
            grids.append(grid)
            monkeypatch.setattr(prepared_launch, "PATIENCE", 0)  # slow from its first block on

    def compiled(program):
        told.append(grids[-1].watchdog and grids[-1].watchdog.execution)
        return prepared_launch.CODES.setdefault(program.key, "there is none")

    def count(out, turns):
        i = 0
        while i != turns:
            i += 1
        out[cuda.grid(1)] += 1

    monkeypatch.setattr(prepared_launch, "Execution", Execution)
    monkeypatch.setattr(prepared_launch, "compiled", compiled)
    monkeypatch.setattr(prepared_launch, "PATIENCE", float("inf"))
    out = np.zeros(64, np.int32)
    report = run(count, out, 3, grid=2)
    assert (out == 1).all() and not report.compiled and report.why_interpreted == "there is none"
    assert len(grids) == 1 and told == [None]
    codes()
    monkeypatch.setattr(prepared_launch, "PATIENCE", float("inf"))
    assert outcome(count, (out, -1), block=1, timeout=0.3)[0][0] is faults.Unfinished


def test_code_on_disk(monkeypatch, codes, tmp_path):
    """Another process has neither Numba nor LLVM do anything; what is damaged is made again; with another
    constant it is another kernel."""

    def again(step=1, made=0):
        known, calls = codes(kept=tmp_path), Counter()

        def count(name, function):
            def call(*args, **options):
                calls[name] += 1
                return function(*args, **options)

            return call

        monkeypatch.setitem(globals(), "step", step)
        out = np.zeros(32, np.int64)
        with monkeypatch.context() as counted:
            for module, name in ((code_cache, "machine_code"), (inference, "_inferred")):
                counted.setattr(module, name, count(name, getattr(module, name)))
            counted.setattr(inference, "_known", {})
            assert run(stepped, out, compiled=True).compiled and len(known) == 1
        assert out[2] == 2 * step
        return calls

    everything = {"machine_code": 1, "_inferred": 1}
    jit.check_functions()  # they stay
    assert again() == everything and again() == {} and again(step=5) == everything and again() == {}
    assert again(step=5) == {}
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        for damaged in (b"", whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
            file.write_bytes(damaged)
            assert again() + again(step=5)  # one of both
            assert not again() + again(step=5)


step = 1


def stepped(out):
    out[cuda.threadIdx.x] = cuda.threadIdx.x * step


def test_a_constant_of_the_module_that_changes(monkeypatch):
    out = np.zeros(32, np.int64)
    for value in (1, 3, 1):
        monkeypatch.setitem(globals(), "step", value)
        assert run(stepped, out, compiled=True).compiled
        assert out[2] == 2 * value


def test_what_has_no_machine_code_is_interpreted():
    def squares(z):
        z[cuda.threadIdx.x] = z[cuda.threadIdx.x] * z[cuda.threadIdx.x]

    z = np.full(32, 1 + 2j)
    assert not run(squares, z, compiled=True).compiled and (z == (1 + 2j) ** 2).all()


def test_a_kernel_that_is_too_large_is_interpreted(monkeypatch, codes):
    assert copied(compiled=True)
    codes()
    monkeypatch.setattr(writer, "LARGE", 4)
    assert not copied(compiled=True)


def test_a_loop_without_end_is_stopped():
    def forever(out):
        while out[0] < 1:
            out[1] += 1

    told, _ = outcome(forever, (np.zeros(2, np.int64),), block=1, timeout=0.3, compiled=True)
    assert told[0] is faults.Unfinished


def test_who_gives_up_machine_code_says_so():
    """``bar.sync 0`` with its number is left to the interpreter, where syncthreads is not."""
    def kernel(out):
        bar_sync(0, 64)
        out[cuda.threadIdx.x] = 1

    def plain(out):
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    told = []
    for function in (kernel, plain):
        out = np.zeros(64, np.int32)
        report = run(function, out, block=64, compiled=True)
        assert out.all()
        told.append((report.compiled, report.why_interpreted))
    assert told == [(False, prepared_launch.GAVE_UP), (True, "")]
