"""Kernels of PTX, and whole programs, on the emulator: results, counts by line, tables; needs nvdisasm."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.compiler.build import NotBuilt
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
