"""What the hardware does with a planted fault: a launch in a child process, which may hang or die."""

from dataclasses import dataclass

from ...device.limits import HOPPER
from ...engines.cpu import SimFault
from ...engines.gpu.device import find_gpu, require
from ...engines.gpu.guard import launch_guarded
from ...engines.gpu.in_place import launch_in_place
from ...engines.gpu.launch import launch
from ...measure.worker import Worker
from . import BUGS

PREPARE_LIMIT, LIMIT = 120.0, 5.0  # seconds: compiling and starting CUDA; the launch itself


@dataclass(frozen=True)
class Outcome:
    """``kind``: right, wrong, hang, report or error; ``text`` says it in words.

    ``fault`` is the report of a guarded launch, ``usable`` whether its process could use the GPU after it.
    """

    device: str
    kind: str
    text: str
    fault: SimFault | None = None
    usable: bool | None = None


def run_on_gpu(bug, fixed=False, limit=LIMIT, debug=False):
    """Launch a :class:`base.Bug`, or its right twin, once; returns an :class:`Outcome`.

    ``debug`` launches the guarded form, whose waits are bounded. The child process is killed after ``limit``
    seconds. Raises GpuMissing without a Hopper GPU.
    """
    require(find_gpu(), HOPPER, "a planted fault")
    task = {"name": bug.name, "fixed": bool(fixed), "debug": bool(debug)}
    with Worker(f"{__name__}:serve", PREPARE_LIMIT) as worker:
        ready = worker.call({**task, "step": "prepare"})
        if "error_text" in ready:
            raise RuntimeError(f"{bug.name} was not launched: {ready['error_text']}")
        worker.limit = limit
        return outcome(ready["device"], worker.call({**task, "step": "launch"}), limit)


def outcome(device, answer, limit):
    """The :class:`Outcome` for a worker's answer to a launch."""
    error, fault = answer.get("error_text"), answer.get("fault")
    if fault:
        return Outcome(device, "report", str(fault), fault, answer["usable"])
    if error is None:
        wrong, size = answer["wrong"], answer["size"]
        if wrong:
            return Outcome(device, "wrong", f"{wrong} of {size} elements are wrong")
        return Outcome(device, "right", f"all {size} elements are right")
    if error.startswith("no answer"):
        return Outcome(device, "hang", f"still running after {limit:g} s: stopped")
    return Outcome(device, "error", error)


def serve(task):
    """The child's side: one step of :func:`run_on_gpu`."""
    gpu, bug = find_gpu(), BUGS[task["name"]]
    kernel = bug.kernel(not task["fixed"])
    if task["step"] == "prepare":
        (kernel.with_bounded_waits() if task["debug"] else kernel).compile(gpu.architecture)
        return {"device": gpu.describe()}
    planned = bug.arguments()
    try:
        out = _launch(gpu, kernel, planned, launch_guarded if task["debug"] else launch)
    except SimFault as fault:
        planned = bug.arguments()  # the twin says whether the GPU still works
        right = not planned.wrong(_launch(gpu, bug.kernel(False), planned, launch))
        return {"fault": fault, "usable": right}
    return {"wrong": planned.wrong(out), "size": int(planned.out.size)}


def _launch(gpu, kernel, planned, launch):
    """Run ``planned`` by ``launch`` and return its ``out``."""
    launch_in_place(gpu, kernel, planned.grid, planned.args, planned.shared_bytes, launch)
    return planned.out
