"""``variant="auto"``: the fastest kernel for a problem, and why; whether it still is; what is fitted, kept.

The choice is between a kernel that no pattern of samples slows down much (``direct``) and one that needs
samples near their query (``window``). What they take on one SM, some cycles for each sample and some for each
row, was measured on an H200 (bench/results/windows_seeds.json, windows_encoders.json, types_*.json). A sample
outside its window costs 130 to 300 more where many lie there (windows_seeds_before.json), and is taken for 500,
an estimate on the safe side for where they are few (bench/NOTES.md). Few rows are over before windows have
arrived. What ``numba-deform tune`` has measured on this GPU (attention/tuned.py) takes the place of all this.
"""

import functools
import threading
import time
from dataclasses import dataclass

import numpy as np

from ..engines.gpu.device import Mailbox, copy_to_host
from ..kernels.problem import NUMPY_DTYPES, ConfigError
from ..kernels.registry import Variant, variant
from . import tuned
from .tuned import Answer, Candidate

# Cycles for a sample and for a row, of direct and of window; measured with 12 to 32 samples a row.
CYCLES = {
    "float16": ((2.5, 45.0), (2.5, 9.0)),
    "bfloat16": ((3.6, 40.0), (4.85, 5.0)),
    "float32": ((5.8, 64.0), (5.0, 9.0)),
}
OUTSIDE_CYCLES = 500.0
LEAST_CYCLES = 2.5  # for a sample, however few lie outside
LEAST_SAMPLES = 12
LEAST_ROWS = 100_000  # B * Q * H
LEAST_ITEMS = 2  # of each SM
KEPT_PROBLEMS = 64
WORK_EACH_LOOK = 20  # times as long as looking takes, between two looks
HEARD_EACH = 7  # calls; a prime, so that layers of a model that take turns all get theirs


@dataclass(frozen=True)
class Choice:
    """A variant with its configuration, and in words why it was taken.

    ``answer`` is what it was judged by, None if it does not depend on the locations."""

    variant: Variant
    config: object
    why: str
    answer: Answer | None = None


def untuned(constants):
    """The ``tuned.Answer`` by the model, for these ``problem.Constants``."""
    samples = max(constants.levels * constants.points, LEAST_SAMPLES)
    direct, window = (each + row / samples for each, row in CYCLES[constants.dtype])
    return Answer(Candidate("direct", (), direct), Candidate("window", (), window))


def expected_cycles(fitted, outside):
    """Cycles a sample of a fitted ``Candidate`` when this share of the samples lies outside."""
    cycles = fitted.cycles + OUTSIDE_CYCLES * (outside - fitted.outside)
    return max(min(fitted.cycles, LEAST_CYCLES), cycles)


def choose(gpu, problem, locations, fits, again=False):
    """The :class:`Choice` for a problem on ``gpu``; ``locations`` are NumPy's, or a device address.

    Where they matter it looks at them, which takes tenths of a second and waits for the GPU, unless ``fits``, a
    :class:`Fits`, has the problem already. ``again``: it looks at these locations all the same; windows keep
    their size if that will do, since another size is another kernel, which takes seconds to compile."""
    answer = tuned.find(gpu, problem)
    source = f"; tuned {answer.date}" if answer else ""
    answer = answer or untuned(problem.constants)
    steady = variant(answer.steady.variant)
    plain = steady.configure(problem.constants, **dict(answer.steady.parameters))
    if answer.fitted is None:
        return Choice(steady, plain, f"windows did not run{source}")
    near = variant(answer.fitted.variant)
    if gpu.capability < near.capability:
        return Choice(steady, plain, f"{gpu.name} has no TMA")
    if not source and problem.rows < LEAST_ROWS:
        return Choice(steady, plain, f"{problem.rows} rows are few: windows pay from {LEAST_ROWS} on")
    try:
        config = near.configure(problem.constants, **dict(answer.fitted.parameters))
    except ConfigError as error:
        return Choice(steady, plain, f"no windows: {error.rule}")

    if again:
        locations = on_host(gpu, problem, locations)
    for anew in ("keep size", "any size") if again else ("",):
        fitted = fits.of(gpu, problem, near, config, locations, anew)
        cycles = expected_cycles(answer.fitted, fitted.outside)
        is_near = cycles < answer.steady.cycles
        if is_near:
            break
    if not source and fitted.items < LEAST_ITEMS * gpu.sms:
        return Choice(steady, plain, f"{fitted.items} cells are too few for {gpu.sms} SMs", answer)
    why = (
        f"{fitted.outside:.2%} of the samples lie outside their windows: {cycles:.1f} cycles a sample "
        f"expected {'<' if is_near else '>='} {answer.steady.cycles:.1f} of {steady.name}{source}"
    )
    return Choice(*((near, config) if is_near else (steady, plain)), why, answer)


# --- what is fitted to a problem ------------------------------------------------------------------
class Fits:
    """``window_fit.Fit`` of the problems that somebody has; whoever has other locations has other fits."""

    def __init__(self):
        self._kept = {}  # (gpu, problem, variant's name, configuration) -> window_fit.Fit

    def of(self, gpu, problem, chosen, config, locations, anew=""):
        """The fit of a problem, made for the first ``locations`` (NumPy's, or a device address).

        ``anew``: made for these; "keep size": with windows of the size that they had."""
        if not chosen.is_fitted:
            return chosen.fit(problem, config, None)
        key = (gpu, problem, chosen.name, config)
        if anew or key not in self._kept:
            if anew == "keep size" and key in self._kept:
                config = self._kept[key].config
            fitted = chosen.fit(problem, config, on_host(gpu, problem, locations))
            while len(self._kept) >= KEPT_PROBLEMS and key not in self._kept:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = fitted
        return self._kept[key]


FITS = Fits()  # for variants asked for by name


def on_host(gpu, problem, locations):
    """The locations as NumPy; those at a device address are copied, after waiting for the GPU."""
    if isinstance(locations, np.ndarray):
        return locations
    p, c = problem, problem.constants
    shape = (p.batch, p.queries, p.heads, c.levels, c.points, 2)
    gpu.device.sync()  # they may still be written
    return copy_to_host(locations, shape, np.dtype(NUMPY_DTYPES[c.location_dtype]))


# --- one problem, call after call -----------------------------------------------------------------
def share_outside(problem, before, now):
    """Share of the samples that no window held between two ``counts`` of a kernel; None without a launch."""
    lost, launches = ((int(new) - int(old)) % 2**32 for old, new in zip(before, now, strict=True))
    return lost / launches / problem.samples if launches else None


class Watch:
    """Calls of ``ms_deform_attn(variant="auto")`` for one problem: what to run, and whether it pays still.

    Locations are looked at in the first call. While ``direct`` is chosen they are looked at again, at the
    earliest in calls 2, 4, 8, ... and when 20 times as long has passed as the last look took. ``window`` counts
    the samples that it had to add from global memory. After every 7th call its counts are copied to the host,
    which waits for nothing: a later call finds them. When by these ``direct`` would have been faster, the next
    calls are ``direct``'s, and the next look decides anew. So calls that go wrong are some ten, and those that
    the GPU has not come to yet.

    ``fits`` are those of this problem's choice. Threads may share it."""

    def __init__(self, gpu, problem):
        self.gpu, self.problem, self.fits = gpu, problem, Fits()
        self.choice, self.calls, self._next_look = None, 0, 1
        self._mailbox, self._heard = None, (0, 0)  # the counts that came last
        self._unheard = 0  # launches
        self._rest_until = 0.0  # by time.perf_counter
        self._lock = threading.Lock()

    def choose(self, locations, capturing=False):
        """The :class:`Choice` for the next call with these locations; as :func:`choose`.

        ``capturing``: it is captured into a CUDA graph, and nothing may be looked at; what was chosen before
        stays, and is ``direct`` before anything was."""
        with self._lock:
            if capturing:
                return self.choice or self._direct("the first call is captured into a graph")
            self.calls += 1
            self._listen()
            start, choice = time.perf_counter(), self.choice
            may_change = choice and choice.answer and not choice.variant.is_fitted
            is_time = self.calls >= self._next_look and start >= self._rest_until
            if choice is None or may_change and is_time:
                self.choice = choose(self.gpu, self.problem, locations, self.fits, again=self.calls > 1)
                self._next_look, end = 2 * self.calls, time.perf_counter()
                self._rest_until = end + WORK_EACH_LOOK * (end - start)
                self._unheard, self._heard = 0, (0, 0)
                if self._mailbox:
                    self._mailbox.take()  # of the windows before these
            return self.choice

    def launched(self, counts, stream):
        """To be told after each launch of a fitted kernel that is not captured: its counts, a DeviceArray,
        and the stream's handle."""
        with self._lock:
            self._unheard += 1
            if self._unheard % HEARD_EACH == 1:
                if self._mailbox is None:
                    self._mailbox = Mailbox(self.gpu)
                self._mailbox.ask(counts.address, stream)

    def _direct(self, why, answer=None):
        steady = (answer or untuned(self.problem.constants)).steady
        chosen = variant(steady.variant)
        config = chosen.configure(self.problem.constants, **dict(steady.parameters))
        return Choice(chosen, config, why, answer)

    def _listen(self):
        counts = self._mailbox.take() if self._mailbox else None
        if counts is None or not self.choice.variant.is_fitted:
            return
        outside, answer = share_outside(self.problem, self._heard, counts), self.choice.answer
        self._heard = counts
        if outside is None:
            return
        cycles, limit = expected_cycles(answer.fitted, outside), answer.steady.cycles
        if cycles >= limit:
            why = f"{outside:.2%} of the samples lay outside their windows: {cycles:.1f} cycles a sample "
            self.choice = self._direct(f"{why}>= {limit:.1f} of {answer.steady.variant}", answer)


watch = functools.lru_cache(maxsize=KEPT_PROBLEMS)(Watch)
