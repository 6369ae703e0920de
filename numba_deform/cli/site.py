"""``numba-deform site``: the site, built from the repository by Sphinx, and opened."""

import importlib.util
import os
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path

from .commands import RIGHT, WRONG
from .keys import UsageError
from .output import say

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "notebooks" / "site"
READ = ROOT / "build" / "site" / "doctrees"  # what Sphinx has read
NEEDED = ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "sphinx_design", "jupytext", "matplotlib")
PLACES = {"repository": "GITHUB_REPOSITORY", "pyodide": "NUMBA_DEFORM_PYODIDE"}  # for SOURCES


def site(options):
    """Build it, warnings as errors; then open it, or check its links to other places."""
    if not (SOURCES / "conf.py").exists():
        raise UsageError(f"site is built from a checkout of the repository, and there is none around {ROOT}")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"site needs {', '.join(missing)}: pip install -e '{ROOT}[site]'")
    os.environ.update({PLACES[name]: options[name] for name in PLACES if name in options})
    say("building", "the lessons run, which takes minutes; after that, only what has changed does")
    target = Path(options.get("out", ROOT / "build" / "site" / "html")).resolve()
    links = _sphinx("linkcheck", target.parent / f"{target.name}-links") if options.get("links") else 0
    if _sphinx("html", target) or links:
        return WRONG
    say("pages", len(list(target.rglob("*.html"))))
    say("open it", address := (target / "index.html").as_uri())
    if options.get("open", True):
        webbrowser.open(address)
    return RIGHT


def _sphinx(builder, target):
    """The exit status of one of its builders. What it has read is kept for the next, unless it warned: a page
    that is not read again does not warn again."""
    words = [*"-W --keep-going -q -j auto".split(), "-b", builder, "-c", SOURCES, "-d", READ, ROOT, target]
    status = subprocess.run([sys.executable, "-m", "sphinx", *map(str, words)]).returncode
    if status:
        shutil.rmtree(READ, ignore_errors=True)
    return status
