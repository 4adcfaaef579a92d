"""What greets like RabbitMQ, and ends in the middle of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pika


def said(method: pika.amqp_object.Method) -> bytes:
    return bytes(pika.frame.Method(0, method).marshal())


START = said(pika.spec.Connection.Start(server_properties={}, mechanisms="PLAIN", locales="en_US"))
TUNE = said(pika.spec.Connection.Tune(channel_max=9, frame_max=131072, heartbeat=20))


@contextmanager
def broker_that_says(*told: bytes) -> Iterator[str]:
    """Its address. It says each thing in answer to something, waits for one more answer, and hangs up."""

    def answer() -> None:
        with suppress(OSError):
            while True:
                near = listener.accept()[0]
                with near, suppress(OSError):
                    for each in told:
                        near.recv(1 << 16)
                        near.sendall(each)
                    near.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"amqp://guest:guest@127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
