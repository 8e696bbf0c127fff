"""Tracking: what is recorded is what its definitions say, and recording changes nothing."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import accord
from accord.client import Client
from accord.data.pool import Pool
from accord.engines.process import Process
from accord.engines.processes import Processes
from accord.evaluation import knowledge
from accord.experiment import Experiment
from accord.run import run
from accord.seeds import stream
from accord.server import Server, rounds
from accord.track import Watch, drift, drift_of
from small import batches, federation, net

RULE = accord.sgd(lr=0.05, epochs=2, batch=5)
TEXTS = ["fedavg", "scaffold + constrain", "fedsol(rho=0.5)", "fedsam", "moon", "mixup", "feddyn", "fedoptz(alpha=0.2)"]


def lines(algorithm: accord.Algorithm, count: int, watch: Watch | None, **options: bool | float) -> tuple[Tensor, list[dict[str, object]]]:
    """The weights after so many rounds, and what was recorded of each."""
    module, data, found = net(**options), federation(), []
    server = Server.start(algorithm, module)
    for cohort in rounds(algorithm, module, data, rounds=count, server=server, watch=watch, seed=3):
        if watch is not None:
            found.append(drift_of(cohort, [name for name, _ in module.named_parameters()]))
    return server.w, found


@pytest.mark.parametrize("text", TEXTS)
def test_tracking_changes_no_bit(text: str) -> None:
    algorithm = accord.read(text) + RULE + accord.uniform(4)
    plain, _ = lines(algorithm, 12, None, norm=True, dropout=0.3)
    watched, found = lines(algorithm, 12, Watch(), norm=True, dropout=0.3)
    assert torch.equal(plain, watched)
    assert any(line["proximal_loss"] is not None for line in found), "the proximal gradient was never looked at"


@pytest.mark.parametrize("text", ["fedavg", "scaffold + constrain"])
def test_along_the_steps_against_a_loop(text: str) -> None:
    """The variance of the gradients, the weights by epoch and FedCONST's moving averages, from the gradients of every step."""
    algorithm, module, steps = accord.read(text) + RULE, net(), batches(60)
    gradients, weights = [], []

    @dataclass(frozen=True)
    class Spy(accord.Part):
        name = "spy"

        def gradient(self, client: Client, batch: accord.Batch, inner: accord.Gradient) -> None:
            inner(batch)
            gradients.append(client.g.clone())

        def moved(self, client: Client) -> None:
            weights.append(client.w.clone())

    watch = Watch()
    reply = accord.local_round(algorithm + watch + Spy(), module, steps)
    seen = watch.taken(reply)
    assert watch not in reply.up
    reply.delta = reply.w - torch.cat([p.detach().flatten() for p in module.parameters()])
    cohort = _Round([reply], {0: seen}, reply.w - reply.delta, reply.w)
    found = drift_of(cohort, [name for name, _ in module.named_parameters()])  # type: ignore[arg-type]
    g = torch.stack(gradients)
    assert found["gradient_variance"] == pytest.approx(float((g - g.mean(0)).square().sum(1).mean()), rel=1e-9)
    m = v = torch.zeros(4, dtype=torch.float64)
    for step, each in enumerate(g[:, -4:]):
        m = (torch.zeros_like(m) if step == 50 else m) * 0.99 + 0.01 * each
        v = v * 0.99 + 0.01 * each**2
    assert found["gradient_variance_code"] == pytest.approx(float((v - m**2).abs().sum()), rel=1e-9)
    start = reply.w - reply.delta
    assert found["norm"] == pytest.approx([float(weights[-1].norm())])
    assert found["cosine"] == pytest.approx([float(F.cosine_similarity(weights[-1], start, dim=0))])


class _Round:
    def __init__(self, replies: list[accord.Reply], seen: dict[int, accord.State], w: Tensor, after: Tensor) -> None:
        self.replies, self.seen, self.w = replies, seen, w
        self.server = Server(accord.fedavg(), after, torch.empty(0))


def test_epochs_of_a_client() -> None:
    """Seven samples in batches of five are two steps an epoch: three epochs, three points; the weights move away from the start."""
    algorithm = accord.fedavg() + accord.sgd(lr=0.05, epochs=3, batch=5) + accord.uniform(2)
    _, found = lines(algorithm, 2, Watch())
    for line in found:
        assert len(line["norm"]) == len(line["cosine"]) == 3  # type: ignore[arg-type]
        assert line["cosine"] == sorted(line["cosine"], reverse=True)  # type: ignore[call-overload]


def test_the_proximal_gradient_by_hand() -> None:
    """Cosine between the loss gradient and that of KL(softmax(z0/3) || softmax(z/3)), and this divergence, at the weights of step 50."""
    module, algorithm, steps = net(), accord.fedavg() + RULE, batches(50)
    watch = Watch()
    seen = watch.taken(accord.local_round(algorithm + watch, module, steps))
    before = accord.local_round(algorithm, module, steps[:49]).w
    local = net()
    torch.nn.utils.vector_to_parameters(before, local.parameters())
    x, y = steps[49]
    teacher, student = (F.log_softmax(model(x).logits / 3, -1) for model in (module, local))
    pull = (teacher.exp() * (teacher - student)).sum(1).mean()
    parameters = list(local.parameters())
    mine = torch.cat([t.flatten() for t in torch.autograd.grad(F.cross_entropy(local(x).logits, y), parameters)])
    near = torch.cat([t.flatten() for t in torch.autograd.grad(pull, parameters)])
    assert seen["pulls"].tolist() == [pytest.approx([float(F.cosine_similarity(mine, near, dim=0)), float(pull.detach())], rel=1e-6)]


def test_lambda_is_what_fedsol_perturbs_by() -> None:
    module = net()
    watch = Watch()
    reply = accord.local_round(accord.fedsol(rho=0.5) + RULE + watch, module, batches(4))
    seen = watch.taken(reply)
    layout = accord.Layout.of(dict(module.named_parameters()))
    moved = (reply.w - torch.cat([p.detach().flatten() for p in module.parameters()])).abs()
    wanted = [float((t / t.norm(dim=0).clamp(min=1e-12)).mean()) for t in layout.views(moved)]
    assert seen["lambda"].tolist() == pytest.approx(wanted)
    assert "lambda" not in watch.taken(accord.local_round(accord.fedavg() + watch, module, batches(2)))


def test_drift_against_its_definitions() -> None:
    rng = torch.Generator().manual_seed(0)
    deltas = [torch.randn(31, generator=rng, dtype=torch.float64) for _ in range(4)]
    p, step = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), torch.randn(31, generator=rng, dtype=torch.float64)
    found = drift(deltas, p, step)
    consistency = sum(float(q) * float(d @ d) for q, d in zip(p, deltas, strict=True))
    assert found["consistency"] == pytest.approx(consistency)
    assert found["diversity"] == pytest.approx(consistency / float(step @ step))
    assert found["consistency_dev"] == pytest.approx(sum(float(q) * float((d - step).norm() ** 2) for q, d in zip(p, deltas, strict=True)))
    assert found["divergence"] == pytest.approx(np.mean([float(d.norm()) for d in deltas]))
    assert found["divergence_locals"] == pytest.approx(np.mean([float((a - b).norm()) for a, b in itertools.combinations(deltas, 2)]))
    assert drift(deltas[:1], p[:1], step)["divergence_locals"] != drift(deltas[:1], p[:1], step)["divergence_locals"]  # no pair: NaN


def test_golden_drift(golden: Path) -> None:
    with np.load(golden / "metrics_drift" / "tensors.npz") as z:
        names = [name.removeprefix("global/") for name in z.files if name.startswith("global/")]
        w = np.concatenate([z[f"global/{name}"].ravel() for name in names])
        local = [torch.from_numpy(np.concatenate([z[f"local/{k}/{name}"].ravel() for name in names]) - w) for k in range(3)]
        p = torch.from_numpy(z["p"])
        found = drift(local, p, sum((q * d for q, d in zip(p, local, strict=True)), start=torch.zeros_like(local[0])))
        pairs = {
            "diversity": "drift_diversity",
            "consistency": "consistency_paper",
            "consistency_dev": "consistency_dev",
            "divergence": "weight_divergence_global",
            "divergence_locals": "weight_divergence_pairs",
        }
        for mine, theirs in pairs.items():
            assert found[mine] == pytest.approx(float(z[f"expected_{theirs}"]), rel=1e-9), mine


def test_engines_record_the_same() -> None:
    module, data = net(), federation()
    algorithm = accord.read("fedsol") + RULE + accord.uniform(4)

    def recorded(engine: Process | Processes) -> list[dict[str, object]]:
        with engine:
            return [
                drift_of(cohort, [name for name, _ in module.named_parameters()])
                for cohort in rounds(algorithm, module, data, rounds=4, engine=engine, watch=Watch())
            ]

    assert recorded(Process(module, data)) == recorded(Processes(module, data, workers=2))


def test_knowledge_is_each_models_accuracy() -> None:
    module, data = net(), federation()
    algorithm = accord.fedavg() + RULE + accord.uniform(3)
    engine = Process(module, data)
    cohort = next(rounds(algorithm, module, data, rounds=1, engine=engine, watch=Watch(local=False)))
    found = knowledge(cohort, data, engine)
    wanted = []
    for reply in cohort.replies:
        model = net()
        torch.nn.utils.vector_to_parameters(reply.w, model.parameters())
        wanted.append(float((model(data.test.x).logits.argmax(1) == data.test.y).double().mean()))
    assert found["accuracies"] == pytest.approx(wanted)
    assert found["mean"] == pytest.approx(np.mean(wanted))
    assert found["spread"] == pytest.approx(np.std(wanted))


def test_a_run_writes_what_it_was_asked_to(tmp_path: Path) -> None:
    plain = run(Experiment(rounds=4, engine="process"), tmp_path / "plain")
    both = run(Experiment(rounds=4, engine="process", track=("drift", "knowledge"), evaluate_every=2), tmp_path / "both")
    assert plain["digest"] == both["digest"]
    assert plain["bytes_up"] == both["bytes_up"]
    written = [json.loads(line) for line in (tmp_path / "both" / "rounds.jsonl").read_text().splitlines()]
    assert all("drift" in line for line in written)
    assert [line["round"] for line in written if "knowledge" in line] == [2, 4]
    again = run(Experiment(rounds=4, engine="process"), tmp_path / "both", keep=True)
    assert "drift" not in (tmp_path / "both" / "rounds.jsonl").read_text()
    assert again["digest"] == plain["digest"]


def test_knowledge_needs_a_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of one's own may have no global test set."""
    data = replace(federation(), test=Pool(torch.empty(0, 50), torch.empty(0, dtype=torch.long)))
    monkeypatch.setattr(Experiment, "federation", lambda self: data)
    with pytest.raises(ValueError, match="global test set"):
        run(Experiment(clients=7, per_round=2, track=("knowledge",)), tmp_path / "out")


def test_the_stream_of_a_client_is_its_own() -> None:
    """Looking at the proximal gradient of a module with dropout draws nothing from the stream that training draws from."""
    module = net(dropout=0.5)
    torch.set_rng_state(stream(1).get_state())
    before = torch.get_rng_state()
    accord.local_round(accord.fedavg() + RULE + Watch(), module, batches(50))
    assert torch.equal(before, torch.get_rng_state())
