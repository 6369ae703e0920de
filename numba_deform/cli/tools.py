"""The smaller commands: probe, tile-copy, data, variants, inspect."""

import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np
from rich.table import Table

from ..compiler.sass import ToolMissing, inspect_kernel
from ..engines.suggestions import closest
from ..kernels.pipelines import PIPELINES
from ..kernels.registry import VARIANTS
from ..measure.parameters import show
from ..measure.systems import run_probe, run_tile_copy
from ..workloads.data import write_directory
from .commands import BAD_INPUT, RIGHT
from .inputs import check_architecture, check_memory, choose_source, families, make_constants, variant_options
from .keys import UsageError
from .output import console, in_words, lasting, say, verdict


def probe(options):
    """What came of sending one box through TMA."""
    result = run_probe(**options)
    say("Device:", result.device)
    say("Tensor:", "100x100x32 float32, element i holds i/100")
    say("Tile:", "2x2x32")
    if result.first is not None:
        print("First 8 values: ", *(f"{v:.2f}" for v in result.first))
        print("Expected values:", *(f"{v:.2f}" for v in result.expected))
    if result.reason:
        say("Reason:", result.reason)
    status = verdict(result.passed)
    return BAD_INPUT if result.first is None else status


def tile_copy(options):
    """What came of copying a tensor tile by tile, and how fast it was."""
    result = run_tile_copy(**options)
    say("device", result.device)
    say("tensor", f"{show(result.shape)} {result.dtype}, {result.bytes_moved // 2:,} bytes")
    say("tiles", f"{result.tiles:,} of {show(result.box)}")
    say("launch", f"{result.blocks} blocks of {result.warps} warps, {result.stages} stages each")
    if result.milliseconds is None:
        say("virtual time", f"{result.cycles:,.0f} cycles of the longest thread, nothing measured")
    else:
        say("time", f"{result.milliseconds:.4f} ms (median, for orientation: use bench)")
        say("bandwidth", f"{result.gigabytes_per_second:,.1f} GB/s, read and written")
        say("throughput", f"{result.million_tiles_per_second:,.1f} M tiles/s")
    say("check", result.reason or "every element of the copy is right")
    return verdict(result.passed)


def data(options):
    """``data read`` or ``data write``."""
    actions = {"read": data_read, "write": data_write}
    action = options.pop("action", None)
    if action not in actions:
        given = f"not {action!r}{closest(action, actions)}" if action else "and then dir=PATH"
        raise UsageError(f"data must be followed by read or write, {given}")
    if "dir" not in options:
        raise UsageError(f"data {action} needs dir=PATH")
    return actions[action](options)


def data_write(options):
    """Write a directory that ``run dir=`` and the original programs read."""
    path = Path(options.pop("dir"))
    files = [file.name for file in path.glob("*.bin")] if path.is_dir() else []
    if files and not options.get("force"):
        raise UsageError(f"{path} holds {', '.join(sorted(files))}; force=1 overwrites them")
    source = choose_source(options, "cpu")
    if {source.constants.dtype, source.constants.location_dtype} != {"float16"}:
        raise UsageError("data directories hold float16 only: use dtype=float16")
    check_memory(source)
    inputs = source.load()
    write_directory(path, inputs)
    say("written", path)
    say("workload", source.text)
    say("run it", f"numba-deform run dir={path} {in_words(source.numbers)}")
    return RIGHT


def data_read(options):
    """Check a directory against its shape keys, and describe it."""
    source = choose_source(options, "cpu")
    inputs = source.load()
    say("directory", options["dir"])
    shapes = " ".join(show((h, w)) for h, w in inputs.spatial_shapes)
    say("levels", shapes + (" padded" if inputs.padded else ""))
    say("samples", f"{source.samples:,}")
    table = Table("array", "shape", "type", "smallest", "largest", "mean", "not finite")
    for name in ("value", "sampling_locations", "attention_weights"):
        array = getattr(inputs, name)
        finite = np.isfinite(array)
        some = array[finite].astype(np.float64)
        figures = (some.min(), some.max(), some.mean()) if some.size else (np.nan,) * 3
        table.add_row(name, show(array.shape), str(array.dtype), *(f"{n:.4g}" for n in figures),
                      f"{array.size - some.size:,}")  # fmt: skip
    console().print(table)
    where = inputs.sampling_locations
    outside = ~((where >= 0) & (where <= 1)).all(axis=-1)
    say("outside", f"{100 * outside.mean():.2f} % of the samples are not in [0, 1]")
    sums = inputs.attention_weights.astype(np.float64).sum(axis=(-2, -1))
    say("weights", f"of a query and head they sum to {sums.min():.4f} .. {sums.max():.4f}")
    return RIGHT


def variants(_):
    """The registry, the parameters of each kernel, and pipelines that were loaded."""
    table = Table("variant", "origin", "what it does", "kernel and preset", "oldest GPU")
    for v in VARIANTS.values():
        oldest = "SM {}.{}".format(*v.capability)
        table.add_row(v.name, v.systems, v.summary, f"{_file(v)} {in_words(v.preset)}", oldest)
    console().print(table)
    say("origin", "what S3 .. S23 were: bench/ORIGINS.md in the repository")
    table = Table("kernel", "parameters and their defaults, where a preset says nothing else")
    for config, members in families().items():
        defaults = {field.name: field.default for field in dataclasses.fields(config)}
        table.add_row(_file(members[0]), in_words(defaults))
    console().print(table)
    if PIPELINES:
        table = Table("pipeline", "what it does", "parameters and their defaults")
        for pipeline in PIPELINES.values():
            table.add_row(pipeline.name, pipeline.summary, in_words(pipeline.defaults))
        console().print(table)
    return RIGHT


def _file(variant):
    """The name of the kernel's file, which variants of one family share."""
    return variant.module.__name__.rpartition(".")[2]


NOTABLE = {
    "UTMALDG": "TMA loads", "UTMASTG": "TMA stores", "UTMAREDG": "TMA stores that add or compare",
    "UTMAPF": "TMA prefetches into L2", "UBLKCP": "bulk copies", "UBLKRED": "bulk copies that add or compare",
    "UTMACCTL": "fences and prefetches of tensor maps", "UTMACMDFLUSH": "commits of groups of TMA stores",
    "SYNCS": "mbarrier operations: init, arrive, expect, try_wait", "LDGSTS": "cp.async",
    "HMMA": "mma.sync of fp16, bf16, tf32", "IMMA": "mma.sync of integers", "QMMA": "mma.sync of fp8",
    "HGMMA": "wgmma of fp16, bf16, tf32", "QGMMA": "wgmma of fp8", "IGMMA": "wgmma of integers",
    "WARPGROUP": "wgmma.fence and its like",
    "UTCHMMA": "tcgen05.mma of fp16, bf16, tf32", "UTCQMMA": "tcgen05.mma of fp8",
    "UTCIMMA": "tcgen05.mma of integers", "UTCBAR": "tcgen05.commit", "LDTM": "tcgen05.ld",
    "STTM": "tcgen05.st", "UTCATOMSWS": "tcgen05.alloc and its like",
    "LDSM": "ldmatrix", "STSM": "stmatrix", "MOVM": "transposes of a matrix among lanes",
    "MUFU": "special functions: ex2, lg2, rcp, rsqrt, sin, tanh",
    "UCGABAR_ARV": "arrivals at the cluster's barrier", "UCGABAR_WAIT": "waits at the cluster's barrier",
    "ELECT": "elect.sync", "USETMAXREG": "setmaxnreg", "MEMBAR": "memory fences", "FENCE": "proxy fences",
    "ATOMS": "atomics in shared memory", "ATOMG": "atomics in global memory",
    "RED": "reductions in global memory",
    "LDG": "loads from global memory", "STG": "stores to global memory",
    "LDS": "loads from shared memory", "STS": "stores to shared memory",
    "LDL": "loads of spilled registers or local arrays",
    "STL": "stores of spilled registers or local arrays",
    "SHFL": "warp shuffles", "BAR": "block barriers", "WARPSYNC": "warp barriers",
    "HFMA2": "packed fp16 multiply-adds", "FFMA": "fp32 multiply-adds", "CALL": "calls of functions",
}  # fmt: skip
# What ptxas calls, by a part of the name: code that no single instruction does.
CALLED = {
    "tcgen05_guardrail": "a check at tcgen05.dealloc that ptxas has put in",
    "div_u32": "an unsigned division", "rem_u32": "an unsigned remainder", "div_s32": "a division of int32",
    "rem_s32": "a remainder of int32", "div_u64": "a division of 64-bit integers: make its operands 32-bit",
    "div_s64": "a division of int64: make its operands int32, or both factors constants",
    "rem_u64": "a remainder of 64-bit integers", "rem_s64": "a remainder of int64: make its operands int32",
    "div_rn_noftz_f32": "a float32 division, correctly rounded: nd.rcp_approx_f32 is an instruction",
    "div_rn_f64": "a float64 division: is a literal float64 in it?", "dblrcp": "a float64 reciprocal",
    "rcp_rn_f32": "a float32 reciprocal, correctly rounded: nd.rcp_approx_f32 is an instruction",
    "sqrt_rn_f32": "a float32 square root, correctly rounded", "dsqrt_rn_f64": "a float64 square root",
    "trig_reduction": "sin or cos of a large number",
}


def inspect(pairs):
    """What a variant became, without a GPU."""
    options, chosen, parameters = variant_options(pairs, "inspect")
    constants = make_constants(options)
    config = chosen.configure(constants, **parameters)
    kernel = chosen.kernel(config, constants)
    if options.get("linked"):
        kernel = kernel.with_linked_ptx()
    architecture = check_architecture(options, chosen.capability, f"variant {chosen.name}")
    try:
        with lasting(None):
            inspection = inspect_kernel(kernel, architecture)
    except (ToolMissing, ValueError):
        raise
    except Exception as error:  # the compiler's packages share no base class
        if "arch" not in options:
            raise
        raise UsageError(f"arch={architecture}: {str(error).partition(chr(10))[0]}") from None
    heads = {"variant": f"{chosen.name} for {architecture}" + (", linked PTX" if kernel.linked else ""),
             "constants": in_words(vars(constants)), "configuration": in_words(vars(config))}  # fmt: skip
    dynamic = chosen.dynamic_shared_bytes(config, constants)
    return print_inspection(inspection, options.get("show", "summary"), heads, dynamic)


def print_inspection(inspection, wanted, heads, dynamic):
    """PTX or machine code as it is, or a summary under ``heads``; ``dynamic`` bytes of shared memory. RIGHT."""
    if wanted != "summary":
        print({"ptx": inspection.ptx, "sass": inspection.sass}[wanted])
        return RIGHT
    for label, text in heads.items():
        say(label, text)
    say("registers", f"{inspection.registers} a thread")
    say("stack", f"{inspection.stack} bytes a thread")
    say("spills", f"{inspection.spill_loads} loads, {inspection.spill_stores} stores")
    say("shared memory", f"{inspection.shared:,} bytes static + {dynamic:,} dynamic a block")
    table = Table("instruction", "count", "what it is")
    counts = inspection.instructions
    for opcode, meaning in NOTABLE.items():
        if opcode in counts:
            table.add_row(opcode, str(counts[opcode]), meaning)
    rest = sum(count for opcode, count in counts.items() if opcode not in NOTABLE)
    table.add_row("others", str(rest), "address and index arithmetic, branches, conversions, ...")
    table.add_row("all", str(sum(counts.values())), "")
    console().print(table)
    for name, count in calls(inspection.sass).items():
        why = next((text for part, text in CALLED.items() if part in name), "a function that is not inlined")
        say("CALL", f"{count} x {name}: {why}")
    return RIGHT


def calls(sass):
    """{function: how often it is called} of a listing, by ptxas's name for it or its own."""
    found = re.findall(r"\bCALL\.\w+(?:\.\w+)*\s+(?:`\(|\w+,?\s*`\()?([\w$.]+)", sass)
    return Counter(name.removeprefix("$__internal_").rpartition("$")[2].lstrip("_") for name in found)
