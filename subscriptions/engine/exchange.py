"""Sends hints about commits and settlements to readers and members of this process, and to other processes.

Hints may be lost, doubled or late: readers look by themselves every second. `hints` says which are trusted.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from subscriptions.domain.delivery import Receipt, Touched
from subscriptions.engine.entry import Entry
from subscriptions.engine.hints import (
    MAX_COPIES_BYTES,
    ChannelHint,
    Copy,
    EphemeralHint,
    HintCodec,
    Hints,
    MarkerHint,
    PresenceHint,
    Replays,
    entries_of,
)
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.ports import HintBus

OpenBus = Callable[[str, str, Callable[[bytes], None], Callable[[], None]], HintBus]
"""(identity of the log's history, name of this process, callback for payloads, callback when some may have
been missed) → a bus that carries only payloads of processes with this identity."""


class Listener(Protocol):
    """The durable side of a process, which receives hints."""

    def follows(self, namespace: str, channel: str) -> bool: ...

    def hear(self, namespace: str, channel: str, last_id: int) -> None: ...

    def hear_settled(
        self,
        subscription_ids: Sequence[int],
        receipts: Sequence[Receipt],
        released: Sequence[Receipt] = (),
    ) -> None: ...


HearPresence = Callable[[str, Sequence[PresenceHint]], None]
"""Takes the sender of hints of presence, and the hints."""
HearCommands = Callable[[str, bytes], None]
"""Takes the name of a session of this process, and commands for it."""


class Exchange:
    """Exchanges hints; one for each process. Until the log's identity is known, and without Redis, only this
    process gets them."""

    def __init__(self, live: LiveEngine, open_bus: OpenBus, *, now_us: Callable[[], int]) -> None:
        self._live = live
        self._open_bus = open_bus
        self._now_us = now_us
        self._origin = secrets.token_hex(8)
        self._stamped_at_us = 0
        self._replays = Replays()
        self._secrets: tuple[bytes, ...] = ()
        self._codec: HintCodec | None = None
        self._bus: HintBus | None = None
        self._listeners: list[Listener] = []
        self._hear_presence: HearPresence = lambda origin, hints: None
        self._hear_commands: HearCommands = lambda session, commands: None
        self.forged = 0
        """Payloads received whose sender did not have the log's secret, or that were sent again."""

    def __repr__(self) -> str:
        return f"Exchange({self._bus!r})"

    @property
    def connected(self) -> bool:
        """Whether hints of other processes can arrive now."""
        return self._bus is not None and self._bus.connected

    @property
    def heard(self) -> bool:
        """Whether another process may listen."""
        return self._bus is not None and not self._bus.alone

    @property
    def node(self) -> str:
        """Names this process for `forward`, as long as it runs."""
        return self._origin

    def listen(
        self,
        queues: Listener | None = None,
        presence: HearPresence | None = None,
        commands: HearCommands | None = None,
    ) -> None:
        """Name who is told of what comes in. They need the exchange themselves, so they come after it."""
        self._listeners = [] if queues is None else [queues]
        self._hear_presence = presence or self._hear_presence
        self._hear_commands = commands or self._hear_commands

    def learn(self, secrets: Sequence[bytes]) -> None:
        """The secrets of hints, before `run` and each time they change; the first one signs."""
        if self._secrets != (new := tuple(secrets)):
            self._secrets = new
            self._codec = None if self._codec is None else HintCodec(*new, identity=self._codec.identity)

    async def run(self) -> None:
        """Exchange hints with the processes that read the same history of the same database, until cancelled.
        A copy of it, a restored one, and the primary before a failover have hints of their own, which never
        arrive here."""
        while True:
            await self._live.moved.wait()
            self._live.moved.clear()
            identity = self._live.identity
            self._codec = HintCodec(*self._secrets, identity=identity)
            self._bus = self._open_bus(identity, self._origin, self._hear, self._live.sweep_soon)
            running = asyncio.create_task(self._bus.run())
            moved = asyncio.create_task(self._live.moved.wait())
            try:
                await asyncio.wait([running, moved], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
            finally:
                for task in (running, moved):
                    task.cancel()
                await asyncio.gather(running, moved, return_exceptions=True)

    # --- telling

    def is_worth_telling(self, namespace: str, channel: str) -> bool:
        """Whether a reader or another process may want a hot copy of a message in this channel."""
        return (
            self._live.follows(namespace, channel)
            or any(listener.follows(namespace, channel) for listener in self._listeners)
            or self.heard
        )

    def committed(self, hints: list[tuple[ChannelHint, list[Entry]]]) -> None:
        """Tell this process's readers, then the other processes. The commit is already done and answered."""
        self._live.hear(hints)
        channels = [hint for hint, _ in hints]
        self._tell_listeners(channels)
        if self.heard:
            if sum(len(entry.body) for _, entries in hints for entry in entries) > MAX_COPIES_BYTES:
                channels = [_without_copies(hint) for hint in channels]
            self._send(Hints(self._origin, channels, []))

    def touched(self, touched: tuple[Touched, ...]) -> None:
        """Send hints without copies for messages that the database published by itself."""
        hints: list[tuple[ChannelHint, list[Entry]]] = []
        for t in touched:
            bare = Copy(t.last_id, t.last_seq, "", None, None)
            hints.append((ChannelHint(t.namespace, t.channel, t.channel_id, 0, 0, [bare]), []))
        if hints:
            self.committed(hints)

    def woken(self, subscription_id: int) -> None:
        """Make members here look at once: the database decided something about this subscription."""
        self._tell_settled([subscription_id], (), ())

    def settled(
        self, subscription_ids: list[int], receipts: list[Receipt], released: list[Receipt], /
    ) -> None:
        """Tell the other processes what was settled or released here, and which of these deliveries they
        stream."""
        if subscription_ids and self.heard:
            leases = [(r.subscription_id, r.message_id, r.lease) for r in receipts]
            freed = [(r.subscription_id, r.message_id, r.lease) for r in released]
            self._send(Hints(self._origin, [], [], subscription_ids, leases, released=freed))

    def publish_ephemeral(self, hint: EphemeralHint) -> None:
        """Send a message that is not stored to the listeners of all processes that can be reached."""
        self._live.hear_ephemeral(hint)
        self._send(Hints(self._origin, [], [hint], sent_at_us=self._stamp()))

    def send_markers(self, hints: list[MarkerHint]) -> None:
        """Tell the listeners of all processes that can be reached of markers that were moved. Those of one
        request are told together, so that they do not displace other hints."""
        if hints:
            for hint in hints:
                self._live.hear_ephemeral(hint)
            self._send(Hints(self._origin, [], [], sent_at_us=self._stamp(), markers=hints))

    async def forward(self, node: str, session: str, commands: bytes) -> bool:
        """Give commands to the process that holds a session; returns whether that process is there. Raises
        `unavailable`: they may have been carried out or not."""
        if node == self.node:
            self._hear_commands(session, commands)
            return True
        codec = self._codec
        if self._bus is None or codec is None or codec.identity != self._live.identity:
            return False

        def make() -> bytes:
            return codec.encode(
                Hints(self._origin, [], [], sent_at_us=self._stamp(), commands=[(session, commands)])
            )

        return await self._bus.send_to(node, make)

    def changed_presence(self, hints: list[PresenceHint]) -> None:
        """Tell the other processes who joined and left. One that listens for a moment only would not find it
        anywhere else, so `heard` does not matter."""
        if hints:
            self._send(Hints(self._origin, [], [], sent_at_us=self._stamp(), presence=hints))

    def _stamp(self) -> int:
        self._stamped_at_us = max(self._now_us(), self._stamped_at_us + 1)
        return self._stamped_at_us

    def _send(self, hints: Hints) -> None:
        """Send the hints if the bus belongs to the history that is read now."""
        if self._bus is not None and self._codec is not None and self._codec.identity == self._live.identity:
            self._bus.send(self._codec.encode(hints))

    # --- hearing

    def _hear(self, payload: bytes) -> None:
        assert self._codec is not None, "the bus is opened after the codec is there"
        hints = self._codec.decode(payload)
        if hints is None:
            self.forged += 1
            return
        if hints.origin == self._origin or self._codec.identity != self._live.identity:
            return
        self._live.hear((hint, entries_of(hint)) for hint in hints.channels)
        self._tell_listeners(hints.channels)
        settled, released = ([Receipt(*each) for each in those] for those in (hints.settled, hints.released))
        self._tell_settled(hints.woken, settled, released)
        once = hints.ephemeral or hints.commands or hints.presence or hints.markers
        if once and not self._replays.is_new(hints, self._now_us()):
            self.forged += 1
            return
        for session, commands in hints.commands:
            self._hear_commands(session, commands)
        for ephemeral in hints.ephemeral:
            self._live.hear_ephemeral(ephemeral)
        for marker in hints.markers:
            self._live.hear_ephemeral(marker)
        if hints.presence:
            self._hear_presence(hints.origin, hints.presence)

    def _tell_listeners(self, hints: Iterable[ChannelHint]) -> None:
        for hint in hints:
            if hint.copies:
                for listener in self._listeners:
                    listener.hear(hint.namespace, hint.channel, hint.copies[-1].id)

    def _tell_settled(
        self, subscription_ids: Sequence[int], receipts: Sequence[Receipt], released: Sequence[Receipt]
    ) -> None:
        for listener in self._listeners:
            listener.hear_settled(subscription_ids, receipts, released)


def _without_copies(hint: ChannelHint) -> ChannelHint:
    last = hint.copies[-1]
    bare = [Copy(last.id, last.seq, last.type, None, None)]
    return ChannelHint(hint.namespace, hint.channel, hint.channel_id, hint.after_id, hint.after_seq, bare)
