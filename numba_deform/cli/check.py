"""``numba-deform check PROGRAM``: a whole program with its launches judged, or one launch of a
kernel of PTX or CUDA C++."""

import sys
from pathlib import Path

from ..programs import program, ptx_program
from ..programs.children import gathered
from ..programs.endings import INTERRUPTIONS, heeded
from ..programs.sarif import WRITERS
from ..programs.session import suppressions
from .commands import COMMANDS
from .keys import UsageError, simulation_options


def check(options):
    """Run the program, print what was found, write the files, however it ends; the exit status is that of
    ``Session.status``."""
    words = options["program"]
    if not words or words == ["-m"]:
        raise UsageError("check: a program is missing: numba-deform check PROGRAM.py, or check -m MODULE")
    asked = simulation_options(options)
    asked |= {"explored": bool(options.get("explore")), "stop": bool(options.get("stop")),
              "all": bool(options.get("all")), "strict": bool(options.get("strict"))}  # fmt: skip
    for key in WRITERS.keys() & options.keys():
        file = Path(options[key]).absolute()  # the program may go elsewhere
        if not file.parent.is_dir():
            raise UsageError(f"{key}={options[key]}: there is no directory {file.parent}")
        options[key] = file
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
        with heeded(lambda status: tell(gathered(), status, options)):
            session, status = run(words, asked)
    except ModuleNotFoundError as error:
        raise UsageError(f"check: {error}") from None
    return tell(session, status, options)


def tell(session, status, options):
    """Print and write what was found in a program that has ended with ``status``; returns the exit status."""
    if session is None:  # it has ended before it began
        return status
    sys.stdout.flush()
    interrupted = ", interrupted" * (status in INTERRUPTIONS)
    print(f"\n{session}{interrupted}", file=sys.stderr, flush=True)
    status = session.status(status)
    for key in WRITERS.keys() & options.keys():
        WRITERS[key](session, status, options[key])
    return status
