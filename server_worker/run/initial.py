"""The weights that a run begins with, where its recipe names some: another run's, or those of a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from broker_config.process.durable import write_atomically
from broker_config.protocol.buffers import digest
from fedil_model.errors import SettingError, StateError
from fedil_model.training.flat_model import FlatModel, Weights, from_arrays
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.folder import RunDir, read_json
from server_worker.run.recipe import Recipe, flatten


@dataclass(frozen=True)
class Initial:
    tensors: Mapping[str, Tensor]
    """By the names of the network's state_dict"""
    source: str

    @property
    def digest(self) -> str:
        """Of names and values"""
        parts = (part for name in sorted(self.tensors) for part in self._parts(name))
        return digest(list(parts))

    def _parts(self, name: str) -> tuple[bytes, bytes]:
        return name.encode(), self.tensors[name].contiguous().numpy().tobytes()

    def keep(self, where: RunDir) -> None:
        """With its digest, so that a copy can be told from another"""
        tensors = {name: tensor.clone().contiguous() for name, tensor in self.tensors.items()}
        facts = {"init_from": self.source, "digest": self.digest}
        write_atomically(where.initial, [save(tensors, metadata=facts)])

    def load_into(self, network: nn.Module) -> None:
        network.load_state_dict(dict(self.tensors))


def read_initial(where: RunDir, recipe: Recipe, network: nn.Module) -> Initial | None:
    """What the run has kept, or what its recipe names. `network`: as the run builds it"""
    source = recipe.init_from
    if source is None:
        return None
    place = where.initial if where.initial.exists() else source
    if not place.exists():
        raise SettingError(
            f"init_from: there is no {source}: name the folder of a run, or a .safetensors file"
        )
    tensors = _of_run(place, recipe, network) if place.is_dir() else _of_file(place)
    _refuse_misfits(f"init_from={source}", tensors, network)
    return Initial(tensors, str(source))


def _of_file(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load(path.read_bytes())
    except (SafetensorError, ValueError) as error:
        raise SettingError(
            f"init_from: {path} is neither the folder of a run nor a safetensors file ({error})"
        ) from error
    return tensors


def _of_run(folder: Path, recipe: Recipe, network: nn.Module) -> dict[str, Tensor]:
    """Of the model that ships. No code that the other run names is run: its network has to be ours."""
    theirs = read_json(RunDir(folder).recipe)
    if not isinstance(theirs, dict):
        raise SettingError(f"init_from: {folder} is not the folder of a run (it has no recipe.json)")
    mine, its = flatten(recipe.network.model_dump()), flatten(dict(theirs.get("network", {})))
    changed = [key for key in mine if its.get(key) != mine[key]]
    if changed:
        said = "; ".join(f"network.{key} is {its.get(key)!r} there, {mine[key]!r} here" for key in changed)
        raise SettingError(f"init_from={folder}: {said}")
    checkpoint = CheckpointFolder(RunDir(folder).checkpoints).latest()
    keys = checkpoint.meta.get("models", {}).get("global") if checkpoint else None
    if checkpoint is None or keys is None:
        raise SettingError(f"init_from: {folder} has no finished round yet")
    tensors = from_arrays(checkpoint.arrays)
    model = FlatModel(network)
    before = model.weights()
    try:
        model.load(Weights(*(tensors[key] for key in keys)))
        return {name: tensor.clone() for name, tensor in network.state_dict().items()}
    except StateError as error:
        raise SettingError(f"init_from={folder}: {error}; other data have other inputs or classes") from error
    finally:
        model.load(before)


def _refuse_misfits(setting: str, tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    expected = network.state_dict()
    for name in expected:
        if name not in tensors:
            raise SettingError(f"{setting}: it lacks {name}, which the network has; it has {_some(tensors)}")
        shapes = [tuple(found[name].shape) for found in (tensors, expected)]
        if shapes[0] != shapes[1]:
            raise SettingError(f"{setting}: {name} has shape {shapes[0]}, the network's has {shapes[1]}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise SettingError(f"{setting}: {name} has values that are not finite")
    if unknown := sorted(tensors.keys() - expected.keys()):
        raise SettingError(f"{setting}: the network has no {unknown[0]}; it has {_some(expected)}")
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad and not torch.equal(tensors[name], parameter):
            raise SettingError(
                f"{setting}: {name} is never trained, so clients have it as built, and it differs"
            )


def _some(tensors: Mapping[str, Tensor]) -> str:
    names = list(tensors)
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
