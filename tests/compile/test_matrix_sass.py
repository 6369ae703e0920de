"""ldmatrix, stmatrix and mma.sync become one machine instruction each, of the right shape and type."""

import re

import pytest
from numba import cuda

from numba_deform.compiler import Kernel
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.device import matrix

INSTRUCTIONS = {
    "ldmatrix_x1": "LDSM.16.M88", "ldmatrix_x2": "LDSM.16.M88.2", "ldmatrix_x4": "LDSM.16.M88.4",
    "ldmatrix_x1_trans": "LDSM.16.MT88", "ldmatrix_x2_trans": "LDSM.16.MT88.2",
    "ldmatrix_x4_trans": "LDSM.16.MT88.4",
    "stmatrix_x1": "STSM.16.M88", "stmatrix_x2": "STSM.16.M88.2", "stmatrix_x4": "STSM.16.M88.4",
    "stmatrix_x1_trans": "STSM.16.MT88", "stmatrix_x2_trans": "STSM.16.MT88.2",
    "stmatrix_x4_trans": "STSM.16.MT88.4",
    "mma_m16n8k16_f16": "HMMA.16816.F32", "mma_m16n8k16_bf16": "HMMA.16816.F32.BF16",
    "mma_m16n8k8_tf32": "HMMA.1688.F32.TF32",
    "mma_m16n8k32_s8": "IMMA.16832.S8.S8", "mma_m16n8k32_u8": "IMMA.16832.U8.U8",
    "mma_m16n8k32_s8_u8": "IMMA.16832.S8.U8", "mma_m16n8k32_u8_s8": "IMMA.16832.U8.S8",
}  # fmt: skip
FP8 = ("e4m3", "e5m2", "e4m3_e5m2")


QUICK = ("stmatrix_x4_trans", "mma_m16n8k16_bf16", "mma_m16n8k8_tf32", "mma_m16n8k32_u8_s8")


def compiled(name):
    """The kernel's parameters go in, and what comes out is stored, so that nothing may be left out."""
    one = getattr(matrix, name)
    kind = one.signature.return_type
    results = getattr(kind, "count", int(not name.startswith("st")))
    names = [f"a{i}" for i in range(len(one.signature.args))]
    lines = [f"def kernel({', '.join([*names, 'out'])}):", f"    x = f({', '.join(names)})"]
    lines += [f"    out[{i}] = x[{i}]" if results > 1 else "    out[0] = x" for i in range(results)]
    scope = {"f": one}
    exec("\n".join(lines), scope)
    signature = cuda.types.void(*one.signature.args, getattr(kind, "dtype", cuda.types.uint32)[::1])
    found = inspect_kernel(Kernel(scope["kernel"], signature, 32))
    assert found.stack == 0 and "CALL" not in found.instructions
    return found


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in INSTRUCTIONS]
)
def test_instruction(name):
    [instruction] = re.findall(r"\b(?:LDSM|STSM|HMMA|IMMA)[.\w]*", compiled(name).sass)
    assert instruction == INSTRUCTIONS[name]


@pytest.mark.parametrize("kind", ["e5m2_e4m3", *(pytest.param(k, marks=pytest.mark.full) for k in FP8)])
def test_fp8_is_multiplied_as_fp16(kind):
    """Hopper has no mma of fp8: the compiler unpacks A and B, each as its own type, and multiplies halves."""
    sass = compiled(f"mma_m16n8k32_{kind}").sass
    first, _, second = kind.partition("_")
    assert sorted({first, second or first}) == sorted(
        {each.lower() for each in re.findall(r"F2FP\.F16\.(E4M3|E5M2)\.UNPACK_B", sass)}
    )
    assert re.findall(r"\bHMMA[.\w]*", sass) == ["HMMA.16816.F32"] * 2
