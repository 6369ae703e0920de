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


@pytest.mark.parametrize("language, kind, cure", [
    ("cuda", faults.InvalNotOrdered, "Put __syncthreads() between the last use and mbarrier.inval."),
    ("ptx", faults.InvalNotOrdered, "Put bar.sync 0 between the last use and mbarrier.inval."),
    ("triton", faults.DataRace, "Put tl.debug_barrier() between the two accesses."),
    ("cuda", faults.Misaligned,
     "Give shared arrays __align__(128), and keep offsets multiples of the access size."),
    ("triton", faults.StaleWait, CURES["triton"][faults.InFlightRead]),
    ("gluon", faults.MissingInitFence,
     "Call fence.mbarrier_init.release.cluster (or fence.proxy.async) after mbarrier.init, then a barrier."),
    ("", faults.InvalNotOrdered, faults.InvalNotOrdered.cure),
])  # fmt: skip
def test_cures(language, kind, cure):
    fault = kind("")
    translate(fault, language)
    assert fault.cure == cure


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
