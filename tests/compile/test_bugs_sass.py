"""Every planted fault and its twin become machine code, different from each other, with no GPU."""

import pytest

from numba_deform.bugs import BUGS
from numba_deform.inspect import inspect_kernel


@pytest.mark.parametrize("name", BUGS)
def test_both_compile(name):
    bug = BUGS[name]
    found = inspect_kernel(bug.kernel())
    assert found.instructions["EXIT"] and "CALL" not in found.instructions
    assert found.stack == 0
    assert bug.kernel(False).compile().ptx != bug.kernel().compile().ptx


@pytest.mark.parametrize("name", BUGS)
def test_the_guarded_form_compiles(name):
    """Where it waits, it can call for help; where it does not, it only says goodbye."""
    kernel = BUGS[name].kernel().with_bounded_waits()
    assert "guard_record" in kernel.compile().ptx or "guard_address" in kernel.compile().ptx
