"""What an algorithm costs: what travels, what is kept and how many passes are made, all measured on a tiny round of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from accord.algorithm import Algorithm
from accord.client import Client, first_down, local_round
from accord.cohort import Reply
from accord.data.pool import Batch
from accord.flat import Flat, Output
from accord.jobs import Kept
from accord.parts.task import Task
from accord.recipe import read
from accord.seeds import stream
from accord.select import Draw
from accord.server import first_state, traffic

_POPULATION = 1000  # clients that a selection is tried on


@dataclass(frozen=True)
class Cost:
    """What one client that takes part in a round costs, in numbers (four bytes each in single precision) and in passes.

    >>> import accord
    >>> print(accord.cost("scaffold"))
    down 2P, up 2P, keeps P, trains in 2P more, server keeps P, 1 pass
    >>> print(accord.cost("moon"))
    down P, up P, keeps P, trains in 2P more, 1 pass + 2 forward
    """

    weights: int  # P, the model's
    down: float  # what is sent to clients in a round, for each that takes part
    up: float  # what they send back
    kept: int  # what a client keeps between its rounds
    remembered: int  # what a client keeps to predict with, besides a model
    server: int  # what the server keeps besides the model
    forwards: float  # forward passes for each batch, in units of one through the whole model
    backwards: float  # backward passes for each batch, in the same way
    extra: float  # forward and backward passes over all of a client's data in each round, beside the steps
    peak: int = 0  # the most vectors as long as the model that training needs at once, beyond FedAvg's and what is sent and kept
    asked: float = 0.0  # forward passes over all of a client's data that a round's selection asks for, for each client that takes part

    def __str__(self) -> str:
        passes = f"{_number(self.backwards)} {'pass' if abs(self.backwards - 1) < 0.005 else 'passes'}"
        if self.forwards - self.backwards >= 0.005:
            passes += f" + {_number(self.forwards - self.backwards)} forward"
        if self.extra >= 0.005:
            passes += f", {_number(self.extra)} over all data a round"
        if self.asked >= 0.005:
            passes += f", {_number(self.asked)} forward over all data a round to choose"
        kept = f"keeps {self.units(self.kept)}, " if self.kept else ""
        peak = f"trains in {self.units(self.peak * self.weights)} more, " if self.peak else ""
        server = f"server keeps {self.units(self.server)}, " if self.server else ""
        return f"down {self.units(self.down)}, up {self.units(self.up)}, {kept}{peak}{server}{passes}"

    def units(self, numbers: float) -> str:
        """So many numbers in units of the model's.

        >>> cost = Cost(1000, 0, 0, 0, 0, 0, 1, 1, 0)
        >>> cost.units(2001), cost.units(1000), cost.units(0), cost.units(1500)
        ('2P + 1', 'P', '0', '1.5P')
        """
        whole = round(numbers / self.weights)
        rest = numbers - whole * self.weights
        if abs(rest) > 8:
            return f"{_number(numbers / self.weights)}P"
        models = f"{whole if whole > 1 else ''}P" if whole else ""
        return " + ".join(each for each in (models, _number(rest) if rest else "") if each) or "0"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Small(nn.Module):
    """Two convolutions and a small head, with everything that a part may ask a model for."""

    stages = ("first", "last")

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.first = nn.Conv2d(2, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Output:
        z = F.relu(self.last(F.relu(self.first(x)))).mean((2, 3))
        return Output(self.head(z), z, (z, F.softplus(z)))


class _Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating-point operations of the matrix products and convolutions of a block, forward and backward."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.forward = self.backward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            spent = count(*args, **(kwargs or {}), out_val=out)
            if torch._C._current_graph_task_id() == -1:
                self.forward += spent
            else:
                self.backward += spent
        return out


class _Vectors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the vectors of one length that are made in a block: the most that are alive at once."""

    def __init__(self, size: int) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.size, self.most, self._alive = size, 0, WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = [_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        for made in tree_leaves(out):
            if isinstance(made, Tensor) and made.numel() == self.size and all(_memory(made) is not memory for memory in known):
                self._alive[_memory(made)] = None
        self.most = max(self.most, len(self._alive))
        return out


def _memory(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def cost(algorithm: Algorithm | str, module: nn.Module | None = None, batch: tuple[Tensor, Tensor] | None = None) -> Cost:
    """What an algorithm costs on a model and a batch of its inputs and labels, by default a tiny one of two convolutions.

    Nothing is declared: one client's second round is run, and what it sends, keeps and computes is counted.

    >>> import accord
    >>> accord.cost("fedsam").backwards
    2.0
    """
    chosen = read(algorithm) if isinstance(algorithm, str) else algorithm
    module, (x, y) = _seeded(module, batch)
    flat = Flat(copy.deepcopy(module))
    down, moving = first_down(chosen, flat.w), traffic(chosen, flat) // flat.w.element_size()
    train = partial(_train, module, x, y)
    kept = train(chosen, 2).kept
    reply = train(chosen, 2, kept)
    unit = _work(partial(train, Algorithm((Task(),)), 1))
    few, many = _work(partial(train, chosen, 2, kept)), _work(partial(train, chosen, 6, kept))
    step = [(b - a) / 4 for a, b in zip(few, many, strict=True)]
    plain = _vectors(flat.layout.size, partial(train, Algorithm((Task(),)), 2))
    asked, clients = _asked(chosen)
    return Cost(
        weights=flat.layout.size,
        down=moving * max(asked / clients, 1.0) + _count(down),
        up=moving + _count(reply.up) + asked / clients,
        kept=_count(reply.kept),
        remembered=chosen.personal.remembers(module, x),
        server=_count(first_state(chosen, flat.w)),
        forwards=round(step[0] / unit[0], 4),
        backwards=round(step[1] / unit[1], 4),
        extra=round((sum(few) - 2 * sum(step)) / sum(unit), 4),
        peak=max(0, _vectors(flat.layout.size, partial(train, chosen, 2, kept, down)) - plain),
        asked=asked / clients,
    )


def forward_flops(algorithm: Algorithm, module: nn.Module, batch: tuple[Tensor, Tensor], steps: int = 20) -> float:
    """The floating-point operations of all forward passes of training a sample, sub-networks and second models included.

    Those of matrix products and convolutions, as PyTorch's counter knows them: a multiplication with its addition is two. It is the
    mean over some steps of a client's second round on this batch, as some methods draw what they compute.

    >>> net = nn.Linear(8, 4)
    >>> forward_flops(read("fedavg"), net, (torch.randn(2, 8), torch.tensor([0, 1])), 2)
    64.0
    """
    x, y = batch
    train = partial(_train, module, x, y, algorithm)
    kept = train(2).kept
    (few, _), (many, _) = _work(partial(train, 1, kept)), _work(partial(train, 1 + steps, kept))
    return (many - few) / steps / len(y)


def stored_parameters(algorithm: Algorithm, module: nn.Module, batch: tuple[Tensor, Tensor]) -> int:
    """How many parameters a client holds while it trains: its model's, the global model's if the method looks back at it, and states.

    Whether it looks back is found out by showing it another global model and comparing what it does. Buffers of the optimiser and the
    statistics of BatchNorm are not counted.

    >>> batch = torch.randn(2, 8), torch.tensor([0, 1])
    >>> [stored_parameters(read(text), nn.Linear(8, 4, bias=False), batch) for text in ("fedavg", "fedprox", "scaffold")]
    [32, 64, 128]
    """
    x, y = batch
    kept = _train(module, x, y, algorithm, 2).kept
    own = {key: state for key, state in kept.items() if key not in (algorithm.rule, algorithm.buffers)}
    size = Flat(copy.deepcopy(module)).layout.size
    one, other = (_replied(module, x, y, algorithm, kept, away) for away in (0.0, 0.01))
    looks = not (one.w.equal(other.w) and _same(one.kept, other.kept) and _same(one.up, other.up))
    states = sum(t.numel() for state in own.values() for name, t in state.items() if name != "b")
    return size * (2 if looks else 1) + states + _count(first_down(algorithm, torch.zeros(size)))


def _replied(module: nn.Module, x: Tensor, y: Tensor, algorithm: Algorithm, kept: Kept, away: float) -> Reply:
    """What a client answers whose global model lies so far from where its own begins."""
    flat = Flat(copy.deepcopy(module))
    w = flat.w.clone()
    data = [Batch(x.clone(), y)]
    client = Client(
        algorithm,
        flat,
        w + away * torch.randn(w.shape, generator=stream(0, "away")).to(w),
        down=first_down(algorithm, w),
        kept=kept,
        rng=lambda: stream(0, "client", 1, 0),
        round=1,
        samples=len(y),
        data=lambda size: data,
    )
    flat.load(w)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        client.train(Batch(x.clone(), y) for _ in range(2))
    return client.reply()


def _same(one: Kept, other: Kept) -> bool:
    return all(t.equal(other[key][name]) for key, state in one.items() for name, t in state.items())


def _seeded(module: nn.Module | None, batch: tuple[Tensor, Tensor] | None) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return module or Small(), batch or (torch.randn(4, 2, 8, 8), torch.arange(4))


def _train(
    module: nn.Module, x: Tensor, y: Tensor, algorithm: Algorithm, steps: int, kept: Kept | None = None, down: Kept | None = None
) -> Reply:
    """A client's round of so many steps on this one batch, which is all of its data."""
    batches = [(x.clone(), y) for _ in range(steps)]
    return local_round(algorithm, module, batches, down=down, kept=kept, data=(x, y), round=int(kept is not None))


def _work(run: Callable[[], object]) -> tuple[int, int]:
    with _Work() as counted:
        run()
    return counted.forward, counted.backward


def _vectors(size: int, run: Callable[[], object]) -> int:
    counted = _Vectors(size)
    with counted:
        run()
    return counted.most


def _asked(algorithm: Algorithm) -> tuple[int, int]:
    """How many clients say what their loss is before a round, and how many then train."""
    asked: list[int] = []

    def losses(clients: Sequence[int]) -> list[float]:
        asked.extend(clients)
        return [0.0] * len(clients)

    chosen = algorithm.select.choose(Draw(_POPULATION, torch.ones(_POPULATION), np.random.default_rng(0), losses))
    return len(asked), len(chosen)


def _count(states: Kept) -> int:
    return sum(t.numel() for state in states.values() for t in state.values())
