"""``numba-deform check PROGRAM``: a whole program with its launches judged, or one launch of a
kernel of PTX or CUDA C++."""

import sys

from ..programs import program, ptx_program, summary
from ..programs.session import suppressions
from .commands import INTERRUPTED, WRONG
from .keys import UsageError, simulation_options


def check(options):
    """Run the program, print what was found, write the files; the exit status is 1 where faults were found,
    else the program's own."""
    words = options["program"]
    if not words or words == ["-m"]:
        raise UsageError("check: a program is missing: numba-deform check PROGRAM.py, or check -m MODULE")
    asked = simulation_options(options)
    asked |= {"explored": bool(options.get("explore")), "stop": bool(options.get("stop")),
              "all": bool(options.get("all"))}  # fmt: skip
    if "suppress" in options:
        asked["suppressions"] = suppressions(options["suppress"])
    try:
        run = ptx_program.run if words[0].endswith(ptx_program.SUFFIXES) else program.run
        session, status = run(words, asked)
    except ModuleNotFoundError as error:
        raise UsageError(f"check: {error}") from None
    sys.stdout.flush()
    interrupted = ", interrupted" * (status == INTERRUPTED)
    print(f"\n{session}{interrupted}", file=sys.stderr)
    status = status if interrupted or not session.faults else WRONG
    if "json" in options:
        summary.write_json(session, status, options["json"])
    if "junit" in options:
        summary.write_junit(session, options["junit"])
    return status
