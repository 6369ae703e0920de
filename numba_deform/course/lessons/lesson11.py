"""Lesson 11, swizzles and tensor cores: what the engine sees of its kernels, and the checks."""

import inspect
import re
from dataclasses import dataclass
from unittest import mock

import numpy as np

from ...compiler import function, uint32
from ...engines import faults
from ...engines.cpu import simulate
from ...engines.cpu.machine.thread import Thread
from ...engines.gpu.device import find_gpu
from ...engines.gpu.in_place import launch_in_place
from ...engines.gpu.launch import launch
from ...engines.tensormap import TensorMap, TensorMapArray, swizzle_offsets
from .cluster_kernels import BLOCKS, CHUNKS, DEPTH, ROW_BYTES, SIDE, STEPS, build_warp, element_of_c
from .exercise import Wrong, exercise, refuse, require, value_of
from .pictures import wavefronts
from .results import results
from .running import run as run_alone


# --- what the notebook's kernels are run on -------------------------------------------------------
def operands(steps=STEPS):
    """A (16, 64 steps) and B (32, 64 steps), random whole numbers in fp16: all products of them are exact."""
    numbers = np.random.default_rng(11).integers(-4, 5, (SIDE * (1 + BLOCKS), DEPTH * steps))
    return np.split(numbers.astype(np.float16), [SIDE])


def expected(a, b):
    """A B^T, float32."""
    return a.astype(np.float32) @ b.T.astype(np.float32)


def arguments(a, b, a_rows=SIDE):
    """The arguments of a product (a_map, b_map, out, steps); boxes of A have ``a_rows`` rows."""
    boxes = (a, (DEPTH, a_rows)), (b, (DEPTH, SIDE))
    maps = [TensorMapArray([TensorMap.of(m, box, swizzle="128B")]) for m, box in boxes]
    return [*maps, np.full((len(a), len(b)), np.nan, np.float32), a.shape[1] // DEPTH]


def run(kernel, grid, args, engine=None, cluster=None, **simulated):
    """Run a kernel of this lesson or the next; as ``lessons.run``, whose :class:`Ran` it returns.

    A launch with ``cluster`` is first judged by the CPU engine. There is no guarded form of it for the GPU, so
    only what has ended well goes on to one, with the arrays as they were.
    """
    if cluster is None:
        return run_alone(kernel, grid, args, engine=engine, shared_bytes=kernel.shared_bytes, **simulated)
    options = {"shared_bytes": kernel.shared_bytes, "cluster": cluster}
    before = [(array, array.copy()) for array in args if isinstance(array, np.ndarray)]
    ran = run_alone(kernel, grid, args, engine="cpu", **options, **simulated)
    if engine == "gpu":
        for array, content in before:
            array[...] = content
        launch_in_place(find_gpu(), kernel, grid, args, launch=launch, **options)
    return ran


# --- banks ----------------------------------------------------------------------------------------
def watch_rows(kernel, grid, args):
    """The rows that each ``ldmatrix`` of a run on the CPU engine fetched: for each the shared addresses that
    its lanes gave, eight for each matrix, in the order of the calls of each warp."""
    calls = {}  # (block, warp) -> for each lane a list of (address, how many matrices)
    load = Thread.load_matrices

    def noting(thread, row, count, transposed=False):
        lanes = calls.setdefault((thread.block.index, thread.warp), [[] for _ in range(32)])
        lanes[thread.lane].append((int(row), count))
        return load(thread, row, count, transposed)

    with mock.patch.object(Thread, "load_matrices", noting):
        simulate(kernel, grid, args=args, compiled=False)
    every = (given for _, lanes in sorted(calls.items()) for given in zip(*lanes, strict=True))
    return [[row for row, _ in given[: 8 * given[0][1]]] for given in every]


@dataclass(frozen=True)
class Read:
    """What a kernel of ``build_read`` did: how many of its words were wrong, and the rows that it fetched."""

    wrong: int
    words: int
    rows: list

    @property
    def matrices(self):
        """8x8 matrices that were read."""
        return sum(len(rows) for rows in self.rows) // 8

    @property
    def wavefronts(self):
        """Turns of the banks that they took."""
        return sum(len(wavefronts(rows, 16)) for rows in self.rows)

    def __repr__(self):
        values = f"{self.wrong} of {self.words} words are wrong" if self.wrong else "all values are right"
        return f"{values}; {self.wavefronts} wavefronts for {self.matrices} matrices"


def read(kernel, swizzle):
    """A :class:`Read`: what ``kernel(map, out)`` on the CPU engine makes of a tile with that swizzle."""
    tile = operands(1)[0]
    maps = TensorMapArray([TensorMap.of(tile, (DEPTH, SIDE), swizzle=swizzle)])
    out = np.zeros((SIDE, 32), np.uint32)
    rows = watch_rows(kernel, 1, [maps, out])
    right = tile.view(np.uint32).reshape(2, 8, CHUNKS // 2, 2, 4)  # (half, row, k, chunk of k, word)
    right = right.transpose(2, 3, 0, 1, 4).reshape(SIDE, 32)
    return Read(int((out != right).sum()), out.size, rows)


def measured():
    """{name: row} of the products that an H200 was measured with, from ``bench/results/tile_product.json``."""
    return {row["name"]: row for row in results("tile_product")["rows"]}


# --- exercises ------------------------------------------------------------------------------------
@exercise("A row is 128 bytes, a chunk 16. Look at row 1 of the picture: where in it does chunk 0 lie?")
def place(answer, build_read):
    """answer(row, chunk) -> byte of a swizzled tile; build_read(at) -> kernel(map, out)."""
    got = {(row, c): value_of(answer, row, c) for row in range(SIDE) for c in range(CHUNKS)}
    for (row, c), byte in got.items():
        given = f"For row {row} and chunk {c} it says {byte!r}. "
        require(isinstance(byte, (int, np.integer)), given + "A place is a whole number of bytes.")
        require(byte % 16 == 0, given + "A chunk begins at a multiple of 16 bytes.")
        inside = ROW_BYTES * row <= byte < ROW_BYTES * (row + 1)
        require(inside, given + f"Row {row} has the bytes {ROW_BYTES * row} to {ROW_BYTES * (row + 1) - 1}: "
                "a swizzle leaves each chunk in its row. Which three bits of the row does it use?")  # fmt: skip
    device = function(answer)

    @function
    def at(tile, row, chunk):
        return uint32(tile + uint32(device(row, chunk)))

    seen = read(build_read(at), "128B")
    turns = f"It takes {seen.wavefronts} wavefronts for {seen.matrices} matrices"
    others = f"{seen.wrong} of {seen.words} words are those of another chunk"
    require(not seen.wrong or seen.wavefronts > seen.matrices, f"{turns}, so all banks are used. But {others}: "
            "it is a swizzle, and not the one that TMA has done.")  # fmt: skip
    plain = all(byte == ROW_BYTES * row + 16 * c for (row, c), byte in got.items())
    require(not plain, f"{turns}, and {others}: without a swizzle the chunk would lie there.")
    right = swizzle_offsets(SIDE * ROW_BYTES, "128B")[::16].reshape(SIDE, CHUNKS)
    rows = sorted({row for (row, c), byte in got.items() if row < CHUNKS and byte != right[row, c]})
    require(not seen.wrong, f"{turns}, and {others}: of the first eight rows {', '.join(map(str, rows))} are "
            "wrong. Which *three* bits of the row does a swizzle use?")  # fmt: skip
    return f"All values are right. {turns}: one each. XOR is its own inverse, so the same formula undoes it."


@exercise("The picture of C: which two columns has lane 1, and in which rows has it c0 and c2?")
def element(answer):
    """answer(lane, i) -> (row, column) of c0 .. c3 of a 16x8 product."""
    says = {at: (value_of(answer, *at), element_of_c.py_func(*at)) for at in np.ndindex(32, 4)}
    exchanged = all(got == right[::-1] for got, right in says.values())
    for (lane, i), (got, right) in says.items():
        if got == right:
            continue
        given = f"Lane {lane}, c{i}: it says {got!r}. "
        require(isinstance(got, tuple) and len(got) == 2, given + "Two numbers: (row, column).")
        row, column = got
        below = "c2 and c3 are eight rows below c0 and c1"
        refuse(
            given,
            (exchanged, "Those are exchanged: the row comes first."),
            (got == (lane // 4 + 8 * (i % 2), 2 * (lane % 4) + i // 2), "c1 is right of c0, in the same row; "
             f"{below}."),
            (row != right[0] and i > 1, f"{below}, in the same columns."),
            (row != right[0], "Four neighbouring lanes share a row."),
            (column == lane % 4, "A lane has two columns next to each other, so its first one is even."),
            (True, "The row is right; c0 and c1 are neighbours in it, and so are c2 and c3."),
        )  # fmt: skip
    a, b = operands(1)
    args = arguments(a, b[:SIDE])
    run(build_warp(element=function(answer)), 1, args, engine="cpu")
    require(np.array_equal(args[2], expected(a, b[:SIDE])), "The product is not where it should be.")
    return "A quad of lanes has a row, each of them two columns of it, and the same again eight rows below."


@exercise("Lanes 8m to 8m + 7 give the rows of matrix m. Which eight columns of C is it for, which half of k?")
def b_place(answer, engine=None):
    """answer(lane, k) -> (row, chunk), a device function."""
    for lane, k in np.ndindex(32, DEPTH // 16):
        row, chunk = value_of(answer.py_func, lane, k)
        given = f"For lane {lane} and k = {k} it says row {row}, chunk {chunk}. "
        require(0 <= row < SIDE, given + f"Rows go from 0 to {SIDE - 1}, for 16 columns of C.")
        require(0 <= chunk < CHUNKS, given + f"Chunks go from 0 to {CHUNKS - 1}, and hold 8 elements each.")
    a, b = operands(2)
    kernel, right = build_warp(answer), expected(a, b[:SIDE])

    def product(engine):
        args = arguments(a, b[:SIDE])
        run(kernel, 1, args, engine=engine)
        return args[2]

    if not np.array_equal(product("cpu"), right):
        raise Wrong("The product is wrong. " + _what_is_wrong_with(answer.py_func))
    if engine == "gpu":
        require(np.array_equal(product(engine), right), "On the GPU the product is wrong.")
    return "Words 0 and 1 are b0 and b1 of columns 0 to 7, words 2 and 3 those of columns 8 to 15."


BRACKETS = "(Python adds before it shifts, and shifts before `&`: write brackets.)"


def _what_is_wrong_with(place):
    """Of an answer to ``b_place`` whose product is wrong."""
    starts = [[place(8 * m, k) for m in range(4)] for k in range(2)]  # [k][matrix]: row, chunk
    rows, chunks = ([of[i] for of in starts[0]] for i in (0, 1))
    if rows == [0, 8, 0, 8] and chunks == [0, 0, 1, 1]:
        return (
            "That is the order of A: matrix 1 is eight rows further down. Of B, y[0] and y[1] go into one mma, "
            "so they are the two halves of k of the same eight rows."
        )
    if rows[2:] == rows[:2]:
        return "Matrices 2 and 3 are the same rows as 0 and 1, so columns 8 to 15 of C repeat columns 0 to 7."
    if len(set(chunks)) == 1:
        return "All four matrices have the same chunk: 16 elements of k are two chunks, b0 and b1."
    if starts[1][0][1] - starts[0][0][1] != 2:
        return f"A step of k is 16 elements, two chunks: the next step begins two chunks further on. {BRACKETS}"
    return f"Matrices 0 to 3 begin in the rows {rows}, at k = 0 with the chunks {chunks}. {BRACKETS}"


SIZES = ((32, 48, 64), (16, 32, 128), (40, 24, 200), (7, 50, 72))  # rows, columns, k
WHOLE_FAULTS = {
    faults.OutOfRange: "At the border a block has sums that belong to no element of C. They must not be "
    "stored: neither those below the last row nor those right of the last column.",
    faults.DataRace: "Two blocks write the same elements of C. Each tile begins 16 rows further down than the "
    "one above, and 16 columns further right than its neighbour.",
}


@exercise(
    "Blocks are numbered along a row of tiles first, `across` in each. Which is the last tile along k that "
    "holds anything?",
    faults=WHOLE_FAULTS,
)
def whole(build, engine=None):
    """build(stages) -> the kernel (a_map, b_map, out, depth, across) of a product of any size."""
    kernel = build(2)
    for rows, columns, depth in SIZES:
        numbers = np.random.default_rng(rows).integers(-4, 5, (rows + columns, depth)).astype(np.float16)
        a, b = np.split(numbers, [rows])
        maps, across = arguments(a, b)[:2], -(-columns // SIDE)
        grid = across * -(-rows // SIDE)
        for where in dict.fromkeys(("cpu", engine or "cpu")):
            out = np.full((rows, columns), np.nan, np.float32)
            run(kernel, grid, [*maps, out, depth, across], engine=where)
            if not np.array_equal(out, expected(a, b)):
                given = f"For a C of {rows} x {columns} and {depth} along k: "
                raise Wrong(given + _what_is_wrong_with_whole(out, a, b, kernel))
        if rows == SIDE:
            loads = simulate(kernel, grid, args=[*maps, out, depth, across], trace=True).events
            asked = sum(event.kind == "issue" for event in loads) // (2 * grid)
            given = f"It asks for {asked} tiles along k, where {depth // DEPTH} hold all of it"
            require(asked != depth // DEPTH + 1, given + ". Is there one more where the last one is full?")
            require(asked <= depth // DEPTH, given + ": `depth` counts elements, and the others bring zeros.")
    return "Rows, columns and k of any length: zeros do the rest, and only the stores look where C ends."


def _what_is_wrong_with_whole(out, a, b, kernel):
    rows, columns = out.shape
    if re.search(r"\by\s*<=?\s*out\.shape\[1\]|\bx\s*<=?\s*out\.shape\[0\]", inspect.getsource(kernel.py_func)):
        return "some elements are never written. out.shape is (rows, columns): which of them bounds y?"
    full = a.shape[1] // DEPTH * DEPTH
    if full < a.shape[1] and np.array_equal(out, expected(a[:, :full], b[:, :full])):
        return f"the last {a.shape[1] - full} elements along k are left out. Round up."
    missing = np.isnan(out)
    if missing[:, rows:].any() and not missing[:, :rows].any():
        what = f"columns from {rows} on are never written, and rows beyond C are asked for. "
        return what + "Those are exchanged: `% across` counts along a row of tiles."
    if missing[SIDE:].all() and rows > SIDE:
        return f"rows from {SIDE} on are never written. Block number `across` begins {SIDE} rows further down."
    if missing.any():
        return f"{missing.sum()} of {out.size} elements are never written."
    return f"{np.count_nonzero(out != expected(a, b))} of {out.size} elements are wrong."


# Ways to refill a stage: what a reader does before it arrives, what the producer does behind its wait, and why
# that is enough or not.
REFILLS = {
    "a": ("nothing", "nothing", "The copy engine keeps no order with loads that are under way."),
    "b": ("syncwarp", "nothing", "A syncwarp orders the threads of a warp, and no copy engine."),
    "c": ("bar.sync", "nothing", "A barrier orders threads: it waits for none of their loads."),
    "d": ("fence.proxy.async", "nothing", "Each reader's fence stands between its reads and the copy."),
    "e": ("syncwarp, fence.proxy.async by a lane", "nothing", "Behind the syncwarp one fence is for all."),
    "f": ("nothing", "fence.proxy.async", "It stands on the way from each read to the copy."),
}


def refills():
    """{letter of REFILLS: row of ``bench/results/refill.json``}: products with one stage that fill an H100."""
    like = {"reader": "ldmatrix", "refill": "tensor", "arrives": "threads", "stages": 1, "padding": 0}
    like |= {"tiles": 64, "steps": 64}
    ways = {(r["before"], r["acquired"]): r for r in results("refill")["rows"] if like.items() <= r.items()}
    return {letter: ways[way[:2]] for letter, way in REFILLS.items()}


@exercise("Where does a fence of both proxies stand behind each read, and before the copy?")
def enough(letters):
    """The letters of those that gave right numbers in each launch."""
    told = {letter.lower() for letter in "".join(letters) if letter.isalnum()}
    require(told and told <= set(REFILLS), f"{letters!r} is no text of letters from a to f, such as 'ab'.")
    rows = refills()
    for letter, row in rows.items():
        right = row["launches"] - row["wrong_launches"]
        given = f"{letter}: {right:,} of {row['launches']:,} launches were right. "
        require((letter in told) == (right == row["launches"]), given + REFILLS[letter][-1])
    worst = max(row["most_wrong"] for row in rows.values())
    return (f"A fence between the reads and the copy, whoever calls it. Without it each launch "
            f"was wrong, in up to {worst:,} of {row['elements']:,} elements.")  # fmt: skip
