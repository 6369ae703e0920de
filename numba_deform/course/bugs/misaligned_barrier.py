"""A barrier that is not aligned to 8 bytes.

Tile, counter and barrier are carved out of one piece of shared memory by adding up their sizes, and
the counter takes 4 bytes. The barrier behind it starts 4 bytes past a multiple of 8. On hardware the
first instruction that touches it ends the kernel with a misaligned address, and the driver names no
line.

TVM gave barriers an allocation of their own after sharing one had upset alignments (apache/tvm pull
request 15684).
"""

from numba import cuda, int32, uint32, uint64
from numba.core import types

from ...compiler import kernel, u64
from ...device.mbarrier import mbarrier_arrive_expect_tx, mbarrier_init
from ...device.memory import align_up, ld_shared_b32, shared_address, st_global_b32
from ...device.pipeline import mbarrier_wait
from ...device.sync import fence_mbarrier_init
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from .base import Launch, poison, random_words

MET = "apache/tvm pull request 15684"
FAULTS = {faults.Misaligned: "mbarrier_init(full, 1)"}
CURE = "Round the address up to a multiple of 8, or put the barriers first."

THREADS = 32
BYTES, COUNTER, SHARED = 4 * THREADS, 4, 256


def build(BUG):
    """Kernel(data, out): one tile, copied by one bulk load."""

    @kernel(threads=THREADS)
    def one_tile(data: u64, out: u64):
        area = cuda.shared.array(SHARED, types.uint8, alignment=128)
        tile, tid = shared_address(area), int32(cuda.threadIdx.x)
        if BUG:
            full = tile + uint32(BYTES + COUNTER)  # the fault: 132 is no multiple of 8
        else:
            full = align_up(tile + uint32(BYTES + COUNTER), uint32(8))  # the cure
        if tid == 0:
            mbarrier_init(full, 1)
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(full, BYTES)
            cp_async_bulk_load(tile, data, BYTES, full)
        cuda.syncthreads()
        mbarrier_wait(full, 0)
        st_global_b32(out + uint64(4 * tid), ld_shared_b32(tile + uint32(4 * tid)))

    return one_tile


def arguments(seed):
    """Data of one tile, to be copied to out."""
    data, out = random_words(THREADS, seed=seed), poison(THREADS)
    return Launch((data, out), out, data.copy())
