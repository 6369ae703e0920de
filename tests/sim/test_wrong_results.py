"""What WrongResult says of wrong numbers: where they are, who wrote them, and what stands there instead."""

import inspect
import pickle
import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.course.pipelines.attention import attention
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.engines.faults import WrongResult

ROWS, STEPS, SIDE = 8, 6, 64


@nd.kernel(threads=32)
def nothing(data: nd.u64, out: nd.u64):
    pass


def numbers(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def told(right, wrong, box=None, data=None):
    """The Difference of an output that holds ``wrong``; ``box`` is that of a map of an input like it."""
    maps = nd.TensorMapArray([nd.TensorMap.of(np.array(right), box[::-1])]) if box else np.zeros((1, 1), "f4")
    launch = nd.Launch(nothing, 1, [maps if data is None else data, np.empty_like(right)], {"out": right})
    launch.outputs["out"][...] = wrong
    (found,) = launch.differences()
    return found


def copying(lag=0, order=(), swizzle="none", lanes=32, factor=1.0, stages=3):
    """The copy of a matrix by tiles, with a mistake."""
    shared = nd.Shared(tiles=nd.Array((stages, ROWS, 32), nd.float32, alignment=1024),
                       ring=nd.Ring(stages, empty=32))  # fmt: skip

    @nd.kernel(threads=64, shared=shared)
    def copying(map: nd.u64, out: nd.float32[:, :]):
        shared.init()
        ring, tiles, state = shared.ring, shared.tiles.view(), shared.ring.start()
        if nd.warp() == 0:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(map)
                for step in range(STEPS):
                    ring.acquire(state)
                    ring.expect(state, shared.tiles.stride)
                    tile = shared.tiles.at(state.stage)
                    nd.cp_async_bulk_tensor_2d(tile, map, 0, ROWS * max(0, step - lag), ring.full(state))
                    state = ring.advance(state)
        else:
            for step in range(STEPS):
                ring.wait(state)
                for row in range(ROWS):
                    number = tiles[state.stage, row, nd.lane()]
                    if nd.lane() >= lanes:
                        number *= nd.float32(factor)
                    out[ROWS * step + row, nd.lane()] = number
                ring.release(state)
                state = ring.advance(state)

    data = numbers(ROWS * STEPS, 32)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, (32, ROWS), swizzle=swizzle)])
    return nd.Launch(copying, 1, [maps, np.empty_like(data)], {"out": data})


def lines_of(launch):
    with pytest.raises(WrongResult) as caught:
        nd.simulate(launch)
    return [" ".join(line.split()) for line in str(caught.value).splitlines()]


# --- from kernels -----------------------------------------------------------------------------------
def test_one_stage_late():
    said = lines_of(copying(lag=1))
    assert "where rows 8-47, columns 0-31 (all); all of tiles 1, 2, 3, 4, 5 of 6 (8 x 32)" in said
    assert "holds all hold what belongs 1 tile (8 rows) before them: 1 step late" in said
    assert "map ................................ 0-7" in " ".join(said)
    assert "################################ 8-47" in said


def test_what_the_stage_held_before():
    words = "3 tiles (24 rows) before them: 3 steps late; that is a lap of the ring of stages: what"
    assert any(words in line for line in lines_of(copying(lag=3)))


def test_a_swizzle_on_one_side():
    said = lines_of(copying(swizzle="128B"))
    words = "all hold what belongs in chunk c ^ (r % 8) of their row r, c being their own 16-byte chunk:"
    assert any(words + " a swizzle of 128B, on one side alone" in line for line in said)
    assert any("rows that leave 1-7 when divided by 8" in line for line in said)


@pytest.mark.parametrize("pipeline, line, wrong", [
    (copy, "TensorMap.of(data, (32, rows))", 'TensorMap.of(data, (32, rows), swizzle="128B")'),
    (product, "TensorMap.of(m, tile)", "TensorMap.of(m, (SIDE, SIDE))"),
    (attention, "(x.reshape(-1, SIDE), tiles)", "(x.reshape(-1, SIDE), (SIDE, SIDE))"),
])  # fmt: skip
def test_another_swizzle_than_the_array_has(pipeline, line, wrong, tmp_path, monkeypatch):
    """The map has one and the array none, and the reverse: beside wrong numbers, and without any."""
    monkeypatch.setattr("numba_deform.kernels.pipelines.PIPELINES", {})
    file = Path(inspect.getfile(pipeline.function))
    text = file.read_text()
    assert text.count(line) == 1
    (tmp_path / file.name).write_text(text.replace(line, wrong))
    launch = runpy.run_path(tmp_path / file.name)[pipeline.name]()
    words = re.compile(r"has swizzle='(128B|none)', and .*, which it fills at .*, swizzle='(?!\1)")
    assert any(words.search(said) for said in lines_of(launch))
    bare = nd.Launch(launch.kernel, launch.grid, launch.args)
    assert words.search(str(nd.simulate(bare)))


def test_lanes_that_write_something_else():
    said = lines_of(copying(lanes=30, factor=0.5))
    assert "where rows 0-47 (all), columns 30-31" in said
    assert "holds all are 0.5 times the right numbers" in said
    (by,) = [line for line in said if line.startswith("wrote")]
    assert by.startswith("wrote lanes 30-31, which wrote nothing that is right; at test_wrong_results.py:")


def test_a_product_without_its_first_step():
    @nd.kernel(threads=160)
    def product(a: nd.float16[:, :], b: nd.float16[:, :], out: nd.float32[:, :], first: nd.i32):
        for j in range(out.shape[1]):
            i, total = cuda.threadIdx.x, nd.float32(0)
            if i < out.shape[0]:
                for k in range(first, a.shape[1]):
                    total += nd.float32(a[i, k]) * nd.float32(b[j, k])
                out[i, j] = total

    a, b = numbers(16, 64, dtype=np.float16), numbers(8, 64, seed=2, dtype=np.float16)
    a_map = nd.TensorMapArray([nd.TensorMap.of(a, (16, 16))])
    right = a.astype(np.float32) @ b.astype(np.float32).T
    launch = nd.Launch(product, 1, [a, b, np.empty_like(right), 16], {"out": right})
    assert not any(line.startswith("holds") for line in lines_of(launch))  # nothing says how long a step is
    launch.args = [a_map, *launch.args[1:]]
    assert launch.differences()[0].holds == ("all lack the term of k = 0 .. 15 of a b^T",)


def test_nobody_wrote_it():
    args = [np.zeros((1, 1), np.float32), np.empty((4, 6), np.float32)]
    launch = nd.Launch(nothing, 1, args, {"out": numbers(4, 6)})
    said = lines_of(launch)
    assert "holds 24 were written by nobody: rows 0-3 (all), columns 0-5 (all)" in said
    assert "map oooooo 0-3" in said


# --- by hand: what a kernel might have left -------------------------------------------------------------
RIGHT = np.random.default_rng(1).permutation(4096).reshape(64, 64).astype(np.float32) + 1  # no two alike
SHUFFLED = np.random.default_rng(3).permutation(64)


def doubled(right, rows):
    wrong = right.copy()
    wrong[rows] *= np.linspace(2, 3, len(right))[rows][:, None]
    return wrong


def in_tiles(side):
    tiles = RIGHT.reshape(64 // side, side, 64 // side, side)
    return tiles.transpose(0, 3, 2, 1).reshape(64, 64)


@pytest.mark.parametrize("wrong, box, holds", [
    (np.roll(RIGHT, 1, 0), None, "4,032 of the 4,096 wrong ones hold what belongs 1 row before them"),
    (np.roll(RIGHT, -2, 1), None, "3,968 of the 4,096 wrong ones hold what belongs 2 columns behind them"),
    (RIGHT.T, None, "all hold what belongs in the mirrored place: the matrix is transposed"),
    (in_tiles(16), (16, 16), "all hold what belongs in the mirrored place of their 16 x 16 tile"),
    (in_tiles(8), (16, 16), "all hold what belongs in the mirrored place of their 8 x 8 tile"),
    (np.where(np.arange(64) % 32 == 5, 0, RIGHT), None, "all are zero"),
    (np.where(np.arange(64) == 5, 7, RIGHT), None, "all are 7"),
    (3 * RIGHT, None, "all are 3 times the right numbers"),
    (doubled(RIGHT, slice(4, 8)), None, "each row is the right one times a factor of its own, from 2.06"),
    (RIGHT[:, SHUFFLED], None, "each row has the right numbers in another order"),
    (RIGHT[SHUFFLED], None, "each column has the right numbers in another order"),
    (RIGHT.ravel()[np.random.default_rng(3).permutation(4096)].reshape(64, 64), None,
     "the output has the right numbers in another order"),
])  # fmt: skip
def test_what_stands_there(wrong, box, holds):
    (said,) = told(RIGHT, wrong, box).holds
    assert said.startswith(holds)


@pytest.mark.parametrize("change, holds", [
    (lambda d: -d[3], "all lack the term of row 3 of data"),
    (lambda d: d[7], "all have once more the term of row 7"),
])  # fmt: skip
def test_sums_of_columns(change, holds):
    data = numbers(16, 32)
    (said,) = told(data.sum(0), data.sum(0) + change(data), data=data).holds
    assert said.startswith(holds)


def test_lanes_in_words():
    lanes = np.where(np.arange(128) % 32 == 5, 0, 1 + np.arange(128))
    assert told(1 + np.arange(128), lanes).where == "elements that leave 5 when divided by 32"
    for but, rows in ((3, "0-6 except 3"), (6, "0-5"), (slice(3, 8, 4), "that leave 0-2 when divided by 4")):
        most = np.zeros_like(RIGHT[: 7 + isinstance(but, slice)])
        most[but] = RIGHT[: len(most)][but]
        assert told(RIGHT[: len(most)], most).where == f"rows {rows}, columns 0-63 (all)"
    some = RIGHT.copy()
    some[3, 4] = some[10, 9] = 7.5
    assert told(RIGHT, some).where == "rows 3, 10, columns 4, 9; 2 of the 4 elements there"


# --- nothing is guessed -----------------------------------------------------------------------------
@pytest.mark.parametrize("right, wrong", [
    (RIGHT, numbers(64, 64, seed=2)),
    (np.ones((8, 8), np.float32), np.full((8, 8), 3, np.float32) + np.eye(8, dtype=np.float32)),
    (np.arange(64, dtype=np.int32) % 2, (np.arange(64, dtype=np.int32) + 1) % 2 * (np.arange(64) < 3) + 5),
    # four wrong digits that happen to be those of the row before
    (np.tile(np.arange(8, dtype=np.int32) % 4 + 1, (8, 1)).T, None),
])  # fmt: skip
def test_what_may_be_chance_is_not_said(right, wrong):
    if wrong is None:
        wrong = right.copy()
        wrong[5, :4] = right[4, :4]
    assert told(right, wrong).holds == ()


def test_the_picture(tmp_path):
    with pytest.raises(WrongResult) as caught:
        nd.simulate(copying(lag=1))
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    drawn = ElementTree.parse(error.save(tmp_path / "wrong.svg")).getroot()
    cells = [r for r in drawn if r.tag.endswith("rect")]
    fills = [cell.get("fill") for cell in cells[:-4]]
    rows = error.differences[0].map()
    assert fills.count("#D55E00") == sum(row.count("#") for row in rows) == 32 * len(rows) * 5 // 6
    with pytest.raises(ValueError, match="the picture is written as .svg"):
        error.save(tmp_path / "wrong.txt")


def test_a_picture_without_a_pattern_is_one_line():
    some = np.random.default_rng(3).random(RIGHT.shape) < 0.6
    for wrong, lines in ((np.where(some, 0, RIGHT), 1), (np.where(some[0], 0, RIGHT), 1), (in_tiles(16), 32)):
        found = told(RIGHT, wrong)
        maps = found.lines()[[label for label, _ in found.lines()].index("map") :]
        assert len(maps) == lines and len(found.map()) == 32
    wide = told(RIGHT, np.where(some, 0, RIGHT)).lines()[-1]
    assert wide == ("map", "no pattern, 32 different lines; save('wrong.svg') draws them")


def test_a_large_output_is_told_in_cells():
    right = np.abs(numbers(500, 1000)) + 1
    wrong = right.copy()
    wrong[250:, 500:] = 0
    found = told(right, wrong)
    assert len(found.map()) <= 32 and len(found.map()[0]) <= 64
    assert found.where == "rows 250-499, columns 500-999"
