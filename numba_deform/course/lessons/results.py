"""The results of earlier measurements: the JSON files of the repository's ``bench/results``."""

import json
from pathlib import Path

FOLDER = Path("bench") / "results"


def results(name):
    """The contents of ``bench/results/<name>.json``.

    The file is looked for upwards from the working directory (a notebook's is its own folder), then beside the
    package, then in it: an installed package has those that the lessons quote. FileNotFoundError where there
    is none.
    """
    here, package = Path.cwd(), Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, package.parent, package):
        file = folder / FOLDER / f"{name}.json"
        if file.is_file():
            return json.loads(file.read_text())
    raise FileNotFoundError(
        f"{FOLDER / name}.json is not found upwards of {here}; it is in the package's repository"
    )
