"""``numba-deform new my.py``: a file with a pipeline, to start from."""

from pathlib import Path

from .commands import RIGHT
from .keys import UsageError
from .output import say

EXAMPLE = Path(__file__).parents[1] / "course" / "pipelines" / "copy.py"
NEXT = (
    ("is it right?", "run load={file} engine=cpu"),
    ("all orders?", "run load={file} engine=cpu schedules=all steps=2"),
    ("what waits?", "timeline load={file} engine=cpu out={stem}.png"),
    ("machine code?", "inspect load={file} show=sass"),
    ("what it takes", "budget load={file} stages=1,2,3,4"),
    ("without a GPU", "bench load={file} engine=cpu variants=copy:stages=1,copy:stages=3"),
    ("how deep?", "sweep load={file} engine=cpu stages=1,2,3,4 out={stem}-stages.json"),
    ("on a GPU", "bench load={file} variants=copy:stages=1,copy:stages=3 out={stem}.json"),
)


def new(options):
    """The copy of ``course/pipelines``, written to a file that is not there yet."""
    if "file" not in options:
        raise UsageError("new needs a file: numba-deform new my.py")
    path = Path(options["file"])
    if path.suffix != ".py":
        raise UsageError(f"new {path}: the file must end in .py, such as {path.with_suffix('.py')}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"new {path}: there is no directory {path.absolute().parent}")
    try:
        with path.open("x") as file:
            file.write(EXAMPLE.read_text())
    except FileExistsError:
        raise UsageError(f"new {path}: that file exists already, and is left as it is; name another") from None
    say("written", f"{path}: a copy through a ring of stages, with one producer and one consumer")
    for what, command in NEXT:
        say(what, "numba-deform " + command.format(file=path, stem=path.with_suffix("")))
    return RIGHT
