"""``numba-deform new my.py``: a file with a pipeline, to start from."""

import sys
from pathlib import Path

from ..engines.suggestions import closest
from .commands import RIGHT
from .keys import UsageError
from .output import say

PIPELINES = Path(__file__).parents[1] / "course" / "pipelines"
TEMPLATES = {  # name -> (its pipeline, what it is, parameters of a case that is small enough for all orders)
    "copy": ("copy", "a copy through a ring of stages, with one producer and one consumer", "steps=2"),
    "reduction": ("column_sums", "sums of columns: one warp asks for tiles, the others add them up", ""),
    "product": ("product", "a product of matrices on tensor cores, through a ring of stages", ""),
    "gemm": ("gemm", "a persistent GEMM in bfloat16 by wgmma and clusters, stored by TMA", ""),
    "attention": ("attention", "FlashAttention's forward, by mma.sync or wgmma, in roles", ""),
    "stencil": ("stencil", "a stencil with a rim, for which blocks take tiles in turn", ""),
    "cluster": ("multicast", "a cluster whose blocks load every tile once, for all of them", ""),
}
NEXT = (
    ("is it right?", "run load={file} engine=cpu"),
    ("all orders?", "run load={file} engine=cpu schedules=all {small}"),
    ("what waits?", "timeline load={file} engine=cpu out={stem}.png"),
    ("machine code?", "inspect load={file} show=sass"),
    ("what it takes", "budget load={file} stages=1,2,3,4"),
    ("without a GPU", "bench load={file} engine=cpu variants={name}:stages=1,{name}:stages=3"),
    ("predicted?", "tune load={file} engine=model stages=1,2,3"),
    ("how deep?", "sweep load={file} engine=cpu stages=1,2,3,4 out={stem}-stages.json"),
    ("on a GPU", "bench load={file} variants={name}:stages=1,{name}:stages=3 out={stem}.json"),
)


def new(options):
    """A template of ``course/pipelines``, written to a file that is not there yet."""
    if "file" not in options:
        raise UsageError("new needs a file: numba-deform new my.py")
    path, template = Path(options["file"]), options.get("template", "copy")
    if template not in TEMPLATES:
        known = ", ".join(TEMPLATES)
        raise UsageError(f"template={template} must be one of {known}{closest(template, TEMPLATES)}")
    if path.suffix != ".py":
        raise UsageError(f"new {path}: the file must end in .py, such as {path.with_suffix('.py')}")
    if path.stem in sys.stdlib_module_names:
        other = path.with_stem(f"my_{path.stem}")
        raise UsageError(f"new {path}: programs in that directory which import Python's own {path.stem} would "
                         f"get this file; name it otherwise, such as {other}")  # fmt: skip
    if not path.absolute().parent.is_dir():
        raise UsageError(f"new {path}: there is no directory {path.absolute().parent}")
    try:
        with path.open("x") as file:
            file.write((PIPELINES / f"{template}.py").read_text())
    except FileExistsError:
        raise UsageError(f"new {path}: that file exists already, and is left as it is; name another") from None
    name, about, small = TEMPLATES[template]
    say("written", f"{path}: {about}")
    for what, do in NEXT:
        if small or "{small}" not in do:
            say(what, f"numba-deform {do}".format(file=path, stem=path.with_suffix(""), name=name, small=small))
    return RIGHT
