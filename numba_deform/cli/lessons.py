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
    directory = _directory(options, "lessons")
    shown, nbgrader = options.get("solutions", True), options.get("nbgrader", False)
    written, kept = copying.copy_lessons(directory, shown, nbgrader, options.get("language"))
    say("written", ", ".join(path.name for path in written) or "nothing")
    if kept:
        say("kept", f"{', '.join(path.name for path in kept)}: they may hold answers")
    if nbgrader:
        say("a course", f"cd {directory} && nbgrader generate_assignment 01_boxes")
        return RIGHT
    say("open them", f"jupyter lab {directory}")
    if shown:
        say("solutions", copying.lessons_folder() / "solutions")
    return RIGHT


def progress(options):
    """Which exercises are solved, by what their checks said when the notebooks were saved, or say now."""
    again = options.get("again", False)
    states = copying.progress(_directory(options, "progress"), again)
    if options.get("json"):
        print(json.dumps(states, indent=1))
        return RIGHT
    table = Table("lesson", "solved", "not yet", "open")
    for lesson, exercises in states.items():
        names = {state: [name for name, of in exercises.items() if of == state]
                 for state in (copying.SOLVED, copying.UNSOLVED, copying.UNTRIED)}  # fmt: skip
        table.add_row(lesson, *(", ".join(of) for of in names.values()))
    console().print(table)
    every = [state for exercises in states.values() for state in exercises.values()]
    when = "as checked now" if again else "as last saved"
    say("solved", f"{every.count(copying.SOLVED)} of {len(every)} exercises, {when}")
    return RIGHT
