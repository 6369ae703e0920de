"""``tile[i]`` costs as many virtual cycles as the load or the store of that element by its address."""

import numpy as np
import pytest
from numba import uint32

import numba_deform as nd
from numba_deform.engines.cpu.memory.cycle_costs import COST

WORDS = 12
shared = nd.Shared(tile=nd.Array((3, 4), nd.uint32))


@nd.kernel(threads=1, shared=shared)
def clocked(data: nd.uint32[:], out: nd.uint32[:], times: nd.uint64[:]):
    shared.init()
    tile, address, total = shared.tile.view(), nd.shared_address(shared.tile.view()), uint32(0)
    marks = nd.clock64()
    for i in range(WORDS):
        tile[i // 4, i % 4] = i
    times[0] = nd.clock64() - marks
    marks = nd.clock64()
    for i in range(WORDS):
        nd.st_shared_b32(address + 4 * i, i)
    times[1] = nd.clock64() - marks
    marks = nd.clock64()
    for i in range(WORDS):
        total += tile[i // 4, i % 4]
    times[2] = nd.clock64() - marks
    marks = nd.clock64()
    for i in range(WORDS):
        total += nd.ld_shared_b32(address + 4 * i)
    times[3] = nd.clock64() - marks
    marks = nd.clock64()
    for i in range(WORDS):
        total += data[i]
    times[4] = nd.clock64() - marks
    marks = nd.clock64()
    for i in range(WORDS):
        out[i] = total
    times[5] = nd.clock64() - marks


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "machine code"])
def test_elements_cost_what_loads_and_stores_do(compiled):
    data, out, times = np.ones(WORDS, np.uint32), np.zeros(WORDS, np.uint32), np.zeros(6, np.uint64)
    nd.simulate(clocked, 1, 1, (data, out, times), compiled=compiled)
    taken = (times - 1).tolist()  # the second look at the clock takes one
    assert taken == [WORDS * COST.shared_access] * 4 + [WORDS * COST.global_access] * 2
