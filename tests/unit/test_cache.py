"""Compiled kernels on disk: what their key depends on, and what comes back."""

import dataclasses
import json

import pytest

from numba_deform.compiler import Kernel, built, cache, kernel, u64
from numba_deform.kernels import direct
from numba_deform.kernels.direct import Direct
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import VARIANTS

CONSTANTS = Constants(4, 8, 32)


def build(constant):
    config = Direct(lanes=constant).resolve(CONSTANTS)
    return built(direct.build, config, CONSTANTS)


def key(made, architecture="sm_90a"):
    return cache.kernel_key(made, architecture)


def test_key_is_stable_and_tells_kernels_apart(monkeypatch):
    same = key(build(4))
    other = built(direct.build, Direct(lanes=4).resolve(CONSTANTS), Constants(4, 4, 32))
    different = [
        key(build(8)), key(other), key(build(4), "sm_100a"), key(build(4).with_linked_ptx()),
        key(build(4).with_bounded_waits()), key(build(4).with_marks()),
        key(dataclasses.replace(build(4), threads=64)),
    ]  # fmt: skip
    cache.sources.cache_clear()
    assert key(build(4)) == same
    for change in (("setenv", "NUMBA_OPT", "1"), ("setattr", cache, "TOOLS", ())):
        with monkeypatch.context() as patch:
            getattr(patch, change[0])(*change[1:])
            cache.sources.cache_clear()
            different.append(key(build(4)))
    cache.sources.cache_clear()
    assert len({same, *different}) == len(different) + 1


def test_a_changed_source_is_another_key(tmp_path, monkeypatch):
    """The files of the rooms that kernels come from count, and the file that the kernel is in."""
    same = key(build(4))
    changed = tmp_path / "direct.py"
    changed.write_text("# another")
    monkeypatch.setattr(direct, "__file__", str(changed))
    assert key(build(4)) != same
    assert {"device", "compiler", "kernels"} <= set(cache.ROOMS)


@pytest.mark.parametrize("given", [None, ("somewhere.else", "build", "()")])
def test_what_was_made_elsewhere_is_not_kept(tmp_path, monkeypatch, given):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))

    @kernel(threads=32)
    def mine(out: u64):
        pass

    mine = dataclasses.replace(mine, key=given)
    assert isinstance(mine, Kernel) and key(mine) is None
    assert cache.cached(mine, "sm_90a", lambda: "compiled") == "compiled"
    assert not list(tmp_path.iterdir())


def test_every_variant_is_kept():
    keys = {}
    for name, variant in VARIANTS.items():
        config = variant.configure(CONSTANTS)
        keys[name, config] = key(variant.kernel(config, CONSTANTS))
    assert None not in keys.values()
    assert len(set(keys.values())) >= len({(VARIANTS[n].module, c) for n, c in keys})


def test_cache_returns_what_was_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    parts, calls = ("ptx text", b"\x7fELF\x00\xff", "entry"), []

    def compile():
        calls.append(1)
        return parts

    assert cache.cached(build(4), "sm_90a", compile) == parts
    assert cache.cached(build(4), "sm_90a", compile) == parts
    assert len(calls) == 1
    (file,) = tmp_path.iterdir()
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "cubin": "AAAA"}))  # damaged
    assert cache.cached(build(4), "sm_90a", compile) == parts
    file.write_text("{")
    assert cache.cached(build(4), "sm_90a", compile) == parts
    assert len(calls) == 3
    monkeypatch.delenv(cache.VARIABLE)
    cache.cached(build(4), "sm_90a", compile)
    assert len(calls) == 4


def test_compiled_kernel_from_disk_is_the_same(tmp_path, monkeypatch):
    config = Direct(lanes=4).resolve(CONSTANTS)
    again = [built.__wrapped__(direct.build, config, CONSTANTS) for _ in range(2)]
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    first, second = (made.compile() for made in again)
    assert first.cubin == second.cubin and first.ptx == second.ptx
    assert second.entry == first.entry and len(list(tmp_path.iterdir())) == 1


def test_a_shared_directory_is_removed_by_who_made_it(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    with cache.shared_directory() as place:
        assert place == tmp_path
    assert tmp_path.is_dir()
    monkeypatch.delenv(cache.VARIABLE)
    with cache.shared_directory() as place:
        assert place.is_dir() and cache.directory() == place
    assert not place.exists() and cache.directory() is None
