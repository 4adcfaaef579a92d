"""Class shares of one client, found from predictions alone, and predictions that take them into account.

A model that has learned from labels in certain shares expects those shares everywhere. A client with two of ten classes
then gets labels of the other eight. Its own shares are those under which its predictions are most likely (expectation
maximisation; Saerens, Latinne, Decaestecker 2002). N samples, C classes.
"""

import torch
from torch import Tensor

_STEPS = 30
_LABELLED_PART = 0.1
"""How much the shares of the labels count beside the client's own samples: no class is ruled out."""
_CLEAR_GAIN = 0.06
"""Nats a sample. Clients with the shares of the labels have at most 0.045 on CIFAR-10, where a network with few labels
prefers some classes; clients with Dirichlet(0.3) shares 0.07 at least, clients with two classes 0.2."""


def estimate_shares(probabilities_NC: Tensor, labelled_C: Tensor, temperature: float) -> Tensor | None:
    """None if they are not clearly other than `labelled_C`, the shares of the classes among the labels. A network
    trained on few labels is far too sure of its mistakes, so its probabilities are softened first."""
    soft_NC = _log(probabilities_NC).div(temperature).softmax(1)
    shares_C = labelled_C
    for _ in range(_STEPS):
        found_C = _reweighed(soft_NC, shares_C / labelled_C).mean(0)
        shares_C = (found_C + _LABELLED_PART * labelled_C) / (1.0 + _LABELLED_PART)
    gain = (soft_NC @ (shares_C / labelled_C)).log().mean()
    return shares_C if float(gain) > _CLEAR_GAIN else None


def with_shares(probabilities_NC: Tensor, shares_C: Tensor, labelled_C: Tensor, temperature: float) -> Tensor:
    """What the same network says of samples in these shares. The ratio counts as much as it does for softened
    probabilities."""
    return _reweighed(probabilities_NC, (shares_C / labelled_C) ** temperature)


def shares_of(labels_N: Tensor, num_classes: int) -> Tensor:
    """A class without a sample counts as half a one."""
    counts_C = torch.bincount(labels_N, minlength=num_classes).float().clamp(min=0.5)
    return counts_C / counts_C.sum()


def _log(probabilities_NC: Tensor) -> Tensor:
    return probabilities_NC.clamp_min(1e-12).log()


def _reweighed(probabilities_NC: Tensor, by_C: Tensor) -> Tensor:
    # In logarithms: with a temperature, ratios and probabilities are both far from 1.
    return (_log(probabilities_NC) + by_C.log()).softmax(1)
