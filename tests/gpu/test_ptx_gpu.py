"""PTX that a GPU alone can decide about: each kernel is assembled, run, and compared with the CPU engine.

``EXACT`` ones are to be equal bit for bit, NaN payloads apart, which are printed. Approximate ones may differ
by as much as the document allows. Of products, small whole numbers are to be equal, and others near: the order
and rounding of their sums are not specified."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines.gpu.device import DeviceArray

sys.path.insert(0, str(Path(__file__).parents[1] / "ptx"))
import test_fences as fences  # noqa: E402
from generated import WGMMA, a_words, held, lines_of_16, wgmma_operands, wgmma_text  # noqa: E402
from stored import KERNELS  # noqa: E402
from test_arithmetic import CASES as ORDINARY  # noqa: E402
from test_arithmetic import DTYPES, LANES, computed, computing, numbers  # noqa: E402
from test_rare_arithmetic import CASES as RARE  # noqa: E402
from test_unset import IN, RIGHT  # noqa: E402

UNITS = {  # approximate instruction -> units in the last place of f32 (PTX ISA 9.7.3)
    "rcp.approx.f32": 1, "sqrt.approx.f32": 1, "rsqrt.approx.f32": 2, "ex2.approx.f32": 2, "div.full.f32": 2,
}  # fmt: skip
ABSOLUTE = {"sin.approx.f32": 2**-20, "cos.approx.f32": 2**-20, "lg2.approx.f32": 2**-22}
RELATIVE = {"tanh.approx.f32": 2**-10, "lg2.approx.f32": 2**-22}  # of lg2 outside of 0.5 to 2
UNSPECIFIED = ("div.u", "div.s", "rem.u", "rem.s")  # of a divisor 0
EXACT = [c for c in ORDINARY + RARE if "approx" not in c[0] and "full" not in c[0]]
EXACT += [(name, kinds, result, None) for name, kinds, result in (
    *((f"{op}.{mode}.{k}", (k,) * {"fma": 3, "rcp": 1}.get(op, 2), k)
      for op in ("add", "mul", "div", "fma", "rcp") for mode in ("rz", "rm", "rp") for k in ("f32", "f64")),
    *((f"cvt.rn.satfinite{relu}.{k}x2.f32", ("f32", "f32"), "b16")
      for relu in ("", ".relu") for k in ("e4m3", "e5m2")),
    *((f"cvt.rn.f16x2.{k}x2", ("b16",), "b32") for k in ("e4m3", "e5m2")),
    *((f"cvt.{mode}.tf32.f32", ("f32",), "b32") for mode in ("rna", "rn", "rz")),
    *((f"{op}.{o}.f32", ("f32", "f32"), "f32") for op in ("min", "max") for o in ("NaN", "xorsign.abs")),
    ("fma.rn.relu.f16", ("f16",) * 3, "f16"), ("fma.rn.relu.bf16", ("bf16",) * 3, "bf16"),
    ("add.sat.f16", ("f16",) * 2, "f16"), ("mul.ftz.f16", ("f16",) * 2, "f16"),
)]  # fmt: skip
NANS = [
    "add.rn.f32", "fma.rn.f32", "min.f32", "add.rn.f64", "add.f16", "cvt.rn.f16.f32", "cvt.f32.f16",
    "sqrt.rn.f32",
]  # fmt: skip


def on_gpu(gpu, text, threads, arrays, name="k", blocks=1, **options):
    """The arrays after a run of a kernel."""
    from cuda.core import LaunchConfig, Linker, LinkerOptions, ObjectCode, launch

    cubin = Linker(ObjectCode.from_ptx(text.encode()), options=LinkerOptions(arch="sm_90a")).link("cubin")
    there = [DeviceArray.of(gpu, array) for array in arrays]
    config = LaunchConfig(grid=blocks, block=threads, **options)
    launch(gpu.device.default_stream, config, cubin.get_kernel(name), *(each.buffer for each in there))
    return [each.to_numpy() for each in there]


def stored(name):
    """A text of ``kernels/`` without its lines, whose debug sections are not kept."""
    return re.sub(r"(?m)^\s*\.(?:loc|file).*$", "", (KERNELS / f"{name}.ptx").read_text())


@pytest.mark.parametrize("name", RIGHT)
def test_variables_without_a_value(hopper, name):
    """Programs of CUDA C++ that move them and use none are right, again and again."""
    text = stored("unset")
    for _ in range(20):
        out, count = np.full(64, -1, np.int32), np.zeros(1, np.int32)
        assert RIGHT[name](on_gpu(hopper, text, 64, [IN, out, count], name)[1])


def test_a_barrier_of_all_blocks(hopper):
    """As many as the card holds at once."""
    text, blocks = stored("grid_sync"), 32 * 132
    data = np.arange(32 * blocks, dtype=np.int32)
    arrays = [data, np.zeros_like(data), np.zeros_like(data)]
    out = on_gpu(hopper, text, 32, arrays, "reversed", blocks, is_cooperative=True)[2]
    assert np.array_equal(out, data[::-1] + 1)


def test_fences_of_all_who_write(hopper):
    """They stand for the signal of one, in each of 16,896 parts, 50 times."""
    text, blocks = stored("fences"), 32 * 132
    for _ in range(50):
        assert on_gpu(hopper, text, 64, fences.arrays(blocks // 2), "handed_on", blocks)[2][0] == 0


def asked(gpu, opcode, kinds, result):
    """(the GPU's results, the engine's, the operands)"""
    arrays = [numbers(kind, n) for n, kind in enumerate(kinds)]
    *_, there = on_gpu(gpu, computing(opcode, kinds, result), LANES, [*arrays, np.zeros(LANES, DTYPES[result])])
    return there, computed(opcode, kinds, result, *arrays), arrays


@pytest.mark.parametrize("opcode, kinds, result", [c[:3] for c in EXACT], ids=[c[0] for c in EXACT])
def test_is_equal(hopper, opcode, kinds, result):
    there, here, arrays = asked(hopper, opcode, kinds, result)
    same = there.view(f"u{there.itemsize}") == here.view(f"u{here.itemsize}")
    if np.dtype(DTYPES[result]).kind not in "iu":
        same |= np.isnan(there.astype(np.float64)) & np.isnan(here.astype(np.float64))
    if opcode.startswith(UNSPECIFIED):
        same |= arrays[1] == 0
    wrong = np.flatnonzero(~same)
    assert not len(wrong), [(*(a[i] for a in arrays), there[i], here[i]) for i in wrong[:5]]


@pytest.mark.parametrize("opcode", sorted({*UNITS, *ABSOLUTE, *RELATIVE}))
def test_is_near(hopper, opcode):
    kinds = ("f32",) * (2 if opcode.startswith("div") else 1)
    there, here, arrays = asked(hopper, opcode, kinds, "f32")
    if opcode.startswith(("sin", "cos")):
        taken = np.abs(arrays[0]) <= np.pi
    else:
        taken = np.isfinite(here) & (np.abs(here) >= np.finfo(np.float32).tiny)
        for a in arrays:
            taken &= (np.abs(a) >= np.finfo(np.float32).tiny) & (np.abs(a) < 2.0**126)
    off, size = np.abs(there[taken].astype(np.float64) - here[taken]), np.abs(here[taken])
    allowed = np.maximum(ABSOLUTE.get(opcode, 0), RELATIVE.get(opcode, 0) * size)
    allowed += UNITS.get(opcode, 0) * np.spacing(size)
    assert (off <= allowed).all(), (opcode, off.max())


@pytest.mark.parametrize("opcode", NANS)
def test_payloads_of_nan(hopper, opcode):
    """The engine's are told apart by nobody: what the GPU gives is printed (``pytest -s``)."""
    *name, kind = opcode.split(".")
    count = {"cvt": 1, "sqrt": 1, "fma": 3}.get(name[0], 2)
    result = name[-1] if name[0] == "cvt" else kind
    there, here, _ = asked(hopper, opcode, (kind,) * count, result)
    nan = np.isnan(there.astype(np.float64))
    assert np.array_equal(nan, np.isnan(here.astype(np.float64)))
    words = [sorted({f"{x:x}" for x in each[nan].view(f"u{each.itemsize}")}) for each in (there, here)]
    print(opcode, "GPU:", *words[0][:4], "engine:", *words[1][:4])


@pytest.mark.parametrize("d, a, b, columns", WGMMA)
@pytest.mark.parametrize("in_registers", [False, True])
def test_products_of_warpgroups(hopper, d, a, b, columns, in_registers):
    for small in (True, False):
        left, right, sums = wgmma_operands(d, a, b, columns, 1, small)
        out = np.zeros(held(sums, d).shape, np.float32 if d == "f32" else np.int32)
        given = a_words(left) if in_registers else lines_of_16(left)
        args = [given, lines_of_16(right), held(sums, d).view(out.dtype), out]
        text = wgmma_text(d, a, b, columns, in_registers)
        *_, there = on_gpu(hopper, text, 128, args)
        nd.simulate(nd.from_ptx(text)["k"], 1, 128, args)
        if small or d == "s32":
            assert np.array_equal(there, out)
            continue
        there, here = (x if d == "f32" else x.view(np.float16) for x in (there, out))
        size = np.abs(left.astype(np.float64)).max() * np.abs(right.astype(np.float64)).max() * left.shape[1]
        step = {"f16": 2.0**-10}.get(d, 2.0**-12 if a in ("e4m3", "e5m2") else 2.0**-20)
        assert np.abs(there.astype(np.float64) - here).max() <= size * step
