"""Tests with a real engine run in an environment of their own (`make test-engines`), where torch is installed."""

from importlib.util import find_spec

import pytest

# Not a skip: the core suite does not know these tests, and `make test` runs them in the other environment.
collect_ignore_glob = [] if find_spec("torch") else ["test_torch*.py", "test_transformers*.py"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Bits depend on how work is split among threads."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
