"""PIL's colour operations on a batch of uint8 images, each image with its own parameter.

M images that drew the operation, C channels, H×W pixels. The arithmetic follows PIL's ImageEnhance
and ImageOps, including where they round and where they cut off; of `hue` and `blur`, torchvision's on tensors.
"""

import torch
from torch import Tensor
from torch.nn import functional


def brightness(images_MCHW: Tensor, factor_M: Tensor) -> Tensor:
    """Blends with black."""
    factor = factor_M.to(torch.float32)[:, None, None, None]
    return (images_MCHW * factor).clamp_(0, 255).to(torch.uint8)


def contrast(images_MCHW: Tensor, factor_M: Tensor) -> Tensor:
    mean_M111 = _luminance(images_MCHW).mean(dim=(1, 2, 3), keepdim=True, dtype=torch.float32)
    return _blend((mean_M111 + 0.5).floor(), images_MCHW, factor_M)


def saturation(images_MCHW: Tensor, factor_M: Tensor) -> Tensor:
    """ImageEnhance.Color."""
    return _blend(_luminance(images_MCHW), images_MCHW, factor_M)


def sharpness(images_MCHW: Tensor, factor_M: Tensor) -> Tensor:
    """Blends with ImageFilter.SMOOTH: kernel (1 1 1, 1 5 1, 1 1 1)/13, border pixels left alone."""
    smooth = images_MCHW.to(torch.float32)
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1]
    rows += smooth[:, :, 2:]
    box_sum = rows[..., :-2] + rows[..., 1:-1]
    box_sum += rows[..., 2:]
    smooth[:, :, 1:-1, 1:-1].mul_(4).add_(box_sum).mul_(1 / 13).add_(0.5).floor_()
    return _blend(smooth, images_MCHW, factor_M)


def hue(images_MCHW: Tensor, turn_M: Tensor) -> Tensor:
    """Turns every pixel's hue by a share of the colour circle, in HSV. Gray images stay as they are."""
    if images_MCHW.shape[1] != 3:
        return images_MCHW
    rgb = images_MCHW.to(torch.float32)
    value, spread = rgb.amax(1), rgb.amax(1) - rgb.amin(1)
    red, green, blue = rgb.unbind(1)
    divisor = spread.clamp(min=1)
    from_blue = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sixths_MHW = torch.where(value == red, (green - blue) / divisor, from_blue)
    sixths_MHW += 6 * turn_M.to(torch.float32)[:, None, None]
    # From a sixth of the circle on either side of its own hue, a channel has all of the value.
    from_peak_M3HW = (sixths_MHW[:, None] + sixths_MHW.new_tensor([5, 3, 1])[:, None, None]).remainder_(6)
    lacking_M3HW = torch.minimum(from_peak_M3HW, 4 - from_peak_M3HW).clamp_(0, 1)
    return (value[:, None] - spread[:, None] * lacking_M3HW).round_().to(torch.uint8)


def blur(images_MCHW: Tensor, sigma_M: Tensor) -> Tensor:
    """A Gaussian of 3×3 pixels, the border reflected; 0 leaves an image as it is."""
    side_M111 = (-0.5 / sigma_M.to(torch.float32).square())[:, None, None, None].exp()
    padded = functional.pad(images_MCHW.to(torch.float32), (1, 1, 1, 1), mode="reflect")
    rows = padded[:, :, 1:-1] + (padded[:, :, :-2] + padded[:, :, 2:]) * side_M111
    both = rows[..., 1:-1] + (rows[..., :-2] + rows[..., 2:]) * side_M111
    return (both / (1 + 2 * side_M111).square()).round_().to(torch.uint8)


def autocontrast(images_MCHW: Tensor) -> Tensor:
    """Stretches each channel to 0..255; a channel of one value stays as it is."""
    low = images_MCHW.amin(dim=(2, 3), keepdim=True).to(torch.float32)
    spread = images_MCHW.amax(dim=(2, 3), keepdim=True).to(torch.float32).sub_(low)
    # One value only: minus 0, times 255, over 255. A quotient up to 255 of whole numbers is never rounded up to one.
    is_flat = spread == 0
    stretched = images_MCHW.to(torch.float32).sub_(low.masked_fill_(is_flat, 0))
    return stretched.mul_(255).div_(spread.masked_fill_(is_flat, 255)).to(torch.uint8)


def equalize(images_MCHW: Tensor) -> Tensor:
    """ImageOps.equalize: a look-up table per channel from its histogram."""
    pixels_MCN = images_MCHW.flatten(2).to(torch.int64)
    counts_MCV = pixels_MCN.new_zeros((*pixels_MCN.shape[:2], 256))
    counts_MCV.scatter_add_(2, pixels_MCN, torch.ones_like(pixels_MCN))
    of_largest_value = counts_MCV.gather(2, images_MCHW.flatten(2).amax(dim=2, keepdim=True).to(torch.int64))
    step = (pixels_MCN.shape[2] - of_largest_value) // 255
    below_MCV = counts_MCV.cumsum(2) - counts_MCV
    table_MCV = ((below_MCV + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table_MCV = torch.where(step > 0, table_MCV, torch.arange(256, device=step.device)).to(torch.uint8)
    return table_MCV.gather(2, pixels_MCN).view(images_MCHW.shape)


def posterize(images_MCHW: Tensor, bits_M: Tensor) -> Tensor:
    """Keeps the given number of high bits."""
    mask = (256 - 2 ** (8 - bits_M.to(torch.int32))).to(torch.uint8)
    return images_MCHW & mask[:, None, None, None]


def solarize(images_MCHW: Tensor, threshold_M: Tensor) -> Tensor:
    """Inverts the pixels from the threshold on."""
    above = images_MCHW >= threshold_M.to(torch.int32)[:, None, None, None]
    return images_MCHW ^ (above.view(torch.uint8) * 255)


def _blend(degenerate: Tensor, images_MCHW: Tensor, factor_M: Tensor) -> Tensor:
    """Factor 0 is the degenerate image, 1 the image itself; cut off to whole numbers, as PIL does."""
    factor = factor_M.to(torch.float32)[:, None, None, None]
    blended = images_MCHW.to(torch.float32).sub_(degenerate).mul_(factor)
    return blended.add_(degenerate).clamp_(0, 255).to(torch.uint8)


def _luminance(images_MCHW: Tensor) -> Tensor:
    """PIL's convert("L"): ITU-R 601 weights in 16-bit fixed point, which float32 holds exactly: all is below 2²⁴.
    Images that are gray already stay so."""
    if images_MCHW.shape[1] != 3:
        return images_MCHW.to(torch.float32)
    red, green, blue = images_MCHW.to(torch.float32).unbind(dim=1)
    gray_MHW = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return gray_MHW.add_(0x8000).mul_(2**-16).floor_()[:, None]
