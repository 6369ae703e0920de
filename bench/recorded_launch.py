"""What a launch of an older commit's package consists of: a part of recorded_counters.py.

    python bench/recorded_launch.py WORKLOAD PATTERN SEED VARIANT CONFIG FOLDER

Needs that commit's package alone, and no GPU: the variant is bound to the preset's inputs as the bench did,
up to where the CPU engine would run. FOLDER then has its machine code, its PTX, ``launch.json``, and each array
that the kernel takes.
"""

import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from unittest import mock

import numpy as np

from numba_deform import op, sim
from numba_deform.workload import preset

SMS = 132  # of an H200; window, which asks for as many blocks as are resident, has one on each
PACKAGES = ("numba", "numba-cuda", "llvmlite", "cuda-core", "cuda-bindings", "numpy", "nvidia-nvjitlink",
            "nvidia-nvvm")  # fmt: skip
FIELDS = ("dtype", "rank", "dims", "strides", "box", "element_strides", "interleave", "swizzle", "l2_promotion",
          "fill")  # fmt: skip


class Bound(Exception):
    """The engine would run now."""


def launch_of(inputs, variant, parameters):
    """(kernel, blocks, its arguments, dynamic shared bytes, the output) of a variant on these inputs."""
    problem = op.check_problem(inputs.value, inputs.spatial_shapes, inputs.level_start_index,
                               inputs.sampling_locations, inputs.attention_weights, inputs.padded)  # fmt: skip
    chosen = op.pick_variant(variant)
    config = chosen.configure(problem.constants, **parameters)
    out = np.full(problem.out_shape, np.nan, inputs.value.dtype)
    arrays = inputs.value, inputs.sampling_locations, inputs.attention_weights
    engine = mock.patch.object(sim, "simulate", side_effect=Bound)
    with mock.patch.object(op, "CPU_RESIDENT", SMS), engine as simulate:
        try:
            op.run_cpu(problem, chosen, config, arrays, out)
        except Bound:
            (kernel, blocks, _, arguments), options = simulate.call_args
    return kernel, blocks, arguments, options["shared_bytes"], out


def main(workload, pattern, seed, variant, config, folder):
    folder, inputs = Path(folder), preset(workload, pattern=pattern).generate(int(seed))
    parameters = {name: tuple(x) if isinstance(x, list) else x for name, x in json.loads(config).items()}
    kernel, blocks, arguments, shared, out = launch_of(inputs, variant, parameters)
    compiled = kernel.compile()
    (folder / "kernel.cubin").write_bytes(compiled.cubin)
    (folder / "kernel.ptx").write_text(compiled.ptx)
    for name in ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"):
        np.save(folder / f"{name}.npy", getattr(inputs, name))
    first, told = inputs.value.__array_interface__["data"][0], []
    for number, argument in enumerate(arguments):
        names = [name for name, array in (*vars(inputs).items(), ("out", out)) if array is argument]
        if isinstance(argument, np.ndarray):
            name = names[0] if names else f"argument{number}"
            np.save(folder / f"{name}.npy", argument)
            told.append(name)
        elif hasattr(argument, "__iter__"):  # tensor maps of value; addresses count from its beginning
            told.append([{name: getattr(one, name) for name in FIELDS} | {"address": one.address - first}
                         for one in argument])  # fmt: skip
        else:
            told.append(int(argument))
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    (folder / "launch.json").write_text(json.dumps({
        "entry": compiled.entry, "blocks": int(blocks), "threads": kernel.threads, "shared": int(shared),
        "arguments": told, "versions": versions,
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
