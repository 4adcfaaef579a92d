"""FixMatch's RandAugment (arXiv 2001.07685, appendix): two operations out of fourteen, drawn with
replacement, each applied with probability one half at a level of 1..9.

B images. The images that drew an operation are handled together. Of an image's two operations the moves are
joined into one map that is read once, between the colour changes of the first and of the second draw: that
keeps the drawn order, since an image has two operations only.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedil_model.augment import colour
from fedil_model.augment.geometry import AffineMap, warp_nearest

NUM_DRAWS = 2
MAX_LEVEL = 10


def _enhance_factor(level: Tensor) -> Tensor:
    return 0.05 + 0.9 * level / MAX_LEVEL


COLOUR_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda images, _: colour.autocontrast(images),
    "equalize": lambda images, _: colour.equalize(images),
    "brightness": lambda images, level: colour.brightness(images, _enhance_factor(level)),
    "color": lambda images, level: colour.saturation(images, _enhance_factor(level)),
    "contrast": lambda images, level: colour.contrast(images, _enhance_factor(level)),
    "sharpness": lambda images, level: colour.sharpness(images, _enhance_factor(level)),
    "posterize": lambda images, level: colour.posterize(images, 4 * level // MAX_LEVEL + 4),
    "solarize": lambda images, level: colour.solarize(images, 256 - 256 * level // MAX_LEVEL),
}
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = ("identity", *COLOUR_OPERATIONS, *MOVES)


def randaugment(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """uint8 in, uint8 out; the images handed in are not changed."""
    operation_2B, level_2B, sign_2B = _draw(len(images_BCHW), generator)
    return apply_operations(images_BCHW, operation_2B, level_2B, sign_2B)


def _draw(num_images: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    shape, device = (NUM_DRAWS, num_images), generator.device
    operation = torch.randint(0, len(OPERATIONS), shape, generator=generator, device=device)
    level = torch.randint(1, MAX_LEVEL, shape, generator=generator, device=device)
    sign = torch.randint(0, 2, shape, generator=generator, device=device) * 2 - 1
    applied = torch.randint(0, 2, shape, generator=generator, device=device)
    return operation * applied, level, sign  # operation 0 is the identity


def apply_operations(images_BCHW: Tensor, operation_2B: Tensor, level_2B: Tensor, sign_2B: Tensor) -> Tensor:
    images = images_BCHW.clone()
    _change_colours(images, operation_2B[0], level_2B[0])
    _move(images, operation_2B, level_2B * sign_2B)
    _change_colours(images, operation_2B[1], level_2B[1])
    return images


def _change_colours(images_BCHW: Tensor, operation_B: Tensor, level_B: Tensor) -> None:
    """Together: the images that drew the same operation."""
    grouped_B = operation_B.argsort(stable=True)
    counts = operation_B.bincount(minlength=len(OPERATIONS)).tolist()
    there_B, level_B = grouped_B.to(images_BCHW.device), level_B[grouped_B].to(images_BCHW.device)
    start = 0
    for name, count in zip(OPERATIONS, counts, strict=True):
        if count and name in COLOUR_OPERATIONS:
            there_M, level_M = there_B[start : start + count], level_B[start : start + count]
            changed = COLOUR_OPERATIONS[name](images_BCHW.index_select(0, there_M), level_M)
            images_BCHW.index_copy_(0, there_M, changed)
        start += count


def _move(images_BCHW: Tensor, operation_2B: Tensor, signed_level_2B: Tensor) -> None:
    is_move_B = (operation_2B >= OPERATIONS.index(MOVES[0])).any(dim=0)
    chosen_M = is_move_B.nonzero()[:, 0]
    if not len(chosen_M):
        return
    height, width = images_BCHW.shape[-2:]
    first, second = (
        _map_of(operation_M, level_M / MAX_LEVEL, height, width)
        for operation_M, level_M in zip(operation_2B[:, chosen_M], signed_level_2B[:, chosen_M], strict=True)
    )
    there_M = chosen_M.to(images_BCHW.device)
    joined = second.after(first).to(images_BCHW.device)
    images_BCHW.index_copy_(0, there_M, warp_nearest(images_BCHW.index_select(0, there_M), joined))


def _map_of(operation_M: Tensor, strength_M: Tensor, height: int, width: int) -> AffineMap:
    """The move of each image, the identity for other operations. Strength is in -0.9..0.9."""
    rotate, shear_x, shear_y, translate_x, translate_y = (
        strength_M * (operation_M == OPERATIONS.index(name)) for name in MOVES
    )
    radians = -30 * torch.pi / 180 * rotate
    cos, sin = radians.cos(), radians.sin()
    shear_x, shear_y = 0.3 * shear_x, 0.3 * shear_y
    linear_22M = torch.stack((cos, sin + shear_x, shear_y - sin, cos)).view(2, 2, -1)
    # PIL shears from the top left corner, not from the centre: the difference is a shift.
    shift_x = 0.3 * width * translate_x + shear_x * height / 2
    shift_y = 0.3 * height * translate_y + shear_y * width / 2
    return AffineMap(linear_22M.permute(2, 0, 1), torch.stack((shift_x, shift_y), dim=1))
