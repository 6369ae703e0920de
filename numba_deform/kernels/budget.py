"""The budget of a block: shared memory, registers, and how many blocks an SM holds at once.

Pure arithmetic, no GPU needed. The rules are those of ``cuda_occupancy.h`` in the CUDA toolkit.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ..device.limits import (
    KB,
    MAX_REGISTERS,
    MAX_THREADS,
    QUARTER_REGISTERS,
    QUARTERS,
    RESERVED_SHARED,
    SHARED_LIMIT,
    STATIC_LIMIT,
    Limits,
)

REGISTER_UNIT = 8  # registers a thread: 256 a warp
SHARED_UNIT = 128  # bytes


# --- occupancy ------------------------------------------------------------------------------------
class Occupancy(NamedTuple):
    """Blocks and warps resident on an SM."""

    blocks: int
    warps: int
    limiters: tuple[str, ...]  # what allows no more: registers, shared memory, warps, blocks


def occupancy(threads, registers, shared_bytes, limits):
    """The :class:`Occupancy` of blocks of ``threads`` threads with ``shared_bytes`` bytes, static and dynamic.
    ``registers`` are those of a thread; None leaves them out. Raises ValueError for what no kernel has."""
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads={threads}: a block has from 1 to {MAX_THREADS}")
    if registers is not None and not 1 <= registers <= MAX_REGISTERS:
        raise ValueError(f"registers={registers}: a thread has from 1 to {MAX_REGISTERS}")
    warps = -(-threads // 32)
    shared = _round_up(shared_bytes + RESERVED_SHARED, SHARED_UNIT)
    held = {
        "shared memory": limits.shared // shared if shared_bytes <= limits.block_shared else 0,
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    if registers is not None:
        # A warp takes all of its registers from one quarter: what is left over in each is of no use.
        each = _round_up(registers, REGISTER_UNIT) * 32
        held["registers"] = QUARTER_REGISTERS // each * QUARTERS // warps
    blocks = min(held.values())
    limiters = tuple(sorted(name for name, count in held.items() if count == blocks))
    return Occupancy(blocks, blocks * warps, limiters)


def _round_up(number, unit):
    return -(-number // unit) * unit


# --- a configuration ------------------------------------------------------------------------------
SIZES = {"48 KB static": STATIC_LIMIT, "99 KB opt-in": 99 * KB, "227 KB opt-in": SHARED_LIMIT}


@dataclass(frozen=True)
class Budget:
    """What a block takes of an SM."""

    shared: tuple  # ``config.SharedBytes``: bytes of tiles, barriers and metadata
    threads: int  # of a block
    limits: Limits  # of the SM
    registers: int | None = None  # of a thread; None where they are not known, and then not counted

    @classmethod
    def of(cls, config, constants, limits, registers=None):
        """Of a configuration with nothing left open, whether or not it fits."""
        return cls(config.shared_bytes(constants), config.threads, limits, registers)

    @property
    def total(self):
        """Bytes of shared memory that are used."""
        return sum(self.shared)

    @property
    def allocated(self):
        """Bytes of shared memory to launch with: of a layout, and past 48 KB, they are dynamic, with room to
        align."""
        return self.shared.dynamic or self.total

    @property
    def how(self):
        """How it is had, in words."""
        if self.allocated > self.total:
            return f"{self.allocated:,} dynamic at launch, with room to align"
        return "static"

    @property
    def left(self):
        """``{size: bytes left}`` for each of ``SIZES``; negative by how much it does not fit."""
        used = {STATIC_LIMIT: self.total}
        return {name: size - used.get(size, self.allocated) for name, size in SIZES.items()}

    @property
    def occupancy(self):
        return occupancy(self.threads, self.registers, self.allocated, self.limits)

    @property
    def resident(self):
        """The share of the SM's warps that are resident, 0 .. 1."""
        return self.occupancy.warps / self.limits.warps
