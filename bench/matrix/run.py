"""Times ``matrix.cu`` on the seeds' shape, pattern local(2), and checks some rows against float64.

    nvcc -O3 -std=c++17 -arch=sm_90a --shared -Xcompiler -fPIC -o libmatrix.so matrix.cu
    python run.py [once]

``once``: one launch and no check, for Nsight Compute. Needs PyTorch, and this checkout on PYTHONPATH.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import plan
import torch

from numba_deform import workload

BLOCKS, CHECKED_ROWS = 132, 1500


def draw(shape):
    """value (B, S, 32), locations (B, Q, 1, 4, 8, 2), weights (B, Q, 1, 4, 8), all fp16, and references (Q, 2).

    As ``Workload.generate`` draws them, on the GPU; where the picture ends, 17 % of the samples are outside.
    """
    torch.manual_seed(0)
    b, q = shape.batch, shape.num_query
    value = torch.randn(b, shape.num_positions, 32, device="cuda").half()
    references = np.tile(workload.pixel_centres(shape.levels, np.float64), (2, 1))[:q]
    sizes = torch.tensor([(w, h) for h, w in shape.levels], device="cuda", dtype=torch.float32)
    away = torch.randn(b, q, 1, 4, 8, 2, device="cuda") * shape.sigma
    away[..., 0] += torch.arange(1, 9, device="cuda")
    middle = torch.tensor(references, device="cuda", dtype=torch.float32)
    locations = (away / sizes[:, None] + middle[None, :, None, None, None]).half().contiguous()
    logits = torch.randn(b, q, 1, 32, device="cuda")
    weights = torch.softmax(logits, -1).half().reshape(b, q, 1, 4, 8).contiguous()
    return value, locations, weights, references


def tables(shape, references, locations):
    """(items, items of each block, corners, groups, order) on the GPU, and most items of a block."""
    order, origin, counts, corners = plan.plan(shape.levels, references, locations)
    far = sum(plan.lost(shape.levels, order, origin, counts, locations))
    print(f"{len(order)} groups; outside: {far.mean():.2f} samples of 1024, at most {far.max()}")
    within = origin - np.repeat(corners, plan.Shape.groups, axis=0)
    groups = np.zeros((len(order), 16), np.int32)
    groups[:, :8] = origin.reshape(-1, 8)
    groups[:, 8:12] = within[:, :, 1] * [width for _, width in plan.Shape.boxes] + within[:, :, 0]
    groups[:, 12] = counts
    every = np.indices((shape.batch, len(corners)), np.int32).reshape(2, -1).T
    shares = [every[block::BLOCKS] for block in range(BLOCKS)]
    most = max(map(len, shares))
    items = np.zeros((BLOCKS, most, 2), np.int32)
    for block, share in enumerate(shares):
        items[block, : len(share)] = share
    number = np.array([len(share) for share in shares], np.int32)
    host = (items, number, corners, groups, order)
    return [torch.from_numpy(np.ascontiguousarray(table)).cuda() for table in host], most


def expected(shape, value, locations, weights, queries):
    """(B, q, 32) float64 of some queries."""
    total, start = 0, 0
    for level, (h, w) in enumerate(shape.levels):
        plane = value[:, start : start + h * w].double().transpose(1, 2).reshape(-1, 32, h, w)
        start += h * w
        samples = torch.nn.functional.grid_sample(
            plane, locations[:, queries, 0, level].double() * 2 - 1, align_corners=False
        )
        weighted = samples * weights[:, queries, 0, level].double()[:, None]
        total = total + weighted.sum(-1).transpose(1, 2)
    return total


def main():
    once = "once" in sys.argv[1:]
    shape = workload.preset("seeds").replace(pattern="local(2)")
    value, locations, weights, references = draw(shape)
    device, most = tables(shape, references, locations[:2].cpu().numpy())
    out = torch.full((shape.batch, shape.num_query, 32), float("nan"), device="cuda").half()
    warm, repeats = (0, 1) if once else (1000, 50)
    ms = (ctypes.c_float * repeats)()
    sizes = (ctypes.c_int * 8)(*np.ravel(shape.levels).tolist())
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (value, locations, weights, out, *device)]
    library = ctypes.CDLL(str(Path(__file__).with_name("libmatrix.so")))
    code = library.run(
        *pointers, most, shape.batch, shape.num_query, shape.num_positions, sizes, BLOCKS, warm,
        repeats, ms,
    )  # fmt: skip
    if code:
        raise SystemExit(f"run() returned {code}")
    print(f"{np.median(ms):.4f} ms, {min(ms):.4f} to {max(ms):.4f}")
    if not once:
        queries = torch.randperm(shape.num_query, device="cuda")[:CHECKED_ROWS]
        right = expected(shape, value, locations, weights, queries)
        error = (out[:, queries].double() - right).norm() / right.norm()
        print(f"error {error:.2e}, {int(out.isnan().sum())} numbers not written")


if __name__ == "__main__":
    main()
