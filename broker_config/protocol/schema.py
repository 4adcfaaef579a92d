"""The fields of each message and the values they may have: none missing, none unknown, all bounded."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np

from broker_config.protocol.errors import MessageRejected, UsageError
from broker_config.protocol.messages import Message, ModelEntry, TrainTask, Update
from broker_config.transports.interface import ModelAddress

MAX_COUNT = 2**63
MAX_METRICS = 256
MAX_EXTRAS = 64
# Run ids become names of queues, keys and directories; the first character excludes "." and "..".
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_ONE_VERSION = "server and workers of a run must have the same version of FedIL"
_DIGEST = re.compile(r"[0-9a-f]{32}")

Tensors = Mapping[str, np.ndarray]
_Check = Callable[[str, object], object]
"""(name, value) → the checked value. Raises MessageRejected with the name of the field."""


def bad_field(field: str, expected: str, value: object) -> MessageRejected:
    return MessageRejected("schema", f"field {field!r} must be {expected}, not {value!r:.80}")


def is_run_name(text: str) -> bool:
    return _RUN.fullmatch(text) is not None


def check_run(field: str, value: object) -> str:
    if not isinstance(value, str) or not is_run_name(value):
        raise bad_field(field, "1 to 80 of A-Z a-z 0-9 . _ - starting with a letter or digit", value)
    return value


def check_run_argument(run: str) -> str:
    """The same check for a name from the command line."""
    if not is_run_name(run):
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


def _check_extras(field: str, value: object) -> dict[str, ModelEntry]:
    if not isinstance(value, dict) or len(value) > MAX_EXTRAS:
        raise bad_field(field, f"at most {MAX_EXTRAS} entries by name", value)
    return {
        str(_check_text(100)(f"{field} name", name)): _checked(ModelEntry, entry, f"{field}.{name}.")
        for name, entry in value.items()
    }


_MESSAGES = {kind.__name__: kind for kind in get_args(Message)}
_COUNTS = ("round", "client", "activation", "ledger_at_least", "num_samples", "num_steps")
_CHECKS: dict[str, _Check] = {
    **dict.fromkeys((*_COUNTS, "version", "base_version", "offset"), check_count),
    "run": check_run,
    "entry": _check_text(100),
    "digest": _check_digest,
    "address": lambda field, value: _checked(ModelAddress, value, f"{field}."),
    "model": lambda field, value: _checked(ModelEntry, value, f"{field}."),
    "learning": _check_text(1 << 16),
    "wire": _check_text(100),
    "extras": _check_extras,
    "metrics": _check_metrics,
    "reason": _check_text(100),
    "detail": _check_text(1 << 16),
}


def _checked(kind: Any, value: object, prefix: str, **tensors: Tensors) -> Any:
    """A `kind` with these fields, each of which is checked by its name, and `tensors`."""
    if not isinstance(value, dict):
        raise bad_field(prefix.rstrip("."), "a set of fields", value)
    names = [field.name for field in dataclasses.fields(kind) if field.name not in tensors]
    if missing := set(names) - value.keys():
        raise MessageRejected("schema", f"field {prefix + min(missing)!r} is missing; {_ONE_VERSION}")
    if unknown := value.keys() - set(names):
        raise MessageRejected("schema", f"field {prefix + min(unknown)!r} is unknown; {_ONE_VERSION}")
    return kind(**{name: _CHECKS[name](prefix + name, value[name]) for name in names}, **tensors)


def to_fields(message: Message) -> tuple[str, dict[str, object], Tensors]:
    """Kind, plain fields and tensors, checked like a received message."""
    fields = dict(vars(message))
    tensors = fields.pop("tensors", {})
    if isinstance(message, TrainTask):
        fields["model"] = dataclasses.asdict(message.model)
        fields["extras"] = {name: dataclasses.asdict(entry) for name, entry in message.extras.items()}
    if isinstance(message, Update):
        fields["metrics"] = {name: float(number) for name, number in message.metrics.items()}
    kind = type(message).__name__
    from_fields(kind, fields, tensors)
    return kind, fields, tensors


def from_fields(kind: str, fields: Mapping[str, object], tensors: Tensors) -> Message:
    carried = {"tensors": tensors} if kind == Update.__name__ else {}
    if tensors and not carried:
        raise MessageRejected("schema", f"a {kind} carries no tensors")
    if kind not in _MESSAGES:
        raise MessageRejected("wrong_kind", f"{kind!r:.80} is not a kind of message")
    message: Message = _checked(_MESSAGES[kind], fields, "", **carried)
    return message
