"""What lessons are made of: pictures hold what they should, verdicts tell holes, engines are chosen."""

import sys

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from numba import cuda, int32, types, uint64

from numba_deform.compiler import kernel
from numba_deform.course import lessons
from numba_deform.course.lessons import display, pictures
from numba_deform.course.lessons.exercise import Wrong, exercise, find_hole, require
from numba_deform.course.lessons.results import results
from numba_deform.device.memory import st_global_b32
from numba_deform.engines.faults import OutOfRange
from numba_deform.measure import timeline


@kernel(types.void(types.uint64, types.int32), threads=32)
def write(out, first):
    tid = int32(cuda.threadIdx.x)
    st_global_b32(out + uint64(4 * (first + tid)), 7)


# --- running --------------------------------------------------------------------------------------
def test_run_changes_arrays_in_place():
    out = np.zeros(32, np.uint32)
    ran = lessons.run(write, 1, (out, 0), schedules=3)
    assert (out == 7).all() and ran.engine == "cpu" and ran.report.schedules == 3
    assert "3 schedules" in repr(ran)


def test_a_fault_is_content(capsys):
    out = np.zeros(32, np.uint32)
    shown = lessons.show_fault(lambda: lessons.run(write, 1, (out, 1), engine="cpu"))
    assert isinstance(shown.fault, OutOfRange)
    assert "OutOfRange" in capsys.readouterr().out  # printed where nothing shows values
    html = shown._repr_html_()
    assert "test_lessons.py:" in html and "/" not in html.split("at  ")[1].split(".py")[0]
    assert "No rule" in lessons.show_fault(lambda: None).text
    with pytest.raises(ZeroDivisionError):
        lessons.show_fault(lambda: 1 / 0)


def test_engine_is_named_by_the_environment(monkeypatch):
    assert lessons.engine() == "cpu"
    monkeypatch.setenv("NUMBA_DEFORM_ENGINE", "tpu")
    with pytest.raises(ValueError, match="'tpu' is not one of auto, cpu, gpu"):
        lessons.engine()
    with pytest.raises(ValueError, match="engine='x'"):
        lessons.run(write, 1, (np.zeros(32, np.uint32), 0), engine="x")


def test_slider_without_a_notebook_calls_once():
    calls = []
    lessons.slider(lambda x, y: calls.append((x, y)), start={"y": 5}, x=range(3), y=[4, 5])
    assert calls == [(0, 5)]


def test_slider_in_a_notebook_is_a_widget(monkeypatch):
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    shown = []
    monkeypatch.setattr("ipywidgets.widgets.interaction.display", shown.append)
    widget = lessons.slider(lambda x: x, x=range(3), start={"x": 2})
    assert widget.children[0].value == 2 and shown == [2]
    widget.children[0].value = 1
    assert shown == [2, 1], "what the function returns is shown, with every move anew"
    monkeypatch.setenv("NUMBA_DEFORM_STATIC", "1")
    banks = {x: pictures.banks([4 * x * lane for lane in range(4)], title=str(x)) for x in range(3)}
    shown = lessons.slider(lambda x: banks[x], x=range(3), start={"x": 2}, page={"x": [0, 2]})
    assert [picture.alt for picture in shown.pictures] == [banks[0].alt, banks[2].alt] and shown.first == 1
    assert banks[0]._repr_html_().startswith('<div class="frames-picture" role="img" aria-label="')
    text = shown._repr_html_()
    assert text.count("<svg") == 2 and f'aria-label="{banks[2].alt}"' in text
    with pytest.raises(ValueError, match="x=2 to begin with is none"):
        lessons.slider(lambda x: banks[x], x=range(3), start={"x": 2}, page={"x": [0, 1]})
    with pytest.raises(ValueError, match="65 frames of .*page="):
        lessons.slider(lambda x: banks[x], x=range(65))
    monkeypatch.delenv("NUMBA_DEFORM_STATIC")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert lessons.slider(lambda x: x, x=range(3)) == 0


def test_feature_map():
    made = lessons.feature_map(6, 10, 8)
    assert made.shape == (6, 10, 8) and made.dtype == np.float16 and made.flags.c_contiguous
    assert len(np.unique(made)) > 100


# --- exercises ------------------------------------------------------------------------------------
@exercise("Halve it.", faults={OutOfRange: "So the index is too large."})
def half(answer):
    if answer == "fault":
        lessons.run(write, 1, (np.zeros(32, np.uint32), 1))
    require(answer != 16, "16 is what was given")
    if answer != 8:
        raise Wrong(f"{answer} is not it")
    return 1 / (answer - 8) if answer is None else "half of 16"


def test_verdicts():
    assert half(8).passed and half(8).kind == "right" and half(8).message == "half of 16"
    assert half(...).kind == "hole" and "Halve it." in half(...).message
    assert (half(16).kind, half(16).message) == ("wrong", "16 is what was given")
    assert half(3).message == "3 is not it" and not half(3).passed


def test_a_fault_of_the_engine_is_a_wrong_answer():
    verdict = half("fault")
    assert verdict.kind == "wrong"
    for words in ("OutOfRange", "test_lessons.py:", "Rule:", "So the index is too large."):
        assert words in verdict.message


def test_an_exception_of_the_answer_is_told():
    @exercise("Write it.")
    def calls(answer):
        return answer()

    verdict = calls(lambda: {}["missing"])
    assert verdict.kind == "wrong" and "KeyError: 'missing'" in verdict.message


def test_verdicts_show_themselves(capsys):
    verdict = half(...)
    assert "Still open (half)" in capsys.readouterr().out
    assert 'data-kind="hole"' in verdict._repr_html_()
    assert "&lt;b&gt;" in display.card("wrong", "x", "<b>")
    assert "<code>a &lt; b</code>" in display.card("wrong", "x", "write `a < b` here")
    assert "<em>all</em> 2*3*4" in display.card("wrong", "x", "*all* 2*3*4")
    assert "`a`" in display.card("fault", "x", "`a`", pre=True)
    name = "a-variant-with-a-name-that-is-longer-than-the-line"
    assert name in display.plain("x", f"it is {name}, which stays whole", width=20)


def hole_in_body(a):
    parity = a
    parity = ...  # flips
    return parity


@cuda.jit(device=True)
def helper(a):
    return ...


@kernel(types.void(types.uint64), threads=32)
def calls_helper(out):
    helper(out)


def indexes(a):
    return a[..., 0], a[...]


def test_holes():
    assert "`x`" in find_hole(..., "x")
    assert find_hole((1, [2, ...])) and find_hole({"y": ...})
    assert "`parity = ...`" in find_hole(hole_in_body)
    assert "`return ...`" in find_hole(calls_helper)
    for whole in (indexes, write, 1, np.zeros(3), (1, 2), {}, "...", None):
        assert find_hole(whole) is None


# --- pictures -------------------------------------------------------------------------------------
def rectangles(picture, panel=0):
    return [p for p in picture.figure.axes[panel].patches if isinstance(p, Rectangle)]


def texts(picture):
    return [text.get_text() for text in picture.figure.axes[0].texts]


@pytest.mark.parametrize(
    "box",
    [(2, 3, 4, 2), (-2, 1, 4, 4), (8, -3, 4, 4), (-9, 0, 4, 4), (-1, -1, 12, 9), (0, 90, 2, 2)],
)
def test_outside_is_what_a_load_fills(box):
    x, y, w, h = box
    inside = np.zeros((h, w), bool)
    for i in range(h):
        for j in range(w):
            inside[i, j] = 0 <= y + i < 7 and 0 <= x + j < 10
    covered = np.zeros((h, w), int)
    for px, py, pw, ph in pictures.outside(box, 10, 7):
        covered[py - y : py - y + ph, px - x : px - x + pw] += 1
    assert (covered == ~inside).all()


def test_box_on_picture():
    image, boxes = np.random.rand(7, 10, 5), [(2, 3, 4, 2), (-2, 1, 4, 4)]
    loaded = [np.zeros((2, 4, 5)), np.zeros((4, 4, 5))]
    made = pictures.box_on_picture(image, boxes, names="AB", loaded=loaded)
    assert len(made.figure.axes) == 3 and texts(made) == ["A", "B"]
    outlines = [p for p in rectangles(made) if not p.get_fill()]
    assert {p.get_bbox().bounds for p in outlines} == {(2, 3, 4, 2), (-2, 1, 4, 4)}
    (fill,) = (p for p in rectangles(made) if p.get_fill())
    assert fill.get_hatch() and fill.get_bbox().bounds == (-2, 1, 2, 4)
    (inside,) = rectangles(made, 2)
    assert inside.get_bbox().bounds == (0, 0, 2, 4) and not rectangles(made, 1)
    assert made.figure.axes[0].get_xlim()[0] <= -2, "the whole box is in the picture"
    assert "8 of 16 pixels outside" in made.alt
    assert 'alt="a feature map of 10x7' in made._repr_html_() and made.png()[:4] == b"\x89PNG"


def test_feature_maps():
    made = pictures.feature_maps([np.zeros((4, 6, 32)), np.zeros((6, 4))], ["one", "two"])
    assert [axes.get_title() for axes in made.figure.axes] == ["one", "two"]
    assert made.alt == "one, 6x4 pixels; two, 4x6 pixels"
    assert [axes.images[0].get_array().shape for axes in made.figure.axes] == [(4, 6, 3), (6, 4)]


def test_numbers():
    array = np.arange(6).reshape(2, 3)
    made = pictures.numbers(array, "six", marked=array % 2 == 1)
    assert texts(made) == list("012345")
    assert sum(bool(p.get_hatch()) for p in rectangles(made)) == 3
    with pytest.raises(ValueError, match="too large"):
        pictures.numbers(np.zeros((40, 2)))


def test_numbers_with_names_of_rows():
    axes = pictures.numbers(np.array([["no", "yes"]]), rows=["in truth"], columns="phase").figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["in truth"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("phase", "")
    axes = pictures.numbers(np.zeros((3, 1)), rows="stage").figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list("012")
    assert axes.get_ylabel() == "stage"


def test_barrier_states():
    steps = [
        ("init", 0, 2, 2, 0),
        ("expect", 0, 1, 2, 64),
        ("land", 0, 1, 2, 0),
        ("arrive", 1, 2, 2, 0),
    ]
    made = pictures.barrier_states(steps)
    assert texts(made)[::4] == ["init", "expect", "land", "arrive"]
    assert {"pending 1 of 2", "+64 B", "1 (1)"} <= set(texts(made))
    assert [bool(p.get_hatch()) for p in rectangles(made)] == [False, False, False, True]
    dots = [d for d in made.figure.axes[0].lines if d.get_marker() == "o"]
    assert len(dots) == 8
    assert "after expect: phase 0, pending 1 of 2, tx-count 64" in made.alt


def test_barrier_state_by_state():
    """What is not there yet has its place already, and six states are two lines of three."""
    steps = [(f"a name-with-hyphens {i}", i // 3, 1, 1, 0) for i in range(6)]
    sizes = set()
    for shown in range(1, 7):
        made = pictures.barrier_states(steps, shown=shown)
        sizes.add(tuple(made.figure.get_size_inches()))
        assert made.alt.count("after") == shown
        assert [len(rectangles(made, panel)) for panel in (0, 1)] == [min(shown, 3), max(0, shown - 3)]
    assert len(sizes) == 1
    frames = [p.get_linewidth() for p in rectangles(made, 1)]
    assert frames[0] > frames[1], "the first state of the second line has a phase that has just begun"
    assert "hyphens 0" in texts(made)[0].replace("\n", " ") and "name-with-hyphens" in texts(made)[0]


def test_a_ring_moment_by_moment():
    """Two tiles in two stages: asked for, read, free; in the second lap with the other parity."""

    def span(activity, stage, parity, use, start, end):
        return timeline.Span(activity, 0, stage, parity, use, start, end)

    flights = [span("flight", 0, 0, 0, 5, 100), span("flight", 1, 0, 1, 10, 130),
               span("flight", 0, 1, 2, 120, 220)]  # fmt: skip
    spans = [span("compute", 0, 0, 0, 100, 120), span("compute", 1, 0, 1, 130, 150),
             span("compute", 0, 1, 2, 220, 240)]  # fmt: skip
    recorded = timeline.Timeline("a ring", "e", 1, spans, flights, 0)
    assert pictures.ring_moments(recorded) == [0, 5, 10, 100, 120, 130, 150, 220, 240]
    said = [pictures.ring(recorded, step).alt.partition(": ")[2] for step in (0, 2, 3, 4, 5, 7, 8, 99)]
    free = "stage 0, free; stage 1, free"
    assert said == [
        free,
        "stage 0, asked for, tile 0, parity 0; stage 1, asked for, tile 1, parity 0",
        "stage 0, being read, tile 0, parity 0; stage 1, asked for, tile 1, parity 0",
        "stage 0, asked for, tile 2, parity 1; stage 1, asked for, tile 1, parity 0",
        "stage 0, asked for, tile 2, parity 1; stage 1, being read, tile 1, parity 0",
        "stage 0, being read, tile 2, parity 1; stage 1, free",
        free,
        free,
    ]


def test_a_schedule_step_by_step():
    steps = [("warp 0", "A"), ("warp 1", "D"), ("warp 0", "B")]
    for shown in range(4):
        made = pictures.schedule(steps, shown)
        assert texts(made) == ["A", "D", "B"][:shown]
        weights = [text.get_weight() for text in made.figure.axes[0].texts]
        assert weights == ["normal"] * (shown - 1) + ["bold"] * (shown > 0)
    assert [p.get_x() < 1 for p in rectangles(made)] == [True, False, True]
    assert made.alt == "1: warp 0: A; 2: warp 1: D; 3: warp 0: B"


def test_wavefronts():
    """Stride 1: one; stride 2: two; all lanes the same word: one; 16 bytes a lane: four."""
    assert len(pictures.wavefronts([4 * lane for lane in range(32)])) == 1
    assert len(pictures.wavefronts([8 * lane for lane in range(32)])) == 2
    assert len(pictures.wavefronts([128 * lane for lane in range(32)])) == 32
    assert pictures.wavefronts([64] * 32) == [{16: (16, list(range(32)))}]
    assert len(pictures.wavefronts([16 * lane for lane in range(32)], 16)) == 4
    assert pictures.wavefronts([None] * 32) == []
    for addresses, width in (([0], 3), ([2], 4), ([0] * 33, 4)):
        with pytest.raises(ValueError):
            pictures.wavefronts(addresses, width)


def test_banks():
    made = pictures.banks([8 * lane for lane in range(32)], title="stride 2")
    assert "2 wavefronts; 1 would do" in made.alt
    assert sum(bool(p.get_hatch()) for p in rectangles(made)) == 16, "the second one is hatched"
    assert sorted(int(t) for t in texts(made) if t) == list(range(32))


def test_grid():
    made = pictures.grid([[True, False], [False, False]], ["one", "two"], ["a", "b"])
    assert [bool(p.get_hatch()) for p in rectangles(made)] == [True, False, False, False]
    assert texts(made) == ["yes", "-", "-", "-"] and made.alt == "one: a; two: none"


def test_recorded_results_are_found_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len(results("bugs")["rows"]) == 30
    with pytest.raises(FileNotFoundError, match="nothing.json is not found"):
        results("nothing")


def test_times():
    made = pictures.times({"mine": 2.0}, {"the least": 1.0}, title="so long")
    assert [bool(bar.get_hatch()) for bar in rectangles(made)] == [True, False]
    assert made.alt == "so long in ms: the least 1.00, mine 2.00"
