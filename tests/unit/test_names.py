"""The names of ``nd`` are imported when they are asked for: also those that only a kernel asks for."""

import inspect
import subprocess
import sys

import pytest

import numba_deform as nd
from numba_deform.device import tma

PROGRAM = """
import sys

import numpy as np
import numba_deform as nd


@nd.function
def prefetch(address):
    nd.cp_async_bulk_prefetch(address, 16)


@nd.kernel(threads=32)
def kernel(out: nd.u64):
    nd.red_add_gpu_global_f32(out, nd.float32(1))
    prefetch(out)


def plain(out):
    nd.cp_async_wait_all()


assert not {"red_add_gpu_global_f32", "cp_async_bulk_prefetch", "cp_async_wait_all"} & vars(nd).keys()
out = np.zeros(4, np.float32)
nd.simulate(kernel, 1, args=(out,))
nd.simulate(plain, 1, 32, args=(out,))
assert out[0] == 32
"""


def test_a_kernel_finds_what_nothing_has_asked_for_before():
    """Numba knows no intrinsic that comes while it looks at the kernel."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name, meant", [
    ("Rings", "; did you mean Ring?"), ("simulat", "; did you mean simulate?"), ("zzz", ""),
    ("__Ring__", ""),  # what Python and tools ask every module for
])  # fmt: skip
def test_a_name_that_is_nearly_one(name, meant):
    with pytest.raises(AttributeError) as caught:
        getattr(nd, name)
    assert str(caught.value) == f"module 'numba_deform' has no attribute '{name}'{meant}"


@pytest.mark.parametrize("thing, words", [
    (nd, ("nd.Ring", "nd.Shared", "nd.Launch", "nd.simulate", "numba-deform new")),
    (nd.kernel, ("whole_program", "min_blocks", "max_registers")),
    *((function, ("16 bytes",)) for name, function in vars(tma).items() if "bulk_tensor" in name),
])  # fmt: skip
def test_help_says_what_a_beginner_needs(thing, words):
    assert all(word in inspect.getdoc(thing) for word in words)
