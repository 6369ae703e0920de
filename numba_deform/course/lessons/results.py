"""The results of earlier measurements: the JSON files of the repository's ``bench/results``."""

import json
from pathlib import Path

FOLDER = Path("bench") / "results"


def results(name):
    """The contents of ``bench/results/<name>.json``.

    The file is looked for upwards from the working directory (a notebook's is its own folder), then beside the
    package. FileNotFoundError where there is none, as in an installed package without its repository.
    """
    here, package = Path.cwd(), Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, package.parent):
        file = folder / FOLDER / f"{name}.json"
        if file.is_file():
            return json.loads(file.read_text())
    raise FileNotFoundError(
        f"{FOLDER / name}.json is not found upwards of {here}; it is in the package's repository"
    )
