"""What the documentation's examples and every test start with: one thread, and the names that examples use."""

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, nn=torch.nn, np=np)
