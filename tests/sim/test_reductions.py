"""What reductions compute where numbers are special; random ones are in tests/corpus/instructions."""

import ml_dtypes
import numpy as np
import pytest

from numba_deform.engines.cpu.async_units.reductions import combine, kind_of, types_of

NAN, INF = np.nan, np.inf
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def of_two(op, kind, old, new, dtype=None, flush=False):
    """The result for two numbers, as an array of one."""
    dtype = np.dtype(dtype or TYPES[kind])
    bytes_of = [np.array([x], dtype).tobytes() for x in (old, new)]
    return np.frombuffer(combine(op, kind, *bytes_of, flush), dtype)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("op", "old", "new", "result"),
    [("min", NAN, 1, 1), ("min", 1, NAN, 1), ("max", NAN, -INF, -INF), ("max", 2, NAN, 2), ("min", -3, 2, -3),
     ("max", -3, 2, 2), ("min", 0.0, -0.0, -0.0), ("min", -0.0, 0.0, -0.0), ("max", 0.0, -0.0, 0.0),
     ("max", -0.0, 0.0, 0.0), ("max", -0.0, -0.0, -0.0), ("min", 0.0, 0.0, 0.0), ("max", -0.0, NAN, -0.0),
     ("max", NAN, -0.0, -0.0)],
)  # fmt: skip
def test_extremes_of_short_floats(kind, op, old, new, result):
    got = of_two(op, kind, old, new).astype(np.float32)[0]
    assert got == result and np.signbit(got) == np.signbit(np.float32(result))


@pytest.mark.parametrize("op", ["min", "max"])
def test_two_nans(op):
    assert np.isnan(of_two(op, "f16", NAN, NAN).astype(np.float32)[0])


@pytest.mark.parametrize(
    ("kind", "old", "new", "result"),
    [("f16", 1, 2.0**-11, 1), ("f16", 1 + 2.0**-10, 2.0**-11, 1 + 2.0**-9), ("f16", 65504, 16, INF),
     ("f16", 2.0**-24, 2.0**-24, 2.0**-23), ("bf16", 1, 2.0**-8, 1),
     ("bf16", 1 + 2.0**-7, 2.0**-8, 1 + 2.0**-6),
     ("bf16", 2.0**-130, 2.0**-130, 2.0**-129), ("f32", 1, 2.0**-24, 1), ("f32", 2.0**-130, 0, 2.0**-130),
     ("f32", 1.5 * 2.0**-126, -(2.0**-126), 2.0**-127),
     ("f64", 2.0**-1074, 2.0**-1074, 2.0**-1073), ("f64", 1, 2.0**-53, 1)],
)  # fmt: skip
def test_sums_round_to_even(kind, old, new, result):
    assert of_two("add", kind, old, new).astype(np.float64)[0] == result


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [(2.0**-130, 0, 0), (2.0**-126, -(2.0**-127), 2.0**-126), (1.5 * 2.0**-126, -(2.0**-126), 0)],
)  # fmt: skip
def test_f32_knows_no_subnormals_in_red_and_atom(old, new, result):
    assert of_two("add", "f32", old, new, flush=True)[0] == result


@pytest.mark.parametrize("kind, bits", [("f16", 0x7FFF), ("bf16", 0x7FFF), ("f32", 0x7FFFFFFF)])
def test_a_nan_has_all_its_bits(kind, bits):
    for result in (of_two("add", kind, INF, -INF), of_two("add", kind, -NAN, 1)):
        assert result.view(f"u{result.itemsize}")[0] == bits


@pytest.mark.parametrize(
    ("op", "kind", "dtype", "old", "new", "result"),
    [("add", "u32", np.uint32, 2**32 - 1, 2, 1), ("add", "s32", np.int32, 2**31 - 1, 1, -(2**31)),
     ("add", "u64", np.uint64, 2**64 - 1, 1, 0), ("min", "u32", np.uint32, 2**31, 1, 1),
     ("min", "s32", np.int32, -1, 1, -1), ("max", "u64", np.uint64, 2**63, 1, 2**63),
     ("max", "s64", np.int64, -(2**63), 1, 1), ("inc", "u32", np.uint32, 4, 5, 5),
     ("inc", "u32", np.uint32, 5, 5, 0),
     ("dec", "u32", np.uint32, 0, 5, 5), ("dec", "u32", np.uint32, 6, 5, 5), ("dec", "u32", np.uint32, 5, 5, 4),
     ("and", "b64", np.uint64, 6, 3, 2), ("or", "b32", np.uint32, 6, 3, 7), ("xor", "b32", np.uint32, 6, 3, 5)],
)  # fmt: skip
def test_integers(op, kind, dtype, old, new, result):
    assert of_two(op, kind, old, new, dtype)[0] == result


def test_which_elements_of_a_tensor_have_a_reduction():
    assert kind_of("add", "bfloat16") == "bf16" and kind_of("min", "int64") == "s64"
    for op, dtype in (("min", "float32"), ("and", "float16"), ("add", "uint8"), ("add", "tfloat32")):
        assert kind_of(op, dtype) is None and dtype not in types_of(op)
    assert kind_of(None, "float32") is None and "float64" in types_of("add")
