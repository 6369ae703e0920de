"""The garbage collector during a run, and after it."""

import gc

import numpy as np
import pytest
from numba import cuda, float32

import numba_deform as nd
from numba_deform.engines import gc_pauses
from numba_deform.engines.cpu.machine import block
from numba_deform.engines.gc_pauses import SELDOM, kept, short_collections


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


def test_what_is_kept_is_looked_at_no_more(monkeypatch):
    """And a run leaves it so."""
    monkeypatch.setattr(gc_pauses, "_is_frozen", False)
    try:
        with kept():
            assert not gc.isenabled()
            ring = []
            ring.append(ring)
        assert gc.isenabled()
        with short_collections():
            assert gc.get_threshold()[0] >= SELDOM
        assert gc.get_freeze_count()  # not thawed
    finally:
        gc.unfreeze()


def test_a_copy_that_has_landed_holds_nothing(monkeypatch):
    """Else a run of many copies leaves as many cycles to be collected at its end."""
    held = []

    def kernel(out):
        tile = cuda.shared.array(0, float32)
        nd.cp_async_cg_16(nd.shared_address(tile), nd.global_address(out), 16)
        nd.cp_async_commit_group()
        nd.cp_async_wait_group(0)

    landed = block.Block._deliver
    monkeypatch.setattr(block.Block, "_deliver", lambda self, copy: (landed(self, copy), held.append(copy)))
    nd.simulate(kernel, 1, 1, [np.ones(16, np.float32)], shared_bytes=16, compiled=False)
    assert [copy.deliver for copy in held] == [None]
