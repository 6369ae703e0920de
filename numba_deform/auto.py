"""``variant="auto"``: the fastest kernel for a problem, and why; and what is fitted to a problem, kept.

The choice is between ``direct``, which no pattern of samples slows down much, and ``window``, which needs
samples near their query. What they take was measured on an H200 (bench/results/windows_*.json, bench/NOTES.md):
on one SM, ``direct`` some 3.8 cycles a sample where samples are near, ``window`` 3.0, and 35 more for one
that lies outside its window. Few rows are over before windows have arrived.
"""

import functools
from dataclasses import dataclass

import numpy as np

from .host.gpu import copy_to_host
from .variants import ConfigError, Variant, variant
from .workload import NUMPY_DTYPES

DIRECT_CYCLES, WINDOW_CYCLES, OUTSIDE_CYCLES = 3.8, 3.0, 35.0
LEAST_ROWS = 100_000  # B * Q * H
LEAST_ITEMS = 4  # of each SM
KEPT_FITS = 64


@dataclass(frozen=True)
class Choice:
    """A variant, and in words why it was taken."""

    variant: Variant
    why: str


def choose(gpu, problem, locations):
    """The :class:`Choice` for a problem on ``gpu`` whose locations are at a device address.

    The first time it looks at the locations, which takes milliseconds; later calls for the same problem find
    the answer. It is always right; other locations than those may make another choice faster.
    """
    direct, window = variant("direct"), variant("window")
    if gpu.capability < window.capability:
        return Choice(direct, f"{gpu.name} has no TMA")
    if problem.rows < LEAST_ROWS:
        return Choice(direct, f"{problem.rows} rows are few: windows pay from {LEAST_ROWS} on")
    try:
        config = window.configure(problem.constants)
    except ConfigError as error:
        return Choice(direct, f"no windows: {error.rule}")
    fitted = fit_once(gpu, problem, window, config, locations)
    if fitted.items < LEAST_ITEMS * gpu.sms:
        return Choice(direct, f"{fitted.items} cells are too few for {gpu.sms} SMs")
    expected = WINDOW_CYCLES + OUTSIDE_CYCLES * fitted.outside
    chosen, sign = (window, "<") if expected < DIRECT_CYCLES else (direct, ">=")
    return Choice(
        chosen,
        f"{fitted.outside:.2%} of the samples lie outside their windows: {expected:.1f} cycles a sample "
        f"expected {sign} {DIRECT_CYCLES} of direct",
    )


# --- what is fitted to a problem ------------------------------------------------------------------
_FITS = {}  # (gpu, problem, variant's name, configuration) -> windows.Fit


def fit_once(gpu, problem, chosen, config, locations):
    """``Variant.fit`` for the locations at a device address, remembered for the problem."""
    if not chosen.is_fitted:
        return chosen.fit(problem, config, None)
    key = (gpu, problem, chosen.name, config)
    if key not in _FITS:
        while len(_FITS) >= KEPT_FITS:
            del _FITS[next(iter(_FITS))]
        _FITS[key] = chosen.fit(problem, config, _HostCopy(gpu, problem, locations))
    return _FITS[key]


class _HostCopy:
    """The locations at a device address, copied to the host only if somebody looks."""

    def __init__(self, gpu, problem, address):
        self.gpu, self.problem, self.address = gpu, problem, address

    @functools.cached_property
    def array(self):
        p, c = self.problem, self.problem.constants
        shape = (p.batch, p.queries, p.heads, c.levels, c.points, 2)
        self.gpu.device.sync()  # they may still be written
        return copy_to_host(int(self.address), shape, np.dtype(NUMPY_DTYPES[c.location_dtype]))

    def __getitem__(self, index):
        return self.array[index]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)
