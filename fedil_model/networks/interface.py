"""Networks are plain torch modules: views in, logits of shape (batch, classes) out.

Adding one: one file with a function or class `(input_shape, num_classes, width, norm) -> nn.Module`, and one line in
NETWORKS. Where a method needs features, the module also has `embed(x)`, which returns them, and `fc`, the last linear
layer (or a Sequential that ends with it), such that its logits are that layer of `embed(x)`.
"""

from collections.abc import Callable

from torch import Tensor, nn

from fedil_model.errors import NetworkError


def features_of(network: nn.Module) -> tuple[Callable[[Tensor], Tensor], nn.Linear]:
    """`embed` and the linear layer after it."""
    embed, last = getattr(network, "embed", None), getattr(network, "fc", None)
    if isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    if not callable(embed) or not isinstance(last, nn.Linear):
        raise NetworkError(
            f"{type(network).__name__} gives no features, which this method needs: add a method embed(x) that returns "
            "features of shape (batch, features), and an attribute fc, the last nn.Linear, with forward(x) = "
            "fc(embed(x))"
        )
    return embed, last
