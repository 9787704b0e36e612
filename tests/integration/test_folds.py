"""The client's fold of a log is the view that the service gives: at each cursor, from a page on, and live."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import asyncpg
import httpx
import pytest
from gapless import AsyncClient, Client, Fold, Message, NotFound, Original, Retention
from gapless._models import Action, Mode

from tests.integration.company import company as company
from tests.integration.company import company_owner as company_owner
from tests.integration.company import people as people
from tests.integration.company import trim
from tests.patience import eventually, http_client

MODES: tuple[Mode, ...] = ("total", "distinct", "unique", "flag")
KINDS = ("new", "new", "update", "reply", "delete", "cut", "annotate", "annotate", "annotate")


async def say(chance: random.Random, client: AsyncClient, ids: list[int], ttl: float | None = None) -> int:
    """Publish an original or a change of one of those; the id."""
    kind = chance.choice(KINDS)
    number = chance.randrange(1000)
    if kind == "new" or not ids:
        ids.append((await client.publish("room", number, ttl=ttl)).id)
        return ids[-1]
    target = chance.choice(ids)
    match kind:
        case "reply":
            ids.append((await client.publish("room", number, target=target, action="reply", ttl=ttl)).id)
            return ids[-1]
        case "cut":
            through = target + chance.choice([0, 2, 7])
            sent = await client.publish(
                "room", None, target=target, action="delete", through=through, ttl=ttl
            )
        case "annotate":
            sent = await client.publish(
                "room",
                None,
                target=target,
                action="annotate",
                annotation=chance.choice(["like", "love"]),
                mode=chance.choice(MODES),
                key=chance.choice([None, "up", "down"]),
                remove=chance.random() < 0.3,
                ttl=ttl,
            )
        case _:
            action: Action = "update" if kind == "update" else "delete"
            sent = await client.publish("room", number, target=target, action=action, ttl=ttl)
    return sent.id


async def view(client: AsyncClient) -> list[Message]:
    return [message async for message in client.iter_history("room", view="latest")]


@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.drill) for n in (1, 2)]])
async def test_the_fold_of_the_log_is_the_view_at_every_cursor(people: list[AsyncClient], seed: int) -> None:
    chance = random.Random(seed)
    ids: list[int] = []
    views: list[list[Message]] = []
    for _ in range(50):
        await say(chance, chance.choice(people), ids)
        views.append(await view(people[0]))
    log = [message async for message in people[0].iter_history("room")]
    fold = Fold()
    for message, expected in zip(log, views, strict=True):
        changed = fold.apply(message)
        assert fold.messages == expected
        assert [fold.get(one.id) for one in changed] == changed
        assert not fold.stale
    for message in log:
        assert fold.apply(message) == [], "what comes again changes nothing"
    assert fold.messages == views[-1]


@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.drill) for n in (1, 2)]])
async def test_from_a_page_on_the_fold_goes_on(people: list[AsyncClient], seed: int) -> None:
    """Annotations of which only a summary is known are read again."""
    chance = random.Random(seed)
    client, ids = people[0], list[int]()
    for _ in range(20):
        await say(chance, chance.choice(people), ids)
    pages = [page async for page in client.history("room", view="latest", page_size=5)]
    assert pages[0].head is not None
    for _ in range(20):
        await say(chance, chance.choice(people), ids)
    fold = Fold()
    for page in pages:
        fold.load([one for one in page.messages if isinstance(one, Original)])
    read = 0
    async for message in client.iter_history("room", start=pages[0].head):
        fold.apply(message)
        for id_ in sorted(fold.stale):
            now = await client.get_message("room", id_, view="latest")
            assert isinstance(now, Original)
            fold.load([now])
            read += 1
    assert fold.messages == await view(client)
    assert not fold.stale
    assert read <= 20


@pytest.mark.parametrize("newest", [None, 5])
async def test_a_conversation_is_kept_up_to_date(people: list[AsyncClient], newest: int | None) -> None:
    chance = random.Random(newest)
    client, ids = people[0], list[int]()
    async with client.conversation("room", newest=newest) as early:
        assert early.messages == [], "the channel is not there yet"
        for _ in range(30):
            await say(chance, chance.choice(people), ids)
        async with client.conversation("room", newest=newest) as chat:
            shown = await view(client)
            assert chat.messages == (shown if newest is None else shown[-newest:])
            told: dict[int, Original] = {}
            watching = asyncio.create_task(chat.run(lambda one: told.update({one.id: one})))
            await asyncio.gather(*[say(random.Random(n), people[n % 3], ids) for n in range(30)])
            last = (await client.publish("room", "last")).id
            await eventually(lambda: last in told)
            shown = await view(client)
            assert chat.messages == shown[-len(chat.messages) :]
            assert {one.id: one for one in chat.messages} == {
                **{one.id: one for one in chat.messages if one.id not in told},
                **told,
            }
            watching.cancel()
        async for one in early:
            if one.id == last:
                break
        assert early.messages == shown


async def test_a_conversation_that_lost_messages_is_read_again(
    people: list[AsyncClient], company_owner: asyncpg.Connection
) -> None:
    """Retention removes what came after the page, right before the stream begins. Nobody followed this
    channel before: a stream also gives what a worker still has in memory."""
    ann = people[0]
    first, second = [(await ann.publish("overtaken", n)).id for n in range(2)]
    removed: list[int] = []

    async def overtake(request: httpx.Request) -> None:
        if request.url.path == "/v1/subscribe" and not removed:
            removed.append(second)
            for n in range(4):
                await ann.publish("overtaken", n, target=second, action="update")
            await ann.publish("overtaken", "kept")
            await ann.channels.update("overtaken", retention=Retention(max_messages=1))
            await trim(company_owner, "overtaken")

    async with http_client(ann._config.base_url, event_hooks={"request": [overtake]}) as wire:
        client = AsyncClient(ann._config.base_url, token=ann._config.token, http_client=wire)
        async with client.conversation("overtaken") as chat:
            assert [one.id for one in chat.messages] == [first, second]
            assert (await anext(chat)).data == "kept"
            assert [one.data for one in chat.messages] == ["kept"]


class RefusedError(Exception):
    """A request that the program's own HTTP client does not send."""


def refusing(path: str, refused: list[str]) -> Callable[[httpx.Request], Awaitable[None]]:
    """Refuses the first request of this path while `refused` is empty."""

    async def refuse(request: httpx.Request) -> None:
        if request.url.path == path and not refused:
            refused.append(path)
            raise RefusedError(path)

    return refuse


async def test_what_a_failed_read_kept_back_is_told_by_the_next_iteration(people: list[AsyncClient]) -> None:
    ann, bob, _ = people
    sent = (await ann.publish("room", 1)).id
    await ann.publish("room", None, target=sent, action="annotate", annotation="like", mode="unique")
    refused: list[str] = []
    hooks = {"request": [refusing(f"/v1/channels/room/messages/{sent}", refused)]}
    async with http_client(ann._config.base_url, event_hooks=hooks) as wire:
        client = AsyncClient(ann._config.base_url, token=ann._config.token, http_client=wire)
        async with client.conversation("room") as chat:
            await bob.publish("room", None, target=sent, action="annotate", annotation="like", mode="unique")
            with pytest.raises(RefusedError):
                await anext(chat)
            told = await anext(chat)
            assert (told.id, told.annotations) == (sent, {"like": {"unique": 2}})


async def test_a_failure_after_a_gap_does_not_end_a_conversation(
    people: list[AsyncClient], company_owner: asyncpg.Connection
) -> None:
    """The channel's pages cannot be read at first, when all of it is to be read again."""
    ann = people[0]
    await ann.publish("refused", "lost")
    refused = ["not yet"]

    async def overtake(request: httpx.Request) -> None:
        if request.url.path == "/v1/subscribe" and refused == ["not yet"]:
            await ann.publish("refused", "lost too")
            await ann.publish("refused", "kept")
            await ann.channels.update("refused", retention=Retention(max_messages=1))
            await trim(company_owner, "refused")
            refused.clear()

    hooks = {"request": [overtake, refusing("/v1/channels/refused/messages", refused)]}
    async with http_client(ann._config.base_url, event_hooks=hooks) as wire:
        client = AsyncClient(ann._config.base_url, token=ann._config.token, http_client=wire)
        async with client.conversation("refused") as chat:
            with pytest.raises(RefusedError):
                await anext(chat)
            assert (await anext(chat)).data == "kept"
            assert [one.data for one in chat.messages] == ["kept"]
            await ann.publish("refused", "next")
            assert (await anext(chat)).data == "next"


async def test_versions_and_replies(people: list[AsyncClient]) -> None:
    client = people[0]
    one = (await client.publish("room", 1)).id
    updates = [(await client.publish("room", n, target=one, action="update")).id for n in range(3)]
    replies = [(await client.publish("room", n, target=one, action="reply")).id for n in range(3)]
    assert [m.id async for m in client.versions("room", one)] == [one, *updates]
    assert [m.id async for m in client.replies("room", one)] == replies
    with pytest.raises(NotFound):
        await anext(client.versions("room", updates[0]))
    now = await client.get_message("room", one, view="latest")
    assert isinstance(now, Original)
    assert (now.data, now.version, now.replies) == (2, replies[-1], 3)
    changed = [m.id async for m in client.iter_history("room", view="latest", changed_after=replies[0])]
    assert changed == [one]


async def test_the_blocking_face_keeps_a_conversation_too(people: list[AsyncClient]) -> None:
    config = people[0]._config

    def read() -> list[object]:
        with Client(config.base_url, token=config.token) as client:
            sent = client.publish("room", 1).id
            with client.conversation("room") as chat:
                client.publish("room", 2, target=sent, action="update")
                return [next(chat).data, chat.messages[0].version > sent]

    assert await asyncio.to_thread(read) == [2, True]
