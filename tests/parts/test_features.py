"""Parts that look at what models answer: MOON, FedNTD, mixup."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cases import case, close, compare, local, vector
from torch import Tensor, nn

import accord
from accord.parts.mixup import Mixup
from small import batches, net
from test_golden import Case

RULE = accord.sgd(lr=0.05, momentum=0.9, decay=0.01)


class Projected(nn.Module):
    """The official MOON's model: two projection layers, of whose result the last layer reads and MOON compares."""

    head_name = "l3"

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.linear_1, self.l1, self.l2, self.l3 = nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> accord.Output:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        z = self.l2(F.relu(self.l1(F.relu(self.linear_1(x.flatten(1))))))
        return accord.Output(self.l3(z), z)


class Normed(nn.Module):
    """FedAlign's: BatchNorm and a projection head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(4), nn.BatchNorm2d(8)
        self.linear_1, self.p1, self.p2, self.classifier = nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> accord.Output:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        z = self.p2(F.relu(self.p1(F.relu(self.linear_1(x.flatten(1))))))
        return accord.Output(self.classifier(z), z)


def loaded(module: nn.Module, known: Case) -> nn.Module:
    module = module.double()
    module.load_state_dict(known.group("init/"), strict=False)
    return module


def test_moon(golden: Path) -> None:
    reply = local(golden, "moon_mu0.1_t0.5", "moon(mu=0.1, tau=0.5)", kept={"contrast(mu=0.1, tau=0.5)": {"w": "prev/"}})
    assert reply.kept[accord.contrast(0.1, 0.5)]["w"].equal(reply.w)


def test_moon_with_a_projection_head(golden: Path) -> None:
    local(
        golden,
        "moon_official_mu1",
        "moon(mu=1)",
        kept={"contrast(mu=1)": {"w": "prev/0/"}},
        model=lambda known: loaded(Projected(), known),
    )


def test_moon_with_frozen_models_in_training_mode(golden: Path) -> None:
    known, part = case(golden, "fa_moon_projection"), accord.contrast(1.0, 0.5, "train")
    flat = accord.Flat(loaded(Normed(), known))
    previous = {name: known.arrays[f"prev/{name}"] for name in (s.name for s in flat.layout.slots)}
    kept = {part: {"w": flat.layout.pack(previous)}}
    deal = [(known.arrays["x"][b], known.arrays["y"][b]) for b in known.hyper["batch_order"]]
    for steps in (1, 2, len(deal)):
        reply = accord.local_round(accord.moon(mode="train") + known.rule(), loaded(Normed(), known), deal[:steps], kept=kept)
        prefix = f"expected/{steps}/" if steps < len(deal) else "expected/"
        compare(known, flat.layout, reply.w, prefix)
        for name, b in flat.statistics.named(reply.b).items():
            if "running" in name:
                close(b, known.arrays[prefix + name], 1e-7)


def test_a_client_without_a_past_trains_without_the_term() -> None:
    deal = batches(3)
    found, plain = (accord.local_round(algorithm + RULE, net(norm=True), deal) for algorithm in (accord.moon(mu=5), accord.fedavg()))
    assert found.w.equal(plain.w)
    assert found.b.equal(plain.b)


def test_the_previous_model_answers_with_its_own_statistics() -> None:
    """In evaluation mode its statistics matter, and they are kept beside its weights."""
    module, deal, algorithm = net(norm=True), batches(3), accord.moon(mu=5) + RULE
    first = accord.local_round(algorithm, module, deal)
    part = algorithm.parts[-1]
    held = {**first.kept[part], "b": first.kept[part]["b"] + 1.0}
    one, two = (accord.local_round(algorithm, module, deal, kept={part: kept}) for kept in (first.kept[part], held))
    assert (one.w - two.w).abs().max() > 1e-6


def test_no_features_is_said_before_a_step_is_taken() -> None:
    with pytest.raises(ValueError, match="contrast reads the model's features, and Linear returns logits only"):
        accord.local_round(accord.moon(), nn.Linear(3, 2), [(torch.zeros(2, 3), torch.tensor([0, 1]))])


@pytest.mark.parametrize("text", ["moon(mu=0)", "fedntd(beta=0)", "mixup(gamma=0)"])
def test_without_strength_it_is_fedavg_bit_for_bit(text: str) -> None:
    deal = batches(3)
    found, plain = (accord.local_round(accord.read(t) + RULE, net(norm=True), deal) for t in (text, "fedavg"))
    assert found.w.equal(plain.w)
    assert found.b.equal(plain.b)


def test_fedntd(golden: Path) -> None:
    local(golden, "fedntd_b1_t1", "fedntd")


def test_fedntd_written_out() -> None:
    """Sample by sample, class by class; and the temperature's square is in front."""
    z, z0 = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    y, tau = torch.tensor([0, 4, 2, 2]), 2.0
    total = 0.0
    for a, b, label in zip(z0, z, y.tolist(), strict=True):
        rest = [c for c in range(5) if c != label]
        p, q = torch.softmax(a[rest] / tau, 0), torch.softmax(b[rest] / tau, 0)
        total += float((p * (p / q).log()).sum()) * tau**2 / 4
    client = accord.Client.__new__(accord.Client)
    client.look = lambda *given: accord.Output(z0)  # type: ignore[assignment,misc,method-assign]
    client.w0 = z
    found = accord.not_true(3.0, tau).loss(client, accord.Batch(z, y), accord.Output(z))
    assert float(found) == pytest.approx(3.0 * total, rel=1e-12)


def test_mixup(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = case(golden, "fa_mixup_g1")
    lam, order = known.arrays["message/lam"].tolist(), known.arrays["message/permutation"]
    monkeypatch.setattr(Mixup, "draw", lambda part, client, size: (lam[client.step], order[client.step].long()))
    local(golden, "fa_mixup_g1", "mixup(gamma=1)")


def test_mixup_draws_anew_for_each_batch_and_alike_for_a_seed() -> None:
    deal = batches(1, size=8) * 3
    one, same, other = (accord.local_round(accord.mixup(0.5) + RULE, net(), deal, seed=s).w for s in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)


def test_momentum_that_persists(golden: Path) -> None:
    known = case(golden, "fa_momentum_persist")
    algorithm, x, y = accord.fedavg() + known.rule(persist=True), known.arrays["x"], known.arrays["y"]
    from test_golden import tiny

    deal = [(x[b], y[b]) for b in known.hyper["batch_order"]]
    layout, half = accord.Flat(tiny(known)).layout, len(deal) // 2
    first = accord.local_round(algorithm, tiny(known), deal[:half])
    compare(known, layout, first.w, "expected_round1/")
    w0 = vector(known, "global/")
    compare(known, layout, accord.local_round(algorithm, tiny(known), deal[half : half + 1], w0=w0, kept=first.kept).w, "expected/4/")
    compare(known, layout, accord.local_round(algorithm, tiny(known), deal[half:], w0=w0, kept=first.kept).w, "expected/")
