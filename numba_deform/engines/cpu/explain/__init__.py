"""What is wrong, in words.

The rooms below find that a rule is broken, and where. This one says why, and what would mend it. It looks at
the threads as they stand, and may let others go on first, so that a report can name what comes late: so it is
asked at once, where the fault is found. Nothing below imports it: ``Execution`` hands this module in, and each
block and thread has it as ``explain``, with these names.

``accesses``, ``refills`` and ``groups`` speak of accesses that nothing orders, and of what is left when a block
has ended. Of two that race ``race_causes`` looks for the cause, with ``source_causes`` and ``flag_causes``.
``arrivals``, ``missing_arrivals`` and ``waits`` speak of mbarriers, ``meetings`` of other barriers and warps,
``load_checks`` of boxes that go astray, ``tensor_cells`` of tensor memory. ``error_origin`` says whose mistake
an exception is.
"""

# ruff: noqa: F401
from .accesses import bad_access, bad_overwrite, bad_scope, outside, undefined_use
from .arrivals import bad_arrival, from_afar, inval_fault, late_announcement, overtaken, too_few_bytes
from .error_origin import blamed
from .groups import outlives, sends_after_its_end, visits_ended, wait_for_product
from .load_checks import LoadChecks
from .meetings import cure_of_named_barrier, lanes_apart, lapped, other_count, without_its_warp
from .missing_arrivals import MissingArrivalsReport
from .refills import missed_phase, unfenced_refill, verb_of
from .source_order import depth_of
from .tensor_cells import cells_in_flight, unwritten_cell
from .waits import blame_waits
