"""The table of at_scale.py: right programs at sizes that fill every SM several times and wrap every ring.

A :class:`Program` makes its :class:`Work`: a kernel, a grid, arguments, and what each output has to hold. A
pipeline with parameters for its size is called with larger ones; what has one block, or a few, is *grown*
(grown.py).

Pipelines, tile products and variants of the operator are scaled. The right twins of planted faults, the right
programs of tests/corpus, and what the solved lessons launch, are grown, as far as they can be.
"""

import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
from grown import SMS, WAVES, NotGrown, Output, Work, blocks_of_an_sm, grown

import numba_deform as nd
from numba_deform.attention import gradients
from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import problem_of
from numba_deform.attention.reference import reference, reference_gradients
from numba_deform.compiler import Kernel
from numba_deform.course import tile_product, warpgroup_product
from numba_deform.course.bugs import BUGS
from numba_deform.course.lessons import running
from numba_deform.course.pipelines.attention import attention
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.course.pipelines.stencil import stencil
from numba_deform.course.pipelines.two_producers import two_producers
from numba_deform.course.tile_product import TileProduct
from numba_deform.course.warpgroup_product import WarpgroupProduct
from numba_deform.engines.cpu import simulate
from numba_deform.engines.gpu.in_place import bytes_of, owner_of
from numba_deform.engines.tensormap import TensorMapArray
from numba_deform.kernels import tile_copy
from numba_deform.kernels.parts.row import items
from numba_deform.kernels.parts.tiles import stage_layout
from numba_deform.kernels.registry import VARIANTS
from numba_deform.workloads.presets import preset

ROOT = Path(__file__).resolve().parents[1]
LAPS = 2  # how often a stage is filled at least
MOST_PIECES = 16  # of an output, each of which is compared by itself
OPERATOR_ERROR = 4e-3  # of an element of the operator and its gradients in fp16, relative to the largest
ENGINE_ERROR = 2e-3  # of the floats that the CPU engine leaves, whose exponentials and the like are exact
ADDS_FLOATS = re.compile(r"(red|atom|reduce)\S*\.(f16|bf16|f32|f64)")  # in PTX: in any order


@dataclass
class Program:
    """A program, right as far as its author and the CPU engine know.

    make    called with ``resident(kernel, shared_bytes)``, the blocks that a GPU holds at once: the Work
    judge   runs it, in a size for that, on the CPU engine, which raises what it finds
    """

    name: str
    make: Callable
    judge: Callable
    parameters: dict = field(default_factory=dict)


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
        outputs.append(Output(array, expected, launch.allowed(name) * largest(expected)))
    return Work(launch.kernel, launch.grid, launch.args, outputs, launch.shared_bytes, launch.cluster, **more)


def largest(array):
    """The largest number of an array, without its sign; 1 where all are zero."""
    return float(np.abs(array[np.isfinite(array)], dtype=np.float64).max(initial=0)) or 1.0


def of_pipeline(name, pipeline, laps, grows=False, **parameters):
    """The Program of a pipeline. ``laps`` is a function of all its parameters; ``grows``: it is run side by
    side."""

    def make(resident):
        checked = pipeline.checked(parameters)
        work = work_of(pipeline.function(**checked), laps=laps(**checked))  # which nobody keeps
        return grown(work) if grows else work

    small = {key: parameters[key] for key in parameters.keys() & {"stages", "by", "groups"}}
    return Program(name, make, lambda: simulate(pipeline(**small)), parameters)


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
    for stages in (1, 4):
        yield of_tile_copy(f"tile copy stages={stages}", stages, warps=4)
    for by in ("mma", "wgmma"):
        for stages, groups in ((2, 1), (1, 1), (2, 2)):
            name, heads = f"attention by={by} stages={stages} groups={groups}", {1: 48, 2: 32}[groups]
            size = dict(by=by, stages=stages, groups=groups, blocks=64, heads=heads, steps=12)
            yield of_pipeline(name, attention, laps_of_steps, **size)


def of_tile_copy(name, stages, warps, side=2048):
    """The Program that copies a tensor in boxes of 2x2 pixels."""

    def work(side, blocks=None):
        tensor = np.random.default_rng(1).standard_normal((side, side, 32), np.float32).astype(np.float16)
        kernel, out = tile_copy.build((2, 2, 32), 2, stages, warps), np.empty_like(tensor)
        out.view(np.uint8).fill(0xFF)
        maps = [nd.TensorMapArray([nd.TensorMap.of(array, (32, 2, 2))]) for array in (tensor, out)]
        tiles, held = (side // 2) ** 2, blocks_of_an_sm(kernel.threads, kernel.shared_bytes)
        blocks = blocks or WAVES * SMS * held
        args, laps = [*maps, side // 2, tiles], tiles / (blocks * warps) / stages
        return Work(kernel, blocks, args, [Output(out, tensor)], kernel.shared_bytes, laps=laps)

    size = dict(stages=stages, warps=warps, side=side)
    return Program(name, lambda resident: work(side), lambda: judged(work(16, blocks=2)), size)


# --- tile products of the course ------------------------------------------------------------------
def of_product(name, build, config, m=6144, n=4096, k=2048):
    """The Program of C = A B^T by a kernel with this configuration; small integers, whose sums fp16 has."""

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

    return Program(name, lambda resident: work(m, n, k), judge, {"m": m, "n": n, "k": k})


def judged(work):
    """Run a Work on the CPU engine, and compare."""
    report = simulate(work.kernel, work.grid, args=work.args, shared_bytes=work.shared_bytes,
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


@functools.lru_cache(maxsize=2)
def operator_exact(workload):
    """The output in float64."""
    inputs, _, arrays = operator_inputs(workload)
    return reference(arrays[0], inputs.spatial_shapes, inputs.level_start_index, *arrays[1:])


def operator_output(array, expected, steady=True):
    return Output(array, expected, OPERATOR_ERROR * largest(expected), steady)


def work_of_bound(bound, operands, outputs, extra=()):
    args = list(bound.arguments(operands, extra=extra))
    return Work(bound.kernel, bound.blocks, args, outputs, bound.shared_bytes)


def of_variant(name):
    """The Program of a variant of the operator, forward."""

    def work(workload, resident):
        _, problem, arrays = operator_inputs(workload)
        chosen = VARIANTS[name]
        bound = Bound(problem, chosen, chosen.configure(problem.constants), resident=resident)
        out = np.full(problem.out_shape, np.nan, arrays[0].dtype)
        made = work_of_bound(bound, (*arrays, out), [operator_output(out, operator_exact(workload))])
        made.laps, made.rounds = laps_of_variant(bound)
        return made

    def judge():
        return judged(work(preset("tiny"), lambda *_: 2))

    return Program(name, lambda resident: work(AT_SCALE, resident), judge, {"workload": "seeds x 16"})


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
    """The Program of the operator's gradients; ``parameters`` are the kernel's."""

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

    large = AT_SCALE.replace(batch=8)  # NumPy's gradients take as long as all else
    return Program(name, lambda resident: work(large, resident), judge, parameters)


def variants():
    yield from map(of_variant, VARIANTS)
    yield of_backward("backward")
    yield of_backward("backward sums=fixed", sums="fixed")


# --- planted faults, corpus, lessons ----------------------------------------------------------------
def of_bug(bug):
    """The Program of a planted fault's right twin."""

    def make(resident=None):
        given = bug.arguments()
        expected = np.asarray(given.expected)
        outputs = [Output(given.out, expected, given.tolerance * largest(expected))]
        return Work(bug.kernel(False), given.grid, list(given.args), outputs, given.shared_bytes)

    return Program(f"bugs/{bug.name}", lambda resident: grown(make()), lambda: judged(make()))


def of_corpus(program):
    """The Program of a right one of tests/corpus."""

    def make(resident=None):
        args, outputs = program.args(), []
        memory = snapshot(args)
        replace(program, args=lambda: args).run()
        for array, right in program.expect(*args):
            if isinstance(array, np.ndarray) and bytes_of(owner_of(array))[0] in memory:  # else made from it
                right = np.broadcast_to(np.array(right, array.dtype), array.shape)
                outputs += [Output(*pair) for pair in pieces(array, right)]
        if not outputs:
            raise NotGrown("what it leaves is not compared as it is")
        put_back(args, memory)
        return Work(program.typed(), program.grid, args, outputs, program.shared_bytes, program.cluster)

    def judge():
        assert program.wrong(program.run()) == 0, "the CPU engine leaves another result"

    name = f"{program.folder}/{program.topic}/{program.name}"
    return Program(name, lambda resident, copies=None: grown(make(), copies), judge)


def pieces(array, right):
    """Pairs of parts whose elements lie next to each other."""
    if array.flags.c_contiguous:
        yield array, right
    elif array.ndim < 2 or len(array) > MOST_PIECES:
        raise NotGrown("the elements of what it leaves do not lie next to each other")
    else:
        for pair in zip(array, right, strict=True):
            yield from pieces(*pair)


def corpus():
    """{file: its right programs}"""
    sys.path.append(str(ROOT / "tests" / "corpus"))
    from base import load

    chunks = {}
    for program in load("right", "whole", "instructions").values():
        if not program.faults:
            chunks.setdefault(f"{program.folder}/{program.topic}", []).append(of_corpus(program))
    return chunks


BY_CHANCE = {"mailbox"}  # kernels of lessons, what of which comes out right depends on who was first


def lesson(name):
    """A Program for each launch of a solved lesson, and of its checks, that ends well on the CPU engine."""
    sys.path.append(str(ROOT / "tests" / "notebooks"))
    os.environ[running.VARIABLE] = "cpu"
    try:
        import lessons
    except ImportError as error:
        raise NotGrown(f"lessons are played with jupytext: {error}") from None
    launches = {}

    def noting(*given, **options):
        launch = inspect.signature(simulate).bind(*given, **options).arguments
        kernel, args = launch["kernel"], launch.get("args", ())
        if not isinstance(kernel, Kernel) or kernel.traced:
            return simulate(*given, **options)
        before = snapshot(args)
        report = simulate(*given, **options)
        shared = launch.get("shared_bytes") or kernel.shared_bytes
        noted = Noted(kernel, launch["grid"], list(args), shared, launch.get("cluster"), before, snapshot(args))
        sizes = [getattr(arg, "shape", None) for arg in args]
        launches.setdefault((kernel.name, kernel.plain.__code__, str(noted.grid), str(sizes)), noted)
        return report

    with mock.patch.object(running, "simulate", noting), mock.patch.object(nd, "simulate", noting):
        with contextlib.redirect_stdout(io.StringIO()):
            lessons.play_on_gpu(name)
    return [Program(f"lessons/{name}/{i} {noted.kernel.name}", noted.make, noted.judge)
            for i, noted in enumerate(launches.values(), 1) if noted.kernel.name not in BY_CHANCE]  # fmt: skip


def arrays_of(args):
    """The arrays among arguments and behind their tensor maps."""
    parts = ([m.array for m in arg] if isinstance(arg, TensorMapArray) else [arg] for arg in args)
    return [part for part in itertools.chain(*parts) if isinstance(part, np.ndarray)]


def snapshot(args):
    """{address: the bytes there} of the memory behind the arguments."""
    memory = dict(bytes_of(owner_of(array)) for array in arrays_of(args))
    return {start: content.copy() for start, content in memory.items()}


def put_back(args, memory):
    """Make the memory behind the arguments what it was when the ``snapshot`` was taken."""
    for array in arrays_of(args):
        start, content = bytes_of(owner_of(array))
        content[...] = memory[start]


@dataclass
class Noted:
    """A launch that was seen on the CPU engine, and all memory before and after it."""

    kernel: Kernel
    grid: object
    args: list
    shared_bytes: int
    cluster: object
    before: dict
    after: dict

    def make(self, resident=None):
        """The Work, whose outputs are the arrays that changed."""
        outputs, steady = {}, not ADDS_FLOATS.search(self.kernel.compile().ptx)
        put_back(self.args, self.after)
        after = [array.copy() for array in arrays_of(self.args)]
        put_back(self.args, self.before)
        for array, left in zip(arrays_of(self.args), after, strict=True):
            if left.tobytes() != array.tobytes():
                allowed = ENGINE_ERROR * largest(left) if left.dtype.kind == "f" else 0.0
                where = array.__array_interface__["data"][0], array.shape
                outputs[where] = Output(array, left, allowed, steady)
        work = Work(self.kernel, self.grid, self.args, list(outputs.values()), self.shared_bytes, self.cluster)
        return grown(work)

    def judge(self):
        """The CPU engine was silent: else it would not have been noted."""


# --- all ------------------------------------------------------------------------------------------
@functools.cache
def table():
    """{what one process runs: a function that returns its Programs}"""
    found = {p.name: [p] for p in (*pipelines(), *products(), *variants())}
    found |= {"bugs": [of_bug(bug) for bug in BUGS.values()], **corpus()}
    chunks = {name: functools.partial(list, programs) for name, programs in found.items()}
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.py"))
    return chunks | {f"lessons/{name}": functools.partial(lesson, name) for name in names}
