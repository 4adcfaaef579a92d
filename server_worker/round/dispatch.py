"""How the server asks: a model version into the log once, a small task for each client."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from broker_config.brokers.topology import DEAD_LETTERS, models_queue, tasks_queue, updates_queue
from broker_config.protocol.errors import FedILError, LedgerFenced, LedgerMissing, QueueMissing
from broker_config.protocol.messages import MODEL_KIND, Refusal, TrainTask, Update
from broker_config.protocol.wire import digest, encode_arrays, encode_message
from broker_config.transports.interface import ModelAddress
from fedil_model.training.flat_model import to_arrays
from server_worker.round.context import Surroundings
from server_worker.round.selection import select_clients
from server_worker.run.recipe import Recipe

_EVER = 2**62
"""An activation that no client reaches"""


@dataclass(frozen=True)
class Broadcast:
    """Where a model version lies, and what it is."""

    address: ModelAddress
    digest: str


class Asking:
    def __init__(self, run: str, recipe: Recipe, around: Surroundings) -> None:
        self._run, self._recipe, self._around = run, recipe, around
        self._learning = recipe.learning().model_dump_json()
        self._written: list[ModelAddress] = []

    def broadcast(self, version: int, tensors: Mapping[str, Tensor], kept: int = 2) -> Broadcast:
        body = encode_arrays(MODEL_KIND, {"run": self._run, "version": version}, to_arrays(tensors))
        address = self._around.transport.append_model(self._run, version, body, kept)
        self._written = [*self._written, address][-kept:]
        return Broadcast(address, digest(body))

    def has_sent(self, task: TrainTask) -> bool:
        """In this life: every server writes its models anew, so no two have tasks with the same address."""
        return task.model in self._written

    def ask(self, model: Broadcast, activations: Mapping[int, int], answered: tuple[int, ...]) -> None:
        """`activations`: client → which time this is; `answered`: what each client has answered before."""
        for client, activation in activations.items():
            try:
                self._around.store.open_activation(self._run, client, activation)
            except (LedgerFenced, LedgerMissing) as error:
                # A site may spoil its own clients' ledgers. That is their trouble: answer in their place.
                self._refuse(model.address.version, client, activation, error)
                continue
            task = TrainTask(
                run=self._run,
                round=model.address.version,
                client=client,
                activation=activation,
                model=model.address,
                model_digest=model.digest,
                learning=self._learning,
                ledger_at_least=min(answered[client], activation - 1),
            )
            # Somebody may have deleted a queue: `lost` will name this client, with those who were asked before.
            with suppress(QueueMissing):
                queue = tasks_queue(self._around.sites.site_of(client))
                self._around.transport.publish(queue, encode_message(task))

    def lost(self, clients: Iterable[int], write_models: Callable[[], object]) -> list[int]:
        """Those whose tasks, models or answers went with a queue that somebody has deleted. It is there again, and they
        must be asked again: else all would wait in vain until the deadline. Who is at it already answers twice, which
        counts once. `write_models` puts all that clients are asked with into the log again."""
        site_of = self._around.sites.site_of
        sites = sorted({site_of(client) for client in clients})
        self._made_again(DEAD_LETTERS)
        gone = {
            site for site in sites if self._made_again(tasks_queue(site), ", and its clients are asked again")
        }
        everybody = ", and all who have not answered are asked again"
        if self._made_again(updates_queue(self._run), everybody):
            gone = set(sites)
        if self._around.transport.depth(models_queue(self._run)) is None:
            self._around.watcher.note(
                f"{models_queue(self._run)} was deleted: it is written again{everybody}"
            )
            write_models()
            gone = set(sites)
        return [client for client in clients if site_of(client) in gone]

    def _made_again(self, queue: str, then: str = "") -> bool:
        if self._around.transport.depth(queue) is not None:
            return False
        self._around.watcher.note(f"{queue} was deleted: it is made again{then}")
        self._around.transport.declare(queue)
        return True

    def check_store(self, answer: Update | Refusal, answered: tuple[int, ...]) -> None:
        """One client's ledger may be its site's own fault. All of them are the store's, and the run's end."""
        if isinstance(answer, Refusal) and answer.reason == LedgerMissing.__name__:
            self.check_ledgers(answered)

    def check_ledgers(self, answered: tuple[int, ...]) -> None:
        """Raises an error if the store has lost the run, or the ledgers of all clients that have answered, or is ahead
        of us."""
        # First: clients that trained while a store was emptied have put ledgers into it since.
        self._around.store.check_begun(self._run)
        self.check_any_is_left(answered)

    def check_any_is_left(self, answered: tuple[int, ...]) -> None:
        lost: LedgerMissing | None = None
        for client, activation in enumerate(answered):
            if activation:
                try:
                    self._around.store.read(self._run, client, activation + 1, at_least=activation)
                except LedgerMissing as error:
                    lost = lost or error
                else:
                    return
        if lost is not None and any(self._has_made_room(*each) for each in enumerate(answered)):
            raise FedILError(
                f"the ledgers of run {self._run} are ahead of its newest checkpoint: restore the run's folder and the "
                "store together, or start a new run"
            ) from lost
        if lost is not None:
            raise lost

    def _has_made_room(self, client: int, activation: int) -> bool:
        """For later ones, which are there. Into a store that was restored from an older copy a task that was under way
        may have put a later one too, but nothing had to go for it."""
        store = self._around.store
        try:
            store.read(self._run, client, activation + 1)
        except LedgerMissing:
            with suppress(LedgerMissing):
                return store.read(self._run, client, _EVER, at_least=activation + 1) is not None
        return False

    def _refuse(self, version: int, client: int, activation: int, error: FedILError) -> None:
        refusal = Refusal(self._run, version, client, activation, type(error).__name__, str(error)[:1000])
        with suppress(QueueMissing):
            self._around.transport.publish(updates_queue(self._run), encode_message(refusal))

    def candidates(self) -> list[int]:
        """Clients of sites that are there; everybody when nobody is, since tasks wait in their queues."""
        everybody = range(self._recipe.split.clients)
        sites = set(self._around.sites.present())
        if sites == set(self._around.sites.names()):
            return list(everybody)
        there = [client for client in everybody if self._around.sites.site_of(client) in sites]
        return there or list(everybody)

    def select(self, round_number: int) -> tuple[int, ...]:
        federation = self._recipe.federation
        count = federation.clients_per_round + federation.over_select
        return select_clients(self._recipe.seed, round_number, self.candidates(), count)
