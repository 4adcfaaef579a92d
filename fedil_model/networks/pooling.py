"""Max pooling over 2×2 windows, faster on CPUs than torch's own; CONTRIBUTING.md says by how much.

Shapes: B images, C channels, H×W = N pixels, h×w windows.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_FEW = 1 << 16
"""Elements. For smaller inputs the backward pass of a dozen small operations is slower than torch's."""


class MaxPool2x2(nn.Module):
    """nn.MaxPool2d(2) with bit-identical values and gradients, with two exceptions: the sign of a maximum of 0 where a
    window holds zeros of both signs, and the pixel that receives the gradient where a window holds NaN."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if x_BCHW.device.type != "cpu" or not x_BCHW.is_contiguous() or _is_traced():
            return functional.max_pool2d(x_BCHW, 2)
        if not (torch.is_grad_enabled() and x_BCHW.requires_grad):
            top, bottom = _larger_of_rows(_corners(x_BCHW))
            return torch.maximum(top, bottom)
        if x_BCHW.numel() < _FEW:
            return functional.max_pool2d(x_BCHW, 2)
        pooled_BChw: Tensor = _MaxPool2x2.apply(x_BCHW)
        return pooled_BChw


def _is_traced() -> bool:
    """Whether torch exports or traces: exported programs contain the standard pooling operation."""
    return torch.compiler.is_compiling() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


class _MaxPool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor) -> Tensor:
        corners = _corners(x_BCHW)
        top, bottom = _larger_of_rows(corners)
        ctx.shape = x_BCHW.shape
        ctx.save_for_backward(_positions(corners, top < bottom, x_BCHW.shape[-1]))
        return torch.maximum(top, bottom)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BChw: Tensor) -> Tensor:
        (positions_BChw,) = ctx.saved_tensors
        grad_BCN = grad_BChw.new_zeros(ctx.shape).flatten(-2)
        grad_BCN.scatter_add_(-1, positions_BChw.flatten(-2), grad_BChw.flatten(-2))
        return grad_BCN.view(ctx.shape)


def _corners(x_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top left, top right, bottom left, bottom right of all windows; without the last row or column of an odd side."""
    height, width = x_BCHW.shape[-2] // 2 * 2, x_BCHW.shape[-1] // 2 * 2
    x = x_BCHW[..., :height, :width]
    return x[..., 0::2, 0::2], x[..., 0::2, 1::2], x[..., 1::2, 0::2], x[..., 1::2, 1::2]


def _larger_of_rows(corners: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    top_left, top_right, bottom_left, bottom_right = corners
    return torch.maximum(top_left, top_right), torch.maximum(bottom_left, bottom_right)


def _positions(corners: tuple[Tensor, Tensor, Tensor, Tensor], at_bottom_BChw: Tensor, width: int) -> Tensor:
    """Index of each window's maximum in its H×W map; the first of equal pixels, as in torch."""
    top_left, top_right, bottom_left, bottom_right = corners
    right_at_top, right_at_bottom = top_left < top_right, bottom_left < bottom_right
    # A selection by xor: torch.where is not vectorised and ten times slower.
    at_right_BChw = right_at_top ^ (at_bottom_BChw & (right_at_top ^ right_at_bottom))
    rows, columns = at_bottom_BChw.shape[-2:]
    row_starts = torch.arange(rows, dtype=torch.int32)[:, None] * (2 * width)
    first_hw = row_starts + torch.arange(columns, dtype=torch.int32) * 2
    # Converted last: arithmetic on narrow integers is faster.
    offset_BChw = at_bottom_BChw.to(torch.int32).mul_(width).add_(at_right_BChw.to(torch.int32))
    return offset_BChw.add_(first_hw).to(torch.int64)
