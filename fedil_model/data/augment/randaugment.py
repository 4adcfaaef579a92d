"""FixMatch's RandAugment (arXiv 2001.07685, appendix): two operations out of fourteen, drawn with
replacement, each applied with probability one half at a level of 1..9.

B images. The images that drew an operation are handled together. Of an image's two operations the moves are
joined into one map that is read once, between the colour changes of the first and of the second draw: that
keeps the drawn order, since an image has two operations only.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedil_model.data.augment import colour
from fedil_model.data.augment.geometry import AffineMap, warp_nearest

NUM_DRAWS = 2
MAX_LEVEL = 10


COLOUR_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": lambda images, _: colour.autocontrast(images),
    "equalize": lambda images, _: colour.equalize(images),
    "brightness": colour.brightness,
    "color": colour.saturation,
    "contrast": colour.contrast,
    "sharpness": colour.sharpness,
    "posterize": colour.posterize,
    "solarize": colour.solarize,
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
    first, second = zip(operation_2B, _colour_parameters(operation_2B, level_2B), strict=True)
    images = _with_changed_colours(images_BCHW, *first)
    images = _moved(images, operation_2B, level_2B * sign_2B)
    return _with_changed_colours(images, *second)


def _colour_parameters(operation: Tensor, level: Tensor) -> Tensor:
    """What an image's operation makes of its level: a factor, a number of bits, a threshold."""
    factor = 0.05 + 0.9 * level / MAX_LEVEL
    bits, threshold = 4 * level // MAX_LEVEL + 4, 256 - 256 * level // MAX_LEVEL
    parameter = torch.where(operation == OPERATIONS.index("posterize"), bits, factor)
    return torch.where(operation == OPERATIONS.index("solarize"), threshold, parameter)


def _with_changed_colours(images_BCHW: Tensor, operation_B: Tensor, parameter_B: Tensor) -> Tensor:
    """Together: the images that drew the same operation. All are brought next to their likes and back again, which
    takes less time than reading and writing them where they are, operation by operation."""
    device, order_B = images_BCHW.device, operation_B.argsort(stable=True)
    grouped, parameter_B = images_BCHW.index_select(0, order_B.to(device)), parameter_B[order_B].to(device)
    start = 0
    for name, count in zip(OPERATIONS, operation_B.bincount(minlength=len(OPERATIONS)).tolist(), strict=True):
        if count and name in COLOUR_OPERATIONS:
            images_MCHW, parameter_M = grouped[start : start + count], parameter_B[start : start + count]
            images_MCHW.copy_(COLOUR_OPERATIONS[name](images_MCHW, parameter_M))
        start += count
    return grouped.index_select(0, order_B.argsort().to(device))


def _moved(images_BCHW: Tensor, operation_2B: Tensor, signed_level_2B: Tensor) -> Tensor:
    is_move_B = (operation_2B >= OPERATIONS.index(MOVES[0])).any(dim=0)
    chosen_M = is_move_B.nonzero()[:, 0]
    if not len(chosen_M):
        return images_BCHW
    device, (height, width) = images_BCHW.device, images_BCHW.shape[-2:]
    first, second = _maps_of(
        operation_2B[:, chosen_M], signed_level_2B[:, chosen_M] / MAX_LEVEL, height, width
    )
    moved = warp_nearest(images_BCHW.index_select(0, chosen_M.to(device)), second.after(first).to(device))
    # Those that moved are taken from behind the others: writing bytes into their places takes longer.
    behind_B = len(images_BCHW) - 1 + is_move_B.cumsum(0)
    source_B = torch.where(is_move_B, behind_B, torch.arange(len(images_BCHW), device=behind_B.device))
    return torch.cat((images_BCHW, moved)).index_select(0, source_B.to(device))


def _maps_of(
    operation_2M: Tensor, strength_2M: Tensor, height: int, width: int
) -> tuple[AffineMap, AffineMap]:
    """The move of each draw and image, the identity for other operations. Strength is in -0.9..0.9."""
    numbers = torch.arange(OPERATIONS.index(MOVES[0]), len(OPERATIONS), device=operation_2M.device)
    is_move_52M = operation_2M == numbers[:, None, None]
    rotate, shear_x, shear_y, translate_x, translate_y = strength_2M * is_move_52M
    radians = -30 * torch.pi / 180 * rotate
    cos, sin = radians.cos(), radians.sin()
    shear_x, shear_y = 0.3 * shear_x, 0.3 * shear_y
    linear_24M = torch.stack((cos, sin + shear_x, shear_y - sin, cos), dim=1)
    # PIL shears from the top left corner, not from the centre: the difference is a shift.
    shift_x = 0.3 * width * translate_x + shear_x * height / 2
    shift_y = 0.3 * height * translate_y + shear_y * width / 2
    linear_2M22 = linear_24M.view(2, 2, 2, -1).permute(0, 3, 1, 2)
    shift_2M2 = torch.stack((shift_x, shift_y), dim=2)
    return AffineMap(linear_2M22[0], shift_2M2[0]), AffineMap(linear_2M22[1], shift_2M2[1])
