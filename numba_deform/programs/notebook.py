"""``%load_ext numba_deform``: from then on a notebook's launches are judged; a cell's faults stand under it."""

_open = {}


def load_ipython_extension(shell):
    """Judge what the cells launch; ``%unload_ext numba_deform`` ends it."""
    from .session import check
    from .summary import fault_text

    context = check()
    session, told = context.__enter__(), {}

    def after_cell(result):
        for key, finding in session.findings.items():
            if told.get(key) != finding.count:
                print(fault_text(finding))
            told[key] = finding.count

    shell.events.register("post_run_cell", after_cell)
    _open[shell] = context, after_cell


def unload_ipython_extension(shell):
    """Give the launches back to the GPU."""
    context, after_cell = _open.pop(shell)
    shell.events.unregister("post_run_cell", after_cell)
    context.__exit__(None, None, None)
