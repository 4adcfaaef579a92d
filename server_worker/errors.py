"""A user's own network or views may raise anything, at the server as at a client."""

from collections.abc import Callable
from typing import TypeVar

from broker_config.protocol.errors import FedILError
from fedil_model.errors import LearningError
from server_worker.round.context import Stopped

_T = TypeVar("_T")


class Superseded(FedILError):
    """Another server leads this run now."""


def named(what: str, step: Callable[[], _T]) -> _T:
    try:
        return step()
    except (FedILError, LearningError, Stopped):
        raise
    except Exception as error:
        raise FedILError(f"{what} failed: {type(error).__name__}: {error}") from error
