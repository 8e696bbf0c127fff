"""What algorithms cost: the table of the specification comes out of the code, and what a run measures is what the costs say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import accord
from accord.client import Client
from accord.cost import Small
from accord.experiment import Experiment
from accord.flat import Flat
from accord.models.stochastic import StochasticNet
from accord.part import Part
from accord.recipe import entries
from accord.run import run
from small import federation, net, samples

ALGORITHMS = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]
P = Flat(Small()).layout.size
HEAD = 32 * 4 + 4

# down, up, what a client keeps, what the server keeps; backward passes, and the forward passes beyond those, for each batch
TABLE: dict[str, tuple[float, float, int, int, float, float]] = {
    "fedavg": (P, P, 0, 0, 1, 0),
    "mixup": (P, P, 0, 0, 1, 0),
    "fedprox": (P, P, 0, 0, 1, 0),
    "fednova": (P, P + 1, 0, 0, 1, 0),
    "scaffold": (2 * P, 2 * P, P, P, 1, 0),
    "feddyn": (P, P, P, P, 1, 0),
    "moon": (P, P, P, 0, 1, 2),
    "fedntd": (P, P, 0, 0, 1, 1),
    "fedsam": (P, P, 0, 0, 2, 0),
    "fedasam": (P, P, 0, 0, 2, 0),
    "fedsol(on=all)": (P, P, 0, 0, 2, 1),
    "fedsol(on=body)": (P, P, 0, 0, 2, 1),
    "fedsol": (P, P, 0, 0, 1, 1),
    "projection": (P, P, 0, 0, 2, 1),
    "fedconst": (P, P, 0, 0, 1, 0),
    "fedoptz": (P, 2 * P + 1, 0, 0, 1, 0),
    "fedoptz(alpha=0)": (P, P, 0, 0, 1, 0),
    "fedavg + power_of_choice(10, d=20)": (2 * P, P + 2, 0, 0, 1, 0),
    "fedsr": (P, P, 2 * 4 * 32 + 1, 0, 1, 0),
    "fedbabu": (P - HEAD, P - HEAD, 0, 0, 1, 0),
    "fedavg + sgd(on=body)": (P - HEAD, P - HEAD, 0, 0, 1, 0),
    "perfedavg": (P, P, 0, 0, 1, 0),
    "knnper": (P, P, 0, 0, 1, 0),
    "fedavgm": (P, P, 0, P, 1, 0),
    "fedadam": (P, P, 0, 2 * P + 1, 1, 0),
    "adabest": (P + 1, P, P + 1, P + 2, 1, 0),
    "local_only": (0, 0, P, 0, 1, 0),
    "centralised": (0, 0, P, 0, 1, 0),
}


@pytest.mark.parametrize("text", TABLE)
def test_the_table_of_the_specification_comes_out_of_the_code(text: str) -> None:
    """Rows as in `algorithms.md`, 3.26. Two batches make one meta-step; what is shared with the pass for the task counts once."""
    found, (down, up, kept, server, backwards, more) = accord.cost(text), TABLE[text]
    assert found.weights == P
    assert (found.down, found.up, found.kept, found.server) == (down, up, kept, server)
    head = 0.02 if text == "fedsol" or "on=body" in text else 1e-9  # the head is a little of the model
    assert found.backwards == pytest.approx(backwards, abs=head)
    assert found.forwards - found.backwards == pytest.approx(more, abs=head)
    assert found.extra == pytest.approx(1 if text == "fedoptz" else 0, abs=1e-9)


# the most vectors as long as the model that training makes at once, beyond FedAvg's, what the client is sent and what it keeps
PEAKS = {
    "fedprox": 1,
    "scaffold": 2,
    "feddyn": 2,
    "moon": 2,
    "fedntd": 1,
    "fedsam": 1,
    "fedasam": 1,
    "fedsol": 2,
    "fedsol(on=body)": 2,
    "fedsol(on=all)": 2,
    "projection": 2,
    "fedoptz": 1,
    "perfedavg": 1,
    "adabest": 1,
}


@pytest.mark.parametrize("text", TABLE)
def test_what_training_needs_at_its_peak_comes_out_of_the_code(text: str) -> None:
    """The column of the same table, where P for FedNova is the global model, which every worker here has once for all its clients."""
    assert accord.cost(text).peak == PEAKS.get(text, 0)


def test_the_peak_is_counted_while_it_lasts() -> None:
    """A copy for the whole round and three for a moment at its end, before FedAvg's own copy of the weights is made."""

    @dataclass(frozen=True)
    class Hoarder(Part):
        def begin(self, client: Client) -> None:
            client.memo[self] = client.w.clone()

        def end(self, client: Client) -> None:
            three = [client.w * k for k in range(3)]
            del three

    assert accord.cost(accord.fedavg() + Hoarder()).peak == 3
    assert accord.cost(accord.moon() + Hoarder()).peak == 2 + 1 + 3  # and here that copy is made, as MOON keeps it


def test_a_selection_by_loss_asks_for_a_forward_pass_over_all_data_of_each_it_looks_at() -> None:
    """Table 3.26, power of choice: d forward passes, d models down and d numbers up in a round of m = 10."""
    found = accord.cost("fedavg(uniform) + power_of_choice(10, d=20)")
    assert (found.asked, found.extra) == (2, 0)
    assert str(found) == "down 2P, up P + 2, 1 pass, 2 forward over all data a round to choose"
    assert accord.cost("fedavg + uniform(10)").asked == 0


def test_a_perturbed_head_costs_a_little_more_than_none() -> None:
    plain, head, whole = (accord.cost(t) for t in ("fedntd", "fedsol", "fedsol(on=all)"))
    assert plain.forwards < head.forwards < plain.forwards + 0.02 < whole.forwards
    assert plain.backwards < head.backwards < plain.backwards + 0.02 < whole.backwards


@pytest.mark.parametrize("n", [1, 2, 4])
def test_narrow_copies_cost_less_than_the_whole_model_each(n: int) -> None:
    found = accord.cost(f"gradaug(n={n})")
    assert 1 + 0.2 * n < found.backwards < 1 + n
    assert (found.down, found.up, found.kept) == (P, P, 0)


def test_neighbours_are_remembered_until_capacity() -> None:
    assert accord.cost("knnper").remembered == 500 * (32 + 1)
    assert accord.cost("fedavg + knn_per(capacity=7)").remembered == 7 * 33
    assert accord.cost("fedavg").remembered == 0


def test_a_gradient_over_all_data_is_counted_by_the_round() -> None:
    """SCAFFOLD's option I looks at everything once before its steps; training the head alone spares most of a backward pass."""
    assert accord.cost("fedavg + control(option=I)").extra == pytest.approx(1.0)
    assert accord.cost("fedavg + sgd(on=head)").backwards < 0.05


def test_frozen_statistics_do_not_travel() -> None:
    plain, frozen = (accord.cost(t, net(norm=True), (samples(4).x, samples(4).y)) for t in ("fedavg", "fedavg + buffers(freeze)"))
    assert plain.down == plain.up == plain.weights + 7
    assert frozen.down == frozen.up == frozen.weights


def test_costs_add_up_in_a_composition() -> None:
    found = accord.cost("scaffold + fedsam + moon + constrain")
    assert (found.down, found.up, found.kept) == (2 * P, 2 * P, 2 * P)
    assert found.backwards == 2
    assert str(found) == "down 2P, up 2P, keeps 2P, trains in 5P more, server keeps P, 2 passes + 2 forward"


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("text", [*ALGORITHMS, "fedavg + power_of_choice(4, d=6)", "fedavg + sgd(on=head)", "scaffold + fedbabu"])
def test_a_run_sends_what_the_costs_say(text: str, norm: bool) -> None:
    module, data, batch = net(dtype=torch.float32, norm=norm), federation((7, 12, 3, 18, 9, 5, 11), dtype=torch.float32), samples(4)
    algorithm = accord.read(text)
    algorithm = algorithm if "power" in text else algorithm + accord.uniform(4)
    found = accord.cost(algorithm, module, (batch.x.float(), batch.y))
    cohorts = list(accord.rounds(algorithm + accord.sgd(batch=6, on=algorithm.rule.on), module, data, rounds=3))
    assert sum(c.bytes_down for c in cohorts) == found.down * 4 * 3 * 4
    assert sum(c.bytes_up for c in cohorts) == found.up * 4 * 3 * 4


def test_the_record_of_a_run_says_the_same(tmp_path: Path) -> None:
    result = run(Experiment(algorithm="scaffold", rounds=2, per_round=5, engine="process"), tmp_path)
    size = result["parameters"]
    assert result["bytes_down"] == result["bytes_up"] == 2 * size * 5 * 2 * 4
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["bytes_down"] for line in lines] == [2 * size * 5 * 4] * 2


@pytest.mark.parametrize(
    "text", ["fedbabu", "fedavg + sgd(on=body)", "fedbabu + corrective", "corrective + fedbabu", "fedbabu + feddyn + fedadam"]
)
def test_what_does_not_travel_does_not_change(text: str) -> None:
    text = text.replace("corrective + fedbabu", "fedavg + corrective + fedbabu")
    module, data = net(), federation()
    start, layout = Flat(net()).w.clone(), Flat(net()).layout
    cohorts = list(accord.rounds(accord.read(text), module, data, rounds=3))
    w = cohorts[-1].server.w
    assert not w.equal(start)
    for span in layout.spans("head"):
        assert w[span].equal(start[span])


def test_clients_alone_leave_the_global_model_as_it_was() -> None:
    module = net(norm=True)
    start = Flat(net(norm=True))
    server = list(accord.rounds(accord.local_only(), module, federation(), rounds=2))[-1].server
    assert server.w.equal(start.w)
    assert server.b.equal(start.read_statistics())


def test_a_model_of_ones_own_is_measured_and_left_alone() -> None:
    torch.manual_seed(0)
    module = StochasticNet(torch.nn.Linear(50, 6), 3, 4).double()
    before = Flat(module).w.clone()
    batch = samples(4)
    found = accord.cost(accord.fedsr(), module, (batch.x, batch.y))
    assert found.kept == 2 * 4 * 3 + 1
    assert Flat(module).w.equal(before)
    assert found == accord.cost("fedsr", module, (batch.x, batch.y))
