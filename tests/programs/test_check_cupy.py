"""A program with CuPy's RawKernel and RawModule under ``numba-deform check``, unchanged, where CuPy is not: the
first argument plants the fault whose line says ``fault n``."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from numba_deform.cli import main

PROGRAM = r'''
import sys

import cupy as cp
import numpy as np
from cupy.cuda import Stream

FAULT = int(sys.argv[1])
assert "cupy" in sys.modules and cp.cuda.runtime.getDeviceCount() == 1

code = r"""
__constant__ float by[2] = {2.0f, 0.0f};
__device__ int calls;

extern "C" __global__ void turn(const float *x, float *out, int n) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    if (FAULT != 1) __syncthreads();
    int i = threadIdx.x + (FAULT == 2);
    if (threadIdx.x == 0) calls++;
    if (threadIdx.x < n) out[i] = by[0] * tile[63 - threadIdx.x];  // fault 1, fault 2
}

template <typename T, int N> __global__ void times(T *x) {
    x[threadIdx.x] *= N;
}
"""
options = "-std=c++17", f"-DFAULT={FAULT}"
module = cp.RawModule(code=code, options=options, name_expressions=("times<float, 3>",))
scale = cp.RawKernel("""
extern "C" __global__ void scale(float *x, float by, long long n) {
    extern __shared__ float unused[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
""", "scale")

x = cp.arange(64, dtype=cp.float32)
out = cp.empty_like(x)
turn, times = module.get_function("turn"), module.get_function("times<float, 3>")
stream, other = Stream(), Stream(non_blocking=True)
with stream:
    turn((1,), (64,), (x, out, 64))
if FAULT == 3:
    with other:
        times((1,), (64,), (out,))  # fault 3
stream.synchronize()
if FAULT not in (1, 2, 3):
    cp.testing.assert_array_equal(out, 2 * x[::-1])
    calls = cp.ndarray((1,), np.int32, module.get_global("calls"))
    assert calls.get() == [1]

host = np.ones(64, np.float32)
y = cp.asarray(host)
times((1,), (64,), (y,))
if FAULT == 4:
    y = cp.empty(64, cp.float32)
if FAULT != 5:
    scale.max_dynamic_shared_size_bytes = 50000
scale((3,), (32,), (y, np.float32(2), y.size), shared_mem=50000)  # fault 4, fault 5
cp.cuda.Device().synchronize()
if not FAULT:
    assert isinstance(y, cp.ndarray) and cp.get_array_module(y) is cp and cp.get_array_module(host) is np
    assert (cp.asnumpy(y) == 6).all() and (host == 1).all() and float(y.sum()) == 384
    assert cp.random.rand(3, dtype=cp.float32).dtype == np.float32
    assert type(cp.linalg.norm(y)) is not None and type(y.get()) is np.ndarray
    drawn = cp.random.default_rng(0).random(4), cp.random.RandomState(0).rand(4)
    assert all(isinstance(array, cp.ndarray) for array in drawn)
    scale((0,), (32,), (cp.zeros(0, cp.float32), np.float32(2), 0))  # a block, as CuPy has it
    scale((1,), (32,), (y, np.float32(1), np.array((32, 0), "i8, i8")))  # whose first bytes are read
if FAULT == 8:
    scale((2,), (32,), (y[32:], 2.0, 32))  # fault 8
if FAULT == 9:
    scale((2,), (32,), (host, np.float32(2), 32))
if FAULT == 10:
    scale(2, (32,), (y, np.float32(2), 32))
if FAULT == 6:
    cp.cutensor
if FAULT == 7:
    import cupyx.profiler
print("ended")
'''


def check(tmp_path, fault, *words):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    status = main(["check", f"json={tmp_path}/out.json", *words, str(file), str(fault)])
    return status, json.loads((tmp_path / "out.json").read_text())


def test_right(tmp_path, capsys):
    status, said = check(tmp_path, 0)
    told = capsys.readouterr()
    assert (status, said["faults"], said["launches"], said["kernels"]) == (0, [], 5, 3), told.err
    assert told.out.endswith("ended\n")
    functions, size = said["notes"]
    assert re.fullmatch(r"program.py:\d+: scale takes 8 bytes for n, and ndarray has 16", size)
    assert functions.startswith("cupy's functions of arrays ran in NumPy")
    assert "cupy" not in sys.modules


@pytest.mark.parametrize("number, fault, words", [
    (1, "DataRace", r"reads tile\[byte \d+\], which thread \d+ wrote at program.py:17"),
    (2, "OutOfRange", "writes 4 bytes at byte 256 of out, which has 256"),
    (3, "StreamRace", "times<float, 3> on stream 2 .* which turn on stream 1 .* nothing orders the two"),
    (4, "UninitialisedRead", "x.* nothing has written"),
    (5, "BadLaunch", "50,000 bytes of dynamic shared memory"),
    (8, "BadLaunch", "scale takes 4 bytes for by, and float has 8"),
])  # fmt: skip
def test_wrong(tmp_path, number, fault, words):
    status, said = check(tmp_path, number)
    named = [f for f in said["faults"] if f["fault"] == fault]
    assert status == 1 and named, said
    assert re.search(words, named[0]["what"])
    # What is launched, and when, is told in CuPy's words, and not in those of CUDA's runtime.
    assert "cuda" not in named[0]["cure"] + named[0]["what"]
    lines = [n for n, line in enumerate(PROGRAM.splitlines(), 1) if f"fault {number}" in line]
    file, _, line = named[0]["where"].rpartition(":")
    in_kernel = fault == "UninitialisedRead"  # of a launch on the line
    assert Path(file).name == "program.py"
    assert (int(named[0]["launch"].rpartition(":")[2]) if in_kernel else int(line)) in lines


@pytest.mark.parametrize("number, words", [
    (6, "cupy.cutensor is not supported by check"), (7, "cupyx is not supported by check"),
    (9, "scale: x is a numpy.ndarray; a kernel takes CuPy's arrays, which cupy.asarray makes"),
    (10, "scale: grid=2 is no tuple of up to three whole numbers")])  # fmt: skip
def test_refused_by_its_name(tmp_path, capsys, number, words):
    status, said = check(tmp_path, number)
    assert status == 1 and said["faults"] == [] and words in capsys.readouterr().err


ASKED = r'''
import pathlib

import cupy as cp
import numpy as np

code = r"""
template <typename T> __global__ void times(T *x, T by) { x[threadIdx.x] *= by; }
__global__ void mangled(float *x, int n) {}
extern "C" __global__ void plain(float *x, int n, double by, long long where) {
    extern __shared__ float tile[];
    if (n > 100) tile[threadIdx.x] = n;
    if (threadIdx.x < n) x[threadIdx.x] = by;
}
"""
names = "times<float>", "times< complex<float> >"
module = cp.RawModule(code="#include <cupy/complex.cuh>" + code, name_expressions=names)
plain, x = cp.RawKernel(code, "plain"), cp.zeros(32, cp.float32)
'''


@pytest.mark.parametrize("program, words", [
    ("module.get_function('typo')", "RuntimeError: there is no kernel 'typo', but plain, times<float>, "),
    ("cp.RawKernel(code, 'mangled')", """no kernel 'mangled', but mangled without extern "C", plain: """),
    ("cp.RawModule(path='a.cubin')", "Refused: RawModule(path='a.cubin'): check loads .ptx, as CuPy does; "),
    ("cp.RawModule(path='a.ptx', code=code)", "TypeError: RawModule is given code= or path=, one of them"),
    ("cp.RawKernel(code.encode(), 'plain')", "is no str"),
    ("cp.RawKernel(code, 'plain', '-O3')", "TypeError: options='-O3' is no tuple"),
    ("plain((1,), (32,), (x, 3, 2.0, 1.5))", "BadLaunch: where of plain is a int64, and gets the bits of 1.5"),
    ("cp.RawModule(code=code, jitify=True)", "Refused: jitify=True is not supported by check"),
    ("plain((1,), (32,), (x, 3, 2.0))", "TypeError: plain takes 4 arguments, not 3"),
    ("plain((1,), (32,), x)", "TypeError: plain: the arguments are a Array, and no tuple of them"),
    ("plain((32 / 32,), (32,), (x, 3, 2.0, 0))", "TypeError: plain: grid=(1.0,) is no tuple of up to three"),
    ("plain((1,), (32,), (2.5, 3, 2.0, 0))", "BadLaunch: x of plain is a pointer, and 2.5 (float) is given"),
    ("plain((1,), (32,), (32, 3, 2.0, 0))", "BadLaunch: x of plain is a pointer, and 32 (int) is given"),
    ("plain((1,), (32,), (x, x.sum(), 2.0, 0))", "BadLaunch: n of plain is one int32, and an address is given"),
    ("plain((1,), (32,), (x, None, 2.0, 0))", "BadLaunch: n of plain is one int32, and an address is given"),
    ("plain((1,), (32,), (x, 3, 2, 0))", "BadLaunch: by of plain is a float64, and gets the bits of 2 (int64)"),
    ("meet = '#include <cooperative_groups.h>\\nextern \"C\" __global__ void meet() {'\n"
     "cp.RawKernel(meet + 'cooperative_groups::this_grid().sync(); }', 'meet')((1,), (32,), ())",
     "this_grid().sync() wants a cooperative launch, enable_cooperative_groups=True of the kernel"),
    ("cp.RawModule(path='a.cu')", "and CUDA C++ is given as code=open(path).read()"),
    ("plain((1,), (32,), (x, 128, 2.0, 0))", "at the launch: kernel(grid, block, args, shared_mem="),
])  # fmt: skip
def test_asked_wrongly(tmp_path, capsys, program, words):
    file = tmp_path / "program.py"
    file.write_text(ASKED + program)
    assert main(["check", str(file)]) == 1 and words in capsys.readouterr().err


def test_asked_rightly(tmp_path, capsys):
    """Addresses for pointers and whole numbers, complex numbers, and a file of PTX."""
    file = tmp_path / "program.py"
    file.write_text(ASKED + f"""
from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels

plain((1,), (32,), (x, 3, 2.0, x.data.ptr), shared_mem=128)
plain((1,), (32,), (x.data.ptr, np.int32(4), np.float64(2), x))
plain((1,), (32,), (None, 0, 2.0, 0))
z = cp.full(32, 1 + 2j, cp.complex64)
module.get_function(names[1])((1,), (32,), (z, np.complex64(1j)))
assert (z == -2 + 1j).all()
file = pathlib.Path({str(tmp_path)!r}, "kernels.cu")
file.write_text(code)
file.with_suffix(".ptx").write_text(cuda_kernels.compiled(file, (), "nvrtc"))
loaded = cp.RawModule(path=str(file.with_suffix(".ptx")))
loaded.get_function("plain")((1,), (32,), (x, 32, 5.0, 0))
assert (x == 5).all()
""")
    assert main(["check", str(file)]) == 0, capsys.readouterr().err


def test_lines_of_texts_that_are_put_together(tmp_path):
    """Kernels with constants in an f-string, and those of a file with macros before."""
    kernel = """extern "C" __global__ void KERNEL(float *x, int n) {
        int i = threadIdx.x + SHIFT;
        if (i < n)
            x[i] = 1;  // here
    }"""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "fill.cu").write_text(kernel.replace("KERNEL", "fill"))
    in_string = re.sub("([{}])", r"\1\1", kernel).replace("KERNEL", "set").replace("SHIFT", "{SHIFT}")
    file = tmp_path / "program.py"
    file.write_text(f'''
import cupy as cp

x, SHIFT, code = cp.zeros(32, cp.float32), 1, open({str(tmp_path / "kernels" / "fill.cu")!r}).read()
cp.RawKernel("#define SHIFT 1\\n\\n" + code, "fill")((1,), (32,), (x, 33))
cp.RawKernel(f"""

    {in_string}
""".strip(), "set")((1,), (32,), (x, 33))
''')
    assert main(["check", f"json={tmp_path}/out.json", str(file)]) == 1
    places = [f["where"].rpartition(":") for f in json.loads((tmp_path / "out.json").read_text())["faults"]]
    assert [Path(name).name for name, *_ in places] == ["fill.cu", "program.py"]
    assert all("here" in Path(name).read_text().splitlines()[int(line) - 1] for name, _, line in places)


@pytest.mark.parametrize("index, told", [
    ("cp.arange(32, dtype='int32')", []),
    ("cp.arange(32)", ["index of pick is for int32, and the array is of int64"]),
    ("cp.arange(64, dtype='int32')[::2]",
     ["index of pick is an array with strides (8,), of which a kernel gets the address alone"])])  # fmt: skip
def test_arrays_that_are_noted(tmp_path, index, told):
    """Of types that NumPy makes where none is named, and views: a program may mean it, and it is no fault."""
    file = tmp_path / "program.py"
    file.write_text(f'''
import cupy as cp

pick = cp.RawKernel("""
extern "C" __global__ void pick(const float *__restrict__ x, int const * index, float* y, void *unused) {{
    y[threadIdx.x] = x[index[threadIdx.x]];
}}
""", "pick")
index, x = {index}, cp.ones(32, cp.float32)
pick((1,), (32,), (x, index, cp.zeros_like(x), cp.zeros(1)))
''')
    assert main(["check", f"json={tmp_path}/out.json", str(file)]) == 0
    notes = [note.partition(": ")[2] for note in json.loads((tmp_path / "out.json").read_text())["notes"]]
    assert [note for note in notes if note.startswith("index")] == told


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="PyTorch is not installed")
@pytest.mark.parametrize("count, faults", [(64, []), (65, ["OutOfRange"])])
def test_tensors_of_pytorch(tmp_path, count, faults):
    """Are handed over as arrays, which share their memory, and by their addresses."""
    file = tmp_path / "program.py"
    file.write_text(f'''
import cupy
import torch

triple = cupy.RawKernel("""
extern "C" __global__ void triple(float *x, int n) {{ if (threadIdx.x < n) x[threadIdx.x] *= 3; }}
""", "triple")
x = torch.ones(64, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
    triple((1,), (128,), (x.data_ptr(), {count}))
    triple((1,), (128,), (cupy.asarray(x), 64))
end.record()
torch.cuda.synchronize()
assert {count} > 64 or (x == 9).all() and x.is_cuda and start.elapsed_time(end) != 0
''')
    status = main(["check", f"json={tmp_path}/out.json", str(file)])
    said = json.loads((tmp_path / "out.json").read_text())
    assert (status, [f["fault"] for f in said["faults"]], said["launches"]) == (len(faults), faults, 2)
