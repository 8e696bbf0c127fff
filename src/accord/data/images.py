"""Encoded images to one uint8 array."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def decode(encoded: Sequence[Callable[[], bytes]], size: int | None, where: str) -> Pixels:
    """Images as `(N, H, W, C)`; grey ones have one channel, unless a colour image is among them.

    `size` scales each to a square of so many pixels. `where` names the data in errors.
    """
    opened = opener(where)
    colour = False
    pixels = np.empty((0, 0, 0, 0), dtype=np.uint8)
    at = 0
    while at < len(encoded):
        image = opened(encoded[at], at)
        if not colour and image.mode not in ("1", "L"):
            colour, at = True, 0
            continue
        image = image if image.mode == ("RGB" if colour else "L") else image.convert("RGB" if colour else "L")
        image = image if size is None or image.size == (size, size) else image.resize((size, size), resample=2)
        found = np.asarray(image).reshape(image.height, image.width, -1)
        if at == 0:
            pixels = np.empty((len(encoded), *found.shape), dtype=np.uint8)
        if found.shape != pixels.shape[1:]:
            first = f"{pixels.shape[2]}x{pixels.shape[1]}"
            raise ValueError(
                f"{where}: image {at} has {image.width}x{image.height} pixels and the first one {first}; scale them with size=..."
            )
        pixels[at] = found
        at += 1
    return pixels


def opener(where: str) -> Callable[[Callable[[], bytes], int], Any]:
    """A function that opens an encoded image, or says which one cannot be."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ValueError(f"{where} holds encoded images, and pillow decodes them: pip install 'accord[hub]'") from None

    def opened(encoded: Callable[[], bytes], at: int) -> Any:
        try:
            image = Image.open(io.BytesIO(encoded()))
            image.load()
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise ValueError(f"{where}: image {at} cannot be decoded ({error})") from None
        return image

    return opened
