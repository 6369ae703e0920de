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


def located(sources):
    """Texts of C++ with ``#line`` where all stand in the program's file as they are: faults name its lines."""
    file = Path(program_frame()[0].f_code.co_filename).absolute()
    text = file.read_text() if file.exists() else ""
    if not all(source in text for source in sources):
        return list(sources)
    lines = [text[: text.index(source)].count("\n") + 1 for source in sources]
    return [f'#line {line} "{file}"\n{source}' for line, source in zip(lines, sources, strict=True)]
