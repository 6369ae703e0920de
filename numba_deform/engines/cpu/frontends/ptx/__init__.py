"""PTX text as kernels of the engine: read (``parser``), written as Python (``translation`` by the rows of
``instructions``, and the engine's intrinsics by their own texts, ``intrinsics``), run over ``operations``.
Machine code is made of the same Python (``native``). ``kernels`` is the door."""
