"""What a clean run has not tried: said beside its verdict, since a mistake in the second use of a stage, or
between blocks, does not show where there is none."""

import numpy as np


def untried(prepared, uses):
    """In words, with the parameters that would have it tried; "" for launches without copies that barriers
    count.

    ``prepared`` is a PreparedLaunch, ``uses`` the most phases of a barrier of its that copies complete on."""
    if not uses:
        return ""
    numbers = [name for name, arg in zip(prepared.names, prepared.args, strict=True)
               if isinstance(arg, (int, np.integer)) and not isinstance(arg, bool)]  # fmt: skip
    pipeline, given = getattr(prepared.request, "origin", None) or (None, {})
    known = pipeline.checked(given) if pipeline else dict.fromkeys(numbers)
    longer = [name for name in numbers if name in known]
    wider = [name for name, value in known.items() if value == 1 and name not in ("stages", *longer)]
    smaller = () if longer or "stages" not in known else ["stages"]
    parts = [f"a stage filled twice{_by(longer, 'larger') or _by(smaller, 'smaller')}"] if uses == 1 else []
    if prepared.blocks == 1 and (wider or not pipeline):
        parts.append(f"more than one block{_by(wider or ['grid'], 'larger')}")
    return " and ".join(parts)


def _by(names, how):
    return f" (by a {how} {' or '.join(names)})" if names else ""
