"""Pipelines made of `Shared`, `Ring` and `Array` on a real GPU."""

import pytest

from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.product import product
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.engines.gpu.in_place import run_launch


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "plain"])
@pytest.mark.parametrize("pipeline", [copy, column_sums, product], ids=lambda p: p.name)
def test_it_is_right(hopper, pipeline, guarded):
    run_launch(hopper, pipeline(steps=40), guarded)
