from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fedil_model.errors import NetworkError, SettingError
from fedil_model.networks import NETWORKS, build_network, features_of, refresh_statistics
from fedil_model.networks.normalisation import StaticBatchNorm2d, make_norm, num_groups
from fedil_model.settings import NetworkSettings

Norm = Literal["none", "bn", "sbn", "gn"]
NORMS: list[Norm] = ["none", "bn", "sbn", "gn"]
SHAPE_OF = {"resnet9": (1, 28, 28), "cnn": (1, 8, 8), "lenet5": (1, 28, 28), "mlp": (12,)}


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def same_state(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize(("norm", "expected"), [("none", 6_568_640), ("bn", 6_573_130), ("gn", 6_573_130)])
def test_resnet9_has_the_papers_number_of_parameters(norm: Norm, expected: int) -> None:
    network = build_network(NetworkSettings(norm=norm), (3, 32, 32), 10, seed=0)
    assert num_parameters(network) == expected
    assert sum(p.numel() for p in network.parameters() if p.dim() == 4) == 6_563_520


def test_resnet9_of_width_8_has_the_prototypes_size() -> None:
    network = build_network(NetworkSettings(width=8, norm="gn"), (1, 28, 28), 10, seed=0)
    assert 100_000 < num_parameters(network) < 108_000


def test_lenet5_of_width_16_has_the_originals_layers() -> None:
    network = build_network(NetworkSettings(name="lenet5", width=16, norm="none"), (1, 32, 32), 10, seed=0)
    assert [p.numel() for p in network.parameters()] == [150, 6, 2400, 16, 48000, 120, 10080, 84, 840, 10]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_turns_a_batch_into_logits_and_learns(name: str, norm: Norm) -> None:
    network = build_network(NetworkSettings(name=name, norm=norm, width=8), SHAPE_OF[name], 5, seed=1)
    logits_BC = network(torch.randn(3, *SHAPE_OF[name], generator=torch.Generator().manual_seed(0)))
    assert logits_BC.shape == (3, 5)
    logits_BC.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_the_same_seed_gives_the_same_bits_and_the_global_generator_is_not_touched(name: str) -> None:
    settings = NetworkSettings(name=name, width=8)
    before = torch.get_rng_state()
    first = build_network(settings, SHAPE_OF[name], 4, seed=7)
    torch.rand(3)
    again = build_network(settings, SHAPE_OF[name], 4, seed=7)
    other = build_network(settings, SHAPE_OF[name], 4, seed=8)
    torch.set_rng_state(before)
    build_network(settings, SHAPE_OF[name], 4, seed=9)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_state(first, again)
    assert not same_state(first, other)


def test_the_probe_of_a_new_network_leaves_mode_and_buffers_alone() -> None:
    network = build_network(NetworkSettings(width=4, norm="bn"), (3, 32, 32), 10, seed=0)
    assert network.training
    tracked = {name: value for name, value in network.named_buffers() if "num_batches" in name}
    assert len(tracked) == 8
    assert all(value == 0 for value in tracked.values())


def test_resnet9_takes_larger_pictures_too() -> None:
    network = build_network(NetworkSettings(width=2, norm="gn"), (3, 64, 48), 4, seed=0)
    assert network(torch.zeros(1, 3, 64, 48)).shape == (1, 4)


@pytest.mark.parametrize(
    ("name", "shape", "advice"),
    [
        ("resnet9", (1, 8, 8), "cnn"),
        ("resnet9", (64,), "mlp"),
        ("cnn", (64,), "mlp"),
        ("lenet5", (1, 8, 8), "cnn"),
    ],
)
def test_a_network_that_cannot_take_the_data_names_one_that_can(
    name: str, shape: tuple[int, ...], advice: str
) -> None:
    with pytest.raises(NetworkError, match=f'use network.name = "{advice}"'):
        build_network(NetworkSettings(name=name), shape, 10, seed=0)


def test_an_unknown_network_lists_the_known() -> None:
    with pytest.raises(SettingError, match="cnn, lenet5, mlp, resnet9"):
        build_network(NetworkSettings(name="resnet99"), (1, 8, 8), 10, seed=0)


def test_an_option_that_a_network_does_not_have_is_refused() -> None:
    deep = build_network(NetworkSettings(name="mlp", options={"depth": 3}, width=8), (6,), 2, seed=0)
    assert sum(isinstance(module, nn.Linear) for module in deep.modules()) == 4
    with pytest.raises(SettingError, match=r"network\.options.*dept"):
        build_network(NetworkSettings(name="mlp", options={"dept": 3}), (6,), 2, seed=0)


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 7, 8, 12, 24, 48, 64, 96, 128, 256, 512])
def test_groups_divide_the_channels_and_are_32_at_full_width(channels: int) -> None:
    groups = num_groups(channels)
    assert channels % groups == 0
    assert groups == min(32, channels) or channels % 32
    make_norm("gn", channels)(torch.randn(2, channels, 4, 4))


def test_group_norm_of_flat_features_keeps_more_than_their_signs() -> None:
    features_BC = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    normalised_BC = make_norm("gn", 8, spatial=False)(features_BC)
    assert torch.allclose(normalised_BC, torch.nn.functional.layer_norm(features_BC, (8,)), atol=1e-5)


def test_static_batch_norm_trains_on_the_batch_and_leaves_its_buffers() -> None:
    layer, reference = StaticBatchNorm2d(3), nn.BatchNorm2d(3)
    x_BCHW = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    buffers = {name: value.clone() for name, value in layer.named_buffers()}
    assert torch.equal(layer(x_BCHW), reference(x_BCHW))
    assert all(torch.equal(value, buffers[name]) for name, value in layer.named_buffers())
    assert torch.allclose(layer.eval()(x_BCHW), x_BCHW, atol=1e-4)  # fresh buffers: mean 0, variance 1


def test_refreshing_computes_the_cumulative_average_over_the_batches() -> None:
    layer = StaticBatchNorm2d(2)
    model = nn.Sequential(layer, nn.Dropout(0.5))
    samples = torch.randn(1202, 2, 2, 2, generator=torch.Generator().manual_seed(0)) * 2 + 5
    batches = torch.split(samples, [401, 401, 400])  # of one size, as nearly as it goes
    refresh_statistics(model, torch.full((4, 2, 4, 4), 100.0), Tensor.clone)  # must be forgotten by the next
    refresh_statistics(model, samples - 1.0, lambda raw: raw + 1.0)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    means = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in batches])
    variances = torch.stack([batch.var(dim=(0, 2, 3)) for batch in batches])
    assert torch.allclose(layer.running_mean, means.mean(0), atol=1e-5)
    assert torch.allclose(layer.running_var, variances.mean(0), atol=1e-4)
    assert model.training
    assert not layer.collecting


def test_refreshing_without_static_layers_does_nothing() -> None:
    plain = nn.BatchNorm2d(2)
    refresh_statistics(nn.Sequential(plain), torch.full((4, 2, 4, 4), 100.0), Tensor.clone)
    assert torch.equal(plain.running_mean, torch.zeros(2)) if plain.running_mean is not None else False


USERS_NETWORK = """
from torch import nn
def linear(input_shape, num_classes, hidden=4):
    size = 1
    for side in input_shape:
        size *= side
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.Linear(hidden, num_classes))
def wrong(input_shape, num_classes):
    return nn.Flatten()
def failing(input_shape, num_classes):
    return nn.Linear(99, num_classes)
def not_a_network(input_shape, num_classes):
    return "resnet"
"""


@pytest.fixture
def users_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_network.py").write_text(USERS_NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "users_own_network"


def test_a_users_network_is_called_with_shapes_and_options(users_network: str) -> None:
    settings = NetworkSettings(name=f"{users_network}:linear", options={"hidden": 6})
    network = build_network(settings, (1, 3, 3), 4, seed=0)
    assert num_parameters(network) == 9 * 6 + 6 + 6 * 4 + 4
    assert same_state(network, build_network(settings, (1, 3, 3), 4, seed=0))


def test_a_users_network_that_does_not_fit_is_refused_with_both_shapes(users_network: str) -> None:
    with pytest.raises(NetworkError, match=r"\(2, 9\).*\(2, 4\)"):
        build_network(NetworkSettings(name=f"{users_network}:wrong"), (1, 3, 3), 4, seed=0)
    with pytest.raises(NetworkError, match=r"fails on an input of shape \(2, 1, 3, 3\)"):
        build_network(NetworkSettings(name=f"{users_network}:failing"), (1, 3, 3), 4, seed=0)
    with pytest.raises(SettingError, match="returned a str"):
        build_network(NetworkSettings(name=f"{users_network}:not_a_network"), (1, 3, 3), 4, seed=0)


class TwoFaced(nn.Module):
    """Right when evaluated with two samples; otherwise as `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.seen: Tensor
        self.fc, self.kind = nn.Linear(3, 4), kind
        self.norm = nn.BatchNorm1d(3).eval()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> object:
        logits = self.fc(nn.functional.dropout(self.norm(x), training=self.training))
        if self.kind == "fixed batch":
            return logits.reshape(2, 4)
        if not self.training:
            return logits
        if self.kind == "grows":
            self.seen = torch.cat([self.seen, self.seen])
        self.seen += 1.0
        return {"tuple": (logits, logits), "wider": torch.cat([logits, logits], 1)}.get(self.kind, logits)


def two_faced(input_shape: tuple[int, ...], num_classes: int, kind: str) -> nn.Module:
    return TwoFaced(kind)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tuple", "returned a tuple while training"),
        ("wider", r"shape \(3, 8\) while training; expected floats of shape \(3, 4\)"),
        (
            "fixed batch",
            r"fails on an input of shape \(3, 3\) while training: RuntimeError: .*test_networks\.py:",
        ),
        ("grows", "buffer seen changes its shape"),
    ],
)
def test_a_network_is_tried_in_training_and_with_another_batch_size(kind: str, words: str) -> None:
    settings = NetworkSettings(name=f"{__name__}:two_faced", options={"kind": kind})
    with pytest.raises(NetworkError, match=words):
        build_network(settings, (3,), 4, seed=0)


def test_trying_a_network_leaves_it_as_it_was_made() -> None:
    torch.default_generator.manual_seed(5)
    before = torch.get_rng_state()
    settings = NetworkSettings(name=f"{__name__}:two_faced", options={"kind": "good"})
    network = build_network(settings, (3,), 4, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        made = TwoFaced("good")
    assert same_state(network, made)
    assert [module.training for module in network.modules()] == [True, True, False]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_logits_are_the_last_linear_layer_of_the_features(name: str, norm: Norm) -> None:
    network = build_network(NetworkSettings(name=name, norm=norm, width=8), SHAPE_OF[name], 5, seed=1).eval()
    x = torch.randn(3, *SHAPE_OF[name], generator=torch.Generator().manual_seed(0))
    embed, head = features_of(network)
    features_BF = embed(x)
    assert features_BF.shape == (3, head.in_features)
    assert torch.equal(head(features_BF), network(x))


@pytest.mark.parametrize("network", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), TwoFaced("good")])
def test_a_network_without_features_is_told_what_to_add(network: nn.Module) -> None:
    with pytest.raises(NetworkError, match=r"add a method embed\(x\).*attribute fc, the last nn\.Linear"):
        features_of(network)
