"""The garbage collector during a run, and after it."""

import gc

import pytest

from numba_deform.engines.cpu.schedules.garbage import SELDOM, short_collections


@pytest.mark.parametrize(("before", "inside"), [(700, SELDOM), (2 * SELDOM, 2 * SELDOM), (0, 0)])
def test_inside_it_collects_seldom_and_afterwards_as_before(before, inside):
    given = gc.get_threshold()
    try:
        gc.set_threshold(before, 7, 8)
        with pytest.raises(KeyError), short_collections():
            assert gc.get_threshold() == (inside, 7, 8)
            assert gc.get_freeze_count()
            raise KeyError
        assert gc.get_threshold() == (before, 7, 8)
        assert not gc.get_freeze_count()
    finally:
        gc.set_threshold(*given)
