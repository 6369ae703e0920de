"""The descriptor probe and the tile copy on this machine's GPU, as JSON.

    python bench/systems.py --out bench/results/systems.json

The probe loads one box by TMA at two places, inside the tensor and over its corner; the tile copy moves all
tiles of two tensors, with rings of 1 to 8 stages.
"""

import argparse
import dataclasses

from numba_deform.engines.gpu.device import find_gpu
from numba_deform.measure import record
from numba_deform.measure.systems import run_probe, run_tile_copy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    gpu, rows = find_gpu(), []
    for corner in ((0, 0), (-1, 99)):
        rows.append({"system": "probe", "corner": corner, **plain(run_probe("gpu", corner=corner))})
    # The small tensor stays in L2; the large one does not.
    for shape in ((100, 100, 32), (2048, 2048, 32)):
        for stages in (1, 2, 4, 8):
            result = run_tile_copy("gpu", shape=shape, stages=stages)
            rows.append(
                {
                    "system": "tile-copy",
                    **plain(result),
                    "gigabytes_per_second": result.gigabytes_per_second,
                    "million_tiles_per_second": result.million_tiles_per_second,
                }
            )
    record.write(options.out, gpu, rows)
    for row in rows:
        print(row)
    return 0 if all(row["passed"] for row in rows) else 1


def plain(result):
    """A result's fields as JSON can hold them."""
    return {
        field.name: value if isinstance(value, (int, float, type(None))) else str(value)
        for field in dataclasses.fields(result)
        for value in [getattr(result, field.name)]
    }


if __name__ == "__main__":
    raise SystemExit(main())
