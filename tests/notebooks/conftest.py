"""All tests of lessons run on the CPU engine; tests/gpu runs the notebooks on the GPU."""

import lessons
import pytest

from numba_deform.kernels import registry as variants


@pytest.fixture(autouse=True)
def on_the_cpu_engine(monkeypatch):
    monkeypatch.setenv("NUMBA_DEFORM_ENGINE", "cpu")


@pytest.fixture(autouse=True)
def without_the_variants_of_a_lesson():
    """What a notebook registers in this process is not there for other tests."""
    yield
    for name in [name for name in variants.VARIANTS if variants.is_registered(name)]:
        variants.Registration(variants.VARIANTS[name]).remove()


@pytest.fixture(scope="module")
def cells(request):
    """{words in a code cell: the cell} by a function, and the right answers of the exercises."""
    lesson = request.module.NAME
    solutions = {name: right.cell for name, (right, _) in lessons.answers(lesson).items()}
    return lambda words: next(cell for cell in lessons.cells(lesson) if words in cell.source), solutions
