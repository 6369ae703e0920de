"""Mutants of the pipelined kernels, one change on one line about barriers, fences, waits or copies, and of the
backward kernel, on one about what lanes do together: shuffles, sums, additions and who writes.

The list is generated from the source: ``all_mutants()`` maps an id to a :class:`Mutant`. A mutant is run on
the CPU engine by *killers*, small problems with a configuration each, until one of them notices: by a
fault, an exception, wrong numbers or numbers that were never written.

    python tests/sim/mutants.py            prints how many were noticed in which way (mutants.json)
    python tests/sim/mutants.py TEXT       runs those with TEXT in their ids, and says who noticed what
    python tests/sim/mutants.py --write    runs all and writes mutants.json, in some minutes
"""

import ast
import builtins
import collections
import copy
import functools
import importlib
import importlib.util
import itertools
import json
import linecache
import sys
import time
import types
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from gradient_cases import LIMITS, drawn

from numba_deform import reference, relative_error
from numba_deform.attention import gradients
from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import problem_of
from numba_deform.attention.reference import TOLERANCE
from numba_deform.device.memory import dynamic_bytes
from numba_deform.engines.cpu import SimFault
from numba_deform.kernels.registry import Variant, variant
from numba_deform.workloads.workload import Workload

KERNELS = ("tma", "persistent", "warp_specialized")
# The files that are mutated, so that each comes after those it imports from; and the kernels they are in.
FILES = {
    "numba_deform.device.pipeline": KERNELS,
    "numba_deform.kernels.parts.tiles": KERNELS,
    "numba_deform.kernels.tma": KERNELS,
    "numba_deform.kernels.persistent": ("persistent",),
    "numba_deform.kernels.warp_specialized": ("warp_specialized",),
    "numba_deform.kernels.backward": ("backward",),
}
TABLE = Path(__file__).with_name("mutants.json")

# --- which lines ----------------------------------------------------------------------------------
# A line belongs to the pipeline if it calls one of these,
CALLS = """
    mbarrier_init init_barriers fence_mbarrier_init fence_proxy_tensormap_acquire_sys prefetch_tensormap
    acquire_maps syncthreads syncwarp fence_proxy_async
    mbarrier_arrive mbarrier_arrive_expect_tx mbarrier_try_wait_parity mbarrier_wait
    acquire commit wait release arrive first_state advance advance_both make_advance full_barrier
    ld_acquire_cta_shared_b32 atom_exch_release_cta_shared_b32 flag_set flag_wait flag_of
    acquire_stage release_stage release_in_warp
    cp_async_bulk_tensor_3d cp_async_bulk_tensor_5d load_box map_of issue take_step
    produce consume find_rows read_slots write_weights read_weights
    PipelineState Ring Source runs_of slot_of
""".split()
# or computes one of these: stages, parities, counts, bytes, addresses of barriers, flags and tiles,
OPERANDS = """
    state now ahead stage barrier parity step
    LEAD BARRIERS ARRIVALS PER_WARP STRETCH STRETCHES PREPARE_RUN
    WARP_BYTES WARP_STEP_BYTES PER_LANE STEP_SHIFT ROW_SHIFT MAPS_BYTES
    full ring number owner
    tiles_address slots slot first tile here told
    lanes exists bytes_to_come
    next_i next_n ahead_i ahead_n next_item next_r item
""".split()
# or stands in one of these functions, which do nothing else.
FUNCTIONS = """
    barrier_count advance full_barrier runs_of slot_of flag_of map_of ring_barriers shared_bytes
    sample_of slot_at block_layout acquire_stage release_stage
""".split()
# In tiles.py only what tells the copies where and how much.
ONLY = {"numba_deform.kernels.parts.tiles": ("bytes", "stage_layout", "runs_of", "slot_of")}

# In the backward kernel a line is about what lanes do together if it stands in one of these, or calls one.
TOGETHER = """
    tile_from sum_for_owner add_fixed add_share shfl_sync_idx_f32 shfl_sync_idx_b32 shfl_sync_bfly_f32
    red_add_gpu_global_v4_f32 red_add_gpu_global_u64 store_weight store_location
""".split()

ALL_LANES = "ALL"  # the mask of a whole warp, where a line names it


def _targets(node):
    """The names and attributes that an assignment sets."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.Attribute) and not isinstance(part.value, ast.Attribute):
            yield part.attr


def _head(statement):
    """The expressions of a statement that are on its own lines: not the body of a loop or branch."""
    if isinstance(statement, (ast.If, ast.While)):
        return [statement.test]
    if isinstance(statement, ast.For):
        return [statement.iter]
    return [statement]


def _calls(statement):
    for part in _head(statement):
        for node in ast.walk(part):
            if isinstance(node, ast.Call):
                yield getattr(node.func, "id", getattr(node.func, "attr", None))


def _about_pipeline(statement, function):
    """Whether a line of a function is one of the pipeline's."""
    if function in FUNCTIONS or not set(CALLS).isdisjoint(_calls(statement)):
        return True
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(name in OPERANDS for target in targets for name in _targets(target))
    return False


def _lines(body, function, only, about):
    """(function, statement) for the statements that are ``about`` it, and the conditions and loops around."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield from _lines(statement.body, statement.name, only, about)
            continue
        inner = [*getattr(statement, "body", ()), *getattr(statement, "orelse", ())]
        inside = list(_lines(inner, function, only, about))
        wanted = only is None or function in only
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if function and wanted and not is_text:
            if inside or about(statement, function):
                yield function, statement
        yield from inside


def _about_lanes(statement, function):
    """Whether a line is about what lanes do together."""
    return function in TOGETHER or not set(TOGETHER).isdisjoint(_calls(statement))


# --- which changes --------------------------------------------------------------------------------
SWAPPED = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


def _negated(test):
    if isinstance(test, ast.Compare) and type(test.ops[0]) in (ast.Eq, ast.NotEq):
        return ast.Compare(test.left, [SWAPPED[type(test.ops[0])]()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def _changes(node):
    """{what: the node that takes its place} for one expression."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        n = node.value
        return {f"{n} to {m}": ast.Constant(m) for m in (n + 1, n - 1)}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        new = ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)
        return {"swap " + ast.unparse(node): new}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        return {"no xor": node.left}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return {f"without {ast.unparse(node.right)}": node.left}
    if isinstance(node, ast.BoolOp):
        return {f"only {ast.unparse(part)}": part for part in node.values}
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max"):
        return {f"only {ast.unparse(part)}": part for part in node.args}
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
        changes, end = {}, min(1, len(node.args) - 1)
        for what, op in (("one more", ast.Add()), ("one less", ast.Sub())):
            bounds = list(node.args)
            bounds[end] = ast.BinOp(bounds[end], op, ast.Constant(1))
            changes[what] = ast.Call(node.func, bounds, [])
        return changes
    if isinstance(node, ast.IfExp):
        return {
            f"not {ast.unparse(node.test)}": ast.IfExp(node.test, node.orelse, node.body),
            f"{ast.unparse(node.test)} is True": node.body,
        }
    if isinstance(node, ast.Name) and node.id == ALL_LANES:
        return {"one lane less": ast.Constant(0x7FFFFFFF)}
    return {}


def _bound_elsewhere(statement, function):
    """Whether a name that the statement assigns has a value without it (else a drop is just an error)."""
    count = collections.Counter(
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    count.update(a.arg for a in function.args.args)
    names = [t for target in statement.targets for t in _targets(target)]
    return all(count[name] > 1 or "." in ast.unparse(statement.targets[0]) for name in names)


def _statement_changes(statement, function):
    """The same for what a whole statement can suffer."""
    if isinstance(statement, ast.Expr):
        return {"drop": ast.Pass()}
    if isinstance(statement, ast.Assign) and _bound_elsewhere(statement, function):
        return {"drop": ast.Pass()}
    if isinstance(statement, (ast.If, ast.While)):
        changes = {}
        for what, test in (("negate", _negated(statement.test)), ("True", ast.Constant(True))):
            changes[what] = type(statement)(test, statement.body, statement.orelse)
        return changes
    return {}


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


@dataclass(frozen=True)
class Mutant:
    """One change: of node number ``index`` (in the order of ``ast.walk``) of a module's source."""

    module: str
    index: int
    what: str

    def tree(self):
        """The changed module."""
        tree, old, new = self._parts()
        # A change may hold what it replaces.
        return ast.fix_missing_locations(_Replace(old, copy.copy(new)).visit(tree))

    def text(self, replaced):
        """The changed source; ``replaced(source, node, text)`` puts a text in the place of a node."""
        _, old, new = self._parts()
        if isinstance(new, (ast.If, ast.While)):
            old, new = old.test, new.test
        text = ast.unparse(ast.fix_missing_locations(new))
        return replaced(source_of(self.module), old, text if isinstance(old, ast.stmt) else f"({text})")

    def _parts(self):
        """(the module's tree, the node that is changed, what takes its place)"""
        tree = ast.parse(source_of(self.module))
        old = list(ast.walk(tree))[self.index]
        if isinstance(old, ast.stmt):
            return tree, old, _statement_changes(old, _functions(tree)[id(old)])[self.what]
        return tree, old, _changes(old)[self.what]


@functools.cache
def _file(module):
    return Path(importlib.util.find_spec(module).origin)


@functools.cache
def source_of(module):
    return _file(module).read_text()


def _functions(tree):
    """{id of a node: the innermost function around it}: inner ones come later."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {id(node): function for function in functions for node in ast.walk(function)}


def _mutants_of(module):
    tree = ast.parse(source_of(module))
    number, functions = {id(node): i for i, node in enumerate(ast.walk(tree))}, _functions(tree)
    seen = collections.Counter()
    about = _about_lanes if FILES[module] == ("backward",) else _about_pipeline
    for function, statement in _lines(tree.body, None, ONLY.get(module), about):
        text = " ".join(ast.unparse(statement).partition("\n")[0].split())
        texts = {text}  # a negated == and a swapped one are the same
        nodes = [statement] + [n for part in _head(statement) for n in ast.walk(part)]
        for node in dict.fromkeys(nodes):
            whole = node is statement
            changes = (
                _statement_changes(node, functions[id(node)]) if whole else _changes(node)
            )
            for what, new in changes.items():
                after = _after(statement, node, new)
                if after in texts:
                    continue
                texts.add(after)
                short = text if len(text) <= 80 else text[:77] + "..."
                name = f"{_file(module).name}:{function}:{short}:{what}"
                seen[name] += 1
                if seen[name] > 1:
                    name += f" #{seen[name]}"
                yield name, Mutant(module, number[id(node)], what)


def _after(statement, node, new):
    """The changed statement as text."""
    if node is statement:
        return ast.unparse(ast.fix_missing_locations(new)).partition("\n")[0]
    memo = {id(node): new}  # where the copy comes to ``node``, it takes ``new``
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(statement, memo)))


@functools.cache
def all_mutants():
    """{id: Mutant}"""
    return {name: mutant for module in FILES for name, mutant in _mutants_of(module)}


# --- making a kernel of one -----------------------------------------------------------------------
_numbers = itertools.count()


def load(mutant):
    """{module name: fresh module}: the mutated one, and those that import from it, the real ones aside.

    Nothing goes to ``sys.modules``, and builders that cache what they built are new as well.
    """
    fresh = {}

    def import_fresh(name, globals=None, locals=None, fromlist=(), level=0):
        if level:
            full = importlib.util.resolve_name("." * level + name, globals["__package__"])
            if full in fresh:
                return fresh[full]
        return builtins.__import__(name, globals, locals, fromlist, level)

    for name in list(FILES)[list(FILES).index(mutant.module) :]:
        module = types.ModuleType(name)
        module.__package__, module.__file__ = name.rpartition(".")[0], str(_file(name))
        module.__builtins__ = {**vars(builtins), "__import__": import_fresh}
        source, file = source_of(name), module.__file__
        if name == mutant.module:
            source, file = ast.unparse(mutant.tree()), f"<{name}, mutant {next(_numbers)}>"
            linecache.cache[file] = len(source), None, source.splitlines(True), file  # for what rewrites it
        exec(compile(source, file, "exec"), vars(module))
        fresh[name] = module
    return fresh


@dataclass(frozen=True, eq=False)
class Mutated(Variant):
    """A variant whose module is a fresh one: built anew each time, and sized by its own module."""

    def kernel(self, config, constants):
        return self.module.build(config, constants)

    def dynamic_shared_bytes(self, config, constants):
        sizes = getattr(self.module, "shared_bytes", type(config).shared_bytes)
        return dynamic_bytes(sum(sizes(config, constants)))


# --- killers --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Killer:
    """A problem, a variant with parameters, and a schedule: a seed as ``simulate`` takes it."""

    variant: str
    parameters: dict = field(hash=False)
    problem: dict = field(hash=False)
    landing: str = "late"
    seed: int | str = 0

    @property
    def chosen(self):
        """The Variant."""
        return gradients.BACKWARD if self.variant == "backward" else variant(self.variant)

    @property
    def kernel(self):
        """The kernel's name."""
        return self.chosen.module.__name__.rpartition(".")[2]


@functools.cache
def _inputs(problem):
    """(inputs, right answer) of a problem."""
    shape = dict(
        batch=1, levels=((3, 4), (2, 2)), num_query=3, num_heads=1, channels=32, num_points=2,
        pattern="uniform", outside=0.15,
    )  # fmt: skip
    inputs = Workload("mutants", **{**shape, **dict(problem)}).generate(seed=1)
    want = reference(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index,
        inputs.sampling_locations, inputs.attention_weights,
    )  # fmt: skip
    return inputs, want


def _forward(killer, chosen, **options):
    """[(what is computed, what it must be, its largest error)]"""
    inputs, want = _inputs(tuple(killer.problem.items()))
    problem = problem_of(inputs)
    config = chosen.configure(problem.constants, **{"min_blocks": 0, **killer.parameters})
    arrays = [inputs.value, inputs.sampling_locations, inputs.attention_weights]
    out, _ = Bound(problem, chosen, config).run(arrays, **options)
    return [(out, want, TOLERANCE[str(out.dtype)])]


@functools.cache
def _case(problem):
    """(gradient_cases.Case, right answers) of a problem."""
    shape = dict(batch=1, levels=((3, 4), (1, 2)), channels=8, num_points=2, dtype="float32")
    shape |= dict(problem)
    nowhere = shape.pop("nowhere", False)
    case = drawn(**shape)
    if nowhere:  # a sample that lies nowhere, and has an attention that is no number
        locations, weights = case.arguments[3:]
        locations[0, 0, 0, 0, 0] = weights[0, 0, 0, 0, 0] = np.nan
    return case, case.exact()


def _backward(killer, chosen, **options):
    """[(what is computed, what it must be, its largest error)]"""
    case, exact = _case(tuple(killer.problem.items()))
    with mock.patch.dict(gradients.KERNELS, {chosen.name: chosen}):
        found = case.gradients(compiled=False, **killer.parameters, **options)  # quicker, so few numbers
    pairs = zip(found, exact, strict=True)
    return [(one, want, LIMITS[one.dtype.name]) for one, want in pairs if one is not None]


def verdict(killer, modules=None, timeout=60.0):
    """How the run ends: the name of a fault or exception, "wrong numbers", "unwritten", or None.

    ``modules`` are those of ``load``; None runs the real kernel.
    """
    chosen, run = killer.chosen, _backward if killer.chosen is gradients.BACKWARD else _forward
    if modules:
        chosen = Mutated(**{**vars(chosen), "module": modules[chosen.module.__name__]})
    try:
        results = run(killer, chosen, landing=killer.landing, seed=killer.seed, timeout=timeout)
    except SimFault as fault:
        return type(fault).__name__
    except Exception as error:  # the mutant cannot even be built or launched
        return f"{type(error).__name__} at build"
    if any(np.isnan(out.astype(np.float32)).any() for out, _, _ in results):
        return "unwritten"
    if any(relative_error(out, want) > limit for out, want, limit in results):
        return "wrong numbers"
    return None


def _killers():
    """All of them, the cheapest of each kernel first."""
    many = []

    def add(name, parameters, problem=None, **schedule):
        many.append(Killer(name, parameters, problem or {}, **schedule))

    long = dict(num_points=4)  # two samples in a lane's run
    rounds = dict(levels=((3, 4), (2, 2), (1, 1)), num_points=3)  # the last round is not full
    # tma
    one = dict(threads=32)
    add("tma", {**one, "stages": 2})
    add("tma", {**one, "stages": 1})
    add("tma", {**one, "stages": 2, "prefetch_maps": True}, long)
    add("tma", {**one, "stages": 3, "points_per_stage": 1}, long)
    add("tma", {"threads": 64, "stages": 2, "barrier_scope": "block"}, dict(num_query=7))
    add("tma", {"threads": 64, "stages": 2, "maps": "level"}, dict(batch=2, num_heads=2))
    add("tma", {**one, "stages": 2, "batches_abreast": 1}, dict(batch=2))
    add("tma", {**one, "stages": 3, "barriers": "ping_pong", "points_per_stage": 1}, long)
    add("tma", {**one, "stages": 2, "barriers": "point", "points_per_stage": 1}, long)
    add("tma", {**one, "stages": 4, "across_levels": False, "points_per_stage": 1}, long)
    add("tma", {**one, "stages": 2, "across_levels": False, "lanes": 2},
        dict(channels=8, num_points=3))  # fmt: skip
    add("tma", {**one, "stages": 6, "lanes": 32}, rounds)
    add("tma", {**one, "stages": 2, "lanes": 4}, rounds)
    add("tma", {**one, "stages": 6, "lanes": 4}, rounds)
    add("tma", {**one, "stages": 2, "lanes": 16}, rounds)
    odd = dict(channels=8, levels=((3, 4), (2, 2), (1, 1)), num_points=1)  # three steps
    add("tma", {**one, "stages": 2, "barriers": "point", "lanes": 2}, odd)
    # persistent
    laps = dict(num_query=9)  # three items for two blocks
    add("persistent", {**one, "stages": 2}, laps)
    add("persistent-prefetch", {**one, "stages": 2}, laps)
    add("persistent", {**one, "stages": 1}, laps)
    add("persistent", {**one, "stages": 2}, {**laps, **long})
    add("persistent", {"threads": 64, "stages": 2}, dict(num_query=17))
    add("persistent", {**one, "stages": 2, "lanes": 2}, {**odd, "num_query": 33})
    add("persistent", {**one, "stages": 2, "points_per_stage": 1, "barriers": "ping_pong"},
        {**laps, **long})  # fmt: skip
    add("persistent", {**one, "stages": 5, "barriers": "point"}, laps)
    add("persistent", {**one, "stages": 3, "lanes": 4}, {**rounds, "num_query": 19})
    add("persistent", {**one, "stages": 2, "lanes": 32, "maps": "level"},
        {**rounds, "batch": 2, "num_query": 3})  # fmt: skip
    # warp-specialized
    pair = dict(producers=1, consumers=1)
    add("phase1", {**pair, "stages": 2}, laps)
    add("phase2", {**pair, "stages": 2}, laps)
    add("phase3", {**pair, "stages": 2}, laps)
    add("phase6", {**pair, "stages": 2}, laps)
    add("phase6", {**pair, "stages": 2, "prefetch": True}, laps)
    add("phase7", {**pair, "stages": 3}, laps)
    add("phase2", {**pair, "stages": 2}, {**laps, **long})
    add("phase3", {"producers": 2, "consumers": 2, "stages": 3}, {**laps, "num_query": 17})
    add("phase1", {"producers": 2, "consumers": 2, "stages": 1, "maps": "level"},
        {"batch": 2, "num_query": 9})  # fmt: skip
    add("phase2", {"producers": 1, "consumers": 2, "stages": 2, "lanes": 32}, rounds)
    add("phase1", {**pair, "stages": 2, "points_per_stage": 1, "sync": "flags"},
        {**long, "num_query": 5})  # fmt: skip
    add(
        "phase2",
        {"producers": 1, "consumers": 3, "lanes": 4, "stages": 2},
        {**odd, "num_query": 26},
    )
    add("phase2", {**pair, "stages": 2, "lanes": 4}, {**rounds, "num_query": 9})
    add("phase7", {"producers": 2, "consumers": 2, "stages": 2, "arrivals": "warp"},
        {**laps, "num_query": 17})  # fmt: skip
    # Races and phases are judged by what is ordered, so the schedule seldom matters: one of each kernel.
    for number in (4, 17, 27, 33):
        killer = many[number]
        many.append(Killer(killer.variant, killer.parameters, killer.problem, "random", 1))
        many.append(Killer(killer.variant, killer.parameters, killer.problem, "earliest", 2))
    # More than 48 KB: dynamic shared memory, which starts on no more than 16 bytes.
    large = dict(box=(8, 8), stages=4)
    add("tma", {**one, **large})
    add("persistent", {**one, **large})
    add("phase2", {**pair, **large})
    add("phase3", {**pair, "stages": 2, "metadata": "shared"}, laps)
    # A row with more tiles in a stage than a producer warp has lanes.
    add("phase2", {**pair, "stages": 2, "lanes": 32, "points_per_stage": 4},
        dict(channels=8, levels=((3, 4),), num_points=64, num_query=2))  # fmt: skip
    # One of several consumers is late: a schedule of explore, in which the producer looks between two of them.
    add("phase3", dict(producers=1, consumers=3, stages=1), {"num_query": 26}, seed="x:0:")
    # As many warps and rows as make a difference to a quotient that is one off.
    add("tma", {"threads": 1024, "stages": 1, "barrier_scope": "block", "lanes": 32})
    add("phase2", {"producers": 1, "consumers": 2, "stages": 2, "lanes": 2}, {**odd, "num_query": 33})
    # A lane for a row, and slots that are no multiple of 128 bytes.
    add("tma", {**one, "stages": 1, "lanes": 1, "box": (11, 19)}, dict(channels=8, num_points=1))
    # There is no batch of an item after the last.
    add("persistent", {**one, "stages": 2, "batches_abreast": 1}, {**laps, "batch": 2})
    add("phase6", {**pair, "stages": 2, "batches_abreast": 1}, {**laps, "batch": 2})
    return [*many, *_killers_of_backward()]


def _killers_of_backward():
    """Types, lanes, rounds that are not full, spare rows and lanes, what is not computed, samples nowhere."""
    fixed, tail = dict(deterministic=True), dict(num_heads=3, batch=2, channels=12)  # 18 rows, 3 of 4 lanes
    cases = [
        ({}, {}), (fixed, {}), ({}, dict(channels=4)), ({}, dict(tail, num_points=5)), (fixed, tail),
        (fixed, dict(channels=16, dtype="bfloat16")), ({}, dict(dtype="float16")),
        ({}, dict(channels=36, num_query=1, num_points=5)),  # 9 of 16 lanes, 8 of which have samples
        (dict(of_value=False), {}), (dict(of_samples=False), {}), ({}, dict(nowhere=True)),
        ({}, dict(num_points=(3, 1))), ({}, dict(method="discrete")), ({}, dict(location_dtype="bfloat16")),
        ({}, dict(outside=0.6, levels=((1, 1), (5, 3)))),
    ]  # fmt: skip
    return [Killer("backward", *case) for case in cases]


KILLERS = _killers()


def killers_of(mutant, of_each=None):
    """The numbers of those that run the mutant's file; or the first ``of_each`` of each kernel."""
    return [
        number
        for kernel in FILES[mutant.module]
        for number in [i for i, killer in enumerate(KILLERS) if killer.kernel == kernel][:of_each]
    ]


@functools.cache
def patience(number):
    """Seconds after which a run counts as endless: many times what the original takes, here and now."""
    begin = time.perf_counter()
    assert verdict(KILLERS[number]) is None, f"{KILLERS[number]} kills the original"
    return 2 + 10 * (time.perf_counter() - begin)


def judge(name):
    """(number of the killer, verdict) of the first that notices, or None.

    The one of last time is tried first, and then those that noticed most last time.
    """
    mutant = all_mutants()[name]
    modules, numbers = load(mutant), killers_of(mutant)
    before = killed().get(name, (None,))[0]
    often = collections.Counter(number for number, _ in killed().values())
    for number in sorted(numbers, key=lambda number: (number != before, -often[number])):
        if how := verdict(KILLERS[number], modules, patience(number)):
            return number, how
    return None


@functools.cache
def killed():
    """mutants.json: {id: (number of the killer, verdict)}."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def run_all(names):
    """{id: what ``judge`` says}, in the order of ``names``; prints each as it comes."""
    judged = dict.fromkeys(names)
    with ProcessPoolExecutor() as pool:
        futures = {pool.submit(judge, name): name for name in names}
        for future in as_completed(futures):
            name = futures[future]
            judged[name] = future.result()
            print(*(judged[name] or ("survives",)), name, flush=True)
    return judged


def write(judged):
    """The table, one mutant on a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in judged.items() if found]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    killed.cache_clear()


def totals():
    """{way of being noticed: {file: mutants}}, by the table; those that survive are equivalent."""
    counts = collections.defaultdict(collections.Counter)
    for name in all_mutants():
        way = killed().get(name, (None, "equivalent"))[1]
        counts[way][name.partition(":")[0]] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1].total()))


def _print_totals():
    files = list(dict.fromkeys(name.partition(":")[0] for name in all_mutants()))
    print(" " * 24 + "".join(f"{file:>22}" for file in [*files, "all"]))
    rows = totals()
    rows["mutants"] = sum(rows.values(), collections.Counter())
    for way, counts in rows.items():
        numbers = [*(counts[file] for file in files), counts.total()]
        print(f"{way:24}" + "".join(f"{n:22}" for n in numbers))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write(run_all(all_mutants()))
    elif sys.argv[1:]:
        run_all([name for name in all_mutants() if sys.argv[1] in name])
    _print_totals()
