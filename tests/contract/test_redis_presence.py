"""Presence in a real Redis, whatever happens to it, and whoever else writes to it. What every presence does:
tests/contract/test_presence.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from app.embedded import EmbeddedRedis
from cache import link as link_module
from cache import presence as presence_module
from cache import rounds as rounds_module
from cache.presence import RedisPresence
from cache.presence_members import Command
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.presence import ClientInfo, Clients
from tests.contract.freezing_proxy import FreezingProxy
from tests.contract.hostile_redis import BEHAVIOURS, HostileRedis
from tests.contract.limits import short_limits
from tests.contract.showing import CHANNEL, Process, client, pair, through
from tests.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.usefixtures("patient")

SOON_S = 0.6
"""When clients of a process that dies expire."""


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks and tries again often."""
    monkeypatch.setattr(presence_module, "RECONNECT_S", 0.02)
    monkeypatch.setattr(rounds_module, "RETRY_S", 0.02)


@pytest.fixture
async def admin(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """Somebody who may do all in Redis."""
    made = redis.asyncio.Redis.from_url(redis_url)
    yield made
    await made.aclose()


@pytest.fixture
async def both(redis_url: str) -> AsyncIterator[tuple[Process, Process]]:
    async with pair(through(redis_url)) as processes:
        yield processes


async def keys(admin: redis.asyncio.Redis, process: Process) -> list[bytes]:
    """The keys of channels, of all processes."""
    return [key for key in await all_keys(admin, process) if b"/alive" not in key]


async def all_keys(admin: redis.asyncio.Redis, process: Process) -> list[bytes]:
    """The same, and those that say which processes live."""
    assert isinstance(process.port, RedisPresence)
    found = await admin.keys(process.port._topic.replace("[", "?").replace("]", "?") + "*")
    return sorted(key for key in found if isinstance(key, bytes))


async def test_clients_of_a_process_that_died_expire(redis_url: str) -> None:
    one, two = Process(through(redis_url, SOON_S)), Process(through(redis_url))
    await one.connected()
    await two.connected()
    one.join([client() for _ in range(3)])
    here = client()
    two.join([here])
    await eventually(lambda: shows(two, 4))
    await one.kill()
    await eventually(lambda: shows(two, 1))
    assert await two.all() == [here]
    await one.stop()
    await two.stop()


async def test_a_process_that_lives_renews_its_clients(
    both: tuple[Process, Process], admin: redis.asyncio.Redis
) -> None:
    """All keys are about to expire in half a minute; then all of them stay for longer again."""
    _, two = both
    two.join([client("u")])
    await eventually(lambda: shows(two, 1))
    found = await keys(admin, two)
    assert len(found) == 3
    for key in found:
        assert await admin.pexpire(key, 30_000)

    async def renewed() -> bool:
        return all([await admin.pttl(key) > 30_000 for key in found])

    await eventually(renewed)


def test_clients_are_renewed_well_before_they_expire() -> None:
    port = RedisPresence("redis://127.0.0.1:1", "t", "0" * 16, Clients(), 30.0)
    assert 0 < port._beat_s <= 30.0 / 2


async def test_every_key_expires(
    both: tuple[Process, Process], admin: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_module, "UNION_EXPIRES_S", int(PATIENCE_S))
    one, two = both
    some = [client("u") for _ in range(3)]
    for process in both:
        process.join([client("v")])
    one.join(some)
    await eventually(lambda: shows(two, 5))
    one.leave(some[:1])
    one.join([client("u")])
    await two.port.stats(CHANNEL)
    await two.port.doubt("0" * 16)
    assert len(await keys(admin, one)) == 6 + 1
    found = await all_keys(admin, one)
    assert len(found) == 6 + 1 + 3
    for key in found:
        assert 0 < await admin.pttl(key) <= 1000 * PATIENCE_S


async def test_a_clean_stop_leaves_no_key(both: tuple[Process, Process], admin: redis.asyncio.Redis) -> None:
    one, _ = both
    one.join([client("u"), client()])
    await eventually(lambda: shows(one, 2))
    before = await all_keys(admin, one)
    await one.stop()
    assert await keys(admin, one) == []
    own = [key for key in before if one.name.encode() in key]
    assert not set(own) & set(await all_keys(admin, one))
    assert any(b"/alive/" in key for key in own)
    assert await admin.zscore(f"{one.port._topic}/alive", one.name) is None  # type: ignore[attr-defined]


async def test_what_somebody_deleted_is_written_again(
    both: tuple[Process, Process], admin: redis.asyncio.Redis
) -> None:
    one, two = both
    one.join([client() for _ in range(3)])
    two.join([client()])
    await eventually(lambda: shows(two, 4))
    for key in await keys(admin, one):
        await admin.delete(key)
    await eventually(lambda: shows(two, 4))
    await eventually(lambda: shows(one, 4))


async def test_a_part_that_is_lost_is_found(
    both: tuple[Process, Process], admin: redis.asyncio.Redis
) -> None:
    one, two = both
    crowd = sorted(client() for _ in range(3))
    one.join(crowd)
    await eventually(lambda: shows(two, 3))
    assert isinstance(one.port, RedisPresence)
    await admin.zremrangebyrank(one.port._keys(CHANNEL)[1], 0, 1)
    await eventually(lambda: shows(two, 3))
    assert await two.all() == crowd


FORGED: list[Any] = [b"", b"x", b"\xff\0[]", b"a" * 36 + b"\0[null,1]", b"[" * 10_000]


@pytest.mark.parametrize("kind", ["string", "list", "forged"])
async def test_whoever_writes_to_redis_ends_nothing(
    both: tuple[Process, Process], admin: redis.asyncio.Redis, kind: str
) -> None:
    """Keys of another kind, and members that no service has written."""
    one, two = both
    crowd = sorted(client("u") for _ in range(3))
    one.join(crowd)
    await eventually(lambda: shows(two, 3))
    assert isinstance(one.port, RedisPresence)
    processes, clients, users = one.port._keys(CHANNEL)
    stranger = f"{processes}/{'0' * 16}"
    await admin.zadd(processes, {b"0" * 16: 10**12, b"no process": 10**12, b"\xff\xff": 10**12})
    for key in (clients, users, stranger) if kind == "forged" else (processes, clients, users, stranger):
        await admin.delete(key)
        if kind == "string":
            await admin.set(key, "x")
        elif kind == "list":
            await admin.rpush(key, "x")
        elif key == users:
            await admin.sadd(key, "x")
        else:
            own = b"%b\0" % crowd[0].id.encode()
            forged = [*FORGED, own + b"[]", own + b'["' + b"u" * 5000 + b'",1]', own + b"[null,-1]"]
            await admin.zadd(key, dict.fromkeys(forged, 0))
    for process in both:
        found = await process.port.page(CHANNEL, "", 100)
        assert set(found.clients) <= set(crowd)
        await process.port.stats(CHANNEL)
    await eventually(lambda: is_whole(two, crowd))
    await admin.delete(processes, stranger)
    assert not one.task.done()


async def test_members_that_no_page_shows_are_not_counted(redis_url: str, admin: redis.asyncio.Redis) -> None:
    """Neither by their process nor by another one, from the moment on that somebody wrote them: no beat comes
    here."""
    one, two = (Process(through(redis_url, beat_s=PATIENCE_S)) for _ in range(2))
    await one.connected()
    await two.connected()
    crowd = sorted(client() for _ in range(3))
    one.join(crowd[:2])
    one.join(crowd[2:])
    await eventually(lambda: shows(two, 3))
    assert isinstance(one.port, RedisPresence)
    await admin.zadd(one.port._keys(CHANNEL)[1], dict.fromkeys(FORGED, 0))
    for process in (one, two):
        assert (await process.port.stats(CHANNEL)).clients == 3
        assert (await process.port.page(CHANNEL, "", 100)).clients == crowd
    one.leave(crowd[:1])
    assert (await one.port.stats(CHANNEL)).clients == 2
    await one.stop()
    await two.stop()


async def test_a_process_that_does_not_say_how_many_it_has_is_counted(
    both: tuple[Process, Process], admin: redis.asyncio.Redis
) -> None:
    """One of the version before."""
    one, _ = both
    one.join([client()])
    assert isinstance(one.port, RedisPresence)
    older = "0" * 16
    await admin.zadd(f"{one.port._processes_of(CHANNEL)}/{older}", {b"a": 0, b"b": 0})
    await admin.zadd(one.port._processes_of(CHANNEL), {older: 10**12})
    assert (await one.port.stats(CHANNEL)).clients == 3


@pytest.mark.parametrize("users", [None, "u"])
@pytest.mark.parametrize("kind", ["missing", "string", "more"])
async def test_the_users_of_a_process_are_mended(
    both: tuple[Process, Process], admin: redis.asyncio.Redis, kind: str, users: str | None
) -> None:
    """Also where they are of another kind. The others stay shown meanwhile."""
    one, two = both
    one.join([client(users), client(users)])
    two.join([client("v")])
    expected = (3, 2)
    await eventually(lambda: counts(two, expected))
    assert isinstance(one.port, RedisPresence)
    processes, _, key = one.port._keys(CHANNEL)
    await admin.delete(key)
    if kind == "string":
        await admin.set(key, "x")
    elif kind == "more":
        await admin.sadd(key, "x", "y", "z")

    async def mended() -> bool:
        assert await admin.zcard(processes) == 2
        return await admin.type(key) == b"set" and await counts(two, expected)

    await eventually(mended)


async def test_an_answer_says_so_if_others_have_made_it_incomplete(
    both: tuple[Process, Process], admin: redis.asyncio.Redis
) -> None:
    """More processes than are asked; members and keys that no service has written; also the key of the
    processes that hide clients, which is mended."""
    one, _ = both
    one.join([client()])
    assert isinstance(one.port, RedisPresence)
    processes = one.port._processes_of(CHANNEL)

    async def complete() -> tuple[bool, bool]:
        page, stats = await one.port.page(CHANNEL, "", 10), await one.port.stats(CHANNEL)
        return page.complete, stats.complete

    assert await complete() == (True, True)
    stranger = "0" * 16
    await admin.zadd(processes, {stranger: 10**12})
    await admin.set(f"{processes}/{stranger}", "x")
    assert await complete() == (False, False)
    await admin.delete(f"{processes}/{stranger}")
    await admin.zadd(f"{processes}/{stranger}", {"x": 0})
    assert (await one.port.page(CHANNEL, "", 10)).complete is False
    await admin.delete(f"{processes}/{stranger}")
    assert await complete() == (True, True)
    many = {f"{number:016x}": 10**12 for number in range(presence_module.MAX_PROCESSES)}
    await admin.zadd(processes, many)
    assert await complete() == (False, False)
    await admin.zrem(processes, *many)
    assert await complete() == (True, True)
    await admin.set(one.port._hiding_key, "x")

    async def mended() -> bool:
        return await complete() == (True, True)

    await eventually(mended)


async def test_times_that_cannot_be_shown_are_not(both: tuple[Process, Process]) -> None:
    one, _ = both
    one.join([client()._replace(connected_at_us=10**18)])
    assert await one.all() == []


async def test_a_frozen_redis_is_unavailable_and_comes_back(redis_url: str) -> None:
    proxy = FreezingProxy(redis_url)
    await proxy.start()
    one = Process(through(proxy.url))
    await one.connected()
    one.join([client()])
    await eventually(lambda: shows(one, 1))
    proxy.freeze()
    with short_limits():
        asked = await asyncio.gather(*(one.port.stats(CHANNEL) for _ in range(200)), return_exceptions=True)
    refused = [error for error in asked if isinstance(error, GaplessError)]
    assert {error.code for error in refused} == {Code.UNAVAILABLE}
    assert {error.detail for error in refused} == {"presence needs Redis, which does not answer"}
    assert len(refused) == 200
    later = client()
    one.join([later])
    proxy.thaw()
    await one.connected()
    await eventually(lambda: shows(one, 2))
    await one.stop()
    await proxy.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path)
    server.start()
    yield server
    server.stop()


async def test_a_redis_that_was_restarted_or_emptied_shows_all_again(own_redis: EmbeddedRedis) -> None:
    one, two = Process(through(own_redis.url)), Process(through(own_redis.url))
    crowd = sorted(client() for _ in range(20))
    await one.connected()
    await two.connected()
    one.join(crowd[:10])
    two.join(crowd[10:])
    await eventually(lambda: shows(one, 20))
    own_redis.stop()
    await eventually(lambda: not one.port.connected)
    with pytest.raises(GaplessError, match="Redis"):
        await one.port.page(CHANNEL, "", 10)
    one.leave(crowd[:1])
    own_redis.start()
    await eventually(lambda: is_whole(one, crowd[1:]))
    admin = redis.asyncio.Redis.from_url(own_redis.url)
    await admin.flushall()
    await eventually(lambda: is_whole(two, crowd[1:]))
    await admin.aclose()
    await one.stop()
    await two.stop()


@pytest.mark.parametrize("name", BEHAVIOURS)
async def test_no_failure_of_redis_ends_presence(redis_url: str, name: str) -> None:
    """Whatever answers, a question ends with an answer or as unavailable, and once Redis is well again all is
    shown."""
    server = HostileRedis(redis_url)
    await server.start()
    one = Process(through(server.url))
    await one.connected()
    here = client("u")
    one.join([here])
    await eventually(lambda: shows(one, 1))

    async def asked_often() -> bool:
        questions: list[Awaitable[object]] = [one.port.page(CHANNEL, "", 5), one.port.stats(CHANNEL)]
        for asked in questions:
            (found,) = await asyncio.gather(asked, return_exceptions=True)
            if isinstance(found, BaseException):
                assert isinstance(found, GaplessError)
                assert found.code is Code.UNAVAILABLE
        assert not one.task.done(), one.task.exception()
        return server.met >= 4

    with short_limits():
        await server.turn(BEHAVIOURS[name].play(server))
        await eventually(asked_often)
    later = client()
    one.join([later])
    await server.turn(None)
    await eventually(lambda: is_whole(one, sorted([here, later])))
    await one.stop()
    await server.stop()


async def test_what_waits_is_bounded(redis_url: str) -> None:
    """Joins that nobody takes are not held beside the clients themselves."""
    clients = Clients()
    port = RedisPresence(redis_url, "t", "0" * 16, clients, 30.0)
    for _ in range(2000):
        port.changed(CHANNEL, client())
    assert not port._changed
    port._writing = True
    for _ in range(2000):
        port.changed(CHANNEL, client())
    assert not port._changed
    assert port._whole == {CHANNEL}


async def test_a_question_is_answered_while_all_is_renewed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beat waits here until the question that was asked in it has its answer. Its parts are small, so
    that other tasks run between them."""
    one = Process(through(redis_url, beat_s=1.0))
    await one.connected()
    for number in range(400):
        one.join([client("u")], ("default", f"c{number}"))
    await eventually(lambda: shows(one, 0))
    ask, late, parts = link_module.Link.ask, client(), []
    asked: list[asyncio.Task[list[ClientInfo]]] = []

    async def watched(link: link_module.Link, commands: list[Command]) -> list[Any]:
        if (commands[0][0], commands[-1][0]) == ("ZADD", "SCARD"):
            parts.append(len(commands))
            if not asked:
                one.join([late])
                asked.append(asyncio.create_task(one.all()))
            elif len(parts) == 3:
                await asyncio.wait(asked)
        return await ask(link, commands)

    monkeypatch.setattr(link_module.Link, "ask", watched)
    await eventually(lambda: len(parts) >= 3)
    assert await asked[0] == [late]
    assert max(parts) <= 250
    await one.stop()


async def shows(process: Process, count: int) -> bool:
    try:
        return (await process.port.stats(CHANNEL)).clients == count
    except GaplessError:
        return False


async def counts(process: Process, expected: tuple[int, int]) -> bool:
    try:
        stats = await process.port.stats(CHANNEL)
    except GaplessError:
        return False
    return (stats.clients, stats.users) == expected


async def is_whole(process: Process, crowd: list[ClientInfo]) -> bool:
    try:
        return await process.all() == crowd
    except GaplessError:
        return False
