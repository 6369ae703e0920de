"""The backward kernel alone on a GPU: milliseconds a launch, without clearing its sums or rounding them.

    python bench/backward.py --out bench/results/backward_kernel.json

Five launches between two events, the median of 7 such rounds, for several configurations; seeds' shape and
Deformable DETR's encoder at a batch of 4.
"""

import argparse
from pathlib import Path
from statistics import median

import numpy as np

from numba_deform import preset
from numba_deform.attention import gradients
from numba_deform.attention.bind import OnGpu
from numba_deform.attention.checks import problem_of
from numba_deform.engines.gpu.device import DeviceArray, find_gpu
from numba_deform.engines.gpu.launch import time_launches
from numba_deform.measure import record

CONFIGURATIONS = [{}, {"min_blocks": 8}, {"of_value": False}, {"of_samples": False}, {"sums": "fixed"}]
CASES = [(name, pattern) for name in ("detr-encoder-b4", "seeds") for pattern in ("local(2)", "uniform")]
LAUNCHES, ROUNDS = 5, 7


def rows(gpu, name, pattern):
    """A row for each configuration."""
    inputs = preset(name, pattern=pattern, dtype="float16").generate(seed=1)
    problem = problem_of(inputs)
    arrays = [inputs.value, inputs.sampling_locations, inputs.attention_weights]
    given = np.random.default_rng(2).standard_normal(problem.out_shape, np.float32).astype(np.float16)
    there = OnGpu(gpu, problem, arrays)
    like = [DeviceArray(gpu, a.shape, a.dtype) for a in arrays[1:]]
    out, scale = DeviceArray.of(gpu, given), DeviceArray.of(gpu, np.array([2.0**40], np.float32))
    for parameters in CONFIGURATIONS:
        bound = gradients.bound(problem, gpu, **parameters)
        sums = DeviceArray(gpu, *gradients.sums_shape(problem, bound.config.sums))
        sums.fill(0)
        run = bound.launcher(there.addresses, extra=gradients.operands(out, sums, *like, scale))

        def several(run=run):
            for _ in range(LAUNCHES):
                run()

        times = time_launches(gpu, several, ROUNDS)
        yield {"workload": name, "pattern": pattern, **parameters, "ms": median(times) / LAUNCHES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu, done = find_gpu(), []
    for case in CASES:
        for row in rows(gpu, *case):
            done.append(row)
            print(row, flush=True)
            if options.out:
                record.write(options.out, gpu, done)


if __name__ == "__main__":
    main()
