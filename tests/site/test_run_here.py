"""Lessons that run in the page: the stand-ins, without a browser, and the page itself in one; and the buttons
that open lessons elsewhere."""

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from html import escape
from pathlib import Path

import lab
import pytest

pytest.importorskip("myst_nb", reason="no MyST-NB: pip install -e '.[site]'")
import jupytext  # noqa: E402
import run_here  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "notebooks" / "site"

# What is not built for WebAssembly cannot be imported, unless there is a stand-in for it.
NOT_BUILT = """
import importlib.machinery, sys
class NotBuilt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("numba", "llvmlite", "ml_dtypes", "gmpy2", "cuda", "_multiprocessing", "fcntl"):
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            compiled = spec and isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
            if compiled or top in ("ml_dtypes", "gmpy2", "cuda"):
                raise ModuleNotFoundError(name)
        return None
sys.meta_path[:] = [one for one in sys.meta_path if one.__module__ != "_numba_cuda_redirector"]
sys.meta_path.insert(0, NotBuilt)
import boot
boot.begin()
shell = boot.Shell(lambda kind, text: print(kind, text))
"""
CELL = """
import numpy as np
from numba import cuda
import numba_deform as nd

def double(data, out):
    tile = cuda.shared.array(32, nd.float32, alignment=128)
    full = nd.shared_address(cuda.shared.array(1, nd.uint64))
    i = cuda.threadIdx.x
    if i == 0:
        nd.mbarrier_init(full, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, 128)
        nd.cp_async_bulk_load(nd.shared_address(tile), nd.global_address(data), 128, full)
    cuda.syncthreads()
    nd.mbarrier_wait(full, 0)
    out[i] = 2 * tile[i]

out = np.zeros(32, np.float32)
nd.simulate(double, grid=1, block=32, args=(np.arange(32, dtype=np.float32), out))
out.sum()
"""
WRONG = CELL.replace("    nd.mbarrier_wait(full, 0)\n", "")


def python(code, **more):
    """What a Python prints that has run ``code`` beside the site's sources."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    places = os.pathsep.join(map(str, (ROOT, SITE, SITE / "in_browser")))
    return subprocess.run([sys.executable, "-c", code], env=env | {"PYTHONPATH": places} | more,
                          capture_output=True, text=True)  # fmt: skip


def test_kernels_are_judged_without_what_is_compiled():
    """By stand-ins in place of Numba's C extensions, LLVM and others; but with this machine's greenlet."""
    done = python(f"{NOT_BUILT}\nshell.run({CELL!r}, 1)\nprint(shell.run({WRONG!r}, 2))")
    assert done.returncode == 0, done.stderr
    right, _, fault = done.stdout.partition("error ")
    assert right.startswith("text np.float32(992.0)")
    assert "InFlightRead: reads tile[31]" in fault and "at     cell_2.py:16" in fault
    assert fault.endswith("False\n")


def test_what_is_not_there_says_so():
    """No number comes out of a stand-in."""
    done = python(f"{NOT_BUILT}\nimport gmpy2, llvmlite.binding, ml_dtypes\n"
                  "for wrong in (lambda: float(gmpy2.mpfr(1)), lambda: str(llvmlite.binding.get_triple()),"
                  "              lambda: ml_dtypes.finfo(ml_dtypes.bfloat16)):\n"
                  "    try: print('no error:', wrong())\n"
                  "    except (RuntimeError, ValueError) as error: print(error)")  # fmt: skip
    assert "no error" not in done.stdout and done.stdout.count("is not there in a browser") == 2, done


# Runs the page's cells one by one, or the first with another text; [how it ended, what it shows] of each
RUN = """
const [text, done] = arguments, live = document.querySelector("button.run-here").live;
(async () => {
    const ended = [];
    if (text) live.cells[0].text.value = text;
    for (const [number, cell] of live.cells.slice(0, text ? 1 : undefined).entries()) {
        live.run(number);
        while (!["well", "wrong"].includes(cell.out.dataset.state))
            await new Promise(next => setTimeout(next, 50));
        ended.push([cell.out.dataset.state, cell.out.textContent]);
    }
    done(ended);
})();
"""


@pytest.mark.full
@pytest.mark.parametrize("lesson", run_here.LESSONS)
def test_a_lesson_runs_in_the_page(lesson, tmp_path):
    """Every cell ends well, and a changed one is judged. The page has the lesson's cells alone."""
    pyodide = os.environ.get("NUMBA_DEFORM_PYODIDE")
    if not pyodide:
        pytest.skip(f"NUMBA_DEFORM_PYODIDE=FOLDER names no full Pyodide {run_here.VERSION}")
    (tmp_path / "pages").mkdir()
    (tmp_path / "in_browser").mkdir()
    os.symlink(pyodide, tmp_path / "in_browser" / "pyodide")
    shutil.copy(SITE / "in_browser" / "worker.js", tmp_path / "in_browser")
    run_here.pack(tmp_path / "in_browser" / "files.zip")
    notebook = jupytext.read(ROOT / "notebooks" / f"{lesson}.py")
    cell = '<div class="cell"><div class="cell_input"><div class="highlight"><pre>CODE</pre></div></div></div>'
    codes = [escape(one.source) for one in notebook.cells if one.cell_type == "code"]
    cells = "".join(cell.replace("CODE", code) for code in codes)
    script, button = (SITE / "run_here.js").read_text(), run_here.button(lesson)[0]
    button = re.sub('data-pyodide="[^"]*"', 'data-pyodide="../in_browser/pyodide/"', button)
    page = f"<!doctype html><meta charset=utf-8><script>{script}</script><article>{button}{cells}</article>"
    (tmp_path / "pages" / "lesson.html").write_text(page)
    with served(tmp_path) as address, lab.browser() as driver:
        driver.get(f"{address}/pages/lesson.html")
        driver.execute_script("document.querySelector('button.run-here').click()")
        started = "return document.body.dataset.python || live.say.textContent.includes('did not start')"
        started = started.replace("live", "document.querySelector('button.run-here').live")
        lab.until(lambda: driver.execute_script(started), "Python has started, or not")
        assert driver.execute_script("return document.body.dataset.python") == "ready"
        ended = driver.execute_async_script(RUN, "")
        assert ended and [each for each in ended if each[0] != "well"] == []
        ((_, shown),) = driver.execute_async_script(RUN, CELL)
        assert shown == "np.float32(992.0)"
        ((how, shown),) = driver.execute_async_script(RUN, WRONG)
        assert how == "wrong" and "InFlightRead: reads tile[31]" in shown and "at     cell_1.py:16" in shown


@contextlib.contextmanager
def served(folder):
    """The address of a folder that is served here."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


BUTTONS = "import lessons; print(lessons.buttons('02_barrier', ''))"


@pytest.mark.parametrize("url", ["o-w/n", "https://github.com/o-w/n/", "https://github.com/o-w/n.git"])
def test_a_repository_is_known_by_its_name_or_url(url):
    assert python("import repository; print(repository.NAME)", GITHUB_REPOSITORY=url).stdout == "o-w/n\n"


def test_buttons_lead_to_files_that_are_there():
    done = python(BUTTONS, GITHUB_REPOSITORY="https://github.com/owner/name", GITHUB_SHA="abc")
    links = re.findall(r'href="([^"]+)"', done.stdout)
    assert links == [
        "https://colab.research.google.com/github/owner/name/blob/gh-pages/notebooks/02_barrier.ipynb",
        "https://mybinder.org/v2/gh/owner/name/abc?urlpath=lab/tree/lessons/02_barrier.ipynb",
        "https://codespaces.new/owner/name?quickstart=1", "02_barrier.ipynb",
    ]  # fmt: skip
    # Binder installs and copies what its address opens; Codespaces does by a file of its own.
    assert (ROOT / ".binder" / "requirements.txt").read_text() == "-e .[notebooks]\n"
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    after = (ROOT / ".binder" / "postBuild").read_text(), container["postCreateCommand"]
    assert all("numba-deform lessons lessons" in command for command in after)
    assert os.access(ROOT / ".binder" / "postBuild", os.X_OK)


def test_a_place_that_is_none_is_refused(tmp_path):
    values = {"GITHUB_REPOSITORY": "https://example.org/name", "NUMBA_DEFORM_PYODIDE": str(tmp_path)}
    for name, value in values.items():
        done = python("import run_here", **{name: value})
        assert done.returncode and "ConfigError" in done.stderr and f"={value} " in done.stderr
