"""What two processes do that share a model or its tensors: for tests on the CPU (gloo) and on two GPUs (nccl).

Each of SCENARIOS is called in both processes with the device that the process has, and raises AssertionError.
"""

import datetime
import functools
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from numba_deform.torch import MSDeformAttn, ms_deform_attn

SHAPES = [[5, 4], [2, 3], [1, 1]]
SIZE = 27
BATCH, QUERIES, WIDTH, HEADS, POINTS = 4, 3, 32, 4, 2
ALONE = datetime.timedelta(seconds=60)  # that a collective waits for the other process
close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


class Net(nn.Module):
    """The attention in a residual block, as in an encoder, with random parameters."""

    def __init__(self):
        super().__init__()
        self.attention = MSDeformAttn(WIDTH, len(SHAPES), HEADS, POINTS)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, query, points, flat):
        return self.last(query + self.attention(query, points, flat, SHAPES))


def net(device):
    torch.manual_seed(0)
    made = Net()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.to(device)


def inputs(device):
    """query, reference points and pixels of the whole batch."""
    torch.manual_seed(1)
    tensors = (torch.randn(BATCH, QUERIES, WIDTH), torch.rand(BATCH, QUERIES, len(SHAPES), 2),
               torch.randn(BATCH, SIZE, WIDTH))  # fmt: skip
    return [tensor.to(device) for tensor in tensors]


def operands(device):
    """value, locations (some outside) and weights of a call."""
    torch.manual_seed(2)
    rows = (BATCH, QUERIES, HEADS, len(SHAPES), POINTS)
    tensors = torch.randn(BATCH, SIZE, HEADS, 8), torch.rand(*rows, 2) * 1.4 - 0.2, torch.rand(rows)
    return [tensor.to(device) for tensor in tensors]


def my_part(tensors):
    return [tensor.chunk(2)[dist.get_rank()] for tensor in tensors]


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def mesh_on(device):
    return init_device_mesh(torch.device(device).type, (2,))


def step(model, tensors):
    """(gradients, parameters after a step) by name, whole."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(*tensors).square().mean().backward()
    names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
    gradients = [whole(parameter.grad) for parameter in model.parameters()]
    optimizer.step()
    parameters = [whole(parameter.detach()) for parameter in model.parameters()]
    return dict(zip(names, gradients, strict=True)), dict(zip(names, parameters, strict=True))


def same_step(model, device):
    """Each process with half the batch does what one does with the whole."""
    wanted = step(net(device), inputs(device))
    for found, expected in zip(step(model, my_part(inputs(device))), wanted, strict=True):
        assert all(gradient.any() for gradient in expected.values())
        close(found, expected)


# --- scenarios ----------------------------------------------------------------------------------------
def data_parallel(device):
    model = net(device)
    ids = [device] if torch.device(device).type == "cuda" else None
    same_step(nn.parallel.DistributedDataParallel(model, device_ids=ids), device)


def fully_sharded(device):
    model, mesh = net(device), mesh_on(device)
    fully_shard(model.attention, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert model.attention.value_proj.weight.placements == (Shard(0),)
    same_step(model, device)


def fully_sharded_from_meta(device):
    """Memory for the own shards alone, which reset_parameters fills as those of a new layer."""
    with torch.device("meta"):
        model = Net()
    fully_shard(model, mesh=mesh_on(device))
    model.to_empty(device=device)
    model.attention.reset_parameters()
    fresh = MSDeformAttn(WIDTH, len(SHAPES), HEADS, POINTS)
    close(whole(model.attention.sampling_offsets.bias.detach()).cpu(), fresh.sampling_offsets.bias.detach())
    assert not whole(model.attention.attention_weights.weight.detach()).any()


def call(tensors, needs=(True, True, True)):
    """The output, and the gradients of the tensors that need them."""
    tensors = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
    out = ms_deform_attn(tensors[0], SHAPES, None, *tensors[1:])
    learning = [tensor for tensor in tensors if tensor.requires_grad]
    return [out, *torch.autograd.grad(out.square().sum(), learning)]


def operator_on_dtensors(device, dim):
    """Split along ``dim``, of batch or heads: so are output and gradients, and nothing is communicated."""
    mesh, plain = mesh_on(device), operands(device)
    wanted = call(plain)
    split = [distribute_tensor(tensor, mesh, [Shard(dim)]) for tensor in plain]
    with torch.inference_mode():
        close(ms_deform_attn(split[0], SHAPES, None, *split[1:]).full_tensor(), wanted[0])
    index = [distribute_tensor(torch.tensor(numbers), mesh, [Replicate()]) for numbers in (SHAPES, [0, 20, 26])]
    close(ms_deform_attn(split[0], *index, *split[1:]).full_tensor(), wanted[0])
    with CommDebugMode() as communication:
        found = call(split)
    assert communication.get_total_counts() == 0
    for one, other in zip(found, wanted, strict=True):
        assert one.placements == (Shard(dim),)
        close(one.full_tensor(), other)
    # What DTensor remembers of one call is right for the next: other gradients, value in one piece.
    for i, needs in enumerate([(True, False, False), (False, True, False), (False, False, True)], 1):
        close(call(split, needs)[1].full_tensor(), wanted[i])
    found = call([distribute_tensor(plain[0], mesh, [Replicate()]), *split[1:]])
    assert {one.placements for one in found} == {(Shard(dim),)}
    close([one.full_tensor() for one in found], wanted)


def operator_on_batches(device):
    operator_on_dtensors(device, 0)


def operator_on_heads(device):
    operator_on_dtensors(device, 2)


def operator_otherwise(device):
    """Tensors that cannot stay as they are split are put together: by queries, and three heads for two."""
    mesh, plain = mesh_on(device), operands(device)
    three = [plain[0][:, :, :3], plain[1][:, :, :3], plain[2][:, :, :3]]
    for tensors, dim in ((plain, 1), (three, 2)):
        found = call([distribute_tensor(tensor.contiguous(), mesh, [Shard(dim)]) for tensor in tensors])
        assert {one.placements for one in found} == {(Replicate(),)}
        close([one.full_tensor() for one in found], call(tensors))


def layer_on_dtensors(device):
    """A batch as one DTensor: its gradients are sums over the processes."""
    mesh, model = mesh_on(device), net(device)
    wanted, _ = step(net(device), inputs(device))
    distribute_module(model, mesh)
    tensors = [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in inputs(device)]
    out = model(*tensors)
    assert out.placements == (Shard(0),)
    out.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.placements == (Partial("sum"),) or not name.endswith("weight")
        close(parameter.grad.full_tensor(), wanted[name])


def layer_by_heads(device):
    """Tensor parallelism as PyTorch has it: each process has the projections of its heads."""
    model = net(device)
    wanted, _ = step(net(device), inputs(device))
    plan = dict.fromkeys(["sampling_offsets", "attention_weights", "value_proj"], ColwiseParallel())
    parallelize_module(model.attention, mesh_on(device), {**plan, "output_proj": RowwiseParallel()})
    model(*inputs(device)).square().mean().backward()
    assert model.attention.value_proj.weight.to_local().shape == (WIDTH // 2, WIDTH)
    close({name: whole(p.grad) for name, p in model.named_parameters()}, wanted)


SCENARIOS = (
    data_parallel, fully_sharded, fully_sharded_from_meta, operator_on_batches, operator_on_heads,
    operator_otherwise, layer_on_dtensors, layer_by_heads,
)  # fmt: skip


# --- the two processes --------------------------------------------------------------------------------
def work(rank, kind, folder):
    """Run all scenarios, and leave in ``folder`` an empty file with the name of each that this one passed."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of this machine need not resolve
    device, backend = ("cpu", "gloo") if kind == "cpu" else (f"cuda:{rank}", "nccl")
    if kind == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=ALONE
    )
    for scenario in SCENARIOS:
        scenario(device)
        (folder / f"{scenario.__name__}-{rank}").touch()
    dist.destroy_process_group()


def run_both(kind, folder, seconds):
    """What went wrong in two processes on "cpu" or "cuda", "" if nothing did: they end, or are ended."""
    both = processes.spawn(work, (kind, folder), nprocs=2, join=False)
    end = time.monotonic() + seconds
    try:
        while not both.join(timeout=max(end - time.monotonic(), 0)):
            if time.monotonic() > end:
                return f"not finished after {seconds} seconds"
    except (processes.ProcessRaisedException, processes.ProcessExitedException) as error:
        return str(error)
    finally:
        for process in both.processes:
            process.kill()
    return ""


def passed(scenario, folder):
    """Whether both processes passed the scenario."""
    return all((folder / f"{scenario.__name__}-{rank}").exists() for rank in range(2))
