"""Shared memory for what goes between processes: objects are pickled, their tensors are copied side by side into one block."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

_ALIGN = 64  # bytes; the alignment of PyTorch's own allocations


class Arena:
    """A block of memory that two processes share. Only processes of one run, on one machine, ever read it.

    >>> arena = Arena()
    >>> arena.unpack(arena.pack({"w": torch.ones(2), "round": 3}))
    {'w': tensor([1., 1.]), 'round': 3}
    """

    def __init__(self) -> None:
        self.block = torch.empty(0, dtype=torch.uint8)
        self.used = 0  # bytes of the block that the last `pack` filled
        self._fresh = False

    def take(self) -> Tensor | None:
        """The block, if the other side does not have it yet."""
        fresh, self._fresh = self._fresh, False
        return self.block if fresh else None

    def give(self, block: Tensor | None) -> None:
        """Use the block that the other side made, if it made a new one."""
        if block is not None:
            self.block = block

    def pack(self, thing: Any) -> bytes:
        """The pickle of a thing without its tensors, which are in the block from now on."""
        stream = io.BytesIO()
        packer = _Packer(stream)
        packer.dump(thing)
        self.used = packer.size
        if packer.size > self.block.numel():
            self.block = torch.empty(packer.size * 5 // 4, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
            self._fresh = True
        for start, tensor in packer.tensors:
            _view(self.block, start, tensor.dtype, tensor.shape).copy_(tensor)
        return stream.getvalue()

    def unpack(self, packed: bytes, copy: bool = True) -> Any:
        """The thing again; without `copy` its tensors are the block's memory and last until the next `pack`."""
        unpacker = _Unpacker(io.BytesIO(packed))
        unpacker.block, unpacker.copy = self.block, copy
        return unpacker.load()


def _view(block: Tensor, start: int, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    stop = start + shape.numel() * dtype.itemsize
    return block[start:stop].view(dtype).view(shape)


class _Packer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        pickle.Pickler.__init__(self, stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[tuple[int, Tensor]] = []
        self.size = 0

    def persistent_id(self, thing: Any) -> tuple[int, torch.dtype, tuple[int, ...]] | None:
        if type(thing) is not Tensor:
            return None
        start = self.size
        self.tensors.append((start, thing.detach()))
        self.size = -(-(start + thing.nbytes) // _ALIGN) * _ALIGN
        return start, thing.dtype, tuple(thing.shape)


class _Unpacker(pickle.Unpickler):
    block: Tensor
    copy: bool

    def persistent_load(self, where: tuple[int, torch.dtype, tuple[int, ...]]) -> Tensor:
        start, dtype, shape = where
        view = _view(self.block, start, dtype, torch.Size(shape))
        return view.clone() if self.copy else view
