"""This operator in the place of other libraries' own, on the CPU.

Not all of them can be installed here. mmcv-lite has mmcv's Python code but no compiled operators, for which a
module of this file stands in; of RF-DETR the code of its attention runs alone. Deformable-DETR, detrex, D-FINE
and the like are written here in small, with the names, arguments and shapes of the original."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import textwrap
import warnings
from contextlib import ExitStack
from types import ModuleType

import pytest
import transformers_own

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba_deform import OperatorError  # noqa: E402
from numba_deform.torch import contracts, ms_deform_attn, patch  # noqa: E402

SHAPES = [(5, 4), (2, 3)]
STARTS = [0, 20]
INDEX = torch.tensor(SHAPES), torch.tensor(STARTS)
EXTENSION, FIRST = "MultiScaleDeformableAttention", "deformable_attention_core_func"

CORE = '''
    import torch
    from torch.nn.functional import grid_sample

    def {name}(value, value_spatial_shapes, sampling_locations, attention_weights):
        """Level by level: value (B, S, H, C), locations (B, Q, H, L, P, 2), weights (B, Q, H, L, P)."""
        batch, _, heads, channels = value.shape
        start, out = 0, 0
        for level, (height, width) in enumerate(value_spatial_shapes):
            plane = value[:, start : start + height * width].permute(0, 2, 3, 1)
            plane = plane.reshape(batch * heads, channels, height, width)
            grid = (2 * sampling_locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
            samples = grid_sample(plane, grid, align_corners=False).unflatten(0, (batch, heads))
            out = out + torch.einsum("bhcqp,bqhp->bqhc", samples, attention_weights[:, :, :, level])
            start += height * width
        return out.flatten(2)
'''
FUNCTION = '''
    class {name}(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, shapes, starts, locations, weights, im2col_step):
            ctx.im2col_step = im2col_step
            ctx.save_for_backward(value, shapes, starts, locations, weights)
            return {extension}.ms_deform_attn_forward(value, shapes, starts, locations, weights, im2col_step)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad_output):
            found = {extension}.ms_deform_attn_backward(*ctx.saved_tensors, grad_output, ctx.im2col_step)
            return found[0], None, None, *found[1:], None
'''
TUPLES = '''
    import functools
    import {core} as other

    def deformable_attention_core_func_v2(value, value_spatial_shapes, sampling_locations, attention_weights,
                                          num_points_list, method="default", value_shape="default"):
        """Value is a tuple of (B, H, C, height*width), points differ by level."""
        value = torch.cat(value, -1).permute(0, 3, 1, 2)
        most = max(num_points_list)
        def even(tensor):
            levels = tensor.split(num_points_list, 3)
            rest = [(*level.shape[:3], most - level.shape[3], *level.shape[4:]) for level in levels]
            return torch.stack([torch.cat([a, a.new_zeros(b)], 3) for a, b in zip(levels, rest)], 3)
        return other.core(value, value_spatial_shapes, even(sampling_locations), even(attention_weights))

    held = functools.partial(deformable_attention_core_func_v2, method="default")
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Makes modules of parts of text, which can be imported; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    made = set()

    def write(name, *parts):
        *folders, last = name.split(".")
        folder = tmp_path.joinpath(*folders)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{last}.py").write_text("\n".join(textwrap.dedent(part) for part in parts))
        made.add(name.partition(".")[0])
        importlib.invalidate_caches()
        return lambda: importlib.import_module(name)

    yield write
    for name in list(sys.modules):
        if name.partition(".")[0] in made:
            del sys.modules[name]


def drawn(points=None, seed=0):
    """value, locations and weights that need gradients; flat if the points of each level are given."""
    random = torch.Generator().manual_seed(seed)
    samples = (2, 3) if points is None else (sum(points),)
    value = torch.randn(2, 26, 2, 4, generator=random)
    locations = torch.rand(2, 3, 2, *samples, 2, generator=random) * 1.4 - 0.2
    weights = torch.rand(2, 3, 2, *samples, generator=random)
    return [tensor.requires_grad_() for tensor in (value, locations, weights)]


def gradients(call, inputs):
    """(out, gradients of the inputs) for a loss that tells numbers apart."""
    out = call(*inputs)
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return out, *torch.autograd.grad(out, inputs, given)


def own(value, locations, weights):
    return ms_deform_attn(value, SHAPES, None, locations, weights)


def same(found, wanted, limit=1e-5):
    return all(torch.allclose(a, b, atol=limit, rtol=limit) for a, b in zip(found, wanted, strict=True))


class Calls(list):
    """Which functions of ``contracts`` call the operator."""

    def __init__(self, monkeypatch):
        def operator(*args, **options):
            self.append(args)
            return ms_deform_attn(*args, **options)

        monkeypatch.setattr(contracts, "ms_deform_attn", operator)


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


# --- what a patch does ------------------------------------------------------------------------------
def test_a_function_and_its_copies_are_replaced_and_come_back(write, calls):
    name = "multi_scale_deformable_attn_pytorch"
    module = write("detrex.nd_core", CORE.format(name=name))
    other = write("nd_core", CORE.format(name=name))()  # of another library
    held = vars(write("nd_user", f"from detrex.nd_core import {name} as held")())["held"]
    code, signature, inputs = held.__code__, inspect.signature(held), drawn()
    call = lambda *tensors: held(tensors[0], SHAPES, *tensors[1:])  # noqa: E731
    wanted = gradients(call, inputs)
    with patch("detrex") as p:
        assert p.places == [f"detrex.nd_core.{name}"] and p.places[0] in repr(p)
        assert same(gradients(call, inputs), wanted) and len(calls) == 1
        assert inspect.signature(held) == signature
        vars(other)[name](inputs[0], SHAPES, *inputs[1:])
    assert vars(module())[name] is held and held.__code__ is code
    assert same(gradients(call, inputs), wanted, 0) and len(calls) == 1


def core(write, name="nd_core"):
    return write(name, CORE.format(name="deformable_attention_core_func"))()


def is_ours(module, calls):
    before = len(calls)
    module.deformable_attention_core_func(drawn()[0], SHAPES, *drawn()[1:])
    return len(calls) > before


def test_nested_repeated_and_undone_in_any_order(write, calls):
    module = core(write)
    code = module.deformable_attention_core_func.__code__
    with patch("rt-detr") as outer:
        with patch("rt-detr"), outer:
            assert is_ours(module, calls)
        assert is_ours(module, calls)
    assert not is_ours(module, calls) and not outer.places
    with outer:
        assert is_ours(module, calls)
    first, second = patch("d-fine"), patch("deim")
    first.undo()
    first.undo()
    assert is_ours(module, calls)
    second.undo()
    assert module.deformable_attention_core_func.__code__ is code
    with pytest.raises(KeyError), patch("rt-detr"):
        raise KeyError
    assert module.deformable_attention_core_func.__code__ is code


def test_modules_that_are_imported_later(write, calls):
    finders = list(sys.meta_path)
    with ExitStack() as stack:
        for name in ("rt-detr", "d-fine", "rt-detr"):
            stack.enter_context(patch(name))
        module = core(write, "nd_folder.later")
        assert is_ours(module, calls)
    assert not is_ours(module, calls) and sys.meta_path == finders
    assert not is_ours(core(write, "nd_folder.latest"), calls)


def test_modules_that_are_loaded_by_path(write, calls):
    """As files of a repository that is no package, and the remote code of a model."""
    for library, name in (("rt-detr", "nd_by_path"), ("transformers", "transformers_modules.nd.nd_remote")):
        function = "multi_scale_deformable_attention" if library == "transformers" else FIRST
        write("nd_file", CORE.format(name=function))
        pytest.importorskip("transformers") if library == "transformers" else None
        before = importlib.machinery.SourceFileLoader.exec_module
        with patch(library) as p:
            spec = importlib.util.spec_from_file_location(name, importlib.util.find_spec("nd_file").origin)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            vars(module)[function](drawn()[0], SHAPES, *drawn()[1:])
            assert len(calls) == 1 and f"{name}.{function}" in p.places
        vars(module)[function](drawn()[0], SHAPES, *drawn()[1:])
        assert len(calls) == 1 and importlib.machinery.SourceFileLoader.exec_module is before
        calls.clear()


def test_what_was_replaced_is_told_and_nothing_is_warned_of(write):
    module = core(write)
    with warnings.catch_warnings(action="error"), patch("rt-detr") as p:
        assert repr(p) == f"<patch of rt-detr, which replaces {module.__name__}.{FIRST}>"
    assert repr(p) == f"<patch of rt-detr, which has replaced {module.__name__}.{FIRST}>"
    write("ultralytics.nd_empty", "")()
    p = patch("ultralytics")
    words = "^patch.'ultralytics'. has replaced nothing: none of its modules defines MultiScaleDeform"
    with pytest.warns(UserWarning, match=words) as caught:
        p.undo()
    assert caught[0].filename == __file__ and repr(p) == "<patch of ultralytics, which has replaced nothing>"


def test_ultralytics(write, calls):
    name = "multi_scale_deformable_attn_pytorch"
    module, inputs = write("ultralytics.nd_utils", CORE.format(name=name))(), drawn()
    with patch("ultralytics"):
        found = gradients(lambda value, *rest: vars(module)[name](value, SHAPES, *rest), inputs)
    assert same(found, gradients(own, inputs), 0) and len(calls) == 1


def test_a_decorated_function(write, calls):
    """The decorator's work is still done."""
    decorator = """
        import functools

        def doubled(function):
            @functools.wraps(function)
            def call(*args):
                return 2 * function(*args)
            return call

        deformable_attention_core_func = doubled(deformable_attention_core_func)
    """
    module = write("nd_core", CORE.format(name="deformable_attention_core_func"), decorator)()
    value, locations, weights = drawn()
    wanted = module.deformable_attention_core_func(value, SHAPES, locations, weights)
    with patch("rt-detr"):
        found = module.deformable_attention_core_func(value, SHAPES, locations, weights)
    assert same([found], [wanted]) and is_ours(module, calls) is False and len(calls) == 1


def test_what_is_refused(monkeypatch):
    with pytest.raises(OperatorError, match="^library=detr: it must be one of transformers, mmcv, "):
        patch("detr")
    monkeypatch.setitem(sys.modules, "detrex", None)
    before = list(sys.meta_path)
    with pytest.raises(ImportError, match="^patch.'detrex'.: the package detrex is not installed"):
        patch("detrex")
    assert sys.meta_path == before


# --- Deformable-DETR and its like -------------------------------------------------------------------
def original(write):
    return write(
        "ops.functions.nd_func", f"import {EXTENSION} as MSDA", CORE.format(name="ms_deform_attn_core_pytorch"),
        FUNCTION.format(name="MSDeformAttnFunction", extension="MSDA"))  # fmt: skip


def test_deformable_detr(write, calls):
    """Its extension is not compiled here: it can be imported while the patch is on."""
    load, inputs = original(write), drawn()
    with pytest.raises(ModuleNotFoundError, match=EXTENSION):
        load()
    value, locations, weights = inputs
    for _ in range(2):
        with patch("deformable-detr") as outer, patch("mask2former"):
            assert EXTENSION in outer.places
            module = load()
            apply, plain = module.MSDeformAttnFunction.apply, module.ms_deform_attn_core_pytorch
            found = gradients(lambda v, *rest: apply(v, *INDEX, *rest, 64), inputs)  # noqa: B023
            assert same(found, gradients(own, inputs), 0)
            out = module.MSDA.ms_deform_attn_forward(value, *INDEX, locations, weights, 64)
            given = torch.randn(out.shape)
            back = module.MSDA.ms_deform_attn_backward(value, *INDEX, locations, weights, given, 64)
            assert torch.equal(out, found[0])
            assert same(back, torch.autograd.grad(own(*inputs), inputs, given), 0)
            replaced = plain(value, INDEX[0], locations, weights)
            assert torch.equal(replaced, out) and len(calls) == 3
            calls.clear()
        assert EXTENSION not in sys.modules
        assert same([plain(value, SHAPES, locations, weights)], [out]) and not calls


def test_gradients_of_what_needs_them_alone(write):
    inputs = drawn()
    with patch("deformable-detr"):
        apply = original(write)().MSDeformAttnFunction.apply
        for i, learning in enumerate(inputs):
            tensors = [t.detach().requires_grad_(t is learning) for t in inputs]
            apply(tensors[0], *INDEX, *tensors[1:], 64).sum().backward()
            wanted = torch.autograd.grad(own(*inputs).sum(), learning)
            assert same([tensors[i].grad], wanted, 0)
            assert [t.grad is None for t in tensors] == [t is not learning for t in inputs]


def test_the_function_in_a_compiled_graph(write):
    inputs = drawn()
    with patch("deformable-detr"):
        apply = original(write)().MSDeformAttnFunction.apply

        def call(value, *rest):
            return apply(value, *INDEX, *rest, 64) * 2

        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert same(gradients(compiled, inputs), gradients(call, inputs))


def test_a_compiled_extension_gets_its_functions_back(write):
    module = write(EXTENSION, "def ms_deform_attn_forward(): pass\ndef ms_deform_attn_backward(): pass")()
    before = dict(vars(module))
    with patch("deformable-detr"):
        assert module.ms_deform_attn_backward is contracts.backward
    assert dict(vars(module)) == before and sys.modules[EXTENSION] is module


@pytest.mark.parametrize("library", ["detrex", "groundingdino"])
def test_detrex_and_grounding_dino(write, library, calls):
    """Their extension is not needed: the function's own forward, which calls it, never runs."""
    load = write(
        f"{library}.layers.nd_attention", CORE.format(name="multi_scale_deformable_attn_pytorch"),
        FUNCTION.format(name="MultiScaleDeformableAttnFunction", extension="_C"),
        "held = MultiScaleDeformableAttnFunction.apply")  # fmt: skip
    inputs = drawn()
    with patch(library):
        module = load()
        found = gradients(lambda v, *rest: module.held(v, *INDEX, *rest, 64), inputs)
        assert same(found, gradients(own, inputs), 0)
        module.multi_scale_deformable_attn_pytorch(inputs[0], INDEX[0], *inputs[1:])
    assert len(calls) == 2
    with pytest.raises(NameError, match="_C"):
        module.held(inputs[0], *INDEX, *inputs[1:], 64)


@pytest.mark.parametrize("library", ["d-fine", "deim"])
def test_tuples_of_levels_with_different_points(write, library, calls):
    write("nd_core", CORE.format(name="core"))
    module = write("src.zoo.nd_utils", "import torch", TUPLES.format(core="nd_core"))()
    inputs = drawn((3, 5))

    def call(value, locations, weights):
        levels = value.permute(0, 2, 3, 1).split([20, 6], -1)
        return module.held(levels, SHAPES, locations, weights, [3, 5])

    wanted = gradients(call, inputs)
    with patch(library):
        assert same(gradients(call, inputs), wanted) and len(calls) == 1
    assert same(gradients(call, inputs), wanted, 0) and len(calls) == 1


# --- mmcv and BEVFormer -----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def mmcv():
    """mmcv.ops of mmcv-lite, with a module in which each compiled function is one that fails."""
    pytest.importorskip("mmcv", reason="mmcv or mmcv-lite is not installed")
    if importlib.util.find_spec("mmcv._ext"):
        yield importlib.import_module("mmcv.ops.multi_scale_deform_attn")
        return

    class Extension(ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *args, **options: pytest.fail(f"{name} of mmcv was called")

    sys.modules["mmcv._ext"] = Extension("mmcv._ext")
    yield importlib.import_module("mmcv.ops.multi_scale_deform_attn")
    del sys.modules["mmcv._ext"]
    for name in [name for name in sys.modules if name.startswith("mmcv.ops")]:
        del sys.modules[name]


def test_mmcv(mmcv, calls):
    inputs, apply = drawn(), mmcv.MultiScaleDeformableAttnFunction.apply
    value, locations, weights = inputs
    plain = lambda v, *rest: mmcv.multi_scale_deformable_attn_pytorch(v, INDEX[0], *rest)  # noqa: E731
    wanted = gradients(plain, inputs)
    with patch("mmcv"):
        assert same(gradients(plain, inputs), wanted)
        assert same(gradients(lambda v, *rest: apply(v, *INDEX, *rest, 64), inputs), wanted)
        out = mmcv.ext_module.ms_deform_attn_forward(value, *INDEX, locations, weights, im2col_step=64)
        zeros, given = [torch.zeros_like(tensor) for tensor in inputs], torch.randn(out.shape)
        samples = locations, weights
        mmcv.ext_module.ms_deform_attn_backward(value, *INDEX, *samples, given, *zeros, im2col_step=64)
        assert same(zeros, torch.autograd.grad(own(*inputs), inputs, given), 0) and len(calls) == 3
    assert same(gradients(plain, inputs), wanted, 0) and len(calls) == 3
    with pytest.raises(pytest.fail.Exception, match="ms_deform_attn_forward of mmcv was called"):
        apply(value, *INDEX, locations, weights, 64)


def test_a_module_of_mmcv(mmcv, calls):
    torch.manual_seed(0)
    module = mmcv.MultiScaleDeformableAttention(16, 2, 2, 3, dropout=0.0)
    module.init_weights()
    inputs = [torch.randn(7, 2, 16), torch.randn(26, 2, 16), *module.parameters()]
    places = torch.rand(2, 7, 2, 2)

    def call(query, value, *_):
        return module(
            query, value=value, reference_points=places, spatial_shapes=INDEX[0], level_start_index=INDEX[1]
        )

    for tensor in inputs:
        tensor.requires_grad_()
    wanted = gradients(call, inputs)
    with patch("mmcv"):
        assert same(gradients(call, inputs), wanted) and len(calls) == 1


def test_bevformer(mmcv, write, calls):
    """A function in float32 whatever autocast says, and one that does as it says."""
    module = write(
        "projects.nd_function", "import torch\nfrom mmcv.ops.multi_scale_deform_attn import ext_module",
        *[FUNCTION.format(name=f"MultiScaleDeformableAttnFunction_{kind}", extension="ext_module")
          for kind in ("fp16", "fp32")])  # fmt: skip
    inputs = drawn()
    with patch("bevformer"):
        functions = module()
        with torch.autocast("cpu", torch.bfloat16):
            for kind, dtype, limit in (("fp16", torch.bfloat16, 0.1), ("fp32", torch.float32, 0)):
                apply = getattr(functions, f"MultiScaleDeformableAttnFunction_{kind}").apply
                found = gradients(lambda v, *rest: apply(v, *INDEX, *rest, 64), inputs)  # noqa: B023
                assert found[0].dtype == dtype and found[1].dtype == torch.float32
                with torch.autocast("cpu", enabled=False):
                    assert same([t.float() for t in found], gradients(own, inputs), limit)
    assert len(calls) == 2


def test_mmcv_without_compiled_operators(monkeypatch):
    pytest.importorskip("mmcv", reason="mmcv or mmcv-lite is not installed")
    monkeypatch.setitem(sys.modules, "mmcv._ext", None)
    with pytest.raises(ImportError, match=r"^patch\('mmcv'\) needs mmcv._ext, which cannot be imported"):
        patch("mmcv")


# --- RF-DETR ----------------------------------------------------------------------------------------
@pytest.fixture
def rfdetr(monkeypatch):
    """RF-DETR's attention, without what the package imports besides: its folders stand for its packages."""
    found = importlib.util.find_spec("rfdetr")
    if found is None:
        pytest.skip("rfdetr is not installed")
    for package in ("rfdetr", "rfdetr.models", "rfdetr.utilities"):
        module = ModuleType(package)
        module.__path__ = [f"{found.submodule_search_locations[0]}/{package.partition('.')[2]}"]
        monkeypatch.setitem(sys.modules, package, module)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    yield importlib.import_module("rfdetr.models.ops.modules.ms_deform_attn")
    for name in [name for name in sys.modules if name.startswith("rfdetr.")]:
        del sys.modules[name]


@pytest.mark.parametrize("exported", [False, True])
def test_rfdetr(rfdetr, exported, calls):
    torch.manual_seed(0)
    module = rfdetr.MSDeformAttn(16, 2, 2, 3)
    if exported:
        module.export()
    places = torch.rand(2, 7, 2, 4)
    inputs = [torch.randn(2, 7, 16), torch.randn(2, 26, 16), *module.parameters()]
    options = {"input_spatial_shapes_hw": SHAPES} if exported else {}

    def call(query, value, *_):
        return module(query, places, value, *INDEX, **options)

    for tensor in inputs:
        tensor.requires_grad_()
    wanted = gradients(call, inputs)
    with patch("rfdetr") as p:
        assert p.places == ["rfdetr.models.ops.functions.ms_deform_attn_func.ms_deform_attn_core_pytorch"]
        assert same(gradients(call, inputs), wanted) and len(calls) == 1
    assert same(gradients(call, inputs), wanted, 0) and len(calls) == 1


# --- index tensors ----------------------------------------------------------------------------------
def test_lists_are_taken_where_there_are_lists(calls):
    """Tensors, which may lie on a GPU, are not even looked at."""
    value, locations, weights = drawn()
    layer = contracts.MultiScaleDeformableAttention()
    wanted = own(value, locations, weights)
    assert torch.equal(layer(value, None, SHAPES, None, locations, weights, 64), wanted)
    channels_first = value.permute(0, 2, 3, 1)
    found = contracts.deformable_core(channels_first, None, locations, weights.flatten(3), SHAPES)
    assert torch.equal(found, wanted)
    flat = locations.flatten(3, 4), weights.flatten(3)
    assert same([contracts.with_points(value, SHAPES, *flat, [3, 3])], [wanted])


@pytest.mark.parametrize("plain, patched, said", [
    ({"a": "failure"}, {"a": "failure"}, "no test passes"),
    ({"a": "passed", "b": "skipped"}, {"a": "passed", "b": "skipped"}, 0),
    ({"a": "passed", "b": "passed"}, {"a": "passed", "b": "error"}, 1),
    ({"a": "passed", "b": "passed"}, {"a": "passed"}, 1),
])  # fmt: skip
def test_what_is_said_of_transformers_own_tests(monkeypatch, tmp_path, plain, patched, said):
    """Of no test that passes nothing is compared; one that ends otherwise, or does not run, is told."""
    ended = iter((plain, patched))
    monkeypatch.setattr(transformers_own, "test_files", lambda checkout: ["test_modeling_it.py"])
    monkeypatch.setattr(transformers_own, "outcomes", lambda *_: next(ended))
    with pytest.raises(SystemExit) as end:
        transformers_own.main(tmp_path)
    assert said in end.value.code if isinstance(said, str) else end.value.code == said
