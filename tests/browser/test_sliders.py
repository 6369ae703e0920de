"""Every slider of every lesson, moved in a real browser: the picture below it changes, its value is whole. And
reports are broken between words."""

import ast

import lab
import pytest

from numba_deform.course.lessons.copying import copy_lessons, lessons_folder

WORDS = "lessons.slider("
NAMES = [path.stem for path in sorted(lessons_folder().glob("[0-9]*.py")) if WORDS in path.read_text()]


def sliders_of(name):
    """For each call of lessons.slider in a lesson, how many sliders it makes."""
    calls = [node for node in ast.walk(ast.parse((lessons_folder() / f"{name}.py").read_text()))
             if isinstance(node, ast.Call) and ast.unparse(node.func) == "lessons.slider"]  # fmt: skip
    calls.sort(key=lambda call: call.lineno)
    return [sum(word.arg not in ("start", "page") for word in call.keywords) for call in calls]


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """(driver, address) of a browser and of a JupyterLab with copies of the lessons."""
    for module in ("jupyterlab", "jupytext", "selenium"):
        pytest.importorskip(module, reason=f"no {module}: pip install -e '.[test]'")
    lab.program(*lab.BROWSERS), lab.program(*lab.DRIVERS)
    folder = tmp_path_factory.mktemp("lessons")
    copy_lessons(folder)
    with lab.server(folder, tmp_path_factory.mktemp("home")) as address, lab.browser() as driver:
        yield driver, address


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_slider_draws(jupyter, name):
    from selenium.webdriver.common.keys import Keys

    lesson = lab.Lesson(*jupyter, name)
    cells, expected = lesson.cells_with(WORDS), sliders_of(name)
    assert len(cells) == len(expected)
    for cell, count in zip(cells, expected, strict=True):
        assert len(lesson.handles(cell)) == count
        for number in range(count):
            before = lesson.shown(cell)
            handle = lesson.handles(cell)[number]
            at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
            handle.send_keys(Keys.ARROW_LEFT if at_end else Keys.ARROW_RIGHT)
            lesson.shown(cell, before, f"of {name} changes its picture with slider {number}")
            assert not lesson.spoilt(cell)
    for cell in lesson.cells_with("show_fault("):
        assert not lesson.spoilt(cell)


def test_lessons_have_sliders():
    """Even where no browser is installed: the tests above look at something."""
    assert len(NAMES) >= 5 and all(sum(sliders_of(name)) for name in NAMES)
