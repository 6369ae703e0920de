"""A Sphinx extension: lessons whose cells run in the page, in the reader's browser, with nothing installed.

Beside the pages lie ``in_browser/files.zip``, with this package and the Python of those that it imports, and
what is in the folder in_browser. Pyodide, Python for browsers, with NumPy and matplotlib is 30 MB more:
from the folder NUMBA_DEFORM_PYODIDE (``numba-deform site pyodide=``), which becomes a part of the site, or else
from its own public address, and the page says so."""

import os
import re
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

from repository import ROOT
from sphinx.errors import ConfigError

HERE = Path(__file__).parent / "in_browser"
VERSION = "0.27.7"  # of Pyodide
ELSEWHERE = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
FOLDER = os.environ.get("NUMBA_DEFORM_PYODIDE", "")
if FOLDER and not Path(FOLDER, "pyodide.mjs").exists():
    raise ConfigError(f"pyodide={FOLDER} has no pyodide.mjs: the folder of a full Pyodide {VERSION} is meant")
LESSONS = ("01_boxes", "02_barrier", "04_stages")  # tried from top to bottom
RESULTS = re.findall(r'"/(bench/results/\S+)"', (ROOT / "pyproject.toml").read_text())  # what lessons quote
PACKAGES = (
    "array_api_compat", "cloudpickle", "itanium_demangler", "llvmlite", "markdown_it", "mdurl", "numba",
    "pebble", "platformdirs", "pygments", "rich",
)  # fmt: skip
LEFT_OUT = {"__pycache__", "tests"}  # folders of packages
KINDS = {".json", ".jpg", ".ptx", ".py", ".pyi"}


def button(name):
    """A list of HTML: the button that makes the cells of lesson ``name`` run in the page, or nothing."""
    if name not in LESSONS:
        return []
    place = "../in_browser/pyodide/" if FOLDER else ELSEWHERE
    return [f'<button type="button" class="run-here" data-pyodide="{place}">Run in this page</button>']


def write(app, error):
    """Sphinx's event build-finished: what such a page loads."""
    if error or app.builder.name != "html":
        return
    target = Path(app.outdir) / "in_browser"
    target.mkdir(exist_ok=True)
    shutil.copy(HERE / "worker.js", target)
    if FOLDER:
        shutil.copytree(FOLDER, target / "pyodide", dirs_exist_ok=True)
    pack(target / "files.zip")


def pack(path):
    """Write the zip, without whatever is compiled; the same files are the same zip."""
    with zipfile.ZipFile(path, "w") as files:
        for file in sorted(HERE.glob("*.py")):
            add(files, file, HERE)
        for file in RESULTS:
            add(files, ROOT / file, ROOT)
        for folder in (ROOT / "numba_deform", ROOT / "ptx", *map(installed, PACKAGES)):
            root = ROOT if ROOT in folder.parents else folder.parent
            for file in sorted(folder.rglob("*.*")):
                if file.suffix in KINDS and not LEFT_OUT & set(file.relative_to(root).parts):
                    add(files, file, root)


def add(files, file, root):
    entry = zipfile.ZipInfo(file.relative_to(root).as_posix())
    files.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def installed(package):
    """The folder of an installed package."""
    return Path(find_spec(package).origin).parent


def setup(app):
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
