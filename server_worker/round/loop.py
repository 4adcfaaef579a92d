"""Which clients are asked, and when a round closes. Rounds mode, the paper's: ask some clients, wait for them with a
quorum and one deadline. The other mode is in buffered/loop.py."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from broker_config.protocol.errors import FedILError
from fedil_model.methods.interface import Bases, Fold
from server_worker.round.answers import AnswerDesk
from server_worker.round.context import ServerContext
from server_worker.round.dispatch import TaskDispatcher
from server_worker.round.inbox import Inbox
from server_worker.round.selection import select_clients
from server_worker.round.state import OpenRound, OpenT
from server_worker.round.stopwatch import Stopwatch
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import MISSING, REFUSED
from server_worker.watch.notices import Notice

POLL_SECONDS = 0.5
QUIET_SECONDS = 2.0
"""Without an answer for this long, the server looks for lost and dead tasks and for absent sites."""
_LAST_LOOK_SECONDS = 10.0
"""At the deadline, answers that are already in the queue still count; looked at for this long at most."""


@dataclass
class Mode(ABC, Generic[OpenT]):
    run: str
    recipe: Recipe
    inbox: Inbox
    desk: AnswerDesk
    dispatcher: TaskDispatcher
    context: ServerContext

    @abstractmethod
    def first_progress(self, progress: Progress) -> Progress:
        """Before the first round of a run"""

    @abstractmethod
    def open(self, progress: Progress) -> OpenT:
        """The round that is played now; after a restart, with the clients that were asked before it"""

    @abstractmethod
    def ask(self, opened: OpenT, restarted: bool) -> OpenT: ...

    @abstractmethod
    def collect(
        self, opened: OpenT, fold: Fold, rewrite_models: Callable[[], None], stopwatch: Stopwatch
    ) -> OpenT: ...

    @abstractmethod
    def next_progress(self, closed: OpenT, after: Progress, bases: Bases) -> Progress:
        """With what this mode remembers for the next round"""

    def _send(self, opened: OpenT, clients: Iterable[int]) -> None:
        for client in clients:
            self.dispatcher.ask(opened.base_of(client), client, opened.asked[client])


class RoundsMode(Mode[OpenRound]):
    def first_progress(self, progress: Progress) -> Progress:
        progress = replace(progress, selection=self.dispatcher.select(1))
        # An earlier run in this folder may have left its own journal.
        self._write_journal(1, progress.selection)
        return progress

    def open(self, progress: Progress) -> OpenRound:
        federation, number = self.recipe.federation, progress.round + 1
        # Not of those selected: more may be asked later, and a restarted server must count alike.
        needed = min(federation.clients_per_round, self.recipe.split.clients)
        return OpenRound(
            run=self.run,
            number=number,
            activations={client: progress.activations[client] + 1 for client in self._selection(progress)},
            needed=needed,
            quorum=math.ceil(federation.quorum * needed),
            deadline=math.inf,
            over=progress.activations,
            min_sites=self._min_sites(progress.selection),
            site_of=self.context.sites.site_of,
        )

    def _min_sites(self, selection: Sequence[int]) -> int:
        """Where the recipe does not say how many, a round needs no site of which it has selected no client."""
        sites, selected = self.context.sites, {self.context.sites.site_of(client) for client in selection}
        explicit = self.recipe.federation.min_sites is not None
        return min(sites.min_sites, len(sites.names() if explicit and selection else selected))

    def ask(self, opened: OpenRound, restarted: bool) -> OpenRound:  # noqa: ARG002
        return self._ask(opened, opened.awaited)

    def collect(
        self, opened: OpenRound, fold: Fold, rewrite_models: Callable[[], None], stopwatch: Stopwatch
    ) -> OpenRound:
        """Take answers until the round may close; ask more clients when too few of those asked can learn."""
        now = self.context.now
        heard, last_look = now(), math.inf
        while not opened.may_close(now()):
            if opened.is_settled:
                if others := self._others(opened):
                    opened, last_look = self._ask_others(opened, others), math.inf
                elif self._is_final(opened, now()):
                    break
            self.context.check_stop()
            overdue = opened.overdue(now())
            before, opened = opened, self.desk.receive(opened, fold, POLL_SECONDS, stopwatch)
            if opened is not before:
                heard = now()
            elif overdue:
                last_look = min(last_look, now() + _LAST_LOOK_SECONDS)
                if self.inbox.is_empty or now() >= last_look:
                    raise self._too_few(opened)
            if now() - heard >= QUIET_SECONDS:
                self._send(opened, self.desk.lost(opened, rewrite_models))
                opened = self.desk.give_up_on_dead_tasks(opened)
                opened = self.desk.give_up_on_absent_sites(opened)
                heard = now()
        if opened.needed and not opened.learned:
            raise self._none_learned(opened)
        if opened.sites_missing:
            raise self._too_few(opened)
        return opened

    def next_progress(self, closed: OpenRound, after: Progress, bases: Bases) -> Progress:  # noqa: ARG002
        return replace(after, selection=self.dispatcher.select(closed.number + 1))

    # ---- asking ------------------------------------------------------------------------------------------------

    def _ask(self, opened: OpenRound, clients: Sequence[int]) -> OpenRound:
        self._send(opened, clients)
        return replace(opened, deadline=self.context.now() + self.recipe.federation.deadline_seconds)

    def _others(self, settled: OpenRound) -> tuple[int, ...]:
        """Clients to ask as well: of sites that are missing, if any are, and first of sites that have not refused."""
        if self.desk.is_hopeless(settled, settled.needed):
            return ()
        left = [client for client in self.dispatcher.candidates() if client not in settled.asked]
        if settled.sites_missing:
            left = [client for client in left if settled.site_of(client) not in settled.sites]
        refusing = self.desk.sites_of(settled, (REFUSED,))
        willing = [client for client in left if self.context.sites.site_of(client) not in refusing]
        missing = max(settled.needed - settled.fitting, settled.sites_missing)
        return select_clients(self.recipe.seed, settled.number, willing or left, missing)

    def _ask_others(self, opened: OpenRound, others: Sequence[int]) -> OpenRound:
        """Written to the journal first: a restarted server must ask them too."""
        asked, learned = len(opened.asked), opened.fitting
        words = f"{learned} of {asked} clients have trained, the quorum is {opened.quorum}; asking {len(others)} more"
        self.context.watcher.note(Notice(words, opened.number))
        self._write_journal(opened.number, (*opened.asked, *others))
        opened = opened.also(others)
        return self._ask(opened, opened.awaited)

    def _is_final(self, settled: OpenRound, now: float) -> bool:
        """No other client can be asked. One that was given up may still answer, while its site has a worker and time
        is left."""
        if self.desk.is_hopeless(settled, settled.needed):
            return True
        hope = self.desk.sites_of(settled, (MISSING,))
        if not settled.sites_missing:  # for one of those that are, the run waits even if it has no worker
            hope &= set(self.context.sites.present())
        return bool(settled.learned) and (not hope or now >= settled.deadline)

    # ---- the journal: which clients were asked since the checkpoint ---------------------------------------------

    def _write_journal(self, number: int, selection: Sequence[int]) -> None:
        """Beside the checkpoint, which is large and has the selection that its round began with."""
        self.context.checkpoints.save_journal({"version": number, "selection": list(selection)})

    def _selection(self, progress: Progress) -> tuple[int, ...]:
        journal = self.context.checkpoints.journal()
        if journal is None or journal["version"] != progress.round + 1:
            return progress.selection
        selection = tuple(journal["selection"])
        # Clients are only ever added. A selection that begins otherwise was written before an operator went back to
        # an older checkpoint.
        is_ours = selection[: len(progress.selection)] == progress.selection
        return selection if is_ours else progress.selection

    # ---- errors ------------------------------------------------------------------------------------------------

    def _too_few(self, opened: OpenRound) -> FedILError:
        if opened.sites_missing and opened.learned:
            return self._too_few_sites(opened)
        return FedILError(
            f"round {opened.number}: {opened.learned} of {len(opened.asked)} clients have learned within "
            f"{self.recipe.federation.deadline_seconds:g} s, the quorum is {opened.quorum}: "
            "start more workers, raise federation.deadline_seconds or lower federation.quorum, then resume"
            f"{self.desk.example_of_failure(opened)}"
        )

    def _too_few_sites(self, opened: OpenRound) -> FedILError:
        missing = " or ".join(sorted(set(self.context.sites.names()) - opened.sites))
        return FedILError(
            f"round {opened.number}: no client of site {missing} has learned, and the round needs clients of "
            f"{opened.min_sites} sites: start their workers, or accept fewer with "
            f"--set federation.min_sites={len(opened.sites)}, then resume{self.desk.example_of_failure(opened)}"
        )

    def _none_learned(self, closed: OpenRound) -> FedILError:
        outcomes = sorted(closed.outcomes(), key=lambda outcome: outcome.outcome != REFUSED)
        all_refused = outcomes[-1].outcome == REFUSED
        what = "every client refused" if all_refused else "no client has learned anything"
        return FedILError(f"round {closed.number}: {what}; the first says {outcomes[0].detail}")
