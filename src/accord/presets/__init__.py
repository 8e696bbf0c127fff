"""Published settings of the methods, and the candidates that their papers searched."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from accord.check import nearest
from accord.experiment import read_file

FACTORS = (1.0, 0.3, 3.0, 0.1, 10.0)  # of the learning rate, which every method's grid has


@dataclass(frozen=True)
class Preset:
    """One paper's settings: those of the local work, and of each method by its name in recipes."""

    name: str
    set_up: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]

    def text(self, recipe: str) -> str:
        """The recipe with the published arguments of every method that stands in it without any.

        >>> preset("fedsol").text("fedprox + constrain + sgd(lr=0.1)")
        'fedprox(mu=1.0) + constrain + sgd(lr=0.1)'
        """
        return " + ".join(_call(piece, self.methods.get(piece, {}).get("use", {})) for piece in pieces(recipe))

    def grid(self, recipe: str, lr: float) -> list[tuple[str, float]]:
        """Every candidate of a recipe: texts and learning rates, the published one first, the others in a fixed mixed order.

        >>> len(preset("fedsol").grid("fedprox + constrain", 0.01)), preset("fedsol").grid("fedavg", 0.01)[:2]
        (20, [('fedavg', 0.01), ('fedavg', 0.003)])
        """
        options = [[_call(piece, each) for each in self.candidates(piece)] for piece in pieces(recipe)]
        texts = list(dict.fromkeys([self.text(recipe), *(" + ".join(chosen) for chosen in itertools.product(*options))]))
        every = [(text, float(f"{lr * factor:.6g}")) for text in texts for factor in FACTORS]
        rest = every[1:]
        if len(texts) > 1:
            random.Random(recipe).shuffle(rest)
        return [every[0], *rest]

    def candidates(self, piece: str) -> Iterator[Mapping[str, Any]]:
        """The arguments that the paper tried for a method."""
        known = self.methods.get(piece, {})
        search: Mapping[str, list[Any]] = known.get("search", {})
        if not search:
            yield known.get("use", {})
        for values in itertools.product(*search.values()):
            yield dict(zip(search, values, strict=True))


def pieces(recipe: str) -> list[str]:
    """The recipe cut at the + that stand outside parentheses.

    >>> pieces("fedavg + perturb(by=together((task, distil))) + constrain")
    ['fedavg', 'perturb(by=together((task, distil)))', 'constrain']
    """
    found, depth = [""], 0
    for sign in recipe:
        depth += (sign in "([") - (sign in ")]")
        if sign == "+" and not depth:
            found.append("")
        else:
            found[-1] += sign
    return [each.strip() for each in found]


def _call(piece: str, arguments: Mapping[str, Any]) -> str:
    return f"{piece}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else piece


def names() -> list[str]:
    """The papers whose settings are known.

    >>> names()
    ['fedalign', 'fedconst', 'fedoptz', 'fedsol']
    """
    return sorted(Path(f.name).stem for f in resources.files("accord.presets").iterdir() if f.name.endswith(".toml"))


def preset(name: str) -> Preset:
    """One paper's settings.

    >>> preset("fedsol").set_up["lr_decay"]
    0.99
    """
    if name not in names():
        raise ValueError(f"there is no preset {name!r}{nearest(name, names())}; write one of {', '.join(names())}")
    with resources.as_file(resources.files("accord.presets") / f"{name}.toml") as path:
        said = read_file(path)
    return Preset(name, said["set_up"], said["methods"])


def papers() -> Preset:
    """Every paper's candidates together; of a method that several papers have, FedSOL's, FedAlign's, FedCONST's or FedOptz's."""
    methods: dict[str, Mapping[str, Any]] = {}
    for name in ("fedoptz", "fedconst", "fedalign", "fedsol"):
        found = preset(name).methods
        methods |= {key: value for key, value in found.items() if value.get("search") or not methods.get(key, {}).get("search")}
    return Preset("papers", {}, methods)
