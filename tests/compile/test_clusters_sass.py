"""Clusters and the grid's barrier as machine code, with no GPU."""

import re

import pytest
from numba import cuda, types, uint32

from numba_deform.compiler import Kernel, kernel, u32, u64
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.device import cluster as c
from numba_deform.device import cluster_flags
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_try_wait_parity
from numba_deform.device.memory import st_global_b32


def test_a_clusters_instructions():
    @kernel(threads=32)
    def one(map: u64, shared: u32, out: u64):
        c.cluster_arrive_relaxed()
        c.cluster_wait()
        there = c.mapa_shared_cluster(shared, c.cluster_ctarank() ^ uint32(1))
        c.st_shared_cluster_b32(there, c.cluster_nctarank())
        c.mbarrier_arrive_cluster(there)
        c.mbarrier_wait_cluster(shared, uint32(0))
        c.cp_async_bulk_tensor_3d_multicast(shared, map, 0, 0, 0, shared, uint32(3))
        st_global_b32(out, c.ld_shared_cluster_b32(there))

    found = inspect_kernel(one)
    assert found.instructions["UCGABAR_ARV"] and found.instructions["UCGABAR_WAIT"]
    assert "UTMALDG.3D.MULTICAST" in found.sass and re.search(r"SYNCS\.ARRIVE\S*\.RED", found.sass)
    assert not found.stack and "CALL" not in found.instructions


def test_cluster_scope_is_no_other_name_for_cta_scope():
    """An arrival for other blocks waits for writes that are under way; a wait for theirs forgets its cache."""

    def instructions(arrive, wait):
        @kernel(threads=32)
        def one(bar: u32):
            arrive(bar)
            wait(bar, uint32(0))

        return inspect_kernel(one).instructions

    wide = instructions(c.mbarrier_arrive_cluster, c.mbarrier_try_wait_parity_cluster)
    narrow = instructions(mbarrier_arrive, mbarrier_try_wait_parity)
    assert {"MEMBAR", "CCTL"} <= set(wide) and not {"MEMBAR", "CCTL"} & set(narrow)


def test_the_two_scopes_of_a_wait_differ_in_the_cache():
    """Shared memory does not pass through the L1 cache, so the narrow wait orders it as the wide one does."""

    def instructions(wait):
        @kernel(threads=32)
        def one(bar: u32):
            while wait(bar, uint32(0)) == 0:
                pass

        return inspect_kernel(one).instructions

    wide = instructions(c.mbarrier_try_wait_parity_cluster)
    assert wide.pop("CCTL") and wide == instructions(mbarrier_try_wait_parity)


@pytest.mark.full
def test_flags_of_a_cluster_order_what_they_say():
    """A release waits for writes that are under way; an acquire forgets the cache; relaxed ones do neither."""
    for name, one in vars(cluster_flags).items():
        if not hasattr(one, "ptx"):
            continue
        more = ", uint32(1)" * (len(one.signature.args) - 1)
        source = f"def calls(a: u32):\n    one(a{more})\n"
        scope = {"one": one, "uint32": uint32, "u32": u32}
        exec(source, scope)
        found = inspect_kernel(kernel(threads=32)(scope["calls"])).instructions
        assert bool(found.get("MEMBAR")) == ("release" in name or "acq_rel" in name), name
        assert bool(found.get("CCTL")) == ("acquire" in name or "acq_rel" in name), name


def test_the_grids_barrier_is_linked():
    def one(out):
        cuda.cg.this_grid().sync()
        out[0] = 1

    compiled = Kernel(one, types.void(types.uint32[::1]), 32).compile()
    assert compiled.cooperative and len(compiled.cubin) > 500
