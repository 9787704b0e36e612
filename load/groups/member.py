"""One member of a subscription, in its own process: it works, is slow, makes errors, and crashes.

`run` is the process' function. Each action is noted before it is done, and each answer when it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import msgspec

from load.api import Api, RefusedError, UnreachableError
from load.groups.history import SECOND
from load.groups.member_socket import MemberSocket
from load.groups.notes import Notes, moment
from load.groups.plan import PRODUCTS, Errand, Face
from load.sse import Event, Stream

TICK_S = 0.05
STALL_NS = SECOND // 5
"""A tick that is this late shows that the process did not run in between."""
PULL_WAIT_S = 5
HEARTBEAT_S = 5
_PR_SET_PDEATHSIG = 1


def run(errand: Errand) -> None:
    """The process of a member. It ends with the run, even if it is stopped (SIGSTOP)."""
    # The fork server lives as long as a process holds this pipe. Only the run itself may hold it, so that the
    # fork server ends with the run, and the members with the fork server.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(Member(errand).run())


class Member:
    """One process of a member. It has a task for each delivery, at most `errand.limit`."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._notes = Notes(Path(errand.folder) / f"member-{errand.number:06d}.jsonl")
        self._chance = random.Random(errand.seed)
        self._api = Api(errand.target)
        self._sessions = 0
        self._requests = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: MemberSocket | None = None

    async def run(self) -> None:
        """Work until killed."""
        ticking, face = asyncio.create_task(self._tick()), self._errand.face
        while not ticking.done():
            try:
                await {Face.STREAM: self._stream, Face.SOCKET: self._listen, Face.PULL: self._pull}[face]()
            except (UnreachableError, RefusedError, OSError):
                await asyncio.sleep(self._chance.uniform(0.05, 0.2))
        await ticking

    async def _tick(self) -> None:
        """Note the times in which this process did not run, because its other notes do not count then."""
        before = time.monotonic_ns()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic_ns()
            if now - before > STALL_NS:
                self._notes.write({"e": "pause", "m": self._errand.member, "from": before, "to": now})
            before = now

    def _begin(self) -> int:
        self._sessions += 1
        errand = self._errand
        self._notes.write({"e": "session", "t": time.monotonic_ns(), "s": self._sessions, "g": errand.group,
                           "m": errand.member, "stream": errand.face is not Face.PULL,
                           "limit": errand.limit})  # fmt: skip
        return self._sessions

    async def _pull(self) -> None:
        session, errand = self._begin(), self._errand
        path = f"/v1/subscriptions/{errand.group}/pull"
        try:
            answer = await self._api.call(
                "POST", path, {"max": errand.limit, "wait": PULL_WAIT_S}, PULL_WAIT_S + 10
            )
        except RefusedError:
            self._notes.write({"e": "told", "s": session})
            raise
        else:
            given = answer["deliveries"]
            self._notes.write(*(_note(session, one) for one in given), {"e": "told", "s": session})
        finally:
            self._notes.write({"e": "end", "t": time.monotonic_ns(), "s": session})
        if given and self._chance.random() < 0.3:
            await asyncio.sleep(self._work_s())
            await self._settle("ack", [one["receipt"] for one in given])
        else:
            await asyncio.gather(*(self._handle(one) for one in given))

    async def _stream(self) -> None:
        session, errand = self._begin(), self._errand
        path = f"/v1/subscriptions/{errand.group}/consume?prefetch={errand.limit}&heartbeat={HEARTBEAT_S}"
        closed = asyncio.Event()

        def opened(status: int, head: bytes) -> None:
            if status == 200:
                self._notes.write({"e": "told", "s": session})
            else:
                closed.set()

        def take(events: list[Event]) -> None:
            given = [msgspec.json.decode(data) for _, data, name in events if name == b"delivery"]
            if given:
                self._take(session, given)
            if any(name == b"goodbye" for _, _, name in events):
                closed.set()

        request = errand.target.request("GET", path, headers={"Accept": "text/event-stream"})
        stream = Stream(request, opened, take, closed.set)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: stream, errand.target.host, errand.target.port
            )
            await self._stay(closed)
        finally:
            self._notes.write({"e": "end", "t": time.monotonic_ns(), "s": session})
            stream.abort()
        await asyncio.sleep(self._chance.uniform(0.02, 0.2))

    async def _listen(self) -> None:
        session, errand = self._begin(), self._errand
        socket = MemberSocket(
            lambda: self._notes.write({"e": "told", "s": session}), lambda given: self._take(session, given)
        )
        try:
            await socket.open(errand.target, errand.group, errand.limit)
            self._socket = socket
            await self._stay(socket.closed)
        finally:
            self._socket = None
            self._notes.write({"e": "end", "t": time.monotonic_ns(), "s": session})
            socket.abort()
        await asyncio.sleep(self._chance.uniform(0.02, 0.2))

    async def _stay(self, closed: asyncio.Event) -> None:
        """Wait until the service ends the connection, or until this member wants to leave."""
        leave = self._chance.uniform(2, 10) if self._chance.random() < 0.2 else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(leave):
                await closed.wait()

    def _take(self, session: int, given: list[dict[str, Any]]) -> None:
        self._notes.write(*(_note(session, one) for one in given))
        for one in given:
            self._spawn(one)

    def _spawn(self, one: dict[str, Any]) -> None:
        task = asyncio.create_task(self._handle(one))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, one: dict[str, Any]) -> None:
        """Choose what to do with one delivery, and do it."""
        chance, temper = self._chance, self._errand.temper
        receipt, poison = one["receipt"], one["message"]["data"]["poison"]
        stormy = self._errand.is_stormy(time.monotonic_ns())
        await asyncio.sleep(self._work_s())
        if poison:
            if stormy and chance.random() < 0.5:
                self._crash()
            await self._settle("nack", [receipt], delay=0 if not stormy else None)
        elif not stormy:
            await self._settle("ack", [receipt])
        elif chance.random() < temper.crash:
            await self._crash_somewhere(receipt)
        elif chance.random() < temper.late:
            await asyncio.sleep(chance.uniform(1.85, 2.6))
            await self._settle("ack", [receipt])
        elif chance.random() < temper.nack:
            await self._settle("nack", [receipt], delay=chance.choice([None, 0, 0.3]), reason="later")
        elif chance.random() < temper.release:
            await self._settle("release", [receipt], delay=chance.choice([None, 0, 0.3]))
        elif chance.random() < temper.reject:
            await self._settle("nack", [receipt], dead_letter=True, reason="never")
        else:
            await self._ack_somehow(receipt, one["message"]["id"])

    async def _ack_somehow(self, receipt: str, message_id: int) -> None:
        chance, temper = self._chance, self._errand.temper
        if chance.random() < temper.extend:
            await self._settle("extend", [receipt])
            await asyncio.sleep(chance.uniform(0.5, 1.8))
        if chance.random() < temper.probe:
            await self._settle("ack", [receipt], group=self._errand.foreign)
            await self._settle("ack", [_forged(receipt)])
        if chance.random() < temper.transact:
            await self._transact(receipt, message_id)
        else:
            await self._settle("ack", [receipt])
        if chance.random() < temper.probe:
            await self._settle(chance.choice(["ack", "nack", "release", "extend"]), [receipt])

    async def _crash_somewhere(self, receipt: str) -> None:
        """Crash before the ack, while it is sent, or after it."""
        place = self._chance.randrange(3)
        if place == 1:
            self._spawn_ack(receipt)
            await asyncio.sleep(self._chance.uniform(0, 0.01))
        elif place == 2:
            await self._settle("ack", [receipt])
        self._crash()

    def _spawn_ack(self, receipt: str) -> None:
        task = asyncio.create_task(self._settle("ack", [receipt]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _crash(self) -> None:
        self._notes.write({"e": "killed", "t": time.monotonic_ns()})
        os.kill(os.getpid(), signal.SIGKILL)

    def _work_s(self) -> float:
        """The seconds to work on a delivery: mostly short, sometimes long."""
        return (
            self._chance.uniform(0, 0.03) if self._chance.random() < 0.8 else self._chance.uniform(0.1, 0.5)
        )

    async def _settle(self, kind: str, receipts: list[str], group: str = "", **how: Any) -> None:
        """Send a request, at most three times, until there is an answer. Without one its effect is
        unknown."""
        group = group or self._errand.group
        body = {"receipts": receipts, **{name: value for name, value in how.items() if value is not None}}
        for _ in range(3):
            number = self._ask(kind, group, receipts, bool(how.get("dead_letter")))
            try:
                answer = await self._send(kind, group, body)
            except RefusedError:
                self._notes.write({"e": "refused", "t": time.monotonic_ns(), "n": number})
                return
            except UnreachableError:
                await asyncio.sleep(self._chance.uniform(0.05, 0.3))
            else:
                self._said(number, [_result(each) for each in answer["results"]])
                return

    async def _send(self, kind: str, group: str, body: dict[str, Any]) -> Any:
        """Over the own WebSocket mostly, if there is one. It settles for any subscription, so a receipt of
        another one is tried over HTTP only."""
        socket = self._socket
        if socket is not None and group == self._errand.group and self._chance.random() < 0.8:
            return await socket.settle(kind, body, 5)
        return await self._api.call("POST", f"/v1/subscriptions/{group}/{kind}", body, 5)

    async def _transact(self, receipt: str, message_id: int) -> None:
        """Publish a product of a message and ack the message, in one transaction with an idempotency key."""
        group = self._errand.group
        made = {"channel": PRODUCTS, "data": {"group": group, "of": message_id}}
        body = {"publish": [made], "ack": [{"subscription": group, "receipts": [receipt]}]}
        for _ in range(3):
            number = self._ask("transact", group, [receipt], False)
            try:
                await self._api.call("POST", "/v1/transactions", body, 5, Idempotency_Key=receipt)
            except RefusedError as error:
                if error.status == 409:
                    self._said(number, [{"status": "lease_expired"}])
                else:
                    self._notes.write({"e": "refused", "t": time.monotonic_ns(), "n": number})
                return
            except UnreachableError:
                await asyncio.sleep(self._chance.uniform(0.05, 0.3))
            else:
                self._said(number, [{"status": "acked"}])
                return

    def _ask(self, kind: str, group: str, receipts: list[str], dead_letter: bool) -> int:
        self._requests += 1
        self._notes.write({"e": "ask", "t": time.monotonic_ns(), "n": self._requests, "k": kind, "g": group,
                           "r": receipts, "dead": dead_letter})  # fmt: skip
        return self._requests

    def _said(self, number: int, results: list[dict[str, Any]]) -> None:
        self._notes.write({"e": "said", "t": time.monotonic_ns(), "n": number, "results": results})


def _note(session: int, one: dict[str, Any]) -> dict[str, Any]:
    message = one["message"]
    return {"e": "dlv", "t": time.monotonic_ns(), "s": session, "id": message["id"], "ch": message["channel"],
            "seq": message["seq"], "key": message.get("key"), "a": one["attempt"], "r": one["receipt"],
            "d": moment(one["deadline"])}  # fmt: skip


def _result(each: dict[str, Any]) -> dict[str, Any]:
    if "deadline" in each:
        each["deadline_ns"] = moment(each["deadline"])
    return each


def _forged(receipt: str) -> str:
    """The receipt with another letter in the middle."""
    at = len(receipt) // 2
    return receipt[:at] + ("A" if receipt[at] != "A" else "B") + receipt[at + 1 :]
