"""Hints: what was signed with the log's secret comes back, anything else is nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.engine.hints import (
    MAX_ORIGINS,
    SIGNATURE_BYTES,
    ChannelHint,
    Copy,
    EphemeralHint,
    HintCodec,
    Hints,
    MarkerHint,
    PresenceHint,
    Replays,
    _sign,
    entries_of,
)

SECRET, OTHER = bytes(range(32)), bytes(range(32, 64))
HINTS = Hints(
    "me",
    [
        ChannelHint(
            "default",
            "lobby",
            3,
            9,
            4,
            [Copy(10, 5, "message", "k", b"{}", True), Copy(11, 6, "t", None, None)],
        )
    ],
    [EphemeralHint("default", "lobby", "typing", None, b"{}")],
)


def test_what_was_encoded_comes_back() -> None:
    codec = HintCodec(SECRET)
    assert codec.decode(codec.encode(HINTS)) == HINTS


def test_the_first_secret_signs_and_each_is_accepted() -> None:
    before, between, after = HintCodec(SECRET), HintCodec(SECRET, OTHER), HintCodec(OTHER, SECRET)
    for codec in (before, between):
        assert after.decode(codec.encode(HINTS)) == before.decode(codec.encode(HINTS)) == HINTS
    assert between.decode(after.encode(HINTS)) == HINTS
    assert before.decode(after.encode(HINTS)) is None
    assert HintCodec(OTHER).decode(before.encode(HINTS)) is None


def test_another_logs_hints_are_nothing() -> None:
    assert HintCodec(SECRET).decode(HintCodec(SECRET[::-1]).encode(HINTS)) is None


@given(st.binary(max_size=200))
def test_garbage_is_nothing(data: bytes) -> None:
    assert HintCodec(SECRET).decode(data) is None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed_wherever_it_is(at: int, change: int) -> None:
    codec = HintCodec(SECRET)
    data = bytearray(codec.encode(HINTS))
    data[at % len(data)] ^= change
    assert codec.decode(bytes(data)) is None
    assert codec.decode(bytes(data[: at % len(data)])) is None


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode(["me", [1], []])])
def test_what_is_signed_and_cannot_be_read_is_nothing(payload: bytes) -> None:
    codec = HintCodec(SECRET)
    assert codec.decode(_sign(payload, codec._keys[0]) + payload) is None


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(AssertionError):
        HintCodec(b"short")
    assert SIGNATURE_BYTES == 16


def test_only_copies_that_travelled_make_entries() -> None:
    (entry,) = entries_of(HINTS.channels[0])
    assert (entry.id, entry.seq, entry.channel, entry.key, entry.body) == (10, 5, "lobby", "k", b"{}")
    assert entry.is_change


def test_copies_of_a_version_before_make_no_entries() -> None:
    """They do not say whether they change other messages: a reader that asks reads the log."""
    before = ["default", "lobby", 3, 9, 4, [[10, 5, "message", "k", b"{}"]]]
    hint = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=ChannelHint)
    assert hint.copies[0].id == 10
    assert entries_of(hint) == []


def test_a_version_before_reads_copies_of_this_one() -> None:
    class CopyBefore(msgspec.Struct, array_like=True, frozen=True):
        id: int
        seq: int
        type: str
        key: str | None
        body: bytes | None

    made = msgspec.msgpack.encode(Copy(10, 5, "message", "k", b"{}", True))
    assert msgspec.msgpack.decode(made, type=CopyBefore) == CopyBefore(10, 5, "message", "k", b"{}")


def test_a_version_before_passes_over_markers() -> None:
    class HintsBefore(msgspec.Struct, array_like=True, frozen=True):
        origin: str
        channels: list[ChannelHint]
        ephemeral: list[EphemeralHint]
        woken: list[int] = []
        settled: list[tuple[int, int, int]] = []
        sent_at_us: int = 0
        commands: list[tuple[str, bytes]] = []
        presence: list[PresenceHint] = []
        released: list[tuple[int, int, int]] = []

    hints = Hints("me", [], [], sent_at_us=5, markers=[MarkerHint("default", "lobby", b"{}")])
    codec = HintCodec(SECRET)
    payload = codec.encode(hints)
    assert codec.decode(payload) == hints
    before = msgspec.msgpack.decode(payload[SIGNATURE_BYTES:], type=HintsBefore)
    assert before == HintsBefore("me", [], [], sent_at_us=5)
    made = msgspec.msgpack.encode(before)
    assert codec.decode(_sign(made, codec._keys[0]) + made) == Hints("me", [], [], sent_at_us=5)


def test_an_ephemeral_hint_that_is_sent_again_is_not_shown_again() -> None:
    now_us, replays = 1_800_000_000_000_000, Replays()

    def sent(origin: str, at_us: int) -> Hints:
        return Hints(origin, [], [], sent_at_us=at_us)

    assert replays.is_new(sent("a", now_us), now_us)
    assert not replays.is_new(sent("a", now_us), now_us)
    assert not replays.is_new(sent("a", now_us - 1), now_us)
    assert replays.is_new(sent("b", now_us - 1), now_us)
    assert replays.is_new(sent("a", now_us + 1), now_us)
    # Of a process that is gone, for one that has just begun; of a version before; and of a clock that is off.
    for at_us in (now_us - 61_000_000, 0, now_us + 61_000_000):
        assert not Replays().is_new(sent("c", at_us), now_us)
    for number in range(MAX_ORIGINS + 10):
        assert replays.is_new(sent(f"o{number}", now_us), now_us)
    assert len(replays._last_us) == MAX_ORIGINS
