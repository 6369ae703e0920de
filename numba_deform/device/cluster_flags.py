"""Flags and counters in the shared memory of any block of a cluster (PTX ISA 9.7.9.8, 9.7.9.11, 9.7.13.5).

Addresses are shared::cluster addresses: one's own shared ones, and those of other blocks that
``cluster.mapa_shared_cluster`` makes. All are of scope cluster: they order memory among the threads of one
cluster, and no others. The owner sets a flag's first value and meets the cluster before others touch it, and
does not end before they have (``cluster.cluster_sync``). It uses these names as well: those of scope cta in
``memory`` are for its own threads only.
"""

from .ptx import cpu, intrinsic, u32, void


@intrinsic(u32(u32))
def ld_acquire_cluster_shared_cluster_b32(address):
    """``ld.acquire.cluster.shared::cluster.b32``: read a flag; if it holds what
    ``st_release_cluster_shared_cluster_b32`` wrote, everything its writer did before is visible.
    PTX ISA 9.7.9.8."""
    thread = cpu()
    return thread.block.cluster.load_flag(thread, address)


@intrinsic(u32(u32))
def ld_relaxed_cluster_shared_cluster_b32(address):
    """``ld.relaxed.cluster.shared::cluster.b32``: read a flag that others write meanwhile. Orders nothing by
    itself. PTX ISA 9.7.9.8."""
    thread = cpu()
    return thread.block.cluster.load_flag(thread, address, relaxed=True)


@intrinsic(void(u32, u32))
def st_release_cluster_shared_cluster_b32(address, x):
    """``st.release.cluster.shared::cluster.b32``: set a flag after everything this thread did.
    PTX ISA 9.7.9.11."""
    thread = cpu()
    thread.block.cluster.store_flag(thread, address, x)


@intrinsic(void(u32, u32))
def st_relaxed_cluster_shared_cluster_b32(address, x):
    """``st.relaxed.cluster.shared::cluster.b32``: set a flag that others read meanwhile. Hands on nothing that
    was done before. PTX ISA 9.7.9.11."""
    thread = cpu()
    thread.block.cluster.store_flag(thread, address, x, relaxed=True)


@intrinsic(u32(u32, u32))
def atom_add_cluster_shared_cluster_u32(address, x):
    """``atom.relaxed.cluster.shared::cluster.add.u32``: adds; returns what was there. Orders nothing by itself.
    PTX ISA 9.7.13.5."""
    thread = cpu()
    return thread.block.cluster.atomic(thread, address, lambda old: old + int(x))


@intrinsic(u32(u32, u32))
def atom_add_acq_rel_cluster_shared_cluster_u32(address, x):
    """``atom.acq_rel.cluster.shared::cluster.add.u32``: as ``atom_add_cluster_shared_cluster_u32``, and hands
    on what this thread did before and takes over what earlier ones handed on. PTX ISA 9.7.13.5."""
    thread = cpu()
    return thread.block.cluster.atomic(
        thread, address, lambda old: old + int(x), acquire=True, release=True
    )  # fmt: skip


@intrinsic(u32(u32, u32, u32))
def atom_cas_acq_rel_cluster_shared_cluster_b32(address, compare, x):
    """``atom.acq_rel.cluster.shared::cluster.cas.b32``: writes ``x`` where ``compare`` stands; returns what was
    there. Orders as ``atom_add_acq_rel_cluster_shared_cluster_u32``. PTX ISA 9.7.13.5."""
    thread = cpu()
    return thread.block.cluster.atomic(
        thread, address, lambda old: int(x) if old == int(compare) else None, acquire=True, release=True
    )  # fmt: skip


@intrinsic(void(u32, u32))
def red_add_cluster_shared_cluster_u32(address, x):
    """``red.relaxed.cluster.shared::cluster.add.u32``: adds, and returns nothing. Orders nothing by itself.
    PTX ISA 9.7.13.6."""
    thread = cpu()
    thread.block.cluster.atomic(thread, address, lambda old: old + int(x))


@intrinsic(void(u32, u32))
def red_add_release_cluster_shared_cluster_u32(address, x):
    """``red.release.cluster.shared::cluster.add.u32``: as ``red_add_cluster_shared_cluster_u32``, and hands on
    what this thread did before. PTX ISA 9.7.13.6."""
    thread = cpu()
    thread.block.cluster.atomic(thread, address, lambda old: old + int(x), release=True)
