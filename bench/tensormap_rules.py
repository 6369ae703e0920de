"""Ask a real driver about every tensor-map rule, once on each side of its limit.

    python bench/tensormap_rules.py --out bench/results/tensormap_rules.json

For every rule of ``numba_deform.engines.tensormap`` there is a configuration at the limit, which has
to pass, and one just past it, which has to fail, with everything else legal. Each goes to our check
and, with the check bypassed, to cuTensorMapEncodeTiled; the table shows where the two disagree.
Rows marked *observe* ask what the documentation leaves open, so neither answer is expected there.

Nothing is copied: the encoder only looks at numbers. Exit status 0 when the sweep ran, 2 when there
is no GPU that has tensor maps.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from numba_deform.engines.tensormap import (
    ELEMENT_TYPES,
    IM2COL_RULES,
    INTERLEAVES,
    L2_PROMOTIONS,
    RULES,
    SWIZZLE_SPANS,
    SWIZZLES,
    DriverMissing,
    Im2colMap,
    TensorMap,
    TensorMapError,
    ask_driver,
    driver_arguments,
)
from numba_deform.engines.tensormap.encoding import start_driver

LEGAL, ILLEGAL, OBSERVE = "legal", "illegal", "observe"
HOPPERS = [name for name in SWIZZLES if "atom" not in name]  # what a Hopper GPU has

# Legal in every respect: 100 x 100 pixels of 32 float16 channels, boxes of 2 x 2 pixels.
BASE = {"dtype": "float16", "dims": (32, 100, 100), "strides": (64, 6400), "box": (32, 2, 2)}

# Loads of 64 rows of those pixels, for a 3 x 3 filter with padding 1.
IM2COL = BASE | {"box": (32, 64), "dims": (32, 100, 100, 4), "strides": (64, 6400, 640000)}
IM2COL |= {"lower": (-1, -1), "upper": (-1, -1)}

# Legal with interleave 32B too, which wants swizzle 32B.
INTERLEAVED = BASE | {"box": (16, 2, 2), "interleave": "32B", "swizzle": "32B"}


@dataclass(frozen=True)
class Case:
    """One configuration: the rule it belongs to, a label, what is expected, and what it changes."""

    rule: str
    label: str
    expected: str
    config: dict
    offset: int = 0  # bytes added to the base address
    address: int | None = None  # in place of the base address
    map_offset: int | None = None  # where the encoded map goes, past a 128-byte aligned address
    ask_driver: bool = True
    null_strides: bool = False  # hand the driver no array of strides

    @property
    def name(self) -> str:
        return f"{self.rule}: {self.label}"

    def tensor_map(self, base: int, checked: bool) -> TensorMap:
        """The map over device address ``base``; TensorMapError if checked and a rule is broken."""
        address = base + self.offset if self.address is None else self.address
        kind = Im2colMap if "lower" in self.config else TensorMap
        return kind(address, map_address=self.map_offset or 0, check=checked, **self.config)


def of_rank(rank: int) -> dict:
    """A legal map of this rank but for the rank itself: 32 x 4 x 4 x ... elements."""
    return BASE | {
        "dims": (32, 4, 4, 4, 4, 4, 4)[:rank],
        "strides": tuple(64 * 4**i for i in range(rank - 1)),
        "box": (32, 2, 2, 2, 2, 2, 2)[:rank],
    }


def of_type(dtype: str, **changes) -> dict:
    """A legal map of 64-byte pixels of this element type."""
    items = 64 // ELEMENT_TYPES[dtype].itemsize
    return BASE | {"dtype": dtype, "dims": (items, 100, 100), "box": (items, 2, 2)} | changes


def rule_cases() -> list[Case]:
    """Every rule on both sides of its limit, in the order of RULES."""
    cases = []

    def add(rule, label, expected, config=BASE, **changes):
        cases.append(Case(rule, label, expected, config, **changes))

    rule = "rank"
    add(rule, "rank 0", ILLEGAL, of_rank(0))
    add(rule, "rank 1", LEGAL, of_rank(1))
    add(rule, "rank 5", LEGAL, of_rank(5))
    add(rule, "rank 6", ILLEGAL, of_rank(6))

    rule = "rank, interleaved"
    for rank, expected in ((2, ILLEGAL), (3, LEGAL)):
        config = of_rank(rank) | {"interleave": "16B"}
        add(rule, f"rank {rank}", expected, config)

    # The driver takes plain pointers and cannot see how long an array is.
    rule = "argument counts"
    add(rule, "one stride for 3 dims", ILLEGAL, BASE | {"strides": (64,)}, ask_driver=False)
    add(
        rule,
        "three strides for 3 dims",
        ILLEGAL,
        BASE | {"strides": (2, 64, 6400)},
        ask_driver=False,
    )
    add(rule, "two strides for 3 dims", LEGAL)
    add(rule, "box of 2 for 3 dims", ILLEGAL, BASE | {"box": (32, 2)}, ask_driver=False)
    add(
        rule,
        "2 element strides for 3 dims",
        ILLEGAL,
        BASE | {"element_strides": (1, 1)},
        ask_driver=False,
    )

    rule = "base alignment"
    add(rule, "base + 16", LEGAL, offset=16)
    add(rule, "base + 8", ILLEGAL, offset=8)
    rule = "base alignment, interleave 32B"
    add(rule, "base + 32", LEGAL, INTERLEAVED, offset=32)
    add(rule, "base + 16", ILLEGAL, INTERLEAVED, offset=16)

    rule = "dim range"
    for size, expected in ((0, ILLEGAL), (1, LEGAL), (2**32, LEGAL), (2**32 + 1, ILLEGAL)):
        add(rule, f"dims[2] = {size}", expected, BASE | {"dims": (32, 100, size)})

    rule = "stride multiple"
    add(rule, "strides[0] = 64", LEGAL)
    add(
        rule,
        "strides[0] = 56",
        ILLEGAL,
        BASE | {"dims": (28, 100, 100), "strides": (56, 5600), "box": (8, 2, 2)},
    )
    add(rule, "strides[1] = 6408", ILLEGAL, BASE | {"strides": (64, 6408)})
    rule = "stride multiple, interleave 32B"
    narrow = {"dims": (24, 100, 100), "strides": (48, 4800)}
    add(rule, "strides[0] = 64", LEGAL, INTERLEAVED)
    add(rule, "strides[0] = 48", ILLEGAL, INTERLEAVED | narrow)

    rule = "stride range"
    for stride, expected in ((2**40 - 16, LEGAL), (2**40, ILLEGAL)):
        add(rule, f"strides[1] = {stride}", expected, BASE | {"strides": (64, stride)})

    rule = "box range"
    for size, expected in ((0, ILLEGAL), (1, LEGAL), (256, LEGAL), (257, ILLEGAL)):
        add(rule, f"box[1] = {size}", expected, BASE | {"box": (32, size, 2)})

    rule = "box row multiple"
    for size, expected in ((4, ILLEGAL), (8, LEGAL), (12, ILLEGAL)):
        add(rule, f"box[0] = {size} of 2 bytes", expected, BASE | {"box": (size, 2, 2)})

    rule = "element stride range"
    for step, expected in ((0, ILLEGAL), (1, LEGAL), (8, LEGAL), (9, ILLEGAL)):
        config = BASE | {"box": (32, 16, 2), "element_strides": (1, step, 1)}
        add(rule, f"element_strides[1] = {step}", expected, config)

    rule = "swizzle span"
    wide = {"dims": (128, 100, 100), "strides": (256, 25600)}
    for swizzle in HOPPERS[1:]:
        span = SWIZZLE_SPANS[swizzle]
        for row, expected in ((span, LEGAL), (span + 16, ILLEGAL)):
            config = BASE | wide | {"box": (row // 2, 2, 2), "swizzle": swizzle}
            add(rule, f"{row} bytes with {swizzle}", expected, config)

    rule = "swizzle of interleave 32B"
    for swizzle in HOPPERS:
        expected = LEGAL if swizzle == "32B" else ILLEGAL
        add(rule, f"swizzle {swizzle}", expected, INTERLEAVED | {"swizzle": swizzle})

    rule = "NaN fill"
    for dtype, element in ELEMENT_TYPES.items():
        add(rule, dtype, LEGAL if element.floating else ILLEGAL, of_type(dtype, fill="nan"))

    rule = "map alignment"
    for off, expected in ((64, LEGAL), (32, ILLEGAL)):
        add(rule, f"map at aligned address + {off}", expected, map_offset=off)
    return cases + im2col_cases()


def im2col_of_rank(rank: int) -> dict:
    """A legal map in im2col mode of this rank but for the rank itself."""
    corner = (-1,) * max(rank - 2, 0)
    return of_rank(rank) | {"box": (32, 64), "lower": corner, "upper": corner}


def im2col_cases() -> list[Case]:
    """The rules that maps in im2col mode have for themselves, on both sides of their limits."""
    cases = []

    def add(rule, label, expected, changes=None, base=IM2COL, **options):
        cases.append(Case(f"im2col {rule}", label, expected, base | (changes or {}), **options))

    for rank, expected in ((2, ILLEGAL), (3, LEGAL), (5, LEGAL), (6, ILLEGAL)):
        add("rank", f"rank {rank}", expected, base=im2col_of_rank(rank))
    add("argument counts", "4 dims, 2 corners", LEGAL)
    add("argument counts", "one corner for 4 dims", ILLEGAL, {"lower": (-1,)}, ask_driver=False)
    for size, expected in ((0, ILLEGAL), (8, LEGAL), (256, LEGAL), (264, ILLEGAL)):
        wide = {"dims": (512, 100, 100, 4), "strides": (1024, 102400, 10240000), "box": (size, 64)}
        add("box range", f"{size} channels", expected, wide)
    for size, expected in ((0, ILLEGAL), (1, LEGAL), (1024, LEGAL), (1025, ILLEGAL)):
        add("box range", f"{size} pixels", expected, {"box": (32, size)})
    for rank, least, most in ((3, -(2**15), 2**15 - 1), (4, -128, 127), (5, -16, 15)):
        base, rest = im2col_of_rank(rank), (-1,) * (rank - 3)
        for name, at in (("lower", least), ("upper", most)):
            step = 1 if at > 0 else -1
            add("corner range", f"{name}[0] = {at}, rank {rank}", LEGAL, {name: (at, *rest)}, base)
            beyond = {name: (at + step, *rest)}
            add("corner range", f"{name}[0] = {at + step}, rank {rank}", ILLEGAL, beyond, base)
    for upper, expected in ((-100, LEGAL), (-101, ILLEGAL)):
        add("box not empty", f"upper[0] = {upper}", expected, {"upper": (upper, -1)})
    return cases


def observe_cases() -> list[Case]:
    """What the documentation leaves open; no answer is expected."""
    cases = []

    def add(group, label, changes=None, base=BASE, **options):
        cases.append(Case(group, label, OBSERVE, base | (changes or {}), **options))

    group = "stride and extent"
    add(group, "strides[0] smaller than a row (32 < 64)", {"strides": (32, 6400)})
    add(group, "strides[1] smaller than its rows (64 * 99 < 6400)", {"strides": (64, 6336)})
    add(group, "strides[1] smaller than strides[0]", {"strides": (6400, 64)})
    add(group, "strides[0] = 0 (broadcast)", {"strides": (0, 6400)})
    add(group, "all strides 0", {"strides": (0, 0)})
    add(group, "strides[1] no multiple of strides[0]", {"strides": (64, 6416)})
    add(group, "tensor ends past 2^48 bytes", {"dims": (32, 100, 2**32), "strides": (64, 2**20)})

    group = "box and tensor"
    add(group, "box[1] = 256 over dims[1] = 1", {"dims": (32, 1, 100), "box": (32, 256, 2)})
    add(
        group,
        "box[0] * itemsize = 64 over a row of 40 bytes",
        {"dims": (20, 100, 100), "strides": (48, 4800)},
    )
    add(group, "box of 256 KB, more than shared memory", {"box": (32, 64, 64)})
    add(group, "box of 4 MB, more than a tx-count holds", {"box": (32, 256, 256)})
    add(
        group,
        "box row of 2048 bytes",
        {
            "dtype": "float64",
            "dims": (256, 100, 100),
            "strides": (2048, 204800),
            "box": (256, 2, 2),
        },
    )
    add(group, "dims[0] = 2^32", {"dims": (2**32, 100), "strides": (2**34,), "box": (32, 2)})

    group = "element strides"
    add(group, "element_strides[1] = 2", {"box": (32, 4, 2), "element_strides": (1, 2, 1)})
    add(group, "larger than the box", {"element_strides": (1, 8, 1)})
    add(group, "box no multiple of it", {"box": (32, 5, 2), "element_strides": (1, 2, 1)})
    for step in (0, 2, 9):
        add(group, f"element_strides[0] = {step}, no interleave", {"element_strides": (step, 1, 1)})
    add(group, "box of 256 * 2 to load 256", {"box": (32, 512, 2), "element_strides": (1, 2, 1)})

    group = "base address"
    add(group, "0", address=0)
    add(group, "0x10", address=0x10)
    add(group, "unmapped, 2^46", address=2**46)
    add(group, "unmapped, 2^57", address=2**57)
    add(group, "unmapped, 2^63", address=2**63)

    group = "interleave"
    loose = {"interleave": "16B"}
    for swizzle in HOPPERS:
        add(group, f"16B with swizzle {swizzle}", loose | {"swizzle": swizzle, "box": (8, 2, 2)})
    add(group, "16B, box row of 8 bytes", loose | {"box": (4, 2, 2)})
    add(group, "16B, box row of 64 bytes", loose)
    add(group, "16B, box row of 64 bytes with swizzle 32B", loose | {"swizzle": "32B"})
    add(
        group,
        "16B, dims[0] * itemsize = 40",
        loose
        | {
            "dims": (20, 100, 100),
            "strides": (48, 4800),
            "box": (8, 2, 2),
        },
    )
    add(group, "16B, element_strides[0] = 2", loose | {"element_strides": (2, 1, 1)})
    add(group, "32B, box row of 8 bytes", {"box": (4, 2, 2)}, INTERLEAVED)
    add(group, "32B, box row of 64 bytes", {"box": (32, 2, 2)}, INTERLEAVED)
    for interleave in INTERLEAVES:
        changes = {
            "interleave": interleave,
            "dtype": "uint8",
            "dims": (64, 100, 100),
            "box": (32, 2, 2),
            "swizzle": "32B",
        }
        add(group, f"{interleave} of uint8", changes)

    group = "element types"
    for dtype in ELEMENT_TYPES:
        add(group, dtype, of_type(dtype))

    group = "L2 promotion"
    for promotion in L2_PROMOTIONS:
        add(group, promotion, {"l2_promotion": promotion})
    add(group, "256B with pixels of 64 bytes, base + 16", {"l2_promotion": "256B"}, offset=16)

    group = "rank 1"
    for null_strides in (False, True):
        label = "no array of strides" if null_strides else "an array of strides, never read"
        add(group, label, base=of_rank(1), null_strides=null_strides)

    group = "im2col mode"
    for label, changes in (
        ("16-byte rows", {"box": (8, 64)}), ("8-byte rows", {"box": (4, 64)}),
        ("element stride 2 of N", {"element_strides": (1, 1, 1, 2)}),
        ("element stride 2 of W and H", {"element_strides": (1, 2, 2, 1)}),
        ("rows of 64 bytes with swizzle 32B", {"swizzle": "32B"}),
        ("256 channels of 2 bytes for dims[0] = 32", {"box": (256, 64)}),
    ):  # fmt: skip
        add(group, label, changes, IM2COL)

    group = "map address"
    for off in (0, 8, 16, 48):
        add(group, f"map at aligned address + {off}", map_offset=off)
    return cases


# ---------------------------------------------------------------------------------------------
# Asking


def our_answer(case: Case, base: int) -> tuple[str, str]:
    """("ok", "") or (the rule that our check names, its message)."""
    try:
        case.tensor_map(base, checked=True)
    except TensorMapError as error:
        return error.rule, str(error)
    return "ok", ""


def driver_answer(case: Case, base: int) -> str | None:
    """The driver's CUresult name with our check bypassed, or ValueError where its Python bindings refuse; None
    if neither can see the mistake."""
    if not case.ask_driver:
        return None
    m = case.tensor_map(base, checked=False)
    if case.map_offset is not None or case.null_strides:
        return encode_at(m, case.map_offset or 0, case.null_strides)
    try:
        return ask_driver(m)[0]
    except ValueError:  # more numbers than there are dimensions
        return "ValueError"


def encode_at(m: TensorMap, offset: int, null_strides: bool) -> str:
    """Encode to a 128-byte aligned host address + offset; the CUresult's name.

    cuda-python chooses where its CUtensorMap objects lie, so this one calls the library itself.
    ``null_strides`` passes a null pointer in place of the strides.
    """
    driver = start_driver()
    a = driver_arguments(m)
    room = ctypes.create_string_buffer(512)
    place = ctypes.addressof(room)
    place += -place % 128 + offset

    def array(kind, values):
        return (kind * len(values))(*values)

    status = ctypes.CDLL(library_name()).cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        ctypes.c_int(int(getattr(driver.CUtensorMapDataType, a["tensorDataType"]))),
        ctypes.c_uint32(a["tensorRank"]),
        ctypes.c_void_p(a["globalAddress"]),
        array(ctypes.c_uint64, a["globalDim"]),
        None if null_strides else array(ctypes.c_uint64, a["globalStrides"]),
        array(ctypes.c_uint32, a["boxDim"]),
        array(ctypes.c_uint32, a["elementStrides"]),
        ctypes.c_int(int(getattr(driver.CUtensorMapInterleave, a["interleave"]))),
        ctypes.c_int(int(getattr(driver.CUtensorMapSwizzle, a["swizzle"]))),
        ctypes.c_int(int(getattr(driver.CUtensorMapL2promotion, a["l2Promotion"]))),
        ctypes.c_int(int(getattr(driver.CUtensorMapFloatOOBfill, a["oobFill"]))),
    )
    return driver.CUresult(status).name


def library_name() -> str:
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def sweep(base: int, ask=driver_answer) -> list[dict]:
    """One row for each case. ``ask(case, base)`` is replaced in tests."""
    rows = []
    for case in rule_cases() + observe_cases():
        ours, message = our_answer(case, base)
        try:
            theirs = ask(case, base)
        except (OverflowError, TypeError, ValueError) as error:  # cuda-python would not pass it on
            theirs = f"not passed on: {error}"
        agree = None if theirs is None else (ours == "ok") == (theirs == "CUDA_SUCCESS")
        rows.append(
            {
                "rule": case.rule,
                "case": case.label,
                "expected": case.expected,
                "ours": ours,
                "message": message,
                "driver": theirs,
                "agree": agree,
                "arguments": arguments(case, base),
            }
        )
    return rows


def arguments(case: Case, base: int) -> dict:
    """What was asked, as JSON can hold it."""
    shown = {name: list(v) if isinstance(v, tuple) else v for name, v in case.config.items()}
    if case.address is None:
        shown["address"] = f"allocation + {case.offset}"
    else:
        shown["address"] = hex(case.address)
    if case.null_strides:
        shown["globalStrides"] = None
    if case.map_offset is not None:
        shown["map_address"] = f"128-byte aligned + {case.map_offset}"
    return shown


# ---------------------------------------------------------------------------------------------
# The machine


class NoGpu(Exception):
    """There is no GPU to ask; the text says why."""


def open_device() -> tuple[int, dict]:
    """A small allocation on device 0 (an address to describe), and what the machine is."""
    try:
        driver = start_driver()
    except DriverMissing as error:
        raise NoGpu(str(error)) from error

    def call(function, *values):
        status, *results = function(*values)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise NoGpu(f"{function.__name__} answered {status.name}")
        return results[0] if results else None

    if call(driver.cuDeviceGetCount) == 0:
        raise NoGpu("the driver finds no device")
    device = call(driver.cuDeviceGet, 0)
    name = call(driver.cuDeviceGetName, 128, device).split(b"\0")[0].decode()
    attribute = driver.CUdevice_attribute
    major = call(
        driver.cuDeviceGetAttribute,
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        device,
    )
    minor = call(
        driver.cuDeviceGetAttribute,
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        device,
    )
    if major < 9:
        raise NoGpu(f"{name} has compute capability {major}.{minor}; tensor maps need 9.0")
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
    base = int(call(driver.cuMemAlloc, 1 << 20))  # freed with the process
    machine = {
        "device": name,
        "compute_capability": f"{major}.{minor}",
        "driver_version": call(driver.cuDriverGetVersion),
        "cuda_bindings": version("cuda-bindings"),
        "python": platform.python_version(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return base, machine


def commit() -> str | None:
    """The commit of this checkout, or None outside one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def print_table(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="tensor-map rules: our check and the driver")
    for heading in ("rule", "case", "expected", "ours", "driver", "agree"):
        table.add_column(heading, overflow="fold")
    words = {True: "yes", False: "[bold red]NO[/]", None: "-"}
    previous = None
    for row in rows:
        if row["rule"] != previous:
            table.add_section()
        ours = row["ours"] if row["ours"] in ("ok", row["rule"]) else f"[red]{row['ours']}[/]"
        agree = words[row["agree"]]
        if row["expected"] == OBSERVE and row["agree"] is False:
            agree = "[yellow]no[/]"
        table.add_row(
            row["rule"] if row["rule"] != previous else "",
            row["case"],
            row["expected"],
            "refused" if ours == row["rule"] else ours,
            (row["driver"] or "not asked").removeprefix("CUDA_"),
            agree,
        )
        previous = row["rule"]
    # A file or a pipe has no width of its own.
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def summary(rows: list[dict]) -> dict:
    """Counts for the rows with an expected answer, and for the observed ones."""
    judged = [row for row in rows if row["expected"] != OBSERVE and row["agree"] is not None]
    observed = [row for row in rows if row["expected"] == OBSERVE]

    def names(some):
        return [f"{row['rule']}: {row['case']} ({row['driver']})" for row in some]

    return {
        "rules": len({rule.name for rule in RULES + IM2COL_RULES}),
        "judged": len(judged),
        "agree": sum(row["agree"] for row in judged),
        "disagree": names(row for row in judged if not row["agree"]),
        "observed": len(observed),
        "observed_disagree": names(row for row in observed if row["agree"] is False),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="PATH", type=Path, help="write the rows as JSON")
    options = parser.parse_args(argv)
    try:
        base, machine = open_device()
    except NoGpu as reason:
        print(f"no GPU with tensor maps: {reason}", file=sys.stderr)
        return 2
    rows = sweep(base)
    totals = summary(rows)
    print_table(rows)
    print(
        f"{machine['device']}, driver {machine['driver_version']}, "
        f"cuda-bindings {machine['cuda_bindings']}"
    )
    print(
        f"{totals['agree']} of {totals['judged']} rows agree; "
        f"{len(totals['observed_disagree'])} of {totals['observed']} observed rows differ"
    )
    for name in totals["disagree"]:
        print(f"  disagree: {name}")
    for name in totals["observed_disagree"]:
        print(f"  observed: {name}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine, "summary": totals, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
