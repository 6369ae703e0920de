"""Right programs at sizes that fill a real GPU several times and wrap every ring. bench/at_scale.py runs the
same table for longer; here, too, they have processes of their own."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import at_scale  # noqa: E402
import scaled  # noqa: E402

LAUNCHES, SECONDS = 50, 5


@pytest.mark.parametrize("chunk", scaled.table())
def test_at_scale(hopper, chunk):
    rows = list(at_scale.ask(chunk, LAUNCHES, lambda: SECONDS))
    assert rows and not [row for row in rows if at_scale.is_wrong(row)]
