"""What a :class:`session.Session` has found, as text, as JSON and as JUnit's XML; and ``sarif`` as SARIF."""

import json
from pathlib import Path
from xml.etree import ElementTree

from ..engines.waivers import in_words

NOTHING = "no kernel was launched, so nothing was judged"


def fault_text(finding):
    """A fault with its launch."""
    grid, block = (_shape(shape) for shape in (finding.grid, finding.block))
    times = f", met in {finding.count} launches" if finding.count > 1 else ""
    what = f"{finding.kernel}[{grid}, {block}], launched" if finding.grid else f"{finding.kernel}, called"
    return f"{finding.fault}\n  in     {what} at {short(finding.launch)}{times}"


def short(place):
    """A place with the name of its file alone."""
    return Path(place).name


def _shape(shape):
    wide = [n for i, n in enumerate(shape) if i == 0 or max(shape[i:]) > 1]
    return str(wide[0]) if len(wide) == 1 else str(tuple(wide))


def text(session):
    """All faults, each once, from where on results are not to be relied on, and how much was judged."""
    unsure = "\n".join(_finished(session))
    return "\n\n".join([*map(fault_text, session.faults), *filter(None, [unsure]), last_line(session)])


def last_line(session):
    if not session.launches and not session.findings:
        return "\n".join((NOTHING, *session.notes))
    waived = dict(zip(session.waived, in_words(session.waived), strict=True))
    met, hidden = len(session.faults), len(session.findings) - len(session.faults)
    parts = [
        f"{_count(session.launches, 'launch', 'launches')} of {_count(len(session.kernels), 'kernel')}",
        *_judged(session),
        _count(met, "fault") if met else "no fault",
        *([f"{hidden} suppressed"] if hidden else []),
        *(f"waived {words}" for name, words in waived.items() if name in session.waive),
    ]
    whole = (f"{name} was judged whole: it {why}" for name, why in session.whole.items())
    stayed = (f"{name} was judged here: {why}" for name, why in session.stayed.items())
    unused = (f"the suppression {' '.join(pair)} was of no use" for pair in session.unused)
    emitted = (f"waived by default, for Triton's compiler emits it: {words} (strict=yes judges it)"
               for name, words in waived.items() if name not in session.waive)  # fmt: skip
    more = *emitted, *_unjudged(session), *whole, *stayed, *session.notes, *unused
    return "\n".join((", ".join(parts), *more))


def _judged(session):
    """How much was judged to its end; nothing to say where all launches ended at a fault."""
    if not session.blocks:
        return
    blocks = _count(session.blocks + session.unjudged, "block")
    some = f"{session.blocks:,} of " * (session.unjudged > 0)
    yield f"{some}{blocks} and {_count(session.threads, 'thread')} judged to their end"


def _unjudged(session):
    """What was not looked at in the blocks of large launches that ran without checks."""
    if session.unjudged:
        blocks = _count(session.unjudged, "block")
        yield f"{blocks} of large launches ran with no look at races and barriers: all=yes judges them, too"
    if session.repeated:
        equal = _count(session.repeated, "launch was equal", "launches were equal")
        yield f"{equal} to an earlier one, with the same content of memory, and not run again"


def _finished(session):
    """From where on results are not to be relied on, and what was not even run to its end."""
    if not session.finished:
        return
    number, name, where, _ = session.finished[0]
    later = len(session.finished) - 1
    more = f", and {_count(later, 'later one')} likewise" if later else ""
    yield (
        f"from launch {number} on ({name}, at {where}) results may not be the GPU's: it has a fault, and was "
        f"finished without checks{more}"
    )
    for reason in dict.fromkeys((name, why) for _, name, _, why in session.finished if why):
        yield "{} could not be finished, and its arrays are as before the launch: {}".format(*reason)


def _count(number, thing, things=None):
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def as_dict(session, status):
    """The same for a program to read; ``status`` is the exit status."""
    return {
        "status": status,
        "launches": session.launches,
        "kernels": len(session.kernels),
        "blocks": session.blocks,
        "blocks_not_judged": session.unjudged,
        "launches_not_run_again": session.repeated,
        "finished_unjudged": session.finished,
        "large_judged_whole": session.whole,
        "notes": list(session.notes),
        "unused_suppressions": session.unused,
        "not_sent_to_the_executor": session.stayed,
        "threads": session.threads,
        "as_machine_code": session.compiled,
        "waived": {name: how_often for name, (how_often, _) in session.waived.items()},
        "waived_by_default": [name for name in session.waived if name not in session.waive],
        "faults": [_fault(finding) for finding in session.findings.values()],
    }


def _fault(finding):
    fault = finding.fault
    return {
        "fault": type(fault).__name__, "what": fault.what, "where": fault.where, "source": fault.source,
        "rule": fault.rule, "cure": fault.cure, "fault_block": fault.block,
        "fault_threads": list(fault.threads), "kernel": finding.kernel, "launch": short(finding.launch),
        "grid": list(finding.grid), "block": list(finding.block), "count": finding.count,
        "suppressed": finding.suppressed,
    }  # fmt: skip


def write_json(session, status, file):
    Path(file).write_text(json.dumps(as_dict(session, status), indent=1) + "\n")


def write_junit(session, status, file):
    """A test case for each kernel at each line that launches it; those with faults have failed."""
    faults = {}
    for finding in session.faults:
        faults.setdefault((finding.launch, finding.kernel), []).append(finding)
    sites = dict.fromkeys((*session.sites, *faults))  # some faults are of no launch
    suite = ElementTree.Element(
        "testsuite", name="numba-deform check", tests=str(len(sites)), failures=str(len(faults))
    )
    for launch, kernel in sites:
        case = ElementTree.SubElement(suite, "testcase", classname=short(launch), name=kernel)
        for finding in faults.get((launch, kernel), ()):
            kind = type(finding.fault).__name__
            failure = ElementTree.SubElement(case, "failure", type=kind, message=finding.fault.what)
            failure.text = fault_text(finding)
    ElementTree.ElementTree(suite).write(file, encoding="unicode", xml_declaration=True)
