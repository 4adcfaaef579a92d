"""Where a run keeps its things."""

import json
from pathlib import Path
from typing import Any

from broker_config.protocol.errors import FedILError


class RunDir:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = root / "recipe.json"
        self.identity = root / "run.json"
        """The name of the run at the brokers and for watchers"""
        self.dataset = root / "dataset.json"
        """Options with which the dataset opens where its files are not"""
        self.split = root / "split.json"
        self.initial = root / "initial.safetensors"
        """The weights that it began with, where its recipe names some"""
        self.shards = root / "shards"
        self.ledgers = root / "ledgers"
        self.checkpoints = root / "checkpoints"
        self.history = root / "history.jsonl"
        self.baseline = root / "baseline.json"
        self.logs = root / "logs"
        self.tensorboard = root / "tensorboard"
        self.environment = root / "environment.json"


def read_json(path: Path) -> Any:
    """None without the file, and for a number that is not finite"""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except ValueError as error:
        raise FedILError(f"{path} is not readable as JSON ({error})") from error


def read_baseline(where: RunDir) -> dict[str, Any]:
    """What training on the labels alone gave, with its accuracy; empty where it was not measured"""
    known = read_json(where.baseline)
    return known if isinstance(known, dict) and isinstance(known.get("accuracy"), float) else {}
