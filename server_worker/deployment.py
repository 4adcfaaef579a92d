"""One server process, put together: brokers, data, device, the lead of its run, the loop."""

import ctypes
import os
import socket
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from broker_config.brokers.topology import FINISHED_TOPIC, RUNS_TOPIC
from broker_config.process.addresses import WebAddress
from broker_config.process.logs import Logs
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerUnavailable, FedILError, LedgerMissing
from broker_config.stores import connect_store, is_redis_url
from broker_config.stores.interface import Store
from broker_config.stores.presence import Presence
from broker_config.transports import connect_transport
from broker_config.transports.interface import Transport
from broker_config.transports.reconnecting import ReconnectingTransport
from fedil_model.methods import make_method
from fedil_model.methods.interface import MethodSpec
from fedil_model.training.precision import choose_device, repeatable_on
from server_worker.coordinator import Coordinator
from server_worker.options import mlflow_address
from server_worker.round.context import LabelTruth, ServerContext, Stopped
from server_worker.round.sites import Sites
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.digests import Outcome, ledger_digest, outcome_of
from server_worker.run.environment import record_environment
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryWriter
from server_worker.run.inputs import RunInputs, read_inputs
from server_worker.run.lock import FolderInUse, sole_use
from server_worker.run.name import run_id
from server_worker.run.recipe import Recipe
from server_worker.run.resuming import refuse_differences, saved_recipe, stretched_schedules
from server_worker.watch import mlflow
from server_worker.watch.events import Watcher
from server_worker.watch.log import LogWatcher, log_outcome
from server_worker.watch.mlflow import MlflowWatcher
from server_worker.watch.notices import Notice
from server_worker.watch.room import RoomKeeper
from server_worker.watch.status import StatusTeller
from server_worker.watch.survey import Surveyor
from server_worker.watch.tensorboard import TensorBoardWatcher, check_installed
from server_worker.watch.watching import Watching, watching

LEAD_SECONDS = 90.0
"""A server that was cut off is noticed after three heartbeats; until then its successor waits."""
_STANDBY_SECONDS = 1.0
_FINISHED_SHOWN_SECONDS = 7 * 86400.0
_BRIEF = RetryPolicy(seconds=1.0)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)"""


class Superseded(FedILError):
    """Another server leads this run now."""


@dataclass(frozen=True)
class Deployment:
    recipe: Recipe
    run_dir: Path
    broker: str
    store: str
    run: str | None = None
    device: str = "auto"
    standby: bool = False
    web: WebAddress | None = None
    tensorboard: bool = False
    mlflow: str | None = None
    stay: bool = False
    more_rounds: bool = False
    """A run that was begun goes on to as many rounds as the recipe has now."""

    @classmethod
    def from_options(cls, recipe: Recipe, options: Namespace) -> "Deployment":
        """`options`: those of server_worker.options"""
        same = {
            name: getattr(options, name)
            for name in ("broker", "store", "device", "standby", "web", "tensorboard", "stay")
        }
        run_dir = options.run_dir or Path("runs") / recipe.name
        mlflow, more_rounds = mlflow_address(options.mlflow, run_dir), options.rounds is not None
        return cls(recipe, run_dir, run=options.run_id, mlflow=mlflow, more_rounds=more_rounds, **same)

    def connect_store(self, retry: RetryPolicy) -> Store:
        return connect_store(self.store, site_of=self.recipe.site_of, retry=retry)


MakeLabelTruth = Callable[[Store, str, MethodSpec, RunInputs], LabelTruth]


def serve(
    deployment: Deployment,
    watcher: Watcher,
    stop: threading.Event,
    label_truth: MakeLabelTruth = lambda *_: lambda _: {},
    logs: Logs | None = None,
) -> Outcome:
    """Blocks until the run is done or `stop` is set. The same call goes on where a killed one was. `logs`: what each
    event and the outcome are written to"""
    where = RunDir(deployment.run_dir)
    run = run_id(where, deployment.recipe, deployment.run)
    if logs is not None:
        watcher = Watcher(watcher, LogWatcher(run, deployment.recipe.spec.display, logs.always))
    if deployment.tensorboard:
        check_installed()
    if deployment.mlflow is not None:
        mlflow.check_installed()
    with watching(run, deployment.recipe, where, deployment.web, stop) as watch:
        server = _Server(deployment, where, run, watcher, stop, label_truth, watch)
        try:
            outcome = server.serve()
        except (BrokerUnavailable, Stopped):
            # A stopping server waits neither for a broker nor for another server to end.
            if not stop.is_set():
                raise
            outcome = outcome_of(where, run, stopped=True)
        watch.ended("stopped" if outcome.stopped else "done")
        if logs is not None:
            logs.always(round=None)
            log_outcome(outcome, deployment.recipe.rounds)
        if deployment.stay:
            stop.wait()
    return outcome


@dataclass(frozen=True)
class _Server:
    deployment: Deployment
    where: RunDir
    run: str
    watcher: Watcher
    stop: threading.Event
    label_truth: MakeLabelTruth
    watch: Watching

    def serve(self) -> Outcome:
        deployment, recipe, run, watch = self.deployment, self.deployment.recipe, self.run, self.watch
        _give_memory_back()
        device = choose_device(deployment.device)
        # For cuBLAS, which reads it when it is first used; see repeatable_on.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        repeatable_on(device)
        with ExitStack() as stack:
            patience = RetryPolicy(stop=self.stop.is_set, on_wait=watch.waiting_for)
            store = deployment.connect_store(patience)
            stack.callback(store.close)
            transport = self._take_charge(patience, stack)
            presence = stack.enter_context(self._presence())
            watch.tell_address(self.watcher.note)
            if is_redis_url(deployment.store):
                stack.enter_context(self._room_keeper())
            status = StatusTeller(presence.update, recipe.federation.expected)
            watcher = Watcher(watch.watcher, status, self.watcher)
            watch.troubles.on_change = watcher.troubles
            if deployment.tensorboard:
                events = TensorBoardWatcher(self.where.tensorboard, recipe.spec.display, watcher.note)
                watcher = Watcher(stack.enter_context(events), watcher)
            if deployment.mlflow is not None:
                tracked = MlflowWatcher(deployment.mlflow, run, recipe, self.where.history, watcher.note)
                watcher = Watcher(stack.enter_context(tracked), watcher)
            for concern in transport.timeout_warnings(recipe.federation.deadline_seconds):
                watcher.note(Notice(concern))
            self._resume(watcher)
            watcher.phase(0, "load_data")
            inputs = read_inputs(self.where, recipe, device, resume=True)
            record_environment(self.where, device)
            evaluator = inputs.evaluator(recipe)
            stack.callback(evaluator.close)
            context = ServerContext(
                transport=transport,
                store=store,
                checkpoints=CheckpointFolder(self.where.checkpoints),
                evaluate=evaluator.submit,
                watcher=HistoryWriter(self.where.history, watcher),
                clock=time.monotonic,
                stop=self.stop,
                sites=Sites(
                    recipe.sites,
                    store,
                    time.monotonic,
                    recipe.federation.site_timeout_seconds,
                    _user(deployment.broker),
                    watcher.note,
                    recipe.min_sites,
                ),
                label_truth=self.label_truth(store, run, recipe.spec, inputs),
                data_options=inputs.dataset.elsewhere,
                shard_sizes=inputs.split.held,
                away=lambda: transport.outage_seconds + store.outage_seconds,
                connect_for_inspection=lambda: connect_transport(deployment.broker),
            )
            stack.enter_context(Surveyor(run, recipe.sites, self._connect_for_survey, watch.survey))
            watch.leading(
                inputs.dataset.class_names, lambda: (transport.bytes_sent, transport.bytes_received)
            )
            method = make_method(recipe.learning(), inputs.dataset, device, inputs.initial_tensors)
            stopped, ledgers = False, ""
            try:
                Coordinator(run, recipe, method, inputs.labelled, context).run()
                transport.retire(run, recipe.sites)
            except Stopped:
                stopped = True
            try:
                ledgers = ledger_digest(store, run)
            except LedgerMissing as error:  # the model is complete even if a ledger was damaged
                watcher.note(Notice(f"no digest of the ledgers: {error}"))
            outcome = outcome_of(self.where, run, stopped, ledgers, inputs.split.digest)
            state = "stopped" if stopped else "done"
            ended = {"state": state, "round": outcome.rounds_done, "ended": time.time(), **status.last}
            store.announce(FINISHED_TOPIC, run, {**self._facts(), **ended}, _FINISHED_SHOWN_SECONDS)
            return outcome

    def _resume(self, watcher: Watcher) -> None:
        deployment, recipe = self.deployment, self.deployment.recipe
        if saved := saved_recipe(self.where, recipe):
            refuse_differences(deployment.run_dir, saved, recipe, more_rounds=deployment.more_rounds)
        for words in stretched_schedules(self.where, recipe):
            watcher.note(Notice(words))

    def _take_charge(self, patience: RetryPolicy, stack: ExitStack) -> ReconnectingTransport:
        """The lead first, then the folder, which a standby server shares with the one that it waits for. The other may
        have lost its connection and not its life: then the lead goes back to it."""
        while True:
            transport = ReconnectingTransport(self._lead, patience)
            try:
                stack.enter_context(sole_use(self.deployment.run_dir))
            except FolderInUse:
                transport.close()
                if not self.deployment.standby:
                    raise
                if self.stop.is_set():
                    raise Stopped from None
                time.sleep(_STANDBY_SECONDS)
            except BaseException:
                transport.close()
                raise
            else:
                stack.callback(transport.close)
                return transport

    def _lead(self) -> Transport:
        """A connection of the run's only server. After the broker was away another server may lead."""
        transport = connect_transport(self.deployment.broker)
        try:
            deadline = time.monotonic() + LEAD_SECONDS
            waiting = False
            while not transport.acquire_leadership(self.run, _STANDBY_SECONDS):
                if self.stop.is_set():
                    raise Stopped
                if not waiting:
                    self.watch.standing_by()
                    self.watcher.note(Notice(f"another server leads run {self.run}: waiting"))
                    self.watch.tell_address(self.watcher.note)
                waiting = True
                if not self.deployment.standby and time.monotonic() > deadline:
                    raise Superseded(
                        f"another server leads run {self.run}: stop it, or start this one with --standby to wait "
                        "for it"
                    )
            self.watch.leading_again()
            return transport
        except BaseException:
            transport.close()
            raise

    def _connect_for_survey(self) -> tuple[Transport, Store]:
        store = self.deployment.connect_store(_BRIEF)
        try:
            return connect_transport(self.deployment.broker), store
        except BaseException:
            store.close()
            raise

    def _room_keeper(self) -> RoomKeeper:
        from broker_config.stores.redis.room import open_room

        sites = self.deployment.recipe.sites

        def site_of(client: int) -> str | None:
            return next((site for site, clients in sites.items() if client in clients), None)

        return RoomKeeper(lambda: open_room(self.deployment.store, self.run, site_of), self.watcher.note)

    def _presence(self) -> Presence:
        facts = {"state": "starting", **self._facts()}
        return Presence(lambda: self.deployment.connect_store(_BRIEF), RUNS_TOPIC, self.run, facts)

    def _facts(self) -> dict[str, object]:
        recipe = self.deployment.recipe
        return {
            "recipe": recipe.name,
            "mode": recipe.federation.mode,
            "rounds": recipe.rounds,
            "models": {model.name: model.label for model in recipe.spec.display.models},
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "sites": {site: len(clients) for site, clients in recipe.sites.items()},
            "started": time.time(),
            "page": self.watch.url,
        }


def _give_memory_back() -> None:
    """glibc raises its thresholds after the first large block is freed, and then keeps models in its heap that
    are not used: with fixed thresholds large blocks always go back to the system."""
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 16 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def _user(broker_url: str) -> str | None:
    """The user name at the broker; None where it has no users."""
    parts = urlsplit(broker_url)
    if not parts.scheme.startswith("amqp"):
        return None
    return unquote(parts.username) if parts.username else "guest"
