"""The loader: every .func is an intrinsic, inlined and linked, and bad files are refused."""

import importlib

import pytest
from numba import cuda

from numba_deform.compiler import Kernel
from numba_deform.compiler.build import NotBuilt, assembled
from numba_deform.device.ptx import Intrinsic, PtxError, intrinsic, ptx_directory, read_ptx, u32
from numba_deform.engines.launches import NEEDS_HOPPER

FILES = sorted(ptx_directory().glob("*.ptx"))


def intrinsics():
    for path in FILES:
        module = importlib.import_module(f"numba_deform.device.{path.stem}")
        for name in read_ptx(path):
            yield getattr(module, name)


def kernel_of(one, **form):
    """A kernel that calls an intrinsic with its own parameters."""
    names = ", ".join(f"a{i}" for i in range(len(one.signature.args)))
    scope = {"f": one}
    exec(f"def kernel({names}):\n    f({names})\n", scope)
    return Kernel(scope["kernel"], cuda.types.void(*one.signature.args), 32, **form)


def architecture_of(one):
    """Of the GPU that it is for."""
    return "sm_100a" if one.ptx.file.stem == "tcgen05" else "sm_90a"


def test_every_function_is_an_intrinsic():
    assert len(FILES) >= 9
    found = list(intrinsics())
    assert all(isinstance(one, Intrinsic) for one in found)
    assert len(found) > 60


@pytest.mark.parametrize(
    ("one", "linked"),
    [(one, False) for one in intrinsics()]
    + [pytest.param(one, True, marks=pytest.mark.full) for one in list(intrinsics())[::4]],
    ids=lambda value: getattr(value, "ptx", None) and value.ptx.name or ("linked" if value else "inlined"),
)
def test_intrinsic_compiles(one, linked):
    """A kernel that calls it with its own parameters becomes machine code; of those that are linked, some."""
    compiled = kernel_of(one, linked=linked).compile(architecture_of(one))
    assert len(compiled.cubin) > 500
    assert ("call" in compiled.ptx) == (linked or one.is_linked)


OLDER = [
    one for one in intrinsics()
    if not one.is_linked and not NEEDS_HOPPER.search(" ".join(one.ptx.statements))
]  # fmt: skip


@pytest.mark.parametrize(
    "one", [o if "_s8" in o.ptx.name else pytest.param(o, marks=pytest.mark.full) for o in OLDER],
    ids=lambda one: one.ptx.name,
)  # fmt: skip
def test_what_older_gpus_have(one):
    """What a Launch takes to run on an A100 becomes machine code for it."""
    assert len(kernel_of(one).compile("sm_80").cubin) > 500


BLACKWELL = [one for one in intrinsics() if one.ptx.file.stem == "tcgen05"]


@pytest.mark.parametrize("one", BLACKWELL, ids=lambda one: one.ptx.name)
def test_what_hopper_has_not(one):
    """Before anything is launched, by the intrinsic's name."""
    with pytest.raises(NotBuilt, match=f"kernel does not compile for sm_90a: {one.ptx.name} is for sm_100a"):
        kernel_of(one).compile()


@pytest.mark.parametrize("architecture, has", [("sm_103a", True), ("sm_110a", True), ("sm_120a", False)])
def test_what_other_blackwells_have(architecture, has):
    """The assembler agrees with the table of who has tcgen05; and wgmma is Hopper's alone."""
    text = f".version 9.0\n.target {architecture}\n.address_size 64\n.entry k() {{{{ {{}}; ret; }}}}"
    one, fence = next(o for o in BLACKWELL if o.ptx.name == "tcgen05_wait_ld"), "tcgen05.wait::ld.sync.aligned"
    if has:
        assert kernel_of(one).compile(architecture).cubin and assembled(text.format(fence), architecture)
    else:
        for make in (kernel_of(one).compile, lambda a: assembled(text.format(fence), a)):
            with pytest.raises(NotBuilt):
                make(architecture)
    with pytest.raises(NotBuilt, match="wgmma"):
        assembled(text.format("wgmma.fence.sync.aligned"), architecture)
    with pytest.raises(NotBuilt, match="wgmma_fence is for sm_90a alone"):
        kernel_of(next(o for o in intrinsics() if o.ptx.name == "wgmma_fence")).compile(architecture)


def test_a_function_that_is_not_there():
    def nothing(x):
        """No such .func."""

    nothing.__module__ = "numba_deform.device.sync"
    with pytest.raises(PtxError, match="sync.ptx has no .func nothing"):
        intrinsic(u32(u32))(nothing)


def test_other_parameters_than_the_file():
    def elect_sync(lanes):
        """The file calls it mask."""

    elect_sync.__module__ = "numba_deform.device.sync"
    with pytest.raises(PtxError, match="elect_sync takes .*mask.* its definition .*lanes"):
        intrinsic(u32(u32))(elect_sync)


def test_a_register_that_would_hide_the_compilers(tmp_path):
    path = tmp_path / "bad.ptx"
    path.write_text(".visible .func f(.param .b32 a)\n{\n    .reg .b32 %r1;\n    ret;\n}\n")
    with pytest.raises(PtxError, match="would hide a register"):
        read_ptx(path)


def test_a_statement_that_cannot_be_inlined(tmp_path):
    path = tmp_path / "bad.ptx"
    path.write_text(
        ".visible .func f(.param .b32 a)\n{\n    .reg .b32 x;\n    ld.param.v2.b32 {x, x}, [a];\n}\n"
    )
    with pytest.raises(PtxError, match="cannot be inlined"):
        read_ptx(path)["f"].inline_text()


ARRAY = """.visible .func (.param .align 4 .b8 d[8]) f(.param .b32 x, .param .align 4 .b8 sums[8])
{
    .reg .f32 s0, s1;
    .reg .b32 y;
    ld.param.b32 y, [x];
    ld.param.f32 s0, [sums];
    ld.param.f32 s1, [sums+4];
    both s0, s1, y, s10;
    st.param.f32 [d], s0;
    st.param.f32 [d+4], s1;
    ret;
}
"""


def test_an_array_stays_in_its_registers(tmp_path):
    """Results are operands 0 and 1, which are the array's too (2 and 3); no moves, and other names stay."""
    path = tmp_path / "array.ptx"
    path.write_text(ARRAY)
    text = read_ptx(path)["f"].inline_text()
    assert "both $0, $1, y, s10;" in text and "mov.b32 y, $4;" in text
    assert text.count("mov") == 1 and "param" not in text


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("[d+4], s1", "[d+4], s0"), ("[d], s0", "[d+4], s0"), ("s1, [sums+4]", "s1, [sums]"),
        ("[d], s0", "[y], s0"),
    ],
)  # fmt: skip
def test_an_array_that_leaves_by_other_registers(tmp_path, line, other):
    path = tmp_path / "bad.ptx"
    path.write_text(ARRAY.replace(line, other))
    with pytest.raises(PtxError, match="each element of sums is loaded to a register"):
        read_ptx(path)["f"].inline_text()
