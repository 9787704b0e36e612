"""Credentials that end while streams are open, against a real service: the next one goes on without a gap."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httpx
import pytest
from gapless import AsyncClient, Client, CredentialExpired, Forbidden, LeaseLost, Ticket, Unauthenticated

from tests.client.over_websocket import MakeClient
from tests.conftest import Serve
from tests.patience import PATIENCE_S

ALL = ["publish", "subscribe", "consume", "manage", "admin"]
EVERYTHING = [{"actions": ALL, "channels": [">"], "subscriptions": [">"]}]
CHAT = [{"actions": ["subscribe", "consume"], "channels": ["chat.>"], "subscriptions": ["chat.>"]}]


class Keys:
    """API keys of one program. The token of its client is the last one made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._by: dict[str, str] = {}
        self._by = {"authorization": f"Bearer {self._made(EVERYTHING)['key']}"}
        self._last = self._made(CHAT)

    def __call__(self) -> str:
        key: str = self._last["key"]
        return key

    def renew(self) -> None:
        """Make the next one, and revoke the one in use."""
        before, self._last = self._last, self._made(CHAT)
        self.ask("DELETE", f"/v1/keys/{before['id']}")

    def revoke(self) -> None:
        self.ask("DELETE", f"/v1/keys/{self._last['id']}")

    def publish(self, number: int) -> None:
        self.ask("POST", "/v1/channels/chat.a/messages", json={"data": number})

    def ask(self, method: str, path: str, **more: Any) -> Any:
        answer = httpx.request(method, self._url + path, headers=self._by, timeout=PATIENCE_S, **more)
        return answer.raise_for_status().json() if answer.content else None

    def _made(self, grants: Any) -> Any:
        return self.ask("POST", "/v1/keys", json={"name": "one", "grants": grants})


def test_streams_and_consumers_go_on_with_the_next_key(serve: Serve, make_client: MakeClient) -> None:
    url = serve().url
    keys = Keys(url)
    keys.ask("PUT", "/v1/subscriptions/chat.q", json={"channels": ["chat.>"]})
    read: list[int] = []
    consumed: set[int] = set()
    with (
        make_client(url, token=keys) as client,
        client.subscribe("chat.a", start="earliest") as stream,
        client.consume("chat.q", prefetch=1) as consumer,
    ):
        for number in range(0, 12, 3):
            keys.publish(number)
            read.append(next(stream).data)
            keys.publish(number + 1)
            keys.renew()
            keys.publish(number + 2)
            read += [next(stream).data for _ in range(2)]
            while len(consumed) < number + 3:
                # What is leased when the credential ends is given back, and comes again.
                with suppress(LeaseLost), next(consumer) as delivery:
                    consumed.add(delivery.message.data)
    assert (read, consumed) == (list(range(12)), set(range(12)))


def test_a_fixed_key_that_is_revoked_ends_the_stream(serve: Serve, make_client: MakeClient) -> None:
    url = serve().url
    keys = Keys(url)
    keys.ask("PUT", "/v1/subscriptions/chat.q", json={"channels": ["chat.>"]})
    with (
        make_client(url, token=keys()) as client,
        client.subscribe("chat.a", start="earliest") as stream,
        client.consume("chat.q") as consumer,
    ):
        keys.publish(1)
        assert next(stream).data == 1
        assert next(consumer).message.data == 1
        keys.revoke()
        with pytest.raises(CredentialExpired):
            next(stream)
        with pytest.raises(Unauthenticated):
            next(consumer)
        with pytest.raises(Unauthenticated), client.subscribe("chat.a") as again:
            next(again)


async def test_a_ticket_opens_one_stream(serve: Serve) -> None:
    url = serve().url
    keys = Keys(url)
    keys.publish(1)
    with Client(url, token=keys) as client:
        tickets = [client.ticket(channels=["chat.a"]), client.ticket(subscription="chat.q"), client.ticket()]
        with pytest.raises(Forbidden):
            client.ticket(channels=["other"])
        with pytest.raises(ValueError, match="a list of names"):
            client.ticket(channels="chat.a")
    async with AsyncClient(url, token=keys) as client:
        tickets.append(await client.ticket(channels=["chat.>"]))
    assert len({ticket.ticket for ticket in tickets}) == 4
    for ticket in (tickets[0], tickets[2], tickets[3]):
        assert isinstance(ticket, Ticket)
        assert ticket.ticket not in repr(ticket)
        query = {"channel": "chat.a", "from": "earliest", "ticket": ticket.ticket}
        with httpx.stream("GET", f"{url}/v1/subscribe", params=query, timeout=PATIENCE_S) as opened:
            assert opened.status_code == 200
