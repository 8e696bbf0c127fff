"""Randomness: every stream is a function of the seed, the purpose, the round and the client, and of nothing else."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def number(seed: int, *keys: int | str) -> int:
    """A 63-bit number that depends on every key.

    >>> number(0, "select", 3) == number(0, "select", 3), number(0, "select", 3) == number(0, "select", 4)
    (True, False)
    """
    words = "/".join(str(key) for key in (seed, *keys))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *keys: int | str) -> torch.Generator:
    """A PyTorch generator for one purpose."""
    return torch.Generator().manual_seed(number(seed, *keys))


def numpy_stream(seed: int, *keys: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(number(seed, *keys))
