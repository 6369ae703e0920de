"""Lesson 15: its stored PTX is of its source, and its checks say what is so, with a compiler and without."""

import importlib.util
import sys
from pathlib import Path

import lessons
import pytest

from numba_deform.course.lessons import lesson15
from numba_deform.engines import faults

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ptx"))
import stored  # noqa: E402

FOUND = {"right": type(None), "bytes": faults.MissingBytes, "count": faults.TooManyArrivals,
         "elected": faults.ReadAfterRelease}  # fmt: skip
needs_nvrtc = pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="there are no CUDA packages")


@pytest.mark.parametrize("name", lesson15.CHANGES)
def test_what_is_stored(name):
    assert type(lesson15._fault_of(lesson15.source(name))) is FOUND[name]
    assert lesson15.ptx(name) == (lesson15.FOLDER / f"ring_{name}.ptx").read_text()


@needs_nvrtc
@pytest.mark.full
@pytest.mark.parametrize("name", lesson15.CHANGES)
def test_stored_texts_are_of_the_source(name):
    made, kept = stored.of_lesson(name), lesson15.ptx(name)
    if made.splitlines()[0] != kept.splitlines()[0]:
        pytest.skip(f"another version of NVRTC: {made.splitlines()[0]} and not {kept.splitlines()[0]}")
    assert made == kept


def test_the_lesson_names_lines_that_are_there():
    """The text says 1 to 38, 16 and 67; the report, 16 and 67."""
    assert lesson15.line_of("__global__") == 39 and lesson15.line_of(lesson15.ARRIVES) == 67
    fault = lesson15._fault_of(lesson15.source("count"))
    assert fault.where.endswith("ring.cu:16") and "inlined at ring.cu:67" in fault.source
    assert "announced in this phase, at ring.cu:20" in lesson15._fault_of(lesson15.source("bytes")).cure


def test_without_a_compiler(monkeypatch):
    """The solution is compiled beforehand; any other line needs NVRTC, and the check says so."""

    def missing(*args, **named):
        raise FileNotFoundError("from_cuda needs nvcc or NVRTC, and there is neither")

    monkeypatch.setattr(lesson15, "compiled", missing)
    solution = lessons.answers("15_cuda")["counted"][0].cell
    lessons.execute(solution, scope := {})
    assert lesson15.counted(scope["line"], scope["text"]).passed
    assert "here is no compiler: from_cuda needs" in lesson15.counted(46, "init(&empty[s], 31);").message


@needs_nvrtc
@pytest.mark.parametrize("check, answers, words", [
    (lesson15.counted, (46, "init(&empty[s], blockDim.x / 2);"), None),
    (lesson15.counted, (99, "}"), "lines 1 to 70"),
    (lesson15.counted, (46, ""), "NotABarrier"),
    (lesson15.counted, (66, "out[0] = 0;"), "DataRace"),
    (lesson15.counted, (67, "out[0] = 0; if (threadIdx.x == 0) arrive(&empty[stage]);"), "DataRace"),
    (lesson15.elected, (67, "__syncwarp(0xffffffff); if (threadIdx.x == 31) arrive(&empty[stage]);"), None),
    (lesson15.elected, (67, "if (threadIdx.x == 0) arrive(&full[stage]);"), "arrive on `empty`"),
    *((lesson15.elected, (67, text), "arrivals that do not come") for text in (
        "", "__syncwarp(); if (threadIdx.x == LANES) arrive(&empty[stage]);",
        "__syncwarp(); if (threadIdx.x == 0) arrive(&full[stage]);",
    )),
    (lesson15.elected, (67, "if (threadIdx.x == 31) arrive(&empty[stage]);"), "The lane that arrives does not"),
    *((lesson15.counted, (line, text), f"Line {line} was right") for line, text in (
        (67, ""), (67, "if (threadIdx.x == 32) arrive(&empty[stage]);"), (51, "if (threadIdx.x >= LANES) {"),
    )),
    (lesson15.announced, ("sizeof map",), "One row of a tile has 128 bytes"),
    (lesson15.announced, ("4 * ROWS * LANES",), None),
    (lesson15.announced, (1024,), None),
    (lesson15.announced, ("",), "no expression"),
    (lesson15.announced, ("sizeof tile[0] / 0",), "has no value: nothing sets it"),
])  # fmt: skip
def test_what_is_said_of_an_answer(check, answers, words):
    verdict = check(*answers)
    assert verdict.kind == ("right" if words is None else "wrong"), verdict
    assert (words or "") in verdict.message, verdict


@needs_nvrtc
def test_another_way_is_no_mistake():
    verdict = lesson15.counted(67, "__syncwarp(); if (threadIdx.x == 0) arrive(&empty[stage]);")
    assert verdict.passed and "with a count of 1" in verdict.message
