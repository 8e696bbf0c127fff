"""Small models, small federations and small batches that the tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accord.algorithm import Algorithm
from accord.client import Client, first_down
from accord.cohort import Reply
from accord.data.federation import Federation
from accord.data.pool import Batch, Pool
from accord.data.shards import Shards
from accord.engines.process import Process
from accord.flat import Flat, Output
from accord.seeds import stream
from accord.server import Server, rounds


class Net(nn.Module):
    """A convolution, a hidden layer and a head on samples of 2x5x5 numbers, given flat or as images."""

    stages = ("conv", "hidden")

    def __init__(self, classes: int = 4, *, bias: bool = True, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, bias=bias)
        self.norm = nn.BatchNorm2d(3) if norm else nn.Identity()
        self.hidden = nn.Linear(12, 6, bias=bias)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(6, classes, bias=bias)

    def forward(self, x: Tensor) -> Output:
        z = F.max_pool2d(F.relu(self.norm(self.conv(x.reshape(-1, 2, 5, 5)))), 2, padding=1)
        z = F.relu(self.hidden(z[:, :, :2, :2].flatten(1)))
        return Output(self.head(self.drop(z)), z, (z, F.softplus(z)))


def net(*, seed: int = 0, dtype: torch.dtype = torch.float64, classes: int = 4, **options: bool | float) -> Net:
    """The small model with seeded weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Net(classes, **options).to(dtype)  # type: ignore[arg-type]


def samples(count: int, *, seed: int = 0, classes: int = 4, dtype: torch.dtype = torch.float64) -> Batch:
    """So many seeded samples, flat."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 50, generator=rng, dtype=torch.float64).to(dtype)
    return Batch(x, torch.randint(0, classes, (count,), generator=rng))


def batches(count: int = 3, size: int = 5, **options: int | torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """So many batches of `size` samples."""
    x, y = samples(count * size, **options)  # type: ignore[arg-type]
    return list(zip(x.split(size), y.split(size), strict=True))


def federation(sizes: Sequence[int] = (7, 12, 3, 18, 9, 5, 11), *, dtype: torch.dtype = torch.float64, classes: int = 4) -> Federation:
    """Clients of these sizes, each leaning to a class of its own, with a test set of 40."""
    total = sum(sizes)
    x, y = samples(total, seed=1, classes=classes, dtype=dtype)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = torch.where(torch.arange(total) % 3 > 0, owner % classes, y)
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    shards = Shards.of([list(range(a, b)) for a, b in itertools.pairwise(ends)])
    pool, test = Pool(x, y), Pool(*samples(40, seed=2, classes=classes, dtype=dtype))
    return Federation(pool, shards, len(sizes), classes, test, pool, shards)


def train(algorithm: Algorithm, module: nn.Module, data: Federation, count: int, **options: object) -> Server:
    """The server after so many rounds."""
    server = Server.start(algorithm, module)
    for _ in rounds(algorithm, module, data, rounds=count, server=server, **options):  # type: ignore[arg-type]
        pass
    return server


def client_at(
    algorithm: Algorithm, module: nn.Module, w0: Tensor, w: Tensor, down: Mapping[object, object] | None = None, seed: int = 0
) -> Client:
    """A client whose global weights are `w0` and whose own are already at `w`."""
    model = Flat(module)
    model.load(w0)
    sent = {**first_down(algorithm, w0), **(down or {})}
    client = Client(algorithm, model, w0, down=sent, kept={}, rng=stream(seed, "client", 0, 0), samples=1)  # type: ignore[arg-type]
    model.load(w)
    return client


def permuted(replies: Sequence[Reply], order: Sequence[int]) -> list[Reply]:
    """The replies in another order of arrival."""
    return [replies[i] for i in order]


class Backwards(Process):
    """An engine that runs the clients last to first."""

    name = "backwards"

    def map(self, job, clients, kept=lambda client: {}):  # type: ignore[no-untyped-def]
        return Process.map(self, job, list(reversed(clients)), kept)


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two dictionaries hold the same bits."""
    return set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)


def copies(value: object) -> object:
    """A deep copy of tensors in dictionaries, lists and tuples."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {k: copies(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [copies(v) for v in value]
    return value


def identical(a: object, b: object) -> bool:
    """Whether two nests of dictionaries and lists hold the same bits."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return set(a) == set(b) and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    return a == b


Make = Callable[[], nn.Module]
