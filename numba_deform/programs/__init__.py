"""Whole Numba CUDA programs under the CPU engine, with nothing in them changed.

``session`` judges the launches of a program and collects what is found, ``summary`` and ``sarif`` write it,
``driver`` stands in for the CUDA driver. Its doors: ``nd.check`` in code, ``numba-deform check``
(``program``), ``pytest --numba-deform`` (``pytest_plugin``) and ``%load_ext numba_deform`` (``notebook``)."""
