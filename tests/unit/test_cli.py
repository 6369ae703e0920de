"""Every command from ``main([...])`` to its exit status, on the CPU engine, and what it refuses."""

import functools
import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from numba_deform import cli, reference
from numba_deform.attention.bind import Bound
from numba_deform.attention.reference import Exact
from numba_deform.cli import COMMANDS, inputs, keys, main, tools
from numba_deform.cli.budget import expand
from numba_deform.compiler import sass as inspect
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.gpu import device as host_gpu
from numba_deform.engines.gpu.device import Gpu
from numba_deform.engines.tensormap import TensorMapError
from numba_deform.kernels.registry import VARIANTS
from numba_deform.measure import case, systems
from numba_deform.workloads.presets import PRESETS

pytestmark = pytest.mark.usefixtures("no_gpu")
SMALL = ["run", "workload=tiny", "batch=1", "num_query=3", "threads=32"]


@pytest.fixture
def put_gpu(monkeypatch):
    """Pretend that there is a GPU of some capability; launching on it is up to the test."""

    def put(capability, name="NVIDIA Test"):
        device = SimpleNamespace(set_current=lambda: None)
        monkeypatch.setattr(host_gpu, "_find", lambda number: Gpu(device, name, capability, 132, 0))

    return put


@pytest.fixture
def call(capsys):
    """``call(words)`` -> (exit status, stdout, stderr)."""

    def run(*words):
        status = main(list(words))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out, captured.err

    return run


def last_line(text):
    return text.rstrip().splitlines()[-1]


def refused(result, *parts):
    """One line on stderr that has all of ``parts``, and exit status 2."""
    status, out, err = result
    assert status == 2, out + err
    assert err.startswith("numba-deform: ") and err.count("\n") == 1
    for part in parts:
        assert part in err


# --- run ------------------------------------------------------------------------------------------
def test_run_without_arguments_is_a_tma_pipeline_on_the_cpu_engine(call, monkeypatch):
    fewer = PRESETS["quick"].replace(num_query=7)  # the size is the preset's business
    monkeypatch.setitem(PRESETS, "quick", fewer)
    status, out, err = call("run")
    assert (status, err, last_line(out)) == (0, "", "PASS")
    assert "CPU engine (no CUDA GPU can be used: no driver.)" in out
    assert "quick: B=1 S=100" in out
    assert "tma: a TMA load per 2x2 tile" in out
    assert "stages=2" in out
    assert "of tiles +" in out and "of barriers a block" in out
    assert "a thread, no spills (sm_90a)" in out
    assert "against float64, must be below 0.001 (output rows compared: all 7)" in out
    assert "cycles of the longest thread, nothing measured" in out
    assert "TMA copies" in out
    assert "GB/s" not in out  # nothing was timed


def test_run_takes_the_keys_of_the_original_programs(call, no_registers):
    status, out, _ = call(
        "run", "batch=1", "spatial_size=100", "num_query=3", "num_heads=1", "channels=32",
        "num_levels=4", "num_points=8", "im2col_step=1", "threads=32",
    )  # fmt: skip
    assert status == 0
    assert "custom: B=1 S=100 (8x9 4x5 2x3 1x2) Q=3 H=1 C=32 P=8 float16" in out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["variant=direct", "lanes=4"], ["direct: plain", "lanes=4", "shared memory none"]),
        (["variant=auto"], ["direct: plain"]),
        (["stages=3", "engine=cpu"], ["stages=3", "CPU engine\n"]),
        (["dtype=bfloat16"], ["bfloat16", "must be below 0.004"]),
        (["dtype=float32", "padded=1"], ["9x7 5x3 3x1 padded", "must be below 1e-05"]),
        (["pattern=local(3)", "outside=0.5", "seed=4"], ["local(3)"]),
        (["location_dtype=float32"], ["float16"]),
        (["spatial_size=50", "num_levels=2"], ["S=50"]),
        (["schedules=3", "landing=random", "schedule_seed=5"], ["3 schedules without a fault"]),
        (["tensormap_fence=yes"], ["tensormap_fence=1"]),
    ],
)
def test_run_with(call, no_registers, words, parts):
    status, out, err = call(*SMALL, *words)
    assert (status, err, last_line(out)) == (0, "", "PASS")
    for part in parts:
        assert part in out


def test_numbers_change_a_preset():
    workload = inputs.make_workload({"workload": "seeds", "num_query": 7, "batch": 2}, "quick")
    assert (workload.name, workload.batch, workload.num_query) == ("seeds", 2, 7)
    assert workload.spatial_size == 19560
    assert inputs.make_workload({}, "detr-encoder").name == "detr-encoder"
    assert inputs.make_workload({"num_points": 2}, "detr-encoder").spatial_size == 100
    both = {"spatial_size": 20522, "padded": True, "batch": 48}
    assert inputs.make_workload(both, "quick").levels[0] == (92, 160)


def test_data_directory_there_and_back(call, no_registers, tmp_path):
    path = f"dir={tmp_path / 'd'}"
    status, out, _ = call("data", "write", path, "workload=tiny", "num_query=3", "padded=1")
    assert status == 0
    numbers = out.partition(f"numba-deform run {path}")[2].split()
    assert "spatial_size=149" in numbers and "num_query=3" in numbers

    status, out, _ = call("data", "read", path, *numbers)
    assert status == 0
    assert "9x7 5x3 3x1 padded" in out
    assert "2x149x2x32" in out and "float16" in out
    assert "they sum to" in out

    status, out, _ = call("run", path, *numbers, "threads=32")
    assert (status, last_line(out)) == (0, "PASS")
    assert f"{tmp_path / 'd'}: batch=2" in out
    # A preset can stand for the numbers.
    assert call("data", "read", path, "workload=tiny", "num_query=3", "padded=1")[0] == 0

    refused(call("data", "write", path), "holds attention_weights.bin", "force=1 overwrites")
    assert call("data", "write", path, "workload=tiny", "num_query=2", "force=1")[0] == 0
    wrong = call("run", path, "workload=tiny")
    refused(wrong, "sampling_locations.bin: expected 4,416 bytes for (B, Q, H, L, P, 2)")


def test_picture(call, no_registers, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "out.png"
    words = ["num_query=12", "num_points=1", "threads=32", f"picture_out={path}"]
    status, out, _ = call("run", "workload=picture", *words)
    assert (status, last_line(out)) == (0, "PASS")
    assert "H=1" in out  # one head is enough to look at on the CPU engine
    assert image.open(path).size == (480, 640) or min(image.open(path).size) > 100

    image.new("RGB", (40, 30), (200, 30, 30)).save(tmp_path / "red.png")
    status, _, _ = call("run", "workload=picture", f"image={tmp_path / 'red.png'}", *words)
    assert status == 0
    red, green, blue = np.asarray(image.open(path))[60, 60]
    assert red > 150 and green < 60 and blue < 60


def spoil(monkeypatch, change):
    """The CPU engine's result, changed before it is compared."""
    right = Bound.simulate

    def wrong(self, arrays, out, *more, **options):
        report = right(self, arrays, out, *more, **options)
        change(out)
        return report

    monkeypatch.setattr(Bound, "simulate", wrong)


def test_a_wrong_result_fails(call, no_registers, monkeypatch):
    spoil(monkeypatch, lambda out: out.__setitem__((0, 0, 0), 7))
    status, out, _ = call(*SMALL)
    assert (status, last_line(out)) == (1, "FAIL")
    assert "unwritten" not in out


def test_an_unwritten_element_fails(call, no_registers, monkeypatch):
    # Among so many rows that the reference looks at a few only.
    few = Exact.of
    monkeypatch.setattr(Exact, "of", lambda inputs: few(inputs, most=1))
    spoil(monkeypatch, lambda out: out.__setitem__((0, slice(None), 5), np.nan))
    status, out, _ = call(*SMALL)
    assert (status, last_line(out)) == (1, "FAIL")
    assert "1 random ones of 3" in out
    assert "unwritten     3 of 192 elements are NaN" in out


def test_a_fault_is_told_whole(call, no_registers, monkeypatch):
    fault = SimFault("a thread reads garbage", where="kernel.py:7", block=2, thread=33)
    fault.seed, fault.landing = 4, "random"

    def simulate(*_, **__):
        raise fault

    monkeypatch.setattr(Bound, "simulate", simulate)
    status, out, err = call(*SMALL)
    assert (status, last_line(out)) == (1, "FAIL")
    assert str(fault) in err and "block 2, thread 33" in err
    assert "replay schedule_seed=4 landing=random" in err


def test_interrupted(call, no_registers, monkeypatch):
    def simulate(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bound, "simulate", simulate)
    status, _, err = call(*SMALL)
    assert (status, err) == (130, "numba-deform: interrupted\n")


def test_long_runs_are_refused_unless_forced(call, no_registers, monkeypatch):
    refused(
        call("run", "workload=seeds"),
        "31,521,792 samples would take about 13 h on the CPU engine",
        "choose num_query=26 or less, workload=quick, engine=gpu, or force=1 to wait",
    )
    monkeypatch.setattr(inputs, "PATIENCE", 0)
    refused(call(*SMALL), "72 samples would take about 1 s", "force=1")
    assert call(*SMALL, "force=1")[0] == 0


# --- GPUs that are not there, too old, or failing -------------------------------------------------
@pytest.mark.parametrize("command", ["run", "tile-copy"])
def test_gpu_is_missing(call, command):
    refused(call(command, "engine=gpu"), "no CUDA GPU can be used", "; engine=cpu needs no GPU")


def fake_launch(monkeypatch, milliseconds=0.5, error=None):
    """In place of launching: the reference's own output."""

    right = case.Case.run

    def run(self, bound, **options):
        if not self.gpu:
            return right(self, bound, **options)
        if error:
            raise error
        i = self.inputs
        out = reference(
            i.value, i.spatial_shapes, i.level_start_index, i.sampling_locations,
            i.attention_weights, i.padded,
        )  # fmt: skip
        return out.astype(i.value.dtype), None

    monkeypatch.setattr(case.Case, "run", run)
    monkeypatch.setattr(case.Case, "launcher", lambda self, bound: "a launch")
    monkeypatch.setattr(systems, "time_launches", lambda gpu, run, repeats, warm: [milliseconds] * repeats)


def test_run_on_a_gpu_reports_throughput(call, no_registers, put_gpu, monkeypatch):
    put_gpu((9, 0), "NVIDIA H200")
    fake_launch(monkeypatch)
    status, out, _ = call("run", "workload=tiny", "num_query=1000", "linked=1")
    assert (status, last_line(out)) == (0, "PASS")
    assert "NVIDIA H200 (SM 9.0, 132 SMs)" in out
    assert "(linked PTX)" in out
    assert "0.5000 ms (median of 10 after 3 warm-ups; for orientation: use bench)" in out
    # 2*1000*2 rows of 12 samples, each 2 coordinates and a weight, and 32 channels out; the value.
    bytes_moved = 2 * (4000 * (12 * 3 + 32) + 2 * 81 * 2 * 32)
    assert f"{bytes_moved / 0.5 / 1e6:,.0f} GB/s of compulsory traffic" in out
    assert f"{48000 / 0.5 / 1e6:.2f} G samples (tiles)/s" in out
    assert "cycles" not in out


def test_run_on_a_gpu_takes_a_published_size(call, no_registers, put_gpu, monkeypatch):
    put_gpu((9, 0))
    fake_launch(monkeypatch)
    monkeypatch.setattr(case.Case, "exact", Exact([0], None))
    monkeypatch.setattr(case.Case, "error", lambda self, out: 0.0)
    monkeypatch.setattr(case.Case, "run", lambda self, bound, **options: (
        np.zeros(self.problem.out_shape, np.float16), None))  # fmt: skip
    status, out, _ = call("run")
    assert status == 0 and "detr-encoder: B=1" in out and "tma:" in out


def test_a_gpu_older_than_hopper_runs_direct(call, no_registers, put_gpu, monkeypatch):
    put_gpu((8, 0), "NVIDIA A100")
    fake_launch(monkeypatch)
    status, out, _ = call("run", "workload=tiny")
    assert status == 0
    assert "NVIDIA A100 is older than Hopper and has no TMA, so direct runs" in out
    assert "direct: plain" in out
    refused(
        call("run", "workload=tiny", "variant=tma"),
        "variant tma needs a GPU of compute capability 9.0 or newer",
        "NVIDIA A100 (SM 8.0, 132 SMs) is older; it can run: direct, tile, ",
    )
    refused(call("tile-copy"), "tile-copy needs a GPU of compute capability 9.0")
    assert call(*SMALL, "engine=cpu")[0] == 0  # the CPU engine is a way out


def test_keys_of_the_wrong_engine(call, put_gpu):
    refused(call("run", "linked=1"), "linked=1 is another form of the GPU's code")
    put_gpu((9, 0))
    for word in ("schedules=2", "landing=late", "schedule_seed=1"):
        key = word.partition("=")[0]
        refused(call("run", word), f"{key} is for the CPU engine; add engine=cpu")


def test_a_failing_gpu_is_no_traceback(call, no_registers, put_gpu, monkeypatch):
    put_gpu((9, 0))
    fake_launch(monkeypatch, error=RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal access"))
    status, out, err = call("run", "workload=tiny")
    assert (status, last_line(out)) == (1, "FAIL")
    assert "the GPU or its tools failed: CUDA_ERROR_ILLEGAL_ADDRESS" in err


# --- probe and tile-copy --------------------------------------------------------------------------
FIRST = "0.00 0.01 0.02 0.03 0.04 0.05 0.06 0.07"


def test_probe(call):
    status, out, _ = call("probe")
    assert (status, last_line(out)) == (0, "PASS")
    assert "Device:       CPU engine" in out
    assert "100x100x32" in out and "2x2x32" in out
    assert f"First 8 values:  {FIRST}\nExpected values: {FIRST}\n" in out


@pytest.mark.parametrize("corner", ["-1,99", "98,98", "99,-1", "-2,0", "2147483647,-2147483648"])
def test_probe_over_the_border(call, corner):
    status, out, _ = call("probe", f"corner={corner}")
    assert status == 0, out


def fails(result, status, reason):
    assert result[0] == status
    assert "Reason:" in result[1] and reason in result[1]
    assert last_line(result[1]) == "FAIL"


def test_probe_says_why_it_fails(call, put_gpu, monkeypatch):
    fails(call("probe", "engine=gpu"), 2, "no CUDA GPU can be used: no driver.")
    put_gpu((8, 6))
    fails(call("probe"), 2, "TMA needs a GPU of compute capability 9.0 or newer")
    put_gpu((9, 0))

    def on_gpu(error):
        def run(*_):
            raise error

        monkeypatch.setattr(systems, "_probe_on_gpu", run)

    on_gpu(TensorMapError("tensor map rule 'driver': refused", "driver"))
    fails(call("probe"), 2, "tensor map rule 'driver': refused")
    on_gpu(RuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified"))
    fails(call("probe"), 1, "the kernel failed: CUDA_ERROR_LAUNCH_FAILED")
    with pytest.raises(ZeroDivisionError):  # a bug of ours is not a failing GPU
        on_gpu(ZeroDivisionError())
        main(["probe"])


def test_probe_compares_all_values(call, monkeypatch):
    def nothing(*_):
        pass

    monkeypatch.setattr(systems, "simulate", nothing)
    fails(call("probe"), 1, "the kernel ended without writing anything")

    def last_is_wrong(kernel, grid, block, args):
        args[1][:] = np.concatenate([systems._box_at(TENSOR, 0, 0).ravel()[:-1], [7]])

    monkeypatch.setattr(systems, "simulate", last_is_wrong)
    reason = "1 of 128 values are wrong; the first is element 127: 7 instead of 32.63"
    fails(call("probe"), 1, reason)

    def faulty(*_):
        raise SimFault("read before the wait")

    monkeypatch.setattr(systems, "simulate", faulty)
    fails(call("probe"), 1, "the kernel failed: SimFault: read before the wait")


TENSOR = (np.arange(320000, dtype=np.float32) / 100).reshape(100, 100, 32)


def test_tile_copy(call):
    status, out, _ = call("tile-copy")
    assert (status, last_line(out)) == (0, "PASS")
    assert "2,500 of 2x2x32" in out
    assert "every element of the copy is right" in out
    assert "cycles of the longest thread, nothing measured" in out and "GB/s" not in out


@pytest.mark.parametrize(
    "words",
    [
        ["shape=7x9x64", "box=3x4x64", "dtype=bfloat16", "stages=1", "warps=1"],
        ["shape=1x1x4", "box=2x2x4", "dtype=float32", "stages=7"],
        ["shape=30x31x8", "box=1x16x8", "warps=8", "stages=3"],
    ],
)
def test_tile_copy_of_other_shapes(call, words):
    assert call("tile-copy", *words)[0] == 0


def test_tile_copy_compares_every_bit(call, monkeypatch):
    right = systems.simulate

    def wrong(kernel, grid, block, args):
        report = right(kernel, grid, block, args)
        args[1][0].array[9, 8, 31] = -args[0][0].array[9, 8, 31]
        return report

    monkeypatch.setattr(systems, "simulate", wrong)
    status, out, _ = call("tile-copy", "shape=10x10x32")
    assert (status, last_line(out)) == (1, "FAIL")
    assert "1 of 3200 elements are wrong; the first is (y=9, x=8, c=31)" in out


def test_tile_copy_on_a_gpu_reports_throughput(call, put_gpu, monkeypatch):
    put_gpu((9, 0))
    launched = {}

    def on_gpu(gpu, tensor, box, kernel, blocks, counts, repeats):
        launched.update(blocks=blocks, counts=counts)
        return tensor.copy(), [0.1] * repeats

    monkeypatch.setattr(systems, "_copy_on_gpu", on_gpu)
    status, out, _ = call("tile-copy")
    assert status == 0
    assert launched == {"blocks": 625, "counts": (50, 2500)}  # a tile for each of 4 warps
    assert "0.1000 ms" in out
    assert "12.8 GB/s, read and written" in out  # 2 * 640 kB in 0.1 ms
    assert "25.0 M tiles/s" in out
    call("tile-copy", "shape=1000x1000x32")
    # 5120 bytes of tiles, barriers and reserve allow more than 16 blocks, 2048 threads do not.
    assert launched["blocks"] == 132 * 16


# --- variants, inspect, help ----------------------------------------------------------------------
def test_variants(call):
    status, out, _ = call("variants")
    assert status == 0
    for name in VARIANTS:
        assert name in out
    for part in ("S3", "SM 8.0", "SM 9.0", "tma stages=1", "warp_specialized stages=2", "box=4x4"):
        assert part in out
    # The parameters of a kernel are told once, however many variants it has.
    for part, kernels in (("lanes=8", 5), ("copy=cp_async", 1), ("sync=barrier", 1)):
        assert out.count(part) == kernels


def test_shared_memory_of_run_has_metadata_where_there_is_some(call, no_registers):
    status, out, _ = call("run", "workload=tiny", "batch=1", "num_query=3", "variant=phase2")
    assert status == 0
    assert " of barriers + " in out and " of metadata a block (at most 232,448)" in out


@pytest.mark.full
def test_inspect(call, monkeypatch):
    once = functools.cache(tools.inspect_kernel)  # of the same kernel, shown in three ways
    monkeypatch.setattr(tools, "inspect_kernel", once)
    status, out, _ = call("inspect", "stages=3", "levels=2", "points=4")
    assert status == 0
    assert "tma for sm_90a" in out
    assert "levels=2 points=4 channels=32 dtype=float16" in out
    assert "stages=3" in out
    for part in ("registers", "stack", "spills", "UTMALDG", "SYNCS"):
        assert part in out

    status, out, _ = call("inspect", "stages=3", "levels=2", "points=4", "show=sass")
    assert status == 0 and "UTMALDG.3D" in out and ".text.tma" in out
    status, out, _ = call("inspect", "stages=3", "levels=2", "points=4", "show=ptx")
    assert status == 0 and ".entry tma(" in out and "cp.async.bulk.tensor" in out
    status, out, _ = call("inspect", "variant=direct", "linked=1", "levels=2", "points=4")
    assert status == 0 and "linked PTX" in out and "CALL" in out
    assert once.cache_info().misses == 2


def test_inspection_counts_the_kernel_alone():
    sass = """
	.section	.text.kernel,"ax",@progbits
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 UTMALDG.3D [UR8], [UR6] ;
        /*0020*/              @!UP0 UTMALDG.3D [UR8], [UR6] ;
        /*0030*/                   CALL.ABS.NOINC `(f) ;
        /*0040*/                   NOP;
	.section	.text.f,"ax",@progbits
        /*0000*/              @P0  STL.64 [R1], R2 ;
"""
    assert inspect.count_instructions(sass) == {
        "kernel": {"UTMALDG": 2, "LDC": 1, "CALL": 1},
        "f": {"STL": 1},
    }


def test_inspect_without_the_tools(call, no_registers, monkeypatch):
    monkeypatch.undo()  # the real inspect_kernel, nothing installed, and nothing kept
    monkeypatch.setenv("NUMBA_DEFORM_CACHE", "off")
    monkeypatch.setattr(inspect.importlib.metadata, "files", lambda name: None)
    monkeypatch.setattr(inspect.shutil, "which", lambda name: None)
    refused(call("inspect"), "cuobjdump", "pip install 'numba_deform[inspect]'")
    status, out, _ = call(*SMALL, "engine=cpu")
    assert status == 0  # only the line about registers is missing its numbers
    assert "registers     not known: " in out and "numba_deform[inspect]" in out


def test_inspect_finds_tools_on_the_path(monkeypatch):
    monkeypatch.setattr(inspect.importlib.metadata, "files", lambda name: [])
    monkeypatch.setattr(inspect.shutil, "which", lambda name: f"/opt/{name}")
    assert inspect.tool("nvdisasm") == "/opt/nvdisasm"


# --- a time limit for any command -----------------------------------------------------------------
def run_program(*words):
    """The command line in a process of its own: its child writes to the real standard output."""
    return subprocess.run(
        [sys.executable, "-m", "numba_deform", *words],
        capture_output=True,
        text=True,
        timeout=800,
    )


def test_a_command_within_its_time_is_as_it_would_be():
    done, plain = run_program("time_limit=600", "help", "probe"), run_program("help", "probe")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert run_program("time_limit=600", "run", "workload=nothing").returncode == 2


def test_a_command_that_takes_longer_is_killed_with_its_children():
    done = run_program(
        "time_limit=2", "run", "engine=cpu", "workload=quick", "schedules=1000000", "force=1"
    )
    assert done.returncode == 1 and "still running after 2 s: stopped" in done.stderr
    assert "FAIL" in done.stdout


@pytest.mark.parametrize(
    "words, text",
    [
        (["time_limit=fast", "probe"], "time_limit=fast: it must be a number"),
        (["time_limit=0", "probe"], "time_limit=0: more than 0 seconds, and then a command"),
        (["time_limit=5"], "time_limit=5: more than 0 seconds, and then a command"),
        (["time_limit=5", "prob"], "unknown command prob; did you mean probe?"),
    ],
)
def test_a_time_limit_that_makes_no_sense(call, words, text):
    status, _, err = call(*words)
    assert status == 2 and text in err


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"], ["help", "help"]])
def test_help(call, words):
    status, out, _ = call(*words)
    assert status == 0
    for command in COMMANDS:
        assert f"\n  {command} " in out


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"help"}))
def test_help_of_a_command(call, command):
    status, out, _ = call("help", command)
    assert status == 0
    for key in COMMANDS[command].keys:
        assert f"\n  {key.name} " in out and key.help in out


def test_every_example_of_the_help_is_understood():
    lines = cli.USAGE.partition("Examples:\n")[2].replace("\\\n", "").splitlines()
    for line in lines:
        _, command, *words = line.split()
        if command == "check":  # what stands behind the program is the program's
            words = list(itertools.takewhile(lambda word: "=" in word, words))
        words = [word for word in words if "=" in word]
        if command == "budget":
            *_, swept, grid = expand(keys.split_pairs(words))
            assert (swept, len(grid)) == (["stages", "threads"], 8)
            continue
        known = COMMANDS[command].keys
        if keys.VARIANT in known:
            name = dict(w.split("=") for w in words).get("variant", "tma")
            known += inputs.variant_keys(VARIANTS[name])
        keys.parse_pairs(keys.split_pairs(words), known, command)


def test_a_closed_pipe_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "numba_deform", "help"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_a_timeline_says_at_once_that_it_cannot_be_drawn(tmp_path, monkeypatch, capsys):
    """Without matplotlib nothing runs before that is said; as .json it needs none."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["timeline", "variant=tma", "stages=2", "engine=cpu", f"out={tmp_path}/"]
    assert cli.main([*words[:-1], f"{words[-1]}x.png"]) == 2
    said = capsys.readouterr()
    assert "pip install matplotlib" in said.err and "workload" not in said.out
    assert cli.main([*words[:-1], f"{words[-1]}x.json"]) == 0 and (tmp_path / "x.json").exists()


@pytest.mark.full
def test_a_timeline_of_the_model(capsys):
    """Each block that is asked for, on a GPU's grid; the CPU engine's keys are refused."""
    words = ["timeline", "variant=tma", "stages=2", "workload=tiny", "engine=model"]
    assert cli.main([*words, "block=0,1"]) == 0
    out = capsys.readouterr().out
    assert all(f"tma, block {block}: model of an SM of an H200" in out for block in (0, 1))
    assert cli.main([*words, "schedule_seed=1"]) == 2
    assert "schedule_seed= is for the CPU engine" in capsys.readouterr().err


# --- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("rum", ["unknown command rum; did you mean run?", "tile-copy"]),
        ("-v", ["unknown option -v; before a command there are --help, --version and --time-limit SECONDS"]),
        ("plot nothing.json", ["nothing.json: No such file"]),
        ("timeline engine=cpu out=x.jpg", ["x.jpg: a timeline is written as .png, .svg or .json"]),
        ("timeline engine=cpu out=/no/where.png", ["/no/where.png: there is no directory /no"]),
        ("batch=1", ["no command before batch=1; try: numba-deform run batch=1"]),
        ("help nothing", ["unknown command nothing"]),
        ("run 5", ["'5' is not of the form key=value"]),
        ("run =5", ["'=5' is not of the form key=value"]),
        ("run seed=1 seed=2", ["seed is given twice: seed=1 and seed=2"]),
        ("run stagess=1", ["unknown key stagess; did you mean stages?", "num_query", "stages"]),
        ("run --stagess=2", ["unknown key stagess; did you mean stages?"]),
        (
            "run variant=direct stages=2",
            ["unknown key stages; it is a parameter of variant tile, tma"],
        ),
        ("run batch=0", ["batch=0: it must be a whole number of at least 1"]),
        ("run batch=", ["batch=: it must be a whole number of at least 1"]),
        ("run batch=1.5", ["batch=1.5: it must be a whole number"]),
        ("run stages=two", ["stages=two: it must be a whole number"]),
        ("run stages=0", ["stages=0: must be at least 1"]),
        ("run stages=1000", ["stages=1000", "shared memory"]),
        ("run threads=33", ["threads=33: must be a multiple of 32"]),
        ("run tensormap_fence=maybe", ["tensormap_fence=maybe: it must be 1 or 0"]),
        ("run variant=tmaa", ["variant=tmaa: must be one of", "did you mean tma?"]),
        ("run workload=quic", ["no preset 'quic'; did you mean quick?"]),
        ("run workload=", ["workload=: it must be a text"]),
        ("run channels=3", ["channels=3", "a multiple of 16 from 16 to 256"]),
        ("run dtype=float64", ["dtype=float64: it must be one of float16, bfloat16, float32"]),
        ("run pattern=wild", ["pattern='wild'", "local(SIGMA)"]),
        ("run outside=2", ["outside=2", "from 0 to 1"]),
        ("run padded=perhaps", ["padded=perhaps: it must be 1 or 0"]),
        ("run spatial_size=3", ["spatial_size=3: no pyramid of num_levels=4"]),
        ("run engine=tpu", ["engine=tpu: it must be one of auto, gpu, cpu"]),
        ("run landing=never", ["landing=never: it must be one of late, random, earliest"]),
        ("run schedules=0", ["schedules=0: it must be a whole number of at least 1"]),
        ("run im2col_step=3 batch=4 num_query=3", ["im2col_step=3", "divide the batch 4"]),
        ("run image=x.png", ["image goes with workload=picture"]),
        ("run picture_out=x.png", ["picture_out draws the output of workload=picture only"]),
        ("run workload=picture picture_out=/no/where.png", ["there is no directory /no"]),
        ("run workload=picture image=/no/where.png", ["/no/where.png"]),
        ("run workload=picture batch=2", ["batch does not go with workload=picture"]),
        ("run workload=picture channels=33", ["channels=33"]),
        ("run dir=/no/where", ["/no/where: no spatial_shapes.bin"]),
        ("run dir=/no/where dtype=float16", ["dtype does not go with dir"]),
        ("run dir=/no/where batch=100000", ["samples would take", "choose workload=quick"]),
        ("probe corner=1", ["corner=1: it must be two whole numbers x,y"]),
        ("probe corner=4294967296,0", ["a box starts at two int32 numbers"]),
        ("probe stages=2", ["unknown key stages (probe knows engine, corner)"]),
        ("tile-copy box=2x2", ["box=2x2: it must be three sizes HxWxC"]),
        ("tile-copy box=2x300x32", ["tensor map rule 'box range'", "is 300"]),
        ("tile-copy box=2x2x16", ["its channels must be those of the tensor, 32"]),
        ("tile-copy shape=9x9x3 box=2x2x3", ["tensor map rule 'stride multiple'"]),
        ("tile-copy shape=0x9x32", ["shape=(0, 9, 32)", "three sizes"]),
        ("tile-copy stages=250", ["warps=4 takes 264112 bytes of shared memory", "has 232448; use fewer"]),
        ("tile-copy warps=33", ["warps=33: it must be from 1 to 32"]),
        ("data", ["data must be followed by read or write"]),
        ("data copy", ["not 'copy'"]),
        ("data read", ["data read needs dir=PATH"]),
        ("data write dir=/dev/null", ["/dev/null"]),
        ("data write dir=/no dtype=float32", ["data directories hold float16 only"]),
        ("data write dir=/no batch=1000000000", ["would take 23,842 GiB, more than this machine"]),
        ("variants x=1", ["unknown key x (variants knows load)"]),
        ("inspect arch=90", ["arch=90: it must be of the form sm_90 or sm_90a"]),
        ("check arch=sm_10a -m this", ["arch=sm_10a: its limits are not known; known are sm_80"]),
        ("check arch=sm_100a ring.cu", ["arch=sm_100a is for a program", "options=-arch=sm_100a"]),
        ("inspect arch=sm_80", ["arch=sm_80: variant tma needs sm_90 or newer"]),
        pytest.param(
            "inspect variant=direct levels=1 points=1 arch=sm_999", ["arch=sm_999: "], marks=pytest.mark.full
        ),
        ("inspect show=all", ["show=all: it must be one of summary, ptx, sass"]),
        ("inspect channels=3", ["channels=3"]),
        ("inspect num_levels=3", ["unknown key num_levels; did you mean levels?"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_one_clear_line(call, words, parts):
    refused(call(*words.split()), *parts)
