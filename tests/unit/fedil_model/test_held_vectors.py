"""A FlatModel's vectors: there while they are needed, lent without a copy, and never written into by a borrower."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedil_model.errors import StateError
from fedil_model.training.flat_model import FlatModel, Weights, all_finite


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def storages(module: nn.Module) -> set[int]:
    return {p.untyped_storage().data_ptr() for p in module.parameters()}


def shifted(params: Tensor) -> Tensor:
    """The same numbers, four bytes from where torch would have put them."""
    return torch.cat([params.new_zeros(1), params])[1:]


def test_a_handed_over_vector_is_the_one_that_was_trained_and_nothing_of_it_is_kept() -> None:
    model = FlatModel(network())
    assert not model.grads.any()
    trained, before = model.params, model.weights()
    given = model.take_weights()
    assert given.params is trained
    assert torch.equal(given.buffers, before.buffers)
    assert trained.untyped_storage().data_ptr() not in storages(model.module)
    assert all(p.grad is None and p.untyped_storage().nbytes() == 4 for p in model.module.parameters())


def test_a_network_that_holds_nothing_keeps_its_shape_and_can_be_loaded_and_trained() -> None:
    model, twin = FlatModel(network()), FlatModel(network())
    shapes = [p.shape for p in model.module.parameters()]
    start = model.weights()
    model.release()
    assert [p.shape for p in model.module.parameters()] == shapes
    model.load(start)
    x = torch.randn(8, 1, 3, 3)
    for each in (model, twin):
        assert not each.grads.any()
        each.module(x).square().sum().backward()
    assert torch.equal(model.grads, twin.grads)
    assert model.grads.any()


def test_what_is_loaded_after_a_vector_was_handed_over_does_not_change_it() -> None:
    model = FlatModel(network())
    given = model.take_weights()
    before = given.clone()
    model.load(Weights(torch.ones(model.num_params), torch.ones(8)))
    model.params.add_(1.0)
    assert torch.equal(given.params, before.params)
    assert torch.equal(given.buffers, before.buffers)


def test_borrowed_parameters_are_looked_at_where_they_are() -> None:
    model, lender = FlatModel(network()), FlatModel(network()).weights()
    lender.params.add_(0.5)
    expected = FlatModel(network())
    expected.load(lender)
    model.load_view(lender)
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(model.module.eval()(x), expected.module.eval()(x))
    assert storages(model.module) == {lender.params.untyped_storage().data_ptr()}


def test_loading_after_borrowing_does_not_write_into_what_was_lent() -> None:
    model, lender = FlatModel(network()), FlatModel(network()).weights()
    before = lender.clone()
    model.load_view(lender)
    model.load(Weights(torch.full_like(before.params, 7.0), torch.full_like(before.buffers, 7.0)))
    assert torch.equal(lender.params, before.params)
    assert torch.equal(lender.buffers, before.buffers)
    assert bool((model.params == 7.0).all())


def test_parameters_that_lie_where_arithmetic_has_other_bits_are_copied_instead() -> None:
    model, lender = FlatModel(network()), FlatModel(network()).weights()
    aside = shifted(lender.params)
    model.load_view(Weights(aside, lender.buffers))
    assert torch.equal(model.params, lender.params)
    assert storages(model.module).isdisjoint({aside.untyped_storage().data_ptr()})


@pytest.mark.parametrize("shift", [False, True])
def test_weights_of_another_network_are_not_borrowed(shift: bool) -> None:
    model, before = FlatModel(network()), FlatModel(network()).weights()
    wrong = torch.zeros(model.num_params + 1)
    with pytest.raises(StateError, match="do not fit a network"):
        model.load_view(Weights(shifted(wrong) if shift else wrong, before.buffers))
    assert torch.equal(model.params, before.params)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_bad_number_is_found_wherever_it_is(bad: float, place: int) -> None:
    x = torch.randn(1000)
    assert all_finite(x)
    x[place] = bad
    assert not all_finite(x)
