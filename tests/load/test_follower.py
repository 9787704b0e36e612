"""Readers, drain and checker together, over real sockets and a server that cuts streams."""

from __future__ import annotations

import asyncio
import random

import pytest

from load.chat.drain import drain
from load.chat.follower import LATEST, Crowd, Follower
from load.checker import check
from load.history import History, digest
from load.relay import listening
from load.truth import Truth
from load.verdict import Breach, Verdict
from load.wire import Connection, Pump, Response, Target, pump
from tests.load.fake_service import FakeService
from tests.patience import PATIENCE_S, eventually, in_time

CHANNELS = ["chat.a", "chat.b", "news.c"]
FOLLOWED = [("chat.a",), ("chat.*",), ("chat.b", "news.c"), (">",), ("chat.a", "chat.*")]


async def _run(
    service: FakeService, seed: int, messages: int = 400, mean_life: float = 0.2, lost: int = 0
) -> Verdict:
    """Publish and read until no more is missing than what the service has lost."""
    history = History(seed=seed)
    crowd = Crowd(history, service.target, mean_life=mean_life)
    followers = [
        Follower(crowd, history.cursor(f"{n} {patterns}", patterns, start), random.Random(seed * 100 + n))
        for n, (patterns, start) in enumerate([(p, s) for p in FOLLOWED for s in (0, LATEST)])
    ]
    tasks = [asyncio.create_task(follower.run()) for follower in followers]
    await asyncio.gather(*(follower.live.wait() for follower in followers))
    chance = random.Random(seed)
    for n in range(messages):
        channel = chance.choice(CHANNELS)
        attempt = history.invoke(channel, digest("message", None, {"n": n}))
        message = await service.publish(channel, {"n": n})
        history.ok(attempt, message["id"], message["seq"])
        if n % 20 == 0:
            await asyncio.sleep(0.01)
    await drain(crowd, CHANNELS, 2, lambda: None)
    truth = Truth.of(history)

    def missing() -> int:
        return sum(len(truth.owed_to(f.cursor)) - len(set(f.cursor.ids)) for f in followers)

    await eventually(lambda: missing() <= lost)
    for follower in followers:
        follower.stop()
    await asyncio.gather(*tasks)
    return check(history)


@pytest.mark.parametrize("seed", range(3))
async def test_readers_that_lose_their_connections_lose_nothing(seed: int) -> None:
    async with FakeService(seed=seed).running() as service:
        verdict = await _run(service, seed)
    assert verdict.ok, verdict.report()


@pytest.mark.parametrize(("spoil", "breach"), [("lose", Breach.LOST), ("double", Breach.DOUBLED)])
async def test_what_the_server_spoils_is_found(spoil: str, breach: Breach) -> None:
    # No connection ends: the next one would bring what was lost, and a cut could take the second copy away.
    async with FakeService(spoil, cuts=False).running() as service:
        verdict = await _run(service, 1, messages=100, mean_life=0.0, lost=spoil == "lose")
    assert verdict.counts[breach] == 1, verdict.report()


async def test_pumps_publish_until_the_source_is_dry() -> None:
    async with FakeService().running() as service:
        body = b'{"data":{"text":"hello"}}'
        left = [service.target.request("POST", "/v1/channels/c/messages", body)] * 50
        answers: list[Response] = []
        await pump(service.target, 4, lambda: left.pop() if left else None, answers.append)
        assert [answer.status for answer in answers] == [201] * 50
        assert len(service.log) == 50


async def test_a_pump_ends_with_its_connection() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with listening(slam) as port:
        one = await Target("127.0.0.1", port).connect(lambda: Pump(lambda: b"GET / HTTP/1.1\r\n\r\n", print))
        one.start()
        await in_time(one.ended)


async def test_a_question_that_is_not_answered_is_a_connection_error() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    async with listening(hang_up) as port:
        target = Target("127.0.0.1", port)
        connection = await Connection.open(target)
        with pytest.raises(ConnectionError, match="the connection ended"):
            await connection.ask(target.request("GET", "/"), PATIENCE_S)
