"""Whole programs under the CPU engine: what ``check`` says, how it ends, and what it leaves as it was."""

import functools
import gc
import importlib
import json
import pickle
import re
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.engines import gc_pauses
from numba_deform.engines.cpu import SimFault
from numba_deform.programs.triton_driver import Awaited

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
PROGRAM = Path(__file__).parent / "three_faults.py"
LINES = {line.strip(): n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1)}
FAULTS = {
    ("OutOfRange", "out[i] = a[i + 1]", "next_one[2, 32](a, out)", 1),
    ("DataRace", "out[0] = cuda.threadIdx.x", "everybody[1, 32](out)", 2),
    ("DataRace", "out[i] = tile[63 - i]", "reversed_by_two_warps[1, 64](out)", 1),
}


@pytest.fixture
def write(tmp_path):
    def write(text, name="program.py"):
        file = tmp_path / name
        file.write_text("import sys\nimport numpy as np\nfrom numba import cuda\n" + text)
        return str(file)

    return write


KERNEL = "@cuda.jit\ndef kernel(out):\n    out[0] = cuda.threadIdx.x\n"


def test_three_faults(tmp_path, capsys):
    """Each once, at its line, with the launch; the program runs to its end with its own words."""
    files = tmp_path / "o.json", tmp_path / "o.xml"
    assert main(["check", f"json={files[0]}", f"junit={files[1]}", str(PROGRAM), "--help", "seed=1"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == ["words --help seed=1", "the program's end"]
    assert said.err.rstrip().endswith(" judged to their end, 3 faults")
    found = json.loads(files[0].read_text())
    assert found["status"] == 1 and found["launches"] == 8 and found["kernels"] == 6
    met = {(f["fault"], f["source"], f["count"]) for f in found["faults"]}
    assert met == {(fault, source, count) for fault, source, _, count in FAULTS}
    for _, source, launch, count in FAULTS:
        (one,) = (f for f in found["faults"] if f["source"] == source)
        assert one["where"] == f"{PROGRAM}:{LINES[source]}" and one["cure"] and one["rule"]
        assert one["launch"] == f"{PROGRAM.name}:{LINES[launch]}"
        assert f"launched at {one['launch']}" + f", met in {count} launches" * (count > 1) in said.err
    suite = ElementTree.parse(files[1]).getroot()
    failed = {case.get("name"): f.get("type") for case in suite for f in case.findall("failure")}
    assert failed == dict(next_one="OutOfRange", everybody="DataRace", reversed_by_two_warps="DataRace")
    assert int(suite.get("failures")) == 3 and int(suite.get("tests")) == len(suite) == 7


ROUNDS = """
@cuda.jit
def first(x, out):
    i = cuda.grid(1)
    out[0] = {}
    if i < x.size:
        out[i + 1] = x[i]

@cuda.jit
def then(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i] + 1

x, out = cuda.to_device(np.arange(100.0)), cuda.device_array(101)
first[4, 32](x, out)
then[4, 32](out)
print(*out.copy_to_host()[[0, 1, 50, 100]])
"""


def test_a_launch_with_a_fault_is_run_to_its_end(write, tmp_path, capsys):
    """From the memory that it was given, so that what comes after is judged on what a GPU would have left."""
    known = tmp_path / "known"
    known.write_text("DataRace *\n")
    for more, status in (["landing=late"], 1), ([f"suppress={known}"], 0), (["schedules=3"], 1):
        assert main(["check", *more, write(ROUNDS.format(7))]) == status
        said = capsys.readouterr()
        assert said.out == "15.0 1.0 99.0 199.0\n"
        assert "from launch 1 on (first, at program.py:19) results may not be the GPU's" in said.err
        assert "2 launches of 2 kernels, 4 blocks and 128 threads judged to their end, " in said.err
    json_file = tmp_path / "o.json"
    assert main(["check", f"json={json_file}", write(ROUNDS.format(7))]) == 1
    capsys.readouterr()
    assert json.loads(json_file.read_text())["finished_unjudged"] == [[1, "first", "program.py:19", ""]]


def test_what_cannot_be_finished_is_as_before(write, capsys):
    ring = write(
        "from numba_deform import mbarrier_init, mbarrier_try_wait_parity, shared_address\n"
        "@cuda.jit\ndef waits(out):\n    bar = shared_address(cuda.shared.array(1, np.uint64))\n"
        "    out[cuda.threadIdx.x] = 5\n    if cuda.threadIdx.x == 0:\n        mbarrier_init(bar, 1)\n"
        "    cuda.syncthreads()\n    while mbarrier_try_wait_parity(bar, 0) == 0:\n        pass\n"
        "out = cuda.to_device(np.arange(32))\nwaits[1, 32](out)\nprint(*out.copy_to_host()[:3])\n"
    )
    assert main(["check", ring]) == 1
    said = capsys.readouterr()
    assert said.out == "0 1 2\n", "nothing of the launch is left"
    assert "waits could not be finished, and its arrays are as before the launch: it cannot end" in said.err


def test_suppressed_stopped_and_waived(write, tmp_path, capsys):
    known = tmp_path / "known"
    known.write_text("# those that we know\nOutOfRange */three_faults.py:*  # an old one\nDataRace *\n")
    assert main(["check", f"suppress={known}", str(PROGRAM)]) == 0
    assert "no fault, 3 suppressed" in capsys.readouterr().err
    known.write_text("OutOfRange\n")
    assert main(["check", f"suppress={known}", str(PROGRAM)]) == 2
    assert "known:1: 'OutOfRange' is not a rule's name and file:line" in capsys.readouterr().err
    assert main(["check", "--stop", str(PROGRAM)]) == 1
    said = capsys.readouterr()
    assert "the program's end" not in said.out and ", 1 fault" in said.err and "Traceback" not in said.err
    same = write(KERNEL.replace("cuda.threadIdx.x", "7") + "kernel[1, 32](np.zeros(1))\n")
    assert main(["check", same]) == 1
    assert "waive  this rule can be waived" in capsys.readouterr().err
    assert main(["check", "waive=same-value", same]) == 0
    assert "no fault, waived same-value: 31 times" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, status, words", [
        ("sys.exit(3)", 3, "nothing was judged"),
        ("sys.exit('no data')", 1, "no data"),
        ("raise KeyboardInterrupt", 130, "nothing was judged, interrupted"),
        ("def f():\n    1 / 0\nf()", 1, "ZeroDivisionError: division by zero"),
        (KERNEL + "kernel[1, 1](np.zeros(1))\nsys.exit(3)", 3, "1 launch of 1 kernel, 1 block and 1 thread"),
        (KERNEL + "kernel[1, 32](np.zeros(1))\nsys.exit(3)", 1, "1 fault"),
        (KERNEL + "kernel[1, 4096](np.zeros(1))", 1, "4096"),
    ],
)  # fmt: skip
def test_how_a_program_ends(write, capsys, text, status, words):
    assert main(["check", write(text)]) == status
    said = capsys.readouterr().err
    assert words in said and "runpy" not in said and "numba_deform" not in said.replace("numba_deform_", "")


@pytest.mark.parametrize(
    "given, words", [
        (["not_there.py"], "not_there.py: No such file or directory"),
        (["-m", "not_there"], "there is no module not_there"),
        ([], "a program is missing"), (["-m"], "a program is missing"),
        (["schedule=3", "x.py"], "unknown key schedule; did you mean schedules?"),
        (["--waive", "all", "x.py"], "waive=all: it must be one or more of same-value"),
        (["json=/not_there/o.json", "x.py"], "json=/not_there/o.json: there is no directory /not_there"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(capsys, given, words):
    assert main(["check", *given]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_lines_and_words_that_are_the_programs(write, capsys):
    """A warning and a launch are told at the program's line, which may be a test of Numba's; a key of check's
    behind the program is the program's, and check says so."""
    text = KERNEL + "kernel[1, 32](np.zeros(1))\nprint(sys.argv[1:])\n"
    with pytest.warns(Warning, match="Host array used") as caught:
        assert main(["check", write(f"__name__ = 'numba.cuda.tests.one'\n{text}"), "json=x", "name=y"]) == 1
    said = capsys.readouterr()
    assert said.out == "['json=x', 'name=y']\n" and said.err.startswith("check: json=x goes to the program;")
    assert said.err.count("goes to") == 1 and "launched at program.py:8" in said.err
    copies = [warning for warning in caught if "Host array" in str(warning.message)]
    assert [(Path(w.filename).name, w.lineno) for w in copies] == [("program.py", 8)]
    assert said.err.rstrip().endswith("\n1 launch of 1 kernel, 1 fault")


def test_in_code_and_everything_is_as_before():
    """Inside, kernels that were made before and after are judged; afterwards the driver is Numba's own."""
    from numba.cuda.cudadrv import driver

    before = {name: getattr(driver, name) for name in ("ExperimentalDevice", "_alloc_finalizer")}

    @cuda.jit
    def shifted(a, out):
        i = cuda.grid(1)
        out[i] = a[i + SHIFT]

    with nd.check() as session:
        a, out = cuda.to_device(np.arange(8.0)), cuda.pinned_array(8)
        shifted[1, 8](a, out)
        with pytest.raises(SimFault, match="index"), nd.check(stop=True):
            shifted[1, 8](np.arange(8.0), out)
    assert session.launches == 1 and [type(f.fault).__name__ for f in session.faults] == ["OutOfRange"]
    assert session.faults[0].launch.startswith(f"{__file__}:")
    assert {name: getattr(driver, name) for name in before} == before
    assert not cuda.is_available() or cuda.gpus.current.name != "CPU engine of numba_deform"
    with pytest.raises(ValueError, match="waive='all' is none of the rules"), nd.check(waive="all"):
        pass


SHIFT = 1


def finished(kernel, grid, block, *arrays):
    """(the session, what the arrays held after one launch)"""
    with nd.check() as session:
        given = [cuda.to_device(array) for array in arrays]
        cuda.jit(kernel)[grid, block](*given)
        return session, [array.copy_to_host() for array in given]


def test_what_only_the_engine_can_finish():
    """Shuffles, copies with an mbarrier, and a wait for another block: the engine runs them with no look at the
    accesses to memory, so that a race is none."""

    def shuffled(out, flag):
        i, lane = cuda.grid(1), cuda.threadIdx.x
        flag[0] = i
        out[i] += cuda.shfl_sync(0xFFFFFFFF, lane, 3)

    def copied(data, out):
        tile = cuda.shared.array(32, nd.float32, alignment=128)
        full = nd.shared_address(cuda.shared.array(1, nd.uint64))
        i = cuda.threadIdx.x
        if i == 0:
            nd.mbarrier_init(full, 1)
            nd.fence_mbarrier_init()
            nd.mbarrier_arrive_expect_tx(full, 128)
            nd.cp_async_bulk_load(nd.shared_address(tile), nd.global_address(data), 128, full)
        cuda.syncthreads()
        nd.mbarrier_wait(full, 0)
        tile[i] += 1
        out[31 - i] = tile[31 - i]

    def handed(flag, out):
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 1:
                out[0] = 5
                cuda.atomic.exch(flag, 0, 1)
            else:
                while cuda.atomic.add(flag, 0, 0) == 0:
                    pass
                out[1] = out[0]

    @cuda.jit(device=True)
    def looked_at(flag):
        return flag[0]

    def polled(flag, out):
        i = cuda.threadIdx.x
        out[i] = i
        if i == 40:
            flag[0] = 1
        while looked_at(flag) == 0:
            pass
        out[i] += 1

    session, (_, out) = finished(polled, 1, 64, np.zeros(1), np.zeros(64))
    np.testing.assert_array_equal(out, 1 + np.arange(64))
    session, (out, _) = finished(shuffled, 2, 32, np.arange(64), np.zeros(1))
    np.testing.assert_array_equal(out, 3 + np.arange(64))
    assert "could not be finished" not in str(session)
    session, (data, out) = finished(copied, 1, 32, np.arange(32, dtype=np.float32), np.zeros(32, np.float32))
    assert [type(f.fault).__name__ for f in session.faults] == ["DataRace"] and not out[:0:-1].sum() % 1
    assert set(out - data) <= {0, 1}
    session, (flag, out) = finished(handed, 2, 32, np.zeros(1, np.int32), np.zeros(2))
    assert [type(f.fault).__name__ for f in session.faults] == ["DataRace"] and list(out) == [5, 5]


def test_a_launch_that_cannot_end_leaves_memory_as_it_was():
    def stuck(out):
        cuda.atomic.add(out, 0, 1)
        while cuda.atomic.add(out, 1, 0) == 0:
            pass

    def outside(out):
        out[cuda.grid(1) + 1] += 1

    def raced_and_stuck(out):
        out[0] = cuda.threadIdx.x
        stuck_device(out)

    stuck_device = cuda.jit(device=True)(stuck)
    for kernel, why in (stuck, "it cannot end"), (raced_and_stuck, "its Livelock stops every run"):
        session, (out,) = finished(kernel, 1, 32, np.full(64, 0))
        assert not out.any() and f"arrays are as before the launch: {why}" in str(session)
    session, (out,) = finished(outside, 2, 32, np.zeros(64))  # a thread ends where it leaves its array
    np.testing.assert_array_equal(out, np.arange(64) > 0)
    assert "could not be finished" not in str(session) and "from launch 1 on" in str(session)


def test_explore_finds_what_seed_0_does_not(write, capsys):
    """A flag that is read too early by one order of the threads alone."""
    program = write("""
@cuda.jit
def first_or_second(out):
    before = cuda.atomic.add(out, 0, 1)
    if before == 0 and cuda.threadIdx.x == 32:
        out[2] = 1
""" + "kernel = first_or_second\nkernel[1, 64](np.zeros(2, np.int32))\n")
    assert main(["check", program]) == 0
    assert main(["check", "--explore", program]) == 1
    assert "OutOfRange" in capsys.readouterr().err


def test_explore_leaves_what_one_run_leaves():
    """Blocks count themselves in memory, and none is counted twice; what was not tried is said."""

    @cuda.jit
    def meet(counter, out):
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(counter, 0, 1)
            looks = 0
            while cuda.atomic.add(counter, 0, 0) < 2:
                looks += 1
            out[cuda.blockIdx.x] = cuda.atomic.add(counter, 0, 0) + min(looks, 0)

    with nd.check(explored=True) as session:
        counter, out = cuda.to_device(np.zeros(1, np.int32)), cuda.device_array(2, np.int32)
        meet[2, 32](counter, out)
        assert counter.copy_to_host()[0] == 2 and out.copy_to_host().tolist() == [2, 2]
    assert not session.faults and "meet: not complete: " in str(session)


def test_an_operation_of_a_reduction_that_does_not_commute():
    """It is tried once in the other order of its operands."""

    @cuda.reduce
    def minus(a, b):
        return a - b

    @cuda.reduce
    def larger(a, b):
        return a if a > b else b

    @cuda.reduce
    def total(a, b):
        return a + b

    for dtype in (np.int64, np.float32):
        values = np.random.default_rng(1).integers(-50, 50, 300).astype(dtype)
        with nd.check() as session:
            for reduction in (minus, larger, total, minus):
                reduction(cuda.to_device(values))
            assert total(values) == values.sum()
        (found,) = session.faults
        assert type(found.fault).__name__ == "NotCommutative" and found.count == 1
        assert re.search(r"minus\(.*\) is .*, and minus\(.*\) is ", str(found.fault))
        assert found.fault.source == "@cuda.reduce" and "minus" in str(session)


def test_launches_of_several_threads():
    @cuda.jit
    def kernel(out, i):
        for _ in range(50):
            cuda.syncthreads()
        out[cuda.threadIdx.x] = i

    with nd.check() as session, ThreadPoolExecutor(4) as threads:
        outs = [cuda.to_device(np.zeros(64)) for _ in range(8)]
        list(threads.map(lambda i: kernel[1, 64](outs[i], i), range(8)))
        assert [out.copy_to_host()[63] for out in outs] == list(range(8))
    assert session.blocks == session.launches == 8 and not session.faults


class Bytes:
    """An executor that runs what it is given at once, out of bytes."""

    def submit(self, function, *args):
        future = Future()
        future.set_result(function(*pickle.loads(pickle.dumps(args))))
        self.called = function.__name__
        return future


@pytest.mark.parametrize(
    "options, called", [({"schedules": 3}, "run_piece"), ({"explored": True}, "search_subtree")]
)
def test_in_the_workers_of_an_executor(options, called):
    """The same as without, also of threads, for which a launch that waits makes way; and what cannot be sent is
    judged here, which the summary says."""

    @cuda.jit
    def kernel(a, b):
        if cuda.threadIdx.x % 32 == 0:
            b[cuda.threadIdx.x + 1] = cuda.atomic.add(a, 0, 1)

    seen = []
    with ThreadPoolExecutor(2) as threads:
        for executor in (None, threads, Bytes()):
            with nd.check(executor=executor, **options) as session:
                out = cuda.to_device(np.zeros(80, np.int32))
                kernel[1, 64](out, out)
                seen.append((str(session), sorted(out.copy_to_host())))
    assert seen[0] == seen[1] == seen[2] and executor.called == called and not session.faults
    with nd.check(executor=executor, **options) as session:
        out = cuda.to_device(np.zeros(80, np.int32))
        kernel[1, 64](out[:64], out[8:])
    assert session.blocks == 1 and "kernel was judged here: executor=: two arrays share memory" in str(session)
    with pytest.raises(ValueError, match="executor=4 must be"), nd.check(executor=4):
        pass


class Shell:
    """What IPython gives an extension."""

    def __init__(self):
        self.events, self.hooks = self, []

    def register(self, event, hook):
        assert event == "post_run_cell"
        self.hooks.append(hook)

    def unregister(self, event, hook):
        self.hooks.remove(hook)


def test_notebook(capsys):
    @cuda.jit
    def everybody(out):
        out[0] = cuda.threadIdx.x

    shell = Shell()
    nd.load_ipython_extension(shell)
    try:
        for _ in range(2):
            everybody[1, 32](np.zeros(1))
            shell.hooks[0](None)
            assert capsys.readouterr().out.startswith("DataRace: writes out")
        shell.hooks[0](None)
        assert capsys.readouterr().out == ""
    finally:
        nd.unload_ipython_extension(shell)
    assert shell.hooks == []


def test_arrays_that_names_hold_and_bare_addresses():
    """Numba takes a device array of a name by its address: the kernel writes it, and its end is known."""
    from numba.cuda.np.numpy_support import carray

    with nd.check() as session:
        held, told = cuda.to_device(np.arange(64.0)), cuda.to_device(np.zeros(64))

        @cuda.jit(device=True)
        def double(i):
            return 2 * held[i]

        @cuda.jit
        def kernel(beyond):
            i = cuda.grid(1)
            told[i] = double(i)
            if beyond:
                told[i + 1] = 0

        @cuda.jit("void(CPointer(float64), int64)")
        def by_address(x, n):
            part = carray(x, (n,))
            part[cuda.threadIdx.x] += x[1]

        kernel[2, 32](False)
        np.testing.assert_array_equal(told.copy_to_host(), 2 * np.arange(64.0))
        by_address[1, 1](told.__cuda_array_interface__["data"][0], 64)
        np.testing.assert_array_equal(told.copy_to_host()[:3], [2, 2, 4])
        assert not session.faults
        by_address[1, 1](told.__cuda_array_interface__["data"][0] + 8, 64)
        kernel[2, 32](True)
    assert [type(f.fault).__name__ for f in session.faults] == ["OutOfRange", "DataRace"]
    assert "told[1]" in str(session.faults[1].fault)


def test_what_a_kernel_with_debug_raises():
    """Numba raises it on the host, with the line and the thread; without debug=True it is a report."""

    def kernel():
        if cuda.grid(2)[1] == 5:
            raise OverflowError("too large", 3)

    with nd.check() as session:
        with pytest.raises(OverflowError) as caught:
            cuda.jit(debug=True, opt=False)(kernel)[(1, 2), (2, 4)]()
        assert not session.faults
        cuda.jit(kernel)[(1, 2), (2, 4)]()
    where = f"In function 'kernel', file {__file__}, line {kernel.__code__.co_firstlineno + 2}, "
    assert caught.value.args == (where + "tid=[0, 1, 0] ctaid=[0, 1, 0]: too large", 3)
    assert [type(f.fault).__name__ for f in session.faults] == ["KernelError"]


@pytest.mark.parametrize("large", [0, 1])
def test_ctrl_c_inside_a_launch(write, large):
    """In the engine, and in blocks that are not judged: the summary so far, and nothing of ours."""
    program = write(KERNEL + f"""
@cuda.jit
def long(out):
    i = cuda.grid(1)
    for k in range(10**12 if cuda.blockIdx.x == {large * 3001} else 1):
        if i == {large * 3001 * 32} and k == 0:
            print(7)
        out[i] += k * out[i]
kernel[1, 1](cuda.device_array(1))
long[{5000 if large else 1}, 32](np.zeros({160000 if large else 32}))
""")
    command = [sys.executable, "-u", "-W", "ignore", "-m", "numba_deform", "check", program]
    # Tests that were started in the background ignore it, and so would their children.
    heard = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes, preexec_fn=heard) as child:
        assert child.stdout.readline() == "7\n"
        child.send_signal(signal.SIGINT)
        out, error = child.communicate()
    assert child.returncode == 130 and out == "", error
    judged = "2 launches of 2 kernels, 1 block and 1 thread judged to their end"
    assert error.strip() == f"{judged}, no fault, interrupted"


def test_the_line_of_progress(capsys):
    from numba_deform.programs.progress import Progress

    line = Progress("launch 2 (kernel)", 8, 1000)
    line(2)
    line(2)
    assert line.text(6.0) == "launch 2 (kernel): 4,000 of 8,000 threads, about 6 s left"
    assert capsys.readouterr().err == ""
    line.next = 0  # it is time
    line(1)
    line(1)
    line.close()
    said = capsys.readouterr().err  # no terminal: a line of its own, and then none for a while
    assert re.fullmatch(r"numba-deform: launch 2 \(kernel\): 5,000 of 8,000 threads, about \d+ s left\n", said)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        line = Progress("launch 2 (kernel)", 8, 1000)
        line(6)
        line.next = 0
        line(1)
        line.close()
    said = capsys.readouterr().err
    assert "launch 2 (kernel): 7,000 of 8,000 threads" in said and said.endswith("\r\033[K")


def test_a_module_that_is_looked_for_before_it_is_imported(tmp_path, monkeypatch):
    """As PyTorch looks for Triton: what waits for its import waits on."""
    (tmp_path / "looked_for.py").write_text("x = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    awaited = Awaited("looked_for", lambda module: seen.append(module.x))
    monkeypatch.setattr(sys, "meta_path", [awaited, *sys.meta_path])
    monkeypatch.setattr(gc_pauses, "_is_frozen", False)
    try:
        assert importlib.util.find_spec("looked_for") and seen == []
        importlib.import_module("looked_for")
    finally:
        gc.unfreeze()  # or the runs of later tests would collect all that the tests before them had made
    assert seen == [3] and awaited not in sys.meta_path
    monkeypatch.delitem(sys.modules, "looked_for")


def test_memory_that_nobody_has_set():
    """Of ``cuda.device_array`` and ``cuda.Out``: loads and atomics of it are faults, until a copy, a memset or
    a launch has set it, and where it has not."""

    @cuda.jit
    def count(a, out):
        cuda.atomic.add(out, a[cuda.grid(1)] % 4, 1)

    @cuda.jit
    def doubled(a, out):
        i = cuda.grid(1)
        out[i] = 2 * a[i]

    def met(run):
        with nd.check() as session:
            run()
        return [(type(f.fault).__name__, f.fault.barrier) for f in session.faults]

    def chain(make):
        a, out = make(), cuda.device_array(64, np.int32)
        doubled[2, 32](a, out)
        doubled[2, 32](out, cuda.device_array(64, np.int32))

    def copied():
        a = cuda.device_array(64, np.int32)
        a[:] = 3
        return a

    def from_the_device():
        a = cuda.device_array(64, np.int32)
        a.copy_to_device(cuda.to_device(np.ones(64, np.int32)))
        return a[:64]

    numbers = np.arange(64, dtype=np.int32)
    kind = "UninitialisedRead"
    for make in (lambda: cuda.device_array(4, np.int32), lambda: cuda.Out(np.zeros(4, np.int32))):
        assert met(lambda make=make: count[2, 32](numbers, make())) == [(kind, "out[0]")]
    assert met(lambda: chain(lambda: cuda.device_array(64, np.int32)[1:])) == [(kind, "a[0]")]
    hosts = (lambda: cuda.pinned_array(64, np.int32), lambda: cuda.managed_array(64, np.int32), lambda: numbers)
    for make in (copied, from_the_device, lambda: cuda.to_device(numbers), *hosts):
        assert met(lambda make=make: chain(make)) == []

    def in_part(set_too):
        a = cuda.device_array(64, np.int32)
        doubled[1, 32](cuda.to_device(numbers), a)
        if set_too == "by a copy":
            a[32:].copy_to_device(numbers[32:])
        elif set_too == "by a kernel":
            doubled[1, 32](cuda.to_device(numbers), a[32:])
        doubled[2, 32](a, cuda.device_array(64, np.int32))

    assert met(lambda: in_part("")) == [(kind, "a[32]")]
    assert met(lambda: in_part("by a copy")) == met(lambda: in_part("by a kernel")) == []


def test_whole_numbers_for_a_declared_type():
    """Arrays of the declared size are read by the declared sign, as Numba does; a number that is not whole
    is Numba's TypeError."""
    given = np.array([254, 3], np.uint8)
    with nd.check() as session:

        @cuda.jit("void(int8[:], int32)")
        def halved(values, n):
            i = cuda.threadIdx.x
            if i < n:
                values[i] = values[i] // 2

        halved[1, 32](given, 2)
        with pytest.raises(TypeError, match="argument 2.0 is no whole number, and int32 is declared"):
            halved[1, 32](given, 2.0)
    assert not session.faults and given.tolist() == [255, 1]
