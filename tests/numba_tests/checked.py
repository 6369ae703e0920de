"""One of numba-cuda's tests under ``nd.check``: a test in which a fault is met has failed."""

from contextlib import ExitStack

import harness

from numba_deform.engines import waivers
from numba_deform.programs.session import check
from numba_deform.programs.summary import fault_text

CONTEXT = ExitStack()
# Programs that tests start end at their first fault, too: the test finds that they have.
SESSION = CONTEXT.enter_context(check(stop=True))


def run(name, waived):
    """As ``harness.outcome_of``, with the rules ``waived``."""
    SESSION.forget()
    SESSION.waive = waivers.names(waived)
    outcome = harness.outcome_of(name)
    if outcome[0] == harness.PASSED and SESSION.faults:
        return "failed", fault_text(SESSION.faults[0])
    return outcome
