"""The part of the blocking face that keeps subscriptions, dead letters, policies and scheduled messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from gapless import _dead_letters, _policies, _scheduled, _subscriptions
from gapless._dead_letters import DeadLetter, DeadLetterOptions, ReplayCounts, Replayed
from gapless._models import Published
from gapless._policies import AppliesTo, Definitions, Imported, Policy
from gapless._scheduled import Scheduled
from gapless._subscription import Length, Start, Subscription
from gapless._subscriptions import SubscriptionOptions
from gapless._sync_calls import SyncCalls


class SyncManage(SyncCalls):
    """What is defined on the service, and what it keeps beside the log."""

    def create_subscription(
        self,
        name: str,
        channels: Sequence[str],
        *,
        start: Start | None = None,
        if_match: str | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription:
        """Makes a durable subscription to these channels or patterns, or finds the same one there.

        It begins at `start` (`latest` when left out). Settings are those of `SubscriptionOptions`. Raises
        `Conflict` when another definition has the name: `update_subscription` changes that, and `if_match`
        with its `etag` replaces it, or raises `PreconditionFailed` where it has another by now.
        """
        return self._call(_subscriptions.create(name, channels, start, options, if_match))

    def get_subscription(self, name: str) -> Subscription:
        """Its settings in force, and in `stats` where it stands. Raises `NotFound`."""
        return self._call(_subscriptions.get(name))

    def subscription_length(self, name: str) -> Length:
        """How many messages it holds, without the cost of its `stats`. Raises `NotFound`."""
        return self._call(_subscriptions.length(name))

    def list_subscriptions(
        self, pattern: str | None = None, *, page_size: int = 100
    ) -> Iterator[Subscription]:
        """The subscriptions whose names match the pattern, by name, without `stats`; all without one."""
        return self._slices(_subscriptions.listed(pattern, page_size))

    def update_subscription(
        self,
        name: str,
        *,
        channels: Sequence[str] | None = None,
        if_match: str | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription:
        """Changes the settings given; None takes one away, so that a policy or default applies again.

        With `if_match`, an `etag` that was read, only what is still that: else raises `PreconditionFailed`.
        """
        return self._call(_subscriptions.update(name, channels, options, if_match))

    def bind(self, name: str, channels: Sequence[str], *, if_match: str | None = None) -> Subscription:
        """Reads these channels or patterns too, from where the subscription is. Those bound already stay."""
        return self._call(_subscriptions.bind(name, channels, True, if_match))

    def unbind(self, name: str, channels: Sequence[str], *, if_match: str | None = None) -> Subscription:
        """Reads these channels or patterns no more. Raises `InvalidRequest` where none would be left."""
        return self._call(_subscriptions.bind(name, channels, False, if_match))

    def delete_subscription(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, if_match: str | None = None
    ) -> None:
        """Removes a subscription and what is in flight of it; its dead letters stay. Raises `NotFound`.

        With `if_empty` raises `Conflict` where it holds messages, with `if_unused` where it has members.
        """
        self._call(_subscriptions.delete(name, if_match=if_match, if_empty=if_empty, if_unused=if_unused))

    def purge(self, name: str) -> int:
        """Removes what is ready, delayed or waiting, for good; how many. What is in flight stays."""
        return self._call(_subscriptions.purge(name))

    def seek(self, name: str, to: Start, *, dry_run: bool = False) -> Subscription:
        """Goes on from another place: behind an id, at a time, at `earliest` or `latest`.

        All that is in flight or waiting is forgotten: settling it gives `unknown`. Dead letters stay. A
        `dry_run` changes nothing: `stats` are what they would be, and `before` what they are.
        """
        return self._call(_subscriptions.seek(name, to, dry_run))

    def pause(self, name: str) -> Subscription:
        """Stops handing out messages. Leases, lifetimes and dead letters go on."""
        return self._call(_subscriptions.pause(name, True))

    def resume(self, name: str) -> Subscription:
        """Hands out messages again."""
        return self._call(_subscriptions.pause(name, False))

    def dead_letters(
        self, *, page_size: int = 100, **which: Unpack[DeadLetterOptions]
    ) -> Iterator[DeadLetter]:
        """The messages subscriptions gave up on, oldest first: of one subscription, channel or reason."""
        return self._slices(_dead_letters.dead_letters(which, page_size))

    def dead_letter(self, entry_id: int) -> DeadLetter:
        """One of them. Raises `NotFound`."""
        return self._call(_dead_letters.dead_letter(entry_id))

    def replay(self, entry_id: int) -> Replayed:
        """Gives the message back to the subscription that failed it, attempts counted from anew.

        Of two replays of one entry one wins, the other raises `NotFound`, as when the subscription is gone.
        """
        return self._call(_dead_letters.replay(entry_id))

    def replay_all(
        self,
        *,
        ids: Iterable[int] | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        **which: Unpack[DeadLetterOptions],
    ) -> ReplayCounts:
        """The same for all that match, or those of up to 1000 `ids`; without any, for all there are.

        Of them at most `count`, the oldest first. With a `rate` they become due one after the other, so many
        a second, whoever is there then. A `dry_run` only counts.
        """
        return self._call(_dead_letters.replay_all(which, ids, count, rate, dry_run))

    def delete_dead_letter(self, entry_id: int) -> None:
        """Removes an entry and its copy of the message, for good. Raises `NotFound`."""
        self._call(_dead_letters.delete(entry_id))

    def purge_dead_letters(
        self, older_than: float | str | datetime, **which: Unpack[DeadLetterOptions]
    ) -> int:
        """Removes all that match and are older, for good; how many. An age is seconds or such as `7d`."""
        return self._call(_dead_letters.purge(older_than, which))

    def put_policy(
        self,
        name: str,
        pattern: str,
        applies_to: AppliesTo,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
    ) -> Policy:
        """Makes or replaces the settings for all matching channels or subscriptions, in force at once."""
        return self._call(_policies.put(name, pattern, applies_to, definition, priority))

    def policies(self) -> list[Policy]:
        """All policies, by name."""
        return self._call(_policies.listed())

    def get_policy(self, name: str) -> Policy:
        """One policy. Raises `NotFound`."""
        return self._call(_policies.get(name))

    def delete_policy(self, name: str) -> None:
        """Removes a policy, effective at once. Raises `NotFound`."""
        self._call(_policies.delete(name))

    def export_definitions(self) -> dict[str, Any]:
        """All that was defined, as the document that `import_definitions` takes; secrets are left out."""
        return self._call(_policies.export())

    def import_definitions(self, document: Definitions, *, dry_run: bool = False) -> Imported:
        """Adds and changes, never removes, until all of the document is there: all or nothing.

        A `dry_run` only says what it would do. Tried again after a lost answer, it finds its own work done.
        """
        return self._call(_policies.import_(document, dry_run))

    def scheduled(self, channel: str | None = None, *, page_size: int = 100) -> Iterator[Scheduled]:
        """The messages that are still to be published, to one channel or all."""
        return self._slices(_scheduled.listed(channel, page_size))

    def get_scheduled(self, scheduled_id: str | int) -> Scheduled:
        """One of them. Raises `NotFound`, also when it was published."""
        return self._call(_scheduled.get(scheduled_id))

    def cancel_scheduled(self, scheduled_id: str | int) -> None:
        """Removes it unpublished. Raises `NotFound`, also when it was published."""
        self._call(_scheduled.cancel(scheduled_id))

    def promote_scheduled(self, scheduled_id: str | int) -> Published:
        """Publishes it now. Raises `NotFound`, also when it was published."""
        return self._call(_scheduled.promote(scheduled_id))
