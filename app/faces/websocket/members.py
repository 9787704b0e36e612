"""What one client does with durable subscriptions: consume, unconsume, ack, nack, release, extend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from app.faces.websocket import codes
from app.faces.websocket.codes import error_code
from app.faces.websocket.consuming import Consuming, Queues, parse_consume, parse_unconsume
from app.faces.websocket.reader import Client
from app.faces.websocket.replies import Opening, Replies
from app.message.limits import MAX_BODY_BYTES
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.principal import Action, Noun, Principal

COMMANDS: Final = frozenset({"consume", "unconsume", "ack", "nack", "release", "extend"})
MAX_MEMBERS: Final = 32
"""Of one connection. Each holds up to 1 MiB for a client that takes nothing."""
MAX_SETTLING_BYTES: Final = MAX_BODY_BYTES
"""The length of the settlements and extensions that one connection has under way; more are refused."""


class Members:
    """The members of one client, by the subscription of each, and what it settles."""

    __slots__ = (
        "_client",
        "_is_gone",
        "_one_by_one",
        "_open",
        "_principal",
        "_queues",
        "_replies",
        "_settling",
        "_size",
    )

    def __init__(self, client: Client, replies: Replies, principal: Principal, queues: Queues) -> None:
        self._client = client
        self._replies = replies
        self._principal = principal
        self._queues = queues
        self._open: dict[str, Consuming] = {}
        self._settling: set[asyncio.Task[bytes]] = set()
        self._size = 0
        self._one_by_one: asyncio.Lock | None = None
        self._is_gone = False

    def __repr__(self) -> str:
        return f"Members({list(self._open)}, {len(self._settling)} settling)"

    def stop(self, reason: Goodbye | None = None) -> None:
        """The client is gone, or is sent away for a `reason`. Its acks, and the nack, release or extension
        that is under way, are settled; then its leases end. Those that wait for their turn are not carried
        out."""
        self._is_gone = True
        for consuming in self._open.values():
            consuming.stop(reason)
        self._open.clear()

    def take(self, id_: int, method: str, body: bytes) -> None:
        """Carry out one of `COMMANDS`. Raises the errors of its body, and `unavailable` before the service is
        ready."""
        self._queues.gate.require(self._principal.namespace)
        match method:
            case "consume":
                self._consume(id_, body)
            case "unconsume":
                self._unconsume(id_, body)
            case _:
                self._settle(id_, method, body)

    def _consume(self, id_: int, body: bytes) -> None:
        asked = parse_consume(body)
        name = asked.subscription
        self._principal.require((Action.CONSUME,), Noun.SUBSCRIPTION, (name,))
        if name in self._open:
            self._replies.refuse(id_, codes.ALREADY_SUBSCRIBED)
            return
        if len(self._open) >= MAX_MEMBERS:
            self._replies.refuse(id_, codes.LIMIT_EXCEEDED)
            return
        opening = Opening(self._replies, id_, b"consume")
        opened = partial(opening.answer, b"{}")
        parts = self._queues.parts
        consuming = Consuming(asked, self._client, parts, opened, self._settled, self._forget)
        self._open[name] = consuming

        def refused(error: GaplessError) -> None:
            opening.refuse(error_code(error))

        def done(task: asyncio.Task[None]) -> None:
            self._forget(consuming)
            opening.done(task)

        consuming.task = asyncio.create_task(consuming.run(self._principal.namespace, refused))
        consuming.task.add_done_callback(done)

    def _forget(self, consuming: Consuming) -> None:
        if self._open.get(consuming.subscription) is consuming:
            del self._open[consuming.subscription]

    def _unconsume(self, id_: int, body: bytes) -> None:
        """End a member, if there is one. Nothing of it comes after the reply."""
        consuming = self._open.pop(parse_unconsume(body), None)
        if consuming is None or not consuming.stop() or consuming.task is None:
            self._replies.answer(id_, b"unconsume", b"{}")
            return
        task = consuming.task

        async def answer_at_its_end() -> None:
            await asyncio.wait([task])
            self._replies.answer(id_, b"unconsume", b"{}")

        self._replies.run(id_, answer_at_its_end)

    def _settle(self, id_: int, method: str, body: bytes) -> None:
        """Reply with the results after the commit."""
        if len(body) > MAX_BODY_BYTES:
            raise GaplessError(Code.PAYLOAD_TOO_LARGE, f"the command is longer than {MAX_BODY_BYTES} bytes")
        if self._size + len(body) > MAX_SETTLING_BYTES:
            self._replies.refuse(id_, codes.TOO_MANY_REQUESTS)
            return
        acks = self._queues.acks
        match method:
            case "ack":
                # Acks that wait at the same time are settled together.
                work = acks.ack(body, self._principal, None)
            case "nack":
                work = self._in_turn(partial(acks.nack, body, self._principal, None))
            case "release":
                work = self._in_turn(partial(acks.release, body, self._principal, None))
            case _:
                work = self._in_turn(partial(acks.extend, body, self._principal, None))
        task = asyncio.create_task(work)
        self._settling.add(task)
        self._size += len(body)
        task.add_done_callback(partial(self._was_settled, len(body)))
        self._replies.await_result(id_, task, partial(self._replies.answer, id_, method.encode()))

    def _was_settled(self, size: int, task: asyncio.Task[bytes]) -> None:
        self._settling.discard(task)
        self._size -= size

    async def _in_turn(self, settle: Callable[[], Awaitable[bytes]]) -> bytes:
        """One at a time: each has a transaction of its own, and the connections to the database are few.
        Raises `unavailable` once the client is gone."""
        if self._one_by_one is None:
            self._one_by_one = asyncio.Lock()
        async with self._one_by_one:
            if self._is_gone:
                raise unavailable("the connection is gone; nothing was settled")
            return await settle()

    async def _settled(self) -> None:
        """Return once all that the client asked to settle until now is settled, or has failed."""
        if self._settling:
            await asyncio.wait(list(self._settling))
