"""Machine code on the emulator: results as expected, counts as the CPU engine has them; needs nvdisasm."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, int32, uint32, uint64

import numba_deform as nd
from numba_deform.compiler.sass import ToolMissing, tool
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.engines.cpu import simulate
from numba_deform.engines.sass import Failed, Stuck, emulate, listing
from numba_deform.engines.sass.accesses import width
from numba_deform.engines.sass.listing import OPTIONS, disassembled, read
from numba_deform.engines.sass.units import SMS
from numba_deform.measure.bench import parse_entries
from numba_deform.measure.case import Case
from numba_deform.workloads.presets import preset

try:
    tool("nvdisasm"), tool("cuobjdump")
except ToolMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from base import load  # noqa: E402

sys.path[:0] = [str(Path(__file__).parents[1] / "sim" / "outside"), str(Path(__file__).parents[2] / "bench")]
from fetched_kernels import PREPARED  # noqa: E402
from other_kernels import backward  # noqa: E402
from pingpong import pingpong  # noqa: E402
from predicted_others import SETS  # noqa: E402

VARIANTS = ("direct", "tile", "tma", "persistent", "roles-4-4", "window", "warp-specialized")


@pytest.mark.full
def test_a_pipeline():
    """A Launch compares its outputs; copies and arrivals are as many as the engine's."""
    launch = copy(stages=2)
    run = emulate(launch)
    copies = sum(run.counts.requests[one.number] for one in run.listing if one.stem == "UTMALDG")
    assert copies == simulate(launch).copies
    assert run.counts.total("tma_bytes") == launch.outputs["out"].nbytes


def test_what_is_inlined_from_another_file_counts_for_the_call():
    @nd.kernel(threads=32)
    def first_lanes(out: nd.float32[:]):
        if nd.lane() < 3:
            out[nd.lane()] = nd.warp()

    code = first_lanes.py_func.__code__
    lines = range(code.co_firstlineno, max(line or 0 for *_, line in code.co_lines()) + 1)
    found = {one.line for one in listing(first_lanes)}
    assert {Path(file).name for file, _ in found} == {Path(__file__).name}
    assert {line for _, line in found} <= set(lines), found


@pytest.mark.full
def test_lines_do_not_change_the_code():
    kernel = copy(stages=2).kernel
    plain, lined = kernel.compile(), listing(kernel)
    without = read(*disassembled(plain.cubin, *OPTIONS), plain.entry)
    assert [str(one) for one in without] == [str(one) for one in lined]
    assert {one.line for one in without} == {("?", 0)}
    assert len({line for file, line in {one.line for one in lined} if Path(file).name == "copy.py"}) > 5


@pytest.mark.full
def test_a_timeline_of_the_model_has_the_steps_of_the_engine():
    launch = copy(stages=2)
    model, engine = (nd.timeline(launch, engine=name) for name in ("model", "cpu"))
    steps = [[(s.activity, s.warp, s.stage, s.use, s.ring) for s in t.spans] for t in (model, engine)]
    assert steps[0] == steps[1] and len(model.flights) == len(engine.flights)
    assert "model" in model.engine and [s.start for s in model.spans] != [s.start for s in engine.spans]
    with pytest.raises(TypeError, match="schedules are options of the CPU engine"):
        nd.timeline(launch, engine="model", schedules=2)


PITCH = 33  # of a row: 32 would put a column into one bank


@nd.kernel(threads=32)
def transposed(out: float32[:, :]):
    tile = cuda.shared.array((32, PITCH), float32)
    row = cuda.threadIdx.x
    for k in range(32):
        tile[row, k] = float32(row)
    cuda.syncwarp()
    for k in range(32):
        out[k, row] = tile[k, row]


def test_a_profile():
    """Totals, lines, advice and JSON of a kernel of one's own, whose arrays are written."""
    out = np.zeros((32, 32), np.float32)
    found = nd.profile(transposed, 1, [out])
    assert (out == np.arange(32)[:, None]).all()
    assert found.totals["bank_conflicts"] == 0
    assert found.totals["global_sectors"] == 32 * 4
    assert found.totals["l2_bytes"] == 32 * 4 * 32
    stored = max(found.lines, key=lambda line: line.counts["sectors"])
    assert "out[k, row] =" in stored.text
    assert sum(line.counts["executed"] for line in found.lines) == found.totals["instructions"]
    assert stored.place in found.text() and "<pre " in found._repr_html_()
    assert found.document()["totals"]["instructions"] == found.totals["instructions"]


def test_a_profile_of_a_large_grid():
    """One SM's blocks stand for all, which is said; all run if that is asked for, up to a limit."""

    @nd.kernel(threads=32)
    def numbered(out: float32[:]):
        out[cuda.blockIdx.x] = float32(1)

    out = np.zeros(32 * SMS + 1, np.float32)
    found = nd.profile(numbered, len(out), [out])
    assert np.flatnonzero(out).tolist() == list(range(0, len(out), SMS))
    assert f"33 of {len(out):,} blocks ran" in found.text() and "only=all" in found.text()
    assert found.totals["global_sectors"] == pytest.approx(len(out))
    whole = nd.profile(numbered, len(out), [out], only=None)
    assert out.all() and "only=all" not in whole.text()
    with pytest.raises(Stuck, match=r"after 500 instructions of warps, .* of 4,225 blocks have begun"):
        nd.profile(numbered, len(out), [out], only=None, limit=500)


def test_a_predicted_time():
    """Every instruction is in the trace, in each warp's order, and the model plays all of it."""
    out = np.zeros((32, 32), np.float32)
    run = emulate(transposed, 1, [out], traced=True)
    (trace,), = run.traces.blocks
    numbers = [entry if isinstance(entry, int) else entry[0] for entry in trace]
    assert np.bincount(numbers, minlength=len(run.listing)).tolist() == run.counts.executed.tolist()
    assert run.listing.code[numbers[-1]].stem == "EXIT"
    stores = [entry[1] for entry in trace if not isinstance(entry, int) and entry[1].past]
    assert sum(one.past for one in stores) == 32 * 4
    found = nd.profile(transposed, 1, [out], time=True)
    assert found.time.cycles > 32 * 2  # each store of a column, and each of a row, takes the data path once
    assert found.time.interval[0] < found.time.microseconds < found.time.interval[1]
    assert "predicted: " in found.text() and found.document()["time"]["binds"] == found.time.binds
    assert nd.profile(transposed, 1, [out]).time is None


@pytest.mark.full
def test_a_predicted_pipeline():
    """More stages hide the copies' latency: the model knows it, without a constant for it."""
    one, four = (nd.profile(copy(stages=stages), time=True) for stages in (1, 4))
    assert one.time.reasons["mbarrier"] > four.time.reasons["mbarrier"]
    assert one.time.cycles > 1.3 * four.time.cycles


@nd.kernel(threads=64)
def turned(out: float32[:]):
    shared = cuda.shared.array(64, float32)
    tid = cuda.threadIdx.x
    shared[tid] = float32(tid)
    cuda.syncthreads()
    out[tid] = shared[63 - tid]


def test_a_barrier_with_a_trace_and_without():
    """The first warp waits for the second, in the trace as well: its reason is the barrier."""
    for time in (False, True):
        out = np.zeros(64, np.float32)
        found = nd.profile(turned, 1, [out], time=time)
        assert (out == np.arange(63, -1, -1)).all()
    waits = [number for (reason, number), cycles in found.time.stalls.items() if reason == "barrier" and cycles]
    code = found.run.listing.code
    assert [code[number - 1].stem for number in waits] == ["BAR"]  # told where the warp goes on


@pytest.mark.full
def test_predicted_time_of_a_cluster():
    """Its blocks' SMs side by side: with two stages one waits less for the other."""
    one, two = (nd.profile(multicast(stages=stages, steps=9), time=True) for stages in (1, 2))
    assert one.time.cycles > 1.2 * two.time.cycles
    assert one.time.reasons["mbarrier"] > two.time.reasons["mbarrier"]


def test_clusters_have_no_timeline_of_the_model():
    with pytest.raises(ValueError, match="multicast has clusters, of which the model draws no timeline"):
        nd.timeline(multicast(), engine="model")


def test_a_profile_says_which_engine():
    with pytest.raises(ValueError, match="engine='tpu' must be cpu or gpu"):
        nd.profile(copy(), engine="tpu")


@nd.kernel(threads=32)
def outside(out: nd.u64):
    nd.st_global_b32(out + nd.u64(1 << 20), nd.u32(1))


def moves_registers(gives):
    """A kernel whose second warpgroup takes registers, which the first gives up or not."""

    @nd.kernel(threads=384, min_blocks=1, whole_program=True)
    def kernel(out: nd.u64):
        i = int32(cuda.threadIdx.x)
        if i < 128:
            if gives:
                nd.setmaxnreg_dec(24)
        else:
            nd.setmaxnreg_inc(232)
        nd.st_global_b32(out + uint64(4 * i), uint32(i))

    return kernel


def test_registers_that_a_warpgroup_gives_up_are_another_ones():
    out = np.zeros(384, np.uint32)
    for traced in False, True:
        run = emulate(moves_registers(True), 1, [out], traced=traced)
        np.testing.assert_array_equal(out, np.arange(384))
    assert {one.opcode for one in run.listing if one.stem == "USETMAXREG"} == {
        "USETMAXREG.DEALLOC.CTAPOOL", "USETMAXREG.TRY_ALLOC.CTAPOOL"}  # fmt: skip


def test_registers_that_nobody_gives_up_are_waited_for_in_vain():
    with pytest.raises(Stuck, match="no warp can go on: .*USETMAXREG.TRY_ALLOC.*test_emulator.py"):
        emulate(moves_registers(False), 1, [np.zeros(384, np.uint32)])


def test_a_kernel_that_spills():
    """The assembler marks what it spills, behind the operands."""

    @nd.kernel(threads=64, min_blocks=32)
    def kernel(data: nd.u64, out: nd.u64):
        i = int32(cuda.threadIdx.x)
        parts = cuda.local.array(60, uint32)
        for j in nd.static_range(60):
            parts[j] = nd.ld_global_b32(data + uint64(4 * (i * 60 + j)))
        total = uint32(0)
        for _ in range(2):
            cuda.syncthreads()
            for j in nd.static_range(60):
                total = uint32(total * uint32(3) + parts[j] * parts[59 - j])
        nd.st_global_b32(out + uint64(4 * i), total)

    data = np.random.default_rng(1).integers(0, 9, 64 * 60).astype(np.uint32)
    out, expected = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    run = emulate(kernel, 1, [data, out])
    simulate(kernel, 1, args=[data, expected])
    np.testing.assert_array_equal(out, expected)
    for stem in ("LDL", "STL"):  # 4 sectors for each word of a warp; what was stored is in L1
        some = [one.number for one in run.listing if one.stem == stem]
        sectors = sum(4 * width(run.listing.code[n]) // 4 * run.counts.executed[n] for n in some)
        assert run.counts.sectors[some].sum() == sectors > 0
        assert run.counts.l2_bytes[some].sum() == (stem == "STL") * 32 * sectors
        assert run.counts.hits[some].sum() == (stem == "LDL") * sectors


def test_setmaxnreg_of_ptx(monkeypatch):
    """By ptxas; where there is none, that it has no effect is said."""
    text = re.sub(r"\.version .*", ".version 8.0", moves_registers(True).compile().ptx)
    out = np.zeros(384, np.uint32)

    def profiled():
        (name,) = (kernel := nd.from_ptx(text))
        found = nd.profile(kernel[name], 1, [out], block=384)
        return {one.stem for one in found.run.listing}, found.text()

    if shutil.which("ptxas"):
        stems, told = profiled()
        assert "USETMAXREG" in stems and "setmaxnreg" not in told
    monkeypatch.setattr(shutil, "which", lambda name: None)
    stems, told = profiled()
    assert "USETMAXREG" not in stems and "its setmaxnreg has no effect here" in told


@pytest.mark.full
def test_a_ping_pong_product():
    """Two warpgroups in turn, whose registers a third gives up: products, boxes and stores are those of the
    text, and the model knows that each waits for its turn."""
    found = nd.profile(pingpong(registers=232), time=True)
    assert {"USETMAXREG"} <= {one.stem for one in found.run.listing}
    assert found.pipes["tensor"] == 4 * 4 * 4 * 4  # tiles, steps, parts of 16, warps of a group
    assert found.totals["tma_requests"] == 2 * 4 * 4
    assert found.totals["global_sectors"] == 2 * 64 * 4 * 64 * 4 / 32  # a lane stores one word at a time
    assert found.time.reasons["barrier"] > 0.1 and found.time.reasons["mbarrier"] > 0.1


@pytest.mark.full
@pytest.mark.parametrize("of, name", [(of, name) for of in SETS for name in SETS[of].KERNELS])
def test_kernels_that_the_model_was_not_made_with(of, name):
    """At a small size, their results are those of NumPy."""
    if hasattr(SETS[of], "prepare") and not (PREPARED / f"{name}.cubin").exists():
        pytest.skip("python bench/predicted_others.py prepare has not run here")
    emulate(SETS[of].KERNELS[name](*SETS[of].SMALL[name]))


@pytest.mark.full
def test_a_backward_pass_that_spills():
    """FlashAttention's, a thread a key with 256 numbers: L1 has all that is spilled."""
    found = nd.profile(backward(queries=4, blocks=1), time=True)
    read = [one.number for one in found.run.listing if one.stem == "LDL"]
    counts = found.run.counts
    assert found.totals["spills"] > counts.executed[read].sum() > 0
    assert counts.hits[read].sum() == counts.sectors[read].sum()
    assert found.time.binds == "data path"


def test_what_fails_is_named_with_its_line():
    with pytest.raises(Failed, match=r"STG.* \(instruction \d+, test_emulator.py:\d+\): 4 bytes at 0x"):
        emulate(outside, 1, [np.zeros(4, np.uint32)])


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_as_the_engine_has_them(name):
    """To the bit: what the packed kernels compute is rounded at the same places."""
    case = Case(preset("tiny").generate(1))
    bound, _ = parse_entries(name)[0].bind(case)
    out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
    emulate(bound.kernel, bound.blocks, bound.arguments((*case.arrays, out)), bound.shared_bytes)
    expected, _ = bound.run(case.arrays)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.full
def test_a_product_of_matrices():
    emulate(product())


# Of the programs of single instructions those that have what no other has; all of them run.
SINGLE = ("a_map_for_each_group", "every_field_of_a_map", "what_is_pending", "a_comes_in_registers",
          "an_arrival_of_the_copies_and_one_of_the_thread", "the_other_block_drops_out", "words_by_st_async",
          "subnormal_floats_are_zeros", "edges_of_min_bf16", "edges_of_add_f32",
          "fences_of_scope_cluster")  # fmt: skip
PROGRAMS = [("right", name) for name in list(load("right"))[::2]] + [("instructions", name) for name in SINGLE]
PROGRAMS += [("whole", name) for name, one in load("whole").items() if not one.faults]


@pytest.mark.full
@pytest.mark.parametrize("folder, name", PROGRAMS)
def test_right_programs(folder, name):
    program = load(folder)[name]
    args = program.args()
    emulate(program.typed(), program.grid, args, program.shared_bytes, program.cluster, limit=2_000_000)
    for got, expected in program.expect(*args):
        got, expected = np.asarray(got), np.asarray(expected)
        if got.dtype.kind in "fc":  # contraction
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        else:
            assert (got == expected).all()
