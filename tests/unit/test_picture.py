"""The picture goes in, comes out recognisable, and damage to it can be seen."""

import sys

import numpy as np
import pytest

from numba_deform.attention.reference import reference
from numba_deform.kernels.problem import pixel_centres
from numba_deform.workloads.picture import PictureWorkload, picture_workload, write_picture
from numba_deform.workloads.workload import WorkloadError

image_module = pytest.importorskip("PIL.Image")


@pytest.fixture
def drawing(tmp_path):
    """A picture without symmetry: red grows to the right, green downwards, a blue patch."""
    x, y = np.linspace(0, 1, 40), np.linspace(0, 1, 60)[:, None]
    pixels = np.zeros((60, 40, 3), np.uint8)
    pixels[..., 0] = 255 * x * (1 - 0.3 * y)
    pixels[..., 1] = 255 * y * (1 - 0.3 * x)
    pixels[10:25, 5:15, 2] = 255
    path = tmp_path / "drawing.png"
    image_module.fromarray(pixels).save(path)
    return path


def output(inputs):
    return reference(
        inputs.value,
        inputs.spatial_shapes,
        inputs.level_start_index,
        inputs.sampling_locations,
        inputs.attention_weights,
    )


def pixels_of(path, rows, columns):
    """The colours of a written picture, one for each query, 0..1."""
    with image_module.open(path) as file:
        pixels = np.asarray(file.convert("RGB"), np.float64) / 255
    scale = pixels.shape[0] // rows
    assert pixels.shape == (rows * scale, columns * scale, 3) and scale > 1
    small = pixels[::scale, ::scale]
    assert np.array_equal(np.kron(small, np.ones((scale, scale, 1))), pixels)
    return small


def test_pyramid_carries_the_picture_in_every_head(drawing):
    workload, inputs = picture_workload(drawing, size=(30, 20), num_heads=3, num_levels=4)
    assert workload.levels == ((30, 20), (15, 10), (8, 5), (4, 3))
    assert inputs.value.shape == (1, workload.spatial_size, 3, 32)
    with image_module.open(drawing) as file:
        full = np.asarray(file, np.float64) / 255
    finest = full.reshape(30, 2, 20, 2, 3).mean(axis=(1, 3)).reshape(600, 3)
    for head in range(3):
        np.testing.assert_allclose(
            inputs.value[0, :600, head, :3], finest, atol=6e-3
        )  # 8-bit, fp16
    # Each level has the picture's mean colour, also where a side is odd.
    for (h, w), start in zip(workload.levels, workload.level_start_index, strict=True):
        mean = inputs.value[0, start : start + h * w, 0, :3].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(mean, full.mean(axis=(0, 1)), atol=0.01)
    features = inputs.value[0].astype(np.float64)
    assert np.isfinite(features).all() and abs(features).max() <= 1.01
    assert (features.std(axis=0) > 1e-4).all()  # no channel is a constant
    assert abs(features[:, 0] - features[:, 1]).max() > 0.1  # heads differ


def test_output_is_the_picture_again(drawing, tmp_path):
    workload, inputs = picture_workload(drawing, size=(30, 20))
    assert workload.num_query == workload.spatial_size == inputs.sampling_locations.shape[1]
    np.testing.assert_allclose(
        inputs.attention_weights.astype(np.float64).sum(axis=(3, 4)), 1, atol=5e-3
    )
    path = write_picture(tmp_path / "out.png", output(inputs), workload)
    seen = pixels_of(path, 30, 20)
    original = inputs.value[0, :600, 0, :3].astype(np.float64).reshape(30, 20, 3)
    inner = np.s_[3:-3, 3:-3]  # the edge of the picture fades into zero padding
    assert abs(seen[inner] - original[inner]).mean() < 0.05
    for channel in range(3):
        both = seen[inner][..., channel].ravel(), original[inner][..., channel].ravel()
        assert np.corrcoef(*both)[0, 1] > 0.95


def test_offsets_are_pixels_of_their_level(drawing):
    workload, inputs = picture_workload(drawing, (64, 16), num_heads=1, num_points=1, sigma=0.4)
    size = workload.spatial_shapes[:, ::-1]
    centre = pixel_centres(workload.levels)[:, None] * size
    offset = inputs.sampling_locations[0, :, 0, :, 0].astype(np.float64) * size - centre
    np.testing.assert_allclose(offset.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(offset.std(axis=0), 0.4, atol=0.04)


def test_damage_shows(drawing, tmp_path):
    workload, inputs = picture_workload(drawing, size=(30, 20))
    out = output(inputs)
    right = pixels_of(write_picture(tmp_path / "right.png", out, workload), 30, 20)
    out[0, 105] = np.nan  # row 5, column 5
    out[0, 207] = out[0, 599]  # row 10, column 7 shows the far corner
    wrong = pixels_of(write_picture(tmp_path / "wrong.png", out, workload), 30, 20)
    changed = np.argwhere(abs(right - wrong).max(axis=-1) > 0.2).tolist()
    assert changed == [[5, 5], [10, 7]]
    assert wrong[5, 5].tolist() == [1, 0, 1]


@pytest.mark.parametrize(("queries", "grid"), [((6, 4), (6, 4)), (24, (6, 4)), (10**6, (30, 20))])
def test_a_grid_of_queries_for_the_cpu_engine(drawing, tmp_path, queries, grid):
    workload, inputs = picture_workload(drawing, size=(30, 20), queries=queries, num_heads=1)
    assert workload.grid == grid and workload.num_query == grid[0] * grid[1]
    path = write_picture(tmp_path / "out.png", output(inputs), workload)
    seen = pixels_of(path, *grid)
    # Red still grows to the right, green downwards, away from the fading edge.
    assert (seen[1:-1, -2, 0] - seen[1:-1, 1, 0]).min() > 0.12
    assert (seen[-2, 1:-1, 1] - seen[1, 1:-1, 1]).min() > 0.12


def test_generate_is_repeatable(drawing):
    workload, inputs = picture_workload(drawing, size=(8, 6), seed=5)
    assert isinstance(workload, PictureWorkload)
    again, other = workload.generate(5), workload.generate(6)
    assert np.array_equal(again.sampling_locations, inputs.sampling_locations)
    assert np.array_equal(again.value, inputs.value) and np.array_equal(other.value, inputs.value)
    assert not np.array_equal(other.sampling_locations, inputs.sampling_locations)


def test_default_picture():
    pytest.importorskip("matplotlib")
    workload, inputs = picture_workload(size=(24, 20), num_levels=3)
    red, green, blue = inputs.value[0, :480, 0, :3].astype(np.float64).reshape(24, 20, 3).T
    # The portrait has a blue wall at the top right, and a face in the middle.
    assert blue[-4:, :8].mean() > red[-4:, :8].mean() + 0.2
    assert red[8:12, 8:12].mean() > blue[8:12, 8:12].mean() + 0.1


def test_the_package_is_named_when_something_is_missing(drawing, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib, or .*image of your own"):
        picture_workload(size=(8, 6))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="Pillow: pip install pillow"):
        picture_workload(drawing, size=(8, 6))


def test_bad_arguments(drawing, tmp_path):
    workload, inputs = picture_workload(drawing, size=(8, 6), num_heads=2)
    with pytest.raises(ValueError, match=r"\(1, 64, 32\).*\(1, 64, 64\)"):
        write_picture(tmp_path / "out.png", output(inputs)[..., :32], workload)
    with pytest.raises(WorkloadError, match="channels=2"):
        picture_workload(drawing, size=(8, 6), channels=2)
    with pytest.raises(WorkloadError, match=r"queries=\(0, 4\)"):
        picture_workload(drawing, size=(8, 6), queries=(0, 4))
    with pytest.raises(WorkloadError, match="unpadded"):
        workload.replace(padded=True)
