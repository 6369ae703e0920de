"""What Numba takes of the corpus becomes machine code for Hopper, with the types of its arguments. A third of
it: that NVVM takes all of it, test_corpus_as_ptx.py shows."""

import pytest
from base import load

from numba_deform.engines import faults

PROGRAMS = {name: p for name, p in load().items() if faults.NotCompiled not in p.faults}


@pytest.mark.full
@pytest.mark.parametrize("name", list(PROGRAMS)[::3])
def test_it_compiles(name):
    assert len(PROGRAMS[name].typed().compile().cubin) > 500
