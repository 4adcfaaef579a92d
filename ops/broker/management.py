"""Client of RabbitMQ's management API, with errors that name the cause and the remedy."""

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, FedILError

_SECONDS = 30.0
_PORTS = {"http": 15672, "https": 15671}


class Management:
    def __init__(self, url: str) -> None:
        """`url`: http(s)://user:password@host:port, with ?cafile=FILE for a private certificate authority."""
        parts = urlsplit(url)
        try:
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            port = 0
        if not parts.hostname or not port:
            raise FedILError(
                "the management URL cannot be read: write http://user:password@host:15672, or https:// for TLS"
            )
        self.host = parts.hostname
        self.where = f"{self.host}:{port}"
        self.user = unquote(parts.username or "guest")
        login = f"{self.user}:{unquote(parts.password or 'guest')}"
        self._authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        self._base = f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}/api/"
        self.clock_ahead_seconds: float | None = None
        """Of its machine, when it answered last; it tells whole seconds"""
        self._open = _opener(parts.query if parts.scheme == "https" else "").open

    def num_nodes(self) -> int:
        """Nodes of the cluster, also those that are down"""
        return len(self.get("nodes"))

    def get(self, path: str) -> Any:
        return self._request(path, None)

    def post(self, path: str, body: object) -> None:
        self._request(path, json.dumps(body).encode())

    def put(self, path: str, body: object) -> None:
        self._request(path, json.dumps(body).encode(), "PUT")

    def _request(self, path: str, body: bytes | None, method: str | None = None) -> Any:
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, body, headers, method=method)
        try:
            with self._open(request, timeout=_SECONDS) as answer:
                text = answer.read()
                self.clock_ahead_seconds = _clock_ahead(answer.headers.get("Date"))
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, _reason_in(error.read())) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(getattr(error, "reason", error)) from error

    def _refusal(self, code: int, reason: str) -> FedILError:
        if code in (401, 403):
            return BrokerRefused(
                f"the management API at {self.where} refused the user {self.user!r} ({reason}): check name and "
                "password, and that it has the tag administrator (rabbitmqctl set_user_tags)"
            )
        if code == 404:
            return BrokerRefused(
                f"the server at {self.where} is not the management API of RabbitMQ: check the address"
            )
        return BrokerRefused(f"the management API at {self.where} refused ({code}): {reason}")

    def _failure(self, cause: object) -> FedILError:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BrokerRefused(
                f"the certificate of the management API at {self.where} is not trusted "
                f"({cause.verify_message}): name its authority with ?cafile="
            )
        if isinstance(cause, http.client.HTTPException | ConnectionResetError | ValueError | ssl.SSLError):
            return BrokerRefused(
                f"the server at {self.where} is not the management API of RabbitMQ: check the port (15672, not 5672), "
                "and http:// against https://"
            )
        reason = getattr(cause, "strerror", None) or cause
        return BrokerUnavailable(
            f"no management API answers at {self.where} ({reason}): start RabbitMQ, and enable the plugin "
            "(rabbitmq-plugins enable rabbitmq_management)"
        )


def _clock_ahead(date: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        return parsedate_to_datetime(date or "").timestamp() - time.time()
    return None


def _opener(query: str) -> urllib.request.OpenerDirector:
    cafile = parse_qs(query).get("cafile", [None])[0]
    try:
        context = ssl.create_default_context(cafile=cafile)
    except OSError as error:  # includes ssl.SSLError
        raise FedILError(f"cannot use cafile={cafile}: {error.strerror or error}") from error
    # No proxy: it would see the password.
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def _reason_in(body: bytes) -> str:
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, KeyError, TypeError):
        return "no reason given"
    return str(reason)[:300]
