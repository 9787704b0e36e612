"""A real HTTP server over plain sockets that sends exactly the bytes a test wants and cuts where it wants."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.patience import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived; names in `headers` are lower case."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """One connection: its request, and the means to answer it."""

    def __init__(self, connection: socket.socket, seen: Seen, stopping: threading.Event) -> None:
        self._connection = connection
        self._stopping = stopping
        self.seen = seen

    def send(self, data: bytes) -> None:
        self._connection.settimeout(PATIENCE_S)
        with suppress(OSError):
            self._connection.sendall(data)

    def receive(self) -> bytes:
        """What comes next; nothing once the client hangs up or the test ends."""
        self._connection.settimeout(0.02)
        while not self._stopping.is_set():
            try:
                return self._connection.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
        return b""

    def hold(self) -> None:
        """Keeps the connection open and silent until the client hangs up or the test ends."""
        self._connection.settimeout(0.02)
        while not self._stopping.is_set():
            try:
                if not self._connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def narrow(self) -> None:
        """Lets little be sent here while nothing is received."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)

    def reset(self) -> None:
        """Ends the connection with RST, as a crashed machine or a firewall does."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


Script = Callable[[Exchange], None]


class RawServer:
    """Answers each connection with the next of `scripts`, the last one for ever; one request a connection."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.seen: list[Seen] = []
        self.arrived = threading.Condition()
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(PATIENCE_S)

    def wait_for(self, requests: int) -> None:
        """Returns once that many requests have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen) >= requests, timeout=PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            seen = _read_request(connection)
            if seen is None:
                return
            with self.arrived:
                script = self.scripts[min(len(self.seen), len(self.scripts) - 1)]
                self.seen.append(seen)
                self.arrived.notify_all()
            script(Exchange(connection, seen, self._stopping))


def _read_request(connection: socket.socket) -> Seen | None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        part = connection.recv(65536)
        if not part:
            return None
        body += part
    method, target, _ = first.split(" ")
    parts = urlsplit(target)
    return Seen(method, parts.path, tuple(parse_qsl(parts.query)), headers, body)


def answer(status: int, body: Any = None, **headers: str) -> bytes:
    """A whole HTTP answer with a JSON body; header names are written with underscores."""
    content = b"" if body is None else json.dumps(body).encode()
    kind = "application/problem+json" if status >= 400 else "application/json"
    lines = [
        f"HTTP/1.1 {status} X",
        f"Content-Type: {kind}",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def stream_head(kind: str = "text/event-stream", *, chunked: bool = True) -> bytes:
    """The head of a streamed answer."""
    framing = "Transfer-Encoding: chunked" if chunked else "Connection: close"
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode()


def chunks(*parts: bytes, end: bool = True) -> bytes:
    """The parts in HTTP's chunked framing, with the last chunk when `end`."""
    framed = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts if part)
    return framed + (b"0\r\n\r\n" if end else b"")


def replies(*answers: bytes) -> list[Script]:
    """Scripts that send these answers, one a connection, and close."""

    def sending(data: bytes) -> Script:
        return lambda exchange: exchange.send(data)

    return [sending(data) for data in answers]
