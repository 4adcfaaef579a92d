"""FedMatch's aggregation: sparse updates of ψ, checked, averaged, and kept as helpers of later rounds.

P parameters, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedil_model.methods.averaging import AveragingFold, norm_of
from fedil_model.methods.interface import INVALID, Answer, Bases, Folded, State, Verdict
from fedil_model.training.flat_model import Weights, all_finite

_FLOATS = (torch.float32, torch.float32)


@dataclass
class FedMatchFold:
    """ψ ← mean of the clients' ψ; σ becomes what the server broadcast. Keeps the ψ of every client that counts, as
    helpers of later rounds."""

    average: AveragingFold
    bases: Bases
    version: int
    pool: int
    embed: Callable[[Weights], Tensor]
    reported: dict[int, tuple[int, Weights]] = field(default_factory=dict)
    """Client → the version that it started from, and its ψ"""

    def add(self, answer: Answer) -> Verdict:
        misfit = self._find_misfit(answer)
        if misfit:
            return Verdict(INVALID, misfit)
        # An older version may come from a checkpoint, on the CPU.
        device = self.bases[self.version]["psi.params"].device
        base = Weights.named(self.bases[answer.base_version], "psi").to(device)
        sent = {name: tensor.to(base.params.device) for name, tensor in answer.update.items()}
        delta_P = torch.zeros_like(base.params)
        delta_P[sent["psi.indices"].long()] = sent["psi.values"]
        delta = Weights(delta_P, sent["psi.buffers"])
        verdict = self.average.add_delta(delta, answer)
        if verdict.counts:
            psi = Weights(base.params + delta.params, base.buffers + delta.buffers)
            self._keep(answer, psi)
        return verdict

    def _find_misfit(self, answer: Answer) -> str:
        update, names = answer.update, ("psi.indices", "psi.values", "psi.buffers")
        if set(update) != set(names):
            return f"tensors {sorted(update)} instead of {', '.join(names)}"
        if answer.base_version not in self.bases:
            return f"version {answer.base_version}, where it started, is not kept"
        indices, values, buffers = (update[name] for name in names)
        size = len(self.bases[answer.base_version]["psi.params"])
        if any(tensor.ndim != 1 for tensor in update.values()) or len(indices) != len(values):
            return "psi.indices and psi.values are not vectors of the same length"
        found, expected = (indices.dtype, values.dtype, buffers.dtype), (index_type(size), *_FLOATS)
        if found != expected:
            return f"{', '.join(names)} of {found}, not of {expected}"
        if len(indices) and not (int(indices[0]) >= 0 and int(indices[-1]) < size):
            return f"psi.indices go from {int(indices[0])} to {int(indices[-1])}, ψ has {size} entries"
        if not bool((indices[1:] > indices[:-1]).all()):
            return "psi.indices do not increase"
        return ""

    def _keep(self, answer: Answer, psi: Weights) -> None:
        """The latest of a client's; of two from one version the one with more in it, whichever comes first."""
        kept = self.reported.get(answer.client)
        if kept is None or _age(answer.base_version, psi) > _age(*kept):
            self.reported[answer.client] = (answer.base_version, psi)

    def close(self) -> Folded:
        before_P = self.average.state["sigma.params"] + self.average.state["psi.params"]
        folded = self.average.close()
        sigma_P = self.bases[self.version]["sigma.params"]
        state = {**folded.state, "sigma.params": sigma_P}
        for client, (version, psi) in sorted(self.reported.items()):
            embedding_C = self.embed(add_parts(sigma_P, psi))
            # Without an embedding it is no client's neighbour.
            if all_finite(embedding_C):
                state |= psi.tensors(f"helper.{client}")
                state |= {
                    f"helper.{client}.embedding": embedding_C,
                    f"helper.{client}.version": torch.tensor(version),
                }
        psi_P = state["psi.params"]
        return replace(
            folded,
            state=_without_oldest(state, self.pool),
            delta_norm=norm_of(sigma_P + psi_P - before_P.to(psi_P.device)),
            metrics={**folded.metrics, "sigma_norm": norm_of(sigma_P), "psi_norm": norm_of(psi_P)},
        )


def parts(sigma_P: Tensor, psi: Weights) -> dict[str, Tensor]:
    return {"sigma.params": sigma_P} | psi.tensors("psi")


def add_parts(sigma_P: Tensor, psi: Weights) -> Weights:
    """θ"""
    return Weights(sigma_P + psi.params, psi.buffers)


def index_type(size: int) -> torch.dtype:
    return torch.int32 if size < 2**31 else torch.int64


def embeddings_in(state: State) -> dict[int, Tensor]:
    """Client → its prediction for the image of noise"""
    return {int(key.split(".")[1]): tensor for key, tensor in state.items() if key.endswith(".embedding")}


def _age(version: int, psi: Weights) -> tuple[int, float]:
    return version, norm_of(psi.params)


def _without_oldest(state: dict[str, Tensor], pool: int) -> dict[str, Tensor]:
    clients = sorted(
        embeddings_in(state), key=lambda client: (int(state[f"helper.{client}.version"]), client)
    )
    dropped = tuple(f"helper.{client}." for client in clients[: max(len(clients) - pool, 0)])
    return {key: tensor for key, tensor in state.items() if not key.startswith(dropped)}
