"""numba_deform.torch.MSDeformAttn on the CPU: beside transformers' layer, gradients, and compiled, copied .."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import ConfigError, OperatorError  # noqa: E402
from numba_deform.torch import MSDeformAttn, ms_deform_attn  # noqa: E402

SHAPES = [[5, 4], [2, 3], [1, 1]]
SIZE = 27
BATCH, QUERIES = 2, 3


def layer(n_points=2, dtype=torch.float32, d_model=16, n_heads=4):
    """A layer all of whose parameters are random."""
    torch.manual_seed(0)
    made = MSDeformAttn(d_model, len(SHAPES), n_heads, n_points, dtype=dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def inputs(dtype=torch.float32, coordinates=2, d_model=16):
    """query, reference points (some beside the image), input_flatten."""
    random = torch.Generator().manual_seed(1)
    query = torch.randn(BATCH, QUERIES, d_model, generator=random).to(dtype)
    points = torch.rand(BATCH, QUERIES, len(SHAPES), coordinates, generator=random) * 1.2 - 0.1
    if coordinates == 4:
        points[..., 2:] = points[..., 2:].abs()
    return query, points.to(dtype), torch.randn(BATCH, SIZE, d_model, generator=random).to(dtype)


@pytest.mark.parametrize("coordinates", [2, 4])
def test_the_layer_of_transformers(coordinates):
    """With its state dict: the same output and the same gradients, also where pixels are padding."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import DeformableDetrConfig
    from transformers.models.deformable_detr import modeling_deformable_detr as modeling

    config = DeformableDetrConfig(d_model=16, num_feature_levels=3, disable_custom_kernels=True)
    theirs = modeling.DeformableDetrMultiscaleDeformableAttention(config, num_heads=4, n_points=2)
    theirs.load_state_dict(layer().state_dict())
    ours = MSDeformAttn(16, 3, 4, 2)
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    query, points, flat = inputs(coordinates=coordinates)
    padding = torch.arange(SIZE).expand(BATCH, -1) % 5 == torch.tensor([[0], [3]])
    out = ours(query, points, flat, torch.tensor(SHAPES), torch.tensor([0, 20, 26]), padding)
    wanted, _ = theirs(
        query, ~padding, flat, reference_points=points, spatial_shapes=torch.tensor(SHAPES),
        spatial_shapes_list=SHAPES, level_start_index=torch.tensor([0, 20, 26]))  # fmt: skip
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    out.square().sum().backward()
    wanted.square().sum().backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs.get_parameter(name).grad, rtol=1e-4, atol=1e-4)


def test_the_start_of_the_paper():
    fresh = MSDeformAttn(16, 3, 4, 2)
    offsets = fresh.sampling_offsets.bias.reshape(4, 3, 2, 2)
    directions = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    for point in range(2):
        wanted = (directions * (point + 1)).unsqueeze(1).expand(4, 3, 2)
        torch.testing.assert_close(offsets[:, :, point], wanted, atol=1e-6, rtol=0)
    zeros = (fresh.sampling_offsets.weight, fresh.attention_weights.weight, fresh.attention_weights.bias,
             fresh.value_proj.bias, fresh.output_proj.bias)  # fmt: skip
    assert not any(parameter.any() for parameter in zeros)
    for weight in (fresh.value_proj.weight, fresh.output_proj.weight):
        assert 0.9 * (6 / 32) ** 0.5 < weight.abs().max() <= (6 / 32) ** 0.5


@pytest.mark.parametrize("coordinates", [2, 4])
def test_gradients(coordinates):
    small = layer([1, 2, 1], torch.float64, d_model=8, n_heads=2)
    query, points, flat = inputs(torch.float64, coordinates, d_model=8)

    def call(query, points, flat, *parameters):
        named = dict(zip(dict(small.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(small, named, (query, points, flat, SHAPES))

    given = [t.requires_grad_() for t in (query, points, flat, *(p.detach() for p in small.parameters()))]
    assert torch.autograd.gradcheck(call, given, fast_mode=True)


@pytest.mark.parametrize("coordinates", [2, 4])
def test_points_by_level(coordinates):
    """A list of equal numbers is the number; the samples of uneven ones are where the definition has them."""
    given = (*inputs(coordinates=coordinates), SHAPES)
    assert torch.equal(layer([2, 2, 2])(*given), layer(2)(*given))
    uneven = layer([1, 3, 2])
    offsets = uneven.sampling_offsets(given[0]).reshape(BATCH, QUERIES, 4, 6, 2)
    weights = uneven.attention_weights(given[0]).reshape(BATCH, QUERIES, 4, 6).softmax(-1)
    locations = torch.empty_like(offsets)
    for sample, level in enumerate([0, 1, 1, 1, 2, 2]):
        point = given[1][:, :, None, level]
        height, width = SHAPES[level]
        unit = torch.tensor([1 / width, 1 / height])
        if coordinates == 4:
            unit = point[..., 2:] / 2 / [1, 3, 2][level]
        locations[..., sample, :] = point[..., :2] + offsets[..., sample, :] * unit
    value = uneven.value_proj(given[2]).reshape(BATCH, SIZE, 4, 4)
    out = ms_deform_attn(value, SHAPES, None, locations, weights, num_points=[1, 3, 2])
    torch.testing.assert_close(uneven(*given), uneven.output_proj(out))


def test_padding_has_no_value():
    """Whatever stands there; and it is not a bias either, which value_proj adds."""
    made, (query, points, flat) = layer(), inputs()
    padding = torch.zeros(BATCH, SIZE, dtype=torch.bool)
    padding[1, 3:] = True
    other = flat.masked_fill(padding.unsqueeze(-1), 100.0)
    out = made(query, points, flat, SHAPES, None, padding)
    assert torch.equal(out, made(query, points, other, SHAPES, input_padding_mask=padding))
    assert not torch.equal(out, made(query, points, flat, SHAPES))
    padding[:] = True
    out = made(query, points, flat, SHAPES, None, padding)
    torch.testing.assert_close(out, made.output_proj.bias.expand_as(out))


@pytest.mark.parametrize("how", ["parameters", "autocast"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_keep_float32_locations(dtype, how, monkeypatch):
    found = []
    forward = ms_deform_attn

    def watched(value, shapes, starts, locations, weights, **options):
        found.append((value.dtype, locations.dtype))
        return forward(value, shapes, starts, locations, weights, **options)

    monkeypatch.setattr("numba_deform.torch.module.ms_deform_attn", watched)
    made, (query, points, flat) = layer(), inputs()
    exact = made(query, points, flat, SHAPES)
    if how == "parameters":
        made.to(dtype)
        out = made(query.to(dtype), points, flat.to(dtype), SHAPES)
    else:
        with torch.autocast("cpu", dtype):
            out = made(query, points, flat, SHAPES)
    assert found[1] == (dtype, torch.float32) and out.dtype == dtype
    torch.testing.assert_close(out.float(), exact, rtol=0.1, atol=0.15)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in made.parameters())


@pytest.mark.parametrize("shapes", [SHAPES, torch.tensor(SHAPES)], ids=["lists", "tensors"])
def test_compile(shapes):
    made, given = layer([1, 3, 2]), inputs()
    starts = None if shapes is SHAPES else torch.tensor([0, 20, 26])
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    for repeat in (1, 2):  # the second with another batch, and as a list with other levels
        tensors = [t.repeat(repeat, *[1] * (t.ndim - 1)) for t in given]
        if isinstance(shapes, list) and repeat == 2:
            shapes = [[4, 5], [3, 2], [1, 1]]
        out = made(*tensors, shapes, starts)
        wanted = torch.autograd.grad(out.square().sum(), list(made.parameters()))
        again = compiled(*tensors, shapes, starts)
        found = torch.autograd.grad(again.square().sum(), list(made.parameters()))
        for a, b in zip((out, *wanted), (again, *found), strict=True):
            torch.testing.assert_close(a, b)


def test_export():
    made, given = layer(), (*inputs(coordinates=4), SHAPES)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(made, given, dynamic_shapes=[{0: batch}] * 3 + [[[None] * 2] * 3])
    twice = [t.repeat(2, *[1] * (t.ndim - 1)) for t in given[:3]]
    torch.testing.assert_close(program.module()(*twice, SHAPES), made(*twice, SHAPES))
    torch.testing.assert_close(made(*given), program.module()(*given))  # nothing of the export is left over


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    made, given = layer(), (*inputs(), SHAPES)
    wanted = torch.autograd.grad(made(*given).square().sum(), list(made.parameters()))
    found = checkpoint(made, *given, use_reentrant=False).square().sum()
    assert all(map(torch.equal, wanted, torch.autograd.grad(found, list(made.parameters()))))


def test_copies():
    made, given = layer([1, 3, 2]), (*inputs(), SHAPES)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(other(*given), made(*given)) and repr(other) == repr(made)
    assert repr(made).startswith("MSDeformAttn(\n  d_model=16, n_levels=3, n_heads=4, n_points=[1, 3, 2]\n")


def test_the_meta_device():
    """No memory until it is asked for; then reset_parameters starts as a new layer does."""
    with torch.device("meta"):
        made = MSDeformAttn(16, 3, 4, 2)
    assert {p.device.type for p in made.parameters()} == {"meta"}
    out = made(*(t.to("meta") for t in inputs()), SHAPES)
    assert out.shape == (BATCH, QUERIES, 16) and out.device.type == "meta"
    made.to_empty(device="cpu")
    for parameter in made.parameters():
        parameter.data.fill_(torch.nan)
    torch.manual_seed(7)
    made.reset_parameters()
    torch.manual_seed(7)
    fresh = MSDeformAttn(16, 3, 4, 2)
    torch.manual_seed(7)
    fresh.reset_parameters()
    for name, parameter in made.state_dict().items():
        assert torch.equal(parameter, fresh.state_dict()[name]), name


def test_what_a_layer_refuses():
    def refused(text, *sizes):
        with pytest.raises(ConfigError, match=text):
            MSDeformAttn(*sizes)

    refused("^d_model=30: must be a multiple of n_heads=4", 30, 3, 4)
    refused("^d_model=24: with n_heads=4, a head has 6 channels, which of float32 are 24 bytes", 24, 3, 4)
    refused("^d_model=1024: with n_heads=4, a head has 256 channels", 1024, 3, 4)
    refused("^n_heads=0: must be an integer of at least 1", 16, 3, 0)
    refused("^n_levels=2.0: must be an integer of at least 1", 16, 2.0, 4)
    for points in (0, 2.5, [1, 2], [1, 2, 0]):
        text = r"^n_points=.*: must be an integer of at least 1, or a list of 3 \(n_levels\) of them"
        refused(text, 16, 3, 4, points)


def test_what_a_call_refuses():
    made, (query, points, flat) = layer(), inputs()
    mask = torch.zeros(BATCH, SIZE, dtype=torch.bool)

    def refused(text, **changes):
        given = {
            "query": query, "reference_points": points, "input_flatten": flat, "input_spatial_shapes": SHAPES,
            **changes}  # fmt: skip
        with pytest.raises(OperatorError, match=text):
            made(**given)

    refused(r"^query has shape \(2, 3, 8\); it must be \(B, Q, d_model\) with d_model=16", query=query[..., :8])
    refused(r"^input_flatten has shape \(27, 16\); it must be \(B, S, d_model\)", input_flatten=flat[0])
    refused("^query has B=1 but input_flatten has B=2", query=query[:1])
    three = torch.rand(BATCH, QUERIES, 3, 3)
    refused(r"^reference_points has shape \(2, 3, 3, 3\); .* \(B, Q, L, 4\)", reference_points=three)
    refused("^reference_points .* with B=2 Q=3 L=3", reference_points=points[:, :, :2])
    refused("^input_spatial_shapes has 2 levels, the layer n_levels=3", input_spatial_shapes=SHAPES[:2])
    refused(r"^spatial_shapes=\[5, 4, 3\]: it is a height and a width", input_spatial_shapes=[5, 4, 3])
    refused("^spatial_shapes says 28 positions but value has S=27", input_spatial_shapes=[[7, 3], *SHAPES[1:]])
    refused(r"^input_padding_mask is \(2, 27\) of float32; it must be \(2, 27\) of bool",
            input_padding_mask=mask.float())  # fmt: skip
    refused(r"^input_padding_mask is \(2, 26\) of bool", input_padding_mask=mask[:, 1:])
