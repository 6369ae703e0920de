"""griddepcontrol: a grid that starts before the one that it depends on has ended (PTX ISA 9.7.13.13).

They matter where the second launch has the attribute of programmatic stream serialization; elsewhere a grid
starts when the one before it has ended, and both do nothing. On the CPU engine a run is a single grid, which
nothing precedes and nothing follows: both do nothing there, and order nothing among its threads and blocks.
"""

from .ptx import cpu, intrinsic, void


@intrinsic(void())
def griddepcontrol_launch_dependents():
    """``griddepcontrol.launch_dependents``: the grid that depends on this one may start once every block has
    called this or has ended. It makes nothing visible to that grid, which calls ``griddepcontrol_wait``.
    Called again in the same block it does nothing. PTX ISA 9.7.13.13."""
    cpu()


@intrinsic(void())
def griddepcontrol_wait():
    """``griddepcontrol.wait``: wait until the grids that this one depends on have ended, and see what they
    wrote. Comes before the first access to their results; what does not need them goes before it.
    PTX ISA 9.7.13.13."""
    cpu()
