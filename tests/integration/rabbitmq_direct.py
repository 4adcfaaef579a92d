"""Access to RabbitMQ without our transport, and processes that kill themselves during a call."""

import os
import signal
import subprocess
import sys
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

SOON = 60.0
"""Seconds within which an existing message must be delivered, also on a busy machine."""


def headers_of_next(url: str, queue: str) -> dict[str, Any]:
    """Headers of the first message of a queue, which stays there."""
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


def publish_directly(url: str, exchange: str, key: str, headers: dict[str, Any]) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(exchange, key, b"", pika.BasicProperties(headers=headers), mandatory=True)


def in_another_process(code: str) -> str:
    """The output of `code` in a new process."""
    # glibc returns freed memory to the system at once.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    return done.stdout


def killed_during(code: str, method: str, calls: int) -> None:
    """Runs `code` in a process that kills itself after `calls` calls of `method` (module:Class.name)."""
    module, _, name = method.partition(":")
    owner, _, attribute = name.partition(".")
    killer = f"""
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
    done = subprocess.run([sys.executable, "-c", killer + code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
