"""A variant that a process registers is known by its name wherever another is, and refused with a reason."""

import dataclasses

import numpy as np
import pytest

from numba_deform import cli, ms_deform_attn
from numba_deform.kernels import direct
from numba_deform.kernels import registry as variants
from numba_deform.kernels.direct import Direct
from numba_deform.kernels.problem import ConfigError
from numba_deform.kernels.registry import VARIANTS, Functions, Variant, register
from numba_deform.measure import bench as library
from numba_deform.measure import report
from numba_deform.measure.bench import Entry, bench, parse_entries, task_of
from numba_deform.measure.sweep import expand, sweep
from numba_deform.workloads.presets import preset

MODULE = Functions(direct.build, direct.blocks)
MINE = Variant("mine", "", "direct once more", Direct, MODULE, (8, 0), "l1", dict(lanes=4))
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


def test_is_known_by_name(mine, capsys):
    assert mine is MINE and variants.is_registered("mine") and not variants.is_registered("tma")
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
    from numba_deform.measure import ceilings

    assert set(variants.FETCHES) == set(ceilings.PASSES)


def test_on_a_gpu_the_guarded_form_runs_first(mine, monkeypatch):
    """A kernel that waits for ever ends in a report, and the row says so; the package's own run as they are."""
    ran = []

    class Case:
        def bind(self, name, parameters, form):
            return (name, form), ""

        def launcher(self, bound):
            return lambda: ran.append(bound)

    monkeypatch.setattr(library, "case_of", lambda *_: Case())
    monkeypatch.setattr(library, "measure", lambda task: {"error": 0.0})
    for name in ("mine", "direct"):
        assert library.measure_here(task_of(Entry(name), TINY, 1)) == {"error": 0.0}
    assert ran == [("mine", "guarded")]
    monkeypatch.setattr(library, "case_of", lambda *_: 1 / 0)
    answer = library.measure_here(task_of(Entry("mine"), TINY, 1))
    assert "ZeroDivisionError" in answer["error_text"]
