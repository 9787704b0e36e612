"""Wires of one name write the same bytes, since feeds encode a message once for each name."""

from __future__ import annotations

import itertools

from app.faces.websocket.framing import EVENTS, FRAMES, LINES
from app.faces.websocket.presence import NamedPresencePushes, PresencePushes
from app.faces.websocket.publications import IdWire, SeqWire
from subscriptions.domain.presence import Change
from subscriptions.engine.entry import Entry, Wire
from subscriptions.engine.presence import PresenceWire

FRAMINGS = (FRAMES, LINES, EVENTS)
NAMES = ("lines", "events", "x", "lines x", "ws lines")
ENTRY = Entry(9, "default", "chat", 3, "message", None, b'{"id":9}')


def test_publications() -> None:
    wires = [SeqWire(framing) for framing in FRAMINGS]
    named = [IdWire(name, framing) for name, framing in itertools.product(NAMES, FRAMINGS)]
    every: list[Wire] = [*wires, *named]
    written = {wire.name: wire.frame(ENTRY) for wire in every}
    assert len(set(written.values())) == len(written) == len(every)


def test_joins() -> None:
    change = Change("c", None, joined=True, at_us=1)
    wires = [PresencePushes(framing) for framing in FRAMINGS]
    named = [NamedPresencePushes(name, framing) for name, framing in itertools.product(NAMES, FRAMINGS)]
    every: list[PresenceWire] = [*wires, *named]
    written = {wire.name: wire.change("chat", change) for wire in every}
    assert len(set(written.values())) == len(written) == len(every)
