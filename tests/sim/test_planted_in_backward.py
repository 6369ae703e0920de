"""Faults planted in the backward kernel: the CPU engine names the rule that is broken, or float64 disagrees.

``mutants.py`` changes its lines one at a time. These are what a reader might write instead: other instructions,
a reduction or a factor left out.
"""

import ast
from dataclasses import dataclass

import pytest
from mutants import Killer, load, source_of, verdict

from numba_deform.device import memory

MODULE = "numba_deform.kernels.backward"
FIXED = dict(deterministic=True)
SMALL = dict(channels=4, num_points=1, levels=((2, 3),))  # a lane for a row
ONE = dict(SMALL, levels=((1, 1),))
PAIRS = dict(channels=8, num_points=1, levels=((2, 3),))
TAIL = dict(channels=12, num_points=1, levels=((2, 3),))  # three of a row's four lanes have channels
BLOCKS = dict(TAIL, levels=((1, 1),), num_query=33)  # two of them, which add to one pixel
WRONG = "wrong numbers"

RED = "red_add_gpu_global_v4_f32(to, share * g[0], share * g[1], share * g[2], share * g[3])"
ONE_RED = "red_add_gpu_global_u64(address, uint64(int64(x)))"
IF_INSIDE = "if has_channels and there.inside >> uint32(c) & uint32(1):"
PIXEL = "pixel = start + clamp(y, 0, height - 1) * row_stride + clamp(x, 0, width - 1)"
SHARE = "share = float32(weight * float32(across * down))"
OF_X = "x = sum_for_owner(of_x, place) * attention * float32(width)"
OF_WEIGHT = "w = sum_for_owner(of_weight, place)"
WEIGHT = "weight = shfl_sync_idx_f32(uint32(ALL), attention, owner)"
WRITES = "if is_row and has_sample and sub < OWNERS:"
ADD = "add_fixed(to + uint64(8 * CHUNKS * j), share * g[j] * unit)"

FAULTS = {  # what: (the text, what the fault makes of it, the problem, how it ends[, parameters])
    "stored instead of added": (
        RED, "st_global_v2(to, mov_b32_f32(share * g[0]), mov_b32_f32(share * g[1]))", ONE, "DataRace"),
    "loaded, added and stored": (
        RED, "st_global_b32(to, mov_b32_f32(mov_f32_b32(ld_global_b32(to)) + share * g[0]))", ONE, "DataRace"),
    "added for the threads of one block": (
        ONE_RED, "atom_add_cta_global_u32(address, uint32(int64(x)))", BLOCKS, "ScopeRace", FIXED),
    "added beside a vector's place": (RED, RED.replace("to,", "to + uint64(4),"), SMALL, "Misaligned"),
    "a share for all channels": (RED, RED.replace("g[3]", "g[0]"), SMALL, WRONG),
    "a pixel outside is added": (IF_INSIDE, "if has_channels:", SMALL, WRONG),
    "lanes without channels add": (IF_INSIDE, "if there.inside >> uint32(c) & uint32(1):", TAIL, WRONG),
    "no clamp": (PIXEL, "pixel = start + y * row_stride + x", dict(SMALL, outside=0.9), "OutOfRange"),
    "a share without its attention": (
        SHARE, "share = float32(across * down)", dict(SMALL, num_points=2), WRONG),
    "a share of the lane's own sample": (SHARE, SHARE.replace("weight", "attention"), PAIRS, WRONG),
    "no sum over the lanes": (OF_WEIGHT, "w = of_weight[place]", PAIRS, WRONG),
    "a sum over the lanes while some are away": (
        OF_WEIGHT, f"w = float32(0)\n                if has_channels: {OF_WEIGHT}", TAIL, "UninitialisedRead"),
    "a slope in pixels": (OF_X, "x = sum_for_owner(of_x, place) * attention", SMALL, WRONG),
    "a slope for the other side": ("else -down * dot", "else down * dot", SMALL, WRONG),
    "a shuffle without the last lane": (WEIGHT, WEIGHT.replace("ALL", "ALL >> 1"), SMALL, "WarpDivergence"),
    "owners of the warp's first row": ("uint32(lane - place + i)", "uint32(i)", PAIRS, WRONG),
    "written by lanes that have no sample": (WRITES, "if is_row:", PAIRS, "DataRace"),
    "a row that is not there": ("number = min(number, int32(rows - 1))", "pass", SMALL, "OutOfRange"),
    "scaled twice": (ADD, ADD.replace("unit", "unit * unit"), SMALL, WRONG, FIXED),
    "not scaled": (ADD, ADD.replace(" * unit", ""), SMALL, WRONG, FIXED),
    "sums as channels lie in value": (ADD, ADD.replace("8 * CHUNKS * j", "8 * j"), PAIRS, WRONG, FIXED),
    "a slope where nothing is": (
        "if DISCRETE or not tile.inside:", "if DISCRETE:", dict(PAIRS, nowhere=True), "unwritten"),
}  # fmt: skip
QUICK = {"no sum over the lanes"}


@dataclass(frozen=True)
class Planted:
    """What ``mutants.load`` wants: the module with the fault in it."""

    text: str
    fault: str
    module: str = MODULE

    def tree(self):
        source = source_of(MODULE)
        assert source.count(self.text) == 1, "the kernel has changed: say where the fault is to be planted now"
        return ast.parse(source.replace(self.text, self.fault))


def cases():
    """A kernel with one lane for a row is quickly made; most faults that need more lanes are ``full``."""
    for what, (_, _, problem, *_) in FAULTS.items():
        is_quick = problem["channels"] == 4 or what in QUICK
        yield pytest.param(what, marks=() if is_quick else pytest.mark.full)


@pytest.mark.parametrize("what", list(cases()))
def test_is_noticed(what):
    text, fault, problem, end, *parameters = FAULTS[what]
    modules = load(Planted(text, fault))
    for name in ("ld_global_b32", "atom_add_cta_global_u32"):  # what a fault calls, and the kernel does not
        setattr(modules[MODULE], name, getattr(memory, name))
    assert verdict(Killer("backward", *(parameters or [{}]), problem), modules) == end


@pytest.mark.full
@pytest.mark.parametrize("problem", [SMALL, ONE, PAIRS, TAIL, BLOCKS], ids=str)
@pytest.mark.parametrize("parameters", [{}, FIXED], ids=["fp32", "fixed"])
def test_the_kernel_itself_is_right(problem, parameters):
    assert verdict(Killer("backward", parameters, problem)) is None
