"""Tutorials of Triton and Gluon on small problems, each compared with PyTorch.

    numba-deform check bench/programs/triton_tutorials.py FOLDER NAME

``FOLDER`` has Triton's repository, as it is at one commit; ``NAME`` is one of ``PROGRAMS``, those of
``BLACKWELL`` with ``arch=sm_100a``. A kernel's definitions are taken from its file as they are (but for
``CHANGED``), without the tests and benchmarks that follow, and the first of the configurations
that it may be compiled for.
"""

import importlib.util
import linecache
import sys
from pathlib import Path

import torch

TUTORIALS = "python/tutorials"
# What Triton 3.8 and 3.9 call otherwise, and a benchmark that runs when its file is imported.
CHANGED = {"tmem_block.value": "tmem_block", "async_copy_shared_to_global": "async_store",
           "\nbenchmark_multicta_softmax_f32()\n": "\n"}  # fmt: skip


def definitions(folder, file):
    """The module of a tutorial up to its test."""
    path = Path(folder, TUTORIALS, file)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(path.stem, path))
    sys.modules[path.stem] = module
    text = path.read_text().partition("# Unit Test\n")[0]
    for before, now in CHANGED.items():
        text = text.replace(before, now)
    linecache.cache[str(path)] = len(text), None, text.splitlines(True), str(path)  # Triton reads it there
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def gluon(folder, file):
    """The module of a tutorial of Gluon."""
    from triton.experimental.gluon.language.nvidia import blackwell

    if not hasattr(blackwell, "get_tmem_reg_layout"):  # imported for another GPU; it has moved in Triton 3.8
        blackwell.get_tmem_reg_layout = None
    return definitions(folder, f"gluon/{file}")


def first(kernel):
    """The kernel, with the first of its configurations alone."""
    kernel.configs = kernel.configs[:1]


def halves(*shape):
    return torch.randn(shape, dtype=torch.float32).half() / 2


def compare(found, wanted, atol=1e-2, rtol=1e-2):
    """As torch.testing.assert_close, which imports all of torch.distributed."""
    assert found.dtype == wanted.dtype
    assert torch.allclose(found, wanted, rtol, atol), (found - wanted).abs().max()


def softmax(folder):
    x = torch.randn(6, 100)
    compare(definitions(folder, "02-fused-softmax.py").softmax(x), torch.softmax(x, 1), atol=1e-5, rtol=1e-6)


def matmul(folder):
    tutorial, a, b = definitions(folder, "03-matrix-multiplication.py"), halves(128, 128), halves(128, 256)
    first(tutorial.matmul_kernel)
    compare(tutorial.matmul(a, b), (a.float() @ b.float()).half())


def attention(folder):
    tutorial, (q, k, v) = definitions(folder, "06-fused-attention.py"), halves(3, 1, 1, 128, 64)
    first(tutorial._attn_fwd)
    later = torch.ones(128, 128).triu(1) > 0
    scores = (q.float() @ k.float().transpose(2, 3) / 2).masked_fill(later, -torch.inf)
    wanted = torch.softmax(scores, -1) @ v.float()
    compare(tutorial.attention(q, k, v, True, 0.5, False), wanted.half(), rtol=0)


def persistent(folder, run="matmul_tma_persistent", kernel="matmul_kernel_tma_persistent"):
    tutorial, a, b = definitions(folder, "09-persistent-matmul.py"), halves(256, 192), halves(256, 192)
    first(getattr(tutorial, kernel))
    product = getattr(tutorial, run)(a, b, False)
    compare(product, (a.float() @ b.float().T).half())


def persistent_on_device(folder):
    persistent(folder, "matmul_descriptor_persistent", "matmul_kernel_descriptor_persistent")


def gluon_tma(folder):
    a, b, c = torch.randn(40, 256), torch.randn(40, 256), torch.full((40, 256), torch.nan)
    gluon(folder, "04-tma.py").elementwise_add_tma(a, b, c, num_buffers=2)
    assert torch.equal(c, a + b)


def gluon_wgmma(folder):
    a, b, c = halves(128, 192), halves(192, 128), torch.full((128, 128), torch.nan).half()
    gluon(folder, "05-wgmma.py").blocked_matmul_pipelined(a, b, c, 64, 128, 64, 4)
    compare(c, (a.float() @ b.float()).half())


def gluon_persistence(folder):
    a, b, c = halves(128, 192), halves(192, 128), torch.full((128, 128), torch.nan).half()
    tutorial = gluon(folder, "07-persistence.py")
    tutorial.persistent_matmul(a, b, c, 64, 64, 64, 3, 4, tutorial.PersistentTileScheduler)
    compare(c, (a.float() @ b.float()).half())


def gluon_warp_specialization(folder):
    a, b, c = torch.randn(40, 256), torch.randn(40, 256), torch.full((40, 256), torch.nan)
    gluon(folder, "08-warp-specialization.py").elementwise_add_warp_specialized(a, b, c)
    assert torch.equal(c, a + b)


# --- for a Blackwell GPU ------------------------------------------------------------------------------
def product(run, m, n, k, *more):
    """``run(a, b, c, *more)`` of halves, c = a b."""
    a, b, c = halves(m, k), halves(k, n), torch.full((m, n), torch.nan).half()
    run(a, b, c, *more)
    compare(c, (a.float() @ b.float()).half())


def tcgen05_cells(folder):
    data, out = torch.randn(128, 32), torch.full((128, 32), torch.nan)
    gluon(folder, "06-tcgen05.py").tmem_example_kernel[(1,)](data, out, 128, 32, num_warps=4)
    assert torch.equal(out, data)


def tcgen05_small(folder, in_tensor_memory=True):
    a, b, c, d = halves(128, 64), halves(64, 64), torch.randn(128, 64), torch.full((128, 64), torch.nan)
    gluon(folder, "06-tcgen05.py").small_mma(a, b, c, d, (128, 64), in_tensor_memory, True, 4)
    compare(d, a.float() @ b.float() + c, atol=1e-3)


def tcgen05_blocked(folder):
    product(gluon(folder, "06-tcgen05.py").blocked_matmul, 64, 64, 192, 64, 64, 64, False, 4)


def tcgen05_pipelined(folder):
    product(gluon(folder, "06-tcgen05.py").blocked_matmul_pipelined, 256, 128, 256, 128, 128, 64, 4)


def tcgen05_persistence(folder):
    tutorial = gluon(folder, "07-persistence.py")
    product(tutorial.persistent_matmul, 256, 128, 256, 128, 128, 64, 3, 4, tutorial.PersistentTileScheduler)


def tcgen05_warp_specialization(folder):
    tutorial = gluon(folder, "08-warp-specialization.py")
    scheduler = tutorial.t7.PersistentTileScheduler
    product(tutorial.matmul_warp_specialized, 256, 256, 256, 128, 256, 64, 2, 4, 4, scheduler)


def tcgen05_copy(folder):
    a, b, c = halves(128, 256), halves(256, 64), torch.randn(128, 64)
    found = gluon(folder, "10-tcgen05-copy.py").matmul_accumulate(a, b, c, 128, 64, 64)
    compare(found, a.float() @ b.float() + c, atol=5e-3)


def tcgen05_scaled(folder, kind="mxfp8", kernel="mma_scaled_warp_specialized_kernel"):
    tutorial = gluon(folder, "11-tcgen05-mma-scaled.py")
    made = (tutorial.random_quantized_tensor(128, 1024, kind) for _ in range(2))
    (a, a_scale, left), (b, b_scale, right) = made
    each = 16 if kind == "nvfp4" else 32
    scales = (tutorial.swizzle_scales_packed_block(scale, each) for scale in (a_scale, b_scale))
    found = tutorial.mma_scaled(a, b, *scales, each, getattr(tutorial, kernel))
    compare(found.float(), left.float() @ right.float().T)


def tcgen05_scaled_nvfp4(folder):
    tcgen05_scaled(folder, "nvfp4")


def tcgen05_pair(folder):
    a, b, c = halves(256, 64), halves(64, 128), torch.full((256, 128), torch.nan).half()
    gluon(folder, "14-multicta.py").run_two_cta_tcgen05(a, b, c)
    compare(c, (a.float() @ b.float()).half())


def launch_control(folder):
    product(gluon(folder, "12-cluster-launch-control.py").run_matmul_kernel, 256, 256, 256, 128, 128, 64, 3)


def gather_scatter(folder):
    tutorial = gluon(folder, "09-tma-gather-scatter.py")
    data, rows = torch.randn(64, 64), torch.randperm(64)[:8]
    assert torch.equal(tutorial.async_gather(data, rows.int(), 0, 8, 16), data[rows, :16])
    new = torch.randn(8, 16)
    tutorial.async_scatter(data, rows.int(), 16, new, 8, 16)
    assert torch.equal(data[rows, 16:32], new)


BLACKWELL = (tcgen05_cells, tcgen05_small, tcgen05_blocked, tcgen05_pipelined, tcgen05_persistence,
             tcgen05_warp_specialization, tcgen05_copy, tcgen05_scaled, tcgen05_scaled_nvfp4,
             tcgen05_pair, launch_control, gather_scatter)  # fmt: skip
PROGRAMS = (softmax, matmul, attention, persistent, persistent_on_device, gluon_tma, gluon_wgmma,
            gluon_persistence, gluon_warp_specialization, *BLACKWELL)  # fmt: skip


def main(folder, name):
    torch.manual_seed(0)
    sys.path.insert(0, str(Path(folder, TUTORIALS, "gluon")))  # those of Gluon import each other
    {program.__name__: program for program in PROGRAMS}[name](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("the result is right")
