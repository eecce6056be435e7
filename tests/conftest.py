import pytest
import torch

# Small problems: a second thread costs more than it brings, and on a busy machine much more.
torch.set_num_threads(1)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
