"""A copy through a ring of three tiles, in CuTe DSL: one warp asks for tiles, the other stores them.

After what examples/python/CuTeDSL of NVIDIA/cutlass teaches: notebooks/async_pipeline.ipynb (the ring and its
two sides) and cute/blackwell/tutorial/tutorial_tma/tma_v2.py (TMA in a PipelineTmaAsync).
"""

import cutlass
import cutlass.cute as cute
import torch
from cutlass import pipeline
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

STAGES, ROWS, COLUMNS = 3, 32, 32


@cute.struct
class Storage:
    barriers: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
    tiles: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, STAGES * ROWS * COLUMNS], 128]


@cute.kernel
def copy_kernel(atom: cute.CopyAtom, source: cute.Tensor, out: cute.Tensor, layout: cute.Layout):
    warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
    storage = cutlass.utils.SmemAllocator().allocate(Storage)
    tiles = storage.tiles.get_tensor(layout)
    ring = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        tx_count=ROWS * COLUMNS * 4,
        barrier_storage=storage.barriers.data_ptr(),
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    producer, consumer = ring.make_participants()
    boxes = cute.local_tile(source, (ROWS, COLUMNS), (None, 0))
    inside, outside = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2), cute.group_modes(boxes, 0, 2)
    )
    steps = cute.size(boxes, mode=[2])
    if warp == 0:
        for step in cutlass.range(steps):
            slot = producer.acquire_and_advance()
            cute.copy(atom, outside[None, step], inside[None, slot.index], tma_bar_ptr=slot.barrier)
            slot.commit()
        producer.tail()
    else:
        for step in cutlass.range(steps):
            slot = consumer.wait_and_advance()
            for row in cutlass.range(ROWS):
                out[ROWS * step + row, lane] = tiles[row, lane, slot.index]
            cute.arch.sync_warp()
            slot.release()


@cute.jit
def copy(source: cute.Tensor, out: cute.Tensor):
    layout = cute.make_layout((ROWS, COLUMNS, STAGES), stride=(COLUMNS, 1, ROWS * COLUMNS))
    load, tile = cpasync.CopyBulkTensorTileG2SOp(), cute.slice_(layout, (None, None, 0))
    atom, view = cpasync.make_tiled_tma_atom(load, source, tile, (ROWS, COLUMNS))
    copy_kernel(atom, view, out, layout).launch(grid=(1, 1, 1), block=(64, 1, 1))


def run(data):
    source, out = torch.from_numpy(data).cuda(), torch.full(data.shape, float("nan"), device="cuda")
    copy(from_dlpack(source, assumed_align=16), from_dlpack(out, assumed_align=16))
    return out.cpu().numpy()
