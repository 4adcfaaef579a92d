"""A network's weights as two flat vectors: what training steps, folds and the wire all work on.

P trainable parameters, of which the first D take weight decay (norms and biases do not); Q buffer floats.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from fedil_model.errors import NetworkError, StateError

ALIGNMENT = 64
"""Bytes; where torch puts what it makes, and where arrays lie in what was received. BLAS' last bits depend on it."""


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


Sizes = tuple[list[int], list[int]]
"""Of the tensors that the two vectors consist of, in their order"""


class FlatModel:
    """A module whose parameters and gradients are views of one vector each, so that an optimiser step, a
    clip or an upload is one operation instead of one per layer.

    Large networks: the vectors are there while they are needed. Gradients come with the first `grads`, and after
    `take_weights` or `release` nothing is there until something is loaded."""

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.module = module.to(self.device)
        # Decayed first: then decay is a slice, in the optimiser and in the cosine.
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        trainable.sort(key=lambda item: item[1].ndim <= 1)
        if not trainable:
            raise NetworkError("the network has no trainable parameters")
        self._check_types(trainable)
        self._parameters = [p for _, p in trainable]
        ends = accumulate(p.numel() for p in self._parameters)
        self._places = [slice(end - p.numel(), end) for p, end in zip(self._parameters, ends, strict=True)]
        self.num_params = sum(p.numel() for p in self._parameters)
        self.num_decayed = sum(p.numel() for p in self._parameters if p.ndim > 1)
        self._grads: Tensor | None = None
        self._hold(torch.cat([p.detach().reshape(-1) for p in self._parameters]))
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point() and buffer.dtype != torch.float32:
                raise NetworkError(f"buffer {name} is {buffer.dtype}; only float32 is supported")
        self._buffers = [b for _, b in module.named_buffers() if b.is_floating_point()]
        self.sizes: Sizes = ([p.numel() for p in self._parameters], [b.numel() for b in self._buffers])
        # Counters (BatchNorm's num_batches_tracked) are not sent, so every load begins with them as built;
        # otherwise one client's training would show in the next one's.
        self._counters = [(b, b.clone()) for _, b in module.named_buffers() if not b.is_floating_point()]

    def _check_types(self, trainable: list[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in trainable:
            if parameter.dtype != torch.float32:
                raise NetworkError(
                    f"parameter {name} is {parameter.dtype}; only float32 weights are supported"
                )

    def _hold(self, params: Tensor | None, *, borrowed: bool = False) -> None:
        self.params = torch.empty(0, device=self.device) if params is None else params
        self._is_own = params is not None and not borrowed
        nothing = torch.zeros((), device=self.device)
        for parameter, place in zip(self._parameters, self._places, strict=True):
            # Where there is nothing, the shape stays: one zero that looks like many.
            parameter.data = (
                nothing.expand(parameter.shape) if params is None else params[place].view(parameter.shape)
            )

    @property
    def grads(self) -> Tensor:
        """Ask for them before anything goes backward: gradients that torch made itself are no part of them."""
        if self._grads is None:
            self._grads = torch.zeros_like(self.params)
            for parameter, place in zip(self._parameters, self._places, strict=True):
                parameter.grad = self._grads[place].view(parameter.shape)
        return self._grads

    def places_of(self, part: nn.Module) -> list[slice]:
        """Where `params` holds the parameters of a part of the module, in their order there: that of a FlatModel of the
        part alone."""
        own = {id(parameter) for parameter in part.parameters()}
        both = zip(self._parameters, self._places, strict=True)
        return [place for parameter, place in both if id(parameter) in own]

    def _drop_grads(self) -> None:
        self._grads = None
        for parameter in self._parameters:
            parameter.grad = None

    def weights(self) -> Weights:
        """A copy of what the network holds now."""
        return Weights(self.params.clone(), self.buffers())

    def buffers(self) -> Tensor:
        flat = [b.detach().reshape(-1) for b in self._buffers]
        return torch.cat(flat) if flat else torch.zeros(0, device=self.device)

    def move_towards(self, other: "FlatModel", share: float, *, buffers: bool = True) -> None:
        """By this share of the distance, parameters and buffers: the step of a moving average."""
        self.params.lerp_(other.params, share)
        for mine, its in zip(self._buffers, other._buffers, strict=True) if buffers else ():
            mine.lerp_(its, share)

    def take_weights(self) -> Weights:
        """What the network holds now, and then holds no more."""
        weights = Weights(self.params, self.buffers())
        self.release()
        return weights

    def release(self) -> None:
        self._drop_grads()
        self._hold(None)

    @contextmanager
    def temporarily_loaded(self) -> Iterator[None]:
        """Lets go at the end, whatever happens: what it has borrowed by then is not its own to keep."""
        try:
            yield
        finally:
            self.release()

    def load(self, weights: Weights) -> None:
        self._check_fit(weights)
        if not self._is_own:
            self._hold(torch.empty(self.num_params, device=self.device))
        self.params.copy_(weights.params)
        self._load_buffers(weights.buffers)

    def load_view(self, weights: Weights) -> None:
        """For looking only: the parameters stay where they are, if that is a place that a vector of one's own could
        have. Elsewhere arithmetic may have other last bits, so that they are copied."""
        if weights.params.device != self.params.device or weights.params.data_ptr() % ALIGNMENT:
            self.load(weights)
            return
        self._check_fit(weights)
        self._drop_grads()
        self._hold(weights.params, borrowed=True)
        self._load_buffers(weights.buffers)

    def _check_fit(self, weights: Weights) -> None:
        num_buffers = sum(self.sizes[1])
        if weights.params.numel() != self.num_params or weights.buffers.numel() != num_buffers:
            raise StateError(
                f"weights of {weights.params.numel()} parameters and {weights.buffers.numel()} buffer values "
                f"do not fit a network of {self.num_params} and {num_buffers}"
            )

    def _load_buffers(self, buffers: Tensor) -> None:
        for counter, as_built in self._counters:
            counter.copy_(as_built)
        for buffer, part in zip(self._buffers, torch.split(buffers, self.sizes[1]), strict=True):
            buffer.copy_(part.view_as(buffer))


def all_finite(x: Tensor) -> bool:
    """Without a second vector, which torch.isfinite would make."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(x))).all())


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}


def from_arrays(arrays: Mapping[str, np.ndarray], device: torch.device | None = None) -> dict[str, Tensor]:
    """Zero-copy where the device allows; received buffers are read-only, and are never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: tensor.to(device) for name, tensor in tensors.items()} if device else tensors
