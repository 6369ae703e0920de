"""What a schedule by choice consists of: the choices and their text, steps, and what steps touch. ``explore``
and ``controlled_cluster`` speak in these."""

import re
from typing import NamedTuple

ANOTHER = "seed: the schedule is of another kernel"
RETRIES = 8  # looks that have seen the same so often, while others can go on; then as many as there are at once
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class BadSchedule(BaseException):
    """The text of a schedule asks for a choice that this kernel does not have."""


class Schedule:
    """The choices of one block, or one cluster; others, and choices past the last one given, take the first.

    As a text, ``x:BLOCK:CHOICES`` for steps of warps and ``xt:BLOCK:CHOICES`` for steps of threads; of clusters
    the first number is that of the cluster. A choice is the number of an actor among those that can make a
    step, where that are several: a digit of base 36, or a decimal number in parentheses from 36 on.
    """

    def __init__(self, block=0, by_thread=False, choices=()):
        self.block, self.by_thread, self.choices = block, by_thread, choices
        self.taken = []

    @classmethod
    def parse(cls, text):
        """The inverse of ``str``; ValueError for any other text."""
        match = re.fullmatch(r"x(t?):(\d+):((?:[0-9a-z]|\(\d+\))*)", text)
        if not match:
            rule = "must be an integer, or a schedule x:BLOCK:CHOICES such as x:0:0210"
            raise ValueError(f"seed={text!r} {rule}")
        parts = re.findall(r"[0-9a-z]|\(\d+\)", match[3])
        choices = [int(p[1:-1]) if p[0] == "(" else DIGITS.index(p) for p in parts]
        return cls(int(match[2]), match[1] == "t", choices)

    def __str__(self):
        taken = list(self.taken)
        while taken and not taken[-1]:
            taken.pop()  # the first one is taken anyway
        digits = "".join(DIGITS[i] if i < len(DIGITS) else f"({i})" for i in taken)
        return f"x{'t' * self.by_thread}:{self.block}:{digits}"

    def begin(self, cluster):
        """A ``ControlledCluster`` is about to start."""
        self.taken = []

    def choose(self, actors):
        """One of ``actors``, who can make the next step."""
        if len(actors) == 1:
            return actors[0]
        done = len(self.taken)
        number = self.choices[done] if done < len(self.choices) else 0
        if number >= len(actors):
            raise BadSchedule(f"{ANOTHER}: choice {done + 1} is {number}, among {len(actors)}")
        self.taken.append(number)
        return actors[number]

    def happened(self, step):
        """``step`` has been made."""

    def leave_out(self, place):
        """Not every number of looks is tried of a thread there."""

    def end(self):
        """The block has ended without a fault."""
        if any(self.choices[len(self.taken) :]):
            choices = f"it has {len(self.choices)} choices, and {len(self.taken)} were there to make"
            raise BadSchedule(f"{ANOTHER}: {choices}")


class Touch(NamedTuple):
    """What a step did to one thing that others can see.

    ``thing`` is ("mbarrier", address, rank), ("named", id, rank), ("exits", rank), ("word", address, rank or
    None), ("cluster",), its barrier, or ("grid",), which is all global memory, written by others. ``kind`` says
    how: ``read``, ``write``, ``met`` (a wait for the phase ``held``), or one of the kinds that commute with
    their like in one and the same phase (see ``search.conflict``): ``arrive``, ``land``, ``expect``, ``exit``.
    ``held``: the phase of the barrier before that, None if there is no barrier, or what the word held.
    """

    thing: tuple
    kind: str
    held: object = 0


class Step:
    """One step of ``actor``: an event of the exploration."""

    def __init__(self, actor):
        self.actor, self.touches = actor, set()
        self.issued = []  # the actors that its copies are
        self.woken = []  # (actors woken, the named barrier that did, its phase)
        self.freed, self.after = set(), set()  # the threads of these, and what they then touched
        self.looks = []  # the Operations of its lanes, if all were looks; else None
        self.held = {}  # what each thing that it touches held before it

    def did(self, touches, look=None):
        """One lane did this, or would have; ``look`` is its Operation, if it was a look."""
        for touch in touches:
            if touch not in self.touches:
                self.touches.add(touch)
                self.held.setdefault(touch.thing, touch.held)
        if look is None:
            self.looks = None
        elif self.looks is not None:
            self.looks.append(look)


class Operation:
    """A visible operation that a thread is about to do.

    ``touches()`` is what it touches if it is done now. ``poll``: it is a look, maybe one of many at the same
    thing. ``waiting`` is what a thread that polls is going to say of itself. Of a barrier: its ``address``, the
    ``parity`` and ``token`` that are waited for, and whether the look may ``suspend`` the thread, which then is
    no poll but a wait if it is in vain. ``sees()``: what the thread gets of a look, at a barrier of one that
    has not come so far. Of a word: what it ``held()``; ``changes()``: whether an atomic is going to change it;
    ``is_fault()``: whether nobody has written it.
    """

    address = parity = token = None
    suspends = False
    state = None  # of its thread at a look
    last = None, None  # what the word held last, and whether the look was in vain then
    meeting = None  # (barrier, phase) of a wait at a barrier of several blocks
    waits = None  # whether a look may be in vain at all; of a barrier, whether it is until that has come so far

    def __init__(self, touches, poll=False, waiting=("spin", None, None), **known):
        self.touches, self.poll, self.waiting = touches, poll, waiting
        vars(self).update(known)

    @staticmethod
    def held():
        return None

    @staticmethod
    def sees():
        return 0
