"""A TCP proxy that cuts connections after a number of bytes, as a bad network does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.patience import PATIENCE_S


class CuttingProxy:
    """Passes each connection to `upstream`, and cuts it after the next of `budgets` bytes of answer.

    When the budgets are used up, connections live as long as they like.
    """

    def __init__(self, upstream: str, budgets: Iterator[int]) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._budgets = budgets
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._open: list[socket.socket] = []
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
        for one in (self._listener, *self._open):
            _end(one)
        self._accepting.join(PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._upstream)
            except OSError:
                return
            self._open += [near, far]
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            budget = next(self._budgets, None)
            for source, sink, limit in ((near, far, None), (far, near, budget)):
                threading.Thread(target=self._pump, args=(source, sink, limit), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if limit is not None and len(data) >= limit:
                    sink.sendall(data[:limit])
                    self.cuts += 1
                    break
                sink.sendall(data)
                limit = limit if limit is None else limit - len(data)
        for one in (source, sink):
            _end(one)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
