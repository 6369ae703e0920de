"""What L2 counts of bytes that are asked for once, twice, or again and again, by Nsight Compute.

    python bench/l2_bytes.py bench/results/l2_bytes.json  # on a GPU with nvcc and ncu; needs nothing else

Each kernel reads or writes 128 MiB: ``once``, by lanes side by side; ``halves``, where a lane's two loads of 16
bytes lie in one sector; ``bulk``, by copies; or 16 or 32 MiB eight or four times. Written down is a second
launch of each.
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = r"""
#include <cstdint>
typedef uint4 V;
__device__ void load(const V* p, V& r) { asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
  : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p)); }
#define I (blockIdx.x * 256ull + threadIdx.x)
__global__ void once(const V* p, V* o, size_t m) { V a; load(p + I % m, a); if (a.x) *o = a; }
__global__ void halves(const V* p, V* o) { V a, b; load(p + 2 * I, a); load(p + 2 * I + 1, b);
  if (a.x ^ b.x) *o = a; }
__global__ void stores(V* o) { o[I] = V{1, 2, 3, 4}; }
__global__ void bulk(const V* p, size_t m) {
  __shared__ __align__(128) char room[4096]; __shared__ uint64_t bar;
  asm volatile("{ .reg .pred q; mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;"
  "mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;"
  "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], 4096, [%0];"
  "W: mbarrier.try_wait.parity.shared.b64 q, [%0], 0; @!q bra W; }" :: "r"((int)__cvta_generic_to_shared(&bar)),
  "r"((int)__cvta_generic_to_shared(room)), "l"(p + blockIdx.x * 256ull % m) : "memory");
}
int main() {
  V *p, *o; const size_t n = 1 << 23, part = 1 << 20; // of 16 bytes
  cudaMalloc(&p, n * 16); cudaMalloc(&o, n * 16); cudaMemset(p, 0, n * 16);
  for (int k = 0; k < 2; k++) {
    for (size_t m : {n, 2 * part, part}) { once<<<n / 256, 256>>>(p, o, m); bulk<<<n / 256, 1>>>(p, m); }
    halves<<<n / 512, 256>>>(p, o); stores<<<n / 256, 256>>>(o);
  }
  return cudaDeviceSynchronize();
}
"""
NAMES = ("once", "bulk", "once, 32 MiB", "bulk, 32 MiB", "once, 16 MiB", "bulk, 16 MiB", "halves",
         "stores")  # fmt: skip
METRICS = ("lts__t_bytes.sum", "lts__t_sectors_srcunit_tex.sum", "lts__t_sectors_srcunit_ltcfabric.sum",
           "lts__t_sectors_op_read.sum", "lts__t_sectors_lookup_miss.sum", "l1tex__m_xbar2l1tex_read_bytes.sum",
           "l1tex__t_sectors_pipe_lsu.sum", "l1tex__t_sector_hit_rate.pct", "dram__bytes_read.sum")  # fmt: skip


def measured():
    """(what ncu prints, the GPU)."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "l2.cu"), Path(folder, "l2")
        source.write_text(SOURCE)
        subprocess.run(["nvcc", "-arch=sm_90a", "-o", program, source], check=True)
        options = "--csv --page raw --print-units base --clock-control none --cache-control none".split()
        words = ["ncu", *options, "--metrics", ",".join(METRICS), program]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return text, subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()


def write(path, text, gpu):
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith('"ID"'))
    kernels = list(csv.DictReader(lines[first:]))[1 + len(NAMES) :]  # without the units and the first launches
    rows = [{"kernel": name, "metrics": {m: float(kernel[m].replace(",", "")) for m in METRICS}}
            for name, kernel in zip(NAMES, kernels, strict=True)]  # fmt: skip
    document = {"machine": {"gpu": gpu}, "bytes": 1 << 27, "rows": rows}
    Path(path).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    write(sys.argv[1], *measured())
