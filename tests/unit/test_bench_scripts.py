"""What a script of bench/ says where there is no GPU to measure."""

import subprocess
import sys

import pytest

from numba_deform.engines.gpu.device import gpu_or_none


@pytest.mark.skipif(gpu_or_none() is not None, reason="what it says without a GPU")
def test_tile_product_without_a_gpu(root, tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, str(root / "bench" / "tile_product.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and not out.exists()
    assert done.stderr.startswith("nothing was measured: no CUDA GPU can be used"), done.stderr
