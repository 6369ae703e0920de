"""What the tests of tests/gpu said on a GPU, by file, from what pytest printed.

    pytest tests/gpu -vv -n 4 -p no:cacheprovider | tee first.log
    python bench/gpu_tests.py first.log again.log --out bench/results/gpu_tests.json   # on that machine

Of a test that stands in several logs the last one counts; ``again`` are those that failed, were left out or did
not end in an earlier one, and what was said there. Some take much of the GPU's memory: with 24 at a time and
80 GB fourteen failed and two left themselves out that all pass with few at a time.
"""

import argparse
import re
from pathlib import Path

from numba_deform.engines.gpu.device import gpu_or_none
from numba_deform.measure import record

SAID = "PASSED|FAILED|SKIPPED|ERROR"
ENDED = re.compile(rf"^(?:\[gw\d+\] \[ *\d+%\] ({SAID}) )?(tests/\S+::.*?)(?: +({SAID}) .*)?$")


def outcomes(text):
    """{test: its outcome, or "begun" for one that did not end} of one log."""
    found = {}
    for line in text.splitlines():
        if m := ENDED.match(line.rstrip()):
            said = m[1] or m[3]
            found[m[2]] = said.lower() if said else found.get(m[2], "begun")
    return found


def rows_of(logs):
    """A row for each file of tests."""
    last, again = {}, {}
    for log in logs:
        found = outcomes(log)
        for test in found.keys() & last.keys():
            again |= {test: last[test]} if last[test] != "passed" else {}
        last |= found
    rows = []
    for file in sorted({test.partition("::")[0] for test in last}):
        own = {test: said for test, said in last.items() if test.startswith(f"{file}::")}
        row = {"file": file, "tests": len(own)}
        row |= {said: sum(x == said for x in own.values()) for said in sorted(set(own.values()))}
        rows.append(row | {"again": {t.partition("::")[2]: again[t] for t in sorted(own) if t in again}})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    rows = rows_of([log.read_text(errors="replace") for log in given.logs])
    record.write(given.out, gpu_or_none(), rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
