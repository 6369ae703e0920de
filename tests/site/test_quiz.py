"""Short questions in the page: it says to an answer what the notebook's check says, and does not show the
answer beside the question."""

import importlib
import io
import json
import random
import re
from contextlib import redirect_stdout
from html import unescape
from pathlib import Path

import lab
import pytest
import quiz

from numba_deform.course.lessons.copying import lessons_folder

LESSONS = {
    exercise: (path.stem, re.search(r"import (\w+) as check", path.read_text())[1])
    for path in sorted(lessons_folder().glob("[0-9]*.py"))
    for exercise in re.findall(r'^# %% exercise="(\w+)"$', path.read_text(), re.M) if exercise in quiz.QUESTIONS
}  # fmt: skip
TRIES = {"depth": 8}  # it runs a kernel for each; of the others this many random answers
MANY = 60


def answers(name, lesson):
    """Random answers {field: (as typed, the check's value)}, with every field's right one among them."""
    pick, question = random.Random(name), quiz.QUESTIONS[name]
    right, near = quiz.right_values(lesson, name, question)
    for _ in range(TRIES.get(name, MANY)):
        answer = {}
        for key, field in question.fields.items():
            values = field.values(near)
            typed = pick.choice([right[key], pick.choice(sorted(values))])
            value = values[typed]
            if typed == "*":
                value = pick.randrange(10**5, 10**6)
                value = (value,) * 3 if field.kind == "numbers" else value
                typed = ",".join(map(str, value)) if field.kind == "numbers" else str(value)
            answer[key] = typed, value
        if all(typed for typed, _ in answer.values()):  # where nothing is chosen the page asks for a choice
            yield answer
    yield {key: (right[key], field.values(near)[right[key]]) for key, field in question.fields.items()}


# Fills in the first form of the page and sends it; [kind, what is said]
ANSWER = """
const form = document.querySelector('.quiz form');
const places = [...form.querySelectorAll('fieldset, label > input[type=text]')];
places.forEach((place, i) => {
    const typed = arguments[0][i];
    if (place.tagName === 'INPUT') place.value = typed;
    else for (const box of place.querySelectorAll('input')) box.checked = typed.split(',').includes(box.value);
});
form.querySelector('button').click();
const verdict = form.querySelector('.quiz-verdict');
return [verdict.dataset.kind, verdict.textContent];
"""
TITLES = {"right": "Right. ", "wrong": "Not yet. "}


@pytest.fixture(scope="module")
def driver():
    pytest.importorskip("selenium", reason="no selenium: pip install -e '.[test]'")
    with lab.browser() as driver:
        yield driver


def show(driver, html):
    """A page of a question alone."""
    script = Path(quiz.__file__).with_suffix(".js").read_text()
    driver.get("about:blank")
    driver.execute_script(f"document.body.innerHTML = arguments[0]; {script}"
                          "document.querySelectorAll('.quiz').forEach(makeQuiz);", html)  # fmt: skip


def test_every_question_is_of_a_lesson():
    assert set(LESSONS) == set(quiz.QUESTIONS)


@pytest.mark.full
@pytest.mark.parametrize("name", quiz.QUESTIONS)
def test_the_page_says_what_the_check_says(driver, name):
    lesson, checks = LESSONS[name]
    check = getattr(importlib.import_module(f"numba_deform.course.lessons.{checks}"), name)
    show(driver, quiz.form(lesson, checks, name))
    assert driver.execute_script(ANSWER, [""] * 5)[0] == "hole"
    kinds = set()
    for answer in answers(name, lesson):
        kind, said = driver.execute_script(ANSWER, [typed for typed, _ in answer.values()])
        with redirect_stdout(io.StringIO()):
            verdict = quiz.QUESTIONS[name].call(check, {key: value for key, (_, value) in answer.items()})
        # a message may repeat a tuple as it was typed, without brackets
        texts = [re.sub("[()` ]", "", text) for text in (said, TITLES[verdict.kind] + verdict.message)]
        assert kind == verdict.kind and texts[0] == texts[1], answer
        kinds.add(kind)
    assert kinds == {"right", "wrong"} and kind == "right"


@pytest.mark.parametrize("name", sorted(set(quiz.QUESTIONS) - {"depth"}))
def test_no_answer_is_read_beside_its_question(name):
    """Neither what is said to an answer, nor which one is right; words to choose from stand there anyhow."""
    lesson, checks = LESSONS[name]
    html = unescape(quiz.form(lesson, checks, name))
    data = json.loads(re.search(r'data-quiz="(.*)"></div>', html)[1])
    check = getattr(importlib.import_module(f"numba_deform.course.lessons.{checks}"), name)
    with redirect_stdout(io.StringIO()):
        tables = quiz.verdicts(lesson, name, check)
    texts = [text for table in tables for _, text in table.values()]
    assert not any(text in html for text in texts)
    for table, field in zip(tables, data["fields"], strict=True):
        right = {typed for typed, (passed, _) in table.items() if passed}
        assert len(right) == 1 and not right & set(field["said"])
        assert all(len(said) == 2 for said in field["said"].values())


def test_a_check_that_computes_with_a_number_is_refused(monkeypatch):
    """The page can repeat a number that nobody thought of, not compute with it."""
    from numba_deform.course.lessons.exercise import Wrong, exercise

    @exercise("How many?")
    def blocks(answer):
        if answer != 2:
            raise Wrong(f"{answer} is {answer - 2} too many.")
        return "Two."

    with redirect_stdout(io.StringIO()), pytest.raises(ValueError, match="something of its own"):
        quiz.verdicts("07_how_fast", "blocks", blocks)
