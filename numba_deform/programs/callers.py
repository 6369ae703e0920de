"""Where a program stands: which of the lines that called us is its own."""

import sys
from pathlib import Path

PACKAGES = ("numba", "numba_cuda", "numba_deform", "triton", "torch")  # whose lines are not the program's


def is_ours(frame):
    """Whether a frame is of these packages, or else of the program; their tests are programs."""
    root, _, rest = frame.f_globals.get("__name__", "").partition(".")
    return root in PACKAGES and "tests" not in rest.split(".")


def program_frame():
    """(the frame of the nearest caller that is the program's, how many calls there are from it to the caller of
    this function, as ``stacklevel`` of a warning counts)."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and is_ours(frame):
        frame, level = frame.f_back, level + 1
    return frame, level


def program_place():
    """``file:line`` of that frame, with the path that Python has."""
    frame, _ = program_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(source):
    """``#line`` for a text of C++ that stands in the program's file as it is, so that faults name its lines;
    else "". Of several it is the first whole string from the call on, else the first at all."""
    frame, _ = program_frame()
    file = Path(frame.f_code.co_filename).absolute()
    text = file.read_text() if file.exists() else ""
    call = sum(map(len, text.splitlines(True)[: frame.f_lineno - 1]))
    found = -1
    for start in (call, 0):
        quoted = (text.find(f"{quote}{source}{quote}", start) for quote in "\"'")
        found = min((at for at in quoted if at >= 0), default=-1) if found < 0 else found
    if found < 0 and "\n" in source:  # as where blanks around it are taken away
        found = text.find(source)
    return "" if found < 0 else f'#line {text[:found].count(chr(10)) + 1} "{file}"\n'


def located(sources):
    """Texts of C++ with their lines, where all stand in the program's file."""
    lines = list(map(line_of, sources))
    return [line + source if all(lines) else source for line, source in zip(lines, sources, strict=True)]
