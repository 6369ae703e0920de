"""Loads of Triton's programs whose value most threads do nothing with: all load a scalar, and one stores what
comes of it. The others have not read: of their loads only the place is judged."""

from .instructions import ROWS
from .parser import registers_in, targets_of

NUMBERS = {name.partition(".")[0] for name, _ in ROWS} | {"mov", "cvt", "cvta", "set", "setp"}
NUMBERS -= {"activemask", "vote", "match"}  # what lanes do together


class UnusedLoads:
    """Of one function, whose ``parts`` and ``uses`` the translator has. ``guards``: {id of a load: the guards
    under which its value is used}; what they are computed from is moved before the load."""

    def __init__(self, function, parts, uses):
        self.parts, self.uses, self.makers, self.guards = parts, uses, {}, {}
        for i in function.instructions:
            for register in targets_of(i):
                self.makers.setdefault(register, []).append(i)
        for block, *_ in parts:
            for load in [i for i in block if i.root == "ld" and "global" in i.parts]:
                guards = self._ends(load, {*block[block.index(load) + 1 :]})
                if load.guard not in guards and all(self._is_known(g, load, load, block) for g, _ in guards):
                    self.guards[id(load)] = tuple(guards)

    def _ends(self, load, later):
        """The guards of the stores that a load's value ends in; none where something else is done with it, or
        elsewhere than ``later`` in its block, such as in the next round of a loop."""
        seen, found, guards = set(), targets_of(load), {}
        while found:
            seen.add(register := found.pop())
            for i in self.uses.get(register, ()):
                place = registers_in(i.operands[0])
                if i not in later:
                    return {}
                if i.root in ("st", "red") and i.guard and register not in (i.guard[0], *place):
                    guards[i.guard] = None
                elif i.root in NUMBERS and not i.guard:
                    found += {*targets_of(i)} - seen
                else:
                    return {}
        return guards

    def _is_known(self, register, load, user, block):
        """Whether a register that ``user`` reads, behind a load of a block, has its value at the load; perhaps
        what gives it has been moved there."""
        makers = self.makers.get(register, ())
        if len(makers) != 1 or makers[0] not in block:
            return len(makers) == 1 and makers[0] in self.parts[0][0]
        [maker], at = makers, block.index(load)
        if block.index(maker) < at:
            return True
        words = registers_in(" ".join(maker.operands[1:]))
        tells_time = any("clock" in word or "timer" in word for word in words)
        if maker.guard or maker.root not in NUMBERS or tells_time:
            return False
        if user is not load and block.index(maker) >= block.index(user):
            return False
        if not all(self._is_known(word, load, maker, block) for word in words if word in self.makers):
            return False
        block.remove(maker)
        block.insert(block.index(load), maker)
        return True
