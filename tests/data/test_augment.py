"""Augmentations against loops over single images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.data import Crop, Cutout, Flip, Pool, Rotate
from accord.data.augment import rotated


def images(n: int = 6, high: int = 7, wide: int = 9, channels: int = 3) -> torch.Tensor:
    return torch.randint(1, 256, (n, high, wide, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.sampled_from(["zero", "reflect"]), st.integers(0, 99))
def test_crop_is_pad_then_slice(pad, fill, seed):
    x = images()
    found = Crop(pad, fill)(x, generator(seed))
    at = torch.randint(2 * pad + 1, (2, len(x)), generator=generator(seed))
    for k in range(len(x)):
        padded = np.pad(x[k].numpy(), ((pad, pad), (pad, pad), (0, 0)), "constant" if fill == "zero" else "reflect")
        row, column = at[:, k].tolist()
        assert np.array_equal(found[k].numpy(), padded[row : row + 7, column : column + 9])


def test_crop_refuses_a_mirror_larger_than_the_image():
    with pytest.raises(ValueError, match="lower pad"):
        Crop(7, "reflect")(images(), generator())


def test_flip_mirrors_about_half_of_the_images():
    x = images(400)
    found = Flip()(x.clone(), generator())
    same, mirrored = ((found == y).flatten(1).all(1) for y in (x, x.flip(2)))
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 99))
def test_cutout_blanks_one_clipped_square(size, seed):
    x = torch.ones(5, 7, 9, 3)
    found = Cutout(size)(x.clone(), generator(seed))
    rng = generator(seed)
    rows, columns = torch.randint(7, (5, 1), generator=rng), torch.randint(9, (5, 1), generator=rng)
    half = max(size // 2, 1)
    for k in range(5):
        expected = np.ones((7, 9, 3), np.float32)
        row, column = int(rows[k]), int(columns[k])
        expected[max(row - half, 0) : row + half, max(column - half, 0) : column + half] = 0
        assert np.array_equal(found[k].numpy(), expected)


def test_rotations_by_quarter_turns_are_exact():
    x = images(3, 8, 8)
    for quarter in range(5):
        assert torch.equal(rotated(x, torch.full((3,), 90.0 * quarter)), x.rot90(quarter, (1, 2)))


def test_rotate_draws_an_angle_for_each_image():
    x = images(4, 9, 9)[:1].expand(4, 9, 9, 3)
    found = Rotate(45)(x, generator())
    assert found.dtype == torch.uint8
    assert not any(torch.equal(found[0], found[k]) for k in range(1, 4))


def test_the_pool_augments_before_and_after_normalising():
    x = images(5, 8, 8)
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4])
    pool = Pool(x, torch.arange(5), mean, std, (Cutout(4), Crop(2), Flip()))
    found = pool.gather(torch.tensor([4, 0, 2]), generator(3)).x
    rng = generator(3)
    raw = Flip()(Crop(2)(x[[4, 0, 2]], rng), rng).float() / 255
    expected = Cutout(4)((raw - mean) / std, rng).permute(0, 3, 1, 2)
    assert torch.allclose(found, expected, atol=1e-6)
    plain = pool.gather(torch.tensor([4, 0, 2])).x
    assert torch.allclose(plain, ((x[[4, 0, 2]].float() / 255 - mean) / std).permute(0, 3, 1, 2), atol=1e-6)


def test_the_stored_images_are_never_changed():
    x = images(20)
    pool = Pool(x, torch.arange(20), augment=(Crop(2), Flip(), Rotate(10), Cutout(3)))
    before = x.clone()
    list(pool.batches(torch.arange(20), 7, generator()))
    assert torch.equal(x, before)


def test_vectors_are_not_augmented():
    with pytest.raises(ValueError, match=r"flip changes images.*augment=\(\)"):
        Pool(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), augment=(Flip(),))
