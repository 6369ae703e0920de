"""Kernels of PTX, and whole programs, on the emulator: results, counts by line, tables; needs nvdisasm."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.compiler.build import NotBuilt, assembled
from numba_deform.compiler.sass import ToolMissing, tool
from numba_deform.engines.sass import emulate

try:
    tool("nvdisasm"), tool("cuobjdump")
except ToolMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

KERNELS = Path(__file__).parents[1] / "ptx" / "kernels"
sys.path.insert(0, str(KERNELS.parent))


def ring():
    data = np.random.default_rng(0).random((80, 32), np.float32)
    return [nd.TensorMapArray([nd.TensorMap.of(data, (32, 8))]), np.zeros_like(data), 10], 2 * data


@pytest.mark.full
def test_a_profile_of_ptx():
    """A tensor map as a parameter, whose address the kernel takes; lines are those of the source."""
    args, right = ring()
    found = nd.profile(nd.from_ptx(KERNELS / "ring.ptx")["ring"], 1, args, block=64)
    assert (args[1] == right).all()
    assert found.totals["tma_bytes"] == right.nbytes
    stored = max(found.lines, key=lambda line: line.counts["l2_bytes"] - line.counts["tma_bytes"])
    assert Path(stored.file).name == "ring.cu"
    assert stored.counts["wavefronts"] == 2 * 80  # a load and a store of each row
    with pytest.raises(ValueError, match="block= is missing: ring"):
        nd.profile(nd.from_ptx(KERNELS / "ring.ptx")["ring"], 1, args)


PTX = """
.version 8.0
.target sm_90a
.address_size 64
.global .align 4 .u32 counter = 5;
.global .align 8 .b8 room[256];
.const .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};
.visible .entry other(.param .u64 out) { ret; }
.visible .entry first(.param .u64 out, .param .align 4 .b8 pair[8], .param .u16 small, .param .u8 byte)
{
  .reg .b32 %r<12>; .reg .b16 %h<3>; .reg .b64 %d<6>;
  mov.u32 %r1, %tid.x;
  ld.param.u64 %d1, [out];
  ld.param.u32 %r2, [pair+4];
  ld.param.s16 %h1, [small];
  cvt.s32.s16 %r3, %h1;
  ld.param.u8 %h2, [byte];
  cvt.u32.u16 %r4, %h2;
  atom.global.add.u32 %r5, [counter], 1;
  add.u32 %r2, %r2, %r3;
  add.u32 %r2, %r2, %r4;
  mov.u64 %d2, room;
  mul.wide.u32 %d3, %r1, 4;
  add.u64 %d2, %d2, %d3;
  st.global.u32 [%d2], %r2;
  and.b32 %r6, %r1, 1;
  mul.wide.u32 %d4, %r6, 4;
  mov.u64 %d5, table;
  add.u64 %d5, %d5, %d4;
  ld.const.u32 %r7, [%d5];
  ld.volatile.global.u32 %r8, [%d2];
  ld.volatile.global.u32 %r9, [counter];
  add.u32 %r8, %r8, %r7;
  mad.lo.u32 %r8, %r9, 1000, %r8;
  add.u64 %d1, %d1, %d3;
  st.global.u32 [%d1], %r8;
  ret;
}
"""


def test_parameters_and_variables_of_a_module():
    """A structure, numbers of 8 and 16 bits, variables and constants; of two entries the second."""
    out, pair = np.zeros(32, np.int32), np.array([9, 400], np.int32).view(np.uint8)
    kernel = nd.from_ptx(PTX)["first"]
    emulate(kernel, 1, [out, pair, 0x10000 - 7, 250], block=32)
    assert (out == 400 - 7 + 250 + 1 + np.arange(32) % 2 + 1000 * (5 + 32)).all()
    with pytest.raises(ValueError, match="pair takes 8 bytes, and 4 were given"):
        emulate(kernel, 1, [out, pair[:4], 0, 0], block=32)


def ptx_of(body, registers="", before=""):
    """A kernel of 32 lanes: %d1 and %d2 are where words of ``data`` and of ``out`` begin, %t is the lane."""
    return f""".version 8.0
.target sm_90a
.address_size 64
{before}
.visible .entry kernel(.param .u64 data, .param .u64 out)
{{
  .reg .b32 %t, %a<4>, %c<4>; .reg .b64 %d<4>; .reg .b16 %h; {registers}
  mov.u32 %t, %tid.x;
  ld.param.u64 %d1, [data];
  ld.param.u64 %d2, [out];
{body}
  ret;
}}
"""


MMA = """  mad.wide.u32 %d3, %t, 12, %d1;
  ld.global.u32 %a0, [%d3]; ld.global.u32 %a1, [%d3+4]; ld.global.u32 %a2, [%d3+8];
  mov.b32 %c0, 0; mov.b32 %c1, 0; mov.b32 %c2, 0; mov.b32 %c3, 0;
  mma.sync.aligned.{form} {{{words}}}, {{%a0, %a1}}, {{%a2}}, {{{words}}};
  mad.wide.u32 %d3, %t, 16, %d2;
  st.global.v4.b32 [%d3], {{{words}}};"""


@pytest.mark.parametrize("form", ["m16n8k16.row.col.s32.u8.u8.s32", "m16n8k16.row.col.s32.s8.u8.s32",
                                  "m16n8k4.row.col.f32.tf32.tf32.f32"])  # fmt: skip
def test_small_products(form):
    """Of half the depth that the others have: as the CPU engine has them."""
    is_whole, dice = ".s32" in form, np.random.default_rng(1)
    data = dice.integers(0, 1 << 32, (32, 3), np.uint32) if is_whole else dice.random((32, 3), np.float32)
    words, found = "%c0, %c1, %c2, %c3", []
    if not is_whole:
        words = words.replace("c", "f")
    text = MMA.format(form=form, words=words).replace("mov.b32 %c", "mov.b32 %c" if is_whole else "mov.b32 %f")
    kernel = nd.from_ptx(ptx_of(text, ".reg .f32 %f<4>;"))["kernel"]
    for run in emulate, nd.simulate:
        out = np.full((32, 4), 99, np.int32 if is_whole else np.float32)
        run(kernel, 1, args=[data, out], block=32)
        found.append(out)
    assert (found[0] == found[1]).all() and len(np.unique(found[0])) > 90


def test_doubles_are_added_in_shared_memory():
    """By a loop of ATOMS.CAST.SPIN.64, which says whether it has swapped."""
    text = """  mov.f64 %f1, 0d0000000000000000; cvt.rn.f64.u32 %f2, %t;
  st.shared.f64 [sum], %f1;
  bar.sync 0;
  red.shared.add.f64 [sum], %f2;
  bar.sync 0;
  ld.shared.f64 %f1, [sum];
  mad.wide.u32 %d3, %t, 8, %d2;
  st.global.f64 [%d3], %f1;"""
    kernel = nd.from_ptx(ptx_of(text, ".reg .f64 %f<3>;", ".shared .align 8 .f64 sum;"))["kernel"]
    out = np.zeros(32)
    emulate(kernel, 1, [np.zeros(1), out], block=32)
    assert (out == 496).all()


def test_lanes_that_copy_nothing_have_zeros():
    """cp.async of 16 bytes or of none."""
    text = """  mov.u32 %a0, room; mad.lo.u32 %a0, %t, 16, %a0;
  mad.wide.u32 %d3, %t, 16, %d1;
  setp.lt.u32 %p, %t, 20; selp.b32 %a1, 16, 0, %p;
  cp.async.cg.shared.global [%a0], [%d3], 16, %a1;
  cp.async.wait_all; bar.sync 0;
  ld.shared.u32 %a2, [%a0+12];
  mad.wide.u32 %d3, %t, 4, %d2; st.global.u32 [%d3], %a2;"""
    kernel = nd.from_ptx(ptx_of(text, ".reg .pred %p;", ".shared .align 16 .b8 room[512];"))["kernel"]
    data, out = np.arange(1, 129, dtype=np.uint32), np.full(32, 9, np.uint32)
    emulate(kernel, 1, [data, out], block=32)
    assert (out == np.where(np.arange(32) < 20, 4 * np.arange(1, 33), 0)).all()


def test_machine_code_that_comes_with_a_kernel():
    """It is taken as it is, whatever the text would become."""
    text = ptx_of("  add.u32 %t, %t, 7; mad.wide.u32 %d3, %t, 4, %d2; st.global.u32 [%d3+-28], %t;")
    kernel, out = nd.from_ptx(text)["kernel"], np.zeros(32, np.uint32)
    kernel.cubin = assembled(text.replace("st.global.u32 [%d3+-28], %t", "st.global.u32 [%d3+-28], 5"))
    emulate(kernel, 1, [np.zeros(1), out], block=32)
    assert (out == 5).all()


def test_the_last_half_word_of_a_constant():
    text = """  mad.wide.u32 %d3, %t, 4, %d1;
  ld.global.u32 %a0, [%d3];
  mul.wide.u32 %d3, %a0, 2;
  mov.u64 %d1, table;
  add.u64 %d3, %d1, %d3;
  ld.const.u16 %h, [%d3];
  mad.wide.u32 %d3, %t, 4, %d2;
  cvt.u32.u16 %a1, %h;
  st.global.u32 [%d3], %a1;"""
    kernel = nd.from_ptx(ptx_of(text, "", ".const .align 2 .u16 table[3] = {5, 6, 7};"))["kernel"]
    data, out = np.arange(32, dtype=np.uint32) % 3, np.zeros(32, np.uint32)
    emulate(kernel, 1, [data, out], block=32)
    assert (out == 5 + data).all()


def test_ptx_that_is_not_assembled():
    text = PTX.replace("mul.wide.u32 %d3", "mul.wide.u32 %r3")
    with pytest.raises(NotBuilt, match="the PTX is not assembled for sm_90a"):
        emulate(nd.from_ptx(text)["first"], 1, [np.zeros(32, np.int32), np.zeros(8, np.uint8), 0, 0], block=32)


PROGRAM = """
import numpy as np
from numba import cuda

@cuda.jit
def saxpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]

@cuda.reduce
def total(a, b):
    return a + b

x = np.arange(1000, dtype=np.float32)
d, y = cuda.to_device(x), cuda.to_device(np.ones(1000, np.float32))
for _ in range(2):
    saxpy[8, 128](2.0, d, y)
assert (y.copy_to_host() == 1 + 4 * x).all()
assert total(y.copy_to_host()) == 1000 + 4 * x.sum()
raise SystemExit(3)
"""


@pytest.mark.full
def test_a_whole_program(tmp_path, capsys):
    """It runs on with what its launches have written, and ends as it ends. Numba's reduce has a syncwarp of all
    lanes that two of them come to."""
    file, out = tmp_path / "program.py", tmp_path / "out.json"
    file.write_text(PROGRAM)
    assert main(["profile", "lines=3", f"out={out}", str(file)]) == 3
    text = capsys.readouterr().out
    assert "saxpy, 2 launches of blocks of 128 threads: 16 of 16 blocks ran" in text
    assert "program.py:9  y[i] += a * x[i]" in text
    found = json.loads(out.read_text())
    assert found[0]["totals"]["threads"] % 2 == 0 and found[0]["items"] == {"launch": 2}
    assert {one["title"].partition(",")[0] for one in found} == {"saxpy", "gpu_reduce_block_strided"}


@pytest.mark.full
def test_arrays_from_outside_are_refused(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text("""
import numpy as np
from numba import cuda
table = cuda.to_device(np.ones(32))
@cuda.jit
def copied(out):
    out[cuda.threadIdx.x] = table[cuda.threadIdx.x]
copied[1, 32](np.zeros(32))
""")
    assert main(["profile", str(file)]) == 1
    assert "copied takes table from outside" in capsys.readouterr().err


@pytest.mark.full
def test_a_launch_of_a_file(tmp_path, capsys):
    """In the words of ``check``; results are compared."""
    args = tmp_path / "args.py"
    args.write_text(f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_programs import ring
args, right = ring()
expected = {{"param_1": right}}
""")
    words = ["profile", str(KERNELS / "ring.ptx"), "block=64", f"args={args}"]
    assert main(words) == 0
    assert "ring, 1 launch of blocks of 64 threads" in capsys.readouterr().out
    args.write_text(args.read_text() + "right[3, 3] += 1\n")
    assert main(words) == 1
