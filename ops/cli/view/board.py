"""The board of `fedil status` for a terminal: runs, their last rounds, and the workers of each site."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ops.cli.view.tables import plain_table
from server_worker.watch.palette import TERMINAL
from server_worker.watch.words import Trouble, duration, epoch_words, phase_words, trend

_LARGEST, _LONGEST_TEXT, _MOST_MODELS = 1e15, 300, 8


def render(board: dict[str, Any], now: float) -> Group:
    """Whatever the notices hold: every site may write some, and a bad one must not hide the others."""
    runs = {name: table(facts) for name, facts in board["runs"].items()}
    parts: list[Any] = []
    if not runs:
        parts.append(Text("no server has put up a notice: start one with fedil server, or name a --site"))
    for name, facts in runs.items():
        parts += [run_line(name, facts, now), *rounds_table(facts)]
    if finished := {name: table(facts) for name, facts in board.get("finished", {}).items()}:
        newest = sorted(finished, key=lambda name: -(number(finished[name].get("ended")) or 0))
        parts.append(Text("\nfinished", style=TERMINAL["quiet"]))
        parts += [finished_line(name, finished[name], now) for name in newest]
    for site, workers in board["workers"].items():
        parts += site_part(site, workers, runs, now)
    return Group(*parts)


def run_line(name: str, facts: dict[str, Any], now: float) -> Text:
    progress = f"round {plain(facts.get('round', 0))} of {plain(facts.get('rounds'))}"
    text = Text.assemble((plain(name), "bold"), f"  {plain(facts.get('recipe'))}, ")
    troubles = troubles_of(facts)
    what = "waiting" if any(trouble.stops for trouble in troubles) else phase(facts, now)
    text.append(f"{plain(facts.get('mode'))} mode, {progress}, {what}; ")
    text.append(f"on {plain(facts.get('host'))} for {age(facts.get('started'), now)}")
    if facts.get("page"):
        text.append(f"; watch it at {plain(facts['page'])}")
    if facts.get("verdict"):
        text.append(f"; {trend(plain(facts['verdict'])).headline}")
    for trouble in troubles:
        text.append(f"\n  {trouble.sentence(now)}", style=TERMINAL["bad"])
    if facts.get("note"):
        text.append(f"\n  {plain(facts['note'])}", style=TERMINAL["fair"])
    return text


def finished_line(name: str, facts: dict[str, Any], now: float) -> Text:
    rounds = f"{plain(facts.get('round', 0))} of {plain(facts.get('rounds'))} rounds"
    text = Text.assemble(
        (plain(name), "bold"), f"  {plain(facts.get('recipe'))}, {plain(facts.get('state'))} "
    )
    text.append(f"{age(facts.get('ended'), now)} ago after {rounds}")
    recent = facts.get("recent")
    last = table(recent[-1]) if isinstance(recent, list) and recent else {}
    for model, title in model_titles(facts, [last]).items():
        text.append(
            f", {title} {formatted('{:.2%}', table(last.get('accuracy')).get(model))}".replace("%", " %")
        )
    return text


def troubles_of(facts: dict[str, Any]) -> list[Trouble]:
    found = facts.get("troubles")
    told = [table(one) for one in found] if isinstance(found, list) else []
    return [
        Trouble(plain(one.get("words")), number(one.get("since")) or 0.0, one.get("stops") is True)
        for one in told
    ]


def phase(facts: dict[str, Any], now: float) -> str:
    name = plain(facts.get("phase", facts.get("state")))
    if name == "wait":
        return f"{plain(facts.get('answered', 0))} of {plain(facts.get('selected'))} clients have answered"
    epochs = table(facts.get("epochs"))
    done, total, ends = (number(epochs.get(key)) for key in ("done", "total", "ends"))
    if done is None or total is None or ends is None:
        return phase_words(name)
    return f"{phase_words(name)}, {epoch_words(int(done), int(total), max(0.0, ends - now))}"


def rounds_table(facts: dict[str, Any]) -> list[Table]:
    recent = facts.get("recent")
    if not isinstance(recent, list) or not recent:
        return []
    rounds = [table(told) for told in recent]
    titles = model_titles(facts, rounds)
    headings = ("round", *titles.values(), "update size ‖Δθ‖", "accepted", "seconds")
    grid = plain_table(headings, padding=(0, 2), header_style=TERMINAL["quiet"])
    for told in rounds:
        accuracy = table(told.get("accuracy"))
        cells = (
            plain(told.get("round")),
            *(formatted("{:.2%}", accuracy.get(model)).replace("%", " %") for model in titles),
            formatted("{:.4g}", told.get("delta_norm")),
            f"{plain(told.get('accepted'))}/{plain(told.get('selected'))}",
            formatted("{:.1f}", told.get("seconds")),
        )
        grid.add_row(*map(Text, cells))
    return [grid]


def model_titles(facts: dict[str, Any], rounds: list[dict[str, Any]]) -> dict[str, str]:
    """Name → title of the models that were evaluated"""
    titles = table(facts.get("models"))
    evaluated = dict.fromkeys(model for told in rounds for model in table(told.get("accuracy")))
    return {model: plain(titles.get(model, model)) for model in list(evaluated)[:_MOST_MODELS]}


def site_part(
    site: str, workers: dict[str, Any], runs: dict[str, dict[str, Any]], now: float
) -> list[Text | Table]:
    clients = max((number(table(facts.get("sites")).get(site)) or 0 for facts in runs.values()), default=0)
    count = "no worker" if not workers else f"{len(workers)} worker{'s' * (len(workers) > 1)}"
    title = Text.assemble(
        ("\nsite ", TERMINAL["quiet"]), (plain(site), "bold"), f"  {clients} clients, {count}"
    )
    if not workers:
        title.stylize(TERMINAL["bad"])
        return [title]
    words, numbers = ("worker", "device", "doing", "for"), ("tasks", "images/s")
    grid = plain_table((*words, *numbers), left=words, padding=(0, 2), header_style=TERMINAL["quiet"])
    for name, facts in ((name, table(facts)) for name, facts in workers.items()):
        cells = (
            plain(name),
            plain(facts.get("device")),
            doing(facts),
            age(facts.get("since"), now),
            plain(facts.get("tasks_done", 0)),
            formatted("{:.0f}", facts.get("images_per_second")),
        )
        grid.add_row(*(Text(cell, no_wrap=True) for cell in cells))
    return [title, grid]


def doing(facts: dict[str, Any]) -> str:
    state = plain(facts.get("state"))
    if facts.get("client") is None:
        return state
    return f"{state} client {plain(facts['client'])}, round {plain(facts.get('round'))}"


def age(since: object, now: float) -> str:
    began = number(since)
    return "?" if began is None else duration(max(0.0, now - began))


def formatted(pattern: str, value: object) -> str:
    """Empty if it is no number"""
    found = number(value)
    return "" if found is None else pattern.format(found)


def number(value: object) -> int | float | None:
    """None also for what is no use as a number: infinite, NaN, thousands of digits."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < _LARGEST else None


def table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def plain(value: object) -> str:
    """One short line, without characters that control a terminal"""
    if not isinstance(value, str):
        value = "?" if number(value) is None else str(value)
    return "".join(sign if sign.isprintable() else "�" for sign in value[:_LONGEST_TEXT])
