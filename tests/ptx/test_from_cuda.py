"""CUDA C++ as kernels of the engine: by stored PTX without a compiler, by nvcc and NVRTC where they are."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from stored import CUDA, KERNELS, of_cuda

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels
from numba_deform.engines.cpu.frontends.ptx.demangling import is_spelled, unmangled, with_arguments
from numba_deform.engines.tensormap import packed
from numba_deform.engines.tensormap.decoding import encoded

SOURCE = KERNELS / "ring.cu"
TEXT = (KERNELS / "ring.ptx").read_text()
NAMES = cuda_kernels.parameters(SOURCE.read_text())
needs_nvcc = pytest.mark.skipif(not cuda_kernels.nvcc(), reason="nvcc compiles CUDA C++, and is not there")


def ring(kernel, **more):
    data = np.random.default_rng(0).random((80, 32), np.float32)
    out, maps = np.zeros_like(data), nd.TensorMapArray([nd.TensorMap.of(data, (32, 8))])
    nd.simulate(kernel, 1, 64, [maps, out, 10], **more)
    return out, 2 * data


def test_the_stored_ring():
    out, right = ring(nd.from_ptx(TEXT)["ring"], schedules=3, landing="random")
    assert np.array_equal(out, right)


@pytest.mark.parametrize("instruction, fault, words, chain", [
    ("fence.mbarrier_init.release.cluster", faults.MissingInitFence, '"l"(map)', "inlined at ring.cu:60"),
    ("bar.sync", faults.BarrierFault, "mbarrier", ""),
    ("cp.async.bulk.tensor.2d", faults.MissingBytes, "mbarrier.try_wait", "inlined at ring.cu:65"),
    ("mbarrier.arrive.shared::cta.b64 _", faults.MissingArrivals, "mbarrier.try_wait", "inlined at ring.cu:58"),
])  # fmt: skip
def test_faults_name_the_line_of_the_source(instruction, fault, words, chain):
    """An instruction is taken out of the stored text."""
    text, count = re.subn(rf"{re.escape(instruction)}[^;]*;", "", TEXT)
    assert count
    with pytest.raises(fault) as caught:
        ring(nd.from_ptx(text)["ring"])
    file, _, line = caught.value.where.rpartition(":")
    lines = SOURCE.read_text().splitlines()
    start = int(line) - 1
    assert file == "ring.cu" and words in "".join(lines[start - 2 : start + 4])
    assert chain in caught.value.source


def sums_of_tiles(name):
    data, out = np.random.default_rng(0).random((8, 64), np.float32), np.zeros(64, np.float32)
    nd.simulate(nd.from_ptx((KERNELS / "stages.ptx").read_text())[name], 1, 64, [data, out, 8])
    return out, data.sum(axis=0)[::-1]


def test_a_ring_that_is_overrun():
    """Four copies into three stages: to wait before the fourth would lose what the first brings."""
    with pytest.raises(faults.CopyCollision) as caught:
        sums_of_tiles("overrun")
    assert caught.value.where == "stages.cu:15"
    for words in ("4 groups are under way, and there is room for 3", "Issue one stage less ahead",
                  "a barrier (__syncthreads()) passed", "give the ring one stage more"):  # fmt: skip
        assert words in caught.value.cure
    for cured in ("one_less_ahead", "one_stage_more"):
        assert np.array_equal(*sums_of_tiles(cured))


def test_names_of_arrays_and_parameters():
    assert NAMES == {"ring": ("map", "out", "tiles")}
    assert nd.from_ptx(TEXT, NAMES["ring"])["ring"].parameters == NAMES["ring"]
    with pytest.raises(ValueError, match="ring has 3 parameters, and 1 names: map"):
        nd.from_ptx(TEXT, ["map"])["ring"]
    with pytest.raises(faults.MissingInitFence, match=r"signals full\[0\]"):
        ring(nd.from_ptx(TEXT.replace("fence.mbarrier_init.release.cluster;", ""))["ring"])


def test_declarations():
    source = """
    /* __global__ void not_there(int x); */
    template <int N> __global__ void __launch_bounds__(128, 2) a(const float *__restrict__ x, int n = 3) {}
    extern "C" __global__ void b(const __grid_constant__ CUtensorMap map, float (&y)[4], long long z[2]) {}
    """
    assert cuda_kernels.parameters(source) == {"a": ("x", "n")}  # a reference to an array has its name inside
    attributes = "__cluster_dims__(4, 1, 1) __launch_bounds__((N + 1) * 32) __attribute__((cold))"
    source = f"__global__ void {attributes} c(float *in, float *out);"
    assert cuda_kernels.parameters(source) == {"c": ("in", "out")}


def test_a_cluster_that_the_kernel_says_itself():
    """What __cluster_dims__ makes: a launch need not repeat it, and cannot change it."""
    text = """.version 8.3
    .target sm_90a
    .address_size 64
    .entry ranks(.param .u64 out) .explicitcluster .reqnctapercluster 4, 1, 1
    {
        .reg .b32 block, rank;
        .reg .b64 to, more;
        ld.param.u64 to, [out];
        mov.u32 block, %ctaid.x;
        mov.u32 rank, %cluster_ctarank;
        mul.wide.u32 more, block, 4;
        add.s64 to, to, more;
        st.global.u32 [to], rank;
        ret;
    }"""
    kernel, out = nd.from_ptx(text)["ranks"], np.zeros(8, np.uint32)
    for cluster in (None, 4, (4, 1)):
        nd.simulate(kernel, 8, 1, [out], cluster=cluster)
        assert out.tolist() == [0, 1, 2, 3] * 2
    assert nd.explore(kernel, 4, 1, [out]).cluster == 4
    for cluster in (1, 2, (2, 2)):
        with pytest.raises(faults.BadLaunch, match="the kernel is compiled for clusters of .4, 1, 1"):
            nd.simulate(kernel, 8, 1, [out], cluster=cluster)
    with pytest.raises(faults.BadLaunch, match="is no multiple of cluster="):
        nd.simulate(kernel, 6, 1, [out])


@pytest.mark.parametrize("mangled, last, whole", [
    ("ring", "ring", "ring"), ("_Z4ringIiEvPf", "ring", "ring<int>"), ("_ZZ4ringE4tile", "tile", "tile"),
    ("_ZN6cudapy3mod3addB2v1E5ArrayIfLi1E1C7mutable7alignedE", "add", "add"),
    ("_ZZN3foo3barIfLi3EEEvPT_E6buffer", "buffer", "buffer"),
    ("_ZZ8ring_twoILi3EEvPKfPfiE4full_0", "full", "full"), ("_ZN12_GLOBAL__N_14testEv", "test", "test"),
    ("_Z11gemm_deviceIN4cute5tupleIJiiiEEENS1_IJNS0_1CILi128EEES4_NS3_ILi64EEEEEEEvT_T0_", "gemm_device",
     "gemm_device<tuple<int, int, int>, tuple<C<128>, C<128>, C<64>>>"),
    ("_Zsomething", "_Zsomething", "_Zsomething"),
])  # fmt: skip
def test_demangled(mangled, last, whole):
    assert (unmangled(mangled), with_arguments(mangled)) == (last, whole)


@pytest.mark.parametrize("name, known", [
    ("shift", True), ("outer::shift", True), ("shift<int,3>", True), ("outer::shift< int, 3 >", True),
    ("shift<int, 3>(int*)", True), ("hift", False), ("shift<int, 4>", False), ("inner::shift", False),
])  # fmt: skip
def test_spellings(name, known):
    assert is_spelled("_ZN5outer5shiftIiLi3EEEvPT_", name) is known


def test_kernels_of_one_template():
    entry = ".entry _Z1kI{}EvPi(.param .u64 out) {{ .reg .b64 x; ld.param.u64 x, [out]; "
    entry += "st.global.b32 [x], {}; ret; }}"
    head = ".version 8.3\n.target sm_90a\n.address_size 64\n"
    module = nd.from_ptx("\n".join([head, entry.format("i", 1), entry.format("f", 2)]))
    assert list(module) == ["k<int>", "k<float>"] and module["_Z1kIfEvPi"].name == "k<float>"
    with pytest.raises(KeyError, match="2 entries 'k'; it has k<int>, k<float>"):
        module["k"]


# --- maps -----------------------------------------------------------------------------------------------
def aligned(data):
    room = np.zeros(len(data) + 64, np.uint8)
    skip = -room.ctypes.data % 64
    room[skip : skip + len(data)] = np.frombuffer(data, np.uint8)
    return room[skip : skip + len(data)]


def test_an_encoded_map():
    """The 128 bytes as the driver encodes them are a map like any other, where its memory is the launch's."""
    data = np.random.default_rng(0).random((80, 32), np.float32)
    maps = aligned(encoded(packed.fields_of(nd.TensorMap.of(data, (32, 8)))))
    text = TEXT.replace(".param .u32 ring_param_2", ".param .u32 ring_param_2,\n\t.param .u64 ring_param_3")
    out = np.zeros_like(data)
    nd.simulate(nd.from_ptx(text)["ring"], 1, 64, [maps, out, 10, data])
    assert np.array_equal(out, 2 * data)


def test_a_map_in_a_structure():
    """A parameter that holds more than the map: struct { TensorMap map; int rows; }, and the map at 64."""
    data, out = np.random.default_rng(0).random((80, 32), np.float32), np.zeros((80, 32), np.float32)
    text = TEXT.replace("ring_param_0[128]", "ring_param_0[256]")
    text, count = re.subn(r"(mov\.b64\s+(%rd\d+), ring_param_0;)", r"\1 add.s64 \2, \2, 64;", text)
    assert count == 1
    maps = nd.TensorMapArray.in_struct(np.zeros(256, np.uint8), {64: nd.TensorMap.of(data, (32, 8))})
    nd.simulate(nd.from_ptx(text)["ring"], 1, 64, [maps, out, 10])
    assert np.array_equal(out, 2 * data)
    with pytest.raises(ValueError, match="a tensor map at byte 32 of 256"):
        nd.TensorMapArray.in_struct(np.zeros(256, np.uint8), {32: maps[0]})


def test_a_map_with_another_box():
    """Half a box: the bytes that the barrier expects do not come."""
    data = np.zeros((80, 32), np.float32)
    maps = nd.TensorMapArray([nd.TensorMap.of(data, (32, 4))])
    with pytest.raises(faults.MissingBytes):
        nd.simulate(nd.from_ptx(TEXT)["ring"], 1, 64, [maps, np.zeros_like(data), 10])
    maps = nd.TensorMapArray([nd.TensorMap.of(data.reshape(10, 8, 32), (32, 8, 1))])
    with pytest.raises(faults.BadTensorMap, match="a 2d copy with a map of rank 3"):
        nd.simulate(nd.from_ptx(TEXT)["ring"], 1, 64, [maps, np.zeros_like(data), 10])
    with pytest.raises(ValueError, match="argument tiles=1.5, the kernel says uint32: a whole number"):
        nd.simulate(nd.from_ptx(TEXT, NAMES["ring"])["ring"], 1, 64, [maps, np.zeros_like(data), 1.5])


# --- compilers --------------------------------------------------------------------------------------------
FAULTS = {0: None, 1: faults.InFlightRead, 2: faults.TooManyArrivals, 3: faults.FreshBarrierPassed,
          4: faults.MissingInitFence}  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize("number", FAULTS)
def test_the_ring_by_nvcc(number):
    """The right one, and four faults that its source has under FAULT."""
    kernel = nd.from_cuda(SOURCE, ["-std=c++17", f"-DFAULT={number}"])["ring"]
    assert kernel.parameters == ("map", "out", "tiles")
    if not number:
        out, right = ring(kernel)
        assert np.array_equal(out, right)
        return
    with pytest.raises(FAULTS[number]) as caught:
        ring(kernel)
    assert Path(caught.value.where.rpartition(":")[0]) == SOURCE


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="there are no CUDA packages")
def test_the_ring_by_nvrtc(tmp_path):
    out, right = ring(nd.from_cuda(SOURCE, ["-std=c++17"], "nvrtc")["ring"])
    assert np.array_equal(out, right)
    (tmp_path / "bad.cu").write_text("int ok;\n__global__ void f( {")
    with pytest.raises(ValueError, match=r"(?s)NVRTC does not compile .*bad.cu:\n.*bad.cu\(2\): error"):
        nd.from_cuda(tmp_path / "bad.cu", compiler="nvrtc")


@needs_nvcc
def test_errors_of_nvcc(tmp_path):
    (tmp_path / "bad.cu").write_text("int ok;\n__global__ void f( {")
    with pytest.raises(ValueError, match=r"(?s)nvcc does not compile .*bad.cu:\n.*bad.cu\(2\): error"):
        nd.from_cuda(tmp_path / "bad.cu")
    with pytest.raises(ValueError, match="give options=-arch=sm_100a"):
        nd.from_cuda(KERNELS / "tcgen05.cu")
    body = "#if __CUDA_ARCH__ >= 10000\n*x = 1;\n#endif"
    (tmp_path / "gone.cu").write_text(f"__global__ void f(int *x) {{\n{body}\n}}")
    with pytest.raises(faults.NothingRan, match="f has no instruction but ret"):
        nd.simulate(nd.from_cuda(tmp_path / "gone.cu")["f"], 1, 32, [np.zeros(1, np.int32)])


def test_without_a_compiler(monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"/none/nvcc does not start.*pip install 'numba_deform"):
        nd.from_cuda(SOURCE, compiler="/none/nvcc")
    with pytest.raises(FileNotFoundError):
        nd.from_cuda("no_such.cu")
    monkeypatch.setattr(cuda_kernels, "nvcc", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(FileNotFoundError, match=r"there is neither.*'numba_deform\[cuda\]' brings nvcc"):
        nd.from_cuda(SOURCE)


@pytest.mark.full
@needs_nvcc
@pytest.mark.parametrize("name", CUDA)
def test_stored_texts_are_what_nvcc_makes(name):
    made, kept = of_cuda(name), (KERNELS / f"{name}.ptx").read_text()
    if made.splitlines()[0] != kept.splitlines()[0]:
        pytest.skip(f"another version of nvcc: {made.splitlines()[0]} and not {kept.splitlines()[0]}")
    assert made == kept
