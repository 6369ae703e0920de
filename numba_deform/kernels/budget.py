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
from ..device.memory import dynamic_bytes

REGISTER_UNIT = 8  # registers a thread: 256 a warp
SHARED_UNIT = 128  # bytes


# --- occupancy ------------------------------------------------------------------------------------
class Occupancy(NamedTuple):
    """Blocks and warps resident on an SM, and what allows no more: names, none where all is left."""

    blocks: int
    warps: int
    limiters: tuple[str, ...]


def occupancy(threads, registers, shared_bytes, limits):
    """The Occupancy of blocks of ``threads`` threads with ``shared_bytes`` bytes, static and dynamic.

    ``registers`` are those of a thread; None leaves them out. ``limiters`` are among ``registers``,
    ``shared memory``, ``warps`` and ``blocks``. Raises ValueError for what no kernel has.
    """
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads={threads}: a block has from 1 to {MAX_THREADS}")
    if registers is not None and not 1 <= registers <= MAX_REGISTERS:
        raise ValueError(f"registers={registers}: a thread has from 1 to {MAX_REGISTERS}")
    warps = -(-threads // 32)
    held = {
        "shared memory": _blocks_by_shared(shared_bytes, limits),
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    if registers is not None:
        held["registers"] = _blocks_by_registers(warps, registers)
    blocks = min(held.values())
    limiters = tuple(sorted(name for name, count in held.items() if count == blocks))
    return Occupancy(blocks, blocks * warps, limiters)


def _blocks_by_registers(warps, registers):
    """Registers belong to a quarter, and a warp takes all of its own from one: what is left over in
    each quarter is of no use."""
    each = _round_up(registers, REGISTER_UNIT) * 32
    return QUARTER_REGISTERS // each * QUARTERS // warps


def _blocks_by_shared(shared_bytes, limits):
    if shared_bytes > limits.block_shared:
        return 0
    return limits.shared // _round_up(shared_bytes + RESERVED_SHARED, SHARED_UNIT)


def _round_up(number, unit):
    return -(-number // unit) * unit


# --- a configuration ------------------------------------------------------------------------------
SIZES = {"48 KB static": STATIC_LIMIT, "99 KB opt-in": 99 * KB, "227 KB opt-in": SHARED_LIMIT}


@dataclass(frozen=True)
class Budget:
    """What a block takes of an SM.

    shared     ``config.SharedBytes``: bytes of tiles, barriers and metadata
    threads    of a block
    limits     the SM
    registers  of a thread; None where they are not known, and then not counted
    """

    shared: tuple
    threads: int
    limits: Limits
    registers: int | None = None

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
        """Bytes of shared memory to launch with: past 48 KB they are dynamic, with room to align."""
        return dynamic_bytes(self.total) or self.total

    @property
    def left(self):
        """``{size: bytes left}`` for each of ``SIZES``; negative by how much it does not fit."""
        return {
            name: size - (self.total if size == STATIC_LIMIT else self.allocated)
            for name, size in SIZES.items()
        }

    @property
    def occupancy(self):
        """The :class:`Occupancy`."""
        return occupancy(self.threads, self.registers, self.allocated, self.limits)

    @property
    def resident(self):
        """The share of the SM's warps that are resident, 0 .. 1."""
        return self.occupancy.warps / self.limits.warps
