"""Which tests are slow: ``conftest`` marks them ``full``, so that the default run stays under five minutes.
Those that alone notice a mutant of ``mutation.py`` are none, however long they take.

    pytest --junitxml=times.xml && python tests/slow.py times.xml > new.txt && mv new.txt tests/slow.txt

``slow.txt`` has their names, one a line; those in it do not run by default, and stay.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

LIMIT = 0.5  # seconds from which a test is slow, on a machine that adds 20 million numbers in Python in 3.3
KEPT = ("tests/unit/test_house.py",)  # whoever changes the package wants these at once
LIST = Path(__file__).with_name("slow.txt")


def names():
    return frozenset(LIST.read_text().splitlines())


def slow(file):
    """The names of the slow ones in pytest's XML, and of those in the list."""
    ran = {}
    for case in ElementTree.parse(file).iter("testcase"):
        ran[f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"] = float(case.get("time"))
    noticing = LIST.with_name("mutation.json").read_text()
    found = {name for name, seconds in ran.items() if seconds >= LIMIT and not name.startswith(KEPT)}
    return sorted(names() | {name for name in found if f'"{name}"' not in noticing})


if __name__ == "__main__":
    print("\n".join(slow(sys.argv[1])))
