"""The table of at_scale.py: programs at sizes that fill every SM several times and wrap every ring.

An :class:`Entry` makes its :class:`Work`: a kernel, a grid, arguments, and what each output has to hold. A
pipeline with parameters for its size is called with larger ones. What has one block, or a few, is *grown*: it
runs many times side by side, each time on a copy of all its arrays, and ``blockIdx.y`` is the number of the
copy. Its code is written out in a kernel that steps to that copy first; nothing else of it changes.
"""

import functools
import linecache
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numba import cuda, types, uint64

import numba_deform as nd
from numba_deform.attention import gradients
from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import problem_of
from numba_deform.attention.reference import reference, reference_gradients
from numba_deform.course import tile_product, warpgroup_product
from numba_deform.course.pipelines.attention import attention
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.course.pipelines.stencil import stencil
from numba_deform.course.pipelines.two_producers import two_producers
from numba_deform.course.tile_product import TileProduct
from numba_deform.course.warpgroup_product import WarpgroupProduct
from numba_deform.device.limits import HOPPER, LIMITS
from numba_deform.engines.gpu.in_place import bytes_of, owner_of
from numba_deform.engines.tensormap import TensorMapArray
from numba_deform.kernels.budget import occupancy
from numba_deform.kernels.registry import VARIANTS
from numba_deform.kernels.shared.row import items
from numba_deform.kernels.shared.tiles import stage_layout
from numba_deform.workloads.presets import preset

SMS, WAVES, LAPS = 132, 3, 2  # of an H100 and an H200; how often SMs and stages are filled at least
MAP_BYTES, UNIT = 128, 256  # of a tensor map; a copy of memory starts at a multiple of UNIT bytes
OPERATOR_ERROR = 4e-3  # of an element of the operator and its gradients in fp16, relative to the largest


@dataclass
class Output:
    """An array, what it holds after a right run, and how far off an element may be: 0, not at all.

    ``steady``: whether all right runs leave the same bits, as where no order of additions is left open."""

    array: np.ndarray
    expected: np.ndarray
    allowed: float = 0.0
    steady: bool = True


@dataclass
class Work:
    """What a GPU is given. The arrays among ``args`` hold what they hold before each run.

    laps     how often a stage of a ring is filled, at least; None for what has no ring
    rounds   how often a block takes a tile or a row, where the grid is no larger than the GPU
    copies   of the program, side by side
    """

    kernel: object
    grid: object
    args: list
    outputs: list
    shared_bytes: int = 0
    cluster: object = None
    laps: float | None = None
    rounds: float = 1
    copies: int = 1

    @property
    def blocks(self):
        return math.prod(self.grid) if isinstance(self.grid, tuple) else self.grid

    @property
    def waves(self):
        """How often the blocks fill all SMs, if only threads and dynamic shared memory bound how many fit."""
        return self.blocks / (SMS * blocks_of_an_sm(self.kernel.threads, self.shared_bytes)) * self.rounds


@dataclass
class Entry:
    """A row of the table.

    make    called with ``resident(kernel, shared_bytes)``, the blocks that a GPU holds at once: the Work
    judge   runs it, in a size for that, on the CPU engine, which raises what it finds
    """

    name: str
    group: str
    make: Callable
    judge: Callable
    parameters: dict = field(default_factory=dict)


def blocks_of_an_sm(threads, shared_bytes):
    """How many an SM holds at once at most; registers may let it hold fewer."""
    return occupancy(threads, None, shared_bytes, LIMITS[HOPPER]).blocks


def most_resident(kernel, shared_bytes):
    """Stands in for a GPU that says how many blocks it holds at once."""
    return SMS * blocks_of_an_sm(kernel.threads, shared_bytes)


# --- launches -------------------------------------------------------------------------------------
def work_of(launch, **more):
    """The Work of an ``nd.Launch``."""
    launch.prepare()
    outputs = []
    for name, array in launch.outputs.items():
        expected = launch.expected[name]
        numbers = np.abs(expected[np.isfinite(expected)], dtype=np.float64)
        outputs.append(Output(array, expected, launch.allowed(name) * (numbers.max(initial=0) or 1.0)))
    return Work(launch.kernel, launch.grid, launch.args, outputs, launch.shared_bytes, launch.cluster, **more)


def of_pipeline(name, pipeline, laps, grows=False, **parameters):
    """The Entry of a pipeline. ``laps`` is a function of all its parameters; ``grows``: it is run side by
    side."""

    def make(resident):
        work = work_of(pipeline(**parameters), laps=laps(**pipeline.checked(parameters)))
        return grown(work) if grows else work

    small = {key: parameters[key] for key in parameters.keys() & {"stages", "by", "groups"}}
    return Entry(name, "pipelines", make, lambda: nd.simulate(pipeline(**small)), parameters)


def laps_of_steps(stages, steps, **_):
    return steps / stages


def laps_of_stencil(stages, blocks, height, width, **_):
    return height * width / 32**2 / blocks / stages


def pipelines():
    yield of_pipeline("copy", copy, laps_of_steps, grows=True, steps=12)
    yield of_pipeline("copy stages=1", copy, laps_of_steps, grows=True, stages=1, steps=8)
    yield of_pipeline("two_producers", two_producers, laps_of_steps, grows=True, steps=12)
    yield of_pipeline("reduction", column_sums, laps_of_steps, grows=True, steps=32)
    yield of_pipeline("reduction stages=1", column_sums, laps_of_steps, grows=True, stages=1, steps=32)
    for blocks in (2, 4, 8):
        yield of_pipeline(f"cluster blocks={blocks}", multicast, laps_of_steps, True, blocks=blocks, steps=16)
    for stages in (1, 3):
        size = dict(stages=stages, blocks=40 * SMS, height=8192, width=8192)
        yield of_pipeline(f"stencil stages={stages}", stencil, laps_of_stencil, **size)
    for stages in (1, 2, 3):
        size = dict(stages=stages, steps=64, tiles=96)
        yield of_pipeline(f"product stages={stages}", product, laps_of_steps, **size)
    for by in ("mma", "wgmma"):
        for stages, groups in ((2, 1), (1, 1), (2, 2)):
            name, heads = f"attention by={by} stages={stages} groups={groups}", {1: 48, 2: 32}[groups]
            size = dict(by=by, stages=stages, groups=groups, blocks=64, heads=heads, steps=12)
            yield of_pipeline(name, attention, laps_of_steps, **size)


# --- tile products of the course ------------------------------------------------------------------
def of_product(name, build, config, m=4096, n=4096, k=2048):
    """The Entry of C = A B^T by a kernel with this configuration; small integers, whose sums fp16 has."""

    def work(m, n, k):
        a, b = (np.random.default_rng(i).integers(-1, 2, (i, k)).astype(np.float16) for i in (m, n))
        c = np.full((m, n), np.nan, np.float16)
        grid, dynamic, behind = config.launch(m, n, k)
        right = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
        args, laps = [config.maps(a, b, c), *behind], -(-k // tile_product.STEP) / config.stages
        return Work(build(config), grid, args, [Output(c, right)], dynamic, laps=laps)

    def judge():
        one = work(2 * config.rows, config.columns, 64 * (config.stages + 2))
        return judged(one)

    return Entry(name, "products", lambda resident: work(m, n, k), judge, {"m": m, "n": n, "k": k})


def judged(work):
    """Run a Work on the CPU engine, and compare."""
    report = nd.simulate(work.kernel, work.grid, args=work.args, shared_bytes=work.shared_bytes,
                         cluster=work.cluster)  # fmt: skip
    for output in work.outputs:
        off = np.abs(output.array.astype(np.float64) - output.expected.astype(np.float64))
        assert (off <= output.allowed).all(), "the CPU engine leaves another result"
    return report


def products():
    for name, config in {
        "128x256": TileProduct(),
        "128x256 stages=3": TileProduct(stages=3),
        "128x128": TileProduct(128, 128, 32, 64, 4, 0),
        "128x128 two stages": TileProduct(128, 128, 32, 64, 2, 0),
    }.items():
        yield of_product(f"tile product {name}", tile_product.build, config)
    for name, config in {
        "128x256": WarpgroupProduct(),
        "128x256 stages=3": WarpgroupProduct(stages=3),
        "128x128": WarpgroupProduct(128, 128),
        "192x128": WarpgroupProduct(192, 128, stages=5, consumer_registers=152),
    }.items():
        yield of_product(f"warpgroup product {name}", warpgroup_product.build, config)


# --- the operator ---------------------------------------------------------------------------------
AT_SCALE = preset("seeds", batch=16, pattern="local(2)")


@functools.lru_cache(maxsize=2)
def operator_inputs(workload):
    """(inputs, the problem, value, locations and weights)"""
    inputs = workload.generate(1)
    arrays = (inputs.value, inputs.sampling_locations, inputs.attention_weights)
    return inputs, problem_of(inputs), [np.ascontiguousarray(array) for array in arrays]


def operator_output(array, expected, steady=True):
    return Output(array, expected, OPERATOR_ERROR * float(np.abs(expected).max()), steady)


def work_of_bound(bound, operands, outputs, extra=()):
    args = list(bound.arguments(operands, extra=extra))
    return Work(bound.kernel, bound.blocks, args, outputs, bound.shared_bytes)


def of_variant(name):
    """The Entry of a variant of the operator, forward."""

    def work(workload, resident):
        inputs, problem, arrays = operator_inputs(workload)
        chosen = VARIANTS[name]
        bound = Bound(problem, chosen, chosen.configure(problem.constants), resident=resident)
        out = np.full(problem.out_shape, np.nan, arrays[0].dtype)
        shapes = inputs.spatial_shapes, inputs.level_start_index
        exact = reference(arrays[0], *shapes, *arrays[1:])
        made = work_of_bound(bound, (*arrays, out), [operator_output(out, exact)])
        made.laps, made.rounds = laps_of_variant(bound)
        return made

    def judge():
        return judged(work(preset("tiny"), lambda *_: 2))

    return Entry(name, "variants", lambda resident: work(AT_SCALE, resident), judge, {"workload": "seeds x 16"})


def laps_of_variant(bound):
    """(how often a stage is filled, how often a block goes round)"""
    problem, config, constants = bound.problem, bound.config, bound.problem.constants
    if not getattr(config, "stages", None):
        return None, 1
    if bound.variant.is_fitted:  # a cell of queries fills a stage
        rounds = len(bound.tables.schedule) / bound.blocks
        return rounds / config.stages, rounds
    rows = getattr(config, "consumers", config.threads // 32) * 32 // config.lanes  # of a block, at a time
    rounds = max(1, items(problem, rows) / bound.blocks)
    return rounds * stage_layout(config, constants).row_steps / config.stages, rounds


def of_backward(name, **parameters):
    """The Entry of the operator's gradients; ``parameters`` are the kernel's."""

    def work(workload, resident):
        inputs, problem, arrays = operator_inputs(workload)
        bound = gradients.bound(problem, None, **parameters)
        fixed = bound.config.sums == "fixed"
        given = np.random.default_rng(2).standard_normal(problem.out_shape, np.float32).astype(np.float16)
        shapes = inputs.spatial_shapes, inputs.level_start_index
        of_value, *of_samples = reference_gradients(arrays[0], *shapes, *arrays[1:], given)
        shape, dtype = gradients.sums_shape(problem, bound.config.sums)
        exponent = gradients.fixed_exponent(problem, int(np.ceil(np.log2(np.abs(given).max()))) + 1)
        if fixed:
            of_value = np.ldexp(of_value, exponent).reshape(*shape[:3], shape[4], shape[3]).swapaxes(-1, -2)
        sums, scale = np.zeros(shape, dtype), np.array([2.0**exponent], np.float32)
        found = [np.full_like(array, np.nan) for array in arrays[1:]]
        outputs = [operator_output(sums, np.ascontiguousarray(of_value), steady=fixed)]
        outputs += [operator_output(*pair) for pair in zip(found, of_samples, strict=True)]
        extra = gradients.operands(given, sums, *found, scale)
        return work_of_bound(bound, (*arrays, np.empty(0, given.dtype)), outputs, extra)

    def judge():
        return judged(work(preset("tiny"), None))

    return Entry(name, "variants", lambda resident: work(AT_SCALE, resident), judge, parameters)


def variants():
    yield from map(of_variant, VARIANTS)
    yield of_backward("backward")
    yield of_backward("backward sums=fixed", sums="fixed")


# --- side by side ---------------------------------------------------------------------------------
class NotGrown(ValueError):
    """A program that does not run side by side; the text says why."""


def grown(work, copies=None):
    """A Work ``copies`` times side by side, each on its own copy of its arrays: as many as fill all SMs."""
    if not isinstance(work.grid, int) or work.kernel.block:
        raise NotGrown("its grid or its blocks have several dimensions")
    if copies is None:
        held = SMS * blocks_of_an_sm(work.kernel.threads, work.shared_bytes)
        copies = math.ceil(WAVES * held / work.grid)
    memory = _Copies(copies)
    pairs = list(zip(work.kernel.signature.args, work.args, strict=True))
    outputs = [replace(o, array=memory.of(o.array), expected=o.expected[None]) for o in work.outputs]
    args = [memory.argument(arg) for arg in work.args]
    kernel = _side_by_side(work.kernel, [memory.step(*pair) for pair in pairs])
    cluster = (work.cluster, 1) if work.cluster else None
    return replace(work, kernel=kernel, grid=(work.grid, copies), args=args, outputs=outputs, cluster=cluster,
                   copies=copies)  # fmt: skip


class _Copies:
    """Copies of the memory behind a kernel's arrays, one beside the other; views of it stay views."""

    def __init__(self, count):
        self.count, self._whole = count, {}

    def of(self, array):
        """An array of all copies of this one; the first axis is their number."""
        whole, start = self._copied(array)
        offset = array.__array_interface__["data"][0] - start
        shape, strides = (self.count, *array.shape), (whole.shape[1], *array.strides)
        return np.ndarray(shape, array.dtype, whole, offset, strides)

    def _copied(self, array):
        """(the copies as bytes, one in a line; the address of the original)"""
        start, content = bytes_of(owner_of(array))
        if start not in self._whole:
            line = -(-max(content.size, 1) // UNIT) * UNIT
            memory = mmap.mmap(-1, self.count * line)  # which begins at a page: as aligned as a GPU's memory
            whole = np.frombuffer(memory, np.uint8).reshape(self.count, line)
            whole[:, : content.size] = content
            self._whole[start] = whole, array
        return self._whole[start][0], start

    def argument(self, arg):
        """What stands for an argument of the original."""
        if isinstance(arg, TensorMapArray):
            if any(m.array is None for m in arg):
                raise NotGrown("a tensor map is of no array")
            pairs = [(m, self.of(m.array)) for m in arg]
            return TensorMapArray(replace(m, address=each[i]) for i in range(self.count) for m, each in pairs)
        return self.of(arg) if isinstance(arg, np.ndarray) else arg

    def step(self, kind, arg):
        """(the parameter's type, how the kernel comes from it to the argument of copy number ``copy``)"""
        if isinstance(arg, TensorMapArray):
            return kind, f"{{}} + uint64({MAP_BYTES * len(arg)}) * uint64(copy)"
        if not isinstance(arg, np.ndarray):
            if not isinstance(arg, (bool, int, float, np.number, np.bool_)):
                raise NotGrown(f"it has an argument of type {type(arg).__name__}")
            return kind, "{}"
        line = self.of(arg).strides[0]
        if not isinstance(kind, types.Array):
            return kind, f"{{}} + uint64({line}) * uint64(copy)"
        layout = kind.layout if kind.layout == "C" and line == arg.nbytes else "A"
        more = {"readonly": not kind.mutable, "aligned": kind.aligned}
        return types.Array(kind.dtype, kind.ndim + 1, layout, **more), "{}[copy]"


def _side_by_side(kernel, steps):
    """The kernel that runs another on the arrays of copy number blockIdx.y."""
    names = kernel.parameters
    taken = ", ".join(step.format(name) for name, (_, step) in zip(names, steps, strict=True))
    text = f"def {kernel.name}({', '.join(names)}):\n    copy = cuda.blockIdx.y\n    original({taken})\n"
    file, original = f"<side by side: {kernel.name}>", nd.function(kernel.py_func)
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    scope = {"cuda": cuda, "uint64": uint64, "original": original}
    exec(compile(text, file, "exec"), scope)
    signature = types.void(*(kind for kind, _ in steps))
    return replace(kernel, py_func=scope[kernel.name], signature=signature)


# --- all ------------------------------------------------------------------------------------------
@functools.cache
def table():
    """{name: Entry} of all."""
    entries = [*pipelines(), *products(), *variants()]
    assert len({entry.name for entry in entries}) == len(entries)
    return {entry.name: entry for entry in entries}
