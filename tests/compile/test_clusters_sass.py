"""Clusters and the grid's barrier as machine code, with no GPU."""

import re

import pytest
from numba import cuda, types, uint32

from numba_deform.compiler import Kernel, kernel, u32, u64
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.pipelines.gemm import gemm
from numba_deform.device import cluster as c
from numba_deform.device import cluster_async, cluster_flags, sync
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


def test_a_gemm_by_clusters():
    """Two warpgroups of 256 columns: B comes by multicast, four products a step, and nothing is spilled."""
    found = inspect_kernel(gemm(columns=256, groups=2).kernel)
    assert found.spill_loads == found.spill_stores == found.stack == 0 and "CALL" not in found.instructions
    assert found.sass.count("UTMALDG.2D.MULTICAST") == 1 and found.instructions["UTMALDG"] == 2
    assert found.sass.count("HGMMA.64x256x16.F32.BF16") == 4
    assert found.instructions["STSM"] == 16 and "UTMASTG" in found.instructions


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


# name -> (stem of the instruction, what stands in its modifiers)
REDUCTIONS = {
    "add_u32": "ADD", "add_s32": "ADD.S32", "min_u32": "MIN", "min_s32": "MIN.S32", "max_u32": "MAX",
    "max_s32": "MAX.S32", "inc_u32": "INC", "dec_u32": "DEC", "and_b32": "AND", "or_b32": "OR",
    "xor_b32": "XOR",
}  # fmt: skip
INSTRUCTIONS = {
    "st_async_b32": "STAS", "st_async_v2": "STAS.64", "st_async_v4": "STAS.128", "st_async_b64": "STAS.64",
    "red_async_add_u64": "REDAS.ADD.64", "cp_reduce_async_bulk_shared_cluster_add_u64": "UBLKRED.S.S.ADD.U64",
    **{f"red_async_{name}": f"REDAS.{op}" for name, op in REDUCTIONS.items()},
    **{f"cp_reduce_async_bulk_shared_cluster_{name}": f"UBLKRED.S.S.{op}" for name, op in REDUCTIONS.items()},
    "cp_async_bulk_load_multicast": "UBLKCP.S.G.MULTICAST", "st_shared_cluster_v2": "ST.E.64",
    "st_shared_cluster_v4": "ST.E.128", "mbarrier_arrive_count_cluster": "SYNCS.ARRIVE.TRANS64.RED.ART0",
    "mbarrier_arrive_drop_cluster": "SYNCS.ARRIVE.TRANS64.RED.OPTOUT.A1T0",
    "fence_proxy_async_cluster": "FENCE.VIEW.ASYNC.S", "fence_acq_rel_cluster": "MEMBAR.ALL.GPU",
}  # fmt: skip
QUICK = ("st_async_v4", "red_async_min_s32", "cp_reduce_async_bulk_shared_cluster_add_u64",
         "mbarrier_arrive_drop_cluster", "fence_proxy_async_cluster")  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in INSTRUCTIONS]
)
def test_what_blocks_do_to_each_other_is_one_instruction(name):
    one = next(getattr(module, name) for module in (cluster_async, c, sync) if hasattr(module, name))
    parameters = [f"a{i}" for i in range(len(one.signature.args))]
    scope = {"one": one}
    exec(f"def calls({', '.join(parameters)}):\n    one({', '.join(parameters)})\n", scope)
    found = inspect_kernel(Kernel(scope["calls"], types.void(*one.signature.args), 32))
    stem = INSTRUCTIONS[name].partition(".")[0]
    assert INSTRUCTIONS[name] in re.findall(rf"\b{stem}[.\w]*", found.sass)
    assert found.stack == 0 and "CALL" not in found.instructions


def test_a_proxy_fence_of_the_cluster_waits_for_writes_to_other_blocks():
    """That is what it has beside the one for a block's own memory."""

    def instructions(fence):
        @kernel(threads=32)
        def one(address: u32):
            c.st_shared_cluster_b32(address, uint32(1))
            fence()

        return inspect_kernel(one).sass

    assert "MEMBAR.ALL.GPU" in instructions(sync.fence_proxy_async_cluster)
    assert "MEMBAR.ALL.GPU" not in instructions(sync.fence_proxy_async)
