"""What the hardware allows: compute capabilities by name, and the limits of a thread, a block and an SM.

Source: CUDA Programming Guide, "Compute Capabilities", technical specifications.
"""

import re
from dataclasses import dataclass

KB = 1024
AMPERE, HOPPER, BLACKWELL = (8, 0), (9, 0), (10, 0)  # of data-centre GPUs: A100; H100, H200; B200

MAX_THREADS = 1024  # of a block
MAX_COUNT = (1 << 20) - 1  # arrivals, or bytes to come, of an mbarrier's phase
CLUSTER_LIMIT, PORTABLE_CLUSTER = 16, 8  # blocks of a cluster: on Hopper, and on every GPU that has clusters
NAMED_BARRIERS = 15  # of a block, beside number 0, which is that of syncthreads
MAX_REGISTERS = 255  # of a thread
QUARTERS = 4  # of an SM; each has a scheduler and its own registers
QUARTER_REGISTERS = 16384  # 32-bit registers
REGISTERS = QUARTERS * QUARTER_REGISTERS  # of an SM
MOST_ALLOTTED = 256  # registers of a thread: they are given out by eight
STATIC_LIMIT = 48 * KB  # bytes of shared memory; beyond, it is dynamic and the launch opts in
RESERVED_SHARED = 1 * KB  # bytes that the system keeps for itself in each block, from sm_80 on


def registers_at_launch(threads, blocks=1):
    """Registers that a thread of a kernel with setmaxnreg starts with, in a block of ``threads`` of which
    ``blocks`` are to fit on an SM: ptxas takes all there are, and the hardware gives them out by eight. An H200
    ends a kernel that has 256 and asks setmaxnreg.inc for 248 with an illegal instruction."""
    return min(MOST_ALLOTTED, REGISTERS // (threads * blocks)) // 8 * 8


@dataclass(frozen=True)
class Limits:
    """What an SM has.

    shared         bytes of shared memory, with the L1 cache at its smallest
    block_shared   bytes of them that one block can opt in to
    warps, blocks  how many can be resident
    """

    shared: int
    block_shared: int
    warps: int
    blocks: int

    @property
    def threads(self):
        """How many can be resident."""
        return 32 * self.warps


LIMITS = {
    AMPERE: Limits(164 * KB, 163 * KB, 64, 32),
    (8, 6): Limits(100 * KB, 99 * KB, 48, 16),
    (8, 9): Limits(100 * KB, 99 * KB, 48, 24),
    HOPPER: Limits(228 * KB, 227 * KB, 64, 32),
    BLACKWELL: Limits(228 * KB, 227 * KB, 64, 32),
    (10, 3): Limits(228 * KB, 227 * KB, 64, 32),
    (12, 0): Limits(100 * KB, 99 * KB, 48, 24),
    (12, 1): Limits(100 * KB, 99 * KB, 48, 24),
}
SM = LIMITS[HOPPER]  # what the kernels are planned for
SHARED_LIMIT = SM.block_shared
SMS = 132  # of an H100 SXM or an H200


def resident_blocks(threads, shared):
    """How many blocks of so many threads, with so many bytes of shared memory, a GPU has room for at
    once, if their registers fit."""
    by_threads = SM.warps // -(-threads // 32)
    return SMS * max(1, min(SM.blocks, by_threads, SM.shared // (shared + RESERVED_SHARED)))


def capability_of(architecture):
    """(9, 0) of ``sm_90`` and ``sm_90a``; None for what is no architecture."""
    match = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    return match and (int(match[1]), int(match[2]))


def limits_of(architecture):
    """The Limits of an architecture such as ``sm_90a``; raises ValueError for one that is not known."""
    limits = LIMITS.get(capability_of(architecture))
    if not limits:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in LIMITS)
        raise ValueError(f"arch={architecture}: its limits are not known; known are {known}")
    return limits
