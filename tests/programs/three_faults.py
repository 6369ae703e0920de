"""A program for the tests of this folder: most of what a Numba program does, and three kernels with a fault."""

import sys

import numpy as np
from numba import cuda, float32, vectorize


@cuda.jit
def twice(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * a[i]


@cuda.jit("void(f4[:], f4[:])")
def next_one(a, out):
    i = cuda.grid(1)
    out[i] = a[i + 1]


@cuda.jit
def everybody(out):
    out[0] = cuda.threadIdx.x


@cuda.jit
def reversed_by_two_warps(out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = i
    out[i] = tile[63 - i]


@vectorize(["float32(float32)"], target="cuda")
def thrice(x):
    return x * 3


@cuda.reduce
def add(a, b):
    return a + b


print("words", *sys.argv[1:])
host = np.arange(64, dtype=np.float32)
a, out, stream, start = cuda.to_device(host), cuda.device_array(64, np.float32), cuda.stream(), cuda.event()
start.record(stream)
twice[2, 32, stream](a, out)
stream.synchronize()
assert (out.copy_to_host(stream=stream) == 2 * host).all()
twice.forall(64)(a, out)
assert (thrice(host) == 3 * host).all()
assert add(a) == host.sum()
next_one[2, 32](a, out)
for _ in range(2):
    everybody[1, 32](out)
reversed_by_two_warps[1, 64](out)
print("the program's end")
