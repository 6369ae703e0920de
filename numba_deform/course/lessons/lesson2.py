"""Lesson 2, one barrier: a model of it to play with, a look at the engine's own, and the checks."""

import ast
import inspect
import textwrap
from collections import Counter
from unittest import mock

import numpy as np
from numba import cuda, uint32

from ...compiler import kernel, u64
from ...device import rings
from ...device.layout import Array, Shared
from ...device.memory import global_at
from ...device.tma import cp_async_bulk_load
from ...engines import faults
from ...engines.cpu import SimFault, simulate
from ...engines.cpu.async_units import mbarrier
from ...engines.cpu.async_units.barriers import Barriers
from ...engines.cpu.machine.thread import Thread
from ..bugs.base import poison
from . import pictures
from .exercise import Wrong, choice, exercise, explained, number, plain, refuse, require, value_of
from .pictures import BarrierState
from .running import run


# --- a barrier to play with -----------------------------------------------------------------------
class Barrier:
    """What an mbarrier counts, and nothing else: no threads, no memory, no waiting.

    ``states`` holds a ``pictures.BarrierState`` for each operation so far. ValueError where an operation
    would be undefined.
    """

    def __init__(self, count):
        if not 1 <= count <= mbarrier.MAX_COUNT:
            raise ValueError(f"a count of {count}: from 1 to {mbarrier.MAX_COUNT}")
        self.phase, self.expected, self.pending, self.tx = 0, count, count, 0
        self.states = []
        self._note(f"init({count})")

    def arrive(self, count=1):
        """``count`` arrivals."""
        self._arrive(count)
        self._note("arrive" if count == 1 else f"arrive {count} times")

    def expect_tx(self, bytes):
        """``bytes`` more to come; no arrival."""
        self._add(bytes)
        self._note(f"expect_tx({bytes})")

    def expect(self, bytes):
        """``bytes`` more to come, then one arrival: PTX's arrive.expect_tx."""
        self._add(bytes)
        self._arrive(1)
        self._note(f"expect({bytes})")

    def land(self, bytes):
        """A copy has brought ``bytes``: complete_tx."""
        self._add(-bytes)
        self._complete()
        self._note(f"{bytes} bytes land")

    def passes(self, parity):
        """Whether a wait for ``parity`` (0 or 1) returns now."""
        return self.phase % 2 != parity

    def picture(self, title="", first=0, last=None):
        """Its states ``first`` .. ``last`` as ``pictures.barrier_states``."""
        return pictures.barrier_states(self.states[first:last], title)

    def _add(self, bytes):
        self.tx += bytes
        if abs(self.tx) > mbarrier.MAX_COUNT:
            raise ValueError(f"a tx-count of {self.tx}: within +-{mbarrier.MAX_COUNT}")

    def _arrive(self, count):
        if count > self.pending:
            raise ValueError(f"{count} arrivals where {self.pending} are pending")
        self.pending -= count
        self._complete()

    def _complete(self):
        if self.pending == 0 and self.tx < 0:
            raise ValueError(f"{-self.tx} bytes more have landed than were expected")
        if self.pending == 0 and self.tx == 0:
            self.phase, self.pending = self.phase + 1, self.expected

    def _note(self, what):
        self.states.append(BarrierState(what, self.phase, self.pending, self.expected, self.tx))


def watch(kernel, grid, args, landing="late", seed=0):
    """Run ``kernel`` on the CPU engine; the states that its barrier goes through, one for each change.

    A run that breaks a rule ends in a state named after the fault. For kernels with one barrier and one block.
    """
    states, barriers = [], []

    class Watched(mbarrier.MBarrier):
        def __init__(self, block, address, name, count, thread):
            super().__init__(block, address, name, count, thread)
            barriers.append(self)
            self.note(f"thread {thread.tid}: init({count})")

        def expect(self, thread, count):
            super().expect(thread, count)
            self.note(f"thread {thread.tid}: expect_tx({count})")

        def arrive(self, thread, count, *more):
            super().arrive(thread, count, *more)
            self.note(f"thread {thread.tid}: arrive")

        def deliver(self, copy, landing):
            super().deliver(copy, landing)
            self.note(f"{copy.size} bytes land")

        def note(self, what):
            states.append(BarrierState(what, self.phase, self.pending, self.expected, self.tx))

    with mock.patch.object(Barriers, "kind", Watched):
        try:
            simulate(kernel, grid, kernel.threads, args, landing=landing, seed=seed, compiled=False)
        except SimFault as fault:
            if not barriers:
                raise
            barriers[-1].note(type(fault).__name__)
    return states


# --- the exercises --------------------------------------------------------------------------------
def story():
    """The barrier of the exercise ``predict``, after all that happens to it."""
    barrier = Barrier(2)
    barrier.expect(512)
    barrier.arrive()
    barrier.land(256)
    barrier.land(256)
    barrier.arrive()
    return barrier


@exercise("Each line is (phase, pending, tx-count) after that operation.")
def predict(after):
    """after: five tuples (phase, pending, tx) for the operations of :func:`story`."""
    before, *states = [(state.phase, state.pending, state.tx) for state in story().states]
    after = plain(after)
    require(len(after) == len(states), f"{len(after)} states, for {len(states)} operations.")
    for number_of, (got, expected) in enumerate(zip(after, states, strict=True)):
        given = f"After `{story().states[number_of + 1].what}` you say {got}. "
        three = isinstance(got, tuple) and len(got) == 3
        require(three, given + "A state is three numbers: (phase, pending, tx).")
        if got != expected:
            refuse(given, *_wrong_states(number_of, got, expected, before))
        before = expected
    return "A phase ends by itself when both counts are zero, and the next begins with all arrivals pending."


def _wrong_states(operation, got, right, before):
    """Of ``predict``: (whether ``got`` is that mistake, what to say)."""
    phase, pending, tx = got
    whole, next_phase = 2, right[0] > before[0]
    return (
        (tx == -right[2] != 0, "tx counts the bytes that are still missing: announced bytes are added, and "
         "those that land are taken away."),
        (operation == 0 and got == (0, 2, 512), "`expect` does two things: it adds the bytes, and it "
         "is an arrival as well."),
        (operation == 1 and phase == 1, "All arrivals are in, but 512 bytes are missing, so the phase goes on. "
         "It needs both."),
        (pending > before[1] and right[1] <= before[1], "pending counts down: it says how many arrivals are "
         "still missing."),
        (next_phase and got == (1, 0, 0), "The phase is over, and the next one begins at once: pending starts "
         "again from 2."),
        (next_phase and phase == 1 and pending != whole, "The next phase expects as many arrivals as the "
         "barrier was initialised for, and none of them has come."),
        (next_phase and phase == 0, "No arrival is pending and no byte is missing: then a phase completes, by "
         "itself."),
        (not next_phase and phase == before[0] + 1, "The phase goes on: it ends when pending and tx are both "
         "0."),
        (phase < before[0], "A phase that is over never comes back. What is asked is its number, not the "
         "parity."),
        (True, f"Before it, (phase, pending, tx) was {before}. Which of the three does it change?"),
    )  # fmt: skip


@exercise("A wait names the phase that it wants to be over. Look at the table above.")
def parity(passes, use_parity):
    """passes(phase, parity) -> bool; use_parity(use) -> 0 or 1, for the use number 0, 1, 2, .. of a barrier."""
    got = {(phase, p): value_of(passes, phase, p) for phase in range(4) for p in range(2)}
    right = {(phase, p): phase % 2 != p for phase, p in got}
    if any(bool(got[k]) != right[k] for k in got):
        require(any(bool(got[k]) == right[k] for k in got), "It is the other way round: wait(P) asks whether "
                "the phase of parity P is over. In phase 0 it is not, and wait(0) has to wait.")  # fmt: skip
        phase, p = next(k for k in got if bool(got[k]) != right[k])
        raise Wrong(f"In phase {phase} you say that wait({p}) {'passes' if got[phase, p] else 'waits'}. The "
                    f"barrier compares {p} with the last bit of its phase.")  # fmt: skip
    uses = [value_of(use_parity, use) for use in range(6)]
    require(uses != [0] * 6, "Always 0: the wait of use 1 would return at once, since phase 0 is over. It has "
            "to flip.")  # fmt: skip
    require(uses != list(range(6)), "That is the phase's number. A wait takes one bit of it, 0 or 1.")
    require(uses != [1, 0] * 3, "It flips, but begins with 1, and wait(1) passes a fresh barrier at once, "
            "before anything has landed.")  # fmt: skip
    require(uses == [0, 1] * 3, f"For uses 0 to 5 it gives {uses}. Use number n fills phase n, and waits for "
            "the parity of n.")  # fmt: skip
    return "Use n of a barrier is its phase n, and waits for the last bit of n: 0, 1, 0, 1."


WORDS, THREADS = 64, 32
BYTES = 4 * WORDS
GIVES_UP = 200  # times at least, in the run that tells a patient wait from a long one


def copy_with(wait):
    """A kernel (data, out) that copies 2 x 64 words, one after the other, with the reader's ``wait``."""

    shared = Shared(tile=Array((2, WORDS), uint32, alignment=128), full=rings.Barrier())

    @kernel(threads=THREADS, shared=shared)
    def copy(data: u64, out: uint32[:]):
        shared.init()
        tile, full, tid = shared.tile.view(), shared.full, cuda.threadIdx.x
        for use in range(2):
            if tid == 0:
                full.expect(BYTES)
                start = global_at(data, use, BYTES)
                cp_async_bulk_load(shared.tile.at(use), start, BYTES, full.at())
            wait(full.at(), use)
            for i in range(tid, WORDS, THREADS):
                out[WORDS * use + i] = tile[use, i]
            cuda.syncwarp()

    return copy


def _asks_of_an_impatient_run(wait):
    """How often ``wait`` asks in vain before it returns all the same; 0 where it does not do that.

    The engine's wait, but each thread's first try_waits in vain come back at once: thread 0's more often than
    the numbers in the source of ``wait``.
    """
    numbers = [c for c in wait.py_func.__code__.co_consts if isinstance(c, int)]
    patience = max([GIVES_UP, *(c + 1 for c in numbers if c < 20 * GIVES_UP)])
    asked, in_vain, engines_wait = Counter(), Counter(), Thread.mbarrier_wait

    def impatient(thread, address, parity, suspend, token=None):
        barrier, tid = thread.block.barriers.find(thread, address), thread.tid
        if suspend and barrier.phase % 2 == parity and asked[tid] < (GIVES_UP if tid else patience):
            asked[tid] += 1
            in_vain[tid] += 1
            return 0
        in_vain[tid] = 0
        return engines_wait(thread, address, parity, suspend, token)

    data, out = np.arange(2 * WORDS, dtype=np.uint32), poison(2 * WORDS)
    with mock.patch.object(Thread, "mbarrier_wait", impatient):
        try:
            simulate(copy_with(wait), 1, THREADS, (data, out), compiled=False, timeout=10)
        except faults.InFlightRead as fault:
            return in_vain[fault.threads[0]]
        except SimFault:  # of another kind: the ordinary runs tell it
            pass
    return 0


def _is_bounded(wait):
    """Whether ``wait`` asks in a loop over a range, and in no other."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(wait.py_func)))
    loops = {type(node) for node in ast.walk(tree)} & {ast.For, ast.While}
    return loops == {ast.For} and "mbarrier_wait" not in wait.py_func.__code__.co_names


@exercise(
    "mbarrier_try_wait_parity(bar, parity) says 1 if the phase is over, and 0 if it gave up.",
    faults={
        faults.FreshBarrierPassed: "Your wait asks for another parity than it was told.",
        faults.StaleWait: "Your wait asks for the same parity every time. Pass `parity` on.",
        faults.InFlightRead: "Your wait has returned although the phase was not over: try_wait may come back "
        "with 0 before anything has happened. Ask again until it says 1.",
        faults.Unfinished: "It never returns: it goes on asking after the answer was 1. Loop while it is 0.",
        faults.CopyOutlivesBlock: "Nobody has waited for the copy: the wait has to ask the barrier.",
    },
)
def patient_wait(wait):
    """wait(bar, parity): a device function that returns when the phase is over."""
    asks = _asks_of_an_impatient_run(wait)
    require(asks < 2 and not _is_bounded(wait), "It stops "
            f"asking{f' after {asks} questions' if asks > 1 else ''}, and returns although the phase is not "
            "over. try_wait may come back with 0 any number of times, there is no limit: loop until it says 1.")
    data, out = np.arange(2 * WORDS, dtype=np.uint32), poison(2 * WORDS)
    built = copy_with(wait)
    for landing in ("earliest", "late", "random"):  # at the earliest: the first answer is 1
        run(built, 1, (data, out), engine="cpu", landing=landing, schedules=12, seed=1, timeout=1.5)
    require(np.array_equal(out, data), "The copy is not what was copied.")
    return ("Right in 37 schedules. In some of them try_wait gave up early and was asked again, in one of them "
        f"{GIVES_UP} times.")  # fmt: skip


@exercise("Who calls an arrive on `full`, and how often, in one phase?")
def arrivals(count, build):
    """count: what the barrier of the kernel (data, out) ``build(count)`` should be initialised with."""
    team = build(number(count, "number of arrivals"))
    count, warps = int(count), team.threads // 32 - 1
    data, out = np.arange(32, dtype=np.uint32), poison(team.threads - 32)
    missing, many = ("Count the calls of an arrive, not the threads that wait.",
                     "There are more arrivals in a phase than that.")  # fmt: skip
    if count == team.threads or count == 32 * warps:
        missing = "In each warp one lane arrives for all, after syncwarp. So a warp counts once, not 32 times."
    if count == warps:
        many = "Those are the four warps that write. The thread that announces the bytes arrives too."
    with explained({faults.MissingArrivals: missing, faults.TooManyArrivals: many}):
        for landing in ("late", "earliest"):
            run(team, 1, (data, out), engine="cpu", landing=landing, schedules=3)
    sums = data.sum() + np.arange(len(out))[::-1]
    require(np.array_equal(out, sums), "No rule is broken, but the sums are wrong.")
    return "Four warps that write, and the thread that expects the bytes: five calls of an arrive in a phase."


STUCK = {  # three waits that never end: use, parity, state, and what is wrong
    "A": (0, 0, BarrierState("", 0, 1, 2, 0), "arrivals"),
    "B": (3, 1, BarrierState("", 3, 0, 1, 128), "bytes"),
    "C": (1, 0, BarrierState("", 2, 1, 1, 0), "parity"),
}


def stuck():
    """The barriers of the exercise ``diagnose``."""
    steps = [state._replace(what=f"{name}: use {use}, wait({parity})")
             for name, (use, parity, state, _) in STUCK.items()]  # fmt: skip
    return pictures.barrier_states(steps, "three threads wait for ever")


@exercise("For each: which use is it, and which phase does the barrier say it is in?")
def diagnose(**answers):
    """A, B, C: "arrivals", "bytes" or "parity"."""
    for name, (use, parity, state, expected) in STUCK.items():
        got = choice(answers[name], ("arrivals", "bytes", "parity"))
        given = f"{name} is not {got!r}. "
        require(got in ("arrivals", "bytes", "parity"), f"{name} = {got!r} is none of the three: write "
                "'arrivals', 'bytes' or 'parity'.")  # fmt: skip
        if got == expected:
            continue
        if expected == "parity":
            raise Wrong(given + f"The phase of use {use} is phase {use}, and it is over: the barrier is in "
                        f"phase {state.phase}. wait({1 - parity}) would pass; wait({parity}) waits for the end "
                        f"of phase {state.phase}, which nobody has begun to fill.")  # fmt: skip
        require(got != "parity", given + f"Use {use} is phase {use}, and its last bit is {parity}: the wait "
                "asks for the right phase.")  # fmt: skip
        if expected == "bytes":
            raise Wrong(given + "Nothing is pending; all arrivals have come. Look at the tx-count.")
        raise Wrong(given + "Its tx-count is 0. What does `pending` say?")
    return ("Read every report of a barrier like that: is it the phase that I mean, are arrivals pending, are "
        "bytes missing?")  # fmt: skip
