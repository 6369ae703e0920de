"""The right ones of the whole pipelines and of the programs of one instruction, on a real GPU: they leave there
what they leave on the CPU engine."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_runner():
    """bench/corpus.py as a module: it runs programs of the corpus on a GPU. It makes ``base`` importable."""
    spec = importlib.util.spec_from_file_location("corpus_runner", ROOT / "bench" / "corpus.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load_runner()

from base import load  # noqa: E402

RIGHT = {name: program for name, program in load("whole", "instructions").items() if not program.faults}


@pytest.mark.parametrize("name", RIGHT)
def test_right_is_right_on_the_gpu(hopper, name):
    program = RIGHT[name]
    for _ in range(5):
        args = program.args()
        runner.on_gpu(program, args)
        assert program.wrong(args) == 0
