"""The model of the golden cases of FedAlign and GradAug: two convolutions, a last stage of two more, and a linear head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import accord
from accord.flat import Flat
from test_golden import Case


class TinySlim(nn.Module):
    """Plain layers under the names of the authors' slimmable ones."""

    stages = ("layer2", "layer3")

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer2 = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        first, second = nn.Conv2d(32, 32, 1, bias=False), nn.Conv2d(32, 32, 1, 2, bias=False)
        self.layer3 = nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(), second, nn.BatchNorm2d(32), nn.ReLU())
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> accord.Output:
        z = self.layer3(self.layer2(F.relu(self.bn1(self.conv1(x))))).mean((2, 3))
        return accord.Output(self.fc(z), z)


def inner(name: str) -> str:
    """The name that a running statistic has here: the authors' layers hold a BatchNorm of their own for it."""
    return name.replace(".bn.running", ".running")


def tiny_slim(known: Case) -> TinySlim:
    """The model at the case's starting weights."""
    module = TinySlim().double()
    missing, extra = module.load_state_dict({inner(n): t.double() for n, t in known.group("init/").items()}, strict=False)
    assert not extra
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return module


def update(known: Case, algorithm: str, steps: int) -> accord.Reply:
    """The case's client after so many steps."""
    deal = [(known.arrays["x"][b], known.arrays["y"][b]) for b in known.hyper["batch_order"][:steps]]
    return accord.local_round(accord.read(algorithm) + known.rule(), tiny_slim(known), deal)


def check(known: Case, algorithm: str) -> None:
    """The weights and the running statistics after every step that the case stores, and at the end."""
    flat, last = Flat(tiny_slim(known)), len(known.hyper["batch_order"])
    limits = {k: known.about["tolerance"][k] for k in ("rtol", "atol")}
    for steps in range(1, last + 1):
        reply, wanted = update(known, algorithm, steps), known.group("expected/" if steps == last else f"expected/{steps}/")
        assert wanted
        found = flat.layout.named(reply.w) | flat.statistics.named(reply.b)
        assert {s.name for s in flat.layout.slots} <= set(wanted)
        for name, tensor in wanted.items():
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(found[inner(name)], tensor, **limits, msg=lambda why, at=(steps, name): f"{at}: {why}")
