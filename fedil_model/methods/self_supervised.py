"""What the self-supervised methods share: a network with heads that clients train without labels, and its evaluation.

"online" is the average of the clients' networks with their heads. The network in it ships: its features are good for
nothing before the server's labels have fitted it, so every declared model names how that is done.
"""

from collections.abc import Callable
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from fedil_model.data.augment import Distortion
from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.methods.base import AveragingMethod
from fedil_model.methods.declared import CLIENT_NORM, chart
from fedil_model.methods.interface import Chart, Model, RoundEnd, Series, ServerStep, State, Tensors
from fedil_model.networks.heads import WithHeads, add_heads
from fedil_model.settings import MethodSettings
from fedil_model.training.flat_model import Weights
from fedil_model.training.precision import autocast

View = Callable[[Tensor, torch.Generator], Tensor]


class HeadSettings(MethodSettings):
    hidden: int = Field(default=256, ge=1)
    """Units of a head's hidden layer."""
    output: int = Field(default=128, ge=1)
    """Size of a projection."""


FITTED_MODELS = (
    Model(
        "global",
        "fine-tuned model",
        "the clients' average, trained on the labelled samples",
        fit="fine_tune",
    ),
    Model(
        "probed",
        "linear probe",
        "a linear layer on the average's features, fitted to the labelled samples",
        fit="linear_probe",
    ),
)
UPDATES_CHART = chart(
    "Updates", "How far clients move the network and its heads that they receive.", CLIENT_NORM, log=True
)


def client_losses_chart(*terms: Series) -> Chart:
    return chart("Losses", "Mean of each loss term of the clients, on their own samples.", *terms)


def distorted_view(views: Views, distortion: Distortion) -> View:
    """The strong view, where a dataset's views have no `distorted`."""
    own = getattr(views, "distorted", None)
    return partial(own, distortion=distortion) if own is not None else views.strong


class SelfSupervised(AveragingMethod):
    _averaged = "online"

    # ---- the network and its heads ---------------------------------------------------------------------------------

    def _make_heads(self, num_features: int) -> tuple[nn.Module, nn.Module]:
        """Projector and predictor"""
        raise NotImplementedError

    def _module(self) -> nn.Module:
        return add_heads(super()._module(), self._make_heads, self._seed("heads"))

    @property
    def _heads(self) -> WithHeads:
        """The student's module"""
        assert isinstance(self._student.module, WithHeads)
        return self._student.module

    def _compute(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        with autocast(self.device, self._learning.autocast):
            return function(inputs).float()

    def _compute_target(self, inputs: Tensor) -> Tensor:
        """Projections; no gradient goes through them."""
        assert isinstance(self._teacher.module, WithHeads)
        with torch.no_grad():
            return self._compute(self._teacher.module.project, inputs)

    def _network_in(self, online: Weights) -> Weights:
        """Without the heads, which have no buffers"""
        places = self._student.places_of(self._heads.network)
        return Weights(torch.cat([online.params[place] for place in places]), online.buffers)

    # ---- the server ------------------------------------------------------------------------------------------------

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:  # noqa: ARG002
        return ServerStep(state, Weights.named(state, "online").tensors("online"))

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:  # noqa: ARG002
        network = self._network_in(self._refreshed(Weights.named(state, "online"), labelled))
        return RoundEnd(state, {model.name: network for model in FITTED_MODELS})
