"""The tables of bench/SIDE_BY_SIDE.md, from the programs' texts and from ``bench/results/side_by_side*.json``.

python bench/side_by_side/tables.py
"""

import json
from pathlib import Path

from counts import row
from mistakes import KINDS, MISTAKES

RESULTS = Path(__file__).parent.parent / "results"
TITLES = {
    "here_copy": "here",
    "gluon_copy": "Gluon",
    "cute_copy": "CuTe DSL",
    "pallas_copy": "Pallas, barriers by hand",
    "pallas_emit": "Pallas, `emit_pipeline_warp_specialized`",
    "puzzle_copy": "GPU-Puzzles, the nearest",
}
LIBRARY = {
    "gluon_copy": "triton", "cute_copy": "nvidia-cutlass-dsl", "pallas_copy": "jax", "pallas_emit": "jax",
}  # fmt: skip
RUNS = {
    "engine": "on the CPU engine",
    "compile": "compiled",
    "lower": "traced and lowered",
    "interpret": "interpreted, `detect_races`",
    "draw": "its `show`",
    "gpu": "on the GPU",
    "guarded": "on the GPU, waits bounded",
    "consan": "on the GPU, ConSan",
}


def table(head, rows):
    rows = [head, ["---", *["--:" if str(cell).isdigit() else "---" for cell in rows[0][1:]]], *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in rows)


def sizes():
    """Each program's lines, names and keywords."""
    rows = [[f"[{title}](side_by_side/{name}.py)", *row(name)] for name, title in TITLES.items()]
    return table(["", "lines", "names", "keywords"], rows)


def cell(outcome):
    """What a tool did, in a word or two."""
    if outcome["program"] == "here_copy" and outcome["outcome"] == "reported":
        return f"`{outcome['error']}`"
    if outcome["outcome"] == "cannot be made":
        return "-"
    if outcome["outcome"] == "hangs" and outcome["says"]:
        return "says something, hangs"
    return outcome["outcome"]


def outcomes():
    """A row for each way in which a program was run, from all result files."""
    rows = []
    for file in sorted(RESULTS.glob("side_by_side*.json")):
        document = json.loads(file.read_text())
        found = {(one["program"], one["way"], one["mistake"]): one for one in document["rows"]}
        for program, way in dict.fromkeys(key[:2] for key in found):
            library = LIBRARY.get(program)
            version = f", {library} {document['versions'][library]}" if library else ""
            title = f"{TITLES[program]}: {RUNS[way]}{version}"
            rows.append([title, *(cell(found[program, way, mistake]) for mistake in ("right", *KINDS))])
    return table(["", "right", *KINDS], sorted(rows, key=lambda row: _order(row[0])))


def _order(title):
    return [title.startswith(name + ":") for name in TITLES.values()].index(True), title


if __name__ == "__main__":
    print(sizes(), outcomes(), sep="\n\n")
    for name, edits in MISTAKES.items():
        print(f"\n{TITLES[name]}:", {kind: why for kind, why in edits.items() if isinstance(why, str)})
