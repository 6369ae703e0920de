"""What moves lanes: branches, reconvergence, exits, barriers. Lanes that run together are a :class:`Group`.

Each function takes the warp, its group and the instruction. It sets ``group.pc``, or what the group waits for,
and says STOP where the group has to stop here, or AGAIN, which does not count as an execution."""

import numpy as np

from .accesses import register
from .barriers import Token, needs
from .operands import U32, Unknown, address, read_predicate, reader
from .table import plain, row

STOP, AGAIN = "stop", "again"
REDUCTIONS = {"AND": (True, lambda old, mine: old and all(mine)),
              "OR": (False, lambda old, mine: old or any(mine)),
              "POPC": (0, lambda old, mine: old + sum(mine))}  # fmt: skip


class Group:
    """Lanes at one place: ``mask``, ``pc``, and ``wait``, a function that says whether they may go on, or None.
    ``meets`` is where they wait for lanes of their warp: (name, pc), or None; ``parts``, of a collective, which
    lanes go where after it: [(mask, pc)]; ``owed`` the barrier's token that it waits for, if any; ``left``: how
    many instructions its turn still has, None before its first; ``queued``: whether it goes on in this turn."""

    __slots__ = ("mask", "pc", "wait", "meets", "count", "parts", "owed", "left", "queued")

    def __init__(self, mask, pc):
        self.mask, self.pc, self.wait, self.meets, self.count = mask, pc, None, None, int(mask.sum())
        self.parts, self.owed, self.left, self.queued = (), None, None, False


class Meeting:
    """A barrier of threads; ``results`` of the reductions by its generation."""

    def __init__(self, need):
        self.need, self.arrived, self.generation, self.value, self.results = need, 0, 0, None, {}
        self.token = Token()

    def arrive(self, threads, need=None):
        """The generation that these threads belong to."""
        self.arrived, self.need, mine = self.arrived + threads, need or self.need, self.generation
        self.is_full(mine)
        return mine

    def is_full(self, generation):
        if generation == self.generation and self.arrived and self.arrived >= self.need():
            self.results[generation], self.value = self.value, None
            self.arrived, self.generation, self.token = 0, generation + 1, Token()
        return generation < self.generation


def guarded(one):
    """A function of the warp and a mask: the lanes of it for which the guard holds."""
    guard = read_predicate(one.guard) if one.guard else None
    return lambda w, mask: mask if guard is None else mask & guard(w)


def jump(one):
    taken, condition = guarded(one), one.operands[0] if len(one.operands) == 2 else None
    holds = read_predicate(condition) if condition and "DIV" not in one.words else None

    def run(w, group):
        lanes = taken(w, group.mask)
        lanes = lanes & holds(w) if holds else lanes
        if "DIV" in one.words:
            group.pc = group.pc + 1 if (group.mask | w.exited).all() else one.target
        elif "U" in one.words:
            group.pc = one.target if (lanes.any() if "ANY" in one.words else lanes.all()) else group.pc + 1
        elif not lanes.any():
            group.pc += 1
        elif (lanes == group.mask).all():
            group.pc = one.target
        else:
            w.groups.remove(group)
            w.groups += [Group(group.mask & ~lanes, group.pc + 1), Group(lanes, one.target)]
            return STOP

    return run


def leave(one):
    taken = guarded(one)

    def run(w, group):
        lanes = taken(w, group.mask)
        w.exited = w.exited | lanes
        if lanes.any():
            w.alive = int((~w.exited).sum())
        left = group.mask & ~lanes
        if left.any():
            group.mask, group.count, group.pc = left, int(left.sum()), group.pc + 1
        else:
            w.groups.remove(group)
        meet(w)
        return None if left.any() else STOP

    return run


def open_join(one):
    name = one.operands[0]

    def run(w, group):
        w.joins[name] = group.mask.copy()
        group.pc += 1

    return run


def leave_join(one):
    taken, name = guarded(one), one.operands[-1]

    def run(w, group):
        w.joins[name] = w.joins[name] & ~taken(w, group.mask)
        group.pc += 1
        meet(w)

    return run


def join(one):
    """BSYNC: those that opened the join; WARPSYNC: the lanes of a mask, or all. With COLLECTIVE they may come
    from several places: one of these runs what stands before ENDCOLLECTIVE, for all of them."""
    collective = "COLLECTIVE" in one.words
    mask = None if one.stem == "BSYNC" or "ALL" in one.words else reader(one.operands[0], "u", None)

    def run(w, group):
        name = one.operands[0] if one.stem == "BSYNC" else group.pc
        if one.stem == "WARPSYNC":
            bits = 0xFFFFFFFF if mask is None else int(np.broadcast_to(mask(w), (32,))[group.mask.argmax()])
            w.joins[name] = np.array([bits >> lane & 1 for lane in range(32)], bool)
        place = (name, group.pc)
        if collective:
            place, group.parts = (one.words, None), [(group.mask, one.target)]
            w.joins[one.words] = w.joins[name]
        group.meets, group.wait = place, lambda: False
        meet(w)
        return STOP if group.meets else None

    return run


def meet(w):
    """Let those go on whose whole join has come."""
    waiting = [group for group in w.groups if group.meets]
    for place in dict.fromkeys(group.meets for group in waiting):
        here = [group for group in waiting if group.meets == place]
        lanes = np.logical_or.reduce([group.mask for group in here])
        if (lanes | ~w.joins[place[0]] | w.exited).all():
            first, code = here[0], w.block.machine.listing.code
            if len({tuple(map(str, code[g.pc + 1 : g.parts[0][1]])) for g in here if g.parts}) > 1:
                raise Unknown("lanes at several places, where different instructions follow")
            first.mask, first.count, first.meets, first.wait = lanes, int(lanes.sum()), None, None
            first.pc, first.parts = first.pc + 1, [part for group in here for part in group.parts]
            for other in here[1:]:
                w.groups.remove(other)


def go_apart(w):
    """Where nobody can move, lanes that wait at a BSYNC go on by themselves: that they meet there is no
    promise, and those whom they wait for may wait for them. Whether there were any."""
    code, found = w.block.machine.listing.code, [group for group in w.groups if group.meets]
    found = [group for group in found if code[group.pc].stem == "BSYNC"]
    for group in found:
        w.joins[group.meets[0]] = w.joins[group.meets[0]] & ~group.mask
        group.pc, group.meets, group.wait = group.pc + 1, None, None
    return bool(found)


def end_collective(w, group):
    """The lanes go on, each where it came from."""
    w.groups.remove(group)
    w.groups += [Group(mask, pc) for mask, pc in group.parts]
    return STOP


def call(one):
    def run(w, group):
        group.pc = one.target

    return run


def give_back(one):
    """RET: to the place in a register, by number where it is absolute, else in bytes from the kernel's
    start."""
    k = register(one.operands[0].split()[0])

    def run(w, group):
        value = int(w.r[k, group.mask.argmax()])
        group.pc = value if "ABS" in one.words else w.block.entry + value // 16

    return run


def block_barrier(one):
    """BAR.SYNC, ARV and RED: of all threads, or of so many."""
    which = reader(one.operands[0], "u", None)
    count = one.operands[1] if len(one.operands) > 1 and "RED" not in one.words else None
    threads = reader(count, "u", None) if count else None
    initial, change = next((REDUCTIONS[word] for word in REDUCTIONS if word in one.words), (None, None))
    tells = read_predicate(one.operands[-1]) if change else None

    def run(w, group):
        lane = group.mask.argmax()
        number = int(np.broadcast_to(which(w), (32,))[lane])
        meeting = w.block.meeting(number)
        if change:
            mine = np.broadcast_to(tells(w), (32,))[group.mask].tolist()
            meeting.value = change(initial if meeting.value is None else meeting.value, mine)
        need = int(np.broadcast_to(threads(w), (32,))[lane]) if threads else 0
        whole = 32 if need and group.count == w.alive else group.count
        token = meeting.token
        w.block.counts.gives(token)
        generation = meeting.arrive(whole, (lambda: need) if need else None)
        if "ARV" not in one.words and not meeting.is_full(generation):
            group.owed = group.pc, token
        group.pc += 1
        w.reduced = meeting, generation
        return wait_for(group, meeting, generation) if "ARV" not in one.words else None

    return run


def wait_for(group, meeting, generation):
    """The last one stops as well, to go on with those that it has let go."""
    if not meeting.is_full(generation):
        group.wait = lambda: meeting.is_full(generation)
    return STOP


def reduced(w):
    meeting, generation = w.reduced
    value = int(meeting.results[generation])
    return np.array([value], U32), np.array([value != 0])


def cluster_arrive(w, group):
    w.ticket = w.block.cluster_meeting.arrive(group.count)
    group.pc += 1


def cluster_wait(w, group):
    group.pc += 1
    return wait_for(group, w.block.cluster_meeting, w.ticket)


def phase(one):
    """try_wait: the lanes stay until the phases that they ask for are over."""
    where, parity, taken = address(one.operands[1], None), reader(one.operands[2], "u", None), guarded(one)

    def run(w, group):
        w.active = taken(w, group.mask)
        asked = needs(w, where(w), parity(w))
        barriers = [(w.block.barrier(one, at), bit) for at, bit in asked]
        return stay(w, group, lambda: all(barrier.passed(bit) for barrier, bit in barriers))

    return run


def stay(w, group, until):
    """A step that lanes do not leave before ``until()`` is true."""
    if not until():
        group.wait = until
        return AGAIN
    w.block.steps[group.pc](w)
    group.pc += 1


def more_registers(one):
    """setmaxnreg.inc: the warp stays until the block has given up as many registers as it asks for."""
    count = reader(one.operands[-1], "u", None)

    def run(w, group):
        return stay(w, group, lambda: int(count(w)[0]) - w.registers <= w.block.registers)

    return run


def allot(w, count):
    """setmaxnreg: the warp has so many registers a thread now, and the block what is left; that it has been
    done."""
    w.block.registers -= int(count[0]) - w.registers
    w.registers = int(count[0])
    return np.ones(1, bool)


FLOW = {
    "BRA": jump, "JMP": jump, "EXIT": leave, "BSSY": open_join, "BREAK": leave_join, "BSYNC": join,
    "WARPSYNC": join, "ENDCOLLECTIVE": plain(end_collective), "CALL": call, "RET": give_back,
    "BAR": block_barrier, "UCGABAR_ARV": plain(cluster_arrive), "UCGABAR_WAIT": plain(cluster_wait),
}  # fmt: skip

OWN_GUARD = ("BRA", "JMP", "EXIT", "BREAK")


def flow_of(one):
    """The function (warp, group) of an instruction that moves lanes or makes them wait; None for all others."""
    if one.stem == "SYNCS" and {"PHASECHK", "TRYWAIT"} <= one.words:
        return phase(one)
    if one.stem == "USETMAXREG" and "TRY_ALLOC" in one.words:
        return more_registers(one)
    if one.stem not in FLOW:
        return None
    run, taken = FLOW[one.stem](one), guarded(one)
    if not one.guard or one.stem in OWN_GUARD:
        return run

    def only_some(w, group):
        """Of a group, the lanes for which the guard holds."""
        lanes = taken(w, group.mask)
        if (lanes == group.mask).all():
            return run(w, group)
        if not lanes.any():
            group.pc += 1
            return None
        w.groups.remove(group)
        w.groups += [Group(lanes, group.pc), Group(group.mask & ~lanes, group.pc + 1)]
        return AGAIN

    return only_some


# What orders memory, or waits for what is done at once here, or is a hint.
NOTHING = ("NOP|YIELD|DEPBAR|LDGDEPBAR|FENCE|UTMACMDFLUSH|MEMBAR|ERRBAR|CGAERRBAR|CCTL|"
           "NANOSLEEP|PREEXIT|ACQBULK|WARPGROUP")  # fmt: skip
ANY = "LE PF ALL CTA GPU SC SYS IVALL IV VIEW ASYNC S G ARRIVE DEPBAR SYNCS"
row("USETMAXREG.TRY_ALLOC", "p", "*u", plain(allot), "CTAPOOL")
row("USETMAXREG.DEALLOC", "", "*u", plain(allot), "CTAPOOL")
row(NOTHING, "", "t?t?t?", plain(lambda *_: None), ANY)
row("B2R.RESULT", "r?p?", "*", plain(reduced))
