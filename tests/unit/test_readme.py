"""README and pages about results: links lead somewhere, commands work, tables are those of the results."""

import ast
import dataclasses
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from numba_deform import cli, reference, relative_error
from numba_deform.course import bugs
from numba_deform.kernels.registry import VARIANTS, current_name
from numba_deform.measure import report
from numba_deform.workloads.presets import preset

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
README = (ROOT / "README.md").read_text()
TABLE = (ROOT / "bench" / "TABLE.md").read_text()
FAULTS = (ROOT / "bench" / "FAULTS.md").read_text()
PAGES = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "notebooks/README.md", "bench/CORPUS.md",
    "bench/COURSES.md", "bench/ENGINE.md", "bench/FAULTS.md", "bench/INTRINSICS.md", "bench/NAMES.md",
    "bench/NOTES.md", "bench/ORIGINS.md", "bench/PROFILE.md", "bench/PTX.md", "bench/SIDE_BY_SIDE.md",
    "bench/TABLE.md",
)  # fmt: skip
COPY = "numba_deform/course/pipelines/copy.py"
CHEAP = ("variants", "bugs", "help", "probe", "tile-copy", "table")


def commands():
    """The words of each ``numba-deform`` in the indented blocks of README and ``bench/TABLE.md``."""
    found = []
    for line in README.splitlines() + TABLE.splitlines():
        if line.startswith("    ") and "numba-deform " in line:
            words = shlex.split(line, comments=True)
            for i, word in enumerate(words):
                if word == "numba-deform":
                    end = words.index("&&", i) if "&&" in words[i:] else len(words)
                    found.append(words[i + 1 : end])
    return found


COMMANDS = commands()


def is_cheap(words):
    here = all((ROOT / word[5:]).exists() for word in words if word.startswith("file="))
    return words[0] in CHEAP and here or "engine=cpu" in words or "workload=tiny" in words


# --- links and pictures ---------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    path = ROOT / page
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t and t[0] != "#"]
    missing = [t for t in targets if not (path.parent / t.partition("#")[0]).exists()]
    assert not missing, f"{page} links to {missing}"


@pytest.mark.parametrize("page", ["README.md", "notebooks/README.md"])
def test_every_lesson_is_linked(page):
    text = (ROOT / page).read_text()
    lessons = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
    assert lessons
    assert [path.name for path in lessons if f"{path.name})" not in text] == []


def test_the_picture_is_small():
    data = (ROOT / "notebooks" / "timeline.png").read_bytes()
    assert data[:4] == b"\x89PNG" and len(data) < 100_000
    assert "](notebooks/timeline.png)" in README


def test_the_readme_is_short():
    assert 80 <= len(README.splitlines()) <= 120


# --- commands -------------------------------------------------------------------------------------
def test_commands_and_their_keys_exist():
    parameters = {f.name for v in VARIANTS.values() for f in dataclasses.fields(v.config)}
    workload_fields = {"num_query", "patterns"}  # of sweep, beside its own keys
    assert len(COMMANDS) >= 20
    for words in COMMANDS:
        assert words[0] in cli.COMMANDS, words
        if words == ["help"]:
            continue
        known = {key.name for key in cli.COMMANDS[words[0]].keys} | parameters | workload_fields
        for word in words[1:]:
            key, equals, _ = word.partition("=")
            assert not equals or key in known, words


@pytest.mark.parametrize("words", [c for c in COMMANDS if is_cheap(c)], ids=" ".join)
def test_command_works(words, tmp_path, monkeypatch, capsys, no_registers):
    monkeypatch.chdir(ROOT)
    words = [f"load={COPY}" if word == "load=my.py" else word for word in words]  # what new my.py writes
    written = [tmp_path / word.partition("=")[2] for word in words if word.startswith("out=")]
    words = [f"out={tmp_path / w[4:]}" if w.startswith("out=") else w for w in words]
    words = [
        "schedules=1" if w.startswith("schedules=") else w for w in words
    ]  # it takes 10 s each
    assert cli.main(words) == 0, capsys.readouterr().err
    assert all(path.stat().st_size for path in written)


# --- Python ---------------------------------------------------------------------------------------
def snippets(text):
    return re.findall(r"```python\n(.*?)```", text, re.S)


def test_snippets_import_what_there_is():
    found = [*snippets(README), *snippets(TABLE), *snippets(FAULTS)]
    assert len(found) >= 4
    for text in found:
        imports = [n for n in ast.parse(text).body if isinstance(n, (ast.Import, ast.ImportFrom))]
        exec(ast.unparse(ast.Module(imports, [])), {})


def test_the_first_example_ends_as_it_says(tmp_path):
    file = tmp_path / "double.py"
    file.write_text(snippets(README)[0])
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=tmp_path)
    shown = re.search(r"`double.py` ends with\n\n((?:    .*\n)+)", README)[1]
    report = done.stderr.replace(f"{tmp_path}/", "").replace("numba_deform.engines.faults.", "", 1)
    assert shown.replace("\n    ", "\n").strip() in report


def test_the_call_works():
    i = preset("tiny", num_query=3).generate(1)
    scope = dataclasses.asdict(i)
    exec(snippets(README)[1], scope)
    want = reference(*scope_of(i))
    assert isinstance(scope["out"], np.ndarray) and relative_error(scope["out"], want) < 1e-3


def scope_of(i):
    return (
        i.value, i.spatial_shapes, i.level_start_index, i.sampling_locations, i.attention_weights,
    )  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------
def table(variants=()):
    names = ("pipelines_seeds.json", "pipelines_detr.json")
    documents = [report.load(RESULTS / name) for name in names]
    return report.markdown(documents[0], [report.summary(documents, variants)])


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" |")]


def test_the_tables_are_those_of_the_results():
    """After a change of results or of ``kernels/registry.py``: write it again with the page's command."""
    assert f"\n{table()}" in TABLE


def test_the_short_table_is_from_the_long_one():
    start = README.index("| | seeds local(2) |")
    shown = [cells(line) for line in README[start:].partition("\n\n")[0].splitlines()]
    columns, rows = shown[0][1:], shown[2:]
    names = [re.match("`(.*?)`", row[0])[1] for row in rows]
    assert len(names) >= 4 and names[0] == "direct"
    long = [cells(line) for line in table(names).splitlines() if line.startswith("|")]
    places = [long[0].index(column) for column in columns]
    for name, row, line in zip(names, rows, long[2:], strict=True):
        assert line[0] == name
        assert row[1:] == [line[place].partition(" ")[0] for place in places]


def test_the_table_of_planned_windows_is_from_its_file():
    rows = json.loads((RESULTS / "windows_planned.json").read_text())["rows"]
    times = [row["median_ms"] for row in rows if row["variant"] in ("direct", "window", "auto")]
    start = TABLE.index("| | direct | window | auto |")
    shown = [cells(line)[1:] for line in TABLE[start:].partition("\n\n")[0].splitlines()[2:]]
    assert [cell.partition(" ")[0] for row in shown for cell in row] == [f"{time:.3f}" for time in times]
    for direct, *others in shown:
        ratios = [float(cell.partition(" ")[0]) / float(direct) for cell in others]
        written = [float(cell.partition("(")[2].rstrip(") ")) for cell in others]
        assert written == pytest.approx(ratios, rel=0.02)


def test_rows_of_a_summary():
    with pytest.raises(ValueError, match="no row 'tma stages=77'; there are direct, "):
        table(["direct", "tma stages=77"])
    assert (
        cli.main(["table", f"file={ROOT}/bench/results/pipelines_seeds.json", "variants=tma"]) == 2
    )


# --- what is said of faults, and what the files say -----------------------------------------------
def rows(name):
    return json.loads((RESULTS / name).read_text())["rows"]


@pytest.mark.parametrize(
    "page, commands", [
        ("FAULTS.md", ["sanitizer.py --table"]), ("CORPUS.md", ["corpus.py --table"]),
        ("ENGINE.md", ["corpus.py --waivers", "corpus.py --rules", "box_corners.py --table"]),
        ("INTRINSICS.md", ["intrinsics.py"]), ("PTX.md", ["ptx_instructions.py"]),
    ]
)  # fmt: skip
def test_tables_are_those_of_the_results(page, commands, monkeypatch, capsys):
    """After a change of results, or of intrinsics: the commands print the tables anew."""
    made = []
    for command in commands:
        words = f"{ROOT}/bench/{command}".split()
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.setattr(sys, "path", [f"{ROOT}/bench", *sys.path])
        runpy.run_path(words[0], run_name="__main__")
        made += capsys.readouterr().out.splitlines()
    lines = (ROOT / "bench" / page).read_text().splitlines()
    assert [line for line in made if line[:1] == "|"] == [line for line in lines if line[:1] == "|"]
    assert set(made) <= set(lines)


def test_the_corpus_is_as_its_results_say():
    """Each program once, the engine right about all of them, and an H200 about the right ones that it ran."""
    folder, found = ROOT / "tests" / "corpus", {row["program"]: row for row in rows("corpus.json")}
    for kind in ("right", "wrong"):
        text = "".join(path.read_text() for path in sorted((folder / kind).glob("*.py")))
        names = re.findall(rf"^@{kind}\(.*?^def (\w+)", text, re.M | re.S)
        assert {name for name, row in found.items() if row["kind"] == kind} == set(names)
        assert f"{len(names)} {kind}" in README
    for name, row in found.items():
        assert row["engine"] in (row["faults"] or ["silent"]), name
        assert row["kind"] == "wrong" or row.get("gpu", "right") == "right", name


def test_what_a_gpu_did_with_the_faults():
    found = {row["bug"]: row for row in rows("bugs.json")}
    assert set(found) == set(bugs.BUGS) - {"no_refill_fence"}  # nobody has run it yet
    seen = Counter(row["gpu"] for row in found.values())
    words = " ".join(FAULTS.split())
    assert f"{len(bugs.BUGS)} faults are planted" in words and f"{len(bugs.BUGS)} faults are planted" in README
    assert (
        f"{len(found)} of them have run: {seen['hang']} of them hang, "
        f"{seen['error']} end in an error that names nothing, "
        f"{seen['wrong']} give wrong numbers, and {seen['right']} are right"
    ) in words
    for row in found.values():
        if row["gpu"] == "hang":
            assert row["debug"] == "report" and row["debug_s"] < 5 and row["usable_afterwards"]
        if "line" in row:  # what the report was about is still a line of that file
            lines = Path(bugs.BUGS[row["bug"]].file).read_text().splitlines()
            assert row["line"].startswith(f"{row['bug']}.py:")
            assert row["source"] in [line.strip() for line in lines]


def test_the_sanitizer_was_clean_over_all_variants():
    found = rows("sanitizer.json")
    assert [row["tool"] for row in found] == ["memcheck", "racecheck", "synccheck", "initcheck"]
    for row in found:
        assert (row["status"], row["right"], row["wrong"]) == (0, len(VARIANTS), 0)
        assert "SUMMARY: 0 " in row["summary"]
    assert f"all {len(VARIANTS)} shipped variants" in " ".join(FAULTS.split())


def test_the_overheads_are_those_measured():
    times = {row["variant"]: row["median_ms"] for row in rows("overhead.json")}
    names = [name for name in times if " " not in name]
    assert len(names) == 5
    for name in names:
        numbers = " / ".join(f"{times[name + more]:.3f}" for more in ("", " trace=1", " debug=1"))
        assert f"`{current_name(name)}` {numbers}" in " ".join(TABLE.split())
