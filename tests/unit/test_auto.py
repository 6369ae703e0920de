"""What "auto" chooses, without a GPU: the model, not the time."""

from collections import namedtuple

import numpy as np
import pytest

from numba_deform import auto
from numba_deform.op import check_problem
from numba_deform.workload import preset

Gpu = namedtuple("Gpu", ["name", "capability", "sms"])
H200 = Gpu("H200", (9, 0), 132)


@pytest.fixture(autouse=True)
def no_memory(monkeypatch):
    monkeypatch.setattr(auto, "_FITS", {})


def choice(workload, gpu=H200):
    inputs = workload.generate(seed=0)
    problem = check_problem(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights, inputs.padded,
    )  # fmt: skip
    return auto.choose(gpu, problem, np.asarray(inputs.sampling_locations))


ENCODER = preset("mask2former")


@pytest.mark.parametrize(
    "changes, name, words",
    [
        (dict(pattern="local", sigma=2.0), "window", "< 3.8 of direct"),
        (dict(pattern="local", sigma=0.5), "window", "0.00% of the samples"),
        (dict(pattern="local", sigma=16.0), "direct", ">= 3.8 of direct"),
        (dict(pattern="uniform"), "direct", ">= 3.8 of direct"),
        (dict(pattern="local", num_query=2000), "direct", "16000 rows are few"),
        (dict(pattern="local", channels=48), "direct", "no windows: a head's pixel has 96 bytes"),
    ],
)
def test_what_is_chosen_and_why(changes, name, words):
    chosen = choice(ENCODER.replace(**changes))
    assert chosen.variant.name == name and words in chosen.why, chosen.why


def test_an_older_gpu_has_no_windows(monkeypatch):
    a100 = Gpu("A100", (8, 0), 108)
    assert choice(ENCODER, a100).why == "A100 has no TMA"


def test_a_large_gpu_wants_more_cells():
    many = Gpu("many", (9, 0), 10_000)
    assert "cells are too few for 10000 SMs" in choice(ENCODER, many).why


def test_a_fit_is_remembered_for_the_problem():
    choice(ENCODER)
    (fitted,) = auto._FITS.values()
    choice(ENCODER.replace(pattern="uniform"))  # the same problem, other locations
    assert list(auto._FITS.values()) == [fitted]
