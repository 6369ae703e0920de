"""Programs and bugs of others, judged again: the rows of bench/PTX_PROGRAMS.md that need our own sources alone,
and all where the folder in NUMBA_DEFORM_SOURCES has the repositories (``owner+name``)."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import ptx_programs
import real_bugs
from cuda_programs.judge import Case, run, toolkit

pytestmark = pytest.mark.full
SOURCES = os.environ.get("NUMBA_DEFORM_SOURCES")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    try:
        toolkit()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    if not shutil.which("c++"):
        pytest.skip("the host's code is compiled by a C++ compiler, and there is none")
    return tmp_path_factory.mktemp("programs")


def sources(repository):
    if repository and not SOURCES:
        pytest.skip(f"{repository} is looked for in NUMBA_DEFORM_SOURCES, which is not set")
    return Path(SOURCES or ".")


@pytest.mark.parametrize("bug", real_bugs.BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_real_bugs(bug, folder):
    """The cause before the fix, silence after it."""
    mirrors = sources(bug.repository)
    before, after = (real_bugs.judged(bug, fixed, folder, mirrors) for fixed in (0, 1))
    assert [one["verdict"] for one in after["launches"]] == ["silent"], after
    assert any(real_bugs.is_named(bug, one) for one in before["launches"]), before


@pytest.mark.parametrize("program", ptx_programs.PROGRAMS, ids=lambda p: p.name.replace(" ", "-"))
def test_programs(program, folder):
    """Silent as it is, and each planted fault named."""
    mirrors = sources(program.repository)
    if program.source.endswith(".py"):
        pytest.importorskip("triton")
    elif program.words:
        ptx_programs.originals.data(folder)
    found = ptx_programs.judged(program, folder, mirrors)
    assert [one["verdict"] for one in found["launches"]] == ["silent"], found
    assert all(ptx_programs.is_named(fault) for fault in found["faults"]), found["faults"]


@pytest.mark.parametrize("asks", [0, 1])
def test_much_shared_memory_is_asked_for_first(asks, folder):
    """As on a GPU, where a launch with more than 48 KB starts nothing unless the program asks for them."""
    source = folder / "much.cu"
    source.write_text(MUCH)
    found = run(Case(f"much-{asks}", str(source), [f"-DASKS={asks}"]), folder / "built")
    assert found["status"] == 1 - asks and len(found["launches"]) == asks, found


MUCH = """
__global__ void much(int *out) { extern __shared__ int words[]; words[15000] = 1; out[0] = words[15000]; }
int main() {
    int *out;
    cudaMalloc(&out, 4);
    if (ASKS) cudaFuncSetAttribute(much, cudaFuncAttributeMaxDynamicSharedMemorySize, 64000);
    much<<<1, 1, 64000>>>(out);
    int status = cudaGetLastError();
    return cudaGetLastError() ? 2 : status;
}
"""
