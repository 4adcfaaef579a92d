"""Where a run keeps its things."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.json"

    @property
    def identity(self) -> Path:
        """The name of the run at the brokers and for watchers"""
        return self.root / "run.json"

    @property
    def split(self) -> Path:
        return self.root / "split.json"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def ledgers(self) -> Path:
        return self.root / "ledgers"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def history(self) -> Path:
        return self.root / "history.jsonl"

    @property
    def baseline(self) -> Path:
        return self.root / "baseline.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"
