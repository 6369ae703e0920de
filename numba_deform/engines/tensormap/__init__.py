"""Tensor maps: what one TMA instruction copies, checked before the driver sees it.

A *tensor map* is 128 opaque bytes that tell the Tensor Memory Accelerator where a tensor of rank 1
to 5 lies in global memory and how large a *box* one instruction moves into shared memory.

Conventions, the same everywhere in this package:

- Dimensions are listed innermost first: an array of shape (H, W, C) has ``dims == (C, W, H)``, and
  a box corner is given as (c, x, y).
- ``dims``, ``box`` and ``element_strides`` count elements; ``strides`` are bytes, one for each
  dimension but the innermost, whose elements must be dense.

Sources: PTX ISA section 5.5 (tensors: boxes, out-of-bound elements, swizzle); CUDA driver API,
``cuTensorMapEncodeTiled``.
"""

from .array import TensorMapArray
from .boxes import swizzle_offsets
from .encoding import DriverMissing, ask_driver, driver_arguments, encode
from .im2col import IM2COL_RULES, Im2colMap
from .maps import TensorMap, address_of
from .packed import decoded
from .rows import FourRows, Rows
from .rules import (
    ELEMENT_TYPES,
    FILLS,
    INTERLEAVES,
    L2_PROMOTIONS,
    RULES,
    SWIZZLE_SPANS,
    SWIZZLES,
    TensorMapError,
    broken_rule,
    element_type,
)

__all__ = [
    "ELEMENT_TYPES", "FILLS", "IM2COL_RULES", "INTERLEAVES", "L2_PROMOTIONS", "RULES", "SWIZZLES",
    "SWIZZLE_SPANS", "DriverMissing", "FourRows", "Im2colMap", "Rows", "TensorMap", "TensorMapArray",
    "TensorMapError",
    "address_of", "ask_driver", "broken_rule", "decoded", "driver_arguments", "element_type", "encode",
    "swizzle_offsets",
]  # fmt: skip
