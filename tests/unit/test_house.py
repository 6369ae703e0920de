"""The rooms of the package: what stands where, who imports whom, and how long anything is."""

import ast
import functools
import importlib
import pkgutil
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import numba_deform
from numba_deform import device
from numba_deform.device.ptx import Intrinsic

PACKAGE = Path(numba_deform.__file__).parent
# The lowest first: a room imports from itself and from rooms before it. Beside each how many lines it may have:
# a capability that needs many more has the wrong shape, or its commit says why the budget grows.
ROOMS = {"device": 4_793, "compiler": 2_205, "engines": 33_523, "programs": 4_834, "kernels": 6_675,
         "attention": 1_731, "torch": 1_928, "workloads": 771, "measure": 4_600, "course": 9_442,
         "cli": 2_783}  # fmt: skip
# The rooms of the CPU engine, likewise, and those of its machine code.
ENGINE = "memory", "reports", "async_units", "machine", "explain", "native", "frontends", "schedules"
NATIVE = ("runtime", "codegen", "state")
FRONTENDS = ("rounding", "math_functions", "threads", "ptx", "numba_python", "arguments", "program")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def trees():
    """{dotted name of a file: what it holds, parsed}, of the whole package."""
    files = sorted(PACKAGE.rglob("*.py"))
    names = (("numba_deform", *path.relative_to(PACKAGE).with_suffix("").parts) for path in files)
    return {".".join(name): ast.parse(path.read_text()) for name, path in zip(names, files, strict=True)}


def imports(module):
    """The modules of this package that a module imports anywhere, also inside functions."""
    parts = module.split(".")
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names if (name := known(alias.name)))
        elif isinstance(node, ast.ImportFrom):
            base = [*parts[: -node.level], *filter(None, [node.module])] if node.level else [node.module]
            for alias in node.names:
                yield from filter(None, [known(".".join([*base, alias.name])) or known(".".join(base))])


def known(name):
    """The file's name among trees() for a dotted name, or None."""
    return next((n for n in (name, f"{name}.__init__") if n in trees()), None)


def room(module):
    return module.split(".")[1]


def length(node):
    """Lines of a function without those of the functions in it, which count by themselves."""
    inside = [n for n in ast.walk(node) if isinstance(n, FUNCTIONS) and n is not node]
    lines = set(range(node.lineno, node.end_lineno + 1))
    return len(lines - {line for n in inside for line in range(n.lineno, n.end_lineno + 1)})


def is_kernel(node):
    return any("kernel" in ast.unparse(decorator).split("(")[0].split(".") for decorator in node.decorator_list)


def test_the_entries():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    entries -= {"__main__.py", "__init__.pyi", "py.typed"}  # for python -m; the public names; says: has types
    assert entries == {"__init__.py", *ROOMS}


def test_imports_point_downwards():
    order = list(ROOMS)
    wrong = [
        f"{module} imports {name}"
        for module in trees()
        if room(module) in ROOMS
        for name in imports(module)
        if room(name) not in order[: order.index(room(module)) + 1]
    ]
    # course/pipelines/ is written as its readers write: with the public names alone.
    users = [line for line in wrong if line.startswith("numba_deform.course.pipelines.")]
    assert [line for line in wrong if line not in users] == []
    assert {line.partition(" imports ")[2] for line in users} == {"numba_deform.__init__"}


@pytest.mark.parametrize("inside, rooms", [
    ("engines.cpu", ENGINE), ("engines.cpu.native", NATIVE), ("engines.cpu.frontends", FRONTENDS)])  # fmt: skip
def test_rooms_of_the_cpu_engine(inside, rooms):
    """One way up inside the engine as well, few rooms, and files that a reader can take in."""
    folder, prefix = PACKAGE.joinpath(*inside.split(".")), f"numba_deform.{inside}."
    assert {path.stem for path in folder.iterdir() if path.name != "__pycache__"} == {"__init__", *rooms}

    def number(module):
        return rooms.index(module.removeprefix(prefix).partition(".")[0])

    within = [m for m in trees() if m.startswith(prefix) and m != f"{prefix}__init__"]
    upwards = [(m, n) for m in within for n in imports(m) if n in within and number(n) > number(m)]
    assert upwards == []
    files = {m: len(path_of(m).read_text().splitlines()) for m in within}
    assert {m: n for m, n in files.items() if n > 500} == {}
    counts = Counter(m.rpartition(".")[0] for m in within if not m.endswith("__init__"))
    assert {folder: n for folder, n in counts.items() if n > 16} == {}
    silent = [m for m in within if not ast.get_docstring(trees()[m])]
    assert silent == []


def test_the_walk_through_the_cpu_engine():
    """What the engine's first page tells a reader is there under the names that it uses."""
    text = ast.get_docstring(trees()["numba_deform.engines.cpu.__init__"])
    names = re.findall(rf"``((?:{'|'.join(ENGINE)})\.[\w.]+)``", text)
    assert len(names) > 10
    for name in names:
        module, rest = f"numba_deform.engines.cpu.{name}", []
        while module not in trees():
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
        found = importlib.import_module(module)
        for part in rest:
            found = getattr(found, part)


# A thread's life (machine/thread_life.py) is what its forms may do otherwise; the rest is the same for all.
LIFE = {"__init__", "attach", "here", "site", "state", "reader", "write_record", "poll", "clock", "dead",
        "waiting", "many_reads", "time", "reads"}  # fmt: skip


def test_forms_of_a_thread():
    from numba_deform.engines.cpu.machine.thread import Thread
    from numba_deform.engines.cpu.native.state.block import NativeThread
    from numba_deform.engines.cpu.schedules.controlled_thread import UNSEEN, VISIBLE, ControlledThread

    def changed(form):
        return {name for name in vars(form) if hasattr(Thread, name) and not name.startswith("__")} - LIFE

    assert changed(NativeThread) == set()
    assert changed(ControlledThread) == {*VISIBLE, *UNSEEN}


def path_of(module):
    return PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")


def test_no_circles():
    graph = {module: set(imports(module)) - {module} for module in trees()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_files_are_short():
    lines = {path.relative_to(PACKAGE): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): n for path, n in lines.items() if n > 600} == {}


def test_rooms_keep_to_their_budgets():
    files = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    lines = {room: sum(n for path, n in files.items() if PACKAGE / room in path.parents) for room in ROOMS}
    assert {room: n for room, n in lines.items() if n > ROOMS[room]} == {}
    assert {room: n for room, n in lines.items() if n < 0.9 * ROOMS[room]} == {}


def test_functions_are_short():
    long = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and length(node) > (90 if is_kernel(node) else 60):
                long[f"{module}:{node.lineno} {node.name}"] = length(node)
    assert long == {}


def test_all_intrinsics_are_public_names():
    """Those of guard.py are for the compiler's guarded form alone."""
    for module in pkgutil.iter_modules(device.__path__):
        own = importlib.import_module(f"numba_deform.device.{module.name}")
        for name, value in vars(own).items():
            here = isinstance(value, Intrinsic) and value.model.__module__ == own.__name__
            if here and module.name != "guard" and value.ptx:
                assert getattr(numba_deform, name) is value, f"__init__.pyi lacks {name}"


def test_slow_tests_are_there():
    """Of a name that is gone nobody would notice that its test runs by default again."""
    names = Path(__file__).parents[1].joinpath("slow.txt").read_text().splitlines()
    assert names == sorted(set(names)) and len(names) > 100
    for name in names:
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in Path(__file__).parents[2].joinpath(file).read_text(), name
