"""Stores and reductions into the shared memory of other blocks of a cluster that complete on a barrier there
(PTX ISA 9.7.9.12, 9.7.13.7, 9.7.9.25.4.2).

``dst`` and ``bar`` are shared::cluster addresses of one and the same block (``cluster.mapa_shared_cluster``),
and the launch has clusters of several blocks. The operation runs on its own. When it is done, the number of its
bytes is subtracted from the tx-count of ``bar``: who has expected them there and waits sees what it has
written, and nothing else that its thread did. Until then nobody reads ``dst``, and its block does not end.

``st_async`` and ``red_async`` take their data from registers and write by the generic proxy: what they have
written needs ``fence_proxy_async`` after the wait before a bulk or tensor copy touches it, and what others have
written before needs no fence. The ``cp_reduce`` forms take ``bytes`` of this block's shared memory at ``src``
as ``cluster.cp_async_bulk_shared_cluster`` does: addresses and size are multiples of 16, ordinary writes to
``src`` and to ``dst`` need a proxy fence by their writer, and ``src`` is read until the barrier's phase is
complete.

Each element of a reduction is one atomic operation, relaxed, so reductions of several threads and blocks into
the same bytes need no order among themselves. ``add`` wraps. ``inc`` goes up by one, and to 0 from the operand
on; ``dec`` goes down by one, and to the operand from 0 or from above it.
"""

from collections.abc import Callable

from .ptx import cpu, i32, intrinsic, tabled, u32, u64, void


@intrinsic(void(u32, u32, u32))
def st_async_b32(dst, x, bar):
    """``st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32``: writes 4 bytes to ``dst``, a multiple
    of 4, and counts them on ``bar``. A weak write: nothing else touches the bytes meanwhile.
    PTX ISA 9.7.9.12."""
    thread = cpu()
    thread.block.cluster.store_async(thread, dst, (x,), bar)


@intrinsic(void(u32, u32, u32, u32))
def st_async_v2(dst, x, y, bar):
    """``st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32``: as ``st_async_b32``, 8 bytes on a
    multiple of 8. PTX ISA 9.7.9.12."""
    thread = cpu()
    thread.block.cluster.store_async(thread, dst, (x, y), bar)


@intrinsic(void(u32, u32, u32, u32, u32, u32))
def st_async_v4(dst, x, y, z, w, bar):
    """``st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32``: as ``st_async_b32``, 16 bytes on a
    multiple of 16. PTX ISA 9.7.9.12."""
    thread = cpu()
    thread.block.cluster.store_async(thread, dst, (x, y, z, w), bar)


@intrinsic(void(u32, u64, u32))
def st_async_b64(dst, x, bar):
    """``st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64``: as ``st_async_b32``, a word of 8
    bytes on a multiple of 8. PTX ISA 9.7.9.12."""
    thread = cpu()
    thread.block.cluster.store_async(thread, dst, (int(x), int(x) >> 32), bar)


def _red(ending, does, element, to="") -> Callable[[int, int, int], None]:
    """``red_async_{ending}``: what it does, and with what; ``to``: what its documentation goes on with."""
    operation, kind = ending.split("_")
    text = "``red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes."
    word = {"s32": i32, "u64": u64}.get(kind, u32)
    halves = (lambda x: (int(x), int(x) >> 32)) if kind == "u64" else lambda x: (x,)
    return tabled(
        __name__, f"red_async_{ending}", ("dst", "x", "bar"), (u32, word, u32),
        f"{text}{operation}.{kind}``: {does}, {element}{to or '; as ``red_async_add_u32``'}. PTX ISA 9.7.13.7.",
        lambda thread, dst, x, bar: thread.block.cluster.reduce_async(
            thread, dst, halves(x), bar, operation, kind),
    )  # fmt: skip


_U32, _S32, _B32 = "an unsigned 32-bit integer", "a signed 32-bit integer", "a 32-bit word"
_STAYS = "of ``x`` and what is there stays"
red_async_add_u32 = _red("add_u32", "adds ``x``", _U32, """, to the one at ``dst``, and counts its 4 bytes on
    ``bar``. ``dst`` is in another block, on a multiple of the size""")  # fmt: skip
red_async_add_s32 = _red("add_s32", "adds ``x``", _S32)
red_async_add_u64 = _red("add_u64", "adds ``x``", "a 64-bit integer")
red_async_min_u32 = _red("min_u32", f"the smaller {_STAYS}", _U32)
red_async_min_s32 = _red("min_s32", f"the smaller {_STAYS}", _S32)
red_async_max_u32 = _red("max_u32", f"the larger {_STAYS}", _U32)
red_async_max_s32 = _red("max_s32", f"the larger {_STAYS}", _S32)
red_async_inc_u32 = _red("inc_u32", "counts up to ``x``, and then from 0", _U32)
red_async_dec_u32 = _red("dec_u32", "counts down to 0, and then from ``x``", _U32)
red_async_and_b32 = _red("and_b32", "ANDs ``x``", _B32)
red_async_or_b32 = _red("or_b32", "ORs ``x``", _B32)
red_async_xor_b32 = _red("xor_b32", "XORs ``x``", _B32)


@intrinsic(void(u32, u32, u32, u32))
def cp_reduce_async_bulk_shared_cluster_add_u32(dst, src, bytes, bar):
    """``cp.reduce.async.bulk.shared::cluster.shared::cta..add.u32``: adds each element at ``src``, an unsigned
    32-bit integer, to that at ``dst``, ``bytes`` in all. PTX ISA 9.7.9.25.4.2."""
    thread = cpu()
    thread.block.cluster.bulk_reduce(thread, dst, src, bytes, bar, "add", "u32")


def _between(ending, does, element) -> Callable[[int, int, int, int], None]:
    """``cp_reduce_async_bulk_shared_cluster_{ending}``: what it does, and with what elements."""
    name, (operation, kind) = "cp_reduce_async_bulk_shared_cluster_", ending.split("_")
    text = f"``cp.reduce.async.bulk.shared::cluster.shared::cta..{operation}.{kind}``: {does}, {element}; as "
    return tabled(
        __name__, name + ending, ("dst", "src", "bytes", "bar"), (u32, u32, u32, u32),
        f"{text}``{name}add_u32``. PTX ISA 9.7.9.25.4.2.",
        lambda thread, *operands: thread.block.cluster.bulk_reduce(thread, *operands, operation, kind),
    )  # fmt: skip


_EACH, _THERE = "each element at ``src``", "each element at ``src`` and what is there stays"
_ADDS, _SMALLER, _LARGER = f"adds {_EACH}", f"the smaller of {_THERE}", f"the larger of {_THERE}"
_UP, _DOWN = f"counts up to {_EACH}, and then from 0", f"counts down to 0, and then from {_EACH}"
cp_reduce_async_bulk_shared_cluster_add_s32 = _between("add_s32", _ADDS, _S32)
cp_reduce_async_bulk_shared_cluster_add_u64 = _between("add_u64", _ADDS, "a 64-bit integer")
cp_reduce_async_bulk_shared_cluster_min_u32 = _between("min_u32", _SMALLER, _U32)
cp_reduce_async_bulk_shared_cluster_min_s32 = _between("min_s32", _SMALLER, _S32)
cp_reduce_async_bulk_shared_cluster_max_u32 = _between("max_u32", _LARGER, _U32)
cp_reduce_async_bulk_shared_cluster_max_s32 = _between("max_s32", _LARGER, _S32)
cp_reduce_async_bulk_shared_cluster_inc_u32 = _between("inc_u32", _UP, _U32)
cp_reduce_async_bulk_shared_cluster_dec_u32 = _between("dec_u32", _DOWN, _U32)
cp_reduce_async_bulk_shared_cluster_and_b32 = _between("and_b32", "ANDs " + _EACH, _B32)
cp_reduce_async_bulk_shared_cluster_or_b32 = _between("or_b32", "ORs " + _EACH, _B32)
cp_reduce_async_bulk_shared_cluster_xor_b32 = _between("xor_b32", "XORs " + _EACH, _B32)
