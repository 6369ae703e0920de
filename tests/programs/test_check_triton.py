"""A Triton program under ``numba-deform check``, unchanged: where Triton and PyTorch are installed."""

import importlib.util
import json
import sys

import pytest

from numba_deform.cli import main

there = all(map(importlib.util.find_spec, ("triton", "torch")))
pytestmark = pytest.mark.skipif(not there, reason="Triton or PyTorch is not installed")

PROGRAM = '''
import torch
import triton
import triton.language as tl
from triton.testing import do_bench
from triton.tools.tensor_descriptor import TensorDescriptor

assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.autotune([triton.Config({"B": 128}, num_warps=4), triton.Config({"B": 256}, num_warps=8)], key=["n"])
@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    here = i < n FAULT
    tl.store(out + i, tl.load(x + i, mask=here) + tl.load(y + i, mask=here), mask=here)


@triton.jit
def double(rows, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    first = tl.program_id(0) * ROWS
    tile = rows.load([first, 0])
    out.store([first, 0], tile + tile)


@triton.jit
def on_device(data, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.make_tensor_descriptor(data, [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    other = tl.make_tensor_descriptor(out, [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    other.store([0, 0], rows.load([0, 0]))


n = 300
x, y = torch.rand(n, device="cuda"), torch.rand(n, device=DEVICE)
out = torch.empty_like(x).cuda()
add[lambda meta: (triton.cdiv(n, meta["B"]),)](x, y, out, n)
assert torch.equal(out, x + y) and out.is_cuda and x.to("cuda").data_ptr() != x.data_ptr()
for size in (100, 300):
    do_bench(lambda: add[lambda meta: (triton.cdiv(size, meta["B"]),)](x, y, out, size))

data = torch.rand(16, 32, device=DEVICE)
doubled = torch.empty_like(data)
maps = [TensorDescriptor.from_tensor(t, [8, 32]) for t in (data, doubled)]
double[(2,)](*maps, 8, 32)
assert torch.equal(doubled, 2 * data)

triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
copied = torch.empty_like(data)
on_device[(1,)](data, copied, 16, 32)
assert torch.equal(copied, data)
print("ended right")
'''


def check(tmp_path, fault, *words):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("FAULT", fault))
    return main(["check", f"json={tmp_path}/out.json", *words, str(file)]), json.loads(
        (tmp_path / "out.json").read_text())  # fmt: skip


def test_a_right_program(tmp_path, capsys):
    import torch
    from triton.runtime import driver

    before = driver._active, torch.cuda.is_available()
    status, said = check(tmp_path, "")
    told = capsys.readouterr()
    assert (status, said["launches"], said["faults"]) == (0, 4, []), told.err
    by_default = sorted(said["waived_by_default"])
    assert by_default == sorted(said["waived"]) == ["init-fence", "map-without-a-meeting"]
    assert "\nwaived by default, for Triton's compiler emits it: init-fence: " in told.err
    assert told.out.endswith("ended right\n")
    tuned, timed = said["notes"]
    assert tuned.startswith("add was not tuned: it took the first of 2 configurations that fits, B: 128")
    assert timed == "do_bench measured nothing: 1 of its 2 calls ran what they are for, once"
    assert (driver._active, torch.cuda.is_available()) == before


def test_what_its_compiler_emits_is_judged_on_demand(tmp_path, capsys):
    status, said = check(tmp_path, "", "strict=yes", "waive=map-without-a-meeting")
    assert status == 1 and {fault["fault"] for fault in said["faults"]} == {"MissingInitFence"}
    assert list(said["waived"]) == ["map-without-a-meeting"] and said["waived_by_default"] == []
    assert "by default" not in capsys.readouterr().err


SAME = """
import torch
import triton
import triton.language as tl


@triton.jit
def largest(x, out, ROWS: tl.constexpr):
    rows = tl.arange(0, ROWS)[:, None] * 64 + tl.arange(0, 64)
    tl.store(out + tl.arange(0, ROWS), tl.max(tl.load(x + rows), 1))


x, out = torch.rand(32, 64, device="cuda"), torch.empty(32, device="cuda")
largest[(BLOCKS,)](x, out, 32)
assert torch.equal(out, x.max(1)[0])
"""


@pytest.mark.parametrize("blocks, faults", [(1, []), (2, ["DataRace"])])
def test_stores_of_the_same_value(tmp_path, capsys, blocks, faults):
    """Those of a reduction in shared memory are the compiler's; two programs that store one result are not."""
    file, out = tmp_path / "program.py", tmp_path / "out.json"
    file.write_text(SAME.replace("BLOCKS", str(blocks)))
    assert main(["check", f"json={out}", str(file)]) == len(faults)
    said = json.loads(out.read_text())
    assert [fault["fault"] for fault in said["faults"]] == faults
    if not faults:
        assert said["waived_by_default"] == ["same-value"]
        assert main(["check", f"json={out}", "strict=yes", str(file)]) == 1
    else:
        assert said["faults"][0]["source"].startswith("tl.store(out")
        assert main(["check", f"json={out}", "waive=same-value", str(file)]) == 0
        assert json.loads(out.read_text())["waived_by_default"] == []


def test_a_wrong_one(tmp_path, capsys):
    status, said = check(tmp_path, "+ 1")
    assert status == 1
    fault, *_ = said["faults"]
    assert fault["fault"] == "OutOfRange" and fault["kernel"] == "add"
    assert fault["source"].startswith("tl.store(out + i, tl.load(x + i")
    assert fault["launch"].startswith("program.py:")


SUMS = """
import torch
import triton
import triton.language as tl


@triton.jit
def sums(x, h, BLOCK: tl.constexpr):
    tl.atomic_add(h + tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 1)


h = HERE
sums[(2,)](torch.zeros(128, dtype=torch.int32, device="cuda"), h, 64)
"""


@pytest.mark.parametrize("memory, faults", [
    ("torch.zeros(8, dtype=torch.int32, device='cuda')", []),
    ("torch.empty(8, dtype=torch.int32, device='cuda')", ["UninitialisedRead"]),
    ("torch.zeros(8, dtype=torch.int32).new_empty(16)[8:]", ["UninitialisedRead"]),
    ("torch.empty(8, dtype=torch.int32, device='cuda').zero_()", []),
    ("torch.empty_like(torch.ones(8, dtype=torch.int32), device='cuda'); h.numpy()[:] = 0", []),
])  # fmt: skip
def test_memory_that_nobody_has_set(tmp_path, capsys, memory, faults):
    file = tmp_path / "program.py"
    file.write_text(SUMS.replace("HERE", memory))
    main(["check", f"json={tmp_path}/out.json", str(file)])
    said = json.loads((tmp_path / "out.json").read_text())
    assert [fault["fault"] for fault in said["faults"]] == faults and said["launches"] == 1


def test_profiled(tmp_path, capsys):
    """Each kernel line by line, on the machine code of its PTX; copies by maps that a kernel makes."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("FAULT", ""))
    assert main(["profile", str(file)]) == 0
    out = capsys.readouterr().out
    assert "ended right" in out
    for kernel, line in (("double", "tile = rows.load"), ("on_device", "other.store([0, 0], rows.load")):
        table = out.partition(f"\n{kernel}, 1 launch of blocks of 128 threads")[2]
        assert f"tma_bytes             {4096:4}" in table
        number = PROGRAM.partition(line)[0].count("\n") + 1
        row = next(row for row in table.splitlines() if f"program.py:{number} " in row)
        assert int(row.split()[8]) == (2048 if kernel == "double" else 4096)


def test_without_triton_nothing_is_imported(tmp_path):
    before = set(sys.modules)
    file = tmp_path / "plain.py"
    file.write_text("print(1)")
    assert main(["check", str(file)]) == 6, "nothing was launched"
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in ("torch", "triton")}


PRODUCT = """
import torch
import triton
import triton.language as tl

assert torch.cuda.get_device_capability() == CAPABILITY


@triton.jit
def product(a, b, out, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    i, j, k = tl.arange(0, 128)[:, None], tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    left, right = tl.load(a + i * DEPTH + k[None, :]), tl.load(b + k[:, None] * COLUMNS + j[None, :])
    tl.store(out + i * COLUMNS + j[None, :], tl.dot(left, right))


a, b, out = torch.rand(128, 32).half(), torch.rand(32, 32).half(), torch.empty(128, 32)
product[(1,)](a, b, out, 32, 32)
assert torch.allclose(out, a.float() @ b.float(), atol=1e-4)
"""


@pytest.mark.parametrize("words, capability, notes", [
    ([], (9, 0), []),
    (["arch=sm_100a"], (10, 0), ["tensor memory is judged by PTX's text alone"]),
])  # fmt: skip
def test_the_gpu_that_the_program_finds(tmp_path, words, capability, notes):
    file, out = tmp_path / "product.py", tmp_path / "out.json"
    file.write_text(PRODUCT.replace("CAPABILITY", str(capability)))
    assert main(["check", f"json={out}", *words, str(file)]) == 0
    said = json.loads(out.read_text())
    assert said["launches"] == 1 and not said["faults"]
    assert [note.partition(":")[0] for note in said["notes"]] == notes
