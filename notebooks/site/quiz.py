"""Short questions of the lessons, answered in the page. It says to an answer what the notebook's check says.

A question is one or more fields. For each of them the check is asked beforehand about many answers, with those
before it right, and its verdicts go into the page: by the answer's hash, and in letters that nobody reads by
accident. Whoever wants to find the answer in there can; the solution, one click away, is easier."""

import base64
import importlib
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from html import escape
from itertools import chain, combinations, product

from numba_deform.course.lessons import lesson1, lesson6
from numba_deform.course.lessons.copying import lessons_folder

OTHERS = (8_675_309, 7_654_321)  # two numbers that stand for all that nobody thought of


@dataclass(frozen=True)
class Field:
    """``kind`` says how it is answered: "number", "numbers" (three of them), "one" or "some" of the words in
    ``likely``. Numbers that stand there, or in a solution or a known mistake, have a verdict of their own."""

    kind: str
    likely: tuple = ()

    def values(self, near=()):
        """{the answer as it is typed: the value that the check gets}; "*" for any other number."""
        if self.kind == "one":
            return {word: word for word in self.likely}
        if self.kind == "some":
            sizes = range(len(self.likely) + 1)
            sets = chain.from_iterable(combinations(self.likely, size) for size in sizes)
            return {",".join(sorted(map(str, some))): some for some in sets}
        known = dict.fromkeys([*self.likely, *near])
        if self.kind == "number":
            return {"*": OTHERS[0]} | {str(n): n for n in known}
        return {"*": (OTHERS[0],) * len(self.likely[0])} | {",".join(map(str, n)): n for n in known}


@dataclass(frozen=True)
class Question:
    """``fields`` by name. ``call(check, values)`` asks a check; without it the values go to it by name."""

    fields: dict
    call: callable = lambda check, values: check(**values)


def alone(check, values):
    return check(next(iter(values.values())))


def letters(check, values):
    return check("".join(values["come"]))


NUMBER, SMALL = Field("number"), Field("number", tuple(range(65)))
STATE = Field("numbers", tuple(product(range(3), range(3), (512, 256, 0, -256, 768))))
WRONG = Field("one", ("arrivals", "bytes", "parity"))
PITCHES = (1, 8, 12, 33)
KIND = Field("one", ("full", "empty"))
OF_FILE = Field("number", tuple(range(1, 71)))  # lines of lesson 15's ring.cu
QUESTIONS = {
    "zero_fill": Question({"filled": NUMBER, "expect": NUMBER}),
    "corners": Question({"come": Field("some", tuple(lesson1.CORNERS))}, letters),
    "predict": Question({f"line {n}: phase, pending, tx-count": STATE for n in range(1, 6)},
                        lambda check, values: check(list(values.values()))),
    "diagnose": Question({"A": WRONG, "B": WRONG, "C": WRONG}),
    "standstill": Question({"producer": KIND, "consumers": KIND, "tiles": SMALL}),
    "race": Question({"lines": Field("some", tuple("ABCD")), "later": SMALL}),
    "tail": Question({"hangs": Field("some", (64, 96, 128, 200))}),
    "order": Question({"place": Field("one", lesson6.PLACES)}, alone),
    "notice": Question({"who": Field("some", ("numbers", *lesson6.TOOLS, "CPU engine"))}),
    "strides": Question({f"pitch {pitch}": SMALL for pitch in PITCHES},
                        lambda check, values: check(dict(zip(PITCHES, values.values(), strict=True)))),
    "blocks": Question({"blocks": SMALL}, alone),
    "came_from": Question({"line": OF_FILE, "called": OF_FILE}),
    "depth": Question({"stages": Field("one", tuple("12345678"))},
                      lambda check, values: check(int(values["stages"]))),
}  # fmt: skip


def hashed(text):
    """FNV-1a, 32 bits; quiz.js has it once more."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def covered(text, name):
    """A text that is not read by accident; quiz.js uncovers it."""
    state, out = hashed(name) | 1, bytearray()
    for byte in text.encode():
        state ^= state << 13 & 0xFFFFFFFF
        state ^= state >> 17
        state ^= state << 5 & 0xFFFFFFFF
        out.append(byte ^ state & 0xFF)
    return base64.b64encode(out).decode()


def right_values(lesson, name, question):
    """{field: the solution's value}, and all whole numbers that stand in answers of this exercise."""
    text = (lessons_folder() / "solutions" / f"{lesson}.py").read_text()
    cells = [cell for cell in text.split("\n# %% ") if cell.split(maxsplit=1)[0] == name]
    scopes = []
    for cell in cells:
        scope = {}
        exec(cell.partition("\n")[2], scope)  # the repository's own: assignments of numbers and words
        scopes.append({key: value for key, value in scope.items() if key != "__builtins__"})
    first = scopes[0]
    by_name = first if set(first) >= set(question.fields) else _parts(next(iter(first.values())))
    values = dict(zip(question.fields, (by_name.get(f, by_name.get(i)) for i, f in enumerate(question.fields)),
                      strict=True))  # fmt: skip
    numbers = {v for scope in scopes for v in scope.values() if isinstance(v, int)}
    return {field: _typed(question.fields[field], value) for field, value in values.items()}, sorted(numbers)


def _parts(value):
    """{0, 1, ..: value} of an answer that is one for all fields."""
    return dict(enumerate(value.values() if isinstance(value, dict) else value))


def _typed(field, value):
    """A solution's value as it is typed in the page."""
    if field.kind in ("some", "numbers"):
        parts = map(str, value)
        return ",".join(sorted(parts) if field.kind == "some" else parts)
    return str(value)


def verdicts(lesson, name, check):
    """[{answer: (whether it is right so far, what the check says)}], one for each field."""
    question = QUESTIONS[name]
    right, near = right_values(lesson, name, question)
    tables, before = [], {}
    later = {f: field.values(near)[right[f]] for f, field in question.fields.items()}
    for place, (key, field) in enumerate(question.fields.items()):
        values, table = field.values(near), {}
        after = dict(list(later.items())[place + 1 :])
        for typed, value in values.items():
            said = question.call(check, {**before, key: value, **after})
            table[typed] = said.passed, said.message
        if "*" in table:
            table["*"] = False, _general(table["*"][1], question, check, before, key, field, after)
        tables.append(table)
        before[key] = values[right[key]]
    return tables


def _general(message, question, check, before, key, field, after):
    """The message for any other number, with {given} in its place."""
    first, second = ((n,) * len(field.likely[0]) if field.kind == "numbers" else n for n in OTHERS)
    other = question.call(check, {**before, key: second, **after}).message
    message, other = message.replace(str(first), "{given}"), other.replace(str(second), "{given}")
    if message != other:
        raise ValueError(f"a check says something of its own about each number: {message} / {other}")
    return message


def form(lesson, checks, name):
    """HTML, in one line: the question's fields, and what the lesson's module ``checks`` says to answers.

    It is empty in a page without JavaScript."""
    check = getattr(importlib.import_module(f"numba_deform.course.lessons.{checks}"), name)
    with redirect_stdout(io.StringIO()):  # outside of notebooks verdicts print themselves
        tables = verdicts(lesson, name, check)
    texts = list(dict.fromkeys(text for table in tables for _, text in table.values()))
    data = {
        "name": name, "texts": [covered(text, name) for text in texts],
        "fields": [
            {"name": str(key), "kind": field.kind,
             "options": list(map(str, field.likely)) if field.kind in ("one", "some") else [],
             "said": {hashed(f"{name}|{place}|{typed}"): [int(right), texts.index(text)]
                      for typed, (right, text) in table.items()}}
            for place, ((key, field), table) in enumerate(
                zip(QUESTIONS[name].fields.items(), tables, strict=True))
        ],
    }  # fmt: skip
    return f'<div class="quiz" data-exercise="{name}" data-quiz="{escape(json.dumps(data))}"></div>'

