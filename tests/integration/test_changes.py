"""Messages that change others, over HTTP: what is refused, and what the view makes of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import Serve
from tests.integration.company import trim
from tests.integration.frames import Frames
from tests.integration.latest import latest_of
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.patience import http_client

ROOM = "/v1/channels/room/messages"


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(serve().url) as made:
        yield made


async def send(client: httpx.AsyncClient, data: Any = None, **members: Any) -> int:
    """Publish; the id."""
    headers = members.pop("headers", {})
    body = members if data is None else {"data": data, **members}
    answer = await client.post(ROOM, json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


async def refusal(client: httpx.AsyncClient, body: Any, **headers: str) -> tuple[int, str]:
    answer = await client.post(ROOM, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return answer.status_code, answer.json()["code"]


async def latest(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    page = (await client.get(ROOM, params={"view": "latest", "limit": 1000, **params})).json()
    found: list[dict[str, Any]] = page["messages"]
    return found


async def test_updates_deletions_and_replies_are_messages_and_the_view_folds_them(
    client: httpx.AsyncClient,
) -> None:
    one, two = await send(client, "one", type="note", key="k"), await send(client, "two")
    update = await send(client, "ONE", target=one, action="update")
    gone = await send(client, target=two, action="delete")
    reply = await send(client, "re", target=one, action="reply")
    log = (await client.get(ROOM)).json()["messages"]
    assert [(m["id"], m.get("target"), m.get("action")) for m in log] == [
        (one, None, None),
        (two, None, None),
        (update, one, "update"),
        (gone, two, "delete"),
        (reply, one, "reply"),
    ]
    assert [m["seq"] for m in log] == [1, 2, 3, 4, 5]
    assert (log[0]["data"], log[2]["data"], log[3]["data"]) == ("one", "ONE", None)

    first, second, third = await latest(client)
    assert (first["id"], first["seq"], first["type"], first["key"]) == (one, 1, "note", "k")
    assert (first["data"], first["version"], first["replies"]) == ("ONE", reply, 1)
    assert (second["id"], second["deleted"], second["version"]) == (two, True, gone)
    assert not {"data", "data_base64"} & set(second)
    assert (third["id"], third["data"], third["target"], third["version"]) == (reply, "re", one, reply)
    assert "deleted" not in first
    assert (await client.get(f"{ROOM}/{one}?view=latest")).json() == first
    assert (await client.get(f"{ROOM}/{update}?view=latest")).json()["code"] == "message_not_found"
    assert (await client.get(f"{ROOM}/{update}")).json()["target"] == one
    assert (await client.get(f"{ROOM}/{one}")).json()["data"] == "one", "the log is never rewritten"


async def test_what_cannot_be_changed(client: httpx.AsyncClient) -> None:
    one = await send(client, "one")
    update = await send(client, "ONE", target=one, action="update")
    elsewhere = (await client.post("/v1/channels/other/messages", json={"data": 1})).json()["id"]

    def asked(target: Any, action: str = "update", **more: Any) -> dict[str, Any]:
        return {"data": 1, "target": target, "action": action, **more}

    for target in (elsewhere, update + 1000, 2**53 - 1):
        assert await refusal(client, asked(target)) == (404, "message_not_found")
    assert await refusal(client, asked(update)) == (409, "conflict")
    assert await refusal(client, asked(one), Expected_Version=str(one)) == (409, "version_mismatch")
    assert await send(client, "x", target=one, action="update", headers={"Expected-Version": str(update)})
    for body in (
        {"data": 1, "target": one},
        {"data": 1, "action": "delete"},
        asked(one, "forget"),
        asked(one, ephemeral=True),
        asked("1"),
        asked(0),
        {"target": one, "action": "update"},
    ):
        assert await refusal(client, body) == (422, "invalid_request"), body
    for wrong in ({"data": 1}, [asked(one)]):
        assert await refusal(client, wrong, Expected_Version="1") == (400, "invalid_request")
    before = (await client.get("/v1/channels/room")).json()["last_seq"]
    both = [{"data": 2}, asked(elsewhere)]
    assert await refusal(client, both) == (404, "message_not_found")
    assert (await client.get("/v1/channels/room")).json()["last_seq"] == before, (
        "an array is stored as a whole"
    )


async def test_an_expired_message_can_be_hidden(client: httpx.AsyncClient) -> None:
    """The log keeps it, so a moderator may have to."""
    one = await send(client, 1, ttl=0.001)
    await asyncio.sleep(0.01)
    gone = await send(client, target=one, action="delete")
    (shown,) = await latest(client)
    assert (shown["deleted"], shown["version"]) == (True, gone)


async def test_who_sent_it_may_change_it_and_a_moderator_may_change_all(client: httpx.AsyncClient) -> None:
    nobodys = await send(client, "of nobody")
    assert await send(client, "of nobody 2", target=nobodys, action="update"), "without credentials all may"
    moderating = [{"actions": ["moderate"], "channels": ["room"]}]
    root = (await make(client, "root", EVERYTHING + moderating))["key"]
    mod = (await make(client, "mod", moderating, root))["key"]
    grants = [{"actions": ["publish", "subscribe"], "channels": ["room"]}]
    ann, bob = [(await make(client, name, grants, root))["key"] for name in ("ann", "bob")]
    hers = await send(client, "hers", headers=bearer(ann))
    client.headers.update(bearer(bob))
    for action in ("update", "delete"):
        for target in (hers, nobodys):
            assert await refusal(client, {"data": 1, "target": target, "action": action}) == (
                403,
                "forbidden",
            )
    assert await send(client, "re", target=hers, action="reply"), "to answer changes nothing"
    client.headers.update(bearer(ann))
    assert await send(client, "hers 2", target=hers, action="update")
    assert await refusal(client, {"data": 1, "target": nobodys, "action": "update"}) == (403, "forbidden")
    shown = {m["id"]: m["data"] for m in await latest(client)}
    assert (shown[hers], shown[nobodys]) == ("hers 2", "of nobody 2")
    for target in (hers, nobodys):
        assert await send(client, "of mod", target=target, action="update", headers=bearer(mod))
    client.headers.update(bearer(mod))
    for body in ({"data": 1}, {"data": 1, "target": hers, "action": "reply"}):
        assert await refusal(client, body) == (403, "forbidden"), "this is publishing"
    client.headers.update(bearer(ann))
    assert {m["data"] for m in await latest(client)} == {"of mod", "re"}


async def annotate(
    client: httpx.AsyncClient, target: int, name: str, mode: str, key: str | None = None, **more: Any
) -> int:
    members = {} if key is None else {"key": key}
    return await send(client, target=target, action="annotate", annotation=name, mode=mode, **members, **more)


async def test_annotations_are_counted_by_their_mode(client: httpx.AsyncClient) -> None:
    one = await send(client, 1)
    root = (await make(client, "root", EVERYTHING))["key"]
    grants = [{"actions": ["publish", "subscribe"], "channels": ["room"]}]
    people = [bearer((await make(client, name, grants, root))["key"]) for name in ("ann", "bob")]
    client.headers.update(people[0])

    async def summary() -> Any:
        return (await client.get(f"{ROOM}/{one}?view=latest")).json()["annotations"]

    for who in people:
        for _ in range(2):
            for name, mode in (("seen", "total"), ("like", "distinct"), ("mark", "flag"), ("vote", "unique")):
                await annotate(client, one, name, mode, headers=who)
    expected = {"seen": {"total": 4}, "like": {"distinct": 2}, "mark": {"flag": True}, "vote": {"unique": 2}}
    assert await summary() == expected
    await annotate(client, one, "other vote", "unique", headers=people[1])
    await annotate(client, one, "love", "distinct", headers=people[1])
    expected |= {"vote": {"unique": 1}, "other vote": {"unique": 1}, "love": {"distinct": 1}}
    assert await summary() == expected
    for _ in range(2):
        await annotate(client, one, "like", "distinct", headers=people[1], remove=True)
        await annotate(client, one, "seen", "total", headers=people[1], remove=True)
    await annotate(client, one, "mark", "flag", headers=people[1], remove=True)
    expected |= {"like": {"distinct": 1}, "seen": {"total": 2}}
    assert await summary() == expected, "the other's stay"
    await annotate(client, one, "mark", "flag", headers=people[0], remove=True)
    del expected["mark"]
    assert await summary() == expected
    for who, key in zip(people * 2, ("up", "up", "down", "up"), strict=True):
        await annotate(client, one, "react", "distinct", key, headers=who)
    expected["react"] = {"distinct": 3, "keys": {"up": 2, "down": 1}}
    assert await summary() == expected
    (shown,) = await latest(client)
    assert shown["annotations"] == expected
    log = (await client.get(ROOM, params={"limit": 1000})).json()["messages"]
    assert (log[1]["annotation"], log[1]["mode"], log[1]["data"]) == ("seen", "total", None)
    assert [m["key"] for m in log if m.get("annotation") == "react"] == ["up", "up", "down", "up"]
    assert shown["version"] == log[-1]["id"]


async def test_annotations_of_nobody_are_of_one_and_those_without_sense_are_refused(
    client: httpx.AsyncClient,
) -> None:
    one = await send(client, 1)
    for _ in range(2):
        await annotate(client, one, "like", "distinct")
        await annotate(client, one, "a", "unique")
        await annotate(client, one, "b", "unique")
    (shown,) = await latest(client)
    assert shown["annotations"] == {"like": {"distinct": 1}, "b": {"unique": 1}}
    asked: dict[str, Any] = {"target": one, "action": "annotate", "annotation": "x", "mode": "flag"}
    for body in (
        {**asked, "annotation": "y" * 65},
        {**asked, "annotation": ""},
        {**asked, "annotation": "a\nb"},
        {**asked, "mode": "some"},
        {**asked, "mode": None},
        {**asked, "annotation": None},
        {"data": 1, "annotation": "x", "mode": "flag"},
        {**asked, "action": "reply", "data": 1},
        {**asked, "remove": "yes"},
    ):
        assert await refusal(client, body) == (422, "invalid_request"), body


async def test_a_message_has_so_many_annotations(client: httpx.AsyncClient) -> None:
    one = await send(client, 1)
    asked: dict[str, Any] = {"target": one, "action": "annotate", "mode": "total"}
    many = [{**asked, "annotation": f"a{n}"} for n in range(1000)]
    assert (await client.post(ROOM, json=many)).status_code == 201
    assert await refusal(client, {**asked, "annotation": "more"}) == (429, "rate_limited")
    assert await refusal(client, {**asked, "annotation": "a1", "key": "k"}) == (429, "rate_limited")
    assert (await client.post(ROOM, json={**asked, "annotation": "a1"})).status_code == 201
    taken_back = {**asked, "annotation": "a2", "remove": True}
    assert (await client.post(ROOM, json=taken_back)).status_code == 201
    assert (await client.post(ROOM, json={**asked, "annotation": "more"})).status_code == 201
    (shown,) = await latest(client)
    assert len(shown["annotations"]) == 1000
    assert shown["annotations"]["a1"] == {"total": 2}


async def test_versions_and_replies_are_listed_in_pages(client: httpx.AsyncClient) -> None:
    one = await send(client, 0)
    updates = [await send(client, n, target=one, action="update") for n in range(1, 6)]
    replies = [await send(client, n, target=one, action="reply") for n in range(3)]
    gone = await send(client, target=one, action="delete")
    for path, wanted in (("versions", [one, *updates, gone]), ("replies", replies)):
        whole = (await client.get(f"{ROOM}/{one}/{path}")).json()
        assert ([m["id"] for m in whole["messages"]], whole["has_more"]) == (wanted, False)
        found: list[int] = []
        cursor, more = 0, True
        while more:
            page = (await client.get(f"{ROOM}/{one}/{path}", params={"limit": 2, "cursor": cursor})).json()
            found += [m["id"] for m in page["messages"]]
            cursor, more = page["cursor"], page["has_more"]
        assert found == wanted
    assert (await client.get(f"{ROOM}/{updates[0]}/versions")).status_code == 404
    assert (await client.get(f"{ROOM}/{gone + 99}/replies")).status_code == 404


async def test_changes_in_arrays_transactions_and_over_a_websocket(client: httpx.AsyncClient) -> None:
    one, two = await send(client, 1), await send(client, 2)
    changes = [{"data": n, "target": one, "action": "update"} for n in (10, 11)]
    answer = await client.post(ROOM, json=[*changes, {"target": two, "action": "delete"}])
    assert answer.status_code == 201
    shown = await latest(client)
    assert [(m.get("data"), m["version"]) for m in shown] == [
        (11, answer.json()["messages"][1]["id"]),
        (None, answer.json()["messages"][2]["id"]),
    ]
    publish = [{"channel": "room", "data": 12, "target": one, "action": "update"}]
    assert (await client.post("/v1/transactions", json={"publish": publish})).status_code == 201
    assert (await client.post("/v1/messages", json={"messages": publish})).status_code == 201
    missing = [{"channel": "else", "data": 12, "target": one, "action": "update"}]
    refused = await client.post("/v1/transactions", json={"publish": missing})
    assert (refused.status_code, refused.json()["code"]) == (404, "message_not_found")
    assert (await client.get("/v1/channels/else")).status_code == 404, "nothing was made for it"


async def test_streams_queues_and_dead_letters_carry_the_log_as_it_is(client: httpx.AsyncClient) -> None:
    queue = "/v1/subscriptions/q"
    await client.put(queue, json={"channels": ["room"], "max_deliver": 1})
    one = await send(client, "one")
    update = await send(client, "ONE", target=one, action="update")
    log = (await client.get(ROOM)).json()["messages"]
    assert log[1]["target"] == one
    seen = (await client.get(f"{queue}/messages")).json()["messages"]
    assert [each["message"] for each in seen] == log
    pulled = (await client.post(f"{queue}/pull", json={"max": 10})).json()["deliveries"]
    assert [each["message"] for each in pulled] == log
    receipts = [each["receipt"] for each in pulled]
    await client.post("/v1/nack", json={"receipts": receipts})
    dead = (await client.get("/v1/dead-letters")).json()["dead_letters"]
    assert [each["message"] for each in dead] == log
    await client.post("/v1/dead-letters/replay", json={"subscription": "q"})
    again = (await client.post(f"{queue}/pull", json={"max": 10, "wait": 20})).json()["deliveries"]
    assert [each["message"] for each in again] == log
    frames = await Frames.open(str(client.base_url))
    await frames.ask("subscribe", channel="room")
    # One comes as a hint, the others are read.
    gone = await send(client, target=one, action="delete")
    told = await frames.push()
    assert (told["pub"]["target"], told["pub"]["action"]) == (one, "delete")
    async with client.stream("GET", "/v1/subscribe?channel=room&from=earliest") as stream:
        lines = [line async for line in _until(stream, gone)]
    assert [json.loads(line)["id"] for line in lines] == [one, update, gone]
    assert [json.loads(line).get("action") for line in lines] == [None, "update", "delete"]


async def _until(stream: httpx.Response, last: int) -> AsyncIterator[str]:
    async for line in stream.aiter_lines():
        if line.startswith("data: {") and '"id":' in line:
            yield line.removeprefix("data: ")
            if json.loads(line.removeprefix("data: "))["id"] == last:
                return


# --- the view, compared with a slow model


@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.drill) for n in (1, 2, 3)]])
async def test_the_view_is_what_a_slow_model_makes_of_the_log(client: httpx.AsyncClient, seed: int) -> None:
    """In every page and order, and from every cursor on."""
    chance = random.Random(seed)
    ids: list[int] = []
    for number in range(60):
        action = chance.choice([None, None, "update", "update", "reply", "delete", "cut"]) if ids else None
        if action is None or action == "reply":
            more = {} if action is None else {"target": chance.choice(ids), "action": action}
            ids.append(await send(client, number, **more))
        elif action == "cut":
            target = chance.choice(ids)
            # Also beyond what is there: it hides nothing that comes later.
            await send(client, target=target, action="delete", through=target + chance.choice([0, 3, 9, 30]))
        else:
            await send(client, number, target=chance.choice(ids), action=action)
    log = (await client.get(ROOM, params={"limit": 1000})).json()["messages"]
    assert len(log) == 60
    expected = latest_of(log)
    assert await latest(client) == expected
    assert await latest(client, order="desc") == expected[::-1]
    lines = (await client.get(f"{ROOM}?view=latest", headers={"accept": "application/x-ndjson"})).text
    assert [json.loads(line) for line in lines.splitlines()] == expected
    for order in ("asc", "desc"):
        found: list[Any] = []
        params: dict[str, Any] = {"view": "latest", "limit": 7, "order": order}
        has_more = True
        while has_more:
            page = (await client.get(ROOM, params=params)).json()
            found += page["messages"]
            has_more = page["has_more"]
            params["after" if order == "asc" else "before"] = page["cursor"]
        assert found == (expected if order == "asc" else expected[::-1])
        assert order == "desc" or page["cursor"] == log[-1]["id"]
    for message in log[::7]:
        changed = await latest(client, changed_after=message["id"])
        assert changed == [one for one in expected if one["version"] > max(message["id"], one["id"])], (
            message["id"]
        )
    for one in expected:
        assert (await client.get(f"{ROOM}/{one['id']}?view=latest")).json() == one


async def test_a_stretch_is_hidden_and_the_conversation_goes_on(client: httpx.AsyncClient) -> None:
    ids = [await send(client, n) for n in range(6)]
    update = await send(client, "u", target=ids[3], action="update")
    stretch = {"target": ids[2], "action": "delete", "through": ids[4]}
    answer = await client.post(ROOM, json=[stretch, {"data": "instead"}])
    cut, instead = [message["id"] for message in answer.json()["messages"]]
    shown = await latest(client)
    assert [(m["id"], m.get("deleted"), m["version"]) for m in shown] == [
        *[(id_, None, id_) for id_ in ids[:2]],
        *[(id_, True, cut) for id_ in ids[2:5]],
        (ids[5], None, ids[5]),
        (instead, None, instead),
    ]
    assert [m["id"] for m in await latest(client, changed_after=update)] == ids[2:5]
    log = (await client.get(ROOM)).json()["messages"]
    assert [(m["target"], m["action"], m["through"]) for m in log if m["id"] == cut] == [
        (ids[2], "delete", ids[4])
    ]
    versions = (await client.get(f"{ROOM}/{ids[3]}/versions")).json()["messages"]
    assert [m["id"] for m in versions] == [ids[3], update, cut]
    versions = (await client.get(f"{ROOM}/{ids[2]}/versions")).json()["messages"]
    assert [m["id"] for m in versions] == [ids[2], cut]
    stale = {"data": 1, "target": ids[4], "action": "update"}
    assert await refusal(client, stale, Expected_Version=str(ids[4])) == (409, "version_mismatch")
    assert await send(client, 1, target=ids[4], action="update", headers={"Expected-Version": str(cut)})
    for wrong in (
        {**stretch, "through": ids[1]},
        {**stretch, "through": 0},
        {"data": 1, "target": ids[2], "action": "update", "through": ids[4]},
        {"data": 1, "through": ids[4]},
    ):
        assert await refusal(client, wrong) == (422, "invalid_request")


async def test_who_sent_a_whole_stretch_may_hide_it(client: httpx.AsyncClient) -> None:
    root = (await make(client, "root", [*EVERYTHING, {"actions": ["moderate"], "channels": ["room"]}]))["key"]
    grants = [{"actions": ["publish", "subscribe"], "channels": ["room"]}]
    ann, bob = [bearer((await make(client, name, grants, root))["key"]) for name in ("ann", "bob")]
    client.headers.update(ann)
    first, second = await send(client, 1), await send(client, 2)
    await send(client, "x", target=first, action="annotate", annotation="like", mode="flag", headers=bob)
    third = await send(client, 3)
    await send(client, 4, headers=bob)
    last = await send(client, 5)
    stretch = {"target": first, "action": "delete", "through": last}
    assert await refusal(client, stretch) == (403, "forbidden")
    gone = await send(client, **{**stretch, "through": third})
    assert [m["version"] for m in await latest(client)][:3] == [gone] * 3
    assert second
    assert await send(client, **stretch, headers=bearer(root))
    assert all(m["deleted"] for m in await latest(client))


async def test_a_page_s_cursor_is_one_to_subscribe_after(client: httpx.AsyncClient) -> None:
    """What comes after it, folded onto the page, is the view of then; wherever the page ended."""
    ids = [await send(client, n) for n in range(8)]
    await send(client, "u", target=ids[1], action="update")
    for limit in (1, 3, 8, 100):
        page = (await client.get(ROOM, params={"view": "latest", "limit": limit})).json()
        await send(client, f"later {limit}", target=ids[0], action="update")
        await send(client, f"more {limit}")
        rest = (await client.get(ROOM, params={"after": page["cursor"], "limit": 1000})).json()["messages"]
        known = {m["id"]: dict(m) for m in page["messages"]}
        for message in rest:
            if message.get("action") == "update" and message["target"] in known:
                known[message["target"]] |= {"data": message["data"], "version": message["id"]}
            elif "action" not in message:
                known[message["id"]] = {**message, "version": message["id"], "replies": 0, "annotations": {}}
        assert sorted(known.values(), key=lambda m: m["id"]) == await latest(client)


async def test_retention_drops_what_belongs_to_a_dropped_original(
    client: httpx.AsyncClient, owner: Any
) -> None:
    ids = [await send(client, n) for n in range(4)]
    for one in ids:
        await send(client, "u", target=one, action="update")
    await send(client, target=ids[0], action="delete", through=ids[1])
    await send(client, target=ids[1], action="delete", through=ids[2])
    assert await owner.fetchval("select count(*) from gapless.deleted_ranges") == 2
    kept = {"retention": {"max_messages": 8}}
    assert (await client.patch("/v1/channels/room", json=kept)).status_code == 200
    await trim(owner, "room")
    assert [m["id"] for m in await latest(client)] == ids[2:]
    assert await owner.fetchval("select array_agg(last_id) from gapless.deleted_ranges") == [ids[2]]
    assert await owner.fetchval("select count(*) from gapless.latest") == 2
    assert await refusal(client, {"data": 1, "target": ids[0], "action": "update"}) == (
        404,
        "message_not_found",
    )
