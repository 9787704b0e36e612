"""Every row and command × every credential that must not do. The cases are made of the table of routes.

A new row is among them by itself: its request is the example of its document.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.api.route import Names, Route
from app.api.table import ROUTES
from app.embedded import EmbeddedPostgres
from app.faces.websocket.session import ACTIONS as CLIENT_ACTIONS
from subscriptions.domain.principal import Action
from tests.conftest import Database, External, Serve, drop_database, make_database, service_environment
from tests.integration.asking import NOWHERE, Named, Recorder
from tests.integration.frames import Frames
from tests.integration.tenants import REFUSALS, Tenants, addressed, tenants
from tests.integration.test_keys import bearer
from tests.integration.test_tickets import file_of_keys
from tests.patience import eventually, http_client
from tests.support import RunningService
from tests.unit.test_grants import COMMANDS, name_of

GUARDED = [route for route in ROUTES if not route.needs.nothing]
GRANTED = [route for route in GUARDED if route.needs.names is not Names.NONE]
DOCUMENTS = ("/openapi.json", "/asyncapi.json")
OPEN = {"/healthz", "/readyz"}
"""The rows that the contract leaves open. Beside them are the pages `/` and `/docs`."""
ELSEWHERE = "other.>"


@pytest.fixture(scope="module")
def here(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    """A service with two namespaces. Nothing that it has is removed."""
    home = tmp_path_factory.mktemp("credentials")
    made = asyncio.run(make_database(postgres))
    keys = {"GAPLESS_JWT_KEYS": str(file_of_keys(home))}
    service = RunningService(service_environment(made, redis_url, home) | keys)
    try:
        yield asyncio.run(tenants(service.url, made.owner_url))
    finally:
        service.kill()
        asyncio.run(drop_database(postgres, made))


async def said(client: httpx.AsyncClient, request: dict[str, Any], key: str | None = None) -> httpx.Response:
    """The answer to a request; of a stream, its beginning."""
    headers = [*request.get("headers", []), *(bearer(key).items() if key else ())]
    async with client.stream(**request | {"headers": headers}) as answer:
        if "event-stream" in answer.headers.get("content-type", "") or (
            answer.status_code == 200 and answer.request.url.path == "/v1/ws/http_stream"
        ):
            text = await anext(answer.aiter_text(), "")
            return httpx.Response(answer.status_code, headers=answer.headers, text=text)
        await answer.aread()
        return answer


def problem(answer: httpx.Response) -> tuple[int, str, str | None]:
    """How a request was refused."""
    code = answer.json()["code"] if answer.status_code >= 400 else ""
    return answer.status_code, code, answer.headers.get("www-authenticate")


UNKNOWN = (401, "unauthenticated", "Bearer")


async def test_no_row_answers_who_has_no_good_credential(here: Tenants) -> None:
    """Nor says whether a name exists, nor stores anything."""
    before = await here.stored()
    assert {route.path for route in ROUTES if route.needs.nothing} == OPEN
    cases: list[tuple[str, Route | str, dict[str, Any]]] = []
    for wrong, sent in here.bad.items():
        headers = [("authorization", value) for value in sent]
        for route in GUARDED:
            if not (wrong == "nothing" and route.needs.later):
                for named in (here.held[0], NOWHERE):
                    asked = next(named.requests(route))
                    cases.append((wrong, route, asked | {"headers": headers}))
        cases += [(wrong, path, {"method": "GET", "url": path, "headers": headers}) for path in DOCUMENTS]
    addresses = len(cases) // REFUSALS + 1
    parts = [cases[at::addresses] for at in range(addresses)]

    async def ask(number: int) -> list[tuple[str, str, httpx.Response]]:
        async with addressed(here.url, number) as client:
            return [(wrong, str(of), await said(client, asked)) for wrong, of, asked in parts[number]]

    answers = [each for part in await asyncio.gather(*map(ask, range(len(parts)))) for each in part]
    assert len(answers) == len(cases) >= (2 * len(GUARDED) + len(DOCUMENTS)) * len(here.bad) - 2 * 4
    print(f"{len(cases)} cases")
    leaks = [(wrong, of, problem(answer)) for wrong, of, answer in answers if problem(answer) != UNKNOWN]
    assert leaks == []
    # What was wrong with a credential decides the answer alone.
    assert all(len({a.text for w, _, a in answers if w == wrong}) == 1 for wrong in here.bad)
    async with http_client(here.url) as client:
        assert [(await client.get(path)).status_code for path in ("/", "/docs", *sorted(OPEN))] == [200] * 4
    assert await here.stored() == before


async def test_a_row_refuses_who_has_its_actions_elsewhere_or_all_others(here: Tenants) -> None:
    elsewhere = await here.key(*Action, on=ELSEWHERE)
    needed = {route.needs.actions for route in GRANTED}
    others = {each: await here.key(*[one for one in Action if one not in each]) for each in needed}
    before = await here.stored()
    count, leaks = 0, []
    async with http_client(here.url) as client:
        for route in GRANTED:
            actions = route.needs.actions
            asked = list(here.held[0].requests(route))
            about = asked[1:] if route.needs.names is Names.ASKED else asked
            cases = [(one, elsewhere) for one in about]
            cases += [(one, others[actions]) for one in asked]
            for one, key in cases:
                count += 1
                answer = await said(client, one, key)
                if problem(answer)[:2] != (403, "forbidden"):
                    leaks.append((name_of(route), one, answer.status_code, answer.text[:200]))
    print(f"{count} cases")
    assert leaks == []
    assert count >= 2 * (len(GRANTED) - sum(route.needs.later for route in GRANTED)) - 2
    assert await here.stored() == before


# --- names of another namespace


NOISE = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|gapless_[a-z0-9]{12}_[0-9a-f]{64}|\b[0-9a-f]{32}\b|(?<=\"id\":\")[a-z0-9]{12}"
    r"|(?<=\")[\w-]{43}(?=\")|(?<=id\":)\d+|(?<=\"cursor\":)\d+|(?<=id: )\d+"
    r"|(?<=\"session\":\")[^\"]+|[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4}"
)
"""What two answers that say the same may have of their own: times, new ids, positions and secrets."""
OF_AN_ANSWER = {"x-request-id", "date", "content-length"}


def compared(answer: httpx.Response, named: Named) -> tuple[int, list[tuple[str, str]], str]:
    """An answer without the names that were asked for."""
    headers = [(k, NOISE.sub("#", v)) for k, v in answer.headers.items() if k not in OF_AN_ANSWER]
    return answer.status_code, headers, NOISE.sub("#", named.blank(answer.text))


def in_order() -> list[Route]:
    """First the rows that look for what is there, then those that may create."""
    creating = {"import_definitions"}
    rows = [route for route in GUARDED if route.path != "/metrics"]
    return sorted(rows, key=lambda route: 201 in route.returns or route.name in creating)


@pytest.fixture
async def recorded(
    serve: Serve, database: Database, tmp_path: Path
) -> AsyncIterator[tuple[Tenants, Recorder]]:
    """A service with two namespaces, and what it says to its database."""
    recorder = Recorder(database.service_url)
    port = await recorder.start()
    user, name = database.service_url.partition("@")[0], database.name
    through = {"GAPLESS_DATABASE_URL": f"{user}@127.0.0.1:{port}/{name}"}
    keys = str(file_of_keys(tmp_path))
    service = await asyncio.to_thread(lambda: serve(**through, GAPLESS_JWT_KEYS=keys))
    yield await tenants(service.url, database.owner_url), recorder
    await asyncio.to_thread(service.kill)
    await recorder.stop()


def at_least(seen: Sequence[Counter[str]]) -> Counter[str]:
    """What happened each time. What the service does beside a request is not in all of them."""
    least = seen[0]
    for one in seen[1:]:
        least = least & one
    return least


async def test_names_of_another_namespace_are_as_if_they_did_not_exist(
    recorded: tuple[Tenants, Recorder],
) -> None:
    """The answer is the same but for the name, after the same statements, and what is there stays."""
    here, recorder = recorded
    before = await here.objects()
    pairs = [
        (held, Named(f"void-{n}", NOWHERE.message + n, 10**12 + n, 10**12 + n, NOWHERE.receipt, f"{n:z>12d}"))
        for n, held in enumerate(here.held)
    ]
    recorder.texts.clear()
    await asyncio.sleep(2)
    beside = set(recorder.texts)
    count, statements, leaks = 0, 0, []
    async with http_client(here.url) as client:

        async def asked(named: Named, route: Route, form: int) -> tuple[Any, Counter[str]]:
            recorder.texts.clear()
            answer = await said(client, list(named.requests(route))[form], here.theirs)
            told = Counter(text for text in recorder.texts if text not in beside)
            return compared(answer, named), told

        for again in (False, True):
            for route in in_order():
                for form in range(len(list(NOWHERE.requests(route)))):
                    looked = pairs[: 1 if again else None]
                    both = [[await asked(named, route, form) for named in pair] for pair in looked]
                    count += len(both)
                    leaks += [(name_of(route), form, again, a, b) for (a, _), (b, _) in both if a != b]
                    there, nowhere = (at_least([pair[side][1] for pair in both]) for side in (0, 1))
                    statements += 0 if again else there.total()
                    if there != nowhere and not again:
                        leaks.append((name_of(route), form, again, there - nowhere, nowhere - there))
    assert leaks == []
    assert count >= (len(pairs) + 1) * len(in_order())
    assert statements >= len(in_order())
    print(f"{count} cases, {statements} statements")
    assert await here.objects() == before


async def test_an_admin_sees_no_metrics_of_another_namespace(here: Tenants) -> None:
    async with http_client(here.url) as client:

        async def metrics(key: str) -> str:
            return (await client.get("/metrics", headers=bearer(key))).text

        # They are read from the database every few seconds.
        await eventually(lambda: _holds(metrics(here.root), 'namespace="default"'))
        theirs = await metrics(here.theirs)
    assert "gapless_" in theirs
    assert not [line for line in theirs.split("\n") if "held-" in line or 'namespace="default"' in line]


async def _holds(told: Awaitable[str], text: str) -> bool:
    return text in await told


async def test_lists_hold_nothing_of_another_namespace(here: Tenants) -> None:
    """Nor do they to who was granted other names only."""
    elsewhere = await here.key(*Action, on=ELSEWHERE)
    lists = [
        route for route in GUARDED if route.method == "GET" and not route.places and route.face == "rest"
    ]
    assert len(lists) >= 7
    async with http_client(here.url) as client:
        for route in lists:
            for key in (here.theirs, elsewhere):
                answer = await client.get(route.path, headers=bearer(key))
                assert answer.status_code in (200, 403)
                if not (key == elsewhere and route.path == "/v1/keys"):
                    assert "held-" not in answer.text, route.path


# --- commands of the client protocol


NEEDS = {
    **dict.fromkeys(("subscribe", "history", "presence", "presence_stats"), Action.SUBSCRIBE),
    "publish": Action.PUBLISH,
    **dict.fromkeys(("consume", "ack", "nack", "release", "extend"), Action.CONSUME),
}
"""The action that each command needs; the others need none, as `test_grants` says."""
DENIED = 103


async def replies(here: Tenants, key: str, named: Named) -> list[tuple[str, dict[str, Any]]]:
    """What a client is told that sends each command about these names."""
    frames = await Frames.open(here.url, additional_headers=bearer(key))
    told = [(method, await frames.ask(method, **asked)) for method, asked in named.commands()]
    await frames.close()
    return told


def denied(told: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [method for method, reply in told if reply.get("error", {}).get("code") == DENIED]


async def test_a_command_needs_its_action_on_its_name(here: Tenants) -> None:
    assert set(NEEDS) == set(COMMANDS)
    before = await here.stored()
    methods = [method for method, _ in here.held[0].commands()]
    elsewhere = await here.key(*CLIENT_ACTIONS, on=ELSEWHERE)
    before = await here.stored()
    assert denied(await replies(here, elsewhere, here.held[0])) == methods
    assert await here.stored() == before
    for action, about in zip(CLIENT_ACTIONS, here.held, strict=True):
        others = await here.key(*(one for one in Action if one is not action))
        refused = denied(await replies(here, others, about))
        assert refused == [method for method in methods if NEEDS[method] is action]


async def test_a_command_says_nothing_of_another_namespace(recorded: tuple[Tenants, Recorder]) -> None:
    here, _ = recorded
    before = await here.objects()
    number = re.compile(r"[\w-]{20,}|\d+")
    held, nowhere = [
        [(method, number.sub("#", named.blank(str(reply)))) for method, reply in told]
        for named in (here.held[0], NOWHERE)
        for told in [await replies(here, here.theirs, named)]
    ]
    assert len(held) >= len(COMMANDS)
    assert held == nowhere
    assert await here.objects() == before


async def test_no_command_is_carried_out_without_a_good_credential(here: Tenants) -> None:
    before = await here.stored()
    counts = await asyncio.gather(
        *(_refused(here, f"127.0.1.{1 + at}", sent) for at, sent in enumerate(here.bad.values()))
    )
    print(f"{sum(counts)} cases")
    assert sum(counts) >= len(COMMANDS) * len(here.bad)
    assert await here.stored() == before


async def _refused(here: Tenants, address: str, sent: list[str]) -> int:
    """Send each command after a bad credential, from an address. How many were sent."""
    where = {"local_addr": (address, 0)}
    headers = [("Authorization", value) for value in sent]
    if sent:
        with pytest.raises(InvalidStatus) as refused:
            await Frames.open(here.url, connected=False, additional_headers=headers, **where)
        assert refused.value.response.status_code == 401
    commands = list(here.held[0].commands())
    for method, asked in commands:
        frames = await Frames.open(here.url, connected=False, **where)
        text = sent[0].partition(" ")[2] if len(sent) == 1 and sent[0].startswith("Bearer ") else ""
        await frames.send({"id": 1, "connect": {"token": text}}, {"id": 2, method: asked})
        said: list[dict[str, Any]] = []
        with suppress(ConnectionClosed):
            while not any(one.get("id") == 2 for one in said):
                said.append(await frames.next())
        await frames.close()
        assert all("error" in one for one in said), (sent, said)
    return len(commands)
