"""Moving pixels: crops, flips, affine maps, quarter turns, cutout.

B images, C channels, H×W pixels. Maps go from the pixel to fill to the pixel to read (PIL's direction), in
pixels from the centre of the image: read = linear @ fill + shift.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

GRAY = 127
_CROP_TRIES = 10
_CROP_RATIO = 4 / 3


def crop_and_flip(
    images_BCHW: Tensor,
    pad: int,
    pad_mode: Literal["reflect", "zeros"],
    flip: bool,
    generator: torch.Generator,
) -> Tensor:
    """A random H×W window of the padded image. Padding is index arithmetic: nothing is copied twice."""
    num_images, _, height, width = images_BCHW.shape
    start_2B1 = torch.randint(-pad, pad + 1, (2, num_images, 1), generator=generator, device=generator.device)
    rows_BH = start_2B1[0] + torch.arange(height, device=generator.device)
    columns_BW = start_2B1[1] + torch.arange(width, device=generator.device)
    if flip:
        flipped_B1 = torch.rand((num_images, 1), generator=generator, device=generator.device) < 0.5
        columns_BW = torch.where(flipped_B1, columns_BW.flip(1), columns_BW)
    if pad_mode == "reflect":
        rows_BH, columns_BW = _reflected(rows_BH, height), _reflected(columns_BW, width)
    rows_BH1, columns_B1W = (
        rows_BH.to(images_BCHW.device)[:, :, None],
        columns_BW.to(images_BCHW.device)[:, None],
    )
    if pad_mode == "reflect" and pad < min(height, width):  # all of them are inside
        return _pixels_at(images_BCHW, rows_BH1 * width + columns_B1W)
    return read_pixels(images_BCHW, rows_BH1, columns_B1W)


def _reflected(index: Tensor, size: int) -> Tensor:
    """-1 → 1 and size → size-2, as torch's and numpy's reflect padding."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def read_pixels(images_BCHW: Tensor, rows_BHW: Tensor, columns_BHW: Tensor) -> Tensor:
    """The pixel at (row, column) for each place to fill; black outside. Rows and columns are whole numbers of any
    type, and may be broadcast."""
    height, width = images_BCHW.shape[-2:]
    # Whatever is outside is read from a border of one black pixel.
    bordered = functional.pad(images_BCHW, (1, 1, 1, 1))
    rows_BHW, columns_BHW = rows_BHW.clamp(-1, height) + 1, columns_BHW.clamp(-1, width) + 1
    return _pixels_at(bordered, rows_BHW * (width + 2) + columns_BHW)


def _pixels_at(images_BCHW: Tensor, position_BHW: Tensor) -> Tensor:
    """Positions count the pixels of an image row by row."""
    index_B1N = position_BHW.to(torch.int64).flatten(1)[:, None]
    read_BCN = images_BCHW.flatten(2).gather(2, index_B1N.expand(-1, images_BCHW.shape[1], -1))
    return read_BCN.view(*images_BCHW.shape[:2], *position_BHW.shape[1:])


@dataclass(frozen=True)
class AffineMap:
    linear: Tensor
    """B×2×2"""
    shift: Tensor
    """B×2"""

    def after(self, first: "AffineMap") -> "AffineMap":
        """`first` and then this one, as one map: reading goes backwards, so `first` is applied last."""
        shift_B2 = (first.linear @ self.shift[:, :, None])[:, :, 0] + first.shift
        return AffineMap(first.linear @ self.linear, shift_B2)

    def to(self, device: torch.device) -> "AffineMap":
        return AffineMap(self.linear.to(device), self.shift.to(device))

    def coordinates(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """x and y to read for every pixel's centre, each B×H×W."""
        device = self.shift.device
        x_W = torch.arange(0.5 - width / 2, width / 2, device=device)
        y_H1 = torch.arange(0.5 - height / 2, height / 2, device=device)[:, None]
        a = self.linear[:, :, :, None, None]
        shift = self.shift[:, :, None, None]
        x_BHW = a[:, 0, 0] * x_W + (a[:, 0, 1] * y_H1 + shift[:, 0])
        y_BHW = a[:, 1, 0] * x_W + (a[:, 1, 1] * y_H1 + shift[:, 1])
        return x_BHW, y_BHW


def warp_nearest(images_BCHW: Tensor, affine: AffineMap) -> Tensor:
    """PIL's nearest neighbour: the pixel that contains the point."""
    height, width = images_BCHW.shape[-2:]
    x_BHW, y_BHW = affine.coordinates(height, width)
    return read_pixels(images_BCHW, y_BHW.add_(height / 2).floor_(), x_BHW.add_(width / 2).floor_())


def warp_bilinear(
    images_BCHW: Tensor, affine: AffineMap, outside: Literal["zeros", "border"] = "zeros"
) -> Tensor:
    height, width = images_BCHW.shape[-2:]
    x_BHW, y_BHW = affine.coordinates(height, width)
    grid_BHW2 = torch.stack((x_BHW.mul_(2 / width), y_BHW.mul_(2 / height)), dim=-1)
    return functional.grid_sample(
        images_BCHW, grid_BHW2, mode="bilinear", padding_mode=outside, align_corners=False
    )


def resized_crop(images_BCHW: Tensor, min_area: float, flip: bool, generator: torch.Generator) -> Tensor:
    """torchvision's RandomResizedCrop, with edges that need not lie between pixels, and a flip where allowed. Of up to
    ten windows the first that fits, of min_area..1 of the image and sides as 3:4 to 4:3, is scaled to H×W. uint8 in and
    out."""
    num_images, _, height, width = images_BCHW.shape
    area_TB, ratio_TB = torch.rand((2, _CROP_TRIES, num_images), generator=generator, device=generator.device)
    place_2B = torch.rand((2, num_images), generator=generator, device=generator.device)
    root_TB = (min_area + (1 - min_area) * area_TB).sqrt()
    stretch_TB = ((ratio_TB - 0.5) * math.log(_CROP_RATIO)).exp() * math.sqrt(height / width)
    share_2TB = torch.stack((root_TB * stretch_TB, root_TB / stretch_TB))
    first_B = (share_2TB <= 1).all(0).to(torch.uint8).argmax(0)
    share_2B = share_2TB[:, first_B, torch.arange(num_images, device=first_B.device)].clamp_(max=1)
    extent_21 = torch.tensor([[width], [height]], device=generator.device)
    shift_2B = (place_2B - 0.5) * (1 - share_2B) * extent_21
    if flip:
        share_2B[0] *= (
            torch.randint(0, 2, (num_images,), generator=generator, device=generator.device) * 2 - 1
        )
    window = AffineMap(torch.diag_embed(share_2B.T), shift_2B.T).to(images_BCHW.device)
    return warp_bilinear(images_BCHW.to(torch.float32), window, "border").round_().to(torch.uint8)


def quarter_turns(images_BCHW: Tensor, turns_B: Tensor) -> Tensor:
    """Each square image turned to the left by its number of quarters, 0..3."""
    turned_4BCHW = torch.stack([images_BCHW.rot90(turns, (2, 3)) for turns in range(4)])
    return turned_4BCHW[turns_B, torch.arange(len(turns_B), device=turns_B.device)]


def cutout(images_BCHW: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A gray square at a uniform centre, clipped at the borders."""
    height, width = images_BCHW.shape[-2:]
    in_rows_BH = _in_window(len(images_BCHW), height, round(share * height), generator)
    in_columns_BW = _in_window(len(images_BCHW), width, round(share * width), generator)
    # Arithmetic, which is vectorised; `&` and masked_fill are not, and take three and ten times as long.
    square_BHW = in_rows_BH.view(torch.uint8)[:, :, None] * in_columns_BW.view(torch.uint8)[:, None, :]
    square_B1HW = square_BHW[:, None].to(images_BCHW.device, images_BCHW.dtype)
    return (images_BCHW * (1 - square_B1HW)).add_(square_B1HW, alpha=GRAY)


def _in_window(num_images: int, size: int, window: int, generator: torch.Generator) -> Tensor:
    centre_B1 = torch.randint(0, size, (num_images, 1), generator=generator, device=generator.device)
    distance_BS = torch.arange(size, device=generator.device) - (centre_B1 - window // 2)
    return (distance_BS >= 0) & (distance_BS < window)
