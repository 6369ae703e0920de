"""``breakpoint()`` in a kernel: under pdb, by what is typed and printed, and under debugpy, by its protocol."""

import bdb
import contextlib
import json
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from numba import cuda, float32

import numba_deform as nd

PROGRAM = """
import numpy as np
from numba import cuda, float32
import numba_deform as nd

@cuda.jit(device=True)
def half(x):
    y = x / 2
    if cuda.threadIdx.x == 35:
        breakpoint()
    return y

@cuda.jit
def kernel(a):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i != 63:
        tile[i] = a[i]
    cuda.syncthreads()
    if i < 48:
        a[i] = half(tile[i])

a = np.arange(64, dtype=np.float32)
print("report", nd.simulate(kernel, 1, 64, (a,), timeout=5, compiled={compiled}).compiled, a[35])
"""


def answers(folder, typed, compiled=None):
    """What the program prints when this is typed, by its prompts."""
    file = folder / "program.py"
    file.write_text(PROGRAM.format(compiled=compiled))
    done = subprocess.run(
        [sys.executable, file], input="\n".join(typed), capture_output=True, text=True, timeout=120
    )
    return done.stdout.split("(block 0, warp 1, lane 3) "), done


def test_it_stops_in_its_thread(tmp_path):
    said, _ = answers(tmp_path, ["where", "p x, y", "up", "p i, tile[2]", "shared tile", "threads", "c"], True)
    stopped, where, values, _, above, shared, threads, end = said
    assert "-> return y" in stopped and "thread 35 of block 0: warp 1, lane 3" in where
    assert re.search(r"kernel\(\)\n-> a\[i\] = half\(tile\[i\]\)\n> .*half\(\)", where)
    assert values.strip() == "(np.float32(35.0), 17.5)" and above.strip() == "(35, np.float32(2.0))"
    assert "tile: float32[64]" in shared and " 62.0 ?]" in shared
    assert "   thread 35: here\n" in threads and "threads 0-34: has ended" in threads
    assert re.search(r"threads 36-62: .*cuda.syncthreads\(\)  \(may go on\)", threads)
    assert end.strip() == "report False 17.5"  # machine code has no breakpoints


def test_quitting_accuses_nobody(tmp_path):
    _, done = answers(tmp_path, ["q"])
    assert done.stderr.strip().endswith("bdb.BdbQuit") and "report" not in done.stdout


def test_a_hook_of_somebody_else_is_called_from_the_kernel(monkeypatch):
    stops = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(sys._getframe(1)))

    def kernel(out):
        i = cuda.threadIdx.x
        if i % 2:
            breakpoint()
        out[i] = float32(i)

    nd.simulate(kernel, 1, 4, (np.zeros(4, np.float32),))
    assert [frame.f_locals["i"] for frame in stops] == [1, 3]
    assert {frame.f_code.co_name for frame in stops} == {"kernel"}


def test_it_takes_no_time(monkeypatch):
    """Who looks around for longer than the timeout is not thrown out."""

    def slowly(frame):
        time.sleep(0.5)

    def kernel(out):
        breakpoint()
        out[0] = 1

    from numba_deform.engines.cpu.explain import debugger

    monkeypatch.setattr(debugger.Debugger, "set_trace", lambda self, frame: slowly(frame))
    nd.simulate(kernel, 1, 1, (np.zeros(1, np.int32),), timeout=0.2)
    monkeypatch.setattr(debugger.Debugger, "set_trace", lambda self, frame: (_ for _ in ()).throw(bdb.BdbQuit))
    with pytest.raises(bdb.BdbQuit):
        nd.simulate(kernel, 1, 1, (np.zeros(1, np.int32),))


class Client:
    """Speaks the Debug Adapter Protocol with a debugpy that waits for it."""

    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port), 60).makefile("rwb")
        self.sent = 0

    def ask(self, command, **arguments):
        """The number of the request."""
        self.sent += 1
        message = {"seq": self.sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self.stream.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.stream.flush()
        return self.sent

    def hear(self, wanted):
        """The body of the next event of that name, or of the answer to that request."""
        while True:
            length = 0
            while line := self.stream.readline().strip():
                length = int(line.rpartition(b":")[2]) if line.startswith(b"Content-Length") else length
            message = json.loads(self.stream.read(length))
            if wanted in (message.get("event"), message.get("request_seq")):
                assert message.get("success", True), message
                return message.get("body", {})


@pytest.mark.full
def test_an_editors_debugger_stops_in_it(tmp_path):
    """What VS Code does: it stops in the kernel's line, shows its variables, and goes on."""
    pytest.importorskip("debugpy")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(compiled=None))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}"]
    program = subprocess.Popen([*command, "--wait-for-client", file], stdout=subprocess.PIPE, text=True)
    try:
        client = connected(port)
        client.hear(client.ask("initialize", adapterID="python", pathFormat="path"))
        client.ask("attach", justMyCode=False)
        client.hear("initialized")
        client.hear(client.ask("configurationDone"))
        thread = client.hear("stopped")["threadId"]
        frames = client.hear(client.ask("stackTrace", threadId=thread))["stackFrames"]
        assert [frame["name"] for frame in frames[:2]] == ["half", "kernel"]
        assert file.read_text().splitlines()[frames[0]["line"] - 1].strip() in ("breakpoint()", "return y")
        seen = [
            client.hear(client.ask("evaluate", expression=text, frameId=frames[n]["id"]))["result"]
            for n, text in ((0, "float(y)"), (1, "(i, float(tile[2]))"))
        ]
        assert seen == ["17.5", "(35, 2.0)"]
        client.hear(client.ask("continue", threadId=thread))
        client.hear("terminated")
        client.ask("disconnect")
        assert program.communicate(timeout=60)[0].strip() == "report False 17.5"
    finally:
        program.kill()
        program.wait()


def connected(port):
    """A Client, once somebody listens."""
    for _ in range(300):
        with contextlib.suppress(ConnectionRefusedError):
            return Client(port)
        time.sleep(0.1)
    raise AssertionError("nobody listens")
