"""The rows of ``judge`` for a program of Triton's or Gluon's: it runs unchanged, its launches on the engine."""

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from numba_deform.device.limits import capability_of
from numba_deform.engines.shapes import shape_of
from numba_deform.programs import triton_driver

from .judge import main, told, with_fault


@dataclass
class Launched:
    """A launch, as ``judge.told`` takes it."""

    name: str
    kernel: object
    options: dict


def run_here(case, folder):
    """Run ``main(*case.words)`` of the source in this process, for the GPU that ``case.options`` may name;
    returns its row. A launch runs with its faults first, and then as it is, so that the program goes on with
    right results."""
    row = {"name": case.name, "launches": [], "faults": []}
    # made: function of a PtxKernel -> the PTX, and what the kernel is of besides
    real, made = triton_driver.TritonKernel, {}

    def translated(ptx, *more):
        started = time.perf_counter()
        kernel = real(ptx, *more)
        made[kernel.kernel.plain] = ptx, more, round(time.perf_counter() - started, 1)
        return kernel

    def judge(launch):
        options = {name: shape_of(name, getattr(launch, name)) for name in ("grid", "block")}
        options |= {"args": launch.args}
        options |= {"shared_bytes": launch.shared_bytes}
        options |= {"cluster": launch.cluster} if launch.cluster else {}
        launched = Launched(launch.kernel.name, launch.kernel, options)
        ptx, more, seconds = made[launch.kernel.plain]

        def kernel_of(text, name):
            return real(text, *more).kernel

        if not row["launches"]:
            row["faults"] = [with_fault(launched, ptx, kernel_of, case, *fault) for fault in case.faults]
        row["launches"].append(told(launched, case) | {"translate_seconds": seconds})

    capability = capability_of(*case.options or ["sm_90a"])
    spec = importlib.util.spec_from_file_location("program", case.source)
    program = importlib.util.module_from_spec(spec)
    with (
        mock.patch.object(triton_driver, "TritonKernel", translated),
        triton_driver.stand_in(judge, lambda text: None, capability),
    ):
        spec.loader.exec_module(program)
        program.main(Path(case.tree), *case.words)
    return row | {"status": 0}


if __name__ == "__main__":
    main(run_here)
