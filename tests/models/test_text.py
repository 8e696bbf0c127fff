"""The next-character network: parameter counts, its layers by hand, reduced widths, and every method place by place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import accord
from accord.data import federate
from accord.engines.process import Process
from accord.engines.threads import Threads
from accord.flat import Flat, head_of
from accord.jobs import Evaluate, Train
from accord.models import RecurrentNet, slimmed
from accord.models.slim import channels
from accord.recipe import read

PLAY = "".join(f"{name}:\n{said * 9}\n\n" for name, said in (("ANN", "abcabd "), ("BOB", "bacca\n"), ("CYD", "ddab c")))


def build(text: str, symbols: int = 7) -> RecurrentNet:
    torch.manual_seed(0)
    return read(text, "model").build((12,), symbols)  # type: ignore[no-any-return]


@pytest.fixture
def plays(tmp_path: Path) -> accord.Federation:
    (tmp_path / "play.txt").write_text(PLAY)
    return federate(f"shakespeare(file='{tmp_path / 'play.txt'}', length=6)", "natural(role)", local_test=0.3)


@pytest.mark.parametrize(
    ("text", "symbols", "parameters"),
    [
        ("char_rnn", 90, 820_522 + 2 * 4 * 256),  # Reddi et al. 2021, and torch's second bias
        ("char_rnn", 65, 815_945),
        ("char_rnn(bias=False)", 90, 820_522 - 2 * 4 * 256 - 90),
        ("char_rnn(cell=gru, layers=1, embed=4, hidden=16)", 10, 40 + 3 * 16 * (4 + 16 + 2) + 170),
        ("char_rnn(projection=True)", 65, 815_945 + 256 * 257 + 257 * 256),
    ],
)
def test_parameter_counts(text: str, symbols: int, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build(text, symbols).parameters()) == parameters


def test_lstm_by_hand() -> None:
    net, x = build("char_rnn(embed=3, hidden=4, layers=1)").double(), torch.randint(7, (2, 5))
    layer = net.layer1.layer
    h = c = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(5):
        gates = net.embed.weight[x[:, t]] @ layer.weight_ih_l0.T + h @ layer.weight_hh_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(net(x).features[:, t], h)
    assert net(x).logits[:, -1].allclose(net.head(h))
    assert head_of(net) == "head"
    assert net.stages == ("layer1",)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_reduced_width_is_a_narrow_network_with_copied_slices(cell: str, bias: bool) -> None:
    wide = build(f"char_rnn(embed=16, hidden=32, cell={cell}, bias={bias})").double()
    embed, hidden = channels(16, 0.5), channels(32, 0.5)
    narrow = build(f"char_rnn(embed={embed}, hidden={hidden}, cell={cell}, bias={bias})").double()
    for name, p in narrow.named_parameters():
        source = dict(wide.named_parameters())[name].detach()
        if "layer" in name:
            source = torch.cat([gate[:hidden] for gate in source.split(32)])
        p.data = source[tuple(slice(0, s) for s in p.shape)].clone()
    x = torch.randint(7, (3, 5))
    with slimmed(wide, 0.5):
        found = wide(x)
    torch.testing.assert_close(found.logits, narrow(x).logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.features, narrow(x).features, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_layers_of_any_depth_run_at_a_width(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer, x = kind(5, 32, num_layers=3), torch.randn(4, 2, 5)
    with slimmed(layer, 0.5, stage=True):
        assert layer(x)[0].shape == (4, 2, 16)
        with pytest.raises(ValueError, match="given a state to begin with"):
            layer(x, torch.zeros(3, 2, 32))
    with pytest.raises(ValueError, match="of two directions"), slimmed(kind(5, 32, bidirectional=True), 0.5, stage=True):
        pass


def test_text_is_told_from_measurements() -> None:
    with pytest.raises(ValueError, match="char_rnn reads characters as whole numbers"):
        build("char_rnn")(torch.zeros(2, 12))
    with pytest.raises(ValueError, match="mlp reads measurements"):
        read("mlp", "model").build((12,), 7)(torch.zeros(2, 12, dtype=torch.long))
    with pytest.raises(ValueError, match=r"char_rnn reads lines of characters, and the data have the shape \(3, 8, 8\)"):
        read("char_rnn", "model").build((3, 8, 8), 7)
    with pytest.raises(ValueError, match="mixup mixes measurements"):
        accord.local_round(accord.mixup(), build("char_rnn(hidden=4)"), [(torch.zeros(2, 5).long(), torch.zeros(2, 5).long())])


# --- federated -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["fedavg", "scaffold", "fedsol", "fedconst", "fedavg + constrain", "moon", "feddyn", "fedsam", "fedntd", "fedalign", "gradaug"]
)
def test_learns_the_text(text: str, plays: accord.Federation) -> None:
    """The loss falls at every place of the held-out lines; without a constraint more than one in three is right."""
    net = build("char_rnn(embed=8, hidden=16, layers=1)", plays.classes)
    algorithm = read(text) + accord.sgd(lr=0.5, momentum=0.0, batch=4, epochs=2) + accord.all()
    first, server = Flat(net).w.clone(), accord.Server.start(algorithm, net)
    for _ in accord.rounds(algorithm, net, plays, rounds=6, server=server):
        pass
    with Process(net, plays) as engine:
        before, after = (dict(engine.map(Evaluate(algorithm, w, server.b), [0]))[0] for w in (first, server.w))
    assert before.samples == after.samples == plays.test.y.numel()
    assert after.loss < 0.97 * before.loss
    assert after.accuracy > 1 / 3 or text not in ("fedavg", "scaffold", "fedsol", "feddyn")


def test_engines_agree(plays: accord.Federation) -> None:
    net = build("char_rnn(embed=4, hidden=8)", plays.classes)
    job = Train(accord.scaffold() + accord.sgd(batch=4, epochs=1), Flat(net).w.clone(), Flat(net).b.clone(), down={})
    job = dataclasses.replace(job, down={p: p.server_state(job.w) for p in job.algorithm.parts if p.sends})
    with Process(net, plays) as one, Threads(net, plays, workers=2) as two:
        wanted = dict(one.map(job, [0, 1, 2]))
        for client, reply in two.map(job, [2, 0, 1]):
            assert reply.w.equal(wanted[client].w)


def test_terms_are_means_over_places() -> None:
    """A batch of lines weighs as much as a batch of its characters: distillation is per place, as the task is."""
    lines = RecurrentNet(7, 7, 4, 8, 1, "lstm").double()
    x, y, w0 = torch.randint(7, (3, 5)), torch.randint(7, (3, 5)), torch.randn(Flat(lines).layout.size, dtype=torch.float64)
    client = accord.Client(accord.fedavg(), Flat(lines), w0, down={}, kept={}, rng=torch.Generator)
    out, before = client.forward(x), client.look("global", w0, x).logits
    gap = F.kl_div((out.logits / 3).log_softmax(-1), (before / 3).log_softmax(-1), reduction="none", log_target=True)
    found = accord.distil().loss(client, accord.Batch(x, y), out)
    torch.testing.assert_close(found, gap.sum(-1).mean())


def test_neighbours_are_places(plays: accord.Federation) -> None:
    """kNN-Per votes for each character by the nearest characters, not by whole lines."""
    net, part = build("char_rnn(embed=4, hidden=8)", plays.classes), accord.knn_per(epochs=0, k=3, weight=1.0, capacity=10_000)
    algorithm = accord.fedavg() + part
    with Process(net, plays) as engine:
        score = dict(engine.map(Evaluate(algorithm, Flat(net).w.clone(), Flat(net).b.clone(), of="personal"), [0]))[0]
    train, own = plays.train.gather(plays.clients[0]), plays.own.gather(plays.tests[0])
    with torch.no_grad():
        z, query = net(train.x).features.flatten(0, 1), net(own.x).features.flatten(0, 1)
    right = sum(int(voted(q, z, train.y.flatten(), plays.classes) == y) for q, y in zip(query, own.y.flatten(), strict=True))
    assert score.samples == own.y.numel()
    assert int(score.right.sum()) == right


def voted(q: Tensor, z: Tensor, y: Tensor, classes: int) -> int:
    apart, near = (z - q).square().sum(1).topk(3, largest=False)
    votes, shares = torch.zeros(classes), (-apart / z.shape[1]).softmax(0)
    for share, k in zip(shares, near, strict=True):
        votes[y[k]] += share
    return int(votes.argmax())


def test_stochastic_text_under_fedsr(plays: accord.Federation) -> None:
    text = f"stochastic(of=char_rnn(hidden=8, symbols={plays.classes}), width=4, samples=3)"
    net = read(text, "model").build((6,), plays.classes)
    x, y = plays.train.gather(torch.arange(4))
    assert net.eval()(x).logits.shape == (4, 6, plays.classes)
    assert torch.isfinite(accord.local_round(read("fedsr"), net, [(x, y)]).w).all()
