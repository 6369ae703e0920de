"""A variant that a process registers is known by its name wherever another is, and refused with a reason."""

import dataclasses
import json
import os
import pickle
import sys

import numpy as np
import pytest

from numba_deform import cli, ms_deform_attn
from numba_deform.kernels import direct
from numba_deform.kernels import registry as variants
from numba_deform.kernels.direct import Direct
from numba_deform.kernels.problem import ConfigError
from numba_deform.kernels.registry import VARIANTS, Variant, register
from numba_deform.measure import bench as library
from numba_deform.measure import counters, report
from numba_deform.measure.bench import Entry, bench, parse_entries, task_of
from numba_deform.measure.sweep import expand, sweep
from numba_deform.workloads.presets import preset

MINE = Variant("mine", "", "direct once more", Direct, direct, (8, 0), "l1", dict(lanes=4))
TINY = preset("tiny", num_query=3)


@pytest.fixture
def mine():
    with register(MINE) as entry:
        yield entry
    assert "mine" not in VARIANTS and not variants.is_registered("mine")


def inputs():
    i = TINY.generate(1)
    return (
        i.value, i.spatial_shapes, i.level_start_index, i.sampling_locations, i.attention_weights,
    )  # fmt: skip


def test_is_known_by_name(mine, capsys, no_registers):
    assert mine is MINE and variants.is_registered("mine") and not variants.is_registered("tma")
    assert variants.is_of_this_process("mine") and not variants.is_of_this_process("tma")
    ours = ms_deform_attn(*inputs(), variant="mine", engine="cpu")
    assert np.array_equal(ours, ms_deform_attn(*inputs(), variant="direct", engine="cpu", lanes=4))
    assert cli.main("run variant=mine engine=cpu workload=tiny num_query=3".split()) == 0
    assert cli.main(["variants"]) == 0
    assert "mine" in capsys.readouterr().out


def test_bench_and_its_table(mine):
    """Beside one of the package's own, which a child process checks."""
    document = bench(None, [TINY], parse_entries("direct,mine:threads=64"), repeats=1)
    first, second = document["rows"]
    assert "error_text" not in first and "error_text" not in second, document["rows"]
    assert second["variant"] == "mine threads=64" and second["fetch"] == "l1"
    assert second["config"]["lanes"] == 4 and second["virtual_cycles"] > 0
    assert "| mine threads=64 |" in report.markdown(document)
    row = dict(second, median_ms=1.0) | {"kind": "variant"}
    _, _, rows = report.summary([document | {"rows": [row], "settings": {"repeats": 1}}])
    assert rows[0][0] == "mine threads=64"


def test_bench_in_this_process_alone(mine, monkeypatch):
    def refuse(*_):
        raise AssertionError("a child process")

    monkeypatch.setattr("numba_deform.measure.worker.Worker.call", refuse)
    document = bench(None, [TINY], parse_entries("direct,mine,mine:lanes=64"), isolated=False)
    assert [("error_text" in row) for row in document["rows"]] == [False, False, True]
    assert "lanes=64" in document["rows"][2]["error_text"]


def test_sweep(mine, tmp_path):
    points = expand({"variant": ["mine"], "workload": ["tiny"], "num_query": ["3"], "lanes": ["8"]})
    (row,) = sweep(points, tmp_path / "sweep.json")["rows"]
    assert "error_text" not in row and row["virtual_cycles"] > 0


def test_names_are_used_once():
    with pytest.raises(ConfigError, match="name=tma: exists already; it is one of the package's"):
        register(dataclasses.replace(MINE, name="tma"))
    with pytest.raises(ConfigError, match="package's"):
        register(dataclasses.replace(MINE, name="tma"), replace=True)
    with pytest.raises(ConfigError, match="name=phase2: exists already"):
        register(dataclasses.replace(MINE, name="phase2"))
    first = register(MINE)
    other = dataclasses.replace(MINE, summary="another")
    with pytest.raises(ConfigError, match="replace=True replaces it"):
        register(other)
    second = register(other, replace=True)
    assert VARIANTS["mine"] is other and "was removed" in repr(first)
    first.remove()  # no longer its own
    assert VARIANTS["mine"] is other and "is registered" in repr(second)
    second.remove()
    second.remove()
    assert "mine" not in VARIANTS


@dataclasses.dataclass
class Thawed:
    threads: int = 32


@dataclasses.dataclass(frozen=True)
class Bare:
    threads: int = 32


@dataclasses.dataclass(frozen=True)
class Threadless:
    lanes: int = 8

    def resolve(self, constants):
        return self

    def shared_bytes(self, constants):
        return ()


@dataclasses.dataclass(frozen=True)
class Open(Threadless):
    threads: int = dataclasses.field(default_factory=int)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (dict(name="My Variant"), "name", "lower-case"),
        (dict(name="auto"), "name", "neither auto nor all"),
        (dict(module=object()), "module", "no function build"),
        (dict(fetch="dma"), "fetch", "one of l1, tma, shared"),
        (dict(config=Thawed), "config", "frozen dataclass"),
        (dict(config=Bare), "config", "no method resolve"),
        (dict(config=Threadless, preset={}), "config", "no threads"),
        (dict(config=Open, preset={}), "config", "field threads needs a default"),
        (dict(preset=dict(stages=2)), "stages", "mine has the parameters"),
    ],
)
def test_refused(change, field, words):
    with pytest.raises(ConfigError, match=words) as caught:
        register(dataclasses.replace(MINE, **change))
    assert caught.value.field == field
    assert "mine" not in VARIANTS


def test_fetches_are_those_of_the_ceilings():
    from numba_deform.kernels.backward import SUMS
    from numba_deform.measure import ceilings

    assert {*variants.FETCHES, *SUMS} == set(ceilings.PASSES)


def test_on_a_gpu_the_guarded_form_runs_first(mine, monkeypatch):
    """A kernel that waits for ever ends in a report, and the row says so; the package's own run as they are."""
    ran = []

    class Case:
        def bind(self, name, parameters, form):
            return (name, form), ""

        def launcher(self, bound):
            return lambda: ran.append(bound)

    monkeypatch.setattr(library, "case_of", lambda *_: Case())
    monkeypatch.setattr(library, "measure_entry", lambda task: {"error": 0.0})
    for name in ("mine", "direct"):
        assert library.measure_here(task_of(Entry(name), TINY, 1)) == {"error": 0.0}
    assert ran == [("mine", "guarded")]
    monkeypatch.setattr(library, "case_of", lambda *_: 1 / 0)
    answer = library.measure_here(task_of(Entry("mine"), TINY, 1))
    assert "ZeroDivisionError" in answer["error_text"]


# --- variants of a file ---------------------------------------------------------------------------
FILE = """
import os
from pathlib import Path
from beside import LANES
from numba_deform.kernels import direct
from numba_deform.kernels.direct import Direct
from numba_deform.kernels.registry import Variant, register

with open(Path(__file__).with_name("processes"), "a") as file:
    file.write(f"{os.getpid()} ")
register(Variant("of-a-file", "", "direct once more", Direct, direct,
                 (8, 0), "l1", dict(lanes=LANES)))
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that registers ``of-a-file``, with a module beside it."""
    path = tmp_path / "my.py"
    path.write_text(FILE)
    (tmp_path / "beside.py").write_text("LANES = 4\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(variants, "_loaded", {})
    yield path
    variants._registered.pop("of-a-file", None)
    VARIANTS.pop("of-a-file", None)
    sys.modules.pop("beside", None)


def processes(file):
    return [int(number) for number in file.with_name("processes").read_text().split()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run variant=of-a-file engine=cpu workload=tiny num_query=2", "lanes=4 "),
        ("budget variant=of-a-file lanes=4,8 registers=32 markdown=1", "| 8 | 0 | 0 |"),
        ("variants", "| direct once more "),
    ],
)
def test_commands_know_the_variants_of_a_file(file, capsys, no_registers, words, says):
    command, *words = words.split()
    assert cli.main([command, *words, f"load={file}"]) == 0
    assert says in capsys.readouterr().out.replace("│", "|")
    assert cli.main([command, "--load", str(file), *words]) == 0
    assert processes(file) == [os.getpid()]  # it runs once
    assert variants.is_registered("of-a-file") and not variants.is_of_this_process("of-a-file")


@pytest.mark.full
def test_what_is_loaded_is_what_is_meant(file, tmp_path, capsys, no_registers):
    """By bench too: test_several_files."""
    small, out = ["engine=cpu", "workload=tiny"], tmp_path / "out.json"
    for command, words, says in (
        ("inspect", ["show=ptx", "levels=1", "points=1"], ".entry direct("),
        ("run", [*small, "num_query=2"], "of-a-file: direct once more"),
        ("sweep", [*small, "num_query=2", f"out={out}"], "of-a-file"),
    ):
        assert cli.main([command, *words, f"load={file}"]) == 0
        assert says in capsys.readouterr().out


def test_several_files(file, capsys):
    other = file.with_name("other.py")
    other.write_text(FILE.replace("of-a-file", "of-another"))
    try:
        assert cli.main(["bench", f"load={file},{other}", "engine=cpu", "workload=tiny"]) == 0
        out = capsys.readouterr().out
        assert all(f" {name} " in out for name in ("direct", "of-a-file", "of-another"))
        assert cli.main(["run", f"load={file},{other}"]) == 2
        assert "load= brings of-a-file, of-another: variant= says which" in capsys.readouterr().err
    finally:
        variants._registered.pop("of-another", None), VARIANTS.pop("of-another", None)


@pytest.mark.full
def test_children_load_the_file_too(file, tmp_path, capsys):
    more = [f"load={file}", "engine=cpu", "workload=tiny"]
    assert cli.main(["bench", "variants=of-a-file,direct", *more]) == 0
    here, child = processes(file)
    assert here == os.getpid() != child
    out = tmp_path / "out.json"
    assert cli.main(["sweep", "variant=of-a-file", "lanes=4,8", "num_query=2", f"out={out}", *more]) == 0
    assert len(set(processes(file))) == 3  # this one, and a child of each command
    assert [row["parameters"] for row in json.loads(out.read_text())["rows"]] == [{"lanes": 4}, {"lanes": 8}]


def test_a_sweep_measures_a_changed_file_again(file, tmp_path, monkeypatch):
    ran = []

    def answer(self, task):
        ran.append(task["entry"].label)
        return {"error": 1e-4, "virtual_cycles": 7}

    monkeypatch.setattr("numba_deform.measure.worker.Worker.call", answer)
    words = ["sweep", "variant=of-a-file,direct", f"load={file}", f"out={tmp_path / 'out.json'}"]
    words += ["workload=tiny", "engine=cpu"]
    for _ in range(2):
        assert cli.main(words) == 0
        assert ran == ["of-a-file", "direct"]
    file.write_text(FILE + "# changed\n")
    assert cli.main(words) == 0
    assert ran == ["of-a-file", "direct", "of-a-file"]
    assert len(json.loads((tmp_path / "out.json").read_text())["rows"]) == 2


def test_what_counts_loads_it(file, tmp_path, monkeypatch):
    """As a child of Nsight Compute, which gets the task in a file."""
    bound = []

    class Case:
        gpu = None

        def bind(self, name, parameters, form):
            bound.append(variants.variant(name).summary)
            return None, ""

        def launcher(self, bound):
            return lambda: None

    monkeypatch.setattr(counters, "case_of", lambda *_: Case())
    monkeypatch.setattr(counters, "profile_launch", lambda gpu, run: run())
    task = task_of(Entry("of-a-file"), TINY, 1) | {"load": (str(file),)}
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    counters.launch_twice(tmp_path / "task")
    assert bound == ["direct once more"]


def test_on_a_gpu_the_guarded_form_of_a_file_runs_first(file, monkeypatch):
    ran = []

    class Case:
        def bind(self, name, parameters, form):
            return form, ""

        def launcher(self, bound):
            return lambda: ran.append(bound)

    monkeypatch.setattr(library, "case_of", lambda *_: Case())
    monkeypatch.setattr(library, "measure_entry", lambda task: {"error": 0.0})
    task = task_of(Entry("of-a-file"), TINY, 1) | {"load": (str(file),)}
    assert library.measure(task) == {"error": 0.0} and ran == ["guarded"]


def test_a_compiler_of_another_process_loads_it(file, monkeypatch):
    variants.load(file)
    task = task_of(Entry("of-a-file"), TINY, 1)
    variants._loaded.clear(), variants._registered.pop("of-a-file"), VARIANTS.pop("of-a-file")
    built = []
    monkeypatch.setattr(variants.Variant, "kernel", lambda self, *_: built.append(self.name))
    library._compile(task, "sm_90a")
    assert built == ["of-a-file"]


def test_a_file_of_ones_own_kernel_has_a_budget(file, capsys):
    """Its configuration has only what ``register`` asks for: no ``complete``, no ``stages``."""
    file.write_text(FILE.replace(
        "register(Variant(",
        """
from dataclasses import dataclass
from numba_deform.kernels.parts.config import SharedBytes

@dataclass(frozen=True)
class Own:
    threads: int = 64
    lanes: int = 8
    def resolve(self, constants):
        return self
    def shared_bytes(self, constants):
        return SharedBytes(1024, 16)

register(Variant(""").replace("Direct, direct,", "Own, direct,"))
    assert cli.main(["budget", "variant=of-a-file", f"load={file}", "registers=32"]) == 0
    out = capsys.readouterr().out
    assert "1,040 bytes" in out and "threads=64 lanes=4" in out
    assert cli.main(["timeline", "variant=of-a-file", f"load={file}", "engine=cpu"]) == 2
    assert "variant of-a-file has no parameter trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "my.py: there is no such file"),
        ("x = 1\n", "my.py: has no pipeline (a function under @nd.pipeline), and registers no"),
        ("\n\nx = nothing\n", "my.py: line 3: NameError: name 'nothing' is not defined"),
        ("\nx = (\n", "my.py: line 2: SyntaxError: '(' was never closed"),
        ("raise SystemExit('no GPU')", "my.py: line 1: SystemExit: no GPU"),
        (FILE.replace("of-a-file", "tma"), "line 11: ConfigError: name=tma: exists already"),
    ],
)
def test_files_that_are_refused(file, capsys, text, says):
    file.unlink()
    if text:
        file.write_text(text)
    assert cli.main(["run", "variant=of-a-file", f"load={file}"]) == 2
    err = capsys.readouterr().err
    assert f"load={file.parent}" in err and says in err and err.count("\n") == 1


def test_what_is_no_python_file(capsys, tmp_path):
    for path in (tmp_path, tmp_path / "my.txt"):
        (tmp_path / "my.txt").touch()
        assert cli.main(["variants", f"load={path}"]) == 2
        assert "must be a Python file with a pipeline or a variant" in capsys.readouterr().err
