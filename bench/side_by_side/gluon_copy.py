"""A copy through a ring of three tiles, in Triton's Gluon: a worker partition asks, the default one stores.

After what python/tutorials/gluon/04-tma.py and 08-warp-specialization.py of triton-lang/triton teach. Older
versions call ``async_load`` ``async_copy_global_to_shared``, which ``run.py`` puts there for them.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

STAGES, ROWS, COLUMNS = gl.constexpr(3), gl.constexpr(32), gl.constexpr(32)
BOX = [ROWS.value, COLUMNS.value]


@gluon.jit
def produce(source, tiles, full, empty, steps):
    for step in range(steps):
        stage, phase = step % STAGES, step // STAGES & 1
        mbarrier.wait(empty.index(stage), phase ^ 1)
        mbarrier.expect(full.index(stage), source.block_type.nbytes)
        tma.async_load(source, [ROWS * step, 0], full.index(stage), tiles.index(stage))


@gluon.jit
def consume(out, tiles, full, empty, steps):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    for step in range(steps):
        stage, phase = step % STAGES, step // STAGES & 1
        mbarrier.wait(full.index(stage), phase)
        tile = tiles.index(stage).load(layout)
        fence_async_shared()
        mbarrier.arrive(empty.index(stage))
        gl.store(out + (ROWS * step + rows) * COLUMNS + columns, tile)


@gluon.jit
def copy(source, out, steps):
    tiles = gl.allocate_shared_memory(source.dtype, [STAGES, ROWS, COLUMNS], source.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    consumer, producer = (out, tiles, full, empty, steps), (source, tiles, full, empty, steps)
    gl.warp_specialize([(consume, consumer), (produce, producer)], [1], [24])


def run(data):
    source, out = torch.from_numpy(data).cuda(), torch.full(data.shape, float("nan"), device="cuda")
    layout = gl.NVMMASharedLayout.get_default_for(BOX, gl.float32)
    source = TensorDescriptor.from_tensor(source, BOX, layout)
    copy[(1,)](source, out, len(data) // ROWS.value, num_warps=4, maxnreg=128)
    return out.cpu().numpy()
