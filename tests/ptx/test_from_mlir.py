"""Kernels of numba-cuda-mlir. What it compiles needs it (``pip install 'numba_deform[mlir]'``)."""

import importlib.util

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.engines.cpu.frontends.ptx.compilers.mlir_kernels import parameters_of, words

needs_mlir = pytest.mark.skipif(not importlib.util.find_spec("numba_cuda_mlir"), reason="needs numba-cuda-mlir")
WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
VIEWS = {"whole": WHOLE, "columns": WHOLE[:, 1::2], "fortran": np.asfortranarray(WHOLE),
         "backwards": WHOLE[::-1, ::-2]}  # fmt: skip


@pytest.mark.parametrize("value", VIEWS.values(), ids=VIEWS)
def test_an_array_goes_over_as_a_memref(value):
    """What a kernel reads at ``first + offset + i * step + j * step`` is the array's element."""
    allocated, memory, offset, *sizes, row, column = words("x", value)
    names = parameters_of("x", value)
    assert names == ["x_allocated", "x", "x_offset", "x_size_0", "x_size_1", "x_step_0", "x_step_1"]
    assert allocated == memory.ctypes.data and sizes == list(value.shape)
    numbers = memory.ravel("K").view(np.float32)
    rows, columns = np.indices(value.shape)
    np.testing.assert_array_equal(numbers[offset + rows * row + columns * column], value)


def test_numbers_go_over_as_bits():
    assert words("n", -1) == [(1 << 64) - 1]
    assert words("n", np.int32(-2)) == [0xFFFFFFFE]
    assert words("n", True) == [1]
    assert words("n", np.float16(1.5)) == [0x3E00]
    assert words("n", 2.5) == [2.5] and words("n", np.float32(0.5)) == [np.float32(0.5)]


@pytest.mark.parametrize("value", ["5", (1, 2), None, object()])
def test_another_kind_of_argument(value):
    with pytest.raises(TypeError, match=f"argument x is a {type(value).__name__}; the engine takes arrays"):
        words("x", value)


def test_a_configuration_that_is_none():
    with pytest.raises(ValueError, match=r"must be \[grid, block\]"):
        nd.from_mlir(lambda x: None)[4]
    with pytest.raises(TypeError, match="takes x; 0 were given"):
        nd.from_mlir(lambda x: None)[4, 32]()


def reversed_rows(forgotten):
    from numba_cuda_mlir import cuda, types

    @cuda.jit(fastmath=True)
    def kernel(x, y, a, n):
        tile = cuda.shared.array(64, types.float32)
        i, t = cuda.grid(1), cuda.threadIdx.x
        tile[t] = x[i, 0]
        if not forgotten:
            cuda.syncthreads()
        if i < n:
            y[i] = a * tile[63 - t]

    return nd.from_mlir(kernel)


@needs_mlir
@pytest.mark.parametrize("step", [1, -1])
def test_a_right_kernel(step):
    x = np.random.default_rng(1).random((128, 3), np.float32)[::step]
    kernel, y = reversed_rows(False), np.full(128, np.nan)
    for n in (np.int32(100), 100):  # two types, two kernels
        y[:] = np.nan
        report = nd.simulate(kernel[2, 64](x, y, 2.0, n))
        assert (report.blocks, report.threads) == (2, 64)
        np.testing.assert_array_equal(y[:100], 2.0 * x[:, 0].reshape(2, 64)[:, ::-1].reshape(-1)[:100])
        assert np.isnan(y[100:]).all()
    assert len(kernel.compiled) == 2


@needs_mlir
def test_a_forgotten_barrier_is_named_at_the_line():
    x, y = np.ones((64, 3), np.float32), np.zeros(64)
    with pytest.raises(nd.SimFault) as caught:
        nd.simulate(reversed_rows(True)[1, 64](x, y, 2.0, 64))
    assert type(caught.value).__name__ == "DataRace" and "y[i] = a * tile[63 - t]" in str(caught.value)


@needs_mlir
def test_an_index_past_the_end_names_the_array():
    x, y = np.ones((64, 3), np.float32), np.zeros(60)
    with pytest.raises(nd.SimFault, match=r"OutOfRange: .* y") as caught:
        nd.simulate(reversed_rows(False)[1, 64](x, y, 2.0, 64))
    assert "y[i] = a * tile[63 - t]" in str(caught.value)
