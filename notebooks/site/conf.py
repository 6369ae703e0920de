"""The site, made by Sphinx with MyST-NB from what stands in the repository: ``numba-deform site``.

Its source folder is the repository itself, so that links between its pages are the same there and here."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # the package of this checkout, and repository.py
# Lessons run in kernels of their own, which inherit these.
os.environ.update(
    PYTHONPATH=str(ROOT), NUMBA_DEFORM_STATIC="1", NUMBA_DEFORM_ENGINE="cpu", PYDEVD_DISABLE_FILE_VALIDATION="1"
)

import additions  # noqa: E402
import repository  # noqa: E402

additions.write_intrinsics()

project = html_title = "numba_deform"
root_doc = "README"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/*.md", "notebooks/README.md", "notebooks/[0-9]*.py",
    "notebooks/a_model.py", "notebooks/site/*.md", "notebooks/site/intrinsics/*.md", "notebooks/zh/*.md",
]  # fmt: skip
exclude_patterns = ["notebooks/site/cards.md", "notebooks/site/contents.md"]  # parts of the first page
extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design", "repository", "additions", "lessons",
    "chinese", "progress", "run_here",
]  # fmt: skip
add_module_names = False
autodoc_typehints = "none"  # docstrings say what type anything is
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"[uif](32|64)(x\d+)?"),  # types of registers
    ("py:.*", r"(?!numba_deform\.).*"),  # what a docstring mentions by its short name, or of other packages
]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
nb_custom_formats = {".py": ["lessons.read", {}]}
nb_execution_mode = "cache"
# Outputs are kept by a lesson's text, and here by what it runs, too.
OUTPUTS = ROOT / "build" / "site" / "cache"
RUN = [f"numba_deform/{room.name}" for room in (ROOT / "numba_deform").iterdir() if room.name != "cli"]
nb_execution_cache_path = str(OUTPUTS / repository.digest(*sorted(RUN), "ptx", "bench/results"))
if not find_spec("transformers"):  # the page is there then, without outputs
    nb_execution_excludepatterns = ["notebooks/a_model.py"]
nb_execution_show_tb = True  # of a cell that fails, and with it the build
nb_execution_timeout = 800  # seconds a cell; for what hangs
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"  # source, output

html_theme = "furo"
html_static_path = ["site.css", "frames.js", "barrier.js", "playground.js", "quiz.js", "ring.js", "run_here.js"]
html_css_files, html_js_files = html_static_path[:1], html_static_path[1:]
html_copy_source = html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}
highlight_language = "none"  # blocks that name no language are commands and reports
pygments_style, pygments_dark_style = "tango", "github-dark"
copybutton_exclude = ".linenos, .gp, .go"
linkcheck_timeout, linkcheck_retries = 30, 2
linkcheck_ignore = [r"(\.\./)*source/"]  # pages of repository.py
linkcheck_report_timeouts_as_broken = False
