"""Every planted fault and its twin become machine code, different from each other, with no GPU."""

import pytest

from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.bugs import BUGS


def full_but(*quick):
    """All faults; those that use no other instructions than ``quick`` are ``full``."""
    assert set(quick) <= set(BUGS)
    names = [n if n in quick else pytest.param(n, marks=pytest.mark.full) for n in BUGS]
    return pytest.mark.parametrize("name", names)


@full_but("parity_inverted", "flag_without_release", "named_barrier_count", "no_proxy_fence")
def test_both_compile(name):
    bug = BUGS[name]
    found = inspect_kernel(bug.kernel())
    assert found.instructions["EXIT"] and "CALL" not in found.instructions
    assert found.stack == 0
    assert bug.kernel(False).compile().ptx != bug.kernel().compile().ptx


@full_but("parity_inverted", "flag_never_set", "divergent_syncthreads")
def test_the_guarded_form_compiles(name):
    """Every thread says goodbye; one that waits can also end in the middle of its wait."""
    kernel = BUGS[name].kernel().with_bounded_waits()
    ptx = kernel.compile().ptx
    assert "guard_address" in ptx
    assert ("{ exit; }" in ptx) == bool(kernel.sites)
