"""wgmma in machine code: accumulators stay where they are, and no product waits for the one before."""

import re

import pytest
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import kernel, static_range, u32, u64
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.warpgroup_product import WarpgroupProduct, build
from numba_deform.device import wgmma
from numba_deform.device.half2 import cvt_rn_f16x2_f32
from numba_deform.device.limits import HOPPER, LIMITS
from numba_deform.device.memory import dynamic_bytes, ld_shared_v4, st_global_b32
from numba_deform.device.sync import warp
from numba_deform.device.wgmma import wgmma_commit_group, wgmma_descriptor, wgmma_fence, wgmma_wait_group
from numba_deform.kernels import warp_product
from numba_deform.kernels.budget import occupancy

SMALL = WarpgroupProduct(rows=64, columns=64, stages=2, consumer_registers=256)
OTHER = WarpgroupProduct(rows=128, columns=128)
PRODUCTS = [
    f"m64n{columns}k16_{kind}{source}"
    for source, widths in (("", (64, 128, 256)), ("_ra", (64, 128)))
    for columns in widths for kind in ("f16", "bf16")
]  # fmt: skip
# each type and place of the left matrix; the rest is ``full``
QUICK = ("m64n64k16_f16", "m64n64k16_bf16_ra")


def steps(name, trans_a=0, trans_b=0):
    """A loop whose step is a group of two products, of which one group stays open, and a wait behind it."""
    columns = int(re.search(r"n(\d+)k", name)[1])
    one, wait = getattr(wgmma, f"wgmma_{name}"), getattr(wgmma, f"wgmma_wait_group_n{columns}")
    SUMS, TRANS_A, TRANS_B, IN_REGISTERS = columns // 2, trans_a, trans_b, name.endswith("ra")
    multiply = cuda.jit(lambda s, x, a, b, d: one(s, a, b, d, uint32(TRANS_A), uint32(TRANS_B)), device=True)
    if IN_REGISTERS:
        multiply = cuda.jit(
            lambda s, x, a, b, d: one(s, x[0], x[1], x[2], x[3], b, d, uint32(TRANS_B)), device=True
        )

    @kernel(threads=128)
    def loop(out: u64, tiles: u32, steps: u32):
        sums = cuda.local.array(SUMS, float32)
        x = ld_shared_v4(tiles)
        for step in range(steps):
            a = wgmma_descriptor(tiles, uint32(16), uint32(1024), uint32(0), uint32(1))
            wgmma_fence()
            multiply(sums, x, a, a + uint64(512), uint32(step))
            multiply(sums, x, a + uint64(2), a + uint64(514), uint32(1))
            wgmma_commit_group()
            wgmma_wait_group(uint32(1))
        wait(sums, uint32(0))
        for i in static_range(SUMS // 2):  # arithmetic, which the compiler would like to do as soon as it can
            st_global_b32(out + uint64(4 * i), cvt_rn_f16x2_f32(sums[2 * i], sums[2 * i + 1]))

    return inspect_kernel(loop)


def products(sass):
    """(opcode, what follows it) of each wgmma.mma_async."""
    return re.findall(r"(HGMMA\.[\w.]+) ([^;]*);", sass)


def stay_in_flight(sass, in_group):
    """No product waits for the one before, and none has its accumulators moved: there is a wait for each group
    of ``in_group`` products, and one at the end, and all have the same registers."""
    found = products(sass)
    assert len(found) == in_group * (sass.count("WARPGROUP.DEPBAR") - 1) > 0
    registers = {operands.split(",")[0] for _, operands in found}
    registers |= {re.search(r"gdesc\S+ (R\d+)", operands)[1] for _, operands in found}
    assert len(registers) == 1


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in PRODUCTS]
)
def test_products_stay_in_flight(name):
    found = steps(name)
    assert found.spill_loads == found.spill_stores == found.stack == 0 and "CALL" not in found.instructions
    columns, kind = re.fullmatch(r"m64n(\d+)k16_(b?f16)(?:_ra)?", name).groups()
    opcode = f"HGMMA.64x{columns}x16.F32" + ".BF16" * (kind == "bf16")
    assert {each for each, _ in products(found.sass)} == {opcode}
    stay_in_flight(found.sass, 2)
    in_registers = {bool(re.match(r"R\d+, R\d+, gdesc", operands)) for _, operands in products(found.sass)}
    assert in_registers == {name.endswith("ra")}


@pytest.mark.parametrize(
    "trans_a, trans_b", [(1, 1), *(pytest.param(*bits, marks=pytest.mark.full) for bits in ((0, 1), (1, 0)))]
)
def test_a_constant_transposition_leaves_one_instruction(trans_a, trans_b):
    found = steps("m64n64k16_f16", trans_a, trans_b)
    stay_in_flight(found.sass, 2)
    flags = {re.search(r"gdesc\[\w+\]([\w.]*)", operands)[1] for _, operands in products(found.sass)}
    assert flags == {".tnspA" * trans_a + ".tnspB" * trans_b}


def test_a_descriptor_is_its_fields():
    """With constants, and an address that is known at run time, little is left to compute."""

    @kernel(threads=32)
    def describe(out: u64, address: u32):
        d = wgmma_descriptor(address, uint32(4096), uint32(1024), uint32(5), uint32(1))
        st_global_b32(out, uint32(d))
        st_global_b32(out + uint64(4), uint32(d >> uint64(32)))

    found = inspect_kernel(describe)
    high = 1024 >> 4 | 5 << 17 | 1 << 30
    assert f"{high:#x}" in found.sass and "CALL" not in found.instructions


def test_a_product_to_swizzled_tiles():
    """256 columns of bfloat16: four products a step, and sums go from registers to tiles."""
    product = warp_product.WarpgroupProduct(256, "bfloat16").functions()

    @kernel(threads=128, whole_program=True)
    def multiply(a: u32, b: u32, c: u32, steps: u32):
        sums = product.zeros()
        for step in range(steps):
            product.add(sums, a, b, uint32(step))
            product.wait(sums, 0)
        product.store_tile(c, int32(16 * warp()), sums)

    found = inspect_kernel(multiply)
    assert found.spill_loads == found.spill_stores == found.stack == 0
    assert {each for each, _ in products(found.sass)} == {"HGMMA.64x256x16.F32.BF16"}
    assert found.instructions["STSM"] == 16 and found.instructions["HGMMA"] == 4
    assert found.sass.count("F2FP.BF16") == 64


@pytest.mark.parametrize(
    "config",
    [SMALL, *(pytest.param(each, marks=pytest.mark.full) for each in (WarpgroupProduct(), OTHER))],
    ids=["small", "default", "128x128"],
)  # fmt: skip
def test_tile_product(config):
    """The teaching kernel: four products a step, one fence, and a wait that leaves the last group open."""
    found = inspect_kernel(build(config))
    assert found.spill_loads == found.spill_stores == found.stack == 0
    counts = found.instructions
    assert "CALL" not in counts and "LDSM" not in counts
    assert counts["HGMMA"] == 4 and found.sass.count("WARPGROUP.ARRIVE") == 1
    stay_in_flight(found.sass, 4)
    assert counts["STSM"] == config.columns // 16
    assert counts["UTMALDG"] == 2 and counts["UTMASTG"] >= 1 and "USETMAXREG" in counts
    shared = dynamic_bytes(config.shared_bytes) or config.shared_bytes
    assert occupancy(config.threads, found.registers, shared, LIMITS[HOPPER]).blocks >= 1
