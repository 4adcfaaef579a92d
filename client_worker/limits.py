"""What a site allows with its data: a file at the site, which no server can change.

    runs = ["mnist-*"]               # names of runs
    methods = ["fedil", "semifl"]
    networks = ["resnet9", "lenet5"]
    min_samples = 50                 # a client with fewer is not trained
    max_activations = 20             # of one client in one run
    clip_norm = 5.0                  # an update of a larger norm is scaled down to it
    noise_multiplier = 0.5           # Gaussian noise of noise_multiplier * clip_norm on each number of an update
    noise_secret = "noise.key"       # a file with at least 16 bytes, the same at all workers of the site

The server is told why a client is not trained. Noise is drawn from the secret and the update itself, so that a task
that is done again is answered with the same bits. No privacy guarantee is claimed: numbers of samples and steps, mean
losses and, in the store, labels of samples leave the site as they are.
"""

import hashlib
import hmac
import math
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from broker_config.protocol.messages import TrainTask
from fedil_model.errors import LearningError, SettingError
from fedil_model.settings import Learning, Settings, explain

if TYPE_CHECKING:
    import numpy as np

_SHORTEST_SECRET = 16
_BLOCK = 1 << 20
"""Numbers at a time, so that large updates need no second copy"""
_CLIPPED = {"delta.params", "delta.buffers"}


class SiteLimit(LearningError):
    """The site does not allow what a task asks."""


class LimitSettings(Settings):
    runs: list[str] | None = None
    """Names of runs whose tasks are done, with * and ?; not set: of any."""
    methods: list[str] | None = None
    """Methods that tasks may name; not set: any."""
    networks: list[str] | None = None
    """Networks that tasks may name; not set: any."""
    min_samples: PositiveInt = 1
    """A client with fewer samples is not trained."""
    max_activations: PositiveInt | None = None
    """Number of times that one client is trained in one run, at most."""
    clip_norm: PositiveFloat | None = None
    """An update of a larger norm is scaled down to this."""
    noise_multiplier: float = Field(default=0.0, ge=0.0)
    """Standard deviation of the Gaussian noise on each number of an update, in multiples of `clip_norm`."""
    noise_secret: Path | None = Field(default=None, strict=False)
    """File with the secret that noise derives from, relative to this file; the same at all workers of the site."""

    @model_validator(mode="after")
    def _noise_is_complete(self) -> "LimitSettings":
        if self.noise_multiplier and self.clip_norm is None:
            raise ValueError("noise_multiplier needs clip_norm, of which it is a multiple")
        if bool(self.noise_multiplier) != (self.noise_secret is not None):
            raise ValueError("give noise_multiplier and noise_secret, or neither")
        return self


@dataclass(frozen=True)
class Limits:
    settings: LimitSettings = field(default_factory=LimitSettings)
    secret: bytes = b""

    def check_task(self, task: TrainTask, learning: Learning) -> None:
        limits = self.settings
        for what, name, allowed in (
            ("run", task.run, limits.runs),
            ("method", learning.method.name, limits.methods),
            ("network", learning.network.name, limits.networks),
        ):
            if allowed is not None and not any(fnmatchcase(name, pattern) for pattern in allowed):
                known = ", ".join(allowed) or "none"
                raise SiteLimit(f"this site does not allow {what} {name} (allowed: {known})")
        if limits.max_activations is not None and task.activation > limits.max_activations:
            raise SiteLimit(
                f"this site trains a client at most {limits.max_activations} times in a run (max_activations)"
            )

    def check_samples(self, num_samples: int) -> None:
        if num_samples < self.settings.min_samples:
            raise SiteLimit(
                f"the client has fewer samples than the {self.settings.min_samples} that this site wants "
                "(min_samples)"
            )

    def bound(self, update: "MutableMapping[str, np.ndarray]", task: TrainTask) -> None:
        """Clips the update, and adds noise to it."""
        limits = self.settings
        if limits.clip_norm is None or not update:
            return
        if unknown := update.keys() - _CLIPPED:
            raise SiteLimit(
                f"this site clips updates (clip_norm), and the method sends {min(unknown)}, which is no difference "
                "of weights"
            )
        norm = math.sqrt(sum(_square(block) for array in update.values() for block in _blocks(array)))
        if not math.isfinite(norm):
            raise SiteLimit("the update has numbers that are not finite: lower client.lr")
        if norm > limits.clip_norm:
            update.update({name: array * (limits.clip_norm / norm) for name, array in update.items()})
        if limits.noise_multiplier:
            self._add_noise(update, task, limits.noise_multiplier * limits.clip_norm)

    def _add_noise(self, update: "MutableMapping[str, np.ndarray]", task: TrainTask, scale: float) -> None:
        import numpy as np

        if update["delta.buffers"].any():
            raise SiteLimit(
                "this site adds noise (noise_multiplier), which running statistics do not stand: "
                "network.norm must be gn or none"
            )
        # With the update itself: two updates that differ must not have the same noise.
        drawn_from = hmac.new(self.secret, f"{task.run}/{task.client}/{task.activation}/".encode(), "sha256")
        drawn_from.update(update["delta.params"].data)
        key = np.frombuffer(drawn_from.digest()[:16], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key))
        noisy = update["delta.params"].copy()
        for block in _blocks(noisy):
            block += np.float32(scale) * generator.standard_normal(block.size, np.float32)
        update["delta.params"] = noisy


def read_limits(path: Path | None) -> Limits:
    """Raises SettingError naming what is wrong."""
    if path is None:
        return Limits()
    values = _table_in(path)
    try:
        settings = LimitSettings.model_validate(values)
    except ValidationError as error:
        raise SettingError(explain(error, lambda _: str(path), LimitSettings)) from error
    if settings.noise_secret is None:
        return Limits(settings)
    place = path.parent / settings.noise_secret
    try:
        secret = place.read_bytes()
    except OSError as error:
        raise SettingError(f"{path}: noise_secret: cannot read {place}: {error.strerror}") from error
    if len(secret) < _SHORTEST_SECRET:
        raise SettingError(
            f"{path}: noise_secret: {place} has {len(secret)} bytes, wanted are {_SHORTEST_SECRET} or more: "
            f"head -c 32 /dev/urandom > {place}"
        )
    return Limits(settings, hashlib.sha256(secret).digest())


def _table_in(path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read --limits {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"--limits {path} is not valid TOML: {error}") from error


def _blocks(array: "np.ndarray") -> "Iterator[np.ndarray]":
    flat = array.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))


def _square(block: "np.ndarray") -> float:
    exact = block.astype("float64")
    return float(exact @ exact)
