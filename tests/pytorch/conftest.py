"""What tests with PyTorch share."""

import pytest


@pytest.fixture
def one_thread():
    """PyTorch computes in one thread: many wait for one another, with so little to do."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
