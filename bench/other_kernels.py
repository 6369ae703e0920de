"""Kernels that the model of time was not made with: of the kinds that tutorials and samples have, and those
that others timed on an H100. ``KERNELS``: {name: what makes its Launch}; ``CASES``: the sizes that are timed;
``SMALL``: sizes at which the results are compared without a GPU."""

import math

import numpy as np
from numba import cuda, float32, int32, uint32

import numba_deform as nd

T, MASK = 256, 0xFFFFFFFF
DEPTH, KEYS = 64, 64  # of the backward pass: numbers of a row, keys of a block


def numbers(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def saxpy(n, blocks):
    @nd.kernel(threads=T)
    def saxpy(x: float32[::1], y: float32[::1], out: float32[::1], a: float32, n: int32):
        i = int32(cuda.blockIdx.x * T + cuda.threadIdx.x)
        while i < n:
            out[i] = a * x[i] + y[i]
            i += int32(cuda.gridDim.x * T)

    x, y = numbers(n), numbers(n, seed=2)
    return nd.Launch(saxpy, blocks, [x, y, np.empty_like(x), np.float32(2), n], {"out": 2 * x + y})


def transpose(n, pad):
    """By tiles of 32 x 32 in shared memory; pad -1: without them."""
    pitch = 32 + max(pad, 0)

    @nd.kernel(threads=T)
    def transpose(x: float32[:, ::1], out: float32[:, ::1], across: int32):
        column, row = int32(cuda.threadIdx.x % 32), int32(cuda.threadIdx.x // 32)
        x0, y0 = int32(cuda.blockIdx.x % across) * 32, int32(cuda.blockIdx.x // across) * 32
        if pad < 0:
            for k in range(0, 32, 8):
                out[x0 + column, y0 + row + k] = x[y0 + row + k, x0 + column]
        else:
            tile = cuda.shared.array((32, pitch), float32)
            for k in range(0, 32, 8):
                tile[row + k, column] = x[y0 + row + k, x0 + column]
            cuda.syncthreads()
            for k in range(0, 32, 8):
                out[x0 + row + k, y0 + column] = tile[column, row + k]

    x = numbers(n, n)
    return nd.Launch(transpose, (n // 32) ** 2, [x, np.empty_like(x), n // 32], {"out": x.T})


def row_sums(rows, width):
    """A warp a row, eight of them a block."""

    @nd.kernel(threads=T)
    def row_sums(x: float32[:, ::1], out: float32[::1], width: int32):
        row, lane = int32(cuda.blockIdx.x * 8 + cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        total = float32(0)
        for c in range(lane, width, 32):
            total += x[row, c]
        for k in nd.static_range(5):
            total += cuda.shfl_xor_sync(MASK, total, 16 >> k)
        if lane == 0:
            out[row] = total

    x = numbers(rows, width)
    out = np.empty(rows, np.float32)
    return nd.Launch(row_sums, rows // 8, [x, out, width], {"out": x.sum(1)}, tolerance=1e-4)


def softmax(rows, width):
    """A block a row, which it reads once."""
    parts = -(-width // T)

    @nd.kernel(threads=T)
    def softmax(x: float32[:, ::1], out: float32[:, ::1], width: int32):
        kept, shared = cuda.local.array(parts, float32), cuda.shared.array(8, float32)
        row, t = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x)
        most = float32(-1e30)
        for k in nd.static_range(parts):
            c = int32(k * T) + t
            kept[k] = x[row, c] if c < width else float32(-1e30)
            most = max(most, kept[k])
        for k in nd.static_range(5):
            most = max(most, cuda.shfl_xor_sync(MASK, most, 16 >> k))
        if t % 32 == 0:
            shared[t // 32] = most
        cuda.syncthreads()
        for k in nd.static_range(8):
            most = max(most, shared[k])
        cuda.syncthreads()
        total = float32(0)
        for k in nd.static_range(parts):
            kept[k] = math.exp(float32(kept[k] - most))
            total += kept[k]
        for k in nd.static_range(5):
            total += cuda.shfl_xor_sync(MASK, total, 16 >> k)
        if t % 32 == 0:
            shared[t // 32] = total
        cuda.syncthreads()
        total = float32(0)
        for k in nd.static_range(8):
            total += shared[k]
        for k in nd.static_range(parts):
            c = int32(k * T) + t
            if c < width:
                out[row, c] = kept[k] / total

    x = numbers(rows, width)
    e = np.exp(x - x.max(1, keepdims=True))
    right = e / e.sum(1, keepdims=True)
    return nd.Launch(softmax, rows, [x, np.empty_like(x), width], {"out": right}, tolerance=1e-4)


def layer_norm(rows, width):
    """A warp a row: mean and variance in one pass, then the row once more."""

    @nd.kernel(threads=T)
    def layer_norm(x: float32[:, ::1], w: float32[::1], out: float32[:, ::1], width: int32):
        row, lane = int32(cuda.blockIdx.x * 8 + cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        total, squares = float32(0), float32(0)
        for c in range(lane, width, 32):
            total += x[row, c]
            squares += x[row, c] * x[row, c]
        for k in nd.static_range(5):
            total += cuda.shfl_xor_sync(MASK, total, 16 >> k)
            squares += cuda.shfl_xor_sync(MASK, squares, 16 >> k)
        mean = total / float32(width)
        scale = float32(1) / math.sqrt(float32(squares / float32(width) - mean * mean + float32(1e-5)))
        for c in range(lane, width, 32):
            out[row, c] = (x[row, c] - mean) * scale * w[c]

    x, w = numbers(rows, width), numbers(width, seed=2)
    right = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w
    return nd.Launch(layer_norm, rows // 8, [x, w, np.empty_like(x), width], {"out": right}, tolerance=1e-4)


def gather(rows, table):
    """Rows of 64 bytes from anywhere, four lanes a row, 16 bytes each."""

    @nd.kernel(threads=T)
    def gather(values: nd.u64, index: int32[::1], out: nd.u64):
        i = int32(cuda.blockIdx.x * T + cuda.threadIdx.x)
        words = nd.ld_global_nc_v4(nd.global_at(nd.global_at(values, index[i // 4], 64), i % 4, 16))
        nd.st_global_v4(nd.global_at(out, i, 16), words[0], words[1], words[2], words[3])

    values = np.arange(table * 16, dtype=np.uint32).reshape(table, 16)
    index = np.random.default_rng(1).integers(0, table, rows).astype(np.int32)
    out = np.zeros((rows, 16), np.uint32)
    return nd.Launch(gather, rows * 4 // T, [values, index, out], {"out": values[index]})


def product(n):
    """C = A B by tiles of 32 x 32, an output a thread."""

    @nd.kernel(threads=1024)
    def product(a: float32[:, ::1], b: float32[:, ::1], out: float32[:, ::1], n: int32):
        left, right = cuda.shared.array((32, 32), float32), cuda.shared.array((32, 32), float32)
        x, y = int32(cuda.threadIdx.x % 32), int32(cuda.threadIdx.x // 32)
        row, column = int32(cuda.blockIdx.x // (n // 32)) * 32 + y, int32(cuda.blockIdx.x % (n // 32)) * 32 + x
        total = float32(0)
        for k in range(0, n, 32):
            left[y, x], right[y, x] = a[row, k + x], b[k + y, column]
            cuda.syncthreads()
            for j in nd.static_range(32):
                total += left[y, j] * right[j, x]
            cuda.syncthreads()
        out[row, column] = total

    a, b = numbers(n, n), numbers(n, n, seed=2)
    return nd.Launch(product, (n // 32) ** 2, [a, b, np.empty_like(a), n], {"out": a @ b}, tolerance=1e-4)


def chain(n, steps, what):
    """Dependent instructions: ex2 and a multiplication, or multiplications with addition, of floats or ints."""

    @nd.kernel(threads=T)
    def chain(x: float32[::1], out: float32[::1]):
        i = int32(cuda.blockIdx.x * T + cuda.threadIdx.x)
        value = x[i]
        if what == "ex2":
            for _ in range(steps):
                value = nd.ex2_approx_f32(value) * float32(0.5)
        elif what == "fma":
            for _ in range(steps):
                value = value * float32(0.75) + float32(0.1)
        else:
            word = uint32(i)
            for _ in range(steps):
                word = uint32(word * uint32(1664525) + uint32(1013904223)) ^ uint32(word >> uint32(3))
            value = float32(word & uint32(255))
        out[i] = value

    x = np.abs(numbers(n)) / 8
    right = np.arange(n, dtype=np.uint32) if what == "int" else x.copy()
    for _ in range(steps):
        if what == "int":
            right = right * np.uint32(1664525) + np.uint32(1013904223) ^ right >> np.uint32(3)
        elif what == "ex2":
            right = np.exp2(right) * np.float32(0.5)
        else:
            right = right * np.float32(0.75) + np.float32(0.1)
    right = (right & 255).astype(np.float32) if what == "int" else right
    return nd.Launch(chain, n // T, [x, np.empty_like(x)], {"out": right}, tolerance=1e-4)


def boxes(rows, box, stages, blocks):
    """A copy of rows of 32 floats by TMA, four warps that store."""
    part = nd.Array((stages, box, 32), nd.float32, alignment=128)
    shared = nd.Shared(tiles=part, ring=nd.Ring(stages, empty=128))
    ring = shared.ring

    @nd.kernel(threads=160, shared=shared)
    def boxes(map: nd.u64, out: float32[:, ::1], count: int32):
        shared.init()
        state, tiles = ring.start(), shared.tiles.view()
        if nd.warp() == 4:
            if nd.lane() == 0:
                nd.fence_proxy_tensormap_acquire_sys(map)
                for tile in range(int32(cuda.blockIdx.x), count, int32(cuda.gridDim.x)):
                    ring.acquire(state)
                    ring.expect(state, shared.tiles.stride)
                    to = shared.tiles.at(state.stage)
                    nd.cp_async_bulk_tensor_2d(to, map, 0, box * tile, ring.full(state))
                    state = ring.advance(state)
        else:
            for tile in range(int32(cuda.blockIdx.x), count, int32(cuda.gridDim.x)):
                ring.wait(state)
                for row in range(nd.warp(), box, 4):
                    out[box * tile + row, nd.lane()] = tiles[state.stage, row, nd.lane()]
                ring.release(state)
                state = ring.advance(state)

    x = numbers(rows, 32)
    args = [nd.TensorMapArray([nd.TensorMap.of(x, (32, box))]), np.empty_like(x), rows // box]
    return nd.Launch(boxes, blocks, args, {"out": x})


def histogram(n, blocks, shared):
    """256 bins: of each block in shared memory first, or at once in global memory."""

    @nd.kernel(threads=T)
    def histogram(x: uint32[::1], out: uint32[::1], n: int32):
        bins, t = cuda.shared.array(256, uint32), int32(cuda.threadIdx.x)
        bins[t] = 0
        cuda.syncthreads()
        for i in range(int32(cuda.blockIdx.x * T) + t, n, int32(cuda.gridDim.x * T)):
            if shared:
                cuda.atomic.add(bins, x[i] & uint32(255), uint32(1))
            else:
                cuda.atomic.add(out, x[i] & uint32(255), uint32(1))
        cuda.syncthreads()
        if shared:
            cuda.atomic.add(out, t, bins[t])

    x = np.random.default_rng(1).integers(0, 1 << 32, n, np.uint32)
    right = np.bincount(x & 255, minlength=256).astype(np.uint32)
    return nd.Launch(histogram, blocks, [x, np.zeros(256, np.uint32), n], {"out": right},
                     initial={"out": np.zeros(256, np.uint32)})  # fmt: skip


def stencil(n):
    """Five points, each from global memory."""

    @nd.kernel(threads=T)
    def stencil(x: float32[:, ::1], out: float32[:, ::1], n: int32):
        i = int32(cuda.blockIdx.x * T + cuda.threadIdx.x)
        row, column = i // n, i % n
        total = x[row, column] * float32(-4)
        total += x[row - 1, column] if row > 0 else float32(0)
        total += x[row + 1, column] if row < n - 1 else float32(0)
        total += x[row, column - 1] if column > 0 else float32(0)
        total += x[row, column + 1] if column < n - 1 else float32(0)
        out[row, column] = total

    x = numbers(n, n)
    wide = np.pad(x, 1)
    right = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * x
    return nd.Launch(stencil, n * n // T, [x, np.empty_like(x), n], {"out": right}, tolerance=1e-4)


def convolution(n, radius):
    """Along a line, by way of shared memory."""
    size = T + 2 * radius

    @nd.kernel(threads=T)
    def convolution(x: float32[::1], w: float32[::1], out: float32[::1]):
        tile, t = cuda.shared.array(size, float32), int32(cuda.threadIdx.x)
        i = int32(cuda.blockIdx.x * T)
        for k in range(t, size, T):
            tile[k] = x[i + k]
        cuda.syncthreads()
        total = float32(0)
        for k in nd.static_range(2 * radius + 1):
            total += tile[t + k] * w[k]
        out[i + t] = total

    x, w = numbers(n + 2 * radius), numbers(2 * radius + 1, seed=2)
    right = np.convolve(x, w[::-1], "valid")
    return nd.Launch(convolution, n // T, [x, w, np.empty(n, np.float32)], {"out": right}, tolerance=1e-4)


def scan(n):
    """Sums up to each element, of 256 by themselves."""

    @nd.kernel(threads=T)
    def scan(x: int32[::1], out: int32[::1]):
        sums, t = cuda.shared.array(T, int32), int32(cuda.threadIdx.x)
        i = int32(cuda.blockIdx.x * T) + t
        sums[t] = x[i]
        cuda.syncthreads()
        for k in nd.static_range(8):
            mine = sums[t - (1 << k)] if t >= (1 << k) else int32(0)
            cuda.syncthreads()
            sums[t] += mine
            cuda.syncthreads()
        out[i] = sums[t]

    x = np.random.default_rng(1).integers(-9, 9, n).astype(np.int32)
    right = x.reshape(-1, T).cumsum(1).ravel().astype(np.int32)
    return nd.Launch(scan, n // T, [x, np.empty_like(x)], {"out": right})


def options(n):
    """Black and Scholes' price of a call, by Hastings' polynomial."""

    @nd.kernel(threads=T)
    def options(price: float32[::1], strike: float32[::1], out: float32[::1]):
        i = int32(cuda.blockIdx.x * T + cuda.threadIdx.x)
        s, k = price[i], strike[i]
        d = (math.log(float32(s / k)) + float32(0.065)) / float32(0.3)
        total = float32(0)
        for which in nd.static_range(2):
            x = d - float32(0.3 * which)
            t = float32(1) / (float32(1) + float32(0.2316419) * abs(x))
            poly = t * (float32(0.31938153) + t * (float32(-0.356563782) + t * (float32(1.781477937) + t * (
                float32(-1.821255978) + t * float32(1.330274429)))))  # fmt: skip
            below = float32(0.39894228) * math.exp(float32(-0.5) * x * x) * poly
            below = float32(1) - below if x > float32(0) else below
            total += s * below if which == 0 else -k * float32(0.98019867) * below
        out[i] = total

    s, k = np.abs(numbers(n)) * 9 + 5, np.abs(numbers(n, seed=2)) * 9 + 5
    d = (np.log(s / k) + 0.065) / 0.3
    phi = [np.where(x > 0, 1 - q, q) for x, q in ((x, _tail(x)) for x in (d, d - 0.3))]
    right = (s * phi[0] - k * 0.98019867 * phi[1]).astype(np.float32)
    return nd.Launch(options, n // T, [s, k, np.empty_like(s)], {"out": right}, tolerance=1e-3)


def _tail(x):
    t = 1 / (1 + 0.2316419 * np.abs(x))
    poly = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    return 0.39894228 * np.exp(-0.5 * x * x) * poly


def bodies(n):
    """The pull of all on each, by tiles in shared memory."""

    @nd.kernel(threads=T)
    def bodies(x: float32[:, ::1], out: float32[:, ::1], n: int32):
        tile, t = cuda.shared.array((T, 4), float32), int32(cuda.threadIdx.x)
        i = int32(cuda.blockIdx.x * T) + t
        px, py, pz = x[i, 0], x[i, 1], x[i, 2]
        ax, ay, az = float32(0), float32(0), float32(0)
        for first in range(0, n, T):
            for c in nd.static_range(4):
                tile[t, c] = x[first + t, c]
            cuda.syncthreads()
            for k in range(T):
                dx, dy, dz = tile[k, 0] - px, tile[k, 1] - py, tile[k, 2] - pz
                square = dx * dx + dy * dy + dz * dz + float32(0.01)
                inverse = float32(1) / math.sqrt(square)
                pull = tile[k, 3] * inverse * inverse * inverse
                ax, ay, az = ax + dx * pull, ay + dy * pull, az + dz * pull
            cuda.syncthreads()
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = ax, ay, az, float32(0)

    x = numbers(n, 4)
    right = np.zeros_like(x)
    for first in range(0, n, T):
        apart = x[None, :, :3] - x[first : first + T, None, :3]
        pull = x[None, :, 3] / ((apart**2).sum(2) + 0.01) ** 1.5
        right[first : first + T, :3] = (apart * pull[..., None]).sum(1)
    return nd.Launch(bodies, n // T, [x, np.empty_like(x), n], {"out": right}, tolerance=1e-3)


def escapes(n, limit):
    """Mandelbrot's set: lanes of a warp leave its loop at different times."""

    @nd.kernel(threads=T)
    def escapes(out: int32[:, ::1], n: int32):
        i = int32(cuda.blockIdx.x * T + cuda.threadIdx.x)
        cx, cy = float32(i % n) * float32(3 / n) - float32(2), float32(i // n) * float32(2 / n) - float32(1)
        x, y, count = float32(0), float32(0), int32(0)
        while count < limit and x * x + y * y < float32(4):
            x, y = x * x - y * y + cx, float32(2) * x * y + cy
            count += int32(1)
        out[i // n, i % n] = count

    return nd.Launch(escapes, n * n // T, [np.zeros((n, n), np.int32), n], {})  # its edge: by each rounding


def sparse(rows, each):
    """A sparse matrix by a vector, the k-th entries of all rows side by side."""

    @nd.kernel(threads=T)
    def sparse(values: float32[:, ::1], columns: int32[:, ::1], x: float32[::1], out: float32[::1]):
        row, total = int32(cuda.blockIdx.x * T + cuda.threadIdx.x), float32(0)
        for k in range(each):
            total += values[k, row] * x[columns[k, row]]
        out[row] = total

    values, x = numbers(each, rows), numbers(rows, seed=2)
    columns = np.random.default_rng(3).integers(0, rows, (each, rows)).astype(np.int32)
    return nd.Launch(sparse, rows // T, [values, columns, x, np.empty(rows, np.float32)],
                     {"out": (values * x[columns]).sum(0)}, tolerance=1e-4)  # fmt: skip


def sort(n):
    """256 numbers at a time, in shared memory, bitonic."""

    @nd.kernel(threads=T)
    def sort(x: int32[::1], out: int32[::1]):
        kept, t = cuda.shared.array(T, int32), int32(cuda.threadIdx.x)
        i = int32(cuda.blockIdx.x * T) + t
        kept[t] = x[i]
        cuda.syncthreads()
        size = int32(2)
        while size <= T:
            step = size // 2
            while step > 0:
                other = t ^ step
                if other > t and (kept[t] > kept[other]) == ((t & size) == 0):
                    kept[t], kept[other] = kept[other], kept[t]
                cuda.syncthreads()
                step //= 2
            size *= 2
        out[i] = kept[t]

    x = np.random.default_rng(1).integers(0, 1 << 30, n).astype(np.int32)
    return nd.Launch(sort, n // T, [x, np.empty_like(x)], {"out": np.sort(x.reshape(-1, T), 1).ravel()})


def backward(queries=16, blocks=2):
    """FlashAttention's backward pass for keys and values, a thread a key: its 256 numbers spill."""

    @nd.kernel(threads=KEYS)
    def backward(q: float32[:, ::1], k: float32[:, ::1], v: float32[:, ::1], d_out: float32[:, ::1],
                 logs: float32[::1], dots: float32[::1], dk: float32[:, ::1], dv: float32[:, ::1],
                 queries: int32):  # fmt: skip
        key = int32(cuda.blockIdx.x * KEYS + cuda.threadIdx.x)
        mine, value = cuda.local.array(DEPTH, float32), cuda.local.array(DEPTH, float32)
        d_key, d_value = cuda.local.array(DEPTH, float32), cuda.local.array(DEPTH, float32)
        for c in nd.static_range(DEPTH):
            mine[c], value[c], d_key[c], d_value[c] = k[key, c], v[key, c], float32(0), float32(0)
        for row in range(queries):
            score, change = float32(0), float32(0)
            for c in nd.static_range(DEPTH):
                score += q[row, c] * mine[c]
                change += d_out[row, c] * value[c]
            p = math.exp(float32(score - logs[row]))
            ds = float32(p * float32(change - dots[row]))
            for c in nd.static_range(DEPTH):
                d_value[c] += p * d_out[row, c]
                d_key[c] += ds * q[row, c]
        for c in nd.static_range(DEPTH):
            dk[key, c], dv[key, c] = d_key[c], d_value[c]

    q, d_out = numbers(queries, DEPTH) / 4, numbers(queries, DEPTH, seed=2) / 4
    k, v = numbers(KEYS * blocks, DEPTH, seed=3) / 4, numbers(KEYS * blocks, DEPTH, seed=4) / 4
    s = q.astype(float) @ k.T
    logs = np.log(np.exp(s).sum(1))
    p = np.exp(s - logs[:, None])
    dots = (d_out * (p @ v)).sum(1)
    ds = p * (d_out @ v.T - dots[:, None])
    right = {"dk": (ds.T @ q).astype(np.float32), "dv": (p.T @ d_out).astype(np.float32)}
    sums = [x.astype(np.float32) for x in (logs, dots)]
    args = [q, k, v, d_out, *sums, np.empty_like(k), np.empty_like(v), queries]
    return nd.Launch(backward, blocks, args, right, tolerance=1e-4)


KERNELS = {make.__name__: make for make in (
    saxpy, transpose, row_sums, softmax, layer_norm, gather, product, chain, boxes, histogram, stencil,
    convolution, scan, options, bodies, escapes, sparse, sort, backward)}  # fmt: skip
M = 1 << 20
CASES = [(name, size) for name, sizes in {
    "saxpy": [(16 * M, 1056), (16 * M, 132), (16 * M, 65536), (M, 4096)],
    "transpose": [(4096, 0), (4096, 1), (4096, -1), (1024, 1)],
    "row_sums": [(32768, 1024), (4096, 4096), (262144, 64)], "softmax": [(8192, 1024), (16384, 4096)],
    "layer_norm": [(8192, 1024), (2048, 8192)], "gather": [(M, M), (M, 16384), (4 * M, M)],
    "product": [(1024,), (512,)], "chain": [(4 * M, 64, "ex2"), (4 * M, 512, "fma"), (4 * M, 256, "int")],
    "boxes": [(33792 * 32, 32, 4, 528), (33792 * 32, 32, 2, 528), (33792 * 8, 8, 8, 528),
              (33792 * 64, 64, 1, 528)],
    "histogram": [(16 * M, 1056, True), (M, 1056, False)], "stencil": [(4096,), (1024,)],
    "convolution": [(16 * M, 8), (4 * M, 32)], "scan": [(16 * M,), (M,)], "options": [(4 * M,), (16 * M,)],
    "bodies": [(8192,), (16384,)], "escapes": [(2048, 256)], "sparse": [(M, 16), (M // 4, 64)],
    "sort": [(4 * M,), (M,)], "backward": [(256, 264), (1024, 132)],
}.items() for size in sizes]  # fmt: skip
SMALL = {
    "saxpy": (2048, 2), "transpose": (64, 1), "row_sums": (16, 64), "softmax": (2, 300), "layer_norm": (16, 64),
    "gather": (128, 64), "product": (64,), "chain": (512, 4, "int"), "boxes": (256, 32, 2, 2),
    "histogram": (2048, 2, True), "stencil": (64,), "convolution": (512, 8), "scan": (512,), "options": (512,),
    "bodies": (256,), "escapes": (16, 9), "sparse": (256, 4), "sort": (512,), "backward": (4, 1),
}  # fmt: skip
