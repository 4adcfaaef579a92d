"""What goes into a checkpoint comes back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedil_model.training.convergence import Increment, assess
from fedil_model.training.flat_model import ALIGNMENT
from server_worker.run.checkpoint import Checkpoint, CheckpointFolder
from server_worker.run.progress import Progress, from_checkpoint, to_checkpoint
from tests.federation import Federation, blobs_recipe

BEGUN = Progress(
    round=2,
    state={"global": torch.ones(3)},
    activations=(1, 0),
    answered=(1, 0),
    totals={"seen": (0.0, 2.0)},
    selection=(1,),
)


def test_increments_are_three_numbers_a_round_as_they_have_always_been(tmp_path: Path) -> None:
    checkpoint = to_checkpoint(BEGUN, "recipe")
    written = np.array([[0.5, 0.25, 10.0], [0.4, 0.2, 11.0]])
    arrays = {**checkpoint.arrays, "increments": written}
    CheckpointFolder(tmp_path).save(Checkpoint(2, checkpoint.meta, arrays))
    read = CheckpointFolder(tmp_path).latest()
    assert read is not None
    progress = from_checkpoint(read, "recipe")
    assert progress.increments == (Increment(0.5, 0.25, 10.0), Increment(0.4, 0.2, 11.0))
    assert to_checkpoint(progress, "recipe").arrays["increments"].tolist() == written.tolist()


def test_increments_are_judged_by_the_effort_that_each_round_had(tmp_path: Path) -> None:
    recipe = blobs_recipe(rounds=9, client={"lr_schedule": "cosine"})
    progress = Federation(recipe, tmp_path).play()
    assert progress is not None
    assert len({increment.effort for increment in progress.increments}) == 9
    assert progress.closed is not None
    assert progress.closed.verdict == assess(progress.increments).verdict


def test_what_comes_back_lies_where_torch_would_have_put_it_and_holds_nothing_else(tmp_path: Path) -> None:
    """Not as a part of the file in memory: that would be there as long as any of its tensors is."""
    state = {"global": torch.ones(1001), "momentum": torch.ones(777)}
    CheckpointFolder(tmp_path).save(to_checkpoint(replace(BEGUN, state=state), "recipe"))
    read = CheckpointFolder(tmp_path).latest()
    assert read is not None
    back = from_checkpoint(read, "recipe").state
    assert [tensor.untyped_storage().nbytes() for tensor in back.values()] == [4 * 1001, 4 * 777]
    assert [tensor.data_ptr() % ALIGNMENT for tensor in back.values()] == [0, 0]
