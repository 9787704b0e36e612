"""After the run, reads every channel from the start with fresh cursors, over the history endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from load.chat.follower import Crowd
from load.history import Shown, state_of
from load.wire import Connection

WAIT = 60.0
"""A channel's whole history must come within this many seconds."""


async def drain(
    crowd: Crowd, channels: list[str], connections: int, done: Callable[[], None], *, views: bool = False
) -> None:
    """Read all channels, one fresh cursor each; `done` is called after each one. `views`: read what the
    service makes of changes too.

    Raises RuntimeError if a history cannot be read in three attempts. Then there is no verdict.
    """
    waiting = iter(channels)

    async def read_some() -> None:
        connection: Connection | None = None
        for channel in waiting:
            connection, lines = await _read(crowd, channel, "log", connection)
            _take(crowd, channel, lines)
            if views:
                connection, lines = await _read(crowd, channel, "latest", connection)
                _take_view(crowd, channel, lines)
            done()
        if connection is not None:
            connection.close()

    await asyncio.gather(*(read_some() for _ in range(connections)))


async def _read(
    crowd: Crowd, channel: str, view: str, connection: Connection | None
) -> tuple[Connection, bytes]:
    """The lines of one view of a channel, and the connection for the next one."""
    path = f"/v1/channels/{channel}/messages?after=0&view={view}"
    request = crowd.target.request("GET", path, headers={"Accept": "application/x-ndjson"})
    reason = ""
    for _ in range(3):
        try:
            if connection is None or not connection.usable:
                connection = await Connection.open(crowd.target)
            answer = await connection.ask(request, WAIT)
        except OSError as error:
            reason = str(error)
            continue
        if answer.status in (200, 404):
            return connection, answer.body if answer.status == 200 else b""
        reason = f"{answer.status} {answer.body[:200]!r}"
        await asyncio.sleep(1)
    raise RuntimeError(f"the history of {channel} cannot be read: {reason}")


def _take(crowd: Crowd, channel: str, lines: bytes) -> None:
    cursor = crowd.history.cursor(f"history of {channel}", (channel,), fresh=True)
    for line in lines.splitlines():
        # The id is read without parsing, because `take` skips texts that were seen before.
        message_id = _id_of(line)
        crowd.take(cursor, message_id, line)


def _take_view(crowd: Crowd, channel: str, lines: bytes) -> None:
    shown = Shown(f"view of {channel}", (channel,), is_view=True)
    crowd.history.shown.append(shown)
    for line in lines.splitlines():
        original = msgspec.json.decode(line)
        crowd.history.show(shown, original["id"], state_of(original))


def _id_of(line: bytes) -> int:
    """The id of a message in JSON. It is usually the first member."""
    if line.startswith(b'{"id":'):
        return int(line[6 : line.index(b",")])
    return int(msgspec.json.decode(line)["id"])
