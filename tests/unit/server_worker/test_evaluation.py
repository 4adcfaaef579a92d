import torch
from torch import nn

from fedil_model.data.augment.tensors import TensorViews
from fedil_model.data.datasets.interface import Samples
from fedil_model.training.flat_model import FlatModel, Weights
from server_worker.round.evaluation import BackgroundEvaluator


class LargestInput(nn.Module):
    """Says the position of the largest of three numbers, shifted by what it has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.shift


def weights_with(shift: list[float]) -> Weights:
    model = LargestInput()
    model.shift.data = torch.tensor(shift)
    return FlatModel(model, torch.device("cpu")).weights()


def test_every_model_is_measured_and_the_global_one_by_class() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    inputs = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]])
    evaluator = BackgroundEvaluator(
        FlatModel(LargestInput(), torch.device("cpu")), Samples(inputs, labels), TensorViews(), classes=3
    )
    models = {"server": weights_with([5.0, 0.0, 0.0]), "global": weights_with([0.0, 0.0, 0.0])}
    found = evaluator.submit(models).result(timeout=60)
    evaluator.close()
    assert found.accuracy == {"server": 0.75, "global": 0.75}
    # Class 2 has no test sample.
    assert found.per_class == (2 / 3, 1.0, None)
    assert found.seconds > 0
