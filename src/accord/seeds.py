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


def seed_module(seed: int, device: torch.device) -> None:
    """Seed what modules draw from by themselves, as dropout does."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def numpy_stream(seed: int, *keys: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(number(seed, *keys))
