"""Pipelines made of `Shared`, `Ring` and `Array` on a real GPU."""

import numpy as np
import pytest

from numba_deform.course.pipelines import copy, product, reduction
from numba_deform.engines.gpu.guard import launch_guarded
from numba_deform.engines.gpu.in_place import launch_in_place
from numba_deform.engines.gpu.launch import launch

PIPELINES = {
    "copy": (copy, copy.copy, lambda data: data),
    "sums": (reduction, reduction.column_sums, lambda data: data.sum(0)),
    "product": (product, product.product, lambda ab: ab[0].astype(np.float32) @ ab[1].T.astype(np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("run", [launch_guarded, launch], ids=["guarded", "plain"])
@pytest.mark.parametrize("name", PIPELINES)
def test_it_is_right(hopper, name, run):
    pipeline, kernel, expected = PIPELINES[name]
    given, args = pipeline.arguments(40)
    launch_in_place(hopper, kernel, 1, args, kernel.shared_bytes, run)
    np.testing.assert_array_equal(args[-2], expected(given))
