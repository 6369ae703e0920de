"""The programs that a program under ``check`` starts: forked, spawned, and any Python that is run as a command.

A folder holds the options of the check. Each child keeps what it has seen there, in a file of its own, after
every launch, so that nothing is lost however it ends. A new Python gets to know by ``child/sitecustomize.py``;
one that is started with ``-I`` or ``-E``, or without this environment, does not."""

import contextlib
import os
import pickle
import shutil
import tempfile
from pathlib import Path

FOLDER = "NUMBA_DEFORM_CHECK_FOLDER"
OPTIONS = "options"
_open = []  # sessions of this process
_entered = []  # in a child: what keeps the stand-in


@contextlib.contextmanager
def watched(session, options):
    """Inside, children of this process are judged with the same options; at the end ``session`` takes over what
    they have seen."""
    folder = Path(tempfile.mkdtemp(prefix="numba_deform_check_"))
    (folder / OPTIONS).write_bytes(pickle.dumps(options))
    package = Path(__file__).resolve().parents[1]
    before = {name: os.environ.get(name) for name in (FOLDER, "PYTHONPATH")}
    paths = str(package / "programs" / "child"), before["PYTHONPATH"], str(package.parent)
    os.environ |= {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    owner = os.getpid()
    _open.append((session, folder))
    try:
        yield
    finally:
        _open.remove((session, folder))
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if os.getpid() == owner:
            _gather(session, folder)


def _gather(session, folder):
    """``session`` takes over what its children have seen; those that go on are judged no more."""
    for file in sorted(folder.glob("*.seen")):
        session.add(pickle.loads(file.read_bytes()))
    shutil.rmtree(folder, ignore_errors=True)


def gathered():
    """The first session of this process that is open, with what its children have seen, or None: for its last
    moment."""
    session, folder = next(iter(_open), (None, None))
    if session is not None and session.folder is None:
        _gather(session, folder)
    return session


def parent_session():
    """The session of a process that one under ``check`` has started, or None."""
    return next((session for session, _ in _open if session.folder is not None), None)


def start(new_session, stand_ins):
    """In a new Python: judge its launches until it ends, and those of the programs that it starts."""
    folder = Path(os.environ[FOLDER])
    if not (folder / OPTIONS).exists():
        return  # the check has ended
    session = new_session(**pickle.loads((folder / OPTIONS).read_bytes()))
    context = stand_ins(session)
    context.__enter__()
    _entered.append(context)
    _open.append((session, folder))
    _become(session, folder)


def _become(session, folder):
    """This process is a child from now on."""
    session.forget()
    session.folder = folder


def _forked():
    for session, folder in _open:
        _become(session, folder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def keep(session):
    """Write down what a child has seen so far."""
    if session.folder is not None and session.folder.exists():
        file = session.folder / f"{os.getpid()}.seen"
        new = file.with_suffix(".new")
        new.write_bytes(pickle.dumps(session))
        new.replace(file)
