"""As machine code, kernels from PTX come to the same as interpreted: numbers bit for bit, verdicts, lines."""

import numpy as np
import pytest
from test_arithmetic import CASES, CONVERSIONS, DTYPES, LANES, numbers

import numba_deform as nd
from numba_deform.engines.cpu.native.codegen import writer

OPERANDS = ("u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64", "f16", "bf16", "f32", "f64", "pred",
            "s8", "u8")  # fmt: skip
ROWS = [(opcode, kinds, result, "") for opcode, kinds, result, _ in CASES]
ROWS += [("fma.rn.f64", ("f64",) * 3, "f64", "")]
ROWS += [("lop3.b32", ("b32",) * 3, "b32", f", {table}") for table in (0x80, 0xE8, 0x96, 0x1B)]
ROWS += [(f"{name}.{kind}x2", (f"{kind}x2",) * 2, f"{kind}x2", "") for kind in ("f16", "bf16")
         for name in ("add.rn", "mul.rn")]  # fmt: skip
ROWS += [(f"setp.{how}.{kind}", (kind, kind), "pred", "") for kind in ("u32", "s64", "s16", "f32", "f64")
         for how in ("eq", "ne", "lt", "ge", *(("equ", "neu", "ltu", "num", "nan") if kind[0] == "f" else ()))]
ROWS += [(f"cvt.{name}", (name.split(".")[-1],), name.split(".")[-2], "") for name in CONVERSIONS
         if name != "rn.f16.f32"]  # of what is no number, which the interpreter alone knows the bits of
ROWS += [("add.rn.f32.bf16", ("bf16", "f32"), "f32", ""), ("fma.rn.f32.f16", ("f16", "f16", "f32"), "f32", ""),
         ("max.NaN.f32", ("f32",) * 3, "f32", ""), ("add.rn.f32x2", ("b64", "b64"), "b64", "")]  # fmt: skip
TURNS = 12  # all rows are in so many kernels; one of them in the default tests


def size_of(kind):
    return np.dtype(DTYPES[kind]).itemsize


def kernel(rows):
    """(a kernel that leaves each row's results of all lanes one behind the other, its operands, their bytes)"""
    needed = sorted({(kind, n) for _, kinds, _, _ in rows for n, kind in enumerate(kinds)})
    lines, registers, arrays, first = [], [], [], 0
    for kind, n in needed:
        own = kind if kind in ("f32", "f64") else f"b{8 * size_of(kind)}"
        registers.append(f".reg .{own if own != 'b8' else 'b16'} {kind}_{n};")
        lines.append(f"mul.wide.u32 y, t, {size_of(kind)}; add.u64 y, y, a;")
        lines.append(f"ld.global.{own} {kind}_{n}, [y+{first}];")
        if kind == "pred":
            registers.append(f".reg .pred is_{n};")
            lines.append(f"setp.ne.u32 is_{n}, pred_{n}, 0;")
        given = numbers(kind, n)
        if kind == "f16":
            given = np.nan_to_num(given, nan=1, posinf=2, neginf=3).clip(-100, 100)
        if kind == "f16x2":
            given = np.repeat(np.linspace(-9, 9, LANES), 2).astype(np.float16).view(np.uint32)
        arrays.append(given.tobytes())
        first += -(-len(arrays[-1]) // 16) * 16
        arrays[-1] = arrays[-1].ljust(-(-len(arrays[-1]) // 16) * 16, b"\0")
    at = 0
    for number, (opcode, kinds, result, literals) in enumerate(rows):
        size = size_of(result)
        own = result if result in ("f32", "f64") else f"b{max(16, 8 * size)}"
        registers.append(f".reg .{own} d{number};")
        given = [f"is_{n}" if kind == "pred" else f"{kind}_{n}" for n, kind in enumerate(kinds)]
        target = "q" if result == "pred" else f"d{number}"
        lines.append(f"{opcode} {target}, {', '.join(given)}{literals};")
        lines += [f"selp.b32 d{number}, 1, 0, q;"] if result == "pred" else []
        lines.append(f"mul.wide.u32 y, t, {size}; add.u64 y, y, b;")
        lines.append(f"st.global.{result if result in ('f32', 'f64') else f'b{8 * size}'} [y+{at}], d{number};")
        at += LANES * 8
    text = f""".version 8.3 .target sm_90a .address_size 64
.entry k(.param .u64 operands, .param .u64 results) {{
.reg .pred q; .reg .b32 t; .reg .b64 a, b, y; {chr(10).join(registers)}
mov.u32 t, %tid.x; ld.param.u64 a, [operands]; ld.param.u64 b, [results];
{chr(10).join(lines)}
ret; }}
"""
    return nd.from_ptx(text)["k"], np.frombuffer(b"".join(arrays), np.uint8), at


@pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, TURNS))])
def test_rows_of_the_table(turn):
    """Random and edge operands. What is no number may have any bits that are none."""
    rows = ROWS[turn::TURNS]
    made, operands, size = kernel(rows)
    found = []
    for compiled in (False, True):
        out = np.zeros(size, np.uint8)
        report = nd.simulate(made, 1, LANES, [operands, out], compiled=compiled)
        assert report.compiled == compiled
        found.append(out.reshape(len(rows), -1))
    for (opcode, _, result, literals), *both in zip(rows, *found, strict=True):
        a, b = (one[: LANES * size_of(result)].view(DTYPES[result]) for one in both)
        with np.errstate(all="ignore"):
            nans = np.isnan(a.astype(float)) & np.isnan(b.astype(float))
        same = (a.view(f"u{size_of(result)}") == b.view(f"u{size_of(result)}")) | nans
        assert same.all(), (opcode, literals, [(i, a[i], b[i]) for i in np.flatnonzero(~same)[:3]])


def test_halves_are_computed_in_place():
    rows = [("cvt.f32.f16", ("f16",), "f32", ""), ("mul.rn.f16x2", ("f16x2",) * 2, "f16x2", "")]
    made, operands, size = kernel(rows)
    report = nd.simulate(made, 1, LANES, [operands, np.zeros(size, np.uint8)], compiled=True)
    assert report.compiled, report.why_interpreted


def test_what_has_no_machine_code_says_why(monkeypatch):
    """As a kernel of which LLVM would make code for minutes: it is interpreted, with the same numbers."""
    made, operands, size = kernel([("add.u32", ("u32", "u32"), "u32", "")])
    monkeypatch.setattr(writer, "LARGE", 3)
    out = np.zeros(size, np.uint8)
    report = nd.simulate(made, 1, LANES, [operands, out], compiled=True)
    assert not report.compiled and report.why_interpreted.startswith("a kernel so large")
    assert np.array_equal(out[: 4 * LANES].view(np.uint32), numbers("u32", 0) + numbers("u32", 1))


def test_generic_addresses_and_loops():
    """One pointer leads to shared, to local or to global memory, as the lane says; a loop over ``bra``."""
    text = """.version 8.3 .target sm_90a .address_size 64
.entry k(.param .u64 data, .param .u64 out) {
.reg .pred p; .reg .b32 t, i, v, sum; .reg .b64 a, b, c, at, to;
.shared .align 16 .b8 box[256]; .local .align 16 .b8 own[64];
mov.u32 t, %tid.x; ld.param.u64 a, [data]; ld.param.u64 to, [out];
cvta.to.global.u64 a, a;
mul.wide.u32 at, t, 8; mov.u64 b, box; add.u64 b, b, at; cvta.shared.u64 b, b;
mov.u64 c, own; cvta.local.u64 c, c;
rem.u32 v, t, 3; setp.eq.u32 p, v, 0; selp.b64 a, a, b, p; setp.eq.u32 p, v, 1; selp.b64 a, c, a, p;
setp.eq.u32 p, v, 0; @!p st.v2.u32 [a], {t, v};
mov.u32 i, 0; mov.u32 sum, 0;
again:
ld.u32 v, [a+4]; add.u32 sum, sum, v; ld.u32 v, [a]; mad.lo.u32 sum, v, i, sum;
add.u32 i, i, 1; setp.lt.u32 p, i, 5; @p bra again;
mul.wide.u32 at, t, 4; add.u64 to, to, at; st.u32 [to], sum;
ret; }
"""
    made, data = nd.from_ptx(text)["k"], np.array([11, 7], np.uint32)
    for compiled in (False, True):
        out = np.zeros(32, np.uint32)
        assert nd.simulate(made, 1, 32, [data, out], compiled=compiled).compiled == compiled
        pairs = [(11, 7) if t % 3 == 0 else (t, t % 3) for t in range(32)]
        assert out.tolist() == [10 * a + 5 * b for a, b in pairs]
