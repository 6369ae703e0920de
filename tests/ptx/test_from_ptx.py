"""PTX as kernels of the engine: right texts leave the right numbers, wrong ones are named by rule and line, and
what cannot be read is refused by its line."""

import re
from pathlib import Path

import numpy as np
import pytest
from stored import COMPILED, KERNELS, compiled

import numba_deform as nd
from numba_deform.engines import faults

RING = (KERNELS / "ring_by_hand.ptx").read_text()
HEAD = ".version 8.3\n.target sm_90a\n.address_size 64\n"
ANY = dict(schedules=6, landing="random")


def kernel(body, parameters=".param .u64 data, .param .u64 out", more=""):
    """An entry ``k`` of these instructions; lines count from the body's first as line 1."""
    registers = ".reg .pred p, q; .reg .b32 a, b, c, d, t; .reg .b64 x, y, z; .reg .f32 f, g;"
    head = f".version 8.3 .target sm_90a .address_size 64 {more} .entry k({parameters}) {{ {registers} "
    return nd.from_ptx(head.replace("\n", " ") + body + "\nret;\n}\n")["k"]


def run(kernel, *args, grid=1, block=32, **more):
    report = nd.simulate(kernel, grid, block, list(args), **more)
    assert report.compiled == more.get("compiled", report.compiled)


@pytest.fixture(params=[False, True], ids=("interpreted", "machine code"))
def compiled_too(request):
    return request.param


def ring(text=RING, **more):
    data, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    run(nd.from_ptx(text)["ring"], data, out, block=64, **more)
    return data, out


def test_a_ring_by_hand(compiled_too):
    for landing in ("late", "random", "earliest"):
        data, out = ring(landing=landing, schedules=3, compiled=compiled_too)
        assert np.array_equal(out, 2 * data)
    data, out = np.ones(128, np.float32), np.zeros(128, np.float32)
    report = nd.explore(nd.from_ptx(RING)["ring"], 1, 64, [data, out], limit=5)
    assert report.schedules == 5


@pytest.mark.parametrize("old, new, fault, blamed", [
    ("    @!done bra  come;\n", "", faults.InFlightRead, "ld.shared.f32"),
    ("    @!done bra  free;\n", "", faults.UnobservedPhase, "mbarrier.arrive.expect_tx"),
    ("    fence.mbarrier_init.release.cluster;\n", "", faults.MissingInitFence, "cp.async.bulk"),
    ("128;\n    mul", "144;\n    mul", faults.MissingBytes, "@!done|mbarrier.try_wait"),
    ("[empty+8], 32", "[empty+8], 33", faults.MissingArrivals, "mbarrier.try_wait"),
    ("mul.wide.u32 far, at, 4;", "mul.wide.u32 far, at, 8;", faults.OutOfRange, "st.global"),
    ("    bar.sync    0;\n", "", faults.BarrierFault, "mbarrier"),
])  # fmt: skip
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_faults_of_a_ring_by_hand(old, new, fault, blamed, compiled):
    assert RING.count(old) == 1
    text = RING.replace(old, new)
    with pytest.raises(fault) as caught:
        ring(text, **ANY, compiled=compiled)
    line = int(caught.value.where.rpartition(":")[2])
    assert re.search(blamed, text.splitlines()[line - 1])
    assert caught.value.source == text.splitlines()[line - 1].strip()


def test_a_file_names_itself(tmp_path):
    file = tmp_path / "ring.ptx"
    file.write_text(RING.replace("fence.mbarrier_init.release.cluster;", ""))
    with pytest.raises(faults.MissingInitFence) as caught:
        ring(file)
    assert caught.value.where.startswith(f"{file.resolve()}:")


# --- of a compiler ----------------------------------------------------------------------------------
PIPELINE = (KERNELS / "pipeline.ptx").read_text()


def pipeline(text):
    data = np.random.default_rng(0).integers(0, 1000, (5, 32), dtype=np.uint32)
    out = np.zeros_like(data)
    run(nd.from_ptx(text)["pipeline"], data, out, 5, block=64, **ANY)
    return data, out


def test_a_compiled_pipeline():
    data, out = pipeline(PIPELINE)
    assert np.array_equal(out, 2 * data)


@pytest.mark.parametrize("instruction, fault, blamed", [
    ("fence.mbarrier_init.release.cluster", faults.MissingInitFence, "cp_async_bulk_load"),
    ("bar.sync 	0", faults.BarrierFault, "mbarrier_"),
    ("mbarrier.arrive.release.cta.shared::cta.b64 _", faults.MissingArrivals, "mbarrier_try_wait"),
    ("cp.async.bulk.shared", faults.MissingBytes, "mbarrier_try_wait"),
])  # fmt: skip
def test_faults_name_the_line_of_the_source(instruction, fault, blamed):
    """The instruction is taken out of the text: the report names a line of the Python file."""
    text, count = re.subn(rf"{re.escape(instruction)}[^;]*;", "", PIPELINE)
    assert count >= 1
    with pytest.raises(fault) as caught:
        pipeline(text)
    file, _, line = caught.value.where.rpartition(":")
    assert file == "pipeline.py"
    assert blamed in (KERNELS / "pipeline.py").read_text().splitlines()[int(line) - 1]


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILED)
def test_stored_texts_are_what_the_compiler_makes(name):
    """Numba counts the shared arrays of all kernels that a process has compiled."""
    texts = compiled(name), (KERNELS / f"{name}.ptx").read_text()
    made, kept = (re.sub(r"_cudapy_smem_\d+", "smem", text) for text in texts)
    assert made == kept


# --- parts of the language ----------------------------------------------------------------------------
def test_inlined_functions_name_the_line_of_their_call():
    """The innermost frame in the file that the kernel is from; a header's own line where it is in no other."""
    files = '.file 1 "k.cu" .file 2 "header.h"'
    text = """
.loc 1 10 1
ld.param.u64 x, [out];
.loc 1 20 3
.loc 2 7 5, function_name $L__info_string0, inlined_at 1 20 3
st.global.u32 [x+128], 0;
.loc 1 30 1"""
    with pytest.raises(faults.OutOfRange) as caught:
        run(kernel(text, more=files), np.zeros(32, np.int32), np.zeros(32, np.int32), block=1)
    assert caught.value.where == "k.cu:20"
    inner = text.replace(".loc 2 7 5", ".loc 1 3 5")
    with pytest.raises(faults.OutOfRange, match=r"\(inlined at k.cu:20\)") as caught:
        run(kernel(inner, more=files), np.zeros(32, np.int32), np.zeros(32, np.int32), block=1)
    assert caught.value.where == "k.cu:3"


def test_frames_around_a_whole_kernel_say_nothing():
    """A library's kernel calls an object's operator, and that all the rest: the line is the first inside that
    is not the same for all."""
    files = '.file 1 "launch.h" .file 2 "mainloop.h"'
    around = "function_name $L__info_string0, inlined_at 1 10 3"
    text = f"""
.loc 2 7 5, {around}
ld.param.u64 x, [out];
.loc 2 8 5, {around}
st.global.u32 [x+128], 0;
.loc 2 9 5, {around}"""
    with pytest.raises(faults.OutOfRange, match=r"\(inlined at launch.h:10\)") as caught:
        run(kernel(text, more=files), np.zeros(32, np.int32), np.zeros(32, np.int32), block=1)
    assert caught.value.where == "mainloop.h:8"
    some = text.replace(f".loc 2 7 5, {around}", ".loc 1 3 1")  # the kernel has lines of its own
    with pytest.raises(faults.OutOfRange, match=r"\(calls mainloop.h:8\)") as caught:
        run(kernel(some, more=files), np.zeros(32, np.int32), np.zeros(32, np.int32), block=1)
    assert caught.value.where == "launch.h:10"


@pytest.mark.parametrize(("kind", "number", "wide"), [
    ("s16", -7, -7), ("u16", -7, 65529), ("s8", -7, -7), ("u8", 0x1F9, 0xF9), ("s32", -7, -7),
])  # fmt: skip
def test_a_parameter_has_the_bits_of_its_type(kind, number, wide, compiled_too):
    text = f"""
ld.param.u64 x, [out];
ld.param.{kind} a, [n];
cvt.s64.{kind} y, a;
st.global.b64 [x], y;"""
    out = np.zeros(1, np.int64)
    made = kernel(text, parameters=f".param .{kind} n, .param .u64 out")
    run(made, number, out, block=1, compiled=compiled_too)
    assert out[0] == wide


def test_registers_that_floats_are_moved_to(compiled_too):
    """They are floats, and keep all bits of a NaN; one that takes a whole number as well is none."""
    made = kernel("""
ld.param.u64 x, [data];
ld.param.u64 y, [out];
ld.global.f32 a, [x];
mov.b32 b, a;
mov.b32 c, 0f40000000;
mov.b32 d, b;
add.u32 d, d, 1;
st.global.b32 [y], b;
st.global.b32 [y+4], c;
st.global.b32 [y+8], d;""")
    kinds = {name: kind for name, kind in made.registers.items() if name in "abcd"}
    assert kinds == {"a": "f32", "b": "f32", "c": "f32", "d": "b32"}
    data, out = np.array([0xFFC12345], np.uint32), np.zeros(3, np.uint32)
    run(made, data, out, block=1, compiled=compiled_too)
    assert out.tolist() == [0xFFC12345, 0x40000000, 0xFFC12346]


def test_functions_local_memory_and_module_variables(compiled_too):
    """A call by .param space, an array of a thread's own, a table with initial values."""
    table = ".global .align 4 .b32 table[4] = {3, 0x10, -1, 7};"
    double = (".func (.param .b32 r) twice(.param .b32 v) { .reg .b32 a; ld.param.b32 a, [v]; "
              "add.u32 a, a, a; st.param.b32 [r], a; ret; }")  # fmt: skip
    body = """
.local .align 8 .b8 depot[16];
mov.u32 t, %tid.x;
and.b32 a, t, 3;
mul.wide.u32 x, a, 4;
mov.u64 y, table;
add.u64 y, y, x;
ld.global.b32 b, [y];
mov.u64 z, depot;
add.u64 z, z, x;
st.local.b32 [z], b;
cvta.local.u64 z, z;
ld.b32 b, [z];
{ .param .b32 v; .param .b32 r;
st.param.b32 [v], b;
call.uni (r), twice, (v);
ld.param.b32 b, [r]; }
ld.param.u64 x, [out];
mul.wide.u32 y, t, 4;
add.u64 x, x, y;
st.global.b32 [x], b;"""
    out = np.zeros(32, np.int32)
    run(kernel(body, more=table + double), np.zeros(1), out, compiled=compiled_too)
    assert np.array_equal(out, np.tile([6, 32, -2, 14], 8))
    with pytest.raises(faults.OutOfRange, match="local memory"):
        text = body.replace("[z], b", "[z+16], b")
        run(kernel(text, more=table + double), np.zeros(1), out, compiled=compiled_too)


def test_bytes_halves_and_vectors(compiled_too):
    """Narrow loads and stores, with and without a sign, and a register wider than what is loaded."""
    body = """
ld.param.u64 x, [data];
ld.param.u64 y, [out];
ld.global.s8 a, [x];
st.global.b32 [y], a;
ld.global.u8 a, [x];
st.global.b32 [y+4], a;
ld.global.s16 z, [x+2];
st.global.b64 [y+8], z;
ld.global.v2.u16 {a, b}, [x];
st.global.v2.b32 [y+16], {b, a};
st.global.v4.u8 [y+24], {a, b, a, b};
st.global.u8 [y+29], a;"""
    data, out = np.array([0xF0, 1, 0xFE, 0xFF], np.uint8), np.zeros(32, np.uint8)
    run(kernel(body), data, out, block=1, compiled=compiled_too)
    words = np.array([-16, 0xF0, -2, -1, 0xFFFE, 0x01F0], np.int64).astype(np.uint32)
    assert np.array_equal(out[:24].view(np.uint32), words)
    assert out[24:].tolist() == [0xF0, 0xFE, 0xF0, 0xFE, 0, 0xF0, 0, 0]


@pytest.mark.parametrize("name, kind, start, given, left", [
    ("add", "u32", 5, 7, 12), ("inc", "u32", 5, 5, 0), ("dec", "u32", 0, 9, 9), ("max", "s32", 5, -3, 5),
    ("min", "u32", 5, 2**32 - 3, 5), ("and", "b32", 12, 10, 8), ("xor", "b32", 12, 10, 6),
    ("exch", "b32", 1, 2, 2), ("add", "u64", 2**32 - 1, 1, 2**32), ("max", "s64", 2**40, -1, 2**40),
    ("or", "b64", 2**40, 1, 2**40 + 1),
])  # fmt: skip
def test_atomics(name, kind, start, given, left):
    size, x = ("b64", "z") if kind.endswith("64") else ("b32", "b")
    body = f"""
ld.param.u64 x, [data];
mov.{size} {x}, {given};
atom.global.{name}.{kind} {x}, [x], {x};
ld.param.u64 y, [out];
st.global.{size} [y], {x};"""
    dtype = np.uint64 if kind.endswith("64") else np.uint32
    data, out = np.full(1, start, dtype), np.zeros(1, dtype)
    run(kernel(body), data, out, block=1)
    assert (data[0], out[0]) == (left, start)


def test_shuffles_votes_and_elections(compiled_too):
    body = """
mov.u32 t, %tid.x;
shfl.sync.up.b32 a|p, t, 1, 0, -1;
selp.b32 a, a, 100, p;
setp.lt.u32 p, t, 3;
vote.sync.ballot.b32 b, p, -1;
elect.sync c|q, -1;
selp.b32 c, 1000, c, q;
add.u32 a, a, b;
add.u32 a, a, c;
ld.param.u64 x, [out];
mul.wide.u32 y, t, 4;
add.u64 x, x, y;
st.global.b32 [x], a;"""
    out = np.zeros(32, np.int32)
    run(kernel(body), np.zeros(1), out, compiled=compiled_too)
    assert np.array_equal(out, [1107, *(i + 7 for i in range(31))])


def test_a_structure_with_pointers(compiled_too):
    """What they point to is no argument: it is named besides."""
    body = """
ld.param.u64 x, [s];
ld.param.u64 y, [s+8];
mov.u32 a, %tid.x;
mul.wide.u32 z, a, 4;
add.u64 x, x, z;
add.u64 y, y, z;
ld.global.f32 f, [x];
add.f32 f, f, f;
st.global.f32 [y], f;"""
    made = kernel(body, ".param .align 8 .b8 s[16]")
    data = np.ones((3, 1 << 14), np.float32)[1, :32]  # far from the structure, wherever NumPy puts that
    out = np.zeros_like(data)
    structure = np.array([data.ctypes.data, out.ctypes.data], np.uint64)
    run(made.reaching({"data": data, "out": out}), structure, compiled=compiled_too)
    assert np.array_equal(out, 2 * data)
    with pytest.raises(faults.OutOfRange, match="byte 64 of out, which has 64"):
        run(made.reaching({"data": data, "out": out[:16]}), structure, compiled=compiled_too)
    with pytest.raises(faults.OutOfRange, match="no array of this launch is there"):
        run(made, structure)


def test_functions_that_are_not_inlined(tmp_path):
    """A fault in one names its own line, as the source has it."""
    text = HEAD + """.file 1 "two.cu"
.func (.param .b32 r) twice(.param .b32 n) {
.reg .b32 a;
.loc 1 3 0
ld.param.b32 a, [n];
FAULT
shl.b32 a, a, 1;
st.param.b32 [r], a;
ret;
}
.entry k(.param .u64 out) {
.reg .b32 a; .reg .b64 x;
.loc 1 7 0
ld.param.u64 x, [out];
mov.b32 a, WARP_SZ;
{ .param .b32 p; .param .b32 q; st.param.b32 [p], a; call.uni (q), twice, (p); ld.param.b32 a, [q]; }
st.global.b32 [x], a;
ret;
}"""
    out = np.zeros(1, np.uint32)
    run(nd.from_ptx(text.replace("FAULT", ""))["k"], out, block=1)
    assert out[0] == 64
    with pytest.raises(faults.KernelError) as caught:
        run(nd.from_ptx(text.replace("FAULT", "trap;"))["k"], out, block=1)
    assert caught.value.where == "two.cu:3"
    with pytest.raises(ValueError, match=r"^two.cu:3: discard.global.L2 .* is not .*\(line 9 of the PTX\)"):
        nd.from_ptx(text.replace("FAULT", "discard.global.L2 [x], 128;"))["k"]


@pytest.mark.parametrize("declared, static, placed", [
    (1, 0, 1024), (1, 24, 32), (1, 1024, 1024), (16, 1000, 16), (128, 24, 128), (1024, 24, 1024),
])  # fmt: skip
def test_where_dynamic_shared_memory_begins(declared, static, placed):
    """As an H200 places it, behind the static part, which begins at 1024; or as the text declares it."""
    more = f".extern .shared .align {declared} .b8 dynamic[];"
    more += f" .shared .align 8 .b8 before[{static}];" if static else ""
    body = "ld.param.u64 x, [out];\nmov.u32 a, dynamic;\nst.global.u32 [x], a;\n"
    made = kernel(body + "st.shared.u32 [before], a;" * (static > 0), more=more)
    for each, multiple in ((made, placed), (made.strict(), max(16, declared))):
        out = np.zeros(1, np.uint32)
        nd.simulate(each, 1, 1, [out, out], 4096)
        assert int(out[0]) & -int(out[0]) == multiple


def test_labels_of_blocks_on_one_line(compiled_too):
    """As inline assembly comes out of a loop that the compiler has unrolled: the labels are of their block."""
    count = "{{ .reg .pred q; .reg .b32 n; mov.u32 n, 0; L: add.u32 n, n, 1; setp.lt.u32 q, n, {}; "
    count += "@q bra L; M: add.u32 a, a, n; }} "
    body = "ld.param.u64 x, [out];\nmov.u32 a, 0;\n" + "".join(map(count.format, (3, 5, 7)))
    out = np.zeros(1, np.uint32)
    run(kernel(body + "st.global.u32 [x], a;"), out, out, block=1, compiled=compiled_too)
    assert out[0] == 3 + 5 + 7


def test_maps_at_any_place_of_a_parameter():
    """A structure of a kernel with a map behind other fields."""
    body = """
ld.param.u32 t, [s];
mov.u64 x, s;
cvta.param.u64 x, x;
add.u64 x, x, 64;
mov.u32 a, tile;
mov.u32 b, bar;
mbarrier.init.shared::cta.b64 [b], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 z, [b], 128;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [a], [x, {t, t}], [b];
again: mbarrier.try_wait.parity.shared::cta.b64 p, [b], 0;
@!p bra again;
ld.shared.b32 c, [a+4];
ld.param.u64 y, [out];
st.global.b32 [y], c;"""
    room = ".shared .align 128 .b8 tile[128]; .shared .align 8 .b64 bar;"
    kernel_ = kernel(body, ".param .align 64 .b8 s[192], .param .u64 out, .param .u64 data", room)
    maps = nd.TensorMapArray([nd.TensorMap.of(np.arange(64, dtype=np.int32).reshape(2, 32), (32, 1))])
    given, out = np.zeros(256, np.uint8), np.zeros(1, np.int32)
    given = given[-given.ctypes.data % 64 :][:192]
    given[64:] = maps.host[0]
    run(kernel_, given, out, maps[0].array, block=1)
    assert out[0] == 1


# --- what is refused ------------------------------------------------------------------------------------
@pytest.mark.parametrize("body, words", [
    ("\nmov.u32 a, 1;\nfrobnicate.b32 a, b;", "line 3: frobnicate.b32 a, b is not known"),
    ("\nadd.rna.f32 f, f, g;", r"line 2: .*\.rna"),
    ("\nld.global.u32 a, [nowhere];", "line 2: .*nowhere"),
    ("\nmov.u32 a, %envreg3;", "line 2: .*%envreg3"),
    ("\nbra away;", "line 2: bra away: there is no such label"),
    ("\ncall.uni other, ();", "line 2: .*other"),
    ("\ntex.2d.v4.f32.f32 {f, f, f, f}, [x, {f, g}];", "line 2: tex.2d"),
    ("\nld.acquire.gpu.global.b128 x, [x];", "line 2: .*b128"),
    ("\n.wonder 3;", "line 2: .*wonder"),
    ("\ncall (a), x, (b), p0;\np0: .callprototype (.param .b32 _) _ (.param .b32 _);",
     "line 2: a call through the register x, as of a function pointer"),
    ("\nwmma.load.a.sync.aligned.row.m8n8k32.global.s4 {a}, [x], t;", "line 2: wmma.load"),
    ("\natom.cas.b128 x, [x], y, z;", "line 2: atom.cas.b128"),
])  # fmt: skip
def test_unknown_instructions_are_refused_by_their_line(body, words):
    with pytest.raises(ValueError, match=words):
        kernel(body)


@pytest.mark.parametrize("text, words", [
    ("int main() {\n}\n", "no PTX"),
    (RING.replace("sm_90a", "sm_130a"), "line 4: .target sm_130a: the engine knows up to sm_121a"),
    (RING.replace("size 64", "size 32"), "line 5: .address_size 32"),
    (RING[: RING.index("consume:\n")], "line 8: .*not whole"),
    (RING[: RING.index("out)\n{")], "line 7: .*ends"),
])  # fmt: skip
def test_texts_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        nd.from_ptx(text)["ring"]


def test_entries_and_arguments_are_refused_by_name():
    module = nd.from_ptx(RING)
    assert list(module) == ["ring"] and module["ring"].parameters == ("data", "out")
    with pytest.raises(KeyError, match="no entry 'rings'; it has ring"):
        module["rings"]
    with pytest.raises(ValueError, match=r"ring takes 2 arguments \(data, out\), 1 were given"):
        nd.simulate(module["ring"], 1, 64, [np.zeros(4)])
    with pytest.raises(ValueError, match=r"argument a is float64\[:\], the kernel says uint32"):
        run(kernel("bar.sync 0;", ".param .u32 a"), np.zeros(4))
    with pytest.raises(ValueError, match="argument a=1.5"):
        run(kernel("bar.sync 0;", ".param .u32 a"), 1.5)
    with pytest.raises(ValueError, match="gone is empty"):
        nd.from_ptx(HEAD + ".entry gone()\n{\n}\n")["gone"]
    with pytest.raises(faults.NothingRan, match="k has no instruction but ret"):
        run(kernel("", ".param .u32 a"), 1)
    with pytest.raises(FileNotFoundError):
        nd.from_ptx(Path("no_such.ptx"))
    older = HEAD.replace("sm_90a", "sm_80")
    assert nd.from_ptx(older + ".entry _Z4haloPf()\n{ ret; }\n")["halo"].name == "halo"
