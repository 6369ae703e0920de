"""Which forms of instructions the front end knows, and that it refuses others by name and line."""

import pytest
from forms import KNOWN, REFUSED, text_of

import numba_deform as nd


def test_all_that_hopper_code_contains_is_translated():
    for form in KNOWN:
        assert nd.from_ptx(text_of(form))["k"].parameters == ("data",), form


@pytest.mark.parametrize("form", REFUSED)
def test_others_are_refused_by_name_and_line(form):
    opcode = form.partition(" ")[0]
    with pytest.raises(ValueError, match="line 6: .*is not known to the engine") as refused:
        nd.from_ptx(text_of(form))["k"]
    assert opcode in str(refused.value)
