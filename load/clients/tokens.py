"""Tokens that end after some seconds, and the small servers where clients ask for the next one."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections import Counter
from pathlib import Path

import jwt

from load.relay import Streams
from load.wire import Target

TOKEN_S = 3


class Issuer:
    """Makes tokens for one user, who reads and publishes on a channel. `file` holds its key."""

    def __init__(self, folder: Path, channel: str) -> None:
        self._secret = secrets.token_bytes(32)
        self._grants = [{"actions": ["publish", "subscribe"], "channels": [channel]}]
        self.file = folder / "jwt.json"
        k = urlsafe_b64encode(self._secret).rstrip(b"=").decode()
        self.file.write_text(json.dumps({"keys": [{"kty": "oct", "k": k}]}))

    def token(self, seconds: int = TOKEN_S) -> str:
        """One that ends so many seconds from now."""
        claims = {"sub": "guest", "exp": int(time.time()) + seconds, "grants": self._grants}
        return jwt.encode(claims, self._secret, "HS256")


class TokenServer:
    """Answers each request with a new token. `given` counts them by the path that was asked for. It has an
    address of its own: a client may send one request after another over one connection."""

    def __init__(self, issuer: Issuer) -> None:
        self.given: Counter[str] = Counter()
        self._issuer = issuer
        self._streams = Streams()

    async def start(self) -> Target:
        """Listen. Returns the address."""
        return Target("127.0.0.1", await self._streams.listen(self._serve))

    async def stop(self) -> None:
        """Stop listening, and drop all connections."""
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.given[head.split(b" ")[1].decode().removeprefix("/")] += 1
        token = self._issuer.token().encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(token) + token
        )
        await writer.drain()
