"""The engine with no look at accesses, by which ``check`` finishes what has a fault: the numbers are right."""

import pytest

from numba_deform.course.pipelines.attention import attention
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.course.pipelines.stencil import stencil
from numba_deform.engines.cpu.schedules.prepared_launch import PreparedLaunch
from numba_deform.engines.cpu.schedules.simulate import Report
from numba_deform.engines.waivers import WAIVERS

LAUNCHES = copy(), product(steps=2), column_sums(), stencil(), multicast(), attention(), attention(by="wgmma")


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.title)
def test_pipelines(launch):
    """TMA, cp.async, ldmatrix, mma, wgmma, clusters; outputs are compared with what is expected."""
    waive = set(WAIVERS) - {"same-value"}
    grid = PreparedLaunch(launch, None, None, (), None, 60.0, compiled=False, waive=waive)
    grid.unjudged = True
    grid.run(0, "late", False, Report())
