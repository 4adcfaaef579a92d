"""MaxPool2x2 against nn.MaxPool2d(2), bit for bit."""

import pytest
import torch
from torch import Tensor, nn

from fedil_model.networks import pooling as module
from fedil_model.networks.pooling import MaxPool2x2

SHAPES = ((2, 3, 8, 8), (1, 1, 2, 2), (3, 2, 7, 10), (2, 5, 9, 5), (0, 3, 4, 4), (2, 1, 6, 300))
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.fixture(autouse=True)
def _no_lower_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs, which torch pools otherwise, take our path."""
    monkeypatch.setattr(module, "_FEW", 0)


def bits(tensor: Tensor) -> Tensor:
    """Distinguishes 0 from −0."""
    return tensor.detach().contiguous().view(torch.uint8)


def pooled_and_gradient(pooling: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    pooled = pooling(leaf)
    slopes = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    (gradient,) = torch.autograd.grad(pooled, leaf, slopes)
    return pooled, gradient


def assert_like_torch(x: Tensor) -> None:
    expected, found = pooled_and_gradient(nn.MaxPool2d(2), x), pooled_and_gradient(MaxPool2x2(), x)
    for ours, torchs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
        assert torch.equal(bits(ours), bits(torchs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_equal_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert_like_torch(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_equal_pixels_the_first_gets_the_gradient(dtype: torch.dtype) -> None:
    # All windows of three values: every possible tie.
    windows = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 2.0])] * 4)
    assert_like_torch(windows.view(1, -1, 2, 2).to(dtype))


def test_of_zeros_of_both_signs_the_first_gets_the_gradient() -> None:
    windows = torch.cartesian_prod(*[torch.tensor([-0.0, 0.0])] * 4).view(1, -1, 2, 2)
    (_, expected), (pooled, found) = (
        pooled_and_gradient(pool, windows) for pool in (nn.MaxPool2d(2), MaxPool2x2())
    )
    assert torch.equal(pooled, torch.zeros_like(pooled))
    assert torch.equal(bits(found), bits(expected))


def test_infinities_are_compared_like_other_numbers() -> None:
    windows = torch.cartesian_prod(*[torch.tensor([-torch.inf, 1.0, torch.inf])] * 4)
    assert_like_torch(windows.view(1, -1, 2, 2))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_nan_is_the_maximum_wherever_in_the_window_it_is(needs_gradient: bool) -> None:
    windows = torch.cartesian_prod(*[torch.tensor([1.0, torch.nan])] * 4).view(1, -1, 2, 2)
    pooled = MaxPool2x2()(windows.requires_grad_(needs_gradient))
    assert torch.equal(pooled.isnan(), windows.isnan().any(-1).any(-1)[..., None, None])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_gradients_the_values_are_the_same(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.no_grad():
        pooled = MaxPool2x2()(x)
    assert not pooled.requires_grad
    assert torch.equal(bits(pooled), bits(nn.MaxPool2d(2)(x)))


def test_every_memory_layout_is_pooled() -> None:
    x = torch.randn((2, 6, 8, 4), generator=torch.Generator().manual_seed(0))
    assert_like_torch(x.to(memory_format=torch.channels_last))
    assert_like_torch(x.transpose(2, 3))


@pytest.mark.parametrize(("few", "is_ours"), [(128, True), (129, False)])
def test_small_inputs_use_the_gradient_of_torch(
    few: int, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FEW", few)
    pooled = MaxPool2x2()(torch.zeros((2, 1, 8, 8), requires_grad=True))
    assert ("_MaxPool2x2" in type(pooled.grad_fn).__name__) == is_ours


def test_the_next_layer_may_work_in_place() -> None:
    x = torch.randn((2, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    ours, torchs = (
        nn.Sequential(pooling, nn.ReLU(inplace=True)) for pooling in (MaxPool2x2(), nn.MaxPool2d(2))
    )
    expected, found = pooled_and_gradient(torchs, x), pooled_and_gradient(ours, x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_it_has_no_state() -> None:
    assert not MaxPool2x2().state_dict()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:FutureWarning")
def test_a_traced_program_contains_the_pooling_of_torch() -> None:
    traced = torch.jit.trace(MaxPool2x2(), torch.zeros(1, 1, 4, 4))  # type: ignore[no-untyped-call]
    assert "aten::max_pool2d" in str(traced.inlined_graph)


def test_an_exported_program_contains_the_pooling_of_torch() -> None:
    exported = torch.export.export(MaxPool2x2(), (torch.zeros(1, 1, 4, 4),))
    assert "aten.max_pool2d" in str(exported.graph)
