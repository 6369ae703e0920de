"""CUDA C++ programs with their own ``main`` under check: right ones are silent and end with their own status,
wrong ones are named at their line, what is not supported is refused by its name. The sources are in ``cuda``:
``-DFAULT=n`` plants the fault whose line says ``fault n``."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels
from numba_deform.engines.cpu.frontends.ptx.kernels import from_ptx
from numba_deform.programs import cuda_program, ptx_program
from numba_deform.programs.repeats import memory_and_kind
from numba_deform.programs.triton_driver import Launched

HERE = Path(__file__).parent / "cuda"
pytestmark = pytest.mark.skipif(not cuda_kernels.nvcc(), reason="nvcc compiles CUDA C++, and is not there")


def check(tmp_path, *words):
    """(exit status, stdout, stderr, what the JSON file says) of ``numba-deform check``."""
    file = tmp_path / "said.json"
    command = [sys.executable, "-m", "numba_deform", "check", f"json={file}", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    return ended.returncode, ended.stdout, ended.stderr, json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.parametrize("program, words, status, launches", [
    ("streams.cu", ["70", "5"], 5, 2), ("cluster.cu", [], 0, 1), ("cooperative.cu", [], 0, 1),
    ("tma.cu", [], 0, 1), ("memory.cu", [], 9, 5), ("cub.cu", [], 0, 2),
])  # fmt: skip
def test_right(tmp_path, program, words, status, launches):
    """The status is that which main returns, or hands to exit."""
    ended, out, err, said = check(tmp_path, HERE / program, *words)
    assert (ended, said["faults"], said["launches"]) == (status, [], launches), err
    assert program != "streams.cu" or out == "70 right\n"


@pytest.mark.parametrize("program, number, fault, words", [
    ("streams.cu", 1, "StreamRace", "add on stream 2 .* reads bytes 0 to 799 of the 800 bytes asked for at s"),
    ("streams.cu", 2, "OutOfRange", "of x, which has 800"),
    ("streams.cu", 3, "OutOfRange", "writes 804 bytes at byte 0 of the 800 bytes asked for at streams.cu:31"),
    ("streams.cu", 4, "BadLaunch", "a block of 2048 threads"),
    ("streams.cu", 5, "UninitialisedRead", "y.* nothing has written"),
    ("streams.cu", 6, "HostRace", "host touches byte 0 .* cudaMemcpyAsync on stream 2 .* writes, at streams"),
    ("streams.cu", 7, "HostRace", "host writes byte 0 .* cudaMemcpyAsync on stream 1 .* reads, at streams"),
    ("cluster.cu", 1, "BlockEnded", "own"),
    ("cluster.cu", 2, "BadLaunch", "no multiple of a cluster"),
    ("cooperative.cu", 1, "DataRace", "mid"),
    ("cooperative.cu", 2, "BadLaunch", "wants a cooperative launch"),
    ("tma.cu", 1, "InFlightRead", "tile"),
    ("tma.cu", 2, "BadLaunch", "65,536 bytes of dynamic shared memory, .* cudaFuncSetAttribute has to ask"),
    ("tma.cu", 3, "OutOfRange", "the launch gives 0 bytes of dynamic shared memory"),
])  # fmt: skip
def test_wrong(tmp_path, program, number, fault, words):
    ended, _, err, said = check(tmp_path, HERE / program, f"options=-DFAULT={number}")
    lines = (HERE / program).read_text().splitlines()
    at = [n for n, line in enumerate(lines, 1) if re.search(rf"// .*\bfault {number}\b", line)]
    named = [f for f in said["faults"] if f["fault"] == fault]
    assert ended == 1 and named, err
    assert re.search(words, named[0]["what"])
    file, _, line = named[0]["where"].rpartition(":")
    kernel = fault == "UninitialisedRead"  # in the kernel, of a launch on the line
    assert Path(file).name == program and (kernel or int(line) in at)
    assert re.fullmatch(rf"{program}:\d+", named[0]["launch"])
    assert not kernel or int(named[0]["launch"].rpartition(":")[2]) in at


COPY = "cudaMemcpyAsync(h, d, 512, D2H, a);"
TWO = f"{COPY} cudaMemcpyAsync(h + 128, d + 128, 512, D2H, b); cudaStreamSynchronize(a);"
OWN = "cudaMallocAsync(&x, 512, a); use<<<1, 128, 0, a>>>(x, d);"
THEN = f"{OWN} cudaEventRecord(e, a); cudaStreamWaitEvent(b, e, 0); use<<<1, 128, 0, b>>>(d, x);"


@pytest.mark.parametrize("lines, fault", [
    # the host reads what a has brought and is waited for, then what b has, on the same page
    (f"{TWO} sum = h[0]; sum += h[1]; cudaStreamSynchronize(b); sum += h[128];", None),
    (f"{TWO} sum = h[0]; sum += h[1]; sum += h[128];", "HostRace: the host touches byte 512 .* stream 2"),
    # memory in a stream's order
    (f"{OWN} cudaFreeAsync(x, a); {OWN} cudaFreeAsync(x, a);", None),
    (f"{THEN} cudaEventRecord(e, b); cudaStreamWaitEvent(a, e, 0); cudaFreeAsync(x, a);", None),
    (f"{THEN} cudaFreeAsync(x, a);", "StreamRace: cudaFreeAsync on stream 1 .* which use on stream 2"),
    ("cudaMallocAsync(&x, 512, a); use<<<1, 128, 0, b>>>(x, d);", "StreamRace: .* which cudaMallocAsync on"),
    # what is the host's alone waits
    ("cudaMemset(h, 0, 512); sum = h[0];", None),
    ("cudaMemcpyAsync(h, h + 128, 512, cudaMemcpyHostToHost, a); sum = h[0] * 0;", None),
    ("cudaMemsetAsync(h, 0, 512, a); sum = h[0];", "HostRace: .* which cudaMemsetAsync on stream 1 .* writes"),
    # who asks waits until it is over
    (f"{COPY} while (cudaStreamQuery(a) == cudaErrorNotReady) {{}} sum = h[0];", None),
    (f"{COPY} cudaStreamQuery(a); sum = h[0];", "HostRace: the host touches byte 0 of"),
    (f"{COPY} cudaEventRecord(e, a); while (cudaEventQuery(e)) {{}} sum = h[0];", None),
    ("cudaStreamSynchronize(a); if (cudaStreamQuery(a)) return 5;", None),
])  # fmt: skip
def test_what_the_host_waits_for(tmp_path, lines, fault):
    source = tmp_path / "waits.cu"
    source.write_text(f"""#define D2H cudaMemcpyDeviceToHost
        __global__ void use(int *out, const int *in) {{ out[threadIdx.x] = in[threadIdx.x]; }}
        int main() {{
            int *d, *h, *x, sum = 0;
            cudaStream_t a, b; cudaStreamCreate(&a); cudaStreamCreate(&b);
            cudaEvent_t e; cudaEventCreate(&e);
            cudaMalloc(&d, 1024); cudaMallocHost(&h, 1024); cudaMemset(d, 0, 1024);
            use<<<1, 128, 0, a>>>(d, d); cudaDeviceSynchronize();
            {lines}
            return sum;
        }}""")
    ended, _, err, said = check(tmp_path, source)
    assert (ended, len(said["faults"])) == ((1, 1) if fault else (0, 0)), err
    assert not fault or re.search(fault, err)


@pytest.mark.parametrize("line, fault, what, cure", [
    ("", "UninitialisedRead", r"reads x\[byte 512\]",
     "Let the launch of fill at before.cu:6, which wrote up to there,"),
    ("cudaMemcpy(x, y, 900, cudaMemcpyDeviceToDevice);", "UninitialisedRead", r"reads x\[byte 900\]",
     "Let cudaMemcpy at before.cu:7, which wrote up to there, write all that is read"),
    ("cudaFree(x); cudaMalloc(&x, 1024); cudaMemset(x, 0, 1024); cudaFree(y);", "OutOfRange",
     "writes 4 bytes at 0x.*: the 1,024 bytes asked for at before.cu:5 were freed at before.cu:7",
     "behind the last"),
    ("cudaMemset(x, 0, 1024); cudaFree(y); cudaFree(y); y = x;", "OutOfRange",
     "frees 0x.*, which was freed before, at before.cu:7", "gave, once"),
    ("cudaFree(y); cudaMemset(y, 0, 8); y = x; cudaMemset(x, 0, 1024);", "OutOfRange",
     "writes 8 bytes at 0x.*: the 1,024 bytes asked for at before.cu:5 were freed", "Check the size"),
    ("cudaMemset(x, 0, 1024); y = (float *)64;", "OutOfRange", "no memory of the program's is there",
     "Check the index"),
])  # fmt: skip
def test_what_was_before_a_launch(tmp_path, line, fault, what, cure):
    """Memory that was freed is told, whoever asks for memory behind that; and who wrote too little, where what
    nothing has written is read."""
    source = tmp_path / "before.cu"
    source.write_text(f"""__global__ void fill(float *x) {{ x[threadIdx.x] = 1; }}
        __global__ void twice(const float *x, float *y) {{ y[threadIdx.x] = 2 * x[threadIdx.x]; }}
        int main() {{
            float *x, *y;
            cudaMalloc(&x, 1024); cudaMalloc(&y, 1024);
            fill<<<1, 128>>>(x); cudaMemset(y, 0, 1024);
            {line}
            twice<<<1, 256>>>(x, y);
        }}""")
    ended, _, err, said = check(tmp_path, source)
    (found,) = [each for each in said["faults"] if each["fault"] == fault]
    assert ended == 1 and re.search(what, found["what"]) and cure in found["cure"], err
    assert "reaching" not in found["cure"]


def test_launches_that_are_equal(tmp_path):
    """To the one before of their kind are not run again: from the third on, while memory is what it was. A
    fault is met in each launch, and what a kernel leaves is there each time."""
    source = tmp_path / "often.cu"
    source.write_text("""#include <cstdio>
        struct Two { const int *from; int add; };
        __global__ void copy(int *x, Two two) { x[threadIdx.x] = two.from[threadIdx.x] + two.add; }
        __global__ void count(int *x) { x[threadIdx.x] += 1; }
        __global__ void race(int *x) { x[0] = threadIdx.x; }
        int main() {
            int *x, *y, host[32] = {};
            cudaMalloc(&x, 128);
            cudaMalloc(&y, 128);
            cudaMemset(y, 0, 128);
            for (int i = 0; i < 9; i++) {
                copy<<<1, 32>>>(x, Two{y, 5});          // 3 are run, the first with garbage in x,
                if (i == 6) cudaMemset(y, 1, 128);      // and 2 more
            }
            for (int i = 0; i < 9; i++) count<<<1, 32>>>(x);
            for (int i = 0; i < 4; i++) race<<<1, 32>>>(y);
            cudaMemcpy(host, x, 128, cudaMemcpyDeviceToHost);
            std::printf("%d", host[31]);
        }""")
    ended, out, err, said = check(tmp_path, source)
    assert ended == 1 and out == str(0x01010101 + 5 + 9), err
    assert said["launches"] == 22 and said["launches_not_run_again"] == 4
    assert said["threads"] == 32 * 18 and "4 launches were equal to an earlier one" in err
    fault, = said["faults"]
    assert fault["fault"] == "DataRace" and fault["count"] == 4


def test_an_equal_launch_beside_another_stream(tmp_path):
    """What a launch touches is looked for once there are two streams: an earlier one cannot stand for it."""
    source = tmp_path / "beside.cu"
    source.write_text("""
        __global__ void set(int *x) { x[threadIdx.x] = 5; }
        int main() {
            int *x;
            cudaStream_t one, two;
            cudaStreamCreate(&one);
            cudaMalloc(&x, 128);
            for (int i = 0; i < 5; i++) set<<<1, 32, 0, one>>>(x);
            cudaStreamCreate(&two);
            set<<<1, 32, 0, one>>>(x);
            set<<<1, 32, 0, two>>>(x);
        }""")
    ended, _, err, said = check(tmp_path, source)
    assert ended == 1 and [fault["fault"] for fault in said["faults"]] == ["StreamRace"], err


def test_stop(tmp_path):
    """The program ends at its first fault, and what it has printed is not lost."""
    source = tmp_path / "two.cu"
    source.write_text("""#include <cstdio>
        __global__ void read(int *x) { x[threadIdx.x] = x[threadIdx.x + 1]; }
        int main() {
            int *x;
            cudaMalloc(&x, 4);
            std::printf("begun");
            for (int i = 0; i < 2; i++) read<<<1, 1>>>(x);
            std::printf("ended");
        }""")
    ended, out, err, said = check(tmp_path, "stop=yes", source)
    assert (ended, out, said["launches"]) == (1, "begun", 1), err


def test_refused_by_name(tmp_path):
    """What comes before it is judged; a function, an instruction of a kernel beside others, a signal."""
    for word, words in ("graph", "cudaGraphCreate is not supported"), ("texture", "tex.1d.* is not known"):
        ended, _, err, said = check(tmp_path, HERE / "memory.cu", word)
        assert (ended, said["launches"]) == (2, 5)
        assert re.search(rf"(?m)^memory.cu:\d+: the program was ended here: .*{words}", err)
    ended, _, err, _ = check(tmp_path, HERE / "memory.cu", "crash")
    assert ended == 128 + 6 and "ended by SIGABRT" in err
    assert "memory.cu:54: count was not launched: a block of 2000 threads" in err  # and the program has asked


def test_maps_that_break_a_rule(tmp_path):
    ended, _, err, _ = check(tmp_path, HERE / "tma.cu", "options=-DFAULT=4")
    assert ended == 6 and re.search("tma.cu:5[0-2]: cuTensorMapEncodeTiled gave .*'swizzle span'", err)


def test_words(tmp_path):
    """Whose they are: those of check come first, ``options`` are all taken; the first other is its own."""
    source = tmp_path / "words.cu"
    source.write_text("""#include <cstdio>
        __global__ void none() {}
        int main(int count, char **words) {
            for (int i = 1; i < count; i++) std::printf("%s ", words[i]);
            return A + B;
        }""")
    words = "options=-DA=20", "options=-DB=3", "--", "grid=3", "options=x", "y z"
    ended, out, err, _ = check(tmp_path, source, *words)
    assert (ended, out) == (23, "grid=3 options=x y z "), err
    with pytest.raises(ValueError, match="grid is given twice: grid=1 and grid=2"):
        ptx_program.run([str(source), "grid=1", "grid=2"], {})
    ended, _, err, _ = check(tmp_path, source, "options=-DB=3")
    assert ended == 2 and re.search(r"words.cu\(5\): error: identifier \"A\" is undefined", err)


def test_has_main(tmp_path):
    file = tmp_path / "a.cu"
    for text, known in ("int main() {}", True), ("// int main()\n/* int main( */ int domain(int);", False):
        file.write_text(text)
        assert cuda_program.has_main(file) is known


def test_the_page(tmp_path):
    """notebooks/site/cuda.md shows what is said of its program, and the mend that it names mends it."""
    page = (Path(__file__).parents[2] / "notebooks/site/cuda.md").read_text()
    source, shown = tmp_path / "reverse.cu", re.search(r"(?s)    DataRace.*?\n\n", page)[0]
    source.write_text(re.search(r"(?s)```cuda\n(.*?)```", page)[1])
    ended, _, err, _ = check(tmp_path, source)
    assert ended == 1 and textwrap.dedent(shown).strip() in err.replace(f"{tmp_path.resolve()}/", "")
    source.write_text(source.read_text().replace("x];\n    numbers", "x];\n    __syncthreads();\n    numbers"))
    ended, out, _, _ = check(tmp_path, source)
    assert (ended, out) == (0, "127 .. 0\n")


def test_launches_whose_arguments_are_not_numpys_are_not_compared():
    """Those of Triton have tensors and Python's numbers."""
    kernel = from_ptx(".version 8.0\n.target sm_90\n.visible .entry k(.param .u32 n)\n{\n ret;\n}\n")["k"]
    kernel.unset = kernel.by_bytes = ()
    launched = [Launched(kernel, (1,), (32,), [n], 0, None) for n in (np.uint32(1), 1)]
    assert [memory_and_kind(each)[0] for each in launched] == [[], None]


@pytest.mark.parametrize("line", [
    "s[0] += x[t];", "if (t % 2) s[x[t]]++; /* s[1] */", "n += in[t];", "*y += x[t];", "y[x[t]] = y[x[t]] + 1;",
    "if (t > y[0]) y[0] = t;  // max",
])  # fmt: skip
def test_changes_without_an_atomic(tmp_path, line):
    """A line of C++ that changes a number that others change by it, however it names that."""
    source = tmp_path / "change.cu"
    source.write_text(f"""
__global__ void change(const int *x, const int *in, int *y) {{
    __shared__ int s[64], n;
    int t = threadIdx.x;
    s[t] = 0;
    if (t == 0) n = 0;
    __syncthreads();
    {line}
    __syncthreads();
    y[t + 1] = s[0] + n;
}}
int main() {{
    int *x, *y;
    cudaMalloc(&x, 256);
    cudaMalloc(&y, 512);
    cudaMemset(x, 0, 256);
    cudaMemset(y, 0, 512);
    change<<<1, 64>>>(x, x, y);
}}
""")
    ended, _, err, said = check(tmp_path, source)
    cures = [fault["cure"] for fault in said["faults"]]
    assert ended == 1 and cures[0].startswith("Use one atomic in place of the read and the write"), err


@pytest.mark.parametrize("line, cure", [
    ("s[t] += s[t + 16]; s[t] += s[t + 8]", "read into a variable, meet at __syncwarp(), write"),
    ("int v = s[t + 16]; __syncwarp(); s[t] += v; __syncwarp(); v = s[t + 8]; __syncwarp(); s[t] += v", ""),
    ("int4 v = ((int4 *)(x + 2))[0]; t = (t + v.x + v.y + v.z + v.w) & 31", "multiples of 16 bytes; or"),
])  # fmt: skip
def test_what_is_wrong_within_a_line(tmp_path, line, cure):
    """Sums of a warp as they were written before Volta, with their mend; and a wide load of an odd row."""
    source = tmp_path / "line.cu"
    source.write_text(f"""
__global__ void sums(const int *x, int *y) {{
    __shared__ volatile int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    s[t + 32] = 0;
    __syncwarp();
    {line};
    y[t] = t;
}}
int main() {{
    int *x, *y;
    cudaMalloc(&x, 256);
    cudaMalloc(&y, 256);
    cudaMemset(x, 0, 256);
    sums<<<1, 32>>>(x, y);
    return cudaDeviceSynchronize();
}}
""")
    ended, _, told, _ = check(tmp_path, source)
    assert (ended, "line.cu:8" in told) == ((1, True) if cure else (0, False)) and cure in told


@pytest.mark.parametrize("unrolled, read", [
    ("", "part"), ("#pragma unroll 1", "part"), ("", "((volatile float *)part)")])  # fmt: skip
def test_a_barrier_missing_in_a_loop(tmp_path, unrolled, read):
    """The cure is a barrier in each round, whether nvcc has unrolled the loop, so that a line of it has several
    places, or not."""
    source = tmp_path / "rounds.cu"
    source.write_text(f"""
__global__ void turned(const float *x, float *y) {{
    __shared__ float part[64];
    float sum = 0;
    {unrolled}
    for (int round = 0; round < 4; round++) {{
        part[threadIdx.x] = x[64 * round + threadIdx.x];
        __syncthreads();
        sum += {read}[63 - threadIdx.x];
    }}
    y[threadIdx.x] = sum;
}}
int main() {{
    float *x, *y;
    cudaMalloc(&x, 1024);
    cudaMalloc(&y, 256);
    cudaMemset(x, 0, 1024);
    turned<<<1, 64>>>(x, y);
    return cudaDeviceSynchronize();
}}
""")
    _, _, err, said = check(tmp_path, source)
    fault, = said["faults"]
    assert fault["fault"] == "DataRace" and "rounds.cu:8 orders the two in one round" in fault["what"], err
    assert "Put __syncthreads() at the end of each round" in fault["cure"]


def test_an_array_that_is_called_as_something_of_the_engine(tmp_path):
    """The line is understood as that of any other."""
    source = tmp_path / "histogram.cu"
    source.write_text("""
__global__ void count(int *out) {
    __shared__ int local[8];
    if (threadIdx.x < 8) local[threadIdx.x] = 0;
    __syncthreads();
    local[threadIdx.x % 8] += 1;
    __syncthreads();
    if (threadIdx.x < 8) out[threadIdx.x] = local[threadIdx.x];
}
int main() {
    int *out;
    cudaMalloc(&out, 32);
    count<<<1, 64>>>(out);
    return cudaDeviceSynchronize();
}
""")
    _, _, err, said = check(tmp_path, source)
    fault, = said["faults"]
    assert fault["where"].endswith(":6") and "Use one atomic in place of" in fault["cure"], err
