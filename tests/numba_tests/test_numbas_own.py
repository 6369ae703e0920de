"""numba-cuda's own tests, on the CPU engine: those that apply pass, but for those that ``tests.json`` names.
Slow ones are for the harness alone: eight of them do not end within its limit."""

import harness
import pytest

PARTS = 8


@pytest.fixture(scope="module")
def names():
    return harness.all_names()


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_numbas_own(part, names):
    """None fails that is not listed, and none is listed that passes."""
    listed = harness.Listed()
    slow = {name for name, why in listed.open.items() if why.startswith("slow")}
    mine = [name for name in names if not listed.reason(name) and name not in slow][part::PARTS]
    assert mine
    results = harness.run(mine, workers=1)
    wrong = {name: words for name, (outcome, words) in results.items()
             if outcome not in (harness.PASSED, "skipped") and name not in listed.open}  # fmt: skip
    assert wrong == {}
    assert [name for name in mine if results[name][0] == harness.PASSED and name in listed.open] == []


@pytest.mark.full
def test_the_list(names):
    listed = harness.Listed()
    assert set(listed.open) <= set(names)
    assert [name for name in listed.open if listed.reason(name)] == []
    patterns = [pattern for pattern, _ in (*listed.out, *listed.waived)]
    assert [p for p in patterns if not any(harness.fnmatch(name, p) for name in names)] == []
