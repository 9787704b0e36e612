# Written by client/unasync.py from _async/manage.py: change that file, and run the script.
"""The part of the blocking face that manages subscriptions, dead letters, policies and scheduled messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from gapless._calls import dead_letters as _dead_letters
from gapless._calls import policies as _policies
from gapless._calls import scheduled as _scheduled
from gapless._calls import subscriptions as _subscriptions
from gapless._calls.dead_letters import DeadLetter, DeadLetterOptions, ReplayCounts, Replayed
from gapless._calls.policies import AppliesTo, Definitions, Exported, Imported, Policy
from gapless._calls.scheduled import Scheduled
from gapless._calls.subscription import Length, Start, Subscription
from gapless._calls.subscriptions import SubscriptionOptions
from gapless._models import Published
from gapless._sync.calls import Calls


class Manage(Calls):
    """Methods for subscriptions, dead letters, policies, definitions and scheduled messages."""

    def create_subscription(
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
        if the name has another definition: change that with `update_subscription`, or replace it with its
        `etag` as `if_match`. If the `etag` is another one by now, this raises `PreconditionFailed`.
        """
        return self._call(_subscriptions.create(name, channels, start, options, if_match))

    def get_subscription(self, name: str) -> Subscription:
        """The settings in force of a subscription, and its `stats`. Raises `NotFound`."""
        return self._call(_subscriptions.get(name))

    def subscription_length(self, name: str) -> Length:
        """How many messages a subscription holds, without the cost of its `stats`. Raises `NotFound`."""
        return self._call(_subscriptions.length(name))

    def list_subscriptions(
        self, pattern: str | None = None, *, page_size: int = 100
    ) -> Iterator[Subscription]:
        """The subscriptions whose names match the pattern (default: all), by name, without `stats`."""
        return self._slices(_subscriptions.listed(pattern, page_size))

    def update_subscription(
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
        return self._call(_subscriptions.update(name, channels, options, if_match))

    def bind(self, name: str, channels: Sequence[str], *, if_match: str | None = None) -> Subscription:
        """Adds channels or patterns, read from where the subscription is. Those bound already stay."""
        return self._call(_subscriptions.bind(name, channels, True, if_match))

    def unbind(self, name: str, channels: Sequence[str], *, if_match: str | None = None) -> Subscription:
        """Removes channels or patterns from it. Raises `InvalidRequest` if none would be left."""
        return self._call(_subscriptions.bind(name, channels, False, if_match))

    def delete_subscription(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, if_match: str | None = None
    ) -> None:
        """Removes a subscription with its messages in flight; its dead letters stay. Raises `NotFound`.

        `if_empty` raises `Conflict` if it holds messages, `if_unused` if it has members.
        """
        self._call(_subscriptions.delete(name, if_match=if_match, if_empty=if_empty, if_unused=if_unused))

    def purge(self, name: str, *, if_match: str | None = None) -> int:
        """Removes all ready, delayed and waiting messages for good and returns how many. Leased ones stay."""
        return self._call(_subscriptions.purge(name, if_match))

    def seek(
        self, name: str, to: Start, *, dry_run: bool = False, if_match: str | None = None
    ) -> Subscription:
        """Moves the subscription to another place: behind an id, to a time, to `earliest` or `latest`.

        All messages in flight or waiting are forgotten: settling one returns `unknown`. Dead letters stay. A
        `dry_run` changes nothing: `stats` shows the values after the seek, `before` those of now.
        """
        return self._call(_subscriptions.seek(name, to, dry_run, if_match))

    def pause(self, name: str, *, if_match: str | None = None) -> Subscription:
        """Stops handing out messages. Leases, lifetimes and dead letters go on."""
        return self._call(_subscriptions.pause(name, True, if_match))

    def resume(self, name: str, *, if_match: str | None = None) -> Subscription:
        """Hands out messages again."""
        return self._call(_subscriptions.pause(name, False, if_match))

    def dead_letters(
        self, *, page_size: int = 100, **which: Unpack[DeadLetterOptions]
    ) -> Iterator[DeadLetter]:
        """The dead letters, oldest first: all of them, or those of one subscription, channel or reason."""
        return self._slices(_dead_letters.dead_letters(which, page_size))

    def dead_letter(self, entry_id: int) -> DeadLetter:
        """One dead letter. Raises `NotFound`."""
        return self._call(_dead_letters.dead_letter(entry_id))

    def replay(self, entry_id: int) -> Replayed:
        """Gives the message back to the subscription that failed it; its attempts count from zero again.

        Of two replays of one entry, one succeeds and the other raises `NotFound`. It also raises `NotFound`
        if the subscription is gone.
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
        """Replays all dead letters that match, or up to 1000 by `ids`; without a choice, all there are.

        It replays at most `count`, the oldest first. With a `rate` they become due one after the other, that
        many a second, whether or not a member is there. A `dry_run` only counts.
        """
        return self._call(_dead_letters.replay_all(which, ids, count, rate, dry_run))

    def delete_dead_letter(self, entry_id: int) -> None:
        """Removes an entry and its copy of the message, for good. Raises `NotFound`."""
        self._call(_dead_letters.delete(entry_id))

    def purge_dead_letters(
        self, older_than: float | str | datetime, **which: Unpack[DeadLetterOptions]
    ) -> int:
        """Removes all that match and are older, for good; returns how many. An age is seconds or as `7d`."""
        return self._call(_dead_letters.purge(older_than, which))

    def put_policy(
        self,
        name: str,
        pattern: str,
        applies_to: AppliesTo,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
        if_match: str | None = None,
    ) -> Policy:
        """Creates or replaces a policy: settings for all matching channels or subscriptions, valid at once.

        `if_match` replaces only a policy that has this `etag`, else raises `PreconditionFailed`. The same
        holds for the methods below.
        """
        return self._call(_policies.put(name, pattern, applies_to, definition, priority, if_match))

    def policies(self) -> list[Policy]:
        """All policies, by name."""
        return self._call(_policies.listed())

    def get_policy(self, name: str) -> Policy:
        """One policy. Raises `NotFound`."""
        return self._call(_policies.get(name))

    def delete_policy(self, name: str, *, if_match: str | None = None) -> None:
        """Removes a policy; this takes effect at once. Raises `NotFound`."""
        self._call(_policies.delete(name, if_match))

    def export_definitions(self) -> Exported:
        """All definitions as the document that `import_definitions` takes; secrets are left out.

        The document is a dict; its `etag` is for `if_match`.
        """
        return self._call(_policies.export())

    def import_definitions(
        self, document: Definitions, *, dry_run: bool = False, if_match: str | None = None
    ) -> Imported:
        """Adds and changes definitions until they match the document, all or nothing; it removes none.

        A `dry_run` only reports the changes. A retry after a lost answer finds them made already.
        """
        return self._call(_policies.import_(document, dry_run, if_match))

    def scheduled(self, channel: str | None = None, *, page_size: int = 100) -> Iterator[Scheduled]:
        """The messages that are still to be published, to one channel or to any."""
        return self._slices(_scheduled.listed(channel, page_size))

    def get_scheduled(self, scheduled_id: str | int) -> Scheduled:
        """One scheduled message. Raises `NotFound`, also if it was published."""
        return self._call(_scheduled.get(scheduled_id))

    def cancel_scheduled(self, scheduled_id: str | int) -> None:
        """Removes a scheduled message unpublished. Raises `NotFound`, also if it was published."""
        self._call(_scheduled.cancel(scheduled_id))

    def promote_scheduled(self, scheduled_id: str | int) -> Published:
        """Publishes a scheduled message now. Raises `NotFound`, also if it was published."""
        return self._call(_scheduled.promote(scheduled_id))
