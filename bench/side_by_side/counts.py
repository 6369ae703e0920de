"""How long each program is, and how many names of its library one has to know.

    python bench/side_by_side/counts.py

A line counts if code stands in it: no blank lines, comments and docstrings. A name is a function, a type or a
constant of the library (``nd.Ring``, ``gl.arange``), or an attribute or a method of what the library made
(``ring.wait``, ``tiles.index``); each counts once. What belongs to arrays in general and to Python does not,
and neither do names that the program has chosen itself. Keywords of calls count apart.
"""

import ast
import io
import tokenize

from mistakes import MISTAKES, text_of

NOTHING = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
PLAIN = {"numpy", "torch"}  # array libraries, which all programs use for their data
OF_ARRAYS = {"shape", "dtype", "cuda", "cpu", "numpy", "from_numpy", "full_like", "asarray"}
CHOSEN = {"tiles", "ring", "barriers"}  # parts of shared memory, as the programs call them


def lines(text):
    """How many lines hold code."""
    held = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOTHING:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            held -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(held)


def names(text):
    """The names of the library that the program uses, and the keywords of its calls."""
    tree, of_library, plain = ast.parse(text), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = getattr(node, "module", None)
            for alias in node.names:
                home = (source or alias.name).split(".")[0]
                (plain if home in PLAIN else of_library).add(alias.asname or alias.name.split(".")[0])
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found, keywords = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            keywords.add(node.arg)
        elif isinstance(node, ast.Name) and node.id in of_library and id(node) not in inner:
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            root, chain = _chain(node)
            if root in of_library and id(node) not in inner:
                found.add(".".join([root, *chain]))
            elif root not in of_library | plain and node.attr not in OF_ARRAYS | CHOSEN:
                found.add("." + node.attr)
    return found, keywords - CHOSEN - {None}


def _chain(node):
    """``a.b.c`` as ("a", ["b", "c"]); the root is None where it is no name."""
    chain = []
    while isinstance(node, ast.Attribute):
        chain.insert(0, node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None), chain


def row(program):
    """Lines, names, keywords."""
    text = text_of(program)
    found, keywords = names(text)
    return lines(text), len(found), len(keywords)


if __name__ == "__main__":
    for program in MISTAKES:
        print(program, *row(program))
        print("   ", *sorted(names(text_of(program))[0]))
