"""Programs that build a CUDA extension of PyTorch's under ``numba-deform check``, unchanged: by ``load_inline``
with ``functions=``, and by ``load`` with operators of the dispatcher and a gradient. The first argument plants
the fault whose line says ``fault n``."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels

missing = [name for name in ("torch", "ninja") if not importlib.util.find_spec(name)]
missing += [] if cuda_kernels.nvcc() else ["nvcc"]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"an extension wants {', '.join(missing)}, not there")

INLINE = r'''
import sys

import torch
from torch.utils.cpp_extension import load_inline

FAULT = int(sys.argv[1])
kernels = r"""
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

template <typename T>
__global__ void scale(torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> x, T *out, T by, int fault)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = i / x.size(1), column = i % x.size(1);
    if (row < x.size(0) + (fault == 1)) out[i] = x[row][column] * by;  // fault 1
}

template <typename T> __global__ void turn(const T *x, T *out, int fault) {
    __shared__ T tile[128];
    tile[threadIdx.x] = x[threadIdx.x];
    if (fault != 2) __syncthreads();
    out[threadIdx.x] = tile[127 - threadIdx.x];  // fault 2
}

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda() && x.device().is_cuda() && x.type().is_cuda(), #x)

torch::Tensor scaled(torch::Tensor x, double by, int64_t fault) {
    CHECK_CUDA(x);
    const c10::cuda::CUDAGuard guard(x.device());
    const at::cuda::OptionalCUDAGuard other(device_of(x));
    auto out = torch::empty_like(x);
    const int blocks = (x.numel() + 127) / 128;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scaled", [&] {
        scale<scalar_t><<<blocks, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(), out.data_ptr<scalar_t>(), by, fault);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}

torch::Tensor turned(torch::Tensor x, int64_t fault) {
    CHECK_CUDA(x);
    auto out = torch::zeros({128}, torch::TensorOptions().device(torch::kCUDA, 0).dtype(x.dtype()));
    auto from = fault == 3 ? torch::empty({128}, x.options()) : x;
    turn<float><<<1, 128>>>(from.data_ptr<float>(), out.data_ptr<float>(), fault);  // fault 3
    C10_CUDA_CHECK(cudaStreamSynchronize(at::cuda::getCurrentCUDAStream().stream()));
    cudaGraph_t graph;
    if (fault == 4) C10_CUDA_CHECK(cudaGraphCreate(&graph, 0));  // fault 4
    return out;
}
"""
declared = """
torch::Tensor scaled(torch::Tensor x, double by, int64_t fault);
torch::Tensor turned(torch::Tensor x, int64_t fault);
"""
x = torch.rand(7, 20).cuda()  # before anybody looks at tensors
made = load_inline("scales", declared, kernels, functions=["scaled", "turned"],
                   extra_cuda_cflags=["-O3", "-arch=sm_80"])
assert x.is_cuda
for kind in (torch.float32, torch.float64):
    assert FAULT == 1 or torch.equal(made.scaled(x.to(kind), 2.0, FAULT), 2 * x.to(kind))
if FAULT == 1:
    made.scaled(x, 2.0, FAULT)
host = torch.rand(128)
y = host.cuda()
turned = made.turned(y, FAULT)
assert FAULT or torch.equal(turned.cpu(), host.flip(0)) and y.data_ptr() != host.data_ptr()
print("ended right")
'''

LOADED = '''
import os
import torch
from torch.utils.cpp_extension import load

here = os.path.dirname(os.path.abspath(__file__))
sources = [f"{here}/square.cu", f"{here}/square.cpp"]
load("squares", sources, extra_include_paths=[here], is_python_module=False)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.ops.squares.multiply(x, x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * torch.ops.squares.multiply(ctx.saved_tensors[0], grad)


x = torch.arange(100, dtype=torch.float32, device="cuda", requires_grad=True)
Square.apply(x).sum().backward()
assert torch.equal(x.grad, 2 * x.detach())
print("ended right")
'''
OPERATOR = r"""
#include <ATen/ATen.h>
#include <torch/library.h>
at::Tensor on_the_host(const at::Tensor &x, const at::Tensor &y) { TORCH_CHECK(false, "the CPU's was called"); }
TORCH_LIBRARY(squares, m) { m.def("multiply(Tensor x, Tensor y) -> Tensor"); }
TORCH_LIBRARY_IMPL(squares, CPU, m) { m.impl("multiply", &on_the_host); }
"""
KERNEL = r"""
#include "product.cuh"
#include <ATen/ATen.h>
#include <torch/library.h>
#include <ATen/cuda/CUDAContext.h>
at::Tensor multiply(const at::Tensor &x, const at::Tensor &y) {
    TORCH_INTERNAL_ASSERT(x.device().type() == at::DeviceType::CUDA);
    at::Tensor out = at::empty(x.sizes(), x.options());
    const int n = x.numel();
    product<<<(n + 63) / 64, 64, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.contiguous().data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
TORCH_LIBRARY_IMPL(squares, CUDA, m) { m.impl("multiply", &multiply); }
"""
HEADER = r"""
__global__ void product(const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * y[i];
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the programs are, and what is built of them."""
    folder = tmp_path_factory.mktemp("extensions")
    for name, text in (("inline.py", INLINE), ("loaded.py", LOADED), ("square.cpp", OPERATOR),
                       ("square.cu", KERNEL), ("product.cuh", HEADER)):  # fmt: skip
        (folder / name).write_text(text)
    return folder


def check(folder, monkeypatch, program, *words):
    """(exit status, stdout, stderr, what the JSON file says) of ``numba-deform check``."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "built"))
    command = [sys.executable, "-m", "numba_deform", "check", "json=said.json", program, *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return ended.returncode, ended.stdout, ended.stderr, json.loads((folder / "said.json").read_text())


@pytest.mark.parametrize("program, words, launches, kernels", [
    ("inline.py", [0], 3, 3), ("loaded.py", [], 2, 1)])  # fmt: skip
def test_right(folder, monkeypatch, program, words, launches, kernels):
    status, out, err, said = check(folder, monkeypatch, program, *words)
    assert (status, said["faults"], out) == (0, [], "ended right\n"), err
    assert (said["launches"], said["kernels"]) == (launches, kernels)


@pytest.mark.parametrize("number, fault, words, cure", [
    (1, "OutOfRange", "reads 4 bytes at byte 560 of x, which has 560", "the index arithmetic"),
    (2, "DataRace", r"reads tile\[byte \d+\], which thread \d+ wrote at inline.py:2\d", "__syncthreads()"),
    (3, "UninitialisedRead", "x.* nothing has written", "torch.zeros in place of torch.empty"),
])  # fmt: skip
def test_wrong(folder, monkeypatch, number, fault, words, cure):
    status, _, err, said = check(folder, monkeypatch, "inline.py", number)
    named = [f for f in said["faults"] if f["fault"] == fault]
    assert status == 1 and named, err
    assert re.search(words, named[0]["what"]) and cure in named[0]["cure"]
    lines = [n for n, line in enumerate(INLINE.splitlines(), 1) if f"fault {number}" in line]
    file, _, line = named[0]["where"].rpartition(":")
    launch = int(named[0]["launch"].rpartition(":")[2])
    assert Path(file).name == "inline.py" and (launch if number == 3 else int(line)) in lines


def test_what_is_not_supported(folder, monkeypatch):
    """Is told by its name, with its line, as an exception where the extension was called."""
    status, _, err, said = check(folder, monkeypatch, "inline.py", 4)
    line = next(n for n, line in enumerate(INLINE.splitlines(), 1) if "fault 4" in line)
    assert status == 1 and said["faults"] == []
    assert f"RuntimeError: inline.py:{line}: cudaGraphCreate is not supported" in err
