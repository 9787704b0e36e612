"""Cutting a file into batches: always the same ones, so that a batch sent twice is the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from app.cli.importing.lines import Bad, BadLineError, body_of, checked, member_of, refusal
from app.cli.importing.source import Source

MAX_MESSAGES = 1000
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Between two batches: `offset` in uncompressed bytes, `line` and `batch` count what lies before."""

    offset: int = 0
    line: int = 0
    batch: int = 0


BEGINNING = Place()


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are published together. `channels` has one entry a message; `position` is for progress.

    Bad lines between them are left out of `body`; a batch may consist of nothing else.
    """

    number: int
    body: bytes
    channels: tuple[str, ...]
    bad: tuple[Bad, ...]
    end: Place
    position: int


@dataclass(slots=True)
class _Gathering:
    members: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    size: int = 0
    line: int = 0
    offset: int = 0


def batches(source: Source, channel: str | None, place: Place) -> Iterator[Batch]:
    """All batches from `place` on. The cut depends on the lines alone, never on time or on where it began."""
    number = place.batch
    now = _Gathering(offset=place.offset, line=place.line)
    for line in source.lines(place.offset, place.line):
        try:
            member = member_of(line.raw, channel)
        except BadLineError as error:
            now.bad.append(Bad(line.number, str(error)))
            member = None
        if member is not None and now.members and now.size + len(member) > MAX_BYTES:
            yield _batch(source, number, now)
            number += 1
            now = _Gathering()
        if member is not None:
            now.members.append(member)
            now.numbers.append(line.number)
            now.size += len(member) + 1
        now.line, now.offset = line.number, line.end
        if len(now.members) >= MAX_MESSAGES or len(now.bad) >= MAX_MESSAGES:
            yield _batch(source, number, now)
            number += 1
            now = _Gathering(line=now.line, offset=now.offset)
    if now.members or now.bad:
        yield _batch(source, number, now)


def _batch(source: Source, number: int, now: _Gathering) -> Batch:
    source.require_unchanged()
    members = now.members
    messages = checked(members) if members else ()
    if messages is None:
        refused = [(n, m, refusal(m)) for n, m in zip(now.numbers, members, strict=True)]
        now.bad += [Bad(n, why) for n, _, why in refused if why is not None]
        members = [m for _, m, why in refused if why is None]
        messages = checked(members) if members else ()
        assert messages is not None, "a batch of acceptable messages is acceptable"
    end = Place(now.offset, now.line, number + 1)
    bad = tuple(sorted(now.bad, key=lambda one: one.line))
    channels = tuple(message.channel for message in messages)
    return Batch(number, body_of(members), channels, bad, end, source.position)
