"""The WebSocket face: commands, publications, positions, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Serve
from tests.integration.frames import Frames
from tests.patience import PATIENCE_S, eventually


@pytest.fixture
def channel() -> str:
    """A name of its own for each test: they share a service."""
    return f"ws.{uuid.uuid4().hex[:10]}"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Frames]:
    frames = await Frames.open(url, **options)
    try:
        yield frames
    finally:
        await frames.close()


http = partial(httpx.request, timeout=PATIENCE_S)


def first_seq(url: str, channel: str) -> int:
    return int(http("GET", f"{url}/v1/channels/{channel}").json()["first_seq"])


def publish(url: str, channel: str, *data: Any) -> list[dict[str, Any]]:
    body = [{"data": each} for each in data]
    answer = http("POST", f"{url}/v1/channels/{channel}/messages", json=body)
    assert answer.status_code == 201, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def test_what_is_published_is_pushed_with_all_that_a_message_has(server_url: str, channel: str) -> None:
    async with opened(server_url) as client:
        subscribed = (await client.ask("subscribe", channel=channel))["subscribe"]
        assert subscribed["recoverable"]
        assert subscribed["positioned"]
        assert subscribed["offset"] == 0
        message = {"data": {"n": 1}, "type": "t", "key": "k", "headers": {"h": "v"}}
        answer = await client.ask("publish", channel=channel, **message)
        push = await client.push()
        assert push["channel"] == channel
        assert push["pub"].items() >= {**message, "seq": 1, "offset": 1, "channel": channel}.items()
        assert answer["publish"].items() >= {"id": push["pub"]["id"], "seq": 1, "channel": channel}.items()
        stored = http("GET", f"{server_url}/v1/channels/{channel}/messages").json()["messages"]
        assert [{**each, "offset": each["seq"]} for each in stored] == [push["pub"]]


async def test_publishes_in_one_message_are_stored_in_their_order(server_url: str, channel: str) -> None:
    async with opened(server_url) as client:
        ids = range(100, 400)
        await client.send(*({"id": id_, "publish": {"channel": channel, "data": id_}} for id_ in ids))
        seqs = [(await client.reply(id_))["publish"]["seq"] for id_ in ids]
        assert seqs == list(range(1, 301))


async def test_a_reader_goes_on_where_it_was(server_url: str, channel: str) -> None:
    publish(server_url, channel, 1, 2, 3)
    async with opened(server_url) as client:
        epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
        publish(server_url, channel, 4)
        assert await client.offsets(1) == [4]
        client.drop()
    publish(server_url, channel, 5, 6)
    async with opened(server_url) as client:
        again = await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=4)
        assert again["subscribe"].items() >= {"was_recovering": True, "recovered": True, "offset": 4}.items()
        publish(server_url, channel, 7)
        assert await client.offsets(3) == [5, 6, 7]
        earlier = await client.ask("unsubscribe", channel=channel)
        assert earlier["unsubscribe"] == {}
        await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=1)
        assert await client.offsets(6) == [2, 3, 4, 5, 6, 7]


async def test_a_channel_followed_before_its_first_message_is_recovered(
    server_url: str, channel: str
) -> None:
    async with opened(server_url) as client:
        epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
        publish(server_url, channel, 1, 2)
        assert await client.offsets(2) == [1, 2]
    publish(server_url, channel, 3)
    async with opened(server_url) as client:
        again = await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=2)
        assert again["subscribe"]["recovered"]
        assert await client.offsets(1) == [3]


@pytest.mark.parametrize("unborn", [True, False], ids=["not there yet", "there"])
async def test_a_position_in_a_channel_that_was_made_again_is_none(
    server_url: str, channel: str, unborn: bool
) -> None:
    if not unborn:
        publish(server_url, channel, 0)
    async with opened(server_url) as client:
        epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
        publish(server_url, channel, 1, 2)
        await client.offsets(2)
        http("DELETE", f"{server_url}/v1/channels/{channel}")
        publish(server_url, channel, *range(9))
        assert (await client.push("unsubscribe"))["unsubscribe"]["code"] == 2500
        assert not [push for push in client.pushes if "pub" in push]
        again = await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=2)
        assert not again["subscribe"]["recovered"]
        assert again["subscribe"]["epoch"] != epoch
        assert await client.offsets(9) == list(range(1, 10))


async def test_only_a_deletion_of_its_own_channel_makes_a_position_none(serve: Serve, channel: str) -> None:
    """The reader began before the first message, and comes back to another process each time."""
    services = [serve(), serve()]
    url = services[0].url
    publish(url, f"{channel}.other", 1)
    async with opened(url) as client:
        epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
        publish(url, channel, 1, 2, 3)
        assert await client.offsets(3) == [1, 2, 3]
        client.drop()
    publish(url, channel, 4, 5)
    http("DELETE", f"{url}/v1/channels/{channel}.other")
    since = {"channel": channel, "recover": True, "epoch": epoch, "offset": 3}
    async with opened(services[1].url) as client:
        again = (await client.ask("subscribe", **since))["subscribe"]
        assert again.items() >= {"recovered": True, "offset": 3}.items()
        assert await client.offsets(2) == [4, 5]
        asked = {"channel": channel, "limit": 9, "since": {"offset": 3, "epoch": epoch}}
        read = (await client.ask("history", **asked))["history"]
        assert [each["offset"] for each in read["publications"]] == [4, 5]
        client.drop()
    for turn in range(3):
        http("DELETE", f"{url}/v1/channels/{channel}")
        publish(url, channel, *range(5 + turn))
    async with opened(services[1].url) as client:
        again = (await client.ask("subscribe", **since))["subscribe"]
        assert again.items() >= {"recovered": False, "offset": 0}.items()
        assert await client.offsets(7) == list(range(1, 8))
        assert (await client.ask("history", **asked))["error"]["code"] == 112


@pytest.mark.parametrize("epoch", ["", "same", "0b9c2f5e-1111-4222-8333-444455556666.1", "_", "nonsense"])
async def test_a_position_that_cannot_be_is_told_and_not_waited_for(
    server_url: str, channel: str, epoch: str
) -> None:
    publish(server_url, channel, 1, 2)
    async with opened(server_url) as client:
        if epoch == "same":
            epoch = (await client.ask("history", channel=channel))["history"]["epoch"]
        asked = {"channel": channel, "recover": True, "epoch": epoch, "offset": 77}
        refused = await client.ask("subscribe", **asked, flag=2)
        assert refused["error"]["code"] == 112
        answer = (await client.ask("subscribe", **asked))["subscribe"]
        assert (answer["was_recovering"], answer["recovered"], answer["offset"]) == (True, False, 2)
        publish(server_url, channel, 3)
        assert await client.offsets(1) == [3]


async def test_messages_that_retention_removed_are_a_gap(server_url: str, channel: str) -> None:
    http("PUT", f"{server_url}/v1/channels/{channel}", json={"retention": {"max_messages": 3}})
    async with opened(server_url) as client:
        publish(server_url, channel, 1)
        epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
        await client.ask("unsubscribe", channel=channel)
        publish(server_url, channel, *range(2, 11))
        await eventually(lambda: first_seq(server_url, channel) == 8)
        answer = await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=1)
        assert (answer["subscribe"]["recovered"], answer["subscribe"]["offset"]) == (False, 7)
        gap = (await client.push("gap"))["gap"]
        assert gap == {"channel": channel, "first_seq": 8, "missed": 6}
        assert await client.offsets(3) == [8, 9, 10]
        since = {"offset": 1, "epoch": epoch}
        assert (await client.ask("history", channel=channel, limit=5, since=since))["error"]["code"] == 112


async def test_history_is_read_both_ways(server_url: str, channel: str) -> None:
    publish(server_url, channel, *range(1, 8))
    async with opened(server_url) as client:
        top = (await client.ask("history", channel=channel))["history"]
        assert (top["publications"], top["offset"]) == ([], 7)

        async def offsets(**members: Any) -> list[int]:
            found = (await client.ask("history", channel=channel, **members))["history"]
            return [publication["offset"] for publication in found["publications"]]

        def since(offset: int) -> dict[str, Any]:
            return {"offset": offset, "epoch": top["epoch"]}

        assert await offsets(limit=3) == [1, 2, 3]
        assert await offsets(limit=-1) == list(range(1, 8))
        assert await offsets(limit=3, since=since(2)) == [3, 4, 5]
        assert await offsets(limit=3, reverse=True) == [7, 6, 5]
        assert await offsets(limit=3, since=since(4), reverse=True) == [3, 2, 1]
        empty = (await client.ask("history", channel=channel + ".none", limit=3))["history"]
        assert (empty["publications"], empty["offset"]) == ([], 0)


async def test_a_pattern_and_a_selection_are_followed_in_the_order_of_ids(
    server_url: str, channel: str
) -> None:
    async with opened(server_url) as client:
        pattern = await client.ask("subscribe", channel=f"{channel}.*")
        chosen = {"channel": [f"{channel}.a", f"{channel}.b"], "type": ["message"]}
        await client.ask("subscribe", channel="mine", selection=chosen)
        ids = [publish(server_url, f"{channel}.{name}", 1)[0]["id"] for name in "abcab"]
        seen: dict[str, list[int]] = {"mine": [], f"{channel}.*": []}
        for _ in range(9):
            push = await client.push()
            assert push["pub"]["offset"] == push["pub"]["id"]
            seen[push["channel"]].append(push["pub"]["id"])
        assert seen == {"mine": [ids[0], ids[1], ids[3], ids[4]], f"{channel}.*": ids}
        client.drop()
    async with opened(server_url) as client:
        epoch = pattern["subscribe"]["epoch"]
        asked = {"channel": f"{channel}.*", "recover": True, "epoch": epoch}
        again = await client.ask("subscribe", **asked, offset=ids[2])
        assert again["subscribe"]["recovered"]
        assert await client.offsets(2) == ids[3:]
        future = await client.ask("subscribe", **{**asked, "channel": f"{channel}.>"}, offset=2**50)
        assert future["error"]["code"] == 112


async def test_a_selection_of_one_channel_is_followed_in_the_order_of_ids_too(
    server_url: str, channel: str
) -> None:
    publish(server_url, f"{channel}.other", *range(5))  # So that no id is a seq.
    http("PUT", f"{server_url}/v1/channels/{channel}", json={"retention": {"max_messages": 3}})
    ids = [one["id"] for one in publish(server_url, channel, *range(10))]
    chosen = {"channel": [channel]}
    async with opened(server_url) as client:
        latest = await client.ask("subscribe", channel="mine", selection=chosen)
        assert latest["subscribe"]["offset"] == ids[-1]
        ids += [one["id"] for one in publish(server_url, channel, 10)]
        pub = await client.push()
        assert (pub["channel"], pub["pub"]["offset"], pub["pub"]["seq"]) == ("mine", ids[-1], 11)
        await eventually(lambda: first_seq(server_url, channel) == 9)
        asked = {"selection": chosen, "recover": True}
        again = await client.ask("subscribe", channel="again", **asked, offset=ids[1])
        assert again["subscribe"].items() >= {"recovered": True, "offset": ids[1]}.items()
        gap = await client.push("gap")
        assert gap == {"channel": "again", "gap": {"channel": channel, "first_seq": 9, "missed": 6}}
        assert await client.offsets(3) == ids[-3:]
        http("DELETE", f"{server_url}/v1/channels/{channel}")
        new = publish(server_url, channel, "new")[0]
        pubs = [await client.push() for _ in range(2)]
        assert {(pub["channel"], pub["pub"]["offset"], pub["pub"]["seq"]) for pub in pubs} == {
            ("mine", new["id"], 1),
            ("again", new["id"], 1),
        }
        assert not [push for push in client.pushes if "unsubscribe" in push]
        future = await client.ask("subscribe", channel="future", **asked, offset=2**50)
        assert future["error"]["code"] == 112


async def test_subscriptions_of_a_connect_are_in_its_answer(server_url: str, channel: str) -> None:
    publish(server_url, channel, 1, 2, 3)
    async with opened(server_url, connected=False) as client:
        subs = {channel: {"recover": True, "offset": 1}, f"{channel}.other": {}, "not a name": {}}
        answer = (await client.ask("connect", subs=subs))["connect"]
        assert client.pushes == []
        assert answer["ping"] > 0
        assert set(answer["subs"]) == {channel, f"{channel}.other"}
        assert answer["subs"][channel]["recovered"]
        assert await client.offsets(2) == [2, 3]


async def test_an_ephemeral_message_has_no_offset(server_url: str, channel: str) -> None:
    async with opened(server_url) as client:
        await client.ask("subscribe", channel=channel)
        assert (await client.ask("publish", channel=channel, data=1, ephemeral=True))["publish"] == {}
        pub = (await client.push())["pub"]
        assert pub["data"] == 1
        assert "offset" not in pub


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"subscribe": {"channel": ""}}, 107),
        ({"subscribe": {"channel": "a b"}}, 107),
        ({"subscribe": {"channel": "x" * 300}}, 107),
        ({"subscribe": {"channel": "s", "selection": {"channel": []}}}, 107),
        ({"subscribe": {"channel": "s", "tf": {"key": "a", "cmp": "eq", "val": "b"}}}, 107),
        ({"publish": {"channel": "a"}}, 107),
        ({"publish": {"channel": "a b", "data": 1}}, 107),
        ({"publish": {"channel": "a", "data": "\u0000"}}, 107),
        ({"publish": {"channel": "a", "data": 1, "delay": 5}}, 107),
        ({"publish": {"channel": "a", "data": "x" * 1_048_577}}, 106),
        ({"history": {"channel": "a*b"}}, 107),
        ({"presence": {"channel": "a b"}}, 107),
        ({"presence_stats": {"channel": "a.*"}}, 107),
        ({"rpc": {"method": "m"}}, 108),
        ({}, 104),
        ({"connect": {}}, 107),
    ],
)
async def test_what_cannot_be_done_is_refused_and_the_connection_stays(
    server_url: str, command: dict[str, Any], code: int
) -> None:
    async with opened(server_url) as client:
        await client.send({"id": 77, **command})
        assert (await client.reply(77))["error"]["code"] == code
        assert (await client.ask("ping"))["ping"] == {}


@pytest.mark.parametrize(
    "data",
    ['"\\ud800"', "[" * 40 + "]" * 40, "[" * 9000 + "]" * 9000, "1e400", "9" * 5000, "NaN", '{"a":1,"a":2}'],
)
async def test_data_that_cannot_be_stored_is_refused_as_over_http(server_url: str, data: str) -> None:
    async with opened(server_url) as client:
        await client.connection.send('{"id":77,"publish":{"channel":"a","data":' + data + "}}")
        assert (await client.reply(77))["error"]["code"] == 107
        assert (await client.ask("ping"))["ping"] == {}


async def test_a_channel_is_followed_once_and_128_at_most(server_url: str, channel: str) -> None:
    async with opened(server_url) as client:
        for number in range(128):
            assert "subscribe" in await client.ask("subscribe", channel=f"{channel}.{number}")
        assert (await client.ask("subscribe", channel=f"{channel}.0"))["error"]["code"] == 105
        assert (await client.ask("subscribe", channel=f"{channel}.128"))["error"]["code"] == 106


async def test_commands_before_the_connect_are_refused(server_url: str) -> None:
    async with opened(server_url, connected=False) as client:
        assert (await client.ask("subscribe", channel="a"))["error"]["code"] == 101
        assert "connect" in await client.ask("connect")


@pytest.mark.parametrize(
    "text", ["no json", '{"id":1,"x":{}}', '{"id":-1}', "[]", '{"id":1,"id":2', "\ud83d"]
)
async def test_three_malformed_commands_end_the_connection(server_url: str, text: str) -> None:
    async with opened(server_url) as client:
        data = text.encode("utf-8", "surrogatepass")
        if text.isascii():
            for _ in range(3):
                await client.connection.send(text)
        else:
            await client.connection.send(data, text=True)
        said, code = await client.rest()
        assert {each["error"]["code"] for each in said} <= {107}
        assert code == (3501 if text.isascii() else 1007)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_command_without_an_id_ends_the_connection_and_is_not_carried_out(
    server_url: str, channel: str, connected: bool
) -> None:
    async with opened(server_url, connected=connected) as client:
        await client.send({"publish": {"channel": channel, "data": 1}})
        assert await client.rest() == ([], 3501)
    assert http("GET", f"{server_url}/v1/channels/{channel}").status_code == 404


@pytest.mark.parametrize(
    ("message", "code"),
    [(b"{}", 3501), (b"\xff", 3501), ("x" * (2 * 1024 * 1024 + 1), 1009), ("{}\n" * 1002, 1008)],
)
async def test_a_message_of_another_kind_or_size_ends_the_connection(
    server_url: str, message: str | bytes, code: int
) -> None:
    async with opened(server_url) as client:
        with contextlib.suppress(ConnectionClosed):
            await client.connection.send(message)
        assert (await client.rest())[1] == code


async def test_a_foreign_page_gets_no_websocket(server_url: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await Frames.open(server_url, origin="http://evil.example")
    assert caught.value.response.status_code == 403


def test_what_is_no_websocket_is_told_so(server_url: str) -> None:
    answer = http("GET", f"{server_url}/v1/ws")
    assert answer.status_code == 426
    assert answer.headers["upgrade"] == "websocket"
    assert answer.headers["content-type"] == "application/problem+json"
    offer = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "12"}
    headers = {**offer, "sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw=="}
    answer = http("GET", f"{server_url}/v1/ws", headers=headers)
    assert answer.status_code == 400
    assert answer.headers["sec-websocket-version"] == "13"
    assert http("GET", f"{server_url}/v1/channels", headers=offer).status_code == 200


@pytest.mark.parametrize(
    ("method", "members"),
    [
        ("connect", {"token": "t"}),
        ("connect", {"subs": {"a": {"token": "t"}}}),
        ("subscribe", {"channel": "a", "token": "t"}),
        ("refresh", {"token": "t"}),
        ("sub_refresh", {"channel": "a", "token": "t"}),
    ],
)
async def test_a_token_that_nothing_can_check_is_refused(
    server_url: str, method: str, members: dict[str, Any]
) -> None:
    async with opened(server_url, connected=method != "connect") as client:
        error = (await client.ask(method, **members))["error"]
        assert error["code"] == 101
        says = "takes no token" if "subs" in members else "no keys were made here"
        assert says in error["message"]
        assert ("connect" if method == "connect" else "subscribe") in await (
            client.ask("connect") if method == "connect" else client.ask("subscribe", channel="a")
        )


async def test_a_client_that_never_connects_is_closed(serve: Serve) -> None:
    service = serve()
    client = await Frames.open(service.url, connected=False)
    assert await client.rest() == ([], 3502)


async def test_a_server_that_stops_says_so_and_another_goes_on(serve: Serve, channel: str) -> None:
    service = serve()
    client = await Frames.open(service.url)
    epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
    publish(service.url, channel, 1)
    assert await client.offsets(1) == [1]
    service.stop()
    assert (await client.rest())[1] == 3001
    service = serve()
    publish(service.url, channel, 2)
    async with opened(service.url) as client:
        again = await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=1)
        assert again["subscribe"]["recovered"]
        assert await client.offsets(1) == [2]


async def test_a_reader_that_takes_nothing_is_cut_off_and_loses_nothing(serve: Serve, channel: str) -> None:
    # The other service is for who reads and may be late.
    service, other = serve(GAPLESS_SLOW_READER_TIMEOUT="1"), serve()
    client = await Frames.open(service.url, max_queue=1)
    epoch = (await client.ask("subscribe", channel=channel))["subscribe"]["epoch"]
    client.connection.transport.pause_reading()
    text = "x" * 100_000
    for _ in range(20):
        await asyncio.to_thread(publish, other.url, channel, *[text] * 10)
    metric = 'gapless_streams_cut_total{reason="slow_consumer"} 1.0'
    await eventually(lambda: metric in http("GET", f"{service.url}/metrics").text)
    client.drop()
    async with opened(other.url) as client:
        await client.ask("subscribe", channel=channel, recover=True, epoch=epoch, offset=0)
        assert await client.offsets(200) == list(range(1, 201))


async def test_a_subscription_of_the_connect_is_there_for_the_next_command(server_url: str) -> None:
    frames = await Frames.open(server_url, connected=False)
    await frames.send(
        {"id": 1, "connect": {"subs": {"again": {}}}}, {"id": 2, "subscribe": {"channel": "again"}}
    )
    assert (await frames.reply(2))["error"]["code"] == 105
    assert "again" in (await frames.reply(1))["connect"]["subs"]
    await frames.close()


async def test_a_subscribe_that_is_overtaken_is_answered(server_url: str) -> None:
    frames = await Frames.open(server_url)
    await frames.send(
        {"id": 8, "subscribe": {"channel": "over"}}, {"id": 9, "unsubscribe": {"channel": "over"}}
    )
    assert (await frames.reply(9))["unsubscribe"] == {}
    assert (await frames.reply(8))["error"]["code"] == 108
    await frames.close()


async def test_a_subscription_of_the_connect_may_insist_on_recovery(server_url: str) -> None:
    frames = await Frames.open(server_url, connected=False)
    subs = {"gone": {"recover": True, "offset": 7, "epoch": "none", "flag": 2}, "there": {}}
    assert set((await frames.ask("connect", subs=subs))["connect"]["subs"]) == {"there"}
    await frames.close()
