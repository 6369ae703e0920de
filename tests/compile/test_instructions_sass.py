"""What the instructions of pipelines become: each PTX function, inlined, is one machine instruction by name."""

import importlib
import re
from collections import Counter

import pytest
from numba import types, uint32

from numba_deform.compiler import Kernel, kernel, u32
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.device.ptx import ptx_directory, read_ptx
from numba_deform.device.tensormap import tensormap_replace_box_dim, tensormap_replace_swizzle_mode

NUMBERS = {"f32": ("F32", 1, r"\.FTZ"), "f16x2": ("F16", 2, ""), "bf16x2": ("BF16", 2, "")}  # of a word
ATOMICS = {
    f"{name}_add_gpu_global_{form}{kind}":
        rf"{machine}\.E\.ADD\.{number}{f'x{words * count}' if words * count > 1 else ''}{ftz}\.RN\.STRONG\.GPU"
    for name, machine in (("red", "REDG"), ("atom", "ATOMG"))
    for kind, (number, words, ftz) in NUMBERS.items()
    for form, count in (("", 1), ("v2_", 2), ("v4_", 4))
} | {
    "red_add_gpu_global_u64": r"REDG\.E\.ADD\.64\.STRONG\.GPU",
    "red_add_cta_shared_u32": r"ATOMS\.ADD RZ", "red_add_cta_shared_f32": r"ATOMS\.CAST\.SPIN",
} | {
    f"red_{name}_cta_shared_{kind}": rf"ATOMS\.{name.upper()}{machine} RZ"
    for name in ("min", "max")
    for kind, machine in (("s32", r"\.S32"), ("u32", ""))
}  # fmt: skip
MACHINE_TYPES = {
    "u32": "", "b32": "", "s32": r"\.S32", "u64": r"\.U64", "b64": r"\.U64", "s64": r"\.S64",
    "f16": r"\.F16\.RN", "bf16": r"\.BF16\.RN", "f32": r"\.F32\.RN", "f64": r"\.F64\.RN",
}  # fmt: skip
REDUCED = {"add": "u32 s32 u64 f16 bf16 f32 f64", "inc": "u32", "dec": "u32"}
REDUCED |= dict.fromkeys(("min", "max"), "u32 s32 u64 s64 f16 bf16")
REDUCED |= dict.fromkeys(("and", "or", "xor"), "b32 b64")
REDUCTIONS = {
    f"cp_reduce_async_bulk_{op}_{kind}": rf"UBLKRED\.G\.S\.{op.upper()}{MACHINE_TYPES[kind]} "
    for op, kinds in REDUCED.items()
    for kind in kinds.split()
} | {
    f"cp_reduce_async_bulk_tensor_{rank}d_{op}": rf"UTMAREDG\.{rank}D\.{op.upper()} "
    for op in ("add", "min", "max", "and", "or", "xor")
    for rank in range(1, 6)
}
# A policy is put together from its priority's bits and the fraction.
HINTS = {
    f"createpolicy_fractional_{priority}": f"UMOV .*, {bits}"
    for priority, bits in (
        ("evict_first", "0x120"), ("evict_last", "0x140"),
        ("evict_normal", "0x160"), ("evict_unchanged", "0x100"),
    )
} | {
    "cp_async_bulk_load_hint": r"UBLKCP\.S\.G .*desc\[UR",
    "cp_async_bulk_store_hint": r"UBLKCP\.G\.S .*desc\[UR",
    "cp_async_bulk_prefetch": r"UBLKPF\.L2 ",
}  # fmt: skip
for rank in range(1, 6):
    HINTS[f"cp_async_bulk_tensor_{rank}d_hint"] = rf"UTMALDG\.{rank}D .*desc\[UR"
    HINTS[f"cp_async_bulk_tensor_{rank}d_store_hint"] = rf"UTMASTG\.{rank}D .*desc\[UR"
    HINTS[f"cp_async_bulk_prefetch_tensor_{rank}d"] = rf"UTMAPF\.L2\.{rank}D "
# shared::cluster addresses are generic ones to the machine; a reduction is an atomic whose result is dropped.
CLUSTER_FLAGS = {
    "ld_acquire": r"LD\.E\.STRONG\.GPU R", "ld_relaxed": r"LD\.E\.STRONG\.GPU R",
    "st_release": r"ST\.E\.STRONG\.GPU \[", "st_relaxed": r"ST\.E\.STRONG\.GPU \[",
    "atom_cas_acq_rel": r"ATOM\.E\.CAS\.STRONG\.GPU PT, R\d",
} | {
    f"{name}_add{order}": rf"ATOM\.E\.ADD\.STRONG\.GPU PT, {result}"
    for name, order, result in (
        ("atom", "", r"R\d"), ("atom", "_acq_rel", r"R\d"), ("red", "", "RZ"), ("red", "_release", "RZ"),
    )
}  # fmt: skip
CLUSTER_FLAGS = {
    f"{name}_cluster_shared_cluster_{'u32' if 'add' in name else 'b32'}": text
    for name, text in CLUSTER_FLAGS.items()
}
# Fields of a tensor map in shared memory are replaced by ordinary accesses: where, and under which mask.
TENSORMAP = {
    "global_address": r"STS\.64 \[", "rank": r"LOP3\.LUT .* 0x70, ", "box_dim": r"LOP3\.LUT .* 0xff0000, ",
    "global_dim": r"STS \[.*\+0x30\]", "global_stride": r"LOP3\.LUT .* 0xf000, ",
    "element_stride": r"LOP3\.LUT .* 0x7000, ", "elemtype": r"LOP3\.LUT .* 0x780, ",
    "interleave_layout": r"LOP3\.LUT .* 0x1800, ", "swizzle_mode": r"LOP3\.LUT .* 0x6000, ",
    "fill_mode": r"LOP3\.LUT .* 0x8000, ",
}  # fmt: skip
TENSORMAP = {f"tensormap_replace_{field}": text for field, text in TENSORMAP.items()}
TENSORMAP["tensormap_cp_fenceproxy"] = r"ATOMG\.E\.EXCH\.STRONG\.GPU"
# Family -> what each of its functions must leave, as a regular expression of one line of SASS.
SASS = {
    "atomics": ATOMICS, "cache": HINTS, "cluster_flags": CLUSTER_FLAGS, "reduce": REDUCTIONS,
    "tensormap": TENSORMAP,
    "cp_async": {
        "cp_async_ca_4": r"LDGSTS\.E\.ZFILL", "cp_async_ca_8": r"LDGSTS\.E\.64\.ZFILL",
        "cp_async_ca_16": r"LDGSTS\.E\.128\.ZFILL", "cp_async_wait_all": r"DEPBAR\.LE SB0, 0x0",
        "cp_async_mbarrier_arrive": r"ARRIVES\.LDGSTSBAR\.64\.TRANSCNT",
        "cp_async_mbarrier_arrive_noinc": r"ARRIVES\.LDGSTSBAR\.64\.ARVCNT",
    },
    "im2col": {
        f"cp_async_bulk_tensor_{rank}d_im2col": rf"UTMALDG\.{rank}D\.IM2COL " for rank in (3, 4, 5)
    },
    "griddepcontrol": {
        "griddepcontrol_launch_dependents": r"PREEXIT", "griddepcontrol_wait": r"ACQBULK",
    },
    "tokens": {
        "mbarrier_arrive_state": r"SYNCS\.ARRIVE\.TRANS64\.A1T0 R\d",
        "mbarrier_arrive_count_state": r"SYNCS\.ARRIVE\.TRANS64\.ART0 R\d",
        "mbarrier_arrive_expect_tx_state": r"SYNCS\.ARRIVE\.TRANS64 R\d",
        "mbarrier_arrive_noComplete": r"SYNCS\.ARRIVE\.TRANS64\.TMASK\.ART0 R\d",
        "mbarrier_pending_count": r"LOP3\.LUT .*0xfffff,",
        "mbarrier_test_wait": r"SYNCS\.PHASECHK\.TRANS64 P",
        "mbarrier_try_wait": r"SYNCS\.PHASECHK\.TRANS64\.TRYWAIT",
        "mbarrier_try_wait_hint": r"NANOSLEEP\.SYNCS", "mbarrier_try_wait_parity_hint": r"NANOSLEEP\.SYNCS",
    },
}  # fmt: skip
ARGUMENTS = {types.uint32: "word", types.int32: "index", types.uint64: "address", types.float32: "number"}
RESULTS = {types.uint32: "words", types.uint64: "states", types.float32: "numbers"}


def kernel_of(functions):
    """One kernel that calls all of them and stores what they return."""
    lines, scope, stored = [], {}, 0
    for one in functions:
        scope[one.__name__] = one
        call = f"{one.__name__}({', '.join(ARGUMENTS[kind] for kind in one.signature.args)})"
        result = one.signature.return_type
        name = f"r{len(lines)}"  # of its own, since results have different types
        parts = [f"{name}[{i}]" for i in range(getattr(result, "count", 0))] or [name] * (result != types.void)
        lines.append(f"{name} = {call}" if parts else call)
        for part in parts:
            lines.append(f"{RESULTS[getattr(result, 'dtype', result)]}[{stored}] = {part}")
            stored += 1
    body = "".join(f"    {line}\n" for line in lines)
    names = [*RESULTS.values(), *ARGUMENTS.values()]
    exec(f"def calls({', '.join(names)}):\n{body}", scope)
    signature = types.void(*(kind[:] for kind in RESULTS), *ARGUMENTS)
    return Kernel(scope["calls"], signature, 32)


@pytest.mark.parametrize("family", SASS)
def test_machine_instructions(family):
    """Each function leaves the instruction that it names, as often as it is named, and no call."""
    file = read_ptx(ptx_directory() / f"{family}.ptx")
    assert set(SASS[family]) == set(file)
    module = importlib.import_module(f"numba_deform.device.{family}")
    found = inspect_kernel(kernel_of([getattr(module, name) for name in file]))
    assert not found.instructions.get("CALL")
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", found.sass)
    wanted = Counter(SASS[family].values())
    counts = {text: sum(bool(re.search(text, line)) for line in instructions) for text in wanted}
    assert {text: n for text, n in counts.items() if n < wanted[text]} == {}


def test_a_constant_leaves_one_replacement():
    """The instruction has an immediate there: of the predicated ones, one stays."""

    @kernel(threads=32)
    def one(map: u32, x: u32):
        tensormap_replace_box_dim(map, uint32(3), x)
        tensormap_replace_swizzle_mode(map, uint32(2))

    assert inspect_kernel(one).instructions["STS"] == 2
