"""Moving registers from some warps to others (PTX ISA 9.7.19.5). Needs the target sm_90a."""

from .ptx import cpu, intrinsic, u32, void


@intrinsic(void(u32))
def setmaxnreg_dec(registers):
    """``setmaxnreg.dec``: this thread keeps ``registers`` (24 .. 256, a multiple of 8, no more than it
    has), the others go back to the block. All warps of a warpgroup execute it, with the same number.
    PTX ISA 9.7.19.5."""
    cpu().set_max_registers("dec", registers)


@intrinsic(void(u32))
def setmaxnreg_inc(registers):
    """``setmaxnreg.inc``: this thread gets ``registers``, no fewer than it has; waits until the block has them
    to give. As ``setmaxnreg_dec``; new registers hold nothing defined. PTX ISA 9.7.19.5."""
    cpu().set_max_registers("inc", registers)
