"""Requests and answers over plain sockets: libraries put right, or refuse to send, much of what is bad."""

from __future__ import annotations

import json
import socket
import unicodedata
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.patience import PATIENCE_S

MESSAGES = "/v1/channels/bad.input/messages"
JSON_TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Bad:
    """A request that must be refused with one of `status` and, where it is one status, with `code`."""

    name: str
    status: int | tuple[int, ...]
    code: str | None
    method: str = "POST"
    target: str = MESSAGES
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON_TYPE))
    body: bytes = b'{"data":1}'
    raw: bytes | None = None

    def request(self) -> bytes:
        if self.raw is not None:
            return self.raw
        fields = {"Host": "localhost", **self.headers}
        if self.body and "Transfer-Encoding" not in fields:
            fields.setdefault("Content-Length", str(len(self.body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{self.method} {self.target} HTTP/1.1\r\n{head}\r\n".encode() + self.body


def connect(server_url: str) -> socket.socket:
    address = urlsplit(server_url)
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S)


def exchange(server_url: str, request: bytes) -> Answer:
    with connect(server_url) as connection:
        connection.sendall(request)
        return read_answer(connection, bodiless=request.startswith(b"HEAD "))


def read_answer(connection: socket.socket, bodiless: bool = False) -> Answer:
    """One answer of a known length; of a stream only the head."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        assert part, f"closed without an answer: {received!r}"
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    length = 0 if bodiless else int(headers.get("content-length", "0"))
    while len(body) < length:
        body += connection.recv(65536)
    return Answer(int(status_line.split()[1]), headers, body)


def get(server_url: str, target: str, **headers: str) -> Answer:
    return exchange(server_url, Bad("", 0, None, "GET", target, headers, b"").request())


def check_refused(server_url: str, case: Bad) -> None:
    """The answer is a problem document that says what it must, and nothing of what is inside."""
    answer = exchange(server_url, case.request())
    assert answer.status in (case.status if isinstance(case.status, tuple) else (case.status,)), answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]
    document = answer.document
    assert document["status"] == answer.status
    assert case.code in (None, document["code"]), document
    assert ("allow" in answer.headers) is (answer.status == 405)
    assert {"type", "title", "detail", "retryable"} <= set(document)
    text = json.dumps(document, ensure_ascii=False)
    assert text.isprintable() or all(unicodedata.category(c) not in ("Cc", "Cs") for c in text)
    assert not any(word in text for word in ("Traceback", "asyncpg", "postgres", 'File "'))
