"""Strangers: processes that listen where they should not."""

import contextlib
import socket
import threading
import time

ANSWERS = {
    "silent": b"",
    "garbage": bytes(range(200, 256)) * 4,
    "web server": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
}


@contextlib.contextmanager
def listening(port, how):
    """Accepts connections at a port; gives one of ``ANSWERS``, or other bytes."""
    kept, answer = [], ANSWERS.get(how, how)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                with contextlib.suppress(OSError):
                    kept[-1].sendall(answer)

    with contextlib.closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deadline = time.monotonic() + 10
        while True:
            try:
                listener.bind(("", port))
                break
            except OSError:
                assert time.monotonic() < deadline, f"port {port} stays in use"
        listener.listen(16)
        threading.Thread(target=accept, daemon=True).start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()
