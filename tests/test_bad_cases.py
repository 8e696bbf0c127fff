"""Awkward clients and models: too little data, one class, no step, dead rows, BatchNorm, no head, no features. Never a NaN."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accord
from accord.cost import Small
from accord.flat import Flat
from accord.jobs import Evaluate, Train, Worker
from accord.recipe import entries
from accord.server import Server, rounds
from accord.store import Store
from small import batches, client_at, copies, federation, identical, net, samples, train

TEXTS = [
    "fedavg",
    "fedprox(mu=1)",
    "scaffold",
    "scaffold(divisor=plain)",
    "fedsam",
    "fedavg + perturb(rho=1, adaptive=weight)",
    "fedsol",
    "fedsol(on=all, scale=layer)",
    "fedavg + constrain",
    "scaffold + fedsol + constrain(order=joint)",
]


def clean(server: Server) -> bool:
    held = [server.w, server.b, *(t for s in server.state.values() for t in s.values())]
    return all(bool(torch.isfinite(t).all()) for t in held)


# --- little data -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_clients_with_fewer_samples_than_a_batch(text: str, drop_last: bool) -> None:
    """Sizes below, at and just above one batch; dropping an incomplete batch must not leave a client without any."""
    data = federation((1, 2, 4, 5, 6, 9))
    algorithm = accord.read(text) + accord.sgd(lr=0.05, batch=5, epochs=2, drop_last=drop_last)
    server, store = Server.start(algorithm, net()), Store(algorithm.keys)
    for cohort in rounds(algorithm, net(), data, rounds=3, server=server, store=store):
        assert cohort.rejected == {}
        assert math.isfinite(cohort.loss)
    assert clean(server)
    nothing = torch.empty(0)
    counts = [len(list(Train(algorithm, nothing, nothing).batches(data, k))) for k in range(6)]
    assert counts == [2, 2, 2, 2, 2 if drop_last else 4, 2 if drop_last else 4]


@pytest.mark.parametrize("text", TEXTS)
def test_clients_with_one_sample_or_one_class(text: str) -> None:
    data = federation((1, 1, 10, 10))
    data.train.y[2:12] = 3
    data.train.y[12:] = 0
    algorithm = accord.read(text) + accord.sgd(lr=0.05, batch=4, epochs=3)
    assert clean(train(algorithm, net(), data, 3))


def test_a_single_client_is_local_training() -> None:
    data = federation((12,))
    algorithm = accord.fedavg() + accord.sgd(lr=0.05, batch=4, epochs=1)
    server = train(algorithm, net(), data, 1)
    worker = Worker(net(), data)
    reply = Train(algorithm, Flat(net()).w.clone(), worker.model.read_statistics()).run(worker, 0, {})
    torch.testing.assert_close(server.w, reply.w, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("text", TEXTS)
def test_no_local_step_moves_nothing(text: str) -> None:
    algorithm, module = accord.read(text), net(norm=True)
    start = Flat(net(norm=True)).w.clone()
    reply = accord.local_round(algorithm, module, [])
    assert reply.w.equal(start)
    assert reply.steps == 0
    for state in (*reply.kept.values(), *reply.up.values()):
        assert all(not t.isnan().any() for t in state.values())
    with pytest.raises(ValueError, match="client 0 has no training samples"):
        accord.server_step(algorithm, start, [reply])
    some = accord.local_round(algorithm, module, batches(2))
    w, state = accord.server_step(algorithm, start, [reply, some])
    alone, state_alone = accord.server_step(algorithm, start, [accord.local_round(algorithm, module, batches(2))], population=2)
    assert w.equal(alone)
    assert identical(state, state_alone)


# --- gradients that vanish -------------------------------------------------------------------------------------------------------------


class Silent(nn.Module):
    """A model that answers the same to everything, so that its gradient is zero but for the last bias."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(50, 4).double()
        self.head = nn.Linear(4, 4).double()
        with torch.no_grad():
            for p in self.parameters():
                p.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x)))


@pytest.mark.parametrize("text", TEXTS)
def test_a_model_of_zeros(text: str) -> None:
    """Rows of zeros have no direction, weights of zeros no length, and most gradients vanish."""
    reply = accord.local_round(accord.read(text) + accord.sgd(lr=0.1, decay=0.01), Silent(), batches(4))
    assert torch.isfinite(reply.w).all()
    assert reply.w.any()


@pytest.mark.parametrize("text", TEXTS)
def test_labels_that_are_met_exactly_give_no_gradient_and_no_nan(text: str) -> None:
    """Two classes with equal scores and one sample of each: the gradient of the bias is exactly zero."""
    model = nn.Sequential(nn.Linear(2, 2).double(), nn.ReLU(), nn.Linear(2, 2).double())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    batch = (torch.zeros(2, 2).double(), torch.tensor([0, 1]))
    reply = accord.local_round(accord.read(text), model, [batch] * 3)
    assert reply.w.eq(0).all()


def test_fedsol_without_lambda_is_finite_in_its_first_step() -> None:
    """The gradient of the distillation loss is round-off there; divided by its own length it must not become NaN."""
    for dtype in (torch.float32, torch.float64):
        reply = accord.local_round(accord.fedsol(adaptive=False), net(dtype=dtype), batches(1, dtype=dtype))
        assert torch.isfinite(reply.w).all()


@pytest.mark.parametrize("order", ["sequential", "joint"])
def test_a_row_of_zeros_or_of_equal_weights_is_only_centred(order: Any) -> None:
    model = net()
    with torch.no_grad():
        model.hidden.weight[0] = 0.0
        model.hidden.weight[1] = 0.25
        model.hidden.bias[:2] = 5.0  # both units fire, so that there is something to centre
    rule = accord.sgd(lr=0.1, momentum=0.0)
    free = accord.local_round(accord.fedavg() + rule, model, batches(1))
    tied = accord.local_round(accord.fedavg() + accord.constrain(order=order) + rule, model, batches(1))
    layout = Flat(net()).layout
    change = layout.named(free.w)["hidden.weight"] - model.hidden.weight.detach()
    found = layout.named(tied.w)["hidden.weight"] - model.hidden.weight.detach()
    centred = change - change.mean(dim=1, keepdim=True)
    assert centred[0].any()
    assert centred[1].any()
    torch.testing.assert_close(found[:2], centred[:2], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found[2:], centred[2:])


# --- weight decay ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Twice(accord.Part):
    """Takes the gradient twice and keeps the second, as a part that is not registered."""

    def gradient(self, client: accord.Client, batch: accord.Batch, inner: accord.Gradient) -> None:
        inner(batch)
        inner(batch)


def test_weight_decay_enters_exactly_once() -> None:
    """However often a part outside asks the constraint inside for a gradient."""
    rule, deal = accord.sgd(lr=0.1, decay=0.3), batches(3)
    once = accord.local_round(accord.fedavg() + accord.constrain() + rule, net(), deal)
    twice = accord.local_round(accord.Algorithm((accord.task(), accord.constrain(), Twice())) + rule, net(), deal)
    assert once.w.equal(twice.w)
    free = accord.local_round(accord.fedavg() + accord.constrain(orthogonal=False, center=False) + rule, net(), deal)
    plain = accord.local_round(accord.fedavg() + rule, net(), deal)
    assert free.w.equal(plain.w)
    assert not plain.w.equal(accord.local_round(accord.fedavg() + accord.sgd(lr=0.1), net(), deal).w)


# --- BatchNorm -------------------------------------------------------------------------------------------------------------------------


def counted(reply: accord.Reply) -> dict[str, Tensor]:
    return Flat(net(norm=True)).statistics.named(reply.b)


@pytest.mark.parametrize("text", [*TEXTS, "fedavg + perturb(by=control)", "fedavg + perturb(by=proximal)", "fedsam + perturb(by=distil)"])
def test_statistics_move_once_a_step(text: str) -> None:
    """A second pass at perturbed weights does not count; a perturbation that needs no pass of its own leaves the only one."""
    reply = accord.local_round(accord.read(text), net(norm=True), batches(3))
    assert float(counted(reply)["norm.num_batches_tracked"]) == 3


def test_statistics_are_those_of_the_unperturbed_weights() -> None:
    one = batches(1)
    plain, sam = (accord.local_round(accord.read(t), net(norm=True), one) for t in ("fedavg", "fedsam(rho=5)"))
    assert not plain.w.equal(sam.w)
    assert plain.b.equal(sam.b)


@dataclass(frozen=True, eq=False)
class Recorder(accord.Part):
    """Notes what the frozen global model answers, as a part that is not registered."""

    seen: list[Tensor] = field(default_factory=list)

    def loss(self, client: accord.Client, batch: accord.Batch, out: accord.Output) -> Tensor:
        self.seen.append(client.look("global", client.w0, batch.x).logits)
        return out.logits.new_zeros(())


def test_the_teacher_answers_with_the_statistics_it_came_with() -> None:
    module, deal, recorder = net(norm=True), batches(3), Recorder()
    module.norm.running_mean.fill_(0.3)
    accord.local_round(accord.Algorithm((accord.task(), recorder)), module, deal)
    module.eval()
    with torch.no_grad():
        for (x, _), seen in zip(deal, recorder.seen, strict=True):
            assert seen.equal(module(x).logits)


def statistics_after(policy: str, count: int = 2) -> tuple[Server, Store, list[Tensor]]:
    algorithm = accord.fedavg() + accord.buffers(policy) + accord.sgd(lr=0.05, batch=4, epochs=1)  # type: ignore[arg-type]
    server, store = Server.start(algorithm, net(norm=True)), Store(algorithm.keys)
    seen = [server.b]
    for cohort in rounds(algorithm, net(norm=True), federation((8, 12)), rounds=count, server=server, store=store):
        seen.append(cohort.server.b)
    return server, store, seen


def test_average_statistics_go_round_like_weights() -> None:
    server, store, seen = statistics_after("average", 1)
    data, algorithm = federation((8, 12)), server.algorithm
    worker = Worker(net(norm=True), data)
    replies = [Train(algorithm, Flat(net(norm=True)).w.clone(), seen[0]).run(worker, k, {}) for k in range(2)]
    torch.testing.assert_close(server.b, (8 * replies[0].b + 12 * replies[1].b) / 20)
    assert not replies[0].b.equal(replies[1].b)
    assert store.get(0) == {}


def test_local_statistics_stay_with_their_client() -> None:
    server, store, _ = statistics_after("local", 2)
    algorithm, data = server.algorithm, federation((8, 12))
    kept = [store.get(k)[algorithm.buffers]["b"] for k in range(2)]
    counts = [Flat(net(norm=True)).statistics.named(b)["norm.num_batches_tracked"].item() for b in kept]
    assert counts == [4, 6]  # two rounds of two and of three batches, each on top of its own
    assert not kept[0].equal(kept[1])
    worker = Worker(net(norm=True), data)
    own = [Evaluate(algorithm, server.w, server.b, of="own").run(worker, k, store.get(k)).loss for k in range(2)]
    strange = [Evaluate(algorithm, server.w, server.b, of="own").run(worker, k, store.get(1 - k)).loss for k in range(2)]
    assert own != strange


def test_frozen_statistics_never_change_and_are_the_ones_used() -> None:
    _, store, seen = statistics_after("freeze", 2)
    assert all(b.equal(seen[0]) for b in seen)
    assert store.get(0) == {}
    module, deal = net(norm=True), batches(1)
    reply = accord.local_round(accord.fedavg() + accord.buffers("freeze") + accord.sgd(momentum=0.0, lr=1), module, deal)
    assert reply.b.numel() == 0
    module.eval()
    nn.functional.cross_entropy(module(deal[0][0]).logits, deal[0][1]).backward()
    wanted = Flat(net(norm=True)).layout.pack({n: p.data - p.grad for n, p in module.named_parameters()})
    torch.testing.assert_close(reply.w, wanted, rtol=1e-12, atol=1e-12)


def test_policies_leave_a_model_without_statistics_alone() -> None:
    replies = [accord.local_round(accord.fedavg() + accord.buffers(p), net(), batches(2)).w for p in ("average", "local", "freeze")]  # type: ignore[arg-type]
    assert replies[0].equal(replies[1])
    assert replies[0].equal(replies[2])


def test_a_batch_of_one_image_under_batchnorm_is_left_out_with_a_reason_or_trains() -> None:
    """A 2x2 map gives BatchNorm four numbers a channel even for one sample."""
    data = federation((1, 9))
    assert clean(train(accord.fedavg() + accord.sgd(batch=4), net(norm=True), data, 2))


# --- models without what a part needs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["fedsol", "fedavg + sgd(on=head)", "fedavg + sgd(on=body)", "fedavg + perturb(on=body)"])
def test_a_missing_head_is_named(text: str) -> None:
    model = nn.Linear(50, 4).double() if "head" in text or text == "fedsol" else nn.Sequential(nn.Linear(50, 4).double())
    with pytest.raises(ValueError, match=r"this model has no (head|body): its last child"):
        accord.local_round(accord.read(text), model, batches(2))


@pytest.mark.parametrize("text", TEXTS)
def test_bare_logits_do(text: str) -> None:
    class Bare(type(net())):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).logits

    bare = Bare(4).double()
    bare.load_state_dict(net().state_dict())
    a, b = (accord.local_round(accord.read(text), m, batches(3)) for m in (bare, net()))
    assert a.w.equal(b.w)


def test_features_that_are_missing_are_asked_for() -> None:
    client = client_at(accord.fedavg(), nn.Linear(50, 4).double(), torch.zeros(204).double(), torch.zeros(204).double())
    with pytest.raises(ValueError, match=r"proximal reads the model's features, and Linear returns logits only: .*accord\.Output"):
        client.features(client.forward(samples(2).x), accord.proximal())
    out = accord.Output(torch.zeros(1, 2), torch.ones(1, 3))
    assert client.features(out, accord.proximal()) is out.features


def test_a_model_for_sequences_is_scored_at_every_place() -> None:
    """Logits of shape (batch, time, classes) with labels (batch, time)."""
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))
    batch = (torch.randint(0, 7, (3, 4)), torch.randint(0, 7, (3, 4)))
    reply = accord.local_round(accord.fedavg(), model, [batch])
    loss = nn.functional.cross_entropy(model(batch[0]).reshape(12, 7), batch[1].reshape(12)).item()
    assert reply.loss == pytest.approx(loss, rel=1e-6)


# --- randomness ------------------------------------------------------------------------------------------------------------------------


def test_a_local_round_with_dropout_depends_on_its_seed_only() -> None:
    """And it leaves the caller's own stream of random numbers where it was."""
    model, deal = net(dropout=0.5), batches(3)
    torch.manual_seed(1)
    first = accord.local_round(accord.fedavg(), model, deal, seed=3)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = accord.local_round(accord.fedavg(), model, deal, seed=3)
    other = accord.local_round(accord.fedavg(), model, deal, seed=4)
    torch.manual_seed(1)
    assert torch.get_rng_state().equal(state)
    assert first.w.equal(second.w)
    assert not first.w.equal(other.w)


@dataclass(frozen=True, eq=False)
class Dice(accord.Part):
    """Sends up what it draws, as a part that is not registered."""

    def end(self, client: accord.Client) -> None:
        client.up[self] = {"drawn": torch.stack([torch.rand((), generator=client.rng), torch.rand(())])}


def test_every_client_has_its_own_stream_in_every_round() -> None:
    """Both for what parts draw and for what a module draws by itself."""
    dice, data = Dice(), federation()
    algorithm, worker, w = accord.Algorithm((accord.task(), dice)), Worker(net(), data), Flat(net()).w.clone()
    drawn = {
        tuple(Train(algorithm, w, torch.empty(0), r, seed).run(worker, k, {}).up[dice]["drawn"].tolist())
        for seed in (0, 1)
        for r in range(3)
        for k in range(7)
    }
    assert len({a for a, _ in drawn}) == len({b for _, b in drawn}) == 2 * 3 * 7


def test_a_module_that_was_passed_in_is_not_changed() -> None:
    module, data = net(norm=True), federation()
    before, mode, grads = copies(dict(module.state_dict())), module.training, [p.grad for p in module.parameters()]
    train(accord.scaffold(), module, data, 2)
    accord.local_round(accord.fedsam(), module, batches(2))
    assert identical(dict(module.state_dict()), before)
    assert module.training is mode
    assert [p.grad for p in module.parameters()] == grads


def test_the_loss_is_the_mean_of_the_steps() -> None:
    deal = batches(3)
    still = accord.local_round(accord.fedavg() + accord.sgd(lr=1e-300, momentum=0.0), net(), deal)
    losses = [nn.functional.cross_entropy(net()(x).logits, y).item() for x, y in deal]
    assert still.loss == pytest.approx(sum(losses) / 3, rel=1e-12)


def test_clipping_bounds_the_gradient() -> None:
    rule = accord.sgd(lr=1.0, momentum=0.0, clip=0.01)
    start = Flat(net()).w.clone()
    moved = accord.local_round(accord.fedavg() + rule, net(), batches(1)).w - start
    free = accord.local_round(accord.fedavg() + dataclasses.replace(rule, clip=None), net(), batches(1)).w - start
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(moved / moved.norm(), free / free.norm())
    wide = accord.local_round(accord.fedavg() + dataclasses.replace(rule, clip=1e6), net(), batches(1)).w - start
    assert wide.equal(free)


# --- every algorithm -------------------------------------------------------------------------------------------------------------------

EVERY = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]


class Staged(Small):
    """The tiny model of the costs with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.double()


def images(count: int, labels: int = 4) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(count)
    return torch.randn(count, 2, 6, 6, generator=rng, dtype=torch.float64), torch.arange(count) % labels


@pytest.mark.parametrize("name", EVERY)
def test_a_model_with_batchnorm_under_every_algorithm(name: str) -> None:
    """Two rounds from what the first left, and a step of the server: finite numbers, statistics that moved, and none that ran away."""
    algorithm, module = accord.read(name), Staged()
    reply = accord.local_round(algorithm, module, [images(4), images(5)])
    again = accord.local_round(algorithm, module, [images(4), images(5)], kept=reply.kept, round=1)
    w, state = accord.server_step(algorithm, Flat(Staged()).w.clone(), [reply, again], population=3)
    held = [again.w, again.b, w, *(t for s in (*state.values(), *again.kept.values(), *again.up.values()) for t in s.values())]
    assert all(bool(torch.isfinite(t).all()) for t in held)
    names = Flat(Staged()).statistics.named(again.b)
    assert float(names["first.1.num_batches_tracked"]) == (0 if name == "local_only" else 2)  # whose statistics stay with the client
    assert (names["first.1.running_var"] >= 0).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_client_with_one_sample_under_every_algorithm(name: str) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = Small().double()
    algorithm = accord.read(name)
    one, none = accord.local_round(algorithm, module, [images(1)]), accord.local_round(algorithm, module, [])
    w, state = accord.server_step(algorithm, Flat(module).w.clone(), [one, none])
    held = [one.w, none.w, w, *(t for s in (*state.values(), *one.kept.values(), *none.up.values()) for t in s.values())]
    assert all(bool(torch.isfinite(t).all()) for t in held)


@pytest.mark.parametrize("name", EVERY)
def test_a_model_of_zeros_under_every_algorithm(name: str) -> None:
    """No feature, no length and next to no gradient anywhere."""
    module = Small().double()
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    algorithm = accord.read(name)
    reply = accord.local_round(algorithm, module, [images(4), images(6)])
    reply = accord.local_round(algorithm, module, [images(4), images(6)], kept=reply.kept, round=1)
    w, _ = accord.server_step(algorithm, Flat(module).w.clone(), [reply], population=2)
    assert torch.isfinite(reply.w).all()
    assert torch.isfinite(w).all()


@pytest.mark.parametrize("constraint", ["weighted", "plain"])
def test_corrective_weights_without_gradients_add_nothing(constraint: str) -> None:
    """Clients whose whole gradient is zero: the paper divides by its norm. The step is then the mean alone."""
    model = nn.Sequential(nn.Linear(2, 2).double(), nn.ReLU(), nn.Linear(2, 2).double())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    still, algorithm = (torch.zeros(2, 2).double(), torch.tensor([0, 1])), accord.read(f"fedoptz(constraint={constraint})")
    replies = [accord.local_round(algorithm, model, [still]) for _ in range(2)]
    w, _ = accord.server_step(algorithm, Flat(model).w.clone(), replies)
    assert w.eq(0).all()
    mover = accord.local_round(algorithm, model, [(torch.ones(2, 2).double(), torch.tensor([0, 0]))])
    w, _ = accord.server_step(algorithm, torch.zeros_like(w), [*replies, mover])
    assert torch.isfinite(w).all()
    assert w.any()


def test_fedsol_takes_its_first_step_like_fedavg() -> None:
    """At w = w0 the drift is zero, so that nothing is perturbed."""
    one = batches(1)
    first, plain = (accord.local_round(accord.read(t), net(), one).w for t in ("fedsol", "fedavg"))
    torch.testing.assert_close(first, plain, rtol=1e-12, atol=1e-12)


class Plain(nn.Module):
    """A model that answers with logits and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(50, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("moon", "contrast reads the model's features, and Plain returns logits only: return accord.Output"),
        ("fedsol(by=contrast, on=all)", "contrast reads the model's features, and Plain returns logits only"),
        ("fedsr", r"represent reads a distribution of features, and Plain gives none: choose the model stochastic"),
        ("fedalign", "Plain does not say what its stages are"),
    ],
)
def test_what_a_model_lacks_is_asked_for_by_name(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        accord.local_round(accord.read(text), Plain(), batches(2))


def test_neighbours_without_features_are_refused() -> None:
    client = client_at(accord.knnper(), Plain(), *[torch.zeros(204).double()] * 2)
    with pytest.raises(ValueError, match=r"knn_per compares features, and this model returns logits only"):
        accord.knn_per(epochs=0).features(client, samples(2).x)
