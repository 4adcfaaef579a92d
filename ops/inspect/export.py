"""A trained network as a file for other programs: raw samples in, logits and probabilities out.

TorchScript and ONNX files hold the preprocessing as part of the program; safetensors hold only weights, so
the metadata, which all three carry, says what the preprocessing does. Adding a format: one function, one line in
FORMATS, and its ending in ops/cli/commands/export.py, which does not load torch.
"""

import copy
import importlib.util
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from broker_config.process.durable import write_atomically
from broker_config.protocol.buffers import digest
from fedil_model.data.datasets.interface import Dataset, Views
from fedil_model.errors import DataError, NetworkError, SettingError
from fedil_model.training.flat_model import FlatModel

TORCHSCRIPT_METADATA = "fedil.json"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
_NOT_AFFINE = {"kind": "other", "note": "not affine; use the TorchScript or ONNX file, which contains it"}


class WithPreprocessing(nn.Module):
    def __init__(self, network: nn.Module, views: Views) -> None:
        super().__init__()
        self.network = network
        self.views = views

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(self.views.plain(raw))
        return logits, logits.softmax(dim=1)


@dataclass(frozen=True)
class Package:
    program: WithPreprocessing
    example: Tensor
    """Two raw samples: zeros, or of the data where the view refuses zeros"""
    metadata: dict[str, Any]

    def texts(self) -> dict[str, str]:
        """Metadata for formats that keep only strings: strings as they are, the rest as JSON."""
        return {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in self.metadata.items()
        }


def make_package(network: nn.Module, dataset: Dataset, about: dict[str, Any]) -> Package:
    """`about`: where the weights come from; becomes part of the metadata."""
    example = raw_example(dataset)
    dtype = str(example.dtype).removeprefix("torch.")
    metadata = {
        **about,
        "class_names": list(dataset.class_names),
        "input": {"shape": ["batch", *example.shape[1:]], "dtype": dtype},
        "preprocessing": describe(dataset.views, example),
        "outputs": ["logits", "probabilities"],
    }
    return Package(WithPreprocessing(network, dataset.views).eval(), example, metadata)


def raw_example(dataset: Dataset) -> Tensor:
    """Without reading data where possible: pictures are stored as bytes, anything else as floats. A plain view that
    changes the shape, such as a spectrogram of sound, needs samples of the data."""
    shape = (2, *dataset.input_shape)
    first, second = torch.uint8, torch.float32
    for dtype in (first, second) if len(dataset.input_shape) == 3 else (second, first):
        example = torch.zeros(shape, dtype=dtype)
        try:
            if dataset.views.plain(example).shape == shape:
                return example
        except Exception:  # a user's own views may refuse in any way; then it is the other kind
            continue
    try:
        inputs = dataset.load_test().inputs
        return inputs[torch.arange(2) % len(inputs)]
    except DataError as error:
        raise SettingError(
            f"cannot export: the plain view makes samples of {'×'.join(map(str, shape[1:]))} from what only the data "
            f"shows, and {error}"
        ) from error


def describe(views: Views, example: Tensor) -> dict[str, Any]:
    """Most plain views are x·scale + offset per channel. Finds these numbers by calling the view, and checks them."""
    if views.plain(example).shape != example.shape:
        return _NOT_AFFINE
    channels = example.shape[1]
    flat = (1, channels, *[1] * (example.dim() - 2))
    full = 255 if example.dtype == torch.uint8 else 1
    offset = views.plain(torch.zeros_like(example))
    scale = (views.plain(torch.full_like(example, full)) - offset) / full
    per_channel = [tensor[0].reshape(channels, -1)[:, 0] for tensor in (scale, offset)]
    probe = some_samples(example, 4)
    guess = probe.float() * per_channel[0].view(flat) + per_channel[1].view(flat)
    if not torch.allclose(guess, views.plain(probe), atol=TOLERANCE):
        return _NOT_AFFINE
    numbers = dict(zip(("scale", "offset"), (tensor.tolist() for tensor in per_channel), strict=True))
    return {"kind": "affine", "formula": "x * scale + offset, per channel", **numbers}


def digest_of(network: nn.Module) -> str:
    """The same text for the same weights, however they are laid out in memory."""
    weights = FlatModel(copy.deepcopy(network)).weights()
    return digest([part.cpu().numpy().tobytes() for part in (weights.params, weights.buffers)])


def some_samples(example: Tensor, count: int) -> Tensor:
    if bool(example.any()):  # of the data: the view may refuse other values
        return example[torch.arange(count) % len(example)]
    generator = torch.Generator().manual_seed(count)
    shape = (count, *example.shape[1:])
    if example.dtype == torch.uint8:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return torch.randn(shape, generator=generator)


def to_safetensors(package: Package) -> bytes:
    from safetensors.torch import save

    state = package.program.network.state_dict()
    # Copies: training keeps all weights in one vector, and safetensors refuse tensors that share memory.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
    body: bytes = save(tensors, metadata=package.texts())
    return body


def to_torchscript(package: Package) -> bytes:
    file = io.BytesIO()
    # torch warns that its own exporters are old, and of constants that preprocessing makes on purpose.
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        # check_trace would run the same sizes again; `prove` runs another size, which finds more.
        traced = torch.jit.trace(package.program, package.example, check_trace=False)  # type: ignore[no-untyped-call]
        metadata = json.dumps(package.metadata, ensure_ascii=False)
        torch.jit.save(traced, file, _extra_files={TORCHSCRIPT_METADATA: metadata})
        file.seek(0)
        loaded = torch.jit.load(file)  # type: ignore[no-untyped-call]
        prove(package, lambda raw: loaded(raw)[0])
    return file.getvalue()


def to_onnx(package: Package) -> bytes:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingError(f"ONNX needs {', '.join(missing)}: pip install 'fedil[onnx]'")
    import onnxruntime

    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        exported = torch.onnx.export(
            package.program,
            (package.example,),
            dynamo=True,
            verbose=False,
            input_names=["input"],
            output_names=package.metadata["outputs"],
            dynamic_shapes={"raw": {0: torch.export.Dim("batch")}},
        )
    assert exported is not None
    model = exported.model_proto
    for key, value in package.texts().items():
        model.metadata_props.add(key=key, value=value)
    body: bytes = model.SerializeToString()
    session = onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])
    prove(package, lambda raw: torch.from_numpy(session.run(["logits"], {"input": raw.numpy()})[0]))
    return body


FORMATS: dict[str, Callable[[Package], bytes]] = {
    "safetensors": to_safetensors,
    "torchscript": to_torchscript,
    "onnx": to_onnx,
}


def export(package: Package, format_name: str, output: Path) -> None:
    try:
        body = FORMATS[format_name](package)
    except (NetworkError, SettingError):
        raise
    except Exception as error:  # tracing runs the user's own network and views, which may fail in any way
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise NetworkError(f"the network cannot be exported as {format_name}: {first_line}") from error
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, [body])


def prove(package: Package, run: Callable[[Tensor], Tensor]) -> None:
    """The exported program must give the network's answers, also for batch sizes other than the traced one."""
    for count in (1, 3):
        raw = some_samples(package.example, count)
        with torch.no_grad():
            expected = package.program(raw)[0]
        found = run(raw)
        if found.shape != expected.shape or not torch.allclose(found, expected, TOLERANCE, TOLERANCE):
            raise NetworkError(
                f"the exported program and the network give different answers for {count} sample(s): does its "
                "forward() depend on the batch size or on the values of its input?"
            )
