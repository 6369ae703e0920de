"""``pytest --numba-deform``: launches of the tests are judged, and a test in which a fault is met fails.

Under pytest-xdist the workers are children of the controller (``children.py``), which sums up what they have
seen, also that of a worker that was killed."""

import contextlib
from pathlib import Path

import pytest

PLUGIN = "numba_deform_session"
OPTIONS = {  # name: (what it is for, its metavar; None for a flag)
    "": ("run Numba CUDA kernels on numba_deform's CPU engine; a test whose kernels break a rule fails", None),
    "waive": ("rules that may be broken, by commas", "NAMES"),
    "suppress": ("a file of lines RULE FILE:LINE, both patterns: faults that do not count", "FILE"),
    "schedules": ("try that many orders of the threads of each launch", "N"),
    "explore": ("try every order of a launch's events first", None),
    "stop": ("end a test at its first fault", None),
    "all": ("judge every block of large launches, too", None),
    "strict": ("judge what Triton's compiler emits and its users cannot mend, too", None),
    "json": ("a JSON file to write", "FILE"),
    "sarif": ("a SARIF file to write, which GitHub shows on the lines of a change", "FILE"),
}


def pytest_addoption(parser):
    group = parser.getgroup("numba-deform")
    for name, (about, metavar) in OPTIONS.items():
        option = f"--numba-deform-{name}".rstrip("-")
        more = {"metavar": metavar} if metavar else {"action": "store_true"}
        group.addoption(option, help=about, **more)


def pytest_configure(config):
    if config.getoption("--numba-deform"):
        config.pluginmanager.register(Judge(config), PLUGIN)


def session_options(options):
    """What ``check`` is asked for. ValueError and OSError as it raises them, and for a number that is none."""
    from .session import suppressions

    if not (number := options["schedules"] or "1").isdecimal() or not int(number):
        raise ValueError(f"--numba-deform-schedules={number}: a whole number from 1 on")
    return {
        "waive": [name for name in (options["waive"] or "").split(",") if name], "schedules": int(number),
        "suppressions": suppressions(options["suppress"]) if options["suppress"] else (),
        "explored": options["explore"], "stop": options["stop"], "all": options["all"],
        "strict": options["strict"],
    }  # fmt: skip


class Judge:
    """The hooks of a run with the option. ``files``: {what is written: its file}, of a controller."""

    def __init__(self, config):
        from . import endings, progress
        from .children import parent_session
        from .session import check

        options = {name: config.getoption(f"--numba-deform-{name}") for name in OPTIONS if name}
        self.config, self.context = config, contextlib.ExitStack()
        self.of_a_worker = hasattr(config, "workerinput")
        files = {kind: options[kind] for kind in ("json", "sarif") if options[kind] and not self.of_a_worker}
        self.files = {kind: Path(file).absolute() for kind, file in files.items()}
        self.session = parent_session() if self.of_a_worker else None
        self.printing, progress.write = progress.write, self.write
        if self.session is None:
            try:
                self.session = self.context.enter_context(check(**session_options(options)))
            except (ValueError, OSError) as error:
                raise pytest.UsageError(str(error)) from None
            self.context.enter_context(endings.heeded(self.leave))

    def write(self, text):
        """A line of a launch's progress, past what captures the tests' output."""
        capture = self.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            self.printing(text)

    def judged(self, item, when):
        """Around a part of a test: it fails where its launches have faults; where it has failed by itself, they
        are told beside that."""
        from ..engines.faults import SimFault
        from .children import keep
        from .summary import fault_text

        before = {key: finding.count for key, finding in self.session.findings.items()}
        outcome = yield
        found = [f for f in self.session.faults if f.count > before.get(f.key, 0)]
        if not found or outcome.excinfo and issubclass(outcome.excinfo[0], KeyboardInterrupt):
            return  # of an interrupted test nothing is reported
        for finding in found:
            finding.told = True
        keep(self.session)
        text = "\n\n".join(map(fault_text, found))
        if outcome.excinfo is None:
            outcome.force_exception(pytest.fail.Exception(text, pytrace=False))
        elif not isinstance(outcome.excinfo[1], SimFault):  # which ``stop`` has raised
            item.add_report_section(when, "numba-deform", text)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item):
        yield from self.judged(item, "setup")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        yield from self.judged(item, "call")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item):
        yield from self.judged(item, "teardown")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        """Faults that no test has told of, such as those of a child or of a module's import, fail the run."""
        self.context.close()
        untold = any(not finding.told for finding in self.session.faults)
        if not self.of_a_worker and exitstatus == pytest.ExitCode.OK and not self.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if untold else self.session.status(0)
        self.finish(session.exitstatus)

    def finish(self, status):
        from .sarif import WRITERS

        for kind, file in self.files.items():
            WRITERS[kind](self.session, int(status), file)

    def lines(self):
        """What is told at the end: the faults that no test has told of, and the sum."""
        from .summary import fault_text, last_line

        untold = [fault_text(finding) + "\n" for finding in self.session.faults if not finding.told]
        return [*untold, f"numba-deform: {last_line(self.session)}"]

    def pytest_terminal_summary(self, terminalreporter):
        for line in self.lines():
            terminalreporter.write_line(line)

    def leave(self, status):
        """For ``os._exit``, as of pytest-timeout: nothing else will be told."""
        from .children import gathered

        gathered()
        status = self.session.status(status)
        self.write("\n".join(["", *self.lines(), ""]))
        self.finish(status)
        return status

    def pytest_unconfigure(self):
        from . import progress

        self.context.close()
        progress.write = self.printing
