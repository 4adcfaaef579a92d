"""Asks clients to train: a model version into the log once, a small task for each client."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from broker_config.brokers.topology import DEAD_LETTERS, models_queue, tasks_queue, updates_queue
from broker_config.protocol.buffers import digest
from broker_config.protocol.errors import LedgerFenced, LedgerMissing, QueueMissing
from broker_config.protocol.messages import MODEL_KIND, ModelEntry, Refusal, TrainTask
from broker_config.protocol.wire import encode_arrays, encode_message
from fedil_model.methods.interface import Method, State, Tensors
from fedil_model.training.flat_model import to_arrays
from server_worker.round.context import ServerContext
from server_worker.round.selection import select_clients
from server_worker.run.recipe import Recipe
from server_worker.watch.notices import Notice


class TaskDispatcher:
    def __init__(
        self,
        run: str,
        recipe: Recipe,
        method: Method,
        context: ServerContext,
        refuse_for: Callable[[Refusal], None],
    ) -> None:
        """`refuse_for` takes what a client would answer that cannot even be asked."""
        self._run, self._recipe, self._method, self._context = run, recipe, method, context
        self._refuse_for = refuse_for
        data = recipe.data.model_copy(update={"options": {**context.data_options, **recipe.data.options}})
        self._learning = recipe.learning().model_copy(update={"data": data}).model_dump_json()
        federation, extras_per_client = recipe.federation, recipe.spec.extras_per_client
        # More clients are asked where some fail.
        self._entries_per_version = 1 + 2 * federation.asked_at_once * extras_per_client
        self._kept = federation.max_staleness + 1 if federation.mode == "buffered" else 1
        self._models: dict[int, ModelEntry] = {}
        """Versions that this process has written, the last `kept`"""
        self._extras: dict[tuple[int, str], ModelEntry] = {}
        self._state: State = {}
        self.answered: tuple[int, ...] = ()
        """The last activation that each client has answered"""

    def start_round(self, state: State, answered: tuple[int, ...]) -> None:
        """`state`: what extras are made from"""
        self._state, self.answered = state, answered

    # ---- models ------------------------------------------------------------------------------------------------

    def broadcast(self, bases: Mapping[int, Tensors], versions: Iterable[int], again: bool = False) -> None:
        """Write those versions that this process has not written yet, oldest first: the log drops what was written
        first. `again`: all of them, after the log was deleted."""
        if again:
            self._models, self._extras = {}, {}
        for version in versions:
            if version not in self._models:
                self._models[version] = self._append(version, bases[version])
        kept = sorted(self._models)[-self._kept :]
        self._models = {version: self._models[version] for version in kept}
        self._extras = {key: entry for key, entry in self._extras.items() if key[0] in self._models}

    def _append(self, version: int, tensors: Tensors, name: str = "") -> ModelEntry:
        body = encode_arrays(MODEL_KIND, {"run": self._run, "version": version}, to_arrays(tensors))
        address = self._context.transport.append_model(
            self._run, version, body, self._kept, name, self._entries_per_version
        )
        return ModelEntry(address, digest(body))

    def _extras_for(self, version: int, client: int) -> dict[str, ModelEntry]:
        names = self._method.extras_for(self._state, version, client)
        for name in names:
            if (version, name) not in self._extras:
                self._extras[version, name] = self._append(
                    version, self._method.extra(self._state, name), name
                )
        return {name: self._extras[version, name] for name in names}

    # ---- tasks -------------------------------------------------------------------------------------------------

    def ask(self, version: int, client: int, activation: int) -> None:
        try:
            self._context.store.open_activation(self._run, client, activation)
        except (LedgerFenced, LedgerMissing) as error:
            # A site can spoil only its own clients' ledgers: answer in their place.
            why = str(error)[:1000]
            self._refuse_for(Refusal(self._run, version, client, activation, type(error).__name__, why))
            return
        task = TrainTask(
            run=self._run,
            round=version,
            client=client,
            activation=activation,
            model=self._models[version],
            extras=self._extras_for(version, client),
            learning=self._learning,
            wire=self._recipe.federation.wire,
            ledger_at_least=min(self.answered[client], activation - 1),
        )
        with suppress(QueueMissing):  # `lost` declares a deleted queue again and names this client
            queue = tasks_queue(self._context.sites.site_of(client))
            self._context.transport.publish(queue, encode_message(task))

    def has_sent(self, task: TrainTask) -> bool:
        """In this process's life: every server writes its models anew, so no two servers' tasks share an address."""
        return any(task.model == model for model in self._models.values())

    # ---- deleted queues ----------------------------------------------------------------------------------------

    def lost(self, clients: Iterable[int], rewrite_models: Callable[[], None]) -> set[int]:
        """Clients whose tasks, models or answers were deleted with a queue. The queue is declared again; the clients
        must be asked again. A client that is training already answers twice, which counts once."""
        clients, site_of = list(clients), self._context.sites.site_of
        sites = {site_of(client) for client in clients}
        self._redeclare(DEAD_LETTERS)
        queues = {tasks_queue(site): site for site in sorted(sites)}
        # Of all sites: where one is missing nothing can be received.
        queues |= {updates_queue(self._run, site): site for site in self._context.sites.names()}
        consequence = "its site's clients that have not answered are asked again"
        lost = {site for queue, site in queues.items() if self._redeclare(queue, consequence)}
        if self._is_deleted(models_queue(self._run), "all clients that have not answered are asked again"):
            rewrite_models()
            lost = sites
        return {client for client in clients if site_of(client) in lost}

    def _redeclare(self, queue: str, consequence: str = "") -> bool:
        deleted = self._is_deleted(queue, consequence)
        if deleted:
            self._context.transport.declare(queue)
        return deleted

    def _is_deleted(self, queue: str, consequence: str) -> bool:
        if self._context.transport.depth(queue) is not None:
            return False
        then = f", and {consequence}" if consequence else ""
        self._context.watcher.note(Notice(f"{queue} was deleted: it is declared again{then}"))
        return True

    # ---- which clients -----------------------------------------------------------------------------------------

    def candidates(self) -> list[int]:
        """Clients of sites that have a worker; all clients while too few sites have one, since tasks wait in their
        queues."""
        everyone, sites = range(self._recipe.split.clients), self._context.sites
        if not sites.are_enough():
            return list(everyone)
        present = set(sites.present())
        return [client for client in everyone if sites.site_of(client) in present]

    def select(self, round_number: int) -> tuple[int, ...]:
        count = self._recipe.federation.asked_per_round
        return select_clients(self._recipe.seed, round_number, self.candidates(), count)
