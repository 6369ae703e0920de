"""What is kept on disk: what its key depends on, what comes back, what becomes of damaged and of old files."""

import dataclasses
import multiprocessing
import os
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from numba_deform.cli import main
from numba_deform.compiler import Kernel, built, cache, kernel, outline, u64
from numba_deform.kernels import direct
from numba_deform.kernels.direct import Direct
from numba_deform.kernels.problem import Constants
from numba_deform.kernels.registry import VARIANTS

CONSTANTS = Constants(4, 8, 32)


def build(constant):
    config = Direct(lanes=constant).resolve(CONSTANTS)
    return built(direct.build, config, CONSTANTS)


def key(made, architecture="sm_90a"):
    return outline.kernel_key(made, architecture)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory of its own, of a process that has written nothing yet."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "_written", cache.LIMIT)
    cache._say_once.cache_clear()
    return tmp_path / "kept"


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


def test_a_changed_source_is_another_key(tmp_path):
    """What the kernel reaches in its file counts, and the rest of that file."""
    text, keys = Path(direct.__file__).read_text(), []
    for old, new in ("\n", "\n"), ("int32(cuda.blockIdx.x", "int32(1 + cuda.blockIdx.x"), ("grid", "Grid"):
        changed = ModuleType(direct.__name__)
        changed.__package__ = direct.__package__
        changed.__file__ = file = str(tmp_path / f"{len(keys)}.py")
        assert old in text
        Path(file).write_text(text.replace(old, new, 1))
        exec(compile(Path(file).read_text(), file, "exec"), vars(changed))
        keys.append(key(changed.build(Direct(lanes=4).resolve(CONSTANTS), CONSTANTS)))
    assert keys[0] == key(build(4)) and len(set(keys)) == 3


def test_what_the_reader_wrote_is_kept(place):
    @kernel(threads=32)
    def mine(out: u64):
        pass

    assert isinstance(mine, Kernel)
    for _ in range(2):
        assert outline.cached("gpu", mine, "sm_90a", lambda: "compiled") == "compiled"
    assert len(list(place.iterdir())) == 1


def test_every_variant_is_kept():
    keys = {}
    for name, variant in VARIANTS.items():
        config = variant.configure(CONSTANTS)
        keys[name, config] = key(variant.kernel(config, CONSTANTS))
    assert None not in keys.values()
    assert len(set(keys.values())) >= len({(VARIANTS[n].module, c) for n, c in keys})


def test_cache_returns_what_was_compiled(place, monkeypatch):
    parts, calls = ("ptx text", b"\x7fELF\x00\xff", "entry"), []

    def compile():
        calls.append(1)
        return parts

    for _ in range(2):
        assert outline.cached("gpu", build(4), "sm_90a", compile) == parts
    assert len(calls) == 1
    (file,) = place.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:40] + b"?" + whole[41:], b"", b"{"):
        file.write_bytes(damaged)
        for _ in range(2):
            assert outline.cached("gpu", build(4), "sm_90a", compile) == parts
        assert file.read_bytes() == whole
    assert len(calls) == 5
    for off in cache.OFF:
        monkeypatch.setenv(cache.VARIABLE, off)
        assert outline.cached("gpu", build(4), "sm_90a", compile) == parts
    assert len(calls) == 5 + len(cache.OFF) and list(place.iterdir()) == [file]


def test_by_default_it_is_in_the_users_cache_directory(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setattr(cache.platformdirs, "user_cache_path", lambda name, appauthor: tmp_path / name)
    assert cache.directory() == tmp_path / "numba-deform" / "code"


def test_what_was_used_least_recently_goes(place, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT", 20_000)
    names = [f"{n:064x}" for n in range(12)]
    for age, name in enumerate(names):  # bytes that cannot be packed, the later the older
        cache.store("gpu", name, os.urandom(1000))
        os.utime(place / f"{name}.gpu", (1e9 - age, 1e9 - age))
    others = place / "notes.txt"
    others.write_text("not of the cache" * 1000)
    assert cache.load("gpu", names[-1]) is not None
    cache.store("gpu", "f" * 64, os.urandom(9000))
    assert [n for n, name in enumerate(names) if cache.load("gpu", name)] == [*range(7), 11]
    assert cache.load("gpu", "f" * 64) and others.exists()


def test_a_directory_that_cannot_be_written_is_said_once(place, tmp_path, monkeypatch):
    place.write_text("a file")
    with pytest.warns(UserWarning, match="cannot be written") as told:
        for name in "ab":
            cache.store("gpu", 64 * name, "content")
    assert len(told) == 1 and cache.load("gpu", 64 * "a") is None
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store("gpu", 64 * "a", "content")
    assert cache.load("gpu", 64 * "a") == "content"


@pytest.mark.skipif(os.name != "posix", reason="others' permissions are asked for where files have modes")
@pytest.mark.parametrize("mode", [0o702, 0o720])
def test_what_others_could_have_written_is_not_read(place, mode):
    """What is kept is code."""
    cache.store("gpu", 64 * "a", "content")
    assert place.stat().st_mode & 0o777 == 0o700 and cache.load("gpu", 64 * "a") == "content"
    place.chmod(mode)
    with pytest.warns(UserWarning, match="others can write into") as told:
        assert cache.load("gpu", 64 * "a") is None and not cache.has("gpu", 64 * "a")
        cache.store("gpu", 64 * "b", "content")
    assert len(told) == 1
    place.chmod(0o755)
    assert cache.load("gpu", 64 * "a") == "content" and not cache.has("gpu", 64 * "b")


def _write_and_read(name):
    for i in range(100):
        cache.store("gpu", name, [i] * 1000)
        assert len(set(cache.load("gpu", name))) == 1


def test_two_processes_write_one_file(place):
    both = [multiprocessing.get_context("fork").Process(target=_write_and_read, args=("a" * 64,)) for _ in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join(100)
    assert [process.exitcode for process in both] == [0, 0]
    assert [path.name for path in place.iterdir()] == ["a" * 64 + ".gpu"]


def test_files_that_changed_after_the_start_are_for_this_process_alone(monkeypatch):
    same = cache.sources()
    monkeypatch.setattr(cache, "STARTED", min(p.stat().st_mtime for p in Path(cache.__file__).parent.iterdir()))
    cache.sources.cache_clear()
    assert set(cache.sources()) - set(same) == {f"process {os.getpid()} since {cache.STARTED}"}
    cache.sources.cache_clear()


def test_the_command_shows_and_clears_it(place, monkeypatch, capsys):
    for name, kind in (("a", "gpu"), ("b", "gpu"), ("c", "typed")):
        cache.store(kind, 64 * name, "content")
    assert main(["cache"]) == 0
    told = capsys.readouterr().out
    assert str(place) in told and "2 files" in told and "3 files" in told and "512.0 MiB" in told
    assert main(["cache", "clear"]) == 0 and "3 files" in capsys.readouterr().out
    assert not list(place.iterdir())
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert main(["cache"]) == 0 and "off" in capsys.readouterr().out


@pytest.mark.full
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
    monkeypatch.setenv(cache.VARIABLE, "off")
    with cache.shared_directory() as place:
        assert place.is_dir() and cache.directory() == place
    assert not place.exists() and cache.directory() is None
