"""Where a run keeps its things."""

from pathlib import Path


class RunDir:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = root / "recipe.json"
        self.identity = root / "run.json"
        """The name of the run at the brokers and for watchers"""
        self.split = root / "split.json"
        self.shards = root / "shards"
        self.ledgers = root / "ledgers"
        self.checkpoints = root / "checkpoints"
        self.history = root / "history.jsonl"
        self.baseline = root / "baseline.json"
        self.logs = root / "logs"
        self.tensorboard = root / "tensorboard"
        self.environment = root / "environment.json"
