"""Triton's tutorials, fetched by name and commit and compiled by Triton for sm_90a, without a GPU: kernels as
``fetched_kernels.py`` has them. Each is compiled with the constants and warps that the tutorial takes (of tuned
ones one of its configurations), for arguments that 16 divides, as those of CASES are."""

import ast
import functools
import importlib.util
import sys

import numpy as np
from cuda_programs.sources import checkout
from fetched_kernels import PREPARED, M, launch
from other_kernels import numbers

TRITON, PATH = ("triton-lang/triton", "6cc4505"), "python/tutorials"
KERNELS = {}  # {name: what makes its Launch}
SOURCES = {}  # {name: (file, types of its arguments, its constants, options of the compiler)}


def of(file, types, warps=4, stages=3, also=(), **constants):
    """Decorator: ``make(name, *size)`` makes the Launch of the kernel of the same name; ``types`` of its
    arguments, in order, 1 where one is always 1; ``also``: other kernels that are called alike."""

    def wrap(make):
        for name in (make.__name__, *also):
            SOURCES[name] = file, types.split(), constants, {"num_warps": warps, "num_stages": stages}
            KERNELS[name] = functools.partial(make, name)
        return make

    return wrap


def prepare(mirrors, folder=PREPARED):
    """Write NAME.ptx and NAME.cubin of every kernel, by Triton."""
    import triton
    from triton.backends.compiler import GPUTarget

    folder.mkdir(parents=True, exist_ok=True)
    tree = checkout(*TRITON, (PATH,), folder.resolve().parent / "triton", mirrors)
    for name, (file, types, constants, options) in SOURCES.items():
        function = getattr(definitions(tree / PATH / file), name)
        arguments = [argument for argument in function.arg_names if argument not in constants]
        pairs = dict(zip(arguments, types, strict=True))
        constants = constants | {argument: 1 for argument, kind in pairs.items() if kind == "1"}
        signature = {a: "constexpr" if a in constants else pairs[a] for a in function.arg_names}
        aligned = {(n,): [["tt.divisibility", 16]] for n, kind in enumerate(signature.values())
                   if kind[0] in "*i"}  # fmt: skip
        source = triton.compiler.ASTSource(function, signature, constants, aligned)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        text = f"// dynamic shared memory: {made.metadata.shared}\n{made.asm['ptx']}"
        (folder / f"{name}.ptx").write_text(text)
        (folder / f"{name}.cubin").write_bytes(made.asm["cubin"])
        print(name, made.metadata.shared, made.metadata.global_scratch_size, flush=True)


@functools.cache
def definitions(path):
    """The module of a tutorial's kernels alone, without what it runs, and without tuning."""
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(path.stem, path))
    sys.modules[path.stem] = module
    tree = ast.parse(path.read_text())
    kernels = [x for x in tree.body if isinstance(x, ast.FunctionDef) and "triton.jit" in ast.unparse(x)]
    imports = [x for x in tree.body if isinstance(x, (ast.Import, ast.ImportFrom))]
    imports = [x for x in imports if "triton" in ast.unparse(x)]
    for kernel in kernels:
        jit = ast.Attribute(ast.Name("triton", ast.Load()), "jit", ast.Load())
        kernel.decorator_list = [ast.copy_location(jit, kernel.decorator_list[-1])]
    tree.body = imports + [ast.fix_missing_locations(kernel) for kernel in kernels]
    exec(compile(tree, str(path), "exec"), vars(module))
    return module


# --- element by element ------------------------------------------------------------------------------------
@of("01-vector-add.py", "*fp32 *fp32 *fp32 i32", BLOCK_SIZE=1024)
def add_kernel(name, n):
    x, y = numbers(n), numbers(n, seed=2)
    return launch(name, n // 1024, 128, [x, y, np.empty_like(x), n], {2: x + y})


@of("04-low-memory-dropout.py", "*fp32 *i32 *fp32 i32 fp32", BLOCK_SIZE=1024)
def _dropout(name, n):
    x, kept = numbers(n), np.random.default_rng(2).integers(0, 2, n, np.int32)
    args = [x, kept, np.empty_like(x), n, np.float32(0.5)]
    return launch(name, n // 1024, 128, args, {2: np.where(kept, 2 * x, 0)})


@of("04-low-memory-dropout.py", "*fp32 *fp32 i32 fp32 i32", BLOCK_SIZE=1024)
def _seeded_dropout(name, n):
    x, seed = numbers(n), 112
    random = philox(seed, n).view(np.int32).astype(np.float32) * np.float32(2.0**-31)  # rounded, as there
    right = np.where(random > 0.5, 2 * x, 0)
    return launch(name, n // 1024, 128, [x, np.empty_like(x), n, np.float32(0.5), seed], {1: right})


def philox(seed, n):
    """The first word of Philox 4x32-10 for counters 0 .. n, a negative one inverted, as ``tl.rand`` has it."""
    c, keys = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))], [seed, 0]
    for _ in range(10):
        low, high = 0xCD9E8D57 * c[2], 0xD2511F53 * c[0]
        c = [low >> 32 ^ c[1] ^ keys[0], low & 0xFFFFFFFF, high >> 32 ^ c[3] ^ keys[1], high & 0xFFFFFFFF]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    found = c[0].astype(np.uint32)
    return np.where(found >> 31, ~found, found)


@of("07-extern-functions.py", "*fp32 *fp32 i32", BLOCK_SIZE=1024)
def asin_kernel(name, n):
    x = np.random.default_rng(1).uniform(-1, 1, n).astype(np.float32)
    return launch(name, n // 1024, 128, [x, np.empty_like(x), n], {1: np.arcsin(x.astype(float))})


# --- rows --------------------------------------------------------------------------------------------------
@of("02-fused-softmax.py", "*fp32 *fp32 i32 i32 i32 i32", warps=8, BLOCK_SIZE=4096, num_stages=4)
def softmax_kernel(name, rows, programs):
    x = numbers(rows, 4096)
    e = np.exp(x - x.max(1, keepdims=True).astype(float))
    args = [np.empty_like(x), x, 4096, 4096, rows, 4096]
    return launch(name, programs, 256, args, {0: e / e.sum(1, keepdims=True)}, tolerance=1e-5)


def _normed(rows, width):
    """(x, its mean and 1 / standard deviation by rows, what is left of it) as the tutorial's test has it."""
    x = (-2.3 + 0.5 * numbers(rows, width)).astype(np.float16)
    mean = x.astype(float).mean(1, keepdims=True)
    scale = 1 / np.sqrt(x.astype(float).var(1, keepdims=True) + 1e-5)
    return x, mean, scale, (x - mean) * scale


@of("05-layer-norm.py", "*fp16 *fp16 *fp16 *fp16 *fp32 *fp32 i32 i32 fp32", warps=8, BLOCK_SIZE=8192)
def _layer_norm_fwd_fused(name, rows, width=8192):
    x, mean, scale, normed = _normed(rows, width)
    w, b = (np.random.default_rng(seed).random(width).astype(np.float16) for seed in (2, 3))
    out, means, scales = np.empty_like(x), np.empty(rows, np.float32), np.empty(rows, np.float32)
    args = [x, out, w, b, means, scales, width, width, np.float32(1e-5)]
    right = {1: (normed * w + b).astype(np.float16), 4: mean[:, 0], 5: scale[:, 0]}
    return launch(name, rows, 256, args, right, tolerance=1e-3)


@of("05-layer-norm.py", "*fp16 *fp16 *fp16 *fp16 *fp16 *fp16 *fp32 *fp32 *i32 i32 i32", warps=8,
    GROUP_SIZE_M=96, BLOCK_SIZE_N=8192)  # fmt: skip
def _layer_norm_bwd_dx_fused(name, rows, width=8192):
    """The sums of weights' gradients, which blocks add to in any order and again at each launch, are not
    compared."""
    x, mean, scale, normed = _normed(rows, width)
    w = np.random.default_rng(2).random(width).astype(np.float16)
    dy = (0.1 * numbers(rows, width)).astype(np.float16)
    change = w.astype(float) * dy
    means = (normed * change).mean(1, keepdims=True), change.mean(1, keepdims=True)
    right = (change - normed * means[0] - means[1]) * scale
    sums = [np.zeros((96, width), np.float16) for _ in range(2)]
    places = [part[:, 0].astype(np.float32) for part in (mean, scale)]
    args = [np.empty_like(x), dy, *sums, x, w, *places, np.zeros(192, np.int32), width, width]
    return launch(name, rows, 256, args, {0: right.astype(np.float16)}, tolerance=2e-3)


@of("05-layer-norm.py", "*fp16 *fp16 *fp16 *fp16 i32 i32", BLOCK_SIZE_M=32, BLOCK_SIZE_N=128)
def _layer_norm_bwd_dwdb(name, width, rows=96):
    given = [(numbers(rows, width, seed=seed)).astype(np.float16) for seed in (1, 2)]
    outs = [np.empty(width, np.float16) for _ in range(2)]
    right = {2 + n: x.astype(float).sum(0).astype(np.float16) for n, x in enumerate(given)}
    return launch(name, width // 128, 128, [*given, *outs, rows, width], right)


# --- tensor cores ------------------------------------------------------------------------------------------
@of("03-matrix-multiplication.py", "*fp16 *fp16 *fp16 i32 i32 i32 i32 1 i32 1 i32 1", warps=8,
    BLOCK_SIZE_M=128, BLOCK_SIZE_N=256, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, ACTIVATION="")  # fmt: skip
def matmul_kernel(name, n, blocks=0):
    a, b = ((numbers(n, n, seed=seed) / 4).astype(np.float16) for seed in (1, 2))
    args = [a, b, np.empty_like(a), *[n] * 6]
    right = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    return launch(name, blocks or n * n // (128 * 256), 256, args, {2: right}, tolerance=2e-3)


@of("09-persistent-matmul.py", "*fp16 *fp16 *fp16 i32 i32 i32 i32 1 i32 1 i32 1", BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, NUM_SMS=132)  # fmt: skip
def matmul_kernel_persistent(name, n):
    whole = matmul_kernel(name, n, min(132, (n // 128) ** 2))
    whole.kernel.block = (128,)
    return whole


def _heads(z, context):
    return [(numbers(z, context, 64, seed=seed) / 2).astype(np.float16) for seed in (1, 2, 3, 4)]


def _attended(q, k, v, scale):
    """(the sums of values, the logarithms of the sums to base 2)"""
    s = q.astype(np.float32) @ k.astype(np.float32).swapaxes(1, 2) * np.float32(scale)
    most = s.max(2, keepdims=True)
    p = np.exp(s - most)
    total = p.sum(2, keepdims=True)
    return p / total @ v.astype(np.float32), (most + np.log(total))[..., 0] / np.log(2)


@of("06-fused-attention.py", "fp32 *fp32 i32 i32 *fp16 *fp16 *fp16 *fp16 i32", stages=2, HEAD_DIM=64,
    BLOCK_M=128, BLOCK_N=64, FP8_OUTPUT=False, STAGE=1, warp_specialize=False, IS_HOPPER=True)  # fmt: skip
def _attn_fwd(name, heads, context):
    """Not causal; its tensor maps are made by each block, in memory that the last array is."""
    q, k, v, _ = _heads(heads, context)
    out, logs = _attended(q, k, v, 0.5)
    room = np.zeros(heads * context // 128 * 512, np.uint8)
    args = [np.float32(0.5), np.empty((heads, context), np.float32), 16, heads // 16, q, k, v, np.empty_like(q),
            context, room]  # fmt: skip
    right = {1: logs, 7: out.astype(np.float16)}
    return launch(name, (context // 128, heads), 128, args, right, tolerance=5e-3)


@of("06-fused-attention.py", "*fp16 *fp16 *fp32 i32 i32 i32", BLOCK_M=128, HEAD_DIM=64)
def _attn_bwd_preprocess(name, heads, context):
    out, d_out, *_ = _heads(heads, context)
    right = (out.astype(float) * d_out).sum(2)
    args = [out, d_out, np.empty((heads, context), np.float32), 16, heads // 16, context]
    return launch(name, (context // 128, heads), 128, args, {2: right}, tolerance=1e-3)


@of("06-fused-attention.py",
    "*fp16 *fp16 *fp16 fp32 *fp16 *fp16 *fp16 *fp16 *fp32 *fp32 i32 i32 i32 1 i32 i32", stages=5, BLOCK_M1=32,
    BLOCK_N1=128, BLOCK_M2=128, BLOCK_N2=32, BLK_SLICE_FACTOR=2, HEAD_DIM=64, CAUSAL=False)  # fmt: skip
def _attn_bwd(name, heads, context):
    q, k, v, d_out = _heads(heads, context)
    scale, (out, logs) = 0.5, _attended(q, k, v, 0.5)
    wide = [x.astype(np.float32) for x in (q, k, v, d_out)]
    p = np.exp2(wide[0] @ wide[1].swapaxes(1, 2) * np.float32(scale / np.log(2)) - logs[..., None])
    dots = (wide[3] * out).sum(2)
    ds = p * (wide[3] @ wide[2].swapaxes(1, 2) - dots[..., None])
    dq, dk, dv = ds @ wide[1] * scale, ds.swapaxes(1, 2) @ wide[0] * scale, p.swapaxes(1, 2) @ wide[3]
    scaled = (wide[1] * (scale / np.log(2))).astype(np.float16)
    args = [q, scaled, v, np.float32(scale), d_out, *(np.empty_like(q) for _ in range(3)),
            logs.astype(np.float32), dots.astype(np.float32), 16 * context * 64, context * 64, 64, 16,
            context]  # fmt: skip
    right = {n: x.astype(np.float16) for n, x in ((5, dq), (6, dk), (7, dv))}
    return launch(name, (context // 128, 1, heads), 128, args, right, tolerance=1e-2)


CASES = [(name, size) for name, sizes in {
    "add_kernel": [(16 * M,)], "_dropout": [(16 * M,)], "_seeded_dropout": [(4 * M,)],
    "asin_kernel": [(4 * M,)], "softmax_kernel": [(4096, 528)], "_layer_norm_fwd_fused": [(2112,)],
    "_layer_norm_bwd_dx_fused": [(2112,)], "_layer_norm_bwd_dwdb": [(33792,)],
    "matmul_kernel": [(4096,)], "matmul_kernel_persistent": [(2048,)],
    "_attn_fwd": [(64, 1024)], "_attn_bwd_preprocess": [(128, 1024)], "_attn_bwd": [(32, 1024)],
}.items() for size in sizes]  # fmt: skip
SMALL = {name: (2048,) for name in ("add_kernel", "_dropout", "_seeded_dropout", "asin_kernel")} | {
    "softmax_kernel": (3, 2), "_layer_norm_fwd_fused": (2,), "_layer_norm_bwd_dx_fused": (2,),
    "_layer_norm_bwd_dwdb": (256,), "matmul_kernel": (256,), "matmul_kernel_persistent": (256,),
    "_attn_fwd": (16, 128), "_attn_bwd_preprocess": (16, 128), "_attn_bwd": (16, 128),
}  # fmt: skip
