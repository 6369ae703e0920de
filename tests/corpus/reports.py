"""The reports of the corpus' wrong programs, word for word: those of ``wrong/atomics.py`` are in
``wrong/atomics.txt``, each behind its program's name.

    python tests/corpus/reports.py              # writes them anew, and names those that have changed

Lines are counted from the kernel's first one, so that a program that moves keeps its report. That a report is
right is for others to say: ``test_corpus.py`` knows which rule and which line, ``test_cures.py`` whether the
cure is the mend. Here it shows what a change to the engine does to all of them.
"""

import re

from base import FOLDER, LANDINGS, load

from numba_deform.engines.cpu import SimFault

FOLDERS = "wrong", "cures", "whole"
SEEDS = 10
COMMENT = re.compile(r" +# (?:cure|<-).*")  # which is no part of the program


def programs():
    """The wrong ones of these folders, by name."""
    return {name: program for name, program in load(*FOLDERS).items() if program.faults}


def report_of(program):
    """The first report of a program, in the first schedules or else by explore."""
    for seed in range(SEEDS):
        try:
            program.run(landing=LANDINGS[seed % 3], seed=seed)
        except SimFault as fault:
            return _as_kept(program, str(fault))
    try:
        program.explore()
    except SimFault as fault:
        return _as_kept(program, str(fault))
    return "no report"


def _as_kept(program, text):
    """Without what differs from one machine, or one place in the file, to another."""
    first = program.function.__code__.co_firstlineno
    text = COMMENT.sub("", text).replace(f"{FOLDER}/", "")
    text = re.sub(rf"\b{program.topic}\.py:(\d+)", lambda m: f"{program.topic}.py:{int(m[1]) - first:+}", text)
    if text.startswith("Unfinished"):  # at which line of a loop it was stopped is another with each Python
        text = re.sub(r"(\n  at .*):\+\d+ .*", r"\1: a line of its loop", text, count=1)
    return re.sub("0x[0-9a-f]{6,}", "0x..", text)


def file_of(program):
    return FOLDER / program.folder / f"{program.topic}.txt"


def kept(file):
    """{name: report} of a file; of none there are none."""
    text = file.read_text() if file.exists() else ""
    parts = (part.partition("\n") for part in text[2:-1].split("\n\n# ") if part)
    return {name: report for name, _, report in parts}


def written(reports):
    """The text of a file."""
    return "\n\n".join(f"# {name}\n{report}" for name, report in reports.items()) + "\n"


def main():
    files = {}
    for name, program in programs().items():
        files.setdefault(file_of(program), {})[name] = report_of(program)
    for file, reports in files.items():
        before = kept(file)
        for name in sorted({name for name, _ in before.items() ^ reports.items()}):
            print(f"{file.relative_to(FOLDER)}: {name}")
        file.write_text(written(reports))


if __name__ == "__main__":
    main()
