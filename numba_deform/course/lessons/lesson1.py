"""The checks of lesson 1, a box of numbers."""

import math

import numpy as np

from ...engines.tensormap import TensorMap, TensorMapArray
from ..bugs.base import poison
from .exercise import Wrong, exercise, number, plain, refuse, require, value_of
from .running import run

PICTURE, BOX = (48, 40, 32), (12, 8, 32)  # the notebook's feature map and box: width, height, channels
CORNER = (-5, 36)  # of the box of the exercise zero_fill
CORNERS = {  # of the exercise corners, innermost coordinate first
    "A": (0, -1, 3), "B": (4, 0, 0), "C": (3, 8, 0), "D": (-8, 39, 5), "E": (16, -1, 0)
}  # fmt: skip
ITEMSIZE = 2


@exercise("A pixel's centre lies at x + 0.5. Which pixel's centre is the last one at or left of u * width?")
def tile_corner(answer):
    """answer(u, v, head, width, height, channels) -> (c, x, y), coordinates of the 2x2 tile."""
    # Each of them decides: ceil, the nearest centre, ties, heads, outside of the centres, on a centre.
    for u, v, head, width, height in (
        (0.41, 0.32, 0, 48, 40), (0.71875, 0.6875, 0, 32, 16), (0.3, 0.9, 2, 48, 40), (0.71, 0.33, 1, 20, 13),
        (0.001, 0.002, 1, 48, 40), (0.21875, 0.1875, 1, 48, 40),
    ):  # fmt: skip
        given = f"For u={u}, v={v}, head={head} on {width} x {height} pixels it says "
        got = value_of(answer, u, v, head, width, height, 32)
        require(isinstance(got, tuple) and len(got) == 3, f"{given}{got!r}, and not a tuple (c, x, y).")
        x, y = u * width - 0.5, v * height - 0.5
        expected = (head * 32, math.floor(x), math.floor(y))
        if got != expected:
            cut = plain(answer(-0.1, -0.1, head, width, height, 32))[1:] == (0, 0)
            refuse(f"{given}{got}. ", *_wrong_corners(got, expected, (u, v), (width, height), cut))
    return ("floor(u * width - 0.5) is the last centre at or left of the sample. At the border it is -1, and "
        "TMA allows that: what lies outside arrives as zeros.")  # fmt: skip


def _wrong_corners(got, right, place, size, cut):
    """Of ``tile_corner``: (whether ``got`` is that mistake, what to say); ``cut``: it never gets below 0."""
    x, y = (of * pixels - 0.5 for of, pixels in zip(place, size, strict=True))
    (u, v), (width, height) = place, size

    def rounded(way):
        return got[1:] == (way(x), way(y))

    return (
        (got in (right[::-1], (right[0], *right[:0:-1])), "The order is innermost first: channel, then x, then "
         "y."),
        (rounded(math.floor), f"The heads lie one after another in dimension 0: head {right[0] // 32} starts "
         f"at channel {right[0]}."),
        (rounded(int) and cut, "It is cut off at 0. Left of the first centre the tile starts at -1, outside of "
         "the picture, and that is allowed."),
        (rounded(int), "int() rounds towards zero, so left of the first centre it stays in the picture. The "
         "tile starts at -1 there: take math.floor."),
        (got[1:] == (math.floor(u * (width - 1)), math.floor(v * (height - 1))), "It puts 0 and 1 on the "
         "centres of the outer pixels. Here they are the edges of the picture, and centres lie half a pixel "
          "inside."),
        (got[1:] == (math.floor(u * height - 0.5), math.floor(v * width - 0.5)), "Width and height are "
         "exchanged: u goes across the picture, v down."),
        (any(c != math.floor(c) for c in got), "A coordinate is a whole number: take math.floor."),
        (got[1:] == (math.floor(u * width), math.floor(v * height)) and not rounded(round), "It forgets the "
         "half pixel: the centre of pixel 0 lies at 0.5, not at 0."),
        (x == right[1] and y == right[2], "The sample lies on a pixel's centre, and that pixel is the last one "
         "*at* or left of it."),
        (rounded(math.ceil) and not rounded(round), "It is rounded up: the first centre *right* of the "
         "sample."),
        (rounded(round), "It is rounded to the nearest centre, which may lie right of the sample."),
        (True, f"{right} are the pixels whose centres surround the sample."),
    )  # fmt: skip


@exercise(f"The box of 12 x 8 pixels has its corner at x={CORNER[0]}, y={CORNER[1]}. Draw it, and count.")
def zero_fill(filled, expect):
    """filled: elements of zero fill; expect: bytes that the barrier must expect."""
    width, height, channels = BOX
    across, down = width + CORNER[0], PICTURE[1] - CORNER[1]
    inside, whole = across * down, width * height
    filled, expect = number(filled, name="filled"), number(expect, name="expect")
    require(filled != whole - inside, f"{filled} is the number of pixels outside. Count elements: each pixel "
            f"has {channels} channels.")  # fmt: skip
    require(filled != inside * channels, f"{filled} elements lie inside; what is asked is the rest of the box.")
    require(filled != (width - across) * (height - down) * channels, f"{filled} elements are outside in x and "
            "in y at once. Outside in one of the two is enough.")  # fmt: skip
    require(filled != ((width - across) * height + (height - down) * width) * channels, f"{filled} counts a "
            f"corner of the box twice: the {(width - across) * (height - down)} pixels that are outside in x "
            "and in y.")  # fmt: skip
    require(filled != (whole - inside) * channels * ITEMSIZE, f"{filled} is in bytes. `filled` counts "
            "elements, `expect` counts bytes.")  # fmt: skip
    require(filled == (whole - inside) * channels, f"filled = {filled} is not it. Of the {width} x {height} "
            f"pixels, {across} columns of {down} rows are in the picture.")  # fmt: skip
    require(expect != inside * channels * ITEMSIZE, f"{expect} bytes come from the picture. The barrier counts "
            "what arrives in shared memory, and the zeros arrive too. With this number the phase would end too "
            "early.")  # fmt: skip
    require(expect != filled * ITEMSIZE, f"{expect} bytes are zeros. Those that come from the picture are "
            "counted too.")  # fmt: skip
    require(expect != whole * channels, f"{expect} is in elements; the barrier counts bytes.")
    require(expect == whole * channels * ITEMSIZE, f"expect = {expect} is not it: a box has {whole * channels} "
            f"elements of {ITEMSIZE} bytes.")  # fmt: skip
    return "The whole box is delivered and counted, wherever it lies: 6144 bytes, always."


@exercise("The boxes are numbered row by row, `across` of them in a row. Coordinates are in pixels.")
def block_corner(kernel, engine=None):
    """A kernel (map, out, across): block b writes box b of the picture to out[b]."""
    width, height, channels = BOX
    for wide, high in (PICTURE[:2], (3 * width, 2 * height)):  # a row has four boxes, or three
        across, down = wide // width, high // height
        picture = np.random.default_rng(1).standard_normal((high, wide, channels)).astype(np.float16)
        maps = TensorMapArray([TensorMap.of(picture, (channels, width, height))])
        out = poison(across * down, height, width, channels, dtype=np.float16)
        run(kernel, across * down, (maps, out.reshape(len(out), -1), across), engine=engine)
        _require_boxes(out, maps[0], picture, across)
    return "Every box of the picture arrived once, each in its place."


MISPLACED = (  # (corner of block b in this column and row, what is wrong with it)
    (lambda column, row, b: (column, row), "The boxes overlap: block 1 starts one pixel to the right of block "
     "0. Coordinates count pixels, not boxes."),
    (lambda column, row, b: (row * BOX[1], column * BOX[0]), "The picture comes out with x and y exchanged: "
     "columns go with x, which comes before y."),
    (lambda column, row, b: (row * BOX[0], column * BOX[1]), "The boxes come column by column: block 1 should "
     "be right of block 0, and it is below it."),
    (lambda column, row, b: (column * BOX[1], row * BOX[0]), "Width and height of a box are exchanged: x goes "
     "on by the width, y by the height."),
    (lambda column, row, b: (b * BOX[0], row * BOX[1]), "x goes on from row to row, out of the picture. Each "
     "row of boxes begins at x = 0 again."),
    (lambda column, row, b: (column * BOX[0], b * BOX[1]), "Every block goes further down. The blocks of one "
     "row have the same y."),
)  # fmt: skip


def _require_boxes(out, tensor_map, picture, across):
    """Wrong unless ``out`` holds the boxes of a picture with ``across`` of them in a row."""
    width, height, _ = BOX

    def loads(x, y):
        return tensor_map.load_box((0, x, y)).view(np.float16).reshape(out.shape[1:])

    for corner, sentence in MISPLACED:
        corners = [corner(b % across, b // across, b) for b in range(len(out))]
        require(not np.array_equal(out, [loads(*at) for at in corners], equal_nan=True), sentence)
    for b in range(len(out)):
        x, y = b % across * width, b // across * height
        if not np.array_equal(out[b], loads(x, y)):
            corners = ((x, y) for y in range(picture.shape[0]) for x in range(picture.shape[1]))
            brought = next((c for c in corners if np.array_equal(out[b], loads(*c))), None)
            other = f"that at x={brought[0]}, y={brought[1]}" if brought else "another"
            given = f"With {across} boxes in a row, block {b} should bring the box at x={x}, y={y}, and brings "
            raise Wrong(given + other + ".")


@exercise("How many bytes apart are two pixels that are neighbours in x? In y? Where does the level start?")
def level_map(answer):
    """answer(batch, start, width, height, S, H, C, itemsize) -> (offset, dims, strides)."""
    B, H, C, levels = 2, 3, 16, ((9, 6, 0), (5, 3, 54))
    S = 69
    value = np.random.default_rng(2).standard_normal((B, S, H, C)).astype(np.float16)
    raw = value.reshape(-1).view(np.uint8)
    for b, (width, height, start) in ((0, levels[0]), (0, levels[1]), (1, levels[1])):
        offset, dims, strides = value_of(answer, b, start, width, height, S, H, C, ITEMSIZE)
        pixel = H * C * ITEMSIZE
        right = (H * C, width, height), (pixel, width * pixel), (b * S + start) * pixel
        _require_form(dims, strides, right, H, C)
        require(offset != start * pixel or not b, f"For batch {b} the map starts at byte {offset}: that is in "
                "batch 0. A batch has S * H * C elements.")  # fmt: skip
        require(offset != right[2] // ITEMSIZE or not offset, f"offset = {offset} is in elements. An address "
                "counts bytes: times itemsize.")  # fmt: skip
        require(offset != (b * S + start * width) * pixel or not start, f"offset = {offset} multiplies `start` "
                "by the width. But `start` counts pixels, not rows.")  # fmt: skip
        require(offset != (b * width * height + start) * pixel or not b, f"offset = {offset} takes a batch "
                f"item for {width} x {height} pixels. That is one level of it, and it has the pixels of all "
                "levels.")  # fmt: skip
        require(0 <= offset < raw.size, f"offset = {offset} lies outside the value tensor of {raw.size} bytes.")
        m = TensorMap(raw[offset:], "float16", dims, strides, (C, 2, 2))
        image = value[b, start : start + width * height].reshape(height, width, H, C)
        for head, x, y in ((0, 0, 0), (H - 1, 2, 1), (1, width - 2, height - 2)):
            got = m.load_box((head * C, x, y)).view(np.float16).reshape(2, 2, C)
            require(np.array_equal(got, image[y : y + 2, x : x + 2, head]), "The map is legal, but in batch "
                    f"{b} the box of head {head} at x={x}, y={y} has other pixels: dims = {dims}, strides = "
                    f"{strides}, offset = {offset}.")  # fmt: skip
        require(dims == right[0], f"The boxes inside are right, but dims = {dims} is not the level's size, so "
                "the zero fill would begin at another place than its border.")  # fmt: skip
    return ("Every box of every head is where it should be, and outside the level come zeros, not the next "
        "level.")  # fmt: skip


def _require_form(dims, strides, right, H, C):
    """The mistakes with names in dims and strides of a level's map; ``right`` has both as they should be."""
    require((len(dims), len(strides)) == (3, 2), f"There are {len(dims)} dims and {len(strides)} strides. A "
            "map of rank 3 has three dims: the channels of all heads are one. And it has two strides: elements "
            "of dimension 0 are adjacent.")  # fmt: skip
    require(dims != right[0][::-1], f"dims = {dims} begins with the height. The innermost dimension comes "
            "first: channels, then x, then y.")  # fmt: skip
    require(dims != (right[0][0], right[0][2], right[0][1]), f"dims = {dims} has the height before the width. "
            "Behind the channels comes x, which goes through the pixels of a row.")  # fmt: skip
    require(strides != (right[1][0], right[0][2] * right[1][0]) or right[0][1] == right[0][2], "strides = "
            f"{strides}: the second one goes from row to row, and takes the height for the width. How many "
            "pixels has a row?")  # fmt: skip
    require(dims[0] != C, f"dims = {dims} holds one head's channels. Dimension 0 goes through all {H} heads: H "
            "* C.")  # fmt: skip
    require(strides != tuple(s // ITEMSIZE for s in right[1]), f"strides = {strides} are in elements. A tensor "
            "map wants bytes: times itemsize.")  # fmt: skip
    require(strides != tuple(s // H for s in right[1]), f"strides = {strides} step over one head's channels. "
            f"From pixel to pixel it is all {H} heads.")  # fmt: skip


@exercise("Which coordinate of each corner is the innermost one? How many bytes is it?")
def corners(come):
    """come: the letters of the loads that an H200 carries out."""
    come = {letter.strip().upper() for letter in come} - {"", ","}
    require(come <= set(CORNERS), f"The letters are {''.join(CORNERS)}, and not {''.join(sorted(come))}.")
    for letter, corner in CORNERS.items():
        size = corner[0] * ITEMSIZE
        why = f"the innermost coordinate is {corner[0]}, {size} bytes"
        require(letter in come or size % 16, f"{letter} comes: {why}, a multiple of 16. The other coordinates "
                "are free, and what lies outside is zeros.")  # fmt: skip
        require(letter not in come or not size % 16, f"{letter} does not come: {why}, no multiple of 16. The "
                "kernel ends with an illegal instruction.")  # fmt: skip
    return "Only the innermost coordinate counts, in bytes, and its sign does not matter."


@exercise("The two rules named 'stride multiple' and 'box row multiple' ask for multiples of 16 bytes.")
def mend(answer):
    """answer(picture) -> (array, box), for a picture (height, width, 3) of float16."""
    picture = np.random.default_rng(3).standard_normal((10, 14, 3)).astype(np.float16)
    got = answer(picture)
    both = isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], np.ndarray)
    require(both, "Return the new array and the box: (array, box).")
    array, box = got
    require(array.shape != (3, 10, 14), "With a plane for each colour a pixel is in three places. Keep the "
            "channels of a pixel together.")  # fmt: skip
    require(array.ndim == 3 and array.shape[0] == 10, f"The new array has shape {array.shape}; it should be "
            "(10, 14, channels).")  # fmt: skip
    require(array.shape[1] == 14, f"The rows are {array.shape[1]} pixels long now. What is too short is the "
            "pixel: it needs more channels.")  # fmt: skip
    require(array.dtype == picture.dtype, f"The elements have become {array.dtype}; float16 was fine.")
    require(array.shape[2] != 3, "The array still has 3 channels, 6 bytes a pixel, and 6 is no multiple of 16.")
    require(tuple(box) != (4, 4, array.shape[2]) or array.shape[2] == 4, f"box = {tuple(box)} is in the "
            "array's order. A box has it innermost first: (channels, 4, 4).")  # fmt: skip
    m = TensorMap.of(array, box)
    require(array.shape[2] == 8, f"{array.shape[2]} channels are {2 * array.shape[2]} bytes a pixel. The rules "
            "allow it, and ask for less: which is the smallest number of channels whose bytes are a multiple "
            "of 16?")  # fmt: skip
    require(tuple(box[1:]) == (4, 4), f"box = {tuple(box)} is legal, but the box should be 4 x 4 pixels: "
            "(channels, 4, 4).")  # fmt: skip
    got = m.load_box((0, 5, 3)).view(np.float16).reshape(4, 4, box[0])
    require(np.array_equal(got[:, :, :3], picture[3:7, 5:9]), "The map is legal, but the colours in the box "
            "are not the picture's: copy them into the first 3 channels.")  # fmt: skip
    return "8 channels are 16 bytes a pixel. The rule costs memory."
