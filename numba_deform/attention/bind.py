"""``Bound``: a variant made ready for one problem on one engine; all that runs the operator goes through it."""

import functools

import numpy as np

from ..engines.gpu.device import DeviceArray, require
from ..engines.gpu.guard import guarded_launcher
from ..engines.gpu.launch import launch, resident_blocks
from ..kernels.level_maps import level_maps, level_maps_rank5
from ..kernels.problem import ConfigError
from ..kernels.registry import runnable

KEPT_PROBLEMS = 64
CPU_RESIDENT = 2  # blocks of a persistent kernel on the CPU engine: few, so that each goes round often
FORMS = {
    "plain": lambda kernel: kernel,
    "linked": lambda kernel: kernel.with_linked_ptx(),  # calls the PTX functions instead of inlining them
    "guarded": lambda kernel: kernel,  # its launches end in a report instead of a hang
    "traced": lambda kernel: kernel if kernel.traced else kernel.with_marks(),  # for a timeline
}
# Operands that only some forms have, and what they are where nobody gives them: where the kernel copies the
# tiles of a row to, and which row; where it writes its marks, and those of which block; the words by which
# one kernel leaves the work to the next (auto.py).
OPTIONAL = {"debug": 0, "debug_row": -1, "trace_buffer": 0, "trace_block": -1, "gate": 0}


class Bound:
    """A variant with all about it that does not depend on where the operands are.

    problem, variant, gpu    as given; ``gpu`` is None for the CPU engine
    config                   as fitted to the problem; ``fit`` is the whole ``window_fit.Fit``
    kernel, blocks           what is launched, in its form, and the size of the grid
    shared_bytes             dynamic shared memory of a block
    tables                   of a kernel that is fitted: what it reads beside the operands; NumPy arrays, or
                             DeviceArrays that live as long as the arguments do

    then                     the Bound of what runs after it, if this one may leave its work to that (auto.py)
    why                      in words why "auto" took it; empty for one that was asked for

    ``form`` is one of FORMS; a configuration with debug is always guarded. ``extra`` of a method are operands
    beside the four, by the names of the kernel's parameters (OPTIONAL). ``resident(kernel, shared_bytes)``: how
    many blocks of a persistent kernel run at once, where it is not asked of the GPU.
    """

    def __init__(self, problem, variant, config, gpu=None, form="plain", resident=None):
        """GpuMissing if the GPU is too old."""
        self.then, self.why = None, ""
        self.problem, self.variant, self.gpu = problem, variant, gpu
        constants = problem.constants
        if gpu:
            require(gpu, variant.capability, f"variant {variant.name}", runnable(gpu.capability))
        self.fit = variant.fit(problem, config)
        self.config = config = self.fit.config
        self.kernel = FORMS[form](variant.kernel(config, constants))
        self.shared_bytes = variant.dynamic_shared_bytes(config, constants)
        held = functools.partial(resident or self._resident, self.kernel, self.shared_bytes)
        self.blocks = variant.module.blocks(problem, config, held)
        make_tables = functools.partial(_tables_on_gpu, gpu, self.fit.tables) if gpu else self.fit.tables
        self.tables = self.fit.tables and make_tables(self.blocks)
        self._is_guarded = form == "guarded" or getattr(config, "debug", False)

    def _resident(self, kernel, shared_bytes):
        return resident_blocks(self.gpu, kernel, shared_bytes) if self.gpu else CPU_RESIDENT

    # --- arguments ------------------------------------------------------------------------------------
    def arguments(self, operands, maps=None, extra=()):
        """The kernel's arguments, in order: what the names of its parameters stand for.

        ``operands``: value, locations, weights and out, as device addresses or on the CPU engine NumPy arrays.
        ``maps(kind, box, l2_promotion)`` gives the tensor maps of value: rank-3 ones (H*C, w, h) for each
        (batch, level) where kind is "batch", else a rank-5 one for each level. Without it they are made, and on
        a GPU kept for the next call with this value. ConfigError for a parameter of any other name."""
        problem, config = self.problem, self.config
        if getattr(config, "is_gated", False) and "gate" not in dict(extra):
            raise ConfigError("gate", 0, "two launches of auto share a gate; one by itself has none")
        known = {
            **dict(zip(("value", "locations", "weights", "out"), operands, strict=True)),
            "levels": _level_table(self.gpu, problem.levels) if self.gpu else problem.level_table,
            "batches": problem.batch, "queries": problem.queries, "heads": problem.heads,
            "rows": problem.rows, "rows_per_batch": problem.queries * problem.heads,
            "spatial_size": problem.spatial_size, **OPTIONAL, **dict(extra)}  # fmt: skip
        if self.tables:
            known |= self.tables.operands()
        if "maps" in self.kernel.parameters:
            box = config.map_box(problem.constants)
            make = functools.partial(_kept_maps, self.gpu) if self.gpu else _maps
            maps = maps or functools.partial(make, problem, operands[0])
            known["maps"] = maps(config.maps, box, config.l2_promotion)
        for name in self.kernel.parameters:
            if name not in known:
                names = ", ".join(sorted({"maps", *known}))
                raise ConfigError("parameter", name, f"of a kernel must be one of {names}")
        return tuple(known[name] for name in self.kernel.parameters)

    # --- running --------------------------------------------------------------------------------------
    def launcher(self, addresses, stream=None, extra=()):
        """A function of no arguments that launches the kernel, for instance to be timed.

        ``addresses`` are those of value, locations, weights and out, which must live as long as the function is
        used; ``stream`` is cuda.core's, default the device's default one. A guarded launch waits for its end,
        and instead of a hang raises what ``launch_guarded`` does."""
        arguments = self.arguments(addresses, extra=extra)
        what = (self.gpu, self.kernel, self.blocks, arguments, self.shared_bytes, stream)
        return guarded_launcher(*what) if self._is_guarded else functools.partial(launch, *what)

    def launch(self, addresses, stream=None, extra=()):
        """Launch once; see :meth:`launcher`."""
        self.launcher(addresses, stream, extra)()

    def simulate(self, arrays, out, extra=(), **options):
        """Run on the CPU engine into the NumPy array ``out``; its ``Report``. ``arrays``: contiguous value,
        locations and weights; ``options`` go to ``engines.cpu.simulate``."""
        from ..engines.cpu import simulate

        return simulate(
            self.kernel, self.blocks, self.kernel.threads, self.arguments((*arrays, out), extra=extra),
            shared_bytes=self.shared_bytes, **options)  # fmt: skip

    def run(self, arrays, extra=(), **options):
        """(out, report) of NumPy arrays on either engine; what the kernel did not write is NaN in ``out``.

        NumPy arrays in ``extra`` are filled in place. The report is the CPU engine's, whose ``options`` are
        those of :meth:`simulate`; a GPU has none, and the arrays are copied to it and back."""
        extra = dict(extra)
        if not self.gpu:
            out = np.full(self.problem.out_shape, np.nan, arrays[0].dtype)
            return out, self.simulate(arrays, out, extra, **options)
        on_gpu = OnGpu(self.gpu, self.problem, arrays)
        filled = {k: DeviceArray.of(self.gpu, a) for k, a in extra.items() if isinstance(a, np.ndarray)}
        self.launch(on_gpu.addresses, extra=extra | filled)
        for name, copy in filled.items():
            extra[name][...] = copy.to_numpy()
        return on_gpu.out.to_numpy(), None


class OnGpu:
    """NumPy arrays of one call copied to a GPU (``inputs``: value, locations, weights), and its output there
    (``out``), poisoned; all are DeviceArrays."""

    def __init__(self, gpu, problem, arrays):
        self.inputs = [DeviceArray.of(gpu, array) for array in arrays]
        self.out = DeviceArray(gpu, problem.out_shape, arrays[0].dtype)
        self.poison()

    def poison(self):
        """Make every element of the output NaN."""
        self.out.fill(0xFF)

    @property
    def addresses(self):
        """Of value, locations, weights and out, as :meth:`Bound.launcher` takes them."""
        return [array.address for array in (*self.inputs, self.out)]


# --- what lies on the GPU for as long as callers come back -------------------------------------------
def _maps(problem, value, kind, box, l2_promotion):
    make = level_maps if kind == "batch" else level_maps_rank5
    constants = problem.constants
    return make(
        value, problem.batch, problem.heads, constants.channels, constants.dtype, problem.levels,
        problem.spatial_size, box_hw=box, l2_promotion=l2_promotion)  # fmt: skip


def encoded_maps(problem, address, kind, box, l2_promotion):
    """(n, 128) bytes, the tensor maps of a value at ``address`` as the GPU of the current context has them; see
    :meth:`Bound.arguments`."""
    return _maps(problem, address, kind, box, l2_promotion).encode_into_host()


def device_maps(gpu, problem, address, *options):
    """A DeviceArray of them."""
    return DeviceArray.of(gpu, encoded_maps(problem, address, *options))


_kept_maps = functools.lru_cache(maxsize=64)(device_maps)


@functools.lru_cache(maxsize=64)
def _level_table(gpu, levels):
    return DeviceArray.of(gpu, np.array(levels, np.int32).reshape(-1, 4))


@functools.lru_cache(maxsize=KEPT_PROBLEMS)
def _tables_on_gpu(gpu, make_tables, blocks):
    tables = make_tables(blocks)
    return type(tables)(*(DeviceArray.of(gpu, table) for table in tables))
