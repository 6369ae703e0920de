"""The host's time for a training step of the operator in PyTorch, without a GPU: launches do nothing.

    python bench/torch_step_host.py before=../before after=. --out bench/results/torch_step_host.json

Each checkout has a process of its own, in which tensors on the CPU stand for those on a GPU, and a kernel ends
before it starts: what is timed is Python's and PyTorch's part. The driver asks for a batch of each in turn.
``peer`` is an autograd function as Deformable-DETR has it, whose extension does nothing but make its tensors.
Microseconds of a call by the process's clock, since others use the machine; the median batch. The sizes are
small: the host's work does not know them.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

CALLS = 500
SHAPES, STARTS = [[4, 4], [2, 2], [2, 1], [1, 1]], [0, 16, 20, 22]


def pretend(torch):
    """Import the operator; from now on every tensor says that it is on a GPU, and kernels are not launched."""
    implement = torch.library.Library.impl

    def on_the_cpu(library, name, function, key="", **options):
        if key != "CPU":
            implement(library, name, function, "CPU" if key == "CUDA" else key, **options)

    torch.library.Library.impl = on_the_cpu
    from numba import types

    from numba_deform.torch import operator, plans

    torch.library.Library.impl = implement
    gpu = SimpleNamespace(device=SimpleNamespace(device_id=0), capability=(9, 0))

    def bound(problem, *names):
        signature = types.void(*[types.uint64] * len(names))
        return SimpleNamespace(
            problem=problem, gpu=gpu, blocks=1, shared_bytes=0,
            kernel=SimpleNamespace(parameters=names, signature=signature),
            arguments=lambda four, maps, extra: tuple(extra[name] for name in names))  # fmt: skip

    operands = ("value", "locations", "weights")
    for name, stand_in in {
        "launches": lambda gpu, problem: (bound(problem, *operands, "out"),),
        "find_gpu": lambda device: gpu, "require": lambda *_: None, "is_capturing": lambda stream: False,
        "_on": lambda device: contextlib.nullcontext(),
        "ready_launch": lambda *_: lambda stream: None,  # as it was called before steps
        "launch_step": lambda *_: lambda stream: (0,), "clear_step": lambda *_: lambda stream: (0,),
        "in_context": lambda gpu, steps: lambda stream: [step(stream) for step in steps],
    }.items():  # fmt: skip
        setattr(plans, name, stand_in)
    of_backward = (*operands, *plans.gradients.operands(0, 0, 0, 0))
    plans.gradients.bound = lambda problem, gpu, **options: bound(problem, *of_backward)
    operator.current_stream = lambda device: 0
    torch.Tensor.is_cuda = property(lambda tensor: True)
    empty = torch.empty
    torch.empty = lambda *size, device=None, **options: empty(*size, **options)


def peer_of(torch):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, shapes, starts, locations, weights, im2col_step):
            ctx.im2col_step = im2col_step
            out = value.new_empty(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])
            ctx.save_for_backward(value, shapes, starts, locations, weights)
            return out

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad_out):
            value, _, _, locations, weights = ctx.saved_tensors
            of_value, of_locations, of_weights = map(torch.zeros_like, (value, locations, weights))
            return of_value, None, None, of_locations, of_weights, None

    return Function.apply


def calls_of(torch):
    """{name: function}."""
    pretend(torch)
    from numba_deform.torch import ms_deform_attn

    samples = 1, 4, 2, 4, 4
    learning = [torch.rand(size).requires_grad_() for size in ((1, 23, 2, 8), (*samples, 2), samples)]
    value, locations, weights = learning
    plain = [tensor.detach() for tensor in learning]
    index, given, peer = (torch.tensor(SHAPES), torch.tensor(STARTS)), torch.rand(1, 4, 16), peer_of(torch)

    def step(out, learning=learning):
        torch.autograd.grad(out, learning, given.to(out.dtype))

    half = [tensor.detach().half().requires_grad_() for tensor in learning]

    return {
        "forward": lambda: ms_deform_attn(plain[0], SHAPES, STARTS, *plain[1:]),
        "forward_with_gradients": lambda: ms_deform_attn(value, SHAPES, STARTS, locations, weights),
        "step": lambda: step(ms_deform_attn(value, SHAPES, STARTS, locations, weights)),
        "step_of_float16": lambda: step(ms_deform_attn(half[0], SHAPES, STARTS, *half[1:]), half),
        "peer_forward": lambda: peer(value, *index, locations, weights, 64),
        "peer": lambda: step(peer(value, *index, locations, weights, 64)),
    }


def serve(folder):
    """A checkout's process: each line from stdin asks for a batch of every call; JSON goes to stdout."""
    sys.path.insert(0, folder)
    import torch

    torch.set_num_threads(1)
    calls = calls_of(torch)
    for _ in sys.stdin:
        times = {}
        for name, call in calls.items():
            call()
            start = time.process_time()
            for _ in range(CALLS):
                call()
            times[name] = 1e6 * (time.process_time() - start) / CALLS
        print(json.dumps(times), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    servers, times = {}, {}
    for name, folder in (tree.split("=", 1) for tree in options.trees):
        command = [sys.executable, __file__, "--serve", str(Path(folder).resolve())]
        servers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for turn in range(1 + options.rounds):
        for name, server in servers.items():
            print(file=server.stdin, flush=True)
            found = json.loads(server.stdout.readline())
            if turn:  # the first warms up
                times.setdefault(name, []).append(found)
    rows = []
    for name, server in servers.items():
        server.stdin.close()
        server.wait()
        medians = {f"{c}_us": statistics.median(found[c] for found in times[name]) for c in times[name][0]}
        rows.append({"checkout": name, **medians, "step_to_peer": medians["step_us"] / medians["peer_us"]})
        print({key: round(v, 2) if isinstance(v, float) else v for key, v in rows[-1].items()})
    if options.out:
        from numba_deform.measure import record

        record.write(options.out, None, rows, calls=CALLS, rounds=options.rounds)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1:2] == ["--serve"] else main()
