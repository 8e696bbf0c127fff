"""Which algorithms a module can serve, found by trying them: what is missing is said in the words of the part that misses it."""

from __future__ import annotations

import copy
import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from accord.algorithm import Algorithm
from accord.data.federation import Federation
from accord.data.pool import Pool
from accord.data.shards import Shards
from accord.engines import Engine
from accord.engines.process import Process
from accord.evaluation import evaluate
from accord.flat import Flat, Output, head_of
from accord.models.slim import slimmed
from accord.recipe import entries
from accord.server import Server, first_state, rounds, traffic
from accord.store import Store

_SIDES = (32, 28, 16, 64, 224, 8)  # of images that are tried, in this order
_LINE = 12  # symbols in a line of text
_WIDE = 110  # letters in a printed line


@dataclass(frozen=True)
class Fit:
    """What a module gives, the algorithms of the catalogue that it can serve, and what is missing for the others.

    >>> print(check(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))))  # doctest: +ELLIPSIS
    Sequential: 15 parameters, reads 4 numbers, answers 3 classes
    head '1', no features, no stages, runs at a reduced width
    serves ... algorithms: adabest, centralised, ...
    cannot serve
    ...
      moon: contrast reads the model's features, and Sequential returns logits only: return accord.Output(logits,
        features) from its forward
    """

    module: str  # its class
    parameters: int  # that are trained
    reads: str  # one of its inputs, in words
    classes: int
    head: str  # the name of its head; empty where it has none
    features: tuple[int, ...]  # the shape of one sample's; empty where it gives none
    stages: tuple[str, ...]
    rigid: str  # why it cannot be run at a reduced width; empty where it can
    serves: tuple[str, ...]  # names of algorithms
    missing: Mapping[str, str]  # what the module would need, by the name of each other algorithm

    def __str__(self) -> str:
        gives = [
            f"head {self.head!r}" if self.head else "no head",
            f"features {' x '.join(map(str, self.features))}" if self.features else "no features",
            f"stages {', '.join(self.stages)}" if self.stages else "no stages",
            "one width only" if self.rigid else "runs at a reduced width",
        ]
        every = len(self.serves) + len(self.missing)
        lines = [f"{self.module}: {self.parameters:,} parameters, reads {self.reads}, answers {self.classes} classes", ", ".join(gives)]
        lines += textwrap.wrap(f"serves {len(self.serves)} of {every} algorithms: {', '.join(self.serves)}", _WIDE)
        lines += ["cannot serve"] if self.missing else []
        for why, names in self.reasons.items():
            lines += textwrap.wrap(f"{', '.join(names)}: {why}", _WIDE, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)

    @property
    def brief(self) -> str:
        """What it gives and serves in a line."""
        said = [f"head {self.head}" if self.head else "no head", "features" if self.features else "no features"]
        said += [f"stages {', '.join(self.stages)}" if self.stages else "no stages", "one width only" if self.rigid else "any width"]
        said += ["every algorithm" + (f" but {', '.join(self.missing)}" if self.missing else "")]
        return "; ".join(said)

    @property
    def reasons(self) -> dict[str, list[str]]:
        """The algorithms that it cannot serve, by what is missing for them."""
        found: dict[str, list[str]] = {}
        for name, why in self.missing.items():
            found.setdefault(why, []).append(name)
        return found


def check(module: nn.Module, x: Tensor | None = None) -> Fit:
    """What a module can be used for: one round of every algorithm of the catalogue is tried on a copy of it, down to one step.

    `x` are some of its inputs, at least two; without them images, numbers and lines of symbols are tried. A refusal is the one that a
    run would end with.

    >>> from accord.models import LeNet5
    >>> fit = check(LeNet5().build((3, 16, 16), 10))
    >>> fit.head, fit.features, fit.stages, "moon" in fit.serves
    ('head', (84,), ('conv1', 'conv2'), True)
    >>> fit.missing["fedsr"][:47]
    'represent reads a distribution of features, and'
    """
    copied = copy.deepcopy(module).float().cpu()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        x, out = _answered(copied, x)
        federation = _federation(x, out)
        rigid, found = _rigid(copied, x), _refusals(copied, federation)
        stages = getattr(module, "stages", ())
        return Fit(
            type(module).__name__,
            sum(p.numel() for p in module.parameters() if p.requires_grad),
            _words(x),
            federation.classes,
            head_of(module),
            () if out.features is None else tuple(out.features.shape[1:]),
            (stages,) if isinstance(stages, str) else tuple(stages),
            rigid,
            tuple(name for name, why in found.items() if not why),
            {name: why for name, why in found.items() if why},
        )


def _catalogue() -> Iterator[tuple[str, Algorithm]]:
    """The named algorithms that need no arguments, with the smallest round they can have."""
    for entry in entries("algorithm"):
        try:
            made = entry.make()
        except ValueError:
            continue
        yield entry.name, made + dataclasses.replace(made.rule, batch=2, epochs=1, steps=None)


def _answered(module: nn.Module, x: Tensor | None) -> tuple[Tensor, Output]:
    """Two inputs of a module, and its answer."""
    if x is not None and len(x) < 2:
        raise ValueError(f"check(module, x) needs two inputs or more, and x has the shape {tuple(x.shape)}")
    reasons: list[str] = []
    for tried in _inputs(module) if x is None else (x[:2].cpu(),):
        given = tried.float() if tried.is_floating_point() else tried
        try:
            with torch.no_grad():
                out = copy.deepcopy(module).eval()(given)
        except Exception as error:  # the module is somebody's own: it may refuse an input in any way
            reasons.append(f"{tuple(given.shape)}: {_first_line(error)}")
            continue
        answer = out if isinstance(out, Output) else Output(out)
        if isinstance(answer.logits, Tensor) and answer.logits.dim() > 1 and len(answer.logits) == 2:
            return given, answer
        reasons.append(f"{tuple(given.shape)}: its answer is no tensor of logits, one row a sample")
    kind = type(module).__name__
    raise ValueError(
        f"{kind} cannot be tried ({reasons[0]}): "
        + ("give check(module, x) two inputs that it reads" if x is None else "it must return logits or accord.Output(logits, features)")
    )


def _inputs(module: nn.Module) -> Iterator[Tensor]:
    """Inputs that the module may read, likely ones first: what its first layer takes, then images of usual sizes."""
    first = next((m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Conv1d | nn.Linear | nn.Embedding)), None)
    channels = [3, 1]
    if isinstance(first, nn.Embedding):
        yield torch.arange(2 * _LINE).view(2, _LINE) % first.num_embeddings
    elif isinstance(first, nn.Linear):
        yield torch.randn(2, first.in_features)
    elif isinstance(first, nn.Conv1d):
        yield from (torch.randn(2, first.in_channels, side) for side in _SIDES)
    elif first is not None:
        channels = [first.in_channels, *(c for c in channels if c != first.in_channels)]
    yield from (torch.randn(2, c, side, side) for c in channels for side in _SIDES)


def _federation(x: Tensor, out: Output) -> Federation:
    """One client with these inputs and labels of every kind."""
    classes = out.logits.shape[-1]
    y = (torch.arange(out.logits[..., 0].numel()) % classes).view(out.logits.shape[:-1])
    pool, shards = Pool(x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x, y), Shards.of([[0, 1]])
    return Federation(pool, shards, 1, classes, pool, pool, shards)


def _refusals(module: nn.Module, federation: Federation) -> dict[str, str]:
    """Why each algorithm cannot be, by its name; empty where it can."""
    with Process(module, federation) as engine:
        model = Flat(copy.deepcopy(module))
        b = model.read_statistics()
        return {name: _refusal(algorithm, model, b, federation, engine) for name, algorithm in _catalogue()}


def _refusal(algorithm: Algorithm, model: Flat, b: Tensor, federation: Federation, engine: Engine) -> str:
    """Why one round of an algorithm, and what it predicts with afterwards, cannot be."""
    store = Store(algorithm.keys)
    try:
        server = Server(algorithm, model.w.clone(), b, first_state(algorithm, model.w), traffic=traffic(algorithm, model))
        for _ in rounds(algorithm, model.module, federation, rounds=1, engine=engine, server=server, store=store):
            pass
        evaluate(server, federation, engine, kept=store.get, personal=True, kinds=("personal",))
    except ValueError as error:
        return str(error)
    except Exception as error:  # of the module's own making
        return f"it fails with {_first_line(error)}"
    return ""


def _rigid(module: nn.Module, x: Tensor) -> str:
    """Why a module cannot be run at a reduced width; empty where it can."""
    try:
        with torch.no_grad(), slimmed(module, 0.5):
            module.train()(x)
    except Exception as error:  # a refusal, or one of the module's own
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    said = str(error).strip().split("\n")[0]
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"


def _words(x: Tensor) -> str:
    if x.dim() == 4:
        return f"images of {' x '.join(map(str, x.shape[1:]))}"
    shape = " x ".join(map(str, x.shape[1:]))
    return f"{shape} numbers" if x.is_floating_point() else f"{shape} symbols"
