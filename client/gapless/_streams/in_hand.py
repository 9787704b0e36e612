"""The properties of a delivery in hand, the same on both faces."""

from __future__ import annotations

from datetime import datetime

from gapless._errors import GaplessError, LeaseLost
from gapless._models import Message
from gapless._streams.leases import Lease


class InHand:
    """One message leased to a consumer."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __repr__(self) -> str:
        state = "lost" if self.lost else "settled" if self._lease.settled else "in hand"
        what = f"{self.subscription} {self.message.id}, attempt {self.attempt}"
        return f"<{type(self).__name__} {what}, {state}>"

    @property
    def message(self) -> Message:
        """The delivered message."""
        return self._lease.delivery.message

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._lease.delivery.subscription

    @property
    def receipt(self) -> str:
        """The text by which the service knows the lease."""
        return self._lease.receipt

    @property
    def attempt(self) -> int:
        """How often the message was handed out, this time included."""
        return self._lease.delivery.attempt

    @property
    def deadline(self) -> datetime:
        """When the lease ends, by the service's clock, unless it is extended."""
        return self._lease.deadline

    @property
    def lost(self) -> bool:
        """Whether the message is or will be handed out again, so that further work on it is useless."""
        return self._lease.lost

    def _raise_lost(self, cause: GaplessError | None) -> None:
        if self.lost:
            text = f"the lease of message {self.message.id} of {self.subscription} ended before it was acked"
            raise LeaseLost(text, receipt=self.receipt) from cause
