# Written by client/unasync.py from _async/subscriptions.py: change that file, and run the script.
"""Durable subscriptions on the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from gapless._calls import delivery
from gapless._calls import subscriptions as calls
from gapless._calls.delivery import Outstanding, State
from gapless._calls.subscription import Length, Subscription
from gapless._calls.subscriptions import SubscriptionOptions
from gapless._start import Start
from gapless._sync.calls import Noun


class Subscriptions(Noun):
    """The durable subscriptions of the service: `client.subscriptions`."""

    def create(
        self,
        name: str,
        channels: Sequence[str],
        *,
        start: Start | None = None,
        if_match: str | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription:
        """Creates a durable subscription to these channels or patterns, unless an equal one exists already.

        It begins at `start` (default: `latest`). `SubscriptionOptions` lists the settings. Raises `Conflict`
        if the name has another definition: change that with `update`, or replace it with its `etag` as
        `if_match`. If the `etag` is another one by now, this raises `PreconditionFailed`.
        """
        return self._call(calls.create(name, channels, start, options, if_match))

    def get(self, name: str) -> Subscription:
        """The settings in force of a subscription, and its `stats`. Raises `NotFound`."""
        return self._call(calls.get(name))

    def list(self, pattern: str | None = None, *, page_size: int = 100) -> Iterator[Subscription]:
        """The subscriptions whose names match the pattern (default: all), by name, without `stats`."""
        return self._slices(calls.listed(pattern, page_size))

    def length(self, name: str) -> Length:
        """How many messages a subscription holds, without the cost of its `stats`. Raises `NotFound`."""
        return self._call(calls.length(name))

    def look(
        self, subscription: str, state: State | None = None, *, page_size: int = 100
    ) -> Iterator[Outstanding]:
        """The messages that the subscription has not settled, by id, of one state or all. It leases nothing.

        If the subscription has an ordering, the list ends ten thousand messages beyond where it stands.
        """
        return self._slices(delivery.look(subscription, state, page_size))

    def update(
        self,
        name: str,
        *,
        channels: Sequence[str] | None = None,
        if_match: str | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription:
        """Changes the given settings; None removes a setting, so that a policy or default applies again.

        `if_match` is an `etag` that was read before: if it is another one now, raises `PreconditionFailed`.
        """
        return self._call(calls.update(name, channels, options, if_match))

    def bind(self, name: str, channels: Sequence[str], *, if_match: str | None = None) -> Subscription:
        """Adds channels or patterns, read from where the subscription is. Those bound already stay."""
        return self._call(calls.bind(name, channels, True, if_match))

    def unbind(self, name: str, channels: Sequence[str], *, if_match: str | None = None) -> Subscription:
        """Removes channels or patterns from it. Raises `InvalidRequest` if none would be left."""
        return self._call(calls.bind(name, channels, False, if_match))

    def pause(self, name: str, *, if_match: str | None = None) -> Subscription:
        """Stops handing out messages. Leases, lifetimes and dead letters go on."""
        return self._call(calls.pause(name, True, if_match))

    def resume(self, name: str, *, if_match: str | None = None) -> Subscription:
        """Hands out messages again."""
        return self._call(calls.pause(name, False, if_match))

    def seek(
        self, name: str, start: Start, *, dry_run: bool = False, if_match: str | None = None
    ) -> Subscription:
        """Moves the subscription to another place: behind an id, to a time, to `earliest` or `latest`.

        All messages in flight or waiting are forgotten: settling one returns `unknown`. Dead letters stay. A
        `dry_run` changes nothing: `stats` shows the values after the seek, `before` those of now.
        """
        return self._call(calls.seek(name, start, dry_run, if_match))

    def purge(self, name: str, *, if_match: str | None = None) -> int:
        """Removes all ready, delayed and waiting messages for good and returns how many. Leased ones stay."""
        return self._call(calls.purge(name, if_match))

    def delete(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, if_match: str | None = None
    ) -> None:
        """Removes a subscription with its messages in flight; its dead letters stay. Raises `NotFound`.

        `if_empty` raises `Conflict` if it holds messages, `if_unused` if it has members.
        """
        self._call(calls.delete(name, if_match=if_match, if_empty=if_empty, if_unused=if_unused))
