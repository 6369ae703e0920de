"""The page of all intrinsics, bench/INTRINSICS.md, made from their definitions and their PTX.

    python bench/intrinsics.py > bench/INTRINSICS.md
"""

import importlib
import inspect
import pkgutil
import re

import numba_deform.device
from numba_deform.device import sections
from numba_deform.device.ptx import Intrinsic

HEAD = f"""\
# The intrinsics

What a kernel may call beside `numba.cuda`: each is a thin name for one PTX instruction. Its text stands in
[`ptx/`](../ptx), its documentation in [`numba_deform/device/`](../numba_deform/device). This page repeats its
first sentence; there are also the operands with their units, what is ordered, what is undefined. `u32` and the
like are types of registers, `u32 x 4` is a tuple, `local f32 x 64` a local array that the instruction changes;
addresses of shared memory have 32 bits, those of global memory 64. The last
column is the section of {sections.EDITION}. Made by `python bench/intrinsics.py`."""
TABLE = ["| intrinsic | what it does | PTX | PTX ISA |", "|---|---|---|---|"]
FIRST = (
    "tma", "mbarrier", "tokens", "sync", "tensormap", "reduce", "cluster", "cluster_async", "wgmma", "tcgen05",
    "matrix", "cp_async",
)  # fmt: skip
OPERANDS = (".reg", "ld.param", "st.param", "ret")  # statements that bring them in and out
BESIDE = ("setp", "selp", "mov")  # those that prepare the instruction, or take its result


def families():
    """{module: its intrinsics, in the order of their definitions}; first what a pipeline needs."""
    result, names = {}, [entry.name for entry in pkgutil.iter_modules(numba_deform.device.__path__)]
    for name in sorted(names, key=lambda name: ([*FIRST, name].index(name), name)):
        module = importlib.import_module(f"numba_deform.device.{name}")
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, Intrinsic) and value.model.__module__ == module.__name__
            and (value.ptx or value.__name__.endswith("_address"))  # the others are no instructions
        ]  # fmt: skip
        if own:
            result[module] = own
    return result


def signature(one):
    """Its name, parameters and result as a reader writes them."""
    if one.ptx is None:  # takes an array, of whatever type
        return f"{one.words} -> {'u32' if 'shared' in one.__name__ else 'u64'}"
    return one.words


def first_sentence(one):
    """The first sentence of its documentation, without the instruction's name before it."""
    text = " ".join(inspect.getdoc(one.model).split())
    text = re.sub(r"^``[^`]*``( [^:`]*)?: ", "", text)
    return re.match(r"(.*?(?<!\.)\.)(?=\s|$)", text)[1].replace("``", "`")


def instruction(one):
    """The statement of its PTX that all others are there for; N for a number that several forms of it name."""
    if one.ptx is None:
        return f"cvta.to.{one.__name__.partition('_')[0]}.u64"
    statements = [s for s in one.ptx.statements if not s.startswith(OPERANDS)]
    statements = [s for s in statements if not s.startswith(BESIDE)] or statements or ["mov.b32"]
    longest = re.sub(r"\{(\w+)(, \w+){9,}, (\w+)\}", r"{\1, .., \3}", max(statements, key=len))
    return re.sub(r"^@\w+ (.*) \d+$", r"\1 N", longest)


def section(one):
    number = sections.cited(one.model.__doc__)[0]
    return f"{number} {sections.short(number)}"


def page():
    """All lines of the page."""
    lines = HEAD.splitlines()
    for module, intrinsics in families().items():
        name = module.__name__.rpartition(".")[2]
        about = " ".join(inspect.getdoc(module).partition("\n\n")[0].split()).replace("``", "`")
        lines += ["", f"## {name}", "", about, "", *TABLE]
        for one in intrinsics:
            cells = f"`{signature(one)}`", first_sentence(one), f"`{instruction(one)}`", section(one)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(page()))
