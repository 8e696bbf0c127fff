"""A model as one flat vector: the module's parameters are views of `w`, its gradients views of `g`, its statistics views of `b`."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from accord.buffers import Buffers

On: TypeAlias = Literal["all", "head", "body"]


class Output(NamedTuple):
    """What a model may return instead of bare logits: the logits, the features that its head reads, and what those are drawn from."""

    logits: Tensor
    features: Tensor | None = None
    latent: tuple[Tensor, Tensor] | None = None  # the mean and the deviation of random features


class Body(NamedTuple):
    """A pass through the body, kept until the head has been looked at by itself."""

    x: Tensor
    read: Tensor  # what the head reads
    features: Tensor | None
    latent: tuple[Tensor, Tensor] | None


def logits(out: Output | Tensor) -> Tensor:
    """The logits of a model's answer."""
    return out.logits if isinstance(out, Output) else out


class Slot(NamedTuple):
    """Where one named tensor lies in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The names and shapes of the tensors that a flat vector is made of.

    >>> layout = Layout.of({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
    >>> layout.size
    8
    >>> layout.named(torch.arange(8.0))["bias"]
    tensor([6., 7.])
    """

    slots: tuple[Slot, ...]
    head: str = ""  # the name of the child module that is the head; its parameters are `on="head"`

    @classmethod
    def of(cls, named: Mapping[str, Tensor], head: str = "") -> Layout:
        """The layout of these tensors, in their order."""
        slots, start = [], 0
        for name, tensor in named.items():
            slots.append(Slot(name, tuple(tensor.shape), start, start + tensor.numel()))
            start += tensor.numel()
        return cls(tuple(slots), head)

    @cached_property
    def size(self) -> int:
        """How many numbers the vector holds."""
        return self.slots[-1].stop if self.slots else 0

    def views(self, vector: Tensor) -> Iterator[Tensor]:
        """The tensors as views of the vector, in order."""
        return (vector[s.start : s.stop].view(s.shape) for s in self.slots)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The tensors as views of the vector, by name."""
        return {s.name: v for s, v in zip(self.slots, self.views(vector), strict=True)}

    def rows(self, vector: Tensor) -> list[Tensor]:
        """The weights with one row per output unit, as matrix views; biases and other one-dimensional tensors are left out."""
        return [vector[s.start : s.stop].view(s.shape[0], -1) for s in self.slots if len(s.shape) > 1]

    def pack(self, named: Mapping[str, Tensor]) -> Tensor:
        """One vector from tensors by name; `ValueError` names what is missing, left over or of another shape."""
        if set(named) != {s.name for s in self.slots}:
            missing = [s.name for s in self.slots if s.name not in named]
            extra = [name for name in named if name not in {s.name for s in self.slots}]
            raise ValueError(f"these weights do not fit the model: missing {missing or 'nothing'}, left over {extra or 'nothing'}")
        wrong = [s for s in self.slots if tuple(named[s.name].shape) != s.shape]
        if wrong:
            raise ValueError(f"{wrong[0].name} has shape {tuple(named[wrong[0].name].shape)}; the model has {wrong[0].shape}")
        return torch.cat([named[s.name].detach().reshape(-1) for s in self.slots])

    def spans(self, on: On) -> tuple[slice, ...]:
        """The stretches of the vector that are the head, the body or all of it."""
        if on == "all":
            return (slice(0, self.size),)
        merged: list[slice] = []
        for s in self.slots:
            if s.name.startswith(f"{self.head}.") == (on == "head"):
                if merged and merged[-1].stop == s.start:
                    merged[-1] = slice(merged[-1].start, s.stop)
                else:
                    merged.append(slice(s.start, s.stop))
        if not merged:
            raise ValueError(f"this model has no {on}: its last child, {self.head or 'none'!r}, leaves no trainable parameter to the {on}")
        return tuple(merged)


class Flat:
    """A module on one vector of weights, one of gradients and one of statistics.

    The module is used as it is: its trainable parameters become views of `w`, their gradients views of `g`. Tied parameters
    appear once. Frozen parameters stay outside: they neither move nor travel. Numeric buffers are mirrored in `b`; counters
    of whole numbers are copied in and out and rounded.

    >>> model = Flat(nn.Linear(2, 1))
    >>> _ = model.w.fill_(1.0)
    >>> model.module.weight
    Parameter containing:
    tensor([[1., 1.]], requires_grad=True)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        kinds = {(p.dtype, p.device) for p in self.parameters.values()}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{d} on {v}" for d, v in kinds)) or "none"
            raise ValueError(f"the trainable parameters must share one type and device; this model has {found}")
        first = next(iter(self.parameters.values()))
        self.layout = Layout.of(self.parameters, head_of(module))
        self._mode: tuple[bool, str | None] | None = None
        self.shelves: list[Tensor] = []  # vectors as long as `w` for weights that are put back: made when first needed, and kept
        self.w = torch.empty(self.layout.size, dtype=first.dtype, device=first.device)
        self.g = torch.zeros_like(self.w)
        for p, v, d in zip(self.parameters.values(), self.layout.views(self.w), self.layout.views(self.g), strict=True):
            v.copy_(p.data)
            p.data, p.grad = v, d
        self._place_buffers(first)

    def _place_buffers(self, like: Tensor) -> None:
        kept = set(self.module.state_dict(keep_vars=True))
        named = {n: t for n, t in self.module.named_buffers() if n in kept and t.dtype is not torch.bool and not t.is_complex()}
        self.statistics = Layout.of(named)
        self.b = torch.zeros(self.statistics.size, dtype=like.dtype, device=like.device)
        self._counters: list[tuple[Tensor, Tensor]] = []
        for (name, buffer), view in zip(named.items(), self.statistics.views(self.b), strict=True):
            view.copy_(buffer)
            own = view if buffer.dtype == like.dtype else buffer.clone()  # a module from another process shares its memory with it
            owner, _, leaf = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[leaf] = own
            if own is not view:
                self._counters.append((own, view))

    def parameters_of(self, on: On) -> list[Tensor]:
        """The parameters of the head, of the body, or all of them."""
        spans = self.layout.spans(on)
        inside = [any(k.start <= s.start and s.stop <= k.stop for k in spans) for s in self.layout.slots]
        return [p for p, wanted in zip(self.parameters.values(), inside, strict=True) if wanted]

    @property
    def head(self) -> nn.Module:
        """The module that is the head."""
        return self.module.get_submodule(self.layout.head)

    def tapped(self, forward: Callable[[], Output]) -> tuple[Tensor | None, Output]:
        """A pass, and what the head read in it; None unless the head was called once and its answer is the model's."""
        seen: list[tuple[tuple[Any, ...], Any]] = []
        if not self.layout.head:
            return None, forward()
        hook = self.head.register_forward_hook(lambda module, read, answer: seen.append((read, answer)))
        try:
            out = forward()
        finally:
            hook.remove()
        plain = len(seen) == 1 and len(seen[0][0]) == 1 and seen[0][1] is out.logits
        return (seen[0][0][0] if plain else None), out

    def watched(self, name: str, forward: Callable[[], Any]) -> tuple[tuple[Tensor, Tensor], Any]:
        """A pass, and what the child of that name read and answered in it, without gradient; of several calls the last."""
        seen: list[tuple[Tensor, Tensor]] = []
        child = self.module.get_submodule(name)
        hook = child.register_forward_hook(lambda module, read, answer: seen.append((read[0].detach(), answer.detach())))
        try:
            out = forward()
        finally:
            hook.remove()
        if not seen:
            raise ValueError(f"{type(self.module).__name__} does not run its child {name!r} when it is called")
        return seen[-1], out

    def mode(self, train: bool, buffers: Buffers | None = None) -> None:
        """Put the module in training or evaluation mode, if it is not in it already."""
        policy = buffers.policy if buffers and train else None
        if self._mode != (train, policy):
            self.module.train(train)
            if buffers is not None and train:
                buffers.prepare(self.module)
            self._mode = (train, policy)

    def load(self, w: Tensor, b: Tensor | None = None) -> None:
        """Take these weights and statistics."""
        self.w.copy_(w)
        if b is not None:
            self.load_statistics(b)

    def load_statistics(self, b: Tensor) -> None:
        """Take these statistics and leave the weights alone."""
        self.b.copy_(b)
        for buffer, view in self._counters:
            buffer.copy_(view if buffer.is_floating_point() else view.round())

    def read_statistics(self) -> Tensor:
        """The module's present statistics, as a vector of its own; `b` itself is left alone, for a backward pass may still read it."""
        read = self.b.clone()
        for buffer, view in self._counters:
            read[view.storage_offset() : view.storage_offset() + view.numel()].view(view.shape).copy_(buffer)
        return read

    def state_dict(self) -> dict[str, Tensor]:
        """The module's own state dictionary, as copies that share nothing."""
        return {name: tensor.detach().clone().contiguous() for name, tensor in self.module.state_dict().items()}

    @cached_property
    def scratch(self) -> Tensor:
        """A vector as long as `w` for a result that is used up at once."""
        return torch.empty_like(self.w)

    def twin(self) -> Flat:
        """A second module of the same shape, for looking at other weights while this one trains; it takes no gradients."""
        other = Flat(copy.deepcopy(self.module))
        other.module.requires_grad_(False).eval()
        for p in other.parameters.values():
            p.grad = None
        other.g = other.w.new_empty(0)
        return other


def head_of(module: nn.Module) -> str:
    """The name of the head: what the module says in `head_name`, else its last child that has parameters."""
    said = getattr(module, "head_name", None)
    if isinstance(said, str):
        return said
    owners = [name for name, child in module.named_children() if any(True for _ in child.parameters())]
    return owners[-1] if owners else ""


def digest(named: Mapping[str, Tensor]) -> str:
    """The SHA-256 of a state dictionary: names in alphabetical order, types, shapes and bytes.

    >>> digest({"w": torch.zeros(2)})[:12]
    'c54171aeb4bd'
    """
    total = hashlib.sha256()
    for name, tensor in sorted(named.items()):
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        total.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return total.hexdigest()
