"""Every route and every command of a WebSocket asks for its grant, before it touches anything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.types import Scope

from app.api.route import Names, Route
from app.api.router import Rows
from app.api.settings import PushRules
from app.api.table import ROUTES
from app.faces.acks import Acks
from app.faces.websocket.commands import METHODS
from app.faces.websocket.consuming import Queues
from app.faces.websocket.framing import FRAMES
from app.faces.websocket.session import Parts, Session
from app.http.principals import Principals
from app.message.receipts import ReceiptCodec
from app.message.selection import read_selection
from load.websocket import Messages
from subscriptions.domain.delivery import AppliesTo, Definitions, Policy, Receipt
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append
from subscriptions.domain.principal import Action, Grant, Noun, Principal
from subscriptions.engine.gate import Gate
from tests.patience import http_client

NS = "tenant"
CODEC = ReceiptCodec(b"s" * 32)
RECEIPT = CODEC.encode(Receipt(1, 1, 1))
ACTIONS = frozenset(Action)
GUARDED = [route for route in ROUTES if not route.needs.nothing]
GRANTED = [route for route in GUARDED if route.needs.names is not Names.NONE]


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def granted(actions: Iterable[Action], *names: str) -> Principal:
    """Somebody with these actions on channels and subscriptions of these names."""
    return Principal(NS, "alice", (Grant(frozenset(actions), names, names),))


class Untouched:
    """What no refused request may use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


class Consumers:
    async def names(self, namespace: str, receipts: Sequence[Receipt | None]) -> set[str]:
        assert namespace == NS
        return {"here"}

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


class One:
    """Has one dead letter, or scheduled message, and says only of what it is."""

    async def get(self, namespace: str, number: int) -> Any:
        assert (namespace, number) == (NS, 1)
        return SimpleNamespace(subscription="here", message=SimpleNamespace(channel="here"))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


class OnePolicy:
    """Has one policy, and nothing else."""

    policy = Policy("here", "here", AppliesTo.SUBSCRIPTIONS, 0, {"max_deliver": 8}, "tag")

    async def get(self, namespace: str, name: str) -> Policy:
        assert (namespace, name) == (NS, "here")
        return self.policy

    async def all(self, namespace: str) -> list[Policy]:
        assert namespace == NS
        return [self.policy]

    async def definitions(self, namespace: str) -> Definitions:
        return Definitions((), (), tuple(await self.all(namespace)))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


class OnlyNames:
    """Dependencies of which a refused request may ask whose receipts it has, and whether the service is
    ready."""

    def __init__(self, **given: Any) -> None:
        self.gate = Gate()
        self.gate.open([NS])
        self.receipts = CODEC
        consumers: Any = Consumers()
        self.consumers = consumers
        self.acks = Acks(self.consumers, CODEC)
        self.push_rules = PushRules()
        self.dead_letters = self.schedules = SimpleNamespace(port=One())
        self.policies = SimpleNamespace(port=OnePolicy())
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        return Untouched()


class Known(Principals):
    """Everybody is `who`."""

    def __init__(self, who: Principal) -> None:
        super().__init__(NS, lambda: 0)
        self.who = who

    def of(self, scope: Scope, *, needed: bool = True, later: bool = False) -> Principal:
        return self.who


async def ask(
    who: Principal, route: Route, query: str = "", body: Any = None, dependencies: object = None
) -> httpx.Response:
    """The answer to a request about the name `here` and the number 1."""
    rows = Rows([route], Known(who))
    rows.bind(dependencies or OnlyNames())
    path = "/".join(
        ("1" if part.endswith("_id}") else "here") if part.startswith("{") else part
        for part in route.path.split("/")
    )
    async with http_client(
        "http://test", transport=httpx.ASGITransport(Starlette(routes=rows.paths()))
    ) as client:
        return await client.request(
            route.method,
            path + query,
            content=None if body is None else msgspec.json.encode(body),
            headers={} if body is None else {"content-type": "application/json"},
        )


NEEDED = {"/v1/subscribe": "?channel=here", "/v1/ws/sse": "?cf_connect=1"}
"""Queries without which a request is refused before anybody asks for a grant."""


def test_only_who_asks_whether_it_lives_needs_no_grant() -> None:
    assert {name_of(route) for route in ROUTES} - {name_of(route) for route in GUARDED} == {
        "GET /healthz",
        "GET /readyz",
    }
    assert [name_of(route) for route in GUARDED if route not in GRANTED] == ["GET /v1/whoami"]


async def test_who_was_granted_nothing_may_ask_who_they_are() -> None:
    (route,) = [route for route in GUARDED if route not in GRANTED]
    answer = await ask(Principal(NS, "alice", ()), route)
    assert (answer.status_code, answer.json()["subject"], answer.json()["grants"]) == (200, "alice", [])


@pytest.mark.parametrize("route", GRANTED, ids=name_of)
async def test_who_has_every_other_action_on_everything_is_refused(route: Route) -> None:
    query = NEEDED.get(route.path, "")
    answer = await ask(granted(ACTIONS.difference(route.needs.actions), ">"), route, query)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("route", GRANTED, ids=name_of)
async def test_who_has_the_action_elsewhere_is_refused(route: Route) -> None:
    elsewhere = granted(ACTIONS, "elsewhere.>", "her", "here.>")
    if route.needs.names is not Names.ASKED:
        answers = [await ask(elsewhere, route)]
    else:
        answers = [await ask(elsewhere, route, *asked) for asked in asking(route)]
    assert [answer.status_code for answer in answers] == [403] * len(answers)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.needs.operator], ids=name_of)
async def test_only_an_operator_has_to_do_with_namespaces(route: Route) -> None:
    assert (await ask(Principal(NS), route)).status_code == 403
    assert (await ask(granted(ACTIONS, ">"), route)).status_code == 403


RECEIPTS = [("", {"receipts": [RECEIPT]})]
ONE = [("", None)]
POLICY = {"applies_to": "subscriptions", "definition": {"max_deliver": 8}}
ASKING: dict[str, list[tuple[str, Any]]] = {
    "/v1/messages": [("", {"messages": [{"channel": "here", "data": 1}]})],
    "/v1/transactions": [
        ("", {"publish": [{"channel": "here", "data": 1}]}),
        ("", {"ack": [{"subscription": "here", "receipts": [RECEIPT]}]}),
    ],
    "/v1/subscribe": [
        ("?channel=here", None),
        ("?channel=elsewhere.a&channel=here", None),
        ("?channel=hers.>", None),
    ],
    "/v1/tickets": [
        ("", {"channels": ["here"]}),
        ("", {"channels": ["elsewhere.a", "here"]}),
        ("", {"channels": ["elsewhere.a"], "subscription": "here"}),
    ],
    "GET /v1/markers": [("?pattern=here", None), ("?pattern=hers.*&user=bob", None)],
    "POST /v1/markers": [
        ("", {"markers": [{"channel": name, "name": "read", "id": 0} for name in ("elsewhere.a", "here")]}),
        ("", {"markers": [{"channel": "here", "name": "read", "id": 0, "user": "bob"}]}),
    ],
    "/v1/channels": [("?pattern=here", None), ("?pattern=hers.*", None)],
    "/v1/subscriptions": [("?pattern=here", None), ("?pattern=hers.>", None)],
    "/v1/dead-letters": [("?subscription=here", None)],
    "/v1/dead-letters/{dead_letter_id}": ONE,
    "/v1/dead-letters/{dead_letter_id}/replay": ONE,
    "/v1/dead-letters/replay": [("", {}), ("", {"subscription": "here"}), ("", {"ids": [1]})],
    "/v1/dead-letters/purge": [("", {"older_than": 1}), ("", {"older_than": 1, "subscription": "here"})],
    # These have what is managed, and nobody is refused them.
    "/v1/policies": [],
    "GET /v1/definitions": [],
    "/v1/policies/{name}": [("", POLICY | {"pattern": name}) for name in ("here", "hers.>", "elsewhere.a")],
    "POST /v1/definitions": [
        ("", {"channels": [{"name": "here"}]}),
        ("", {"subscriptions": [{"name": "here", "channels": ["elsewhere.a"]}]}),
        ("", {"subscriptions": [{"name": "elsewhere.a", "channels": ["here"]}]}),
        ("", {"policies": [{"name": "elsewhere.a", "pattern": "here"} | POLICY]}),
        ("", {"policies": [{"name": "here", "pattern": "elsewhere.a"} | POLICY]}),
    ],
    "/v1/scheduled": [("?channel=here", None)],
    "/v1/scheduled/{scheduled_id}": ONE,
    "/v1/scheduled/{scheduled_id}/promote": ONE,
    "/v1/ack": RECEIPTS,
    "/v1/nack": RECEIPTS,
    "/v1/release": RECEIPTS,
    "/v1/extend": RECEIPTS,
    # Commands of such a client are looked at one by one, below.
    "/v1/ws": [],
    "/v1/ws/http_stream": [],
    "/v1/ws/sse": [],
    "/v1/ws/emulation": [],
}
"""Queries and bodies that ask for something that is not granted elsewhere, by path, or by method and path."""


def asking(route: Route) -> list[tuple[str, Any]]:
    """Those of a row."""
    found = ASKING.get(name_of(route))
    return ASKING[route.path] if found is None else found


class Taken:
    """A publisher and schedule that keep what they are given, and answer nothing."""

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.scheduled: list[tuple[Any, ...]] = []

    def submit(self, append: Append) -> Any:
        self.appends.append(append)
        raise ConnectionError

    async def transact(self, append: Append, *rest: Any) -> Any:
        self.appends.append(append)
        raise ConnectionError

    async def schedule(self, *given: Any) -> Any:
        self.scheduled.append(given)
        raise ConnectionError


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/channels/{channel}/messages", {"data": 1}),
        ("/v1/channels/{channel}/messages", [{"data": 1}, {"data": 2}]),
        ("/v1/channels/{channel}/messages", {"data": 1, "delay": 5}),
        ("/v1/messages", {"messages": [{"channel": "here", "data": 1}]}),
        ("/v1/transactions", {"publish": [{"channel": "here", "data": 1}]}),
    ],
)
async def test_a_message_is_sent_by_who_published_it(path: str, body: Any) -> None:
    """Its idempotency key is one of theirs."""
    taken = Taken()
    given = OnlyNames(publisher=taken, schedules=taken, transactions=taken)
    route = next(route for route in ROUTES if (route.method, route.path) == ("POST", path))
    rows = Rows([route], Known(granted({Action.PUBLISH}, "here")))
    rows.bind(given)
    async with http_client(
        "http://test", transport=httpx.ASGITransport(Starlette(routes=rows.paths()))
    ) as client:
        headers = {"content-type": "application/json", "idempotency-key": "k"}
        url = path.replace("{channel}", "here")
        assert (await client.post(url, content=msgspec.json.encode(body), headers=headers)).status_code == 500
    (messages, key) = (
        (taken.appends[0].messages, taken.appends[0].idempotency_key)
        if taken.appends
        else (taken.scheduled[0][1], taken.scheduled[0][3])
    )
    assert ({message.sender for message in messages}, key) == ({"alice"}, "alice\nk")


# Commands over WebSocket.

FREE = {"connect", "unsubscribe", "unconsume", "ping", "send", "rpc", "refresh", "sub_refresh"}
"""Commands that do nothing to a channel or a subscription, or only end what the client began."""
COMMANDS: dict[str, list[dict[str, Any]]] = {
    "subscribe": [
        {"channel": "here"},
        {"channel": "hers.*"},
        {"channel": "mine", "selection": {"channel": ["elsewhere.a", "here"]}},
    ],
    "publish": [{"channel": "here", "data": 1}, {"channel": "here", "data": 1, "ephemeral": True}],
    "history": [{"channel": "here"}],
    "presence": [{"channel": "here"}],
    "presence_stats": [{"channel": "here"}],
    "consume": [{"subscription": "here"}],
    "ack": [{"receipts": [RECEIPT]}],
    "nack": [{"receipts": [RECEIPT]}],
    "release": [{"receipts": [RECEIPT]}],
    "extend": [{"receipts": [RECEIPT]}],
}


class Wire:
    """A connection that keeps what is said to its client."""

    is_closing = False

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self._messages = Messages()

    def write(self, frames: bytes) -> None:
        for message in self._messages.feed(frames):
            self.said += [msgspec.json.decode(line) for line in message.split(b"\n")]

    async def taken(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


def test_every_command_needs_a_grant_or_is_free() -> None:
    assert set(METHODS) == FREE | set(COMMANDS)


@pytest.mark.parametrize("method", sorted(COMMANDS))
async def test_a_command_about_what_is_not_granted_is_refused(method: str) -> None:
    given: Any = OnlyNames()
    untouched: Any = Untouched()
    members = SimpleNamespace(consumers=given.consumers, receipts=CODEC, read=untouched)
    queues: Any = Queues(members, given.acks, given.gate)  # type: ignore[arg-type]
    parts = Parts(*[*[untouched] * 6, queues, untouched])
    wire: Any = Wire()
    session = Session(wire, FRAMES, parts, granted(ACTIONS, "elsewhere.>", "her", "here.>"), lambda _: None)
    session.received(b'{"id":1,"connect":{}}')
    for number, asked in enumerate(COMMANDS[method], start=2):
        session.received(msgspec.json.encode({"id": number, method: asked}))
    for _ in range(10):
        await asyncio.sleep(0)
    refused = [said["error"]["code"] for said in wire.said if said["id"] > 1]
    assert refused == [103] * len(COMMANDS[method])


async def test_a_subscription_of_a_connect_that_is_not_granted_is_left_out() -> None:
    untouched: Any = Untouched()
    wire: Any = Wire()
    parts = Parts(*[untouched] * 8)
    session = Session(wire, FRAMES, parts, granted(ACTIONS, "elsewhere"), lambda _: None)
    session.received(b'{"id":1,"connect":{"subs":{"here":{}}}}')
    for _ in range(10):
        await asyncio.sleep(0)
    assert wire.said[0]["connect"]["subs"] == {}


def test_who_has_no_grant_is_told_which_one_is_missing() -> None:
    answer = asyncio.run(ask(granted({Action.PUBLISH}, "here"), GUARDED_READ))
    assert answer.json()["detail"] == "the credential does not grant subscribe on channel here"


GUARDED_READ = next(
    route for route in GUARDED if route.needs.nouns == (Noun.CHANNEL,) and route.path.endswith("presence")
)


# What is left of what is asked for.

NAMES = ["in", "in.a", "in.a.x", "out", "out.a", "other"]


async def test_a_list_holds_what_is_granted() -> None:
    asked: list[str | None] = []

    class Channels:
        async def page(self, namespace: str, regex: str | None, after: str, limit: int) -> list[Any]:
            asked.append(regex)
            return []

    route = next(route for route in ROUTES if (route.method, route.path) == ("GET", "/v1/channels"))
    given = OnlyNames(channels=Channels())
    for query in ("", "?pattern=in.*.x"):
        answer = await ask(
            granted({Action.MANAGE}, "in.>", "in.*.x", "out"), route, query, dependencies=given
        )
        assert (answer.status_code, answer.json()["channels"]) == (200, [])
    found = [[name for name in NAMES if re.search(str(regex), name)] for regex in asked]
    assert found == [["in.a", "in.a.x", "out"], ["in.a.x"]]
    assert (await ask(Principal(NS), route, dependencies=given)).status_code == 200
    assert asked[2] is None


@pytest.mark.parametrize("path", ["/v1/dead-letters", "/v1/scheduled"])
async def test_a_list_of_messages_holds_those_of_what_is_granted(path: str) -> None:
    asked: list[str | None] = []

    class Messages:
        async def page(self, *which: Any, names_regex: str | None) -> list[Any]:
            asked.append(names_regex)
            return []

    route = next(route for route in ROUTES if (route.method, route.path) == ("GET", path))
    here = SimpleNamespace(port=Messages())
    given = OnlyNames(dead_letters=here, schedules=here)
    noun = "channel" if path == "/v1/scheduled" else "subscription"
    some = granted({Action.MANAGE}, "in.>", "out")
    for query in ("", f"?{noun}=in.a"):
        assert (await ask(some, route, query, dependencies=given)).status_code == 200
    assert (await ask(some, route, f"?{noun}=other", dependencies=given)).status_code == 403
    assert (await ask(Principal(NS), route, dependencies=given)).status_code == 200
    first, *others = asked
    assert [name for name in NAMES if re.search(str(first), name)] == ["in.a", "in.a.x", "out"]
    assert others == [None, None]


def test_a_reader_of_a_pattern_reads_what_is_granted_of_it() -> None:
    who = granted({Action.SUBSCRIBE}, "in.>", "*.x", "out")
    selection = read_selection(who, ["in.a", "*", "*.x"], [], [])
    # `out` is no name that was asked for: nobody is told of its clients, and its reader reads by ids.
    assert (selection.names, selection.patterns) == (("in.a",), ("*.x", "in.x", "out"))
    assert read_selection(who, [">"], [], []).patterns == ("*.x", "in.>", "out")
    assert read_selection(Principal(NS), [">"], [], []).patterns == (">",)
    for refused in (["in.a", "other"], ["other.*.*"], ["in.a", "no.>"]):
        with pytest.raises(GaplessError) as error:
            read_selection(granted({Action.SUBSCRIBE}, "in.>", "out"), refused, [], [])
        assert error.value.code is Code.FORBIDDEN
