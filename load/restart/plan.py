"""The topology: two subscriptions that dead-letter into each other, and a long chain, all by
`message_ttl`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

END = "end"
CHAIN_END = "chain.end"
ENDS = (END, CHAIN_END)
"""Channels without a subscription. A message there has arrived."""

Request = tuple[str, str, dict[str, Any]]


class Variant(StrEnum):
    """Where the routes of dead letters are set."""

    OWN = "i"
    """In each subscription."""
    POLICY = "ii"
    """In policies only."""
    FILE = "iii"
    """In policies of the definitions file of the second start, which loads slowly. Until then there are no
    routes, and messages have their own ttl."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One topology, the same in each namespace. Times in seconds."""

    variant: Variant
    hops: int = 200
    ttl_s: float = 5.0
    hop_ttl_s: float = 0.05
    own_ttl_s: float = 30.0

    @property
    def names(self) -> list[str]:
        """The subscriptions."""
        return ["a", "b", *(f"hop.{n}" for n in range(self.hops))]

    def channel(self, name: str) -> str:
        """The channel of a subscription."""
        return name if name.startswith("hop.") else f"loop.{name}"

    def subscription(self, channel: str) -> str | None:
        """The subscription of a channel; None for an end."""
        return None if channel in ENDS else channel.removeprefix("loop.")

    def routes(self, name: str) -> tuple[str, ...]:
        """The channels for a subscription's dead letters: the first one, and the one after the turn, if
        any."""
        if name == "a":
            return ("loop.b",)
        if name == "b":
            return ("loop.a", END)
        n = int(name.removeprefix("hop.")) + 1
        return (f"hop.{n}" if n < self.hops else CHAIN_END,)

    def ttl(self, name: str) -> float:
        """The seconds after which a message expires in a subscription."""
        return self.hop_ttl_s if name.startswith("hop.") else self.ttl_s

    def before(self) -> list[Request]:
        """The requests that define everything before the first publish."""
        requests: list[Request] = []
        if self.variant is Variant.POLICY:
            requests = [self._policy(name, self.routes(name)[0]) for name in self.names]
        for name in self.names:
            body: dict[str, Any] = {"channels": [self.channel(name)], "start": "earliest"}
            if self.variant is not Variant.FILE:
                body["message_ttl"] = self.ttl(name)
            if self.variant is Variant.OWN:
                body["dead_letter"] = {"channel": self.routes(name)[0]}
            requests.append(("PUT", f"/v1/subscriptions/{name}", body))
        return requests

    def file(self) -> dict[str, Any] | None:
        """The definitions file that the second start finds."""
        if self.variant is not Variant.FILE:
            return None
        policies = [
            {"name": path.rpartition("/")[2], **body}
            for _, path, body in (self._policy(name, self.routes(name)[0]) for name in self.names)
        ]
        return {"version": 1, "channels": [], "subscriptions": [], "policies": policies}

    def turn(self) -> Request:
        """What opens the loop: from now on b's dead letters go to the end."""
        if self.variant is Variant.OWN:
            return "PATCH", "/v1/subscriptions/b", {"dead_letter": {"channel": END}}
        return self._policy("b", END)

    def _policy(self, name: str, route: str) -> Request:
        definition: dict[str, Any] = {"dead_letter": {"channel": route}}
        if self.variant is Variant.FILE:
            definition["message_ttl"] = self.ttl(name)
        body = {"pattern": name, "applies_to": "subscriptions", "priority": 0, "definition": definition}
        return "PUT", f"/v1/policies/{name}", body
