"""``variant="auto"``: the fastest kernel for a problem, and why; and what is fitted to a problem, kept.

The choice is between ``direct``, which no pattern of samples slows down much, and ``window``, which needs
samples near their query. What they take was measured on an H200 (bench/results/windows_spread.json): on
one SM, ``direct`` some 3.8 cycles a sample where samples are near, ``window`` 3.0, and some 500 more for one
that lies outside its window where these are few (local(4): 20 cycles a sample with 3.3 % outside). Few rows
are over before windows have arrived.
"""

from dataclasses import dataclass

import numpy as np

from .host.gpu import copy_to_host
from .variants import ConfigError, Variant, variant
from .workload import NUMPY_DTYPES

DIRECT_CYCLES, WINDOW_CYCLES, OUTSIDE_CYCLES = 3.8, 3.0, 500.0
LEAST_ROWS = 100_000  # B * Q * H
LEAST_ITEMS = 4  # of each SM
KEPT_FITS = 64


@dataclass(frozen=True)
class Choice:
    """A variant, and in words why it was taken."""

    variant: Variant
    why: str


def choose(gpu, problem, locations):
    """The :class:`Choice` for a problem on ``gpu``; ``locations`` are NumPy's, or a device address.

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
    """``Variant.fit``, remembered for the problem; ``locations`` are NumPy's, or a device address."""
    if not chosen.is_fitted:
        return chosen.fit(problem, config, None)
    key = (gpu, problem, chosen.name, config)
    if key not in _FITS:
        while len(_FITS) >= KEPT_FITS:
            del _FITS[next(iter(_FITS))]
        if not isinstance(locations, np.ndarray):
            locations = _host_copy(gpu, problem, locations)
        _FITS[key] = chosen.fit(problem, config, locations)
    return _FITS[key]


def _host_copy(gpu, problem, address):
    """The locations at a device address, as NumPy."""
    p, c = problem, problem.constants
    shape = (p.batch, p.queries, p.heads, c.levels, c.points, 2)
    gpu.device.sync()  # they may still be written
    return copy_to_host(address, shape, np.dtype(NUMPY_DTYPES[c.location_dtype]))
