"""Every format is read back without FedIL's export code and must answer as the trained network does."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError, NetworkError, SettingError
from fedil_model.networks import build_network
from fedil_model.settings import NetworkSettings
from fedil_model.training.flat_model import FlatModel
from ops.inspect.export import digest_of, export, make_package, raw_example

NETWORKS = {
    "cnn-gn": ((1, 8, 8), NetworkSettings(name="cnn", width=8, norm="gn")),
    "resnet9-bn": ((3, 32, 32), NetworkSettings(name="resnet9", width=4, norm="bn")),
}


def make_dataset(shape: tuple[int, ...], views: Any = None) -> Dataset:
    def nothing() -> Samples:
        raise AssertionError("export must not read data")

    mean, std = (0.3, 0.4, 0.5)[: shape[0]], (0.2, 0.3, 0.4)[: shape[0]]
    names = tuple(f"class {index}" for index in range(10))
    return Dataset(names, shape, views or ImageViews(mean, std), nothing, nothing)


@pytest.fixture(params=sorted(NETWORKS))
def trained(request: pytest.FixtureRequest) -> tuple[nn.Module, Dataset, NetworkSettings]:
    shape, settings = NETWORKS[request.param]
    network = build_network(settings, shape, 10, seed=1)
    FlatModel(network)  # as training leaves it: all weights are views of one vector
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(2))
    return network.eval(), make_dataset(shape), settings


def some_images(batch_size: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (batch_size, *shape), dtype=torch.uint8, generator=generator)


def answers(network: nn.Module, dataset: Dataset, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network(dataset.views.plain(images))
    return logits


def write(network: nn.Module, dataset: Dataset, format_name: str, file: Path) -> None:
    about = {
        "recipe": "digits",
        "model": "global",
        "model_digest": digest_of(network),
        "network": {"width": 8},
    }
    export(make_package(network, dataset, about), format_name, file)


Trained = tuple[nn.Module, Dataset, NetworkSettings]


def test_safetensors_load_into_a_fresh_network_and_their_metadata_hold_the_preprocessing(
    trained: Trained, tmp_path: Path
) -> None:
    network, dataset, settings = trained
    file = tmp_path / "model.safetensors"
    write(network, dataset, "safetensors", file)

    fresh = build_network(settings, dataset.input_shape, 10, seed=99).eval()
    fresh.load_state_dict(load_file(file))
    with safe_open(file, "pt") as opened:
        steps = json.loads(opened.metadata()["preprocessing"])
    for size in (1, 5):
        images = some_images(size, dataset.input_shape)
        scale, offset = (torch.tensor(steps[key]).view(-1, 1, 1) for key in ("scale", "offset"))
        with torch.no_grad():
            found = fresh(images.float() * scale + offset)
        torch.testing.assert_close(found, answers(network, dataset, images), rtol=1e-4, atol=1e-4)


def test_torchscript_takes_raw_pixels_in_batches_of_any_size(trained: Trained, tmp_path: Path) -> None:
    network, dataset, _ = trained
    file = tmp_path / "model.pt"
    write(network, dataset, "torchscript", file)
    loaded, _ = load_torchscript(file)
    for size in (1, 5):
        images = some_images(size, dataset.input_shape)
        logits, probabilities = loaded(images)
        expected = answers(network, dataset, images)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(probabilities, expected.softmax(dim=1), rtol=1e-4, atol=1e-4)


def load_torchscript(file: Path) -> tuple[Any, dict[str, Any]]:
    extra = {"fedil.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        loaded = torch.jit.load(str(file), _extra_files=extra)  # type: ignore[no-untyped-call]
    metadata: dict[str, Any] = json.loads(extra["fedil.json"])
    return loaded, metadata


def test_onnx_takes_raw_pixels_in_batches_of_any_size(trained: Trained, tmp_path: Path) -> None:
    network, dataset, _ = trained
    file = tmp_path / "model.onnx"
    write(network, dataset, "onnx", file)
    session = onnxruntime.InferenceSession(str(file))
    for size in (1, 5):
        images = some_images(size, dataset.input_shape)
        logits, probabilities = session.run(["logits", "probabilities"], {"input": images.numpy()})
        expected = answers(network, dataset, images)
        np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(probabilities, expected.softmax(dim=1).numpy(), rtol=1e-4, atol=1e-4)


def read_metadata(format_name: str, file: Path) -> dict[str, Any]:
    if format_name == "torchscript":
        return load_torchscript(file)[1]
    if format_name == "safetensors":
        with safe_open(file, "pt") as opened:
            texts = opened.metadata()
    else:
        texts = {entry.key: entry.value for entry in onnx.load(str(file)).metadata_props}
    plain = {"recipe", "model", "model_digest"}
    return {key: value if key in plain else json.loads(value) for key, value in texts.items()}


@pytest.mark.parametrize("format_name", ["safetensors", "torchscript", "onnx"])
def test_every_format_says_what_it_holds(format_name: str, tmp_path: Path) -> None:
    shape, settings = NETWORKS["cnn-gn"]
    network, dataset = build_network(settings, shape, 10, seed=1).eval(), make_dataset(shape)
    file = tmp_path / "model"
    write(network, dataset, format_name, file)
    metadata = read_metadata(format_name, file)
    assert metadata["class_names"] == list(dataset.class_names)
    assert (metadata["recipe"], metadata["model"]) == ("digits", "global")
    assert metadata["model_digest"] == digest_of(network)
    assert metadata["network"] == {"width": 8}
    assert metadata["input"] == {"shape": ["batch", 1, 8, 8], "dtype": "uint8"}
    assert metadata["preprocessing"]["kind"] == "affine"
    assert metadata["preprocessing"]["scale"] == pytest.approx([1 / (255 * 0.2)])
    assert metadata["preprocessing"]["offset"] == pytest.approx([-0.3 / 0.2])
    assert list(tmp_path.iterdir()) == [file]


def test_two_networks_have_two_digests_and_a_copy_has_the_same() -> None:
    shape, settings = NETWORKS["cnn-gn"]
    one, same, other = (build_network(settings, shape, 10, seed=seed) for seed in (1, 1, 2))
    assert digest_of(one) == digest_of(same) != digest_of(other)


class Gamma(ImageViews):
    def plain(self, raw: Tensor) -> Tensor:
        return super().plain(raw).abs().sqrt()


def test_preprocessing_that_is_not_affine_is_not_described_as_if_it_were() -> None:
    shape, settings = NETWORKS["cnn-gn"]
    network, dataset = build_network(settings, shape, 10, seed=1), make_dataset(shape, Gamma((0.3,), (0.2,)))
    assert make_package(network, dataset, {}).metadata["preprocessing"]["kind"] == "other"


class DependsOnTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return logits * float(x.shape[0])


@pytest.mark.parametrize("format_name", ["torchscript", "onnx"])
def test_a_network_that_cannot_be_traced_faithfully_is_refused_and_nothing_is_written(
    format_name: str, tmp_path: Path
) -> None:
    file = tmp_path / "model"
    with pytest.raises(NetworkError):
        write(DependsOnTheBatch().eval(), make_dataset((1, 8, 8)), format_name, file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_onnx_package_is_one_line_that_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    shape, settings = NETWORKS["cnn-gn"]
    with pytest.raises(SettingError, match=rf"^ONNX needs {package}: pip install 'fedil\[onnx\]'$"):
        write(
            build_network(settings, shape, 10, seed=1), make_dataset(shape), "onnx", tmp_path / "model.onnx"
        )


def test_a_raw_sample_that_is_not_a_picture_is_floats() -> None:
    class Identity:
        def plain(self, raw: Tensor) -> Tensor:
            return raw

    assert raw_example(make_dataset((13,), Identity())).dtype == torch.float32


class OneHot:
    """Categories in, indicators out: neither the shape nor the values of a raw sample can be guessed."""

    def plain(self, raw: Tensor) -> Tensor:
        return nn.functional.one_hot(raw, 8).float().flatten(1)


@pytest.mark.parametrize("format_name", ["safetensors", "torchscript", "onnx"])
def test_a_view_that_changes_the_shape_is_exported_with_the_shape_that_the_data_has(
    format_name: str, tmp_path: Path
) -> None:
    network = nn.Linear(24, 10).eval()
    raw = torch.tensor([[1, 7, 0]])
    described = make_dataset((24,), OneHot())
    dataset = Dataset(
        described.class_names, (24,), described.views, described.load_train, lambda: Samples(raw, raw[:, 0])
    )
    package = make_package(network, dataset, {})
    assert package.metadata["input"] == {"shape": ["batch", 3], "dtype": "int64"}
    assert package.metadata["preprocessing"]["kind"] == "other"
    export(package, format_name, tmp_path / "model")
    if format_name == "onnx":
        session = onnxruntime.InferenceSession(tmp_path / "model")
        (logits,) = session.run(["logits"], {"input": raw.repeat(5, 1).numpy()})
        np.testing.assert_allclose(logits, answers(network, dataset, raw.repeat(5, 1)), atol=1e-5)


def test_such_a_view_without_its_data_is_named() -> None:
    def missing() -> Samples:
        raise DataError("the test files are missing")

    described = make_dataset((24,), OneHot())
    with pytest.raises(SettingError, match=r"cannot export: .* the test files are missing"):
        raw_example(Dataset(described.class_names, (24,), described.views, missing, missing))
