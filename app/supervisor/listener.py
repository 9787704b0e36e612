"""Makes the listening socket of the supervisor, which all workers share."""

import errno
import socket
import time

BACKLOG = 4096
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
_PATIENCE_S = 3.0


class ListenError(Exception):
    """The supervisor cannot listen on the address; the text says what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Make a listening socket. Raises `ListenError`.

    Its connections check after 5 s of silence whether the peer is still there; each worker sets how long
    they wait for the peer's answer. A taken port is tried again for up to 3 s, because a predecessor that was
    just killed needs a moment to free it.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror}") from None
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _bound(family, address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ListenError(_advice(host, port, error)) from None
            time.sleep(0.05)


def url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bound(family: socket.AddressFamily, address: object) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these options. Heartbeats alone do not detect a peer that vanished
        # silently.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if option := getattr(socket, name, None):
                listening.setsockopt(socket.IPPROTO_TCP, option, value)
        listening.bind(address)  # type: ignore[arg-type]
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _advice(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            why = "another program listens there; stop it, or choose a port with --port or GAPLESS_PORT"
        case errno.EACCES:
            why = "ports below 1024 need privileges; choose another with --port or GAPLESS_PORT"
        case errno.EADDRNOTAVAIL:
            why = "this machine has no such address; choose one with --host or GAPLESS_HOST"
        case _:
            why = error.strerror or str(error)
    return f"cannot listen on {host}:{port}: {why}"
