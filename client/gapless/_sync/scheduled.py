# Written by client/unasync.py from _async/scheduled.py: change that file, and run the script.
"""Scheduled messages on the calling thread."""

from __future__ import annotations

from collections.abc import Iterator

from gapless._calls import scheduled as calls
from gapless._calls.scheduled import Scheduled
from gapless._models import Published
from gapless._sync.calls import Noun


class ScheduledMessages(Noun):
    """The messages that are published later: `client.scheduled`. `publish` with a time makes them."""

    def list(self, channel: str | None = None, *, page_size: int = 100) -> Iterator[Scheduled]:
        """The messages that are still to be published, to one channel or to any."""
        return self._slices(calls.listed(channel, page_size))

    def get(self, scheduled_id: str | int) -> Scheduled:
        """One scheduled message. Raises `NotFound`, also if it was published."""
        return self._call(calls.get(scheduled_id))

    def promote(self, scheduled_id: str | int) -> Published:
        """Publishes a scheduled message now. Raises `NotFound`, also if it was published."""
        return self._call(calls.promote(scheduled_id))

    def cancel(self, scheduled_id: str | int) -> None:
        """Removes a scheduled message unpublished. Raises `NotFound`, also if it was published."""
        self._call(calls.cancel(scheduled_id))
