"""``numba-deform bugs`` on the CPU engine, and the GPU's side of it with the GPU left out."""

import os

import pytest
from fake_measures import hang

from numba_deform.cli import main
from numba_deform.course.bugs import BUGS, gpu
from numba_deform.engines import faults
from numba_deform.measure.worker import Worker

pytestmark = pytest.mark.usefixtures("no_gpu")

@pytest.fixture
def call(capsys):
    """``call(words)`` -> (exit status, stdout, stderr)."""

    def run(*words):
        status = main(["bugs", *words])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out, captured.err

    return run


def test_the_list(call):
    status, out, _ = call()
    assert status == 0
    for name in BUGS:
        assert f" {name} " in out
    assert "FreshBarrierPassed" in out and "note 3" in out


def test_a_story_its_lines_and_the_report(call):
    status, out, _ = call("parity_inverted")
    assert status == 0
    assert BUGS["parity_inverted"].story in out
    for text in (
        "note 2", "parity_inverted.py:", "mbarrier_wait(full + 8 * stage, parity ^ 1)  # the fault",
        "mbarrier_wait(full + 8 * stage, parity)  # the cure", "FreshBarrierPassed: reads tile",
        "total += tile[stage, lane]", "replay schedule_seed=0 landing=late", "PASS",
    ):  # fmt: skip
        assert text in out, text


def test_dashes_schedules_and_landings(call):
    status, out, _ = call("init-again", "schedules=3", "schedule_seed=5", "landing=random")
    assert status == 0 and "replay schedule_seed=5 landing=random" in out
    assert "without the line" in out


def test_all_schedules(call):
    status, out, _ = call("expect_too_many", "fixed=1", "schedules=all")
    assert status == 0 and out.rstrip().endswith("PASS")
    assert "none was broken; complete: every order of up to 8 barrier, flag and copy events" in out
    status, out, _ = call("no_empty_wait", "fixed=1", "schedules=all", "limit=3")
    assert status == 0 and "not complete: the first 3 schedules (limit=3)" in out
    status, out, _ = call("expect_too_many", "schedules=all")
    assert status == 0 and "  seed   'x:0:'" in out and "replay schedule_seed=x:0: " in out
    status, again, _ = call("expect_too_many", "schedule_seed=x:0:")
    assert status == 0 and again == out


def test_the_twin(call):
    status, out, _ = call("no_full_wait", "fixed=1", "schedules=4")
    assert status == 0
    assert "none was broken in 4 schedules" in out and out.rstrip().endswith("PASS")


def test_wrong_numbers_are_the_report_where_no_rule_is_broken(call):
    status, out, _ = call("map_dims_order")
    assert status == 0 and "32 of 32 elements are wrong" in out
    assert call("map_dims_order", "fixed=1")[0] == 0


def test_another_report_than_the_expected_one_fails(call, monkeypatch):
    monkeypatch.setattr(BUGS["no_full_wait"].module, "FAULTS", {})
    status, out, _ = call("no_full_wait")
    assert status == 1
    assert "not the expected one" in out and out.rstrip().endswith("FAIL")
    monkeypatch.setattr(BUGS["map_dims_order"].module, "FAULTS", {ValueError: "x"})
    assert call("map_dims_order")[0] == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ("parity_inverter",),
            "there is no planted fault parity_inverter; did you mean parity_inv",
        ),
        (("xyz",), "there is no planted fault xyz (numba-deform bugs lists them)"),
        (("engine=gpu",), "bugs takes a name before engine=gpu"),
        (("no_full_wait", "engine=tpu"), "engine=tpu: it must be one of cpu, gpu"),
        (("no_full_wait", "seed=1"), "unknown key seed"),
        (("no_full_wait", "schedules=some"), "must be a whole number of at least 1, or all"),
        (("no_full_wait", "schedule_seed=x:1"), "or a schedule such as x:0:0210"),
        (("no_full_wait", "schedule_seed=x:1:"), "is of block 1, and there are 1"),
        (("no_full_wait", "limit=5"), "limit goes with schedules=all; add it"),
        (
            ("no_full_wait", "schedules=all", "landing=late"),
            "landing does not go with schedules=all",
        ),
        (("no_full_wait", "engine=gpu", "landing=late"), "landing is for the CPU engine"),
        (
            ("no_full_wait", "engine=gpu"),
            "no CUDA GPU can be used: no driver; engine=cpu needs no GPU",
        ),
    ],
)
def test_bad_input(call, words, message):
    status, _, err = call(*words)
    assert status == 2 and message in err


# --- engine=gpu -----------------------------------------------------------------------------------
def answers(monkeypatch, *given):
    """A worker that gives these answers, and the list of (task, limit) it was called with."""
    calls, left = [], list(given)

    class FakeWorker:
        def __init__(self, function, limit):
            assert function == "numba_deform.course.bugs.gpu:serve"
            self.limit = limit

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def call(self, task):
            calls.append((task, self.limit))
            return left.pop(0)

    monkeypatch.setattr(gpu, "Worker", FakeWorker)
    monkeypatch.setattr(gpu, "find_gpu", lambda: None)
    monkeypatch.setattr(gpu, "require", lambda *_: None)
    return calls


HANG = {"error_text": "no answer within 5 s: stopped"}
ERROR = {"error_text": "CUDAError: CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address"}
WRONG, RIGHT = {"wrong": 3, "size": 32}, {"wrong": 0, "size": 32}


@pytest.mark.parametrize(
    "answer, fixed, status, text",
    [
        (HANG, 0, 0, "hang          still running after 5 s: stopped"),
        (ERROR, 0, 0, "error         CUDAError: CUDA_ERROR_MISALIGNED_ADDRESS"),
        (WRONG, 0, 0, "wrong         3 of 32 elements are wrong"),
        (RIGHT, 0, 0, "right by luck"),
        (RIGHT, 1, 0, "PASS"),
        (WRONG, 1, 1, "FAIL"),
        (HANG, 1, 1, "FAIL"),
    ],
)
def test_what_the_hardware_does_is_told(call, monkeypatch, answer, fixed, status, text):
    calls = answers(monkeypatch, {"device": "NVIDIA Test"}, answer)
    result = call("no_full_wait", "engine=gpu", f"fixed={fixed}")
    assert result[0] == status and text in result[1]
    task = {"name": "no_full_wait", "fixed": bool(fixed), "debug": False}
    assert calls == [({**task, "step": "prepare"}, 120.0), ({**task, "step": "launch"}, 5.0)]


def test_a_bounded_hang_is_told_with_its_report(call, monkeypatch):
    fault = faults.IncompletePhase(
        "a wait took more than 1 s", threads=(0,), block=2, where="f.py:3"
    )
    calls = answers(monkeypatch, {"device": "NVIDIA Test"}, {"fault": fault, "usable": True})
    status, out, _ = call("no_full_wait", "engine=gpu", "debug=1")
    assert status == 0 and calls[1][0]["debug"]
    for words in ("report        IncompletePhase: a wait took", "at     f.py:3", "the GPU works"):
        assert words in out
    status, _, err = call("no_full_wait", "debug=1")
    assert status == 2 and "debug=1 bounds the waits of a GPU; add engine=gpu" in err


def serve(task):
    """A child that prepares, and hangs in the launch."""
    if task["step"] == "launch":
        hang()
    return {"device": str(os.getpid())}


def test_a_child_that_hangs_is_stopped_for_real(monkeypatch):
    monkeypatch.setattr(gpu, "find_gpu", lambda: None)
    monkeypatch.setattr(gpu, "require", lambda *_: None)
    monkeypatch.setattr(gpu, "Worker", lambda _, limit: Worker(f"{__name__}:serve", limit))
    outcome = gpu.run_on_gpu(BUGS["no_full_wait"], limit=0.5)
    assert (outcome.kind, outcome.text) == ("hang", "still running after 0.5 s: stopped")
    with pytest.raises(ProcessLookupError):
        os.kill(int(outcome.device), 0)


def test_the_child_says_what_it_lacks():
    with Worker(f"{gpu.__name__}:serve", 600) as worker:
        answer = worker.call(
            {"name": "no_full_wait", "fixed": False, "debug": False, "step": "prepare"}
        )
    assert "GpuMissing" in answer.get("error_text", "GpuMissing")  # or there is a GPU


def test_a_child_that_cannot_even_prepare(call, monkeypatch):
    answers(monkeypatch, {"error_text": "the process died with exit status -9"})
    status, _, err = call("no_full_wait", "engine=gpu")
    assert status == 1 and "no_full_wait was not launched: the process died" in err
