"""A network's weights as two flat vectors: what training steps, folds and the wire all work on.

P trainable parameters, of which the first D take weight decay (norms and biases do not); Q buffer floats.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedil_model.errors import NetworkError, StateError


@dataclass(frozen=True)
class Weights:
    params: Tensor
    buffers: Tensor

    def clone(self) -> "Weights":
        return Weights(self.params.clone(), self.buffers.clone())

    def to(self, device: torch.device) -> "Weights":
        return Weights(self.params.to(device), self.buffers.to(device))

    def tensors(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.params": self.params, f"{name}.buffers": self.buffers}

    @staticmethod
    def named(tensors: Mapping[str, Tensor], name: str) -> "Weights":
        try:
            return Weights(tensors[f"{name}.params"], tensors[f"{name}.buffers"])
        except KeyError as error:
            raise StateError(f"the weights {name!r} are missing ({error} not found)") from error


class FlatModel:
    """A module whose parameters and gradients are views of one vector each, so that an optimiser step, a
    clip or an upload is one operation instead of one per layer."""

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.module = module.to(self.device)
        # Decayed first: then decay is a slice, in the optimiser and in the cosine.
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        trainable.sort(key=lambda item: item[1].ndim <= 1)
        if not trainable:
            raise NetworkError("the network has no trainable parameters")
        self._check_types(trainable)
        self.num_decayed = sum(p.numel() for _, p in trainable if p.ndim > 1)
        self.params = torch.cat([p.detach().reshape(-1) for _, p in trainable])
        self.grads = torch.zeros_like(self.params)
        self._point_into_the_vectors([p for _, p in trainable])
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point() and buffer.dtype != torch.float32:
                raise NetworkError(f"buffer {name} is {buffer.dtype}; only float32 is supported")
        self._buffers = [b for _, b in module.named_buffers() if b.is_floating_point()]
        # Counters (BatchNorm's num_batches_tracked) are not sent, so every load begins with them as built;
        # otherwise one client's training would show in the next one's.
        self._counters = [(b, b.clone()) for _, b in module.named_buffers() if not b.is_floating_point()]

    def _check_types(self, trainable: list[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in trainable:
            if parameter.dtype != torch.float32:
                raise NetworkError(
                    f"parameter {name} is {parameter.dtype}; only float32 weights are supported"
                )

    def _point_into_the_vectors(self, parameters: list[nn.Parameter]) -> None:
        offset = 0
        for parameter in parameters:
            end = offset + parameter.numel()
            parameter.data = self.params[offset:end].view_as(parameter)
            parameter.grad = self.grads[offset:end].view_as(parameter)
            offset = end

    def weights(self) -> Weights:
        """A copy of what the network holds now."""
        flat = [b.detach().reshape(-1) for b in self._buffers]
        buffers = torch.cat(flat) if flat else self.params.new_zeros(0)
        return Weights(self.params.clone(), buffers)

    def load(self, weights: Weights) -> None:
        num_buffers = sum(b.numel() for b in self._buffers)
        if weights.params.numel() != self.params.numel() or weights.buffers.numel() != num_buffers:
            raise StateError(
                f"weights of {weights.params.numel()} parameters and {weights.buffers.numel()} buffer values "
                f"do not fit a network of {self.params.numel()} and {num_buffers}"
            )
        self.params.copy_(weights.params)
        for counter, as_built in self._counters:
            counter.copy_(as_built)
        offset = 0
        for buffer in self._buffers:
            end = offset + buffer.numel()
            buffer.copy_(weights.buffers[offset:end].view_as(buffer))
            offset = end


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}


def from_arrays(arrays: Mapping[str, np.ndarray], device: torch.device | None = None) -> dict[str, Tensor]:
    """Zero-copy where the device allows; received buffers are read-only, and nobody writes into them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: tensor.to(device) for name, tensor in tensors.items()} if device else tensors
