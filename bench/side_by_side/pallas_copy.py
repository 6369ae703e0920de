"""A copy through a ring of three tiles, in JAX Pallas (Mosaic GPU): one warpgroup asks, the other stores.

After what docs/pallas/gpu/reference.md of jax-ml/jax teaches under "Synchronization structures and primitives".
"""

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

STAGES, ROWS, COLUMNS = 3, 32, 32


def copy_kernel(source, out, tiles, full, empty):
    role, steps = jax.lax.axis_index("role"), source.shape[0] // ROWS

    def produce(step, _):
        stage = jax.lax.rem(step, STAGES)

        @pl.when(step >= STAGES)
        def _():
            plgpu.barrier_wait(empty.at[stage])

        plgpu.copy_gmem_to_smem(source.at[pl.ds(ROWS * step, ROWS)], tiles.at[stage], full.at[stage])

    def consume(step, _):
        stage = jax.lax.rem(step, STAGES)
        plgpu.barrier_wait(full.at[stage])
        out[pl.ds(ROWS * step, ROWS)] = tiles[stage]
        plgpu.commit_smem()
        plgpu.barrier_arrive(empty.at[stage])

    @pl.when(role == 0)
    def _():
        jax.lax.fori_loop(0, steps, produce, None)
        for stage in range(STAGES):
            plgpu.barrier_wait(empty.at[stage])

    @pl.when(role == 1)
    def _():
        jax.lax.fori_loop(0, steps, consume, None)


def copy(data, **options):
    kernel = plgpu.kernel(
        copy_kernel,
        out_type=jax.ShapeDtypeStruct(data.shape, data.dtype),
        scratch_types=[
            plgpu.SMEM((STAGES, ROWS, COLUMNS), data.dtype),
            plgpu.Barrier(num_barriers=STAGES),
            plgpu.Barrier(num_barriers=STAGES),
        ],
        num_threads=2,
        thread_name="role",
        **options,
    )
    return kernel(data)


def run(data, **options):
    return np.asarray(jax.jit(lambda x: copy(x, **options))(data))
