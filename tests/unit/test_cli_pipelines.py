"""Pipelines of one's own on the command line: `new`, and every command that takes load=my.py, without a GPU."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.cli.new import NEXT, TEMPLATES
from numba_deform.cli.tools import CALLED, NOTABLE, calls
from numba_deform.course.pipelines import copy as example
from numba_deform.engines.gpu import device as host_gpu
from numba_deform.engines.gpu.device import Gpu
from numba_deform.kernels import registry
from numba_deform.kernels.pipelines import PIPELINES
from numba_deform.measure import pipelines, report, sweep
from numba_deform.measure.bench import Entry

TEXT = '''
import numpy as np
import numba_deform as nd


@nd.pipeline
def twice(off=0, scale=1.0, fast=True):
    """Twice the numbers."""
    @nd.kernel(threads=32)
    def twice(data: nd.float32[:], out: nd.float32[:]):
        out[nd.lane()] = 2 * data[nd.lane()]

    if off > 1:
        raise ValueError(f"off={off}: must be 0 or 1")
    data = np.arange(32, dtype=np.float32)
    return nd.Launch(twice, 1, [data, np.empty_like(data)], {"out": 2 * data + off}, bytes=256, flops=32)
'''
OTHER = TEXT.replace("twice", "again")


@pytest.fixture(autouse=True)
def nothing_else(no_gpu):
    """No GPU, and no pipelines but those that a test loads."""
    before, files = dict(PIPELINES), dict(registry._loaded)
    PIPELINES.clear()
    yield
    PIPELINES.clear()
    PIPELINES.update(before)
    registry._loaded.clear()
    registry._loaded.update(files)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(TEXT)
    return path


@pytest.fixture
def ring(tmp_path, monkeypatch, capsys):
    """The file that `new` writes, in the current directory."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my.py"]) == 0
    capsys.readouterr()
    return Path("my.py")


# --- new ------------------------------------------------------------------------------------------
def test_new_is_the_example_and_says_what_works(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    status, out, _ = call("new my.py")
    text = Path("my.py").read_text()
    assert status == 0 and text == Path(example.__file__).read_text() and len(text.splitlines()) <= 40
    commands = [line.split("numba-deform ")[1] for line in out.splitlines() if "numba-deform " in line]
    assert len(commands) == len(NEXT)
    for command in commands[:5]:  # the others start child processes, see below
        status, _, err = call(command.replace("budget", "budget registers=32"))
        assert status == 0, (command, err)
    assert Path("my.png").stat().st_size > 5000


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates(tmp_path, monkeypatch, call, template):
    """Each is a file of the course with one pipeline, which the commands that are named take."""
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(f"new my.py template={template}")
    assert status == 0 and f"variants={TEMPLATES[template][0]}:stages=1" in out
    status, out, err = call("budget load=my.py stages=1,2 registers=32")
    assert status == 0 and f"{TEMPLATES[template][0]} for sm_90a" in out, err


def test_a_template_that_there_is_not(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    status, _, err = call("new my.py template=atention")
    assert status == 2 and "must be one of copy, reduction," in err and "did you mean attention" in err
    assert not Path("my.py").exists()


@pytest.mark.parametrize("words, why", [
    ("new", "new needs a file: numba-deform new my.py"), ("new my", "must end in .py, such as my.py"),
    ("new no/where.py", "there is no directory"), ("new my.py", "exists already, and is left as it is"),
    ("new copy.py", "Python's own copy would get this file; name it otherwise, such as my_copy.py"),
])  # fmt: skip
def test_new_refuses(tmp_path, monkeypatch, call, words, why):
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text("mine")
    status, _, err = call(words)
    assert status == 2 and why in err and Path("my.py").read_text() == "mine"


# --- run ------------------------------------------------------------------------------------------
def test_run(file, call):
    status, out, _ = call(f"run load={file} schedules=3 landing=random schedule_seed=7")
    assert status == 0 and out.endswith("PASS\n")
    assert "pipeline      twice: Twice the numbers.\nparameters    off=0 scale=1.0 fast=1\n" in out
    assert "3 schedules without a fault" in out and "1 block of 32 threads" in out
    assert "out           error 0.00e+00, allowed 7.62939e-06 (32 elements compared)" in out


def test_a_wrong_run_fails(file, call):
    for more in "", " schedules=2", " schedules=all":
        status, out, _ = call(f"run load={file} off=1{more}")
        assert status == 1 and out.endswith("FAIL\n")
        assert "wrong         32 of 32 elements of out are wrong; the first is out[0]: 0.0 instead" in out
        assert "replay        schedule_seed=" in out


def test_run_says_what_it_has_waived(file, call):
    own, all_in_one = "out[nd.lane()] = 2 * data[nd.lane()]", "out[0] = 0"
    file.write_text(TEXT.replace(own, f"{own}\n        if nd.lane(): {all_in_one}"))
    status, _, err = call(f"run load={file}")
    assert status == 1 and "  waive  this rule can be waived, by waive=same-value: " in err
    for more in "", " schedules=3":
        status, out, _ = call(f"run load={file} waive=init-fence,same-value{more}")
        assert status == 0 and "waived        same-value: " in out and "at my.py:" in out
    assert "waived        same-value: 93 times, at my.py:" in out
    status, out, _ = call(f"run load={file} waive=same-value schedules=all")
    assert status == 0 and "; waived same-value: 31 times, at my.py:" in " ".join(out.split())


def test_every_order(ring, call):
    status, out, _ = call(f"run load={ring} steps=2 rows=8 schedules=all")
    assert status == 0 and "explored      complete: every order of" in out
    text = ring.read_text().replace("                ring.wait(state)\n", "")
    ring.with_name("hasty.py").write_text(text)
    PIPELINES.clear()
    status, _, err = call("run load=hasty.py steps=2 rows=8 schedules=all")
    assert status == 1 and "InFlightRead: reads tiles[0, 0, " in err and "replay schedule_seed=x:0:" in err
    seed = err.split("schedule_seed=")[1].split()[0]
    status, _, err = call(f"run load=hasty.py steps=2 rows=8 schedule_seed={seed}")
    assert status == 1 and "InFlightRead" in err


@pytest.mark.parametrize("words, why", [
    ("run off=x", "off=x: it must be a whole number"), ("run of=1", "unknown key of; did you mean off?"),
    ("run off=2", "off=2: must be 0 or 1"), ("run workload=tiny", "unknown key workload"),
    ("run waive=same-values", "it must be one or more of same-value,init-fence,alloc-fence,same-init,"),
    ("run waive=same-valu", "did you mean same-value?"),
    ("run limit=3", "limit goes with schedules=all"), ("run debug=1", "add engine=gpu"),
    ("run linked=1", "add engine=gpu"), ("run schedules=all landing=late", "landing does not go with"),
    ("run schedules=2 schedule_seed=x:0:", "is one schedule"), ("run engine=gpu", "no driver"),
    ("run variant=twic", "did you mean twice?"), ("timeline", "twice takes no steps of a ring"),
    ("timeline out=x.txt", "x.txt: a timeline is written"), ("inspect arch=sm_70", "needs sm_80 or newer"),
    ("bench engine=cpu variants=twice,direct", "time them in two commands"),
    ("bench engine=cpu workload=tiny", "workload is for variants of the operator"),
    ("bench", "times need a GPU: no CUDA GPU can be used: no driver; engine=cpu gives"),
    ("sweep engine=cpu variant=twice,direct out=o.json", "sweep pipelines (twice) by themselves"),
    ("sweep engine=cpu num_query=3 out=o.json", "num_query=3: is a parameter of none of twice"),
])  # fmt: skip
def test_what_is_refused(file, call, words, why):
    status, _, err = call(f"{words} load={file}")
    assert status == 2 and why in err and err.count("\n") == 1, err


def test_a_parameter_with_the_name_of_a_key(file, call):
    file.write_text(TEXT.replace("scale=1.0", "engine=1"))
    status, _, err = call(f"run load={file}")
    assert status == 2 and "pipeline twice has a parameter engine, which is a key of run: give" in err


def test_a_pipeline_is_no_variant(file, call):
    file.write_text(TEXT.replace("def twice(off", "def direct(off"))
    status, _, err = call(f"run load={file}")
    assert status == 2 and "pipeline direct has the name of a variant" in err


def test_several_pipelines_of_a_file(file, call):
    file.write_text(TEXT + OTHER)
    status, _, err = call(f"run load={file}")
    assert status == 2 and "load= brings twice, again: variant= says which" in err
    assert call(f"run load={file} variant=again")[0] == 0
    status, out, _ = call(f"variants load={file}")
    assert status == 0 and "Twice the numbers." in out and "again" in out
    status, out, _ = call(f"budget load={file} variant=direct registers=32")
    assert status == 0 and "variant       direct for sm_90a" in out


# --- timeline, budget, inspect --------------------------------------------------------------------
def test_timeline(ring, call):
    status, out, _ = call(f"timeline load={ring} engine=both out=t.json stages=2 steps=4 block=0")
    assert status == 0 and "copy stages=2 steps=4, block 0: CPU engine" in out
    assert "only the CPU engine's half: no CUDA GPU can be used: no driver." in out
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] in "Xb"]
    names = [event["name"] for event in drawn if event["cat"] in ("issue", "compute", "flight")]
    assert sorted(names) == sorted(f"{what} ring {stage}" for what in ("issue", "compute", "flight")
                                   for stage in (0, 1, 0, 1))  # fmt: skip


@pytest.mark.full
def test_timeline_of_the_model(ring, call):
    """Of the machine code on a model of an SM: with another stage a pipeline waits for less of its time."""
    ends = []
    for stages in (1, 2):
        status, out, _ = call(f"timeline load={ring} engine=model out=t.json stages={stages} steps=8")
        assert status == 0 and f"copy stages={stages} steps=8, block 0: model of an SM of an H200" in out
        events = json.loads(Path("t.json").read_text())["traceEvents"]
        ends.append(max(event["ts"] for event in events if "ts" in event))
    assert ends[1] < 0.9 * ends[0]
    status, _, err = call(f"timeline load={ring} engine=model landing=late")
    assert status == 2 and "landing= is for the CPU engine" in err


@pytest.mark.full
def test_predicted_times_of_a_pipeline(ring, call):
    """By bench, tune, sweep and profile, for either GPU."""
    both = {}
    for gpu in ("h200", "h100"):
        two = "variants=copy:stages=1,copy:stages=2"
        status, out, err = call(f"bench load={ring} engine=model gpu={gpu} {two} out={gpu}.json")
        assert status == 0 and f"predicted for an {gpu.upper()}" in out, err
        rows = json.loads(Path(f"{gpu}.json").read_text())["rows"]
        both[gpu] = [row["predicted_ms"] for row in rows]
        assert both[gpu][1] < both[gpu][0]
    status, out, _ = call(f"tune load={ring} engine=model stages=1,2")
    told = [line.split()[0] for line in out.splitlines()[1:]]
    assert status == 0 and "ranked by predicted_ms" in out and told == ["stages=2", "stages=1"]
    assert f"predicted_ms={both['h200'][1]:.5g}" in out
    status, out, _ = call(f"profile load={ring} time=1 gpu=h100 stages=1")
    assert f"{1e3 * both['h100'][0]:,.1f} us" in out and "on an H100" in out
    assert call(f"sweep load={ring} engine=model stages=1,2 out=s.json")[0] == 0
    assert [row["predicted_ms"] for row in json.loads(Path("s.json").read_text())["rows"]] == both["h200"]
    status, _, err = call(f"sweep load={ring} engine=cpu stages=1,2 out=s.json")
    assert status == 2 and "holds a sweep of h200, not a sweep of the CPU engine" in err


def test_tune(ring, call):
    status, out, _ = call(f"tune load={ring} engine=cpu stages=1,2")
    assert status == 0 and "ranked by virtual_cycles" in out and out.index("stages=2") < out.index("stages=1")
    for words, why in (("", "name what to try, such as "), ("stagess=1", "did you mean stages?"),
                       ("engine=cpu gpu=h100 stages=1", "add engine=model")):  # fmt: skip
        status, _, err = call(f"tune load={ring} {words}")
        assert status == 2 and why in err


def test_budget(ring, call):
    status, out, _ = call(f"budget load={ring} stages=1,2,3 registers=40")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0 and ["3", "12,288", "48", "112", "12,448"] in [line[:5] for line in lines]
    status, out, _ = call(f"budget load={ring} registers=40")
    assert "12,448 bytes (12.16 KB) a block, dynamic" in out and "resident      17 blocks" in out
    status, out, _ = call(f"budget load={ring} stages=60,1 registers=40 markdown=1")
    assert status == 0 and "| 60 | - | - |" in out and "a block has 232448" in out
    assert call(f"budget load={ring} stages=60 registers=40")[0] == 2


def test_inspect(file, call):
    status, out, _ = call(f"inspect load={file} arch=sm_80 show=ptx")
    assert status == 0 and ".target sm_80" in out and "twice" in out


# --- bench and sweep ------------------------------------------------------------------------------
def test_bench(file, call, tmp_path):
    out = tmp_path / "bench.json"
    status, text, _ = call(f"bench load={file} engine=cpu variants=twice,twice:off=1,twice:off=2 out={out}")
    right, wrong, refused = json.loads(out.read_text())["rows"]
    assert status == 1 and right["error"] == 0 and right["measured"] is False and "error_text" not in right
    assert right["config"] == {"off": 0, "scale": 1.0, "fast": True}
    assert wrong["error_text"].startswith("WrongResult: 32 of 32") and "must be 0 or 1" in refused["error_text"]
    assert "CPU engine: virtual time, not measured; pipelines" in text
    assert call(f"table {out}")[0] == 0 and call(f"plot {out} out={tmp_path}/x.png")[0] == 0


def test_sweep_goes_on_where_it_was(ring, call, monkeypatch):
    monkeypatch.setattr(sweep.Worker, "call", lambda self, task: sweep.measure(task))
    words = f"sweep load={ring} engine=cpu steps=3 out=s.json stages="
    assert call(words + "1,2")[0] == 0
    first = json.loads(Path("s.json").read_text())["rows"]
    status, text, _ = call(words + "1,2,3")
    rows = json.loads(Path("s.json").read_text())["rows"]
    assert rows[:2] == first and [row["parameters"]["stages"] for row in rows] == [1, 2, 3]
    assert rows[0]["virtual_cycles"] > rows[2]["virtual_cycles"] and "copy steps=3 stages=2" in text
    assert call("plot s.json out=s.png")[0] == 0


def test_a_gpus_rows(monkeypatch, file):
    """What is timed becomes a table with GB/s, TFLOP/s and the share of a plain copy; no GPU is asked."""
    registry.load(file)
    entries = [Entry("twice"), Entry("twice", (("off", 1),))]
    gpu = SimpleNamespace(sms=132)
    monkeypatch.setattr(pipelines.Worker, "call", lambda self, task: {"error": 0.0, "config": {}})
    trial = pipelines.ceilings.Trial("copy", "", None, 512, "bytes")
    monkeypatch.setattr(pipelines.ceilings, "copy_trials", lambda gpu: [trial])
    monkeypatch.setattr(pipelines, "prepared", lambda gpu, entry: None)
    monkeypatch.setattr(pipelines, "_timed", lambda gpu, runs, *_: [[0.004, 0.002, 0.003], [1.0], [0.002]])
    first, second = pipelines.bench_rows(gpu, entries)
    assert (first["median_ms"], first["min_ms"], first["max_ms"]) == (0.003, 0.002, 0.004)
    assert first["gigabytes_per_second"] == pytest.approx(256 / 3000)
    assert first["teraflops_per_second"] == pytest.approx(32 / 3e6)
    assert first["bounded_by"] == "copy" and first["closeness"] == pytest.approx(1 / 3)
    text = report.markdown({"machine": {"gpu": "G", "driver": 1}, "settings": {"repeats": 3}, "kind": "bench",
                            "rows": [first, second]})  # fmt: skip
    assert "| workload | pipeline | ms | min .. max | error | GB/s | TFLOP/s | reached |" in text
    assert "| twice | twice | 0.0030 | 0.0020 .. 0.0040 | 0.0e+00 | 0.1 | 0.0 | 33% of copy |" in text


def test_short_launches_are_timed_in_batches(monkeypatch):
    called = []

    def time_launches(gpu, run, repeats, warm_up, between=lambda: None):
        before = len(called)
        between()
        run()
        return [0.05 * (len(called) - before)] * repeats

    monkeypatch.setattr(pipelines, "time_launches", time_launches)
    monkeypatch.setattr("numba_deform.measure.bench.time_launches", time_launches)
    monkeypatch.setattr("numba_deform.measure.bench.launch", lambda gpu, kernel, grid, args: None)
    times = pipelines._timed(None, [lambda: called.append(1)], 3)
    assert np.allclose(times, 0.05) and len(called) == 1 + 3 * 4  # 0.2 ms are four of them


def test_an_old_gpu_runs_what_has_nothing_of_hopper(monkeypatch, ring, call):
    device = SimpleNamespace(set_current=lambda: None)
    monkeypatch.setattr(host_gpu, "_find", lambda number: Gpu(device, "Old", (8, 0), 108, 0))
    status, _, err = call(f"run load={ring} engine=gpu")
    assert status == 2 and "pipeline copy needs a GPU of compute capability 9.0 or newer" in err
    file = Path("old.py")
    file.write_text(TEXT)
    measured = {"median_ms": 0.5, "gigabytes_per_second": 1.0}
    monkeypatch.setattr(pipelines, "check", lambda gpu, launch: nd.simulate(launch))

    def time_one(gpu, launch, repeats):
        launch.prepare()  # what is told of the outputs was asked before
        return measured

    monkeypatch.setattr(pipelines, "time_one", time_one)
    status, out, err = call(f"run load={file} engine=gpu")
    assert status == 0 and "time          0.5000 ms" in out and "out           error 0.00e+00" in out, err


# --- mistakes in the file -------------------------------------------------------------------------
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path, call):
    path = tmp_path / "mine.py"
    path.write_text(TEXT.replace("nd.Launch(twice", "nd.Launch(twise"))
    line = TEXT.splitlines().index(next(x for x in TEXT.splitlines() if "nd.Launch" in x)) + 1
    status, out, err = call(f"run engine=cpu load={path}")
    assert status == 2 and f"{path}:{line}: NameError: name 'twise' is not defined, in: return nd.L" in err
    assert err.count("\n") == 1 and not out
    path.write_text(TEXT.replace("data: nd.float32[:], ", "data, "))
    PIPELINES.clear()
    registry._loaded.clear()
    status, _, err = call(f"run engine=cpu load={path}")
    assert status == 2 and "TypeError: parameter data of kernel twice needs a type as its annotation" in err


@pytest.mark.parametrize("call_, why", [
    ("nd.shfl_sync_bfly_f32(data[0], 1)",
     "TypeError: shfl_sync_bfly_f32() missing 1 required positional argument: 'lanes'"),
    ("data.tail", "TypingError: Unknown attribute 'tail' of type array(float32, 1d, A)"),
])  # fmt: skip
def test_what_numba_does_not_compile_is_told_with_its_line(tmp_path, call, call_, why):
    path = tmp_path / "mine.py"
    path.write_text(TEXT.replace("2 * data[nd.lane()]", call_))
    line = next(i for i, text in enumerate(TEXT.splitlines(), 1) if "2 * data[nd" in text)
    status, _, err = call(f"inspect load={path}")
    assert status == 2 and f"kernel twice does not compile for sm_90a at {path}:{line}: {why}" in err
    assert err.count("\n") == 1 and "candidate" not in err


def test_a_wrong_operand_of_a_library_function_is_placed_at_its_call(tmp_path, call):
    path = tmp_path / "mine.py"
    path.write_text(TEXT.replace("2 * data[nd.lane()]", "nd.global_at(data, 0, 4)"))
    line = next(i for i, text in enumerate(TEXT.splitlines(), 1) if "2 * data[nd" in text)
    status, _, err = call(f"run engine=cpu load={path}")
    assert status == 1 and "NotCompiled: global_at: No implementation of function" in err
    assert f"at     {path}:{line}    out[nd.lane()] = nd.global_at(data, 0, 4)" in err


# --- inspect: what ptxas calls -----------------------------------------------------------------------
def test_calls_are_explained():
    """The names that ptxas gives its own functions, and one of the kernel's."""
    listing = """
        /*0280*/                   CALL.ABS.NOINC `(__cuda_sm3x_div_rn_noftz_f32_slowpath) ;
        /*0560*/                   CALL.ABS.NOINC `(__cuda_sm20_div_s64) ;
        /*0ee0*/              @!P0 CALL.REL.NOINC `($kernel$__cuda_sm20_div_s64) ;
        /*0ef0*/                   CALL.ABS.NOINC `(helper) ;"""
    counts = calls(listing)
    assert counts == {"cuda_sm3x_div_rn_noftz_f32_slowpath": 1, "cuda_sm20_div_s64": 2, "helper": 1}
    told = {name: [text for part, text in CALLED.items() if part in name] for name in counts}
    assert "float32 division" in told["cuda_sm3x_div_rn_noftz_f32_slowpath"][0]
    assert "int32" in told["cuda_sm20_div_s64"][0] and not told["helper"]


def test_the_names_of_hoppers_pipes():
    assert {"HMMA", "HGMMA", "LDSM", "STSM", "MUFU", "UTMALDG", "UTMASTG", "WARPGROUP", "SYNCS"} <= set(NOTABLE)
