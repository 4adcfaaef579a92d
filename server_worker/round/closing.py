"""What an aggregation does to a run's progress; the same in both modes."""

from collections.abc import Mapping, Sequence

import torch

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.interface import Folded, Method, ServerStep
from fedil_model.training.convergence import Increment
from fedil_model.training.optimiser import learning_rate
from server_worker.round.reporting import labels_held, make_record
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import NOT_LEARNED, ClientOutcome


def close_round(
    progress: Progress,
    recipe: Recipe,
    method: Method,
    labelled: Samples,
    *,
    step: ServerStep,
    folded: Folded,
    outcomes: tuple[ClientOutcome, ...],
    asked: Mapping[int, int],
    refused: dict[str, int],
    seconds: dict[str, float],
) -> Progress:
    """`asked`: client → the activation that its outcome belongs to. Who is asked next is for the loops to say."""
    number = progress.round + 1
    held = labels_held(progress.labelled, outcomes)
    models = method.models(folded.state, step.broadcast, labelled)
    model_norm = float(torch.linalg.vector_norm(models["global"].params))
    increments = (*progress.increments, Increment(folded.delta_norm, folded.effort, model_norm))
    record = make_record(
        number=number,
        rounds=recipe.rounds,
        outcomes=outcomes,
        step=step,
        folded=folded,
        increments=increments,
        rates=[learning_rate(recipe.client, t, recipe.rounds) for t in range(1, number + 1)],
        before=progress.labelled,
        labelled=held,
        refused=refused,
        seconds=seconds,
    )
    learned = {o.client: asked[o.client] for o in outcomes if o.outcome not in NOT_LEARNED}
    return Progress(
        round=number,
        state=folded.state,
        activations=_latest(progress.activations, asked),
        selection=(),
        labelled=held,
        increments=increments,
        models=models,
        record=record,
        answered=_latest(progress.answered, learned),
    )


def _latest(before: Sequence[int], activations: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(max(old, activations.get(client, 0)) for client, old in enumerate(before))
