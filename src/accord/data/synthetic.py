"""Generated data: seeded, of any size, for benchmarks, tests and the experiments of FedProx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from accord.check import Count, NonNegative, Whole
from accord.data.augment import Augment
from accord.data.source import Loaded, Source
from accord.recipe import named

DECAY = -1.2  # the variance of feature j falls as j ** -1.2


@named
class Synthetic(Source):
    r"""FedProx's synthetic(alpha, beta): every client has its own linear model and its own inputs; split it by `natural(client)`.

    Client $k$: $W_k, b_k \sim N(u_k, 1)$ with $u_k \sim N(0, \alpha)$; $x \sim N(v_k, \Sigma)$, $v_k \sim N(B_k, 1)$,
    $B_k \sim N(0, \beta)$, $\Sigma_{jj} = j^{-1.2}$; $y = \arg\max(W_k x + b_k)$; sizes are log-normal, at least 50.
    Li et al., "Federated optimization in heterogeneous networks", 2020. A tenth of each client is in the test set.

    >>> from accord.data.synthetic import Synthetic
    >>> data = Synthetic(0.5, 0.5, clients=5).load()
    >>> tuple(data.x.shape[1:]), data.classes, sorted(set(data.columns["client"].tolist()))
    ((60,), 10, [0, 1, 2, 3, 4])
    """

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    clients: Count = 30
    features: Count = 60
    classes: Count = 10
    iid: bool = False
    seed: Whole = 0

    def load(self, data_dir: Path | None = None) -> Loaded:
        rng = np.random.default_rng(self.seed)
        sizes = np.minimum(rng.lognormal(4, 2, self.clients), 10_000).astype(int) + 50
        u, centre = rng.normal(0, self.alpha, self.clients), rng.normal(0, self.beta, self.clients)
        shared = rng.normal(size=(self.classes, self.features)), rng.normal(size=self.classes)
        spread = np.arange(1, self.features + 1) ** (DECAY / 2)
        xs, ys = [], []
        for k, size in enumerate(sizes):
            own = u[k] + rng.normal(size=(self.classes, self.features)), u[k] + rng.normal(size=self.classes)
            weight, bias = shared if self.iid else own
            middle = np.zeros(self.features) if self.iid else rng.normal(centre[k], 1, self.features)
            x = middle + rng.normal(size=(size, self.features)) * spread
            xs.append(x.astype(np.float32))
            ys.append((x @ weight.T + bias).argmax(1))
        x, y, client = np.concatenate(xs), np.concatenate(ys), np.repeat(np.arange(self.clients), sizes)
        test = np.concatenate([np.arange(size) >= size - size // 10 for size in sizes])
        x_all, y_all = torch.from_numpy(x), torch.from_numpy(y)
        return Loaded(x_all[~test], y_all[~test], x_all[test], y_all[test], self.classes, {"client": client[~test]})


@named
class Gaussians(Source):
    """Classes that are Gaussian clouds round random centres, `distance` standard deviations from the origin on average.

    >>> from accord.data.synthetic import Gaussians
    >>> data = Gaussians(samples=100, features=5, classes=3).load()
    >>> tuple(data.x.shape), tuple(data.test_x.shape), data.classes
    ((100, 5), (20, 5), 3)
    """

    samples: Count = 2000
    features: Count = 20
    classes: Count = 10
    distance: NonNegative = 3.0
    seed: Whole = 0

    def load(self, data_dir: Path | None = None) -> Loaded:
        rng = np.random.default_rng(self.seed)
        total = self.samples + max(1, self.samples // 5)
        y = rng.permutation(np.arange(total) % self.classes)
        centres = rng.normal(size=(self.classes, self.features)) * (self.distance / self.features**0.5)
        x = torch.from_numpy((centres[y] + rng.normal(size=(total, self.features))).astype(np.float32))
        labels, n = torch.from_numpy(y), self.samples
        return Loaded(x[:n], labels[:n], x[n:], labels[n:], self.classes)


@named
class SyntheticImages(Source):
    """Images of random coarse patterns, one a class, under pixel noise; `shape` is channels, height and width.

    >>> from accord.data.synthetic import SyntheticImages
    >>> data = SyntheticImages(samples=50, shape=(3, 16, 16), classes=5).load()
    >>> tuple(data.x.shape), data.x.dtype, data.train().shape
    ((50, 16, 16, 3), torch.uint8, (3, 16, 16))
    """

    samples: Count = 10_000
    shape: tuple[Count, Count, Count] = (3, 32, 32)
    classes: Count = 10
    noise: NonNegative = 48.0
    augment: tuple[Augment, ...] = ()
    seed: Whole = 0

    def load(self, data_dir: Path | None = None) -> Loaded:
        rng = np.random.default_rng(self.seed)
        channels, high, wide = self.shape
        total = self.samples + max(1, self.samples // 5)
        y = rng.permutation(np.arange(total) % self.classes)
        coarse = rng.integers(64, 192, (self.classes, -(-high // 4), -(-wide // 4), channels))
        patterns = coarse.repeat(4, 1).repeat(4, 2)[:, :high, :wide].astype(np.float32)
        x = np.empty((total, high, wide, channels), dtype=np.uint8)
        for at in range(0, total, 4096):
            part = patterns[y[at : at + 4096]]
            part += rng.standard_normal(part.shape, dtype=np.float32) * self.noise
            x[at : at + 4096] = part.clip(0, 255)
        images, labels, n = torch.from_numpy(x), torch.from_numpy(y), self.samples
        middle = torch.full((channels,), 0.5), torch.full((channels,), 0.25)
        return Loaded(images[:n], labels[:n], images[n:], labels[n:], self.classes, {}, *middle, self.augment)
