"""A conversation whose messages change: who comes back at any moment sees what a slow model sees."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

import asyncpg
import httpx
import msgspec
import pytest
from gapless import AsyncClient, Fold, NotFound, Original, Retention
from gapless._effects import AsyncEffects
from gapless._models import message_from

from load.clients.proxy import CuttingProxy
from load.wire import Target
from tests.client.test_live import PATIENT
from tests.conftest import Serve
from tests.integration.company import company as company
from tests.integration.company import company_owner as company_owner
from tests.integration.company import people as people
from tests.integration.company import senders
from tests.integration.jumbled_redis import JumbledRedis
from tests.integration.latest import Json, latest_of
from tests.integration.test_folds import say
from tests.integration.test_keys import bearer
from tests.patience import eventually, http_client

LINES = {"accept": "application/x-ndjson"}
BRISK = AsyncEffects(chance=lambda: 0.02)


async def read(client: AsyncClient, **params: str | int) -> list[Json]:
    """What the service says of the room, in JSON."""
    headers = {**LINES, **bearer(str(client._config.token))}
    async with http_client(client._config.base_url) as wire:
        answer = await wire.get("/v1/channels/room/messages", params=params, headers=headers)
    if answer.status_code == 404:
        return []
    assert answer.status_code == 200, answer.text
    return [msgspec.json.decode(line) for line in answer.content.splitlines()]


def originals(shown: list[Json]) -> list[Original]:
    found = [message_from(one) for one in shown]
    return [one for one in found if isinstance(one, Original)]


async def read_stale(client: AsyncClient, fold: Fold) -> None:
    """As docs/protocol.md says of annotations of which only a summary is known."""
    for id_ in sorted(fold.stale):
        now = await client.get_message("room", id_, view="latest")
        assert isinstance(now, Original)
        fold.load([now])


async def test_an_edit_a_thousand_messages_back_is_one_message(people: list[AsyncClient]) -> None:
    ann, bob, eve = people
    sent = [one.id for one in await ann.publish_many("room", list(range(1000)))]
    head = (await ann.publish("room", "newest")).id
    await ann.subscriptions.create("queue", ["room"], start=head)
    asked: list[httpx.URL] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request.url)

    config = eve._config
    async with http_client(config.base_url, event_hooks={"request": [note]}) as wire:
        reader = AsyncClient(config.base_url, token=config.token, http_client=wire)
        async with (
            reader.conversation("room") as chat,
            reader.conversation("room", newest=5) as newest,
            reader.subscribe("room", start=head) as over_sse,
            reader.connect() as connection,
            connection.subscribe("room", start=head) as over_websocket,
        ):
            asked.clear()
            edit = (await bob.publish("room", "edited", target=sent[0], action="update")).id
            after = (await bob.publish("room", "after")).id
            told = [await anext(chat), await anext(chat)]
            assert [(one.id, one.data, one.version) for one in told] == [
                (sent[0], "edited", edit),
                (after, "after", after),
            ]
            assert (await anext(newest)).id == after, "it does not show what was edited"
            for stream in (over_sse, over_websocket):
                assert [(await anext(stream)).id for _ in range(2)] == [edit, after]
            assert asked == [], "nothing is read again"
    pulled = await ann.pull("queue", 10, wait=0)
    assert [delivery.message.id for delivery in pulled] == [edit, after]
    assert [one["id"] for one in await read(ann, after=head)] == [edit, after]
    assert [one["id"] for one in await read(ann, view="latest", changed_after=head)] == [sent[0]]


async def cut_and_go_on(client: AsyncClient, target: int, through: int, data: str) -> int:
    """An edit that cuts the rest of the conversation, which goes on with something else; the id of that."""
    cut = {"target": target, "action": "delete", "through": through}
    async with http_client(client._config.base_url) as wire:
        answer = await wire.post(
            "/v1/channels/room/messages",
            json=[cut, {"data": data}],
            headers=bearer(str(client._config.token)),
        )
    assert answer.status_code == 201, answer.text
    return int(answer.json()["messages"][1]["id"])


@pytest.mark.parametrize("size", [12, pytest.param(1000, marks=pytest.mark.drill)])
async def test_a_cut_and_its_replacement_reach_who_was_away_at_any_moment(
    people: list[AsyncClient], size: int
) -> None:
    """By the stream, and by what changed; also who went away between the two."""
    chance = random.Random(size)
    ann, bob, _ = people
    ids = [one.id for one in await ann.publish_many("room", list(range(size)))]
    for turn in range(3):
        for _ in range(5):
            await say(chance, chance.choice(people), ids)
        first = ids[len(ids) // (4 - turn)]
        await ann.publish("room", None, target=first, action="annotate", annotation="like", mode="unique")
        ids.append(await cut_and_go_on(bob, first, ids[-1], f"instead {turn}"))
        ids.append((await ann.publish("room", f"on {turn}")).id)
    log, shown = await read(ann), await read(ann, view="latest")
    assert shown == latest_of(log)
    assert sum(one.get("deleted", False) for one in shown) > size // 2
    # Among the first messages, which change nothing, one moment is like the next.
    for moment in (n for n in range(len(log) + 1) if n >= size or n % (1 + size // 40) == 0):
        before, left = latest_of(log[:moment]), log[moment - 1]["id"] if moment else 0
        fold = Fold()
        fold.load(originals(before))
        if moment < len(log):
            async with ann.subscribe("room", start=left) as stream:
                async for message in stream:
                    fold.apply(message)
                    if message.id == log[-1]["id"]:
                        break
            await read_stale(ann, fold)
        assert fold.messages == originals(shown), f"away after {moment} messages"
        known = {one["id"]: one for one in before}
        changed = await read(ann, view="latest", changed_after=left) if moment else []
        assert {one["id"] for one in changed} <= {one["id"] for one in shown if one["version"] > left}
        new = await read(ann, view="latest", after=left)
        known |= {one["id"]: one for one in [*changed, *new]}
        assert [known[id_] for id_ in sorted(known)] == shown, f"away after {moment} messages"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.drill
async def test_at_every_cursor_with_retention_expiry_and_a_channel_that_is_deleted(
    people: list[AsyncClient], company_owner: asyncpg.Connection, seed: int
) -> None:
    """The view of what is kept is that of the kept log alone."""
    chance, ann = random.Random(seed), people[0]
    ids, fold, last = list[int](), Fold(), 0
    happened: set[str] = set()
    for _ in range(70):
        what = chance.choices(["say", "trim", "delete"], [90, 8, 3])[0]
        happened.add(what)
        if what == "trim" and ids:
            await ann.channels.update("room", retention=Retention(max_messages=chance.randint(3, 15)))
            await company_owner.execute("select gapless.trim_channels(10)")
        elif what == "delete" and ids:
            await ann.channels.delete("room")
            fold = Fold()
        else:
            with suppress(NotFound):  # Retention was faster.
                await say(chance, chance.choice(people), ids, ttl=chance.choice([None, None, 0.001, 60]))
        log, shown = await _consistent(ann)
        assert shown == latest_of(log)
        for message in log:
            if message["id"] > last:
                fold.apply(message_from(message))
                last = message["id"]
        kept = {message["id"] for message in log}
        assert [one for one in fold.messages if one.id in kept] == originals(shown)
        ids[:] = [one["id"] for one in shown]
    assert {"say", "trim"} <= happened


async def _consistent(client: AsyncClient) -> tuple[list[Json], list[Json]]:
    """The log and the view of one moment: retention may come between two readings."""
    while True:
        log = await read(client)
        shown = await read(client, view="latest")
        if await read(client) == log:
            return log, shown


async def test_a_conversation_goes_on_in_a_channel_that_was_deleted(people: list[AsyncClient]) -> None:
    ann, bob, _ = people
    old = (await ann.publish("room", "old")).id
    await ann.publish("room", None, target=old, action="annotate", annotation="like", mode="flag")
    async with ann.conversation("room") as chat:
        await ann.channels.delete("room")
        new = (await ann.publish("room", "new")).id
        await bob.publish("room", "newer", target=new, action="update")
        with pytest.raises(NotFound):
            await bob.publish("room", "x", target=old, action="update")
        assert [(one.id, one.data) for one in [await anext(chat), await anext(chat)]] == [
            (new, "new"),
            (new, "newer"),
        ]
        shown = originals(await read(ann, view="latest"))
        assert [one for one in chat.messages if one.id != old] == shown


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.drill)])
async def test_all_agree_although_hints_are_jumbled_and_connections_cut_at_every_message(
    serve: Serve, redis_url: str, seed: int
) -> None:
    """Three senders change two messages at once; what they send comes to the readers' worker by hints."""
    redis = JumbledRedis(redis_url, random.Random(seed))
    await redis.start()
    writing, reading = [serve(GAPLESS_REDIS_URL=redis.url).url for _ in range(2)]
    proxy = CuttingProxy(Target("127.0.0.1", urlsplit(reading).port or 0), per_connection=1)
    cutting = await proxy.start()
    keys = await senders(writing)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(redis.stop)
        stack.push_async_callback(proxy.stop)

        async def client(url: str, key: str) -> AsyncClient:
            made = AsyncClient(url, token=key, retry=PATIENT, effects=BRISK)
            return await stack.enter_async_context(made)

        people = [await client(writing, key) for key in keys]
        steady = await client(reading, keys[0])
        cut = await client(f"http://{cutting.host}:{cutting.port}", keys[0])
        targets = [(await people[0].publish("room", n)).id for n in range(2)]
        chats = [await stack.enter_async_context(each.conversation("room")) for each in (steady, cut)]
        folding = asyncio.create_task(_fold_over_websocket(cut))
        stack.push_async_callback(_end, folding)
        tasks = [asyncio.create_task(chat.run(lambda one: None)) for chat in chats]
        for task in tasks:
            stack.push_async_callback(_end, task)

        async def change(sender: AsyncClient, number: int) -> None:
            chance = random.Random(f"{seed} {number}")
            for _ in range(25):
                await say(chance, sender, list(targets))

        await asyncio.gather(*[change(each, number) for number, each in enumerate(people)])
        last = (await people[0].publish("room", "last")).id
        await eventually(lambda: all(chat.get(last) is not None for chat in chats))
        log, shown = await _consistent(people[0])
        assert shown == latest_of(log)
        for chat in chats:
            assert chat.messages == originals(shown)
        assert (await folding).messages == originals(shown)
        assert proxy.cuts > len(log)
        assert redis.lost
        assert redis.doubled
        assert redis.moved


async def _fold_over_websocket(client: AsyncClient) -> Fold:
    """The fold of the whole log, up to the message that says so."""
    fold = Fold()
    async with client.connect() as connection, connection.subscribe("room", start="earliest") as stream:
        async for message in stream:
            fold.apply(message)
            if message.data == "last":
                return fold
    raise AssertionError("the stream ended")


async def _end(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait([task])
