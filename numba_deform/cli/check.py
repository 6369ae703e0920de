"""``numba-deform check PROGRAM``: a whole program with its launches judged, or one launch of a
kernel of PTX or CUDA C++."""

import sys
from pathlib import Path

from ..programs import program, ptx_program, summary
from ..programs.session import suppressions
from .commands import COMMANDS, INTERRUPTED, WRONG
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
    for key in ("json", "junit"):
        parent = Path(options.get(key, ".")).absolute().parent
        if not parent.is_dir():
            raise UsageError(f"{key}={options[key]}: there is no directory {parent}")
    own = {key.name for key in COMMANDS["check"].keys}
    for word in words[1:]:
        if "=" in word and word.partition("=")[0].lstrip("-") in own:
            said = f"check: {word} goes to the program; what is meant for check stands before it"
            print(said, file=sys.stderr)
    is_kernel = words[0].endswith(ptx_program.SUFFIXES)
    if "arch" in options:
        if is_kernel:
            raise UsageError(f"arch={options['arch']} is for a program: PTX says its target itself, and CUDA "
                             f"C++ takes options=-arch={options['arch']}")  # fmt: skip
        asked["arch"] = options["arch"]
    if "suppress" in options:
        asked["suppressions"] = suppressions(options["suppress"])
    try:
        run = ptx_program.run if is_kernel else program.run
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
