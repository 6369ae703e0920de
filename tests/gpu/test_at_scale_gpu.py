"""Right programs at sizes that fill a real GPU several times and wrap every ring. bench/at_scale.py runs the
same table for longer; here, too, each program has a process of its own."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import at_scale  # noqa: E402
import scaled  # noqa: E402

LAUNCHES, SECONDS = 50, 10


@pytest.mark.parametrize("name", scaled.table())
def test_at_scale(hopper, name):
    row = at_scale.ask(name, LAUNCHES, lambda: SECONDS)
    assert not at_scale.is_wrong(row), row
