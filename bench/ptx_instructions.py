"""The page of all PTX instructions that the front end knows, bench/PTX.md, made from its tables.

    python bench/ptx_instructions.py > bench/PTX.md
"""

import inspect
from collections import defaultdict

from intrinsics import section

from numba_deform.engines.cpu.async_units import warp_mma, wgmma_matrices
from numba_deform.engines.cpu.frontends.ptx import effects, instructions, intrinsics, translation

HEAD = """\
# PTX that the front end knows

Which instruction of PTX becomes which operation of the engine, and what judges it. Printed from the tables of
[`frontends/ptx/`](../numba_deform/engines/cpu/frontends/ptx), which the translation itself uses, by
`python bench/ptx_instructions.py`. Forms that ptxas takes for sm_90a, or sm_100a, stand once more, one each, in
[`forms_known.txt`](../tests/ptx/forms_known.txt), and those that are refused by name in
[`forms_refused.txt`](../tests/ptx/forms_refused.txt), of Blackwell in files beside these; anything else is
refused by its name and line as well."""
JUDGED = {  # by the first word: what is judged, besides that operands are defined
    "ld": "place, alignment, races, what is there", "ldu": "as ld", "st": "place, alignment, races",
    "atom": "place, alignment, races, scope, what it orders", "red": "as atom", "mapa": "rank",
    "bar": "who comes",
    "barrier": "who comes", "fence": "what it orders: races, proxies", "membar": "what it orders: races",
    "mbarrier": "counts, bytes, phases, life", "tensormap": "the map, its fields, who knows of it",
    "createpolicy": "its fraction", "cp": "place, alignment, size, proxies, groups, barriers",
    "shfl": "who comes; undefined lanes", "elect": "who comes", "match": "who comes", "redux": "who comes",
    "movmatrix": "that the whole warp comes", "wgmma": "descriptors, proxies, races, whose the registers are",
    "mma": "that the whole warp comes", "setmaxnreg": "counts, the block's registers",
    "clusterlaunchcontrol": "place, proxies, bytes, answers that say no (by PTX's text)",
    "wmma": "that the whole warp comes, with one tile; place, alignment, races",
    "tcgen05": "allocation, lanes, what is in flight, descriptors, proxies (by PTX's text)",
    "trap": "a fault, at its line",
    "call": "an assertion is a fault, vprintf prints", "nanosleep": "whether anybody can go on",
    "griddepcontrol": "nothing: a run is one grid", "ldmatrix": "that the whole warp comes; rows, races",
    "stmatrix": "that the whole warp comes; rows, races",
}  # fmt: skip


def arithmetic():
    """Rows of the table of instructions: (name, types, as Python)."""
    rows = defaultdict(list)
    for (name, kind), row in instructions.ROWS.items():
        options = sorted(row.modifiers - set(name.split(".")))
        rows[name, row.text, ", ".join(options)].append(kind)
    yield "| instruction | types | options | as |"
    yield "|---|---|---|---|"
    for (name, text, options), kinds in rows.items():
        yield f"| `{name}` | {', '.join(kinds)} | {options} | `{text.replace('|', chr(92) + '|')}` |"


def forms():
    yield "| instruction | made by | judged |"
    yield "|---|---|---|"
    for root, make in effects.ROWS.items():
        name = make.__name__ if make.__name__ != "<lambda>" else "a row of `effects`"
        where = inspect.getmodule(make).__name__.rpartition(".ptx.")[2]
        by = f"`{where}.{name}`" if name.startswith("do_") else name
        yield f"| `{root}` | {by} | {JUDGED.get(root, 'nothing: it computes')} |"
    for root in translation.ENDS:
        yield f"| `{root}` | `translation.Translator.blocks` | nothing: control |"
    for root in sorted(effects.IGNORED):
        yield f"| `{root}` | nothing | nothing: it changes no result |"


def by_intrinsic():
    yield "| instruction | intrinsic | judged | PTX ISA |"
    yield "|---|---|---|---|"
    for key, patterns in sorted(intrinsics.patterns().items()):
        for pattern in patterns:
            name = pattern.intrinsic.__name__
            judged = JUDGED.get(key.partition(".")[0], "nothing")
            yield f"| `{key}` | `{name}` | {judged} | {section(pattern.intrinsic)} |"


def products():
    yield "| instruction | sums | A | B | shapes |"
    yield "|---|---|---|---|---|"
    for (d, a, b), form in wgmma_matrices.FORMS.items():
        yield f"| `wgmma.mma_async` | {d} | {a} | {b} | m64n8..n256k{form.depth}, A in memory or registers |"
    kinds = warp_mma.TYPES
    for a in kinds:
        for b in kinds:
            for d in warp_mma.SUMS:
                shapes = [f"m{rows}n8k{depth}" for rows in (8, 16) for depth in (4, 8, 16, 32, 64)
                          if warp_mma.has_form(rows, depth, (d, a, b, d))]  # fmt: skip
                if shapes:
                    yield f"| `mma.sync` | {d} | {a} | {b} | {', '.join(shapes)} |"


def page():
    """All lines of the page."""
    parts = {
        "Barriers, copies, matrices: instructions that have an intrinsic": by_intrinsic,
        "Others that do more than compute, and forms": forms, "Products": products, "Arithmetic": arithmetic,
    }  # fmt: skip
    lines = HEAD.splitlines()
    for title, made in parts.items():
        lines += ["", f"## {title}", "", *made()]
    return lines


if __name__ == "__main__":
    print("\n".join(page()))
