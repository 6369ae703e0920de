"""What single instructions do to the lanes of a warp: no compiler, no tools."""

import types

import numpy as np
import pytest

from numba_deform.engines.sass import machine  # noqa: F401  brings all rows of the table
from numba_deform.engines.sass.counters import L1, Counts, pattern
from numba_deform.engines.sass.listing import Instruction, Listing, read, split
from numba_deform.engines.sass.machine import resident
from numba_deform.engines.sass.operands import Unknown
from numba_deform.engines.sass.table import TABLE, step_of
from numba_deform.engines.sass.warps import Squad

U32, U64, F32, F64 = np.uint32, np.uint64, np.float32, np.float64


def warp(**registers):
    """A warp with these registers: R1, UR4, P0."""
    w = types.SimpleNamespace(r=np.zeros((260, 32), U32), u=np.zeros((66, 1), U32), p=np.zeros((8, 32), bool),
                              up=np.zeros((8, 1), bool), mask=np.ones(32, bool))  # fmt: skip
    w.p[7], w.up[7] = True, True
    for name, value in registers.items():
        where = {"R": w.r, "U": w.u, "P": w.p}[name[0]]
        where[int(name.strip("URP"))] = np.asarray(value).view(U32) if name[0] != "P" else value
    return w


def do(text, **registers):
    """The warp after one instruction; ``@!P0`` stands before it."""
    guard, _, text = text.partition(" ") if text.startswith("@") else ("", "", text)
    opcode, _, operands = text.partition(" ")
    w = warp(**registers)
    with np.errstate(all="ignore"):
        step_of(Instruction(0, guard.lstrip("@"), opcode, split(operands), ()), lambda *_: 0x55)(w)
    return w


LANES = np.arange(32, dtype=U32)


@pytest.mark.parametrize("text, given, register, expected", [
    ("IADD3 R0, R1, R2, R3", dict(R1=LANES, R2=LANES, R3=LANES), 0, 3 * LANES),
    ("IADD3 R0, P1, R1, -R2, RZ", dict(R1=LANES, R2=LANES), 0, 0 * LANES),
    ("IMAD.WIDE.U32 R2, R1, 0x10, R4", dict(R1=LANES + U32(0xF0000000), R5=LANES), 3, LANES + U32(15)),
    ("IMAD.HI.U32 R0, R1, R2, RZ", dict(R1=LANES << U32(27), R2=LANES + U32(32)), 0,
     LANES * (LANES + 32) >> 5),
    ("LEA R0, R1, UR4, 0x3", dict(R1=LANES, UR4=[U32(5)]), 0, 8 * LANES + 5),
    ("LEA.HI R0, R1, RZ, RZ, 0x5", dict(R1=LANES << U32(27)), 0, LANES),
    ("SHF.R.S32.HI R0, RZ, 0x1f, R1", dict(R1=LANES - U32(4)), 0, np.where(LANES < 4, U32(0xFFFFFFFF), U32(0))),
    ("SHF.L.W.U32.HI R0, R1, 0x8, R2", dict(R1=LANES << U32(24), R2=LANES), 0, 257 * LANES),
    ("LOP3.LUT R0, R1, 0x3, RZ, 0xc0, !PT", dict(R1=LANES), 0, LANES & 3),
    ("PRMT R0, R1, 0x3210, RZ", dict(R1=LANES), 0, LANES),
    ("PRMT R0, R1, 0x5410, R2", dict(R1=LANES, R2=LANES), 0, LANES | LANES << U32(16)),
    ("SEL R0, R1, 0x7, P0", dict(R1=LANES, P0=LANES < 4), 0, np.where(LANES < 4, LANES, 7)),
    ("FSEL R0, R1, 2, P0", dict(R1=F32(LANES), P0=LANES < 4), 0, np.where(LANES < 4, F32(LANES), F32(2))),
    ("F2F.F64.F32 R0, R2", dict(R2=F32(LANES)), 1, F64(LANES).view(U32)[1::2]),
    ("F2F.F32.F64 R0, R2", dict(R3=F64(LANES).view(U32)[1::2]), 0, F32(LANES)),
    ("@!P0 MOV R0, R1", dict(R1=LANES, P0=LANES < 30), 0, np.where(LANES < 30, 0, LANES)),
    ("FLO.U32 R0, R1", dict(R1=LANES), 0, np.array([i.bit_length() - 1 for i in range(32)])),
    ("POPC R0, R1", dict(R1=LANES), 0, np.bitwise_count(LANES)),
    ("BREV R0, R1", dict(R1=LANES << U32(27)), 0, U32([int(f"{i:05b}"[::-1], 2) for i in range(32)])),
    ("LDC R0, c[0x0][0x210]", {}, 0, 0 * LANES + 0x55),
    ("FADD R0, |R1|, -1", dict(R1=-LANES.astype(F32)), 0, LANES.astype(F32) - 1),
    ("FMUL.D2 R0, R1, R2", dict(R1=F32(LANES), R2=F32(LANES)), 0, F32(LANES * LANES) / 2),
    ("FMUL.M4 R0, R1, -3", dict(R1=F32(LANES)), 0, F32(LANES) * -12),
    ("F2I.TRUNC.NTZ R0, R1", dict(R1=-LANES.astype(F32) * F32(1.5)), 0, np.trunc(LANES * -1.5)),
    ("I2FP.F32.S32 R0, R1", dict(R1=LANES - U32(9)), 0, LANES.astype(F32) - 9),
    ("SHFL.BFLY PT, R0, R1, 0x1, 0x1f", dict(R1=LANES), 0, LANES ^ 1),
    ("SHFL.UP PT, R0, R1, 0x1, RZ", dict(R1=LANES), 0, np.maximum(LANES.astype(np.int32) - 1, 0)),
    ("VOTE.ANY R0, PT, P0", dict(P0=LANES < 4), 0, 0 * LANES + 15),
    ("MATCH.ANY R0, R1", dict(R1=LANES & 1), 0, 0x55555555 * (1 + (LANES & 1))),
])  # fmt: skip
def test_a_register(text, given, register, expected):
    got = do(text, **given).r[register]
    words = expected.view(U32) if expected.dtype == F32 else expected.astype(np.int64).astype(U32)
    assert got.tolist() == words.tolist()


def test_predicates_from_a_byte_of_a_register():
    w = do("R2P PR, R1.B1, 0x5", R1=LANES << U32(8), P1=LANES < 9)
    assert (w.p[0] == LANES % 2).all() and (w.p[2] == LANES // 4 % 2).all() and (w.p[1] == (LANES < 9)).all()


def test_carries_borrow():
    """x - 0 does not borrow: the carry that machine code hands on is 1."""
    assert do("IADD3 R0, P1, R1, -RZ, RZ", R1=LANES).p[1].all()
    less = do("IADD3 R0, P1, R1, -R2, RZ", R1=LANES, R2=LANES[::-1].copy()).p[1]
    assert less.tolist() == (LANES > 15).tolist()
    assert do("LEA R0, P2, -R1, R2, 0x2", R2=LANES).p[2].all()


def test_sums_are_rounded_once():
    """a b + c where the product and its sum in float64 would round twice."""
    a, b, c = F32(1 + 2**-12), F32(1 + 2**-12), F32(2**-60)
    fused = do("FFMA R0, R1, R2, R3", R1=np.full(32, a), R2=np.full(32, b), R3=np.full(32, c)).r[0].view(F32)
    assert (fused == F32(1 + 2**-11 + 2**-23)).all()  # 1 + 2^-11 + 2^-24 + 2^-60 lies above the middle


def test_uniform_registers_have_the_first_lane():
    w = do("@P0 R2UR UR4, R1", R1=LANES, P0=LANES > 5)
    assert w.u[4][0] == 6
    assert do("UIADD3 UR4, UR5, 0x3, URZ", UR5=[U32(4)]).u[4][0] == 7


FORMS = {
    "SHF": ".R.U32", "ISETP": ".LT.AND", "FSETP": ".GTU.OR", "FSET": ".NEU.AND", "HSETP2": ".GE.AND",
    "DSETP": ".LE.XOR", "SHFL": ".IDX", "VOTE": ".ANY", "VOTEU": ".ALL", "IDP.4A": ".U8", "LOP3": ".LUT",
    "PLOP3": ".LUT", "FCHK": ".DIVIDE", "MUFU": ".RSQ", "F2FP.SATFINITE": ".E4M3", "F2FP.UNPACK_B": ".E5M2",
}  # fmt: skip


def text_of(stem, row):
    """An instruction of that row, with a register for each operand."""
    name = ".".join((stem, *row.words))
    to = {"r": "UR8", "w": "UR8", "p": "UP1"} if stem.startswith("U") else {"r": "R8", "w": "R8", "p": "P1"}
    to |= {"r": "UR8"} if stem in ("R2UR", "VOTEU", "ELECT") else {}
    read = {"p": "P3", "n": "0x15", "t": "PR"}
    operands = [to[kind[0]] for kind in row.outs]
    operands += [read.get(kind[0], f"R{2 * n + 2}") for n, kind in enumerate(row.ins) if kind[0] != "&"]
    return f"{name}{FORMS.get(name, '')} {', '.join(operands)}"


SHARED = [text_of(stem, row) for stem, rows in TABLE.items() for row in rows
          if "*" not in row.ins and row.outs]  # fmt: skip


@pytest.mark.parametrize("text", SHARED)
def test_several_warps_at_once_do_what_each_does(text):
    """Of each row that they share; some lanes and warps take no part."""
    opcode, _, operands = text.partition(" ")
    random, block = np.random.default_rng(1), types.SimpleNamespace(entry=0, machine=None)
    block.machine = types.SimpleNamespace(threads=128, listing=types.SimpleNamespace(local=0, registers=32))
    together, apart = Squad([block], 128), Squad([block], 128)
    for registers in (together.r, together.u):
        registers[:] = (100 * random.standard_normal(registers.shape).astype(F32)).view(U32)
    together.r[8:12], together.u[8:12] = 7, 7
    together.p[:7] = random.random(together.p[:7].shape) < 0.5
    together.up[:7] = random.random(together.up[:7].shape) < 0.5
    for name in ("r", "u", "p", "up"):
        getattr(apart, name)[:] = getattr(together, name)
    together.mask = random.random((4, 32)) < 0.7
    together.mask[2] = False
    step = step_of(Instruction(0, "P4", opcode, split(operands), ()), lambda *_: 0x55)
    with np.errstate(all="ignore"):
        step(together)
        for w in apart.warps:
            w.mask = together.mask[w.row]
            step(w)
    for name in ("r", "u", "p", "up"):
        assert (getattr(together, name) == getattr(apart, name)).all(), name


def test_lanes_of_a_warp_that_have_not_met_go_on_one_after_the_other():
    """Of two warps the first lanes skip an instruction; nothing has them meet again."""
    texts = ("S2R R1, SR_LANEID", "ISETP.LT.U32.AND P0, PT, R1, 0x10, PT", "@P0 BRA 0x40", "MOV R2, 0x1",
             "VOTE.ANY R3, PT, PT", "EXIT")  # fmt: skip
    code = []
    for number, text in enumerate(texts):
        guard, _, text = text.partition(" ") if text.startswith("@") else ("", "", text)
        opcode, _, operands = text.partition(" ")
        code.append(Instruction(number, guard.lstrip("@"), opcode, split(operands), (), target=4))
    kernel = types.SimpleNamespace(entry=types.SimpleNamespace(params=()), name="apart")
    emulated = machine.Machine(Listing(code, 0, 8, 0, 0, {}, ({}, {})), kernel, [], 1, 64)
    squad = emulated._started(iter([(0, (0,))]))
    assert emulated._turn(squad)
    assert squad.r[2].tolist() == [[0] * 16 + [1] * 16] * 2
    assert squad.r[3].tolist() == [[0xFFFF] * 16 + [0xFFFF0000] * 16] * 2
    assert (emulated.executed, emulated.divergent) == ([2, 2, 2, 2, 4, 4], [0, 0, 0, 2, 4, 2])


@pytest.mark.parametrize("text", ["FADD.WHAT R0, R1, R2", "WONDER R0", "IADD3 R0, R1, R2, R3, R4, R5, R6"])
def test_unknown_forms_are_refused(text):
    with pytest.raises(Unknown):
        do(text)


@pytest.mark.parametrize("stride, size, waves, conflicts, sectors", [
    (4, 4, 1, 0, 4), (8, 4, 2, 1, 8), (128, 4, 32, 31, 32), (0, 4, 1, 0, 1), (16, 16, 4, 0, 16),
    (32, 16, 8, 4, 32),
])  # fmt: skip
def test_wavefronts_and_sectors(stride, size, waves, conflicts, sectors):
    offsets, all_lanes = (LANES * stride).astype(U32).tobytes(), np.ones(32, bool).tobytes()
    total, ideal, touched, _ = pattern(offsets, all_lanes, size, "global")
    assert (total, total - ideal, len(touched)) == (waves, conflicts, sectors)


def counts_of(*accesses, l1=(), opcode="LDG.E.128"):
    """(wavefronts, hits, sectors, bytes of L2) of accesses: (kind, space, first byte, lanes that take part)."""
    counts, one = Counts(1), Instruction(0, "", opcode, (), ())
    counts.l1 = L1(0)
    counts.l1.look({line: [0, 1, 2, 3] for line in l1})
    for kind, space, first, lanes in accesses:
        counts.access(one, kind, space, first + U64(16) * np.arange(lanes.sum(), dtype=U64), lanes, 16)
    return tuple(int(getattr(counts, name)[0]) for name in ("wavefronts", "hits", "sectors", "l2_bytes"))


ALL = np.ones(32, bool)


def test_a_pass_that_l1_has_a_part_of_takes_two_wavefronts():
    assert counts_of(("load", "global", 1088, ALL)) == (4, 0, 16, 512)
    assert counts_of(("load", "global", 1088, ALL), l1=(1152, 1408)) == (8, 8, 16, 256)
    assert counts_of(("load", "global", 1024, ALL), l1=(1024, 1280)) == (4, 8, 16, 256)  # a line a pass


def test_loads_that_do_not_fill_l1():
    twice = [("load", "global", 1024, ALL)] * 2
    assert counts_of(*twice)[1] == 16 and counts_of(*twice, opcode="LDG.E.NA.128")[1] == 0


def test_passes_of_lanes_that_are_switched_off():
    """Where one of each two lanes is off, two passes of shared memory become one, and of global memory none."""
    even = LANES % 2 == 0
    assert [counts_of(("load", space, 1024, even))[0] for space in ("shared", "global")] == [2, 4]


def test_an_access_by_nobody_takes_a_wavefront():
    counts = Counts(1)
    block = types.SimpleNamespace(counts=counts)
    for opcode, operands in (("STS.128", "[R2], R4"), ("LDS", "R4, [R2]")):
        w = warp()
        w.block = block
        step_of(Instruction(0, "!PT", opcode, split(operands), ()), lambda *_: 0)(w)
    assert counts.wavefronts[0] == 2


def test_resident_blocks():
    assert resident(32, 128, 1024) == 16  # by warps
    assert resident(128, 128, 1024) == 4  # by registers
    assert resident(32, 128, 60 * 1024) == 3  # by shared memory


LISTING = """\
	.section	.text.kernel
kernel:
	//## File "/a/numba_deform/device/pipeline.py", line 7 inlined at "/a/my.py", line 20
	//## File "/a/my.py", line 20
        /*0000*/               @!P0 BRA `(.L_x_1) ;      /* 0x0 */
                                                         /* 0x000fe20000000a00 */
.L_x_1:
        /*0010*/                   LDG.E R2, desc[UR4][R2.64+0x80] ;      /* 0x0 */
                                                         /* 0x001ea2000c1e1900 */
"""


def test_a_listing():
    found = read(LISTING, "Function kernel:\n REG:9 STACK:0 SHARED:1024 LOCAL:16 CONSTANT[0]:536", "kernel")
    first, second = found
    assert (found.registers, found.shared, found.local, found.entry) == (9, 1024, 16, 0)
    assert (first.guard, first.opcode, first.target) == ("!P0", "BRA", 1)
    assert first.frames == (("/a/numba_deform/device/pipeline.py", 7), ("/a/my.py", 20))
    assert first.line == ("/a/my.py", 20)
    assert second.operands == ("R2", "desc[UR4][R2.64+0x80]")
    assert (first.stall, second.stall, second.sets, second.waits) == (1, 1, (2, 7), (0,))
