"""`python -m load.credentials`: tests how soon what a credential opened ends with the credential.

A key opens something over every face, and is revoked; a token does the same, and expires. Meanwhile another
key publishes steadily. Each face must end within 30 s, and no message that is younger may come. A webhook
ends with its last request.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from load import drill
from load.api import Api, RefusedError
from load.relay import Streams
from load.server import Server
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, cancel, until
from load.websocket import handshake, masked
from load.wire import Target

LIMIT_S: Final = 30.0
PUBLISH_EVERY_S: Final = 0.05
GRANTS: Final = [
    {
        "actions": ["publish", "subscribe", "consume", "manage"],
        "channels": [">"],
        "subscriptions": [">"],
    }
]
GRANT: Final = "publish,subscribe,consume,manage:>"
SECRET: Final = f"whsec_{b64encode(bytes(32)).decode()}"
EXPORT_MESSAGES, EXPORT_BYTES = 200, 500_000
"""More than all buffers on the way to a reader hold."""
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_AT: Final = re.compile(rb'"at": ?(\d+\.\d+)')
_SESSION: Final = re.compile(rb'"session":"([^"]+)".*?"node":"([^"]+)"')
_PONG_S: Final = 5.0


@dataclass(slots=True)
class Face:
    """What was seen over one face: when it opened and ended, and when its messages were published. Times are
    those of `time.monotonic`."""

    name: str
    opened: bool = False
    ended: float | None = None
    published: list[float] = field(default_factory=list)
    _rest: bytes = b""

    def came(self, data: bytes) -> None:
        """Note the messages in these bytes."""
        data = self._rest + data
        at = 0
        for found in _AT.finditer(data):
            self.published.append(float(found[1]))
            at = found.end()
        # A mark may go on in what comes next. If a digit is cut, the moment is too early by less than 1 s.
        self._rest = data[max(at, len(data) - 40) :]

    def after(self, moment: float) -> int:
        """How many of its messages were published after a moment."""
        return sum(at > moment for at in self.published)


Opened = Callable[[Face], Coroutine[Any, Any, None]]
"""Opens a face and follows it until it ends."""


@dataclass(slots=True)
class Stage:
    """What the faces of one credential are about."""

    target: Target
    name: str
    credential: str
    streams: Streams

    @property
    def headers(self) -> dict[str, str]:
        """Those of a request with the credential."""
        return {"Authorization": f"Bearer {self.credential}"}

    def queue(self, of: str) -> str:
        """The name of a subscription."""
        return f"{self.name}.{of}"

    @property
    def commands(self) -> dict[str, dict[str, Any]]:
        """A connect of the client protocol that follows the channel."""
        return {"connect": {"subs": {self.name: {}}}}

    def faces(self) -> dict[str, Opened]:
        """All faces but webhooks."""
        first = msgspec.json.encode({"id": 1, **self.commands})
        sse = "/v1/ws/sse?cf_connect=" + "".join(f"%{byte:02x}" for byte in first)
        consume = f"/v1/subscriptions/{self.queue('consume')}/consume?prefetch=1000"
        return {
            "subscribe (SSE)": self._get(f"/v1/subscribe?channel={self.name}"),
            "consume (SSE)": self._get(consume),
            "WebSocket": self._websocket,
            "emulation, http_stream": self._emulated("POST", "/v1/ws/http_stream", first),
            "emulation, SSE": self._emulated("GET", sse, b""),
            "pull, waiting": self._pulls("waiting"),
            "pull": self._pulls("pull"),
            "export (NDJSON)": self._export,
        }

    async def _open(self, request: bytes) -> tuple[asyncio.StreamReader, Any]:
        reader, writer = await self.streams.connect(self.target.host, self.target.port)
        writer.write(request)
        return reader, writer

    def _get(self, path: str) -> Opened:
        async def follow(face: Face) -> None:
            reader, _ = await self._open(self.target.request("GET", path, headers=self.headers))
            await _read(reader, face)

        return follow

    async def _websocket(self, face: Face) -> None:
        path = handshake(self.target, "/v1/ws").replace(
            b"Upgrade: websocket", f"Authorization: Bearer {self.credential}\r\nUpgrade: websocket".encode()
        )
        reader, writer = await self._open(path)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(masked(msgspec.json.encode({"id": 1, **self.commands})))

        async def pong() -> None:
            while True:
                await asyncio.sleep(_PONG_S)
                writer.write(masked(b"{}"))

        await _beside(_read(reader, face), pong())

    def _emulated(self, method: str, path: str, body: bytes) -> Opened:
        async def follow(face: Face) -> None:
            reader, _ = await self._open(self.target.request(method, path, body, self.headers))
            seen = bytearray()

            async def pong() -> None:
                api = Api(self.target)
                while True:
                    await asyncio.sleep(_PONG_S)
                    if found := _SESSION.search(seen):
                        sent = {"session": found[1].decode(), "node": found[2].decode(), "data": "{}"}
                        with suppress(RefusedError):
                            await api.raw("POST", "/v1/ws/emulation", sent, PATIENCE_S, **self.headers)

            await _beside(_read(reader, face, seen), pong())

        return follow

    def _pulls(self, of: str) -> Opened:
        async def follow(face: Face) -> None:
            api = Api(self.target)
            face.opened = True
            path = f"/v1/subscriptions/{self.queue(of)}/pull"
            try:
                while True:
                    asked = {"max": 100, "wait": 20, "ack": "auto"}
                    face.came(await api.raw("POST", path, asked, PATIENCE_S, **self.headers) + b" ")
            except RefusedError as refused:
                if refused.status != 401:
                    raise
            finally:
                api.close()

        return follow

    async def _export(self, face: Face) -> None:
        """It reads slowly, and the whole would take some minutes."""
        headers = {**self.headers, "Accept": "application/x-ndjson"}
        path = "/v1/channels/export/messages"
        reader, _ = await self._open(self.target.request("GET", path, headers=headers))
        with suppress(ConnectionError):
            while await reader.read(65536):
                face.opened = True
                await asyncio.sleep(0.1)


async def _read(reader: asyncio.StreamReader, face: Face, seen: bytearray | None = None) -> None:
    """Read to the end of the answer. Its connection may be kept."""
    last = b""
    with suppress(ConnectionError):
        while not last.endswith(LAST_CHUNK) and (data := await reader.read(65536)):
            face.opened = True
            face.came(data)
            last = (last + data)[-len(LAST_CHUNK) :]
            if seen is not None and len(seen) < 65536:
                seen += data


async def _beside(work: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Do one thing, and another as long as it takes."""
    task = asyncio.create_task(other)
    try:
        await work
    finally:
        await cancel(task)


class Hook:
    """A server that webhooks call."""

    def __init__(self, face: Face) -> None:
        self._face = face

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            (size,) = re.findall(rb"(?i)content-length: *(\d+)", head) or [b"0"]
            self._face.opened = True
            self._face.came(await reader.readexactly(int(size)) + b" ")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await writer.drain()


@dataclass(slots=True)
class Trial:
    """One service with an operator's key."""

    server: Server
    operator: str
    verdict: Verdict
    limit_s: float

    async def play(self) -> None:
        """A key that is revoked, and a token that expires."""
        api = Api(self.server.target)
        mine = {"Authorization": f"Bearer {self.operator}"}
        data = "x" * EXPORT_BYTES
        for _ in range(0, EXPORT_MESSAGES, 10):
            await api.call("POST", "/v1/channels/export/messages", [{"data": data}] * 10, PATIENCE_S, **mine)
        made = await api.call("POST", "/v1/keys", {"name": "ann", "grants": GRANTS}, PATIENCE_S, **mine)

        async def revoke() -> float:
            now = time.monotonic()
            await api.raw("DELETE", f"/v1/keys/{made['id']}", None, PATIENCE_S, **mine)
            return now

        await self._phase(api, mine, "revoked", made["key"], revoke)
        token = self.server.command("token", "ben", "--grant", GRANT, "--expires", "15s")
        claims = token.split(".")[1]
        ends = msgspec.json.decode(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]

        async def expire() -> float:
            await asyncio.sleep(ends - time.time())
            return time.monotonic()

        await self._phase(api, mine, "expired", token, expire)
        api.close()

    async def _phase(
        self,
        api: Api,
        mine: dict[str, str],
        name: str,
        credential: str,
        end: Callable[[], Coroutine[Any, Any, float]],
    ) -> None:
        async with Streams() as streams:
            stage = Stage(self.server.target, name, credential, streams)
            faces = {each: (Face(each), run) for each, run in stage.faces().items()}
            hook = Face("webhook")
            port = await streams.listen(Hook(hook).serve, 0)
            await self._subscribe(api, stage, port)
            tasks = [asyncio.create_task(_followed(face, run)) for face, run in faces.values()]
            talking = asyncio.create_task(_publish(api, name, mine))
            seen = [face for face, _ in faces.values()] + [hook]
            await until(lambda: all(face.opened for face in seen), "every face is open")
            began = await end()
            await asyncio.sleep(max(0.0, began + self.limit_s + 2 - time.monotonic()))
            await cancel(talking, *tasks)
        if not hook.after(began + self.limit_s):
            hook.ended = max(began, *hook.published)
        for face in seen:
            self._judge(name, face, began)

    async def _subscribe(self, api: Api, stage: Stage, port: int) -> None:
        """Made with the credential, so that they are its own."""
        for of in ("consume", "waiting", "pull", "webhook"):
            channel = f"{stage.name}.silent" if of == "waiting" else stage.name
            body: dict[str, Any] = {"channels": [channel]}
            if of == "webhook":
                body["push"] = {"url": f"http://127.0.0.1:{port}/", "secret": SECRET}
            await api.call("PUT", f"/v1/subscriptions/{stage.queue(of)}", body, PATIENCE_S, **stage.headers)

    def _judge(self, name: str, face: Face, began: float) -> None:
        after, late = face.after(began), face.after(began + self.limit_s)
        ended = "does not end" if face.ended is None else f"{max(0.0, face.ended - began):5.1f} s"
        drill.say(f"{name}: {face.name:24} {ended:>12}, {after:5} younger messages, {late} after the limit")
        slow = face.ended is None or face.ended - began > self.limit_s
        self.verdict.add(Breach.SLOW, f"{name}: {face.name}: {ended.strip()}", count=int(slow))
        early = face.ended is not None and face.ended < began
        self.verdict.add(Breach.FAILED, f"{name}: {face.name} ended before its credential", count=int(early))
        self.verdict.add(Breach.LATE, f"{name}: {face.name}: {late} messages", count=late)


async def _followed(face: Face, run: Opened) -> None:
    await run(face)
    face.ended = time.monotonic()


async def _publish(api: Api, channel: str, mine: dict[str, str]) -> None:
    """Publish steadily. Each message says when."""
    while True:
        body = {"data": {"at": time.monotonic()}}
        await api.raw("POST", f"/v1/channels/{channel}/messages", body, PATIENCE_S, **mine)
        await asyncio.sleep(PUBLISH_EVERY_S)


@asynccontextmanager
async def _served() -> AsyncIterator[Server]:
    """A service with two workers that checks tokens."""
    with drill.temporary_home("credentials") as home:
        keys = home / "token-keys.json"
        settings = {"workers": "2", "jwt_keys": str(keys), "webhook_allow_private": "1"}
        server = Server(home / "home", settings)
        await asyncio.to_thread(server.command, "token", "--new-key", str(keys))
        try:
            server.start()
            await server.wait_ready()
            yield server
        finally:
            server.stop()


async def trial(limit_s: float) -> Verdict:
    """Run the test."""
    verdict = Verdict((Breach.SLOW, Breach.LATE))
    async with _served() as server:
        operator = await asyncio.to_thread(server.command, "keys", "create", "ops", "--operator")
        await Trial(server, operator, verdict, limit_s).play()
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    options = drill.parser("credentials", __doc__, "", "--limit 5")
    options.add_argument("--limit", type=float, default=LIMIT_S, help="seconds; 30 by default")
    given = options.parse_args(arguments)
    return drill.conclude(drill.played(lambda: asyncio.run(trial(given.limit))))


if __name__ == "__main__":
    sys.exit(main())
