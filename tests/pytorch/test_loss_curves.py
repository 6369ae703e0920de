"""bench/loss_curves.py: what it says of curves; tiny models learn with this operator as with their own code."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("scipy", reason="SciPy is not installed, with which these models match boxes")

from tiny_models import transformers  # noqa: E402, F401

SCRIPT = Path(__file__).parents[2] / "bench" / "loss_curves.py"
STEPS = 6
LIMITS = {"gradients": 1e-2, "first": 1e-4}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("loss_curves", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("model", ["deformable-detr", "d-fine"])
def test_curves_are_those_of_the_models_own_code(script, one_thread, model):
    rows = script.rows_of(model, device="cpu", tiny=True, side=64, steps=STEPS, autocast="none")
    first, *_, row = rows
    assert list(first["losses"]) == ["original"] and "distance" not in first, "a row is there after each run"
    losses = row["losses"]
    for end in ("", "-2"):
        assert len(losses[f"numba_deform{end}"]) == STEPS
        assert losses[f"numba_deform{end}"] == pytest.approx(losses[f"original{end}"], rel=1e-4)
        assert row["grid_samples"][f"original{end}"] > 0 == row["grid_samples"][f"numba_deform{end}"]
    assert row["within_noise"] and row["gradients"] < 1e-5 and row["first"] < 1e-5
    assert row["noise"] > 1e-3 and 0 < row["bit_noise"] < row["noise"], "seed and bits change something"


CURVE = [10 - step / 10 for step in range(40)]


def curves(ours, noise=0.3):
    """What is compared, if ours lie at ``ours(step)`` above the original of their seed."""
    above = [loss + ours(step) for step, loss in enumerate(CURVE)]
    other = [loss + noise for loss in CURVE]
    return {
        "original": CURVE, "original-2": other, "original-moved": CURVE,
        "numba_deform": above, "numba_deform-2": [loss + noise for loss in above],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "within"),
    [
        (lambda step: 0, True),
        (lambda step: 0.2 * (step > 3), True),
        (lambda step: 5 * (-1) ** step * (step > 3), True),  # smoothed away: every second step is above
        (lambda step: 0.4 * (step > 3), False),  # further away than another seed
        (lambda step: 0.01, False),  # from the first step on: no noise
        (lambda step: 0.01 * (step == 0), False),
    ],
)
def test_what_is_within_the_noise(script, ours, within):
    losses = curves(ours)
    gradients = dict.fromkeys(losses, {"value_proj": torch.ones(4)})
    found = script.compare(losses, gradients, LIMITS)
    assert found["within_noise"] == within
    assert found["noise"] == pytest.approx(0.3) and found["bit_noise"] == found["gradients"] == 0


@pytest.mark.parametrize("run", ["numba_deform", "numba_deform-2"])
def test_a_gradient_that_is_off(script, run):
    losses = curves(lambda step: 0)
    gradients = {run: {"one": torch.ones(4), "other": torch.ones(4)} for run in losses}
    for error, within in ((0.005, True), (0.02, False)):
        gradients[run] = {"one": torch.ones(4), "other": torch.full((4,), 1 + error)}
        found = script.compare(losses, gradients, LIMITS)
        assert found["gradients"] == pytest.approx(error, rel=1e-3) and found["within_noise"] == within


def test_the_distance_is_that_of_smoothed_curves(script):
    assert script.distance([0, 0, 0, 0, 0], [4, 0, 0, 0, 0]) == pytest.approx((4 + 2 + 4 / 3 + 1 + 0) / 5)
