"""A function that gives the token may fail. What is in hand meanwhile must not be lost for it, nor hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from gapless import AsyncClient, Client, RetryPolicy

from tests.client.queue_server import QueueServer, giving
from tests.client.raw_server import RawServer
from tests.patience import PATIENCE_S

ONE_TRY = RetryPolicy(attempts=1)


class Vault:
    """Gives a token, unless it is sealed."""

    def __init__(self) -> None:
        self.sealed = False
        self.refused = threading.Event()

    def __call__(self) -> str:
        if self.sealed:
            self.refused.set()
            raise PermissionError("the vault is sealed")
        return "secret"


@pytest.fixture
def server(raw_server: RawServer) -> QueueServer:
    return QueueServer(raw_server)


@pytest.fixture
def vault() -> Vault:
    return Vault()


def client_of(server: QueueServer, vault: Vault) -> AsyncClient:
    return AsyncClient(server.url, token=vault, timeout=PATIENCE_S, retry=ONE_TRY)


@pytest.fixture
def blocking(server: QueueServer, vault: Vault) -> Iterator[Client]:
    with Client(server.url, token=vault, timeout=PATIENCE_S, retry=ONE_TRY) as client:
        yield client


async def test_a_lease_is_extended_once_there_is_a_token_again(server: QueueServer, vault: Vault) -> None:
    server.streams = [giving(1, lease_seconds=0.6)]
    async with (
        client_of(server, vault) as client,
        client.consume("q") as consumer,
        await anext(consumer),
    ):
        vault.sealed = True
        assert await asyncio.to_thread(vault.refused.wait, PATIENCE_S)
        vault.sealed = False
        await asyncio.to_thread(server.wait_for, lambda: bool(server.receipts("extend")))
    assert server.receipts("ack") == ["r-1-1"]


def test_a_lease_is_extended_on_a_thread_once_there_is_a_token_again(
    server: QueueServer, vault: Vault, blocking: Client
) -> None:
    server.streams = [giving(1, lease_seconds=0.6)]
    with blocking.consume("q") as consumer, next(consumer):
        vault.sealed = True
        assert vault.refused.wait(PATIENCE_S)
        vault.sealed = False
        server.wait_for(lambda: bool(server.receipts("extend")))
    assert server.receipts("ack") == ["r-1-1"]


async def test_who_acks_hears_of_it(server: QueueServer, vault: Vault) -> None:
    server.streams = [giving(1, 2)]
    async with client_of(server, vault) as client, client.consume("q") as consumer:
        found = [await anext(consumer) for _ in range(2)]
        vault.sealed = True
        errors = await asyncio.gather(*(one.ack() for one in found), return_exceptions=True)
        vault.sealed = False
    assert [type(error) for error in errors] == [PermissionError, PermissionError]


def test_who_acks_on_a_thread_hears_of_it(server: QueueServer, vault: Vault, blocking: Client) -> None:
    server.streams = [giving(1)]
    with blocking.consume("q") as consumer:
        delivery = next(consumer)
        vault.sealed = True
        with pytest.raises(PermissionError):
            delivery.ack()
        vault.sealed = False
        assert delivery.ack().status == "acked"


async def test_it_does_not_hide_what_went_wrong_before(server: QueueServer, vault: Vault) -> None:
    server.streams = [giving(1)]
    async with client_of(server, vault) as client, client.consume("q") as consumer:
        delivery = await anext(consumer)

        async def fail() -> None:
            async with delivery:
                vault.sealed = True
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        vault.sealed = False
    assert delivery.lost


def test_a_message_broken_off_without_a_token_is_not_waited_for(
    server: QueueServer, vault: Vault, blocking: Client
) -> None:
    """The thread that gives it back goes on, and closing has nothing to wait for."""
    server.streams = [giving(1, 2, lease_seconds=0.6)]
    with blocking.consume("q") as consumer:
        first, second = next(consumer), next(consumer)
        vault.sealed = True
        with pytest.raises(KeyboardInterrupt), first:
            raise KeyboardInterrupt
        assert vault.refused.wait(PATIENCE_S)
        vault.sealed = False
        with second:
            server.wait_for(lambda: "r-2-1" in server.receipts("extend"))
    assert server.receipts("ack") == ["r-2-1"]
