"""What lesson 6 shows of schedules: each step that others can see, in the order in which it was made."""

from numba import cuda, int32, uint32

from numba_deform.compiler import kernel, u64
from numba_deform.course.bugs.base import poison
from numba_deform.course.lessons import lesson6
from numba_deform.device.memory import (
    ld_acquire_cta_shared_b32,
    shared_address,
    st_global_b32,
    st_release_cta_shared_b32,
)


@kernel(threads=64)
def peek(out: u64):
    box = cuda.shared.array(1, uint32)
    flags = cuda.shared.array(1, uint32)
    flag, tid = shared_address(flags), int32(cuda.threadIdx.x)
    if tid == 0:
        flags[0] = 0
    cuda.syncthreads()
    if tid == 0:
        st_release_cta_shared_b32(flag, uint32(1))
        box[0] = 7
        st_release_cta_shared_b32(flag, uint32(2))
    elif tid == 32:
        if ld_acquire_cta_shared_b32(flag) != 0:
            st_global_b32(out, uint32(box[0]))


MEET = [("warp 0", "cuda.syncthreads()"), ("warp 1", "cuda.syncthreads()")]
SET = [("warp 0", f"st_release_cta_shared_b32(flag, uint32({value}))") for value in (1, 2)]
LOOK = ("warp 1", "if ld_acquire_cta_shared_b32(flag) != 0:")


def steps(seed):
    return lesson6.steps_of(peek, (poison(1),), seed)


def test_a_schedule_is_its_steps():
    assert steps("x:0:") == [*MEET, *SET, LOOK]
    assert steps("x:0:01") == [*MEET, LOOK, *SET]


def test_it_ends_in_the_fault():
    assert steps("x:0:001") == [*MEET, SET[0], LOOK, ("warp 1", "DataRace")]
