"""From the credential of a request to who asks: the one place that knows of credentials."""

from __future__ import annotations

from collections.abc import Iterable

from subscriptions.domain.errors import unauthenticated
from subscriptions.domain.principal import Principal


class Principals:
    """Says who asks. There are no credentials yet: everybody may do everything in one namespace, and each
    credential is refused with `unauthenticated`, since nothing can check it."""

    def __init__(self, namespace: str) -> None:
        self._anonymous = Principal(namespace)

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """Who sends these headers (names in lower case)."""
        if b"authorization" in [name for name, _ in headers]:
            raise unauthenticated("the header Authorization")
        return self._anonymous

    def with_ticket(self, ticket: str) -> Principal:
        """Who was given this ticket."""
        raise unauthenticated("the ticket")
