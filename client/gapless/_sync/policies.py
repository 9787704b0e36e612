# Written by client/unasync.py from _async/policies.py: change that file, and run the script.
"""Policies on the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gapless._calls import policies as calls
from gapless._calls.policies import AppliesTo, Policy
from gapless._sync.calls import Noun


class Policies(Noun):
    """The settings that hold for all matching channels or subscriptions: `client.policies`."""

    def put(
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
        return self._call(calls.put(name, pattern, applies_to, definition, priority, if_match))

    def get(self, name: str) -> Policy:
        """One policy. Raises `NotFound`."""
        return self._call(calls.get(name))

    def list(self) -> Iterator[Policy]:
        """All policies, by name."""
        return self._slices(calls.listed())

    def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Removes a policy; this takes effect at once. Raises `NotFound`."""
        self._call(calls.delete(name, if_match))
