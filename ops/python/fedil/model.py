from torch import Tensor, nn

from fedil_model.data.datasets.interface import Views


class Classifier(nn.Module):
    """A network behind its preprocessing: raw samples in, logits out."""

    def __init__(self, network: nn.Module, views: Views) -> None:
        super().__init__()
        self.network, self.views = network, views

    def forward(self, raw: Tensor) -> Tensor:
        logits_BC: Tensor = self.network(self.views.plain(raw))
        return logits_BC
