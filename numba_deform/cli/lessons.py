"""``numba-deform lessons`` and ``progress``: copies of the lessons to work in, and what is solved of them."""

import json

from rich.table import Table

from ..course.lessons import copying
from .commands import RIGHT
from .keys import UsageError
from .output import console, say


def _directory(options, name):
    if "dir" not in options:
        raise UsageError(f"{name} needs a directory: numba-deform {name} DIR")
    return options["dir"]


def lessons(options):
    """Copy them; what is there already is kept."""
    directory, nbgrader = _directory(options, "lessons"), options.get("nbgrader", False)
    shown, language = options.get("solutions", True), options.get("language")
    written, kept = copying.copy_lessons(directory, shown, nbgrader, language)
    say("written", ", ".join(path.name for path in written) or "nothing")
    if kept:
        say("kept", f"{', '.join(path.name for path in kept)}: they may hold answers")
    say("open them", f"jupyter lab {directory}")
    if shown and not nbgrader:
        say("solutions", copying.lessons_folder() / "solutions")
    return RIGHT


def progress(options):
    """Which exercises are solved, by what their checks said when the notebooks were saved, or say now."""
    states = copying.progress(_directory(options, "progress"), again := options.get("again", False))
    if options.get("json"):
        print(json.dumps(states, indent=1))
        return RIGHT
    kinds = copying.SOLVED, copying.UNSOLVED, copying.UNTRIED
    table, every = Table("lesson", *kinds), [kind for of in states.values() for kind in of.values()]
    for lesson, of in states.items():
        table.add_row(lesson, *(", ".join(name for name in of if of[name] == kind) for kind in kinds))
    console().print(table)
    when = "run again" if again else "last saved"
    say("solved", f"{every.count(copying.SOLVED)} of {len(every)} exercises, as {when}")
    return RIGHT
