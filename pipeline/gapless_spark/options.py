"""Parses and checks the options of the source, which are named like those of Spark's Kafka source.

Every error names the option, its value, and the allowed values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from gapless_spark.columns import all_columns
from gapless_spark.errors import BadOption
from gapless_spark.selection import Selection, parse_patterns

EARLIEST: Final = -2
LATEST: Final = -1
MAX_ID: Final = 2**53 - 1
READING: Final = (
    "url",
    "channels",
    "namespace",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "payload",
    "binary",
    "changes",
    "snapshot",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "snapshot")
_NAMESPACE = re.compile(r"[A-Za-z0-9_~:@.-]{1,255}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    `start` and `end` are ids, `EARLIEST` or `LATEST`: reading begins after `start` and ends with `end`.
    `payload` is `string`, `variant`, or a type in Spark's DDL. `snapshot` names an exported snapshot.
    """

    url: str = field(repr=False)
    selection: Selection
    start: int
    end: int
    max_messages: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    payload: str
    binary: bool
    changes: bool
    snapshot: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        return all_columns(self.binary, self.changes)


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Parse the options of a batch or streaming read. Names are case-insensitive. Raises `BadOption`, also
    for an unknown name."""
    given = {name.lower(): value for name, value in options.items() if value is not None}
    _check_names(given, streaming)
    since = _time(given, "startingTimestamp")
    until = _time(given, "endingTimestamp")
    if since is not None and "startingoffsets" in given:
        raise BadOption("startingTimestamp: give it or startingOffsets, not both")
    if until is not None and "endingoffsets" in given:
        raise BadOption("endingTimestamp: give it or endingOffsets, not both")
    start = _offset(given, "startingOffsets", LATEST if streaming and since is None else EARLIEST)
    end = _offset(given, "endingOffsets", LATEST)
    snapshot = given.get("snapshot") or None
    if not streaming:
        if start == LATEST:
            raise BadOption("startingOffsets: latest is for streams; a batch read from there would be empty")
        if snapshot and end == LATEST:
            raise BadOption("endingOffsets: is needed with snapshot; gapless_spark.snapshot gives both")
        if 0 <= end < start:
            raise BadOption(f"endingOffsets: {end} lies before startingOffsets, {start}")
    return ReadOptions(
        url=_url(given),
        selection=Selection(_namespace(given), parse_patterns(given.get("channels", "")), since, until),
        start=start,
        end=end,
        max_messages=_count(given, "maxOffsetsPerTrigger"),
        min_partitions=_count(given, "minPartitions", 100_000),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        payload=given.get("payload", "string").strip() or "string",
        binary=_flag(given, "binary", False),
        changes=_flag(given, "changes", False),
        snapshot=snapshot,
    )


def _check_names(given: Mapping[str, str], streaming: bool) -> None:
    known = {name.lower(): name for name in READING}
    for name in given:
        # load("…") adds the option path. Spark adds options that begin with two underscores.
        if name not in known and not name.startswith("__"):
            raise BadOption(f"{name}: there is no such option; the options are {', '.join(READING)}")
    if streaming:
        for name in _BATCH_ONLY:
            if name.lower() in given:
                raise BadOption(f"{name}: is for batch reads; a stream has no end")


def _url(given: Mapping[str, str]) -> str:
    url = given.get("url") or os.environ.get("GAPLESS_DATABASE_URL", "")
    if not url.strip():
        raise BadOption("url: is missing; give the Postgres of Gapless, postgresql://user@host:5432/database")
    return url.strip()


def _namespace(given: Mapping[str, str]) -> str:
    namespace = given.get("namespace", "default")
    if _NAMESPACE.fullmatch(namespace) is None:
        raise BadOption(f"namespace: {namespace!r} is not a name: 1 to 255 of A-Z a-z 0-9 _ ~ : @ . -")
    return namespace


def _offset(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    words = {"latest": LATEST} | ({"earliest": EARLIEST} if name == "startingOffsets" else {})
    word = text.strip().lower()
    if word in words:
        return words[word]
    if re.fullmatch(r"[0-9]{1,16}", word) and int(word) <= MAX_ID:
        return int(word)
    raise BadOption(f"{name}: {text!r} is neither {' nor '.join(words)} nor an id (0 to 2^53 - 1)")


def _time(given: Mapping[str, str], name: str) -> datetime | None:
    """A time in ISO 8601 with its zone, or in milliseconds since 1970 as in the Kafka source."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        if re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
            seconds, milliseconds = divmod(int(text), 1000)
            return datetime.fromtimestamp(seconds, UTC).replace(microsecond=milliseconds * 1000)
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError, OSError):
        time = None
    if time is None or time.tzinfo is None:
        raise BadOption(
            f"{name}: {text!r} is no time; give 2026-11-20T12:00:00Z (with its zone) or milliseconds since "
            "1970"
        )
    return time.astimezone(UTC)


def _count(given: Mapping[str, str], name: str, most: int = MAX_ID) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,16}", text.strip()) and 1 <= int(text) <= most:
        return int(text)
    raise BadOption(f"{name}: {text!r} is not a whole number from 1 to {most}")


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise BadOption(f"{name}: {text!r} is neither true nor false")
