"""PTX with slips of the hand is refused by its line, or judged: nothing else comes of it."""

import re

import numpy as np
import pytest
from mutated import TEXTS, judge, mutants

import numba_deform as nd

RING = TEXTS["ring_by_hand"]


def told(text):
    with pytest.raises(ValueError) as caught:
        list(nd.from_ptx(text).values())
    return str(caught.value)


@pytest.mark.parametrize("old, new, words", [
    (r"\.reg \.b32 +\w+, (\w+)", r".reg .b32 a \1", r"line \d+: '.reg .b32 a [^']*' declares no register"),
    (r"\.reg \.b32", ".reg .b33", r"line \d+: '.reg .b33 [^']*' declares no register"),
    (r"\.reg \.b32", ".reg .b32 %r<99999999999>,", r"line \d+: '.reg .b32 %r<9.*declares no register"),
    (r"\.reg \.pred[^;]*", ".reg .pred", r"line \d+: '.reg .pred' declares no register"),
    (r"bra +free;", "bra.uni ;", r"line \d+: bra: there is no such label"),
    (r"bra +free;", "bra free, come;", r"line \d+: bra free, come: there is no such label"),
    (r"@!done bra", "@!dome bra", r"line \d+: the guard dome is no register"),
    (r"mov\.u32[^;]*;", "mov.u32 at;", r"line \d+: mov.u32 at is not known"),
])  # fmt: skip
def test_slips(old, new, words):
    text, count = re.subn(old, new, RING, count=1)
    assert count and re.search(words, told(text)), told(text)


def test_a_text_without_its_last_ret():
    """It ends there all the same, also where a label stands last."""
    data, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    text = re.sub(r"ret;\s*\}\s*$", "}\n", RING)
    assert text != RING
    for last in (text, re.sub(r"\}\s*$", "end:\n}\n", text)):
        out[:] = 0
        nd.simulate(nd.from_ptx(last)["ring"], 1, 64, [data, out])
        assert np.array_equal(out, 2 * data)


def test_refusals_name_the_line_of_the_source():
    """Where the PTX tells it, for it is what the reader has; the PTX's own line stands beside it."""
    text = TEXTS["ring"].replace("fence.mbarrier_init.release.cluster;", "fence.wonder;")
    line = text[: text.index("fence.wonder")].count("\n") + 1
    assert re.match(rf"ring.cu:\d+: fence.wonder is not known .*\(line {line} of the PTX\)$", told(text))


def test_names_of_files_with_two_slashes():
    """A folder that was given with a slash at its end, which begins no comment."""
    text = TEXTS["ring"].replace('"ring.cu"', '"include//ring.cu"')
    text = text.replace("fence.mbarrier_init", "fence.wonder")
    assert told(text).startswith("include//ring.cu:")


@pytest.mark.parametrize("seed", ["quick", *(pytest.param(n, marks=pytest.mark.full) for n in range(10))])
def test_mutants(seed):
    for n, (name, text) in enumerate(mutants(150, seed)):
        error = judge(text, runs=n % 10 == 0)
        assert error is None, f"{name}: {type(error).__name__}: {error}"
