"""A variant of one's own: a function that makes its kernel, and what such a kernel needs of an attention call.

    @nd.variant("level-ring", fetch="tma", capability=(9, 0))
    def level_ring(constants, stages=2, warps=8):
        "A warp has a row, a lane a sample, a stage a level."
        shared = nd.Shared(...)
        rows = nd.Rows(constants, per_item=warps)

        @nd.kernel(threads=32 * warps, shared=shared)
        def level_ring(maps: nd.u64, levels: nd.u64, ...):
            ...

        return level_ring, lambda problem, resident: rows.items(problem)
"""

import dataclasses
import functools
import inspect
from collections import namedtuple

from numba import cuda, float32, int32

from ..compiler import Kernel
from ..device.integer import div_u32
from ..device.layout import Namespace
from ..device.limits import MAX_THREADS
from ..device.memory import global_at
from . import registry
from .parts.config import SharedBytes
from .parts.row import item_count, item_row, items, run_parts
from .parts.sampling import load_level, locate
from .problem import ITEMSIZE, ConfigError

FORMS = {"debug": False, "trace": False}  # parameters that every variant has: guarded, and traced
Sample = namedtuple("Sample", ["level", "x", "y", "fx", "fy", "weight"])


# --- the decorator --------------------------------------------------------------------------------
def variant(name, *, fetch, capability, box=(2, 2), maps="batch"):
    """Decorator: a function that makes a kernel becomes a variant of the operator, registered as ``name``.

    From then on it is a ``kernels.registry.Variant``, which ``ms_deform_attn``, ``prepare`` and, by
    ``load=my.py``, every command know by its name. The function is called with the ``Constants`` that a kernel
    is compiled for, and with its own parameters, each of which has a default. It returns

    kernel  an ``@nd.kernel``. Its operands are found by the names of its parameters: ``maps``, ``value``,
            ``levels``, ``locations``, ``weights``, ``out`` (addresses, u64); ``batches``, ``queries``,
            ``heads``, ``rows``, ``rows_per_batch``, ``spatial_size`` (i32)
    grid    a function (problem, resident) -> number of blocks; ``resident()`` is how many the GPU holds at once

    and raises ``nd.ConfigError(field, value, rule)`` for what it cannot run. The first line of its docstring
    says what it does. Two parameters more come by themselves: ``debug=True`` bounds all waits on a GPU, and
    ``trace=True`` makes the kernel write down what its warps do when, for a timeline.

    fetch       how tiles come: ``l1`` plain loads, ``tma`` an instruction each, ``shared`` many in a box
    capability  of the oldest GPU that runs it, such as (9, 0)
    box         (height, width) of what a load by ``maps`` brings, in pixels
    maps        ``batch``: a map of rank 3 (H*C, w, h) for each batch b and level l, number b*L + l;
                ``level``: one of rank 5 (C, H, w, h, B) for each level

    A cell that runs again replaces its variant. ConfigError, naming the field, for a name that another has,
    and for what could not run.
    """

    if not (isinstance(capability, tuple) and [type(n) for n in capability] == [int, int]):
        raise ConfigError("capability", capability, "must be two numbers, such as (9, 0)")
    if maps not in ("batch", "level"):
        raise ConfigError("maps", maps, "must be batch or level")
    if len(box) != 2 or not all(1 <= n <= 256 for n in box):
        raise ConfigError("box", box, "must be a height and a width from 1 to 256")

    def wrap(function):
        config = _config_of(name, function, box, maps)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        entry = registry.Variant(name, "", summary, config, _Module(function), capability, fetch)
        before = registry.VARIANTS.get(name)
        registry.register(entry, replace=bool(before) and _place(before.module) == _place(entry.module))
        return entry

    return wrap


class _Module:
    """Stands in for a module of ``kernels/``: the function of a variant."""

    def __init__(self, function):
        self.function, self.__name__ = function, function.__module__

    def build(self, config, constants):
        return config.made(constants)[0]

    def blocks(self, problem, config, resident):
        return config.made(problem.constants)[1](problem, resident)


def _place(module):
    """Where a variant's function stands; None for a variant that is none of these."""
    function = getattr(module, "function", None)
    return function and (function.__module__, function.__qualname__)


class _Own:
    """A configuration; subclasses are frozen dataclasses whose fields are the parameters of a function."""

    l2_promotion = "128B"
    threads = 0  # of a block: known when it is resolved

    def map_box(self, constants):
        return self.box

    def made(self, constants):
        """(kernel, grid) of the function; ConfigError where it refuses, or returns something else."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in FORMS}
        return _made(self._name, self._function, constants, tuple(given.items()))

    def resolve(self, constants):
        resolved = dataclasses.replace(self)
        if "threads" not in vars(resolved):
            object.__setattr__(resolved, "threads", self.made(constants)[0].threads)
        return resolved

    def shared_bytes(self, constants):
        layout = self.made(constants)[0].shared
        if not layout:
            return SharedBytes()
        barriers = layout.barrier_bytes
        return SharedBytes(layout.bytes - barriers, barriers)  # with the room to align counted as tiles


def _config_of(name, function, box, maps):
    others = [*inspect.signature(function).parameters.values()][1:]  # behind the constants
    for parameter in others:
        if parameter.name in FORMS:
            raise ConfigError("parameter", parameter.name, "comes by itself: leave it out")
        if parameter.default is parameter.empty:
            raise ConfigError("parameter", parameter.name, f"of {function.__name__} needs a default")
    defaults = {p.name: p.default for p in others} | FORMS
    fields = [(key, type(default), dataclasses.field(default=default)) for key, default in defaults.items()]
    members = {"__module__": function.__module__, "_name": name, "_function": staticmethod(function)}
    return dataclasses.make_dataclass(
        function.__name__, fields, bases=(_Own,), frozen=True,
        namespace=members | {"box": tuple(box), "maps": maps},
    )  # fmt: skip


@functools.cache
def _made(name, function, constants, given):
    try:
        made = function(constants, **dict(given))
    except ConfigError:
        raise
    except ValueError as error:  # of a layout that does not fit, for instance
        words = " ".join(f"{key}={value}" for key, value in given)
        raise ConfigError("variant", name, f"with {words}: {error}" if words else str(error)) from error
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Kernel) and callable(made[1])):
        rule = f"{function.__name__} must return a kernel and its grid, a function, and not {made!r}"
        raise ConfigError("variant", name, rule)
    threads = made[0].threads
    if threads % 32 or not 32 <= threads <= MAX_THREADS:
        raise ConfigError("threads", threads, f"of {name} must be a multiple of 32, at most {MAX_THREADS}")
    return made


# --- what its kernel needs of a call ----------------------------------------------------------------
class Rows(Namespace):
    """How the rows of a call (one for each query and head) are dealt out to blocks, and their samples read.

    A block works on *items* of ``per_item`` rows, all of one batch. ``constants`` are those of the variant;
    neighbouring items take turns among ``abreast`` batches. For the host:

    rows.items(problem)     how many items a call has

    For kernels, whose parameters have these names:

    rows.count(batches, rows_per_batch)     the same
    rows.row(item, number, batches, rows_per_batch, heads)
        row ``number`` (0 .. per_item - 1) of an item: (batch, head, number, valid). Its ``number`` counts all
        rows of the call. Where there is no such row it is the batch's last one, and not ``valid``: work along,
        and write nothing.
    rows.sample(levels, locations, weights, row, k)
        sample ``k`` of a row, 0 .. L*P - 1; a larger ``k`` is the last one. (level, x, y, fx, fy, weight): its
        tile of 2x2 pixels begins at pixel (x, y), which may be outside; (fx, fy) say how far it lies from
        there, 0 .. 1; and the attention weight, 0 for a sample with no neighbour inside.
    """

    def __init__(self, constants, per_item, abreast=12):
        super().__init__("rows")
        PER_ITEM, ABREAST = per_item, abreast
        POINTS, SAMPLES = constants.points, constants.levels * constants.points
        LOCATION_BYTES = 2 * ITEMSIZE[constants.location_dtype]
        WEIGHT_BYTES = ITEMSIZE[constants.weight_dtype]
        new_raw, load_run, unpack = run_parts(1, constants.location_dtype, constants.weight_dtype)

        @cuda.jit(device=True, forceinline=True)
        def count(batches, rows_per_batch):
            return item_count(batches, rows_per_batch, PER_ITEM)

        @cuda.jit(device=True, forceinline=True)
        def row(item, number, batches, rows_per_batch, heads):
            return item_row(int32(item), int32(number), batches, rows_per_batch, heads, PER_ITEM, ABREAST)

        @cuda.jit(device=True, forceinline=True)
        def sample(levels, locations, weights, row, k):
            k = min(int32(k), int32(SAMPLES - 1))
            number, raw = global_at(k, row.number, SAMPLES), new_raw()
            location = global_at(locations, number, LOCATION_BYTES)
            load_run(location, global_at(weights, number, WEIGHT_BYTES), raw)
            run = unpack(raw)
            level = int32(div_u32(k, POINTS))
            height, width, _, _ = load_level(levels, level)
            x, fx, inside_x = locate(run.xy[0], width)
            y, fy, inside_y = locate(run.xy[1], height)
            weight = run.attention[0] if inside_x and inside_y else float32(0)
            return Sample(level, x, y, fx, fy, weight)

        self.count, self.row, self.sample = count, row, sample
        self.items = functools.partial(_items, per_item)


def _items(per_item, problem):
    return items(problem, per_item)
