"""Selects the messages to read: a namespace, patterns of channels, and bounds of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from gapless_spark.columns import select_list
from gapless_spark.database import literal, rows
from gapless_spark.errors import BadOption

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

MAX_NAME_CHARACTERS = 255
MAX_PATTERNS = 128
_TOKEN = r"[A-Za-z0-9_~:@-]+"  # noqa: S105  (a part of a name, no secret)
_NAME = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")
_PATTERN = re.compile(rf"(?:(?:{_TOKEN}|\*)\.)*(?:{_TOKEN}|\*|>)")


NAME_RULE = f"tokens of A-Z a-z 0-9 _ ~ : @ - joined by dots, at most {MAX_NAME_CHARACTERS} characters"


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages in `namespace` whose channel matches one of `patterns` (empty: any channel), created at or
    after `since` and before `until` (aware times; None: no bound).

    Channels are looked up when a range is read, so channels that are made later are included. Raises
    `BadOption` if a pattern is invalid or a time is naive.
    """

    namespace: str = "default"
    patterns: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if len(self.patterns) > MAX_PATTERNS:
            raise BadOption(f"channels: at most {MAX_PATTERNS} names and patterns, not {len(self.patterns)}")
        for pattern in self.patterns:
            check_pattern(pattern)
        for name, time in (("startingTimestamp", self.since), ("endingTimestamp", self.until)):
            if time is not None and time.tzinfo is None:
                raise BadOption(f"{name}: {time} has no time zone")

    def sql(self, columns: Sequence[str], lower: int, upper: int, *, ordered: bool = False) -> str:
        """A SELECT of `columns` (see `columns.COLUMNS`) of the selected messages with `lower < id <= upper`,
        in id order if `ordered`, without messages that retention removed."""
        return f"select {select_list(columns)} {self.source(lower, upper)}" + (
            " order by m.id" if ordered else ""
        )

    def source(self, lower: int, upper: int) -> str:
        """FROM and WHERE of these messages, `m`, and their channels, `c`."""
        clauses = [*self._bounds(lower, upper), "m.id > c.trimmed_id", self.channel_clause()]
        return "from gapless.messages m join gapless.channels c on c.id = m.channel_id where " + " and ".join(
            clauses
        )

    @property
    def everything(self) -> bool:
        """Whether all channels of the namespace are selected."""
        return not self.patterns or ">" in self.patterns

    def whole_sql(self, columns: Sequence[str], lower: int, upper: int, *, ordered: bool = False) -> str:
        """As `sql`, if all rows of the range are in the selection apart from its times (`whole_clause`). It
        has the number of the channel in place of its name."""
        clauses = " and ".join(self._bounds(lower, upper))
        order = " order by m.id" if ordered else ""
        return f"select {select_list(columns, named=False)} from gapless.messages m where {clauses}{order}"

    def whole_clause(self, lower: int) -> str:
        """The condition that all rows above `lower` are in the selection apart from its times: no other
        namespace has channels, and no rows of trimmed or deleted channels are left."""
        return (
            "not exists (select from gapless.channels o"
            f" where o.namespace_id is distinct from {self._owner()})"
            " and not exists (select from gapless.deleted_channels)"
            f" and not exists (select from gapless.channels t where t.trimmed_id > {lower:d})"
        )

    def _bounds(self, lower: int, upper: int) -> list[str]:
        return [f"m.id > {lower:d}", f"m.id <= {upper:d}"] + [
            f"m.created_at {relation} {literal(time.astimezone(UTC).isoformat())}::timestamptz"
            for relation, time in ((">=", self.since), ("<", self.until))
            if time is not None
        ]

    def check_namespace(self, connection: Connection) -> None:
        """Raises `BadOption` if the namespace does not exist, because no message would be found."""
        ((found,),) = rows(connection, f"select {self._owner()} is not null")
        if not found:
            raise BadOption(f"namespace: there is no namespace {self.namespace!r}")

    def _owner(self) -> str:
        return f"(select n.id from gapless.namespaces n where n.name = {literal(self.namespace)})"

    def channel_clause(self) -> str:
        """The condition on the channel `c`."""
        scope = f"c.namespace_id = {self._owner()}"
        if self.everything:
            return scope
        names = [pattern for pattern in self.patterns if not is_pattern(pattern)]
        regexes = [to_regex(pattern) for pattern in self.patterns if is_pattern(pattern)]
        either = [f"c.name in ({', '.join(map(literal, names))})"] if names else []
        either += [f"c.name ~ {literal('|'.join(regexes))}"] if regexes else []
        return f"{scope} and ({' or '.join(either)})"

    def matches(self, namespace: str, channel: str, created_at: datetime | None = None) -> bool:
        """Whether a message of a (valid) channel, created at that time, is selected; without a time, whether
        a message of the channel can be."""
        if namespace != self.namespace:
            return False
        if created_at is not None and (
            (self.since is not None and created_at < self.since)
            or (self.until is not None and created_at >= self.until)
        ):
            return False
        return not self.patterns or any(_compiled(pattern).fullmatch(channel) for pattern in self.patterns)


def parse_patterns(text: str) -> tuple[str, ...]:
    """The patterns of a comma-separated list, without duplicates and surrounding spaces. Empty for an empty
    text, which means all channels. Raises `BadOption`."""
    if not text.strip():
        return ()
    return tuple(dict.fromkeys(check_pattern(part.strip()) for part in text.split(",")))


def is_name(text: str) -> bool:
    """Whether `text` can be the name of a channel."""
    return len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether a valid `text` is a pattern and not a channel's name."""
    return "*" in text or ">" in text


def check_pattern(text: str) -> str:
    """Return a valid pattern or channel name. Raises `BadOption` for any other text."""
    if len(text) > MAX_NAME_CHARACTERS or _PATTERN.fullmatch(text) is None:
        raise BadOption(
            f"channels: {text[:300]!r} is neither a channel's name nor a pattern: tokens of A-Z a-z 0-9 _ ~ "
            f": @ - or *, joined by dots, the last may be >, at most {MAX_NAME_CHARACTERS} characters; "
            "commas between patterns"
        )
    return text


def to_regex(pattern: str) -> str:
    """An anchored regular expression for a pattern, for Python and for Postgres (`~`). It takes linear time
    in the length of a name, because every part ends at the next dot."""
    parts = ({"*": "[^.]+", ">": r"[^.]+(\.[^.]+)*"}.get(part, part) for part in pattern.split("."))
    return "^" + r"\.".join(parts) + "$"


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(to_regex(pattern))
