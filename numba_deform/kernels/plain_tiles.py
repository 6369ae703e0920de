"""plain_tiles (S21): the 2x2 tiles of one row by plain loads, to compare with what TMA delivered."""

import functools

from numba import cuda, float32, int32, types, uint32, uint64

from ..compiler import kernel
from ..device.integer import div_u32
from ..device.memory import ld_global_nc_v4, st_global_b32, st_global_v4
from .problem import ITEMSIZE
from .shared.sampling import load_level, locate, number_loader

THREADS = 64


@functools.cache
def build(constants):
    """The kernel, for one block. Arguments: addresses of value, levels and locations as ``direct``; of
    the tiles (L*P, 2, 2, C) and their corners (L*P, 2) int32 x, y; the row; rows of one batch, heads, S.
    """
    SAMPLES, POINTS = constants.levels * constants.points, constants.points
    PIXEL = constants.channels * ITEMSIZE[constants.dtype]
    CHUNKS = PIXEL // 16
    CHUNKS_OF_ALL = SAMPLES * 4 * CHUNKS
    LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
    WORDS, load_location, convert = number_loader(constants.location_dtype, 2)
    u64, i32 = types.uint64, types.int32

    @kernel(types.void(u64, u64, u64, u64, u64, i32, i32, i32, i32), threads=THREADS)
    def plain_tiles(
        value, levels, locations, tiles, corners, row, rows_per_batch, heads, spatial_size
    ):  # fmt: skip
        batch = int32(div_u32(row, rows_per_batch))
        head = int32(row - int32(div_u32(row, heads)) * heads)
        plane = uint64(batch) * uint64(spatial_size) * uint64(heads) + uint64(
            head
        )  # in pixels of a head
        raw = cuda.local.array(WORDS, uint32)
        xy = cuda.local.array(2, float32)
        for e in range(int32(cuda.threadIdx.x), CHUNKS_OF_ALL, THREADS):
            pixel = int32(div_u32(e, CHUNKS))
            chunk = int32(e - pixel * CHUNKS)
            k, corner = int32(pixel >> 2), int32(pixel & 3)
            number = uint64(row) * uint64(SAMPLES) + uint64(k)
            load_location(locations + number * uint64(LOCATION_BYTES), raw)
            convert(raw, xy)
            height, width, start, row_stride = load_level(levels, int32(div_u32(k, POINTS)))
            left, _, _ = locate(xy[0], width)
            top, _, _ = locate(xy[1], height)
            x, y = int32(left + (corner & 1)), int32(top + (corner >> 1))
            target = tiles + uint64(pixel) * uint64(PIXEL) + uint64(chunk * 16)
            if x >= 0 and x < width and y >= 0 and y < height:
                here = plane + uint64(int32(start + y * row_stride + x)) * uint64(heads)
                words = ld_global_nc_v4(value + here * uint64(PIXEL) + uint64(chunk * 16))
                st_global_v4(target, words[0], words[1], words[2], words[3])
            else:
                st_global_v4(target, uint32(0), uint32(0), uint32(0), uint32(0))
            if corner == 0 and chunk == 0:
                st_global_b32(corners + uint64(8 * k), uint32(left))
                st_global_b32(corners + uint64(8 * k + 4), uint32(top))

    return plain_tiles
