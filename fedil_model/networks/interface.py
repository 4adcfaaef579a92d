"""Networks are plain torch modules: views in, logits of shape (batch, classes) out.

Adding one: one file with a function `(input_shape, num_classes, settings) -> nn.Module`, and one line in
NETWORKS.
"""

from collections.abc import Callable

from torch import nn

from fedil_model.settings import NetworkSettings

MakeNetwork = Callable[[tuple[int, ...], int, NetworkSettings], nn.Module]
