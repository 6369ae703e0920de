"""Every planted fault and its twin become machine code, different from each other, with no GPU."""

import pytest

from numba_deform.compiler.guarded import guarded
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_both_compile(name):
    bug = BUGS[name]
    found = inspect_kernel(bug.kernel())
    assert found.instructions["EXIT"] and "CALL" not in found.instructions
    assert found.stack == 0
    assert bug.kernel(False).compile().ptx != bug.kernel().compile().ptx


@pytest.mark.parametrize("name", BUGS)
def test_the_guarded_form_compiles(name):
    """Every thread says goodbye; one that waits can also end in the middle of its wait."""
    kernel = BUGS[name].kernel().with_bounded_waits()
    ptx = kernel.compile().ptx
    assert "guard_address" in ptx
    assert ("{ exit; }" in ptx) == bool(guarded(kernel.py_func)[1])
