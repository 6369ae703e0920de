"""Lesson 14: what its profiles count is what the banks' picture and paper say."""

import re

import lessons
import numpy as np
import pytest

from numba_deform.compiler.sass import ToolMissing
from numba_deform.course.lessons import lesson14
from numba_deform.course.lessons.pictures import wavefronts


def scope():
    names = {"__name__": "__main__"}
    cells = lessons.cells("14_profiling")
    lessons.execute(next(cell for cell in cells if "import numpy" in cell.source), names)
    source = next(cell.source for cell in cells if "def build_transpose" in cell.source)
    lessons.execute(lessons.Cell("14_profiling", 0, source[: source.index("data = np")]), names)
    return names


def test_conflicts_are_those_of_the_picture():
    data = np.random.default_rng(0).random((32, 64), np.float32)
    for columns in (32, 33, 36):
        turns = len(wavefronts([4 * columns * lane for lane in range(32)]))
        found = lesson14.profile(scope()["build_transpose"](columns), data).totals["bank_conflicts"]
        assert found == 2 * 32 * (turns - 1), columns


def test_without_a_compiler_it_says_so(monkeypatch, capsys):
    def missing(*args):
        raise ToolMissing("no such tool")

    monkeypatch.setattr(lesson14.pipelines, "profile", missing)
    assert lesson14.show(None, np.zeros((32, 32), np.float32)) is None
    assert "No machine code to profile here" in capsys.readouterr().out


@pytest.mark.parametrize("answer, words", [("33", "not a number"), (True, "not a number")])
def test_a_number_is_asked_for(answer, words):
    assert words in lesson14.padding(answer, None).message


@pytest.mark.parametrize("answer, words", [
    ("32", "32 turns, but the first is no conflict"), ("0", "How many turns does it take"),
    ("9 * 8 * 31", "32 columns, not 8"), ("2 * 9 * 32 * 31", "Only one line has conflicts"),
    ("4 * 31", "of one warp"), ("7", "Count the blocks"), ("96 * 96 / 32 * 31", None),
])  # fmt: skip
def test_what_is_said_of_a_count(answer, words):
    verdict = lesson14.conflicts(eval(answer), scope()["build_transpose"])
    assert verdict.kind == ("wrong" if words else "right") and (words or "") in verdict.message
    assert verdict.passed or "8928" not in verdict.message


def test_times_are_told(capsys):
    """With an interval, and what is busiest; the padded tile takes less."""
    names, data = scope(), np.arange(128 * 128, dtype=np.float32).reshape(128, 128)
    kernels = {"plain": names["build_transpose"](32), "padded": names["build_transpose"](33)}
    lesson14.show_times(kernels, data)
    lines = capsys.readouterr().out.splitlines()
    form = r"(\w+) +([\d.]+) us, ([\d.]+) to ([\d.]+); busiest: .+"
    rows = [re.fullmatch(form, line).groups() for line in lines]
    told = {name: tuple(map(float, times)) for name, *times in rows}
    assert list(told) == list(kernels) and told["padded"] <= told["plain"]
    assert all(least < time < most for time, least, most in told.values())
