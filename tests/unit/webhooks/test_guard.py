"""What is connected to is what was checked."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable

import httpcore
import pytest

from app.faces.webhooks.guard import LOOKUP_THREADS, Guard, SystemLookup, UnreachableError
from load.relay import listening
from tests.patience import PATIENCE_S, eventually, in_time

INSIDE = (
    "127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 ::1 :: fe80::1%eth0 fc00::1 ff02::1"
    " 2001:db8::1 ::ffff:a00:1 ::ffff:808:808 64:ff9b::a00:1 2002:a00:1::"
)


class Names:
    """A resolver that gives one answer after another and counts how often it is asked."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self._answers = list(answers)

    async def __call__(self, host: str, port: int) -> list[str]:
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    @property
    def left(self) -> int:
        return len(self._answers)


class Internet(httpcore.AsyncNetworkBackend):
    """Notes who is to be connected to; those that are down refuse."""

    def __init__(self, *down: str) -> None:
        self.asked: list[tuple[str, int, float | None]] = []
        self._down = down

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.asked.append((host, port, timeout))
        if host in self._down:
            raise httpcore.ConnectError
        return httpcore.AsyncMockStream([])


async def test_the_checked_address_is_connected_to_and_the_name_asked_once() -> None:
    names, internet = Names(["8.8.8.8"], ["127.0.0.1"]), Internet()
    await Guard(False, names, internet).connect_tcp("a.example", 443, timeout=3)
    assert internet.asked == [("8.8.8.8", 443, 3)]
    assert names.left == 1


async def test_a_name_that_turns_inward_is_refused_at_its_next_connection() -> None:
    internet = Internet()
    guard = Guard(False, Names(["8.8.8.8"], ["127.0.0.1"]), internet)
    await guard.connect_tcp("a.example", 443)
    with pytest.raises(UnreachableError, match="private, local or reserved"):
        await guard.connect_tcp("a.example", 443)
    assert [host for host, *_ in internet.asked] == ["8.8.8.8"]


@pytest.mark.parametrize("inside", INSIDE.split())
async def test_one_address_inside_refuses_all(inside: str) -> None:
    internet = Internet()
    for answer in (
        ["8.8.8.8", inside],
        [inside, "2600::1"],
        ["8.8.8.8", "1.1.1.1", "8.8.4.4", "1.0.0.1", inside],
    ):
        with pytest.raises(UnreachableError) as refused:
            await Guard(False, Names(answer), internet).connect_tcp("a.example", 80)
        assert inside not in str(refused.value)
        assert await Guard(True, Names(answer), internet).resolve("a.example", 80) == answer[:4]
    assert not internet.asked


async def test_addresses_are_tried_one_after_another_in_a_share_of_the_time() -> None:
    internet = Internet("2600::1")
    await Guard(False, Names(["2600::1", "8.8.8.8"]), internet).connect_tcp("a.example", 80, timeout=4)
    assert internet.asked == [("2600::1", 80, 2), ("8.8.8.8", 80, 2)]


async def test_the_last_refusal_is_told() -> None:
    guard = Guard(False, Names(["8.8.4.4", "8.8.8.8"]), Internet("8.8.4.4", "8.8.8.8"))
    with pytest.raises(httpcore.ConnectError):
        await guard.connect_tcp("a.example", 80)


@pytest.mark.parametrize("answer", [[], OSError("no such host")])
async def test_a_name_without_addresses_is_refused(answer: list[str] | OSError) -> None:
    with pytest.raises(UnreachableError, match="its host name"):
        await Guard(False, Names(answer), Internet()).connect_tcp("a.example", 80)


async def test_the_systems_resolver_is_asked_as_it_is() -> None:
    lookup = SystemLookup()
    try:
        assert set(await lookup("localhost", 80)) <= {"127.0.0.1", "::1"}
        assert await lookup("127.1", 80) == ["127.0.0.1"]
        assert await lookup("::1", 80) == ["::1"]
        with pytest.raises(UnreachableError):
            await Guard(False, lookup).resolve("0x7f.1", 80)
        with pytest.raises(UnreachableError):
            await Guard(False, lookup).resolve("a..b", 80)
    finally:
        lookup.close()


async def test_names_that_are_never_found_hold_up_no_name_that_was(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = threading.Event(), list[str]()

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host.startswith("slow"):
            assert answer.wait(PATIENCE_S)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    lookup = SystemLookup()
    try:
        assert await lookup("good.example", 80) == ["127.0.0.1"]
        slow = [asyncio.create_task(lookup(f"slow{n % 40}.example", 80)) for n in range(80)]
        await eventually(lambda: len(asked) == 1 + LOOKUP_THREADS // 2)
        slow[0].cancel()
        assert await lookup("good.example", 80) == ["127.0.0.1"]
        again = asyncio.create_task(lookup("slow0.example", 80))
        await asyncio.sleep(0)
        answer.set()
        assert await again == ["127.0.0.1"]
        await asyncio.gather(*slow, return_exceptions=True)
        assert sorted(asked) == sorted(["good.example"] * 2 + [f"slow{n}.example" for n in range(40)])
    finally:
        answer.set()
        lookup.close()


async def test_a_handshake_that_is_cut_off_closes_the_connection() -> None:
    hung_up = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        hung_up.set()

    async with listening(never) as port:
        stream = await Guard(True, Names(["127.0.0.1"])).connect_tcp("a.example", port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await stream.start_tls(httpcore.default_ssl_context(), "a.example")
        await in_time(hung_up.wait())
