"""Ports for adding to the log, at once, later, or together with acks, and for hints to other processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from subscriptions.domain.delivery import (
    Moment,
    Receipt,
    Scheduled,
    Touched,
)
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.domain.principal import Principal


class AppendPort(Protocol):
    """One connection that appends."""

    async def append(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        """Commit a batch in one transaction; one answer for each request, in order.

        Raises GaplessError `unavailable` when the whole batch fails.
        """
        ...


class TransactionPort(Protocol):
    """Publishes and settles in one transaction."""

    async def transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        """Either all of it happens or nothing. `places` names each receipt for the caller. Raises
        `transaction_conflict` when a receipt holds no lease, and the errors that `AppendPort.append` answers
        for one request."""
        ...


class SchedulePort(Protocol):
    """Messages to be published later. Methods raise `unavailable`, `message_not_found`."""

    async def schedule(
        self,
        namespace: str,
        messages: Sequence[NewMessage],
        moments: Sequence[Moment],
        idempotency_key: str | None,
        fingerprint: bytes,
        by: Principal | None = None,
    ) -> tuple[list[Scheduled], bool]:
        """Store messages for one channel, all or none, each with its moment. Also returns whether an earlier
        request with this key stored them. A message whose credential has ended when it is due is withheld,
        and so is a change that is refused then. Raises `idempotency_mismatch`."""
        ...

    async def get(self, namespace: str, scheduled_id: int) -> Scheduled: ...

    async def page(
        self, namespace: str, channel: str | None, after: int, limit: int, names_regex: str | None = None
    ) -> list[Scheduled]:
        """What is scheduled with ids after `after`, in order of ids; only for channels of such names."""
        ...

    async def cancel(self, namespace: str, scheduled_id: int) -> None: ...

    async def promote(self, namespace: str, scheduled_id: int) -> tuple[Appended, tuple[Touched, ...]]:
        """Publish it now. Raises as `AppendPort.append` answers where it changes a message, and it stays."""
        ...

    async def publish_due(self, namespaces: Collection[str], limit: int) -> tuple[int, tuple[Touched, ...]]:
        """Publish the messages due in these namespaces, at most `limit`, in the order of `deliver_at`.
        Returns how many these were, with those that are withheld."""
        ...


class HintBus(Protocol):
    """Carries hints between processes. It may lose, double and reorder them; it never blocks a publisher."""

    @property
    def connected(self) -> bool:
        """Whether hints of other processes can arrive now."""
        ...

    @property
    def alone(self) -> bool:
        """Whether no other process listened a moment ago: then it is not worth making a hint."""
        ...

    async def run(self) -> None:
        """Send and listen until cancelled."""
        ...

    async def send_to(self, node: str, make: Callable[[], bytes]) -> bool:
        """Send what `make` returns to the process of this name, behind what was sent before; returns whether
        that process listens. If it does not, `make` is never called. Raises `unavailable`: then it may have
        got the payload or not. Nothing that is sent so displaces what `send` queued."""
        ...

    def send(self, payload: bytes) -> None:
        """Queue a payload for sending; the oldest is dropped when the queue is full."""
        ...
