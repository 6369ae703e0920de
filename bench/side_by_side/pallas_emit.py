"""The same copy in JAX Pallas with ``emit_pipeline_warp_specialized``: the library places barriers and waits.

After what docs/pallas/gpu/pipelining.md of jax-ml/jax teaches.
"""

import jax
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

STAGES, ROWS, COLUMNS = 3, 32, 32


def copy_kernel(source, out):
    def store(step, tile, out_tile):
        out_tile[...] = tile[...]

    box = plgpu.BlockSpec((ROWS, COLUMNS), lambda step: (step, 0))
    plgpu.emit_pipeline_warp_specialized(
        store,
        grid=(source.shape[0] // ROWS,),
        in_specs=[box],
        out_specs=[box],
        max_concurrent_steps=STAGES,
        num_compute_wgs=1,
        memory_registers=40,
        wg_axis="role",
    )(source, out)


def copy(data, **options):
    kernel = plgpu.kernel(
        copy_kernel,
        out_type=jax.ShapeDtypeStruct(data.shape, data.dtype),
        num_threads=2,
        thread_name="role",
        **options,
    )
    return kernel(data)


def run(data, **options):
    return np.asarray(jax.jit(lambda x: copy(x, **options))(data))
