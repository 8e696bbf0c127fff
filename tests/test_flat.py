"""A model as one vector: layouts, views, statistics, frozen and tied parameters, and state dictionaries that load elsewhere."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import accord
from accord.flat import Flat, Layout, digest, head_of, logits
from small import net, same

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=4).map(tuple), max_size=6)


def bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's numbers lie."""
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def lies_in(part: Tensor, whole: Tensor) -> bool:
    """Whether all numbers of one tensor are among those of another; an empty one has no place."""
    (a, b), (low, high) = bytes_of(part), bytes_of(whole)
    return part.numel() == 0 or (low <= a and b <= high)


def named(shapes: list[tuple[int, ...]]) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(len(shapes))
    return {f"p{i}": torch.randn(shape, generator=rng) for i, shape in enumerate(shapes)}


# --- layouts ---------------------------------------------------------------------------------------------------------------------------


@given(SHAPES)
def test_layouts_give_back_what_they_packed(shapes: list[tuple[int, ...]]) -> None:
    tensors = named(shapes)
    layout = Layout.of(tensors)
    assert layout.size == sum(t.numel() for t in tensors.values())
    if not tensors:
        return
    vector = layout.pack(tensors)
    assert vector.shape == (layout.size,)
    assert same(layout.named(vector), tensors)
    assert layout.pack(layout.named(vector)).equal(vector)
    assert not any(lies_in(t, vector) for t in tensors.values() if t.numel())
    assert [s.start for s in layout.slots[1:]] == [s.stop for s in layout.slots[:-1]]
    for view in layout.views(vector):
        assert view.is_contiguous()
        assert lies_in(view, vector)
        view.zero_()
    assert not vector.any()


@given(SHAPES)
def test_rows_are_the_weights_with_one_row_per_output(shapes: list[tuple[int, ...]]) -> None:
    shapes = [s for s in shapes if 0 not in s]
    tensors = named(shapes)
    if not tensors:
        return
    layout = Layout.of(tensors)
    vector = layout.pack(tensors)
    rows = layout.rows(vector)
    wanted = [t.flatten(1) for t in tensors.values() if t.dim() > 1]
    assert len(rows) == len(wanted)
    for found, other in zip(rows, wanted, strict=True):
        assert found.equal(other)
        assert lies_in(found, vector)


@given(st.permutations(["a", "b", "c"]))
def test_packing_goes_by_name_not_by_order(order: list[str]) -> None:
    tensors = {"a": torch.ones(2), "b": torch.zeros(1, 3), "c": torch.tensor(5.0)}
    layout = Layout.of(tensors)
    assert layout.pack({name: tensors[name] for name in order}).tolist() == [1, 1, 0, 0, 0, 5]


def test_packing_names_what_does_not_fit() -> None:
    layout = Layout.of({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"missing \['bias'\], left over \['bais'\]"):
        layout.pack({"weight": torch.zeros(2, 3), "bais": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"weight has shape \(3, 2\); the model has \(2, 3\)"):
        layout.pack({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)})


def test_equal_layouts_are_equal_and_hash_alike() -> None:
    a, b = Flat(net()).layout, Flat(net(seed=3)).layout
    assert a == b
    assert hash(a) == hash(b)
    assert a != Flat(net(bias=False)).layout


# --- modules on vectors ----------------------------------------------------------------------------------------------------------------


class Scalar(nn.Module):
    """A parameter without dimensions, and an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.temperature + self.empty.sum()


class Odd(nn.Module):
    """Children with unusual names."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("größe 1", nn.Linear(3, 3))
        self.add_module("0", nn.Linear(3, 3))
        self.add_module("head", nn.Linear(3, 3))
        self.add_module("head2", nn.Linear(3, 2))
        self.layers = nn.ModuleDict({"a-b": nn.Linear(2, 2), "parameters_": nn.Linear(2, 2)})

    def forward(self, x: Tensor) -> Tensor:
        for name in ("größe 1", "0", "head", "head2"):
            x = getattr(self, name)(x)
        return self.layers["parameters_"](self.layers["a-b"](x))


class Tied(nn.Module):
    """An output layer that uses the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.mix = nn.Linear(3, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(self.embed(x).mean(1)))


class Shared(nn.Module):
    """One normalisation, used under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.BatchNorm1d(3)
        self.two = self.one
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)))


class Counting(nn.Module):
    """Buffers of every sort: counters, doubles, flags, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("small", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("precise", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        if self.training:
            self.calls += 1
            self.small += 2
            self.precise += 0.5
            self.mean.mul_(0.5).add_(out.detach().mean(0))
        return out - self.mean


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


MODELS: dict[str, Any] = {
    "scalar": Scalar,
    "odd": Odd,
    "tied": Tied,
    "shared": Shared,
    "counting": Counting,
    "norm": norm_net,
    "small": lambda: net(dtype=torch.float32, norm=True),
    "linear": lambda: nn.Linear(3, 2),
    "lstm": lambda: LastState(),
    "channels-last": lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 2)).to(memory_format=torch.channels_last),
}


class LastState(nn.Module):
    """A recurrent network, whose weights PyTorch keeps together by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])


def inputs(name: str) -> Tensor:
    if name == "tied":
        return torch.tensor([[0, 1], [2, 4], [3, 3]])
    if name == "small":
        return torch.linspace(-1, 1, 150).reshape(3, 50)
    shape = (3, 1, 2, 2) if name == "channels-last" else (3, 3)
    return torch.linspace(-1, 1, 12 if len(shape) == 4 else 9).reshape(shape)


@pytest.mark.parametrize("name", MODELS)
def test_the_module_is_what_it_was_and_lives_on_the_vector(name: str) -> None:
    torch.manual_seed(0)
    module = MODELS[name]()
    twin, x = copy.deepcopy(module), inputs(name)
    flat = Flat(module)
    assert list(module.state_dict()) == list(twin.state_dict())
    assert same(dict(module.state_dict()), dict(twin.state_dict()))
    assert logits(module.eval()(x)).equal(logits(twin.eval()(x)))
    for p in flat.parameters.values():
        assert lies_in(p, flat.w)
        assert lies_in(p.grad, flat.g)  # type: ignore[arg-type]
    flat.w.zero_()
    assert all(not p.any() for p in module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_gradients_arrive_in_the_vector(name: str) -> None:
    torch.manual_seed(0)
    module = MODELS[name]()
    twin, x = copy.deepcopy(module), inputs(name)
    flat, y = Flat(module), torch.tensor([0, 1, 1])
    places = {n: p.grad.data_ptr() for n, p in flat.parameters.items()}  # type: ignore[union-attr]
    for _ in range(2):
        F.cross_entropy(logits(module(x)), y).backward()
    for _ in range(2):
        F.cross_entropy(logits(twin(x)), y).backward()
    wanted = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in twin.named_parameters()}
    found = flat.layout.named(flat.g)
    for n, g in wanted.items():
        torch.testing.assert_close(found[n], g, rtol=1e-6, atol=1e-7)
    assert {n: p.grad.data_ptr() for n, p in flat.parameters.items()} == places  # type: ignore[union-attr]
    assert flat.g.any()


@pytest.mark.parametrize("name", MODELS)
def test_state_dictionary_loads_elsewhere(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = MODELS[name](), inputs(name)
    flat = Flat(module)
    module.train()
    module(x)
    flat.w.add_(0.25)
    state = flat.state_dict()
    assert not any(lies_in(t, flat.w) for t in state.values() if t.numel())
    save_file(state, tmp_path / "model.safetensors")
    torch.manual_seed(7)
    other = MODELS[name]()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert logits(other.eval()(x)).equal(logits(module.eval()(x)))
    assert set(state) == set(other.state_dict())
    flat.w.zero_()
    assert any(t.any() for t in state.values())


@pytest.mark.parametrize("name", MODELS)
def test_loading_puts_everything_back(name: str) -> None:
    torch.manual_seed(0)
    module, x = MODELS[name](), inputs(name)
    flat = Flat(module)
    w, b, before = flat.w.clone(), flat.read_statistics(), flat.state_dict()
    module.train()
    module(x)
    flat.w.mul_(2)
    flat.load(w, b)
    assert same(flat.state_dict(), before)
    assert flat.read_statistics().equal(b)
    assert flat.read_statistics().data_ptr() != flat.b.data_ptr() or not b.numel()


@pytest.mark.parametrize("name", MODELS)
def test_a_twin_shares_nothing_and_takes_no_gradient(name: str) -> None:
    torch.manual_seed(0)
    flat, x = Flat(MODELS[name]()), inputs(name)
    twin = flat.twin()
    assert twin.layout == flat.layout
    assert not twin.module.training
    assert not any(p.requires_grad for p in twin.module.parameters())
    before = flat.state_dict()
    twin.w.add_(1)
    twin.module(x)
    assert same(flat.state_dict(), before)
    assert logits(twin.module(x)).grad_fn is None


def test_tied_parameters_appear_once() -> None:
    flat = Flat(Tied())
    assert [s.name for s in flat.layout.slots] == ["embed.weight", "mix.weight", "mix.bias"]
    assert flat.module.out.weight is flat.module.embed.weight
    flat.w.fill_(0.5)
    assert flat.module.out.weight.eq(0.5).all()
    assert Tied().load_state_dict(flat.state_dict())


def test_a_model_with_tied_parameters_trains_like_any_other() -> None:
    torch.manual_seed(0)
    model, twin = Tied(), Tied()
    twin.load_state_dict(model.state_dict())
    batch = (torch.tensor([[0, 1], [2, 4]]), torch.tensor([1, 3]))
    reply = accord.local_round(accord.fedavg() + accord.sgd(lr=0.1, momentum=0.9), model, [batch] * 3)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(twin(batch[0]), batch[1]).backward()
        optimiser.step()
    torch.testing.assert_close(reply.w, Flat(twin).w)


def test_frozen_parameters_neither_move_nor_travel() -> None:
    model = net(norm=True)
    model.conv.requires_grad_(False)
    before = {n: p.clone() for n, p in model.conv.named_parameters()}
    flat = Flat(copy.deepcopy(model))
    assert not any(s.name.startswith("conv.") for s in flat.layout.slots)
    reply = accord.local_round(accord.read("fedsam + constrain + sgd(decay=0.1)"), model, [(torch.ones(4, 50).double(), torch.arange(4))])
    assert reply.w.numel() == flat.layout.size
    assert same({n: p.detach() for n, p in model.conv.named_parameters()}, before)
    assert set(flat.state_dict()) == set(model.state_dict())
    assert flat.twin().layout == flat.layout


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "float32 on cpu, torch.float64 on cpu"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()), "float16 on cpu, torch.float32 on cpu"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "none"),
        (nn.ReLU, "none"),
    ],
)
def test_parameters_must_share_one_type(make: Any, found: str) -> None:
    with pytest.raises(ValueError, match=f"must share one type and device; this model has .*{found}"):
        Flat(make())


def test_frozen_parameters_may_be_of_another_type() -> None:
    model = nn.Sequential(nn.Linear(2, 2).double().requires_grad_(False), nn.Linear(2, 3))
    assert Flat(model).w.dtype is torch.float32


# --- statistics ------------------------------------------------------------------------------------------------------------------------


def test_buffers_of_every_sort_are_mirrored() -> None:
    flat = Flat(Counting())
    assert [s.name for s in flat.statistics.slots] == ["calls", "small", "precise", "mean"]
    flat.module.train()
    x = torch.ones(2, 3)
    for _ in range(3):
        flat.module(x)
    b = flat.read_statistics()
    values = flat.statistics.named(b)
    assert float(values["calls"]) == 3
    assert values["small"].tolist() == [6, 6]
    assert values["precise"].tolist() == [1.5, 1.5]
    assert values["mean"].equal(flat.module.mean)
    assert lies_in(flat.module.mean, flat.b)
    flat.load_statistics(b * 0.5)
    assert int(flat.module.calls) == round(1.5)
    assert flat.module.calls.dtype is torch.int64
    assert flat.module.small.tolist() == [3, 3]
    assert flat.module.precise.tolist() == [0.75, 0.75]
    flat.load_statistics(b)
    assert int(flat.module.calls) == 3


def test_counters_are_rounded_when_loaded() -> None:
    flat = Flat(norm_net())
    b = flat.read_statistics()
    counter = next(s for s in flat.statistics.slots if s.name.endswith("num_batches_tracked"))
    for mean, wanted in ((14.9, 15), (20.375, 20), (0.2, 0)):
        b[counter.start] = mean
        flat.load_statistics(b)
        assert int(flat.module[1].num_batches_tracked) == wanted


def test_statistics_are_no_parameters() -> None:
    flat = Flat(norm_net())
    assert flat.layout.size == 3 * 4 + 4 + 4 + 4 + 4 * 2 + 2
    assert flat.statistics.size == 4 + 4 + 1
    flat.w.zero_()
    assert flat.b.any()


# --- head and body ---------------------------------------------------------------------------------------------------------------------


class Middle(nn.Module):
    """A head that is not the last child."""

    head_name = "classifier"

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.classifier = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2))
        self.projection = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.first(x))


class Nested(nn.Module):
    """A head inside another child."""

    head_name = "net.2"

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), *[nn.Identity() for _ in range(17)], nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (net, "head"),
        (norm_net, "3"),
        (Odd, "layers"),
        (Scalar, "linear"),
        (Middle, "classifier"),
        (Nested, "net.2"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.5)), "1"),
        (lambda: nn.Linear(2, 2), ""),
    ],
)
def test_head_is_the_last_child_with_parameters_unless_the_model_says_otherwise(make: Any, head: str) -> None:
    assert head_of(make()) == head
    assert Flat(make()).layout.head == head


@pytest.mark.parametrize("make", [net, norm_net, Odd, Middle, Nested])
def test_head_and_body_are_disjoint_and_cover_everything(make: Any) -> None:
    flat = Flat(make())
    layout, marks = flat.layout, torch.zeros(flat.layout.size)
    for on, mark in (("head", 1.0), ("body", 2.0)):
        for span in layout.spans(on):  # type: ignore[arg-type]
            assert not marks[span].any()
            marks[span] = mark
    for slot in layout.slots:
        inside = slot.name.startswith(layout.head + ".")
        assert marks[slot.start : slot.stop].eq(1.0 if inside else 2.0).all(), slot.name
    assert layout.spans("all") == (slice(0, layout.size),)


def test_spans_are_as_few_as_can_be() -> None:
    layout = Flat(Middle()).layout
    sizes = [3 * 3 + 3, 3 + 3 + 3 * 2 + 2, 3 * 4 + 4]
    a, b = sizes[0], sizes[0] + sizes[1]
    assert layout.spans("head") == (slice(a, b),)
    assert layout.spans("body") == (slice(0, a), slice(b, sum(sizes)))


def test_a_name_that_begins_like_the_head_is_not_the_head() -> None:
    class Two(Odd):
        head_name = "head"

    layout = Flat(Two()).layout
    (span,) = layout.spans("head")
    inside = [s.name for s in layout.slots if span.start <= s.start < span.stop]
    assert inside == ["head.weight", "head.bias"]


def test_gradient_of_the_head_only_reaches_the_head() -> None:
    flat = Flat(Middle())
    F.cross_entropy(flat.module(torch.ones(2, 3)), torch.tensor([0, 1])).backward(inputs=flat.parameters_of("head"))
    (span,) = flat.layout.spans("head")
    assert flat.g[span].any()
    assert not torch.cat([flat.g[: span.start], flat.g[span.stop :]]).any()


@pytest.mark.parametrize(
    ("module", "on"),
    [
        (nn.Linear(2, 2), "head"),
        (nn.Sequential(nn.Linear(2, 2)), "body"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)), "head"),
    ],
)
def test_an_empty_head_or_body_is_named(module: nn.Module, on: Any) -> None:
    with pytest.raises(ValueError, match=f"this model has no {on}"):
        Flat(module).layout.spans(on)


# --- digests ---------------------------------------------------------------------------------------------------------------------------


def test_digest_is_the_hash_of_names_types_shapes_and_bytes() -> None:
    plain = hashlib.sha256(b"n torch.int64 ()\n" + (3).to_bytes(8, "little") + b"w torch.float32 (2,)\n" + bytes(8)).hexdigest()
    assert digest({"w": torch.zeros(2), "n": torch.tensor(3)}) == plain


def test_digest_sees_every_difference_and_nothing_else() -> None:
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0), "c": torch.tensor(True), "d": torch.ones(2, dtype=torch.bfloat16)}
    others = [
        {**base, "a": base["a"].reshape(3, 2)},
        {**base, "a": base["a"].double()},
        {**base, "a": base["a"] + torch.tensor([0, 0, 1e-6])},
        {**base, "c": torch.tensor(False)},
        {**base, "d": torch.zeros(2, dtype=torch.bfloat16)},
        {**base, "b": torch.zeros(0, 1)},
        {("x" if k == "a" else k): v for k, v in base.items()},
        {k: v for k, v in base.items() if k != "b"},
    ]
    assert len({digest(d) for d in [base, *others]}) == len(others) + 1
    assert digest({k: base[k] for k in ("d", "b", "a", "c")}) == digest(base)
    strided = base["a"].t().contiguous().t()
    assert digest({**base, "a": strided}) == digest(base) == digest({**base, "a": nn.Parameter(base["a"])})
    assert digest({"z": torch.tensor([0.0])}) != digest({"z": torch.tensor([-0.0])})


def test_output_or_bare_logits() -> None:
    z = torch.ones(1, 2)
    assert logits(z) is z
    assert logits(accord.Output(z)) is z
    assert accord.Output(z).features is None
