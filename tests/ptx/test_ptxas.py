"""NVIDIA's assembler takes every text that these tests are made of: none asks about what is no PTX."""

import pytest
from forms import KNOWN, REFUSED, text_of
from generated import WGMMA, wgmma_text

core = pytest.importorskip("cuda.core", reason="its linker assembles PTX, and the CUDA packages are not there")
TEXTS = {f"wgmma {' '.join(map(str, case))}": wgmma_text(*case) for case in WGMMA}
TEXTS |= {f"wgmma {a}, A in registers": wgmma_text(d, a, b, 16, True) for d, a, b in (
    ("f32", "f16", "f16"), ("f32", "tf32", "tf32"), ("f16", "e4m3", "e4m3"), ("s32", "s8", "u8"))}  # fmt: skip
TEXTS["forms that are known"], TEXTS["forms that are refused"] = text_of(*KNOWN), text_of(*REFUSED)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_is_assembled(text):
    options = core.LinkerOptions(arch="sm_90a")
    linker = core.Linker(core.ObjectCode.from_ptx(text.encode()), options=options)
    assert linker.link("cubin").code
