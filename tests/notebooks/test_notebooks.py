"""Every notebook runs as it stands; every exercise tells a hole, typical mistakes and the solution apart."""

import re

import lessons
import nbclient
import pytest
from jupyter_client.session import Session
from matplotlib.text import Text
from nbclient.output_widget import OutputWidget

from numba_deform.compiler import Kernel
from numba_deform.course.lessons import display, pictures
from numba_deform.device.limits import HOPPER
from numba_deform.engines.launches import oldest_gpu

each_notebook = pytest.mark.parametrize("name", lessons.NOTEBOOKS)


@pytest.mark.full
@each_notebook
def test_runs_top_to_bottom(name, monkeypatch):
    """In a real Jupyter kernel; each check shows that its hole is still there."""
    sent, send = [], Session.send

    def noting(self, stream, message, *parts, **named):
        sent.append(message if isinstance(message, str) else message["msg_type"])
        return send(self, stream, message, *parts, **named)

    monkeypatch.setattr(Session, "send", noting)
    notebook = lessons.notebook(name)
    place = {"metadata": {"path": str(lessons.FOLDER)}}
    client = nbclient.NotebookClient(notebook, timeout=800, kernel_name="python3", resources=place)
    client.widget_registry = {"@jupyter-widgets/output": {"OutputModel": QuietOutput}}
    client.execute()
    assert "execute_request" in sent
    assert not any(kind.startswith("comm") for kind in sent), QuietOutput.__doc__
    shown = [html for cell in notebook.cells for html in _html(cell)]
    exercises = [cell for cell in lessons.cells(name) if cell.exercise]
    assert sum('data-kind="hole"' in html for html in shown) == len(exercises)
    assert not any('data-kind="wrong"' in html for html in shown)
    moves = any("lessons.slider(" in cell.source for cell in notebook.cells)  # which nobody shows here
    assert moves or any("<img alt=" in html for html in shown), "a lesson has pictures"


class QuietOutput(OutputWidget):
    """What a slider shows, which the kernel is not told. nbclient would tell it, on the socket on which it
    awaits the reply to the cell: to send there may use up the signal that a reply has come, which then is never
    read."""

    def send(self, *parts, **named):
        pass


def _html(cell):
    outputs = cell.get("outputs", ())
    return [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]


@each_notebook
def test_no_cell_twice(name):
    """Long ones: a short one may do the same again to other things."""
    sources = [cell.source for cell in lessons.cells(name) if cell.source.count("\n") > 3]
    assert len(sources) == len(set(sources))


LONG = ("04_stages", "05_roles", "07_how_fast", "08_half_a_variant", "09_your_variant", "10_adding",
        "11_tensor_cores", "12_clusters", "13_flash_attention",
        "14_profiling", "15_cuda", "16_blackwell")  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in LONG else ()) for name in lessons.NOTEBOOKS]
)
def test_solved(name, monkeypatch, capsys):
    """From top to bottom with its solutions, each of which its check takes; its pictures can be read, and
    what it prints fits into a cell."""
    drawn, init = [], pictures.Picture.__init__
    monkeypatch.setattr(display, "shows_values", lambda: True)  # as in a notebook: a verdict is not printed

    def noting(self, *parts):
        init(self, *parts)
        drawn.append(self)

    monkeypatch.setattr(pictures.Picture, "__init__", noting)
    verdicts = [verdict for _, _, verdict in lessons.play(name, variations=False)]
    assert verdicts and all(verdict.passed for verdict in verdicts), verdicts
    wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > CHARACTERS]
    assert not wide, f"JupyterLab breaks these lines within words: {wide}"
    assert drawn
    for picture in drawn:
        _check_picture(picture)


CHARACTERS = 104  # at most, in a line of output, of JupyterLab in a window of 1280 pixels
SEEN = 7.6  # inches at most, of an output of JupyterLab in a window of 1280 pixels; it shrinks what is wider


def _check_picture(picture):
    """No text is smaller on the screen than 6 points, and no two panels have one title."""
    shrunk = min(1, SEEN / picture.figure.get_figwidth())
    texts = [text for text in picture.figure.findobj(Text) if text.get_visible() and text.get_text()]
    small = [text.get_text() for text in texts if text.get_fontsize() * shrunk < 5.99]
    assert not small, f"{picture}: too small: {small}"
    titles = [axes.get_title() for axes in picture.figure.axes if axes.get_title()]
    assert len(titles) == len(set(titles)), f"{picture}: panels of one title, {titles}"


@pytest.mark.full
@each_notebook
def test_exercises(name):
    """Hole, typical mistakes and solution: three kinds of verdict, and no message twice."""
    messages, scope = {}, {}
    for exercise, answer, verdict in lessons.play(name, scope=scope):
        kind = "hole" if answer is None else "wrong" if answer.words else "right"
        assert verdict.kind == kind, (exercise, verdict)
        assert len(verdict.message.split()) >= 8, f"{exercise}: a sentence, not {verdict.message!r}"
        if kind == "wrong":
            assert answer.words in verdict.message, (exercise, verdict)
        messages.setdefault(exercise, []).append(verdict.message)
    for exercise, said in messages.items():
        assert len(said) >= 3, f"{exercise}: a hole, a typical mistake, a solution"
        assert len(set(said)) == len(said), f"{exercise} says the same to different answers"
    own = {value for value in scope.values() if isinstance(value, Kernel) and _is_of_a_cell(value)}
    for kernel in own:  # as ``lessons.run`` launches them on a GPU; here, whether they compile
        architecture = "sm_{}{}a".format(*max(oldest_gpu(kernel), HOPPER))
        assert kernel.with_bounded_waits().compile(architecture).cubin


def _is_of_a_cell(kernel):
    return kernel.py_func.__code__.co_filename.startswith("<")


@each_notebook
def test_solutions_are_of_this_notebook(name):
    exercises = [cell.exercise for cell in lessons.cells(name) if cell.exercise]
    assert len(exercises) >= 3 and len(set(exercises)) == len(exercises)
    assert sorted(exercises) == sorted(lessons.answers(name))


CAST = re.compile(r"(?<![\w.])(?:nd\.)?(?:u?int(?:8|16|32|64)|[iu](?:32|64))\(([^)]*)")


SAID_WHY = {
    "09_your_variant": {"nd.int32(cuda.blockIdx.x", "nd.int32(item + cuda.gridDim.x"},  # a loop in 32 bits
    "10_adding": {"nd.int32(math.floor(data[cuda.blockIdx.x, i] * scale + nd.float32(0.5"},  # a float's integer
}


@each_notebook
def test_kernels_have_no_casts(name):
    """Types are written at parameters, and where a sum of words begins: ``uint32(0)``."""
    cells = [*lessons.cells(name), *(right.cell for right, _ in lessons.answers(name).values())]
    found = {cast[0] for cell in cells for cast in CAST.finditer(cell.source) if cast[1] != "0"}
    assert found == SAID_WHY.get(name, set())


def test_casts_are_found():
    text = "a = uint64(4 * i); b = nd.i32(x), np.uint32(5), print(uint32(0))"
    assert [found[1] for found in CAST.finditer(text)] == ["4 * i", "x", "0"]


@each_notebook
def test_its_number_and_its_minutes(name):
    """A lesson has one number, in its file's name, its title, the README's table and links to it. It has one
    time, which is not far from what the README says it is: 150 words or 12 lines of code a minute, where a line
    that stood there before is not read again, and 5 minutes for an exercise."""
    text = (lessons.FOLDER / f"{name}.py").read_text()
    number, page = int(name[:2]), (lessons.FOLDER / "README.md").read_text()
    assert re.search(rf"^# # {number} · ", text, re.M)
    minutes = int(re.search(r"^# \*About (\d+) minutes\. ", text, re.M)[1])
    assert re.search(rf"^\| {number} \| \[`{name}`\].* \| {minutes} \|$", page, re.M)
    estimated = lessons.size(name).minutes / minutes
    assert 0.8 < estimated < 1.2 or number in (9, 11, 13) and estimated < 1  # a reader took longer
    told = {int(n) for n in re.findall(r"\[[Ll]esson\s+(\d+)\]\(\d\d_\w+\.py\)", text)}
    assert told == {int(n) for n in re.findall(r"\[[Ll]esson\s+\d+\]\((\d+)_\w+\.py\)", text)}


def test_there_is_a_file_of_solutions_for_each_notebook():
    assert lessons.NOTEBOOKS
    found = {path.stem for path in (lessons.FOLDER / "solutions").glob("*.py")}
    assert found == set(lessons.NOTEBOOKS)
