"""What the lanes of a warp do with each other: shuffles, votes, elections, reductions, and special
registers."""

import numpy as np

from .integers import word_of
from .operands import I32, I64, U32, U64, WORD
from .table import plain, row

LANES = np.arange(32)
WEIGHTS = U32(1) << LANES.astype(U32)
REDUCTIONS = {"SUM": np.sum, "MIN": np.min, "MAX": np.max, "OR": np.bitwise_or.reduce,
              "AND": np.bitwise_and.reduce, "XOR": np.bitwise_xor.reduce}  # fmt: skip
SOURCES = {
    "IDX": lambda lane, segment, least: least | lane & ~segment,
    "BFLY": lambda lane, segment, least: LANES ^ lane,
    "UP": lambda lane, segment, least: LANES - lane, "DOWN": lambda lane, segment, least: LANES + lane,
}  # fmt: skip


def whole(value):
    """All 32 lanes of a value that may be the warp's."""
    return np.broadcast_to(value, (*value.shape[:-1], 32))


def of_lane(value, lane):
    """What the lanes with these numbers have, of each warp."""
    warps = np.broadcast_shapes(value.shape[:-1], lane.shape[:-1])
    lane = np.broadcast_to(lane, (*warps, lane.shape[-1]))
    return np.take_along_axis(np.broadcast_to(value, (*warps, 32)), lane, -1)


def first_of(lanes):
    """The number of the first of these lanes, of each warp."""
    return lanes.argmax(-1)[..., None]


def mask_of(lanes):
    """The word that has a bit for each of these lanes, of each warp."""
    return (WEIGHTS * lanes).sum(-1, keepdims=True).astype(U32)


def shuffle(one):
    kind = word_of(one, SOURCES)

    def run(value, lane, limits):
        lane, limits = lane.astype(I64) & 31, limits.astype(I64)
        segment = limits >> 8 & 31
        least, most = LANES & segment, LANES & segment | limits & 31 & ~segment
        source = SOURCES[kind](lane, segment, least)
        inside = source >= most if kind == "UP" else source <= most
        return inside, of_lane(value, np.where(inside, source, LANES) & 31)

    return run


def vote(one):
    kind = word_of(one, ("ALL", "ANY", "EQ"))

    def run(w, p):
        lanes = w.active
        here, every = whole(p) & lanes, (p | ~lanes).all(-1, keepdims=True)
        some = here.any(-1, keepdims=True)
        return mask_of(here), {"ALL": every, "ANY": some, "EQ": every | ~some}[kind]

    return run


def elect(w, _):
    """The lowest of the lanes that are here, and its number."""
    first = first_of(w.active)
    return (LANES == first) & w.active, first.astype(U32)


def reduce(one):
    function, dtype = REDUCTIONS[word_of(one, REDUCTIONS, "AND")], I32 if "S32" in one.words else U32

    def run(w, value):
        here = whole(value)[w.active].view(dtype)
        return np.array([int(function(here)) & WORD], U32) if len(here) else np.zeros(1, U32)

    return run


def match(one):
    """Which lanes have the same value; ALL: whether all have."""

    def run(w, value):
        value = whole(value)
        same = (value[:, None] == value) & w.active
        if "ALL" in one.words:
            alike = bool((value[w.active] == value[w.active][:1]).all())
            return np.array([alike]), mask_of(w.active) if alike else np.zeros(1, U32)
        return (same * WEIGHTS).sum(1).astype(U32)

    return run


def first_lane(w, value):
    """R2UR: the value of the first lane, and which lanes have another."""
    chosen = of_lane(value, first_of(w.active))
    return whole(value) != chosen, chosen


def first_lane_or(one):
    k = int(one.operands[0][1:])

    def run(w, value):
        different, chosen = first_lane(w, value)
        return different | w.p[k], chosen

    return run


def predicates_of(name):
    return lambda w: w.up if name.startswith("U") else w.p


def gather_predicates(one):
    """P2R: a bit for each predicate of the mask, over the register's other bits."""
    which, mask, shift = predicates_of(one.operands[1]), int(one.operands[3], 0), _byte_shift(one)

    def run(w, _, rest, n):
        value = U32(0)
        for k in range(7):
            value = value | which(w)[k].astype(U32) << U32(k)
        return rest & ~U32(mask << shift) | (value & U32(mask)) << U32(shift)

    return run


def _byte_shift(one):
    return next((8 * k for k in range(4) if f"B{k}" in one.words), 0)


def scatter_predicates(one):
    """R2P: predicates from the bits of a register."""
    which, shift = predicates_of(one.operands[0]), _byte_shift(one)

    def run(w, _, value, mask):
        for k in range(7):
            if mask >> k & 1:
                bit = (value >> U32(k + shift) & U32(1)).astype(bool)
                np.copyto(which(w)[k], bit, where=w.active[: len(which(w)[k])])

    return run


def special(one):
    return lambda w, name: w.special(name)


row("SHFL", "pr", "uuu", shuffle, "IDX BFLY UP DOWN")
row("VOTE|VOTEU", "r?p", "&p", vote, "ALL ANY EQ")
row("ELECT", "pr", "&p", plain(elect))
row("REDUX|CREDUX", "r", "*u", reduce, "SUM MIN MAX OR AND XOR S32")
row("MATCH.ANY", "r", "*u", match)
row("MATCH.ALL", "pr", "*u", match)
row("MATCH.ANY.U64", "r", "*q", match)
row("MATCH.ALL.U64", "pr", "*q", match)
row("RPCMOV.32", "r", "u", plain(lambda a: a))
row("R2UR", "p?r", "&u", plain(first_lane))
row("R2UR.OR", "pr", "&u", first_lane_or)
row("P2R|UP2UR", "r", "&tun", gather_predicates, "B0 B1 B2 B3")
row("R2P|UR2UP", "", "*tbn", scatter_predicates, "B0 B1 B2 B3")
row("S2R|S2UR", "r", "*t", special)
row("CS2R", "w", "*t", lambda one: lambda w, name: w.special(name).astype(U64))
row("CS2R.32", "r", "*t", special)
