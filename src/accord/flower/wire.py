"""What travels between server and sites: tensors as named arrays and plain values, read without trusting anything in them."""

from __future__ import annotations

import io
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from accord.algorithm import Algorithm
from accord.part import State

PROTOCOL = 1  # raised when an older site could not understand a newer server, or the other way round
_KINDS = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")}
_STYPE = "numpy.ndarray"
_ARRAYS = 100_000  # in one record; more is a mistake

_T = TypeVar("_T", str, int, float)


def header(kind: str, shape: Sequence[int]) -> bytes:
    """The bytes with which NumPy begins a `.npy` file of this type and shape.

    >>> header("float32", (2, 3))[:6], len(header("float32", (2, 3)))
    (b'\\x93NUMPY', 128)
    """
    stream = io.BytesIO()
    what = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(stream, what)
    return stream.getvalue()


def pack(named: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors by name as a record of arrays.

    >>> unpack(pack({"w": torch.arange(3.0)}))["w"]
    tensor([0., 1., 2.])
    """
    record = ArrayRecord()
    for name, tensor in named.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _KINDS:
            raise ValueError(f"{name} is of type {kind}, which cannot travel; the types are {', '.join(_KINDS)}")
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        shape = tuple(tensor.shape)
        record[name] = Array(kind, shape, _STYPE, header(kind, shape) + data)
    return record


def unpack(record: object) -> dict[str, Tensor]:
    """The tensors of a record, as long as every array is exactly what NumPy writes for its type and shape; nothing is unpickled."""
    if not isinstance(record, ArrayRecord):
        raise ValueError("sent no arrays where arrays are expected")
    if len(record) > _ARRAYS:
        raise ValueError(f"sent {len(record)} arrays; at most {_ARRAYS} are read")
    return {name: _tensor(name, array) for name, array in record.items()}


def _tensor(name: str, array: Array) -> Tensor:
    kind, shape, data = array.dtype, tuple(array.shape), array.data
    if array.stype != _STYPE or kind not in _KINDS:
        raise ValueError(f"sent {plain(name)} as {plain(str(array.stype), 30)} of {plain(str(kind), 30)}, which is not read here")
    if len(shape) > 16 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise ValueError(f"sent {plain(name)} in a shape that no array has")
    begin, size = header(kind, shape), math.prod(shape) * _KINDS[kind].itemsize
    if len(data) != len(begin) + size or data[: len(begin)] != begin:
        raise ValueError(f"sent {plain(name)} as bytes that are no {kind} array of shape {shape}")
    if kind == "bool" and data[len(begin) :].strip(b"\x00\x01"):
        raise ValueError(f"sent {plain(name)} as bytes that are no bool array of shape {shape}")
    if not size:
        return torch.empty(shape, dtype=_KINDS[kind])
    return torch.frombuffer(bytearray(data[len(begin) :]), dtype=_KINDS[kind]).reshape(shape)


def plain(text: str, longest: int = 80) -> str:
    """A text of unknown origin as it may be printed: one line, no control characters, not too long.

    >>> plain("a\\x1b[2Jb"), plain("x" * 9, 5)
    ('a?[2Jb', 'xx...')
    """
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(c if c.isprintable() else "?" for c in cut)


def states(named: Mapping[Hashable, State], algorithm: Algorithm) -> dict[str, Tensor]:
    """The states of an algorithm's parts as tensors by name, `part/place/name`; the place tells parts of one name apart."""
    parts = list(algorithm.all_parts)
    return {f"{part.name}/{at}/{name}": tensor for at, part in enumerate(parts) if part in named for name, tensor in named[part].items()}


def parted(named: Mapping[str, Tensor], algorithm: Algorithm) -> dict[Hashable, dict[str, Tensor]]:
    """The states by part; `ValueError` for a name that belongs to no part of this algorithm."""
    places = {f"{part.name}/{at}": part for at, part in enumerate(algorithm.all_parts)}
    found: dict[Hashable, dict[str, Tensor]] = {}
    for label, tensor in named.items():
        place, _, name = label.rpartition("/")
        if place not in places:
            raise ValueError(f"sent {plain(label)}, which belongs to no part of this recipe")
        found.setdefault(places[place], {})[name] = tensor
    return found


def exact(named: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> None:
    """Demand the same names, types and shapes as those of `like`."""
    missing, extra = [n for n in like if n not in named], [n for n in named if n not in like]
    if missing:
        raise ValueError(f"did not send {what} {plain(missing[0])}" + (f"; it sent {plain(extra[0])}" if extra else ""))
    if extra:
        raise ValueError(f"sent {what} {plain(extra[0])}, which nobody asked for")
    for name, tensor in like.items():
        if named[name].shape != tensor.shape or named[name].dtype != tensor.dtype:
            got, wanted = ((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in (named[name], tensor))
            raise ValueError(f"sent {what} {plain(name)} in shape {got[0]} as {got[1]}; it is {wanted[0]} as {wanted[1]}")


def value(record: object, name: str, kind: type[_T]) -> _T:
    """One plain value of a record, of the type that it must have."""
    found = record.get(name) if isinstance(record, ConfigRecord) else None
    if kind is float and type(found) is int:
        found = float(found)
    if type(found) is not kind:
        raise ValueError(f"sent no {kind.__name__} {name!r}")
    return found


def config(content: RecordDict, name: str) -> ConfigRecord:
    """The plain values under a name."""
    found = content.get(name)
    if not isinstance(found, ConfigRecord):
        raise ValueError(f"sent no {name!r}")
    return found


def listing(content: RecordDict) -> list[str]:
    """What a message holds, a line each: names, shapes and bytes.

    >>> listing(RecordDict({"up": pack({"control/1/c": torch.zeros(2, 2)})}))
    ['up control/1/c (2, 2) float32 16 B']
    """
    lines = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            sizes = {key: len(a.data) - len(header(a.dtype, a.shape)) for key, a in record.items()}
            lines += [f"{name} {key} {tuple(a.shape)} {a.dtype} {sizes[key]:,} B" for key, a in record.items()]
        else:
            lines += [f"{name} {key}={shown(v)}" for key, v in record.items()]
    return lines


def shown(found: Any) -> str:
    """A plain value as a person reads it."""
    return plain(found, 300) if isinstance(found, str) else str(found)
