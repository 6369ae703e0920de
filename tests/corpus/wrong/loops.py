"""Loops that do not end, and errors of a kernel that nobody hears."""

import numpy as np
from base import wrong
from numba import cuda, int32

from numba_deform.engines import faults


def ints(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


@wrong(faults.KernelError, source="NVIDIA/numba-cuda issue 388", args=ints(32, 32), hardware="no")
def raise_that_nobody_hears(data, out):
    """The kernel raises where an input is not valid. On a GPU, unless compiled for debugging, nobody is told:
    the thread ends, and its output stays as it was."""
    i = int32(cuda.threadIdx.x)
    if data[i] == 20:
        raise ValueError("not a valid input")  # <- fault
    out[i] = data[i]


@wrong(faults.KernelError, source="numba/numba issue 5196", args=ints(32, 32), hardware="no")
def assertion_that_nobody_hears(data, out):
    """The same with an assertion."""
    i = int32(cuda.threadIdx.x)
    assert data[i] < 31, "too large"  # <- fault
    out[i] = data[i]


@wrong(
    faults.Livelock, faults.Unfinished, source="espressomd/espresso issue 2579", hardware="no",
    args=lambda: [np.array([1, 2, 1], np.int32), np.zeros(1, np.int32)],
)  # fmt: skip
def list_with_a_cycle(following, length):
    """A linked list is followed to its end, and a link of it goes back: the thread runs in a circle."""
    if cuda.threadIdx.x == 0:
        node = 0
        while node >= 0:  # <- fault
            node = following[node]  # <- fault
        length[0] = node


@wrong(
    faults.Unfinished, source="stotko/stdgpu pull request 3: loops with no bound", block=1, args=ints(1, 1),
    hardware="no", options={"timeout": 0.6},
)  # fmt: skip
def halves_a_negative_number(data, out):
    """A number is halved until it is zero. Floor division takes -1 to -1."""
    x, steps = data[0] - 5, 0
    while x != 0:  # <- fault
        x //= 2  # <- fault
        steps += 1  # <- fault
    out[0] = steps
