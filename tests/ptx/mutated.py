"""The stored PTX texts with a small change each, such as a slip of the hand makes: what is no PTX any more has
to be refused by its line, and everything else to be judged.

As a program it tries ``COUNT SEED [run]`` of them and prints where something else was raised."""

import random
import re
import sys
import traceback
from collections import Counter

import numpy as np
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines.faults import EngineError, SimFault

NAMES = "ring_by_hand", "ring", "volatile", "triton_rows"
TEXTS = {name: (KERNELS / f"{name}.ptx").read_text() for name in NAMES}
TOKEN = re.compile(r"\s+|[%$.\w]+|::|.", re.S)


def mutate(text, chance):
    """The text with one change."""
    parts = TOKEN.findall(text)
    solid = [n for n, part in enumerate(parts) if part.strip()]
    n, other = chance.choice(solid), chance.choice(solid)
    lines, line = text.splitlines(True), chance.randrange(text.count("\n"))
    how = chance.choice(("drop", "double", "take", "swap", "line", "lines", "cut", "letter", "number"))
    if how == "drop":
        parts[n] = ""
    elif how == "double":
        parts[n] *= 2
    elif how == "take":
        parts[n] = parts[other]
    elif how == "swap":
        parts[n], parts[other] = parts[other], parts[n]
    elif how == "letter":
        at = chance.randrange(len(parts[n]))
        parts[n] = parts[n][:at] + chance.choice(".%;,:{}[]@-0x1") + parts[n][at + 1 :]
    elif how == "number":
        parts[n] = chance.choice(("0", "-1", "7", "4294967296", "0f7FFFFFFF", "99999999999999999999"))
    elif how == "line":
        lines[line] = chance.choice(("", 2 * lines[line]))
    elif how == "lines":
        lines[line : line + 2] = reversed(lines[line : line + 2])
    if how in ("line", "lines"):
        return "".join(lines)
    first = text.index("\n") + 1  # a text of one line would be the name of a file
    return text[: chance.randrange(first, len(text))] if how == "cut" else "".join(parts)


def judge(text, runs):
    """Read a text, and run its kernels if asked to. Returns the exception that is no fault, and no refusal that
    names a line, or None."""
    try:
        module = nd.from_ptx(text)
        for name in module:
            kernel = module[name]
            if runs:
                args = [np.zeros(256, np.uint8) if v.size >= 8 else 1 for v in kernel.entry.params]
                nd.simulate(kernel, 1, 32, args, 2048, timeout=2.0, compiled=False)
    except SimFault:
        return None
    except ValueError as error:
        return None if re.search(r"line \d+|arguments|argument \w+", str(error)) else error
    except (EngineError, Exception) as error:
        return error
    return None


def mutants(count, seed=0):
    """(a name, a text) for each of ``count`` changes."""
    for n in range(count):
        chance = random.Random(f"{seed} {n}")
        name = chance.choice(sorted(TEXTS))
        yield f"{name} {seed} {n}", mutate(TEXTS[name], chance)


if __name__ == "__main__":
    met = Counter()
    for name, text in mutants(int(sys.argv[1]), sys.argv[2]):
        if error := judge(text, runs=len(sys.argv) > 3):
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__}: {error} at {last.filename.rpartition('/')[2]}:{last.lineno}"
            met[place] += 1
            if met[place] == 1:
                print(name, place)
    print(met.total(), "of", sys.argv[1])
