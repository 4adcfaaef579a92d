"""FlatModel: views, order, round trips and refusals; Weights and arrays."""

import numpy as np
import pytest
import torch
from torch import nn

from fedil_model.errors import NetworkError, StateError
from fedil_model.training.flat_model import FlatModel, Weights, from_arrays, to_arrays


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def step(module: nn.Module) -> None:
    module(torch.randn(8, 1, 3, 3)).square().sum().backward()


def test_parameters_and_gradients_are_views_of_the_vectors() -> None:
    model = FlatModel(network())
    model.params.fill_(0.25)
    assert all(bool((p == 0.25).all()) for p in model.module.parameters())
    assert not model.grads.any()
    step(model.module)
    assert float(model.grads.abs().sum()) > 0
    gathered = sum(float(p.grad.abs().sum()) for p in model.module.parameters() if p.grad is not None)
    assert float(model.grads.abs().sum()) == pytest.approx(gathered, rel=1e-5)
    storage = model.grads.untyped_storage().data_ptr()
    assert all(
        p.grad.untyped_storage().data_ptr() == storage
        for p in model.module.parameters()
        if p.grad is not None
    )


def test_a_second_backward_adds_to_the_same_vector() -> None:
    model = FlatModel(nn.Linear(2, 1))
    assert model.grads.tolist() == [0.0] * 3
    for expected in (1.0, 2.0):
        model.module(torch.ones(1, 2)).sum().backward()
        assert model.grads.tolist() == [expected] * 3


def test_flattening_changes_no_weight_and_no_output() -> None:
    plain, flat = network().eval(), FlatModel(network()).module.eval()
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(plain(x), flat(x))


def test_decayed_parameters_come_first_and_the_rest_keeps_its_order() -> None:
    module = network()
    model = FlatModel(module)
    assert model.num_decayed == 4 * 9 + 4 * 2
    named = dict(module.named_parameters())
    order = ["0.weight", "3.weight", "0.bias", "1.weight", "1.bias", "3.bias"]
    assert torch.equal(model.params, torch.cat([named[name].detach().flatten() for name in order]))


def test_a_frozen_parameter_is_no_part_of_the_vector() -> None:
    module = network()
    frozen = dict(module.named_parameters())["0.weight"].requires_grad_(False)
    model = FlatModel(module)
    assert model.num_decayed == 4 * 2
    before = frozen.clone()
    model.params.zero_()
    assert torch.equal(frozen, before)


def test_a_shared_parameter_is_there_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = FlatModel(nn.Sequential(first, second))
    assert model.params.numel() == 9 + 3 + 3
    model.params.fill_(2.0)
    assert second.weight.flatten().tolist() == [2.0] * 9


def test_weights_are_a_copy_and_loading_them_restores_parameters_and_buffers() -> None:
    model = FlatModel(network())
    saved = model.weights()
    assert saved.buffers.numel() == 8
    step(model.module.train())
    model.params.add_(1.0)
    changed = model.weights()
    assert not torch.equal(saved.params, changed.params)
    assert not torch.equal(saved.buffers, changed.buffers)
    model.load(saved)
    assert torch.equal(model.weights().params, saved.params)
    assert torch.equal(model.weights().buffers, saved.buffers)
    # Loading copies too: what was loaded is not trained along.
    model.params.add_(1.0)
    assert not torch.equal(model.params, saved.params)


def test_loading_keeps_gradients_and_parameters_views() -> None:
    model = FlatModel(network())
    assert not model.grads.any()
    model.load(Weights(torch.ones_like(model.params), torch.ones(8)))
    assert all(bool((p == 1).all()) for p in model.module.parameters())
    step(model.module)
    assert model.grads.any()


def test_a_network_without_buffers_has_an_empty_vector_of_them() -> None:
    model = FlatModel(nn.Linear(2, 2))
    assert model.weights().buffers.shape == (0,)
    model.load(model.weights())


@pytest.mark.parametrize(("extra_params", "extra_buffers"), [(1, 0), (-1, 0), (0, 1), (0, -8)])
def test_weights_of_another_network_are_refused_and_nothing_is_loaded(
    extra_params: int, extra_buffers: int
) -> None:
    model = FlatModel(network())
    before = model.weights()
    wrong = Weights(torch.zeros(before.params.numel() + extra_params), torch.zeros(8 + extra_buffers))
    with pytest.raises(StateError, match="do not fit a network"):
        model.load(wrong)
    assert torch.equal(model.weights().params, before.params)
    assert torch.equal(model.weights().buffers, before.buffers)


def test_a_network_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(NetworkError, match="no trainable parameters"):
        FlatModel(nn.ReLU())


def test_a_network_of_another_precision_is_refused_by_the_name_of_its_parameter() -> None:
    with pytest.raises(NetworkError, match=r"weight.*float64"):
        FlatModel(nn.Linear(2, 2).double())


def test_weights_travel_as_named_arrays() -> None:
    weights = Weights(torch.arange(4.0), torch.arange(2.0))
    arrays = to_arrays(weights.tensors("server"))
    assert set(arrays) == {"server.params", "server.buffers"}
    back = Weights.named(from_arrays(arrays), "server")
    assert torch.equal(back.params, weights.params)
    assert torch.equal(back.buffers, weights.buffers)


def test_missing_weights_are_named() -> None:
    with pytest.raises(StateError, match="'client'"):
        Weights.named({"server.params": torch.ones(1)}, "client")


def test_read_only_arrays_become_tensors_without_a_copy_or_a_warning() -> None:
    array = np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32)
    tensor = from_arrays({"x": array})["x"]
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensor.data_ptr() == array.ctypes.data


def test_a_clone_does_not_follow_its_original() -> None:
    weights = Weights(torch.ones(2), torch.ones(1))
    twin = weights.clone()
    weights.params.zero_()
    weights.buffers.zero_()
    assert twin.params.tolist() == [1.0, 1.0]
    assert twin.buffers.tolist() == [1.0]


def test_counters_begin_as_built_with_every_load() -> None:
    """They are not sent; one client's training must not show in the next one's."""
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None))
    model = FlatModel(module)
    fresh = model.weights()
    first = module(torch.ones(2, 3) * torch.tensor([[1.0], [2.0]]))
    trained = model.weights()
    model.load(fresh)
    assert int(module[1].num_batches_tracked) == 0  # type: ignore[arg-type]
    assert torch.equal(module(torch.ones(2, 3) * torch.tensor([[1.0], [2.0]])), first)
    assert torch.equal(model.weights().buffers, trained.buffers)


def test_a_buffer_that_is_not_float32_is_named() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    network.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    with pytest.raises(NetworkError, match=r"buffer scale is torch\.float64"):
        FlatModel(network)
