"""The command line that the scripts of programs and bugs of others have."""

import argparse
from pathlib import Path


def main(doc, folder, result, measure, table):
    """Run ``measure`` with what the command line gives, or print ``table()``. ``folder``: where sources lie by
    default; ``result``: the file that is written."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only those whose name or description holds one of these")
    parser.add_argument("--mirrors", type=Path, default=Path("mirrors"), help="bare repositories, owner+name")
    parser.add_argument("--work", type=Path, default=Path(folder), help="sources, data, what is built")
    parser.add_argument("--out", type=Path, default=result)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table())
    else:
        measure(given)


def is_asked_for(names, *texts):
    """Whether there are no ``names``, or one of the ``texts`` holds one of them."""
    return not names or any(name in text for name in names for text in texts)
