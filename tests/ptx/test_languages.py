"""Cures in the words of CUDA C++, Triton and PTX."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from stored import KERNELS, stored_triton

import numba_deform as nd
from numba_deform.engines import cpu, faults
from numba_deform.engines.cpu.frontends.ptx.languages import CURES, LANGUAGES, WORDS, put, translate

KINDS = [kind for kind in vars(faults).values() if inspect.isclass(kind) and issubclass(kind, faults.SimFault)]
# Of names of Numba's and of this package's functions, those that no other language has.
NUMBAS = re.compile(r"\bcuda\.[a-zA-Z]|(?<!_)\bsync(threads|warp)\b|\b(mbarrier|fence|cp_async|wgmma)_\w+\(")


def texts_of_cures():
    """What the engine's files say: all their texts, with a word in place of what is put in."""
    for file in Path(cpu.__file__).parent.rglob("*.py"):
        if "frontends" not in file.parts:
            for node in ast.walk(ast.parse(file.read_text())):
                text = getattr(node, "value", "")
                if type(node) is ast.Constant and type(text) is str and " " in text and "``" not in text:
                    yield text
    yield from (kind.cure for kind in KINDS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_keeps_words_of_numba(language):
    known = [text for text in texts_of_cures() if text[:1].isupper() and NUMBAS.search(text)]
    assert len(known) > 20
    for text in known:
        told = put(text, language)
        if not any(text == kind.cure and {*kind.__mro__} & {*CURES.get(language, ())} for kind in KINDS):
            assert not re.search(r"\bcuda\.[a-z]|(?<!_)\bsync(threads|warp)\b", told), (text, told)
        assert put(told, language) == told  # a fault may be translated twice


def test_every_row_is_of_use():
    texts = " ".join(texts_of_cures())
    parts = [row[0] for row in WORDS if not re.search(row[0], texts)]
    assert len(parts) <= 8, parts  # of texts that are put together


INVAL = "Put __syncthreads() between the last use and mbarrier.inval. A cuda::pipeline invalidates its "
INVAL += "barriers where it goes out of scope: put block.sync() or __syncthreads() before that."


@pytest.mark.parametrize("language, kind, cure", [
    ("cuda", faults.InvalNotOrdered, INVAL),
    ("ptx", faults.InvalNotOrdered, "Put bar.sync 0 between the last use and mbarrier.inval."),
    ("triton", faults.DataRace, "Put tl.debug_barrier() between the two accesses."),
    ("cuda", faults.Misaligned,
     "Give shared arrays __align__(128), and keep offsets multiples of the access size; or access less."),
    ("triton", faults.StaleWait, CURES["triton"][faults.InFlightRead]),
    ("cupy", faults.InvalNotOrdered, INVAL),
    ("gluon", faults.MissingInitFence,
     "Call fence.mbarrier_init.release.cluster (or fence.proxy.async) after mbarrier.init, then a barrier."),
    ("", faults.InvalNotOrdered, faults.InvalNotOrdered.cure),
])  # fmt: skip
def test_cures(language, kind, cure):
    fault = kind("")
    translate(fault, language)
    assert fault.cure == cure


HEADER = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry both(.param .u64 data, .param .u64 out) {
.reg .b32 %r<9>; .reg .b64 %rd<6>; .reg .pred %p<3>;
.shared .align 4 .b8 tile[256];
ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r5, 0; mov.u32 %r6, %ntid.x;
mul.wide.u32 %rd3, %r1, 4; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
shl.b32 %r3, %r1, 2; add.u32 %r3, %r2, %r3; sub.u32 %r4, 508, %r3; add.u32 %r4, %r4, %r2;
add.u32 %r4, %r4, %r2; sub.u32 %r4, %r4, 256;
"""
ROUND = """again:
ld.global.u32 %r7, [%rd1];
st.shared.u32 [%r3], %r7;
setp.le.u32 %p1, %r6, 32;
@%p1 bra past;
bar.sync 0;
past:
ld.shared.u32 %r7, [%r4];
add.u32 %r5, %r5, 1;
setp.lt.u32 %p2, %r5, 4;
@%p2 bra again;
st.global.u32 [%rd2], %r7;
ret;
}
"""


@pytest.mark.parametrize("change, words", [
    (("", ""), (":17 orders the two in one round", "Put bar.sync 0 at the end of each round of the loop")),
    (("%r6, 32", "%r1, 31"), ("has gone past the barrier between them, at", "Have all threads of the block")),
])  # fmt: skip
def test_barriers_in_a_branch_by_their_lines(change, words):
    """Without Python, the barrier that was passed last and the lines of the text tell the same."""
    kernel = nd.from_ptx(HEADER + ROUND.replace(*change))["both"]
    with pytest.raises(faults.DataRace) as caught:
        nd.simulate(kernel, 1, 64, [np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)])
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_reports():
    """From CUDA C++ and from Triton, by the files that the PTX names and by the door that it came through."""
    kernel = nd.from_ptx((KERNELS / "volatile.ptx").read_text())["scan_wrong"]
    with pytest.raises(faults.DataRace, match="cure   Put a barrier .__syncthreads"):
        nd.simulate(kernel, 1, 64, [np.zeros(64, np.int32)] * 2)
    compiled = stored_triton("triton_count")
    compiled.asm["ptx"] = compiled.asm["ptx"].replace("@%p1 st", "st")
    launch = nd.from_triton(compiled)[1](*(np.zeros(1, np.int32) for _ in range(3)))
    for search in (nd.simulate, nd.explore):
        with pytest.raises(faults.DataRace, match="tl.atomic_add|tl.debug_barrier"):
            search(launch)
