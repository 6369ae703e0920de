"""Shared memory and occupancy: the numbers of the original analysis, and the rules of the hardware."""

import pytest

from numba_deform.cli import inputs, main
from numba_deform.cli.budget import expand
from numba_deform.cli.keys import UsageError
from numba_deform.compiler.sass import ToolMissing, inspect_kernel
from numba_deform.device.limits import LIMITS, limits_of
from numba_deform.kernels.budget import Budget, occupancy
from numba_deform.kernels.parts.config import SharedBytes
from numba_deform.kernels.problem import ConfigError, Constants
from numba_deform.kernels.registry import VARIANTS
from numba_deform.kernels.tma import Tma

SEEDS = Constants(levels=4, points=8, channels=32)
HOPPER = limits_of("sm_90a")
KB = 1024


def seeds_budget(**parameters):
    """Eight queries a warp and one point a stage, as the original kernel has them."""
    config = Tma(lanes=4, points_per_stage=1, min_blocks=0, **parameters).resolve(SEEDS)
    return Budget.of(config, SEEDS, HOPPER)


# --- the original analysis ------------------------------------------------------------------------
def test_512_threads_and_2_stages_do_not_fit_48_kb():
    budget = seeds_budget(threads=512, stages=2)
    assert budget.total == 65_792
    assert f"{budget.total / KB:.2f} KB" == "64.25 KB"
    assert budget.left["48 KB static"] == 49_152 - 65_792 == -16_640
    assert f"{100 * 16_640 / 49_152:.1f} %" == "33.9 %"
    assert budget.left["99 KB opt-in"] == 99 * KB - 65_792 - 128  # room to align


def test_256_threads_and_2_stages_fit_48_kb():
    budget = seeds_budget(threads=256, stages=2)
    assert budget.shared == SharedBytes(tiles=32_768, barriers=128, metadata=0)
    assert budget.total == budget.allocated == 32_896
    assert f"{budget.total / KB:.2f} KB" == "32.12 KB"
    assert budget.left == {
        "48 KB static": 16_256,
        "99 KB opt-in": 99 * KB - 32_896,
        "227 KB opt-in": 227 * KB - 32_896,
    }


def test_four_queries_a_warp_take_512_threads_back_into_48_kb():
    config = Tma(lanes=8, points_per_stage=1, threads=512, stages=2, min_blocks=0).resolve(SEEDS)
    assert Budget.of(config, SEEDS, HOPPER).total == 32_768 + 256


@pytest.mark.full
def test_the_budget_is_what_the_compiler_allocates():
    config = VARIANTS["tma"].configure(SEEDS, lanes=4, points_per_stage=1)
    found = inspect_kernel(VARIANTS["tma"].kernel(config, SEEDS))
    assert found.shared == Budget.of(config, SEEDS, HOPPER).total == 32_896


@pytest.mark.parametrize("name", VARIANTS)
def test_the_budget_is_what_a_kernel_is_launched_with(name):
    for stages in (1, 2, 5):
        try:
            config = VARIANTS[name].configure(SEEDS, stages=stages)
        except ConfigError:  # no stages, or not so many
            continue
        budget, dynamic = Budget.of(config, SEEDS, HOPPER), VARIANTS[name].dynamic_shared_bytes(config, SEEDS)
        assert budget.allocated == (dynamic or budget.total)


@pytest.mark.parametrize("shared", [48 * KB, 48 * KB + 1])
def test_past_48_kb_the_launch_adds_room_to_align(shared):
    budget = Budget(SharedBytes(shared - 24, 8, 16), 128, HOPPER)
    assert budget.total == shared
    assert budget.allocated == (shared if shared == 48 * KB else shared + 128)


# --- occupancy ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (256, 64, 0, (4, 32, ("registers",))),
        (1024, 32, 0, (2, 64, ("registers", "warps"))),
        (1024, 33, 0, (1, 32, ("registers",))),  # rounded up to 40
        (32, 32, 0, (32, 32, ("blocks",))),
        (33, 16, 0, (32, 64, ("blocks", "warps"))),  # two warps
        (128, 32, 33 * KB, (6, 24, ("shared memory",))),
        (128, 32, 37 * KB, (6, 24, ("shared memory",))),  # 1 KB more a block is the system's
        (128, 32, 37 * KB + 1, (5, 20, ("shared memory",))),
        (128, 32, 113 * KB, (2, 8, ("shared memory",))),
        (128, 32, 227 * KB, (1, 4, ("shared memory",))),
        (128, 32, 227 * KB + 1, (0, 0, ("shared memory",))),
        (256, None, 0, (8, 64, ("warps",))),
        # Registers are those of a quarter of an SM: 17 warps put 5 on one of them.
        (17 * 32, 96, 0, (1, 17, ("registers",))),
        (17 * 32, 97, 0, (0, 0, ("registers",))),
        (17 * 32, 104, 0, (0, 0, ("registers",))),
        (16 * 32, 128, 0, (1, 16, ("registers",))),
        (16 * 32, 129, 0, (0, 0, ("registers",))),
        (96, 168, 0, (4, 12, ("registers",))),  # 3 warps a quarter, 12 in all
        (96, 40, 0, (16, 48, ("registers",))),  # a quarter holds 12.8 warps, so 12
        (160, 168, 0, (2, 10, ("registers",))),
    ],
)
def test_occupancy_of_hopper(threads, registers, shared, expected):
    assert occupancy(threads, registers, shared, HOPPER) == expected


@pytest.mark.parametrize(
    ("architecture", "shared_kb", "expected"),
    [
        ("sm_80", 162, (1, 4, ("shared memory",))),
        ("sm_80", 0, (16, 64, ("registers", "warps"))),
        ("sm_86", 0, (12, 48, ("warps",))),
        ("sm_89", 49, (2, 8, ("shared memory",))),
        ("sm_100a", 227, (1, 4, ("shared memory",))),
        ("sm_120a", 99, (1, 4, ("shared memory",))),
        ("sm_120a", 100, (0, 0, ("shared memory",))),
    ],
)
def test_occupancy_of_others(architecture, shared_kb, expected):
    assert occupancy(128, 32, shared_kb * KB, limits_of(architecture)) == expected


def test_blocks_of_one_warp_are_limited_by_their_number():
    counts = {cc: occupancy(32, 16, 0, limits).blocks for cc, limits in LIMITS.items()}
    assert [counts[cc] for cc in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))] == [32, 16, 24, 32, 24]


@pytest.mark.parametrize(("threads", "registers"), [(0, 32), (1025, 32), (128, 0), (128, 256)])
def test_what_no_kernel_has(threads, registers):
    with pytest.raises(ValueError, match=r"threads=|registers="):
        occupancy(threads, registers, 0, HOPPER)


def test_share_of_the_warps():
    assert Budget(SharedBytes(), 256, HOPPER, registers=64).resident == 0.5
    assert Budget(SharedBytes(), 256, limits_of("sm_86"), registers=64).resident == 32 / 48


@pytest.mark.parametrize("architecture", ["sm_75", "sm_999", "90", "sm_90b"])
def test_architectures_without_known_limits(architecture):
    with pytest.raises(ValueError, match=f"arch={architecture}: .* sm_90"):
        limits_of(architecture)


# --- the command ----------------------------------------------------------------------------------
def test_grid_is_every_combination():
    pairs = {"stages": "1,2", "variant": "tma", "threads": "64", "box": "2x2,4x4", "levels": "2"}
    options, _, swept, grid = expand(pairs)
    assert options == {"variant": "tma", "levels": 2}
    assert swept == ["stages", "box"]
    assert grid == [
        {"stages": stages, "threads": 64, "box": box}
        for stages in (1, 2)
        for box in ((2, 2), (4, 4))
    ]
    with pytest.raises(UsageError, match="stages=: it must be a whole number"):
        expand({"stages": "1,"})
    with pytest.raises(UsageError, match="levels=2,3"):
        expand({"levels": "2,3"})


@pytest.fixture
def call(capsys, monkeypatch):
    """``call(words)`` -> (exit status, stdout, stderr), with a compiler that only counts."""
    compiled = []

    def no_tools(kernel, architecture):
        compiled.append((kernel, architecture))
        raise ToolMissing("cuobjdump is missing: [inspect] brings it")

    monkeypatch.setattr(inputs, "inspect_kernel", no_tools)

    def run(words):
        status = main(["budget", *words.split()])
        return status, *capsys.readouterr()

    run.compiled = compiled
    return run


def table(out):
    """``{header: cell}`` of each row of a Markdown table."""
    lines = [line.strip("|").split("|") for line in out.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


SEEDS_WORDS = "variant=tma lanes=4 points_per_stage=1 min_blocks=0"


def test_table(call):
    words = f"{SEEDS_WORDS} stages=2,9 threads=256,512,33 registers=64"
    status, out, err = call(f"{words} markdown=1")
    assert (status, err, call.compiled) == (0, "", [])
    assert out.startswith("tma for sm_90a: ") and "levels=4 points=8 channels=32" in out
    rows = table(out)
    assert [(row["stages"], row["threads"]) for row in rows] == [
        ("2", "256"), ("2", "512"), ("2", "33"), ("9", "256"), ("9", "512"), ("9", "33"),
    ]  # fmt: skip
    assert rows[0] == {
        "stages": "2", "threads": "256", "tiles": "32,768", "barriers": "128", "bytes": "32,896",
        "48 KB": "yes", "99 KB": "yes", "227 KB": "yes", "registers": "64", "blocks": "4",
        "warps": "32", "occupancy": "50.0 %", "limited by": "registers",
    }  # fmt: skip
    assert (rows[1]["bytes"], rows[1]["48 KB"], rows[1]["99 KB"]) == ("65,792", "+16,640", "yes")
    # A size that no block can have is told to the byte, and is no reason to leave it out.
    assert (rows[4]["bytes"], rows[4]["227 KB"], rows[4]["blocks"]) == ("296,064", "+63,744", "0")
    assert rows[4]["limited by"] == "shared memory (2)"
    assert (rows[2]["bytes"], rows[2]["limited by"]) == ("-", "refused (1)")
    assert rows[5]["limited by"] == "refused (1)"  # the same reason
    assert "(1) threads=33: must be a multiple of 32" in out
    assert "(2) stages=9: with 512 threads" in out and "296064 bytes of shared memory" in out

    status, out, _ = call(words)  # the same on a terminal
    assert status == 0
    for part in ("32,896", "+16,640", "+63,744", "refused (1)", "shared memory (2)", "50.0 %"):
        assert part in out
    assert "…" not in out


def test_metadata_has_a_column_where_there_is_some(call):
    rows = table(call("variant=phase2 stages=1,2 registers=64 markdown=1")[1])
    assert [row["metadata"] for row in rows] != ["0", "0"]
    for row in rows:
        parts = [int(row[part].replace(",", "")) for part in ("tiles", "barriers", "metadata")]
        assert sum(parts) == int(row["bytes"].replace(",", ""))


def test_one_configuration(call):
    status, out, _ = call(f"{SEEDS_WORDS} stages=2 threads=512 registers=64")
    assert status == 0
    for line in (
        "tiles         65,536 bytes",
        "barriers      256 bytes",
        "metadata      0 bytes",
        "shared memory 65,792 bytes (64.25 KB) a block, 65,920 dynamic at launch",
        "48 KB static  does not fit: 16,640 bytes over (33.9 %)",
        "99 KB opt-in  fits, 35,456 bytes left",
        "registers     64 a thread\n",
        "resident      2 blocks, 32 warps on an SM of sm_90a: 50.0 % of 64",
        "limited by    registers\n",
    ):
        assert line in out
    assert "refused" not in out

    status, out, _ = call(f"{SEEDS_WORDS} stages=9 threads=512")
    assert (status, call.compiled) == (0, [])  # what cannot run is not compiled
    assert "227 KB opt-in does not fit: 63,744 bytes over (27.4 %)" in out
    assert "refused       stages=9: with 512 threads" in out


def test_registers_that_are_not_known(call):
    status, out, _ = call(f"{SEEDS_WORDS} threads=256")
    assert status == 0 and len(call.compiled) == 1
    assert "registers     not known: cuobjdump is missing" in out
    assert "limited by    shared memory (registers are not counted)" in out
    out = call(f"{SEEDS_WORDS} threads=128,256")[1]  # what stands in brackets is no markup
    assert "? registers are not known and not counted: cuobjdump is missing: [inspect] brings it" in out
    out = call(f"{SEEDS_WORDS} threads=128,256 registers=0")[1]
    assert "? registers are not known and not counted: left out" in out
    assert len(call.compiled) == 3


def test_registers_and_spills_of_the_compiler(call, monkeypatch):
    def found(kernel, architecture):
        call.compiled.append(architecture)
        return type("Found", (), {"registers": 40, "spill_loads": 3 * (kernel.threads == 512)})

    monkeypatch.setattr(inputs, "inspect_kernel", found)
    rows = table(call(f"{SEEDS_WORDS} threads=256,512 arch=sm_100a markdown=1")[1])
    assert call.compiled == ["sm_100a"] * 2
    assert [(row["registers"], row["spill loads"]) for row in rows] == [("40", "0"), ("40", "3")]
    assert "registers     40 a thread, 3 spill loads" in call(f"{SEEDS_WORDS} threads=512")[1]
    assert "registers     40 a thread, no spill loads" in call(f"{SEEDS_WORDS} threads=256")[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("threads=33", "threads=33: must be a multiple of 32"),  # alone, it is the answer
        ("threads=32,x", "threads=x: it must be a whole number"),
        ("registers=256", "registers=256: it must be a whole number from 0 to 255"),
        ("arch=sm_80", "variant tma needs sm_90 or newer"),
        ("arch=sm_999", "arch=sm_999: its limits are not known"),
        ("variant=direct stages=2", "unknown key stages; it is a parameter of variant tile, tma"),
        ("channels=3", "channels=3"),
    ],
)
def test_bad_input(call, words, part):
    status, out, err = call(words)
    assert (status, out) == (2, "")
    assert part in err and err.count("\n") == 1
