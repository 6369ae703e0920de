"""Kernels of Triton for the engine: by the stored PTX and metadata of a small one, without Triton."""

import importlib.util
import json
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from stored import KERNELS, TRITON, of_triton, stored_triton

import numba_deform as nd
from numba_deform.engines import faults
from numba_deform.engines.cpu.frontends.ptx.compilers.triton_kernels import memory, word
from numba_deform.programs import triton_driver

SOURCE = (KERNELS / "triton_rows.py").read_text()
WAIVED = ("same-value", "init-fence")
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


class Descriptor:
    """What Triton's and Gluon's TensorDescriptor have."""

    padding, round_f32_to_tf32 = "zero", False

    def __init__(self, base, block_shape):
        self.base, self.block_shape, self.shape = base, block_shape, base.shape
        self.strides = [s // base.itemsize for s in base.strides]


def launch(change=lambda ptx: ptx):
    compiled = stored_triton("triton_rows")
    compiled.asm["ptx"] = change(compiled.asm["ptx"])
    x, sums = np.random.default_rng(0).random((20, 32), np.float32), np.zeros(20, np.float32)
    return x, sums, nd.from_triton(compiled)[3](Descriptor(x, [8, 32]), sums, 20, 2.0)


def test_a_right_one_with_its_waivers():
    x, sums, call = launch()
    assert call.kernel.name == "triton_rows" and call.kernel.shared_bytes == 1032 and call.kernel.threads == 128
    said = repr(nd.from_triton(stored_triton("triton_rows")))
    assert said == "<triton_rows(rows, sums, count, scale) from Triton>"
    report = nd.simulate(call, waive=WAIVED, schedules=2, landing="random")
    assert np.allclose(sums, 2 * x.sum(axis=1)) and set(report.waived) == set(WAIVED)
    with pytest.raises(faults.MissingInitFence):
        nd.simulate(call, waive="same-value")
    with pytest.raises(faults.DataRace) as caught:
        nd.simulate(call, waive="init-fence")
    assert caught.value.waiver == "same-value"


@pytest.mark.parametrize("old, new, fault, words", [
    (r"setp\.lt\.s32\s+(%p\d+), (%r\d+), (%r\d+);", r"setp.le.s32 \1, \2, \3;", faults.OutOfRange, "tl.store"),
    (r"mbarrier\.try_wait[^;]*;\s*@!complete bra.uni waitLoop;", "", faults.InFlightRead, "rows.load|tl.sum"),
    (r"@%p\d+ mbarrier\.arrive\.expect_tx[^;]*;", "", faults.MissingArrivals, "rows.load"),
    (r"(expect_tx[^;]*), 1024;", r"\1, 1040;", faults.MissingBytes, "rows.load"),
    (r"@%p\d+ mbarrier\.init[^;]*;\s*// end inline asm\s*bar.sync\s*0;", "// end inline asm",
     faults.NotABarrier, "rows.load"),
])  # fmt: skip
def test_faults_name_the_line_of_the_program(old, new, fault, words):
    def change(ptx):
        ptx, count = re.subn(old, new, ptx)
        assert count
        return ptx

    with pytest.raises(fault) as caught:
        nd.simulate(launch(change)[-1], waive=WAIVED, schedules=6, landing="random")
    file, _, line = caught.value.where.rpartition(":")
    assert file == "triton_rows.py" and re.search(words, SOURCE.splitlines()[int(line) - 1])


def counted(change=lambda ptx: ptx, unset=(), changed=(), **more):
    """What one program leaves of a number, 5, that it counts up, and of its double."""
    compiled = stored_triton("triton_count")
    compiled.asm["ptx"] = change(compiled.asm["ptx"])
    counts, out, total = np.full(1, 5, np.int32), np.zeros(128, np.int32), np.zeros(1, np.int32)
    launch = nd.from_triton(compiled)[1](counts, out, total)
    given = dict(zip(("count", "out", "total"), (counts, out, total), strict=True))
    memory = triton_driver.Unset()
    for name in unset:
        array = given[name]
        memory.note(SimpleNamespace(untyped_storage=lambda array=array: SimpleNamespace(
            data_ptr=lambda: array.ctypes.data, nbytes=lambda: array.nbytes)))  # fmt: skip
    if "total" in changed:
        total[0] = 0
    launch.kernel.unset = memory.ranges(launch)
    nd.simulate(launch, landing="random", **more)
    return counts, out


@pytest.mark.parametrize("compiled", [False, True])
def test_a_scalar_that_one_thread_stores(compiled):
    """All threads load it, as Triton has it, and the others do nothing with it: they have not read."""
    counts, out = counted(schedules=6, compiled=compiled)
    assert counts[0] == 6 and out[0] == 10
    everyone = re.compile(r"@%p1 (st.global.b32 \[ %rd2)")
    for seed in range(4):  # all use it, and store one and the same double
        with pytest.raises(faults.DataRace, match=r"count\[byte 0\], which thread"):
            counted(lambda ptx: everyone.sub(r"\1", ptx), seed=seed, compiled=compiled, waive="same-value")
    with pytest.raises(faults.OutOfRange):
        counted(lambda ptx: re.sub(r"(ld.global.b32 .*\+) 0 \]", r"\1 4 ]", ptx), compiled=compiled)


@pytest.mark.parametrize("name, line", [("count", "tl.load(count)"), ("total", "tl.atomic_add(total, 1)")])
def test_memory_of_torch_empty(name, line):
    """As the stand-in for Triton's driver knows it: by the pattern that it has left there."""
    with pytest.raises(faults.UninitialisedRead, match=rf"reads {name}\[.*which nothing has written") as caught:
        counted(unset=["out", name])
    source = (KERNELS / "triton_count.py").read_text().splitlines()
    assert line in source[int(caught.value.where.rpartition(":")[2]) - 1]
    counted(unset=["out", "total"], changed=["total"])


def test_the_place_of_a_load_whose_value_goes_unused():
    """It has to be there for all threads that load, as a GPU asks for it."""
    text = """.version 8.3
    .target sm_90a
    .address_size 64
    .entry k(.param .u64 data)
    {
        .reg .pred first;
        .reg .b32 a, lane;
        .reg .b64 x, at;
        ld.param.u64 x, [data];
        mov.u32 lane, %tid.x;
        mad.wide.u32 at, lane, 4, x;
        ld.global.b32 a, [at];
        setp.lt.u32 first, lane, 8;
        @first st.global.b32 [at], a;
        ret;
    }"""
    kernel = nd.from_ptx(text, language="triton")["k"]
    nd.simulate(kernel, 1, 32, [np.zeros(32, np.int32)])
    with pytest.raises(faults.OutOfRange) as caught:
        nd.simulate(kernel, 1, 32, [np.zeros(16, np.int32)])
    assert caught.value.thread >= 16


def test_a_value_of_the_next_round():
    """What one round loads the next one stores, under a guard of its own: such a load is one like any other."""
    text = """.version 8.3
    .target sm_90a
    .address_size 64
    .entry k(.param .u64 data, .param .u64 out)
    {
        .reg .pred stores, more;
        .reg .b32 a, b, i;
        .reg .b64 x, y;
        ld.param.u64 x, [data];
        ld.param.u64 y, [out];
        mov.u32 i, 0;
        ld.global.b32 a, [x];
    round:
        setp.ne.u32 stores, i, 2;
        @stores st.global.b32 [y], a;
        add.u64 x, x, 4;
        add.u64 y, y, 4;
        ld.global.b32 a, [x];
        add.u32 i, i, 1;
        setp.lt.u32 more, i, 5;
        @more bra round;
        ret;
    }"""
    data, out = np.arange(1, 7, dtype=np.int32), np.zeros(5, np.int32)
    nd.simulate(nd.from_ptx(text, language="triton")["k"], 1, 1, [data, out])
    assert out.tolist() == [1, 2, 0, 4, 5]


def test_arguments_are_refused_by_name():
    kernel = nd.from_triton(stored_triton("triton_rows"))
    x, sums = np.zeros((20, 32), np.float32), np.zeros(20, np.float32)
    rows = Descriptor(x, [8, 32])
    assert kernel[3](rows, sums, 20, scale=2.0).args[0].maps == kernel[3,](rows, sums, 20, 2.0, 0).args[0].maps
    for args, told in (
        ((rows, sums, 20), "takes rows, sums, count, scale; 3 arguments were given"),
        ((rows, sums, 20, 2.0, 0, 5), "6 arguments were given"),
        ((x, sums, 20, 2.0), "argument rows is a ndarray, and the kernel takes a TensorDescriptor"),
        ((rows, [1.0], 20, 2.0), "argument sums is a list; a pointer takes an array or a tensor"),
        ((rows, sums, 20.5, 2.0), "argument count=20.5 must be a whole number"),
        ((Descriptor(np.zeros((20, 33), np.float32)[:, :32], [8, 32]), sums, 20, 2.0), "tensor map rule"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(told)):
            kernel[3](*args)
    with pytest.raises(ValueError, match="takes rows, sums, count, scale"):
        kernel[3](rows, sums, 20, scales=2.0)


def test_numbers_as_triton_types_them():
    assert word("n", "i32", -1) == 2**32 - 1 and word("n", "i1", True) == 1 and word("n", "u64", 7) == 7
    assert word("x", "fp16", 1.5) == 0x3E00 and word("x", "bf16", -2.0) == 0xC000
    assert word("x", "fp32", 0.1) == np.float32(0.1) and word("p", "*fp32", None) == 0
    with pytest.raises(ValueError, match="argument x is of Triton's type tmem"):
        word("x", "tmem", 0)
    turned = np.zeros((4, 6), np.float32).T
    assert memory("x", turned, "fp32").nbytes == 96
    assert memory("x", np.zeros(3, ml_dtypes.bfloat16), "bf16").nbytes == 6


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("name", TRITON)
def test_stored_texts_are_what_triton_makes(name):
    text, said = of_triton(name, FAULT=0)
    kept = (KERNELS / f"{name}.ptx").read_text()
    if text.splitlines()[0] != kept.splitlines()[0]:
        pytest.skip(f"another version of Triton: {text.splitlines()[0]} and not {kept.splitlines()[0]}")
    assert text == kept and json.loads(json.dumps(said)) == json.loads((KERNELS / f"{name}.json").read_text())
