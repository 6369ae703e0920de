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
}  # fmt: skip


QUICK = ("stmatrix_x4_trans", "mma_m16n8k16_bf16", "mma_m16n8k8_tf32")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in INSTRUCTIONS]
)
def test_instruction(name):
    """The kernel's parameters go in, and what comes out is stored, so that nothing may be left out."""
    one = getattr(matrix, name)
    results = getattr(one.signature.return_type, "count", int(not name.startswith("st")))
    names = [f"a{i}" for i in range(len(one.signature.args))]
    lines = [f"def kernel({', '.join([*names, 'out'])}):", f"    x = f({', '.join(names)})"]
    lines += [f"    out[{i}] = x[{i}]" if results > 1 else "    out[0] = x" for i in range(results)]
    scope = {"f": one}
    exec("\n".join(lines), scope)
    kind = cuda.types.float32 if name.startswith("mma") else cuda.types.uint32
    signature = cuda.types.void(*one.signature.args, kind[::1])
    found = inspect_kernel(Kernel(scope["kernel"], signature, 32))
    [instruction] = re.findall(r"\b(?:LDSM|STSM|HMMA)[.\w]*", found.sass)
    assert instruction == INSTRUCTIONS[name]
    assert found.stack == 0 and "CALL" not in found.instructions
