"""Warps of the emulator: registers, lanes, and the squad of those of a block or a cluster."""

import numpy as np

from .flow import Group
from .memory import WINDOW, Space
from .operands import U32, U64, Unknown

LANES = np.arange(32)
OF_LANES = {"SR_LTMASK": lambda i: (1 << i) - 1, "SR_LEMASK": lambda i: (2 << i) - 1,
            "SR_EQMASK": lambda i: 1 << i, "SR_GTMASK": lambda i: 0xFFFFFFFF & -(2 << i),
            "SR_GEMASK": lambda i: 0xFFFFFFFF & -(1 << i), "SR_LANEID": lambda i: i}  # fmt: skip
AXES = "XYZ"


class Squad:
    """Registers of several warps, a row for each: what is the same for a warp and for many at once reads and
    writes them here. ``mask`` and ``active``: the lanes of each warp that an instruction is for."""

    def __init__(self, blocks, threads):
        size = -(-threads // 32)
        count = size * len(blocks)
        self.r, self.p = np.zeros((260, count, 32), U32), np.zeros((8, count, 32), bool)
        self.u, self.up = np.zeros((66, count, 1), U32), np.zeros((8, count, 1), bool)
        self.p[7], self.up[7] = True, True
        self.mask = self.active = np.zeros((count, 32), bool)
        for place, block in enumerate(blocks):
            block.warps = [Warp(k, block, self, place * size + k) for k in range(size)]
        self.warps = [w for block in blocks for w in block.warps]


class Warp:
    """A warp: ``row`` of its squad's registers, and where its lanes are."""

    def __init__(self, number, block, squad, row):
        self.number, self.block, self.row = number, block, row
        self.r, self.p, self.u, self.up = (x[:, row] for x in (squad.r, squad.p, squad.u, squad.up))
        alive = 32 * number + LANES < block.machine.threads
        self.groups, self.exited, self.alive = [Group(alive, block.entry)], ~alive, int(alive.sum())
        self.joins, self.reduced, self.ticket = {}, None, 0
        self.registers = -(-block.machine.listing.registers // 8) * 8  # of a thread; setmaxnreg changes that
        self.mask = self.active = alive
        self.local = Space(32 * block.machine.listing.local + 16)
        self.trace = []

    def interleaved(self, places, lanes, size):
        """Where the lanes' own memory, at these places of the warp's, is for L1: what lanes have at one offset
        stands side by side, below all arrays."""
        own = self.block.machine.listing.local
        first = (self.block.number * len(self.block.warps) + self.number) * 32 * own
        return U64(first) + (places - (lanes * own).astype(U64)) * U64(32) + lanes.astype(U64) * U64(size)

    def special(self, name):
        """A special register."""
        block, kind = self.block, name.rpartition(".")
        if kind[0] == "SR_TID":
            return block.thread_places[AXES.index(kind[2])][32 * self.number + LANES]
        if kind[0] == "SR_CTAID":
            return np.array([block.place[AXES.index(kind[2])]], U32)
        if name in OF_LANES:
            return np.array([OF_LANES[name](i) for i in range(32)], U32)
        single = {"SRZ": 0, "SR_CgaCtaId": block.rank, "SR_SWINHI": WINDOW, "SR_CLOCKHI": 0,
                  "SR_GLOBALTIMERHI": 0}  # fmt: skip
        if name in ("SR_CLOCKLO", "SR_GLOBALTIMERLO"):
            return np.array([block.machine.clock()], U32)
        if name not in single:
            raise Unknown(f"special register {name}")
        return np.array([single[name]], U32)
