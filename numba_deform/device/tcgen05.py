"""Tensor cores of Blackwell: products in shared memory and tensor memory, asynchronous (PTX ISA 9.7.16).

They are there on sm_100a, sm_103a and sm_110a alone: for another GPU a kernel that calls one is refused when it
is compiled. The CPU engine judges them by PTX's text; none of it has ever run on hardware.

*Tensor memory* is what accumulators stand in: 128 *lanes* (rows) of 512 *columns* of 32 bits in each SM. An
address of it has the lane in its upper 16 bits and the column in its lower ones. A block allocates columns, and
frees them before it ends. Warp w reaches lanes 32 (w % 4) to 32 (w % 4) + 31, by ``tcgen05_ld`` and
``tcgen05_st``: address + (w % 4 << 21). A product reaches all of them.

What one block does for a tile, of which one thread issues all that has to do with products:

    tcgen05_alloc(place, columns)             a warp; then a barrier of the block, and everybody reads ``place``
    wait for what the products read           TMA's bytes by their mbarrier
    tcgen05_mma_f16(d, a, b, kind, adds)      ONE THREAD: D += A B^T, 128 x N; any number of them
    tcgen05_commit(bar)                       that thread: an arrival on an mbarrier, once they are over
    mbarrier_wait(bar, parity)                who reads D, or fills the stages of A and B again
    tcgen05_fence_after_thread_sync()
    tcgen05_ld_32x32b_x8(d + ..)              four warps, each its lanes
    tcgen05_wait_ld()
    tcgen05_fence_before_thread_sync()        then a barrier, or an arrival for who writes D next
    tcgen05_dealloc(d, columns)               a warp

The *instruction descriptor* of a product has its types and its size: ``tcgen05_instruction_descriptor``, on the
host. The descriptors of A and B in shared memory are wgmma's with one bit more: ``tcgen05_descriptor``; the
head of ``wgmma.py`` says how they lie there. A product takes 32 bytes of each row along k: 16 fp16, 32 fp8.
"""

import textwrap

from numba import cuda, types, uint64

from .ptx import cpu, i32, intrinsic, u32, u64, void
from .wgmma import wgmma_descriptor

SHARED_DESCRIPTOR = 1 << 46  # what every descriptor of tcgen05 has, and none of wgmma's
# Of an instruction descriptor: bit and width of each field; by kind the numbers of types of D, and of A and B.
FIELDS = {"sparse": (2, 1), "limit": (3, 1), "d": (4, 2), "a": (7, 3), "b": (10, 3), "negate_a": (13, 1),
          "negate_b": (14, 1), "transpose_a": (15, 1), "transpose_b": (16, 1), "n": (17, 6),
          "m": (24, 5)}  # fmt: skip
FLOATS, F8 = {0: "f16", 1: "f32"}, {0: "e4m3", 1: "e5m2"}
KINDS = {
    "f16": (FLOATS, {0: "f16", 1: "bf16"}), "tf32": ({1: "f32"}, {2: "tf32"}), "f8f6f4": (FLOATS, F8),
    "i8": ({2: "s32"}, {0: "u8", 1: "s8"}),
}  # fmt: skip
HEIGHTS = {(1, False): (64, 128), (2, False): (128, 256), (1, True): (32, 64, 128)}  # M, by cta_group and .ws


def tcgen05_instruction_descriptor(
    kind, rows, columns, a=None, b=None, sums=None, *, pair=False,
    transpose_a=False, transpose_b=False, negate_a=False, negate_b=False, limit=False,
):  # fmt: skip
    """The instruction descriptor of a product D = A B^T, a number that a kernel takes as a constant.

    ``kind`` is that of the intrinsic: f16, tf32, f8f6f4, i8; ``rows`` 64 or 128, with ``pair`` 128
    or 256 of both blocks together; ``columns`` those of D. Types:
    ``a`` and ``b`` f16, bf16, tf32, e4m3, e5m2, u8, s8 (left out: the first of the kind, and for ``b`` as
    ``a``), ``sums`` f32, f16, s32 (left out: the widest). ``transpose_a``, ``transpose_b``: MN-major, as
    ``trans_a`` of ``wgmma``; ``negate_a``, ``negate_b`` of floats; ``limit``: sums of integers stay at the
    largest and smallest. Raises ValueError for a product that PTX 9.7.16.4.2 and 9.7.16.2.1 do not have."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(KINDS)}")
    of_sums, factors = KINDS[kind]
    a = a or next(iter(factors.values()))
    given = {"sums": (of_sums, sums or [*of_sums.values()][-1]), "a": (factors, a), "b": (factors, b or a)}
    value = {"m": rows // 16, "n": columns // 8, "limit": limit, "transpose_a": transpose_a,
             "transpose_b": transpose_b, "negate_a": negate_a, "negate_b": negate_b}  # fmt: skip
    for name, (table, wanted) in given.items():
        value[name] = next((number for number, known in table.items() if known == wanted), None)
        if value[name] is None:
            known = ", ".join(table.values())
            raise ValueError(f"{name}={wanted!r} of kind::{kind} must be one of {known}")
    value["d"] = value.pop("sums")
    if kind == "f16" and not value["d"] and (value["a"] or value["b"]):
        raise ValueError(f"sums='f16' of a={a!r}, b={b or a!r}: sums of bf16 are f32")
    group = 2 if pair else 1
    if columns not in columns_of(kind, rows, group):
        known = shapes_in_words(kind, group, False)
        raise ValueError(f"rows={rows}, columns={columns} of kind::{kind} must be {known} columns")
    if limit and kind != "i8" or (negate_a or negate_b) and kind == "i8":
        raise ValueError(f"limit={limit} is for kind::i8, and negate_a and negate_b for the others; not {kind}")
    return sum(int(number) << FIELDS[name][0] for name, number in value.items())


def columns_of(kind, rows, group=1, ws=False):
    """The columns that products of so many rows, of all blocks together, may have: PTX 9.7.16.2.1, table 39."""
    if rows not in HEIGHTS.get((group, ws), ()) or rows == 64 and kind.startswith("mx"):
        return ()
    if ws:
        return 64, 128, 256
    if kind == "i8":
        return range(32, 257, 32) if group == 2 else (8, 16, 24, *range(32, 257, 16))
    return range(8 * group, 257, 8 * group)


def shapes_in_words(kind, group, ws):
    """The rows and columns that products of a kind may have, in words."""
    found = []
    for rows in HEIGHTS.get((group, ws), ()):
        if columns := columns_of(kind, rows, group, ws):
            found.append(f"{rows} with {columns[0]}, {columns[1]} .. {columns[-1]}")
    return ", or ".join(found)


@cuda.jit(device=True, inline="always")
def tcgen05_descriptor(address, leading, stride, base, swizzle):
    """The 64-bit descriptor of a matrix in shared memory, with the operands of ``wgmma_descriptor``."""
    return wgmma_descriptor(address, leading, stride, base, swizzle) | uint64(SHARED_DESCRIPTOR)


# --- allocation ---------------------------------------------------------------------------------------
@intrinsic(void(u32, u32))
def tcgen05_alloc(dst, columns):
    """``tcgen05.alloc.cta_group::1.sync.aligned``: waits until ``columns`` (32, 64, 128, 256 or 512) are free
    in this SM, and writes the address of the first to the shared address ``dst``. By all lanes of one warp;
    the others read it behind a barrier. PTX ISA 9.7.16.7.1."""
    cpu().tcgen05_alloc(dst, columns)


@intrinsic(void(u32, u32))
def tcgen05_dealloc(address, columns):
    """``tcgen05.dealloc.cta_group::1.sync.aligned``: frees what one ``tcgen05_alloc`` gave, whole. By all lanes
    of one warp, any, when nobody uses it any more; a block frees all before it ends. PTX ISA 9.7.16.7.1."""
    cpu().tcgen05_dealloc(address, columns)


@intrinsic(void())
def tcgen05_relinquish_alloc_permit():
    """``tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned``: this block allocates no more, so that
    other blocks of the SM may. By all lanes of one warp. PTX ISA 9.7.16.7.1."""
    cpu().tcgen05_relinquish()


# --- order --------------------------------------------------------------------------------------------
@intrinsic(void())
def tcgen05_wait_ld():
    """``tcgen05.wait::ld.sync.aligned``: this warp's ``tcgen05_ld`` so far have brought their words, and the
    cells may be written again. PTX ISA 9.7.16.8.5."""
    cpu().tcgen05_wait("ld")


@intrinsic(void())
def tcgen05_wait_st():
    """``tcgen05.wait::st.sync.aligned``: this warp's ``tcgen05_st`` so far have written their cells.
    PTX ISA 9.7.16.8.5."""
    cpu().tcgen05_wait("st")


@intrinsic(void())
def tcgen05_fence_before_thread_sync():
    """``tcgen05.fence::before_thread_sync``: this thread's tcgen05 operations so far come before the barrier,
    or arrival, behind it. The CPU engine takes a barrier or mbarrier to order them by itself (bench/ENGINE.md).
    PTX ISA 9.7.16.11.1."""
    cpu()


@intrinsic(void())
def tcgen05_fence_after_thread_sync():
    """``tcgen05.fence::after_thread_sync``: this thread's tcgen05 operations from here on come behind the
    barrier, or wait, before it; see ``tcgen05_fence_before_thread_sync``. PTX ISA 9.7.16.11.1."""
    cpu()


@intrinsic(void(u32))
def tcgen05_commit(bar):
    """``tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64``: one arrival on the mbarrier at
    ``bar``, when all products that this thread has issued so far are over: they have read A and B, and written
    D. In place of an arrival of the thread, which would say nothing of them. PTX ISA 9.7.16.12.1."""
    cpu().tcgen05_commit(bar)


@intrinsic(void(u32, u32))
def tcgen05_commit_multicast(bar, blocks):
    """``tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64``: as
    ``tcgen05_commit``, on the barrier at the same place of each block of the cluster whose bit in ``blocks`` is
    set, bit r for rank r. PTX ISA 9.7.16.12.1."""
    thread = cpu()
    thread.block.cluster.commit_products(thread, bar, blocks)


# --- by a pair of blocks (cta_group::2) ------------------------------------------------------------------
@intrinsic(void(u32, u32))
def tcgen05_alloc_pair(dst, columns):
    """``tcgen05.alloc.cta_group::2.sync.aligned``: as ``tcgen05_alloc``, by a warp of each of two blocks whose
    ranks in their cluster are 2n and 2n + 1; each waits for the other. PTX ISA 9.7.16.7.1."""
    cpu().tcgen05_alloc(dst, columns, 2)


@intrinsic(void(u32, u32))
def tcgen05_dealloc_pair(address, columns):
    """``tcgen05.dealloc.cta_group::2.sync.aligned``: as ``tcgen05_dealloc``, by a warp of each block of the
    pair, when neither uses the columns any more. PTX ISA 9.7.16.7.1."""
    cpu().tcgen05_dealloc(address, columns, 2)


@intrinsic(void())
def tcgen05_relinquish_alloc_permit_pair():
    """``tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned``: as ``tcgen05_relinquish_alloc_permit``, in
    both blocks. PTX ISA 9.7.16.7.1."""
    cpu().tcgen05_relinquish(2)


@intrinsic(void(u32))
def tcgen05_commit_pair(bar):
    """``tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64``: as ``tcgen05_commit``, of
    products of the pair; ``bar`` may be the other block's (``mapa_shared_cluster``). PTX ISA 9.7.16.12.1."""
    cpu().tcgen05_commit(bar, 2)


@intrinsic(void(u32, u32))
def tcgen05_commit_multicast_pair(bar, blocks):
    """``tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64``: as
    ``tcgen05_commit_multicast``, of products of the pair. PTX ISA 9.7.16.12.1."""
    thread = cpu()
    thread.block.cluster.commit_products(thread, bar, blocks, 2)


@intrinsic(void(u32, u64, i32, i32, u32))
def cp_async_bulk_tensor_2d_pair(dst, map, c0, c1, bar):
    """``cp.async.bulk.tensor.2d.cta_group::2``: as ``cp_async_bulk_tensor_2d``, into this block, and ``bar``
    may be that of the pair's other block (``mapa_shared_cluster``). PTX ISA 9.7.9.25.5.2."""
    thread = cpu()
    thread.block.cluster.tensor_load(thread, dst, map, (c0, c1), bar, None, pair=True)


# --- products, loads and stores -----------------------------------------------------------------------
def _made(name, signature, model, section, doc):
    """The intrinsic of a model that stands for several."""
    model.__name__ = model.__qualname__ = name
    model.__code__ = model.__code__.replace(co_name=name)  # which errors show
    model.__doc__ = f"{textwrap.fill(' '.join(doc.split()), 110)}\nPTX ISA {section}."
    return intrinsic(signature)(model)


def _product(kind, in_tensor=False, group=1):
    """The intrinsic of a product of that kind; ``in_tensor``: A is in tensor memory; ``group``: blocks."""

    def mma(d, a, b, descriptor, adds):
        cpu().tcgen05_mma(kind, d, a, b, descriptor, bool(adds), in_tensor, (), (group,))

    where = "tensor memory, 8 columns at the address" if in_tensor else "shared memory, with the descriptor"
    doc = f"""``tcgen05.mma.cta_group::{group}.kind::{kind}``: D = A B^T + D, or A B^T where ``adds`` is 0, of
        {", ".join(KINDS[kind][1].values())}, A in {where} ``a``. D is in tensor memory at ``d``, each row in a
        lane; B in shared memory, with the descriptor ``b`` (``tcgen05_descriptor``). ``descriptor`` has types
        and size (``tcgen05_instruction_descriptor``). By ONE thread. Asynchronous: over for who has waited for
        a ``tcgen05_commit`` of that thread behind it. Products into one D follow each other."""
    if group == 2:
        doc += """ By one thread of the pair, for both blocks: each has its half of the rows of A and D, and of
        the rows of B (D's columns), at the same places of its own shared and tensor memory."""
    name = f"tcgen05_mma_{kind}{'_ta' * in_tensor}{'_pair' * (group == 2)}"
    return _made(name, void(u32, u32 if in_tensor else u64, u64, u32, u32), mma, "9.7.16.10.9.1", doc)


REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}  # of a lane, for .x1 of a shape
PLACES = {
    "32x32b": "lane l of the warp has its own row; word i is column i",
    "16x64b": "word i of lane l is row l // 4 + 8 (l % 2) of 16, column 2 i + l // 2 % 2",
    "16x128b": "word i of lane l is row l // 4 + 8 (i % 2) of 16, column 4 (i // 2) + l % 4",
    "16x256b": "word i of lane l is row l // 4 + 8 (i // 2 % 2) of 16, column 8 (i // 4) + 2 (l % 4) + i % 2",
}


def _words(shape, count):
    """The type of what a lane moves."""
    number = count * REGISTERS[shape]
    return types.UniTuple(u32, number) if number > 1 else u32


def _load(shape, count):
    """The intrinsic that loads that shape, so many times side by side."""

    def ld(address):
        words = cpu().tcgen05_ld(address, shape, count, False, 0)
        return words if len(words) > 1 else words[0]

    words = f"{count * REGISTERS[shape]} words" if shape != "32x32b" or count > 1 else "a word"
    doc = f"""``tcgen05.ld.sync.aligned.{shape}.x{count}.b32``: {words} of tensor memory from ``address`` on:
        {PLACES[shape]}. By all lanes of a warp, with one address, whose lane is one that the warp reaches.
        Asynchronous: use the words behind ``tcgen05_wait_ld`` (the CPU engine sees only that the cells are not
        written or freed before)."""
    return _made(f"tcgen05_ld_{shape}_x{count}", _words(shape, count)(u32), ld, "9.7.16.8.3", doc)


def _store(shape, count):
    """The intrinsic that stores what ``_load`` loads."""

    def st(address, words):
        words = words if isinstance(words, tuple) else (words,)
        cpu().tcgen05_st(address, shape, count, False, 0, words)

    doc = f"""``tcgen05.st.sync.aligned.{shape}.x{count}.b32``: a word, or a tuple of words, to where
        ``tcgen05_ld_{shape}_x{count}`` finds them. By all lanes of a warp. Asynchronous: over for the warp
        behind ``tcgen05_wait_st``."""
    return _made(f"tcgen05_st_{shape}_x{count}", void(u32, _words(shape, count)), st, "9.7.16.8.4", doc)


tcgen05_mma_f16, tcgen05_mma_f16_ta = _product("f16"), _product("f16", in_tensor=True)
tcgen05_mma_tf32, tcgen05_mma_tf32_ta = _product("tf32"), _product("tf32", in_tensor=True)
tcgen05_mma_f8f6f4, tcgen05_mma_f8f6f4_ta = _product("f8f6f4"), _product("f8f6f4", in_tensor=True)
tcgen05_mma_i8, tcgen05_mma_i8_ta = _product("i8"), _product("i8", in_tensor=True)

tcgen05_mma_f16_pair, tcgen05_mma_f16_ta_pair = _product("f16", group=2), _product("f16", True, 2)
tcgen05_mma_tf32_pair, tcgen05_mma_tf32_ta_pair = _product("tf32", group=2), _product("tf32", True, 2)
tcgen05_mma_f8f6f4_pair, tcgen05_mma_f8f6f4_ta_pair = _product("f8f6f4", group=2), _product("f8f6f4", True, 2)
tcgen05_mma_i8_pair, tcgen05_mma_i8_ta_pair = _product("i8", group=2), _product("i8", True, 2)

tcgen05_ld_32x32b_x1 = _load("32x32b", 1)
tcgen05_ld_32x32b_x2 = _load("32x32b", 2)
tcgen05_ld_32x32b_x4 = _load("32x32b", 4)
tcgen05_ld_32x32b_x8 = _load("32x32b", 8)
tcgen05_ld_32x32b_x16 = _load("32x32b", 16)
tcgen05_ld_32x32b_x32 = _load("32x32b", 32)
tcgen05_ld_32x32b_x64 = _load("32x32b", 64)
tcgen05_ld_32x32b_x128 = _load("32x32b", 128)
tcgen05_ld_16x64b_x8 = _load("16x64b", 8)
tcgen05_ld_16x64b_x16 = _load("16x64b", 16)
tcgen05_ld_16x64b_x32 = _load("16x64b", 32)
tcgen05_ld_16x128b_x4 = _load("16x128b", 4)
tcgen05_ld_16x128b_x8 = _load("16x128b", 8)
tcgen05_ld_16x128b_x16 = _load("16x128b", 16)
tcgen05_ld_16x256b_x2 = _load("16x256b", 2)
tcgen05_ld_16x256b_x4 = _load("16x256b", 4)
tcgen05_ld_16x256b_x8 = _load("16x256b", 8)
tcgen05_st_32x32b_x1 = _store("32x32b", 1)
tcgen05_st_32x32b_x2 = _store("32x32b", 2)
tcgen05_st_32x32b_x4 = _store("32x32b", 4)
tcgen05_st_32x32b_x8 = _store("32x32b", 8)
tcgen05_st_32x32b_x16 = _store("32x32b", 16)
tcgen05_st_32x32b_x32 = _store("32x32b", 32)
tcgen05_st_32x32b_x64 = _store("32x32b", 64)
tcgen05_st_32x32b_x128 = _store("32x32b", 128)
