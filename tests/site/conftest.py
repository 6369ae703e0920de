"""Tests of the site use the browser of tests/browser."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "browser"))
