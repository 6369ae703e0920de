"""The checks of lesson 16, Blackwell: tensor memory, commits, a ring given back by products, two sets of sums.
All on the CPU engine, by PTX's text: none of it has run on hardware."""

import ast
import inspect
import textwrap

from numba import cuda

from ...compiler import i32, kernel, u64
from ...device.layout import Array, Shared
from ...device.rings import Ring
from ...device.sync import lane, warp
from ...device.tcgen05 import tcgen05_commit, tcgen05_fence_after_thread_sync
from ...device.tensor_memory import TensorMemory
from ...device.tma import fence_proxy_tensormap_acquire_sys
from ...engines import faults
from ...engines.cpu import simulate
from ..pipelines import blackwell
from .exercise import exercise, number, refuse, require, value_of

TILES = 5  # of exercise 5: each set of sums is used again, and again
LANDINGS = ("late", "earliest", "random")  # how copies and products may come to an end


def run(made, *launch):
    """Runs a kernel with products that are over late, early and at any moment; what is wrong is raised."""
    made = blackwell.launch(made, 1, *launch)
    for seed, landing in enumerate(LANDINGS):
        simulate(made, seed=seed, landing=landing)


@exercise("The lane stands in the upper 16 bits. Which is the first one that the warp reaches?")
def address(answer):
    """answer(base, warp, column) -> the address that the warp gives."""
    for base in (0, 64):
        for of, column in ((0, 0), (0, 16), (1, 0), (3, 48), (4, 0), (6, 32)):
            got, first = number(value_of(answer, base, of, column), "address"), 32 * (of % 4)
            if got == base + (first << 16) + column:
                continue
            given = f"For base {base}, warp {of} and column {column} it says {got:#x}. "
            refuse(
                given,
                (got == base + first + column, "The lane is in the upper half: shift it left by 16."),
                (got == base + (of % 4 << 16) + column,
                 f"That begins at lane {of % 4}; each of the four warps has 32 lanes."),
                (got == base + (32 * of << 16) + column,
                 f"Lane {32 * of} there is not: warps 4 to 7 reach those of 0 to 3."),
                (True, f"It begins at lane {first}, and at column {base + column}."),
            )  # fmt: skip
    return "Warp % 4 chooses the quarter, and << 21 is 32 lanes, << 16: whatever the product's shape, so it is."


TILE_FAULTS = {
    faults.UninitialisedRead: "The first product of a tile adds to what nobody has written: tensor memory "
    "holds garbage. Only the later ones add.",
    faults.TensorInFlight: "The sums are read while the products may still be at work. An arrival by the "
    "thread itself says nothing of what it has issued: the products have to arrive.",
    faults.WrongResult: "Only a part of k has come into the sums: a product with `adds` 0 forgets what was "
    "there.",
    faults.Deadlock: "All wait for ever: nobody arrives on the barrier that they wait on.",
}


@exercise("The thread commits its products to a barrier, `done`, and everybody waits for its first phase.",
          faults=TILE_FAULTS)  # fmt: skip
def tile(build):
    """build() -> the kernel (a_map, b_map, out, pitch, steps) of one tile."""
    run(build(), 1, 1, 1)
    return "The products arrive by themselves, and who waits for that sees all that they have written."


RING_FAULTS = {
    faults.ReadAfterRelease: "The stage is given back while the product may still read it: the thread has only "
    "*issued* it. Who arrives when it is over?",
    faults.Deadlock: "The loader waits for more arrivals on *empty* than come, or for some that nobody makes. "
    "One commit is one arrival.",
    faults.TooManyArrivals: "More arrivals come than *empty* counts in a phase.",
}


@exercise("One commit is one arrival, on `ring.empty(state)`.", faults=RING_FAULTS)
def ring(build):
    """build(stages) -> the kernel (a_map, b_map, out, pitch, steps) of a ring of stages."""
    for stages in (2, 3):
        run(build(stages), 1, 1, 5)
    return "A stage comes back when its products have read it, and the thread that issued them never waits."


@exercise("Columns are words: an fp32 number takes one. There are 512.")
def sets(answer):
    got = number(answer, name="sets")
    require(got != 4, "Lanes do not count: 128 rows take all of them, so each set has 256 columns for itself.")
    require(got == 2, f"{got} is not it: 512 columns, and each set takes 256 of them.")
    return "Two sets of 256 columns fill all 512: one is read while the other is made, and there is no third."


READ_FAULTS = {
    faults.TensorInFlight: "The sums are given back while loads of them may still be on their way. What says "
    "that a load has come?",
    faults.DataRace: "A thread gives the sums back before it has read all of them: the next product overwrites "
    "what it is still to read.",
    faults.Deadlock: "Nobody gives the sums back: the thread that multiplies waits for them for ever.",
    faults.UnobservedPhase: "Each of the 128 threads arrives once for a tile, not once for 16 of its columns.",
}


@exercise("First what says that the loads have come. And the last thing of all is to give the sums back.",
          faults=READ_FAULTS)  # fmt: skip
def read(answer):
    """answer(turns, turn, sums, out, row, x, pitch), a device function."""
    run(two_sets(answer), TILES, 1, 2, TILES)
    tree = ast.parse(textwrap.dedent(inspect.getsource(answer.py_func)))
    late = "The words are stored before anything says that they have come; in Python the engine misses it."
    require(not uses_early(tree), f"{late} Wait between the load and the first use of `w`.")
    return "wait_ld, then all is in registers; then the arrival, and the next tile's products may come."


@exercise("Each block loads 128 rows of A and 32 rows of B, of 64 fp16 numbers each.")
def announced(answer):
    got, one, alone = number(answer, name="announced"), 2 * 64 * (128 + 32), blackwell.STAGE
    require(got != one, f"{one} bytes are what one block loads. On this barrier both blocks' loads arrive.")
    require(got != alone, f"{alone} bytes are a stage of a block alone, with a whole tile of B.")
    require(got != 2 * alone, "That counts the tile of B twice. Each block loads a half of it.")
    require(got == 2 * one, f"{got} is not it: 2 bytes a number, 64 in a row, and the rows of both blocks.")
    return f"Two blocks, {one} bytes each. Alone they would load {2 * alone}: half of B comes once less."


def uses_early(tree):
    """Whether what a load of tensor memory gives is used before tcgen05_wait_ld, in one list of statements."""
    for node in ast.walk(tree):
        body, pending = getattr(node, "body", ()), set()
        for step in body if isinstance(body, list) else ():
            text, names = ast.unparse(step), {n.id for n in ast.walk(step) if isinstance(n, ast.Name)}
            if "tcgen05_ld" in text and isinstance(step, ast.Assign):
                pending = {n.id for n in ast.walk(step) if isinstance(getattr(n, "ctx", None), ast.Store)}
            elif "tcgen05_wait_ld" in text:
                pending = set()
            elif pending & names:
                return True
    return False


def two_sets(read):
    """The kernel of exercise 5: tiles below each other, with two sets of sums, which ``read`` reads."""
    READ = read
    shared = Shared(
        a=Array((2, blackwell.ROWS, blackwell.DEPTH), "float16", swizzle="128B"), ring=Ring(2),
        b=Array((2, blackwell.COLUMNS, blackwell.DEPTH), "float16", swizzle="128B"),
        memory=TensorMemory(sums=(2, blackwell.COLUMNS)), turns=Ring(2, empty=128),
    )  # fmt: skip

    @kernel(threads=192, shared=shared)
    def two_sets(a_map: u64, b_map: u64, out: u64, pitch: i32, steps: i32, tiles: i32):
        shared.init()
        ring, turns, sums = shared.ring, shared.turns, shared.memory.sums
        state, turn = ring.start(), turns.start()
        if warp() == 4 and lane() == 0:
            fence_proxy_tensormap_acquire_sys(a_map)
            fence_proxy_tensormap_acquire_sys(b_map)
            for use in range(tiles * steps):
                ring.acquire(state)
                ring.expect(state, blackwell.STAGE)
                a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                y = blackwell.ROWS * (use // steps)
                blackwell.load(a, b, a_map, b_map, use % steps, y, 0, ring.full(state))
                state = ring.advance(state)
        elif warp() == 5 and lane() == 0:
            for _ in range(tiles):
                turns.acquire(turn)
                tcgen05_fence_after_thread_sync()
                for step in range(steps):
                    ring.wait(state)
                    a, b = shared.a.at(state.stage), shared.b.at(state.stage)
                    blackwell.multiply(sums.at(turn.stage), a, b, step)
                    tcgen05_commit(ring.empty(state))
                    state = ring.advance(state)
                tcgen05_commit(turns.full(turn))
                turn = turns.advance(turn)
        elif warp() < 4:
            for tile in range(tiles):
                row = blackwell.ROWS * tile + cuda.threadIdx.x
                READ(turns, turn, sums.warp_at(turn.stage), out, row, 0, pitch)
                turn = turns.advance(turn)
        cuda.syncthreads()
        if warp() == 0:
            shared.memory.free()

    return two_sets
