"""``python -m numba_deform``: the command line."""

import sys

from .cli import main

sys.exit(main())
