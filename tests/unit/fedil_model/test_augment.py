"""The colour operations and moves are held against PIL through torchvision, on the same images."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as reference

from fedil_model.data.augment import ImageViews, TensorViews, colour
from fedil_model.data.augment.geometry import GRAY, crop_and_flip, cutout
from fedil_model.data.augment.randaugment import OPERATIONS, apply_operations, randaugment
from fedil_model.errors import DataError

CIFAR = ImageViews((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616), flip=True)
MNIST = ImageViews((0.1307,), (0.3081,), pad=2, pad_mode="zeros", strong_kind="affine")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth_images(num: int = 6, channels: int = 3, side: int = 32, seed: int = 0) -> Tensor:
    """Pictures with large areas, a narrow range of values, and some noise."""
    coarse = torch.rand(num, channels, 5, 5, generator=seeded(seed)) * 150 + 40
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    return (fine + torch.randn(fine.shape, generator=seeded(seed + 1)) * 4).clamp(0, 255).to(torch.uint8)


def with_pil(
    images_BCHW: Tensor, operation: Callable[..., Any], parameters: list[Any] | None = None
) -> Tensor:
    pictures = [reference.to_pil_image(image) for image in images_BCHW]
    if parameters is None:
        changed = [operation(picture) for picture in pictures]
    else:
        changed = [operation(picture, value) for picture, value in zip(pictures, parameters, strict=True)]
    return torch.stack([reference.pil_to_tensor(picture) for picture in changed])


def largest_difference(left: Tensor, right: Tensor) -> int:
    return int((left.to(torch.int32) - right.to(torch.int32)).abs().max())


FACTORS = [0.05, 0.14, 0.41, 0.5, 0.77, 0.95]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.brightness, reference.adjust_brightness),
        (colour.contrast, reference.adjust_contrast),
        (colour.saturation, reference.adjust_saturation),
        (colour.sharpness, reference.adjust_sharpness),
    ],
    ids=["brightness", "contrast", "color", "sharpness"],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_enhancement_with_a_factor_for_each_image_is_pils(
    ours: Callable[..., Tensor], theirs: Callable[..., Any], channels: int
) -> None:
    images = smooth_images(channels=channels)
    assert largest_difference(ours(images, torch.tensor(FACTORS)), with_pil(images, theirs, FACTORS)) <= 1


def test_autocontrast_is_pils_and_leaves_a_flat_channel_alone() -> None:
    images = smooth_images()
    images[0, 1] = 77
    assert largest_difference(colour.autocontrast(images), with_pil(images, reference.autocontrast)) <= 1


def test_equalize_is_pils_and_leaves_a_flat_channel_alone() -> None:
    images = smooth_images()
    images[0, 1] = 77
    images[1, 2, :, :16] = 0
    assert torch.equal(colour.equalize(images), with_pil(images, reference.equalize))


def test_posterize_and_solarize_are_pils() -> None:
    images = smooth_images()
    bits, thresholds = [4, 5, 6, 7, 8, 4], [256, 231, 128, 26, 1, 0]
    assert torch.equal(
        colour.posterize(images, torch.tensor(bits)), with_pil(images, reference.posterize, bits)
    )
    assert torch.equal(
        colour.solarize(images, torch.tensor(thresholds)), with_pil(images, reference.solarize, thresholds)
    )


def applied(images: Tensor, first: str, level: int, sign: int = 1, second: str = "identity") -> Tensor:
    operation_2B = torch.tensor([[OPERATIONS.index(first)], [OPERATIONS.index(second)]]).expand(
        2, len(images)
    )
    return apply_operations(
        images, operation_2B, torch.full_like(operation_2B, level), torch.full_like(operation_2B, sign)
    )


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("level", [1, 5, 9])
def test_rotation_is_pils(level: int, sign: int) -> None:
    images = smooth_images()
    expected = with_pil(images, lambda picture: picture.rotate(sign * 3 * level))
    same = (applied(images, "rotate", level, sign) == expected).float().mean()
    assert same > 0.995  # PIL steps in fixed point, so a few points on an edge between pixels may differ


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("name", "coefficients"),
    [
        ("shear_x", lambda v: (1, v, 0, 0, 1, 0)),
        ("shear_y", lambda v: (1, 0, 0, v, 1, 0)),
        ("translate_x", lambda v: (1, 0, v * 32, 0, 1, 0)),
        ("translate_y", lambda v: (1, 0, 0, 0, 1, v * 32)),
    ],
)
def test_shears_and_translations_are_fixmatchs_pil_calls(
    name: str, coefficients: Callable[[float], tuple[float, ...]], sign: int
) -> None:
    from PIL import Image

    images = smooth_images()
    for level in (1, 5, 9):  # at 4 a whole row lies on the edge between two pixels
        data = coefficients(0.3 * level / 10 * sign)
        expected = with_pil(
            images, lambda picture, data=data: picture.transform(picture.size, Image.Transform.AFFINE, data)
        )
        assert (applied(images, name, level, sign) == expected).float().mean() > 0.995


def test_two_moves_are_joined_in_the_drawn_order() -> None:
    images = smooth_images(side=64)
    expected = applied(applied(images, "rotate", 9), "translate_x", 9)
    wrong_way = applied(applied(images, "translate_x", 9), "rotate", 9)
    joined = applied(images, "rotate", 9, second="translate_x")
    inner = (
        ...,
        slice(16, 48),
        slice(16, 40),
    )  # away from the borders, where joining keeps more of the image
    assert largest_difference(joined[inner], expected[inner]) < 60
    error = (joined[inner].float() - expected[inner].float()).abs().mean()
    assert error * 4 < (joined[inner].float() - wrong_way[inner].float()).abs().mean()


def test_a_colour_change_and_a_move_keep_the_drawn_order() -> None:
    images = smooth_images()
    colour_first = applied(images, "contrast", 1, second="translate_x")
    assert torch.equal(colour_first, applied(applied(images, "contrast", 1), "translate_x", 1))
    move_first = applied(images, "translate_x", 1, second="contrast")
    assert torch.equal(move_first, applied(applied(images, "translate_x", 1), "contrast", 1))
    assert not torch.equal(colour_first, move_first)


def test_every_image_gets_its_own_operation_as_if_it_were_alone() -> None:
    images = smooth_images(num=len(OPERATIONS))
    operation_2B = torch.stack((torch.arange(len(OPERATIONS)), torch.arange(len(OPERATIONS)).flip(0)))
    level_2B = torch.arange(2 * len(OPERATIONS)).view(2, -1) % 9 + 1
    together = apply_operations(images, operation_2B, level_2B, torch.ones_like(level_2B))
    for place in range(len(OPERATIONS)):
        one = slice(place, place + 1)
        alone = apply_operations(
            images[one], operation_2B[:, one], level_2B[:, one], torch.ones(2, 1, dtype=torch.int64)
        )
        assert torch.equal(together[one], alone)


def test_randaugment_leaves_about_a_quarter_of_the_images_as_they_are() -> None:
    images = smooth_images(num=1).expand(2000, -1, -1, -1)
    unchanged = (randaugment(images, seeded()) == images).flatten(1).all(dim=1).float().mean()
    # Both draws not applied or the identity: (1/2 + 1/28)² = .287, and some operations change nothing.
    assert 0.25 < unchanged < 0.35


def test_a_crop_is_a_window_of_the_reflected_image() -> None:
    images = smooth_images(num=40, side=12)
    padded = torch.nn.functional.pad(images.float(), (3, 3, 3, 3), mode="reflect").to(torch.uint8)
    windows = padded.unfold(2, 12, 1).unfold(3, 12, 1).flatten(2, 3)
    cropped = crop_and_flip(images, 3, "reflect", False, seeded())
    matches_BO = (windows == cropped[:, :, None]).flatten(3).all(dim=3).all(dim=1)
    assert matches_BO.any(dim=1).all()
    assert len(set(matches_BO.float().argmax(dim=1).tolist())) > 15  # of 49 offsets


def test_a_crop_with_zeros_brings_in_black_and_no_reflection() -> None:
    images = torch.full((60, 1, 8, 8), 200, dtype=torch.uint8)
    cropped = crop_and_flip(images, 1, "zeros", False, seeded())
    kept = (cropped > 0).flatten(1).sum(dim=1)
    assert set(kept.tolist()) == {64, 56, 49}


def an_arrow() -> Tensor:
    """Bright on the left, dark on the right: a flip is seen at once."""
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 8:20, 6:12] = 255
    return image


def leans_left(view_BCHW: Tensor) -> Tensor:
    return view_BCHW[..., :14].sum(dim=(1, 2, 3)) > view_BCHW[..., 14:].sum(dim=(1, 2, 3))


def test_digits_are_never_flipped_and_pictures_are_half_of_the_time() -> None:
    images = an_arrow().expand(400, -1, -1, -1)
    assert leans_left(MNIST.weak(images, seeded())).all()
    flipping = ImageViews((0.1307,), (0.3081,), pad=2, pad_mode="zeros", flip=True)
    assert 0.4 < leans_left(flipping.weak(images, seeded())).float().mean() < 0.6
    without_cutout = ImageViews((0.0,), (1.0,), strong_kind="affine", cutout_share=0.0)
    assert leans_left(without_cutout.strong(images, seeded())).float().mean() > 0.98  # moved, not mirrored


def test_the_affine_view_moves_a_digit_only_a_little() -> None:
    image = torch.zeros(300, 1, 28, 28, dtype=torch.uint8)
    image[..., 12:16, 12:16] = 255
    view_BHW = ImageViews((0.0,), (1.0,), strong_kind="affine", cutout_share=0.0).strong(image, seeded())[
        :, 0
    ]
    weight_B = view_BHW.sum(dim=(1, 2))
    place = torch.arange(28) + 0.5
    centre_x = (view_BHW.sum(dim=1) * place).sum(dim=1) / weight_B
    centre_y = (view_BHW.sum(dim=2) * place).sum(dim=1) / weight_B
    for centre in (centre_x, centre_y):
        assert (centre - 14).abs().max() < 0.15 * 28 * 1.5
        assert centre.std() > 1


def test_cutout_is_one_gray_square_clipped_at_the_border() -> None:
    images = torch.zeros(500, 3, 32, 32, dtype=torch.uint8)
    gray_BHW = (cutout(images, 0.5, seeded()) == GRAY).all(dim=1)
    sides = torch.stack((gray_BHW.any(dim=2).sum(dim=1), gray_BHW.any(dim=1).sum(dim=1)))
    assert sides.max() == 16
    assert sides.min() >= 8
    assert torch.equal(sides[0] * sides[1], gray_BHW.sum(dim=(1, 2)))
    assert not images.any()


def test_the_plain_view_scales_and_normalises() -> None:
    images = smooth_images()
    expected = reference.normalize(images.float() / 255, list(CIFAR.mean), list(CIFAR.std))
    assert torch.allclose(CIFAR.plain(images), expected, atol=1e-5)


@pytest.mark.parametrize(("views", "channels", "side"), [(CIFAR, 3, 32), (MNIST, 1, 28), (MNIST, 1, 8)])
def test_views_depend_on_the_generator_alone(views: ImageViews, channels: int, side: int) -> None:
    images = smooth_images(num=50, channels=channels, side=side)
    untouched, before = images.clone(), torch.get_rng_state()
    for view in (views.weak, views.strong):
        first = view(images, seeded(3))
        assert first.dtype == torch.float32
        assert first.shape == images.shape
        assert torch.isfinite(first).all()
        assert torch.equal(first, view(images, seeded(3)))
        assert not torch.equal(first, view(images, seeded(4)))
    assert torch.equal(images, untouched)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("views", [MNIST, ImageViews((0.5,), (0.5,), flip=True)])
def test_views_work_on_one_image_and_on_none(views: ImageViews) -> None:
    for num in (0, 1):
        images = smooth_images(num=1, channels=1, side=28)[:num]
        assert views.strong(images, seeded()).shape == (num, 1, 28, 28)
        assert views.weak(images, seeded()).shape == (num, 1, 28, 28)


def test_images_that_are_not_bytes_are_refused() -> None:
    with pytest.raises(DataError, match=r"uint8 .* not torch.float32"):
        CIFAR.plain(torch.zeros(2, 3, 32, 32))


def test_tensor_views_add_noise_and_drop_features() -> None:
    views = TensorViews(mean=(5.0,), std=(2.0,), strong_dropout=0.25)
    raw = torch.full((200, 30), 7.0)
    assert torch.equal(views.plain(raw), torch.ones(200, 30))
    weak, strong = views.weak(raw, seeded()), views.strong(raw, seeded())
    assert 0.04 < (weak - 1).std() < 0.06
    assert 0.22 < (strong == 0).float().mean() < 0.28
    assert (strong[strong != 0] - 1).std() > 0.15
    assert torch.equal(strong, views.strong(raw, seeded()))


def test_the_digits_view_matches_torchvisions_affine() -> None:
    """One map, applied by us and by torchvision with the same angle and translation."""
    from fedil_model.data.augment.geometry import AffineMap, warp_bilinear

    images = smooth_images(channels=1, side=28).float()
    radians = torch.deg2rad(torch.tensor(-12.0))
    linear = torch.stack((radians.cos(), radians.sin(), -radians.sin(), radians.cos())).view(1, 2, 2)
    ours = warp_bilinear(images, AffineMap(linear.expand(6, 2, 2), torch.zeros(6, 2)))
    theirs = reference.rotate(images, 12.0, interpolation=InterpolationMode.BILINEAR)
    assert torch.allclose(ours[..., 6:-6, 6:-6], theirs[..., 6:-6, 6:-6], atol=0.05)


def test_a_table_is_normalised_with_the_statistics_of_a_numpy_array_as_they_are() -> None:
    table = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    views = TensorViews(mean=table.mean(0), std=table.std(0))
    plain = views.plain(torch.from_numpy(table))
    assert plain.dtype == torch.float32
    assert torch.allclose(plain.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(plain.std(0, correction=0), torch.ones(4), atol=1e-5)
    as_tensors = TensorViews(mean=torch.from_numpy(table.mean(0)), std=torch.from_numpy(table.std(0)))
    assert torch.equal(as_tensors.plain(torch.from_numpy(table)), plain)


class Column:
    """Like a table's column with names instead of positions"""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype=dtype)

    def __getitem__(self, key: Any) -> float:
        raise KeyError(key)


@pytest.mark.parametrize(
    "kind",
    [
        lambda numbers: list(numbers),
        lambda numbers: tuple(numbers.astype(np.float32)),
        lambda numbers: numbers[::-1].copy()[::-1],
        lambda numbers: np.broadcast_to(numbers, numbers.shape),
        Column,
    ],
    ids=["list of NumPy numbers", "tuple", "backwards", "read-only", "column"],
)
def test_statistics_may_be_any_kind_of_numbers(kind: Callable[[np.ndarray], Any]) -> None:
    table = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    views, expected = (
        TensorViews(mean=make(table.mean(0)), std=make(table.std(0))) for make in (kind, np.asarray)
    )
    assert torch.equal(views.plain(torch.from_numpy(table)), expected.plain(torch.from_numpy(table)))
    one_for_all = TensorViews(mean=table.mean(), std=table.std()).plain(torch.from_numpy(table))
    assert float(one_for_all.mean()) == pytest.approx(0.0, abs=1e-6)


def test_a_feature_that_never_changes_stays_finite() -> None:
    table = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    views = TensorViews(mean=table.numpy().mean(0), std=table.numpy().std(0))
    assert views.plain(table).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
