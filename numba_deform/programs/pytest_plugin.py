"""``pytest --numba-deform``: launches of the tests are judged, and a test in which a fault is met fails."""

import pytest

PLUGIN = "numba_deform_session"


def pytest_addoption(parser):
    group = parser.getgroup("numba-deform")
    group.addoption(
        "--numba-deform", action="store_true",
        help="run Numba CUDA kernels on numba_deform's CPU engine; a test whose kernels break a rule fails",
    )  # fmt: skip
    group.addoption(
        "--numba-deform-waive", default="", metavar="NAMES", help="rules that may be broken, by commas"
    )
    group.addoption("--numba-deform-all", action="store_true", help="judge every block of large launches, too")


def pytest_configure(config):
    if config.getoption("--numba-deform"):
        config.pluginmanager.register(Judge(config), PLUGIN)


class Judge:
    """The hooks of a run with the option."""

    def __init__(self, config):
        from .session import check

        names = [name for name in config.getoption("--numba-deform-waive").split(",") if name]
        try:
            self.context = check(waive=names, all=config.getoption("--numba-deform-all"))
            self.session = self.context.__enter__()
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        from .summary import fault_text

        before = {key: finding.count for key, finding in self.session.findings.items()}
        outcome = yield
        found = [f for key, f in self.session.findings.items() if f.count > before.get(key, 0)]
        if found and outcome.excinfo is None:
            outcome.force_exception(pytest.fail.Exception("\n\n".join(map(fault_text, found)), pytrace=False))

    def pytest_terminal_summary(self, terminalreporter):
        from .summary import last_line

        terminalreporter.write_line(f"numba-deform: {last_line(self.session)}")

    def pytest_unconfigure(self):
        self.context.__exit__(None, None, None)
