"""What a kernel's typed code is kept under, the same in every process and another for all that makes a
difference, and what comes back."""

import collections
import enum
import linecache
import re
import subprocess
import sys
import types as python
from pathlib import Path

import numpy as np
import pytest
from helpers import outcome
from numba import cuda, types

import numba_deform as nd
from numba_deform.compiler import cache, inference
from numba_deform.compiler.outline import Outline
from numba_deform.course.bugs import BUGS
from numba_deform.course.pipelines.copy import copy
from numba_deform.device.namespace import Namespace
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.cpu.frontends.numba_python import program
from numba_deform.engines.cpu.native.codegen import code_cache
from numba_deform.engines.cpu.schedules import prepared_launch

TEXT = """
from numba import cuda
import numpy as np
import other

BASE = 3


def made(constant, more=(1, 2.0), default=1, inline="never"):
    @cuda.jit(device=True, inline=inline)
    def added(x, by=default):
        return x + constant + by

    def kernel(out):
        t = cuda.threadIdx.x
        out[t] = added(out[t]) * BASE + more[0] + other.scaled(t)

    return kernel
"""
OTHER = """
from numba import cuda

@cuda.jit(device=True)
def scaled(x):
    return x * 2

class Unread:
    pass

out = Unread()
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """``load(text, other, folder)``: the module of a text in a folder, which imports the module ``other``."""

    def module_of(text=TEXT, other=OTHER, folder="a"):
        (tmp_path / folder).mkdir(exist_ok=True)
        made = {}
        for name, source in (("other", other), ("mine", text)):
            file = tmp_path / folder / f"{name}.py"
            file.write_text(source)
            linecache.checkcache(str(file))
            made[name] = python.ModuleType(name)
            made[name].__file__ = str(file)
            monkeypatch.setitem(sys.modules, name, made[name])
            exec(compile(source, str(file), "exec"), vars(made[name]))
        return made["mine"]

    return module_of


def key(kernel, *kinds):
    return Outline(kernel, kinds or (types.float64[:],)).key


def test_the_same_for_what_is_built_again_and_elsewhere(load):
    here, there = load(), load(folder="b")
    assert key(here.made(3)) == key(here.made(3)) == key(there.made(3)) is not None


def test_another_for_all_that_makes_a_difference(load, monkeypatch):
    Pair, Other = collections.namedtuple("Pair", "a b"), collections.namedtuple("Pair", "b a")
    mine = load()
    keys = [
        key(mine.made(3)), key(mine.made(3.0)), key(mine.made(np.float32(3))), key(mine.made(0.0)),
        key(mine.made(-0.0)), key(mine.made(True)), key(mine.made(3, (1, 3.0))),
        key(mine.made(3, Pair(1, 2.0))),
        key(mine.made(3, default=2)), key(mine.made(3, inline="always")), key(mine.made(np.arange(1, 4))),
        key(mine.made(np.arange(3))), key(mine.made(np.arange(3.0))), key(mine.made(np.arange(4)[:3:2])),
        key(mine.made(3), types.float32[:]), key(mine.made(3), types.Array(types.float64, 1, "C")),
        key(mine.made(3), types.float64[:, :]), key(mine.made(3), types.UniTuple(types.float64[:], 2)),
        key(mine.made(3), types.NamedUniTuple(types.float64[:], 2, Pair)),
        key(mine.made(3), types.NamedUniTuple(types.float64[:], 2, Other)),
        key(mine.made(enum.IntEnum("E", "a b").a)), key(mine.made(enum.IntEnum("E", "b a").a)),
    ]  # fmt: skip
    for change in (
        ("x + constant", "x - constant"), ("BASE = 3", "BASE = 4"), ("import numpy", "# numpy"),
        ("out[t]) *", "out[t], 2) *"),
    ):  # fmt: skip
        assert change[0] in TEXT
        keys.append(key(load(TEXT.replace(*change)).made(3)))
    keys.append(key(load(other=OTHER.replace("x * 2", "x * 3")).made(3)))
    for name, value in (("STARTED", 0), ("TOOLS", ())):
        with monkeypatch.context() as patch:
            patch.setattr(cache, name, value)
            cache.sources.cache_clear()
            keys.append(key(mine.made(3)))
    cache.sources.cache_clear()
    assert None not in keys and len(set(keys)) == len(keys)


def test_a_function_of_a_namespace(load):
    mine = load()

    def through(space):
        def kernel(out):
            out[0] = space.inner.added(out[0])

        return kernel

    def space(constant):
        added = mine.made(constant).__closure__[0].cell_contents
        return Namespace("space", inner=Namespace("inner", added=added, constant=2))

    assert key(through(space(1))) == key(through(space(1))) != key(through(space(2)))


@pytest.mark.parametrize("value", [object(), open, [object()], lambda x: object])
def test_no_key_for_what_nobody_knows(value):
    def kernel(out):
        out[0] = value

    known = key(kernel) is not None
    assert known == (value is open or isinstance(value, python.FunctionType))


def test_what_nobody_knows_in_a_device_function_of_a_module(load):
    """Unread it does no harm, though the kernel has its name for something else."""
    text = "import other\ndef kernel(out):\n    out[0] = out.alpha + other.beta(1)\n"
    unread = "from numba import cuda\nalpha = object()\n@cuda.jit(device=True)\ndef beta(x):\n    return x\n"
    assert key(load(text, unread).kernel) is not None
    assert key(load(text, unread.replace("return x", "return alpha")).kernel) is None


def test_no_key_where_nothing_is_kept(monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert key(copy().kernel.py_func) is None


def test_the_same_in_another_process():
    kernel, words = copy().kernel, """
from numba_deform.compiler.outline import Outline
from numba_deform.course.pipelines.copy import copy
kernel = copy().kernel
print(Outline(kernel.py_func, kernel.signature.args).key)"""
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert told.strip() == Outline(kernel.py_func, kernel.signature.args).key


# --- what comes back --------------------------------------------------------------------------------
@pytest.fixture
def forget(monkeypatch):
    """As if in another process, with this directory."""

    def forgotten(kept):
        monkeypatch.setenv(cache.VARIABLE, str(kept))
        monkeypatch.setattr(program, "FORMS", {})
        monkeypatch.setattr(inference, "_known", {})
        for module in code_cache, prepared_launch:
            monkeypatch.setattr(module, "CODES", {})

    return forgotten


@pytest.mark.parametrize("name", ["no_full_wait", "index_past_array", "parity_inverted", "count_too_high"])
def test_verdicts_are_the_same_with_what_was_kept(name, forget, tmp_path, monkeypatch):
    """Nothing is inferred the second time, and a report says the same in every word."""
    bug, told = BUGS[name], []
    for kept, compiled in (("off", False), (tmp_path, True), (tmp_path, False), (tmp_path, None)):
        forget(kept)
        if len(told) > 1:
            monkeypatch.setattr(inference, "_inferred", None)
        launch = bug.arguments(0)
        args = bug.kernel(True), launch.grid, None, launch.args, launch.shared_bytes
        with pytest.raises(SimFault) as caught:
            nd.simulate(*args, compiled=compiled)
        told.append(re.sub("0x[0-9a-f]{6,}", "0x", str(caught.value)))
    assert len(set(told)) == 1


def test_a_copy_of_the_file_names_itself(load, forget, tmp_path):
    """The same text elsewhere shares what is kept; its reports name its own lines."""
    text = TEXT.replace("other.scaled(t)", "out[t + 100]")
    for folder in "ab":
        forget(tmp_path / "kept")
        mine = load(text, folder=folder)
        for compiled in (False, True):
            (kind, where, words), _ = outcome(mine.made(3), (np.zeros(64),), block=64, compiled=compiled)
            line = 1 + text.splitlines().index(next(x for x in text.splitlines() if "out[t + 100]" in x))
            assert where == f"{tmp_path / folder / 'mine.py'}:{line}"
    assert len(list(Path(tmp_path / "kept").glob("*.typed"))) == 1


def test_an_edited_device_function(load, forget, tmp_path):
    """What it was, and what it is."""
    for factor in (2, 3, 2):
        forget(tmp_path / "kept")
        out = np.zeros(32)
        mine = load(other=OTHER.replace("x * 2", f"x * {factor}"))
        nd.simulate(mine.made(3), 1, 32, (out,))
        assert (out == 4 * 3 + 1 + factor * np.arange(32)).all()


def test_what_numba_types_comes_back_as_it_was(forget, tmp_path, monkeypatch):
    """Numbers, casts and functions that the typed code has beside Python's own."""

    def kernel(x, out):
        t = cuda.threadIdx.x
        small = x[t] / 3 ** 0.5 if t else min(x[t], 1e300)
        out[t] = types.int16(40000 * t) // 7 + small % np.float32(0.7) + (t << 40) ** 2

    results = []
    for kept in ("off", tmp_path, tmp_path):
        forget(kept)
        if len(results) == 2:
            monkeypatch.setattr(inference, "_inferred", None)
        out = np.zeros(32)
        nd.simulate(kernel, 1, 32, (np.linspace(-9, 9, 32), out))
        results.append(out)
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


def test_a_kernel_that_shares_a_function_with_an_older_one(load, forget, tmp_path, monkeypatch):
    """What is inferred of that function belongs to the older kernel's; the newer one is kept all the same."""
    mine = load()
    for again in range(2):
        forget(tmp_path / "kept")
        for more in ((1, 2.0), (5, 2.0)):
            out = np.zeros(32)
            nd.simulate(mine.made(3, more), 1, 32, (out,))
            assert out[0] == 12 + more[0]
        monkeypatch.setattr(inference, "_inferred", None)
        assert again or len(list((tmp_path / "kept").glob("*.typed"))) == 2
