"""The checks of lesson 7, how fast can it be: bounds, banks, budgets."""

import math

import numpy as np

from ...device.limits import SMS, limits_of
from ...engines.tensormap import swizzle_offsets
from ...kernels.budget import occupancy
from ...kernels.registry import current_name
from ...measure.ceilings import attribute
from .exercise import Wrong, exercise, number, require, value_of
from .pictures import wavefronts
from .results import results

BYTES_PER_WAVEFRONT = 128
GHZ = 1.98


@exercise(
    "How many cycles does an SM need for one sample? How many samples does each SM get? Then cycles to ms."
)
def data_path(answer):
    """answer(samples, bytes_per_sample, sms, ghz) -> ms that the data path takes at least."""
    for samples, size, sms, ghz in (
        (31_521_792, 256, SMS, GHZ), (2_844_544, 256, SMS, GHZ), (1_000_000, 512, 114, 1.755),
    ):  # fmt: skip
        got = float(value_of(answer, samples, size, sms, ghz))
        right = samples * size / BYTES_PER_WAVEFRONT / sms / (ghz * 1e6)
        given = f"For {samples:,} samples of {size} bytes it says {got:.4g}. "

        def is_about(value, got=got):
            return math.isclose(got, value, rel_tol=1e-3)

        if is_about(right):
            continue
        require(not is_about(right * sms), given + f"That is one SM doing all the work. There are {sms} of "
                "them.")  # fmt: skip
        require(not is_about(right / 1e3), given + "That is in seconds; ms are asked for: 1e6 cycles at 1 GHz.")
        require(not is_about(right * 1e6), given + "That is in ns: a cycle is 1 / ghz ns. Divide by 1e6.")
        require(not is_about(right * BYTES_PER_WAVEFRONT), given + "It gives the path one byte a cycle. It "
                "delivers 128, one wavefront.")  # fmt: skip
        require(not is_about(right * BYTES_PER_WAVEFRONT / size), given + "It counts one wavefront a sample. "
                f"{size} bytes take {size // 128} of them.")  # fmt: skip
        raise Wrong(given + f"It should be {right:.4g} ms.")
    return ("0.241 ms for the preset `seeds`, if a wavefront starts in every cycle of every SM. No kernel that "
        "brings four whole pixels for each sample through this path can be faster.")  # fmt: skip


@exercise("In which bank is word `stride * lane`? After how many lanes does a bank come again?")
def strides(predicted):
    """predicted: {stride in words: wavefronts}."""
    require(set(predicted) == {1, 8, 12, 33}, "Predict for the strides 1, 8, 12 and 33, no others.")
    for stride, got in predicted.items():
        right = len(wavefronts([4 * stride * lane for lane in range(32)]))
        if got == right:
            continue
        given = f"Stride {stride}: {got} is not it. "
        require(stride != 33, given + "33 words are one more than there are banks, so each lane is one bank "
                "further than the one before: that is why arrays get one column more.")  # fmt: skip
        require(stride != 12, given + "12 and 32 share the factor 4. A bank comes again after 8 lanes, and 4 "
                "times in 32.")  # fmt: skip
        raise Wrong(given + f"The banks used are the multiples of {math.gcd(stride, 32)}: count them.")
    return ("It is the greatest common divisor of the stride and 32: an odd stride has no conflicts, a power "
        "of two has the most.")  # fmt: skip


# --- lanes of a row -------------------------------------------------------------------------------
PIXEL, PITCH, ROWS = 64, 34, 8  # bytes; pixels of a window's line; rows of a warp, of 4 lanes each


def column_addresses(tiles, order, step, line, pitch=PITCH):
    """The 32 addresses of one load: each row's four lanes read a pixel's 64 bytes.

    ``tiles``: for each row the pixel (x, y) of its tile's upper left corner; ``order(x, row)``: which column
    the row reads first; ``step`` 0 or 1: the first or the second of them; ``line`` 0 or 1.
    """
    addresses = []
    for row, (x, y) in enumerate(tiles):
        column = (int(order(x, row)) ^ step) & 1
        pixel = (y + line) * pitch + x + column
        addresses += [PIXEL * pixel + 16 * chunk for chunk in range(4)]
    return addresses


def random_tiles(rows=ROWS, seed=0):
    """Tiles of a warp's rows within a window of PITCH x PITCH pixels: (x, y) each."""
    rng = np.random.default_rng(seed)
    return [(int(x), int(y)) for x, y in rng.integers(0, PITCH - 1, (rows, 2))]


def wavefronts_per_sample(order, warps=50, pitch=PITCH):
    """Of four loads (two columns, two lines) of eight rows with tiles at random."""
    total = 0
    for seed in range(warps):
        tiles = random_tiles(seed=seed)
        for step in range(2):
            for line in range(2):
                total += len(wavefronts(column_addresses(tiles, order, step, line, pitch), 16))
    return total / warps / ROWS


@exercise("Two rows next to each other have to read columns of different parity, whatever their x are.")
def column_order(answer):
    """answer(x, row) -> 0 or 1: which column of its tile the row reads first."""
    table = {(x, row): value_of(answer, x, row) for x in range(4) for row in range(4)}
    for (x, row), first in table.items():
        require(first in (0, 1), f"For x={x}, row={row} it says {first!r}. 0 is the left column, 1 the right "
                "one.")  # fmt: skip
    count = wavefronts_per_sample(answer)
    given = f"{count:.2f} wavefronts a sample: "
    if count == 2:
        return ("2.00 wavefronts a sample, the least there is. Of two neighbouring rows one begins with its "
            "even column and the other with its odd one, and together they fill all 32 banks.")  # fmt: skip
    require(len(set(table.values())) > 1, given + "as long as all rows read the same side first, two of them "
            "meet whenever their x have the same parity, which is half of the time.")  # fmt: skip
    require(any(table[x, 0] != table[x, 1] for x in range(4)), given + "now every row begins with a column of "
            "the same parity, so that two rows always meet.")  # fmt: skip
    require(any(table[0, row] != table[1, row] for row in range(4)), given + "rows take different sides, but "
            "whether a side is an even column depends on x too.")  # fmt: skip
    raise Wrong(given + "some pairs of rows still read columns of the same parity. Take x and row together.")


# --- swizzle --------------------------------------------------------------------------------------
def tile_wavefronts(place):
    """(of reading one row, of reading one column) of 8 x 8 chunks of 16 bytes; the worst row and column."""
    lines = [[place(row, chunk) for chunk in range(8)] for row in range(8)]
    columns = [[place(row, chunk) for row in range(8)] for chunk in range(8)]
    return tuple(max(len(wavefronts(a, 16)) for a in kind) for kind in (lines, columns))


@exercise("Lesson 1 ends with a picture of it: at which place of its row does chunk i of row r lie?")
def swizzle(answer):
    """answer(row, chunk) -> the byte where that chunk of an 8 x 8 tile lies, as TMA writes it."""
    places = {(r, c): int(value_of(answer, r, c)) for r in range(8) for c in range(8)}
    require(all(place % 16 == 0 for place in places.values()), "A chunk has 16 bytes and lies on a multiple of "
            "16: the answer counts bytes.")  # fmt: skip
    require(len(set(places.values())) == 64, "Two chunks lie at the same place; one of them is lost.")
    row, column = tile_wavefronts(lambda r, c: places[r, c])
    inside = max(places.values()) < 1024
    require(inside or column > 1, "It is free of conflicts, and longer than 1024 bytes: a gap after each row. "
            "With plain stores that is the usual cure. But a TMA box arrives packed: there is nobody to leave "
            "the gaps.")  # fmt: skip
    require(column == 1, f"A row takes {row} and a column {column} wavefronts, where 1 would do: chunks of a "
            "column lie in the same four banks.")  # fmt: skip
    require(row == 1, f"Columns are free of conflicts now, but a row takes {row} wavefronts.")
    by_tma = swizzle_offsets(1024, "128B")[::16]
    require(all(places[r, c] == int(by_tma[8 * r + c]) for r in range(8) for c in range(8)), "It is packed and "
            "free of conflicts, so plain stores could use it. TMA has another permutation, which needs no "
            "addition: an XOR of the chunk with the row.")  # fmt: skip
    return (
        "Rows and columns take one wavefront each, nothing is wasted, and TMA writes it by itself with "
        'swizzle="128B". Only the readers have to know.'
    )


# --- budget ---------------------------------------------------------------------------------------
BLOCK = dict(threads=256, registers=81, shared_bytes=34_000)


@exercise("Work out a limit for registers, shared memory, warps and blocks; the smallest one counts.")
def blocks(answer):
    """answer: how many blocks of BLOCK an SM of sm_90 holds."""
    right = occupancy(**BLOCK, limits=limits_of("sm_90a"))
    answer = number(answer, "number of blocks")
    require(answer != 3, "65536 / (256 x 81) is 3.16, but registers come in units of 8 a thread: 81 take as "
            "much as 88, and each quarter of the SM gives whole warps only.")  # fmt: skip
    require(answer != 6, "6 is what shared memory allows: 228 KB for 34,000 bytes and 1 KB of the system each. "
            "Registers allow less.")  # fmt: skip
    require(answer != 8, "8 is what the 64 warps allow, 8 of them to a block. Registers allow less.")
    require(answer == right.blocks, f"{answer} is not it. A quarter has 16384 registers; a warp takes 32 x 88 "
            "of them.")  # fmt: skip
    return ("A quarter holds 5 warps of 88 registers, the SM 20, and a block has 8: two blocks, and the "
        "registers of four warps stay unused. With 80 registers it is three: ask the compiler by min_blocks=3.")


# --- ceilings -------------------------------------------------------------------------------------
@exercise("Of all that the kernel has to pass, the slowest part decides. How near is the kernel to it?")
def bound(answer):
    """answer(milliseconds, passes, ceilings) -> (name of the ceiling that binds, share)."""
    for row in results("pipelines_seeds")["rows"] + results("windows_seeds")["rows"]:
        if not row.get("fetch"):
            continue
        ceilings, ms = row["bounds"], row["median_ms"]
        right = attribute(ms, row["fetch"], ceilings)
        name, share = value_of(answer, ms, tuple(ceilings), ceilings | {"none": 9.0})
        given = f"{current_name(row['variant'])}, {ms:.3f} ms: "
        require(name != "none", given + "the ceiling `none` is not on this kernel's way. Look at `passes` "
                "only.")  # fmt: skip
        require(name != min(ceilings, key=ceilings.get), given + f"{name} is the *lowest* of its times, so it "
                "has the most room. The longest one binds.")  # fmt: skip
        require(name == right["bounded_by"], given + f"{right['bounded_by']} binds it, not {name}.")
        require(not math.isclose(share, 1 / right["closeness"], rel_tol=1e-3), given + "the share is upside "
                f"down: {share:.2f}. It is 1 at the ceiling and less below it.")  # fmt: skip
        require(math.isclose(share, right["closeness"], rel_tol=1e-3), given + "the share is "
                f"{right['closeness']:.2f}, the ceiling's time over the kernel's.")  # fmt: skip
    return ("That is all that a ceiling says. A share near 1 means: choose another way, not better code. A "
        "small one means that something else costs the time. A timeline or a profiler tells what.")  # fmt: skip
