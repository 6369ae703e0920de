"""Where a program stands: which of the lines that called us is its own."""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

# Whose lines are not the program's.
PACKAGES = ("numba", "numba_cuda", "numba_deform", "numpy", "triton", "torch")
BESIDE = ("*.cu", "*.cuh", "*/*.cu", "*/*.cuh")
SHORT, ALIKE, NEWLINE = 3, 3, "\n"  # characters of a line that many have; lines that make a text of a file's


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


def located(source):
    """A text of C++ with ``#line`` for what of it stands in the program's file, or in one of CUDA C++ beside
    it, so that faults name its lines: a whole string, the first from the call on or else the first at all, or
    lines that follow each other there, as of a text that is put together."""
    frame, _ = program_frame()
    file = Path(frame.f_code.co_filename).absolute()
    text = file.read_text() if file.exists() else ""
    call, found = sum(map(len, text.splitlines(True)[: frame.f_lineno - 1])), []
    for start in (call, 0):
        quoted = (text.find(f"{quote}{source}{quote}", start) for quote in "\"'")
        found = found or [at for at in quoted if at >= 0]
    if found:
        return f'#line {text[: min(found)].count(NEWLINE) + 1} "{file}"\n{source}'
    beside = {path for folder in (file.parent, Path.cwd()) for kind in BESIDE for path in folder.glob(kind)}
    files = [(file, text), *((path, path.read_text(errors="replace")) for path in sorted(beside))]
    return _by_lines(source.split(NEWLINE), files)


def _by_lines(lines, files):
    """Lines joined, with ``#line`` where they are those of a place in files."""
    places = defaultdict(list)  # {line: of each like it (file, number)}
    for file, text in files:
        for number, line in enumerate(text.split(NEWLINE), 1):
            if len(words := _words(line)) > SHORT:
                places[words].append((file, number))
    each = [[(file, number - n) for file, number in places[_words(line)]] for n, line in enumerate(lines)]
    votes, now, made = Counter(place for line in each for place in line), None, []
    for n, (line, here) in enumerate(zip(lines, each, strict=True)):
        best = max(here, key=votes.get, default=None)
        if now not in here and votes[best] >= ALIKE and not (n and lines[n - 1].endswith("\\")):
            file, shift = best
            if now is None and shift > 0:  # what stands before the first line that is found does so there
                made.insert(0, f'#line {shift} "{file}"')
            else:
                made.append(f'#line {shift + n} "{file}"')
            now = best
        made.append(line)
    return NEWLINE.join(made)


def _words(line):
    """A line of C++ without blanks, and with the single braces that an f-string makes of two."""
    return re.sub(r"\s+|([{}])(?=\1)", "", line)
