"""A kernel of Numba's by way of PTX, beside what the CPU engine does today: is it the same, what does it cost?

    python bench/lowering.py --out bench/results/lowering.json [--corpus 4]

Numba's own lowering gives LLVM's code, of which llvmlite's NVPTX back end makes PTX, unoptimised, and that is
run as any other PTX. Each pipeline has a process and an empty cache of its own; seconds are the processor's. Of
the corpus every so many programs run once both ways, interpreted, and as machine code from PTX: the row says in
how many verdict, numbers, copies, switches and cycles are the same, and names those that differ.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "ptx"), str(TESTS / "corpus")]
PIPELINES = {"copy": {}, "stencil": {}, "product": {"tiles": 2, "steps": 4}, "attention": {"by": "mma"}}


def nvptx(modules):
    """The PTX of LLVM's texts, linked: all that must be is inlined, and nothing that a reader wrote removed."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    machine = target.create_target_machine(cpu="sm_90a", features="+ptx80", opt=0)
    variables = re.compile(r'(?m)^.*call void @"?llvm\.dbg\.(declare|value)"?.*\n')
    first, *others = [llvm.parse_assembly(variables.sub("", text)) for text in modules]
    for other in others:
        first.link_in(other)
    first.triple = target.triple
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.run(first, builder)
    return machine.emit_assembly(first)


def lowered(kernel):
    """The PTX of a ``compiler.Kernel``."""
    from numba import cuda
    from numba.cuda.cudadrv import nvvm
    from stored import called_by_llvm

    from numba_deform.compiler.build import _no_driver_needed
    from numba_deform.compiler.rewrite import rewritten

    def compile_ir(texts, **_):
        return nvptx([texts] if isinstance(texts, str) else texts).encode()

    function = called_by_llvm(rewritten(kernel.py_func)[0], {})
    with _no_driver_needed((9, 0)), mock.patch.object(nvvm, "compile_ir", compile_ir):
        return cuda.compile_ptx(function, kernel.signature.args, cc=(9, 0, "a"), lineinfo=True)[0]


def kernel_of(kernel):
    """(its PTX, the kernel that is read from it)"""
    import numba_deform as nd

    module = nd.from_ptx(text := lowered(kernel))
    return text, module[next(iter(module))]


# --- pipelines ------------------------------------------------------------------------------------
def pipeline(name):
    """What one costs, in a process that has done nothing before."""
    import importlib

    from test_corpus_as_ptx import flat

    import numba_deform as nd
    from numba_deform.compiler import inference
    from numba_deform.engines.cpu.frontends.numba_python import typed_code
    from numba_deform.engines.cpu.native.codegen import code_cache

    row = {"name": name, "parameters": PIPELINES[name]}

    def timed(what, run):
        before = time.process_time()
        result = run()
        row[what] = round(time.process_time() - before, 3)
        return result

    launch = getattr(importlib.import_module(f"numba_deform.course.pipelines.{name}"), name)(**PIPELINES[name])
    kernel = launch.kernel
    found = timed("types", lambda: inference.infer(kernel.plain, kernel.signature.args))
    timed("typed_code", lambda: typed_code.typed(found))
    timed("typed_run", lambda: nd.simulate(launch, compiled=False))
    timed("native_first", lambda: nd.simulate(launch, compiled=True))
    timed("native_run", lambda: nd.simulate(launch, compiled=True))
    text = timed("lowering", lambda: lowered(kernel))
    module = nd.from_ptx(text)
    as_ptx = timed("reading", lambda: module[next(iter(module))])
    row["ptx_lines"] = text.count("\n")
    args = list(flat(launch.args, kernel.signature.args))
    call = as_ptx, launch.grid, kernel.threads, args, kernel.shared_bytes
    for what, compiled in (("ptx_run", False), ("ptx_native_first", True), ("ptx_native_run", True)):
        report = timed(what, lambda compiled=compiled: nd.simulate(*call, compiled=compiled))
    row["ptx_is_native"], row["why_not"] = report.compiled, report.why_interpreted
    assert not code_cache.FAILURES
    return row


def pipelines():
    for name in PIPELINES:
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "NUMBA_DEFORM_CACHE": cache}
            command = [sys.executable, __file__, "--pipeline", name]
            yield json.loads(subprocess.run(command, env=environment, stdout=-1, check=True, text=True).stdout)


# --- corpus ---------------------------------------------------------------------------------------
def compared(program, seed):
    """(what the two ways differ in, "" for nothing; whether PTX ran as machine code, and came to the same)"""
    import base
    from base import LANDINGS
    from test_corpus_as_ptx import TIMEOUT, flat

    import numba_deform as nd

    try:
        _, as_ptx = kernel_of(program.typed())
    except ValueError as error:
        called = re.search(r"call of (\S+),|$", str(error))[1]
        return f"unread: {called}", None
    args, options = program.args(), {"timeout": TIMEOUT, **program.options, "cluster": program.cluster}
    options |= {"seed": seed, "landing": LANDINGS[seed % 3]}
    given = list(flat(args, program.typed().signature.args))

    def outcome(kernel, args_of_it, compiled):
        call = kernel, program.grid, program.block, args_of_it, program.shared_bytes
        return base.outcome(args, lambda: nd.simulate(*call, **options, compiled=compiled))

    today, _ = outcome(program.kernel, args, False)
    ptx, _ = outcome(as_ptx, given, False)
    native, is_native = outcome(as_ptx, given, True)
    faults = [isinstance(each[0], type) for each in (today, ptx)]
    if any(faults):
        other = "silent" if not faults[1] else "alarm" if not faults[0] else "another report"
        return "" if today[:2] == ptx[:2] else other, is_native and native == ptx
    parts = ("switches", "cycles", "copies", "numbers")
    differing = [part for part, one, other in zip(parts, today, ptx, strict=True) if one != other]
    return ", ".join(differing), is_native and native == ptx


def corpus(every):
    from base import load

    from numba_deform.engines import faults

    programs, differing, native = load() | load("whole"), defaultdict(list), 0
    names = [n for n in list(programs)[::every] if faults.NotCompiled not in programs[n].faults]
    for number, name in enumerate(names):
        what, is_native = compared(programs[name], number % 6)
        differing[what].append(name)
        native += bool(is_native)
    same = len(differing.pop("", ()))
    return {"name": "corpus", "programs": len(names), "same": same, "as_code": native, "differing": differing}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--corpus", type=int, default=4, help="every so many programs")
    parser.add_argument("--pipeline", choices=PIPELINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.pipeline:
        print(json.dumps(pipeline(options.pipeline)))
        return
    from numba_deform.measure import record

    rows = [*pipelines(), corpus(options.corpus)]
    print(json.dumps(rows, indent=1, default=str))
    if options.out:
        record.write(options.out, None, rows)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
