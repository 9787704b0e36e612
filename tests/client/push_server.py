"""A WebSocket server over plain sockets: honest, or as a test wants it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, Side
from websockets.protocol import Protocol as Frames
from websockets.server import ServerProtocol

from tests.client.model import message
from tests.client.raw_server import Exchange, RawServer

CREATED_AT = "2026-11-20T12:00:00.123456Z"


class CutOffError(Exception):
    """The connection was cut where the test wanted it."""


class Speaker:
    """The server's side of one WebSocket. It is cut after `limit` bytes, if there is one."""

    def __init__(self, exchange: Exchange, limit: int | None) -> None:
        self._exchange = exchange
        self._left = limit
        self._frames = Frames(Side.SERVER, state=OPEN, max_size=None)
        self.commands = self._commands()

    def accept(self) -> None:
        headers = self._exchange.seen.headers
        answer = ServerProtocol().accept(Request("/v1/ws", Headers(headers)))
        self.raw(answer.serialize())

    def raw(self, data: bytes) -> None:
        if self._left is not None and len(data) > self._left:
            self._exchange.send(data[: self._left])
            raise CutOffError
        self._exchange.send(data)
        self._left = self._left if self._left is None else self._left - len(data)

    def text(self, text: bytes) -> None:
        self.raw(Frame(Opcode.TEXT, text).serialize(mask=False))

    def say(self, *said: dict[str, Any]) -> None:
        """Replies and pushes in one message."""
        self.text("\n".join(map(json.dumps, said)).encode())

    def reply(self, command: dict[str, Any], **members: Any) -> None:
        self.say({"id": command["id"], **members})

    def close(self, code: int, reason: str = "") -> None:
        """Closes the connection, and waits for the client's answer."""
        self.raw(Frame(Opcode.CLOSE, code.to_bytes(2, "big") + reason.encode()).serialize(mask=False))
        for _ in self.commands:
            pass

    def narrow(self) -> None:
        """Lets little be sent here while no command is taken."""
        self._exchange.narrow()

    def hold(self) -> None:
        """Reads commands without an answer until the client hangs up or the test ends."""
        for _ in self.commands:
            pass

    def _commands(self) -> Iterator[dict[str, Any]]:
        while data := self._exchange.receive():
            self._frames.receive_data(data)
            for frame in self._frames.events_received():
                assert isinstance(frame, Frame)
                if frame.opcode is Opcode.CLOSE:
                    for piece in self._frames.data_to_send():
                        self._exchange.send(piece)
                    return
                assert frame.opcode is Opcode.TEXT, frame
                yield from map(json.loads, bytes(frame.data).split(b"\n"))


Talk = Callable[[Speaker], object]


class PushServer:
    """Answers each connection with the next of `talks`, the last one for ever. Its log holds `ids`."""

    def __init__(self, raw: RawServer, ids: tuple[int, ...] = (3, 5, 9)) -> None:
        self.raw = raw
        self.url = raw.url
        self.ids = list(ids)
        self.data: Any = None
        """What each message carries in place of its number, if anything."""
        self.ping: float = 25
        self.heard: list[dict[str, Any]] = []
        self.talks: list[Talk] = [self.serve]
        self.limits: Iterator[int] = iter(())
        self._ids = itertools.count(1000)
        self._opened = 0
        raw.scripts = [self._answer]

    def bodies(self, method: str) -> list[dict[str, Any]]:
        """The commands with this name, without their ids."""
        return [command[method] for command in list(self.heard) if method in command]

    def push(self, name: str, id_: int) -> dict[str, Any]:
        """The push of a message."""
        members = {} if self.data is None else {"data": self.data}
        return {"push": {"channel": name, "pub": {**message(id_, **members), "offset": id_}}}

    def serve(self, speaker: Speaker) -> None:
        """Is honest: a log, publishes that are confirmed, and no end."""
        for command in speaker.commands:
            self.obey(speaker, command)

    def connect(self, speaker: Speaker) -> None:
        """Only answers `connect`."""
        self.obey(speaker, next(speaker.commands))

    def connect_and_subscribe(self, speaker: Speaker) -> str:
        """Answers the first two commands without a message. Returns the subscription's name."""
        self.connect(speaker)
        command = next(speaker.commands)
        self.heard.append(command)
        speaker.reply(command, subscribe={"offset": command["subscribe"].get("offset", self.ids[-1])})
        name: str = command["subscribe"]["channel"]
        return name

    def obey(self, speaker: Speaker, command: dict[str, Any]) -> None:
        self.heard.append(command)
        if "connect" in command:
            speaker.reply(command, connect={"ping": self.ping, "pong": True})
        elif "publish" in command:
            at = {"id": next(self._ids), "channel": command["publish"]["channel"], "seq": 1}
            speaker.reply(command, publish={**at, "created_at": CREATED_AT})
        elif "subscribe" in command:
            asked = command["subscribe"]
            after = self._start(asked)
            speaker.reply(command, subscribe={"offset": after})
            for id_ in self.ids:
                if id_ > after:
                    speaker.say(self.push(asked["channel"], id_))
            speaker.say({"push": {"channel": asked["channel"], "ready": {"cursor": self.ids[-1]}}})

    def _start(self, asked: dict[str, Any]) -> int:
        """The id after which a subscription begins. All messages are younger than any `since`."""
        chosen = asked["selection"]
        if asked.get("recover"):
            return int(asked.get("offset", 0))
        if "last" in chosen:
            return [0, *self.ids][-1 - chosen["last"] :][0]
        return 0 if "since" in chosen else self.ids[-1]

    def _answer(self, exchange: Exchange) -> None:
        talk = self.talks[min(self._opened, len(self.talks) - 1)]
        self._opened += 1
        speaker = Speaker(exchange, next(self.limits, None))
        try:
            speaker.accept()
            talk(speaker)
        except (CutOffError, StopIteration):
            pass
