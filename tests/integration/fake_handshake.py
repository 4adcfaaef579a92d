"""A server that begins the AMQP handshake and then disconnects."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pika


def encoded(method: pika.amqp_object.Method) -> bytes:
    return bytes(pika.frame.Method(0, method).marshal())


START = encoded(pika.spec.Connection.Start(server_properties={}, mechanisms="PLAIN", locales="en_US"))
TUNE = encoded(pika.spec.Connection.Tune(channel_max=9, frame_max=131072, heartbeat=20))


@contextmanager
def broker_that_sends(*frames: bytes) -> Iterator[str]:
    """The URL of a server that sends one frame after each frame of the client, waits for one more, and disconnects."""

    def answer() -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                with client, suppress(OSError):
                    for frame in frames:
                        client.recv(1 << 16)
                        client.sendall(frame)
                    client.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"amqp://guest:guest@127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
