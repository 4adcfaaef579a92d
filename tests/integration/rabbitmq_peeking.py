"""Looking at RabbitMQ past our transport, and dying in the middle of it."""

import os
import signal
import subprocess
import sys
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

SOON = 60.0
"""Seconds within which a message that is there must come, however busy the machine."""


def headers_of_next(url: str, queue: str) -> dict[str, Any]:
    """Those of the message at the head of a queue, which stays there."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        method, properties, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=True)
        return dict(properties.headers or {})


def queue_exists(url: str, queue: str) -> bool:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except ChannelClosedByBroker:
            return False
        return True


def delete_queue(url: str, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_delete(queue)


def put_by_hand(url: str, exchange: str, key: str, headers: dict[str, Any]) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(exchange, key, b"", pika.BasicProperties(headers=headers), mandatory=True)


def in_another_process(code: str) -> str:
    """What it prints."""
    # Freed memory goes back to the system at once, instead of when glibc thinks fit.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    return done.stdout


def killed_in_the_middle(code: str, method: str, calls: int) -> None:
    """Runs `code` in a process that dies when it has called `method` (module:Class.name) so many times."""
    module, _, name = method.partition(":")
    owner, _, attribute = name.partition(".")
    trap = f"""
import os, signal
from {module} import {owner}
original, calls = {owner}.{attribute}, []
def counting(self, *args, **kwargs):
    result = original(self, *args, **kwargs)
    calls.append(1)
    if len(calls) == {calls}:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
{owner}.{attribute} = counting
"""
    done = subprocess.run([sys.executable, "-c", trap + code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
