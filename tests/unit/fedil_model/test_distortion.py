"""Views of self-supervised methods: held against torchvision on the same images where it has the operation."""

from dataclasses import replace

import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from fedil_model.data.augment import Distortion, ImageViews, TensorViews, colour
from fedil_model.data.augment.distortion import SIMCLR, distort
from fedil_model.data.augment.geometry import quarter_turns, resized_crop
from fedil_model.methods.orchestra import SECOND_VIEW
from fedil_model.methods.self_supervised import distorted_view
from tests.unit.fedil_model.test_augment import CIFAR, MNIST, largest_difference, seeded, smooth_images

STILL = Distortion(1.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.0, 0.1, 0.37])
def test_a_turn_of_hue_is_torchvisions(turn: float) -> None:
    images = torch.cat([smooth_images(), torch.randint(0, 256, (2, 3, 32, 32), generator=seeded()).byte()])
    expected = torch.stack([reference.adjust_hue(image, turn) for image in images])
    assert largest_difference(colour.hue(images, torch.full((8,), turn)), expected) <= 1


def test_hue_has_a_turn_for_each_image_and_leaves_gray_images_alone() -> None:
    images = smooth_images(2)
    turned = colour.hue(images, torch.tensor([0.0, 0.3]))
    assert torch.equal(turned[0], images[0])
    assert not torch.equal(turned[1], images[1])
    gray = smooth_images(2, channels=1)
    assert torch.equal(colour.hue(gray, torch.tensor([0.2, 0.3])), gray)


@pytest.mark.parametrize("channels", [1, 3])
def test_blur_is_torchvisions_with_a_width_for_each_image(channels: int) -> None:
    images, sigmas = smooth_images(channels=channels), [0.1, 0.4, 0.8, 1.2, 2.0]
    blurred = colour.blur(images, torch.tensor([*sigmas, 0.0]))
    for image, ours, sigma in zip(images, blurred, sigmas, strict=False):
        assert largest_difference(ours, reference.gaussian_blur(image, [3, 3], [sigma, sigma])) <= 1
    assert torch.equal(blurred[5], images[5])


def ramp(num: int, height: int = 32, width: int = 32) -> torch.Tensor:
    """Pixels that say where they are: the first channel across, the second down."""
    across = (torch.arange(width) * 4).expand(height, width)
    down = (torch.arange(height) * 4)[:, None].expand(height, width)
    return torch.stack([across, down]).byte().expand(num, 2, height, width)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 48)])
def test_a_resized_crop_is_a_window_of_the_wanted_area_and_shape(height: int, width: int) -> None:
    crops = resized_crop(ramp(400, height, width), 0.25, False, seeded()).float()
    # What the window spans, in pixels: read between two pixels far from the border.
    across = (crops[:, 0, height // 2, -5] - crops[:, 0, height // 2, 4]) / 4 * width / (width - 9)
    down = (crops[:, 1, -5, width // 2] - crops[:, 1, 4, width // 2]) / 4 * height / (height - 9)
    area, ratio = across * down / (height * width), across / down
    assert area.min() > 0.22
    assert area.max() > 0.8 * min(1.0, 4 / 3 * height / width), "the largest that fits"
    # Few windows have other sides: those of which none of ten fitted.
    assert float(ratio.quantile(0.03)) > 3 / 4 - 0.08
    assert float(ratio.quantile(0.97)) < 4 / 3 + 0.08
    left, right = crops[:, 0, height // 2, 0] / 4, crops[:, 0, height // 2, -1] / 4
    assert left.min() < 1.0
    assert right.max() > width - 2.0
    assert left.std() > 2.0, "windows lie at different places"


def test_about_half_of_the_crops_are_flipped_where_a_flip_is_allowed() -> None:
    crops = resized_crop(ramp(400), 0.5, True, seeded()).float()
    flipped = (crops[:, 0, 16, 4] > crops[:, 0, 16, -5]).float().mean()
    assert 0.4 < float(flipped) < 0.6
    assert bool((crops[:, 1, 4, 16] < crops[:, 1, -5, 16]).all()), "never upside down"


def test_where_no_window_fits_all_of_the_longer_side_is_taken() -> None:
    """Windows with all of the area that are no squares do not fit."""
    crops = resized_crop(ramp(50), 1.0, False, seeded()).float() / 4
    across = crops[:, 0, 16, -1] - crops[:, 0, 16, 0]
    down = crops[:, 1, -1, 16] - crops[:, 1, 0, 16]
    assert float(torch.maximum(across, down).min()) >= 30.5
    assert float(torch.minimum(across, down).min()) >= 31 * (3 / 4) ** 0.5 - 1


def test_quarter_turns_are_rot90s() -> None:
    images = smooth_images(4)
    turned = quarter_turns(images, torch.tensor([0, 1, 2, 3]))
    for turns in range(4):
        assert torch.equal(turned[turns], torch.rot90(images[turns], turns, (1, 2)))


def test_shares_of_changed_images_are_as_declared() -> None:
    images = smooth_images(1, side=8).expand(600, -1, -1, -1)
    distorted = distort(images, STILL, False, seeded())
    gray = (distorted.amax(1) == distorted.amin(1)).all(2).all(1)
    assert 0.15 < float(gray.float().mean()) < 0.25
    solarized = distort(images, replace(STILL, solarize_probability=0.2), False, seeded())
    assert 0.15 < float((solarized != distorted).flatten(1).any(1).float().mean()) < 0.25
    blurred = distort(images, replace(STILL, blur_probability=0.5), False, seeded())
    assert 0.4 < float((blurred != distorted).flatten(1).any(1).float().mean()) < 0.55
    jittered = distort(images, replace(STILL, brightness=0.8), False, seeded())
    assert 0.7 < float((jittered != distorted).flatten(1).any(1).float().mean()) < 0.85


@pytest.mark.parametrize("kind", [SIMCLR, SECOND_VIEW])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_distorted_view_is_drawn_from_its_generator_only(kind: Distortion, channels: int) -> None:
    views = ImageViews((0.5,) * channels, (0.25,) * channels, flip=True)
    view, images = distorted_view(views, kind), smooth_images(8, channels=channels)
    before, untouched = images.clone(), torch.random.get_rng_state()
    first, again, other = view(images, seeded(1)), view(images, seeded(1)), view(images, seeded(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == images.shape
    assert first.dtype == torch.float32
    assert bool(first.isfinite().all())
    assert torch.equal(images, before)
    assert torch.equal(untouched, torch.random.get_rng_state())


def test_digits_and_tables_have_their_strong_view() -> None:
    digits, table = smooth_images(4, channels=1, side=28), torch.randn(4, 8, generator=seeded())
    assert torch.equal(distorted_view(MNIST, SIMCLR)(digits, seeded()), MNIST.strong(digits, seeded()))
    views = TensorViews()
    assert torch.equal(distorted_view(views, SIMCLR)(table, seeded()), views.strong(table, seeded()))
    photographs = smooth_images(4)
    assert not torch.equal(
        distorted_view(CIFAR, SIMCLR)(photographs, seeded()), CIFAR.strong(photographs, seeded())
    )
