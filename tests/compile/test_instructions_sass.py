"""What the instructions of pipelines become: each PTX function, inlined, is one machine instruction by name."""

import importlib
import re

import pytest
from numba import cuda

from numba_deform.compiler import Kernel
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.device.ptx import ptx_directory, read_ptx

NUMBERS = {"f32": ("F32", 1, r"\.FTZ"), "f16x2": ("F16", 2, ""), "bf16x2": ("BF16", 2, "")}  # of a word
ATOMICS = {
    f"{name}_add_gpu_global_{form}{kind}":
        rf"{machine}\.E\.ADD\.{number}{f'x{words * count}' if words * count > 1 else ''}{ftz}\.RN\.STRONG\.GPU"
    for name, machine in (("red", "REDG"), ("atom", "ATOMG"))
    for kind, (number, words, ftz) in NUMBERS.items()
    for form, count in (("", 1), ("v2_", 2), ("v4_", 4))
}  # fmt: skip
# Family -> what each of its functions must leave, as a regular expression of one line of SASS.
SASS = {
    "atomics": ATOMICS,
    "cp_async": {
        "cp_async_ca_4": r"LDGSTS\.E\.ZFILL", "cp_async_ca_8": r"LDGSTS\.E\.64\.ZFILL",
        "cp_async_ca_16": r"LDGSTS\.E\.128\.ZFILL", "cp_async_wait_all": r"DEPBAR\.LE SB0, 0x0",
        "cp_async_mbarrier_arrive": r"ARRIVES\.LDGSTSBAR\.64\.TRANSCNT",
        "cp_async_mbarrier_arrive_noinc": r"ARRIVES\.LDGSTSBAR\.64\.ARVCNT",
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
ALL = [(family, name) for family, names in SASS.items() for name in names]


@pytest.mark.parametrize("family", SASS)
def test_each_function_is_here(family):
    assert set(SASS[family]) == set(read_ptx(ptx_directory() / f"{family}.ptx"))


@pytest.mark.parametrize(("family", "name"), ALL, ids=[name for _, name in ALL])
def test_machine_instruction(family, name):
    """A kernel that calls the intrinsic has the instruction, and no call."""
    one = getattr(importlib.import_module(f"numba_deform.device.{family}"), name)
    names = ", ".join(f"a{i}" for i in range(len(one.signature.args)))
    result = one.signature.return_type
    count = getattr(result, "count", 0 if result == cuda.types.void else 1)
    use = f"f({names})" if not count else f"out[0] = f({names})" if count == 1 else (
        f"r = f({names})\n" + "".join(f"    out[{i}] = r[{i}]\n" for i in range(count))
    )  # fmt: skip
    scope = {"f": one}
    exec(f"def kernel(out{', ' * bool(names)}{names}):\n    {use}\n", scope)
    out = getattr(result, "dtype", result) if count else cuda.types.uint32
    signature = cuda.types.void(out[:], *one.signature.args)
    found = inspect_kernel(Kernel(scope["kernel"], signature, 32))
    instructions = re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?);", found.sass)
    assert any(re.search(SASS[family][name], line) for line in instructions), instructions
    assert not found.instructions.get("CALL")
