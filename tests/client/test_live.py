"""The client against the real service: what either promises, seen from outside."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from gapless import (
    AsyncClient,
    Client,
    CursorExpired,
    Ephemeral,
    Gap,
    HeadMismatch,
    HistoryLost,
    IdempotencyMismatch,
    InvalidRequest,
    Last,
    Message,
    NewMessage,
    NotFound,
    Retention,
    RetryPolicy,
    Unreachable,
)
from gapless._effects import AsyncEffects, Effects

from load.children import free_port
from tests.client.cutting_proxy import CuttingProxy
from tests.client.over_websocket import OVER, MakeClient, Over
from tests.patience import PATIENCE_S, eventually
from tests.support import RunningService

PATIENT = RetryPolicy(attempts=10_000, total_seconds=5 * PATIENCE_S, base_seconds=0.01, cap_seconds=0.1)


@pytest.fixture
def prefix() -> str:
    """A token no other test uses, so that tests can share a service."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def channel(prefix: str) -> str:
    return f"{prefix}.one"


def test_what_is_published_can_be_read_back(client: Client, channel: str) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    published = client.publish(
        channel, {"text": "héllo"}, type="note", key="user-7", headers={"a": "b"}, ttl=3600
    )
    message = client.get_message(channel, published.id)
    assert (message.id, message.seq, message.channel) == (published.id, 1, channel)
    assert (message.data, message.type, message.key) == ({"text": "héllo"}, "note", "user-7")
    assert message.headers == {"a": "b"}
    assert message.created_at == published.created_at
    assert before < message.created_at < before + timedelta(minutes=10)
    assert message.expires_at == message.created_at + timedelta(hours=1)


@pytest.mark.parametrize(
    "data", [None, 0, False, "", [], {}, 1.5, "ünï\n\t\x01\u2028😀", [1, {"a": None}], b"", b"\0\xff"]
)
def test_any_data_comes_back_as_it_went(client: Client, channel: str, data: object) -> None:
    published = client.publish(channel, data)
    assert client.get_message(channel, published.id).data == data
    with client.subscribe(channel, start=0) as messages:
        assert next(messages).data == data


def test_a_repeated_publish_is_one_message(client: Client, channel: str) -> None:
    first = client.publish(channel, 1, idempotency_key=f"{channel}-k")
    again = client.publish(channel, 1, idempotency_key=f"{channel}-k")
    assert (again.id, again.seq, again.created_at) == (first.id, first.seq, first.created_at)
    assert (first.replayed, again.replayed) == (False, True)
    with pytest.raises(IdempotencyMismatch):
        client.publish(channel, 2, idempotency_key=f"{channel}-k")
    assert client.channels.get(channel).last_seq == 1


def test_publishing_can_depend_on_the_head(client: Client, channel: str) -> None:
    client.publish(channel, 1, expected_last_seq=0)
    with pytest.raises(HeadMismatch):
        client.publish(channel, 2, expected_last_seq=0)
    published = client.publish_many(channel, [2, 3], expected_last_seq=1)
    assert [one.seq for one in published] == [2, 3]


def test_several_messages_are_stored_in_order(client: Client, prefix: str) -> None:
    many = client.publish_many(f"{prefix}.a", [NewMessage(n, key=f"k{n}") for n in range(50)])
    assert [one.seq for one in many] == list(range(1, 51))
    both = client.publish_all([(f"{prefix}.b", 1), (f"{prefix}.a", b"x"), (f"{prefix}.b", 2)])
    assert [(one.channel, one.seq) for one in both] == [
        (f"{prefix}.b", 1),
        (f"{prefix}.a", 51),
        (f"{prefix}.b", 2),
    ]
    assert [one.id for one in many + both] == sorted(one.id for one in many + both)


def test_history_in_pages_and_in_one_stream(client: Client, channel: str) -> None:
    ids = [one.id for one in client.publish_many(channel, list(range(25)))]
    pages = list(client.history(channel, page_size=10))
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [one.id for page in pages for one in page] == ids
    assert [one.id for page in client.history(channel, page_size=10, order="desc") for one in page] == ids[
        ::-1
    ]
    assert [one.id for one in client.iter_history(channel)] == ids
    assert [one.id for one in client.iter_history(channel, order="desc", limit=3)] == ids[:-4:-1]
    assert [one.id for one in client.iter_history(channel, start=ids[3], before=ids[6])] == ids[4:6]


def test_history_is_filtered(client: Client, channel: str) -> None:
    messages = [NewMessage(n, type="even" if n % 2 == 0 else "odd", key=f"k{n % 3}") for n in range(12)]
    client.publish_many(channel, messages)
    assert [one.data for one in client.iter_history(channel, types=["even"], keys=["k0"])] == [0, 6]
    assert [one.data for page in client.history(channel, types=["odd"], page_size=4) for one in page] == [
        1,
        3,
        5,
        7,
        9,
        11,
    ]
    assert list(client.iter_history(channel, start=datetime.now(UTC) + timedelta(hours=1))) == []


def test_what_does_not_exist_is_not_found(client: Client, channel: str) -> None:
    with pytest.raises(NotFound) as caught:
        client.channels.get(channel)
    assert caught.value.code == "channel_not_found"
    assert caught.value.request_id
    client.publish(channel, 1)
    with pytest.raises(NotFound) as caught:
        client.get_message(channel, 2**52)
    assert caught.value.code == "message_not_found"


def test_refusals_say_where(client: Client, channel: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.publish(channel, 1, key="k" * 256)
    assert caught.value.code == "invalid_request"
    # Over WebSocket the field is named in the detail only.
    where = [error["field"] for error in caught.value.errors] or [caught.value.detail]
    assert any("key" in field for field in where)
    assert not caught.value.retryable


def test_a_channel_is_made_changed_listed_and_removed(client: Client, prefix: str) -> None:
    name = f"{prefix}.kept"
    made = client.channels.put(name, retention=Retention(max_age=3600, max_messages=10), message_ttl=60)
    assert (made.name, made.last_seq, made.message_ttl) == (name, 0, 60)
    assert made.retention == Retention(max_age=3600, max_messages=10)
    assert client.channels.update(name, message_ttl=None).message_ttl is None
    client.publish(f"{prefix}.other", 1)
    assert [one.name for one in client.channels.list(f"{prefix}.*", page_size=1)] == [name, f"{prefix}.other"]
    client.channels.delete(name)
    with pytest.raises(NotFound):
        client.channels.get(name)


def test_a_subscription_starts_where_it_is_told(client: Client, channel: str) -> None:
    ids = [one.id for one in client.publish_many(channel, list(range(5)))]
    with client.subscribe(channel, start=Last(2)) as messages:
        assert [next(messages).id, next(messages).id] == ids[3:]
    with client.subscribe(channel, start=ids[1]) as messages:
        assert next(messages).id == ids[2]
        assert messages.cursor == ids[2]
    with client.subscribe(channel, start="earliest") as messages:
        assert next(messages).id == ids[0]
    with client.subscribe(channel, start="10m") as messages:
        assert next(messages).id == ids[0]
    with client.subscribe(channel, start=datetime.now(UTC) - timedelta(minutes=10)) as messages:
        assert next(messages).id == ids[0]


def test_what_is_published_after_entering_is_received(client: Client, channel: str) -> None:
    client.publish(channel, "before")
    with client.subscribe(channel) as messages:
        published = client.publish(channel, "after")
        received = next(messages)
        assert (received.id, received.data) == (published.id, "after")


def test_a_channel_is_followed_from_before_it_exists(client: Client, prefix: str) -> None:
    with client.subscribe(f"{prefix}.a", f"{prefix}.b.>") as messages:
        client.publish(f"{prefix}.b.deep.down", 1)
        client.publish(f"{prefix}.elsewhere", 2)
        client.publish(f"{prefix}.a", 3)
        assert [next(messages).data, next(messages).data] == [1, 3]


def test_filters_let_only_theirs_through(client: Client, channel: str) -> None:
    with client.subscribe(channel, types=["a", "b"], keys=["k"]) as messages:
        client.publish(channel, 1, type="a")
        client.publish(channel, 2, type="a", key="k")
        client.publish(channel, 3, type="c", key="k")
        client.publish(channel, 4, type="b", key="k")
        assert [next(messages).data, next(messages).data] == [2, 4]


def test_ephemeral_messages_reach_those_who_listen_now(client: Client, channel: str) -> None:
    with client.subscribe(channel, ephemeral=True) as items, client.subscribe(channel) as messages:
        assert client.publish(channel, {"typing": True}, type="typing", key="u", ephemeral=True) is None
        stored = client.publish(channel, "stored")
        received = [next(items), next(items)]
        (ephemeral,) = [one for one in received if isinstance(one, Ephemeral)]
        assert (ephemeral.channel, ephemeral.type, ephemeral.key) == (channel, "typing", "u")
        assert ephemeral.data == {"typing": True}
        assert next(messages).id == stored.id


def test_a_cursor_from_the_future_is_refused_at_once(client: Client, channel: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        next(client.subscribe(channel, start=2**52))
    assert caught.value.status == 400


def test_a_reader_goes_on_from_a_stored_cursor(client: Client, channel: str) -> None:
    client.publish_many(channel, list(range(10)))
    cursor, seen = 0, []
    for _ in range(5):
        with client.subscribe(channel, start=cursor) as messages:
            seen += [next(messages).data, next(messages).data]
            cursor = messages.cursor or 0
    assert seen == list(range(10))


def test_a_deleted_and_remade_channel_is_an_empty_one(client: Client, channel: str) -> None:
    client.publish(channel, 1)
    client.channels.delete(channel)
    assert client.publish(channel, 2).seq == 1


@pytest.mark.parametrize("max_age", [None, 3600])
async def test_history_taken_by_retention_is_told_not_skipped(
    serve: Callable[..., RunningService], make_client: MakeClient, channel: str, max_age: int | None
) -> None:
    with make_client(serve().url) as client:
        client.channels.put(channel, retention=Retention(max_age=max_age, max_messages=3))
        client.publish_many(channel, list(range(10)))
        await eventually(lambda: client.channels.get(channel).first_seq == 8)
        with client.subscribe(channel, start=0) as messages:
            with pytest.raises(HistoryLost) as caught:
                next(messages)
            assert caught.value.gap == Gap(channel, first_seq=8, missed=7)
            assert [next(messages).seq for _ in range(3)] == [8, 9, 10]
        with pytest.raises(CursorExpired):
            next(client.iter_history(channel, start=1))
        with pytest.raises(CursorExpired):
            next(client.history(channel, start=1))


@pytest.mark.parametrize("over", OVER)
async def test_history_joins_live_without_a_seam(server_url: str, channel: str, over: Over) -> None:
    """Readers start at random moments while eight publishers write; each sees every message once."""
    total = 400
    async with AsyncClient(server_url) as http, over(http) as client:

        async def write(start: int) -> None:
            for n in range(start, total, 8):
                await client.publish(channel, n)

        async def read(after_id: int) -> list[int]:
            async with client.subscribe(channel, start=after_id) as messages:
                return [(await anext(messages)).seq for _ in range(total)]

        writers = [asyncio.ensure_future(write(start)) for start in range(8)]
        readers = []
        for _ in range(10):
            readers.append(asyncio.ensure_future(read(0)))
            await client.publish(f"{channel}.pace", 1)
        await asyncio.gather(*writers)
        for seqs in await asyncio.gather(*readers):
            assert seqs == list(range(1, total + 1))


@pytest.mark.parametrize("over", OVER)
async def test_a_pattern_is_one_order_across_channels(server_url: str, prefix: str, over: Over) -> None:
    async with (
        AsyncClient(server_url) as http,
        over(http) as client,
        client.subscribe(f"{prefix}.*") as messages,
    ):

        async def write(name: str) -> None:
            for n in range(30):
                await client.publish(f"{prefix}.{name}", n)

        await asyncio.gather(*(write(f"c{i}") for i in range(6)))
        seen = [await anext(messages) for _ in range(180)]
    assert [one.id for one in seen] == sorted({one.id for one in seen})
    for i in range(6):
        assert [one.data for one in seen if one.channel == f"{prefix}.c{i}"] == list(range(30))


@pytest.mark.parametrize("seed", [1, *[pytest.param(n, marks=pytest.mark.drill) for n in (2, 3)]])
def test_cuts_anywhere_neither_lose_nor_double(
    server_url: str, channel: str, seed: int, make_client: MakeClient
) -> None:
    """Publisher and reader go through networks that cut after a random number of bytes."""
    chance = random.Random(seed)
    budgets = [chance.randrange(0, 1500) for _ in range(40)]
    total = 200
    brisk = Effects(chance=lambda: chance.random() / 50)
    seen: list[Message | Gap | Ephemeral] = []
    with (
        CuttingProxy(server_url, iter(budgets[:20])) as near,
        CuttingProxy(server_url, iter(budgets[20:])) as far,
    ):
        with Client(near.url, retry=PATIENT) as publisher, make_client(far.url, effects=brisk) as reader:
            stream = reader.subscribe(channel, start=0)

            def read() -> None:
                seen.extend(next(stream) for _ in range(total))

            reading = threading.Thread(target=read)
            reading.start()
            published = [publisher.publish(channel, n) for n in range(total)]
            reading.join(PATIENCE_S)
            stream.close()
        assert near.cuts > 0
        assert far.cuts > 0
    messages = [one for one in seen if isinstance(one, Message)]
    assert [one.data for one in messages] == list(range(total))
    assert [one.seq for one in messages] == list(range(1, total + 1))
    assert [one.id for one in messages] == [one.id for one in published]


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize(
    ("kind", "first"), [("id", 10), ("earliest", 0), ("latest", 60), ("time", 20), ("age", 0), ("last", 25)]
)
async def test_every_start_goes_on_where_it_was_cut(
    server_url: str, channel: str, over: Over, kind: str, first: int
) -> None:
    brisk = AsyncEffects(chance=lambda: 0.02)
    with CuttingProxy(server_url, iter([90, 600, 700, 1500, 2500, 4000])) as proxy:
        async with (
            AsyncClient(server_url) as steady,
            AsyncClient(proxy.url, retry=PATIENT, effects=brisk) as http,
            over(http) as client,
        ):
            old = await steady.publish_many(channel, list(range(20)))
            later = await steady.publish_many(channel, list(range(20, 60)))
            starts: dict[str, Any] = {
                "id": old[9].id,
                "time": later[0].created_at,
                "age": "10m",
                "last": Last(35),
            }
            async with client.subscribe(channel, start=starts.get(kind, kind)) as messages:
                new = await steady.publish_many(channel, list(range(60, 70)))
                seen = [(await anext(messages)).data for _ in range(70 - first)]
                assert messages.cursor == new[-1].id
        assert proxy.cuts >= 3
    assert seen == list(range(first, 70))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.drill)])
async def test_publishes_over_a_connection_that_is_cut_are_confirmed_or_unknown_and_never_doubled(
    server_url: str, channel: str, seed: int
) -> None:
    chance = random.Random(seed)
    budgets = iter([chance.randrange(300, 3000) for _ in range(15)])
    brisk = AsyncEffects(chance=lambda: chance.random() / 50)
    confirmed: dict[int, int] = {}
    unknown: set[int] = set()
    with CuttingProxy(server_url, budgets) as proxy:
        client = AsyncClient(proxy.url, timeout=PATIENCE_S, retry=PATIENT, effects=brisk)
        async with client, client.connect(max_in_flight=8) as connection:

            async def publish(n: int) -> None:
                try:
                    confirmed[n] = (await connection.publish(channel, n)).id
                except Unreachable:
                    unknown.add(n)

            await asyncio.gather(*(publish(n) for n in range(400)))
        assert proxy.cuts > 5
    with Client(server_url) as steady:
        stored = {one.id: one.data for one in steady.iter_history(channel)}
    assert len(set(stored.values())) == len(stored)
    assert all(stored[id_] == n for n, id_ in confirmed.items())
    assert set(stored.values()) - confirmed.keys() <= unknown
    assert 0 < len(unknown) <= 8 * proxy.cuts


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(RunningService.kill, id="kill"),
        pytest.param(RunningService.stop, id="stop", marks=pytest.mark.drill),
    ],
)
def test_a_restart_neither_loses_nor_doubles(
    serve: Callable[..., RunningService],
    channel: str,
    end: Callable[[RunningService], object],
    make_client: MakeClient,
) -> None:
    """The service is ended twice, gently or not, while one thread publishes and another reads."""
    port = str(free_port())
    service = serve("--port", port)
    quick = Effects(chance=lambda: 0.02)
    total, seen = 600, list[Message]()
    with Client(service.url, retry=PATIENT) as publisher, make_client(service.url, effects=quick) as reader:
        stream = reader.subscribe(channel, start=0)
        milestones = {total // 3: threading.Event(), total * 2 // 3: threading.Event()}

        def write() -> None:
            for n in range(total):
                publisher.publish(channel, n)
                if n in milestones:
                    milestones[n].set()

        reading = threading.Thread(target=lambda: seen.extend(next(stream) for _ in range(total)))
        writing = threading.Thread(target=write)
        reading.start()
        writing.start()
        for reached in milestones.values():
            assert reached.wait(PATIENCE_S)
            end(service)
            service = serve("--port", port)
        writing.join(PATIENCE_S)
        reading.join(PATIENCE_S)
        stream.close()
    assert [one.data for one in seen] == list(range(total))
    assert [one.seq for one in seen] == list(range(1, total + 1))
