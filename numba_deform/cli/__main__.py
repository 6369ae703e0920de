"""``python -m numba_deform.cli``."""

import sys

from . import main

sys.exit(main())
