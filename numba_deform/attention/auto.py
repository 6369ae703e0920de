"""``variant="auto"``: the fastest kernel for a problem, and why.

The choice is between a kernel that no pattern of samples slows down much (``direct``) and one that needs
samples near their query (``window``). What they take on one SM, some cycles for each sample and some for each
row, was measured on an H200 (bench/results/windows_seeds.json, windows_encoders.json, types_*.json; bf16's
windows: bf16_designs.json). A sample outside its window costs 80 to 180 more (outside.json), and is taken for
200. Few rows are over before windows have arrived. What ``numba-deform tune`` has measured on this GPU
(attention/tuned.py) takes the place of all this.

Where windows may pay, the locations decide, on the GPU: the call is two launches. ``window`` looks at some
samples first, and if too many lie outside its windows leaves the work to ``direct``, which ends at once if it
is done. So what a call does follows from its arguments alone: nothing is copied, and nothing remembered.
"""

from dataclasses import dataclass

from ..engines.gpu.device import beside_captures
from ..kernels.problem import ConfigError
from ..kernels.registry import Variant, variant
from ..kernels.window_fit import probed_samples
from . import tuned
from .bind import KEPT_PROBLEMS, Bound
from .memo import made_once
from .tuned import Answer, Candidate

# Cycles for a sample and for a row, of direct and of window; measured with 12 to 32 samples a row.
CYCLES = {
    "float16": ((2.5, 45.0), (2.5, 9.0)),
    "bfloat16": ((3.6, 40.0), (2.9, 11.0)),
    "float32": ((5.8, 64.0), (5.0, 9.0)),
}
OUTSIDE_CYCLES = 200.0
LEAST_SAMPLES = 12
LEAST_ROWS = 100_000  # B * Q * H
LEAST_ITEMS = 2  # of each SM


@dataclass(frozen=True)
class Choice:
    """A variant with its configuration, and in words why it was taken.

    ``otherwise`` is what runs where too many samples lie outside the windows of this one: (variant,
    configuration); None if the locations do not matter."""

    variant: Variant
    config: object
    why: str
    otherwise: tuple | None = None


def untuned(constants):
    """The ``tuned.Answer`` by the model, for these ``problem.Constants``."""
    samples = max(constants.levels * constants.points, LEAST_SAMPLES)
    direct, window = (each + row / samples for each, row in CYCLES[constants.dtype])
    return Answer(Candidate("direct", (), direct), Candidate("window", (), window))


def share_allowed(answer):
    """The share of the samples outside their windows from which on the steady kernel is the faster one, by the
    two Candidates of an ``Answer``; below 0 if it always is."""
    return answer.fitted.outside + (answer.steady.cycles - answer.fitted.cycles) / OUTSIDE_CYCLES


def choose(gpu, problem):
    """The :class:`Choice` for a problem on ``gpu``."""
    if not problem.constants.is_usual:
        alone = variant("direct")
        why = "only direct takes another number of points for each level, or another method"
        return Choice(alone, alone.configure(problem.constants), why)
    answer = tuned.find(gpu, problem)
    source = f"; tuned {answer.date}" if answer else ""
    answer = answer or untuned(problem.constants)
    steady = variant(answer.steady.variant)
    plain = steady.configure(problem.constants, **dict(answer.steady.parameters))
    pixels = sum(level.height * level.width for level in problem.levels)
    if answer.fitted is None:
        return Choice(steady, plain, f"windows did not run{source}")
    near = variant(answer.fitted.variant)
    if gpu.capability < near.capability:
        return Choice(steady, plain, f"{gpu.name} has no TMA")
    if problem.queries < pixels:
        return Choice(steady, plain, f"{problem.queries} queries of {pixels} pixels lie anywhere")
    if not source and problem.rows < LEAST_ROWS:
        return Choice(steady, plain, f"{problem.rows} rows are few: windows pay from {LEAST_ROWS} on")
    if share_allowed(answer) < 0:
        return Choice(steady, plain, f"{near.name} is no faster than {steady.name}{source}")
    limit = int(share_allowed(answer) * probed_samples(problem))
    try:
        config = near.configure(problem.constants, **dict(answer.fitted.parameters)).fitted(limit=limit)
        fitted = near.fit(problem, config)
    except ConfigError as error:
        return Choice(steady, plain, f"no windows: {error.rule}")
    if not source and fitted.items < LEAST_ITEMS * gpu.sms:
        return Choice(steady, plain, f"{fitted.items} cells are too few for {gpu.sms} SMs")
    otherwise = steady if steady.name == "direct" else variant("direct")
    parameters = dict(answer.steady.parameters) if otherwise is steady else {}
    gated = otherwise.configure(problem.constants, **parameters).gated()
    why = (
        f"windows, but {otherwise.name} where more than {limit} of {probed_samples(problem)} samples looked at "
        f"lie outside: {answer.fitted.cycles:.1f} cycles a sample against {answer.steady.cycles:.1f}{source}"
    )
    return Choice(near, config, why, (otherwise, gated))


@made_once(KEPT_PROBLEMS)
def launches(gpu, problem, form="plain"):
    """The :class:`Bound` of each launch of a call, in order: one, or two of which the second is given the words
    at ``gate`` that the first one writes; ``form`` as of a Bound."""
    choice = choose(gpu, problem)
    pairs = [(choice.variant, choice.config), *([choice.otherwise] if choice.otherwise else [])]
    bounds = tuple(Bound(problem, chosen, config, gpu, form) for chosen, config in pairs)
    bounds[0].then, bounds[0].why = bounds[1] if len(bounds) > 1 else None, choice.why
    return bounds


def bounds_of(request):
    """The :class:`Bound` of each launch of a checked call: nothing is chosen for the CPU engine."""
    if request.gpu is None:
        return (Bound(request.problem, request.variant, request.config),)
    with beside_captures():  # kernels may have to be loaded, and tables copied
        if request.is_open:
            return launches(request.gpu, request.problem)
        return (Bound(request.problem, request.variant, request.config, request.gpu),)
