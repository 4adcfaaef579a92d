"""The fields of each message and the values they may have: none missing, none unknown, all bounded."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from broker_config.protocol.errors import MessageRejected, UsageError
from broker_config.protocol.messages import Message, ModelEntry, Refusal, TrainTask, Update
from broker_config.transports.interface import ModelAddress

MAX_COUNT = 2**63
MAX_METRICS = 256
MAX_EXTRAS = 64
# Run ids become names of queues, keys and directories; the first character excludes "." and "..".
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_DIGEST = re.compile(r"[0-9a-f]{32}")

_Check = Callable[[str, object], object]
"""(name, value) → the checked value. Raises MessageRejected with the name of the field."""


def bad_field(field: str, expected: str, value: object) -> MessageRejected:
    return MessageRejected("schema", f"field {field!r} must be {expected}, not {value!r:.80}")


def check_run(field: str, value: object) -> str:
    if not isinstance(value, str) or not _RUN.fullmatch(value):
        raise bad_field(field, "1 to 80 of A-Z a-z 0-9 . _ - starting with a letter or digit", value)
    return value


def check_run_argument(run: str) -> str:
    """The same check for a name from the command line."""
    if not _RUN.fullmatch(run):
        raise UsageError(
            f"{run!r:.80} cannot be the name of a run: take 1 to 80 letters (A-Z, a-z), digits, '.', '_' and '-', "
            "of which the first is a letter or a digit"
        )
    return run


def check_count(field: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise bad_field(field, "a whole number from 0 to 2**63 - 1", value)
    return value


def _check_digest(field: str, value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise bad_field(field, "32 hexadecimal digits", value)
    return value


def _check_text(max_length: int) -> _Check:
    def check(field: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > max_length:
            raise bad_field(field, f"text of at most {max_length} characters", value)
        return value

    return check


def _check_metrics(field: str, value: object) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MAX_METRICS:
        raise bad_field(field, f"at most {MAX_METRICS} numbers by name", value)
    for name, number in value.items():
        _check_text(100)(f"{field} name", name)
        if type(number) is not float or not math.isfinite(number):
            raise bad_field(f"{field}.{name}", "a finite number", number)
    return value


def _check_address(field: str, value: object) -> ModelAddress:
    return ModelAddress(**_checked(_ADDRESS, value, f"{field}."))


def _check_entry(field: str, value: object) -> ModelEntry:
    return ModelEntry(**_checked(_ENTRY, value, f"{field}."))


def _check_extras(field: str, value: object) -> dict[str, ModelEntry]:
    if not isinstance(value, dict) or len(value) > MAX_EXTRAS:
        raise bad_field(field, f"at most {MAX_EXTRAS} entries by name", value)
    return {
        str(_check_text(100)(f"{field} name", name)): _check_entry(f"{field}.{name}", entry)
        for name, entry in value.items()
    }


_ADDRESS: dict[str, _Check] = {
    "run": check_run,
    "version": check_count,
    "offset": check_count,
    "entry": _check_text(100),
}
_ENTRY: dict[str, _Check] = {"address": _check_address, "digest": _check_digest}
_ACTIVATION: dict[str, _Check] = {
    "run": check_run,
    "round": check_count,
    "client": check_count,
    "activation": check_count,
}
_TASK = _ACTIVATION | {
    "model": _check_entry,
    "learning": _check_text(1 << 16),
    "extras": _check_extras,
    "ledger_at_least": check_count,
}
_UPDATE = _ACTIVATION | {
    "base_version": check_count,
    "num_samples": check_count,
    "num_steps": check_count,
    "metrics": _check_metrics,
}
_REFUSAL = _ACTIVATION | {"reason": _check_text(100), "detail": _check_text(1 << 16)}


def _checked(checks: Mapping[str, _Check], value: object, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(prefix.rstrip("."), "a set of fields", value)
    if missing := checks.keys() - value.keys():
        raise MessageRejected("schema", f"field {prefix + min(missing)!r} is missing")
    if unknown := value.keys() - checks.keys():
        raise MessageRejected("schema", f"field {prefix + min(unknown)!r} is unknown")
    return {name: check(prefix + name, value[name]) for name, check in checks.items()}


Tensors = Mapping[str, np.ndarray]


def to_fields(message: Message) -> tuple[str, dict[str, object], Tensors]:
    """Kind, plain fields and tensors, checked like a received message."""
    fields = dict(vars(message))
    tensors = fields.pop("tensors", {})
    if isinstance(message, TrainTask):
        fields["model"] = asdict(message.model)
        fields["extras"] = {name: asdict(entry) for name, entry in message.extras.items()}
    if isinstance(message, Update):
        fields["metrics"] = {name: float(number) for name, number in message.metrics.items()}
    kind = type(message).__name__
    from_fields(kind, fields, tensors)
    return kind, fields, tensors


def from_fields(kind: str, fields: Mapping[str, object], tensors: Tensors) -> Message:
    if kind == Update.__name__:
        return Update(**_checked(_UPDATE, fields), tensors=tensors)
    if tensors:
        raise MessageRejected("schema", f"a {kind} carries no tensors")
    if kind == TrainTask.__name__:
        return TrainTask(**_checked(_TASK, fields))
    if kind == Refusal.__name__:
        return Refusal(**_checked(_REFUSAL, fields))
    raise MessageRejected("wrong_kind", f"{kind!r:.80} is not a kind of message")
