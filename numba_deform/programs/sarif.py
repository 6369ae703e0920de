"""What a :class:`session.Session` has found as SARIF 2.1.0, which GitHub shows on the lines of a change."""

import json
import sys
from pathlib import Path
from urllib.parse import quote

from .summary import fault_text, last_line, write_json, write_junit

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
PACKAGE = __package__.partition(".")[0]
BASE = "%SRCROOT%"  # GitHub's name


def repository(folder):
    """The folder around ``folder`` that is a repository of Git's, else itself: paths are told from there."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def as_sarif(session, status):
    """The log of one run, which has ended with ``status``. A result is at the fault's line; where that is
    outside the repository and the launch is in it, as with a kernel of a library, at the launch."""
    root, kinds = repository(session.began_in), {}
    for finding in session.findings.values():
        kinds.setdefault(type(finding.fault).__name__, finding.fault)
    told = ({"level": "note", "message": {"text": line}} for line in last_line(session).splitlines())
    run = {
        "tool": {"driver": {"name": PACKAGE, "version": sys.modules[PACKAGE].__version__,
                            "rules": [_rule(*kind) for kind in kinds.items()]}},
        "originalUriBaseIds": {BASE: {"uri": f"{root.as_uri()}/"}},
        "invocations": [{"executionSuccessful": status in (0, 1), "exitCode": status,
                         "toolExecutionNotifications": list(told)}],
        "results": [_result(each, list(kinds), session.began_in, root) for each in session.findings.values()],
    }  # fmt: skip
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(name, fault):
    rule = {"text": fault.rule or name}
    return {"id": name, "name": name, "shortDescription": rule, "fullDescription": rule,
            "help": {"text": fault.cure or name}, "defaultConfiguration": {"level": "error"}}  # fmt: skip


def _result(finding, kinds, began_in, root):
    name = type(finding.fault).__name__
    told = {"where it is met": finding.fault.where, "the launch": finding.launch}
    places = [_location(place, began_in, root) | {"message": {"text": text}}
              for text, place in told.items() if place]  # fmt: skip
    places.sort(key=lambda place: "uriBaseId" not in place["physicalLocation"]["artifactLocation"])
    return {
        "ruleId": name, "ruleIndex": kinds.index(name), "level": "error",
        "message": {"text": fault_text(finding)}, "locations": places[:1], "relatedLocations": places[1:],
        "occurrenceCount": finding.count,
        **({"suppressions": [{"kind": "external"}]} if finding.suppressed else {}),
    }  # fmt: skip


def _location(place, began_in, root):
    """The location of ``file:line``, or of a file, whose path may begin in ``began_in``."""
    file, _, line = place.rpartition(":")
    region = {"region": {"startLine": int(line)}} if file and line.isdigit() and int(line) else {}
    path = (began_in / (file if region else place)).resolve()
    if path.is_relative_to(root):
        artifact = {"uri": quote(path.relative_to(root).as_posix()), "uriBaseId": BASE}
    else:
        artifact = {"uri": path.as_uri()}
    return {"physicalLocation": {"artifactLocation": artifact, **region}}


def write_sarif(session, status, file):
    Path(file).write_text(json.dumps(as_sarif(session, status), indent=1) + "\n")


WRITERS = {"json": write_json, "junit": write_junit, "sarif": write_sarif}
