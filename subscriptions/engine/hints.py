"""Signed hints between processes: what was committed, with hot copies while they are small.

No reader relies on a hint to arrive. Readers do rely on its content, because it is signed with a secret that
only processes that can read the log have. A client that can write to Redis can make a reader look into the
database, but cannot make it show a false message.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from hashlib import blake2b

import msgspec

from subscriptions.engine.entry import Entry

MAX_COPIES_BYTES = 256 * 1024
"""The most bytes of hot copies in one hint, together. Above that the hint carries no copies."""
SIGNATURE_BYTES = 16
MAX_EPHEMERAL_AGE_S = 60
MAX_ORIGINS = 1000
"""How many senders of ephemeral hints are remembered: those heard last."""


class Copy(msgspec.Struct, array_like=True, frozen=True):
    """One committed message. `body` is None when it was too large to travel along.

    `is_change`: whether it changes another message. None: the sender, of a version before, does not say."""

    id: int
    seq: int
    type: str
    key: str | None
    body: bytes | None
    is_change: bool | None = None


class ChannelHint(msgspec.Struct, array_like=True, frozen=True):
    """Messages that one commit added to one channel, right after (`after_id`, `after_seq`)."""

    namespace: str
    channel: str
    channel_id: int
    after_id: int
    after_seq: int
    copies: list[Copy]


class EphemeralHint(msgspec.Struct, array_like=True, frozen=True):
    """A message that is not stored: its JSON text goes to those who listen now."""

    namespace: str
    channel: str
    type: str
    key: str | None
    body: bytes


class MarkerHint(msgspec.Struct, array_like=True, frozen=True):
    """A marker that was moved: its JSON text goes to those who listen now and asked for markers."""

    namespace: str
    channel: str
    body: bytes


class PresenceHint(msgspec.Struct, array_like=True, frozen=True):
    """Clients of the sender that joined a channel or left it, as (client, user, joined, microseconds).
    `clients`: how many of its clients are there now. Without `changes` they were too many to be named."""

    namespace: str
    channel: str
    clients: int
    changes: list[tuple[str, str | None, bool, int]] = []


class Hints(msgspec.Struct, array_like=True, frozen=True):
    """What one commit, one ephemeral publish, one settlement or one tick of presence tells the other
    processes. `origin` names the sender, which has already told its own readers. `woken`: durable
    subscriptions in which something was settled; `settled`: the settled leases that others stream, as
    (subscription, message id, lease); `released`: the same of released ones. A version before passes over
    the last members, which it does not know."""

    origin: str
    channels: list[ChannelHint]
    ephemeral: list[EphemeralHint]
    woken: list[int] = []
    settled: list[tuple[int, int, int]] = []
    sent_at_us: int = 0
    """When ephemeral hints, commands, hints of presence or of markers were sent, by the sender's clock. It
    rises with each of one sender."""
    commands: list[tuple[str, bytes]] = []
    """For the process that gets this: (session, commands of its client), which came to another process."""
    presence: list[PresenceHint] = []
    released: list[tuple[int, int, int]] = []
    markers: list[MarkerHint] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Hints)


class HintCodec:
    """Signs and encodes, verifies and decodes hints of one history of one database. The first of the secrets
    signs, each is accepted. The `identity` of the history is part of the keys."""

    __slots__ = ("_identity", "_keys")

    def __init__(self, *secrets: bytes, identity: str = "") -> None:
        assert min(map(len, secrets)) >= 16, "secrets of at least 128 bits"
        self._identity = identity
        self._keys = [
            blake2b(identity.encode(), key=secret[: blake2b.MAX_KEY_SIZE]).digest() for secret in secrets
        ]

    @property
    def identity(self) -> str:
        """Of which history it is."""
        return self._identity

    def encode(self, hints: Hints) -> bytes:
        payload = _encoder.encode(hints)
        return _sign(payload, self._keys[0]) + payload

    def decode(self, data: bytes) -> Hints | None:
        """The hints, or None if the data was signed with none of the keys."""
        signature, payload = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
        if not any(hmac.compare_digest(signature, _sign(payload, key)) for key in self._keys):
            return None
        try:
            return _decoder.decode(payload)
        except msgspec.DecodeError:  # Signed by a version of the service that speaks another format.
            return None


def _sign(payload: bytes, key: bytes) -> bytes:
    return blake2b(payload, digest_size=SIGNATURE_BYTES, key=key).digest()


class Replays:
    """Recognizes hints that are shown once, such as ephemeral ones, and were captured and sent again. Those
    of one sender come in order, so one that is not newer than the sender's last is a replay. If the sender
    was never heard, the age decides."""

    __slots__ = ("_last_us",)

    def __init__(self) -> None:
        self._last_us: OrderedDict[str, int] = OrderedDict()

    def is_new(self, hints: Hints, now_us: int) -> bool:
        """Whether to show these hints, each once. Hints of a sender whose clock is a minute off are
        refused."""
        if abs(now_us - hints.sent_at_us) > MAX_EPHEMERAL_AGE_S * 1_000_000:
            return False
        if hints.sent_at_us <= self._last_us.get(hints.origin, 0):
            return False
        self._last_us[hints.origin] = hints.sent_at_us
        self._last_us.move_to_end(hints.origin)
        if len(self._last_us) > MAX_ORIGINS:
            self._last_us.popitem(last=False)
        return True


def entries_of(hint: ChannelHint) -> list[Entry]:
    """Entries of the copies that travelled along."""
    return [
        Entry(c.id, hint.namespace, hint.channel, c.seq, c.type, c.key, c.body, c.is_change)
        for c in hint.copies
        if c.body is not None and c.is_change is not None
    ]
