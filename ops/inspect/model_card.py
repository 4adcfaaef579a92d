"""What a person should know of a model before using it: from the folder of its run, as facts and as a page."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_config.process.version import software_version
from server_worker.run.environment import read_environment
from server_worker.run.folder import RunDir, read_baseline, read_json
from server_worker.run.history import read_history

if TYPE_CHECKING:
    from server_worker.run.recipe import Recipe

_UNLABELLED = (
    "Most of its training data had no labels: what the labelled samples do not show, it may have learnt wrongly from "
    "its own guesses."
)
_LIMITS = (
    "Accuracy holds for data like the test data. Other scanners, staining, populations or cameras: measure it there "
    "first.",
    "Whatever it is shown, it answers with one of its classes, and its probabilities have not been calibrated.",
    "Weights can give away something about the data that they were trained on. No differential privacy is claimed.",
    "It has not been examined as a medical device, nor for any other use. What it is meant for, and its licence, are "
    "for its owner to say.",
)


def facts_of(run_dir: Path, recipe: "Recipe", model: str) -> dict[str, Any]:
    """How the model was made and what it reached, as JSON values"""
    where = RunDir(run_dir)
    rounds = list(read_history(where.history))
    evaluated = [one for one in rounds if model in (one.get("accuracy") or {})]
    split, made_with = read_json(where.split), read_environment(where)
    versions = {key: made_with[-1].get(key) for key in ("fedil", "torch", "device")} if made_with else {}
    held = split if isinstance(split, dict) else {}
    return {
        "method": recipe.method.name,
        "method_title": recipe.spec.title,
        "method_reference": recipe.spec.reference,
        "profile": recipe.profile,
        "seed": recipe.seed,
        "dataset": recipe.data.name,
        "split_digest": held.get("digest"),
        "labelled_samples": len(held.get("labelled", [])),
        "clients": recipe.split.clients if recipe.spec.asks_clients else 0,
        "partition": recipe.split.partition,
        "sites": len(recipe.sites),
        "rounds_planned": recipe.rounds,
        "rounds_done": rounds[-1]["round"] if rounds else 0,
        "evaluated_after_round": evaluated[-1]["round"] if evaluated else None,
        "test_accuracy": evaluated[-1]["accuracy"][model] if evaluated else None,
        "server_only_test_accuracy": read_baseline(where).get("accuracy"),
        "trained_with": versions,
        "exported_with": {"fedil": software_version()},
    }


def model_card(metadata: Mapping[str, Any], file: Path) -> str:
    """`metadata` of the exported file, with the facts under "trained" """
    made = metadata["trained"]
    parts = [
        "---\ntags: [federated-learning, semi-supervised-learning, image-classification]\n---\n"
        if len(metadata["input"]["shape"]) == 4
        else "---\ntags: [federated-learning, semi-supervised-learning]\n---\n",
        f"# {metadata['recipe']}, {metadata['model']} model\n",
        f"`{file.name}`: {_classes(metadata['class_names'])}\n",
        "## Accuracy\n",
        _accuracy(made),
        "## How it was trained\n",
        _table(
            ("method", _method(made)),
            ("data", f"`{made['dataset']}`, {_data(made)}"),
            ("split", f"`{made['split_digest']}`, seed {made['seed']}"),
            ("rounds", f"{made['rounds_done']} of {made['rounds_planned']}"),
            ("trained with", _versions(made["trained_with"])),
            ("exported with", _versions(made["exported_with"])),
        ),
        "## The file\n",
        _table(
            ("digest of the weights", f"`{metadata['model_digest']}`"),
            ("network", _inline(metadata["network"])),
            ("input", f"{metadata['input']['dtype']}, {_inline(metadata['input']['shape'])}, raw"),
            ("preprocessing", _preprocessing(metadata["preprocessing"])),
            ("outputs", ", ".join(metadata["outputs"])),
        ),
        "## Limits\n",
        "\n".join(f"- {limit}" for limit in (*_LIMITS, *([_UNLABELLED] if made["clients"] else []))),
    ]
    return "\n".join(parts) + "\n"


def _accuracy(made: Mapping[str, Any]) -> str:
    if made["test_accuracy"] is None:
        return "It has not been evaluated in its run.\n"
    floor = made["server_only_test_accuracy"]
    beside = f" Training on the same labels alone reached {100 * floor:.2f} %." if floor is not None else ""
    return (
        f"{100 * made['test_accuracy']:.2f} % of the test samples of `{made['dataset']}` after round "
        f"{made['evaluated_after_round']}, the last evaluation of the run and not its best.{beside} "
        "`fedil evaluate` shows it by class.\n"
    )


def _method(made: Mapping[str, Any]) -> str:
    source = f" ({made['method_reference']})" if made["method_reference"] else ""
    return f"{made['method_title']}{source}, `{made['method']}`, profile `{made['profile']}`"


def _data(made: Mapping[str, Any]) -> str:
    if not made["clients"]:
        return "labelled samples at the server only"
    return (
        f"{made['labelled_samples']} labelled samples at the server, unlabelled ones at {made['clients']} clients of "
        f"{made['sites']} site{'s' * (made['sites'] != 1)} (partition `{made['partition']}`)"
    )


def _classes(names: Iterable[str]) -> str:
    names = list(names)
    return f"tells {len(names)} classes apart: {', '.join(names)}."


def _versions(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "not recorded"


def _preprocessing(described: Mapping[str, Any]) -> str:
    return str(described.get("formula") or described.get("note"))


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inline(one)}" for key, one in value.items())
    return " × ".join(map(str, value)) if isinstance(value, list) else f"{value}"


def _table(*rows: tuple[str, str]) -> str:
    cells = [(name, " ".join(text.replace("|", "\\|").split())) for name, text in rows]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in cells)]) + "\n"
