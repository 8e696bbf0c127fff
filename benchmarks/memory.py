"""Resident memory with 1,000 and with 100,000 clients that each keep a control variate: the same, because states spill to disk."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import torch

import accord
from accord.data.pool import Pool
from accord.data.shards import Shards
from accord.models.mlp import Mlp
from accord.store import Store

SAMPLES, EACH, FEATURES = 20_000, 20, 64


def federation(clients: int) -> accord.Federation:
    """Clients of twenty samples each, out of one pool that is the same for any number of them."""
    rng = torch.Generator().manual_seed(0)
    pool = Pool(torch.randn(SAMPLES, FEATURES, generator=rng), torch.randint(10, (SAMPLES,), generator=rng))
    order = torch.randint(SAMPLES, (clients * EACH,), generator=rng)
    own = Shards(order, torch.arange(clients + 1) * EACH)
    nothing = Shards(torch.empty(0, dtype=torch.long), torch.zeros(clients + 1, dtype=torch.long))
    return accord.Federation(pool, own, clients, 10, pool, pool, nothing)


def measure(clients: int, rounds: int, megabytes: int, pipe: object) -> None:
    """Run SCAFFOLD with 100 clients a round in this process and tell how much memory it came to."""
    torch.set_num_threads(1)
    algorithm = accord.scaffold() + accord.uniform(100) + accord.sgd(batch=20)
    with tempfile.TemporaryDirectory() as folder:
        data = federation(clients)
        module = Mlp().build((FEATURES,), 10)
        store = Store(algorithm.keys, Path(folder), megabytes << 20)
        started = time.perf_counter()
        for _ in accord.rounds(algorithm, module, data, rounds=rounds, store=store):
            pass
        seconds = time.perf_counter() - started
        on_disk = sum(file.stat().st_size for file in Path(folder).rglob("*.safetensors"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pipe.send((peak, store.bytes / 2**20, len(store.versions), on_disk / 2**20, seconds))  # type: ignore[attr-defined]


def main() -> None:
    """Print one line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--limit", type=int, default=64, help="megabytes of client state in memory")
    asked = parser.parse_args()
    print(f"SCAFFOLD, 100 clients a round, {asked.rounds} rounds, {asked.limit} MB of client state in memory")
    context = multiprocessing.get_context("spawn")
    for clients in (1_000, 100_000):
        mine, theirs = context.Pipe()
        process = context.Process(target=measure, args=(clients, asked.rounds, asked.limit, theirs))
        process.start()
        peak, held, kept, on_disk, seconds = mine.recv()
        process.join()
        print(
            f"  {clients:7,} clients: {peak:4.0f} MB resident at most; {kept:6,} clients hold a state, "
            f"{held:.0f} MB of it in memory and {on_disk:,.0f} MB on disk; {1000 * seconds / asked.rounds:.0f} ms a round"
        )


if __name__ == "__main__":
    main()
