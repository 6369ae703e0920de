"""NVIDIA's assembler takes every text that these tests are made of: none asks about what is no PTX."""

import re

import pytest
from forms import KNOWN, REFUSED, is_blackwells, text_of
from generated import WGMMA, WMMA, wgmma_text, wmma_text
from stored import KERNELS

core = pytest.importorskip("cuda.core", reason="its linker assembles PTX, and the CUDA packages are not there")
TEXTS = {f"wgmma {' '.join(map(str, case))}": wgmma_text(*case) for case in WGMMA}
TEXTS |= {f"wgmma {a}, A in registers": wgmma_text(d, a, b, 16, True) for d, a, b in (
    ("f32", "f16", "f16"), ("f32", "tf32", "tf32"), ("f16", "e4m3", "e4m3"), ("s32", "s8", "u8"))}  # fmt: skip
TEXTS |= {f"wmma {' '.join(case)}": wmma_text(*case, ["row", "col"] * 2, [", 32"] * 4) for case in WMMA}
for _words, _forms in (("known", KNOWN), ("refused", REFUSED)):
    TEXTS[f"forms that are {_words}"] = text_of(*(form for form in _forms if not is_blackwells(form)))
TEXTS |= {form: text_of(form) for form in REFUSED if is_blackwells(form)}
for _other in (1, 2):  # a kernel has instructions of one group of blocks
    TEXTS[f"Blackwell, cta_group::{3 - _other}"] = text_of(
        *(form for form in KNOWN if is_blackwells(form) and f"cta_group::{_other}" not in form)
    )
TEXTS["tcgen05, programs"] = re.sub(r"\t\.loc.*\n", "", (KERNELS / "tcgen05.ptx").read_text())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_is_assembled(text):
    options = core.LinkerOptions(arch=re.search(r"\.target (\w+)", text)[1])
    linker = core.Linker(core.ObjectCode.from_ptx(text.encode()), options=options)
    assert linker.link("cubin").code
