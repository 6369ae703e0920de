"""``tune``: which parameters of a pipeline are best: right ones first, ranked by time where there is a GPU."""

import itertools
from dataclasses import dataclass, field

from ..attention.request import engine_for
from ..device.limits import SMS, resident_blocks
from ..engines.cpu import SimFault, simulate
from ..engines.launches import Launch
from ..engines.sass.units import GPUS
from ..kernels.pipelines import Pipeline
from .pipelines import check, time_one
from .predict import predict_launch

MEASURED, PREDICTED, VIRTUAL = "median_ms", "predicted_ms", "virtual_cycles"


@dataclass(frozen=True)
class Tuned:
    """What ``tune`` found.

    best     the Launch that comes first; None where none is right
    rows     a dict for each right set of parameters, the best first: the parameters, and what is known of it
    refused  (parameters, why) of those that cannot be launched, break a rule or leave wrong numbers
    by       what ranks them: ``median_ms``, measured, ``predicted_ms`` by a model of a GPU, or
             ``virtual_cycles`` of the CPU engine, which predict an order and no time"""

    best: Launch | None
    rows: list = field(repr=False)
    refused: list = field(repr=False)
    by: str

    def __str__(self):
        how = {MEASURED: "measured on this GPU", PREDICTED: "by a model of an SM: nothing is measured",
               VIRTUAL: "of the CPU engine, then by the blocks that an SM holds: nothing is measured"}[self.by]
        lines = [f"ranked by {self.by} ({how})"]
        lines += [f"  {in_words(row)}" for row in self.rows]
        for parameters, why in self.refused:
            lines.append(f"  not {in_words(parameters)}: {why}")
        return "\n".join(lines)


def in_words(row):
    return " ".join(f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in row.items())  # fmt: skip


def tune(pipeline, *, engine="auto", schedules=1, repeats=20, **values):
    """The :class:`Tuned` of a pipeline: every combination of the ``values`` of its parameters is run.

    ``tune(copy, stages=[2, 3, 4], rows=[16, 32])``. Each is run on the CPU engine first, in so many
    ``schedules``, and has to be right there; what breaks a rule is in ``.refused``, and no GPU sees it.
    Where there is a GPU ("gpu" or "auto") the rest is compared and timed there, ``repeats`` times: the
    fastest is ``.best``. With ``engine`` "h200" or "h100" it is that for which a model predicts the least time.
    Elsewhere it is the one with the fewest virtual cycles, and of equal ones that of which an SM holds
    more blocks: a prediction, as ``.by`` says, and ``print`` of it.

    Raises ConfigError for a parameter that the pipeline has not, and ValueError for one without values."""
    if not isinstance(pipeline, Pipeline):
        raise ValueError(f"pipeline={pipeline!r} must be a function that @nd.pipeline decorates")
    for name, given in values.items():
        if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__") or not list(given):
            raise ValueError(f"{name}={given!r} must be a list of values to try, such as {name}=[{given!r}]")
    pipeline.checked({name: next(iter(given)) for name, given in values.items()})
    model, engine = (engine, "cpu") if engine in GPUS else (None, engine)
    _, gpu = engine_for(engine, (0, 0), pipeline.name)
    rows, refused, launches = [], [], {}
    for combination in itertools.product(*values.values()):
        parameters = dict(zip(values, combination, strict=True))
        try:
            launch = pipeline(**parameters)
            engine_for(engine, launch.capability, launch.title)
            report = simulate(launch, schedules=schedules)
            measured = {PREDICTED: predict_launch(launch, model).columns()[PREDICTED]} if model else {}
            if gpu:
                check(gpu, launch)
                measured = {MEASURED: time_one(gpu, launch, repeats)[MEASURED]}
        except (ValueError, SimFault) as error:
            refused.append((parameters, str(error).partition("\n")[0]))
            continue
        blocks = resident_blocks(launch.kernel.threads, report.shared_bytes) // SMS
        rows.append({**parameters, **measured, VIRTUAL: report.cycles, "shared_bytes": report.shared_bytes,
                     "blocks_per_sm": blocks})  # fmt: skip
        launches[id(rows[-1])] = launch
    by = MEASURED if gpu else PREDICTED if model else VIRTUAL
    rows.sort(key=lambda row: (row[by], -row["blocks_per_sm"]))
    return Tuned(launches[id(rows[0])] if rows else None, rows, refused, by)
