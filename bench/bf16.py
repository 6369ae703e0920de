"""Windows in bf16 by fp32 products and by packed ones, plain loads by fp32 ones, beside fp16: microseconds.

    python bench/bf16.py --out bench/results/bf16.json

A row is a workload with near samples, local(2), or with samples anywhere. Times are medians of graphs of 5
launches, which take turns; ``to_float16`` is the median of a round's ratios to fp16 with locations of the same
type, float32. Locations in fp16, as those of fp16 are in the other benches, are half the bytes. Errors are
relative to float64, of some rows. ``direct`` and ``window`` alone: which one ``auto`` takes follows from their
cycles (attention/auto.py). Needs PyTorch and a GPU.
"""

import argparse
import functools
import statistics
from pathlib import Path

import torch
from auto_loop import replayed

from numba_deform import ms_deform_attn, preset
from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record
from numba_deform.measure.baselines import sample_levels

WORKLOADS = "detr-encoder", "detr-encoder-b4", "mask2former", "bevformer-temporal", "seeds"
KINDS = [("float16", "packed", "float16"), ("float16", "packed", "float32"), ("bfloat16", "fp32", "float32"),
         ("bfloat16", "packed", "float32"), ("bfloat16", "packed", "bfloat16")]  # fmt: skip
BESIDE = "float16_packed_float32"
ROWS, IN_A_GRAPH = 256, 5


@functools.lru_cache(maxsize=1)
def inputs_of(name, pattern, seed):
    """(levels, value, locations, weights), tensors of float32 on the GPU."""
    inputs = preset(name, dtype="float32", pattern=pattern).generate(seed)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    return (inputs.spatial_shapes, inputs.level_start_index), *(torch.from_numpy(a).cuda() for a in arrays)


class Call:
    """One kind of call, captured. ``launch_of(call)`` gives what launches it."""

    def __init__(self, inputs, dtype, location_dtype, launch_of):
        self.index, value, locations, weights = inputs
        dtype = getattr(torch, dtype)
        self.given = value.to(dtype), locations.to(getattr(torch, location_dtype)), weights.to(dtype)
        self.out = self.given[0].new_empty(*locations.shape[:2], value.shape[2] * value.shape[3])
        launch = self.launch = launch_of(self)  # kept, with what it holds: the graph reads that
        launch()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(IN_A_GRAPH):
                launch()

    def error(self):
        """Of some rows of the first batch item, beside PyTorch's grid_sample in float64."""
        rows = slice(0, None, max(1, self.out.shape[1] // ROWS))
        value, locations, weights = (tensor[:1].double() for tensor in self.given)
        right = sample_levels(value, self.index[0].tolist(), locations[:, rows], weights[:, rows])
        return float((self.out[:1, rows].double() - right).norm() / right.norm())


def by_variant(variant, **parameters):
    """A ``launch_of`` of Call: the operator by one variant."""

    def launch_of(call):
        value, *samples = call.given
        return functools.partial(
            ms_deform_attn, value, *call.index, *samples, variant, out=call.out, **parameters)  # fmt: skip

    return launch_of


def row_of(name, variant, pattern, rounds, seed):
    inputs = inputs_of(name, pattern, seed)
    kinds = [kind for kind in KINDS if variant == "window" or kind[:2] != ("bfloat16", "packed")]
    calls = {"_".join((dtype, arithmetic, location_dtype)):
             Call(inputs, dtype, location_dtype, by_variant(variant, arithmetic=arithmetic))
             for dtype, arithmetic, location_dtype in kinds}  # fmt: skip
    times = {kind: [] for kind in calls}
    for turn in range(1 + rounds):
        for kind in calls if turn % 2 else reversed(calls):
            times[kind].append(replayed(calls[kind].graph, IN_A_GRAPH))
    row = {"workload": name, "variant": variant, "pattern": pattern}
    for kind, found in times.items():
        ratios = [own / other for own, other in zip(found[1:], times[BESIDE][1:], strict=True)]
        row |= {f"{kind}_us": statistics.median(found[1:]), f"{kind}_to_float16": statistics.median(ratios),
                f"{kind}_error": calls[kind].error()}  # fmt: skip
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workloads", nargs="*", default=WORKLOADS)
    options = parser.parse_args()
    gpu, rows = find_gpu(), []
    for name in options.workloads:
        for variant, pattern in (("window", "local(2)"), ("direct", "local(2)"), ("direct", "uniform")):
            rows.append(row_of(name, variant, pattern, options.rounds, options.seed))
            print({k: round(v, 5) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
            record.write(options.out, gpu, rows, unit="us")


if __name__ == "__main__":
    main()
