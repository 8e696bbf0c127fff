"""What a person's own module can serve, in the words of the parts that miss something."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import accord
from accord.models import check
from accord.recipe import read


class Bare(nn.Module):
    """A convolution and a head that answer logits only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean((2, 3)))


class Told(Bare):
    """The same with features and stages."""

    stages = ("conv",)

    def forward(self, x: Tensor) -> accord.Output:  # type: ignore[override]
        z = self.conv(x).mean((2, 3))
        return accord.Output(self.head(z), z)


def test_what_is_missing_and_for_what() -> None:
    fit = check(Bare())
    assert (fit.module, fit.parameters, fit.reads, fit.classes) == ("Bare", 8 * 9 + 8 + 27, "images of 1 x 32 x 32", 3)
    assert (fit.head, fit.features, fit.stages, fit.rigid) == ("head", (), (), "")
    assert {"fedavg", "scaffold", "fedsol", "fedconst", "gradaug", "fedbabu", "local_only"} <= set(fit.serves)
    assert {"moon", "knnper", "fedalign", "fedsr"} <= set(fit.missing)
    told = check(Told())
    assert {"moon", "knnper", "fedalign"} <= set(told.serves)
    assert (told.features, told.stages) == ((8,), ("conv",))


@pytest.mark.parametrize("name", ["moon", "fedalign", "fedsr"])
def test_the_words_are_those_of_a_run(name: str) -> None:
    why = check(Bare()).missing[name]
    with pytest.raises(ValueError, match="Bare") as refused:
        accord.local_round(read(name), Bare(), [(torch.randn(4, 1, 8, 8), torch.arange(4) % 3)])
    assert str(refused.value) == why


def test_what_is_printed() -> None:
    said = str(check(Bare()))
    assert said.startswith(
        "Bare: 107 parameters, reads images of 1 x 32 x 32, answers 3 classes\nhead 'head', no features, no stages, runs at"
    )
    assert "\n  moon: contrast reads the model's features, and Bare returns logits only: return accord.Output" in " ".join(
        said.split("    ")
    )
    assert all(len(line) <= 110 for line in said.split("\n"))
    whole = check(accord.models.Stochastic(accord.models.Mlp((4,)), 3).build((5,), 3))
    assert "cannot serve" not in str(whole) or set(whole.missing).isdisjoint({"moon", "fedsr", "fedalign"})
    assert check(Told()).brief.startswith("head head; features; stages conv; any width; every algorithm but fedsr")


def test_one_reason_is_given_once() -> None:
    """A model that is all head has no body for FedBABU to train, and knows nothing narrower."""
    fit = check(nn.Sequential(nn.PReLU(), nn.Linear(6, 2)))
    assert fit.reasons[fit.missing["gradaug"]] == ["gradaug"]
    assert fit.rigid == fit.missing["gradaug"]
    assert "a PReLU, which cannot be run at a reduced width" in fit.rigid
    assert sum(len(names) for names in fit.reasons.values()) == len(fit.missing)


@pytest.mark.parametrize(
    ("module", "reads"),
    [
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), "12 symbols"),
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 2)), "48 numbers"),
        (nn.Sequential(nn.Conv2d(3, 4, 9), nn.Flatten(), nn.Linear(4 * 20 * 20, 2)), "images of 3 x 28 x 28"),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 62, 2)), "2 x 64 numbers"),
    ],
)
def test_its_inputs_are_found(module: nn.Module, reads: str) -> None:
    assert check(module).reads == reads


def test_inputs_may_be_given() -> None:
    module = nn.Sequential(nn.Unflatten(1, (2, 5)), nn.Flatten(), nn.BatchNorm1d(10), nn.Linear(10, 3)).double()
    assert check(module, torch.randn(7, 10, dtype=torch.float64)).reads == "10 numbers"
    with pytest.raises(ValueError, match="needs two inputs or more"):
        check(module, torch.randn(1, 10))
    with pytest.raises(ValueError, match=r"Sequential cannot be tried .*must return logits"):
        check(module, torch.randn(2, 4))


def test_a_module_that_nothing_fits_is_asked_for_inputs() -> None:
    with pytest.raises(ValueError, match=r"Bilinear cannot be tried .*give check\(module, x\) two inputs that it reads"):
        check(nn.Bilinear(2, 3, 4))


class Rough(nn.Module):
    """Fails in training."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.one(x)
        return self.two(z @ z[:1] if self.training else z)


def test_failures_of_the_module_are_told_as_such() -> None:
    fit = check(Rough())
    assert "fedavg" not in fit.serves
    assert fit.missing["fedavg"].startswith("it fails with RuntimeError: ")


def test_nothing_is_changed() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).train()
    before, state = {n: t.clone() for n, t in module.state_dict().items()}, torch.get_rng_state()
    check(module)
    assert module.training
    assert all(t.equal(before[n]) for n, t in module.state_dict().items())
    assert torch.get_rng_state().equal(state)
    assert all(p.grad is None for p in module.parameters())
