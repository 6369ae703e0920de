"""Random expressions, bit for bit: the CPU engine against a GPU.

    python bench/expressions.py --out bench/results/expressions.json

The functions of tests/sim/expressions.py run on both, on the same inputs. On the GPU they are compiled twice:
without contraction of products and sums to a fused multiply-add, which the engine does not imitate (NVVM's
option ``fma=0``; its PTX then says how each operation rounds, which keeps ptxas from contracting), and as Numba
compiles them by default. A row for each expression that differs without contraction, and the counts of both.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from numba import cuda, typeof, types

from numba_deform.compiler import Kernel
from numba_deform.engines.cpu import simulate
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.engines.gpu.in_place import launch_in_place
from numba_deform.engines.gpu.launch import launch
from numba_deform.measure import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim"))
import expressions  # noqa: E402


def on_gpu(gpu, function, args, contraction):
    """Compile and run one function; ``args`` are changed in place."""
    from numba.cuda.cudadrv import nvvm

    kernel = expressions.kernel_of(cuda.jit(device=True)(function))
    compiled = Kernel(kernel, types.void(*map(typeof, args)), expressions.ELEMENTS)
    compile_ir = partial(nvvm.compile_ir, fma=int(contraction))
    with mock.patch.object(nvvm, "compile_ir", lambda ir, **options: compile_ir(ir, **options)):
        compiled.compile(gpu.architecture)
    launch_in_place(gpu, compiled, 1, args, 0, launch)


def compare(gpu, module, group):
    """(expressions that differ, those that differ with contraction, and the first difference of each)."""
    function = getattr(module, f"group_{group}")
    values = list(expressions.inputs(group).values())
    engine = expressions.results()
    kernel = expressions.kernel_of(cuda.jit(device=True)(function))
    simulate(kernel, 1, expressions.ELEMENTS, (*values, *engine))
    differences = []
    for contraction in (False, True):
        results = expressions.results()
        on_gpu(gpu, function, (*values, *results), contraction)
        different = expressions.differ(engine, results)
        differences.append([row(group, e, engine, results, values) for e in different])
    return differences


def row(group, number, engine, results, values):
    """What is different first, with the inputs of that element."""
    kind, text = expressions.expressions(group)[number]
    one, other = (r[0 if kind == "ints" else 1][number] for r in (engine, results))
    t = int(np.flatnonzero(one.view(np.int64) != other.view(np.int64))[0])
    named = zip(expressions.VARIABLES, values, strict=True)
    inputs = {name: array[t].item() for name, array in named if name in text}
    found = {"engine": one[t].item(), "gpu": other[t].item()}
    return {"group": group, "expression": text, **found, "inputs": inputs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    gpu = find_gpu()
    groups = [*expressions.NUMBERS, *expressions.PACKED, *expressions.HALVES]
    with tempfile.TemporaryDirectory() as folder:
        module = expressions.write(Path(folder))
        pairs = [compare(gpu, module, group) for group in groups]
    plain, contracted = ([row for pair in pairs for row in pair[i]] for i in (0, 1))
    record.write(
        arguments.out, gpu, plain, expressions=expressions.SIZE * len(groups), elements=expressions.ELEMENTS,
        differ=len(plain), differ_with_contraction=len(contracted), rows_with_contraction=contracted,
    )  # fmt: skip
    print(f"{len(plain)} of {expressions.SIZE * len(groups)} differ, {len(contracted)} with contraction")


if __name__ == "__main__":
    main()
