"""Ports for definitions: subscriptions and policies."""

from __future__ import annotations

from typing import Protocol

from subscriptions.domain.delivery import (
    Change,
    Definition,
    Definitions,
    Length,
    Policy,
    Settings,
    Stats,
    Subscription,
    Tags,
)


class SubscriptionPort(Protocol):
    """Durable subscriptions as definitions. Every method raises GaplessError: `unavailable`, and
    `subscription_not_found` if the subscription that it names does not exist."""

    async def put(
        self, namespace: str, definition: Definition, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[Subscription, bool]:
        """Create the subscription, or find the same definition there; True if it was created. Raises
        `conflict` when another definition has the name. With `if_match`, a definition with one of these tags
        is replaced; any other one raises `precondition_failed`, here and below. With `if_absent`, any
        definition that exists raises it."""
        ...

    async def get(self, namespace: str, name: str, *, stats: bool) -> Subscription: ...

    async def page(
        self, namespace: str, pattern_regex: str | None, after: str, limit: int
    ) -> list[Subscription]:
        """Subscriptions with names after `after`, in order of names, without stats."""
        ...

    async def patch(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...] | None,
        settings: Settings,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        """Change only the settings named; one that is None is cleared."""
        ...

    async def bind(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...],
        bound: bool,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        """Add these channels or patterns to those it reads (`bound`), or remove them. A channel that is
        already there, or already removed, changes nothing. Raises `invalid_request` if none or too many would
        be left."""
        ...

    async def delete(
        self,
        namespace: str,
        name: str,
        *,
        if_match: Tags | None = None,
        if_empty: bool = False,
        if_unused: bool = False,
    ) -> None:
        """Delete the subscription. Raises `conflict` with `if_empty` if it holds messages that are not
        settled, and with `if_unused` if it has members."""
        ...

    async def purge(
        self, namespace: str, name: str, settled: int | None, *, if_match: Tags | None = None
    ) -> int:
        """Remove messages that are ready, delayed or waiting, up to the id `settled`; returns how many. It
        takes several transactions: if one fails, the earlier ones stay done. A seek in between ends it; with
        `if_match`, so does a change of the definition."""
        ...

    async def length(self, namespace: str, name: str) -> Length:
        """How many messages it holds, at a bounded cost."""
        ...

    async def seek(self, namespace: str, name: str, to: str, *, if_match: Tags | None = None) -> Subscription:
        """Move the frontier; `to` is as in `Definition.start`. All that is leased, delayed or waiting is
        forgotten."""
        ...

    async def try_seek(
        self, namespace: str, name: str, to: str, *, if_match: Tags | None = None
    ) -> tuple[Subscription, Stats | None]:
        """The result that a seek would have; changes nothing. Returns the subscription with the stats it
        would have, and the stats it has now (None: it has no progress)."""
        ...

    async def pause(
        self, namespace: str, name: str, paused: bool, *, if_match: Tags | None = None
    ) -> Subscription: ...

    async def pause_pushed(self, namespace: str, name: str, url: str) -> bool:
        """Pause the subscription if it is pushed to `url` at this moment; returns whether it is."""
        ...


class PolicyPort(Protocol):
    """Policies and the definitions of a namespace. Methods raise `unavailable`, `not_found`."""

    async def put(
        self, namespace: str, policy: Policy, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[bool, str]:
        """Create or replace the policy; returns whether it was created, and its tag. It is in force for every
        decision after this returns. Raises `precondition_failed` if it has none of the tags in `if_match`, or
        if it exists with `if_absent`."""
        ...

    async def get(self, namespace: str, name: str) -> Policy: ...

    async def all(self, namespace: str) -> list[Policy]: ...

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None: ...

    async def definitions(self, namespace: str) -> Definitions:
        """All definitions, from one snapshot."""
        ...

    async def apply(
        self, namespace: str, wanted: Definitions, *, dry_run: bool, if_match: Tags | None = None
    ) -> tuple[list[Change], int]:
        """Add and change definitions until they are as wanted. Returns the changes, and how many definitions
        were already so. Either all is done or nothing; a dry run only returns the changes."""
        ...
