"""Data directories: what is written comes back, and every kind of damage is named."""

import numpy as np
import pytest

from numba_deform.workloads.data import DataError, read_directory, write_directory
from numba_deform.workloads.presets import preset

FILES = {
    "value.bin": 2 * 2 * 81 * 2 * 32,
    "spatial_shapes.bin": 8 * 3 * 2,
    "level_start_index.bin": 8 * 3,
    "sampling_locations.bin": 2 * 2 * 23 * 2 * 3 * 4 * 2,
    "attention_weights.bin": 2 * 2 * 23 * 2 * 3 * 4,
}


def read(path, workload, **changes):
    fields = ("batch", "num_query", "num_heads", "channels", "num_levels", "num_points")
    sizes = {field: getattr(workload, field) for field in (*fields, "spatial_size")}
    return read_directory(path, **{**sizes, **changes})


@pytest.fixture
def written(tmp_path):
    """The unpadded `tiny` workload in a directory, for tests that damage it."""
    workload = preset("tiny")
    write_directory(tmp_path / "data", workload.generate())
    return workload, tmp_path / "data"


@pytest.mark.parametrize("padded", [False, True])
def test_round_trip(tmp_path, padded):
    workload = preset("tiny", padded=padded)
    inputs = workload.generate()
    write_directory(tmp_path / "new" / "data", inputs)
    for asked in (None, padded):
        back = read(tmp_path / "new" / "data", workload, padded=asked)
        assert back.padded is padded
        for name in vars(inputs):
            if name != "padded":
                found, expected = getattr(back, name), getattr(inputs, name)
                assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_bytes_are_the_format(written):
    workload, path = written
    assert {file.name: file.stat().st_size for file in path.iterdir()} == FILES
    inputs = workload.generate()
    # float16, little-endian, C before H before S before B
    number = int.from_bytes((path / "value.bin").read_bytes()[2 * 37 : 2 * 38], "little")
    assert number == int(inputs.value[0, 0, 1, 5].view(np.uint16))
    assert (path / "spatial_shapes.bin").read_bytes()[:16] == bytes([9, *[0] * 7, 7, *[0] * 7])


def test_missing_files_are_all_named(written):
    workload, path = written
    (path / "value.bin").unlink()
    (path / "attention_weights.bin").unlink()
    with pytest.raises(DataError, match="no value.bin, attention_weights.bin;"):
        read(path, workload)
    with pytest.raises(DataError, match="nowhere: no spatial_shapes.bin"):
        read(path / "nowhere", workload)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", [-1, 8])
def test_wrong_number_of_bytes(written, name, change):
    workload, path = written
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[:change] if change < 0 else content + bytes(change))
    expected, found = f"{FILES[name]:,}", f"{FILES[name] + change:,}"
    with pytest.raises(DataError, match=f"{name}: expected {expected} bytes .*found {found}"):
        read(path, workload)


def test_wrong_arguments_name_the_first_file_that_disagrees(written):
    workload, path = written
    with pytest.raises(DataError, match=r"sampling_locations.bin: .*\(2, 24, 2, 3, 4, 2\)"):
        read(path, workload, num_query=24)
    with pytest.raises(DataError, match=r"value.bin: .*\(B, S, H, C\) = \(2, 81, 2, 64\)"):
        read(path, workload, channels=64)
    with pytest.raises(DataError, match=r"spatial_shapes.bin: .*\(4, 2\)"):
        read(path, workload, num_levels=4)


def test_wrong_spatial_size(written):
    workload, path = written
    with pytest.raises(DataError, match="81 positions, or 149 with.*spatial_size=100"):
        read(path, workload, spatial_size=100)


def test_padding_that_contradicts_spatial_size(tmp_path):
    for padded, message in (
        (True, "says 81 positions but spatial_size=149.*needs padded=True"),
        (False, "says 149 positions .* but spatial_size=81.*needs padded=False"),
    ):
        workload = preset("tiny", padded=padded)
        path = tmp_path / str(padded)
        write_directory(path, workload.generate())
        with pytest.raises(DataError, match=message):
            read(path, workload, padded=not padded)


def test_level_starts_of_the_other_layout(tmp_path):
    workload = preset("tiny", padded=True)
    inputs = workload.generate()
    inputs.level_start_index = preset("tiny").level_start_index
    write_directory(tmp_path, inputs)
    with pytest.raises(
        DataError, match=r"level_start_index.bin: holds \[0, 63, 78\].*\[0, 99, 134"
    ):
        read(tmp_path, workload)


def test_level_without_pixels(written):
    workload, path = written
    np.array([[9, 7], [5, 3], [0, 1]], "<i8").tofile(path / "spatial_shapes.bin")
    with pytest.raises(DataError, match="spatial_shapes.bin: .*at least 1"):
        read(path, workload)


def test_border_must_be_zero(tmp_path):
    workload = preset("tiny", padded=True)
    inputs = workload.generate()
    inputs.value[1, 99, 0, 3] = 2.5  # the first corner of the second level
    write_directory(tmp_path, inputs)
    with pytest.raises(DataError, match=r"value.bin: 1 elements .*value\[1, 99, 0, 3\] = 2.5"):
        read(tmp_path, workload)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_float16_is_written(tmp_path, dtype):
    workload = preset("tiny", dtype=dtype)
    inputs = workload.generate()
    with pytest.raises(DataError, match=f"value.bin: .*{dtype}.*convert=True"):
        write_directory(tmp_path / "data", inputs)
    assert not (tmp_path / "data").exists()
    write_directory(tmp_path / "data", inputs, convert=True)
    back = read(tmp_path / "data", workload)
    for name in ("value", "sampling_locations", "attention_weights"):
        expected = getattr(inputs, name).astype(np.float32)
        assert getattr(back, name).dtype == np.float16
        np.testing.assert_allclose(getattr(back, name), expected, rtol=2**-11, atol=1e-7)


def test_conversion_refuses_overflow(tmp_path):
    inputs = preset("tiny", dtype="float32").generate()
    inputs.value[0, 0, 0, 0] = 1e5
    with pytest.raises(DataError, match="value exceeds 65504"):
        write_directory(tmp_path / "data", inputs, convert=True)
    assert not (tmp_path / "data").exists()
