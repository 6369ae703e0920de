"""Tests of the site use the browser of tests/browser, and what the site is made by."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "browser"))
sys.path.append(str(Path(__file__).parents[2] / "notebooks" / "site"))
