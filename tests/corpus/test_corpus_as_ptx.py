"""The corpus, and the instructions beside it, once more, as the PTX that NVVM makes of them with optimisation:
a second judge of both front ends.

``as_ptx.json`` names the programs of which something else is said, each with the reason:
    lines     the right rule is named, at another line (or at none, where NVVM does not compile it with lines)
    silent    a wrong one in which nothing is found
    otherwise {program: the fault that is named instead, of a right program or a wrong one}
    unread    the front end refuses it
"""

import enum
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from base import LANDINGS, load
from numba import types

import numba_deform as nd
from numba_deform.engines import faults

sys.path.insert(0, str(Path(__file__).parents[1] / "ptx"))
from stored import ptx_of  # noqa: E402

CORPUS = {name: p for name, p in load().items() if faults.NotCompiled not in p.faults}
RIGHT = [name for name, program in CORPUS.items() if not program.faults]
WRONG = [name for name, program in CORPUS.items() if program.faults]
PROGRAMS = CORPUS | load("instructions")  # that pipelines are made of
EXCEPTIONS = json.loads((Path(__file__).parent / "as_ptx.json").read_text())
TIMEOUT = 10.0  # seconds for one that never ends


def flat(args, kinds):
    """Arguments as Numba's kernels take them: an array is two pointers of Python's objects, its number of
    elements, their size, its address, shape and strides."""
    for arg, kind in zip(args, kinds, strict=True):
        if isinstance(arg, tuple):
            yield from flat(arg, kind)
        elif isinstance(arg, np.ndarray) and kind != types.uint64:
            yield from (0, 0, arg.size, arg.itemsize, arg, *arg.shape, *arg.strides)
        elif isinstance(arg, (np.datetime64, np.timedelta64)):
            yield int(arg.view(np.int64))
        elif isinstance(arg, (complex, np.complexfloating)):
            yield from (arg.real, arg.imag)
        else:
            yield arg.value if isinstance(arg, enum.Enum) else arg


class AsPtx:
    """A program whose kernel is PTX."""

    def __init__(self, program):
        self.program, typed = program, program.typed()
        text = ptx_of(typed)
        self.kinds, module = typed.signature.args, nd.from_ptx(text)
        self.kernel = module[next(iter(module))]

    def run(self, **more):
        """The program's arguments after a run."""
        program, args = self.program, self.program.args()
        options = {"cluster": program.cluster, "timeout": TIMEOUT, **program.options, **more}
        given = list(flat(args, self.kinds))
        nd.simulate(self.kernel, program.grid, program.block, given, program.shared_bytes, **options)
        return args

    def search(self):
        """As ``Program.search``."""
        program = self.program
        for seed in range(10):
            self.run(landing=LANDINGS[seed % 3], seed=seed)
        if not program.cluster:
            given = list(flat(program.args(), self.kinds))
            launch = program.grid, program.block, given, program.shared_bytes
            nd.explore(self.kernel, *launch, 400, timeout=program.options.get("timeout", TIMEOUT))


def verdict(name):
    """(the list of exceptions that a program belongs to, "" for none; what is said instead)"""
    program = PROGRAMS[name]
    try:
        as_ptx = AsPtx(program)
    except ValueError as error:
        return "unread", re.sub(r".*line \d+: ", "", str(error))
    try:
        if program.faults:
            as_ptx.search()
            return "silent", ""
        for landing in LANDINGS:
            assert program.wrong(as_ptx.run(landing=landing, seed=LANDINGS.index(landing))) == 0
        return "", ""
    except nd.SimFault as fault:
        if type(fault) not in program.faults:
            return "otherwise", type(fault).__name__
        return ("", "") if program.blames(fault) else ("lines", "")


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_verdict_is_that_of_the_source(name):
    expected = next((where for where, group in EXCEPTIONS.items() if name in group), "")
    found, instead = verdict(name)
    assert found == expected, instead
    if instead and expected == "otherwise":
        assert EXCEPTIONS["otherwise"][name].startswith(f"{instead}: ")


def test_a_poll_that_gives_up_is_seen_in_ptx():
    """``explore`` tells a thread's states by the variables of the kernel's own frames."""
    assert verdict("gives_up_after_many_looks") == ("", "")


def test_exceptions_are_few_and_have_reasons():
    named = [name for group in EXCEPTIONS.values() for name in group]
    assert len(named) == len(set(named)) and set(named) <= set(PROGRAMS)
    assert all(len(why) > 20 for group in EXCEPTIONS.values() for why in group.values())
    rules = {name for where in ("silent", "otherwise", "unread") for name in EXCEPTIONS[where]}
    assert len(rules & set(RIGHT)) <= 2 and len(rules & set(WRONG)) <= 0.05 * len(WRONG)


if __name__ == "__main__":  # prints what belongs into as_ptx.json
    for name in sys.argv[1:] or PROGRAMS:
        if any(found := verdict(name)):
            print(name, *found)
