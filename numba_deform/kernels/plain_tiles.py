"""plain_tiles: the 2x2 tiles of one row by plain loads, to compare with what TMA delivered."""

import functools

from numba import cuda, float32, int32, uint32

from ..compiler import i32, kernel, u64
from ..device.integer import div_u32, rem_u32
from ..device.memory import global_at, ld_global_nc_v4, st_global_b32, st_global_v4
from .parts.sampling import load_level, locate, number_loader
from .problem import ITEMSIZE

THREADS = 64


@functools.cache
def build(constants):
    """The kernel, for one block. Its operands: addresses of value, levels and locations as ``direct``; of
    the tiles (L*P, 2, 2, C) and their corners (L*P, 2) int32 x, y; the row; rows of one batch, heads, S.
    """
    SAMPLES, POINTS = constants.levels * constants.points, constants.points
    PIXEL = constants.channels * ITEMSIZE[constants.dtype]
    CHUNKS = PIXEL // 16
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WORDS, load_location, convert = number_loader(constants.location_dtype, 2)

    @kernel(threads=THREADS)
    def plain_tiles(
        value: u64, levels: u64, locations: u64, tiles: u64, corners: u64, row: i32,
        rows_per_batch: i32, heads: i32, spatial_size: i32,
    ):  # fmt: skip
        batch, head = div_u32(row, rows_per_batch), rem_u32(row, heads)
        plane = global_at(head, global_at(0, batch, spatial_size), heads)  # in pixels of a head
        raw = cuda.local.array(WORDS, uint32)
        xy = cuda.local.array(2, float32)
        for e in range(int32(cuda.threadIdx.x), SAMPLES * 4 * CHUNKS, THREADS):
            pixel, chunk = int32(div_u32(e, CHUNKS)), rem_u32(e, CHUNKS)
            k, corner = int32(pixel >> 2), int32(pixel & 3)
            load_location(global_at(locations, global_at(k, row, SAMPLES), LOCATION_BYTES), raw)
            convert(raw, xy)
            height, width, start, row_stride = load_level(levels, int32(div_u32(k, POINTS)))
            left, _, _ = locate(xy[0], width)
            top, _, _ = locate(xy[1], height)
            x, y = int32(left + (corner & 1)), int32(top + (corner >> 1))
            target = global_at(global_at(tiles, pixel, PIXEL), chunk, 16)
            if x >= 0 and x < width and y >= 0 and y < height:
                here = global_at(plane, int32(start + y * row_stride + x), heads)
                words = ld_global_nc_v4(global_at(global_at(value, here, PIXEL), chunk, 16))
                st_global_v4(target, words[0], words[1], words[2], words[3])
            else:
                st_global_v4(target, uint32(0), uint32(0), uint32(0), uint32(0))
            if corner == 0 and chunk == 0:
                st_global_b32(global_at(corners, k, 8), uint32(left))
                st_global_b32(global_at(corners, 2 * k + 1, 4), uint32(top))

    return plain_tiles
