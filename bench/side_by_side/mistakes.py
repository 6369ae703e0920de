"""The five mistakes in each program: which line is changed, or why the mistake cannot be made there.

``MISTAKES[program][mistake]`` is a pair of what stands there and what stands there instead, or the reason.
"""

import importlib.util
from pathlib import Path

HERE = Path(__file__).parent
KINDS = {
    "full": "the consumer does not wait until the tile is full",
    "empty": "the producer does not wait until the stage is empty",
    "phase": "the consumer waits for the wrong phase, or never for the next one",
    "bytes": "half the bytes are expected",
    "box": "the box is half as high as the tile",
}

_SLOT = "the slot's number is what the wait returns"
_PLACED = "the library places it"
_NO_BARRIER = "there is no such barrier"
MISTAKES = {
    "here_copy": {
        "full": ("            ring.wait(state)\n", ""),
        "empty": ("                ring.acquire(state)\n", ""),
        "phase": ("ring.release(state)\n            state = ring.advance(state)\n", "ring.release(state)\n"),
        "bytes": ("ring.expect(state, shared.tiles.stride)", "ring.expect(state, shared.tiles.stride // 2)"),
        "box": ("TensorMap.of(data, (COLUMNS, ROWS))", "TensorMap.of(data, (COLUMNS, ROWS // 2))"),
    },
    "gluon_copy": {
        "full": ("        mbarrier.wait(full.index(stage), phase)\n", ""),
        "empty": ("        mbarrier.wait(empty.index(stage), phase ^ 1)\n", ""),
        "phase": ("mbarrier.wait(full.index(stage), phase)", "mbarrier.wait(full.index(stage), phase ^ 1)"),
        "bytes": ("source.block_type.nbytes)", "source.block_type.nbytes // 2)"),
        "box": ("BOX = [ROWS.value, COLUMNS.value]", "BOX = [ROWS.value // 2, COLUMNS.value]"),
    },
    "cute_copy": {
        "full": _SLOT,
        "empty": _SLOT,
        "phase": ("slot = consumer.wait_and_advance()", "slot = consumer.wait()"),
        "bytes": ("tx_count=ROWS * COLUMNS * 4", "tx_count=ROWS * COLUMNS * 2"),
        "box": ("source, tile, (ROWS, COLUMNS))", "source, tile, (ROWS // 2, COLUMNS))"),
    },
    "pallas_copy": {
        "full": ("        plgpu.barrier_wait(full.at[stage])\n", ""),
        "empty": ("plgpu.barrier_wait(empty.at[stage])\n\n        plgpu", "pass\n\n        plgpu"),
        "phase": ("plgpu.barrier_wait(full.at[stage])", "plgpu.barrier_wait(full.at[0])"),
        "bytes": "the copy announces its own bytes",
        "box": ("pl.ds(ROWS * step, ROWS)], tiles", "pl.ds(ROWS * step, ROWS // 2)], tiles"),
    },
    "pallas_emit": {
        "full": _PLACED,
        "empty": _PLACED,
        "phase": _PLACED,
        "bytes": _PLACED,
        "box": ("in_specs=[box]", "in_specs=[plgpu.BlockSpec((ROWS // 2, COLUMNS), lambda step: (step, 0))]"),
    },
    "puzzle_copy": {
        "full": ("            cuda.syncthreads()\n            out", "            out"),
        "empty": ("column]\n            cuda.syncthreads()\n\n    return", "column]\n\n    return"),
        "phase": _NO_BARRIER,
        "bytes": _NO_BARRIER,
        "box": ("cuda.shared.array((ROWS, COLUMNS)", "cuda.shared.array((1, COLUMNS)"),
    },
}  # fmt: skip


def text_of(program, mistake=None):
    """The program's text, with the mistake in it if one is named. Raises ValueError where it cannot be made."""
    text = (HERE / f"{program}.py").read_text()
    if mistake is None:
        return text
    edit = MISTAKES[program][mistake]
    if isinstance(edit, str):
        raise ValueError(f"{program} cannot have the mistake {mistake}: {edit}")
    old, new = edit
    if text.count(old) != 1:
        raise ValueError(f"{old!r} stands {text.count(old)} times in {program}.py, not once")
    return text.replace(old, new)


def module_of(program, folder, mistake=None, renames=None):
    """The program as a module, made from a file of its own in ``folder``: compilers read a kernel's source."""
    path, text = Path(folder) / f"{program}.py", text_of(program, mistake)
    for name, other in (renames or {}).items():
        text = text.replace(name, other)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(program, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
