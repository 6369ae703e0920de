"""Marks: when a warp goes over to something else, written to global memory by its first lane.

A mark holds the clock of the SM (on the CPU engine: virtual cycles), what begins, and the ring, stage and
parity it is about. What a warp does between two marks is what the first of them says. The traced form of a
kernel (compiler/rewrite.py) calls these functions; nothing of them is in other forms.
"""

from collections import namedtuple

from numba import cuda, int32, uint32, uint64

from .memory import global_at, st_global_v4
from .sync import clock64

ACQUIRE, ISSUE, COMMIT, WAIT, COMPUTE, RELEASE = 1, 2, 3, 4, 5, 6
CAPACITY = 1024  # marks of a warp; the rest is lost
MARK_BYTES = 16

# Where this thread's next mark goes, and where its room ends (0: it writes none).
Marks = namedtuple("Marks", ["cursor", "end"])


@cuda.jit(device=True, inline="always")
def open_marks(buffer, block):
    """This thread's Marks; ``buffer`` is a global address with room for CAPACITY marks of each warp.

    Blocks of the grid and threads of a block are numbered x first, in whatever dimensions."""
    cursor = cuda.local.array(1, uint64)
    row = int32(cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    thread = int32(cuda.threadIdx.x + cuda.blockDim.x * row)
    row = int32(cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    number = int32(cuda.blockIdx.x + cuda.gridDim.x * row)
    cursor[0] = global_at(buffer, thread >> int32(5), CAPACITY * MARK_BYTES)
    end = uint64(0)
    if number == block and thread & int32(31) == 0:
        end = uint64(cursor[0] + uint64(CAPACITY * MARK_BYTES))
    return Marks(cursor, end)


@cuda.jit(device=True, forceinline=True)
def mark(marks, kind, state, ring):
    """Write one mark; ``state`` is a ``pipeline.PipelineState`` of the ring of that number, 0 if not known."""
    if marks.cursor[0] < marks.end:
        now = clock64()
        about = uint32(kind) | uint32(state.stage) << uint32(8) | uint32(state.parity) << uint32(16)
        about |= uint32(ring) << uint32(17)
        low, high = uint32(now & uint64(0xFFFFFFFF)), uint32(now >> uint64(32))
        st_global_v4(marks.cursor[0], low, high, about, uint32(1))
        marks.cursor[0] = marks.cursor[0] + uint64(MARK_BYTES)
