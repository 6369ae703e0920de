"""Kernels of others by their own source, which is fetched by name and commit and not copied here: those of
cuda-samples, compiled by nvcc. As in ``other_kernels.py``: ``KERNELS``, ``CASES``, ``SMALL``.

    python bench/predicted_others.py prepare --mirrors FOLDER     # PTX and machine code into PREPARED

The machine code there is what is predicted and what is measured; no source, compiler or network is needed for
either. Blocks are those of the samples' own host code; so are grids, but where they do not fill a GPU: then it
is mostly ``MANY``."""

import functools
import math
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
from cuda_programs.sources import checkout
from other_kernels import numbers

import numba_deform as nd

PREPARED = Path(os.environ.get("OTHERS", Path(__file__).resolve().parents[1] / ".peers" / "others"))
SAMPLES = "NVIDIA/cuda-samples", "c94ff366aed18c797b8a85dfaac7817b0228b420"
PATHS = "Common/*.h", "Samples/*.cu", "Samples/*.cuh", "Samples/*.h"
M, MANY = 1 << 20, 1056
KERNELS = {}  # {name: what makes its Launch}
SOURCES = {}  # {name: (file of the samples, how its entry is spelled)}
# What the host writes to constants of a module; here they are compiled in.
CONSTANTS = {"c_Kernel": numbers(17), "stencil": numbers(5), "softeningSquared": np.array([0.01], np.float32),
             "c_Table": np.random.default_rng(1).integers(0, 1 << 31, (3, 31), np.uint32)}  # fmt: skip


# --- machine code ------------------------------------------------------------------------------------------
def of(file, **entries):
    """Decorator: ``make(name, *size)`` makes the Launch of each of these kernels, {name: spelled entry}."""

    def wrap(make):
        for name, entry in entries.items():
            SOURCES[name], KERNELS[name] = (file, entry), functools.partial(make, name)
        return make

    return wrap


def prepare(mirrors, folder=PREPARED):
    """Write NAME.ptx and NAME.cubin of every kernel, by nvcc and its ptxas."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = checkout(*SAMPLES, PATHS, folder.resolve().parent / "cuda-samples", mirrors)
    for file in sorted({file for file, _ in SOURCES.values()}):
        text = compiled(tree, tree / "Samples" / file)
        for name in (name for name, source in SOURCES.items() if source[0] == file):
            out = folder / f"{name}.ptx"
            out.write_text(alone(text, SOURCES[name][1]))
            words = ["ptxas", "-arch=sm_90a", str(out), "-o", str(out.with_suffix(".cubin"))]
            subprocess.run(words, check=True)


def compiled(tree, file):
    """The PTX of a sample, with the values of CONSTANTS."""
    include = (tree / "Common", file.parent, file.parent / "inc", file.parent.parent / "inc")
    words = ["nvcc", "-ptx", "-w", "-arch=sm_90a", *(f"-I{path}" for path in include), str(file), "-o", "-"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    for name, values in CONSTANTS.items():
        held = ", ".join(map(str, values.tobytes()))
        text = re.sub(rf"(?m)^(\.const .align \d+) \.\w+ (\w*{name}\w*)(\[\d+\])?;",
                      rf"\1 .b8 \2[{values.nbytes}] = {{{held}}};", text)  # fmt: skip
    return text


def alone(text, entry):
    """PTX without its entries but one."""
    name = nd.from_ptx(text)[entry].entry.name
    parts = re.split(r"(?m)^(?=\s*// \.globl|\.visible \.entry|\.entry)", text)
    return "".join(part for part in parts if ".entry" not in part or re.search(rf"\.entry {name}\(", part))


@functools.cache
def code(name):
    """A kernel that was prepared: of PTX, with its machine code."""
    (kernel,) = nd.from_ptx(PREPARED / f"{name}.ptx").values()
    kernel.cubin = (PREPARED / f"{name}.cubin").read_bytes()
    told = re.match(r"// dynamic shared memory: (\d+)", kernel.text)
    kernel.dynamic = int(told[1]) if told else 0
    made = SimpleNamespace(cubin=kernel.cubin, entry=kernel.entry.name, cooperative=False)
    kernel.compile = lambda architecture: made
    return kernel


def launch(name, grid, block, args, expected, shared=0, initial=(), **more):
    """A Launch; ``expected`` and ``initial`` are of arguments by their numbers."""
    kernel = code(name)
    kernel.block = block if isinstance(block, tuple) else (block,)
    kernel.shared_bytes = shared or kernel.dynamic
    args = [*args, *[0] * (len(kernel.parameters) - len(args))]  # Triton's, for memory that it does not need
    outs, begin = ({kernel.parameters[n]: x for n, x in dict(of).items()} for of in (expected, initial))
    return nd.Launch(kernel, grid, args, outs, initial=begin, **more)


def whole(*shape, below=1 << 30, dtype=np.uint32, seed=1):
    return np.random.default_rng(seed).integers(0, below, shape).astype(dtype)


# --- element by element ------------------------------------------------------------------------------------
@of("0_Introduction/vectorAdd/vectorAdd.cu", vectorAdd="vectorAdd")
def vector_add(name, n):
    a, b = numbers(n), numbers(n, seed=2)
    return launch(name, n // 256, 256, [a, b, np.empty_like(a), n], {2: a + b})


@of("5_Domain_Specific/HSOpticalFlow/flowCUDA.cu", AddKernel="AddKernel")
def add(name, n):
    a, b = numbers(n), numbers(n, seed=2)
    return launch(name, n // 256, 256, [a, b, n, np.empty_like(a)], {3: a + b})


@of("3_CUDA_Features/cudaCompressibleMemory/saxpy.cu", saxpy_float4="saxpy")
def saxpy_float4(name, n):
    x, y = numbers(n), numbers(n, seed=2)
    return launch(name, 264, 1024, [np.float32(2), x, y, np.empty_like(x), n // 4], {3: 2 * x + y})


@of("0_Introduction/asyncAPI/asyncAPI.cu", increment_kernel="increment_kernel")
def increment(name, n):
    x = whole(n)
    return launch(name, n // 512, 512, [x.copy(), 26], {0: x + 26}, initial={0: x})


@of("0_Introduction/simpleStreams/simpleStreams.cu", init_array="init_array")
def init_array(name, n, times):
    x = whole(n)
    args = [x.copy(), np.array([5], np.uint32), times]
    return launch(name, n // 512, 512, args, {0: x + np.uint32(5 * times)}, initial={0: x})


@of("2_Concepts_and_Techniques/inlinePTX/inlinePTX.cu", sequence_gpu="sequence_gpu")
def sequence(name, n):
    return launch(name, n // 256, 256, [np.empty(n, np.int32), n], {0: np.arange(n) % 32})


@of("6_Performance/alignedTypes/alignedTypes.cu", testKernel_uint8="testKernel<unsigned char>",
    testKernel_RGBA32="testKernel<RGBA32>")  # fmt: skip
def aligned_types(name, n):
    x = whole(n, below=256, dtype=np.uint8)
    size = 16 if name.endswith("32") else 1
    return launch(name, MANY, 256, [np.empty_like(x), x, n // size], {0: x})


@of("5_Domain_Specific/fastWalshTransform/fastWalshTransform.cu", modulateKernel="modulateKernel")
def modulate(name, n, blocks):
    a, b = numbers(n), numbers(n, seed=2)
    return launch(name, blocks, 256, [a.copy(), b, n], {0: a * b / n}, initial={0: a})


@of("5_Domain_Specific/convolutionFFT2D/convolutionFFT2D.cu",
    modulateAndNormalize_kernel="modulateAndNormalize_kernel")  # fmt: skip
def modulate_and_normalize(name, n):
    a, b = (numbers(n, 2, seed=seed) for seed in (1, 2))
    right = np.stack([a[:, 0] * b[:, 0] - a[:, 1] * b[:, 1], a[:, 0] * b[:, 1] + a[:, 1] * b[:, 0]], 1) / 4
    return launch(name, n // 256, 256, [a.copy(), b, n, np.float32(0.25)], {0: right}, initial={0: a})


@of("5_Domain_Specific/BlackScholes/BlackScholes.cu", BlackScholesGPU="BlackScholesGPU")
def black_scholes(name, n):
    dice = np.random.default_rng(1)
    s, x, t = (dice.uniform(*ends, n).astype(np.float32) for ends in ((5, 30), (1, 100), (0.25, 10)))
    rate, spread = 0.02, 0.3
    one = (np.log(s.astype(float) / x) + (rate + spread**2 / 2) * t) / (spread * np.sqrt(t))
    both, paid = [_normal(d) for d in (one, one - spread * np.sqrt(t))], x * np.exp(-rate * t.astype(float))
    call, put = s * both[0] - paid * both[1], paid * (1 - both[1]) - s * (1 - both[0])
    args = [np.empty_like(s), np.empty_like(s), s, x, t, np.float32(rate), np.float32(spread), n]
    return launch(name, n // 256, 128, args, {0: call, 1: put}, tolerance=1e-4)


def _normal(d):
    """The cumulative normal distribution, by Hastings' polynomial."""
    k = 1 / (1 + 0.2316419 * np.abs(d))
    poly = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    below = np.exp(-0.5 * d * d) * poly / math.sqrt(2 * math.pi)
    return np.where(d > 0, 1 - below, below)


@of("5_Domain_Specific/quasirandomGenerator/quasirandomGenerator_kernel.cu",
    quasirandomGeneratorKernel="quasirandomGeneratorKernel")  # fmt: skip
def quasirandom(name, n, blocks):
    words, found = np.arange(n, dtype=np.uint32) + np.uint32(7), np.zeros((3, n), np.uint32)
    for bit in range(31):
        found ^= np.where(words >> np.uint32(bit) & 1, CONSTANTS["c_Table"][:, bit, None], 0).astype(np.uint32)
    right = (found.astype(float) + 1) / 0x80000001
    return launch(name, blocks, (128, 3), [np.empty((3, n), np.float32), 7, n], {0: right})


@of("5_Domain_Specific/quasirandomGenerator/quasirandomGenerator_kernel.cu",
    inverseCNDKernel="inverseCNDKernel")  # fmt: skip
def inverse_normal(name, n, blocks):
    """Compared with what its results are the inverse of."""
    x = np.linspace(1 << 26, (1 << 32) - (1 << 26), n).astype(np.uint32)
    z = np.linspace(-3, 3, 4001)
    right = np.interp(x / 2.0**32, _normal(z), z)
    return launch(name, blocks, 128, [np.empty(n, np.float32), x, n], {0: right}, tolerance=1e-3)


@of("5_Domain_Specific/simpleGL/simpleGL.cu", simple_vbo_kernel="simple_vbo_kernel")
def vertices(name, n):
    v, u = np.mgrid[:n, :n] * (2 / n) - 1
    right = np.stack([u, np.sin(u * 4 + 0.5) * np.cos(v * 4 + 0.5) * 0.5, v, np.ones_like(u)], 2)
    args = [np.empty((n, n, 4), np.float32), n, n, np.float32(0.5)]
    return launch(name, (n // 8, n // 8), (8, 8), args, {0: right}, tolerance=1e-5)


@of("5_Domain_Specific/marchingCubes/marchingCubes_kernel.cu", compactVoxels="compactVoxels")
def compact(name, n):
    there = whole(n, below=2)
    places = np.cumsum(there, dtype=np.uint32) - there
    args = [np.empty(int(there.sum()), np.uint32), there, places, n]
    return launch(name, n // 128, 128, args, {0: np.flatnonzero(there)})


@of("5_Domain_Specific/SobolQRNG/sobol_gpu.cu", sobolGPU_kernel="sobolGPU_kernel")
def sobol(name, n, dimensions, blocks):
    directions, index = whole(dimensions, 32, below=1 << 32), np.arange(n)
    gray, found = index ^ index >> 1, np.zeros((dimensions, n), np.uint32)
    for bit in range(n.bit_length()):
        found ^= np.where(gray >> bit & 1, directions[:, bit, None], 0).astype(np.uint32)
    args = [n, dimensions, directions, np.empty((dimensions, n), np.float32)]
    return launch(name, (blocks, dimensions), 64, args, {3: found / 2.0**32}, tolerance=1e-6)


# --- sums and scans ----------------------------------------------------------------------------------------
def _by_blocks(x, each, blocks):
    """Sums of what ``blocks`` add that take ``each`` elements in turn."""
    sums = x.reshape(-1, each).sum(1, dtype=x.dtype)
    found = np.zeros(blocks, x.dtype)
    np.add.at(found, np.arange(len(sums)) % blocks, sums)
    return found


@of("2_Concepts_and_Techniques/reduction/reduction_kernel.cu", reduce0="reduce0<int>", reduce1="reduce1<int>",
    reduce2="reduce2<int>", reduce3="reduce3<int>", reduce4="reduce4<int, 256>", reduce5="reduce5<int, 256>",
    reduce6="reduce6<int, 256, 1>", reduce7="reduce7<int, 256, 1>", cg_reduce="cg_reduce<int>")  # fmt: skip
def reductions(name, n):
    each = 256 if name in ("reduce0", "reduce1", "reduce2", "cg_reduce") else 512
    blocks = n // each if re.fullmatch(r"reduce[0-5]", name) else min(MANY, n // each)
    x = whole(n, below=256, dtype=np.int32)
    args = [x, np.empty(blocks, np.int32), n]
    return launch(name, blocks, 256, args, {1: _by_blocks(x, each, blocks)}, shared=1024)


@of("2_Concepts_and_Techniques/scalarProd/scalarProd.cu", scalarProdGPU="scalarProdGPU")
def scalar_product(name, vectors, width):
    a, b = numbers(vectors, width), numbers(vectors, width, seed=2)
    right = np.einsum("ij,ij->i", a.astype(float), b)
    args = [np.empty(vectors, np.float32), a, b, vectors, width]
    return launch(name, min(MANY, vectors), 256, args, {0: right}, tolerance=1e-4)


@of("0_Introduction/fp16ScalarProduct/fp16ScalarProduct.cu",
    scalarProductKernel_native="scalarProductKernel_native")  # fmt: skip
def half_scalar_product(name, n, blocks):
    """All blocks begin at nearly the same place, as the sample has it; few ones, so that halves are exact."""
    a, b = (np.where(whole(n, 2, below=8, seed=seed) == 0, 1, 0).astype(np.float16) for seed in (1, 2))
    stride = blocks * 128
    products = np.pad((a.astype(np.float32) * b).sum(1), (0, -n % stride + stride))
    sums = products.reshape(-1, stride).sum(0)  # of what is as many strides apart
    right = [sums[128 + block : 256 + block].sum() for block in range(blocks)]
    return launch(name, blocks, 128, [a, b, np.empty(blocks, np.float32), n], {2: right})


@of("2_Concepts_and_Techniques/scan/scan.cu", scanExclusiveShared="scanExclusiveShared")
def scan_exclusive(name, n):
    x = whole(n, below=256).reshape(-1, 1024)
    return launch(name, n // 1024, 256, [np.empty_like(x), x, 1024], {0: x.cumsum(1, dtype=np.uint32) - x})


@of("2_Concepts_and_Techniques/scan/scan.cu", uniformUpdate="uniformUpdate")
def uniform_update(name, n):
    x, more = whole(n // 1024, 1024), whole(n // 1024, seed=2)
    return launch(name, n // 1024, 256, [x.copy(), more], {0: x + more[:, None]}, initial={0: x})


@of("2_Concepts_and_Techniques/shfl_scan/shfl_scan.cu", shfl_scan_test="shfl_scan_test")
def shuffle_scan(name, n):
    x = whole(n // 256, 256, below=256, dtype=np.int32)
    right = x.cumsum(1, dtype=np.int32)
    args = [x.copy(), 32, np.empty(len(x), np.int32)]
    return launch(name, len(x), 256, args, {0: right, 2: right[:, -1]}, shared=32, initial={0: x, 2: 0})


@of("2_Concepts_and_Techniques/shfl_scan/shfl_scan.cu", shfl_intimage_rows="shfl_intimage_rows")
def integral_rows(name, height):
    """Rows of 1920 bytes."""
    x = whole(height, 1920, below=256, dtype=np.uint8)
    args = [x, np.empty((height, 1920), np.uint32)]
    return launch(name, height, 120, args, {1: x.cumsum(1, dtype=np.uint32)})


@of("2_Concepts_and_Techniques/shfl_scan/shfl_scan.cu", shfl_vertical_shfl="shfl_vertical_shfl")
def integral_columns(name, width):
    """Columns of 1080."""
    x = whole(1080, width, below=256)
    right = x.cumsum(0, dtype=np.uint32)
    return launch(name, width // 32, (32, 8), [x.copy(), width, 1080], {0: right}, initial={0: x})


@of("2_Concepts_and_Techniques/histogram/histogram64.cu", histogram64Kernel="histogram64Kernel")
def histogram64(name, n, blocks):
    x = whole(n, below=256, dtype=np.uint8)
    block = np.repeat(np.arange(n // 16) // 64 % blocks, 16)
    right = np.bincount(block * 64 + (x >> 2), minlength=blocks * 64)
    return launch(name, blocks, 64, [np.empty(blocks * 64, np.uint32), x, n // 16], {0: right})


@of("2_Concepts_and_Techniques/histogram/histogram256.cu", histogram256Kernel="histogram256Kernel")
def histogram256(name, n, blocks):
    x = whole(n, below=256, dtype=np.uint8)
    block = np.repeat(np.arange(n // 4) // 192 % blocks, 4)
    right = np.bincount(block * 256 + x, minlength=blocks * 256)
    return launch(name, blocks, 192, [np.empty(blocks * 256, np.uint32), x, n // 4], {0: right})


@of("2_Concepts_and_Techniques/histogram/histogram256.cu", mergeHistogram256Kernel="mergeHistogram256Kernel")
def merge_histograms(name, count):
    x = whole(count, 256, below=1000)
    return launch(name, 256, 256, [np.empty(256, np.uint32), x, count], {0: x.sum(0)})


@of("3_CUDA_Features/binaryPartitionCG/binaryPartitionCG.cu", oddEvenCountAndSumCG="oddEvenCountAndSumCG")
def odd_even(name, n, blocks):
    x = whole(n, below=50, dtype=np.int32)
    sums = [x[x % 2 == 1].sum(), x[x % 2 == 0].sum()]
    args = [x, np.zeros(1, np.int32), np.zeros(2, np.int32), n]
    return launch(name, blocks, 256, args, {1: [(x % 2).sum()], 2: sums}, initial={1: 0, 2: 0})


@of("3_CUDA_Features/jacobiCudaGraphs/jacobi.cu", JacobiMethod="JacobiMethod")
def jacobi(name):
    """A system of 512 rows, as the sample has it compiled in."""
    n, dice = 512, np.random.default_rng(1)
    a, b, x = dice.random((n, n)).astype(np.float32), dice.random(n), dice.random(n)
    a += 9 * np.eye(n, dtype=np.float32)
    step = (b - a.astype(float) @ x) / np.diag(a)
    args = [a, b, np.float32(0.01), x, np.empty(n), np.zeros(1)]
    return launch(name, n // 4 + 2, 256, args, {4: x + step, 5: [np.abs(step).sum()]}, initial={4: 0, 5: 0},
                  tolerance=1e-9)  # fmt: skip


# --- sorting -----------------------------------------------------------------------------------------------
def _keys(n):
    """Keys, each once, and values."""
    return np.random.default_rng(1).permutation(n).astype(np.uint32).reshape(-1, 1024), whole(n // 1024, 1024)


def _sorting(name, args, keys, values, order, **more):
    right = {n: np.take_along_axis(x, order, 1) for n, x in enumerate((keys, values))}
    args = [np.empty_like(keys), np.empty_like(keys), keys, values, *args]
    return launch(name, len(keys), 512, args, right, **more)


@of("2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu", bitonicSortShared="bitonicSortShared")
@of("2_Concepts_and_Techniques/sortingNetworks/oddEvenMergeSort.cu",
    oddEvenMergeSortShared="oddEvenMergeSortShared")  # fmt: skip
def sort_shared(name, n):
    keys, values = _keys(n)
    return _sorting(name, [1024, 1], keys, values, keys.argsort(1))


@of("0_Introduction/mergeSort/mergeSort.cu", mergeSortSharedKernel="mergeSortSharedKernel<1>")
def merge_sort_shared(name, n):
    keys, values = _keys(n)
    return _sorting(name, [1024], keys, values, keys.argsort(1))


@of("2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu", bitonicSortShared1="bitonicSortShared1")
def sort_to_and_fro(name, n):
    """Every other part downwards."""
    keys, values = _keys(n)
    order = keys.argsort(1)
    order[::2] = order[::2, ::-1]
    return _sorting(name, [], keys, values, order)


@of("2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu", bitonicMergeGlobal="bitonicMergeGlobal")
def merge_global(name, n):
    """The first step of a merge of all."""
    keys, values = (x.ravel() for x in _keys(n))
    low, high = slice(0, n // 2), slice(n // 2, n)
    swapped, right = keys[low] > keys[high], []
    for x in keys, values:
        right.append(np.concatenate([np.where(swapped, x[high], x[low]), np.where(swapped, x[low], x[high])]))
    args = [np.empty_like(keys), np.empty_like(keys), keys, values, n, n, n // 2, 1]
    return launch(name, n // 512, 256, args, dict(enumerate(right)))


@of("2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu", bitonicMergeShared="bitonicMergeShared")
def merge_shared(name, n):
    """The last ten steps of a merge of all, of parts that go up and then down."""
    keys, values = _keys(n)
    keys.sort(1)
    keys[:, 512:] = keys[:, :511:-1]
    return _sorting(name, [n, n, 1], keys, values, keys.argsort(1))


# --- matrices ----------------------------------------------------------------------------------------------
@of("6_Performance/transpose/transpose.cu", **{name: name for name in (
    "copySharedMem", "transposeNaive", "transposeCoalesced", "transposeNoBankConflicts", "transposeDiagonal",
    "transposeFineGrained", "transposeCoarseGrained")})  # fmt: skip
def transposes(name, n):
    x = numbers(n, n)
    tiles = x.reshape(n // 32, 32, n // 32, 32)
    axes = {"copySharedMem": (0, 1, 2, 3), "transposeFineGrained": (0, 3, 2, 1),
            "transposeCoarseGrained": (2, 1, 0, 3)}.get(name, (2, 3, 0, 1))  # fmt: skip
    right = tiles.transpose(axes).reshape(n, n)
    return launch(name, (n // 32, n // 32), (32, 16), [np.empty_like(x), x, n, n], {0: right})


@of("5_Domain_Specific/recursiveGaussian/recursiveGaussian_cuda.cu", d_transpose="d_transpose")
def transpose_16(name, n):
    x = whole(n, n)
    return launch(name, (n // 16, n // 16), (16, 16), [np.empty_like(x), x, n, n], {0: x.T})


@of("0_Introduction/matrixMul/matrixMul.cu", MatrixMulCUDA="MatrixMulCUDA<32>")
@of("3_CUDA_Features/globalToShmemAsyncCopy/globalToShmemAsyncCopy.cu", **{
    f"MatrixMul{kind}": f"MatrixMul{kind}<16>"
    for kind in ("Naive", "NaiveLargeChunk", "AsyncCopySingleStage", "AsyncCopyLargeChunk",
                 "AsyncCopyMultiStage", "AsyncCopyMultiStageLargeChunk", "AsyncCopyLargeChunkAWBarrier",
                 "AsyncCopyMultiStageSharedState")})  # fmt: skip
def products(name, n):
    side = 32 if name == "MatrixMulCUDA" else 16
    rows = side + 2 * name.endswith("SharedState")
    a, b = numbers(n, n), numbers(n, n, seed=2)
    right = a.astype(float) @ b
    if "LargeChunk" in name:  # as the sample has it, a part of B is where the part of A is
        parts = [x.reshape(-1, 16, n // 16, 16).transpose(0, 2, 1, 3).astype(float) for x in (a, b)]
        right = np.tile((parts[0] @ parts[1]).sum(1).reshape(n, 16), n // 16)
    args = [np.empty_like(a), a, b, n, n]
    return launch(name, (n // side, n // side), (side, rows), args, {0: right}, tolerance=1e-4)


@of("3_CUDA_Features/cudaTensorCoreGemm/cudaTensorCoreGemm.cu", simple_wmma_gemm="simple_wmma_gemm")
@of("3_CUDA_Features/bf16TensorCoreGemm/bf16TensorCoreGemm.cu", simple_wmma_bf16gemm="simple_wmma_bf16gemm")
@of("3_CUDA_Features/tf32TensorCoreGemm/tf32TensorCoreGemm.cu", simple_wmma_tf32gemm="simple_wmma_tf32gemm")
@of("3_CUDA_Features/immaTensorCoreGemm/immaTensorCoreGemm.cu", simple_wmma_gemm_imma="simple_wmma_gemm_imma")
def tensor_products(name, n):
    """By tensor cores, 64 x 64 of the result a block."""
    a, b, c = (whole(n, n, below=8, dtype=np.int32, seed=seed) for seed in (1, 2, 3))
    kind, times = np.int32 if name.endswith("imma") else np.float32, b.T
    if name == "simple_wmma_bf16gemm":  # as the sample has it, the parts of B are where they are, transposed
        times = b.reshape(-1, 16, n // 16, 16).transpose(0, 3, 2, 1).reshape(n, n)
    right = 2 * (a.astype(float) @ times) + 3 * c
    given = {"simple_wmma_gemm": np.float16, "simple_wmma_bf16gemm": ml_dtypes.bfloat16,
             "simple_wmma_tf32gemm": np.float32, "simple_wmma_gemm_imma": np.uint8}[name]  # fmt: skip
    args = [a.astype(given), b.astype(given), c.astype(kind), np.empty((n, n), kind), n, n, n]
    scales = [2, 3] if kind == np.int32 else [np.float32(2), np.float32(3)]
    return launch(name, (n // 64, n // 64), (128, 4), args + scales, {3: right.astype(kind)})


# --- neighbours --------------------------------------------------------------------------------------------
@of("2_Concepts_and_Techniques/convolutionSeparable/convolutionSeparable.cu",
    convolutionRowsKernel="convolutionRowsKernel",
    convolutionColumnsKernel="convolutionColumnsKernel")  # fmt: skip
def convolutions(name, n):
    x, is_rows = numbers(n, n), name == "convolutionRowsKernel"
    wide, right = np.pad(x, ((0, 0), (8, 8)) if is_rows else ((8, 8), (0, 0))), np.zeros((n, n))
    for k, weight in enumerate(CONSTANTS["c_Kernel"][::-1]):
        right += weight * (wide[:, k : k + n] if is_rows else wide[k : k + n]).astype(float)
    shape = ((n // 128, n // 4), (16, 4)) if is_rows else ((n // 16, n // 64), (16, 8))
    return launch(name, *shape, [np.empty_like(x), x, n, n, n], {0: right}, tolerance=1e-5)


@of("5_Domain_Specific/FDTD3d/src/FDTD3dGPU.cu", FiniteDifferencesKernel="FiniteDifferencesKernel")
def finite_differences(name, across, deep):
    """Four neighbours to each side, in three dimensions; rows begin as the sample aligns them."""
    shape = (deep + 8, across + 8, across + 8)
    x, out = (np.zeros(28 + math.prod(shape), np.float32)[28:].reshape(shape) for _ in range(2))
    x[...] = numbers(*shape)
    weights, right, wide = CONSTANTS["stencil"].astype(float), np.zeros(shape), x.astype(float)
    inside = right[4:-4, 4:-4, 4:-4]
    inside += weights[0] * wide[4:-4, 4:-4, 4:-4]
    for axis in range(3):
        for k in range(-4, 5):
            part = [slice(4 + k * (a == axis), 4 + k * (a == axis) + size - 8) for a, size in enumerate(shape)]
            inside += weights[abs(k)] * wide[tuple(part)] if k else 0
    return launch(name, (across // 32, across // 16), (32, 16), [out, x, across, across, deep], {0: right},
                  initial={0: 0}, tolerance=1e-5)  # fmt: skip


@of("5_Domain_Specific/HSOpticalFlow/flowCUDA.cu", JacobiIteration="JacobiIteration<32, 6>")
def optical_flow(name, n):
    du, dv, x, y, z = (numbers(n, n, seed=seed) for seed in range(1, 6))
    sums = []
    for d in du, dv:
        wide = np.pad(d.astype(float), 1, "edge")
        sums.append((wide[1:-1, :-2] + wide[1:-1, 2:] + wide[:-2, 1:-1] + wide[2:, 1:-1]) / 4)
    share = (x * sums[0] + y * sums[1] + z) / (x.astype(float) ** 2 + y.astype(float) ** 2 + 0.5)
    args = [du, dv, x, y, z, n, n, n, np.float32(0.5), np.empty_like(du), np.empty_like(du)]
    return launch(name, (n // 32, n // 6), (32, 6), args, {9: sums[0] - x * share, 10: sums[1] - y * share},
                  tolerance=1e-5)  # fmt: skip


@of("2_Concepts_and_Techniques/boxFilter/boxFilter_kernel.cu", d_boxfilter_x_global="d_boxfilter_x_global",
    d_boxfilter_y_global="d_boxfilter_y_global")  # fmt: skip
def box_filter(name, lines, length, radius):
    """A thread a line; the edge's numbers go on outside."""
    x, size = numbers(lines, length), 2 * radius + 1
    wide = np.pad(x.astype(float), ((0, 0), (radius + 1, radius)), "edge").cumsum(1)
    right, args = (wide[:, size:] - wide[:, :-size]) / size, [x, np.empty_like(x), length, lines, radius]
    if name == "d_boxfilter_y_global":
        args, right = [x.T.copy(), np.empty((length, lines), np.float32), lines, length, radius], right.T
    return launch(name, lines // 64, 64, args, {1: right}, tolerance=1e-4)


@of("5_Domain_Specific/recursiveGaussian/recursiveGaussian_cuda.cu",
    d_simpleRecursive_rgba="d_simpleRecursive_rgba")  # fmt: skip
def recursive_filter(name, width, height):
    """A thread a column, there and back; colours may round to the next number."""
    x, a = whole(height, width, 4, below=256, dtype=np.uint8), 0.6
    ways = []
    for way in x, x[::-1]:
        last, found = way[0] / 255, []
        for row in way:
            last = row / 255 + a * (last - row / 255)
            found.append(last)
        ways.append(np.stack(found))
    there = np.floor(ways[0].clip(0, 1) * 255 + 1e-4) / 255
    right = np.floor(((there + ways[1][::-1]) / 2).clip(0, 1) * 255)
    args = [x, np.empty_like(x), width, height, np.float32(a)]
    return launch(name, width // 64, 64, args, {1: right}, tolerance=1.5 / 255)


# --- transforms --------------------------------------------------------------------------------------------
@of("2_Concepts_and_Techniques/dct8x8/dct8x8.cu", CUDAkernel2DCT="CUDAkernel2DCT",
    CUDAkernel2IDCT="CUDAkernel2IDCT")  # fmt: skip
def cosine_transform(name, n):
    k, m = np.mgrid[:8, :8]
    base = np.cos((2 * m + 1) * k * np.pi / 16) * np.where(k, 0.5, math.sqrt(1 / 8))
    base = base.T if name.endswith("IDCT") else base
    x = numbers(n, n)
    tiles = x.reshape(n // 8, 8, n // 8, 8).transpose(0, 2, 1, 3)
    right = (base @ tiles @ base.T).transpose(0, 2, 1, 3).reshape(n, n)
    return launch(name, (n // 32, n // 16), (8, 4, 2), [np.empty_like(x), x, n], {0: right}, tolerance=1e-5)


@of("2_Concepts_and_Techniques/dct8x8/dct8x8.cu", CUDAkernelQuantizationFloat="CUDAkernelQuantizationFloat")
def quantization(name, n):
    """By the table that the sample has compiled in; numbers are far from where they round the other way."""
    text = re.search(r"\.b8 Q\[128\] = \{(.*?)\}", code(name).text)[1]  # without zeros at its end
    steps = np.array((text.split(",") + ["0"])[:128], np.uint8).view(np.int16).reshape(8, 8)
    right = (np.tile(steps, (n // 8, n // 8)) * (whole(n, n, below=9) - 4.0)).astype(np.float32)
    x = right + numbers(n, n, seed=2).clip(-5, 5)
    return launch(name, (n // 8, n // 8), (8, 8), [x.copy(), n], {0: right}, initial={0: x})


@of("5_Domain_Specific/fastWalshTransform/fastWalshTransform.cu", fwtBatch1Kernel="fwtBatch1Kernel")
def walsh(name, rows, log):
    x = numbers(rows, 1 << log)
    right = x.astype(float)
    for bit in range(log):
        pairs = right.reshape(rows, -1, 2, 1 << bit)
        right = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2)
    args = [np.empty_like(x), x, log]
    return launch(name, rows, (1 << log) // 4, args, {0: right.reshape(x.shape)}, shared=4 << log,
                  tolerance=1e-5)  # fmt: skip


@of("5_Domain_Specific/fastWalshTransform/fastWalshTransform.cu", fwtBatch2Kernel="fwtBatch2Kernel")
def walsh_global(name, n):
    """Its first pass, of all."""
    x = numbers(4, n // 4)
    a, b, c, d = x.astype(float)
    right = np.stack([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d])
    return launch(name, (n // 1024, 1), 256, [np.empty_like(x), x, n // 4], {0: right}, tolerance=1e-5)


@of("5_Domain_Specific/dwtHaar1D/dwtHaar1D.cu", dwtHaar1D="dwtHaar1D")
def wavelets(name, n):
    blocks, x = n // 1024, numbers(n)
    right, last, size = np.zeros(n), x.astype(float).reshape(blocks, 1024), 512
    while size:
        pairs = last.reshape(blocks, size, 2) * math.sqrt(0.5)
        right[size * blocks : 2 * size * blocks] = (pairs[..., 0] - pairs[..., 1]).ravel()
        last, size = pairs.sum(2), size // 2
    args = [x, np.empty_like(x), np.empty(blocks, np.float32), 10, n // 2, 512]
    return launch(name, blocks, 512, args, {1: right, 2: last.ravel()}, shared=4 * (1024 + 64),
                  initial={1: 0, 2: 0}, tolerance=1e-5)  # fmt: skip


@of("5_Domain_Specific/nbody/bodysystemcuda.cu", integrateBodies="integrateBodies<float>")
def bodies(name, n, block):
    x, v, step = numbers(n, 4), numbers(n, 4, seed=2), 0.01
    x[:, 3] = 1 + np.abs(x[:, 3])
    pulls, wide = np.zeros((n, 3)), x.astype(float)
    for some in (slice(first, first + 256) for first in range(0, n, 256)):
        squares = sum((wide[None, :, k] - wide[some, None, k]) ** 2 for k in range(3)) + 0.01
        pull = wide[:, 3] / (squares * np.sqrt(squares))
        pulls[some] = pull @ wide[:, :3] - pull.sum(1)[:, None] * wide[some, :3]
    speed, place = v.astype(float), x.astype(float)
    speed[:, :3] += pulls * step
    place[:, :3] += speed[:, :3] * step
    args = [np.empty_like(x), x, v.copy(), 0, n, np.float32(step), np.float32(1), n // block]
    return launch(name, n // block, block, args, {0: place, 2: speed}, shared=16 * block,
                  initial={0: 0, 2: v}, tolerance=1e-4)  # fmt: skip


CASES = [(name, size) for name, sizes in {
    "vectorAdd": [(16 * M,), (M,)], "AddKernel": [(4 * M,)], "saxpy_float4": [(16 * M,)],
    "increment_kernel": [(16 * M,)], "init_array": [(4 * M, 10)], "sequence_gpu": [(16 * M,)],
    "testKernel_uint8": [(16 * M,)], "testKernel_RGBA32": [(64 * M,)], "modulateKernel": [(4 * M, MANY)],
    "modulateAndNormalize_kernel": [(4 * M,)], "BlackScholesGPU": [(4 * M,)],
    "quasirandomGeneratorKernel": [(M, 132)], "inverseCNDKernel": [(4 * M, MANY)],
    "simple_vbo_kernel": [(1024,)], "compactVoxels": [(4 * M,)], "sobolGPU_kernel": [(M // 4, 32, 1024)],
    "scalarProdGPU": [(2112, 4096)],
    "scalarProductKernel_native": [(4 * M, MANY)], "scanExclusiveShared": [(16 * M,), (M,)],
    "uniformUpdate": [(16 * M,)], "shfl_scan_test": [(4 * M,)], "shfl_intimage_rows": [(4320,)],
    "shfl_vertical_shfl": [(8448,)], "histogram64Kernel": [(16 * M, 1093)],
    "histogram256Kernel": [(16 * M, 240), (16 * M, MANY)], "mergeHistogram256Kernel": [(4096,)],
    "oddEvenCountAndSumCG": [(M, MANY)], "JacobiMethod": [()], "bitonicSortShared": [(4 * M,)],
    "oddEvenMergeSortShared": [(4 * M,)], "mergeSortSharedKernel": [(4 * M,)], "bitonicSortShared1": [(M,)],
    "bitonicMergeGlobal": [(4 * M,)], "bitonicMergeShared": [(4 * M,)], "d_transpose": [(2048,)],
    "MatrixMulCUDA": [(1024,), (512,)], "convolutionRowsKernel": [(3072,)],
    "convolutionColumnsKernel": [(3072,)], "FiniteDifferencesKernel": [(384, 48)],
    "JacobiIteration": [(1536,)], "d_boxfilter_x_global": [(33792, 128, 10)],
    "d_boxfilter_y_global": [(33792, 128, 10)], "d_simpleRecursive_rgba": [(33792, 64)],
    "CUDAkernel2DCT": [(4096,)], "CUDAkernel2IDCT": [(2048,)], "CUDAkernelQuantizationFloat": [(2048,)],
    "fwtBatch1Kernel": [(4096, 11)], "fwtBatch2Kernel": [(4 * M,)], "dwtHaar1D": [(16 * M,)],
    "integrateBodies": [(8448, 64)],
    **{f"reduce{k}": [(4 * M if k == 0 else 16 * M,)] for k in range(8)},
    "cg_reduce": [(16 * M,)],
    **{name: [(4096,)] for name in ("copySharedMem", "transposeCoalesced", "transposeDiagonal")},
    "transposeNaive": [(2048,)], "transposeNoBankConflicts": [(4096,), (1024,)],
    "transposeFineGrained": [(2048,)], "transposeCoarseGrained": [(2048,)],
    **{name: [(512,)] for name in KERNELS if re.match("MatrixMul(Naive|Async)", name)},
    **{name: [(1024,)] for name in KERNELS if name.startswith("simple_wmma")},
}.items() for size in sizes]  # fmt: skip
SMALL = {name: (2048,) for name in KERNELS} | {
    "init_array": (1024, 3), "modulateKernel": (2048, 2), "quasirandomGeneratorKernel": (512, 2),
    "inverseCNDKernel": (1024, 2), "simple_vbo_kernel": (16,), "sobolGPU_kernel": (512, 2, 4),
    "scalarProdGPU": (2, 2048), "scalarProductKernel_native": (2048, 2), "shfl_intimage_rows": (2,),
    "shfl_vertical_shfl": (32,), "histogram64Kernel": (16384, 3), "histogram256Kernel": (16384, 3),
    "mergeHistogram256Kernel": (512,), "oddEvenCountAndSumCG": (1024, 2), "JacobiMethod": (),
    "d_transpose": (32,), "MatrixMulCUDA": (64,), "convolutionRowsKernel": (128,),
    "convolutionColumnsKernel": (128,), "FiniteDifferencesKernel": (32, 5), "JacobiIteration": (96,),
    "d_boxfilter_x_global": (64, 40, 4), "d_boxfilter_y_global": (64, 40, 4),
    "d_simpleRecursive_rgba": (64, 8), "CUDAkernel2DCT": (32,), "CUDAkernel2IDCT": (32,),
    "CUDAkernelQuantizationFloat": (16,), "fwtBatch1Kernel": (2, 11), "integrateBodies": (128, 64),
    **{name: (64,) for name in KERNELS if re.match("copyS|transpose|MatrixMul|simple_wmma", name)},
}  # fmt: skip
