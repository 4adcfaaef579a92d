"""The last screen of a run: how good, against what, where it is, what to do next."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from fedil_model.errors import LearningError
from fedil_model.methods.interface import Model
from ops.cli.invocation import brief_path, shell_line
from ops.cli.view.curve import curve
from ops.inspect.summary import Summary
from server_worker.run.folder import RunDir
from server_worker.run.history import read_history
from server_worker.run.recipe import Recipe
from server_worker.watch.words import duration, trend

__all__ = ["duration", "print_summary"]

CURVE_HEIGHT = 6
WIDEST_CURVE = 76


def print_summary(summary: Summary, recipe: Recipe, resume_line: str, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print()
    state = "stopped after" if summary.stopped else "finished"
    rounds = f"{summary.rounds_done} of {summary.rounds} rounds in {duration(summary.seconds)}"
    console.print(Text(f"{state} {rounds}", style="bold"))
    for line in curve_lines(summary, min(console.width, WIDEST_CURVE)):
        console.print(Text(line, no_wrap=True, overflow="crop"))
    labelled = list(facts(summary, recipe.spec.display.models))
    width = max(len(label) for label, _ in labelled) + 1
    # soft_wrap: a path, a digest or a command that is cut in two cannot be copied.
    for label, text in labelled:
        style = "bold" if label == "accuracy" else ""
        console.print(Text.assemble((f"{label:{width}}", "dim"), (text, style)), soft_wrap=True)
    console.print(next_steps(summary, recipe, resume_line), soft_wrap=True)


def curve_lines(summary: Summary, width: int) -> list[str]:
    """Of the model that ships; from the file, so that a resumed run shows the whole curve."""
    history = read_history(RunDir(summary.run_dir).history)
    known = {record["round"]: record["accuracy"].get("global") for record in history}
    by_round = {number: known[number] for number in sorted(known) if known[number] is not None}
    if len(by_round) < 2:
        return []
    return curve(list(by_round.values()), list(by_round), summary.baseline_accuracy, width, CURVE_HEIGHT)


def facts(summary: Summary, models: Sequence[Model]) -> Iterator[tuple[str, str]]:
    shipped, accuracy, baseline = models[0], summary.accuracy, summary.baseline_accuracy
    labels = {model.name: model.label for model in models}
    parts = [f"{labels.get(name, name)} {100 * share:.2f} %" for name, share in accuracy.items()]
    yield "accuracy", "   ".join(parts) or "not measured"
    if baseline is not None:
        text = f"server-only on the same labels, chosen on held-out ones: {100 * baseline:.2f} %"
        if "global" in accuracy:
            text += f"   {shipped.title} {100 * (accuracy['global'] - baseline):+.2f} points"
        yield "", text
    yield "update size", trend(summary.verdict).words
    yield f"digest {shipped.short}", summary.model_digest
    yield "ledgers", summary.ledger_digest
    yield "split", summary.split_digest
    yield "saved in", brief_path(summary.run_dir)


def _takes_pictures(recipe: Recipe) -> bool:
    from fedil_model.data.datasets import open_dataset
    from fedil_model.data.datasets.pictures import picture_shape

    try:
        picture_shape(open_dataset(recipe.data))
    except LearningError:
        return False
    return True


def next_steps(summary: Summary, recipe: Recipe, resume_line: str) -> Text:
    if summary.stopped:
        how = "Go on with" if summary.model_digest else "Nothing was saved yet. Begin again with"
        return Text(f"\n{how}\n  {resume_line}")
    run_dir = brief_path(summary.run_dir)
    allowed = [word for name in dict.fromkeys(recipe.plugins) for word in ("--plugin", name)]
    steps = [
        shell_line("report", run_dir, *allowed),
        shell_line("evaluate", run_dir, *allowed),
        shell_line("export", run_dir, *allowed, "--format", "onnx"),
    ]
    if _takes_pictures(recipe):
        steps.append(shell_line("predict", run_dir, *allowed) + " FOLDER")
    return Text("\nNext\n" + "\n".join(f"  {step}" for step in steps))
