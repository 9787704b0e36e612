"""A subscription as the tests imagine it, behind real sockets: streams by script, settlements by rule."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from tests.client.model import deliveries, in_seconds
from tests.client.raw_server import Exchange, RawServer, Script, answer, chunks, stream_head
from tests.patience import PATIENCE_S

HOLD_S = 2 * PATIENCE_S
"""How long an answer is held back, at most: longer than a test waits for anything."""

STATUSES = {"ack": "acked", "nack": "nacked", "release": "released", "extend": "extended"}


def stream(*parts: bytes, hold: bool = True) -> Script:
    """A stream that sends these blocks, then stays open or is cut."""

    def script(exchange: Exchange) -> None:
        exchange.send(stream_head() + chunks(b"retry: 1000\n\n", *parts, end=False))
        if hold:
            exchange.hold()

    return script


def giving(*message_ids: int, lease_seconds: float = 30.0, attempt: int = 1, hold: bool = True) -> Script:
    """A stream with these deliveries, leased from the moment they are sent."""

    def script(exchange: Exchange) -> None:
        stream(deliveries(*message_ids, lease_seconds=lease_seconds, attempt=attempt), hold=hold)(exchange)

    return script


class QueueServer:
    """Answers each connection that consumes with the next of `streams`, the last one for ever.

    Settlements are kept in `settled` as (verb, body). `status` maps a receipt to another status than the one
    that was asked for; an `override` answers a verb in another way; `gates` hold a verb back until they are
    set.
    """

    def __init__(self, raw: RawServer) -> None:
        self.url = raw.url
        self.streams: list[Script] = [stream()]
        self.opened = 0
        self.left = 0
        self.lease_seconds = 30.0
        self.status: dict[str, str] = {}
        self.overrides: dict[str, bytes] = {}
        self.gates: dict[str, threading.Event] = {}
        self.settled: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        raw.scripts = [self._answer]

    def bodies(self, verb: str) -> list[dict[str, Any]]:
        """What was sent with this verb."""
        return [body for each, body in self.settled if each == verb]

    def receipts(self, verb: str) -> list[str]:
        """All receipts sent with this verb."""
        return [receipt for body in self.bodies(verb) for receipt in body["receipts"]]

    def wait_for(self, true: Callable[[], bool]) -> None:
        """Returns once it is true, which is looked at whenever something arrives or leaves."""
        with self._changed:
            assert self._changed.wait_for(true, timeout=PATIENCE_S)

    def _answer(self, exchange: Exchange) -> None:
        verb = exchange.seen.path.rpartition("/")[2]
        if verb == "consume":
            self._stream(exchange)
            return
        body = json.loads(exchange.seen.body)
        with self._changed:
            self.settled.append((verb, body))
            self._changed.notify_all()
        if verb in self.gates:
            self.gates[verb].wait(HOLD_S)
        exchange.send(self.overrides.get(verb) or answer(200, self._results(verb, body)))

    def _stream(self, exchange: Exchange) -> None:
        with self._changed:
            script = self.streams[min(self.opened, len(self.streams) - 1)]
            self.opened += 1
            self._changed.notify_all()
        script(exchange)
        with self._changed:
            self.left += 1
            self._changed.notify_all()

    def _results(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "transactions":
            return {"messages": [], "acked": sum(len(ack["receipts"]) for ack in body["ack"])}
        results = []
        for receipt in body["receipts"]:
            result = {"receipt": receipt, "status": self.status.get(receipt, STATUSES[verb])}
            if result["status"] == "extended":
                result["deadline"] = in_seconds(body.get("ack_wait", self.lease_seconds))
            results.append(result)
        return {"results": results}
