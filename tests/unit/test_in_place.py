"""What goes to the GPU and comes back when a kernel is launched on NumPy arrays; the GPU is a fake."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_deform.course.bugs import BUGS
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.gpu import in_place
from numba_deform.engines.gpu.in_place import launch_in_place
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

ROOM = 1 << 20  # bytes between the addresses of two fake arrays


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose ``moved`` are the arrays that were copied to it, in order."""
    moved = []

    class FakeArray:
        def __init__(self, array):
            self.array, self.address = np.array(array), ROOM * (len(moved) + 1)
            moved.append(self)

        @classmethod
        def of(cls, gpu, array):
            return cls(array)

        def to_numpy(self):
            return self.array

    def encode(maps):
        assert all(m.array is None for m in maps), "maps are of device addresses"
        return maps.host

    monkeypatch.setattr(in_place, "DeviceArray", FakeArray)
    monkeypatch.setattr(TensorMapArray, "encode_into_host", encode)
    return SimpleNamespace(device=SimpleNamespace(sync=lambda: None), moved=moved)


def poke(gpu, address, value):
    """Write a byte where a kernel would."""
    gpu.moved[address // ROOM - 1].array.reshape(-1).view(np.uint8)[address % ROOM] = value


@pytest.mark.parametrize("name", ["no_full_wait", "map_dims_order", "metadata_unwritten"])
def test_each_array_moves_once(gpu, name):
    launched, bug = [], BUGS[name]
    planned = bug.arguments()
    launch_in_place(
        gpu, bug.kernel(), planned.grid, planned.args, planned.shared_bytes,
        lambda *args: launched.append(args),
    )  # fmt: skip
    assert planned.wrong() == planned.out.size  # nothing has run
    _, kernel, grid, args, shared_bytes = launched[0]
    assert (kernel, grid, shared_bytes) == (bug.kernel(), planned.grid, planned.shared_bytes)
    assert len(args) == len(planned.args) == len(bug.kernel().signature.args)
    behind = {id(m.array) for a in planned.args if isinstance(a, TensorMapArray) for m in a}
    assert len(gpu.moved) == len(planned.args) + len(behind)


def test_arrays_are_changed_in_place(gpu):
    out, number = np.zeros(8, np.uint8), 3

    def launch(_, kernel, grid, args, shared_bytes):
        assert args[1] == number
        poke(gpu, args[0] + 5, 9)

    launch_in_place(gpu, None, 1, (out, number), launch=launch)
    assert out.tolist() == [0, 0, 0, 0, 0, 9, 0, 0]


def test_views_share_memory_there_too(gpu):
    whole = np.arange(64, dtype=np.uint8)

    def launch(_, kernel, grid, args, shared_bytes):
        assert args[1] - args[0] == 16 and len(gpu.moved) == 1
        poke(gpu, args[1], 99)

    launch_in_place(gpu, None, 1, (whole, whole[16:32]), launch=launch)
    assert whole[16] == 99 and whole[15] == 15 and whole[17] == 17


def test_an_array_behind_a_map_is_written_too(gpu):
    image = np.zeros((4, 4, 16), np.uint8)
    maps = TensorMapArray([TensorMap.of(image, (16, 2, 2))])

    def launch(_, kernel, grid, args, shared_bytes):
        assert len(gpu.moved) == 2 and args[0] is gpu.moved[1]
        poke(gpu, gpu.moved[0].address + 3, 1)

    launch_in_place(gpu, None, 1, (maps,), launch=launch)
    assert image.reshape(-1)[3] == 1 and image.sum() == 1


def test_read_only_arrays_stay_as_they_are(gpu):
    fixed = np.zeros(4, np.uint8)
    fixed.flags.writeable = False
    launch_in_place(gpu, None, 1, (fixed,), launch=lambda *a: poke(gpu, a[3][0], 1))
    assert not fixed.any()


def test_a_fault_leaves_the_arrays_as_the_kernel_did(gpu):
    out = np.zeros(4, np.uint8)

    def launch(_, kernel, grid, args, shared_bytes):
        poke(gpu, args[0], 1)
        raise SimFault("stopped")

    with pytest.raises(SimFault, match="stopped"):
        launch_in_place(gpu, None, 1, (out,), launch=launch)
    assert out[0] == 1
