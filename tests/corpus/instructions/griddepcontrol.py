"""griddepcontrol in a grid that nothing precedes and nothing follows."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.griddepcontrol import griddepcontrol_launch_dependents, griddepcontrol_wait
from numba_deform.device.memory import global_at, ld_global_b32, st_global_b32
from numba_deform.engines import faults

WARP, BLOCKS = 32, 2
SOURCE = "PTX ISA 9.7.13.13"


def words():
    data = np.random.default_rng(15).integers(0, 1 << 32, BLOCKS * WARP, np.uint32)
    return [data, np.zeros(BLOCKS * WARP, np.uint32)]


@right(source=SOURCE, grid=BLOCKS, args=words, expect=lambda data, out: [(out, data + 1)])
def waits_reads_and_lets_others_start(data: u64, out: u64):
    """Some lanes of a block say that dependents may start, and some say so twice."""
    i = int32(cuda.grid(1))
    griddepcontrol_wait()
    word = ld_global_b32(global_at(data, i, 4))
    if i % 2 == 0:
        griddepcontrol_launch_dependents()
    griddepcontrol_launch_dependents()
    st_global_b32(global_at(out, i, 4), uint32(word + 1))


@wrong(faults.DataRace, source=SOURCE, grid=BLOCKS, args=words)
def waits_for_a_block_of_its_own_grid(data: u64, out: u64):
    """launch_dependents and wait are for two grids: between the blocks of one they order nothing."""
    i = int32(cuda.threadIdx.x)
    if cuda.blockIdx.x == 0:
        st_global_b32(global_at(out, i, 4), ld_global_b32(global_at(data, i, 4)))
        griddepcontrol_launch_dependents()
    else:
        griddepcontrol_wait()
        word = ld_global_b32(global_at(out, i, 4))  # <- fault
        st_global_b32(global_at(out, WARP + i, 4), word)
