"""How the lessons read: sentences that one breath is enough for, and no answer before its exercise."""

import ast
import re
from collections import Counter

import lessons
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

PAGES = (*lessons.NOTEBOOKS, "a_model")
LONGEST = 35  # words of a sentence
LINK = re.compile(r"\]\([^)]*\)")
# What is no prose: tables, headings, code and what else stands apart.
APART = re.compile(r"^```.*?^```|^    .*?$|^\|.*?$|^#.*?$", re.M | re.S)
ITEM = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)")
# A sentence ends where the next one begins with something else than a small letter.
END = re.compile(r"(?<=[.?!:])[*)\"_]*\s+(?=[^a-z])")


def sentences(text):
    """The sentences of a markdown text, each in one line."""
    for item in ITEM.split(APART.sub("\n\n", LINK.sub("]", text))):
        yield from (" ".join(sentence.split()) for sentence in END.split(item))


def words(sentence):
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def test_sentences_are_found():
    text = "# Not this\n\nOne. Two, e.g. this:\n\n- `a = b` is\n  *three.* Four ([five](six_seven.py))\n- eight"
    assert [*filter(None, sentences(text))] == [
        "One.", "Two, e.g. this:", "- `a = b` is *three.", "Four ([five])", "- eight",
    ]  # fmt: skip
    assert words("- Four ([five]) + 1") == 3


@pytest.mark.parametrize("name", PAGES)
def test_no_sentence_is_long(name):
    texts = [cell.source for cell in lessons.notebook(name).cells if cell.cell_type == "markdown"]
    assert [s for text in texts for s in sentences(text) if words(s) > LONGEST] == []


# --- answers --------------------------------------------------------------------------------------
def expressions(tree):
    """How often each expression and assignment of a tree stands there, as text in one spelling."""
    kinds = ast.expr, ast.Assign, ast.AugAssign
    return Counter(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, kinds))


def in_code(text):
    """The expressions of a text of markdown: of what stands between backquotes, and is Python."""
    found = Counter()
    for code in re.findall(r"`([^`]+)`", text):
        try:
            found += expressions(ast.parse(" ".join(code.split())))
        except SyntaxError:
            pass
    return found


def parts(tree):
    """What a cell says, statement by statement: conditions, values, and what goes where in an array."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.While)):
            yield node.test
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) and node.value is not None:
            yield from node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]


def tells(node):
    """Whether to read this anywhere is to know the answer. A name, one of several words to choose from, a small
    number, a plain call, or a comparison with a constant is read in many places."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and abs(node.value) >= 100
    if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
        return False
    return any(isinstance(n, (ast.BinOp, ast.Compare, ast.IfExp, ast.Dict)) for n in ast.walk(node))


def test_what_tells():
    for told, texts in (False, ("x", "'x'", "12", "f(x)", "x == 0")), (True, ("768", "x < y", "i % n")):
        assert {tells(ast.parse(text, mode="eval").body) for text in texts} == {told}
    assert in_code("of `a * b`, *or* `c[0] +`") == Counter(["a * b", "a", "b"])


def answer_of(cell, solution):
    """The parts of a solution that the exercise's cell has not, and that tell something."""
    given = {ast.unparse(part) for part in parts(ast.parse(cell.source))}
    return {
        ast.unparse(part)
        for part in parts(ast.parse(solution.source))
        if tells(part) and ast.unparse(part) not in given
    }


def told_before(cells, answers):
    """[(exercise, what of its answer stands above it)]"""
    seen, found = Counter(), []
    for cell in cells:
        if exercise := cell.metadata.get("exercise"):
            answer = answer_of(cell, answers[exercise][0].cell)
            found += [(exercise, part) for part in sorted(answer) if seen[part]]
        seen += expressions(ast.parse(cell.source)) if cell.cell_type == "code" else in_code(cell.source)
    return found


@pytest.mark.parametrize("name", lessons.NOTEBOOKS)
def test_no_answer_before_its_exercise(name):
    cells, answers = lessons.notebook(name).cells, lessons.answers(name)
    assert told_before(cells, answers) == []
    for exercise, (right, _) in answers.items():  # and it would be found, in code and in prose
        (cell,) = (cell for cell in cells if cell.metadata.get("exercise") == exercise)
        if answer := answer_of(cell, right.cell):
            prose = new_markdown_cell(" ".join(f"so `{part}`." for part in answer))
            for teller in new_code_cell(right.cell.source), prose:
                assert told_before([teller, cell], answers) == [(exercise, part) for part in sorted(answer)]
