"""warpgroup_product: the tile product of ``tile_product.py``, by wgmma in place of mma.sync.

Ring, producer and epilogue are the same. What changes is who multiplies, and from where: a consumer is a
*warpgroup* of four warps, and its products read A and B in shared memory, by descriptors. (A may come as
fragments from registers, as in ``pipelines/attention.py``.) So there are no loads to order by hand and no banks
to think of; fragments of the sums are all that a thread holds. One wgmma has 64 rows and all columns of the
tile, so each consumer has 64 rows of it.

The products are asynchronous. A consumer leaves those of one step running while it waits for the next stage and
issues that one's; only then does it wait for the step before, and gives its stage back.
"""

import operator
from dataclasses import dataclass

from numba import cuda, uint32

from ..device.memory import dynamic_bytes, shared_at
from ..device.pipeline import arrive, first_state, make_advance, wait
from ..device.sync import lane, warp
from ..device.tma import fence_proxy_tensormap_acquire_sys
from ..device.wgmma import wgmma_wait_group
from ..kernels import warp_product
from ..kernels.problem import ConfigError
from ..kernels.warp_product import KINDS
from .tile_product import ROW, TileProduct, kernel_of, map_of
from .tile_product import parts as tile_parts

ROWS = 64  # of a consumer's part of the tile: those of a wgmma
WIDTHS = (64, 128, 256)
ALIGNMENT = 1024  # where the pattern of a 128B swizzle begins


@dataclass(frozen=True)
class WarpgroupProduct:
    """Parameters of the kernel.

    rows, columns       of a block's tile of C: 64 rows for each consumer; 64, 128 or 256 columns
    stages              of the ring
    consumer_registers  of a consumer's thread, as in TileProduct
    dtype               of A, B and C: "float16" or "bfloat16"
    """

    rows: int = 128
    columns: int = 256
    stages: int = 4
    consumer_registers: int = 232
    dtype: str = "float16"

    def __post_init__(self):
        if self.columns not in WIDTHS:
            raise ConfigError("columns", self.columns, f"must be one of {', '.join(map(str, WIDTHS))}")
        if self.dtype not in KINDS:
            raise ConfigError("dtype", self.dtype, f"must be {' or '.join(KINDS)}")
        if self.rows % ROWS:
            raise ConfigError("rows", self.rows, f"must be a multiple of {ROWS}")
        if not self.consumer_registers:
            raise ConfigError("consumer_registers", 0, "must be some, which the producer's warps give up")
        assert self.tiles  # which checks the rest

    @property
    def tiles(self):
        """The TileProduct with the same ring, producer and epilogue; a warp has 16 rows, and all columns."""
        return TileProduct(self.rows, self.columns, 16, self.columns, self.stages, self.consumer_registers)

    producers = property(operator.attrgetter("tiles.producers"))
    threads = property(operator.attrgetter("tiles.threads"))

    @property
    def shared_bytes(self):
        """Bytes of shared memory, room to align the ring included."""
        return self.tiles.shared_bytes + ALIGNMENT

    def maps(self, a, b, c):
        """The tensor maps of A (m, k), B (n, k) and C (m, n), arrays of ``dtype``, in this order."""
        return self.tiles.maps(a, b, c)

    def launch(self, m, n, k):
        """(grid, bytes of dynamic shared memory, the kernel's arguments behind the maps)"""
        grid, _, behind = self.tiles.launch(m, n, k)
        return grid, dynamic_bytes(self.shared_bytes), behind


def parts(config):
    """The device functions of a pipeline, for a :class:`WarpgroupProduct`: a ``tile_product.Parts``."""
    return tile_parts(config.tiles, KINDS[config.dtype][1])._replace(multiply=_consumer(config))


def _consumer(config):
    product = warp_product.WarpgroupProduct(config.columns, config.dtype).functions()
    A_BYTES, STAGE = config.rows * ROW, (config.rows + config.columns) * ROW
    PRODUCERS, PART = config.producers, ROWS * ROW
    advance = make_advance(config.stages)

    @cuda.jit(device=True, forceinline=True)
    def multiply(ring, tiles, maps, steps, sums):
        number, state, last = warp() - PRODUCERS, first_state(), first_state()
        a_tiles, b_tiles = shared_at(tiles, number // 4, PART), uint32(tiles + uint32(A_BYTES))
        if number == 0 and lane() == 0:
            fence_proxy_tensormap_acquire_sys(map_of(maps, 2))  # the consumers meet before they store
        for step in range(steps):
            wait(ring, state)
            a, b = shared_at(a_tiles, state.stage, STAGE), shared_at(b_tiles, state.stage, STAGE)
            product.add(sums, a, b, step)  # a group; the very first product needs no zeros
            wgmma_wait_group(uint32(1))  # the step before is done
            if step > 0 and lane() == 0:
                arrive(ring, last)
            last, state = state, advance(state)
        product.wait(sums, 0)

    return multiply


def build(config):
    """The kernel for a :class:`WarpgroupProduct`; ``config.maps`` and ``config.launch`` are its arguments."""
    return kernel_of(config, parts(config), config.columns // 2, ALIGNMENT)
