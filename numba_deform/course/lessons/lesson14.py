"""Lesson 14, profiling without a GPU: the profiles of its kernels, and the checks."""

import numpy as np

from ...compiler.sass import ToolMissing
from ...device.packages import CudaMissing
from ...measure import pipelines
from .display import InCells
from .exercise import Wrong, exercise, number, require

SIDE, BANKS, SECTOR = 32, 32, 32  # of a tile; of shared memory; bytes of a piece of global memory


def profile(kernel, data, **more):
    """The ``nd.profile`` of a transposition of ``data``; Wrong if its result is."""
    out, tiles = np.full(data.shape[::-1], np.nan, np.float32), (data.shape[1] // SIDE, data.shape[0] // SIDE)
    found = pipelines.profile(kernel, tiles, (data, out), **more)
    require(np.array_equal(out, data.T), "The result is no transposition of the data.")
    return found


def show(kernel, data):
    """The :func:`profile`, or None, with the reason printed, where there is no compiler."""
    try:
        return InCells(profile(kernel, data))
    except (CudaMissing, ToolMissing) as error:
        print(f"No machine code to profile here: {error}.")
        return None


def show_times(kernels, data):
    """Print for each of {name: kernel} what a model of an H200 predicts, or why there is no machine code."""
    try:
        for name, kernel in kernels.items():
            time = profile(kernel, data, time=True).time
            least, most = time.interval
            print(f"{name:20} {time.microseconds:.1f} us, {least:.1f} to {most:.1f}; busiest: {time.binds}")
    except (CudaMissing, ToolMissing) as error:
        print(f"No machine code to profile here: {error}.")


def _matrix(side):
    return np.arange(side * side, dtype=np.float32).reshape(side, side)


@exercise("A column's 32 floats lie in one bank: 32 turns, of which one would be needed anyway.")
def conflicts(predicted, build):
    """The bank conflicts of build(32) on 96 x 96 floats."""
    told = number(predicted)
    counted = round(profile(build(SIDE), _matrix(96)).totals["bank_conflicts"])
    blocks, reads = 9, SIDE
    of_a_read = counted // (blocks * reads)
    why = {
        blocks * reads * SIDE: "A read takes 32 turns, but the first turn is no conflict: 31 are left.",
        reads * of_a_read: f"That is of one block, and there are {blocks}.",
        of_a_read: "That is of one read of a column.",
        SIDE: "A read takes 32 turns, but the first is no conflict. And that is of one read of a column.",
        0: "The 32 floats of a column lie in one bank. How many turns does it take to read them?",
        blocks * 8 * of_a_read: "A block reads 32 columns, not 8: eight warps read 4 each.",
        4 * of_a_read: "That is of one warp, which reads 4 columns. A block has eight warps.",
        2 * blocks * reads * of_a_read: "Only one line has conflicts: the other goes along a row of the tile.",
        4 * reads * of_a_read: f"That is of 64 x 64 floats. 96 x 96 take {blocks} blocks.",
        blocks * 4 * of_a_read: "That is of one warp in each block: eight warps read 4 columns each.",
    }
    require(told == counted, why.get(told, "Count the blocks, their columns, and the turns beyond the first."))
    return f"{blocks} blocks, {reads} columns each, {of_a_read} turns too many for each: {counted}."


@exercise("In which bank does the float below begin, if a row has 32 floats? If it has one more?")
def padding(columns, build):
    """The columns of a tile of which the lanes read a column without conflicts."""
    told = number(columns)
    require(told >= SIDE, f"A tile of {told} columns no longer holds 32 floats of a row.")
    left = round(profile(build(told), _matrix(64)).totals["bank_conflicts"])
    if not left:
        require(told == SIDE + 1, f"No conflicts with {told}, as well as 33, which takes less shared memory.")
        return "Each row begins one bank further on, so a column visits every bank once. It costs 128 bytes."
    if told == SIDE:
        raise Wrong(f"{left} conflicts, as before: 32 floats further on is the same bank.")
    if told % BANKS == 0:
        raise Wrong(f"{left} conflicts. {told} floats further on you are back in the bank where you began.")
    step = np.gcd(told, BANKS)
    where = {2: "With two columns more, every second bank stays free"}.get(
        int(step), f"Each row begins {told % BANKS if step != 4 else 'four'} banks on, and most banks stay free"
    )
    raise Wrong(f"{left} conflicts are left. {where}: which steps visit all 32 banks?")


@exercise("The 32 lanes read 128 bytes in a row. They write 32 floats, each in a row of its own.")
def sectors(kernel, read, write):
    """The sectors that one warp's read and its write touch, in the kernel ``direct``."""
    told, side = (number(read), number(write)), 64
    counted = round(profile(kernel, _matrix(side)).totals["global_sectors"])
    accesses = side * side // SIDE  # of warps: as many reads as writes
    right = 4 * SIDE // SECTOR, counted // accesses - 4 * SIDE // SECTOR
    if told == right:
        return f"{right[0]} + {right[1]} for each 32 floats: {counted} sectors, where {8 * accesses} would do."
    given = f"You say {told[0]} and {told[1]}. "
    require(told != right[::-1], given + "They are exchanged: the lanes read along a row.")
    require(told[0] != 1, given + "A cache line has 128 bytes, and four sectors. Count sectors.")
    require(told != (right[0], right[0]), given + "The write goes down a column: neighbouring lanes are a "
            "whole row of `out` apart.")  # fmt: skip
    require(max(told) <= SIDE, given + "That counts floats, or bytes. A sector has 32 bytes, eight floats.")
    require(told[0] != SIDE, given + "The lanes read 32 floats in a row. Memory comes in whole sectors: eight "
            "of them share one.")  # fmt: skip
    raise Wrong(given + f"One warp reads 128 bytes in a row, and writes {SIDE} floats in {SIDE} rows.")
