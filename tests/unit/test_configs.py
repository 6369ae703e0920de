"""Configurations that make no sense, and what the refusal says."""

import dataclasses

import pytest

from numba_deform.kernels.problem import ConfigError, Constants
from numba_deform.kernels.registry import OLD_NAMES, VARIANTS, variant

SEEDS, ONE_POINT = Constants(4, 8, 32), Constants(1, 1, 32)

REFUSED = [  # variant, parameters, field at fault, words
    ("tile", {"stages": 2}, "stages", "copy=plain waits for its loads"),
    ("tile-cp-async", {"stages": 9}, "stages", "at most 7 groups"),
    ("tile-cp-async", {"copy": "bulk"}, "copy", "plain, cp_async"),
    ("tma", {"stages": 0}, "stages", "at least 1"),
    ("tma", {"barriers": "token"}, "barriers", "parity, point, ping_pong"),
    ("tma", {"barrier_scope": "grid"}, "barrier_scope", "warp, block"),
    ("tma", {"maps": "head"}, "maps", "batch, level"),
    ("tma", {"box": (1, 2)}, "box", "from 2 to 256"),
    ("tma", {"stages": 60}, "stages", "a block has at most 232448"),
    ("tma", {"points_per_stage": 16}, "points_per_stage", "power of two from 1 to 8"),
    ("persistent", {"stages": 10}, "stages", "at most 9"),
    ("roles-recompute", {"producers": 0}, "producers", "at least 1"),
    ("roles-recompute", {"producers": 9, "consumers": 8}, "consumers", "more than 16 warps"),
    ("roles-recompute", {"metadata": "texture"}, "metadata", "recompute, shared, shuffle"),
    ("roles-recompute", {"sync": "hope"}, "sync", "barrier, flags"),
    ("roles-recompute", {"producer_registers": 40}, "consumer_registers", "both or none"),
    ("roles-recompute", {"producer_registers": 40, "consumer_registers": 152}, "producers", "warpgroup"),
    ("roles-4-4", {"producer_registers": 41, "consumer_registers": 152}, "producer_registers",
     "multiple of 8"),
    ("roles-4-4", {"producer_registers": 120, "consumer_registers": 152}, "consumer_registers",
     "a thread starts with 128"),
    ("roles-4-4", {"producer_registers": 40, "consumer_registers": 152, "min_blocks": 0},
     "min_blocks", "to know what a thread starts with"),
    ("direct", {"stages": 2}, "stages", "direct has the parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "field", "words"), REFUSED, ids=str)
def test_refused(name, parameters, field, words):
    with pytest.raises(ConfigError) as caught:
        VARIANTS[name].configure(SEEDS, **parameters)
    assert caught.value.field == field and words in str(caught.value)


def test_a_row_of_one_step_limits_the_persistent_pipeline():
    VARIANTS["persistent"].configure(ONE_POINT, stages=5)
    with pytest.raises(ConfigError, match="at most 5"):
        VARIANTS["persistent"].configure(ONE_POINT, stages=6)


def test_a_ring_that_drains_needs_whole_levels():
    """Three points a level, runs of one sample on four lanes: a round ends inside a level."""
    with pytest.raises(ConfigError, match="ends inside a level of 3"):
        VARIANTS["tma-drained"].configure(Constants(4, 3, 32))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("constants", [SEEDS, Constants(4, 4, 32), Constants(4, 8, 64)], ids=str)
def test_every_variant_fits_and_keeps_its_preset(name, constants):
    chosen = VARIANTS[name]
    config = chosen.configure(constants)
    for field, value in chosen.preset.items():
        assert getattr(config, field) == value or value == "auto"
    assert sum(config.shared_bytes(constants)) <= 227 * 1024
    assert hash(config) == hash(dataclasses.replace(config))


def test_old_names_are_understood():
    for old, new in {"phase2": "roles-shared", "phase5-4-4": "roles-4-4", "phase10": "tma-four-stages"}.items():
        assert variant(old) is VARIANTS[new] and old not in VARIANTS
    assert not OLD_NAMES.keys() & VARIANTS.keys()
    for name, meant in {"phas2": "phase2", "roles-share": "roles-shared"}.items():
        with pytest.raises(ConfigError, match=f"did you mean {meant}?"):
            variant(name)


def test_every_experiment_has_a_name():
    rows = " ".join(v.systems for v in VARIANTS.values()).split()
    for number in [*range(3, 8), *range(9, 19), 23]:
        assert f"S{number}" in rows, f"S{number} is nobody's"
